"""Reads a function's signature and docstring: what a tool made of it takes and gives."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import UNSET, ToolContext
from heddle.tools.docstrings import Docstring, parse_docstring
from heddle.tools.records import Field, Record
from heddle.tools.shapes import ANYTHING, Described, Shape
from heddle.tools.typehints import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Signature", "read_signature"]


@attrs.frozen
class Signature:
    """What a tool made of a function takes and gives.

    Attributes:
        arguments: The published parameters.
        context: The parameter that takes the `ToolContext`, if any.
        result: What it returns, once awaited; None: nothing is said about it.
        description: The docstring up to its first section.
    """

    arguments: Record
    context: str | None
    result: Shape | None
    description: str


def read_signature(function: Callable[..., Any], local_names: Mapping[str, Any]) -> Signature:
    """Return what `function` takes and gives.

    Args:
        function: A function or a bound method.
        local_names: What strings in annotations may name besides the function's globals and what it closes over.

    Raises:
        DefinitionError: A part of the signature cannot be published; it is named.
    """
    plain: Any = inspect.unwrap(function)
    names = {**local_names, **_closure(plain)}
    signature = inspect.signature(function)
    documented = parse_docstring(function.__doc__)
    _refuse_unusable(plain, signature)
    reader = Reader(plain.__name__, names)
    hints = {
        parameter.name: reader.resolve(parameter.annotation, plain.__globals__, names, parameter.name)
        for parameter in signature.parameters.values()
    }
    context = _context(plain.__name__, hints)
    published = [parameter for parameter in signature.parameters.values() if parameter.name != context]
    returns = Reader(plain.__name__, names, output=True)
    result = returns.read(returns.resolve(signature.return_annotation, plain.__globals__, names, ""), "")
    return Signature(
        arguments=_arguments(reader, published, hints, documented),
        context=context,
        result=None if _says_nothing(result) else result,
        description=documented.description,
    )


def _closure(function: Any) -> dict[str, Any]:
    """Return the names of the functions around `function` that it uses, as far as they have a value yet."""
    names: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    return names


def _refuse_unusable(function: Any, signature: inspect.Signature) -> None:
    """Raise where arguments given by name cannot reach the function, or where it does not return a value."""
    place = f'function "{function.__name__}"'
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{place} is a generator, and a tool returns one value. Return a list")
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise DefinitionError(
                f"{place}: parameter *{parameter.name} has no name for each value. Take a list instead"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise DefinitionError(
                f"{place}: parameter {parameter.name} is positional-only, and arguments come by name. Remove the '/'"
            )
    first = next(iter(signature.parameters), "")
    in_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    if in_class and first in ("self", "cls"):
        raise DefinitionError(
            f"{place}: parameter {first} would be an argument. Make a tool of the bound method: "
            f"tool(obj.{function.__name__})"
        )


def _context(function: str, hints: Mapping[str, object]) -> str | None:
    """Return the name of the parameter that takes the `ToolContext`."""
    names = [name for name, hint in hints.items() if _is_context(hint)]
    if len(names) > 1:
        raise DefinitionError(
            f'function "{function}": parameters {" and ".join(names)} are all a ToolContext. Keep one'
        )
    return names[0] if names else None


def _is_context(hint: object) -> bool:
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return set(get_args(hint)) == {ToolContext, type(None)}
    return hint is ToolContext


def _arguments(
    reader: Reader, parameters: list[inspect.Parameter], hints: Mapping[str, object], documented: Docstring
) -> Record:
    fields: list[Field] = []
    rest: Shape | None = None
    for parameter in parameters:
        shape = reader.read(hints[parameter.name], parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            rest = shape
            continue
        has_default = parameter.default is not parameter.empty
        fields.append(
            Field(
                name=parameter.name,
                shape=shape,
                required=not has_default,
                default=parameter.default if has_default else UNSET,
                description=documented.parameters.get(parameter.name, ""),
            )
        )
    return Record(name="arguments", fields=tuple(fields), rest=rest)


def _says_nothing(result: Shape) -> bool:
    return result is ANYTHING or (isinstance(result, Described) and _says_nothing(result.shape))
