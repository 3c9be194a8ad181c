"""OpenTelemetry's spans: one for each call, in the trace of its caller, and none that does not end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

import heddle
import heddle.otel
from tests.support import Toolbox, until, wait_until
from tests.test_listeners import KINDS, Stuck, close_during_a_call, results


class Traces:
    """A provider of an SDK that keeps the spans that have ended."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the host's own")

    def ended(self) -> list[ReadableSpan]:
        """Return the spans that have ended, in that order."""
        return [*self._exporter.get_finished_spans()]

    def only(self) -> ReadableSpan:
        (span,) = self.ended()
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    made.provider.shutdown()


def ids(span: ReadableSpan | trace.Span) -> tuple[int, int]:
    """Return the ids of a span's trace and of itself."""
    at = span.get_span_context()
    assert at is not None
    return at.trace_id, at.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def as_header(span: ReadableSpan) -> str:
    at = span.get_span_context()
    assert at is not None
    assert at.trace_flags.sampled
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


SHOW = """
echo "{\\"parent\\": \\"$TRACEPARENT\\", \\"state\\": \\"$TRACESTATE\\", \\"baggage\\": \\"$BAGGAGE\\"}"
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_is_in_the_trace_of_its_caller(toolbox: Toolbox, traces: Traces, kind: str) -> None:
    toolbox.sh("show", SHOW)

    with traces.tracer.start_as_current_span("request"):
        (result,) = results(kind, toolbox.registry(), [heddle.otel.Tracing(traces.provider)], ("show",))

    call, request = traces.ended()
    assert (call.name, call.kind, request.name) == ("execute_tool show", SpanKind.INTERNAL, "request")
    assert (parent(call), parent(request)) == (ids(request), None)
    assert result == heddle.Returned({"parent": as_header(call), "state": "", "baggage": ""})


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_python_tool_records_is_below_its_call(traces: Traces, kind: str) -> None:
    @heddle.tool
    def look_up() -> None:
        traces.tracer.start_span("in a thread").end()

    @heddle.tool
    async def fetch() -> None:
        traces.tracer.start_span("in a task").end()

    results(kind, [look_up, fetch], [heddle.otel.Tracing(traces.provider)], ("look_up",), ("fetch",))

    below_look_up, look_up_call, below_fetch, fetch_call = traces.ended()
    assert (below_look_up.name, parent(below_look_up)) == ("in a thread", ids(look_up_call))
    assert (below_fetch.name, parent(below_fetch)) == ("in a task", ids(fetch_call))
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_calls_that_run_at_once_do_not_meet(toolbox: Toolbox, traces: Traces) -> None:
    toolbox.sh("show", SHOW)
    got: list[heddle.ToolResult] = []

    async def ask(runner: heddle.Runner, name: str) -> None:
        with traces.tracer.start_as_current_span(name):
            got.append(await runner.call("show", {"asked": name}, operation_id=name))

    async with heddle.Runner(toolbox.registry(), listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(ask, runner, f"request {number}")

    requests = {ids(span): span.name for span in traces.ended() if parent(span) is None}
    calls = {call_id(span): span for span in traces.ended() if parent(span) is not None}
    assert {requests[parent(call) or (0, 0)]: name for name, call in calls.items()} == {
        f"request {number}": f"request {number}" for number in range(5)
    }
    assert {result.report.operation_id: parent_seen_by(result) for result in got} == {
        name: as_header(call) for name, call in calls.items()
    }


def call_id(span: ReadableSpan) -> object:
    return (span.attributes or {})["gen_ai.tool.call.id"]


def parent_seen_by(result: heddle.ToolResult) -> object:
    data = result.unwrap()
    return data["parent"] if isinstance(data, dict) else None


async def test_state_and_baggage_reach_a_program(toolbox: Toolbox, traces: Traces) -> None:
    toolbox.sh("show", SHOW)
    came_from = trace.SpanContext(
        7, 8, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=trace.TraceState([("vendor", "a1")])
    )
    around = trace.set_span_in_context(trace.NonRecordingSpan(came_from), baggage.set_baggage("tenant", "looms"))
    token = context.attach(around)

    async with heddle.Runner(toolbox.registry(), listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        result = await runner.call("show")
    context.detach(token)

    assert ids(traces.only())[0] == 7
    assert result == heddle.Returned(
        {"parent": as_header(traces.only()), "state": "vendor=a1", "baggage": "tenant=looms"}
    )


# What is in a span


async def test_a_span_says_what_was_called_and_how_it_went(toolbox: Toolbox, traces: Traces) -> None:
    toolbox.sh("count", "cat >/dev/null; echo '{\"count\": 2}'")
    (toolbox.folder / "count.tool.json").write_text('{"description": "Counts words"}')

    async with heddle.Runner(toolbox.registry(), listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        result = await runner.call("count", {"text": "a b"}, operation_id="call_7")

    span, report = traces.only(), result.report
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.UNSET, None, ())
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "count",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Counts words",
        "gen_ai.tool.call.id": "call_7",
        "heddle.attempt_id": report.attempt_id,
        "heddle.waited_s": report.waited_s,
        "heddle.duration_s": report.duration_s,
        "heddle.tier": "none",
        "heddle.exit_status": 0,
    }


async def test_a_call_that_failed_is_an_error_that_holds_nothing_of_what_the_tool_wrote(
    toolbox: Toolbox, traces: Traces
) -> None:
    toolbox.sh("fail", "cat >&2; echo told-on-stdout; echo told-on-stderr >&2; kill -KILL $$")

    async with heddle.Runner(toolbox.registry(), listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        result = await runner.call("fail", {"key": "given-to-it"})

    span = traces.only()
    everything = span.to_json()
    assert "told-on-stderr" in result.report.stderr_tail
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "crashed")
    assert span.attributes is not None
    assert {name: span.attributes.get(name) for name in ("error.type", "heddle.signal", "heddle.code")} == {
        "error.type": "crashed",
        "heddle.signal": "SIGKILL",
        "heddle.code": "SIGKILL",
    }
    assert [text for text in ("told-on-stdout", "told-on-stderr", "given-to-it") if text in everything] == []


async def test_a_failure_that_a_tool_reports_has_its_code_and_not_its_message(traces: Traces) -> None:
    @heddle.tool
    def pay(amount: int) -> None:
        raise heddle.ToolError("declined" * 100, f"{amount} is too much for card 4111")

    async with heddle.Runner([pay], listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        await runner.call("pay", {"amount": 7})

    span = traces.only()
    assert span.attributes is not None
    assert (span.status.description, span.attributes["error.type"]) == ("tool_error", "tool_error")
    assert span.attributes["heddle.code"] == ("declined" * 100)[:128]
    assert "4111" not in span.to_json()


async def test_a_name_that_a_model_has_made_up_is_in_no_spans_name(traces: Traces) -> None:
    """What counts spans by their names would be filled by it; and text that is no UTF-8 would not be sent."""

    @heddle.tool
    def pay() -> None:
        pass

    async with heddle.Runner([pay], listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        await runner.call("rm \ud800" + "!" * 1000)
        async with runner.scope(tools=[]) as scope:
            await scope.call("pay")

    made_up, denied = traces.ended()
    assert [(span.name, span.status.description) for span in (made_up, denied)] == [
        ("execute_tool", "unknown_tool"),
        ("execute_tool", "denied"),
    ]
    assert (made_up.attributes or {})["gen_ai.tool.name"] == "rm ?" + "!" * 124
    assert "gen_ai.tool.type" not in (made_up.attributes or {})


CONTENT = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ({"text": "ä"}, '{"text":"ä"}'),
        ('{"text": "ä"}', '{"text": "ä"}'),
        (None, "{}"),
        ("\ud800", "?"),
        ({"text": float("nan")}, None),
        ({"text": object()}, None),
    ],
    ids=["a mapping", "text", "nothing", "text that is no UTF-8", "no JSON", "nothing that JSON knows"],
)
async def test_arguments_and_results_are_recorded_for_those_who_ask(
    traces: Traces, arguments: Any, recorded: str | None
) -> None:
    @heddle.tool
    def echo(text: str = "") -> str:
        return text

    tracing = heddle.otel.Tracing(traces.provider, arguments=True, results=True)
    async with heddle.Runner([echo], listeners=[tracing]) as runner:
        result = await runner.call("echo", arguments)

    known = traces.only().attributes or {}
    returned = '{"result":"%s"}' % ("ä" if arguments else "") if result.ok else None
    assert [known.get(name) for name in CONTENT] == [recorded, returned]


async def test_what_is_secret_in_arguments_and_results_is_masked_in_a_span(traces: Traces) -> None:
    @heddle.tool
    async def log_in(user: str, password: str) -> dict[str, str]:
        """Log in."""
        return {"session": user, "api_key": password}

    tracing = heddle.otel.Tracing(traces.provider, arguments=True, results=True)
    async with heddle.Runner([log_in], listeners=[tracing]) as runner:
        await runner.call("log_in", {"user": "ada", "password": "hunter2!"})

    known = traces.only().attributes or {}
    assert [known.get(name) for name in CONTENT] == [
        '{"user":"ada","password":"[REDACTED]"}',
        '{"session":"ada","api_key":"[REDACTED]"}',
    ]


async def test_a_call_that_is_not_sampled_says_so_to_its_program(toolbox: Toolbox) -> None:
    toolbox.sh("show", SHOW)
    unsampled = Traces(ALWAYS_OFF)

    tracing = heddle.otel.Tracing(unsampled.provider, arguments=True, results=True)
    async with heddle.Runner(toolbox.registry(), listeners=[tracing]) as runner:
        result = await runner.call("show")

    *_, flags = str(parent_seen_by(result)).split("-")
    assert trace.TraceFlags(int(flags, 16)).sampled is False
    assert unsampled.ended() == []


async def test_a_host_without_an_sdk_records_nothing(toolbox: Toolbox) -> None:
    toolbox.sh("show", SHOW)

    async with heddle.Runner(toolbox.registry(), listeners=[heddle.otel.Tracing()]) as runner:
        result = await runner.call("show")

    assert result == heddle.Returned({"parent": "", "state": "", "baggage": ""})


# Every span ends


@pytest.mark.parametrize("kind", KINDS)
def test_a_span_ends_when_the_runner_is_closed(toolbox: Toolbox, traces: Traces, kind: str) -> None:
    toolbox.sh("wait", "exec sleep {long}")

    close_during_a_call(kind, toolbox.registry(), heddle.otel.Tracing(traces.provider))

    assert the_error_of(traces.only()) == "RunnerClosed"


def the_error_of(span: ReadableSpan) -> object:
    """Return why a call failed, which its span says twice."""
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == (span.attributes or {})["error.type"]
    return span.status.description


async def test_a_span_ends_with_a_call_that_is_cancelled(toolbox: Toolbox, traces: Traces) -> None:
    toolbox.sh("wait", "trap 'sleep 0.1; exit' TERM; touch started; sleep {long} & wait")
    tracing = heddle.otel.Tracing(traces.provider)

    async with heddle.Runner(toolbox.registry(), listeners=[tracing]) as runner:
        async with runner.scope() as scope, trio.open_nursery() as nursery:
            nursery.start_soon(scope.call, "wait")
            assert await until((scope.workspace.path / "started").exists, 5)
            before = traces.ended()
            with traces.tracer.start_as_current_span("cancelling"):
                nursery.cancel_scope.cancel()
        after = traces.ended()

    assert before == []
    cancelling, call = after
    assert the_error_of(call) == "Cancelled"
    # It holds the time that ending the tool has taken.
    assert (call.end_time or 0) > (cancelling.end_time or 0)


def test_a_span_ends_with_a_task_of_asyncio_that_is_cancelled(toolbox: Toolbox, traces: Traces) -> None:
    toolbox.sh("wait", "touch started; exec sleep {long}")

    async def main() -> None:
        tracing = heddle.otel.Tracing(traces.provider)
        async with heddle.aio.Runner(toolbox.registry(), listeners=[tracing]) as runner, runner.scope() as scope:
            task = asyncio.create_task(scope.call("wait"))
            await asyncio.to_thread(wait_until, (scope.workspace.path / "started").exists, 5)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())

    assert the_error_of(traces.only()) == "Cancelled"


async def test_a_span_ends_with_a_call_that_raises(traces: Traces) -> None:
    @heddle.tool
    def pay() -> None:
        pass

    async with heddle.Runner([pay], listeners=[heddle.otel.Tracing(traces.provider)]) as runner:
        with pytest.raises(heddle.DefinitionError):
            await runner.call("pay", cwd="src")

    assert the_error_of(traces.only()) == "DefinitionError"
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_spans_do_not_wait_for_other_listeners(traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    """One that hangs, or that was told more than it can take, would keep them open for ever."""

    @heddle.tool
    async def pay() -> None:
        pass

    hanging = Stuck()
    async with heddle.Runner([pay], listeners=[hanging, heddle.otel.Tracing(traces.provider)]) as runner:
        await runner.call("pay")
        ended = traces.ended()
        hanging.let_go()

    assert [span.name for span in ended] == ["execute_tool pay"]
    assert (ended[0].attributes or {})["heddle.tier"] == "in_process"


# The extra


def test_without_the_extra_it_says_what_to_install() -> None:
    source = """
import sys
sys.modules["opentelemetry"] = None
import heddle
heddle.Runner
try:
    import heddle.otel
except ImportError as error:
    print(error)
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout == "heddle.otel needs OpenTelemetry's API: pip install 'heddle[otel]'\n"


def test_no_sdk_is_imported() -> None:
    source = "import heddle.otel, sys; heddle.otel.Tracing(); print('opentelemetry.sdk' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
