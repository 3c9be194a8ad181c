"""Who listens hears of every call, and no call notices."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import logging
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

import heddle
from heddle.events import CallEvent, CallFinished, CallStarted, CallWaiting, Tracer
from heddle.listening import MOST_WAITING
from tests.support import Toolbox, until, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from heddle.events import Listener

NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)
KINDS = ["trio", "asyncio", "blocking"]
CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default="nobody")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[CallEvent] = []

    def on_event(self, event: CallEvent) -> None:
        self.events.append(event)

    def has(self, kind: type[CallEvent], tool: str) -> bool:
        return any(isinstance(event, kind) and event.tool == tool for event in self.events)

    def has_heard(self, many: int) -> bool:
        return len(self.events) == many


class Stuck(Heard):
    """One that does not come back from an event until it is let go, once for each."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Semaphore(0)

    def on_event(self, event: CallEvent) -> None:
        super().on_event(event)
        self.turns.acquire()

    def let_go(self, events: int = 1_000_000) -> None:
        self.turns.release(events)


@heddle.tool
async def double(number: int) -> int:
    return 2 * number


@heddle.tool
def whoever_calls() -> str:
    return CALLER.get()


@heddle.tool
async def whoever_awaits() -> str:
    return CALLER.get()


def results(
    kind: str,
    tools: Iterable[heddle.ToolDef],
    listeners: list[Any],
    *calls: tuple[Any, ...],
    **options: Any,
) -> list[heddle.ToolResult]:
    """Make calls, one after another, in a runner of a kind; close it."""

    async def made(runner: heddle.Runner | heddle.aio.Runner) -> list[heddle.ToolResult]:
        async with runner:
            return [await runner.call(*call, **options) for call in calls]

    if kind == "trio":
        return trio.run(made, heddle.Runner(tools, listeners=listeners))
    if kind == "asyncio":
        return asyncio.run(made(heddle.aio.Runner(tools, listeners=listeners)))
    with heddle.blocking.Runner(tools, listeners=listeners) as runner:
        return [runner.call(*call, **options) for call in calls]


def timeless(events: Iterable[CallEvent]) -> list[CallEvent]:
    """Return events without when they were and what was waited, which is another each time."""
    return [
        attrs.evolve(event, at=NEVER, waited_s=0.0) if isinstance(event, CallStarted) else attrs.evolve(event, at=NEVER)
        for event in events
    ]


def toolkit(toolbox: Toolbox) -> heddle.Registry:
    """Return a program, one that does not end in its time, and functions."""
    toolbox.sh("shout", 'echo \'{"said": "A"}\'')
    toolbox.sh("linger", "exec sleep {long}")
    brief = attrs.evolve(toolbox.registry()["linger"], limits=heddle.Limits(wall_seconds=0.2))
    return heddle.Registry([toolbox.registry()["shout"], brief, double, whoever_calls, whoever_awaits])


# What is heard of a call


