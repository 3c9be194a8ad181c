"""Which patterns are safe, and up to which length of a string. Costs are counted, never timed."""

from __future__ import annotations

import importlib
import itertools
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle.errors import DefinitionError
from heddle.tools.ambiguity import growth
from heddle.tools.expressions import automaton_of
from heddle.tools.patterns import LONGEST, matching_cost, safe_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

LINEAR = [
    "",
    "^$",
    r"^[a-z]+$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$",
    r"^(?:[a-z0-9]+-)*[a-z0-9]+$",
    r"^.{1,5000}$",
    r"^https?://",
    r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    r".+",
    r"\S",
    r"[A-Z]{2}\d{4}",
    r"^(?=.*[A-Z])(?=.*\d).{8,}$",
    r"^(?!.*\.\.)[a-z.]+$",
    r"(?<=a)b",
    r"(?<!\d)x",
    r"^(\d{1,3}\.){3}\d{1,3}$",
    r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$",
    r"(?i)^(a|A)*$",  # Python reads the alternatives as one set
    r"(?i)^[a-z]+[0-9]+$",
    r"(?a)^\w+$",
    r"^[^\W\d]+\d$",
    r"(?s)^.*$",
    r"^(?>a+)b$",
    r"^a++b$",
    r"^\bword\b$",
    r"\Aa*\Z",
    r"^(a)?(?(1)b|c)$",
    r"^(a)(?(1)b)$",
    r"[[a]",  # a warning of what Python may read differently one day
    r"^(?:a{0}b)+$",
    r"^[\u4e00-\uffff]+$",
]
EXPONENTIAL = [
    r"^(a+)+$",
    r"^(a|a)*$",
    r"^(a|aa)+$",
    r"^([a-zA-Z]+)*$",
    r"(x+x+)+y",
    r"^(.*)*$",
    r"(\s*\w*)*$",
    r"^(a|ab|b)*c$",
    r"^(\w+\s?)*$",
    r"^(a+?)+?$",
    r"^(?>(a+)+)$",
    r"^((a+)++)$",
    r"(?=(a+)+$)b",
    r"^(?:(?:a?)*b)*$",  # the empty turn of the inner loop can be taken or left each time
    r"^(.*a){200}$",
    r"^(a?){100}$",
    r"(?i)^(?:k|\u212ax|K\u212a?)*$",  # the Kelvin sign is a k
    r"(?i)^([a-z]+|[\u017f]+)+$",
    r"(?i)^(?:[\u0100-\uffff]|ax?)+$|^(a|ab|A)+$",
    r"(?a)^(?:\W|--)*$",
    r"^(?:(a)\1|a)*$",
]


@pytest.mark.parametrize("text", LINEAR)
def test_an_ordinary_pattern_takes_long_strings(text: str) -> None:
    cost = matching_cost(text)

    assert (cost, safe_pattern(text).longest) == (1, LONGEST[1])


@pytest.mark.parametrize("text", EXPONENTIAL)
def test_a_pattern_that_can_take_exponential_time_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        safe_pattern(text)

    assert matching_cost(text) is None
    assert text[:20] in str(caught.value)
    assert "grow exponentially" in str(caught.value)
    assert "in one way only" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        (r"\s+$", 2),
        (r"[a-z]+$", 2),
        (r".*foo", 2),
        (r"foo.*bar$", 2),
        (r"^\s+|\s+$", 2),
        (r"(?m)^a+$", 2),
        (r"^(.*),(.*)$", 2),
        (r"""^(['"]).*\1$""", 2),
        (r"^(.*),(.*),(.*)$", 3),
    ],
)
def test_a_polynomial_pattern_takes_shorter_strings(text: str, cost: int) -> None:
    """The longest string is chosen so that its worst case takes some 20 ms: measured, and explained in the module."""
    pattern = safe_pattern(text)

    assert (pattern.cost, matching_cost(text)) == (cost, cost)
    assert 0.7 * LONGEST[cost] < pattern.longest <= LONGEST[cost]


@pytest.mark.parametrize(
    "text",
    [r"^(.*a){20}$", r"^(?:.*,){6}x", r"^(a|a){30}$", "^" + "a?" * 30 + "a" * 30 + "$", "^" + "(a|a)" * 30 + "$"],
)
def test_too_many_ways_to_match_are_refused_even_where_they_are_limited(text: str) -> None:
    with pytest.raises(DefinitionError, match="too many of its parts can match the same text"):
        safe_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 3000,
        "(?:" + "|".join(f"{number:03}x" for number in range(900)) + ")*",
        "(?:){1000000}a",
        "(" * 90 + "a" + "{2}" + "){2}" * 90,
        "^" + "".join(f"[{chr(97 + i)}-z]*" for i in range(26)) * 12 + "$",
    ],
    ids=["long", "wide", "empty turns", "nested repeats", "many loops"],
)
def test_a_pattern_that_is_too_large_to_be_judged_is_refused(text: str) -> None:
    """Registering a tool must not hang either."""
    with pytest.raises(DefinitionError) as caught:
        safe_pattern(text)

    assert "refused" in str(caught.value) or "too deeply" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\p{L}", r"bad escape \p at position 0"),
        ("(a", r"missing \), unterminated subpattern at position 0"),
        ("a{99999999999}", "the repetition number is too large"),
    ],
)
def test_what_python_cannot_read_is_said_with_its_own_words(text: str, reason: str) -> None:
    with pytest.raises(DefinitionError, match=re.escape(reason).replace(r"\\\)", r"\)")):
        matching_cost(text)


