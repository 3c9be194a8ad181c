"""Strict JSON, limits and results: values that cannot be wrong."""

from __future__ import annotations

import enum
import json
import math
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heddle
from heddle import strictjson
from heddle.limits import Limits
from heddle.strictjson import MAX_DEPTH, MAX_DIGITS

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert strictjson.same(strictjson.loads(strictjson.dumps(value)), value)


@given(JSON_VALUES)
def test_what_is_read_is_what_json_reads(value: Any) -> None:
    text = json.dumps(value)

    assert strictjson.same(strictjson.loads(text), value)
    assert strictjson.loads(text.encode()) == strictjson.loads(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_named_error(data: bytes) -> None:
    try:
        value = strictjson.loads(data)
    except heddle.StrictJsonError as error:
        assert str(error)
    else:
        assert strictjson.loads(strictjson.dumps(value)) == value


REFUSED = {
    "[NaN]": "NaN, which is not JSON at $[0]",
    '{"a": -Infinity}': "-Infinity, which is not JSON at $.a",
    '{"a": {"b": 1, "b": 2}}': 'duplicate key "b" at $.a',
    '{"a": NaN, "a": 1}': "NaN, which is not JSON",
    '["\\ud800"]': "a lone surrogate (\\ud800) at $[0]",
    '{"\\udfff": 1}': "a lone surrogate (\\udfff) at $",
    "1e999": "a number too large for JSON readers (1e999) at $",
    "1" + "0" * 400 + ".0": "a number too large for JSON readers (10000000000000000000…) at $",
    "1" * (MAX_DIGITS + 1): "an integer of more than 4,300 digits at $",
    "[" * (MAX_DEPTH + 1): "nesting deeper than 128",
    '{"a":' * 200_000: "nesting deeper than 128",
    "": "nothing where a value should be",
    " \n": "nothing where a value should be",
    "{} {}": "more after the first value at byte 3",
    "{'a': 1}": "text that is not JSON (expecting property name enclosed in double quotes) at byte 1",
    '"ü" x': "more after the first value at byte 5",
    '"tab\t"': "text that is not JSON (invalid control character at) at byte 4",
    "\ufeff\ufeff{}": "text that is not JSON (a second byte-order mark) at byte 0",
}


@pytest.mark.parametrize(("text", "error"), REFUSED.items(), ids=[text[:20] for text in REFUSED])
def test_text_that_two_readers_could_read_differently_is_refused(text: str, error: str) -> None:
    with pytest.raises(heddle.StrictJsonError) as caught:
        strictjson.loads(text)

    assert str(caught.value) == error


def test_bytes_that_are_not_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(heddle.StrictJsonError, match="bytes that are not UTF-8 at byte 2"):
        strictjson.loads(b'{"\xff')
    with pytest.raises(heddle.StrictJsonError, match="bytes that are not UTF-8"):
        strictjson.loads('"\ud800"')
    with pytest.raises(heddle.StrictJsonError, match="bytes that are not UTF-8"):
        strictjson.loads('{"a": 1}'.encode("utf-16"))


def test_what_is_allowed_is_exact() -> None:
    assert strictjson.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert strictjson.loads("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert strictjson.loads("-" + "9" * MAX_DIGITS) == 1 - 10**MAX_DIGITS
    assert strictjson.loads('["' + "[" * 500 + '"]') == ["[" * 500]
    assert strictjson.loads('"\\ud83d\\ude00"') == "😀"
    assert strictjson.loads(b"\xef\xbb\xbf[1]") == [1]
    assert strictjson.loads(str(2**70)) == 2**70


def test_a_host_that_lowered_the_limit_of_digits_gets_a_named_error() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(700)
    try:
        with pytest.raises(heddle.StrictJsonError, match="does not convert"):
            strictjson.loads("1" * 800)
    finally:
        sys.set_int_max_str_digits(before)


class Size(enum.IntEnum):
    SMALL = 1


class Name(str):
    __slots__ = ()


def test_python_values_become_plain_json_values() -> None:
    given = {"tuple": (1, 2), "enum": Size.SMALL, "name": Name("x"), Name("key"): 2.5, "map": attrs.asdict}

    with pytest.raises(heddle.StrictJsonError, match="a value of type function"):
        strictjson.normalized(given)
    del given["map"]
    plain = strictjson.normalized(given)

    assert plain == {"tuple": [1, 2], "enum": 1, "name": "x", "key": 2.5}
    assert isinstance(plain, dict)
    assert {type(key) for key in plain} == {str}
    assert type(plain["enum"]) is int
    assert type(plain["name"]) is str


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.inf, "inf, which is not JSON at $"),
        ({"a": [math.nan]}, "nan, which is not JSON at $.a[0]"),
        ({"a": "\ud800"}, "a lone surrogate (\\ud800) at $.a"),
        ({"a": {3: 1}}, "a key of type int (3) at $.a"),
        ({"a b\n": {1}}, "a value of type set, which is not JSON at $.a b\\n"),
        ([10**MAX_DIGITS], "an integer of more than 4,300 digits at $[0]"),
    ],
    ids=["infinity", "nan", "surrogate", "key", "set", "digits"],
)
def test_python_values_that_json_cannot_say_are_refused(value: Any, error: str) -> None:
    with pytest.raises(heddle.StrictJsonError) as caught:
        strictjson.dumps(value)

    assert str(caught.value) == error


