"""Run one program to its end on Linux. When a launch returns or raises, everything that it started is gone.

A launch is one task that waits on one descriptor: an epoll that watches the keeper's line and the program's pipes.
The deadline is kept here, by the host's clock, and enforced by steps that each have a bound (`_Step`).
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import errno
import fcntl
import math
import os
import select
import signal
import socket
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from heddle.errors import SandboxUnavailable
from heddle.limits import Limits
from heddle.logs import logger
from heddle.process import sweep
from heddle.process.capture import Head, Tail
from heddle.process.guard import IDLE_KEEPERS, Guard, GuardError, Line, Watch
from heddle.process.values import Command, Ending, Exit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Self

    from heddle.process.ports import LauncherSession
    from heddle.sandbox.policy import Confinement

__all__ = ["FORCE_SECONDS", "GRACE_SECONDS", "LATE_OUTPUT_SECONDS", "SupervisedLauncher", "refuse_policy"]

# 2 s: time to remove a lock file, not to finish the work.
GRACE_SECONDS = 2.0
# 0.2 s for SIGKILL to do its work, 0.15 s more when the keeper itself had to be killed: with the last sweep's 0.1 s
# that is less than the half second that a call may take beyond deadline and grace.
FORCE_SECONDS = 0.2
KEEPER_SECONDS = 0.15
# 100 ms: a shell's ``exec > >(tee log)`` writes its last lines after the shell has ended.
LATE_OUTPUT_SECONDS = 0.1
# 2 s for what a program leaves behind when it ends in time: there may be thousands of it.
LEFT_BEHIND_SECONDS = 2.0
# 10 ms from closing its output to being gone: more than any process needs, less than anybody notices.
ENDING_SECONDS = 0.01
# A message beyond this goes by file: a packet has to fit the socket's buffer.
LARGEST_PACKET = 60_000
CHUNK = 65536
# A tool may kill every keeper that is idle; each costs one try.
MOST_TRIES = IDLE_KEEPERS + 2
# A pipe holds at most 1 MiB unless root has said otherwise: sixteen chunks of each of two, and their ends.
LAST_READS = 20


class SupervisedLauncher:
    """Brings programs to their end with a supervisor process that outlives the host by an instant."""

    tier: str = "none"
    guarantees: Mapping[str, str] = MappingProxyType({"processes": "enforced"})

    def __init__(self) -> None:
        self._guard = Guard()
        # What could not be ended when a launch was cancelled, by attempt: an exception has no report.
        self.survivors: dict[str, tuple[int, ...]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the supervisor, and wait until it is gone."""
        self._guard.close()
        with trio.CancelScope(shield=True):
            for by_force in (False, True):
                if by_force:
                    self._guard.kill()
                give_up = trio.current_time() + GRACE_SECONDS
                while trio.current_time() < give_up:
                    if self._guard.is_closed():
                        return
                    await trio.sleep(0.002)
            logger.error("a supervisor does not end, even when it is killed")

    def start(self) -> None:
        """Start the supervisor ahead of the first launch, which then need not wait for it.

        Raises:
            GuardError: It cannot be started here.
        """
        self._guard.start()

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession, None]:
        """Open a session; unconfined sessions have nothing of their own.

        Raises:
            SandboxUnavailable: There is a policy, which nothing here holds.
        """
        refuse_policy(confinement)
        yield self

    @trio.lowlevel.enable_ki_protection  # Ctrl-C comes at a wait, and not between making a thing and minding it
    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Run `command` to its end, and everything that it starts; see `heddle.process.LauncherSession`."""
        if limits.processes is not None:
            raise SandboxUnavailable("limits.processes", "only a sandbox can hold it; leave it out or use one")
        return await run_to_the_end(self._guard, command, stdin, limits, survivors=self.survivors)


def refuse_policy(confinement: Confinement) -> None:
    """Raise `SandboxUnavailable` where calls are to be held to a policy: a launcher that confines nothing cannot."""
    if confinement.sandbox is not None:
        raise SandboxUnavailable("sandbox=…", "this launcher confines nothing; leave one of the two out")


class Lines(Protocol):
    """Where a launch has its keeper from."""

    def take(self) -> Line:
        """Return a line to a keeper that is free.

        Raises:
            GuardError: There is none, and none can be made.
            BlockingIOError: The supervisor has as much to do as its socket holds. Ask again in a moment.
        """
        ...

    def was_sent(self) -> None:
        """Note that a call is on its way: what is made ahead for the next one may be made now."""
        ...

    def give_back(self, line: Line) -> None:
        """Keep a line for the next call, or let its keeper go."""
        ...

    def lose(self, watch: Watch) -> None:
        """Put a supervisor out of use; the calls on its lines end by themselves."""
        ...


async def run_to_the_end(
    lines: Lines,
    command: Command,
    stdin: bytes,
    limits: Limits,
    *,
    survivors: dict[str, tuple[int, ...]],
    extras: Extras | None = None,
) -> Exit:
    """Run `command` to its end with a keeper of `lines`, and everything that it starts.

    Args:
        lines: Where the keeper comes from.
        command: What to start.
        stdin: What it reads.
        limits: What it may use.
        survivors: What could not be ended when this is cancelled is put here, by attempt.
        extras: What it is started with beyond its command.
    """
    tries_left = MOST_TRIES
    while True:
        tries_left -= 1
        try:
            flight = _Flight(lines, await _line(lines), command, memoryview(stdin), limits, extras or NO_EXTRAS)
        except GuardError as error:
            return Exit(ending=Ending.NOT_STARTED, error_number=errno.ECHILD, error=str(error))
        except OSError as error:
            return Exit(ending=Ending.NOT_STARTED, error_number=error.errno or errno.EINVAL, error=str(error))
        try:
            lines.was_sent()
            await flight.to_the_end()
        except BaseException:
            flight.close()
            left = await flight.survivors()
            if left:
                survivors[command.attempt_id] = left
            raise
        flight.close()
        if flight.was_given_up:  # another supervisor may be better; a machine that stalls is not, and has taken long
            tries_left = min(tries_left, 1)
        # A keeper that had died before it took the call has started nothing, so another one may be tried.
        if flight.was_received or not tries_left:
            return flight.outcome(await flight.survivors())


async def _line(lines: Lines) -> Line:
    """Take a line, when the supervisor has a moment."""
    while True:
        try:
            return lines.take()
        except BlockingIOError:
            await trio.sleep(0.002)


class _Step(enum.Enum):
    """Where a launch is on its way to the end, and what happens when the time of that step is up."""

    RUNNING = "the program runs: SIGTERM at its deadline"
    LATE_OUTPUT = "it has ended, what it left behind holds its output: SIGKILL"
    ASKED = "it was sent SIGTERM: SIGKILL"
    FORCED = "everything was sent SIGKILL: the keeper does not answer, kill it"
    KEEPER_KILLED = "the supervisor does not answer either, or the kernel does not let go: give up"
    OVER = "nothing more will come"


@attrs.define(eq=False)
class _Flight:
    """One call in flight. Made and closed by the same task; between the two nothing else touches its descriptors."""

    lines: Lines
    line: Line
    command: Command
    stdin: memoryview
    limits: Limits
    extras: Extras

    step: _Step = attrs.field(default=_Step.RUNNING, init=False)
    step_ends: float = attrs.field(init=False)
    ending: Ending = attrs.field(default=Ending.BY_ITSELF, init=False)
    out: Head = attrs.field(init=False)
    err: Tail = attrs.field(init=False)
    wait_status: int | None = attrs.field(default=None, init=False)
    error: tuple[int, str] | None = attrs.field(default=None, init=False)
    left_behind: int = attrs.field(default=0, init=False)
    lost: bool = attrs.field(default=False, init=False)
    was_received: bool = attrs.field(default=False, init=False)
    was_sent: bool = attrs.field(default=False, init=False)
    was_given_up: bool = attrs.field(default=False, init=False)
    started_at: datetime.datetime = attrs.field(init=False)
    asked: float = attrs.field(init=False)
    started: float = attrs.field(init=False)
    ended: float = attrs.field(default=0.0, init=False)

    @property
    def pipes(self) -> dict[int, int]:
        """Our ends of the pipes; they stand at the line, where a forked child finds them."""
        return self.line.pipes

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.step is _Step.OVER

    def __attrs_post_init__(self) -> None:
        """Make the pipes and send the program on its way; on an error nothing is left of it."""
        self.was_received = self.line.pid > 0
        self.asked = self.started = trio.current_time()
        # Before its keeper says that it is there, what is waited for is not the program's time.
        making = 0.0 if self.was_received else self.line.watch.making_seconds
        self.step_ends = self.started + making + (self.limits.wall_seconds or math.inf)
        try:
            self._send_off()
            # From here on the keeper is at work, and what is left to do costs no time.
            self.started_at = datetime.datetime.now(datetime.UTC)
            self.out = Head(self.limits.stdout_bytes or 0)
            self.err = Tail(self.limits.stderr_bytes or 0)
            for fd, place in self.pipes.items():
                self.line.epoll.register(fd, select.EPOLLIN if place else select.EPOLLOUT)
        except BaseException:
            self.lost = True
            self.close()
            raise

    def _send_off(self) -> None:
        theirs: list[int] = []
        try:
            for place in range(3):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                our_end, their_end = (writer, reader) if place == 0 else (reader, writer)
                self.pipes[our_end] = place
                theirs.append(their_end)
                # Always: what was there to be read a moment ago may have been taken by the tool, out of /proc/self/fd.
                fcntl.fcntl(our_end, fcntl.F_SETFL, os.O_NONBLOCK)
                if place == 0:
                    self._write(our_end)
            send_launch(self.line.socket, self.command, self.limits, theirs, self.extras)
            self.was_sent = True
        except (BrokenPipeError, ConnectionResetError):
            self.was_received = False  # the keeper is gone: its line says so at once
        finally:
            for fd in theirs:
                os.close(fd)

    async def to_the_end(self) -> None:
        """Wait until nothing of the program is left, or it is certain that it cannot be ended.

        Cancelled, it ends the program in the same steps and then lets the cancellation pass.
        """
        try:
            await self._follow()
        except BaseException:
            self._ask()
            with trio.CancelScope(shield=True):
                while not self.is_over:
                    # An interrupt comes through a shield: it waits for the end like the first one, which is raised.
                    with contextlib.suppress(KeyboardInterrupt):
                        await self._follow()
            raise

    async def _follow(self) -> None:
        while not self.is_over:
            with trio.CancelScope(deadline=self.step_ends) as timer:
                while not self.is_over:
                    await trio.lowlevel.wait_readable(self.line.epoll.fileno())
                    self._look()
                    if timer.deadline != self.step_ends:
                        timer.deadline = self.step_ends
            if timer.cancelled_caught:
                self._time_is_up()

    def _look(self) -> None:
        """Take what is there to be read, and write what can be written."""
        for fd, _ in self.line.epoll.poll(0):
            place = self.pipes.get(fd)
            if place is None:
                self._hear()
            elif place == 0:
                self._write(fd)
            else:
                self._read(fd, place)

    def _hear(self) -> None:
        try:
            message = self.line.socket.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:  # the keeper died with a message unread; what it said before comes after this
            return
        kind, fields = message[:1], message[1:].split(b"\0")
        match kind:
            case b"R":
                self.line.pid = int(fields[0])
                if not self.was_received and self.was_sent:
                    self._begins()
            case b"S" if self.step is _Step.ASKED:
                self._force()
            case b"S" if self.step is _Step.RUNNING and 1 in self.pipes.values():
                self.step, self.step_ends = _Step.LATE_OUTPUT, trio.current_time() + LATE_OUTPUT_SECONDS
            case b"S" if self.step is _Step.RUNNING:
                self._force(LEFT_BEHIND_SECONDS)
            case b"E":
                self.wait_status, self.left_behind = int(fields[0]), int(fields[1])
                self.step = _Step.OVER
            case b"F":
                self.error = (int(fields[0]), fields[1].decode("utf-8", "replace"))
                self.step = _Step.OVER
            case b"S":
                pass  # everything has been sent SIGKILL already
            case _:
                if kind == b"!":
                    logger.error("a keeper broke: %s", message[1:].decode("utf-8", "replace"))
                self.lost = True
                self.step = _Step.OVER

    def _begins(self) -> None:
        """Count from now on: the keeper is there, and the program is what it does first."""
        self.was_received = True
        self.started = trio.current_time()
        self.started_at = datetime.datetime.now(datetime.UTC)
        if self.step is _Step.RUNNING:
            self.step_ends = self.started + (self.limits.wall_seconds or math.inf)

    def _time_is_up(self) -> None:
        match self.step:
            case _Step.RUNNING if not self.was_received and self.line.watch.making_seconds:
                self.lost = self.was_given_up = True
                self.step = _Step.OVER
                self.lines.lose(self.line.watch)
            case _Step.RUNNING:
                self.ending = Ending.DEADLINE
                self._ask()
            case _Step.ASKED:
                self._force()
            case _Step.LATE_OUTPUT:
                self._force(LEFT_BEHIND_SECONDS)
            case _Step.FORCED:
                self.line.watch.kill_keeper(self.line)
                self.step, self.step_ends = _Step.KEEPER_KILLED, trio.current_time() + KEEPER_SECONDS
            case _:
                self.lost = True
                self.step = _Step.OVER

    def _ask(self) -> None:
        if self.step is _Step.RUNNING:
            self._tell(b"T")
            self.step, self.step_ends = _Step.ASKED, trio.current_time() + GRACE_SECONDS

    def _force(self, seconds: float = FORCE_SECONDS) -> None:
        self._tell(b"X")
        self.step, self.step_ends = _Step.FORCED, trio.current_time() + seconds

    def _tell(self, message: bytes) -> None:
        try:
            self.line.socket.send(message)
        except OSError:
            pass  # it does not listen; the next step does not need it

    def _write(self, fd: int) -> None:
        try:
            while self.stdin:
                self.stdin = self.stdin[os.write(fd, self.stdin) :]
        except BlockingIOError:
            return
        except OSError:  # it closed its input: judged by its exit and its output alone
            pass
        self._close(fd)

    def _read(self, fd: int, place: int) -> None:
        """Read one chunk, or the end."""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        (self.out if place == 1 else self.err).take(chunk)
        if place == 1 and self.out.full and self.step is _Step.RUNNING:
            self.ending = Ending.STDOUT_FULL
            self._ask()
        if not chunk:
            self._close(fd)
            if place == 1 and self.step is _Step.LATE_OUTPUT:
                # What has just let go of it is probably ending, and need not be killed for being slow.
                self.step_ends = min(self.step_ends, trio.current_time() + ENDING_SECONDS)

    def _close(self, fd: int) -> None:
        del self.pipes[fd]
        try:
            self.line.epoll.unregister(fd)
        except (OSError, ValueError):
            pass  # not registered yet: all of a short input was written at once
        os.close(fd)

    def close(self) -> None:
        """Read what is left in the pipes, close them, and give the line back."""
        self.ended = trio.current_time()
        # A few pipes' worth: more can only come from outside of the tree that has just ended.
        for _ in range(LAST_READS):
            ready = [fd for fd, _ in self.line.epoll.poll(0) if self.pipes.get(fd)]
            if not ready:
                break
            for fd in ready:
                self._read(fd, self.pipes[fd])
        for fd in list(self.pipes):
            self._close(fd)
        if not self.line.watch.is_sound():
            self.lost = True
            self.lines.lose(self.line.watch)
        if self.lost or not self.is_over or not self.line.pid:
            self.line.close()
        else:
            self.lines.give_back(self.line)

    async def survivors(self) -> tuple[int, ...]:
        """End what has escaped a keeper or a supervisor that was lost; return what does not end."""
        if not self.lost or not self.was_received:
            return ()
        known = {line.pid for line in self.line.watch.lines}
        return await sweep.end_attempt(self.command.attempt_id, self.line.watch.pid, known)

    def outcome(self, survivors: tuple[int, ...]) -> Exit:
        """Return how it ended."""
        known: dict[str, Any] = {
            "stdout": bytes(self.out.kept),
            "stderr": bytes(self.err.kept),
            "truncated": _TRUNCATED[self.out.full, self.err.full],
            "waited_s": self.started - self.asked,
            "duration_s": self.ended - self.started,
            "started_at": self.started_at,
            "survivors": survivors,
            "left_behind": self.left_behind,
        }
        if self.error is not None:
            return Exit(ending=Ending.NOT_STARTED, error_number=self.error[0], error=self.error[1])
        if not self.was_received:
            why = self.line.watch.why_it_ended()
            return Exit(ending=Ending.NOT_STARTED, error_number=errno.ECHILD, error=why)
        if self.lost:
            # What came first is the reason; a keeper that does not answer after the deadline is only its consequence.
            by_itself = self.ending is Ending.BY_ITSELF
            return Exit(ending=Ending.SUPERVISOR_LOST if by_itself else self.ending, **known)
        ending = Ending.STDOUT_FULL if self.out.full and self.ending is Ending.BY_ITSELF else self.ending
        status = os.waitstatus_to_exitcode(self.wait_status or 0)
        if status < 0:
            return Exit(ending=ending, signal=_signal_name(-status), **known)
        return Exit(ending=ending, status=status, **known)


_TRUNCATED = {
    (False, False): frozenset[str](),
    (True, False): frozenset({"stdout"}),
    (False, True): frozenset({"stderr"}),
    (True, True): frozenset({"stdout", "stderr"}),
}


@attrs.frozen(kw_only=True)
class Extras:
    """What a program is started with beyond its command.

    Attributes:
        program: What is started, where that is not the first word of the command.
        user: Who it becomes, as ``uid:gid``; empty stays who the supervisor is.
        no_core: It leaves no core file.
        depth: How many processes stand between it and the tool, which is asked to end and not they.
        handles: What it finds open from descriptor 3 on.
    """

    program: str = ""
    user: str = ""
    no_core: bool = False
    depth: int = 0
    handles: tuple[int, ...] = ()


NO_EXTRAS = Extras()


def encode_launch(command: Command, limits: Limits, extras: Extras = NO_EXTRAS) -> bytes:
    """Return the message that starts `command`; the supervisor's own page says how it is built."""
    cpu = limits.cpu_seconds
    numbers = (
        None if cpu is None else math.ceil(cpu),
        limits.memory_bytes,
        limits.open_files,
        limits.file_bytes,
        limits.processes,
        0 if extras.no_core else None,
    )
    fields = ["" if number is None else str(number) for number in numbers]
    fields += [extras.user, str(extras.depth), str(len(command.argv)), str(command.cwd)]
    fields += [extras.program or command.argv[0], *command.argv]
    fields += [f"{name}={value}" for name, value in command.environment.items()]
    return os.fsencode("\0".join(fields))


def send_launch(
    line: socket.socket, command: Command, limits: Limits, fds: list[int], extras: Extras = NO_EXTRAS
) -> None:
    """Send a command to a keeper, by file where it is too long for a packet."""
    send_by_file(line, b"L" + encode_launch(command, limits, extras), [*fds, *extras.handles], b"M")


def send_by_file(line: socket.socket, message: bytes, fds: list[int], letter: bytes) -> None:
    """Send a message; where it is too long for a packet, send a letter that says so, and it in a file."""
    if len(message) <= LARGEST_PACKET:
        socket.send_fds(line, [message], fds)
        return
    file = os.memfd_create("heddle-message", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(message)
        socket.send_fds(line, [letter], [file, *fds])
    finally:
        os.close(file)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"SIG{number}"
