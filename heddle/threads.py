"""Work in threads: heddle's own short pieces, and tools' synchronous functions, never waited for beyond their time.

A thread cannot be ended from outside. One whose time is up is left to itself and counted; beyond `MOST_LEFT` of those
no other is started, so that a tool that hangs cannot fill the host with threads.
"""

from __future__ import annotations

import enum
import math
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar, TypeVarTuple

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["MOST_LEFT", "NOT_ENDED", "NO_THREAD", "NotRun", "Threads", "in_thread", "unless_cancelled"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# 16: each costs its stack and whatever it holds; a host that sees as many has a tool to mend.
MOST_LEFT = 16
# 4: judging is work for the interpreter, and more threads than that only take turns.
MOST_JUDGES = 4
# 20 ms: nobody notices that a cancelled copy goes on for so long.
ASK_SECONDS = 0.02


async def in_thread(function: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter | None = None) -> T:
    """Return what a piece of our own work returns that must not wait for anybody's threads.

    Where the system gives no thread it is done in place: to hold the loop is better than to leave it undone.

    Args:
        function: The work.
        args: What it takes.
        limiter: How much of its kind is done at once; None means that it does not wait.
    """
    try:
        return await trio.to_thread.run_sync(function, *args, limiter=limiter or trio.CapacityLimiter(1))
    except RuntimeError as error:
        if "new thread" not in str(error):  # the words differ from one Python to the next
            raise
        return function(*args)


def unless_cancelled() -> Callable[[], None]:
    """Return what a piece of our own work calls again and again, and what raises when nobody waits for it any more.

    Asking takes a turn of the loop, so it is done only now and then.
    """
    ask_at = 0.0

    def pause() -> None:
        nonlocal ask_at
        now = time.monotonic()
        if now >= ask_at:
            ask_at = now + ASK_SECONDS
            try:
                trio.from_thread.check_cancelled()
            except RuntimeError:
                pass  # it is done in place

    return pause


class NotRun(enum.Enum):
    """Why a function gave no value."""

    NO_THREAD = "too many that were left are still running"
    NOT_ENDED = "its time is up, and it is still running"


NO_THREAD: Final = NotRun.NO_THREAD
NOT_ENDED: Final = NotRun.NOT_ENDED


class Threads:
    """Runs functions in threads, at most `most` at once."""

    def __init__(self, most: int) -> None:
        self._free = trio.Semaphore(most)
        self._unlimited = trio.CapacityLimiter(math.inf)
        self._judges = trio.CapacityLimiter(MOST_JUDGES)
        self._lock = threading.Lock()
        self._left = 0

    @property
    def left(self) -> int:
        """How many are running though their time is up."""
        return self._left

    async def judge(self, step: Callable[[*Ts], T], *args: *Ts) -> T:
        """Return what a step of judging arguments or output returns, without holding the loop."""
        return await trio.to_thread.run_sync(step, *args, limiter=self._judges)

    async def run(
        self,
        function: Callable[[], T],
        wall_seconds: float | None,
        on_start: Callable[[], Awaitable[None]],
        on_left: Callable[[Callable[[], bool]], None],
    ) -> T | NotRun:
        """Return what `function` returns, or that it gave no value; what it raises comes through.

        Cancelled, it returns at once and leaves the function running, counted like one whose time is up.

        Args:
            function: Called in a thread, in the caller's context.
            wall_seconds: Counted from the moment at which there is a thread; None means no end.
            on_start: Awaited at that moment, before the time begins.
            on_left: Called when the function is left running, with what says whether it still does.
        """
        if self._left >= MOST_LEFT:
            return NO_THREAD
        async with self._free:
            await on_start()
            run = _Run(function, self)
            try:
                with trio.move_on_after(wall_seconds or math.inf):
                    return await trio.to_thread.run_sync(run.run, abandon_on_cancel=True, limiter=self._unlimited)
                return NOT_ENDED
            finally:
                run.leave()
                if run.was_left:
                    on_left(run.is_running)

    def _count(self, run: _Run[T], *, ended: bool) -> None:
        with self._lock:
            if ended:
                run.ended = True
                self._left -= run.was_left
            elif not run.ended:
                run.was_left = True
                self._left += 1


class _Run(Generic[T]):
    def __init__(self, function: Callable[[], T], threads: Threads) -> None:
        self.function = function
        self.threads = threads
        self.ended = False
        self.was_left = False

    def run(self) -> T:
        try:
            return self.function()
        finally:
            self.threads._count(self, ended=True)  # noqa: SLF001 - one room

    def is_running(self) -> bool:
        """Return whether the function has not ended yet."""
        return not self.ended

    def leave(self) -> None:
        """Note that nobody waits any more; no harm if it has ended."""
        self.threads._count(self, ended=False)  # noqa: SLF001
