"""Values of Python types go out as JSON, come back as what they were, and the schema lets exactly these in."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NewType, NotRequired, Optional, Self, TypedDict, Union

import attrs
import jsonschema
import pytest
from cattrs import ClassValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from heddle.errors import StrictJsonError
from heddle.strictjson import JSON, normalized
from heddle.tools.decorator import FunctionTool, tool
from heddle.tools.definition import Function, Violation
from heddle.tools.records import schema_of
from heddle.tools.structuring import ArgumentsRefused, to_json
from heddle.tools.typehints import Reader


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Grade(enum.IntEnum):
    GOOD = 1
    BAD = 2


class Mixed(enum.Enum):
    ONE = 1
    TEXT = "1"
    NOTHING = None
    HALF = 0.5


class Yes(enum.Enum):
    YES = True


UserId = NewType("UserId", int)
Names = TypeAliasType("Names", "list[str]")


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@attrs.frozen
class Line:
    points: tuple[Point, ...]
    _color: Color = Color.RED
    note: str | None = attrs.field(default=None, kw_only=True)


class Options(TypedDict, total=False):
    depth: int
    where: Annotated[Point, "the start"]


class Job(Options):
    id: UserId
    tags: NotRequired[set[str]]


@dataclasses.dataclass
class Tree:
    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Person(TypedDict):
    name: str
    friend: NotRequired[Person]
    pets: list[Pet]


class Pet(TypedDict):
    owner: Person | None


Forest = TypeAliasType("Forest", "Tree | list[Tree]")

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
INTEGERS = st.one_of(st.integers(), st.just(2**70))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.builds(Point, INTEGERS, NUMBERS)
LINES = st.builds(Line, st.lists(POINTS, max_size=3).map(tuple), st.sampled_from(Color), note=st.none() | TEXT)
OPTIONS: Any = st.fixed_dictionaries({}, optional={"depth": INTEGERS, "where": POINTS})
JOBS = st.fixed_dictionaries({"id": INTEGERS}, optional={"tags": st.sets(TEXT), "depth": INTEGERS, "where": POINTS})
TREES = st.recursive(
    st.builds(Tree, TEXT), lambda inner: st.builds(Tree, TEXT, st.lists(inner, max_size=2)), max_leaves=4
)
PERSON: Any = {"name": "Ann", "friend": {"name": "Bob", "pets": []}, "pets": [{"owner": None}]}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

TABLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, TEXT),
    (int, INTEGERS),
    (float, NUMBERS),
    (bool, st.booleans()),
    (None, st.none()),
    (Any, ANY_JSON),
    (object, ANY_JSON),
    (list, st.lists(ANY_JSON, max_size=3)),
    (list[int], st.lists(INTEGERS)),
    (list[str], st.lists(TEXT)),
    (Sequence[Point], st.lists(POINTS, max_size=3)),
    (dict, st.dictionaries(TEXT, ANY_JSON, max_size=3)),
    (dict[str, Any], st.dictionaries(TEXT, ANY_JSON, max_size=3)),
    (dict[Any, int], st.dictionaries(TEXT, INTEGERS)),
    (Mapping[str, Point], st.dictionaries(TEXT, POINTS, max_size=3)),
    (tuple, st.lists(ANY_JSON, max_size=3).map(tuple)),
    (tuple[()], st.just(())),
    (tuple[int, ...], st.lists(INTEGERS).map(tuple)),
    (tuple[int, str, Point], st.tuples(INTEGERS, TEXT, POINTS)),
    (set, st.sets(TEXT)),
    (set[int], st.sets(INTEGERS)),
    (frozenset[Color], st.frozensets(st.sampled_from(Color))),
    (set[tuple[str, int | None]], st.sets(st.tuples(TEXT, st.none() | INTEGERS), max_size=4)),
    (set[Annotated[Point, "a corner"]], st.sets(POINTS, max_size=4)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal[1, True, "1"] | None, st.sampled_from([1, True, None, "1"])),
    (Literal[Color.RED], st.just(Color.RED)),
    (Color, st.sampled_from(Color)),
    (Grade, st.sampled_from(Grade)),
    (Mixed, st.sampled_from(Mixed)),
    (Yes, st.sampled_from(Yes)),
    (Optional[float], st.none() | NUMBERS),  # noqa: UP045 - the old spelling is what is tested
    (Union[int, str], INTEGERS | TEXT),  # noqa: UP007
    (int | float, INTEGERS | NUMBERS),
    (Color | Point | list[Line] | None, st.sampled_from(Color) | POINTS | st.lists(LINES, max_size=2) | st.none()),
    (set[int] | str, st.sets(INTEGERS) | TEXT),
    (tuple[int, int] | Options, st.tuples(INTEGERS, INTEGERS) | OPTIONS),
    (dict[str, int] | list[Annotated[int, "n"]], st.dictionaries(TEXT, INTEGERS) | st.lists(INTEGERS)),
    (Literal["none"] | bool, st.just("none") | st.booleans()),
    (Annotated[int, 5, "how many"], INTEGERS),
    (UserId, INTEGERS),
    (Names, st.lists(TEXT)),
    (Point, POINTS),
    (Line, LINES),
    (Options, OPTIONS),
    (Job, JOBS),
    (Tree, TREES),
    (list[Tree], st.lists(TREES, max_size=2)),
    (Forest, TREES),
    (Person, st.just(PERSON)),
    (
        dict[str, list[tuple[Line, ...]]],
        st.dictionaries(TEXT, st.lists(st.lists(LINES, max_size=1).map(tuple), max_size=1)),
    ),
]
# 50 each: the table is long. No deadline: a busy machine is no defect.
PATIENT = settings(max_examples=50, deadline=None)
ANNOTATIONS = pytest.mark.parametrize(("annotation", "values"), TABLE, ids=lambda each: str(each)[:40])


def taking(annotation: object, **default: object) -> FunctionTool[..., Any]:
    """Return a tool whose one parameter `value` is annotated so."""

    def probe(value: Any) -> None:
        """Take it."""

    probe.__annotations__ = {"value": annotation}
    probe.__defaults__ = tuple(default.values())
    return tool(probe)


def prepared(made: FunctionTool[..., Any], **arguments: object) -> dict[str, Any]:
    """Return what the function is called with."""
    assert isinstance(made.implementation, Function)
    given: Any = arguments
    return given if made.implementation.prepare is None else made.implementation.prepare(given)


def refusal(made: FunctionTool[..., Any], **arguments: object) -> tuple[Violation, ...]:
    with pytest.raises(ArgumentsRefused) as caught:
        prepared(made, **arguments)
    return caught.value.violations


def validator(schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@ANNOTATIONS
def test_a_value_of_every_type_comes_back_as_it_was(annotation: object, values: st.SearchStrategy[Any]) -> None:
    made = taking(annotation)
    check = validator(made.input_schema)

    @PATIENT
    @given(values)
    def comes_back(value: object) -> None:
        sent = normalized({"value": to_json(value)})

        check.validate(sent)
        loaded = prepared(made, value=to_json(value))["value"]

        assert loaded == value
        assert type(loaded) is type(value)

    comes_back()


@ANNOTATIONS
def test_a_shape_accepts_exactly_what_its_schema_accepts(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    """A union is decided by `accepts`, so it must agree with the validator that let the value in."""
    shape = Reader("probe", {}).read(annotation, "value")
    check = validator(schema_of(shape))
    near = st.one_of(*(strategy for _, strategy in TABLE)).map(lambda value: normalized(to_json(value)))

    @PATIENT
    @given(ANY_JSON | near)
    def agrees(value: JSON) -> None:
        assert shape.accepts(value) == check.is_valid(value)

    agrees()


@pytest.mark.parametrize(
    ("annotation", "given_value", "expected"),
    [
        (float, 5, 5.0),
        (float | None, 5, 5.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (int, 5.0, 5),
        (int, 2**70, 2**70),
        (int | None, 5.0, 5),
        (int | float, 5.0, 5.0),
        (float | int, 5, 5),
        (bool | int, True, True),
        (int | bool, True, True),
        (Literal[1], 1.0, 1),
        (Literal[1, True], True, True),
        (Grade, 1.0, Grade.GOOD),
        (Mixed, "1", Mixed.TEXT),
        (Color | str, "red", Color.RED),
        (Color | str, "blue", "blue"),
        (str | Color, "red", "red"),
        (Any, {"n": [1, 2.0]}, {"n": [1, 2.0]}),
        (Sequence[tuple[int, ...]], [[1.0], []], [(1,), ()]),
        (Point | Line, {"points": [{"x": 1}]}, Line((Point(1),))),
        (Line, {"points": [], "color": "green"}, Line((), Color.GREEN)),
        (set, ["a", 1, None], {"a", 1, None}),
    ],
)
def test_what_json_says_in_another_way_gets_the_annotated_type(
    annotation: object, given_value: JSON, expected: object
) -> None:
    made = taking(annotation)

    loaded = prepared(made, value=given_value)["value"]

    assert (loaded, repr(loaded)) == (expected, repr(expected)) if not isinstance(expected, set) else loaded == expected


@pytest.mark.parametrize(
    "annotation", [str, bool, Any, list[str], dict[str, list[bool | None]], Literal["a"], Options | None]
)
def test_arguments_that_are_right_already_are_not_touched(annotation: object) -> None:
    needs_none = annotation != (Options | None)

    made = taking(annotation)

    assert isinstance(made.implementation, Function)
    assert (made.implementation.prepare is None) is needs_none


def test_a_recursive_class_is_referred_to_and_everything_else_is_spelled_out() -> None:
    @tool
    def plant(tree: Tree, at: Point) -> Tree:
        return tree

    node = {
        "type": "object",
        "properties": {"label": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
        "required": ["label"],
        "additionalProperties": False,
    }
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 0.0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert plant.input_schema == {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Tree"}, "at": point},
        "required": ["tree", "at"],
        "additionalProperties": False,
        "$defs": {"Tree": node},
    }
    assert plant.output_schema == {**node, "$defs": {"Tree": node}}


def test_two_recursive_classes_of_one_name_get_two_definitions() -> None:
    def another() -> type:
        @dataclasses.dataclass
        class Tree:
            left: Tree | None = None

        return Tree

    other = another()
    schema = taking(tuple[Tree, other]).input_schema  # type: ignore[valid-type]

    assert list(schema["$defs"]) == ["Tree", "Tree2"]
    assert validator(schema).is_valid({"value": [{"label": "a"}, {"left": {"left": None}}]})


def test_a_class_that_contains_itself_through_another_is_loaded_at_every_depth() -> None:
    person = prepared(taking(Person), value={"name": "A", "pets": [{"owner": {"name": "B", "pets": []}}]})

    assert person == {"value": {"name": "A", "pets": [{"owner": {"name": "B", "pets": []}}]}}


@attrs.frozen
class Item:
    name: str
    count: int = attrs.field(validator=attrs.validators.gt(0))


@dataclasses.dataclass
class Order:
    items: list[Item]
    prices: dict[str, Item] = dataclasses.field(default_factory=dict)
    pair: tuple[Item, Item] | None = None

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError


@pytest.mark.parametrize(
    ("order", "path", "message"),
    [
        ({"items": [{"name": "a", "count": 1}, {"name": "b", "count": 0}]}, "value.items[1]", "'count' must be > 0: 0"),
        ({"items": [], "prices": {"a": {"name": "a", "count": -1}}}, "value.prices.a", "'count' must be > 0: -1"),
        ({"items": [], "pair": [{"name": "a", "count": 0}] * 2}, "value.pair[0]", "'count' must be > 0: 0"),
    ],
)
def test_what_a_class_refuses_is_refused_where_it_stands(order: JSON, path: str, message: str) -> None:
    """The schema cannot foresee a validator; the caller still has to learn which part was wrong."""
    violations = refusal(taking(Order), value=order)

    assert violations == (Violation(path, "Item", f"must be accepted by Item: {message}"),)


def test_a_class_that_refuses_without_a_word_is_named() -> None:
    with pytest.raises(ArgumentsRefused, match=r"^value: must be accepted by Order: ValueError$") as caught:
        prepared(taking(Order), value={"items": []})

    assert isinstance(caught.value.__cause__, ValueError)


class Stubborn:
    """Raises the same exception each time, and one that a library of conversions raises itself."""

    refusal: ClassVar[Exception] = ClassValidationError("its own reason", [ValueError("inside")], int)

    def __new__(cls, *_: object, **__: object) -> Self:
        raise cls.refusal


@dataclasses.dataclass
class StubbornPoint(Stubborn):
    x: int


@pytest.mark.parametrize("place", [0, 1])
def test_the_place_of_a_refusal_does_not_depend_on_the_exception(place: int) -> None:
    value = [*[None] * place, {"x": 1}]

    violations = refusal(taking(list[StubbornPoint | None]), value=value)

    assert violations == (
        Violation(f"value[{place}]", "StubbornPoint", "must be accepted by StubbornPoint: its own reason"),
    )


def test_a_refusal_among_open_names_is_placed() -> None:
    @tool
    def order(first: Item, **more: Item) -> None: ...

    assert prepared(order, first={"name": "a", "count": 1}, b={"name": "b", "count": 2}) == {
        "first": Item("a", 1),
        "b": Item("b", 2),
    }
    assert [each.path for each in refusal(order, first={"name": "a", "count": 1}, b={"name": "b", "count": 0})] == ["b"]


Odd = TypedDict("Odd", {"it's": Point, "a b": NotRequired[int], "def": str})  # no class can name these


def test_names_are_free() -> None:
    """Neither a name of the library that converts nor one that is no name in Python stands in the way."""

    @attrs.frozen
    class Names:
        converter: Point
        cl: float = 0

    @tool
    def probe(converter: int, cl: Names, o: Odd) -> None: ...

    odd: Any = {"it's": {"x": 1}, "a b": 2.0, "def": "d"}

    assert prepared(probe, converter=1.0, cl={"converter": {"x": 1}, "cl": 2}, o=odd) == {
        "converter": 1,
        "cl": Names(Point(1), 2.0),
        "o": {"it's": Point(1), "a b": 2, "def": "d"},
    }


def test_values_of_literals_are_told_apart_within_one_tool() -> None:
    """1 equals True in Python and not in JSON."""

    @tool
    def probe(number: Literal[1], truth: Literal[True, "x"], other: list[Literal[1]]) -> None: ...

    loaded = prepared(probe, number=1.0, truth=True, other=[1.0])

    assert repr(loaded) == "{'number': 1, 'truth': True, 'other': [1]}"


@pytest.mark.parametrize(
    ("annotation", "given_value"),
    [(int, "5"), (int, 5.5), (float, "5"), (float, True), (list[int], ["5"]), (tuple[int, int], [1])],
)
def test_what_does_not_fit_is_refused_also_when_nobody_checked_it(annotation: object, given_value: JSON) -> None:
    violations = refusal(taking(annotation), value=given_value)

    assert [violation.rule for violation in violations] == ["type"]


def test_a_number_too_large_for_a_float_is_refused() -> None:
    violations = refusal(taking(list[float]), value=[1, 10**400])

    assert violations == (
        Violation("value[1]", "type", "must fit the annotated type: int too large to convert to float"),
    )


def test_a_path_through_nested_arrays_has_no_dots_between_its_brackets() -> None:
    violations = refusal(taking(list[list[Item]]), value=[[{"name": "", "count": 0}]])

    assert [violation.path for violation in violations] == ["value[0][0]"]


@pytest.mark.parametrize("annotation", [int, Point, set[int], tuple[int, int], Color | list[int], Options])
def test_arguments_that_nobody_checked_are_refused_and_not_a_crash(annotation: object) -> None:
    """With ``Validation(schema=False)`` anything reaches the function's types."""
    violations = refusal(taking(annotation), value=None)

    assert [violation.path for violation in violations] == ["value"]


