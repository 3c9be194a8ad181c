"""Expressions: what a text may say, what it comes to, and that nothing which it does leaves its own process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle.errors import DefinitionError, RunnerClosed
from heddle.expressions import (
    Evaluator,
    Expression,
    ExpressionError,
    ExpressionFailed,
    ExpressionLimits,
    end_idle,
    predicate,
    worker,
)
from heddle.limits import MIB
from heddle.tools.sidecars import load_sidecar
from tests.hosting import host, run_host
from tests.support import Toolbox, children_of, state_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.strictjson import JSON

# Squares a number forty times: an hour, in which no callback is called and no signal handler of Python runs.
ENDLESS = "(lambda x: [x.append(x[-1] * x.pop()) for _ in range(40)])([3])"
# A hundred lists, each twice in the next: nothing as it is, and without an end as JSON.
TREE = "(lambda x: [x.append([x[-1], x.pop()]) for _ in range(100)] and x)([1])"
SMALL = ExpressionLimits(memory_bytes=64 * MIB)


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left() -> Iterator[None]:
    yield
    end_idle()
    assert workers() == []


def workers(parent: int | None = None) -> list[int]:
    """Return the processes that evaluate, as the system sees them; those that have ended and nobody asked about too."""
    pids = children_of(os.getpid() if parent is None else parent)
    return [pid for pid in pids if worker.__file__ in arguments_of(pid) or state_of(pid) == "Z"]


def arguments_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def is_gone(pid: int) -> bool:
    return state_of(pid) in {None, "Z", "X"}


def has_begun(pid: int) -> bool:
    """Return whether a process has used the processor for a tenth of a second: it is in the middle of a text."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK") > 0.1


def evaluate(text: str, **names: JSON) -> JSON:
    return Expression.parse(text, names=tuple(names)).evaluate(names)


async def fails(evaluator: Evaluator, text: str, **names: JSON) -> tuple[str, str]:
    expression = Expression.parse(text, names=tuple(names))
    with pytest.raises(ExpressionFailed) as caught:
        await evaluator.evaluate(expression, names)
    return caught.value.kind, str(caught.value)


