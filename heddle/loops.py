"""The loop in which the calls of a scope are walked: the port, and trio's side of it.

A call leaves its loop only for what the port gives it, so that the same walk can be made in another kind of loop.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, TypeVarTuple

import attrs
import trio

from heddle.errors import RunnerClosed
from heddle.threads import NOT_ENDED, Threads

__all__ = ["ENDED", "Elsewhere", "Loop", "TrioLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ENDED = "the runner or the scope was closed while this call ran; it was ended"


class Loop(Protocol):
    """The event loop in which calls of one scope are walked, and those of them that are in flight."""

    @property
    def is_over(self) -> bool:
        """Whether no new call may begin."""
        ...

    def check(self) -> object:
        """Refuse whoever is not in this loop, or comes when its runner is closed.

        Raises:
            RunnerClosed: The runner is not open.
            WrongProcess: This is a child of the process that opened it.
            WrongLoop: This is another loop.
        """
        ...

    def now(self) -> float:
        """Return the loop's time, in seconds from whenever."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        ...

    async def judge(self, step: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what a step of judging arguments or output returns, without holding the loop."""
        ...

    async def await_function(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        wall_seconds: float | None,
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what an asynchronous function returns, or `NOT_ENDED`; what it raises comes through.

        `on_left` is called when it was cancelled and goes on all the same, with what says whether it still does.
        """
        ...

    async def unless_over(self, work: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Return what a part of a call gives.

        Raises:
            RunnerClosed: The calls were ended meanwhile, and this one with them.
        """
        ...

    def end(self) -> None:
        """Let no new call begin, and end those in flight."""
        ...

    async def gone(self) -> None:
        """Wait until none is in flight; that they end was asked for before."""
        ...


class Elsewhere(Protocol):
    """Awaits asynchronous functions where they belong, which is not this loop: those of an asyncio host."""

    async def __call__(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what `function` returns; cancelled, do what `Loop.await_function` says."""
        ...


@attrs.define(eq=False)
class TrioLoop:
    """The trio loop that opened a runner; see `Loop`."""

    check: Callable[[], object]
    threads: Threads
    elsewhere: Elsewhere | None
    is_over: bool = False
    _calls: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope])
    _idle: trio.Event = attrs.field(factory=trio.Event)

    def now(self) -> float:
        """Return trio's time, which tests may control."""
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        await trio.sleep(seconds)

    async def judge(self, step: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what a step returns, taken in a thread."""
        return await self.threads.judge(step, *args)

    async def await_function(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        wall_seconds: float | None,
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what `function` returns, awaited in this loop or where it belongs, or `NOT_ENDED`."""
        with trio.move_on_after(math.inf if wall_seconds is None else wall_seconds):
            if self.elsewhere is None:
                return await function(**arguments)
            return await self.elsewhere(function, arguments, on_left)
        return NOT_ENDED

    async def unless_over(self, work: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Return what a part of a call gives, unless the calls are ended meanwhile."""
        with trio.CancelScope() as cancelling:
            self._calls.add(cancelling)
            try:
                return await work(*args)
            finally:
                self._calls.discard(cancelling)
                if self.is_over and not self._calls:
                    self._idle.set()
        raise RunnerClosed(ENDED)

    def end(self) -> None:
        """Let no new call begin, and cancel those in flight."""
        self.is_over = True
        for cancelling in self._calls:
            cancelling.cancel()

    async def gone(self) -> None:
        """Wait until none is in flight, whoever is cancelled meanwhile."""
        if self._calls:
            with trio.CancelScope(shield=True):
                await self._idle.wait()