CALLS: dict[str, tuple[str, dict[str, Any] | None, bool, str]] = {
    "a program": ("shout", {"text": "a"}, True, "returned"),
    "a function": ("double", {"number": 2}, True, "returned"),
    "a program whose time is up": ("linger", None, True, "timed_out"),
    "arguments that are refused": ("double", {"number": "two"}, False, "invalid_input"),
    "no such tool": ("triple", None, False, "unknown_tool"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CALLS)
def test_a_call_is_heard_of_from_its_beginning_to_its_end(toolbox: Toolbox, kind: str, case: str) -> None:
    name, arguments, starts, outcome = CALLS[case]
    registry, heard = toolkit(toolbox), Heard()

    (result,) = results(kind, registry, [heard], (name, arguments), operation_id="order-7")

    of: dict[str, Any] = {"tool": name, "operation_id": "order-7", "attempt_id": result.report.attempt_id}
    definition = registry[name] if name in registry else None  # noqa: SIM401 - a registry is no dict
    assert (result.kind if isinstance(result, heddle.Failed) else "returned") == outcome
    assert timeless(heard.events) == timeless(
        [
            CallWaiting(definition=definition, arguments=arguments, **of),
            *([CallStarted(waited_s=0.0, **of)] if starts else []),
            CallFinished(result=result, **of),
        ]
    )
    assert [event.at for event in heard.events] == sorted(event.at for event in heard.events)


async def test_a_call_that_waits_for_its_turn_says_for_how_long_when_it_starts(
    toolbox: Toolbox, tmp_path: Path
) -> None:
    toolbox.sh("wait", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; echo '{{}}'")
    heard = Heard()

    async with heddle.Runner(toolbox.registry(), listeners=[heard], max_concurrent=1) as runner:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.call, "wait")
            assert await until(lambda: heard.has(CallStarted, "wait"), 5)
            nursery.start_soon(runner.call, "wait")
            assert await until(lambda: len(heard.events) == 3, 5)
            heard_at = time.monotonic()
            await trio.sleep(0.05)
            let_go_at = time.monotonic()
            (tmp_path / "go").touch()

    first, second = (event for event in heard.events if isinstance(event, CallStarted))
    assert second.attempt_id == heard.events[2].attempt_id != first.attempt_id
    assert second.waited_s >= let_go_at - heard_at


def close_during_a_call(kind: str, tools: heddle.Registry, listener: Listener) -> None:
    """Close a runner while it calls ``wait``."""
    watching = Heard()
    listeners = [listener, watching]

    def is_waiting() -> bool:
        return watching.has(CallStarted, "wait")

    async def with_trio() -> None:
        async with trio.open_nursery() as nursery:
            async with heddle.Runner(tools, listeners=listeners) as runner:
                nursery.start_soon(call_and_be_ended, runner)
                await until(is_waiting, 5)

    async def call_and_be_ended(runner: heddle.Runner | heddle.aio.Runner) -> None:
        with pytest.raises(heddle.RunnerClosed):
            await runner.call("wait")

    async def with_asyncio() -> None:
        async with heddle.aio.Runner(tools, listeners=listeners) as runner:
            task = asyncio.create_task(call_and_be_ended(runner))
            await asyncio.to_thread(wait_until, is_waiting, 5)
        await task

    def with_neither() -> None:
        def close() -> None:
            wait_until(is_waiting, 5)
            runner.close()

        with heddle.blocking.Runner(tools, listeners=listeners) as runner:
            closing = threading.Thread(target=close)
            closing.start()
            with pytest.raises(heddle.RunnerClosed):
                runner.call("wait")
            closing.join()

    if kind == "trio":
        trio.run(with_trio)
    elif kind == "asyncio":
        asyncio.run(with_asyncio())
    else:
        with_neither()


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_whose_runner_is_closed_says_so_at_its_end(toolbox: Toolbox, kind: str) -> None:
    toolbox.sh("wait", "exec sleep {long}")
    heard = Heard()

    close_during_a_call(kind, toolbox.registry(), heard)

    waiting, started, finished = heard.events
    assert (type(waiting), type(started), toolbox.strays()) == (CallWaiting, CallStarted, [])
    assert isinstance(finished, CallFinished)
    assert (finished.result, finished.error) == (None, "RunnerClosed")


async def test_a_call_that_is_cancelled_says_so_at_its_end(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "exec sleep {long}")
    heard = Heard()

    async with heddle.Runner(toolbox.registry(), listeners=[heard]) as runner:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.call, "wait")
            assert await until(lambda: heard.has(CallStarted, "wait"), 5)
            nursery.cancel_scope.cancel()

    finished = heard.events[-1]
    assert isinstance(finished, CallFinished)
    assert (finished.result, finished.error) == (None, "Cancelled")


@heddle.tool(name="wait_on_the_hosts_loop")
async def wait_here() -> None:
    """Wait longer than any test."""
    await asyncio.sleep(60)


@pytest.mark.parametrize("tool", ["wait", "wait_on_the_hosts_loop"])
def test_a_call_that_is_cancelled_under_asyncio_says_so_at_its_end(toolbox: Toolbox, tool: str) -> None:
    toolbox.sh("wait", "exec sleep {long}")
    heard = Heard()

    async def main() -> None:
        async with heddle.aio.Runner(toolbox.registry().with_tool(wait_here), listeners=[heard]) as runner:
            task = asyncio.create_task(runner.call(tool))
            await asyncio.to_thread(wait_until, lambda: heard.has(CallStarted, tool), 5)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())

    finished = heard.events[-1]
    assert isinstance(finished, CallFinished)
    assert (finished.result, finished.error) == (None, "Cancelled")


