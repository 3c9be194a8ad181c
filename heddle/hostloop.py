"""An asyncio host's own loop: its asynchronous functions run there, and calls that only await one are walked there.

Every function has a task of its own, in the context of its call. Cancelled, it has `GRACE_SECONDS` to end; then nobody
waits for it any more, and it is left.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, TypeVarTuple

import attrs
import trio

from heddle.errors import RunnerClosed
from heddle.logs import logger
from heddle.loops import ENDED, Loop
from heddle.threads import NOT_ENDED

__all__ = ["GRACE_SECONDS", "AsyncioLoop", "HostLoop", "until"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# 2 s, as a program has when its time is up: to close a connection, not to finish the work.
GRACE_SECONDS = 2.0


class Across(Protocol):
    """Has work done in the runner's thread, and waits for it on the host's loop."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what comes of the work; cancelled, wait until it is cancelled."""
        ...


@attrs.define(eq=False)
class AsyncioLoop:
    """The host's loop, for calls that only await a function; see `heddle.loops.Loop`.

    Attributes:
        check: Refuses whoever may not call here.
        thread: The loop of the runner's thread, for what must not hold this one.
        across: The way there.
        is_over: Whether no new call may begin.
    """

    check: Callable[[], object]
    thread: Loop
    across: Across
    is_over: bool = False
    _calls: set[asyncio.Timeout] = attrs.field(factory=set[asyncio.Timeout])
    _idle: asyncio.Event = attrs.field(factory=asyncio.Event)

    def now(self) -> float:
        """Return the time of the clock that asyncio's own loops follow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        await asyncio.sleep(seconds)

    async def judge(self, step: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what a step returns, taken where large values of other calls are judged."""
        return await self.across(partial(self.thread.judge, step, *args))

    async def await_function(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        wall_seconds: float | None,
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what `function` returns, or `NOT_ENDED`. A deadline cancels it as a caller does who goes away."""
        ended = asyncio.Event()
        visit = _Visit(ended.set, math.inf if wall_seconds is None else self.now() + wall_seconds)
        try:
            async with asyncio.timeout(wall_seconds):
                visit.begin(function, arguments)
                await until(ended, visit.cancel, at_most=GRACE_SECONDS)
        except TimeoutError:
            return NOT_ENDED
        finally:
            if visit.is_running():
                on_left(visit.is_running)
        return visit.result()

    async def unless_over(self, work: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Return what a part of a call gives, unless the calls are ended meanwhile."""
        call = asyncio.timeout(None)  # without an end, until `end` gives it one
        try:
            async with call:
                self._calls.add(call)
                try:
                    return await work(*args)
                finally:
                    self._calls.discard(call)
                    if self.is_over and not self._calls:
                        self._idle.set()
        except TimeoutError:
            if not call.expired():
                raise
            raise RunnerClosed(ENDED) from None

    def end(self) -> None:
        """Let no new call begin, and cancel those in flight."""
        is_first, self.is_over = not self.is_over, True
        if is_first:
            for call in self._calls:
                call.reschedule(0)

    async def gone(self) -> None:
        """Wait until none is in flight. Cancelled, wait all the same, and raise then."""
        if self._calls:
            await until(self._idle, self.end)


@attrs.frozen
class HostLoop:
    """Awaits asynchronous functions on the host's own loop, for calls that are walked in the runner's thread."""

    loop: asyncio.AbstractEventLoop

    async def __call__(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what `function` returns; cancelled, have its task cancelled and wait a while for its end."""
        ended = trio.Event()
        visit = _Visit(partial(_tell, trio.lowlevel.current_trio_token(), ended))
        self.loop.call_soon_threadsafe(visit.begin, function, arguments, context=contextvars.copy_context())
        try:
            await ended.wait()
        finally:
            if not ended.is_set():
                with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE_SECONDS):
                    self._cancel(visit, ended)
                    await ended.wait()
                if not ended.is_set():
                    on_left(lambda: not ended.is_set())
        return visit.result()

    def _cancel(self, visit: _Visit, ended: trio.Event) -> None:
        try:
            self.loop.call_soon_threadsafe(visit.cancel)
        except RuntimeError:
            ended.set()  # the host's loop is closed, and has ended its tasks


def _tell(token: trio.lowlevel.TrioToken, ended: trio.Event) -> None:
    try:
        token.run_sync_soon(ended.set)
    except trio.RunFinishedError:
        logger.debug("a function ended after its runner")


@attrs.define(eq=False)
class _Visit:
    """One function on the host's loop.

    Attributes:
        tell: Called there when it has ended.
        deadline: When it is too late to begin it.
    """

    tell: Callable[[], object]
    deadline: float = math.inf
    task: asyncio.Task[None] | None = None
    is_over: bool = False
    value: object = None
    error: Exception | SystemExit | None = None

    def begin(self, function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any]) -> None:
        """Start it, in the context of whoever begins it."""
        self.task = asyncio.get_running_loop().create_task(self._run(function, arguments))
        self.task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Have it cancelled."""
        if self.task is not None:
            self.task.cancel()

    def is_running(self) -> bool:
        """Return whether it was begun and has not ended."""
        return self.task is not None and not self.task.done()

    def result(self) -> object:
        """Return what it returned, or raise what it raised."""
        if not self.is_over:
            raise RuntimeError("its task was cancelled by other code of the host")
        if self.error is not None:
            raise self.error
        return self.value

    async def _run(self, function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any]) -> None:
        if time.monotonic() > self.deadline:
            await asyncio.Event().wait()  # other code has held the loop: its time is up before it begins
        try:
            self.value = await function(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the call's, and would end the host's loop
            self.error = error
        self.is_over = True
        self.tell()  # a turn of the loop earlier than the task's own callbacks

    def _end(self, task: asyncio.Task[None]) -> None:
        if not self.is_over:
            if not task.cancelled():
                task.exception()  # what ends the host's loop too is heard of there
            self.tell()


async def until(ended: asyncio.Event, end: Callable[[], object], at_most: float = math.inf) -> None:
    """Wait until something has ended. Cancelled, have it ended, wait for that all the same, and raise then.

    Args:
        ended: What says that it has.
        end: Has it ended.
        at_most: The seconds after which nobody waits for that any more; `ended` is set then.
    """
    try:
        await ended.wait()
    except asyncio.CancelledError:
        end()
        giving_up = asyncio.get_running_loop().call_later(at_most, ended.set)
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                pass  # the first one is raised when it has ended
        giving_up.cancel()
        raise
