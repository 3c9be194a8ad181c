"""Arguments in field form: what is published of them, how they are judged, and how they are read from a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import attrs

from heddle import strictjson
from heddle.errors import DefinitionError, StrictJsonError
from heddle.tools import wording
from heddle.tools.definition import UNSET, FieldDef, Notice, ToolDef, Unset, Violation
from heddle.tools.jsontypes import copied, is_mapping

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["FieldChecker", "field_notices", "fields_from_document", "schema_of", "unchecked_types"]

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array"})
# What JSON Schema 2020-12 knows as a format of strings, apart from patterns, pointers and templates.
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6",
                      "iri", "iri-reference", "time", "uri", "uri-reference", "uuid"})  # fmt: skip
_PYTHON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array",
                 "dict": "object"}  # fmt: skip
# 60 levels: each takes two of a schema, of which JSON lets there be 128.
_DEEPEST = 60
_KEYS = ("type", "description", "required", "default", "enum", "fields", "items")


def schema_of(fields: Mapping[str, FieldDef]) -> dict[str, Any]:
    """Return the JSON Schema that is published for `fields`: an object's, with the properties in their order.

    Raises:
        DefinitionError: A field is not well formed; it is named.
    """
    return _object_schema(_own_copy(fields, ()))


def field_notices(tool: ToolDef) -> Iterator[Notice]:
    """Yield what the author of a tool's fields would want to know: what checks nothing, and what is never used."""
    fields = tool.input_fields or {}
    for place, word, meant in unchecked_types(fields):
        if meant:
            yield Notice(tool.origin, "unknown_type", f'{place}: type "{word}" checks nothing; did you mean "{meant}"?')
    for place in _idle_defaults(fields, ()):
        said = f"{place}: it is required, so that its default is never used; remove one of them"
        yield Notice(tool.origin, "idle_default", said)


def _idle_defaults(fields: Mapping[str, FieldDef], path: wording.Path) -> Iterator[str]:
    for name, field in fields.items():
        here = (*path, name)
        if field.required and field.default is not UNSET:
            yield wording.at(here)
        yield from _idle_defaults(field.fields or {}, here)
        if field.items is not None:
            yield from _idle_defaults({"items": field.items}, here)


def unchecked_types(fields: Mapping[str, FieldDef], path: wording.Path = ()) -> Iterator[tuple[str, str, str]]:
    """Yield the fields whose type is not known, so that everything passes: where, the word, and the one that was meant.

    The last is empty where nothing is close.
    """
    for name, field in fields.items():
        here = (*path, name)
        if field.type not in _TYPES | _FORMATS:
            meant = _PYTHON_TYPES.get(field.type) or wording.near(field.type, sorted(_TYPES)) or ""
            yield wording.at(here), field.type, meant
        yield from unchecked_types(field.fields or {}, here)
        if field.items is not None:
            yield from unchecked_types({"items": field.items}, here)


def _object_schema(fields: Mapping[str, FieldDef]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _field_schema(field) for name, field in fields.items()},
    }
    required = [name for name, field in fields.items() if field.required]
    return {**schema, "required": required} if required else schema


def _field_schema(field: FieldDef) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if field.type in _TYPES:
        schema["type"] = field.type
    elif field.type in _FORMATS:
        schema |= {"type": "string", "format": field.type}
    if field.description:
        schema["description"] = field.description
    if field.fields is not None:
        schema |= _object_schema(field.fields)
    if field.items is not None:
        schema["items"] = _field_schema(field.items)
    if field.enum is not None:
        schema["enum"] = copied(list(field.enum))
    if not isinstance(field.default, Unset):
        schema["default"] = copied(field.default)
    return schema


def _own_copy(fields: Mapping[str, FieldDef], path: wording.Path) -> dict[str, FieldDef]:
    """Return a checked copy that shares nothing that can be changed."""
    given: Mapping[Any, Any] = fields
    for name, field in given.items():
        if not isinstance(name, str) or not name or not isinstance(field, FieldDef):
            raise _malformed(path, f"must hold fields by name, not {name!r:.60}: {field!r:.60}")
    return {name: _own_field(field, (*path, name)) for name, field in fields.items()}


