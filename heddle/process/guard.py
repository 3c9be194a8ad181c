"""The host's side of the supervisor: starts it, borrows keepers from it, replaces it when it is lost.

Nothing here waits. A runner has one guard, and no thread of the host matters to it: the supervisor lives until the
host closes its control socket or dies.
"""

from __future__ import annotations

import abc
import os
import select
import signal
import socket
import sys
import sysconfig
import weakref
from pathlib import Path
from typing import ClassVar

import attrs

from heddle.process import supervisor, sweep
from heddle.sandbox import container

__all__ = ["Guard", "GuardError", "Line", "Watch", "interpreter"]

PROGRAM = Path(supervisor.__file__)
# Where the part of it is that confines.
CONTAINER = Path(container.__file__)
# 8: what a usual burst needs again at once; each idle keeper costs about 1 MiB.
IDLE_KEEPERS = 8


class GuardError(Exception):
    """No supervisor could be started here. Nothing is running."""


@attrs.define(eq=False)
class Line:
    """The host's end of the way to one keeper, which runs one call at a time.

    Attributes:
        number: The keeper's name on the control socket.
        pid: The keeper's process, once it has said so.
        epoll: Watches the line, and a call's pipes while there is one.
        pipes: Our ends of the pipes of the call in flight, and which stream each is: 0, 1 or 2.
        most_tasks: How many processes its user may have before it can start no more; 0 where that is not limited.
    """

    watch: Watch
    number: int
    socket: socket.socket
    epoll: select.epoll
    pid: int = 0
    pipes: dict[int, int] = attrs.field(factory=dict[int, int])
    most_tasks: int = 0

    def is_there(self) -> bool:
        """Return whether its keeper has not ended while nobody listened."""
        while True:
            try:
                message = self.socket.recv(4096)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if message[:1] != b"R":  # its end, or why it came to that
                return False
            self.pid = int(message[1:])

    def close(self) -> None:
        """Let the keeper go. Shutting down, not closing, ends it even where a forked child holds a copy."""
        self.watch.lines.discard(self)
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the keeper is gone
        self.epoll.close()
        self.socket.close()


@attrs.define(eq=False, kw_only=True)
class Watch(abc.ABC):
    """The way to one supervisor, and the lines to its keepers.

    Attributes:
        pid: Its process, as the host sees it; 0 where that does not matter.
    """

    control: socket.socket
    pid: int = 0
    lines: set[Line] = attrs.field(factory=set["Line"])
    idle: list[Line] = attrs.field(factory=list["Line"])
    made: int = 0
    ended: bool = False
    last_words: str = ""
    # How long a new keeper may take to be there, beyond a call's own time: no longer than a fork.
    making_seconds: ClassVar[float] = 0.0

    @abc.abstractmethod
    def is_sound(self) -> bool:
        """Return whether the supervisor is there and running."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End a supervisor that cannot be trusted any more; its keepers notice and end their calls."""

    def add_keeper(self, *, confined: bool = False) -> Line:
        """Ask for a keeper; what is sent on its line waits for it.

        Args:
            confined: The first thing that it is sent says to what.

        Raises:
            OSError: The supervisor is gone, or does not answer.
        """
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            near.setblocking(False)
            self.made += 1
            socket.send_fds(self.control, [b"%c%d" % (b"C" if confined else b"K", self.made)], [far.fileno()])
            epoll = select.epoll()
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        epoll.register(near.fileno(), select.EPOLLIN)
        line = Line(self, self.made, near, epoll)
        self.lines.add(line)
        return line

    def kill_keeper(self, line: Line) -> None:
        """Have the supervisor kill a keeper that does not answer."""
        try:
            self.control.send(b"Z%d" % line.number)
        except OSError:
            pass  # then it is the supervisor that does not answer

    def forget(self) -> None:
        """In a forked child: close the copies."""
        self.control.close()
        for line in self.lines:
            line.epoll.close()
            line.socket.close()
            for fd in line.pipes:
                os.close(fd)

    def why_it_ended(self) -> str:
        """Return why a supervisor ended that had nothing to do yet, as far as it could say."""
        self._listen()
        why = self.last_words or "The host's Python or its installation of heddle is broken"
        return f"the supervisor ends as soon as it is started. {why}"

    def close(self) -> None:
        """End the supervisor; everything below it ends with it."""
        if self.ended:
            return
        self.ended = True
        for line in [*self.idle]:
            line.close()
        self.idle.clear()
        self._listen()
        try:
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.control.close()

    def _listen(self) -> None:
        # Twice: one that died with our messages unread gives an error first, and then what it said.
        for _ in range(2):
            try:
                said = self.control.recv(supervisor.PACKET)[1:].decode("utf-8", "replace")
            except OSError:
                continue  # it said nothing, as it should, or is closed
            self.last_words = said or self.last_words


