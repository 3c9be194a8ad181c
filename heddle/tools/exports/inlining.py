"""Schemas without references: what each one leads to is put in its place."""

from __future__ import annotations

from typing import Any

from heddle.errors import DefinitionError
from heddle.tools import wording
from heddle.tools.jsontypes import is_array, is_object
from heddle.tools.subschemas import Outline, outline_of

__all__ = ["NEWEST_DRAFT", "dialect_of", "inlined"]

NEWEST_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# What says nothing of a value, so that it may stand beside whatever a reference leads to.
_ANNOTATIONS = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
# What only references have a use for.
_FOR_REFERENCES = frozenset({"$anchor", "$defs", "$dynamicAnchor", "$id", "$ref", "definitions"})
# 10,000: a hundred times what a model can make use of. A few lines of references to references can mean billions.
_MOST_PARTS = 10_000


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without references; it shares nothing with the original.

    Raises:
        DefinitionError: A schema holds itself, or it would become enormous. The place is named.
    """
    outline, _ = outline_of(schema, dialect_of(schema))
    try:
        whole: dict[str, Any] = _Inlining(outline).of(schema, ())
    except RecursionError:
        raise DefinitionError("with what its references lead to in their places it is nested too deeply") from None
    return whole


def dialect_of(schema: dict[str, Any]) -> str:
    """Return the name of the draft that a schema is written in."""
    return str(schema.get("$schema", NEWEST_DRAFT))


class _Inlining:
    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._parts = 0

    def of(self, value: Any, within: tuple[int, ...]) -> Any:
        """Return a value of a schema with every schema in it inlined.

        Args:
            value: A schema, or what holds some, or any other value.
            within: The targets of the references that led here.
        """
        if is_array(value):
            return [self.of(item, within) for item in value]
        if not is_object(value):
            return value
        found = self._outline.get(id(value))
        if found is None:
            return {key: self.of(item, within) for key, item in value.items()}
        self._count(found.path)
        own = {key: self.of(item, within) for key, item in value.items() if key not in _FOR_REFERENCES}
        if not found.targets:
            return own
        return _beside(self._target(value, within), own)

    def _target(self, schema: dict[str, Any], within: tuple[int, ...]) -> dict[str, Any]:
        found = self._outline[id(schema)]
        keyword, target = next(iter(found.targets.items()))
        place = wording.in_schema((*found.path, keyword))
        if keyword != "$ref":
            raise DefinitionError(f"at {place}: what it leads to depends on who asks, so it cannot be put in its place")
        if isinstance(target, bool):
            return {} if target else {"not": {}}
        if id(target) in within or target is schema:
            raise DefinitionError(
                f"at {place}: {wording.shown(schema[keyword])} holds itself, so it cannot be put in its place. Write "
                "out as many levels as are needed, or take what is nested as a text of JSON"
            )
        whole: dict[str, Any] = self.of(target, (*within, id(target)))
        return whole

    def _count(self, path: wording.Path) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            place = wording.in_schema(path)
            raise DefinitionError(
                f"{f'at {place}' if place else 'at its root'}: with what its references lead to in their places the "
                f"schema has more than {_MOST_PARTS:,} parts"
            )


def _beside(target: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return one schema for what a reference leads to and what stands beside it."""
    if own.keys() <= _ANNOTATIONS:
        return {**target, **own}
    # As one object they could mean something else: "additionalProperties" looks at the "properties" beside it.
    return {"allOf": [target], **own}