class TestTexts:
    """What is read, and what is said of a text that cannot be."""

    def test_a_bare_expression_is_one_from_its_first_line_on(self) -> None:
        text = '{ "query": payload,\n  "limit": 5 }'

        expression = Expression.parse(text)

        assert expression == Expression(text=text, output="application/json", inputs=(), body=text, line=1)
        assert expression.evaluate({"payload": "x", "headers": {}}) == {"query": "x", "limit": 5}

    def test_a_header_says_what_comes_out_and_what_goes_in(self) -> None:
        text = "\n%sl 2.0\r\noutput text/plain\n\ninput headers\ninput payload\n---\npayload +\n  headers"

        expression = Expression.parse(text)

        assert expression == Expression(
            text=text, output="text/plain", inputs=("headers", "payload"), body="payload +\n  headers", line=8
        )
        assert expression.evaluate({"payload": "a", "headers": "b"}) == "ab"

    def test_an_expression_may_stretch_over_lines_and_hold_comments(self) -> None:
        assert evaluate("  1\n  + 2  # three\n\n# done") == 3

    def test_a_string_may_hold_any_line_break(self) -> None:
        """Only a line feed ends a line of a text."""
        expression = Expression.parse('%sl 2.0\n---\n"a\u2028b\x0bc\x85"')

        assert expression.evaluate({}) == "a\u2028b\x0bc\x85"

    @pytest.mark.parametrize(
        ("text", "line", "column", "message"),
        [
            ("", None, None, "there is no expression: the text is empty"),
            (" \n", None, None, "there is no expression: the text is empty"),
            ("# nothing", None, None, "there is no expression"),
            ("%sl 2.0\n---\n# nothing", None, None, "there is no expression after the header"),
            ("%dw 2.0\n---\n1", 1, None, 'a header begins with the line "%sl 2.0", not "%dw 2.0"'),
            ("%sl 2.1\n---\n1", 1, None, 'version "2.1" is not known; write "%sl 2.0"'),
            ("%sl\n---\n1", 1, None, 'version "" is not known; write "%sl 2.0"'),
            ("output text/plain\n---\n1", 1, None, 'a header begins with the line "%sl 2.0"'),
            ("%sl 2.0\n1", 1, None, 'there is no line "---" between the header and the expression'),
            (
                "%sl 2.0\noutput application/jsn\n---\n1",
                *(2, None, 'output "application/jsn" is not known; did you mean "application/json"?'),
            ),
            (
                "%sl 2.0\noutput image\n---\n1",
                *(2, None, 'output "image" is not known; there are application/json and text/plain'),
            ),
            ("%sl 2.0\noutput\n---\n1", 2, None, '"output" takes one media type and nothing else'),
            ("%sl 2.0\ninput payload json\n---\n1", 2, None, '"input" takes one name and nothing else'),
            ("%sl 2.0\ninput paylod\n---\n1", 2, None, 'input "paylod" is not there; did you mean "payload"?'),
            ("%sl 2.0\ninput x\n---\n1", 2, None, 'input "x" is not there; there is payload and headers'),
            ("%sl 2.0\ninput payload\ninput payload\n---\n1", 3, None, '"input payload": this was said before'),
            (
                "%sl 2.0\noutput text/plain\noutput text/plain\n---\n1",
                *(3, None, '"output text/plain": this was said before'),
            ),
            ("%sl 2.0\ninputs payload\n---\n1", 2, None, '"inputs" is not known in a header; did you mean "input"?'),
            (
                "%sl 2.0\nvar x = 1\n---\n1",
                2,
                None,
                '"var" is not known in a header; there may be "output" and "input"',
            ),
            ("paylod", 1, 1, "Variable `paylod` not found, did you mean `payload`?"),
            ("%sl 2.0\n---\n\n  1 + paylod", 4, 7, "Variable `paylod` not found, did you mean `payload`?"),
            ("\n" * 20 + "'é' + nosuch", 21, 7, "Variable `nosuch` not found"),
            ("lambda x: [y for x in payload]", 1, 12, "Variable `y` not found, did you mean `x`?"),
            ("1 +", 1, 4, "the expression ends before it is complete"),
            ("{'a': [\n1", 2, 2, "the expression ends before it is complete"),
            ("'abc", 1, 1, "unfinished string literal"),
            ("1)", 1, 2, "unexpected symbol ')' here"),
            ("1]", 1, 2, "unexpected symbol ']' here"),
            ("1)\n+ (2", 1, 2, "unexpected symbol ')' here"),
            ("x = 1", 1, 3, "unexpected symbol '=' here"),
            ("payload\nheaders", 2, 1, "unexpected identifier 'headers' here"),
            ("payload; headers", 1, 8, "unexpected symbol ';' here"),
            ("def f(): pass", 1, 1, "unexpected keyword 'def' here"),
            ("[x for x in [1]", 1, 16, "the expression ends before it is complete"),
            ("x for x in [1]", 1, 3, "unexpected keyword 'for' here"),
            ("load('a', 'b')", 1, 1, "unexpected keyword 'load' here"),
            ("1)\nload('a', 'b')\n(2", 2, 1, "`load` is not allowed in this dialect"),
            ("2 ** 3", 1, 3, "unexpected symbol '**' here"),
            ("1\x00", 1, 2, "invalid input `\x00`"),
            ("'\ud800'", None, None, "the text holds a lone surrogate (\\ud800)"),
            ("1" * 65_537, None, None, "the text has 65,537 characters; it may have 65,536"),
        ],
    )
    def test_a_text_that_is_wrong_is_refused_with_its_place(
        self, text: str, line: int | None, column: int | None, message: str
    ) -> None:
        with pytest.raises(ExpressionError) as caught:
            Expression.parse(text)

        assert (caught.value.message, caught.value.line, caught.value.column) == (message, line, column)
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        assert str(caught.value) == place + message

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not " * 16_000 + "1", "the expression, or its result, is nested too deeply"),
            ("1" + "+1" * 30_000, "the expression, or its result, is nested too deeply"),
            ("[" * 30_000 + "]" * 30_000, "the expression, or its result, is nested too deeply"),
            ("lambda: 'x' * 1000000000", "the expression needs more than 256 MiB of memory"),
            ("lambda: list(range(1000000000))", "the expression needs more than 256 MiB of memory"),
        ],
        ids=["operators", "sums", "brackets", "string", "list"],
    )
    def test_a_text_that_breaks_the_compiler_does_not_break_the_host(self, text: str, message: str) -> None:
        """Compiling computes what is constant, and overflows a stack; in the host that would be its end."""
        with pytest.raises(ExpressionError) as caught:
            Expression.parse(text)

        assert str(caught.value) == message
        assert evaluate("1 + 1") == 2

    @pytest.mark.parametrize(
        "name",
        [
            *("print", "pprint", "open", "load", "eval", "exec", "__import__", "json", "struct", "debug", "breakpoint"),
            *("globals", "time", "os", "sys", "random", "call_stack"),
        ],
    )
    def test_nothing_that_reads_or_writes_is_there(self, name: str) -> None:
        with pytest.raises(ExpressionError):
            Expression.parse(f"{name}('/etc/passwd')")

    def test_without_starlark_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        end_idle()
        monkeypatch.setitem(sys.modules, "starlark", None)

        with pytest.raises(DefinitionError) as caught:
            Expression.parse("1")

        assert str(caught.value) == "expressions need starlark-pyo3: pip install 'heddle[starlark]'"
        assert not isinstance(caught.value, ExpressionError)


def leaves() -> st.SearchStrategy[Any]:
    floats = st.floats(allow_nan=False, allow_infinity=False)
    return st.none() | st.booleans() | st.integers() | floats | st.text(st.characters(exclude_categories=["Cs"]))


