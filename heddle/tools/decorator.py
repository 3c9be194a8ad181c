"""Makes a tool of a Python function. The function can still be called, with the signature that it has."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, cast, overload

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import Function, ToolDef, Validation, Violation, refuse_process_limits
from heddle.tools.records import Field, Record, schema_of
from heddle.tools.shapes import Described, Shape, Table
from heddle.tools.signatures import Signature, read_signature
from heddle.tools.structuring import ArgumentsRefused, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from heddle.limits import Limits
    from heddle.results import Retry, SideEffects
    from heddle.strictjson import JSON

__all__ = ["FunctionTool", "ToolOptions", "tool"]

P = ParamSpec("P")
R = TypeVar("R")


class ToolOptions(TypedDict, total=False):
    """What `tool` takes by name; each as in `ToolDef`."""

    name: str
    title: str | None
    description: str
    side_effects: SideEffects
    retry: Retry
    reconcile: str | None
    limits: Limits | None
    validation: Validation
    annotations: Mapping[str, Any] | None
    revision: str


# No slots: a function's own __doc__ and __name__ must win over the class's.
@attrs.frozen(kw_only=True, slots=False, repr=False)
class FunctionTool(ToolDef, Generic[P, R]):
    """A tool that is a Python function. Called as the function, it is the function: nothing is checked or limited.

    Like a function it is copied as itself and pickled by its name.
    """

    function: Callable[P, R]

    def __attrs_post_init__(self) -> None:
        known: dict[str, Any] = {
            name: getattr(self.function, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(self.function, name)
        }
        vars(self).update(known, __wrapped__=self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f'<tool "{self.name}": {self.function.__qualname__}{inspect.signature(self.function)}>'

    def __reduce__(self) -> str:
        return self.function.__qualname__


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> FunctionTool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> object:
    """Make a tool of a function: ``@tool``, ``@tool(name=…)``, or ``tool(obj.method)``.

    Its schemas come from the signature, its description and those of its parameters from a Google-style docstring or
    from ``Annotated[…, "text"]``. Names in annotations are looked up where the function was written: in its module, in
    what it closes over, and, if the decorator is applied in the very function that defines it, in that function's
    variables.

    Args:
        function: A function, async or not, or a bound or static method.
        options: See `ToolOptions`; the name and the description are the function's own unless given.

    Raises:
        DefinitionError: JSON has no form for a part of the signature; the function and the part are named.
    """
    if function is not None:
        return _made(function, options, _names_around(function, inspect.currentframe()))

    def decorate(function: Callable[P, R]) -> FunctionTool[P, R]:
        return _made(function, options, _names_around(function, inspect.currentframe()))

    return decorate


def _names_around(function: Any, applied_in: types.FrameType | None) -> Mapping[str, Any]:
    """Return the variables of the frame that applied the decorator, if `function` is defined in that frame."""
    frame = applied_in and applied_in.f_back
    plain = inspect.unwrap(getattr(function, "__func__", function))
    inside = frame and getattr(plain, "__qualname__", "").startswith(f"{frame.f_code.co_qualname}.<locals>.")
    return dict(frame.f_locals) if frame and inside and frame.f_globals is plain.__globals__ else {}


def _made(function: Callable[P, R], options: ToolOptions, local_names: Mapping[str, Any]) -> FunctionTool[P, R]:
    called = cast("Any", function.__func__ if isinstance(function, staticmethod) else function)
    if not isinstance(called, (types.FunctionType, types.MethodType)):
        raise DefinitionError(f"a tool is made of a Python function or a bound method, not of {function!r}")
    signature = read_signature(called, local_names)
    wrap, output_schema = _output(signature.result)
    given: dict[str, Any] = {"name": called.__name__, "description": signature.description, **options}
    made: FunctionTool[P, R] = FunctionTool(
        function=called,
        input_schema=schema_of(signature.arguments),
        output_schema=output_schema,
        implementation=Function(
            called, prepare=_preparing(signature), finish=to_json, context=signature.context, wrap=wrap
        ),
        origin=f"{called.__module__}:{called.__qualname__}",
        **given,
    )
    refuse_process_limits(made)
    return made


def _output(result: Shape | None) -> tuple[bool | None, dict[str, Any] | None]:
    """Return whether a result is put under ``result``, and the schema of what comes out."""
    if result is None:
        return None, None
    shape = result
    while isinstance(shape, Described):
        shape = shape.shape
    if isinstance(shape, (Record, Table)):
        return False, schema_of(result)
    return True, schema_of(Record("result", fields=(Field("result", result),)))


def _preparing(signature: Signature) -> Callable[[dict[str, JSON]], dict[str, Any]] | None:
    """Return what turns checked arguments into keyword arguments; None where they are that already."""
    arguments, plain = signature.arguments, signature.arguments.plain
    # The schema of open names lets in the one that heddle fills.
    reserved = signature.context if arguments.rest is not None else None
    if plain and reserved is None:
        return None

    @functools.cache
    def structure() -> Callable[[dict[str, JSON]], dict[str, Any]]:
        from heddle.tools.conversion import structuring

        return structuring(arguments)

    def prepare(given: dict[str, JSON]) -> dict[str, Any]:
        if reserved is not None and reserved in given:
            raise ArgumentsRefused((Violation(reserved, "additionalProperties", "is not an argument of this tool"),))
        return given if plain else structure()(given)

    return prepare
