"""`heddle.aio`: the same calls for asyncio; a cancelled one has ended its tool, and asynchronous tools are at home."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec

import anyio
import pytest
import trio

import heddle
from heddle.hostloop import GRACE_SECONDS, HostLoop
from tests.hosting import held, host
from tests.support import Toolbox, wait_until

P = ParamSpec("P")


def on_asyncio(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test under asyncio; asynchronous ones run under trio here."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.fixture(autouse=True)
def nothing_is_left(toolbox: Toolbox) -> Iterator[None]:
    """Whatever a test does: afterwards the host holds what it held before."""
    before = held()
    yield
    assert toolbox.strays() == []
    assert held() == before


async def until(holds: Callable[[], object], seconds: float = 5) -> None:
    """Wait until something comes true, without holding the loop."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


async def refusal(awaitable: Awaitable[object]) -> str:
    """Return what an awaitable raises."""
    try:
        return f"nothing was raised, and it gave {await awaitable!r}"
    except heddle.HeddleError as error:
        return f"{type(error).__name__}: {error}"


@heddle.tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@heddle.tool
async def treble(n: int) -> int:
    """Treble a number, on the host's loop."""
    return 3 * n


# The door


@on_asyncio
async def test_a_call_gives_what_the_tool_returns(toolbox: Toolbox) -> None:
    toolbox.sh("echo", "cat")

    async with heddle.aio.Runner(toolbox.registry()) as runner:
        result = await runner.call("echo", {"a": 1})

    assert result == heddle.Returned({"a": 1})
    assert [tool.name for tool in runner.registry] == ["echo"]


