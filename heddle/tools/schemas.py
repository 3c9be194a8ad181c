"""JSON Schema, compiled once: what is wrong with a schema is said when it is compiled, what is wrong with a value then.

Nothing is ever fetched, and no value makes a check run on without an end.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import referencing
from jsonschema import exceptions, validators

from heddle import strictjson
from heddle.errors import DefinitionError, StrictJsonError
from heddle.tools import wording
from heddle.tools.defaults import Defaults
from heddle.tools.definition import Violation
from heddle.tools.faults import violation_of
from heddle.tools.keywords import in_our_words
from heddle.tools.patterns import LONGEST, SafePattern, safe_pattern
from heddle.tools.quick import quick_check
from heddle.tools.subschemas import Outline, outline_of

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["SchemaChecker"]

_known_draft: Callable[..., Any] = functools.partial(cast("Any", validators.validator_for), default=None)
_best_match: Callable[..., Any] = cast("Any", exceptions).best_match
_TOO_DEEP = "is nested too deeply to be checked"


class SchemaChecker:
    """Judges values by one JSON Schema: 2020-12, or the draft that its ``$schema`` names.

    It keeps a copy of the schema, so what becomes of the original does not matter.
    """

    def __init__(
        self, schema: Mapping[str, Any] | bool, *, what: str, root: Literal["object", "any"] = "object"
    ) -> None:
        """Compile `schema`.

        Args:
            schema: True and False are possible where `root` is ``any``.
            what: What an error calls it: ``input schema``.
            root: What it must describe.

        Raises:
            DefinitionError: The schema is wrong; the place in it is named.
        """
        try:
            self._compile(_own_copy(schema, root), "argument" if root == "object" else "field")
        except DefinitionError as error:
            raise DefinitionError(f"{what}{', ' if str(error).startswith('at ') else ': '}{error}") from None
        except RecursionError:
            raise DefinitionError(f"{what}: {_TOO_DEEP}") from None
        except ValueError as error:  # of the parts of a URI, where one is no URI
            raise DefinitionError(f"{what}: it names a schema by what is no URI: {error}") from None

    def _compile(self, schema: dict[str, Any], noun: str) -> None:
        base = _draft(schema)
        _refuse_malformed(schema, base)
        outline, by_reference = outline_of(schema, base.ID_OF(base.META_SCHEMA))
        for found in by_reference:
            _refuse_malformed(found.schema, base, found.path)
        _keep_to_one_draft(outline, base)
        longest_name, is_slow = _check_patterns(outline)
        self.is_slow: bool = is_slow
        self._defaults = Defaults(schema, outline)
        newest = base is validators.Draft202012Validator
        self._quick = quick_check(schema, outline) if newest else None
        self._validator = in_our_words(base, noun, longest_name)(schema, registry=referencing.Registry[Any]())

    def check(self, value: JSON) -> tuple[JSON, tuple[Violation, ...]]:
        """Return `value` with its defaults filled in, and what is wrong with it then. `value` stays as it was."""
        filled = self.filled(value)
        return filled, self.violations(filled)

    def filled(self, value: JSON) -> JSON:
        """Return `value` with the defaults of absent optional properties; the value itself where there are none."""
        return self._defaults.filled(value)

    def violations(self, value: JSON) -> tuple[Violation, ...]:
        """Return what is wrong with `value` as it is: at most 100, and one that counts the others."""
        try:
            if self._quick is not None and self._quick(value):
                return ()
            return wording.listed(map(violation_of, self._validator.iter_errors(value)))
        except RecursionError:
            return (Violation("", "nesting", _TOO_DEEP),)


def _own_copy(schema: object, root: Literal["object", "any"]) -> dict[str, Any]:
    if isinstance(schema, bool) and root == "any":
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        raise DefinitionError(f"must be an object{' or a boolean' if root == 'any' else ''}, not {schema!r:.60}")
    try:
        copy: dict[str, Any] = strictjson.normalized(schema)  # type: ignore[assignment]
    except StrictJsonError as error:
        raise DefinitionError(f"is not JSON: {error}") from None
    if root == "object" and copy.get("type", "object") != "object":
        raise DefinitionError(
            f'at type: must be "object", because arguments are one, not {wording.shown(copy["type"])}'
        )
    return copy


def _draft(schema: dict[str, Any]) -> Any:
    """Return jsonschema's validator class for the draft that `schema` names."""
    name = schema.get("$schema")
    if name is None:
        return validators.Draft202012Validator
    base: Any = _known_draft(schema) if isinstance(name, str) else None
    if base is None:
        newest = validators.Draft202012Validator.META_SCHEMA["$id"]
        raise DefinitionError(f'at $schema: {wording.shown(name)} is not known. Use "{newest}", or leave it out')
    return base