def _own_field(field: FieldDef, path: wording.Path) -> FieldDef:
    _refuse_deep(path)
    wrong = _wrong_part(field)
    if wrong:
        raise _malformed(path, wrong)
    return attrs.evolve(
        field,
        enum=None if field.enum is None else _as_json(list(field.enum), "enum", path),
        default=UNSET if isinstance(field.default, Unset) else _as_json(field.default, "default", path),
        fields=None if field.fields is None else _own_copy(field.fields, path),
        items=None if field.items is None else _own_field(field.items, (*path, "items")),
    )


def _wrong_part(field: FieldDef) -> str | None:
    """Say what is wrong with the parts of `field`, as far as their types and their company go."""
    parts: tuple[tuple[str, object, type | tuple[type, ...]], ...] = (
        ("type", field.type, str),
        ("description", field.description, str),
        ("required", field.required, bool),
        ("enum", field.enum, (list, tuple, type(None))),
        ("fields", field.fields, (Mapping, type(None))),
        ("items", field.items, (FieldDef, type(None))),
    )
    for name, part, kinds in parts:
        if not isinstance(part, kinds):
            return f"its {name} cannot be {part!r:.60}"
    if not field.type:
        return "its type is empty"
    if field.enum is not None and not field.enum:
        return "its enum is empty, so that nothing could be given"
    for name, part, owner in (("fields", field.fields, "object"), ("items", field.items, "array")):
        if part is not None and field.type != owner:
            return f'only the type "{owner}" has {name}, not "{field.type}"'
    return None


def _as_json(value: object, name: str, path: wording.Path) -> Any:
    try:
        return strictjson.normalized(value)
    except StrictJsonError as error:
        raise _malformed(path, f"its {name} is not JSON: {error}") from None


def _refuse_deep(path: wording.Path) -> None:
    if len(path) > _DEEPEST:
        raise _malformed(path[:3], f"is nested more than {_DEEPEST} levels deep")


def _malformed(path: wording.Path, wrong: str) -> DefinitionError:
    return DefinitionError(f"field {wording.at(path)}: {wrong}" if path else f"the fields: {wrong}")


class FieldChecker:
    """Judges objects by `fields`, leniently: what is not declared passes, and so does what has an unknown type.

    Null counts as absent. A boolean is never a number.
    """

    is_slow = False

    def __init__(self, fields: Mapping[str, FieldDef], *, strict: bool) -> None:
        """Check `fields`.

        Args:
            fields: In the order in which they are judged.
            strict: A number with a fraction is no ``integer``.

        Raises:
            DefinitionError: A field is not well formed, or has a default that it would not let pass; it is named.
        """
        self._fields = _own_copy(fields, ())
        self._strict = strict
        self._refuse_defaults(self._fields, ())

    def check(self, value: JSON) -> tuple[JSON, tuple[Violation, ...]]:
        """Return `value` with its defaults filled in, and what is wrong with it then. `value` stays as it was."""
        filled = self.filled(value)
        return filled, self.violations(filled)

    def filled(self, value: JSON) -> JSON:
        """Return `value` with the defaults of absent optional fields, and without the null of others."""
        return _filled_object(self._fields, value) if isinstance(value, dict) else value

    def violations(self, value: JSON) -> tuple[Violation, ...]:
        """Return what is wrong with `value` as it is: at most 100, and one that counts the others."""
        if not isinstance(value, dict):
            return (Violation("", "type", wording.wrong_type(["object"], value)),)
        return wording.listed(self._in_object(self._fields, value, ()))

    def _refuse_defaults(self, fields: Mapping[str, FieldDef], path: wording.Path) -> None:
        for name, field in fields.items():
            here = (*path, name)
            if field.default is not UNSET and field.default is not None:
                filled = _filled_field(field, cast("JSON", field.default))
                for violation in self._in_field(field, filled, ()):
                    raise _malformed(here, f"its default would not pass: {violation}")
            self._refuse_defaults(field.fields or {}, here)
            if field.items is not None:
                self._refuse_defaults({"items": field.items}, here)

    def _in_object(
        self, fields: Mapping[str, FieldDef], value: dict[str, JSON], path: wording.Path
    ) -> Iterator[Violation]:
        for name, field in fields.items():
            if field.required and value.get(name) is None:
                null = " and cannot be null" if name in value else ""
                yield Violation(wording.at((*path, name)), "required", f"{wording.REQUIRED}{null}")
        for name, field in fields.items():
            if value.get(name) is not None:
                yield from self._in_field(field, value[name], (*path, name))

    def _in_field(self, field: FieldDef, value: JSON, path: wording.Path) -> Iterator[Violation]:
        if not self._has_type(field.type, value):
            yield Violation(wording.at(path), "type", wording.wrong_type([field.type], value))
            return
        if field.enum is not None and not any(strictjson.same(each, value) for each in field.enum):
            yield Violation(wording.at(path), "enum", wording.not_one_of(field.enum))
        if field.fields is not None and isinstance(value, dict):
            yield from self._in_object(field.fields, value, path)
        if field.items is not None and isinstance(value, list):
            for place, item in enumerate(value):
                yield from self._in_field(field.items, item, (*path, place))

    def _has_type(self, name: str, value: JSON) -> bool:
        match name:
            case "string":
                return isinstance(value, str)
            case "boolean":
                return isinstance(value, bool)
            case "object":
                return isinstance(value, dict)
            case "array":
                return isinstance(value, list)
            case "number" | "integer":
                return self._is_number(name, value)
            case _:
                return True

    def _is_number(self, name: str, value: JSON) -> bool:
        if isinstance(value, float):
            whole = name == "number" or not self._strict or value.is_integer()
            return math.isfinite(value) and whole
        return isinstance(value, int) and not isinstance(value, bool)


