"""Calls that are made again by the runner: only where that is declared safe or nothing had started, and it is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import heddle
from heddle.events import CallEvent, CallFinished, CallStarted, CallWaiting
from heddle.operations import Journal
from heddle.operations.retrying import Retries
from tests.support import Toolbox
from tests.test_effects import GUARDED, SAFE, TABLE, declared

# What no other try would change: it is said of the call itself, or waits for somebody.
FINAL = {
    "unknown_tool",
    "denied",
    "invalid_input",
    "unsupported",
    "too_large",
    "conflict",
    "in_progress",
    "needs_attention",
}


@pytest.mark.parametrize("name", TABLE)
async def test_a_call_is_made_again_only_where_its_row_of_the_table_allows_that(
    toolbox: Toolbox, tmp_path: Path, name: str
) -> None:
    row = TABLE[name]
    made = row.make(toolbox)
    tools = {
        f"{effects}_{retry}": declared(made, f"{effects}_{retry}", effects, retry) for effects, retry in SAFE + GUARDED
    }
    call: dict[str, Any] = {"arguments": {}, **row.call, "retries": 1, "backoff": 0}
    seen = {}

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner(tools.values(), journal=journal) as runner:
            for tool in tools:
                failure = await runner.call(tool, operation_id=tool, **call)
                operation = journal.operation(tool)
                assert isinstance(failure, heddle.Failed)
                assert operation is not None
                told = failure.details["retries"]
                seen[tool] = (failure.kind, told, failure.report.tries, len(operation.attempts))

    def expected(row_of: tuple[str, str, str]) -> object:
        ended = "blocked" if row_of[0] == "blocked" else "final" if row.kind in FINAL else "used_up"
        made = int(ended == "used_up")
        return (row.kind, {"asked": 1, "made": made, "ended": ended}, 1 + made, 1 + made)

    assert seen == {f"{e}_{r}": expected(row.safe) for e, r in SAFE} | {
        f"{e}_{r}": expected(row.guarded) for e, r in GUARDED
    }


def flaky(toolbox: Toolbox, failures: int, **declared: Any) -> heddle.ToolDef:
    """Return a tool that fails so often and then says which run it was; it also says under which ids it ran."""
    path = toolbox.sh(
        "flaky",
        f"""
        echo "$HEDDLE_OPERATION_ID $HEDDLE_ATTEMPT_ID" >> "$0.runs"
        runs=$(wc -l < "$0.runs")
        [ "$runs" -gt {failures} ] || exit 1
        echo "{{\\"run\\": $runs}}"
        """,
    )
    options: dict[str, Any] = {"side_effects": "write", "retry": "idempotent", **declared}
    return heddle.ToolDef(name="flaky", implementation=heddle.Program(path), **options)


def runs(toolbox: Toolbox) -> list[list[str]]:
    return [line.split() for line in (toolbox.folder / "flaky.runs").read_text().splitlines()]


async def test_a_call_that_succeeds_at_last_has_one_operation_and_an_attempt_of_each_try(
    toolbox: Toolbox, tmp_path: Path
) -> None:
    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([flaky(toolbox, 2)], journal=journal) as runner:
            result = await runner.call("flaky", operation_id="op", retries=5, backoff=0)
            operation = journal.operation("op")

    assert operation is not None
    assert result == heddle.Returned({"run": 3})
    assert result.report.tries == 3
    assert [str(each.state) for each in operation.attempts] == ["crashed", "crashed", "succeeded"]
    assert runs(toolbox) == [["op", each.attempt_id] for each in operation.attempts]
    assert len({each.attempt_id for each in operation.attempts}) == 3


async def test_nothing_is_made_again_where_nobody_has_asked_for_it(toolbox: Toolbox) -> None:
    async with heddle.Runner([flaky(toolbox, 2)]) as runner:
        result = await runner.call("flaky")

    assert isinstance(result, heddle.Failed)
    assert "retries" not in result.details
    assert result.report.tries == 1
    assert len(runs(toolbox)) == 1


async def test_a_tool_that_is_not_declared_safe_is_run_once_and_the_message_says_why(toolbox: Toolbox) -> None:
    async with heddle.Runner([flaky(toolbox, 2, retry="manual")]) as runner:
        result = await runner.call("flaky", retries=5, backoff=0)

    assert isinstance(result, heddle.Failed)
    assert result.message.endswith("It was not tried again: what it may have done is not declared safe to repeat.")
    assert len(runs(toolbox)) == 1


async def test_a_failure_of_all_tries_says_how_many_there_were(toolbox: Toolbox) -> None:
    async with heddle.Runner([flaky(toolbox, 9)]) as runner, runner.scope() as scope:
        result = await scope.call("flaky", retries=2, backoff=0)

    assert isinstance(result, heddle.Failed)
    assert result.message.endswith(" It was tried 3 times.")
    assert len(runs(toolbox)) == 3


async def test_a_function_that_goes_on_after_its_time_is_not_called_again() -> None:
    """Two of it would be at work at once, and the first may still do what it was to do."""
    calls: list[int] = []
    go = trio.Event()

    @heddle.tool(side_effects="write", retry="idempotent")
    def slow() -> None:
        calls.append(1)
        trio.from_thread.run(go.wait)

    async with heddle.Runner([slow]) as runner:
        result = await runner.call("slow", limits=heddle.Limits(wall_seconds=0.05), retries=3, backoff=0)
        go.set()

    assert isinstance(result, heddle.Failed)
    assert result.details["retries"] == {"asked": 3, "made": 0, "ended": "still_running"}
    assert calls == [1]


async def test_a_result_that_is_too_large_to_keep_is_not_made_again(toolbox: Toolbox, tmp_path: Path) -> None:
    """It would be as large the next time, and its effect is there already."""
    toolbox.sh("flaky", """echo run >> "$0.runs"; printf '{"text": "%02000d"}' 0""")
    tool = heddle.ToolDef(
        name="flaky",
        side_effects="write",
        retry="idempotent",
        implementation=heddle.Program(toolbox.folder / "flaky"),
    )

    with Journal.open(tmp_path / "journal.db", max_result_bytes=1000) as journal:
        async with heddle.Runner([tool], journal=journal) as runner:
            result = await runner.call("flaky", operation_id="op", retries=5, backoff=0)

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, len(runs(toolbox))) == ("too_large", "journal", 1)
    assert "its result of 2,011 bytes is more than the 1,000 that the journal keeps" in result.message


async def test_listeners_hear_of_each_try() -> None:
    heard: list[CallEvent] = []

    class Ear:
        def on_event(self, event: CallEvent) -> None:
            heard.append(event)

    @heddle.tool(side_effects="read", retry="idempotent")
    async def broken() -> None:
        raise OSError("nobody answers")

    async with heddle.Runner([broken], listeners=[Ear()]) as runner:
        await runner.call("broken", operation_id="op", retries=1, backoff=0)

    assert [type(event) for event in heard] == [CallWaiting, CallStarted, CallFinished] * 2
    assert {event.operation_id for event in heard} == {"op"}
    assert len({event.attempt_id for event in heard}) == 2


class Broken:
    """A tool that fails at once, and notes when it was called."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tool = heddle.tool(name="broken", side_effects="read", retry="idempotent")(self.call)

    async def call(self) -> None:
        self.times.append(trio.current_time())
        raise OSError("nobody answers")

    @property
    def pauses(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


async def test_pauses_double_to_half_a_minute_and_are_a_little_shorter_by_chance(autojump_clock: MockClock) -> None:
    broken = Broken()

    async with heddle.Runner([broken.tool]) as runner:
        await runner.call("broken", retries=9)

    whole = [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert len(broken.pauses) == len(whole)
    assert all(0.75 * most <= pause <= most for pause, most in zip(broken.pauses, whole, strict=True))
    assert broken.pauses != whole


async def test_a_host_may_give_the_pauses_itself(autojump_clock: MockClock) -> None:
    broken = Broken()
    asked: list[int] = []

    def pause(tries: int) -> float:
        asked.append(tries)
        return tries * 10.0

    async with heddle.Runner([broken.tool]) as runner:
        await runner.call("broken", retries=3, backoff=pause)

    assert asked == [1, 2, 3]
    assert broken.pauses == [10, 20, 30]


async def test_a_call_that_waits_for_its_next_try_can_be_cancelled(autojump_clock: MockClock) -> None:
    broken = Broken()

    async with heddle.Runner([broken.tool]) as runner:
        with trio.move_on_after(5) as cancelling:
            await runner.call("broken", retries=3, backoff=60)

    assert cancelling.cancelled_caught
    assert len(broken.times) == 1


async def test_a_call_that_waits_for_its_next_try_ends_with_its_scope(autojump_clock: MockClock) -> None:
    broken = Broken()

    async def call(scope: heddle.Scope) -> None:
        with pytest.raises(heddle.RunnerClosed, match="closed while this call ran"):
            await scope.call("broken", retries=3, backoff=60)

    async with heddle.Runner([broken.tool]) as runner, trio.open_nursery() as nursery:
        async with runner.scope() as scope:
            nursery.start_soon(call, scope)
            await trio.sleep(1)

    assert len(broken.times) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries must be 0 or more, not -1"),
        ({"retries": 1, "backoff": -0.5}, "backoff must be a number of seconds, 0 or more, not -0.5"),
        ({"retries": 1, "backoff": math.nan}, "backoff must be a number of seconds, 0 or more, not nan"),
        ({"retries": 1, "backoff": math.inf}, "backoff must be a number of seconds, 0 or more, not inf"),
    ],
)
async def test_numbers_that_mean_nothing_are_refused_before_anything_is_called(
    options: dict[str, Any], message: str
) -> None:
    broken = Broken()

    async with heddle.Runner([broken.tool]) as runner:
        with pytest.raises(ValueError, match=message.replace(".", r"\.")):
            await runner.call("broken", **options)

    assert broken.times == []


def test_a_long_row_of_tries_has_pauses_as_well() -> None:
    """Doubled a thousand times, half a second is no number any more."""
    failure = heddle.Failed(heddle.FailureKind.CRASHED, "no", retry="allowed")

    pause = Retries(10**6, 0.5).pause(failure, 10**5)

    assert pause is not None
    assert 22.5 <= pause <= 30
