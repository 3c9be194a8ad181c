"""How events reach listeners: from a thread of its own, so that no listener holds up a call. Tracers hear in line."""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import trio

from heddle.events import CallEvent, CallFinished, CallStarted, CallWaiting, Tracer
from heddle.logs import logger
from heddle.results import Returned
from heddle.threads import in_thread
from heddle.tools.definition import ENVIRONMENT_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from heddle.events import Listener
    from heddle.results import ToolResult
    from heddle.tools.definition import ToolDef

__all__ = ["Listening", "News"]

# 10,000 events are a few megabytes, and more than a listener that will ever catch up falls behind.
MOST_WAITING = 10_000
# 1 s: a listener that writes to a disk has done so; one that hangs does not hold up the host.
CLOSE_SECONDS = 1.0
# An unknown name comes from a model and may be anything; this much of it is in a line of the log.
SHOWN_CHARS = 60


class Listening:
    """The listeners of one runner, while it is open."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        every = tuple(listeners)
        self._listeners = [each for each in every if not isinstance(each, Tracer)]
        self._tracers = [each for each in every if isinstance(each, Tracer)]
        self._events: queue.SimpleQueue[tuple[contextvars.Context, CallEvent] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._misses = False
        self._is_over = False

    @property
    def wants_news(self) -> bool:
        """Whether anybody hears of calls."""
        return bool(self._listeners or self._tracers) or logger.isEnabledFor(logging.INFO)

    def open(self) -> None:
        """Start the thread in which listeners are called."""
        if self._listeners:
            self._thread = threading.Thread(target=self._deliver, name="heddle-listeners", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Let listeners hear the rest, for a moment."""
        thread = self._thread
        if thread is None:
            return
        self._events.put(None)
        with trio.CancelScope(shield=True):
            await in_thread(thread.join, CLOSE_SECONDS)
        if thread.is_alive():
            self._is_over = True
            logger.warning(
                "a listener is slow: %d events were not heard when the runner was closed", self._events.qsize()
            )

    def tell(self, event: CallEvent) -> None:
        """Have tracers hear of `event` now, and listeners later, all in the current context."""
        for tracer in self._tracers:
            try:
                tracer.on_event(event)
            except Exception:
                logger.exception("a tracer failed during a call of %s", _shown(event.tool))
        if self._thread is None:
            return
        waiting = self._events.qsize()
        # One that gets on a little is still slow; that is said once.
        self._misses = self._misses and waiting > MOST_WAITING // 2
        if waiting < MOST_WAITING:
            self._events.put((contextvars.copy_context(), event))
        elif not self._misses:
            self._misses = True
            logger.warning("a listener is slow: %d events wait for it, and others are dropped", MOST_WAITING)

    def surround(self, event: CallWaiting) -> tuple[list[AbstractContextManager[Any]], dict[str, str]]:
        """Enter what tracers put around a call; return that, and the variables that they give its program."""
        entered: list[AbstractContextManager[Any]] = []
        variables: dict[str, str] = {}
        for tracer in self._tracers:
            try:
                manager = tracer.around(event)
                given = manager.__enter__()
                entered.append(manager)
                variables |= _variables(given)
            except Exception:
                logger.exception("a tracer failed before a call of %s", _shown(event.tool))
        return entered, variables

    def _deliver(self) -> None:
        while (item := self._events.get()) is not None and not self._is_over:
            context, event = item
            for listener in self._listeners:
                try:
                    context.run(listener.on_event, event)
                except BaseException:  # the thread is not the listener's to end
                    logger.exception("a listener failed: %r", event)


class News:
    """What is said of one call: entered when it is made, left when it is over.

    Attributes:
        result: What the call gave; set it before leaving.
        variables: What tracers give the environment of its program.
    """

    def __init__(
        self,
        listening: Listening,
        definition: ToolDef | None,
        arguments: Mapping[str, object] | str | None,
        *,
        name: str,
        operation_id: str,
        attempt_id: str,
    ) -> None:
        self.result: ToolResult | None = None
        self.variables: dict[str, str] = {}
        self._listening = listening
        self._began = time.monotonic()
        self._entered: list[AbstractContextManager[Any]] = []
        self._of: dict[str, Any] = {"tool": name, "operation_id": operation_id, "attempt_id": attempt_id}
        self._waiting = CallWaiting(definition=definition, arguments=arguments, **self._of)

    def __enter__(self) -> Self:
        self._entered, self.variables = self._listening.surround(self._waiting)
        self._listening.tell(self._waiting)
        return self

    def started(self) -> None:
        """Say that the tool is being started."""
        self._listening.tell(CallStarted(waited_s=time.monotonic() - self._began, **self._of))
        logger.debug("call of %s: started", _shown(self._of["tool"]), extra=self._of)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raised = "" if kind is None else kind.__name__
        if raised == "CancelledError":  # what asyncio calls it
            raised = "Cancelled"
        result = None if raised else self.result
        self._listening.tell(CallFinished(result=result, error=raised, **self._of))
        for manager in reversed(self._entered):
            try:
                manager.__exit__(None, None, None)
            except Exception:
                logger.exception("a tracer failed after a call of %s", _shown(self._of["tool"]))
        _log(self._of, result, raised)


def _log(of: dict[str, Any], result: ToolResult | None, raised: str) -> None:
    """Say in the log how a call went; one that went well is worth a line only to those who look closely."""
    if isinstance(result, Returned):
        level, outcome, code = logging.DEBUG, "returned", None
    elif result is not None:
        level, outcome, code = logging.INFO, str(result.kind), result.code
    else:
        level, outcome, code = logging.INFO, "raised", raised
    extra = {**of, "outcome": outcome, "code": code}
    if result is not None:
        report = result.report
        extra |= {"waited_s": report.waited_s, "duration_s": report.duration_s, "tier": report.tier}
    said = outcome if code is None else f"{outcome} ({_shown(code)})"
    logger.log(level, "call of %s: %s", _shown(of["tool"]), said, extra=extra)


def _shown(name: str) -> str:
    """Return what a line of the log shows of a name; it cannot begin another line."""
    text = name if len(name) <= SHOWN_CHARS else name[:SHOWN_CHARS] + "…"
    return text if text.isprintable() else repr(text)


def _variables(given: object) -> dict[str, str]:
    """Return what a tracer gives as variables, or raise.

    Raises:
        TypeError: It is no mapping of names to texts, or takes a name of heddle's own.
    """
    variables: dict[Any, Any] = dict(given)  # type: ignore[call-overload]
    for name, value in variables.items():
        if not ENVIRONMENT_NAME.fullmatch(name) or name.startswith("HEDDLE_") or b"\0" in os.fsencode(value):
            raise TypeError(f"a tracer cannot give the variable {name!r}")
    return variables