def values() -> st.SearchStrategy[Any]:
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    return st.recursive(leaves(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8)


def nested(depth: int) -> JSON:
    value: JSON = "in"
    for _ in range(depth):
        value = [value]
    return value


class TestValues:
    """What is given to a text is what it sees, and what it gives back is what comes."""

    @pytest.mark.parametrize(
        "value",
        [
            *(None, True, False, 0, 1, -1, 2**63, -(2**63) - 1, 2**64, 10**30, -(10**4299), 0.0, -0.0, 5.0, 0.1, 1e22),
            *(5e-324, 1.7976931348623157e308, "", "\x00", "é\U0001f600\u2028\x7f\"\\/'", [], {}, [[], {"": [None]}]),
            *({"a": 1, "b": {"c": [1, 1.0, True, "1", None]}}, nested(128)),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_json_passes_unchanged(self, value: JSON) -> None:
        """By what it looks like: 1, 1.0 and True are equal in Python, and so are 0.0 and -0.0."""
        assert repr(evaluate("value", value=value)) == repr(value)

    def test_the_depth_that_json_may_have_does_not_depend_on_the_hosts_stack(self) -> None:
        assert run_host(SHALLOW) == (0, "True\n", "")

    @settings(max_examples=200, deadline=None)
    @given(values())
    def test_any_json_passes_unchanged(self, value: JSON) -> None:
        """The order of keys as well."""
        assert json.dumps(evaluate("[value]", value=value)) == json.dumps([value])

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("12345678901234567890123 + 1", 12345678901234567890124),
            ("1 << 100", 1 << 100),
            ("7 // 2", 3),
            ("4 / 2", 2.0),
            ("1 == 1", True),
            ("(1, 2)", [1, 2]),
            ("{'a': (1,)}", {"a": [1]}),
            ("[None, 1e308]", [None, 1e308]),
            ("'\\x00\\U0001F600'", "\x00\U0001f600"),
            ("int('9' * 4300)", int("9" * 4300)),
        ],
    )
    def test_what_is_computed_is_exact(self, text: str, value: JSON) -> None:
        assert repr(evaluate(text)) == repr(value)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("len", "the expression's result holds a function, which JSON cannot say"),
            ("[lambda: 1]", "the expression's result holds a function, which JSON cannot say"),
            ("range(3)", "the expression's result holds a range, which JSON cannot say"),
            ("{1: 2}", "the expression's result holds an object with a key that is no string"),
            ("[{'a': {True: 2}}]", "the expression's result holds an object with a key that is no string"),
            ("{'1': 1, 1: 2}", "the expression's result holds an object with a key that is no string"),
            ("{(1, 2): 3}", "the expression's result holds an object with a key that is no string"),
            ("1e308 * 10", "the expression's result holds a number that is infinite, or none at all"),
            ("[1, {'a': float('-inf')}]", "the expression's result holds a number that is infinite, or none at all"),
            ("(None, float('nan'))", "the expression's result holds a number that is infinite, or none at all"),
            (
                "int('9' * 4301)",
                "the expression's result is not JSON: an integer of more than 4,300 digits at $",
            ),
            ("(lambda x: [x.append(x)] and x)([])", "the expression's result holds itself"),
            (
                "(lambda x: [x.append([x.pop()]) for _ in range(128)] and x)([1])",
                "the expression's result is not JSON: nesting deeper than 128",
            ),
        ],
    )
    def test_what_json_cannot_say_is_a_failure_and_nothing_else(self, text: str, message: str) -> None:
        """Starlark's own encoder makes null of an infinity, and "1" of a key that is 1."""
        with pytest.raises(ExpressionFailed) as caught:
            evaluate(text)

        assert (caught.value.kind, str(caught.value)) == ("result", message)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ("\ud800", "a lone surrogate (\\ud800) at $"),
            ({"a": [float("nan")]}, "nan, which is not JSON at $.a[0]"),
            (10**4300, "an integer of more than 4,300 digits at $"),
            (nested(129), "nesting deeper than 128"),
        ],
        ids=["surrogate", "no number", "digits", "depth"],
    )
    def test_what_is_no_json_is_not_given(self, value: JSON, why: str) -> None:
        with pytest.raises(ExpressionFailed) as caught:
            evaluate("1", payload=value)

        assert (caught.value.kind, str(caught.value)) == (
            "input",
            f"what the expression is given as 'payload' is not JSON: {why}",
        )

    def test_text_is_what_text_plain_promises(self) -> None:
        expression = Expression.parse("%sl 2.0\noutput text/plain\n---\npayload")

        with pytest.raises(ExpressionFailed) as caught:
            expression.evaluate({"payload": [1]})

        assert (caught.value.kind, str(caught.value)) == (
            "result",
            'the expression\'s result is an array; "output text/plain" promises a text',
        )
        assert expression.evaluate({"payload": "a"}) == "a"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("payload['b']", 'line 1, column 1: Key `"b"` was not found'),
            ("%sl 2.0\n---\n[\n  1 // 0]", "line 4, column 3: Floor division by zero: 1 // 0"),
            ("True + 1", "line 1, column 1: Operation `+` not supported for types `bool` and `int`"),
            ("fail('no')", "line 1, column 1: fail: no"),
        ],
    )
    def test_a_text_that_goes_wrong_says_where(self, text: str, message: str) -> None:
        with pytest.raises(ExpressionFailed) as caught:
            Expression.parse(text).evaluate({"payload": {"a": 1}})

        assert (caught.value.kind, str(caught.value)) == ("raised", message)

    def test_nothing_is_left_of_one_text_for_the_next(self) -> None:
        assert evaluate("payload.append(2) or payload", payload=[1]) == [1, 2]
        assert evaluate("payload", payload=[1]) == [1]
        with pytest.raises(ExpressionError):
            Expression.parse("payload", names=())


