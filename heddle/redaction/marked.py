"""Which values a schema marks as sensitive: ``writeOnly: true`` and ``format: password``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Marks"]

Schema: TypeAlias = "dict[str, Any]"

# Keywords whose schemas judge the same value, and those that judge what is in it.
_SAME_ONE = ("not", "if", "then", "else")
_SAME_MANY = ("allOf", "anyOf", "oneOf")
_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("additionalItems", "unevaluatedItems", "contains")


class Marks:
    """The schemas that judge one value. They say whether it is marked, and which judge what is in it."""

    def __init__(self, root: Schema, schemas: Iterable[object]) -> None:
        self._root = root
        self._schemas = list(_expanded(root, schemas))

    @property
    def is_marked(self) -> bool:
        """Whether any schema marks the value."""
        return any(each.get("writeOnly") is True or each.get("format") == "password" for each in self._schemas)

    def member(self, name: str) -> Marks:
        """Return what judges the member of this name."""
        if not self._schemas:
            return self
        return Marks(self._root, (found for each in self._schemas for found in _of_member(each, name)))

    def item(self, index: int) -> Marks:
        """Return what judges the item at this place."""
        if not self._schemas:
            return self
        return Marks(self._root, (found for each in self._schemas for found in _of_item(each, index)))


def _expanded(root: Schema, schemas: Iterable[object]) -> Iterator[Schema]:
    """Yield schemas, and all that they say of the same value, each once."""
    waiting, seen = list(schemas), set[int]()
    while waiting:
        schema = waiting.pop()
        if not _is_schema(schema) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        waiting += [schema.get(keyword) for keyword in _SAME_ONE]
        waiting += [inner for keyword in _SAME_MANY for inner in _listed(schema.get(keyword))]
        waiting += _named(schema.get("dependentSchemas")).values()
        waiting += [_target(root, schema.get(keyword)) for keyword in ("$ref", "$dynamicRef", "$recursiveRef")]


def _of_member(schema: Schema, name: str) -> Iterator[object]:
    properties = _named(schema.get("properties"))
    if name in properties:
        yield properties[name]
    else:
        yield from (schema.get(keyword) for keyword in _MEMBERS)
    # Patterns are not tried, so that one cannot take long: what any of them marks is masked.
    yield from _named(schema.get("patternProperties")).values()


def _of_item(schema: Schema, index: int) -> Iterator[object]:
    items = schema.get("items")
    first = _listed(items) or _listed(schema.get("prefixItems"))
    if index < len(first):
        yield first[index]
    yield items
    yield from (schema.get(keyword) for keyword in _ITEMS)


def _target(root: Schema, reference: object) -> object:
    """Return what a reference inside the schema leads to; None where it leads nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    fragment = unquote(reference[1:])
    if fragment and not fragment.startswith("/"):
        return _anchored(root, fragment)
    found: object = root
    for token in fragment.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        parts = _named(found) or {str(index): item for index, item in enumerate(_listed(found))}
        found = parts.get(name)
    return found


def _anchored(root: Schema, name: str) -> Schema | None:
    """Return the schema that has this anchor."""
    for schema in _all_in(root):
        if name in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
            return schema
    return None


def _all_in(schema: object) -> Iterator[Schema]:
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if _is_schema(each):
            yield each
            waiting += each.values()
        waiting += _listed(each)


def _is_schema(value: object) -> TypeGuard[Schema]:
    return isinstance(value, dict)


def _named(value: object) -> Schema:
    return value if _is_schema(value) else {}


def _listed(value: object) -> list[Any]:
    return value if _is_list(value) else []


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
