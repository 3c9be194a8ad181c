"""Evaluates expressions in processes that stay warm for as long as its block is open, under trio."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from heddle import strictjson
from heddle.errors import RunnerClosed, WrongProcess
from heddle.expressions.children import END_SECONDS, IDLE_SECONDS, START_SECONDS, Child, Ended, Talk
from heddle.expressions.messages import failure_of, late, unstarted
from heddle.expressions.values import ExpressionLimits
from heddle.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from heddle.expressions.expression import Expression
    from heddle.strictjson import JSON

__all__ = ["Evaluator"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Longer ones are taken apart in a thread: it takes milliseconds.
LONG_ANSWER = 16_384
# 1 ms: what the kernel needs to end a process.
LOOK_SECONDS = 0.001


class Evaluator:
    """Evaluates expressions. Use it as ``async with Evaluator() as evaluator:``.

    Each evaluation has a process to itself, which serves the next one when it has kept within its limits, and is ended
    when it has not. When the block is left none is alive. Any number of tasks may use it, in the process that opened
    it.

    Args:
        limits: What one evaluation may use.
        max_children: Evaluations at once; further ones wait. A process is started when it is needed.
        idle_seconds: A process to which nobody comes for so long ends.
    """

    def __init__(
        self,
        *,
        limits: ExpressionLimits = ExpressionLimits(),  # noqa: B008 - it is frozen
        max_children: int = 2,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        if max_children < 1:
            raise ValueError(f"max_children must be 1 or more, not {max_children!r}")
        self._limits = limits
        self._idle_seconds = idle_seconds
        self._free = trio.Semaphore(max_children)
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        self._opened_in: int | None = None
        self._open = False

    async def __aenter__(self) -> Self:
        self._opened_in = os.getpid()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._opened_in != os.getpid():
            return  # in a fork nothing of it is ours
        for child in self._children:
            child.kill()
        while self._idle:
            await self._end(self._idle.pop())
        # The others belong to tasks that are about to notice. A descriptor is closed by the task that waits for it.
        with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS):
            while self._children:  # noqa: ASYNC110 - as in `_end`
                await trio.sleep(LOOK_SECONDS)

    async def evaluate(self, expression: Expression, names: Mapping[str, JSON]) -> JSON:
        """Return the value of `expression` with a value for each of `names`.

        Cancelled, it ends the process and returns when that is gone.

        Raises:
            ExpressionFailed: It has none.
            RunnerClosed: The evaluator is not open, or was closed in the meantime.
        """
        self._check_open()
        request = await _aside(strictjson.is_large(names), expression.request, names, self._limits)
        async with self._free:
            answer = await self._answer(request)
        return await _aside(len(answer) > LONG_ANSWER, expression.value, answer)

    async def _answer(self, request: bytes) -> bytes:
        while True:
            self._check_open()
            child = self._taken() or await self._started()
            try:
                with trio.fail_after(self._limits.wall_seconds):
                    answer = await _driven(child.exchange(request, self._limits))
            except Ended:
                status = await self._end(child)
                if status == 0:  # it had waited for long enough
                    continue
                self._check_open()
                raise failure_of(status, self._limits) from None
            except trio.TooSlowError:
                await self._end(child)
                raise late(self._limits) from None
            except BaseException:
                await self._end(child)
                raise
            if self._open:
                self._idle.append(child)
            else:  # closed while the answer was on its way
                await self._end(child)
            return answer

    def _taken(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()  # the last one that was used: the others may grow old
            if child.status() is None:
                return child
            self._forget(child)
        return None

    async def _started(self) -> Child:
        child = Child.start(self._limits, self._idle_seconds)
        self._children.add(child)
        try:
            with trio.fail_after(START_SECONDS):
                await _driven(child.greeting())
        except (Ended, trio.TooSlowError):
            await self._end(child)
            self._check_open()
            raise unstarted() from None
        except BaseException:
            await self._end(child)
            raise
        return child

    async def _end(self, child: Child) -> int:
        """End a child; return its status."""
        child.kill()
        with trio.CancelScope(shield=True), trio.move_on_after(END_SECONDS):
            while child.status() is None:  # noqa: ASYNC110 - not every system has an event for it
                await trio.sleep(LOOK_SECONDS)
        return self._forget(child)

    def _forget(self, child: Child) -> int:
        self._children.discard(child)
        return child.close()

    def _check_open(self) -> None:
        if self._opened_in is not None and self._opened_in != os.getpid():
            raise WrongProcess(self._opened_in, os.getpid(), "evaluator")
        if not self._open:
            raise RunnerClosed("this evaluator is not open: use it inside of its `async with` block")


async def _driven(talk: Talk) -> bytes:
    """Return what a talk comes to."""
    while True:
        try:
            descriptor, event = next(talk)
        except StopIteration as stop:
            return bytes(stop.value)
        await (trio.lowlevel.wait_readable if event == "read" else trio.lowlevel.wait_writable)(descriptor)


async def _aside(large: bool, step: Callable[[*Ts], T], *args: *Ts) -> T:
    """Take a pure step, in a thread where it would hold the loop for longer than a moment."""
    return await in_thread(step, *args) if large else step(*args)