TURNS = "the expression takes more than 1,000,000 steps"
MEMORY = "the expression needs more than 64 MiB of memory"


class TestLimits:
    """Each is reached, and what reaches it fails alone."""

    @pytest.mark.parametrize(
        ("text", "kind", "message"),
        [
            ("[x for x in range(20000000)]", "steps", TURNS),
            ("[1 for x in range(1000) for y in range(1000) for z in range(1000)]", "steps", TURNS),
            ("len([[0 for y in range(100000)] and 1 for x in range(100000)])", "steps", TURNS),
            ("(lambda f: f(f, 40))(lambda f, n: 1 if n < 2 else f(f, n-1) + f(f, n-2))", "steps", TURNS),
            (
                "(lambda f: f(f))(lambda f: f(f))",
                *("depth", "the expression makes calls inside of calls, more than 100 deep"),
            ),
            (
                "(lambda x: [x.append([x.pop()]) for _ in range(50000)] and x)([1])",
                *("depth", "the expression, or its result, is nested too deeply"),
            ),
            ("[0] * payload", "memory", MEMORY),
            ("'x' * payload", "memory", MEMORY),
            ("list(range(payload))", "memory", MEMORY),
            ("[x.extend(x) for x in [[1]] for _ in range(100)]", "memory", MEMORY),
            ("(lambda x: [x.append(x[-1] + x.pop()) for _ in range(100)])(['ab'])", "memory", MEMORY),
            ("'aaaa'.replace('', 'x' * 1000000).replace('x', 'y' * 10000)", "memory", MEMORY),
            ("[list(range(1000)) for x in range(100000)]", "memory", MEMORY),
            ("sorted(range(10000000))", "memory", MEMORY),
            (
                "'x' * (1024 * 1024 - 1)",
                *("too_large", "the expression's result takes 1,048,577 bytes; it may take 1,048,576"),
            ),
            (
                "'é' * (512 * 1024)",
                *("too_large", "the expression's result takes 1,048,578 bytes; it may take 1,048,576"),
            ),
        ],
    )
    async def test_what_reaches_a_limit_fails_and_nothing_else_does(self, text: str, kind: str, message: str) -> None:
        async with Evaluator(limits=attrs.evolve(SMALL, wall_seconds=30), max_children=1) as evaluator:
            failed = await fails(evaluator, text, payload=1_000_000_000)
            after = await evaluator.evaluate(Expression.parse("payload + 1"), {"payload": 1})

        assert failed == (kind, message)
        assert after == 2

    @pytest.mark.parametrize("text", [ENDLESS, TREE], ids=["computing", "encoding"])
    async def test_a_text_that_does_not_end_is_ended(self, text: str) -> None:
        before = set(workers())
        async with Evaluator(limits=ExpressionLimits(wall_seconds=0.2)) as evaluator:
            failed = await fails(evaluator, text)
            left = set(workers()) - before

        assert failed == ("time", "the expression takes longer than 0.2 s")
        assert left == set()

    async def test_input_is_measured_before_it_is_sent(self) -> None:
        async with Evaluator(limits=ExpressionLimits(input_bytes=10)) as evaluator:
            fits = await evaluator.evaluate(Expression.parse("len(payload)"), {"payload": "x" * 8})
            failed = await fails(evaluator, "len(payload)", payload="é" * 4, headers="")

        assert fits == 8
        assert failed == ("too_large", "what the expression is given takes 12 bytes; it may take 10")

    async def test_the_largest_input_and_output_pass(self) -> None:
        """In more pieces than a pipe holds."""
        payload: JSON = ["é" * 1000] * 500

        async with Evaluator() as evaluator:
            result = await evaluator.evaluate(Expression.parse("payload"), {"payload": payload, "headers": payload})

        assert result == payload

    async def test_steps_are_counted_alike_each_time(self) -> None:
        expression = Expression.parse("len([x for x in range(payload)])")

        async with Evaluator(limits=ExpressionLimits(steps=10_000)) as evaluator:
            fits = [await evaluator.evaluate(expression, {"payload": 9_990}) for _ in range(5)]
            fail = [await fails(evaluator, expression.text, payload=11_010) for _ in range(5)]

        assert fits == [9_990] * 5
        assert fail == [("steps", "the expression takes more than 10,000 steps")] * 5

    async def test_depth_is_what_was_allowed(self) -> None:
        text = "(lambda f: f(f, payload))(lambda f, n: 0 if n == 0 else f(f, n - 1))"

        async with Evaluator(limits=ExpressionLimits(depth=20)) as evaluator:
            fits = await evaluator.evaluate(Expression.parse(text), {"payload": 10})
            failed = await fails(evaluator, text, payload=30)

        assert fits == 0
        assert failed == ("depth", "the expression makes calls inside of calls, more than 20 deep")

    @pytest.mark.parametrize(
        "wrong",
        [{"steps": 0}, {"depth": 0}, {"input_bytes": 0}, {"output_bytes": 0}, {"memory_bytes": MIB}],
    )
    def test_a_limit_that_holds_nothing_is_refused(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExpressionLimits(**wrong)

    @pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
    def test_time_has_an_end(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="wall_seconds"):
            ExpressionLimits(wall_seconds=seconds)


def limits_of(pid: int) -> dict[str, str]:
    """Return the soft limits of a process, by the kernel's names."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


class TestProcesses:
    """What evaluates: what it has, how long it lives, and what ends it."""

    async def test_it_has_nothing_but_its_two_pipes(self) -> None:
        inherited = os.open("/", os.O_RDONLY)
        os.set_inheritable(inherited, True)
        try:
            async with Evaluator(limits=ExpressionLimits(wall_seconds=7)) as evaluator:
                before = set(workers())
                await evaluator.evaluate(Expression.parse("1"), {})
                (pid,) = set(workers()) - before

                descriptors = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                limits = limits_of(pid)
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                folder = os.readlink(f"/proc/{pid}/cwd")
        finally:
            os.close(inherited)

        assert sorted(descriptors) == [0, 1, 2]
        assert descriptors[0].startswith("pipe:")
        assert descriptors[1].startswith("pipe:")
        assert descriptors[2] == "/dev/null"
        assert environment == b""
        assert folder == "/"
        assert limits["Max address space"] == str(256 * MIB)
        assert limits["Max core file size"] == "0"
        assert limits["Max open files"] == "3"
        assert 8 <= int(limits["Max cpu time"]) <= 10

    async def test_it_stays_warm_for_the_next_text(self) -> None:
        async with Evaluator() as evaluator:
            before = set(workers())
            seen = []
            for number in range(5):
                assert await evaluator.evaluate(Expression.parse("payload"), {"payload": number}) == number
                seen.append(set(workers()) - before)
            with pytest.raises(ExpressionFailed):
                await evaluator.evaluate(Expression.parse("1 // payload"), {"payload": 0})
            seen.append(set(workers()) - before)

        assert len(seen[0]) == 1
        assert seen == [seen[0]] * 6
        assert is_gone(*seen[0])

    async def test_as_many_evaluate_at_once_as_may_and_the_others_wait(self) -> None:
        before = set(workers())
        most = 0
        results: dict[int, JSON] = {}
        expression = Expression.parse("len([1 for x in range(300000)]) + payload")

        async def one(number: int) -> None:
            nonlocal most
            results[number] = await evaluator.evaluate(expression, {"payload": number})
            most = max(most, len(set(workers()) - before))

        async with Evaluator(max_children=2) as evaluator, trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(one, number)

        assert results == {number: 300_000 + number for number in range(6)}
        assert most == 2
        assert set(workers()) == before

    async def test_the_loop_goes_on_while_a_text_does(self) -> None:
        events: list[str] = []

        async def other() -> None:
            while not any(map(has_begun, set(workers()) - before)):
                await trio.sleep(0.01)
            events.append("other")

        before = set(workers())
        async with Evaluator(limits=ExpressionLimits(wall_seconds=2)) as evaluator, trio.open_nursery() as nursery:
            nursery.start_soon(other)
            events.append((await fails(evaluator, ENDLESS))[0])
            nursery.cancel_scope.cancel()

        assert events == ["other", "time"]

    async def test_cancelling_ends_the_text(self) -> None:
        before = set(workers())
        async with Evaluator(limits=ExpressionLimits(wall_seconds=60), max_children=1) as evaluator:
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(evaluator.evaluate, Expression.parse(ENDLESS), {})
                    while not any(map(has_begun, set(workers()) - before)):
                        await trio.sleep(0.01)
                    nursery.cancel_scope.cancel()
                left = set(workers()) - before
                after = await evaluator.evaluate(Expression.parse("1"), {})

        assert left == set()
        assert after == 1

    async def test_closing_ends_the_texts_of_others(self) -> None:
        before = set(workers())
        outcomes: list[str] = []

        async def run(text: str) -> None:
            with pytest.raises(RunnerClosed) as caught:
                await evaluator.evaluate(Expression.parse(text), {})
            outcomes.append(str(caught.value))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                evaluator = Evaluator(limits=ExpressionLimits(wall_seconds=60), max_children=1)
                async with evaluator:
                    nursery.start_soon(run, ENDLESS)
                    while not any(map(has_begun, set(workers()) - before)):
                        await trio.sleep(0.01)
                    nursery.start_soon(run, "1")
                    await trio.testing.wait_all_tasks_blocked()  # it waits for its turn
                left = set(workers()) - before

        assert left == set()
        assert outcomes == ["this evaluator is not open: use it inside of its `async with` block"] * 2
        with pytest.raises(RunnerClosed):
            await evaluator.evaluate(Expression.parse("1"), {})

    async def test_one_that_is_killed_fails_its_own_text_alone(self) -> None:
        before = set(workers())
        outcomes: list[tuple[str, str]] = []

        async def run() -> None:
            outcomes.append(await fails(evaluator, ENDLESS))

        async with Evaluator(limits=ExpressionLimits(wall_seconds=60)) as evaluator:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                while not (begun := [pid for pid in set(workers()) - before if has_begun(pid)]):
                    await trio.sleep(0.01)
                other = await evaluator.evaluate(Expression.parse("1"), {})
                os.kill(begun[0], signal.SIGKILL)
            after = await evaluator.evaluate(Expression.parse("2"), {})

        said = "the process that evaluates expressions ended by SIGKILL; the expression is not to blame"
        assert outcomes == [("lost", said)]
        assert (other, after) == (1, 2)

    async def test_one_that_died_while_it_was_idle_is_replaced_unnoticed(self) -> None:
        before = set(workers())
        async with Evaluator() as evaluator:
            await evaluator.evaluate(Expression.parse("1"), {})
            (pid,) = set(workers()) - before
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: is_gone(pid), 5)

            result = await evaluator.evaluate(Expression.parse("2"), {})

        assert result == 2

    async def test_one_to_which_nobody_comes_ends_by_itself(self) -> None:
        before = set(workers())
        async with Evaluator(idle_seconds=0.05) as evaluator:
            await evaluator.evaluate(Expression.parse("1"), {})
            (pid,) = set(workers()) - before
            ended = wait_until(lambda: is_gone(pid), 5)
            result = await evaluator.evaluate(Expression.parse("2"), {})

        assert ended
        assert result == 2

    @pytest.mark.parametrize("forks", [False, True])
    def test_none_outlives_a_host_that_is_killed(self, forks: bool) -> None:
        """In the middle of a text, where only the kernel can end it; even when a fork of the host lives on."""
        with host(KILLED, ENDLESS, int(forks)) as process:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            idle, fork = int(line[0]), int(line[1])
            assert wait_until(lambda: any(map(has_begun, workers(process.pid))), 20)
            everything = workers(process.pid)

            process.kill()
            gone = wait_until(lambda: all(map(is_gone, everything)), 5)

            if fork:
                assert not is_gone(fork)
                os.kill(fork, signal.SIGKILL)
        assert idle in everything
        assert len(everything) == 3
        assert gone

    def test_a_host_that_ends_leaves_none(self) -> None:
        status, said, complained = run_host(ENDED)

        assert (status, complained) == (0, "")
        assert wait_until(lambda: is_gone(int(said)), 5)

    def test_a_fork_has_its_own(self) -> None:
        """Two processes that read answers from one pipe would read each other's."""
        status, said, complained = run_host(FORKED)

        assert (status, complained) == (0, "")
        assert sorted(said.splitlines()) == sorted(
            [
                "fork: this evaluator was opened in a process that is not this one",
                "fork: none of its host's descriptors is open",
                "fork: 5",
                "host: 2 3",
            ]
        )

    async def test_an_answer_that_comes_while_it_is_closed_is_the_last(self) -> None:
        before = set(workers())
        results: list[JSON] = []

        async def run() -> None:
            results.append(await evaluator.evaluate(Expression.parse("1"), {}))

        async with trio.open_nursery() as nursery:
            async with Evaluator() as evaluator:
                await evaluator.evaluate(Expression.parse("1"), {})
                nursery.start_soon(run)
                for _ in range(3):  # it waits for its turn, which it has, and sends its request
                    await trio.lowlevel.checkpoint()
                time.sleep(0.2)  # the answer comes, and nobody takes it yet
            left = set(workers()) - before

        assert results == [1]
        assert left == set()

    def test_one_evaluation_at_a_time_is_the_least(self) -> None:
        with pytest.raises(ValueError, match="max_children must be 1 or more, not 0"):
            Evaluator(max_children=0)

    async def test_it_is_used_inside_of_its_block(self) -> None:
        with pytest.raises(RunnerClosed):
            await Evaluator().evaluate(Expression.parse("1"), {})

    async def test_a_process_that_cannot_be_had_is_the_hosts_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expression = Expression.parse("1")
        monkeypatch.setattr(sys, "executable", "/bin/sh")
        monkeypatch.setattr(sys, "base_exec_prefix", "/nowhere")

        async with Evaluator() as evaluator:
            with pytest.raises(ExpressionFailed) as caught:
                await evaluator.evaluate(expression, {})

        assert caught.value.kind == "lost"

    async def test_a_process_that_cannot_confine_itself_evaluates_nothing(self, tmp_path: Path) -> None:
        """What cannot be enforced is refused: here starlark is not where it was."""
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", worker.__file__, str(64 * MIB), "1", str(tmp_path)],
            input=b'{"text": "1"}\n',
            capture_output=True,
            check=True,
        )

        said = (
            "the host cannot evaluate expressions within limits here: ModuleNotFoundError: No module named 'starlark'"
        )
        assert json.loads(done.stdout.removeprefix(b"!")) == {
            "kind": "lost",
            "message": said,
            "line": None,
            "column": None,
        }


