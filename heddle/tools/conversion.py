"""Turns JSON into what annotations say, and results into JSON, with cattrs.

cattrs knows containers, fields and the place of what goes wrong; the hooks are for where JSON is not Python. cattrs is
not light: import this module where the first value needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from cattrs import BaseValidationError, Converter
from cattrs.cols import iterable_unstructure_factory, mapping_unstructure_factory
from cattrs.errors import AttributeValidationNote, IterableValidationNote
from cattrs.fns import identity
from cattrs.gen import override, typeddicts

from heddle.errors import StrictJsonError
from heddle.strictjson import MAX_DEPTH
from heddle.tools.definition import Violation
from heddle.tools.records import Record
from heddle.tools.shapes import Anything, Array, Choice, Described, Either, Row, Scalar, Shape, Table
from heddle.tools.structuring import ArgumentsRefused, fields_of, has_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cattrs.dispatch import StructureHook

__all__ = ["structuring", "unstructured"]

_SHAPES = (Anything, Scalar, Choice, Array, Row, Table, Described, Either, Record)


def structuring(shape: Shape) -> Callable[[Any], Any]:
    """Return what turns JSON that fits `shape` into what Python gets for it.

    It raises `ArgumentsRefused` where a class does not take its fields, or where the JSON does not fit after all.
    """
    converter = Converter()
    # Shapes stand where cattrs expects types: only `Reader` can resolve what the strings in a local class name.
    converter.register_structure_hook_factory(lambda kind: isinstance(kind, _SHAPES), _hook)
    hook = converter.get_structure_hook(cast("Any", shape))

    def structure(value: Any) -> Any:
        try:
            return hook(value, shape)
        except Exception as error:  # noqa: BLE001 - whatever a class raises, it says no
            refused, cause = _refusal(error)
        raise refused from cause

    return structure


def _hook(shape: Any, converter: Converter) -> StructureHook:
    match shape:
        case _ if shape.plain:
            kind: Any = Any
        case Scalar():
            return lambda value, _: value if type(value) is shape.kind else shape.load(value)
        case Choice():
            return lambda value, _: shape.load(value)
        case Either() | Described():
            return lambda value, _: converter.get_structure_hook(cast("Any", shape.member(value)))(value, None)
        case Record():
            # What contains itself is made when it is first needed.
            building = cache(lambda: _building(shape, converter))
            return (lambda value, _: building()(value, None)) if shape.recursive else building()
        case Row():
            kind = GenericAlias(tuple, shape.places)
        case Table():
            kind = GenericAlias(dict, (str, shape.values))
        case _:
            item = Any if shape.item.plain else shape.item  # cattrs does not go through items that are Any
            kind = GenericAlias(shape.make, (item, ...) if shape.make is tuple else item)
    convert = converter.get_structure_hook(kind)
    return lambda value, _: convert(value, kind)


class _NotTaken(Exception):
    """A class, named, raised its cause when it was called with its fields."""


def _building(record: Record, converter: Converter) -> StructureHook:
    fields: dict[str, Any] = {}
    for field in record.fields:
        hook = converter.get_structure_hook(cast("Any", field.shape))
        fields[field.name] = Annotated[Any, override(omit=True) if field.shape.plain else override(struct_hook=hook)]
    kind = cast("Any", TypedDict)("Fields", fields, total=False)
    load = cast("Any", typeddicts).make_dict_structure_fn(kind, converter, _cattrs_use_linecache=False)
    load_rest = None if record.rest is None else _hook(Table(record.rest), converter)

    def build(value: Any, _: object) -> Any:
        loaded = load(value, None)
        if load_rest is not None:
            loaded |= load_rest({name: item for name, item in value.items() if name not in fields}, None)
        if record.build is dict:
            return loaded
        # Not called by cattrs, which would look for places in an error of its own kind that the class raises.
        try:
            return record.build(**loaded)
        except Exception as error:
            raise _NotTaken(record.name) from error

    return build


def _refusal(error: Exception) -> tuple[ArgumentsRefused, Exception]:
    """Return the refusal for the first error that cattrs met, and its cause."""
    path = ""
    while isinstance(error, BaseValidationError):
        error = error.exceptions[0]
        for note in getattr(error, "__notes__", ()):
            if isinstance(note, AttributeValidationNote):
                path += f".{note.name}"
            elif isinstance(note, IterableValidationNote):
                path += f"[{note.index}]" if isinstance(note.index, int) else f".{note.index}"
    # Where no class says no, it is a number that Python's type cannot hold, or arguments that nobody checked.
    rule, must = "type", "fit the annotated type"
    if isinstance(error, _NotTaken):
        rule, must, error = str(error), f"be accepted by {error}", cast("Exception", error.__cause__)
    # The validators of attrs raise with the sentence first, then with objects that tell a caller nothing.
    reason = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    message = f"must {must}: {reason or type(error).__name__}"
    return ArgumentsRefused((Violation(path.removeprefix("."), rule, message),)), error


def unstructured(value: object) -> object:
    """Return `value` as `heddle.tools.structuring.to_json` promises it."""
    try:
        return _results.unstructure(value)
    except RecursionError:
        raise StrictJsonError(f"nesting deeper than {MAX_DEPTH}") from None


def _value(value: object) -> object:
    return _results.unstructure(value.value) if isinstance(value, Enum) else value


def _fields(value: object) -> dict[str, object]:
    # Not as cattrs does it: it goes by the annotations, which may be strings, and wants every field to have a value.
    return {
        getattr(field, "alias", field.name): _results.unstructure(getattr(value, field.name))
        for field in fields_of(type(value))
        if hasattr(value, field.name)
    }


def _in_order(items: Iterable[Any]) -> list[Any]:
    values = list(items)
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _derives(base: type, kind: type) -> bool:
    return issubclass(kind, base)


_results = Converter()
# A text may be an enum's member. For the others cattrs has a form, and JSON has none.
for _kind, _how in ((Enum, _value), (str, _value), (Path, identity), (bytearray, identity), (memoryview, identity)):
    _results.register_unstructure_hook(_kind, _how)
# Of several that match, the last one is taken.
_results.register_unstructure_hook_func(has_fields, _fields)
for _base, _factory in (
    (AbstractSet, partial(iterable_unstructure_factory, unstructure_to=_in_order)),
    (Sequence, partial(iterable_unstructure_factory, unstructure_to=list)),
    (Mapping, partial(mapping_unstructure_factory, unstructure_to=dict, key_handler=cast("Any", identity))),
):
    _results.register_unstructure_hook_factory(partial(_derives, _base), _factory)