async def test_a_call_that_raises_says_what_at_its_end() -> None:
    heard = Heard()

    async with heddle.Runner([double], listeners=[heard]) as runner:
        with pytest.raises(heddle.DefinitionError):
            await runner.call("double", {"number": 2}, cwd="src")

    finished = heard.events[-1]
    assert isinstance(finished, CallFinished)
    assert (finished.result, finished.error) == (None, "DefinitionError")


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_heard_in_the_context_of_the_caller(kind: str) -> None:
    """A request's id, for instance, reaches what counts its calls."""
    callers: list[str] = []

    class Callers:
        def on_event(self, event: CallEvent) -> None:
            callers.append(CALLER.get())

    contextvars.copy_context().run(called_by, "somebody", kind, Callers())

    assert callers == ["somebody"] * 3


def called_by(caller: str, kind: str, listener: Listener) -> None:
    CALLER.set(caller)
    results(kind, [double], [listener], ("double", {"number": 2}))


# Listeners that are slow, or broken


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("problem", [ValueError("broken"), SystemExit(1)], ids=["an error", "an exit"])
async def test_a_listener_that_raises_is_logged_and_the_others_hear_everything(
    caplog: pytest.LogCaptureFixture, problem: BaseException
) -> None:
    class Broken:
        def on_event(self, event: CallEvent) -> None:
            raise problem

    heard = Heard()

    async with heddle.Runner([double], listeners=[Broken(), heard]) as runner:
        result = await runner.call("double", {"number": 2})

    assert result == heddle.Returned({"result": 4})
    assert [type(event) for event in heard.events] == [CallWaiting, CallStarted, CallFinished]
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [problem] * 3


async def test_a_slow_listener_holds_up_no_call_and_hears_everything_later() -> None:
    slow = Stuck()

    async with heddle.Runner([double], listeners=[slow]) as runner:
        got = [await runner.call("double", {"number": number}) for number in range(3)]
        heard_meanwhile = len(slow.events)
        slow.let_go()

    assert got == [heddle.Returned({"result": 2 * number}) for number in range(3)]
    assert heard_meanwhile <= 1
    assert [type(event) for event in slow.events] == [CallWaiting, CallStarted, CallFinished] * 3


async def test_a_listener_that_hangs_keeps_nobody_from_closing_for_longer_than_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = Stuck()

    with trio.fail_after(10):
        async with heddle.Runner([double], listeners=[hanging]) as runner:
            await runner.call("double", {"number": 2})
            assert await until(lambda: hanging.events, 5)
            began = trio.current_time()
    took = trio.current_time() - began
    hanging.let_go()
    ended = await until(lambda: not listening_threads(), 5)

    assert 1 <= took < 10
    assert warnings(caplog) == ["a listener is slow: 3 events were not heard when the runner was closed"]
    assert (ended, len(hanging.events)) == (True, 1)


async def test_what_has_happened_is_heard_though_the_runner_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A host that ends with a deadline would lose the last events, which are those that say why."""
    hanging = Stuck()

    with trio.CancelScope() as deadline:
        async with heddle.Runner([double], listeners=[hanging]) as runner:
            await runner.call("double", {"number": 2})
            assert await until(lambda: hanging.events, 5)
            deadline.cancel()
            began = trio.current_time()
    took = trio.current_time() - began
    hanging.let_go()

    assert took >= 1
    assert len(warnings(caplog)) == 1


async def test_a_flood_of_events_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Also while the listener gets on a little: the log must not be the next thing that is flooded."""
    slow = Stuck()
    calls = MOST_WAITING // 3 + 2

    async with heddle.Runner([double], listeners=[slow]) as runner:
        async with runner.scope() as scope:
            for number in range(calls):
                await scope.call("double", {"number": number})
            for _ in range(3):
                heard = len(slow.events)
                slow.let_go(1)
                assert await until(partial(slow.has_heard, heard + 1), 5)
                await scope.call("double", {"number": 0})
            said = warnings(caplog)
            slow.let_go()
            assert await until(partial(slow.has_heard, MOST_WAITING + 4), 10)
            await scope.call("double", {"number": 1})

    assert said == [f"a listener is slow: {MOST_WAITING} events wait for it, and others are dropped"]
    assert [type(event) for event in slow.events[-3:]] == [CallWaiting, CallStarted, CallFinished]
    assert warnings(caplog) == said


def listening_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "heddle-listeners"]


async def test_nothing_is_started_where_nobody_listens() -> None:
    async with heddle.Runner([double]) as runner:
        await runner.call("double", {"number": 2})
        meanwhile = listening_threads()

    assert meanwhile == []


