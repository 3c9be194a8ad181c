"""A Python function becomes a tool: what is published of it, what is refused, and that it stays a function."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import pickle
import pydoc
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import pytest
from typing_extensions import TypeAliasType

from heddle.errors import DefinitionError
from heddle.limits import Limits
from heddle.tools.decorator import FunctionTool, tool
from heddle.tools.definition import (
    Function,
    Program,
    ToolContext,
    ToolDef,
    Validation,
    Violation,
    refuse_process_limits,
)
from heddle.tools.structuring import ArgumentsRefused, to_json

T = TypeVar("T")


@tool
def pay(to: str, cents: int = 0, *, tags: Sequence[str] = ()) -> dict[str, int]:
    """Pay somebody.

    At once, and
      for good.

    Args:
        to (str, optional): Who gets it,
            in the end.

            Or who else.
        cents: How much: in cents.
        nobody: Is no parameter.
    Args is not a section here.

    Returns:
        What it cost.
    """
    return {"cost": cents + len(to) + len(tags)}


def implementation(definition: ToolDef) -> Function:
    assert isinstance(definition.implementation, Function)
    return definition.implementation


def returning(annotation: object) -> FunctionTool[[], Any]:
    def probe() -> Any:
        """Give it."""

    probe.__annotations__ = {"return": annotation}
    return tool(probe)


def taking(annotation: object) -> FunctionTool[[Any], None]:
    def probe(value: Any) -> None:
        """Take it."""

    probe.__annotations__ = {"value": annotation}
    return tool(probe)


def test_a_function_is_published_with_its_signature_and_its_docstring() -> None:
    assert pay.name == "pay"
    assert pay.description == "Pay somebody.\n\nAt once, and\n  for good."
    assert pay.origin == f"{__name__}:pay"
    assert pay.input_schema == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "Who gets it, in the end. Or who else."},
            "cents": {"type": "integer", "description": "How much: in cents.", "default": 0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["to"],
        "additionalProperties": False,
    }
    assert pay.output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert implementation(pay) == Function(
        pay.function, prepare=implementation(pay).prepare, finish=to_json, context=None, wrap=False
    )


def test_what_is_given_by_name_wins_over_what_the_function_says() -> None:
    validation = Validation(schema=False)

    @tool(
        name="other.name",
        title="A title",
        description="Its text.",
        side_effects="read",
        retry="idempotent",
        limits=Limits(wall_seconds=1),
        validation=validation,
        annotations={"hint": True},
        revision="7",
    )
    def local() -> None:
        """Not this text."""

    assert local == FunctionTool(
        name="other.name",
        title="A title",
        description="Its text.",
        side_effects="read",
        retry="idempotent",
        limits=Limits(wall_seconds=1),
        validation=validation,
        annotations={"hint": True},
        revision="7",
        function=local.function,
        implementation=local.implementation,
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
        output_schema={
            "type": "object",
            "properties": {"result": {"type": "null"}},
            "required": ["result"],
            "additionalProperties": False,
        },
        origin=f"{__name__}:{local.__qualname__}",  # type: ignore[attr-defined]
    )


def test_a_tool_is_still_the_function() -> None:
    assert pay("me", 3, tags=["a"]) == {"cost": 6}
    assert inspect.signature(pay) == inspect.signature(pay.function)
    assert (vars(pay)["__name__"], pay.__doc__, pay.__module__) == ("pay", pay.function.__doc__, __name__)
    assert inspect.unwrap(pay) is pay.function
    assert typing.get_type_hints(pay)["to"] is str
    assert FunctionTool.__doc__ != pay.__doc__
    assert (
        repr(pay)
        == "<tool \"pay\": pay(to: 'str', cents: 'int' = 0, *, tags: 'Sequence[str]' = ()) -> 'dict[str, int]'>"
    )


def test_help_shows_the_signature_and_the_docstring() -> None:
    text = pydoc.plain(pydoc.render_doc(pay))

    assert "pay(to: 'str', cents: 'int' = 0" in text
    assert "Who gets it," in text


def test_a_tool_is_copied_and_pickled_as_a_function_is() -> None:
    assert copy.deepcopy(pay) is pay
    assert pickle.loads(pickle.dumps(pay)) is pay


def test_a_tool_can_be_evolved_and_hashed() -> None:
    renamed = attrs.evolve(pay, name="pay2")

    assert renamed("me") == {"cost": 2}
    assert (renamed.name, vars(renamed)["__name__"]) == ("pay2", "pay")
    assert len({pay, renamed, attrs.evolve(pay)}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        pay.name = "other"  # type: ignore[misc]


def test_an_async_function_is_described_by_what_it_awaits_to() -> None:
    @tool
    async def count() -> int:
        return 3

    assert implementation(count).is_async
    assert asyncio.run(count()) == 3
    assert count.output_schema == returning(int).output_schema


class Till:
    """A class with something to make tools of."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, cents: int) -> str:
        """Put it in."""
        return f"{self.name}: {cents}"

    @staticmethod
    def check(cents: int) -> bool:
        """Check it."""
        return cents > 0