@on_asyncio
async def test_calls_of_a_scope_share_its_workspace_and_it_reports(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("write", "echo new > data/a.txt; echo '{}'")
    toolbox.sh("read", 'echo "{\\"text\\": \\"$(cat data/a.txt)\\"}"')

    async with heddle.aio.Runner(toolbox.registry()) as runner:
        async with runner.scope("work", mounts=[heddle.Mount(data, "data", "rw")], report_changes=True) as scope:
            (await scope.call("write")).unwrap()
            result = await scope.call("read")
            inside = scope.workspace.path.is_dir()
            changes = await scope.workspace.changes()

    assert (scope.workspace.label, inside) == ("work", True)
    assert result == heddle.Returned({"text": "new"})
    assert [state.path for state in changes.modified] == ["data/a.txt"]
    assert scope.report.copied_back == ("data/a.txt",)
    assert scope.report.changes == changes
    assert (data / "a.txt").read_text() == "new\n"


@on_asyncio
async def test_a_workspace_of_ones_own_outlives_the_scopes_that_use_it(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("write", "echo x >> log; echo '{}'")

    async with heddle.aio.Runner(toolbox.registry()) as runner:
        async with runner.workspace(heddle.Workspace.adopt(data, track_changes=True)) as workspace:
            for _ in range(2):
                async with runner.scope(workspace=workspace, tools=["write"]) as scope:
                    (await scope.call("write")).unwrap()
            changes = await workspace.changes()

    assert workspace.workspace.path == data
    assert [state.path for state in changes.created] == ["log"]
    assert (data / "log").read_text() == "x\nx\n"


@on_asyncio
async def test_closing_twice_is_fine_and_a_closed_runner_says_so(data: Path) -> None:
    runner = heddle.aio.Runner([double, treble])
    await runner.close()
    await runner.open()
    async with runner.workspace(heddle.Workspace.adopt(data)) as workspace, runner.scope() as scope:
        again = await refusal(runner.open())
        await runner.close()
        await runner.close()

        said = [
            await refusal(runner.call("double", {"n": 1})),
            await refusal(scope.call("double", {"n": 1})),
            await refusal(runner.call("treble", {"n": 1})),
            await refusal(scope.call("treble", {"n": 1})),
            await refusal(runner.scope().__aenter__()),
            await refusal(workspace.changes()),
        ]

    assert again == "RunnerClosed: this runner is open already: open another one, or share this one"
    assert said == ["RunnerClosed: this runner is not open: call it inside its block"] * 6


@on_asyncio
async def test_an_exception_in_the_body_leaves_as_itself(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")

    with pytest.raises(ZeroDivisionError) as caught:
        async with heddle.aio.Runner(toolbox.registry()) as runner, runner.scope() as scope:
            await scope.call("quick")
            raise ZeroDivisionError

    assert caught.value.__context__ is None


@on_asyncio
async def test_a_runner_that_cannot_be_opened_leaves_nothing(toolbox: Toolbox, tmp_path: Path) -> None:
    toolbox.sh("quick", "echo '{}'")
    runner = heddle.aio.Runner(toolbox.registry(), mounts=[f"{tmp_path}/nosuch:data"])

    for _ in range(2):
        with pytest.raises(heddle.DefinitionError, match="nosuch"):
            await runner.open()

    assert "heddle" not in [thread.name for thread in threading.enumerate()]


# Loops


USE_AIO = "under trio use heddle.Runner, and without an event loop heddle.blocking.Runner"
USE_TRIO = (
    "WrongLoop: heddle.Runner runs on trio, and no trio loop runs here: under asyncio use heddle.aio.Runner, and "
    "without an event loop heddle.blocking.Runner"
)
ANOTHER_LOOP = (
    "WrongLoop: this runner was opened in another event loop: open one in each loop, or share a "
    "heddle.blocking.Runner between threads"
)


@on_asyncio
async def test_a_trio_runner_under_asyncio_names_the_one_to_use() -> None:
    assert await refusal(heddle.Runner([double]).__aenter__()) == USE_TRIO


async def test_an_asyncio_runner_under_trio_names_the_one_to_use() -> None:
    assert (
        await refusal(heddle.aio.Runner([double]).open())
        == f"WrongLoop: heddle.aio.Runner runs on asyncio, and no asyncio loop runs here: {USE_AIO}"
    )


@on_asyncio
async def test_a_runner_is_refused_in_the_loop_of_another_thread(data: Path) -> None:
    async def elsewhere() -> list[str]:
        return [
            await refusal(runner.call("double", {"n": 1})),
            await refusal(scope.call("double", {"n": 1})),
            await refusal(runner.call("treble", {"n": 1})),
            await refusal(scope.call("treble", {"n": 1})),
            await refusal(workspace.changes()),
            await refusal(runner.open()),
            await refusal(runner.close()),
        ]

    async with heddle.aio.Runner([double, treble]) as runner, runner.scope() as scope:
        async with runner.workspace(heddle.Workspace.adopt(data)) as workspace:
            said = await asyncio.to_thread(asyncio.run, elsewhere())
            result = await runner.call("double", {"n": 1})

    assert said == [ANOTHER_LOOP] * 7
    assert result == heddle.Returned({"result": 2})


async def test_a_trio_runner_is_refused_in_the_loop_of_another_thread() -> None:
    async def elsewhere() -> list[str]:
        return [await refusal(runner.call("double", {"n": 1})), await refusal(scope.call("double", {"n": 1}))]

    async with heddle.Runner([double]) as runner, runner.scope() as scope:
        said = await trio.to_thread.run_sync(trio.run, elsewhere)
        result = await runner.call("double", {"n": 1})

    assert said == [ANOTHER_LOOP] * 2
    assert result == heddle.Returned({"result": 2})


@on_asyncio
async def test_other_threads_reach_the_runner_through_its_loop() -> None:
    loop = asyncio.get_running_loop()

    async with heddle.aio.Runner([double]) as runner:

        def in_thread(n: int) -> heddle.ToolResult:
            return asyncio.run_coroutine_threadsafe(runner.call("double", {"n": n}), loop).result()

        results = await asyncio.gather(*(asyncio.to_thread(in_thread, n) for n in range(8)))

    assert results == [heddle.Returned({"result": 2 * n}) for n in range(8)]


@on_asyncio
async def test_the_deadline_holds_while_the_hosts_loop_is_busy(toolbox: Toolbox) -> None:
    """The call itself runs in a thread of the runner's."""
    toolbox.sh("late", "sleep {long}")

    async with heddle.aio.Runner(toolbox.registry()) as runner:
        call = asyncio.create_task(runner.call("late", limits=heddle.Limits(wall_seconds=0.1)))
        await until(toolbox.strays)
        ended = wait_until(lambda: not toolbox.strays(), 5)  # holds the loop
        result = await call

    assert ended
    assert isinstance(result, heddle.Failed)
    assert result.kind == "timed_out"


# Asynchronous tools


@pytest.fixture(params=[False, True], ids=["walked_on_the_hosts_loop", "walked_in_the_runners_thread"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[heddle.Journal | None]:
    """A call that does more than await a function is walked in the runner's thread; noting it in a journal is more."""
    if not request.param:
        yield None
        return
    with heddle.Journal.open(tmp_path / "journal.db") as opened:
        yield opened


whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")


@on_asyncio
async def test_an_asynchronous_tool_runs_on_the_hosts_loop_in_its_callers_context(
    journal: heddle.Journal | None,
) -> None:
    """So that it can use what was made there: a queue, a connection, what a framework keeps per request."""
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[str] = asyncio.Queue()
    whose.set("the opener's")

    @heddle.tool
    async def ask() -> str:
        assert asyncio.get_running_loop() is loop
        await anyio.sleep(0)  # which asks what runs here
        await requests.put(whose.get())
        whose.set("the tool's")
        return "asked"

    @heddle.tool
    def in_thread() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return whose.get()

    async with heddle.aio.Runner([ask, in_thread], journal=journal) as runner:
        whose.set("the caller's")
        call = asyncio.create_task(runner.call("ask"))
        asked = await requests.get()
        results = [await call, await runner.call("in_thread")]

    assert asked == "the caller's"
    assert results == [heddle.Returned({"result": "asked"}), heddle.Returned({"result": "the caller's"})]
    assert whose.get() == "the caller's"


@on_asyncio
async def test_an_asynchronous_tool_may_call_its_own_runner(journal: heddle.Journal | None) -> None:
    @heddle.tool
    async def ask(n: int) -> object:
        return (await runner.call("double", {"n": n})).unwrap()

    async with heddle.aio.Runner([double, ask], journal=journal) as runner:
        result = await runner.call("ask", {"n": 4})

    assert result == heddle.Returned({"result": 8})


@on_asyncio
async def test_what_an_asynchronous_tool_raises_is_its_own_failure(journal: heddle.Journal | None) -> None:
    """Also what would end the host's loop, and a cancellation that is nobody's who waits for it."""

    @heddle.tool
    async def fail() -> None:
        raise LookupError("no such loom")

    @heddle.tool
    async def report() -> None:
        raise heddle.ToolError("no_loom", "There is no loom.")

    @heddle.tool
    async def leave() -> None:
        raise SystemExit(3)

    @heddle.tool
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.sleep(60)

    async with heddle.aio.Runner([fail, report, leave, cancelled], journal=journal) as runner:
        results = [await runner.call(tool.name) for tool in runner.registry]

    failures = [(result.kind, result.code, result.message) for result in results if isinstance(result, heddle.Failed)]
    assert failures == [
        ("crashed", "LookupError", 'tool "fail" raised LookupError: no such loom'),
        ("tool_error", "no_loom", 'tool "report" reports no_loom: There is no loom.'),
        ("crashed", "SystemExit", 'tool "leave" raised SystemExit: 3'),
        (
            "crashed",
            "RuntimeError",
            'tool "cancelled" raised RuntimeError: its task was cancelled by other code of the host',
        ),
    ]


@on_asyncio
async def test_an_asynchronous_tool_is_cancelled_at_its_deadline(journal: heddle.Journal | None) -> None:
    ended = []

    @heddle.tool
    async def late() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # it may still say good-bye to somebody
            ended.append("in order")

    async with heddle.aio.Runner([late], journal=journal) as runner:
        result = await runner.call("late", limits=heddle.Limits(wall_seconds=0.05))

    assert ended == ["in order"]
    assert result == heddle.Failed(
        heddle.FailureKind.TIMED_OUT,
        'tool "late" did not finish within 0.05 s and was cancelled.',
        details={"still_running": False},
        started=True,
        retry="blocked",
    )


@on_asyncio
async def test_one_that_ignores_being_cancelled_is_left_and_the_runner_closes_without_it(
    journal: heddle.Journal | None,
) -> None:
    let_go = asyncio.Event()
    ended = asyncio.Event()

    @heddle.tool
    async def late() -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        ended.set()

    async with asyncio.timeout(10):
        async with heddle.aio.Runner([late], journal=journal) as runner:
            began = time.monotonic()
            result = await runner.call("late", limits=heddle.Limits(wall_seconds=0.05))
            took = time.monotonic() - began
        was_running = not ended.is_set()
        let_go.set()
        await ended.wait()

    assert result == heddle.Failed(
        heddle.FailureKind.TIMED_OUT,
        'tool "late" did not finish within 0.05 s and is still running.',
        details={"still_running": True},
        started=True,
        retry="blocked",
    )
    assert took >= 0.05 + GRACE_SECONDS
    assert was_running


@on_asyncio
async def test_one_whose_loop_is_busy_until_its_deadline_is_never_begun() -> None:
    begun = []

    @heddle.tool
    async def late() -> None:
        begun.append(True)

    async with heddle.aio.Runner([late]) as runner:
        call = asyncio.create_task(runner.call("late", limits=heddle.Limits(wall_seconds=0.05)))
        await asyncio.sleep(0)
        time.sleep(0.06)  # holds the loop
        result = await call

    assert begun == []
    assert isinstance(result, heddle.Failed)
    assert (result.kind, dict(result.details)) == ("timed_out", {"still_running": False})


@on_asyncio
async def test_one_that_the_runners_thread_wants_awaited_is_never_begun_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = []
    is_late = threading.Event()
    cancel = HostLoop._cancel

    def cancel_and_say(*args: Any) -> None:
        cancel(*args)
        is_late.set()

    @heddle.tool
    async def late() -> None:
        begun.append(True)

    monkeypatch.setattr(HostLoop, "_cancel", cancel_and_say)
    with heddle.Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.aio.Runner([late], journal=journal) as runner:
            call = asyncio.create_task(runner.call("late", limits=heddle.Limits(wall_seconds=0.05)))
            await asyncio.sleep(0)
            is_late.wait(10)  # holds the loop
            result = await call

    assert begun == []
    assert isinstance(result, heddle.Failed)
    assert (result.kind, dict(result.details)) == ("timed_out", {"still_running": False})


@on_asyncio
async def test_closing_cancels_asynchronous_tools(journal: heddle.Journal | None) -> None:
    running = asyncio.Event()
    ended = []

    @heddle.tool
    async def late() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async with heddle.aio.Runner([late], journal=journal) as runner:
        call = asyncio.create_task(refusal(runner.call("late")))
        await running.wait()

    assert ended == [True]
    assert await call == "RunnerClosed: the runner or the scope was closed while this call ran; it was ended"


@pytest.mark.parametrize("in_scope", [False, True])
@on_asyncio
async def test_a_call_that_only_awaits_a_function_asks_nothing_of_the_runners_thread(in_scope: bool) -> None:
    """It goes through while that thread is held; a crossing would wait for it."""
    release = threading.Event()

    async with heddle.aio.Runner([treble]) as runner, runner.scope() as scope:
        portal = runner._portal
        assert portal is not None
        portal.soon(release.wait)
        try:
            async with asyncio.timeout(5):
                result = await (scope if in_scope else runner).call("treble", {"n": 2})
        finally:
            release.set()

    assert result == heddle.Returned({"result": 6})


@on_asyncio
async def test_an_asynchronous_tool_finds_what_is_mounted_in_its_workspace(data: Path) -> None:
    """Which is made in the runner's thread, and removed there."""
    folders: list[Path] = []

    @heddle.tool
    async def look(context: heddle.ToolContext) -> str:
        assert asyncio.get_running_loop() is loop
        folders.append(context.workspace)
        return (context.workspace / "data/a.txt").read_text()

    loop = asyncio.get_running_loop()
    (data / "a.txt").write_text("a")
    async with heddle.aio.Runner([look], mounts=[f"{data}:data"]) as runner:
        result = await runner.call("look")
        left = [folder.exists() for folder in folders]

    assert result == heddle.Returned({"result": "a"})
    assert left == [False]


@on_asyncio
async def test_large_values_do_not_hold_the_hosts_loop_while_they_are_judged() -> None:
    """Small ones are judged in place, where another thread would cost more."""
    judged_by = []

    def remember(value: Any) -> Any:
        judged_by.append(threading.current_thread() is threading.main_thread())
        return value

    async def echo(values: list[int]) -> dict[str, list[int]]:
        return {"values": values}

    tool = heddle.ToolDef(name="echo", implementation=heddle.Function(echo, prepare=remember, finish=remember))
    async with heddle.aio.Runner([tool]) as runner:
        results = [(await runner.call("echo", {"values": [1] * count})).unwrap() for count in (1, 10_000)]

    assert results == [{"values": [1]}, {"values": [1] * 10_000}]
    assert judged_by == [True, True, False, False]


@on_asyncio
async def test_an_asynchronous_tool_is_tried_again(journal: heddle.Journal | None) -> None:
    tries = []

    @heddle.tool(side_effects="read", retry="idempotent")
    async def flaky() -> int:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    async with heddle.aio.Runner([flaky], journal=journal) as runner:
        result = await runner.call("flaky", retries=2, backoff=lambda _: 0.02)

    assert (result.unwrap(), result.report.tries) == ({"result": 3}, 3)
    assert tries[2] - tries[0] >= 0.04


@on_asyncio
async def test_leaving_a_scope_ends_its_calls_and_no_others(journal: heddle.Journal | None) -> None:
    ended: list[str] = []

    @heddle.tool
    async def late(whose: str) -> str:
        on[whose].set()
        try:
            await asyncio.wait_for(let_go.wait(), 5)
        finally:
            await asyncio.sleep(0.01)
            ended.append(whose)
        return whose

    on = {"inner": asyncio.Event(), "outer": asyncio.Event()}
    let_go = asyncio.Event()
    async with heddle.aio.Runner([late], journal=journal) as runner, runner.scope() as outer:
        async with runner.scope() as inner:
            calls = {
                whose: asyncio.create_task(refusal(scope.call("late", {"whose": whose})))
                for whose, scope in (("inner", inner), ("outer", outer))
            }
            for event in on.values():
                await event.wait()
        at_the_end = list(ended)
        again = await refusal(inner.call("late", {"whose": "inner"}))
        let_go.set()
        said = [await calls["inner"], await calls["outer"]]

    assert at_the_end == ["inner"]
    assert again == "RunnerClosed: this scope is over: call it inside its `async with` block"
    assert said[0] == "RunnerClosed: the runner or the scope was closed while this call ran; it was ended"
    assert said[1].startswith("nothing was raised, and it gave Returned")


@on_asyncio
async def test_no_call_begins_while_the_runner_is_being_closed() -> None:
    running = asyncio.Event()
    begun = []

    @heddle.tool
    async def late() -> None:
        begun.append(True)
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            said.append(await refusal(scope.call("late")))
            said.append(await refusal(runner.call("late")))

    said: list[str] = []
    async with heddle.aio.Runner([late]) as runner, runner.scope() as scope:
        call = asyncio.create_task(refusal(scope.call("late")))
        await running.wait()
        await runner.close()

    assert begun == [True]
    assert said == ["RunnerClosed: this runner was closed meanwhile"] * 2
    assert await call == "RunnerClosed: the runner or the scope was closed while this call ran; it was ended"


@on_asyncio
async def test_a_scope_that_is_opened_while_the_runner_is_being_closed_takes_no_call() -> None:
    """Its calls would be among those that are ended only if it had been there before."""
    begun = []

    @heddle.tool
    async def ask() -> None:
        begun.append(True)

    async with heddle.aio.Runner([ask]) as runner, runner.scope() as scope:
        portal = runner._portal
        assert portal is not None
        later = scope._scope._in(runner._loop_for(scope._scope))
        portal.stop()
        said = await refusal(later.call("ask"))

    assert said == "RunnerClosed: this runner was closed meanwhile"
    assert begun == []


# Cancelling


async def by_cancelling_the_task(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    task = asyncio.create_task(call)
    await until(is_on)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def by_cancelling_it_again_and_again(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    task = asyncio.create_task(call)
    await until(is_on)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


async def by_timeout(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            asyncio.create_task(until(is_on)).add_done_callback(
                lambda _: timeout.reschedule(asyncio.get_running_loop().time())
            )
            await call


async def by_wait_for(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    task = asyncio.create_task(call)
    await until(is_on)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 0.001)


async def by_a_sibling_that_fails(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    async def fail() -> None:
        await until(is_on)
        raise LookupError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(call)
            group.create_task(fail())
    assert [type(error) for error in caught.value.exceptions] == [LookupError]


async def by_an_anyio_scope(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    async def cancel() -> None:
        await until(is_on)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        await call
        pytest.fail("it was not cancelled")


async def by_an_anyio_timeout(call: Coroutine[Any, Any, object], is_on: Callable[[], object]) -> None:
    with anyio.move_on_after(10) as scope:
        asyncio.create_task(until(is_on)).add_done_callback(lambda _: scope.cancel())
        await call
    assert scope.cancelled_caught


CANCELLED = [
    by_cancelling_the_task,
    by_cancelling_it_again_and_again,
    by_timeout,
    by_wait_for,
    by_a_sibling_that_fails,
    by_an_anyio_scope,
    by_an_anyio_timeout,
]


@pytest.mark.parametrize("cancelled", CANCELLED)
@on_asyncio
async def test_the_tool_is_gone_when_the_await_ends(
    toolbox: Toolbox, cancelled: Callable[[Coroutine[Any, Any, object], Callable[[], object]], Awaitable[None]]
) -> None:
    """However it was cancelled, and though the tool takes its time."""
    toolbox.sh("late", "(trap '' TERM; exec sleep {long}) & trap 'sleep 0.2; exit' TERM; wait")

    async with heddle.aio.Runner(toolbox.registry().with_tool(double)) as runner:
        async with asyncio.timeout(5):
            await cancelled(runner.call("late"), toolbox.strays)
        left = toolbox.strays()
        result = await runner.call("double", {"n": 1})

    assert left == []
    assert result == heddle.Returned({"result": 2})


@pytest.mark.parametrize("cancelled", CANCELLED)
@on_asyncio
async def test_an_asynchronous_tool_has_ended_when_the_await_ends(
    journal: heddle.Journal | None,
    cancelled: Callable[[Coroutine[Any, Any, object], Callable[[], object]], Awaitable[None]],
) -> None:
    running = asyncio.Event()
    ended = []

    @heddle.tool
    async def late() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append("in order")

    async with heddle.aio.Runner([late], journal=journal) as runner:
        async with asyncio.timeout(5):
            await cancelled(runner.call("late"), running.is_set)
        at_the_end = list(ended)

    assert at_the_end == ["in order"]


@on_asyncio
async def test_an_asynchronous_tool_that_ignores_its_caller_going_away_is_left() -> None:
    running, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @heddle.tool
    async def late() -> None:
        running.set()
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        ended.set()

    async with heddle.aio.Runner([late]) as runner:
        began = time.monotonic()
        async with asyncio.timeout(10):
            await by_cancelling_it_again_and_again(runner.call("late"), running.is_set)
        took = time.monotonic() - began
        was_running = not ended.is_set()
        let_go.set()
        await ended.wait()

    assert took >= GRACE_SECONDS
    assert was_running


def test_that_the_tool_is_gone_is_because_the_await_goes_on(toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above sees it if it does not."""

    async def careless(future: Future[object], _: object) -> object:
        return await asyncio.wrap_future(future)

    async def cancel() -> list[int]:
        async with heddle.aio.Runner(toolbox.registry()) as runner:
            with monkeypatch.context() as patch:
                patch.setattr(heddle.aio, "_wait", careless)
                await by_cancelling_the_task(runner.call("late"), toolbox.strays)
                return toolbox.strays()

    toolbox.sh("late", "sleep {long}")

    assert len(asyncio.run(cancel())) == 1


@on_asyncio
async def test_being_cancelled_again_and_again_costs_the_loop_nothing_later(toolbox: Toolbox) -> None:
    """anyio cancels a task in every turn of the loop until it ends; what waits must not pile up meanwhile."""
    toolbox.sh("late", "(trap '' TERM; exec sleep {long}) & trap 'sleep 0.2; exit' TERM; wait")
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    call_soon_threadsafe = loop.call_soon_threadsafe

    def counting(*args: Any, **kwargs: Any) -> asyncio.Handle:
        calls.append(args)
        return call_soon_threadsafe(*args, **kwargs)

    async with heddle.aio.Runner(toolbox.registry()) as runner:
        task = asyncio.create_task(runner.call("late"))
        await until(toolbox.strays)
        loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
        turns = 0
        while not task.done():
            task.cancel()
            turns += 1
            await asyncio.sleep(0)

    assert turns > 100
    assert len(calls) < 10


async def cancelled_at_random(registry: heddle.Registry, count: int, most_seconds: float) -> set[str]:
    """Cancel calls at instants of all kinds: before they are begun, while the tool is started, while it runs."""
    instants = random.Random(23)
    outcomes = set()
    async with heddle.aio.Runner(registry) as runner:
        await runner.call("quick")
        for number in range(count):
            task = asyncio.create_task(runner.call("late" if number % 2 else "daemon"))
            if number % 10:
                await asyncio.sleep(instants.uniform(0, most_seconds))
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            outcomes.add(type(outcome).__name__)
    return outcomes


def test_two_hundred_calls_cancelled_at_any_instant_leave_nothing(toolbox: Toolbox) -> None:
    """Being cancelled while a program is being started is where hosts with children of their own lose them."""
    toolbox.sh("quick", "echo '{}'")
    toolbox.sh("late", "sleep {long}")
    toolbox.sh("daemon", "setsid sleep {long} & sleep {long}")
    loop = asyncio.new_event_loop()
    try:
        outcomes = loop.run_until_complete(cancelled_at_random(toolbox.registry(), 200, 0.012))
    finally:
        began = time.monotonic()
        loop.close()
        took = time.monotonic() - began

    assert outcomes == {"CancelledError"}
    assert took < 2


@on_asyncio
async def test_a_runner_that_is_cancelled_while_it_is_opened_or_closed_leaves_nothing(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")
    registry = toolbox.registry()
    instants = random.Random(24)
    reached: list[str] = []

    async def use() -> None:
        reached.append("nothing")
        async with heddle.aio.Runner(registry) as runner:
            reached[-1] = "opened"
            async with runner.scope() as scope:
                await scope.call("quick")
                reached[-1] = "called"
        reached[-1] = "closed"

    before = held()
    for number in range(60):
        task = asyncio.create_task(use())
        for _ in range(number % 10):
            await asyncio.sleep(0)
        if number >= 20:
            await asyncio.sleep(instants.uniform(0, 0.1))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert held() == before, reached[-1]

    assert {"nothing", "called"} <= set(reached)


CTRL_C = """
    import asyncio, sys, heddle

    async def main():
        async with heddle.aio.Runner(heddle.discover_tools(sys.argv[1])) as runner:
            await runner.call("late")

    asyncio.run(main())
"""


def test_ctrl_c_ends_the_tool_and_then_the_host(toolbox: Toolbox) -> None:
    toolbox.sh("late", "sleep {long}")

    with host(CTRL_C, toolbox.folder) as process:
        assert wait_until(toolbox.strays, 10)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=10)

        assert toolbox.strays() == []
    assert process.returncode == -signal.SIGINT
    assert complained.splitlines()[-1:] == ["KeyboardInterrupt"]