SHALLOW = """
import resource
from heddle.expressions import Expression

resource.setrlimit(resource.RLIMIT_STACK, (1024 * 1024, resource.getrlimit(resource.RLIMIT_STACK)[1]))
value = "in"
for _ in range(128):
    value = [value]
print(Expression.parse("payload").evaluate({"payload": value}) == value)
"""

KILLED = """
import os, sys, time
import trio
from heddle.expressions import Evaluator, Expression, ExpressionLimits

async def main():
    endless = Expression.parse(sys.argv[1])  # leaves one that is kept for rules
    async with Evaluator(limits=ExpressionLimits(wall_seconds=3000)) as evaluator, trio.open_nursery() as nursery:
        async with Evaluator() as other:
            await other.evaluate(Expression.parse("1"), {})
            (idle,) = other._children
            nursery.start_soon(evaluator.evaluate, endless, {})
            await trio.sleep(0.2)
            fork = os.fork() if int(sys.argv[2]) else -1
            if fork == 0:
                for descriptor in 0, 1, 2:
                    os.close(descriptor)
                time.sleep(60)
            print(idle.process.pid, max(fork, 0), flush=True)
            await trio.sleep_forever()

trio.run(main)
"""

FORKED = """
import os
import trio
from heddle.errors import WrongProcess
from heddle.expressions import Evaluator, Expression

expression = Expression.parse("payload")

def in_fork(evaluator, inherited):
    try:
        evaluator.evaluate(expression, {"payload": 1}).send(None)
    except WrongProcess as error:
        assert (error.opened_in, error.used_in) == (os.getppid(), os.getpid())
        print("fork: this evaluator was opened in a process that is not this one")
    descriptors = {int(name) for name in os.listdir("/proc/self/fd")}
    if not set(inherited) & descriptors:
        print("fork: none of its host's descriptors is open")
    print("fork:", expression.evaluate({"payload": 5}), flush=True)

async def main():
    async with Evaluator() as evaluator:
        await evaluator.evaluate(expression, {"payload": 1})
        inherited = [fd for child in evaluator._children for fd in (child.stdin, child.stdout)]
        pid = os.fork()
        if pid == 0:
            in_fork(evaluator, inherited)
            os._exit(0)
        os.waitpid(pid, 0)
        print("host:", await evaluator.evaluate(expression, {"payload": 2}), expression.evaluate({"payload": 3}))

trio.run(main)
"""

