"""Reads a type annotation into a shape, or says which part of it JSON has no form for."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import math
import sys
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, Union, cast, get_args, get_origin

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import UNSET, ToolContext
from heddle.tools.records import Field, Record, hashable
from heddle.tools.shapes import ANYTHING, Array, Choice, Described, Either, Row, Scalar, Shape, Table
from heddle.tools.structuring import fields_of, has_fields

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heddle.strictjson import JSON

__all__ = ["Reader"]

_SCALARS = (str, int, float, bool, type(None))
# What a set without an item type may hold: objects and arrays cannot be in a Python set.
_ANY_SCALAR = Either(tuple(Scalar(kind) for kind in _SCALARS))
_ARRAYS: dict[object, type] = {
    list: list,
    collections.abc.Sequence: list,
    set: set,
    frozenset: frozenset,
}
_NO_DEFAULTS = (dataclasses.MISSING, attrs.NOTHING)
_EXPRESSIBLE = (
    "It can be str, int, float, bool, None, list, dict with str keys, tuple, set, frozenset, Sequence, Mapping, "
    "Literal, Enum, Optional, a union, a TypedDict, a dataclass or an attrs class, and any of these nested; "
    "take one of them and convert it in the function"
)


@attrs.define
class Reader:
    """Reads the annotations of one function, in one direction.

    Attributes:
        function: Its name, for messages.
        local_names: What strings in annotations may name besides what is global where they stand.
        output: Whether results are read: a field that the constructor does not take is part of them.
    """

    function: str
    local_names: Mapping[str, object]
    output: bool = False
    _records: dict[type, Record] = attrs.field(factory=dict[type, Record], init=False)
    _open: list[object] = attrs.field(factory=list[object], init=False)

    def resolve(
        self, annotation: object, global_names: dict[str, Any], local_names: Mapping[str, Any], path: str
    ) -> object:
        """Return `annotation` with every string in it evaluated.

        Raises:
            DefinitionError: A name in it is not known, or it is no expression.
        """
        holder = types.SimpleNamespace(__annotations__={path: annotation})
        try:
            return typing.get_type_hints(holder, global_names, dict(local_names), include_extras=True)[path]
        except Exception as error:
            raise DefinitionError(
                f"{self._place(path)} has an annotation that cannot be evaluated: {annotation!r} ({error}). Names must "
                "be known where the function is defined, not only to a type checker"
            ) from error

    def read(self, annotation: object, path: str) -> Shape:
        """Return the shape of a resolved annotation.

        Args:
            annotation: A type, or `inspect.Parameter.empty` for any value.
            path: Where it stands, for messages: ``order.lines[].when``.

        Raises:
            DefinitionError: JSON cannot say it.
        """
        for attempt in (self._simple, self._named, self._special, self._container, self._class):
            shape = attempt(annotation, path)
            if shape is not None:
                return shape
        raise self._refusal(
            path, f"is annotated {inspect.formatannotation(annotation)}, which JSON cannot say. {_EXPRESSIBLE}"
        )

    def _simple(self, annotation: object, _path: str) -> Shape | None:
        if annotation is Any or annotation is object or annotation is inspect.Parameter.empty:
            return ANYTHING
        return next(
            (Scalar(kind) for kind in _SCALARS if annotation is kind or (annotation is None and kind is type(None))),
            None,
        )

    def _named(self, annotation: Any, path: str) -> Shape | None:
        """Read what is a name for another type: a `NewType`, or a ``type`` statement's alias."""
        if isinstance(annotation, NewType):
            return self.read(self._resolve_named(annotation, annotation.__supertype__, path), path)
        if type(annotation).__name__ != "TypeAliasType":
            return None
        if annotation in self._open and not any(
            isinstance(entry, type) for entry in self._open[self._open.index(annotation) :]
        ):
            raise self._refusal(path, f"is annotated {annotation}, an alias that contains itself. Use a class instead")
        self._open.append(annotation)
        shape = self.read(self._resolve_named(annotation, annotation.__value__, path), path)
        self._open.pop()
        return shape

    def _special(self, annotation: object, path: str) -> Shape | None:
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            shape = self.read(args[0], path)
            text = next((extra for extra in args[1:] if isinstance(extra, str)), None)
            return shape if text is None else Described(shape, text)
        if origin is Union or origin is types.UnionType:
            return Either(tuple(self.read(arg, path) for arg in args))
        if origin is Literal:
            return self._choice([(arg.value if isinstance(arg, enum.Enum) else arg, arg) for arg in args], path)
        return None

    def _container(self, annotation: object, path: str) -> Shape | None:
        kind: Any = get_origin(annotation) or annotation
        args = get_args(annotation)
        if kind is tuple:
            return self._tuple(annotation, args, path)
        if kind is dict or kind is collections.abc.Mapping:
            keys, values = args if len(args) == 2 else (str, Any)  # noqa: PLR2004 - dict[K, V]
            return self._table(keys, values, path)
        make = next((make for known, make in _ARRAYS.items() if known is kind), None)
        if make is None:
            return None
        item = self.read(args[0] if args else Any, f"{path}[]")
        if make is list:
            return Array(item)
        item = _ANY_SCALAR if item is ANYTHING else item
        if not hashable(item):
            raise self._refusal(f"{path}[]", f"cannot be in a {kind.__name__}: it has no hash. Use a list")
        return Array(item, make)

    def _tuple(self, annotation: object, args: tuple[object, ...], path: str) -> Shape:
        if annotation is tuple or annotation is typing.Tuple:  # noqa: UP006 - the old spelling as it is in annotations
            return Array(ANYTHING, tuple)
        if len(args) == 2 and args[1] is ...:  # noqa: PLR2004 - tuple[X, ...]
            return Array(self.read(args[0], f"{path}[]"), tuple)
        return Row(tuple(self.read(arg, f"{path}[{place}]") for place, arg in enumerate(args)))

    def _table(self, keys: object, values: object, path: str) -> Shape:
        key = self.read(keys, path)
        if key is not ANYTHING and key != Scalar(str):
            raise self._refusal(path, f"has keys annotated {inspect.formatannotation(keys)}. JSON's names are str")
        return Table(self.read(values, _part(path, "*")))

    def _class(self, annotation: Any, path: str) -> Shape | None:
        if not inspect.isclass(annotation) or annotation is ToolContext:
            return None
        if _is_enum(annotation):
            members: list[enum.Enum] = list(cast("Any", annotation))
            return self._choice([(member.value, member) for member in members], path)
        if _is_typed_dict(annotation):
            return self._record(annotation, dict, self._typed_dict_fields, path)
        if has_fields(annotation):
            return self._record(annotation, annotation, self._class_fields, path)
        return None

    def _choice(self, members: list[tuple[Any, object]], path: str) -> Shape:
        for value, _ in members:
            if not isinstance(value, (str, int, type(None))) and not (
                isinstance(value, float) and math.isfinite(value)
            ):
                raise self._refusal(
                    path, f"may be {value!r}, which JSON cannot say. Use strings, numbers, booleans or None"
                )
        if not members:
            raise self._refusal(path, "is annotated with an Enum that has no members")
        plain: list[tuple[JSON, object]] = [(value, member) for value, member in members]
        return Choice(tuple(plain))

    def _record(
        self, cls: type, build: Callable[..., Any], fields: Callable[[Any, str], Iterator[Field]], path: str
    ) -> Record:
        """Return the one record of `cls`; inside itself it is the record that is not yet complete."""
        if cls in self._records:
            record = self._records[cls]
            record.recursive = record.recursive or cls in self._open
            return record
        record = self._records[cls] = Record(cls.__name__, build)
        self._open.append(cls)
        record.fields = tuple(fields(cls, path))
        self._open.pop()
        return record

    def _class_fields(self, cls: type, path: str) -> Iterator[Field]:
        fields = fields_of(cls)
        taken = {getattr(field, "alias", field.name) for field in fields if field.init}
        if not self.output and taken != set(inspect.signature(cls).parameters):
            raise self._refusal(
                path, f"is annotated {cls.__name__}, whose __init__ takes other arguments than its fields"
            )
        for field in fields:
            if not field.init and not self.output:
                continue
            name = getattr(field, "alias", field.name)
            place = _part(path, name)
            annotation = inspect.Parameter.empty if field.type is None else field.type
            shape = self.read(self._resolve_in(_owner(cls, field.name), annotation, place), place)
            default = UNSET if any(field.default is none for none in _NO_DEFAULTS) else field.default
            may_be_absent = (
                default is not UNSET
                or getattr(field, "default_factory", dataclasses.MISSING) is not dataclasses.MISSING
            )
            yield Field(name, shape, required=field.init and not may_be_absent, default=default)

    def _typed_dict_fields(self, cls: Any, path: str) -> Iterator[Field]:
        for name, annotation in cls.__annotations__.items():
            place = _part(path, name)
            resolved, required = _qualified(self._resolve_in(cls, annotation, place))
            if required is None:
                required = name in cls.__required_keys__
            yield Field(name, self.read(resolved, place), required=required)

    def _resolve_in(self, cls: type, annotation: object, path: str) -> object:
        """Resolve an annotation of `cls`: in its module, and for a local class in the function around it."""
        names: dict[str, object] = {cls.__name__: cls}
        if "<locals>" in cls.__qualname__:
            names |= self.local_names
        return self.resolve(annotation, _globals_of(cls), names, path)

    def _resolve_named(self, name: Any, meaning: object, path: str) -> object:
        """Resolve what a `NewType` or an alias stands for: in its module, or where the function is defined."""
        return self.resolve(meaning, _globals_of(name), self.local_names, path)

    def _place(self, path: str) -> str:
        if not self.output:
            return f'function "{self.function}": parameter {path}'
        return f'function "{self.function}": the return value{f" at {path}" if path else ""}'

    def _refusal(self, path: str, what: str) -> DefinitionError:
        return DefinitionError(f"{self._place(path)} {what}")


def _part(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _globals_of(definition: Any) -> dict[str, Any]:
    """Return the names of the module that `definition` was made in; a module need not be registered."""
    names: dict[str, Any] = getattr(sys.modules.get(definition.__module__), "__dict__", {})
    return names


def _is_enum(cls: type[Any]) -> bool:
    return issubclass(cls, enum.Enum) and not issubclass(cls, enum.Flag)


def _is_typed_dict(cls: type[Any]) -> bool:
    return hasattr(cls, "__required_keys__") and issubclass(cls, dict)


def _owner(cls: type, name: str) -> type:
    """Return the class in whose module the annotation of a field is to be read."""
    return next((base for base in cls.__mro__ if name in inspect.get_annotations(base)), cls)


def _qualified(annotation: Any) -> tuple[Any, bool | None]:
    """Split a `TypedDict` key's annotation into its type and what `Required` or `NotRequired` say of it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Required or origin is NotRequired:
        return args[0], origin is Required
    if origin is Annotated:
        inner, required = _qualified(args[0])
        return Annotated[(inner, *args[1:])], required
    return annotation, None
