"""A trio loop in a thread of its own, and the way into it from anywhere else.

When `Portal.stop` has come to its end, the loop and its thread are gone, and with them whatever was submitted or held.
Nothing here waits: what comes of a piece of work is a `concurrent.futures.Future`, for which each kind of host waits in
its own way.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import threading
from concurrent.futures import Future, InvalidStateError, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from heddle.errors import HeddleError, RunnerClosed, WrongProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

__all__ = ["Held", "Job", "Portal"]

T = TypeVar("T")


class Portal:
    """One trio loop in one thread, from `start` to `stop`.

    A host that exits with it still open stops it on its way out.

    Attributes:
        ended: What says that the loop and everything in it has ended.
        has_ended: The same, for whoever does not wait.
        pid: The process that it belongs to; a forked child has only a copy of its memory.
        is_stopping: Whether it was asked to stop.
        is_exiting: Whether the host is on its way out, and nobody is told any more what comes of anything.
    """

    def __init__(self) -> None:
        self.ended: Future[None] = _running()
        self.has_ended: bool = False
        self.pid: int = os.getpid()
        self.is_stopping: bool = False
        self.is_exiting: bool = False
        self._started: Future[None] = _running()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="heddle", daemon=True)
        self._stopping = trio.Event()
        self._is_over = False
        self._held: list[Held[Any]] = []

    def start(self) -> None:
        """Start the thread, and wait the moment that it takes until its loop runs.

        Interrupted, it may run already or be about to; `stop` ends it all the same.

        Raises:
            RuntimeError: The system gives no thread. Nothing was started.
        """
        atexit.register(self._stop_at_exit)
        self._thread.start()
        self._started.result()

    @property
    def is_here(self) -> bool:
        """Whether this code runs in the portal's own thread, which must not wait for itself."""
        return threading.get_ident() == self._thread.ident

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Have a quick function called in the loop.

        Raises:
            RunnerClosed: The loop has ended.
            WrongProcess: This is a child of the process that has it.
        """
        if self.pid != os.getpid():
            raise WrongProcess(self.pid, os.getpid())
        if self._token is None:
            raise RunnerClosed(_CLOSED)
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            raise RunnerClosed(_CLOSED) from None

    def stop(self) -> Future[None]:
        """Have everything left that is held, the latest first, and the loop ended; return what says that it has.

        It may be asked for any number of times, and of one that was never started.
        """
        atexit.unregister(self._stop_at_exit)
        self.is_stopping = True
        if self._token is None:  # nothing runs in it, and if there is a thread it ends when it sees that
            self._end(None)
        try:
            self.soon(self._stopping.set)
        except HeddleError:
            pass  # that is what was asked for
        return self.ended

    def join(self) -> None:
        """Wait the instant from the end of the loop to the end of its thread."""
        if self.has_ended and self._thread.is_alive():
            self._thread.join()

    def spawn(self, function: Callable[[], Awaitable[object]], context: contextvars.Context) -> None:
        """Start a task, in the loop.

        Raises:
            RunnerClosed: Everything has been left.
        """
        if self._is_over:
            raise RunnerClosed(_CLOSED)
        context.run(self._nursery.start_soon, function)

    def keep(self, held: Held[Any]) -> None:
        """Remember, in the loop, what is held."""
        self._held.append(held)

    def forget(self, held: Held[Any]) -> None:
        """Forget, in the loop, what was left."""
        self._held.remove(held)

    def _stop_at_exit(self) -> None:
        if os.getpid() == self.pid:  # a forked child has the memory of the thread, and not the thread
            self.is_exiting = True
            wait([self.stop()])

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - whoever waits has to hear of it
            _settle(self._started, error)
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self.has_ended = True
        with contextlib.suppress(InvalidStateError):  # it was stopped while it was being started
            self.ended.set_exception(error) if error is not None else self.ended.set_result(None)

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._started.set_result(None)
            try:
                if not self.is_stopping:
                    await self._stopping.wait()
                while self._held:
                    latest = self._held[-1]
                    latest.leave_now()
                    await latest.is_left.wait()
            finally:
                self._is_over = True
            self._nursery.cancel_scope.cancel()


class Job(Generic[T]):
    """A piece of work in a portal's loop.

    Attributes:
        result: What comes of it. A job that was cancelled raises `RunnerClosed` there.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], portal: Portal) -> None:
        self.result: Future[T] = _running()
        self._context = contextvars.copy_context()
        self._work = work
        self._portal = portal
        self._scope = trio.CancelScope()
        self._is_in_work = False

    def begin(self) -> Future[T]:
        """Have it done in the loop, in the context of whoever made it; return what comes of it.

        Raises:
            RunnerClosed: The loop has ended. Nothing was started.
        """
        self._portal.soon(self._begin)
        return self.result

    def cancel(self) -> Future[T]:
        """Have it cancelled, from any thread, and not even begun if it was not yet; return what says that it is."""
        try:
            self._portal.soon(self._cancel)
        except HeddleError:
            _settle(self.result, RunnerClosed(_CLOSED))  # it has ended with everything else
        return self.result

    def _begin(self) -> None:
        try:
            self._portal.spawn(self._run, self._context)
        except RunnerClosed as error:
            self._fail(error)
        else:
            self._is_in_work = True

    def _cancel(self) -> None:
        self._scope.cancel()
        if not self._is_in_work:
            _settle(self.result, RunnerClosed(_CANCELLED))

    async def _run(self) -> None:
        """Do it, in the loop. Whatever it raises is its result."""
        try:
            with self._scope:
                self.result.set_result(await self._work())
        except trio.Cancelled:
            self._fail(RunnerClosed(_CLOSED))
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the result
            self._fail(error)
        else:
            self._fail(RunnerClosed(_CANCELLED))  # unless there is a result
        finally:
            self._is_in_work = False

    def _fail(self, error: BaseException) -> None:
        # At exit only daemon threads wait, which end with the interpreter; woken, each would print a traceback.
        if self._scope.cancel_called or not self._portal.is_exiting:
            _settle(self.result, error)