def _filled_object(fields: Mapping[str, FieldDef], value: dict[str, JSON]) -> dict[str, JSON]:
    filled = dict(value)
    changed = False
    for name, field in fields.items():
        item = value.get(name)
        if item is None and not field.required:
            if not isinstance(field.default, Unset):
                filled[name] = _filled_field(field, copied(field.default))
                changed = True
            elif name in filled:
                del filled[name]
                changed = True
        elif item is not None:
            filled[name] = _filled_field(field, item)
            changed = changed or filled[name] is not item
    return filled if changed else value


def _filled_field(field: FieldDef, value: JSON) -> JSON:
    if field.fields is not None and isinstance(value, dict):
        return _filled_object(field.fields, value)
    if field.items is not None and isinstance(value, list):
        items = [_filled_field(field.items, item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def fields_from_document(document: object, *, where: str) -> dict[str, FieldDef]:
    """Return the fields that `document` declares: a mapping of names to their parts.

    Args:
        document: As it was read from YAML or JSON.
        where: What an error calls it: ``tools/pay.tool.yaml, input``.

    Raises:
        DefinitionError: Something in it is not a field; the place and, for a mistyped key, the nearest one are named.
    """
    try:
        fields = _fields_in(document, ())
        schema_of(fields)
    except DefinitionError as error:
        raise DefinitionError(f"{where}: {error}") from None
    return fields


def _fields_in(document: object, path: wording.Path) -> dict[str, FieldDef]:
    if not is_mapping(document):
        raise _malformed(path, f"must hold fields by name, not {document!r:.60}")
    fields: dict[str, FieldDef] = {}
    for name, parts in document.items():
        if not isinstance(name, str):
            raise _malformed(path, f"a field's name must be a string, not {name!r:.60}")
        fields[name] = _field_in(parts, (*path, name))
    return fields


def _field_in(document: object, path: wording.Path) -> FieldDef:
    _refuse_deep(path)
    if not is_mapping(document):
        raise _malformed(path, f"must hold its type and other parts by name, not {document!r:.60}")
    for key in document:
        if key not in _KEYS:
            near = wording.near(str(key), _KEYS)
            hint = f'did you mean "{near}"?' if near else f"known are {', '.join(_KEYS)}"
            raise _malformed(path, f"unknown key {str(key)!r:.60}; {hint}")
    if "type" not in document:
        raise _malformed(path, "its type is missing")
    parts: dict[str, Any] = dict(document)
    if parts.get("fields") is not None:
        parts["fields"] = _fields_in(parts["fields"], path)
    if parts.get("items") is not None:
        parts["items"] = _field_in(parts["items"], (*path, "items"))
    return FieldDef(**parts)