@attrs.define(eq=False, kw_only=True)
class Child(Watch):
    """A supervisor that is a child of the host: it watches over what is not confined, and starts what confines.

    Attributes:
        handle: A pidfd: whatever becomes of the number, it is this process.
        user: Who started it. A host that has become somebody else must not start tools as who it was.
    """

    handle: int
    user: int = attrs.field(factory=os.geteuid)

    def is_sound(self) -> bool:
        """Return whether the supervisor is there and running: a tool of the same user may have stopped it."""
        if self.ended or self.user != os.geteuid():
            return False
        try:
            return os.waitid(os.P_PIDFD, self.handle, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # a host that ignores SIGCHLD, or reaps every child
            state = supervisor.state_of(self.pid)
            return state is not None and state[0] not in "TZ"

    def kill(self) -> None:
        """End a supervisor that cannot be trusted any more; its keepers notice and end their calls."""
        try:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        except OSError:
            pass  # it has ended, or is somebody else's now and ends because its control socket does
        self.close()

    def is_reaped(self) -> bool:
        """Reap the supervisor if it has ended; return whether it has. Not to be asked again then."""
        try:
            ended = os.waitid(os.P_PIDFD, self.handle, os.WEXITED | os.WNOHANG) is not None
        except ChildProcessError:  # the host's own handling of SIGCHLD has reaped it, or will
            ended = supervisor.state_of(self.pid) is None or bool(select.select([self.handle], [], [], 0)[0])
        if ended:
            os.close(self.handle)
        return ended


class Guard:
    """Keeps a supervisor for one runner: started when first needed, replaced when lost."""

    def __init__(self) -> None:
        self._watch: Child | None = None
        self._ending: list[Child] = []
        _guards.add(self)

    def start(self) -> Child:
        """Return the supervisor in charge, starting one when there is none that can be trusted.

        Raises:
            GuardError: It cannot be started here.
        """
        watch = self._watch
        if watch is not None and not watch.is_sound():
            self.lose(watch)
            watch = None
        if watch is None:
            watch = self._watch = _started()
        return watch

    def take(self) -> Line:
        """Return a line to a keeper that is free.

        Raises:
            GuardError: There is none, and none can be made.
            BlockingIOError: The supervisor has as much to do as its socket holds. Ask again in a moment.
        """
        watch = self.start()
        for last_try in (False, True):
            if watch.idle:
                return watch.idle.pop()
            try:
                return watch.add_keeper()
            except BlockingIOError:
                raise
            except (BrokenPipeError, ConnectionResetError):
                self.lose(watch)
            except OSError as error:  # ours, not the supervisor's: no descriptor is free
                raise GuardError(f"the host cannot make a way to a keeper: {error}") from error
            if not last_try:
                watch = self.start()
        raise GuardError(watch.why_it_ended())

    def was_sent(self) -> None:
        """Do nothing: keepers that are not confined are used again."""

    def give_back(self, line: Line) -> None:
        """Keep a line for the next call, or let its keeper go."""
        watch = line.watch
        if watch is self._watch and not watch.ended and len(watch.idle) < IDLE_KEEPERS:
            watch.idle.append(line)
        else:
            line.close()

    def lose(self, watch: Watch) -> None:
        """Put a supervisor out of use; the calls on its lines end by themselves."""
        if watch.ended or not isinstance(watch, Child):
            return
        watch.kill()
        self._ending.append(watch)
        if self._watch is watch:
            self._watch = None
        self._ending = [ended for ended in self._ending if not ended.is_reaped()]

    def close(self) -> None:
        """End the supervisor. It and all that is below it is gone when `is_closed` says so."""
        if self._watch is not None:
            self._watch.close()
            self._ending.append(self._watch)
            self._watch = None

    def is_closed(self) -> bool:
        """Return whether every supervisor that was started has ended."""
        self._ending = [ended for ended in self._ending if not ended.is_reaped()]
        return not self._ending

    def kill(self) -> None:
        """End by force what did not end when it was closed."""
        for watch in self._ending:
            watch.kill()

    def forget(self) -> None:
        """In a forked child: give up the copies, so that nothing stays open because of it."""
        for watch in filter(None, [self._watch, *self._ending]):
            os.close(watch.handle)
            watch.forget()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def _forget_all() -> None:
    for guard in _guards:
        guard.forget()


os.register_at_fork(after_in_child=_forget_all)


def _started() -> Child:
    """Start a supervisor: blocks for as long as it takes to start a process, and no longer."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host = -1
    try:
        near.setblocking(False)
        host = os.pidfd_open(os.getpid())
        # Each has to leave the places that the other is put at, and dup2 closes what is there: two free ones.
        aside = max(far.fileno(), host, supervisor.HOST) + 1
        python = interpreter()
        pid = os.posix_spawn(
            python,
            # Under its own name: from that it finds its library. The mark is an option that Python does not know.
            [python, "-I", "-S", "-X", sweep.MARK, str(PROGRAM), supervisor.VERSION, str(CONTAINER.parent)],
            {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, far.fileno(), aside),
                (os.POSIX_SPAWN_DUP2, host, aside + 1),
                *((os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_RDWR, 0) for place in range(3)),
                (os.POSIX_SPAWN_DUP2, aside, supervisor.CONTROL),
                (os.POSIX_SPAWN_DUP2, aside + 1, supervisor.HOST),
            ],
            setsid=True,  # a Ctrl-C at the terminal is for the host, which ends its tools properly
            setsigmask=(),
            setsigdef=_ALL_SIGNALS,
        )
    except BaseException as error:
        near.close()
        if isinstance(error, OSError):
            raise GuardError(f"the supervisor cannot be started: {error}") from error
        raise
    finally:
        far.close()
        if host >= 0:
            os.close(host)
    return Child(control=near, pid=pid, handle=os.pidfd_open(pid))


_ALL_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def interpreter() -> str:
    """Return an interpreter; in a program that embeds Python `sys.executable` may be something else or nothing."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, Path(sys.base_exec_prefix, "bin", name), Path(sysconfig.get_path("scripts"), name)):
        if path and Path(path).name.startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return str(path)
    raise GuardError(f"no {name} was found beside this program; the supervisor needs one")
