"""Run one program to its end where there is no supervisor: by process group. It cannot vouch for daemons.

For POSIX systems other than Linux. What a program starts is ended with its process group; what leaves the group
(``setsid``, a double fork) is not seen, and the guarantees say ``partial``.
"""

from __future__ import annotations

import datetime
import errno
import math
import os
import signal
import subprocess
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.errors import SandboxUnavailable
from heddle.limits import PROCESS_LIMITS
from heddle.process.capture import Head, Tail
from heddle.process.supervised import FORCE_SECONDS, GRACE_SECONDS, LATE_OUTPUT_SECONDS, refuse_policy
from heddle.process.values import Ending, Exit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from heddle.limits import Limits
    from heddle.process.ports import LauncherSession
    from heddle.process.values import Command
    from heddle.sandbox.policy import Confinement

__all__ = ["DirectLauncher"]

# As long as the supervisor retries, and for its reason.
BUSY_SECONDS = 0.5


class DirectLauncher:
    """Brings programs to their end with process groups."""

    tier: str = "none"
    guarantees: Mapping[str, str] = MappingProxyType({"processes": "partial"})

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession, None]:
        """Open a session; there is nothing to it.

        Raises:
            SandboxUnavailable: There is a policy, which nothing here holds.
        """
        refuse_policy(confinement)
        yield self

    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Run `command` to its end and end its process group; see `heddle.process.LauncherSession`."""
        for name in PROCESS_LIMITS:
            if getattr(limits, name) is not None:
                raise SandboxUnavailable(f"limits.{name}", "it cannot be held on this system; leave it out")
        started_at = datetime.datetime.now(datetime.UTC)
        started = trio.current_time()
        try:
            process = await _start(command)
        except OSError as error:
            return Exit(ending=Ending.NOT_STARTED, error_number=error.errno or errno.EINVAL, error=str(error))
        run = _Run(process, Head(limits.stdout_bytes or 0), Tail(limits.stderr_bytes or 0))
        try:
            await run.to_the_end(stdin, started + (limits.wall_seconds or math.inf))
        finally:
            run.close()
        truncated = frozenset(name for name, end in (("stdout", run.out), ("stderr", run.err)) if end.full)
        code = process.returncode
        return Exit(
            ending=Ending.STDOUT_FULL if run.out.full and run.ending is Ending.BY_ITSELF else run.ending,
            status=code if code is not None and code >= 0 else None,
            signal=signal.Signals(-code).name if code is not None and code < 0 else None,
            stdout=bytes(run.out.kept),
            stderr=bytes(run.err.kept),
            truncated=truncated,
            started_at=started_at,
            duration_s=trio.current_time() - started,
            left_behind=run.left_behind,
            survivors=() if code is not None else (process.pid,),
        )


async def _start(command: Command) -> trio.Process:
    give_up = trio.current_time() + BUSY_SECONDS
    while True:
        try:
            with trio.CancelScope(shield=True):  # a process that was started and lost could never be ended
                return await trio.lowlevel.open_process(
                    command.argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=command.cwd,
                    env=command.environment,
                    start_new_session=True,
                )
        except OSError as error:
            if error.errno != errno.ETXTBSY or trio.current_time() > give_up:
                raise
        await trio.sleep(0.005)


@attrs.define(eq=False)
class _Run:
    process: trio.Process
    out: Head
    err: Tail
    ending: Ending = Ending.BY_ITSELF
    left_behind: int = 0
    full: trio.Event = attrs.field(factory=trio.Event)
    out_ended: trio.Event = attrs.field(factory=trio.Event)

    async def to_the_end(self, stdin: bytes, deadline: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, stdin)
            nursery.start_soon(self._read, self.process.stdout, self.out, self.out_ended)
            nursery.start_soon(self._read, self.process.stderr, self.err, trio.Event())
            try:
                with trio.CancelScope(deadline=deadline) as timer:
                    async with trio.open_nursery() as waiting:
                        waiting.start_soon(self._stop_when_full, timer)
                        await self.process.wait()
                        waiting.cancel_scope.cancel()
                if timer.cancelled_caught and self.process.returncode is None:
                    self.ending = Ending.STDOUT_FULL if self.full.is_set() else Ending.DEADLINE
            finally:
                with trio.CancelScope(shield=True):
                    await self._end()
                nursery.cancel_scope.cancel()

    async def _stop_when_full(self, timer: trio.CancelScope) -> None:
        await self.full.wait()
        timer.cancel()

    async def _end(self) -> None:
        """End the group, in steps that each have a bound."""
        if self.process.returncode is None:
            self._signal(signal.SIGTERM)
            with trio.move_on_after(GRACE_SECONDS):
                await self.process.wait()
        elif not self.out_ended.is_set():
            with trio.move_on_after(LATE_OUTPUT_SECONDS):
                await self.out_ended.wait()
        alive = self.process.returncode is None
        # A group that can still be signalled after its leader has gone holds at least one that was left behind.
        if self._signal(signal.SIGKILL) and not alive:
            self.left_behind = 1
        with trio.move_on_after(FORCE_SECONDS):
            await self.process.wait()
            await self.out_ended.wait()
            # What it left behind is waited for by nobody who would tell; the group has gone when no signal finds it.
            while self._signal(signal.SIGKILL):  # noqa: ASYNC110 - it is the system that is asked
                await trio.sleep(0.002)

    def _signal(self, number: signal.Signals) -> bool:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS gives EPERM for a group of zombies
            return False
        return True

    async def _feed(self, stdin: bytes) -> None:
        assert self.process.stdin is not None  # noqa: S101 - it was opened as a pipe
        try:
            async with self.process.stdin as stream:
                await stream.send_all(stdin)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it closed its input: judged by its exit and its output alone

    async def _read(self, stream: trio.abc.ReceiveStream | None, end: Head | Tail, ended: trio.Event) -> None:
        assert stream is not None  # noqa: S101 - it was opened as a pipe
        while chunk := await stream.receive_some(65536):
            end.take(bytes(chunk))
            if end.full and isinstance(end, Head):
                self.full.set()
        ended.set()

    def close(self) -> None:
        for stream in (self.process.stdout, self.process.stderr):
            if isinstance(stream, trio.lowlevel.FdStream):
                stream.close()
