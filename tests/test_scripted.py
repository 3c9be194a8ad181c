"""The scripted launcher: what a host sees of programs that were never started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import heddle
import heddle.testing
from heddle.process import Command, Exit
from heddle.testing import Asked, ScriptedLauncher, UnexpectedCall, exits
from tests.support import children_of

# Nothing is started, so nothing need be there.
FETCH = heddle.ToolDef(
    name="fetch",
    implementation=heddle.Program("/nowhere/fetch", ("--quiet",)),
    input_schema={"type": "object", "properties": {"table": {"type": "string"}}, "additionalProperties": False},
    output_schema={"type": "object", "properties": {"rows": {"type": "integer"}}},
)
SEND = heddle.ToolDef(name="send", implementation=heddle.Program("/nowhere/send", protocol="envelope"))


async def call(answers: Any, name: str = "fetch", arguments: Any = None, **more: Any) -> heddle.ToolResult:
    async with heddle.Runner([FETCH, SEND], launcher=ScriptedLauncher(answers)) as runner:
        return await runner.call(name, arguments, **more)


async def test_an_object_is_what_the_program_prints_at_every_call() -> None:
    before = children_of(os.getpid())
    launcher = ScriptedLauncher({"fetch": {"rows": 3}})

    async with heddle.Runner([FETCH], launcher=launcher) as runner:
        results = [await runner.call("fetch", {"table": table}) for table in ("looms", "reeds")]
        started = set(children_of(os.getpid())) - set(before)

    assert results == [heddle.Returned({"rows": 3})] * 2
    assert (results[0].report.tier, results[0].report.guarantees) == ("scripted", {"processes": "enforced"})
    assert started == set()
    assert launcher.left == {}


async def test_a_list_answers_one_call_each_and_then_no_more() -> None:
    launcher = ScriptedLauncher({"fetch": [exits.timed_out(), {"rows": 2}, {"rows": 3}], "send": {}})

    async with heddle.Runner([FETCH], launcher=launcher) as runner:
        late = await runner.call("fetch")
        in_time = await runner.call("fetch")
        left = launcher.left
        await runner.call("fetch")
        with pytest.raises(UnexpectedCall) as raised:
            await runner.call("fetch", {"table": "looms"})

    assert isinstance(late, heddle.Failed)
    assert late.kind == "timed_out"
    assert in_time == heddle.Returned({"rows": 2})
    assert left == {"fetch": 1}
    assert launcher.left == {}
    assert str(raised.value) == (
        'the host called tool "fetch" with {"table": "looms"}, and the script has used up its answers for it, which '
        "were 3. Prepare one more, or find out why the host makes this call"
    )
    assert len(launcher.asked) == 4


async def test_two_calls_at_once_do_not_get_the_same_answer() -> None:
    launcher = ScriptedLauncher({"fetch": [{"rows": 1}]})
    outcomes: list[object] = []

    async with heddle.Runner([FETCH], launcher=launcher) as runner, trio.open_nursery() as nursery:

        async def fetch() -> None:
            try:
                outcomes.append(await runner.call("fetch"))
            except UnexpectedCall as error:
                outcomes.append(type(error))

        nursery.start_soon(fetch)
        nursery.start_soon(fetch)

    assert sorted(outcomes, key=str) == [UnexpectedCall, heddle.Returned({"rows": 1})]


@pytest.mark.parametrize(
    ("prepared", "kind", "message"),
    [
        (
            exits.crashed(status=2, stderr="no such table"),
            "crashed",
            'tool "fetch" exited with status 2.\nIts standard error ends with:\nno such table',
        ),
        (exits.crashed(signal="SIGSEGV"), "crashed", 'tool "fetch" was ended by SIGSEGV, which heddle did not send.'),
        (exits.timed_out(), "timed_out", 'tool "fetch" did not finish within 30 s and was stopped.'),
        (
            exits.not_started("its image is gone"),
            "cannot_start",
            'tool "fetch" cannot be started: its image is gone.',
        ),
        (
            exits.printed(b"done"),
            "invalid_output",
            'tool "fetch" did not answer with one JSON object: text that is not JSON (expecting value) at byte 0.\n'
            "It printed: 'done'",
        ),
        (
            {"rows": "three"},
            "output_mismatch",
            'tool "fetch" returned what its output schema does not allow: rows: must be an integer, not a string',
        ),
    ],
)
async def test_an_answer_is_judged_as_that_of_a_program_is(prepared: Any, kind: str, message: str) -> None:
    result = await call({"fetch": prepared})

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.message) == (kind, message)
    assert result.started == (kind != "cannot_start")


async def test_what_a_program_says_beside_its_answer_is_in_the_report() -> None:
    result = await call({"fetch": exits.printed({"rows": 3}, stderr="read the table")})

    assert result == heddle.Returned({"rows": 3})
    assert result.report.stderr_tail == "read the table"


async def test_an_exception_is_raised_where_a_launcher_would_raise_it() -> None:
    with pytest.raises(heddle.SandboxUnavailable, match="network: it cannot be held"):
        await call({"fetch": heddle.SandboxUnavailable("network", "it cannot be held")})


async def test_a_function_answers_from_what_it_was_asked() -> None:
    async def rows_of(asked: Asked) -> dict[str, int]:
        await trio.sleep(0)
        return {"rows": len(str(asked.arguments["table"]))}

    plain = await call({"fetch": lambda asked: {"rows": len(asked.arguments)}}, arguments={"table": "looms"})
    awaited = await call({"fetch": rows_of}, arguments={"table": "looms"})

    assert plain == heddle.Returned({"rows": 1})
    assert awaited == heddle.Returned({"rows": 5})


async def test_a_function_that_does_not_answer_in_time_is_a_program_that_was_stopped(
    autojump_clock: MockClock,
) -> None:
    async def never(asked: Asked) -> dict[str, int]:
        await trio.sleep_forever()
        return {}

    began = trio.current_time()

    exit_ = await ScriptedLauncher({"": never}).launch(COMMAND, b"{}", heddle.Limits(wall_seconds=30))

    assert exit_ == exits.timed_out()
    assert trio.current_time() - began == 30


COMMAND = Command(argv=("/nowhere/fetch",), cwd=Path("/"), environment={})


async def test_a_cancelled_call_ends_a_function_that_waits() -> None:
    begun = trio.Event()

    async def never(asked: Asked) -> dict[str, int]:
        begun.set()
        await trio.sleep_forever()
        return {}

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, {"fetch": never})
            await begun.wait()
            nursery.cancel_scope.cancel()

    assert nursery.cancel_scope.cancelled_caught


async def test_what_was_asked_is_recorded_as_a_launcher_gets_it() -> None:
    launcher = ScriptedLauncher({"fetch": {"rows": 3}})
    limits = heddle.Limits(wall_seconds=5)

    async with heddle.Runner([FETCH], launcher=launcher) as runner:
        result = await runner.call("fetch", {"table": "looms"}, limits=limits)
        await runner.call("fetch", {"tabel": "looms"})

    (asked,) = launcher.asked  # what is wrong is refused before anybody is asked
    assert (asked.tool, asked.arguments, asked.stdin) == ("fetch", {"table": "looms"}, b'{"table":"looms"}')
    assert asked.command.argv == ("/nowhere/fetch", "--quiet")
    assert asked.command.attempt_id == result.report.attempt_id
    assert asked.limits == limits.or_else(heddle.DEFAULT_LIMITS)


async def test_the_arguments_are_the_same_in_an_envelope() -> None:
    launcher = ScriptedLauncher({"send": {"ok": True, "data": {"sent": 1}}})

    async with heddle.Runner([SEND], launcher=launcher) as runner:
        result = await runner.call("send", {"input": {"to": "weaver"}})

    assert result == heddle.Returned({"sent": 1})
    assert launcher.asked[0].arguments == {"input": {"to": "weaver"}}
    assert b'"protocolVersion"' in launcher.asked[0].stdin


async def test_arguments_that_look_like_an_envelope_are_arguments() -> None:
    launcher = ScriptedLauncher({"plain": {}})
    plain = heddle.ToolDef(name="plain", implementation=heddle.Program("/nowhere/plain"))
    arguments = {"protocolVersion": 1, "input": {"a": 1}, "attemptId": "mine"}

    async with heddle.Runner([plain], launcher=launcher) as runner:
        await runner.call("plain", arguments)

    assert launcher.asked[0].arguments == arguments


async def test_an_unexpected_call_names_what_was_asked_and_what_is_prepared() -> None:
    with pytest.raises(UnexpectedCall) as raised:
        await call({"send": {}, "count": {}}, arguments={"table": "x" * 1000})
    with pytest.raises(UnexpectedCall, match=r"has an answer for nothing, and none for it"):
        await call({})

    assert isinstance(raised.value, AssertionError)
    assert raised.value.asked.tool == "fetch"
    assert str(raised.value) == (
        f'the host called tool "fetch" with {{"table": "{"x" * 189}…, and the script has an answer for "send", '
        '"count", and none for it. Prepare one, or find out why the host makes this call'
    )


async def test_what_is_longer_than_the_limits_is_cut_as_the_output_of_a_program_is() -> None:
    limits = heddle.Limits(stdout_bytes=10, stderr_bytes=4)

    too_much = await call({"fetch": {"rows": 10**10}}, limits=limits)
    kept = await call({"fetch": exits.printed({}, stderr="first last")}, limits=limits)

    assert isinstance(too_much, heddle.Failed)
    assert too_much.kind == "too_large"
    assert too_much.report.truncated == {"stdout"}
    assert kept.report.stderr_tail == "last"
    assert kept.report.truncated == {"stderr"}


async def test_an_exit_is_given_as_it_was_prepared_where_it_fits() -> None:
    prepared = Exit(status=0, stdout=b"{}", duration_s=1.5, left_behind=2)

    exit_ = await ScriptedLauncher({"": prepared}).launch(COMMAND, b"{}", heddle.Limits())

    assert exit_ == prepared


@pytest.mark.parametrize("wrong", [3, "three", None, OSError, [{"rows": 1}, 3], [[{}]]])
def test_what_is_no_answer_is_refused_when_it_is_prepared(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r'^the script\'s answer for tool "fetch" must be an object, an Exit, '):
        ScriptedLauncher({"fetch": wrong})


async def test_what_a_function_returns_must_be_an_answer_as_well() -> None:
    with pytest.raises(TypeError, match=r'^the script\'s answer for tool "fetch" must be an object, .*, not 3$'):
        await call({"fetch": lambda _: 3})


def test_what_json_cannot_say_is_refused_when_it_is_prepared() -> None:
    with pytest.raises(heddle.StrictJsonError, match=r"nan, which is not JSON at \$\.rows"):
        ScriptedLauncher({"fetch": {"rows": float("nan")}})


def test_a_host_without_a_loop_is_tested_in_the_same_way() -> None:
    launcher = ScriptedLauncher({"fetch": [{"rows": 3}]})

    with heddle.blocking.Runner([FETCH], launcher=launcher) as runner:
        result = runner.call("fetch", {"table": "looms"})

    assert result == heddle.Returned({"rows": 3})
    assert [asked.arguments for asked in launcher.asked] == [{"table": "looms"}]


def test_importing_the_room_loads_nothing_heavy() -> None:
    """A plugin of pytest lives in it, and every run of pytest imports that."""
    source = """
import sys
import heddle.testing
print(sorted({"attrs", "cattrs", "jsonschema", "trio", "pytest"} & set(sys.modules)))
print(heddle.testing.exits.__name__, heddle.testing.ScriptedLauncher.__name__)
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\nheddle.testing.exits ScriptedLauncher\n"


def test_every_public_name_of_the_room_is_there() -> None:
    assert [name for name in heddle.testing.__all__ if not hasattr(heddle.testing, name)] == []
    assert set(heddle.testing.__all__) <= set(dir(heddle.testing))
    assert not hasattr(heddle.testing, "nosuch")
