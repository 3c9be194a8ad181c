"""What a host may hear of its calls: three records, and the ports through which they reach it.

Progress, metrics and traces stand on this. Whoever listens hears of a call and has no part in it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import attrs

from heddle.results import ToolResult
from heddle.tools.definition import ToolDef

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["CallEvent", "CallFinished", "CallStarted", "CallWaiting", "Listener", "Tracer"]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@attrs.frozen(kw_only=True)
class CallWaiting:
    """A call was made. Its arguments are not checked yet, and it may have to wait for its turn.

    Attributes:
        tool: The name that was called; there need not be such a tool.
        definition: The tool, where there is one that may be called.
        arguments: As they were given. They may hold what is nobody's business.
        operation_id: The intended effect; the same when a call is tried again.
        attempt_id: This try; the same in all events of one call.
        at: When, with a time zone.
    """

    tool: str
    definition: ToolDef | None = attrs.field(repr=False)
    arguments: Mapping[str, object] | str | None = attrs.field(repr=False, hash=False)
    operation_id: str
    attempt_id: str
    at: datetime.datetime = attrs.field(factory=_now)


@attrs.frozen(kw_only=True)
class CallStarted:
    """The call has had its turn, and its tool is being started. A call that is refused before that never says so.

    Attributes:
        waited_s: Seconds since the call was made.
    """

    tool: str
    operation_id: str
    attempt_id: str
    waited_s: float
    at: datetime.datetime = attrs.field(factory=_now)


@attrs.frozen(kw_only=True)
class CallFinished:
    """The call is over, and everything that it started is gone.

    Attributes:
        result: What it gave; None when it gave nothing, because it was cancelled or raised.
        error: Then the name of the exception's class: ``Cancelled``, ``RunnerClosed``; empty otherwise.
    """

    tool: str
    operation_id: str
    attempt_id: str
    result: ToolResult | None = attrs.field(repr=False)
    error: str = ""
    at: datetime.datetime = attrs.field(factory=_now)


CallEvent: TypeAlias = CallWaiting | CallStarted | CallFinished


class Listener(Protocol):
    """Hears of calls. Give yours to ``Runner(listeners=[…])``."""

    def on_event(self, event: CallEvent) -> None:
        """Take one event. Use ``match`` on its class.

        Events come one after another, those of one call in their order, in a thread of the runner's own and in the
        context of the call. No call waits for it: one that is slow falls behind, and beyond 10,000 events misses
        some, which is logged. What it raises is logged. When a runner is closed, a second is given to hear the rest.
        """
        ...


@runtime_checkable
class Tracer(Listener, Protocol):
    """A listener that also stands around each call, in the caller's own context: for spans.

    A call waits for both of its methods, so they must not wait for anything. What they raise is logged.
    """

    def around(self, event: CallWaiting) -> AbstractContextManager[Mapping[str, str]]:
        """Return what is entered before the call and left after it.

        What entering gives is added to the environment of the call's program. `on_event` hears of the call in between,
        all of it and in line; of its result last of all.
        """
        ...
