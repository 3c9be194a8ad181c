"""`heddle.blocking`: code that does not wait gets the same calls, and an interrupt comes out when the tool is gone."""

from __future__ import annotations

import contextlib
import contextvars
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import heddle
import heddle.portal
from heddle.workspace import Changes
from tests.hosting import held, host
from tests.support import Toolbox, wait_until

# Ends half a second after it was asked to, and its child not before.
ENDS_SLOWLY = "(trap '' TERM; exec sleep {long}) & trap 'sleep 0.5; exit' TERM; wait"


@pytest.fixture(autouse=True)
def nothing_is_left(toolbox: Toolbox) -> Iterator[None]:
    """Whatever a test does: afterwards the host holds what it held before."""
    before = held()
    yield
    assert toolbox.strays() == []
    assert held() == before


@heddle.tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


# The door


def test_a_call_gives_what_the_tool_returns(toolbox: Toolbox) -> None:
    toolbox.sh("echo", "cat")

    with heddle.blocking.Runner(toolbox.registry()) as runner:
        result = runner.call("echo", {"a": 1})

    assert result == heddle.Returned({"a": 1})
    assert [tool.name for tool in runner.registry] == ["echo"]


def test_calls_of_a_scope_share_its_workspace_and_it_reports(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("write", "echo new > data/a.txt; echo '{}'")
    toolbox.sh("read", 'echo "{\\"text\\": \\"$(cat data/a.txt)\\"}"')

    with heddle.blocking.Runner(toolbox.registry()) as runner:
        with runner.scope("work", mounts=[heddle.Mount(data, "data", "rw")], report_changes=True) as scope:
            scope.call("write").unwrap()
            result = scope.call("read")
            inside = scope.workspace.path.is_dir()
            changes = scope.workspace.changes()

    assert (scope.workspace.label, inside) == ("work", True)
    assert result == heddle.Returned({"text": "new"})
    assert [state.path for state in changes.modified] == ["data/a.txt"]
    assert scope.report.copied_back == ("data/a.txt",)
    assert scope.report.changes == changes
    assert (data / "a.txt").read_text() == "new\n"


def test_a_workspace_of_ones_own_outlives_the_scopes_that_use_it(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("write", "echo x >> log; echo '{}'")

    with heddle.blocking.Runner(toolbox.registry()) as runner:
        with runner.workspace(heddle.Workspace.adopt(data, track_changes=True)) as workspace:
            for _ in range(2):
                with runner.scope(workspace=workspace, tools=["write"]) as scope:
                    scope.call("write").unwrap()
            changes = workspace.changes()

    assert workspace.workspace.path == data
    assert isinstance(changes, Changes)
    assert [state.path for state in changes.created] == ["log"]
    assert (data / "log").read_text() == "x\nx\n"


def test_a_runner_may_be_opened_again_after_it_was_closed() -> None:
    runner = heddle.blocking.Runner([double])
    results = []

    for n in range(3):
        with runner:
            results.append(runner.call("double", {"n": n}).unwrap())

    assert results == [{"result": 0}, {"result": 2}, {"result": 4}]


def test_closing_twice_is_fine_and_a_closed_runner_says_so(data: Path) -> None:
    runner = heddle.blocking.Runner([double])
    runner.close()
    runner.open()
    with runner.workspace(heddle.Workspace.adopt(data)) as workspace, runner.scope() as scope:
        runner.close()
        runner.close()

        said = [
            refusal(lambda: runner.call("double", {"n": 1})),
            refusal(lambda: scope.call("double", {"n": 1})),
            refusal(lambda: runner.scope().__enter__()),
            refusal(workspace.changes),
        ]

    assert said == ["RunnerClosed: this runner is not open: call it inside its block"] * 4


def refusal(function: Callable[[], object]) -> str:
    """Return what a call raises."""
    try:
        return f"nothing was raised, and it gave {function()!r}"
    except heddle.HeddleError as error:
        return f"{type(error).__name__}: {error}"


def test_a_runner_that_is_open_is_not_opened_again() -> None:
    with heddle.blocking.Runner([double]) as runner:
        said = refusal(runner.open)
        result = runner.call("double", {"n": 2})

    assert said == "RunnerClosed: this runner is open already: open another one, or share this one"
    assert result == heddle.Returned({"result": 4})


def test_a_runner_that_cannot_be_opened_leaves_nothing(toolbox: Toolbox, tmp_path: Path) -> None:
    toolbox.sh("quick", "echo '{}'")
    runner = heddle.blocking.Runner(toolbox.registry(), mounts=[f"{tmp_path}/nosuch:data"])

    for _ in range(2):
        with pytest.raises(heddle.DefinitionError, match="nosuch"):
            runner.open()

    assert "heddle" not in [thread.name for thread in threading.enumerate()]


def test_a_host_that_gives_no_thread_is_told_so_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    runner = heddle.blocking.Runner([double])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            runner.open()

    with runner:
        assert runner.call("double", {"n": 1}) == heddle.Returned({"result": 2})


def test_an_exception_in_the_body_leaves_as_itself(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")

    with pytest.raises(ZeroDivisionError) as caught:
        with heddle.blocking.Runner(toolbox.registry()) as runner, runner.scope() as scope:
            scope.call("quick")
            raise ZeroDivisionError

    assert caught.value.__context__ is None


def test_what_leaving_a_workspace_raises_comes_out(data: Path) -> None:
    @asynccontextmanager
    async def fails_on_the_way_out() -> AsyncGenerator[heddle.Workspace, None]:
        async with heddle.Workspace.adopt(data) as workspace:
            yield workspace
        raise LookupError("on the way out")

    with heddle.blocking.Runner([double]) as runner:
        with pytest.raises(LookupError, match="on the way out"), runner.workspace(fails_on_the_way_out()) as workspace:
            path = workspace.path
        result = runner.call("double", {"n": 1})

    assert path == data
    assert result == heddle.Returned({"result": 2})


def test_closing_ends_the_calls_of_other_threads_and_both_closers_find_them_gone(toolbox: Toolbox) -> None:
    toolbox.sh("late", ENDS_SLOWLY)
    runner = heddle.blocking.Runner(toolbox.registry()).open()
    left: list[list[int]] = []

    def close() -> None:
        runner.close()
        left.append(toolbox.strays())

    with ThreadPoolExecutor(3) as pool:
        call = pool.submit(runner.call, "late")
        assert wait_until(toolbox.strays, 5)
        for closing in [pool.submit(close), pool.submit(close)]:
            closing.result()

    assert left == [[], []]
    assert refusal(call.result) == "RunnerClosed: the runner or the scope was closed while this call ran; it was ended"


# Threads


def test_sixteen_threads_share_a_runner(toolbox: Toolbox) -> None:
    """As the threads of a web server do."""
    toolbox.sh("echo", "cat")

    with heddle.blocking.Runner(toolbox.registry()) as runner:

        def calls(thread: int) -> list[heddle.ToolResult]:
            return [runner.call("echo", {"thread": thread, "turn": turn}) for turn in range(20)]

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(calls, range(16)))

    assert results == [
        [heddle.Returned({"thread": thread, "turn": turn}) for turn in range(20)] for thread in range(16)
    ]


def test_what_meets_the_runners_end_is_refused() -> None:
    """Whatever the order in which the two arrive, the one who asked hears of it in words of the host's."""
    said = set()
    for _ in range(20):
        portal = heddle.portal.Portal()
        portal.start()
        portal.soon(time.sleep, 0.003)  # so that both arrive at once
        entering = heddle.portal.Held(takes_long(), portal)
        entered = entering.enter()
        ended = portal.stop()
        working = heddle.portal.Job(trio.sleep_forever, portal)
        said |= {refusal(partial(began_and_ended, working)), refusal(entered.result)}
        ended.result()
        entering.leave().result()
        portal.join()

    assert said <= {
        "RunnerClosed: this was cancelled before it was done",
        "RunnerClosed: this runner was closed meanwhile",
    }


def began_and_ended(job: heddle.portal.Job[Any]) -> None:
    job.begin().result()


@asynccontextmanager
async def takes_long() -> AsyncGenerator[None, None]:
    await trio.sleep(60)
    yield


# Functions


whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")


def where() -> str:
    return "under trio" if trio.lowlevel.in_trio_run() else "in a thread"


def test_functions_run_in_their_callers_context() -> None:
    @heddle.tool
    def in_thread() -> str:
        return f"{whose.get()}, {where()}"

    @heddle.tool
    async def in_loop() -> str:
        await trio.sleep(0)
        return f"{whose.get()}, {where()}"

    whose.set("the opener's")
    with heddle.blocking.Runner([in_thread, in_loop]) as runner:

        def calls() -> list[object]:
            whose.set("the caller's")
            return [runner.call("in_thread").unwrap(), runner.call("in_loop").unwrap()]

        said = contextvars.copy_context().run(calls)

    assert said == [{"result": "the caller's, in a thread"}, {"result": "the caller's, under trio"}]
    assert whose.get() == "the opener's"


def test_a_function_may_call_its_own_runner_and_an_asynchronous_one_is_refused() -> None:
    """An asynchronous one runs in the runner's own thread, which would wait for itself."""

    @heddle.tool
    def ask(n: int) -> object:
        return runner.call("double", {"n": n}).unwrap()

    @heddle.tool
    async def ask_there(n: int) -> object:
        return runner.call("double", {"n": n}).unwrap()

    @heddle.tool
    async def close_there() -> None:
        runner.close()

    with heddle.blocking.Runner([double, ask, ask_there, close_there]) as runner:
        results = [runner.call("ask", {"n": 4}), runner.call("ask_there", {"n": 4}), runner.call("close_there")]

    assert results[0] == heddle.Returned({"result": 8})
    for result in results[1:]:
        assert isinstance(result, heddle.Failed)
        assert (result.kind, result.code) == ("crashed", "WrongLoop")
        assert "an asynchronous tool cannot call its own runner" in result.message


# Interrupts


@contextmanager
def at_a_terminal() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


CALL = """
    import sys, heddle
    {handler}
    with heddle.blocking.Runner(heddle.discover_tools(sys.argv[1])) as runner:
        runner.call("late")
"""
ON_SIGTERM = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"


@pytest.mark.parametrize(
    ("handler", "signals", "status"),
    [
        ("", [signal.SIGINT], -signal.SIGINT),
        ("", [signal.SIGINT, signal.SIGINT, signal.SIGINT], -signal.SIGINT),
        (ON_SIGTERM, [signal.SIGTERM], 7),
        (ON_SIGTERM, [signal.SIGTERM, signal.SIGINT], 7),
    ],
    ids=["Ctrl-C", "Ctrl-C three times", "SIGTERM", "SIGTERM and Ctrl-C"],
)
def test_a_signal_ends_the_tool_and_then_the_host(
    toolbox: Toolbox, tmp_path: Path, handler: str, signals: list[signal.Signals], status: int
) -> None:
    """It exits as Python does, because what the first signal has raised comes out."""
    asked, may_end = tmp_path / "asked", tmp_path / "may_end"
    on_asked = f"touch {asked}; until [ -e {may_end} ]; do sleep 0.01; done; exit"
    toolbox.sh("late", f"(trap '' TERM; exec sleep {{long}}) & trap '{on_asked}' TERM; wait")

    with host(CALL.format(handler=handler), toolbox.folder) as process:
        assert wait_until(toolbox.strays, 10)
        for number in signals:
            process.send_signal(number)
            assert wait_until(asked.exists, 10)
            time.sleep(0.05)
        may_end.touch()
        _, complained = process.communicate(timeout=10)

        assert toolbox.strays() == []
    assert process.returncode == status
    assert complained.splitlines()[-1:] == (["KeyboardInterrupt"] if status < 0 else [])


def test_the_runner_goes_on_after_an_interrupt(toolbox: Toolbox) -> None:
    """A notebook's Ctrl-C ends the cell and not the kernel."""
    toolbox.sh("late", "sleep {long}")

    with at_a_terminal(), heddle.blocking.Runner(toolbox.registry().with_tool(double)) as runner:
        with interrupted_when(toolbox.strays), pytest.raises(KeyboardInterrupt):
            runner.call("late")
        left = toolbox.strays()
        result = runner.call("double", {"n": 1})

    assert left == []
    assert result == heddle.Returned({"result": 2})


def test_that_the_tool_is_gone_is_because_an_interrupt_waits_for_it(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above sees it if it does not."""
    toolbox.sh("late", "sleep {long}")
    monkeypatch.setattr(heddle.blocking, "_see_to", lambda _: None)

    with at_a_terminal(), heddle.blocking.Runner(toolbox.registry()) as runner:
        with interrupted_when(toolbox.strays), pytest.raises(KeyboardInterrupt):
            runner.call("late")
        left = toolbox.strays()

    assert len(left) == 1


@contextmanager
def interrupted_when(holds: Callable[[], object]) -> Iterator[None]:
    """Send this process a SIGINT when something holds."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        if wait_until(holds, 10):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_function_that_fails_while_it_is_cancelled_harms_nobody_else() -> None:
    """Then cancelling gives a group of two: that it was cancelled, and what it raised."""
    running = threading.Event()

    @heddle.tool
    async def fail() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                running.set()
                await trio.sleep_forever()
            finally:
                raise LookupError("on the way out")

    with at_a_terminal(), heddle.blocking.Runner([fail, double]) as runner:
        with interrupted_when(running.is_set), pytest.raises(KeyboardInterrupt):
            runner.call("fail")
        result = runner.call("double", {"n": 1})

    assert result == heddle.Returned({"result": 2})


def test_a_handler_may_close_the_runner_whose_call_it_interrupts(toolbox: Toolbox) -> None:
    toolbox.sh("late", "sleep {long}")
    runner = heddle.blocking.Runner(toolbox.registry()).open()
    before = signal.signal(signal.SIGINT, lambda *_: runner.close())

    try:
        with interrupted_when(toolbox.strays):
            said = refusal(lambda: runner.call("late"))
    finally:
        signal.signal(signal.SIGINT, before)

    assert said == "RunnerClosed: the runner or the scope was closed while this call ran; it was ended"


def test_interrupts_at_random_instants_leave_nothing(toolbox: Toolbox) -> None:
    """While the runner is opened, while it calls, while it is closed."""
    toolbox.sh("late", "sleep {long}")
    registry = toolbox.registry()
    instants = random.Random(22)
    before = held()
    main = threading.main_thread().ident
    assert main is not None
    finished = 0

    with at_a_terminal():
        for _ in range(40):
            timer = threading.Timer(instants.uniform(0, 0.12), signal.pthread_kill, (main, signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    timer.start()
                    with heddle.blocking.Runner(registry) as runner:
                        runner.call("late", limits=heddle.Limits(wall_seconds=0.04))
                    finished += 1
                finally:
                    timer.join()
            assert toolbox.strays() == []
            assert wait_until(lambda: held() == before, 1), held()

    assert finished < 40


class Interrupt:
    """Raises KeyboardInterrupt at the n-th point at which Python looks for signals in the code of the door.

    It does so when a function is entered and when a built-in one has returned.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.hit = ""

    def __enter__(self) -> None:
        sys.setprofile(self.look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def look(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event not in {"call", "c_return"} or not name.endswith(DOORS):
            return
        self.left -= 1
        if self.left < 0 and not self.hit:
            self.hit = f"{Path(name).name}, {frame.f_code.co_name}"
            raise KeyboardInterrupt


DOORS = ("heddle/blocking.py", "heddle/twins.py", "heddle/portal.py", "trio/_core/_entry_queue.py")
# Python calls `__exit__` like any function: an interrupt before its first lines have done anything comes out of it.
NOT_YET_CLOSING = {
    "blocking.py, __exit__",
    "blocking.py, close",
    "blocking.py, _end",
    "blocking.py, _wait",
    "twins.py, _closable",
    "twins.py, _current",
    "twins.py, _check",
    "portal.py, is_here",
}


def test_an_interrupt_at_any_point_of_opening_and_closing_leaves_nothing() -> None:
    """Or a runner that is open as it was, and that can still be closed."""
    runner = heddle.blocking.Runner([double])
    before = held()
    hits, left_open = [], set()

    for number in range(1000):
        interrupt = Interrupt(number)
        try:
            with interrupt, runner:
                pass
        except KeyboardInterrupt:
            hits.append(interrupt.hit)
        if not wait_until(lambda: held() == before, 0.2 if interrupt.hit in NOT_YET_CLOSING else 5):
            left_open.add(interrupt.hit)
            runner.close()
        assert held() == before, interrupt.hit
        if not interrupt.hit:
            break

    assert left_open <= NOT_YET_CLOSING
    assert len(hits) == number > 30
    with runner:
        assert runner.call("double", {"n": 1}) == heddle.Returned({"result": 2})


def test_an_interrupt_at_any_point_of_a_call_ends_its_tool(toolbox: Toolbox) -> None:
    toolbox.sh("late", "sleep {long}")
    limits = heddle.Limits(wall_seconds=0.1)
    hits = []

    with heddle.blocking.Runner(toolbox.registry()) as runner:
        for number in range(1000):
            interrupt = Interrupt(number)
            try:
                with interrupt:
                    runner.call("late", limits=limits)
            except KeyboardInterrupt:
                hits.append(interrupt.hit)
            assert not wait_until(toolbox.strays, 0.05), interrupt.hit
            if not interrupt.hit:
                break
        result = runner.call("late", limits=limits)

    assert len(hits) == number > 10
    assert result.kind == "timed_out"  # type: ignore[union-attr]