class Held(Generic[T]):
    """An asynchronous context manager that is entered and left in a portal's loop, in one task.

    Attributes:
        entered: What entering it gives.
        left: What says that it was left.
        is_left: The same, in the loop.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T], portal: Portal) -> None:
        self.entered: Future[T] = _running()
        self.left: Future[None] = _running()
        self.is_left: trio.Event = trio.Event()
        self._context = contextvars.copy_context()
        self._manager = manager
        self._portal = portal
        self._leaving = trio.Event()
        self._entering = trio.CancelScope()
        self._is_begun = False

    def enter(self) -> Future[T]:
        """Have it entered, in the context of whoever made it; return what that gives.

        Raises:
            RunnerClosed: The loop has ended. Nothing was entered.
        """
        self._portal.soon(self._begin)
        return self.entered

    def leave(self) -> Future[None]:
        """Have it left, from any thread, and not even entered if that still goes on; return what says that it was."""
        try:
            self._portal.soon(self.leave_now)
        except WrongProcess:
            return _done()  # a forked child that unwinds has only a copy
        except RunnerClosed as error:
            self._refuse(error)  # it was left with everything else
        return self.left

    def leave_now(self) -> None:
        """Do the same in the loop."""
        self._leaving.set()
        if not self._is_begun:  # whoever asked for it was interrupted while asking
            self._refuse(RunnerClosed(_CANCELLED))
        elif not self.entered.done():
            self._entering.cancel()

    def _begin(self) -> None:
        try:
            self._portal.spawn(self._run, self._context)
        except RunnerClosed as error:
            self._refuse(error)
        else:
            self._is_begun = True
            self._portal.keep(self)

    def _refuse(self, error: RunnerClosed) -> None:
        """Say that it is not entered, if that has not been said."""
        _settle(self.entered, error)
        if not self.left.done():
            self.left.set_result(None)

    async def _run(self) -> None:
        """Enter it, wait, leave it, in the loop. Whatever is raised is what `entered` or `left` raises."""
        problem: BaseException | None = None
        try:
            with self._entering:
                async with self._manager as value:
                    self.entered.set_result(value)
                    await self._leaving.wait()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            problem = error
        was_entered = self.entered.done()
        if not was_entered:
            self.entered.set_exception(problem or RunnerClosed(_CANCELLED))
        if problem is not None and was_entered:
            self.left.set_exception(problem)
        else:
            self.left.set_result(None)
        self._portal.forget(self)
        self.is_left.set()


_CLOSED = "this runner was closed meanwhile"
_CANCELLED = "this was cancelled before it was done"


def _running() -> Future[Any]:
    """Return a future that nobody can cancel behind the back of what it stands for."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _done() -> Future[None]:
    future: Future[None] = _running()
    future.set_result(None)
    return future


def _settle(future: Future[Any], error: BaseException) -> None:
    """Let `future` raise `error`, unless it has a value."""
    if not future.done():
        future.set_exception(error)