def test_bound_and_static_methods_are_made_tools_by_call() -> None:
    put = tool(Till("front").put, name="front_put")
    check = tool(Till.check)
    static: Callable[..., bool] = vars(Till)["check"]

    assert (put.name, put.description, list(put.input_schema["properties"])) == ("front_put", "Put it in.", ["cents"])
    assert put(3) == "front: 3"
    assert (check.name, check(1), check.origin) == ("check", True, f"{__name__}:Till.check")
    assert tool(static)(cents=0) is False


def test_a_wrapped_function_is_described_by_what_it_wraps() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return [function(*args, **kwargs)]

        return call

    @tool
    @logged
    def double(n: int) -> int:
        """Double it."""
        return n * 2

    assert double.input_schema["properties"] == {"n": {"type": "integer"}}
    assert double(2) == [4]


def test_a_description_comes_from_annotated_before_the_docstring() -> None:
    @tool
    def look(  # type: ignore[no-untyped-def]
        where: Annotated[str, "a place"],
        when: Annotated[int, 5] = 1,
        names: list[Annotated[str, "a name"]] | None = None,
        *,
        loose=None,
    ) -> None:
        """Look.

        Arguments:
          where: not this
          when: this
          loose: anything
        """

    assert look.input_schema["properties"] == {
        "where": {"type": "string", "description": "a place"},
        "when": {"type": "integer", "description": "this", "default": 1},
        "names": {
            "anyOf": [{"type": "array", "items": {"type": "string", "description": "a name"}}, {"type": "null"}],
            "default": None,
        },
        "loose": {"description": "anything", "default": None},
    }


@pytest.mark.parametrize(
    ("docstring", "description", "about_a"),
    [
        (None, "", None),
        ("One line.", "One line.", None),
        ("\nArgs:\n    a: only this", "", "only this"),
        ("Text.\n\nNote:\nis no section without indented text.\n\nArgs:\n\n    a: x", None, "x"),
        ("Text.\n\nReturns:\n    a: not a parameter", "Text.", None),
        ("Text.\n\nArgs:\n    b: x\n    a:\n        below it\n\nMore text.", "Text.", "below it"),
        ("Text.\n\nArgs:\n    a (dict(str, int), optional): x (y): z", "Text.", "x (y): z"),
        ("Text.\n\nArgs:\n    stray words\n    a: x\n    y goes on: here", "Text.", "x y goes on: here"),
        ("Text.\n\nArgs:\n    **a: x", "Text.", "x"),
        ("Text.\n\nArgs:\n\nRaises:\n    a: not a parameter", None, None),
    ],
)
def test_a_docstring_gives_what_stands_in_it(
    docstring: str | None, description: str | None, about_a: str | None
) -> None:
    def probe(a: int) -> None: ...

    probe.__doc__ = docstring
    made = tool(probe)

    assert made.description == description or description is None
    assert made.input_schema["properties"]["a"].get("description") == about_a


class Plan(TypedDict):
    steps: int


@attrs.frozen
class Answer:
    text: str
    length: int = attrs.field(init=False, default=0)


ANSWER = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "length": {"type": "integer", "default": 0}},
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (dict, {"type": "object"}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            Plan,
            {
                "type": "object",
                "properties": {"steps": {"type": "integer"}},
                "required": ["steps"],
                "additionalProperties": False,
            },
        ),
        (Answer, ANSWER),
        (Annotated[Answer, "the answer"], {**ANSWER, "description": "the answer"}),
    ],
)
def test_a_result_that_is_an_object_is_published_as_it_is(annotation: object, schema: object) -> None:
    """A field that only the class fills in is part of a result, though it is no argument."""
    made = returning(annotation)

    assert (made.output_schema, implementation(made).wrap) == (schema, False)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (None, {"type": "null"}),
        (str, {"type": "string"}),
        (list[Plan], {"type": "array", "items": returning(Plan).output_schema}),
        (Answer | None, {"anyOf": [ANSWER, {"type": "null"}]}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
    ],
)
def test_any_other_result_is_put_under_result(annotation: object, schema: object) -> None:
    made = returning(annotation)

    assert made.output_schema == {
        "type": "object",
        "properties": {"result": schema},
        "required": ["result"],
        "additionalProperties": False,
    }
    assert implementation(made).wrap is True


@pytest.mark.parametrize("annotation", [Any, object, Annotated[Any, "what it was"], inspect.Signature.empty])
def test_a_result_that_may_be_anything_has_no_schema(annotation: object) -> None:
    made = returning(annotation)

    assert (made.output_schema, implementation(made).wrap) == (None, None)


