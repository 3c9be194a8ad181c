"""Shapes with named parts: a class's fields and a function's parameters, and the schema of what contains itself."""
# ruff: noqa: D102

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import attrs

from heddle.errors import StrictJsonError
from heddle.strictjson import JSON, normalized
from heddle.tools.definition import UNSET, Unset
from heddle.tools.shapes import Array, Choice, Described, Either, Row, Scalar, Schema, Shape, is_object
from heddle.tools.structuring import ArgumentsRefused, to_json

__all__ = ["Definitions", "Field", "Record", "hashable", "schema_of"]


@attrs.frozen
class Field:
    """One named value of a record.

    Attributes:
        name: Its name in JSON and in the constructor.
        default: What Python takes where it is absent; published if JSON can say it. `UNSET`: there is none to publish.
    """

    name: str
    shape: Shape
    required: bool = True
    default: object = UNSET
    description: str = ""

    def schema(self, definitions: Definitions) -> Schema:
        schema = self.shape.schema(definitions)
        if self.description and "description" not in schema:
            schema = {**schema, "description": self.description}
        default = UNSET if self.default is UNSET else _published(self.shape, self.default)
        return schema if default is UNSET else {**schema, "default": default}


@attrs.define(eq=False)
class Record:
    """An object with known names: a class's fields, or a function's parameters. It may contain itself.

    Attributes:
        build: Called with the fields by name.
        rest: The shape of every other name; None: there may be no other.
        recursive: Whether it was met inside itself, so that its schema must be referred to.
    """

    name: str
    build: Callable[..., Any] = dict
    fields: tuple[Field, ...] = attrs.field(default=(), repr=False)
    rest: Shape | None = None
    recursive: bool = False

    @property
    def plain(self) -> bool:
        shapes = [field.shape for field in self.fields] + ([] if self.rest is None else [self.rest])
        return self.build is dict and not self.recursive and all(shape.plain for shape in shapes)

    def schema(self, definitions: Definitions) -> Schema:
        return definitions.reference(self) if self.recursive else self.inline(definitions)

    def inline(self, definitions: Definitions) -> Schema:
        """Return the schema itself, where `schema` may give a reference."""
        required = [field.name for field in self.fields if field.required]
        return {
            "type": "object",
            "properties": {field.name: field.schema(definitions) for field in self.fields},
            **({"required": required} if required else {}),
            "additionalProperties": False if self.rest is None else self.rest.schema(definitions) or True,
        }

    def accepts(self, value: object) -> bool:
        if not is_object(value) or any(field.required and field.name not in value for field in self.fields):
            return False
        shapes = {field.name: field.shape for field in self.fields}
        return all(name in shapes and shapes[name].accepts(item) for name, item in value.items())


class Definitions:
    """The ``$defs`` of one schema: the records that contain themselves, each under a name of its own."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._names: dict[Record, str] = {}

    def reference(self, record: Record) -> Schema:
        """Return a ``$ref`` to `record`, after defining it if this is the first one."""
        if record not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_]", "_", record.name)
            names = itertools.chain([stem], (f"{stem}{number}" for number in itertools.count(2)))
            self._names[record] = name = next(name for name in names if name not in self.schemas)
            self.schemas[name] = {}  # keeps its place, and ends the recursion
            self.schemas[name] = record.inline(self)
        return {"$ref": f"#/$defs/{self._names[record]}"}


def schema_of(shape: Shape) -> Schema:
    """Return the whole JSON Schema of `shape`, with ``$defs`` where it is recursive.

    A record is spelled out at the root, because readers of tool schemas look for ``"type": "object"`` there.
    """
    definitions = Definitions()
    schema = shape.inline(definitions) if isinstance(shape, Record) else shape.schema(definitions)
    return {**schema, "$defs": definitions.schemas} if definitions.schemas else schema


def hashable(shape: Shape) -> bool:
    """Return whether what `shape` loads can be in a set."""
    match shape:
        case Scalar() | Choice():
            return True
        case Array():
            return shape.make in (tuple, frozenset) and hashable(shape.item)
        case Row():
            return all(map(hashable, shape.places))
        case Either():
            return all(map(hashable, shape.members))
        case Described():
            return hashable(shape.shape)
        case Record():
            has_hash = getattr(shape.build, "__hash__", None) is not None and shape.build is not dict
            return has_hash and (shape.recursive or all(hashable(field.shape) for field in shape.fields))
        case _:
            return False


def _published(shape: Shape, default: object) -> JSON | Unset:
    """Return `default` as JSON if filling it in gives the function what Python's own default would."""
    try:
        value = normalized(default if shape.plain else to_json(default))
        if shape.accepts(value) and _loaded(shape, value) == default:
            return value
    except (StrictJsonError, ArgumentsRefused, OverflowError):
        pass
    return UNSET


def _loaded(shape: Shape, value: JSON) -> object:
    match shape:
        case Either() | Described():
            return _loaded(shape.member(value), value)
        case Scalar() | Choice():
            return shape.load(value)
        case _ if shape.plain:
            return value
        case _:
            from heddle.tools.conversion import structuring

            return structuring(shape)(value)