@dataclasses.dataclass
class Computed:
    total: int = dataclasses.field(init=False, default=7)
    never_set: int = dataclasses.field(init=False)


@attrs.frozen
class Empty:
    pass


class Code(str, enum.Enum):  # noqa: UP042 - StrEnum has no label
    """Its members are texts, and not the texts that they stand for."""

    def __new__(cls, code: str, label: str) -> Self:
        member = str.__new__(cls, label)
        member._value_ = code
        return member

    A = "a", "the first"


@dataclasses.dataclass
class Node:
    parent: Node | None = None


def looped() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


def looped_node() -> Node:
    node = Node()
    node.parent = node
    return node


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Line((Point(1),), Color.GREEN), {"points": [{"x": 1, "y": 0.0}], "color": "green", "note": None}),
        (Computed(), {"total": 7}),
        (Empty(), {}),
        (Grade.BAD, 2),
        ({3, 1, 2}, [1, 2, 3]),
        ({Point(2), Point(1)}, [{"x": 1, "y": 0.0}, {"x": 2, "y": 0.0}]),
        (frozenset({"a", 1, None}), ["a", 1, None]),
        ({frozenset({2, 1}), frozenset({1})}, [[1], [1, 2]]),
        ({"a": 1}.keys(), ["a"]),
        (collections.deque([(1, 2)]), [[1, 2]]),
        (range(3), [0, 1, 2]),
        (types.MappingProxyType({"a": (Color.RED,)}), {"a": ["red"]}),
        ({1: "one"}, {1: "one"}),
        (2**70, 2**70),
        (b"bytes", b"bytes"),
        ([bytearray(b"a"), Path("a")], [bytearray(b"a"), Path("a")]),
        (Code.A, "a"),
        ({Color.RED: 1}, {Color.RED: 1}),
        (Node(Node()), {"parent": {"parent": None}}),
        (dt.date(2024, 1, 1), dt.date(2024, 1, 1)),
        (Point, Point),
    ],
)
def test_richer_values_become_json_and_the_rest_stays_for_the_strict_check(value: object, expected: object) -> None:
    result = to_json(value)

    assert result == expected


