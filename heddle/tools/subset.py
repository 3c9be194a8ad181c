"""The strict subset of JSON Schema 2020-12 in which manifests describe arguments and data.

A schema in it stands for itself: it refers to nothing but its own parts, by JSON pointers, and says nothing in keywords
that another reader may not know. What is wrong inside the subset is for `heddle.tools.schemas` to say.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from heddle.tools.documents import Step, excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from heddle.strictjson import JSON
    from heddle.tools.sections import Section

__all__ = ["refuse_beyond_subset"]

Way: TypeAlias = "tuple[Step, ...]"

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Where schemas stand in a schema: as one, as a list, under names.
_ONE = ("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("$defs", "dependentSchemas", "patternProperties", "properties")
_KEYWORDS = (*_ONE, *_LIST, *_NAMED, "$comment", "$ref", "const", "contentEncoding", "contentMediaType", "default",
             "dependentRequired", "deprecated", "description", "enum", "examples", "exclusiveMaximum",
             "exclusiveMinimum", "format", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
             "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern", "readOnly",
             "required", "title", "type", "uniqueItems", "writeOnly")  # fmt: skip
# The root alone may say what it is.
_OF_THE_ROOT = ("$id", "$schema")

_BY_POINTER = 'refer to a part of this schema by a JSON pointer: {"$ref": "#/$defs/NAME"}'
_INSTEAD = {
    "$anchor": _BY_POINTER,
    "$dynamicAnchor": _BY_POINTER,
    "$dynamicRef": _BY_POINTER,
    "$id": "only the root may have it",
    "$recursiveAnchor": _BY_POINTER,
    "$recursiveRef": _BY_POINTER,
    "$schema": "only the root may have it",
    "$vocabulary": "leave it out",
    "definitions": "write $defs",
    "dependencies": "write dependentRequired or dependentSchemas",
    "nullable": 'write "null" among the types: {"type": ["string", "null"]}',
}


def refuse_beyond_subset(schema: Section) -> None:
    """Note, each with its line, whatever in `schema` lies outside of the subset."""
    places = dict(_schemas_in(schema.value))
    pointers = {tuple(map(str, way)) for way in places}
    for way, inner in places.items():
        if isinstance(inner, dict):
            _refuse_keywords(schema, way, inner)
            _refuse_reference(schema, way, inner.get("$ref"), pointers)
    dialect = schema.value.get("$schema", DIALECT)
    if dialect not in {DIALECT, f"{DIALECT}#"}:
        _refuse(schema, ("$schema",), f'there may be "{DIALECT}", or nothing')


def _schemas_in(root: Mapping[str, JSON]) -> Iterator[tuple[Way, JSON]]:
    """Yield every schema in `root`, itself included, after the way to it."""
    waiting: list[tuple[Way, JSON]] = [((), dict(root))]
    while waiting:
        way, schema = waiting.pop()
        yield way, schema
        if isinstance(schema, dict):
            waiting.extend(((*way, *place), inner) for place, inner in _directly_in(schema))


def _directly_in(schema: Mapping[str, JSON]) -> Iterator[tuple[Way, JSON]]:
    for keyword in _ONE:
        if keyword in schema:
            yield (keyword,), schema[keyword]
    for keyword in _LIST:
        inner = schema.get(keyword)
        if isinstance(inner, list):
            yield from (((keyword, place), each) for place, each in enumerate(inner))
    for keyword in _NAMED:
        inner = schema.get(keyword)
        if isinstance(inner, dict):
            yield from (((keyword, name), each) for name, each in inner.items())


def _refuse_keywords(schema: Section, way: Way, inner: Mapping[str, JSON]) -> None:
    for keyword in inner:
        if keyword in _KEYWORDS or (not way and keyword in _OF_THE_ROOT):
            continue
        if keyword in _INSTEAD:
            _refuse(schema, (*way, keyword), f"not read in the schemas of a manifest; {_INSTEAD[keyword]}")
            continue
        near = difflib.get_close_matches(keyword[:100], _KEYWORDS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "keywords of your own are not read; say it in $comment"
        _refuse(schema, (*way, keyword), f'unknown keyword "{excerpt(keyword)}"; {hint}')


def _refuse_reference(schema: Section, way: Way, reference: JSON, pointers: set[tuple[str, ...]]) -> None:
    if not isinstance(reference, str):
        return
    if reference != "#" and not reference.startswith("#/"):
        _refuse(schema, (*way, "$ref"), f'"{excerpt(reference)}" leads out of the schema; {_BY_POINTER}')
    elif _steps_of(reference) not in pointers:
        said = f'"{excerpt(reference)}" leads to no schema in this one; put what it means under $defs'
        _refuse(schema, (*way, "$ref"), said)


def _refuse(schema: Section, way: Way, problem: str) -> None:
    schema.refuse(f"{schema.label(*way)}: {problem}", *way)


def _steps_of(reference: str) -> tuple[str, ...]:
    """Return the steps of a local reference. Source: RFC 6901, sections 4 and 6."""
    pointer = unquote(reference[1:])
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