def test_names_of_keyword_arguments_are_open_and_their_values_are_constrained() -> None:
    @tool
    def store(key: str, **sizes: float) -> None: ...

    @tool
    def keep(**anything: Any) -> None: ...

    prepare = implementation(store).prepare

    assert store.input_schema["additionalProperties"] == {"type": "number"}
    assert store.input_schema["required"] == ["key"]
    assert prepare is not None
    assert repr(prepare({"key": "k", "a": 1})) == "{'key': 'k', 'a': 1.0}"
    assert keep.input_schema == {"type": "object", "properties": {}, "additionalProperties": True}
    assert implementation(keep).prepare is None


@pytest.mark.parametrize("annotation", [ToolContext, ToolContext | None, Annotated[ToolContext, "x"], "ToolContext"])
def test_a_context_parameter_is_not_published(annotation: object) -> None:
    def probe(context: Any, n: int) -> None: ...

    probe.__annotations__["context"] = annotation
    made = tool(probe)

    assert list(made.input_schema["properties"]) == ["n"]
    assert implementation(made).context == "context"


def test_a_caller_cannot_supply_the_context_through_keyword_arguments() -> None:
    @tool
    def probe(ctx: ToolContext, **rest: Any) -> None: ...

    prepare = implementation(probe).prepare

    assert prepare is not None
    assert prepare({"a": 1}) == {"a": 1}
    with pytest.raises(ArgumentsRefused) as caught:
        prepare({"ctx": 1})
    assert caught.value.violations == (Violation("ctx", "additionalProperties", "is not an argument of this tool"),)


def test_annotations_may_name_what_is_local_to_the_function_that_defines_the_tool() -> None:
    @dataclasses.dataclass
    class Line:
        size: Size

    class Size(enum.Enum):
        SMALL = "s"

    @dataclasses.dataclass
    class Order:
        lines: list[Line]

    @tool
    def order(order: Order) -> int:
        return len(order.lines)

    prepare = implementation(order).prepare
    assert prepare is not None
    assert prepare({"order": {"lines": [{"size": "s"}]}}) == {"order": Order([Line(Size.SMALL)])}


def test_annotations_may_name_what_the_function_closes_over() -> None:
    def make(cls: Any) -> Callable[..., Any]:
        def build(value: cls) -> object:
            return cls, unset

        if cls is None:
            unset = 1
        return build

    made = tool(make(Answer), name="build")

    assert made.input_schema["properties"]["value"] == taking(Answer).input_schema["properties"]["value"]


def test_a_local_name_of_another_function_does_not_change_an_annotation() -> None:
    Sequence = bytes  # noqa: N806, F841 - as pay's annotation says, in another place

    again = tool(pay.function)

    assert again.input_schema == pay.input_schema


def test_an_alias_may_contain_itself_through_a_class() -> None:
    made = taking(Branch)

    assert list(made.input_schema["$defs"]) == ["Knot"]


@dataclasses.dataclass
class Knot:
    next: Branch


Branch = TypeAliasType("Branch", "Knot | None")
Loop = TypeAliasType("Loop", "list[Loop]")


class Custom:
    pass


class Flags(enum.Flag):
    A = 1


class Bytes(enum.Enum):
    A = b"a"


class NoMembers(enum.Enum):
    pass


class Pair(NamedTuple):
    a: int


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T


@dataclasses.dataclass
class Nested:
    when: dt.datetime


class Outer(TypedDict):
    lines: list[Nested]


@dataclasses.dataclass
class Initialised:
    seed: dataclasses.InitVar[int]


@dataclasses.dataclass(frozen=True)
class Deep:
    items: list[int]


@dataclasses.dataclass
class Dangling:
    far: Nowhere  # type: ignore[name-defined]  # noqa: F821


Untyped: Any = attrs.make_class("Untyped", {"anything": attrs.field(default=1)})
Wrapped = NewType("Wrapped", bytes)