def test_values_that_hold_themselves_are_refused() -> None:
    value: list[Any] = []
    value.append({"again": value})

    with pytest.raises(heddle.StrictJsonError, match="nesting deeper"):
        strictjson.dumps(value)


def test_large_values_are_recognised_without_a_walk_of_them_all() -> None:
    endless: list[Any] = []
    endless.append(endless)

    assert strictjson.is_large(endless)
    assert strictjson.is_large("x" * 300_000)
    assert strictjson.is_large([0] * 3000)
    assert strictjson.is_large({str(n): [n] * 2 for n in range(1000)})
    assert not strictjson.is_large({"a": [1, 2, {"b": "text"}]})


def test_values_are_the_same_as_json_has_them() -> None:
    assert strictjson.same(1, 1.0)
    assert strictjson.same({"a": [1]}, {"a": [1.0]})
    assert not strictjson.same(1, True)
    assert not strictjson.same({"a": 0}, {"a": False})
    assert not strictjson.same([1], [1, 2])
    assert not strictjson.same({"a": 1}, {"b": 1})
    assert strictjson.same(None, None)


# Limits

LIMITS = st.builds(
    Limits,
    wall_seconds=st.none() | st.floats(min_value=0.001, max_value=1e6),
    stdout_bytes=st.none() | st.integers(1, 10**9),
    processes=st.none() | st.integers(1, 100),
)


@given(LIMITS, LIMITS)
def test_tightening_never_widens(one: Limits, other: Limits) -> None:
    both = one.tightened_by(other)

    assert both == other.tightened_by(one)
    for name, value in both.items():
        given = [limit for limit in (getattr(one, name), getattr(other, name)) if limit is not None]
        assert value == min(given, default=None)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"wall_seconds": 0}, ValueError),
        ({"wall_seconds": math.nan}, ValueError),
        ({"wall_seconds": "1"}, TypeError),
        ({"stdout_bytes": 1.5}, TypeError),
        ({"stdout_bytes": -1}, ValueError),
        ({"processes": True}, TypeError),
    ],
)
def test_a_limit_that_makes_no_sense_cannot_exist(limits: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(limits))):
        Limits(**limits)


def test_no_end_is_infinity() -> None:
    assert Limits(wall_seconds=math.inf).wall_seconds == math.inf


# Results


def test_a_result_is_unwrapped_or_raised() -> None:
    failed = heddle.Failed(heddle.FailureKind.CRASHED, "it broke")

    assert heddle.Returned({"a": 1}).unwrap() == {"a": 1}
    with pytest.raises(heddle.ToolFailed, match="it broke") as caught:
        failed.unwrap()
    assert caught.value.result is failed
    assert (heddle.Returned(1).ok, failed.ok) == (True, False)


def test_a_kind_is_its_text() -> None:
    assert heddle.Failed("timed_out", "late").kind == "timed_out"
    with pytest.raises(ValueError, match="nonsense"):
        heddle.Failed("nonsense", "")


def test_a_model_reads_what_it_can_act_on() -> None:
    returned = heddle.Returned({"text": "ü" * 100})
    failed = heddle.Failed(heddle.FailureKind.TOOL_ERROR, "no loom", code="no_loom", started=True, retry="blocked")

    assert returned.for_model() == '{"text": "' + "ü" * 100 + '"}'
    assert returned.for_model(40) == '{"text": "üüüüüü … [96 more characters]'
    assert len(returned.for_model(40)) <= 40
    assert returned.for_model(0) == ""
    assert failed.for_model() == (
        "The call failed (tool_error, no_loom): no loom\n"
        "It is not declared safe to repeat: check what happened before you call it again."
    )
    assert heddle.Failed(heddle.FailureKind.DENIED, "no").for_model() == "The call failed (denied): no"


def test_results_are_matched() -> None:
    results: list[heddle.ToolResult] = [heddle.Returned(1), heddle.Failed(heddle.FailureKind.DENIED, "no")]
    seen: list[object] = []

    for result in results:
        match result:
            case heddle.Returned(data):
                seen.append(data)
            case heddle.Failed(kind, message):
                seen.append((kind, message))

    assert seen == [1, ("denied", "no")]