async def test_a_listener_has_its_thread_while_the_runner_is_open() -> None:
    async with heddle.Runner([double], listeners=[Heard()]):
        meanwhile = listening_threads()

    assert (meanwhile, listening_threads()) == (["heddle-listeners"], [])


# Tracers


class Around(Heard):
    """A tracer that names the caller, gives variables, and says what it was told."""

    def __init__(self, name: str = "tracer", variables: Any = None, said: list[str] | None = None) -> None:
        super().__init__()
        self.name = name
        self.variables = {} if variables is None else variables
        self.said = [] if said is None else said

    @contextmanager
    def around(self, event: CallWaiting) -> Generator[Mapping[str, str], None, None]:
        self.said.append(f"{self.name} enters")
        token = CALLER.set(self.name)
        try:
            yield self.variables
        finally:
            CALLER.reset(token)
            self.said.append(f"{self.name} leaves")

    def on_event(self, event: CallEvent) -> None:
        super().on_event(event)
        self.said.append(f"{self.name} hears {type(event).__name__}")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_tracer_gives_reaches_the_environment_of_a_program(toolbox: Toolbox, kind: str) -> None:
    toolbox.sh("show", 'echo "{\\"trace\\": \\"$TRACE\\", \\"tool\\": \\"$HEDDLE_TOOL\\"}"')

    got = results(kind, toolbox.registry(), [Around(variables={"TRACE": "7"})], ("show",))

    assert got == [heddle.Returned({"trace": "7", "tool": "show"})]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_runs_inside_of_what_a_tracer_puts_around_it(kind: str) -> None:
    got = results(kind, [whoever_calls, whoever_awaits], [Around()], ("whoever_calls",), ("whoever_awaits",))

    assert got == [heddle.Returned({"result": "tracer"})] * 2
    assert CALLER.get() == "nobody"


async def test_a_tracer_hears_of_a_call_while_it_stands_around_it() -> None:
    """It knows the result when it ends a span, and needs no thread and no memory of calls that are over."""
    tracer = Around()

    async with heddle.Runner([double], listeners=[tracer]) as runner:
        await runner.call("double", {"number": 2})
        threads = listening_threads()

    assert isinstance(tracer, Tracer)
    assert threads == []
    assert tracer.said == [
        "tracer enters",
        "tracer hears CallWaiting",
        "tracer hears CallStarted",
        "tracer hears CallFinished",
        "tracer leaves",
    ]


async def test_tracers_stand_around_each_other(toolbox: Toolbox) -> None:
    toolbox.sh("show", 'echo "{\\"a\\": \\"$A\\", \\"b\\": \\"$B\\"}"')
    said: list[str] = []
    tracers = [Around("outer", {"A": "outer", "B": "outer"}, said), Around("inner", {"B": "inner"}, said)]

    async with heddle.Runner(toolbox.registry(), listeners=tracers) as runner:
        result = await runner.call("show")

    assert result == heddle.Returned({"a": "outer", "b": "inner"})
    assert [line for line in said if "hears" not in line] == [
        "outer enters",
        "inner enters",
        "inner leaves",
        "outer leaves",
    ]


class BrokenTracer(Around):
    """One that fails at one point."""

    def __init__(self, at: str) -> None:
        super().__init__(variables={"TRACE": "7"})
        self.at = at

    @contextmanager
    def around(self, event: CallWaiting) -> Generator[Mapping[str, str], None, None]:
        if self.at == "entering":
            raise ValueError(self.at)
        with super().around(event) as variables:
            yield variables
        if self.at == "leaving":
            raise ValueError(self.at)

    def on_event(self, event: CallEvent) -> None:
        if self.at == "hearing":
            raise ValueError(self.at)


@pytest.mark.parametrize(
    ("at", "messages"),
    [
        ("entering", ["a tracer failed before a call of shout"]),
        ("hearing", ["a tracer failed during a call of shout"] * 3),
        ("leaving", ["a tracer failed after a call of shout"]),
    ],
)
async def test_a_tracer_that_fails_is_logged_and_harms_nothing(
    toolbox: Toolbox, caplog: pytest.LogCaptureFixture, at: str, messages: list[str]
) -> None:
    other = Around("other")

    async with heddle.Runner(toolkit(toolbox), listeners=[BrokenTracer(at), other]) as runner:
        result = await runner.call("shout")

    assert result == heddle.Returned({"said": "A"})
    assert warnings(caplog) == messages
    assert (other.said[0], other.said[-1], CALLER.get()) == ("other enters", "other leaves", "nobody")