@pytest.mark.parametrize(
    ("annotation", "where", "what"),
    [
        (Custom, "value", "Custom"),
        (bytes, "value", "bytes"),
        (dt.datetime, "value", "datetime.datetime"),
        (Callable[[], int], "value", "Callable"),
        (Pair, "value", "Pair"),
        (Box[int], "value", "Box[int]"),
        (Box, "value.inside", "~T"),
        (Flags, "value", "Flags"),
        (Bytes, "value", "may be b'a'"),
        (NoMembers, "value", "an Enum that has no members"),
        (Literal[b"a"], "value", "may be b'a'"),
        (dict[int, str], "value", "keys annotated int"),
        (dict[str, Custom], "value.*", "Custom"),
        (list[Nested], "value[].when", "datetime.datetime"),
        (Outer, "value.lines[].when", "datetime.datetime"),
        (tuple[int, bytes], "value[1]", "bytes"),
        (set[dict], "value[]", "cannot be in a set"),  # type: ignore[type-arg]
        (frozenset[list[int]], "value[]", "cannot be in a frozenset"),
        (set[Plan], "value[]", "cannot be in a set"),
        (set[Deep], "value[]", "cannot be in a set"),
        (Wrapped, "value", "bytes"),
        (Loop, "value[]", "an alias that contains itself"),
        (Initialised, "value", "whose __init__ takes other arguments than its fields"),
        (list[Dangling], "value[].far", "cannot be evaluated: 'Nowhere'"),
        (5, "value", "5"),
        ("Nowhere", "value", "cannot be evaluated: 'Nowhere'"),
        ("list[OnlyForTypeCheckers]", "value", "name 'OnlyForTypeCheckers' is not defined"),
        ("the first one", "value", "cannot be evaluated: 'the first one'"),
        (ToolContext | int, "value", "ToolContext"),
    ],
)
def test_an_annotation_that_json_cannot_say_is_refused_where_it_stands(
    annotation: object, where: str, what: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        taking(annotation)

    message = str(caught.value)
    assert message.startswith(f'function "probe": parameter {where} ')
    assert what in message


def test_a_refusal_says_what_an_annotation_can_be() -> None:
    with pytest.raises(DefinitionError, match=r"It can be str, int, .* and any of these nested; take one of them"):
        taking(bytes)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (bytes, 'function "probe": the return value is annotated bytes, which JSON cannot say'),
        (list[Nested], 'function "probe": the return value at [].when is annotated datetime.datetime'),
        (Iterator[int], 'function "probe": the return value is annotated collections.abc.Iterator[int]'),
        ("Nowhere", "function \"probe\": the return value has an annotation that cannot be evaluated: 'Nowhere'"),
    ],
)
def test_a_result_that_json_cannot_say_is_refused(annotation: object, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        returning(annotation)

    assert str(caught.value).startswith(message)


def many(*values: int) -> None: ...
def positional(value: int, /) -> None: ...
def two(one: ToolContext, n: int, other: ToolContext | None) -> None: ...
def yielding() -> Iterator[int]:
    yield 1


async def yielding_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (many, 'function "many": parameter *values has no name'),
        (positional, 'function "positional": parameter value is positional-only'),
        (two, 'function "two": parameters one and other are all a ToolContext. Keep one'),
        (yielding, 'function "yielding" is a generator'),
        (yielding_later, 'function "yielding_later" is a generator'),
        (Till.put, r'function "put": parameter self would be .* tool\(obj.put\)'),
        (len, "not of <built-in function len>"),
        (Till, "not of <class"),
        (pay, 'not of <tool "pay"'),
        (functools.partial(many), "not of functools.partial"),
        (lambda: None, "'<lambda>' cannot be a tool's name"),
    ],
)
def test_what_cannot_be_called_by_name_is_no_tool(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message.replace("*values", r"\*values")):
        tool(function)


def test_a_function_outside_a_class_may_call_a_parameter_self() -> None:
    def greet(self: str) -> None: ...

    assert list(tool(greet).input_schema["properties"]) == ["self"]


def test_a_field_without_a_type_may_be_anything() -> None:
    assert taking(Untyped).input_schema["properties"]["value"]["properties"] == {"anything": {"default": 1}}


def test_a_limit_that_only_a_process_has_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r'tool "pay" .*: cpu_seconds and open_files cannot be held for a Python f'
    ):
        tool(pay.function, limits=Limits(cpu_seconds=1, open_files=3, wall_seconds=2))


def test_a_program_and_a_function_without_such_limits_pass() -> None:
    refuse_process_limits(ToolDef(name="a", implementation=Program("/bin/true"), limits=Limits(cpu_seconds=1)))
    refuse_process_limits(ToolDef(name="b", implementation=Function(many), limits=Limits(wall_seconds=1)))
    refuse_process_limits(ToolDef(name="c", implementation=Function(many)))


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="nme"):
        tool(nme="x")(Till.check)  # type: ignore[call-overload]


def test_a_plain_function_becomes_a_tool_and_returns_without_anything_heavy() -> None:
    script = (
        "import sys\nfrom heddle.tools.decorator import tool\n"
        "def f(a: int = 1, b: list[str] | None = None, c: list[str] = (), d: int | None = None) -> dict: ...\n"
        "tool(f)\n"
        "def g(a: str, b: list[str]) -> dict[str, list[str | None]]: return {a: [*b, None]}\n"
        "function = tool(g).implementation\n"
        "assert function.prepare is None and function.finish(g('a', ['b'])) == {'a': ['b', None]}\n"
        "print(sorted({'jsonschema', 'cattrs', 'trio', 'yaml', 'typing_extensions'} & set(sys.modules)))"
    )

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert printed == "[]\n"
