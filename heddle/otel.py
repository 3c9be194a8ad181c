"""Traces for OpenTelemetry: each call is a span, a child of its caller's, and the parent of what its tool records.

    import heddle, heddle.otel

    async def main():
        async with heddle.Runner(registry, listeners=[heddle.otel.Tracing()]) as runner:
            await runner.call("word_count", {"text": "a b"})

Needs OpenTelemetry's API and nothing else of it. Where spans go is the host's business: while it has set up no SDK,
none is recorded. Span and attributes have the names that OpenTelemetry's conventions for generative AI give to a tool's
execution; they are still in development there. What those do not know begins with ``heddle.``.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.events import CallFinished
from heddle.redaction import Redactor
from heddle.results import Failed, Returned

try:
    from opentelemetry import propagate, trace
except ImportError as _missing:
    raise ImportError(
        "heddle.otel needs OpenTelemetry's API: pip install 'heddle[otel]'", name=_missing.name
    ) from _missing

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from heddle.events import CallEvent, CallWaiting

__all__ = ["Tracing"]

# Source: "Execute tool span" of the semantic conventions for generative AI, and "error.type" of the general ones.
OPERATION = "gen_ai.operation.name"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
DESCRIPTION = "gen_ai.tool.description"
CALL_ID = "gen_ai.tool.call.id"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"

# A name that is no tool's comes from a model, and a code from a tool: either may be anything, of any length.
MOST_CHARS = 128


class Tracing:
    """A `heddle.events.Tracer` that makes a span of each call. Give one to ``Runner(listeners=[…])``.

    The span is current while the call runs, in the function that is called as well. A program finds it in its
    environment, in ``TRACEPARENT`` and whatever else the host's propagators write. It ends with the call, whatever
    becomes of that. Its status is an error where the call failed, with the `heddle.FailureKind`, or raised, with the
    name of the exception's class, ``Cancelled`` among those. Of what a tool has written it holds the code of a failure
    and, unless asked for more, nothing else.

    Any number of runners may share one.

    Args:
        tracer_provider: What makes spans; None takes the one that the host has set for all.
        arguments: Put into the span what a tool is called with, as JSON, what looks like a secret masked. The rest may
            be nobody's business.
        results: The same for what a tool returns.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        arguments: bool = False,
        results: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("heddle", tracer_provider=tracer_provider)
        self._arguments = arguments
        self._results = results
        self._spans: dict[str, trace.Span] = {}  # of the calls that run, by their attempt

    @contextmanager
    def around(self, event: CallWaiting) -> Generator[Mapping[str, str], None, None]:
        """Have a span of its own be the current one for the time of a call; give what says so to a program."""
        # A span's name is what many are counted by, so what a model has made up stays out of it.
        name = "execute_tool" if event.definition is None else f"execute_tool {event.tool}"
        span = self._tracer.start_span(name, attributes=_known(event))
        if self._arguments and span.is_recording():
            schema = None if event.definition is None else event.definition.input_schema
            _put_json(span, ARGUMENTS, {} if event.arguments is None else event.arguments, schema)
        self._spans[event.attempt_id] = span
        try:
            with trace.use_span(span, end_on_exit=True):
                yield _variables()
        finally:
            del self._spans[event.attempt_id]

    def on_event(self, event: CallEvent) -> None:
        """Note in its span how a call went."""
        span = self._spans.get(event.attempt_id)
        if span is None or not isinstance(event, CallFinished) or not span.is_recording():
            return
        result = event.result
        if result is not None:
            span.set_attributes(_reported(result))
        if isinstance(result, Returned):
            if self._results:
                _put_json(span, RESULT, result.data)
            return
        why = event.error if result is None else str(result.kind)
        span.set_attribute(ERROR_TYPE, why)
        span.set_status(trace.StatusCode.ERROR, why)


def _known(event: CallWaiting) -> dict[str, str]:
    """Return the attributes that a span has from its beginning, so that a sampler sees them."""
    known = {
        OPERATION: "execute_tool",
        TOOL: _shortened(event.tool),
        CALL_ID: event.operation_id,
        "heddle.attempt_id": event.attempt_id,
    }
    tool = event.definition
    if tool is not None:
        # The conventions' word for what the client runs, be it a function or a program.
        known[TOOL_TYPE] = "function"
        if tool.description:
            known[DESCRIPTION] = tool.description
    return known


def _reported(result: Returned | Failed) -> dict[str, str | int | float]:
    report = result.report
    reported: dict[str, str | int | float | None] = {
        "heddle.waited_s": report.waited_s,
        "heddle.duration_s": report.duration_s,
        "heddle.tier": report.tier,
        "heddle.exit_status": report.exit_status,
        "heddle.signal": report.signal,
    }
    if isinstance(result, Failed) and result.code is not None:
        reported["heddle.code"] = _shortened(result.code)
    return {name: value for name, value in reported.items() if value is not None}


def _put_json(span: trace.Span, name: str, value: object, schema: Mapping[str, object] | None = None) -> None:
    """Put a value into a span as JSON, with what looks like a secret masked, or is one by its schema; text as it is."""
    redactor = Redactor()
    try:
        known = strictjson.loads(value) if isinstance(value, str) else strictjson.normalized(value)
    except StrictJsonError:
        if isinstance(value, str):  # the call is refused for it, and its span shows why
            span.set_attribute(name, _sendable(redactor.text(value)))
        return
    masked = redactor.arguments(known, schema or {})
    text = value if isinstance(value, str) and masked == known else strictjson.dumps(masked).decode()
    span.set_attribute(name, _sendable(text))


def _shortened(text: str) -> str:
    return _sendable(text[:MOST_CHARS])


def _sendable(text: str) -> str:
    """Return `text` without what UTF-8 cannot say: one such character keeps a whole batch of spans from being sent."""
    return text.encode(errors="replace").decode()


def _variables() -> dict[str, str]:
    """Return what says to a program which span is the current one.

    Source: OpenTelemetry's "Environment Variables as Context Propagation Carriers".
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {re.sub(r"[^A-Z0-9_]", "_", name.upper()): value for name, value in carrier.items()}