@pytest.mark.parametrize(
    "variables",
    [{"HEDDLE_TOOL": "x"}, {"": "x"}, {"A B": "x"}, {"A=": "x"}, {"1A": "x"}, {7: "x"}, {"A": 7}, {"A": "x\0y"}, 7],
    ids=str,
)
async def test_variables_that_a_program_cannot_have_are_refused_and_logged(
    toolbox: Toolbox, caplog: pytest.LogCaptureFixture, variables: object
) -> None:
    toolbox.sh("show", 'echo "{\\"tool\\": \\"$HEDDLE_TOOL\\", \\"fine\\": \\"$FINE\\"}"')
    tracer = Around(variables={"FINE": "x", **variables} if isinstance(variables, dict) else variables)

    async with heddle.Runner(toolbox.registry(), listeners=[tracer]) as runner:
        result = await runner.call("show")

    assert result == heddle.Returned({"tool": "show", "fine": ""})
    assert warnings(caplog) == ["a tracer failed before a call of show"]
    # What was entered is left, or the caller would be inside of it for ever.
    assert (tracer.said[0], tracer.said[-1], CALLER.get()) == ("tracer enters", "tracer leaves", "nobody")


# The log


def test_a_host_that_has_set_up_no_logging_reads_nothing_of_it(toolbox: Toolbox) -> None:
    toolbox.sh("fail", "exit 3")
    source = """
import heddle, sys
with heddle.blocking.Runner(heddle.discover_tools(sys.argv[1])) as runner:
    print(runner.call("fail").kind, runner.call("nosuch").kind)
"""

    done = subprocess.run([sys.executable, "-c", source, toolbox.folder], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("crashed unknown_tool\n", "")


async def test_the_log_says_how_a_call_went_and_nothing_of_what_it_was_about(
    toolbox: Toolbox, caplog: pytest.LogCaptureFixture
) -> None:
    toolbox.sh("fail", "cat >&2; echo told-on-stdout; echo told-on-stderr >&2; exit 3")
    toolbox.sh("work", "cat")
    caplog.set_level(logging.DEBUG, "heddle")

    async with heddle.Runner(toolbox.registry()) as runner:
        failed = await runner.call("fail", {"key": "given-to-it"}, operation_id="order-7")
        returned = await runner.call("work", {"key": "given-to-it"}, operation_id="order-8")

    def fields(result: heddle.ToolResult, **end: object) -> list[dict[str, object]]:
        of = {name: getattr(result.report, name) for name in ("tool", "operation_id", "attempt_id")}
        times = {name: getattr(result.report, name) for name in ("waited_s", "duration_s", "tier")}
        return [of, of | times | end]

    names = {"tool", "operation_id", "attempt_id", "outcome", "code", "waited_s", "duration_s", "tier"}
    records = [record for record in caplog.records if hasattr(record, "attempt_id")]
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("DEBUG", "call of fail: started"),
        ("INFO", "call of fail: crashed"),
        ("DEBUG", "call of work: started"),
        ("DEBUG", "call of work: returned"),
    ]
    assert [{name: value for name, value in vars(record).items() if name in names} for record in records] == [
        *fields(failed, outcome="crashed", code=None),
        *fields(returned, outcome="returned", code=None),
    ]
    everything = repr([vars(record) for record in caplog.records])
    assert [text for text in ("given-to-it", "told-on-stdout", "told-on-stderr") if text in everything] == []


async def test_a_name_that_a_model_has_made_up_stays_on_its_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "heddle")

    async with heddle.Runner([double]) as runner:
        await runner.call("x\nERROR all is lost" + "!" * 1000)

    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 200


# The page


PAGE = Path(__file__).parent.parent / "docs/how-to/observe.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_what_the_page_on_watching_shows_is_what_is_seen(toolbox: Toolbox, number: int) -> None:
    toolbox.add(
        "word_count",
        """
        #!/usr/bin/env python3
        import json, sys
        print(json.dumps({"words": len(json.load(sys.stdin)["text"].split())}))
        """,
    )
    (toolbox.folder / "word_count.tool.json").write_text('{"inputSchema": {"type": "object", "required": ["text"]}}')
    toolbox.sh("show_request", 'echo "{\\"id\\": \\"$REQUEST_ID\\"}"')
    source, shown = EXAMPLES[number]

    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=toolbox.folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )

    assert done.stdout == shown


def test_every_example_of_the_page_on_watching_shows_what_is_seen() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```python") == 5
