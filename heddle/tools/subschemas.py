"""Every schema inside a schema, with its place and what its references lead to. Nothing is ever fetched."""

from __future__ import annotations

import graphlib
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import referencing
import referencing.jsonschema
from referencing.exceptions import Unresolvable

from heddle.errors import DefinitionError
from heddle.tools import wording
from heddle.tools.jsontypes import is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Outline", "Subschema", "outline_of"]

Path: TypeAlias = "tuple[str | int, ...]"

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Where schemas stand in a schema, in any draft: as one, as a list, under names.
_ONE = ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "extends", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LIST = ("allOf", "anyOf", "disallow", "extends", "items", "oneOf", "prefixItems", "type")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
# The keywords whose schemas judge the same value, not a part of it.
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies",
                         "extends", "disallow", "type"})  # fmt: skip


@attrs.frozen(eq=False)
class Subschema:
    """One schema inside another.

    Attributes:
        path: Its place.
        schema: As it is written.
        inner: The schemas directly in it: keyword, schema.
        targets: What its references lead to, by keyword.
    """

    path: Path
    schema: dict[str, Any]
    inner: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list[tuple[str, dict[str, Any]]])
    targets: dict[str, dict[str, Any] | bool] = attrs.field(factory=dict[str, dict[str, Any] | bool])


Outline: TypeAlias = "dict[int, Subschema]"


def outline_of(root: dict[str, Any], dialect: str) -> tuple[Outline, list[Subschema]]:
    """Return all schemas in `root` by identity, and those that only a reference makes one.

    Raises:
        DefinitionError: A reference leads out of the schema or to something that is no schema; a cycle.
    """
    specification: Any = referencing.jsonschema.specification_with(dialect)
    resolver: Any = referencing.Registry[Any]().resolver_with_root(specification.create_resource(root))
    waiting: list[tuple[Path, dict[str, Any], Any]] = [((), root, resolver)]
    pointed: list[tuple[Path, dict[str, Any], Any]] = []
    outline: Outline = {}
    by_reference: list[Subschema] = []
    while waiting or pointed:
        referred = not waiting
        path, schema, resolver = (pointed if referred else waiting).pop()
        if id(schema) in outline:
            continue
        found = outline[id(schema)] = Subschema(path, schema)
        if referred:
            by_reference.append(found)
        for keyword, place, inner in _directly_in(schema):
            found.inner.append((keyword, inner))
            waiting.append(((*path, *place), inner, resolver.in_subresource(specification.create_resource(inner))))
        for keyword in _REFERENCES:
            if keyword in schema:
                target, its_resolver = _resolved(schema[keyword], resolver, (*path, keyword))
                found.targets[keyword] = target
                if isinstance(target, dict):
                    pointed.append(((*path, keyword), target, its_resolver))
    _refuse_cycles(outline)
    return outline, by_reference


def _directly_in(schema: Mapping[str, Any]) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Yield the keyword, the place and the schema of each one directly in `schema` that is more than a boolean."""
    for keyword in _ONE:
        if isinstance(schema.get(keyword), dict):
            yield keyword, (keyword,), schema[keyword]
    for keyword in _LIST:
        if isinstance(schema.get(keyword), list):
            for place, inner in enumerate(schema[keyword]):
                if isinstance(inner, dict):
                    yield keyword, (keyword, place), inner
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), dict):
            for name, inner in schema[keyword].items():
                if isinstance(inner, dict):
                    yield keyword, (keyword, name), inner


def _resolved(reference: str, resolver: Any, path: Path) -> tuple[dict[str, Any] | bool, Any]:
    try:
        resolved = resolver.lookup(reference)
    except (Unresolvable, ValueError, TypeError, LookupError):
        raise DefinitionError(
            f"at {wording.in_schema(path)}: {wording.shown(reference)} leads to nothing inside the schema, and nothing "
            "is ever fetched. Put what it means under $defs"
        ) from None
    contents: Any = resolved.contents
    if not is_object(contents) and not isinstance(contents, bool):
        raise DefinitionError(
            f"at {wording.in_schema(path)}: {wording.shown(reference)} leads to something that is no schema"
        )
    return contents, resolved.resolver


def _refuse_cycles(outline: Outline) -> None:
    """Refuse schemas that come back to themselves while they still judge the same value."""
    anchored: dict[str, list[int]] = {}
    for key, found in outline.items():
        if "$dynamicAnchor" in found.schema:
            anchored.setdefault(found.schema["$dynamicAnchor"], []).append(key)
    graph = {key: set(_same_value(found, anchored)) for key, found in outline.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        place = wording.in_schema(outline[error.args[1][0]].path)
        raise DefinitionError(
            f"{f'at {place}' if place else 'at its root'}: the schema refers to itself without going into a property "
            "or an item, so that checking a value would never end"
        ) from None


def _same_value(found: Subschema, anchored: Mapping[str, list[int]]) -> Iterator[int]:
    for keyword, inner in found.inner:
        if keyword in _SAME_VALUE:
            yield id(inner)
    for keyword, target in found.targets.items():
        if isinstance(target, dict):
            yield id(target)
        if keyword == "$dynamicRef":
            name = found.schema[keyword].rpartition("#")[2]
            yield from anchored.get(name, ())