ENDED = """
from heddle.expressions import Expression, blocking

assert Expression.parse("1 + 1").evaluate({}) == 2
(child,) = blocking._idle
print(child.process.pid)
"""


class TestRules:
    """A rule is written as text: true is true, and everything else is a violation."""

    @pytest.mark.parametrize(
        ("text", "holds"),
        [
            ('args["n"] > 0', True),
            ('args["n"] < 0', False),
            ('args["n"]', False),
            ("'yes'", False),
            ("None", False),
            ("[True]", False),
            ('args["nosuch"]', False),
            ("len([x for x in range(20000000)]) > 0", False),
            ('len([0] * args["big"]) > 0', False),
            ('len("x" * args["big"]) > 0', False),
            ('[x.extend(x) for x in [["x"]] for _ in range(args["n"] * 100)] != 1', False),
        ],
    )
    def test_only_true_holds(self, text: str, holds: bool) -> None:
        rule = predicate(Expression.parse(text, names=("args",)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        assert rule({"n": 1, "big": 1_000_000_000}) is holds
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB: none of it is the host's

    def test_a_rule_that_does_not_end_is_a_violation(self) -> None:
        assert predicate(Expression.parse(f"{ENDLESS} == args", names=("args",)))({}) is False
        assert predicate(Expression.parse("True", names=("args",)))({}) is True

    def test_the_same_text_is_the_same_rule(self) -> None:
        one, same, other = (predicate(Expression.parse(text, names=("args",))) for text in ("1", "1", "2"))

        assert one == same != other

    def test_processes_are_kept_for_the_next_rule_until_they_are_ended(self) -> None:
        end_idle()
        expression = Expression.parse("payload")
        first = workers()
        expression.evaluate({"payload": 1})
        second = workers()
        end_idle()

        assert len(first) == 1
        assert second == first
        assert workers() == []

    def test_threads_have_one_each(self) -> None:
        expression = Expression.parse("len([1 for x in range(100000)]) + payload")
        results: dict[int, JSON] = {}

        def run(number: int) -> None:
            results[number] = expression.evaluate({"payload": number})

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(trio.to_thread.run_sync, run, number)

        trio.run(main)

        assert results == {number: 100_000 + number for number in range(12)}
        assert 1 <= len(workers()) <= 4

    def test_one_that_died_while_it_was_kept_is_replaced_unnoticed(self) -> None:
        expression = Expression.parse("payload")
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: all(map(is_gone, workers())), 5)

        assert expression.evaluate({"payload": 1}) == 1

    async def test_the_rule_of_a_sidecar_judges_the_arguments(self, toolbox: Toolbox) -> None:
        toolbox.sh("pay", "cat")
        rule = {"name": "positive_amount", "expr": 'args["amount"] > 0', "reason": "amount must be positive"}
        sidecar = {"input": {"amount": {"type": "number"}}, "validate": {"rules": [rule]}}
        (toolbox.folder / "pay.tool.json").write_text(json.dumps(sidecar))

        async with heddle.Runner(toolbox.registry()) as runner:
            good = await runner.call("pay", {"amount": 1})
            bad = await runner.call("pay", {"amount": 0})
            none = await runner.call("pay", {})

        assert isinstance(good, heddle.Returned)
        assert good.data == {"amount": 1}
        for failed in (bad, none):
            assert isinstance(failed, heddle.Failed)
            assert failed.kind == "invalid_input"
            assert failed.message == 'tool "pay" input validation failed: amount must be positive'
            assert failed.details == {
                "violations": [{"path": "", "rule": "positive_amount", "message": "amount must be positive"}]
            }

    def test_a_sidecars_rules_become_the_tools(self, tmp_path: Path) -> None:
        rules = [{"name": "a", "expr": "len(args) < 3", "reason": "too many"}, {"name": "b", "expr": "True"}]

        tool = load_sidecar(*sidecar(tmp_path, json.dumps({"validate": {"rules": rules}})))

        first, second = (Expression.parse(text, names=("args",)) for text in ("len(args) < 3", "True"))
        assert tool.validation.rules == (
            heddle.Rule("a", predicate(first), "too many"),
            heddle.Rule("b", predicate(second), "b"),
        )

    def test_a_sidecars_rule_that_is_wrong_is_refused_with_its_line(self, tmp_path: Path) -> None:
        text = """\
{"validate": {"rules": [
  {"name": "a", "expr": "agrs == 1"},
  {"name": "b"},
  {"name": "c", "expr": " "},
  {"name": "d", "expr": 5},
  {"name": "e", "expr": "1", "because": "x"},
  {"expr": "1 +"}
]}}"""

        with pytest.raises(DefinitionError) as caught:
            load_sidecar(*sidecar(tmp_path, text))

        assert str(caught.value).replace(f"{tmp_path}/x.tool.json, ", "").splitlines() == [
            "line 2: validate.rules[0].expr: line 1, column 1: Variable `agrs` not found, did you mean `args`?",
            "line 3: validate.rules[1].expr is missing; it has no default",
            "line 4: validate.rules[2].expr must not be empty",
            "line 5: validate.rules[3].expr must be text, not 5; put it in quotes",
            'line 6: unknown key "because" in validate.rules[4]; there may be name, expr, reason',
            "line 7: validate.rules[5].name is missing; it has no default",
            "line 7: validate.rules[5].expr: line 1, column 4: the expression ends before it is complete",
        ]

    def test_a_sidecars_rule_needs_the_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        end_idle()
        monkeypatch.setitem(sys.modules, "starlark", None)

        with pytest.raises(DefinitionError) as caught:
            load_sidecar(*sidecar(tmp_path, '{"validate": {"rules": [{"name": "a", "expr": "True"}]}}'))

        assert str(caught.value) == (
            f"{tmp_path}/x.tool.json, line 1: validate.rules[0].expr: "
            "expressions need starlark-pyo3: pip install 'heddle[starlark]'"
        )


def sidecar(folder: Path, text: str) -> tuple[Path, list[Path]]:
    """Write a tool and its sidecar; return what `load_sidecar` takes."""
    (folder / "x").write_text("#!/bin/sh\ncat\n")
    (folder / "x").chmod(0o755)
    (folder / "x.tool.json").write_text(text)
    return folder / "x.tool.json", [folder / "x"]