@pytest.mark.parametrize("value", [looped(), looped_node()], ids=["list", "class"])
def test_a_result_that_holds_itself_is_refused(value: object) -> None:
    with pytest.raises(StrictJsonError, match="nesting deeper than 128"):
        to_json(value)


def test_a_result_as_deep_as_json_may_be_is_taken() -> None:
    deep: object = ()
    for _ in range(127):
        deep = (deep,)

    assert normalized(to_json(deep)) == normalized(deep)


def _unequal(_self: object, _other: object) -> bool:
    return False


NeverEqual: Callable[..., Any] = type("NeverEqual", (str,), {"__eq__": _unequal, "__hash__": str.__hash__})


@pytest.mark.parametrize(
    ("annotation", "default", "published"),
    [
        (int, 3, {"default": 3}),
        (float, 1, {"default": 1}),
        (Color, Color.RED, {"default": "red"}),
        (Point, Point(1, 2.5), {"default": {"x": 1, "y": 2.5}}),
        (tuple[int, ...], (1, 2), {"default": [1, 2]}),
        (str | None, None, {"default": None}),
        (frozenset[str], frozenset({"b", "a"}), {"default": ["a", "b"]}),
        (int, None, {}),
        (int, True, {}),
        (float, float("inf"), {}),
        (float, 10**400, {}),
        (list[int], (), {}),
        (Any, dt.date.min, {}),
        (str, NeverEqual("x"), {}),
        (Item, Item, {}),
    ],
)
def test_a_default_is_published_only_if_it_comes_back_as_itself(
    annotation: object, default: object, published: dict[str, object]
) -> None:
    """Published defaults are filled in and then loaded; where that gave another value, Python's own must apply."""
    schema = taking(annotation, value=default).input_schema

    assert "required" not in schema
    assert {key: value for key, value in schema["properties"]["value"].items() if key == "default"} == published
