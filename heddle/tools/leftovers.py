"""The keywords for what others leave over: further properties, properties by pattern, items that nothing describes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from heddle.tools import wording
from heddle.tools.faults import Faults, Keyword, fault
from heddle.tools.jsontypes import is_array, is_object
from heddle.tools.patterns import SafePattern, safe_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "additional_properties",
    "pattern_properties",
    "property_names",
    "unevaluated_items",
    "unevaluated_properties",
]

# 4,096 items: telling which of them a schema has looked at takes quadratic time.
_MOST_UNEVALUATED = 4096
# 20 names are compared with the known ones; with more, it was not a slip of the pen.
_MOST_COMPARED = 20


def pattern_properties(validator: Any, by_pattern: Any, instance: Any, _schema: Any) -> Faults:
    """Judge the properties whose names match a pattern; a name too long to be tried is a fault."""
    if not is_object(instance):
        return
    for text, subschema in by_pattern.items():
        pattern = safe_pattern(text)
        for name, value in instance.items():
            if len(name) > pattern.longest:
                yield fault(f"its name {wording.too_long(len(name), pattern)}", name)
            elif pattern.search(name) and subschema is False:
                yield fault(wording.REFUSED, name)
            elif pattern.search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=text)


def additional_properties(noun: str) -> Keyword:
    """Return the keyword; `noun` is what a property is called."""

    def keyword(validator: Any, allowed: Any, instance: Any, schema: Any) -> Faults:
        if not is_object(instance) or allowed is True:
            return
        unknown = 0
        known = schema.get("properties", {})
        patterns = [safe_pattern(text) for text in schema.get("patternProperties", ())]
        for name, value in instance.items():
            if name in known or any(_may_match(pattern, name) for pattern in patterns):
                continue
            if allowed is False:
                unknown += 1
                yield fault(_not_known(name, known, noun, unknown), name)
            else:
                yield from validator.descend(value, allowed, path=name)

    return keyword


def _not_known(name: str, known: Mapping[str, object], noun: str, number: int) -> str:
    return wording.not_known(name, list(known), noun) if number <= _MOST_COMPARED else f"is not a known {noun}"


def _may_match(pattern: SafePattern, name: str) -> bool:
    # A name too long to be tried is patternProperties' fault already.
    return len(name) > pattern.longest or bool(pattern.search(name))


class _Recorder:
    """Stands for a validator, and notes which properties jsonschema finds unevaluated instead of judging them."""

    def __init__(self, validator: Any, subschema: Any) -> None:
        self.validator = validator
        self.subschema = subschema
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.validator, name)

    def descend(self, instance: Any, schema: Any, path: Any = None, schema_path: Any = None) -> Faults:
        if schema is self.subschema and path is not None:
            self.names.append(path)
            return iter(())
        errors: Faults = self.validator.descend(instance, schema, path=path, schema_path=schema_path)
        return errors


def unevaluated_properties(base: Keyword, noun: str, longest_name: int) -> Keyword:
    """Return the keyword, which leaves the search to jsonschema's own one, `base`.

    Args:
        base: It tries names on patterns, whatever their length.
        noun: What a property is called.
        longest_name: The longest name that it gets to see.
    """

    def keyword(validator: Any, allowed: Any, instance: Any, schema: Any) -> Faults:
        if not is_object(instance):
            return
        for name in instance:
            if len(name) > longest_name:
                yield fault(
                    f"its name has {len(name):,} characters, and a pattern is only tried on {longest_name:,}", name
                )
        recorder = _Recorder(validator, allowed)
        short = {name: value for name, value in instance.items() if len(name) <= longest_name}
        for _ in base(recorder, allowed, short, schema):
            pass  # it finds nothing, because the recorder does not judge
        for number, name in enumerate(recorder.names, start=1):
            if allowed is False:
                yield fault(_not_known(name, schema.get("properties", {}), noun, number), name)
            else:
                yield from validator.descend(instance[name], allowed, path=name)

    return keyword


def unevaluated_items(base: Keyword) -> Keyword:
    """Return the keyword, which leaves the search to jsonschema's own one, `base`."""

    def keyword(validator: Any, allowed: Any, instance: Any, schema: Any) -> Faults:
        if not is_array(instance):
            return
        if len(instance) > _MOST_UNEVALUATED:
            yield fault(f"has {len(instance):,} items, and only {_MOST_UNEVALUATED:,} can be told apart here")
            return
        for _ in base(validator, allowed, instance, schema):
            yield fault("has items that nothing in the schema describes")

    return keyword


def property_names(validator: Any, subschema: Any, instance: Any, _schema: Any) -> Faults:
    """Judge each name as if it were a value."""
    for name in instance if is_object(instance) else ():
        for error in itertools.islice(validator.descend(name, subschema), 1):
            yield fault(f"is no name that is allowed here: it {error.message}", name)
