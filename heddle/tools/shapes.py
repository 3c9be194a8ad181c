"""What a Python annotation means for JSON: one shape says the schema, and which values fit it.

Because the two come from one place, a union takes for its own what the schema lets in. `Shape` says what each method
promises. What values become is for `heddle.tools.conversion`; the shapes know where JSON and Python differ in it.
"""
# ruff: noqa: D102

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import attrs

from heddle.strictjson import JSON, same

if TYPE_CHECKING:
    from heddle.tools.records import Definitions

__all__ = [
    "ANYTHING",
    "Anything",
    "Array",
    "Choice",
    "Described",
    "Either",
    "Row",
    "Scalar",
    "Schema",
    "Shape",
    "Table",
    "is_object",
]

Schema: TypeAlias = "dict[str, Any]"


class Shape(Protocol):
    """An annotation, understood."""

    @property
    def plain(self) -> bool:
        """Whether a value that fits is already what Python wants."""
        ...

    def schema(self, definitions: Definitions) -> Schema:
        """Return the JSON Schema; recursive parts are put into `definitions`."""
        ...

    def accepts(self, value: object) -> bool:
        """Return whether `value` fits the schema."""
        ...


@attrs.frozen
class Anything:
    """Any JSON value, as it is."""

    plain = True

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002
        return {}

    def accepts(self, value: object) -> bool:  # noqa: ARG002
        return True


ANYTHING = Anything()

_SCALAR_NAMES: dict[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@attrs.frozen
class Scalar:
    """A `str`, `int`, `float`, `bool` or None."""

    kind: type

    @property
    def plain(self) -> bool:
        return not self.is_number

    @property
    def is_number(self) -> bool:
        """Whether JSON does not keep it apart from another Python type: 5.0 is an integer, 5 is a number."""
        return self.kind in (int, float)

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002
        return {"type": _SCALAR_NAMES[self.kind]}

    def accepts(self, value: object) -> bool:
        if isinstance(value, bool):
            return self.kind is bool
        if self.kind is int:
            return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return isinstance(value, (int, float) if self.kind is float else self.kind)

    def load(self, value: Any) -> Any:
        """Return a `value` that fits as this very type: 5 for 5.0, or 5.0 for 5.

        Raises:
            TypeError: It does not fit.
            OverflowError: It is an integer that no float can hold.
        """
        if isinstance(value, self.kind):
            return value
        if not self.accepts(value):
            raise TypeError(f"{value!r} is not {_SCALAR_NAMES[self.kind]}")
        return self.kind(value)


@attrs.frozen(eq=False)
class Choice:
    """One of some values: a `Literal` or an `Enum`.

    Attributes:
        members: What each JSON value stands for, in the order in which they are published.
    """

    members: tuple[tuple[JSON, object], ...]
    _by_key: dict[tuple[bool, object], object] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {_key(value): member for value, member in reversed(self.members)})

    @property
    def plain(self) -> bool:
        return all(type(member) in (str, bool, type(None)) for _, member in self.members)

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002
        values = [value for value, _ in self.members]
        return (
            {"type": "string", "enum": values} if all(isinstance(value, str) for value in values) else {"enum": values}
        )

    def accepts(self, value: object) -> bool:
        return not isinstance(value, (list, dict)) and _key(value) in self._by_key

    def load(self, value: object) -> object:
        """Return what a `value` that fits stands for."""
        return self._by_key[_key(value)]


def _key(value: object) -> tuple[bool, object]:
    """Return a key under which values meet that are equal as JSON: 1 and 1.0, but not true."""
    return isinstance(value, bool), value


@attrs.frozen
class Array:
    """Any number of items of one shape.

    Attributes:
        make: `list`, `tuple`, `set` or `frozenset`.
    """

    item: Shape
    make: type = list

    @property
    def plain(self) -> bool:
        return self.make is list and self.item.plain

    @property
    def unique(self) -> bool:
        """Whether no item may be given twice."""
        return self.make in (set, frozenset)

    def schema(self, definitions: Definitions) -> Schema:
        items = self.item.schema(definitions)
        return {
            "type": "array",
            **({"items": items} if items else {}),
            **({"uniqueItems": True} if self.unique else {}),
        }

    def accepts(self, value: object) -> bool:
        if not _is_list(value) or not all(map(self.item.accepts, value)):
            return False
        return not (self.unique and any(same(one, other) for i, one in enumerate(value) for other in value[:i]))


@attrs.frozen
class Row:
    """A tuple of a fixed length, each place with a shape of its own."""

    places: tuple[Shape, ...]
    plain = False

    def schema(self, definitions: Definitions) -> Schema:
        length = len(self.places)
        if not length:
            return {"type": "array", "maxItems": 0}
        places = [place.schema(definitions) for place in self.places]
        return {"type": "array", "prefixItems": places, "items": False, "minItems": length, "maxItems": length}

    def accepts(self, value: object) -> bool:
        return (
            _is_list(value)
            and len(value) == len(self.places)
            and all(shape.accepts(item) for shape, item in zip(self.places, value, strict=True))
        )


@attrs.frozen
class Table:
    """An object with any names and values of one shape: a `dict` or a `Mapping`."""

    values: Shape

    @property
    def plain(self) -> bool:
        return self.values.plain

    def schema(self, definitions: Definitions) -> Schema:
        values = self.values.schema(definitions)
        return {"type": "object", **({"additionalProperties": values} if values else {})}

    def accepts(self, value: object) -> bool:
        return is_object(value) and all(map(self.values.accepts, value.values()))


@attrs.frozen
class Described:
    """A shape with a text for whoever fills it in: ``Annotated[…, "text"]``."""

    shape: Shape
    text: str

    @property
    def plain(self) -> bool:
        return self.shape.plain

    def schema(self, definitions: Definitions) -> Schema:
        return {**self.shape.schema(definitions), "description": self.text}

    def accepts(self, value: object) -> bool:
        return self.shape.accepts(value)

    def member(self, value: object) -> Shape:  # noqa: ARG002
        """Return the shape that decides what `value` becomes."""
        return self.shape


@attrs.frozen
class Either:
    """A union: a value is what the first member that it fits makes of it.

    Numbers alone are not turned into an earlier member's type when a later one is their own: for ``int | float``
    5.0 stays a float, for ``float | None`` 5 becomes one.
    """

    members: tuple[Shape, ...]

    @property
    def plain(self) -> bool:
        return all(member.plain for member in self.members)

    def schema(self, definitions: Definitions) -> Schema:
        schemas = [member.schema(definitions) for member in self.members]
        if all(isinstance(member, Scalar) for member in self.members):
            return {"type": [schema["type"] for schema in schemas]}
        return {"anyOf": schemas}

    def accepts(self, value: object) -> bool:
        return any(member.accepts(value) for member in self.members)

    def member(self, value: object) -> Shape:
        """Return the shape that decides what `value` becomes.

        Raises:
            ValueError: It fits none of them.
        """
        for member in self.members:
            if member.accepts(value):
                own = Scalar(type(value))
                return own if isinstance(member, Scalar) and own in self.members else member
        raise ValueError("it fits no member of the union")


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether `value` is a JSON object."""
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