def _refuse_malformed(schema: dict[str, Any], base: Any, path: wording.Path = ()) -> None:
    """Hold `schema` against its draft's own schema."""
    fault = _fault_by_draft(json.dumps(schema), base)
    if fault is not None:
        place = wording.in_schema((*path, *fault[0]))
        raise DefinitionError(f"at {place}: {fault[1]}" if place else fault[1])


@functools.lru_cache(maxsize=256)
def _fault_by_draft(text: str, base: Any) -> tuple[wording.Path, str] | None:
    # It takes milliseconds, and catalogues hold many equal schemas.
    errors = itertools.islice(base(base.META_SCHEMA).iter_errors(json.loads(text)), wording.MOST_VIOLATIONS)
    error: Any = _best_match(errors)
    if error is None:
        return None
    if error.validator == "type":
        wanted = error.validator_value
        message = wording.wrong_type([wanted] if isinstance(wanted, str) else wanted, error.instance)
    elif error.validator == "enum":
        message = wording.not_one_of(error.validator_value)
    else:
        message = f"cannot be {wording.shown(error.instance)} ({error.validator} of the draft's own schema)"
    return tuple(error.absolute_path), message


def _keep_to_one_draft(outline: Outline, base: Any) -> None:
    for found in outline.values():
        # jsonschema would go on with its own keywords where it meets a draft's name, so none is left in our copy.
        if "$schema" in found.schema and _draft(found.schema) is not base:
            raise DefinitionError(f"at {wording.in_schema((*found.path, '$schema'))}: a schema cannot mix drafts")
        found.schema.pop("$schema", None)
        types = found.schema.get("type", ())
        for name in [types] if isinstance(types, str) else types:
            if isinstance(name, str) and not _is_type(name, base):
                raise DefinitionError(
                    f"at {wording.in_schema((*found.path, 'type'))}: {wording.shown(name)} is not a type"
                )


def _is_type(name: str, base: Any) -> bool:
    try:
        base.TYPE_CHECKER.is_type(None, name)
    except exceptions.UndefinedTypeCheck:
        return False
    return True


def _check_patterns(outline: Outline) -> tuple[int, bool]:
    """Refuse patterns that are not safe.

    Returns:
        The longest property name that every pattern may be tried on, and whether any takes more than linear time.
    """
    for_names: list[SafePattern] = []
    for_texts: list[SafePattern] = []
    for found in outline.values():
        by_name: Iterable[str] = found.schema.get("patternProperties", ())
        for_names += [_checked(text, (*found.path, "patternProperties")) for text in by_name]
        if "pattern" in found.schema:
            for_texts.append(_checked(found.schema["pattern"], (*found.path, "pattern")))
    longest = min((pattern.longest for pattern in for_names), default=LONGEST[1])
    return longest, any(pattern.cost > 1 for pattern in [*for_names, *for_texts])


def _checked(text: str, path: wording.Path) -> SafePattern:
    try:
        return safe_pattern(text)
    except DefinitionError as error:
        raise DefinitionError(f"at {wording.in_schema(path)}: {error}") from None