def test_a_pattern_nested_beyond_any_use_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"nested too deeply|too large"):
        matching_cost("(" * 5000 + "a" + ")" * 5000)


def test_a_safe_pattern_searches_as_python_does() -> None:
    pattern = safe_pattern(r"b+c")

    assert (bool(pattern.search("abbc")), bool(pattern.search("abb"))) == (True, False)


# A backtracking matcher that counts the characters it reads, for the operations that the strategy below makes.


class Counting:
    def __init__(self, text: str) -> None:
        parser: Any = importlib.import_module("re._parser")
        self.tree = list(parser.parse(text))
        self.steps = 0

    def search(self, string: str) -> int:
        self.string = string
        self.steps = 0
        for start in range(len(string) + 1):
            if next(self._sequence(self.tree, start), None) is not None:
                break
        return self.steps

    def _sequence(self, items: Any, place: int) -> Iterator[int]:
        if not items:
            yield place
            return
        for after in self._item(str(items[0][0]), items[0][1], place):
            yield from self._sequence(items[1:], after)

    def _item(self, operation: str, argument: Any, place: int) -> Iterator[int]:
        match operation:
            case "AT":
                if (place == 0) if "BEGINNING" in str(argument) else (place == len(self.string)):
                    yield place
            case "BRANCH":
                for branch in argument[1]:
                    yield from self._sequence(list(branch), place)
            case "ASSERT" | "ASSERT_NOT":
                found = next(self._sequence(list(argument[1]), place), None) is not None
                if found == (operation == "ASSERT"):
                    yield place
            case "FAILURE":
                return
            case "SUBPATTERN":
                yield from self._sequence(list(argument[3]), place)
            case "MAX_REPEAT" | "MIN_REPEAT":
                lazy = operation == "MIN_REPEAT"
                yield from self._repeat(argument[0], argument[1], list(argument[2]), 0, place, None, lazy=lazy)
            case _:
                codes = [argument] if operation == "LITERAL" else [code for _, code in argument]
                if place < len(self.string) and ord(self.string[place]) in codes:
                    self.steps += 1
                    yield place + 1

    def _repeat(
        self, least: int, most: int, body: Any, count: int, place: int, last: int | None, *, lazy: bool
    ) -> Iterator[int]:
        if count < least:
            for after in self._sequence(body, place):
                yield from self._repeat(least, most, body, count + 1, after, last, lazy=lazy)
            return
        if lazy:
            yield place
        if count < most and place != last:
            for after in self._sequence(body, place):
                yield from self._repeat(least, most, body, count + 1, after, place, lazy=lazy)
        if not lazy:
            yield place


def regular_expressions() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeats = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{0,3}", "{2,}"])
        return st.one_of(
            st.tuples(inner, repeats).map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
            st.tuples(inner, inner).map("".join),
            st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda parts: f"{parts[0]}{parts[1]})"),
            st.tuples(inner, inner).map(lambda parts: f"(?:{parts[0]}|{parts[1]})"),
        )

    parts = st.recursive(st.sampled_from(["a", "b", "[ab]", "^", ""]), larger, max_leaves=6)
    return st.tuples(st.sampled_from(["", "^"]), parts, st.sampled_from(["", "$"])).map("".join)


@settings(max_examples=300, deadline=None)
@given(regular_expressions())
@example("(?:a|b)*(?:a|b)*$")
@example("^(?:a?){2}(?:(?:a?)*b)*$")
@example("(?:(?:a{2})?b)*?$")
def test_no_search_takes_more_steps_than_the_analysis_says(text: str) -> None:
    """Against every word up to five characters, counted by a matcher written for this test."""
    found = growth(automaton_of(text))
    counting = Counting(text)
    for length in range(6):
        worst = max(counting.search("".join(word)) for word in itertools.product("ab!", repeat=length))
        if found.degree is not None:
            ways = math.comb(length + found.degree + 1, found.degree + 1)

            assert worst <= found.factor * ways + found.extra + length


@pytest.mark.parametrize("text", [r"^(a+)+$", r"^(a|a)*$", r"(?:a?){3}(?:a|aa)*$", r"^(?:(?:a?)*b)*$", r"^(?:a*)*$"])
def test_what_is_called_exponential_doubles_with_every_few_characters(text: str) -> None:
    counting = Counting(text)
    steps = [max(counting.search(letter * length + "!") for letter in "ab") for length in (6, 9, 12)]

    assert matching_cost(text) is None
    assert steps[1] > 3 * steps[0]
    assert steps[2] > 3 * steps[1]


@pytest.mark.parametrize(("text", "cost"), [("^a*$", 1), ("a+$", 2), ("^a*a*$", 2), ("a*a*$", 3)])
def test_the_cost_is_the_power_that_counting_shows(text: str, cost: int) -> None:
    counting = Counting(text)
    short, long = (counting.search("a" * length + "!") for length in (20, 40))

    assert matching_cost(text) == cost
    assert 0.8 * 2**cost <= long / short <= 1.2 * 2**cost
