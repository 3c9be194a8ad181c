"""The program that watches over tools. When a call is reported as over, everything that it started is gone.

Run by path as ``python -I -S supervisor.py VERSION FOLDER`` with the control socket as descriptor 3 and a pidfd of the
host as descriptor 4; uses the standard library alone, and ``container.py`` out of FOLDER where something is confined.
It is one process and single-threaded, and forks one *keeper* for each call in flight:

    host ─control─ supervisor
      └───line──── keeper ─ tool

Both are subreapers: whatever a tool orphans becomes a child of its keeper, and if the tool kills the keeper, a child of
the supervisor. So a keeper knows whose orphans are whose, and the supervisor never sees arguments or environments.

With three more words, ``OWN_NETWORK TMP_BYTES IS_ROOT``, it is the first process inside of bubblewrap. Then every
keeper is the first process of a container of its own, made before it is needed and used once: what its tool starts
dies with it.

Messages are single packets (SOCK_SEQPACKET), fields separated by NUL:

    control, host → supervisor   K number + line   make a keeper that answers on this line
                                 C number + line   the same, and it will be confined
                                 Z number          kill that keeper
    control, supervisor → host   ! text            it broke, and why
    line, host → keeper          N flags uid gid limits… (mode source target)… + [filter] [ruleset]
                                                   be confined, for good; flags: f there is a filter, l a ruleset,
                                                   n a network of its own, r become the user and group, s signals
                                                   are held; mode r or w; no source: an empty folder; see `container`
                                 O                 the same, the message in a file that comes first
                                 L limits… user depth argc cwd path argv… env… + stdin stdout stderr more…
                                                   limits: cpu data files size processes core; user: uid:gid to become,
                                                   or +uid:gid for a user namespace of root and that user, which is
                                                   the last descriptor then; depth: how many processes stand
                                                   between this program and the tool
                                 M                 the same, the message in a file that comes first
                                 T                 SIGTERM to the tool's process group
                                 X                 SIGKILL to everything that the tool started
    line, keeper → host          R pid             ready
                                 ! text            it broke, and why
                                 F errno what      the tool was not started
                                 S                 the tool has ended, something that it started has not
                                 E status left     all of it has ended: wait status, processes that had to be killed

End of file: on control, or the host's death: everything ends. On a line, for the keeper: kill, and no answer; for the
host: the keeper is dead and what it watched over is gone (the supervisor holds a line's far end until then).

A later kind of request, a Python tool in a warm interpreter, takes another letter beside L.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
STDIO = 3
if TYPE_CHECKING:
    from types import ModuleType

    from heddle.sandbox.container import Room

VERSION = "1"
CONTROL, HOST = 3, 4
PACKET = 65536
# As many descriptors as the kernel lets pass in one message. Source: SCM_MAX_FD, linux/net/scm.h.
MOST_FDS = socket.CMSG_SPACE(253 * 4)
# 0.5 s: longer than any copy tool keeps a file open for writing after its last byte, shorter than a caller notices.
BUSY_SECONDS = 0.5
# 20 ms between two looks at processes that have been killed and are not gone yet; SIGCHLD usually comes first.
SWEEP_MS = 20
# 0.3 s: what SIGKILL has not ended by then is named as a survivor, and must not hold up the lines of others.
ORPHAN_SECONDS = 0.3
# After the host is gone nobody is told how it ends, so that even a process stuck in the kernel is not waited for.
LAST_SECONDS = 5.0

# Once, before any fork: a keeper that opened it anew would wait for that.
libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True)
# A kernel without CONFIG_PROC_CHILDREN has no such list.
LISTS_CHILDREN = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
# Its life is the host's: a signal to the whole group or service must not take the watch away from a host that goes on.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Python ignores the last two itself. What is ignored stays so over an exec, and a tool should start with the defaults.
TO_RESET = (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
RLIMITS = (
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_CORE,
)
# Descriptors that the tool is given are first put above all that it may be given at.
ASIDE = 512


def main() -> None:
    """Serve the host until it is gone, then end everything."""
    signal.signal(signal.SIGCHLD, noted)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=CONTROL)
    for fd in (CONTROL, HOST):
        os.set_inheritable(fd, False)  # they came by dup2; no tool may have them
    try:
        close_inherited()
        version, _, *inside = sys.argv[1:]
        if version != VERSION:
            raise RuntimeError(f"version {VERSION}, the host speaks {version}: heddle was changed while it ran")
        # Inside of bubblewrap the kernel ends all of it with its first process, and the orphans come to that one.
        become_subreaper(is_first=bool(inside))
        Supervisor(control, make_room(*inside) if inside else None).serve()
    except Exception as error:  # noqa: BLE001 - the host is told, whatever it was
        tell(control, b"!" + repr(error).encode()[:4000])
    end_everything(time.monotonic() + LAST_SECONDS)


def make_room(own_network: str, tmp_bytes: str, is_root: str) -> Room:
    room: Room = container().Room(own_network == "1", int(tmp_bytes), is_root == "1")
    return room


def noted(_number: int, _frame: object) -> None:
    """Do nothing: having a handler is what makes SIGCHLD write to the wake-up pipe."""


class Supervisor:
    """Forks keepers, reaps them, and kills what they can no longer watch over."""

    def __init__(self, control: socket.socket, room: Room | None = None) -> None:
        self.control = control
        self.room = room
        self.wake: Wake = Wake()
        self.lines: dict[bytes, socket.socket] = {}  # number → far end of the line
        self.keepers: dict[int, bytes] = {}  # pid → number
        # Far ends of the lines of dead keepers, held until their orphans are gone or do not go, and until when.
        self.orphaned: list[tuple[socket.socket, float]] = []
        # Ends for the keepers when the supervisor ends: nobody else holds the writing end.
        alive, alive_writer = os.pipe2(os.O_CLOEXEC)
        self.alive: int = alive
        self.alive_writer: int = alive_writer

    def serve(self) -> None:
        poll = select.poll()
        for fd in (self.control.fileno(), HOST, self.wake.reader):
            poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll(SWEEP_MS if self.orphaned else None))
            if HOST in ready:
                return
            if self.control.fileno() in ready and not self.obey():
                return
            if self.wake.reader in ready:
                self.wake.drain()
            self.look_after_keepers()

    def obey(self) -> bool:
        """Do what one message says; return False at its end of file."""
        message, fds = receive(self.control)
        kind, number = message[:1], message[1:]
        if kind == b"C" and fds:
            container()  # before the fork, and so once
        if kind in (b"K", b"C") and fds:
            self.add_keeper(number, fds[0])
        elif kind == b"Z":
            for pid, its_number in self.keepers.items():
                if its_number == number:
                    os.kill(pid, signal.SIGKILL)
        return bool(message)

    def add_keeper(self, number: bytes, fd: int) -> None:
        line = socket.socket(fileno=fd)
        fork = self.room.fork if self.room else os.fork
        try:
            pid = fork()
        except OSError as error:  # too many processes of this user: one call's failure, not everybody's
            tell(line, b"F%d\0%s" % (error.errno or errno.EAGAIN, str(error.strerror).encode()))
            line.close()
            return
        if pid:
            self.keepers[pid] = number
            self.lines[number] = line
            return
        try:
            self.control.close()
            os.close(self.alive_writer)
            self.wake.close()
            for other in [*self.lines.values(), *(orphaned for orphaned, _ in self.orphaned)]:
                other.close()
            Keeper(line, self.alive, self.room).serve()
        except Exception as error:  # noqa: BLE001 - the host is told, whatever it was
            tell(line, b"!" + repr(error).encode()[:4000])
        finally:
            if not self.room:  # there the kernel does it, at once
                end_everything(time.monotonic() + LAST_SECONDS)
            os._exit(0)

    def look_after_keepers(self) -> None:
        """Reap; end a keeper that was stopped; end what dead keepers have left, and let their lines go then."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                if pid in self.keepers:
                    os.kill(pid, signal.SIGKILL)
            elif pid in self.keepers:
                line = self.lines.pop(self.keepers.pop(pid))
                self.orphaned.append((line, time.monotonic() + ORPHAN_SECONDS))
        if self.orphaned:
            orphans = [pid for pid in children(os.getpid()) if pid not in self.keepers]
            for pid in orphans:
                kill_tree(pid)
            now = time.monotonic()
            for line, give_up in [*self.orphaned]:
                if not orphans or now > give_up:
                    self.orphaned.remove((line, give_up))
                    line.close()


class Keeper:
    """Starts one tool after another and reports each when its whole tree is gone."""

    def __init__(self, line: socket.socket, alive: int, room: Room | None) -> None:
        become_subreaper(is_first=room is not None)
        self.line = line
        # In a container of its own: then what was in its folders in memory before, open, until it is confined.
        self.before: dict[str, int] | None = room.furnish() if room else None
        self.serves_once: bool = room is not None
        # Whether every process that it may send a signal to is below it.
        self.is_alone: bool = room is not None
        self.unfit: bytes = b""  # why it could not be confined
        self.depth: int = 0
        self.wake: Wake = Wake()
        self.others: tuple[int, int] = (alive, HOST)  # either readable: nobody is left to answer to
        self.poll: select.poll = select.poll()
        for fd in (line.fileno(), self.wake.reader, *self.others):
            self.poll.register(fd, select.POLLIN)
        self.tool: int = 0
        self.status: int | None = None  # the tool's wait status
        self.killed: set[int] = set()  # what was killed after the tool itself had ended
        self.killing: bool = False
        self.next_pass: float = 0.0
        self.told: bool = False

    def serve(self) -> None:
        self.line.send(b"R%d" % os.getpid())
        while True:
            ready = dict(self.poll.poll())
            if any(fd in ready for fd in self.others):
                return
            if self.wake.reader in ready:
                self.wake.drain()
            if self.line.fileno() not in ready:
                continue
            message, fds = receive(self.line)
            if not message:
                return
            if message[:1] in (b"N", b"O"):
                self.be_confined(message, fds)
            # Anything else but a launch came too late for the last call.
            elif message[:1] in (b"L", b"M") and (not self.run(message, fds) or self.serves_once):
                return

    def be_confined(self, message: bytes, fds: list[int]) -> None:
        """Give up what tools must not have; one that fails starts none."""
        try:
            if message[:1] == b"O":
                message = read_file(fds.pop(0))
            confinement = container().Confinement(message, fds)
            if self.before is None:
                keep_sight_of_children()
            confinement.prepare(self.before)
            for which, limit in zip(RLIMITS, confinement.limits, strict=True):
                if limit:
                    limit_to(which, int(limit))
            confinement.put_on()
            self.is_alone = self.is_alone or confinement.signals_are_held
        except Exception as error:  # noqa: BLE001 - the host is told, whatever it was
            # Without a number: it is no fault of the tool's file.
            self.unfit = b"F0\0it cannot be confined: " + str(error).encode("utf-8", "replace")[:1000]
        self.before = None

    def run(self, message: bytes, fds: list[int]) -> bool:
        """Run one tool to the end of its tree; return False when there is nobody left to answer to."""
        self.tool, self.status, self.killed, self.killing, self.told = 0, None, set(), False, False
        self.next_pass = 0.0
        if self.unfit:
            self.line.send(self.unfit)
            return False
        try:
            if message[:1] == b"M":
                message = read_file(fds.pop(0))
            self.tool, self.depth = start(message, fds)
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            why = str(getattr(error, "strerror", None) or error)
            self.line.send(b"F%d\0%s" % (number, why.encode("utf-8", "replace")[:1000]))
            return True
        finally:
            os.chdir("/")  # the tool has its own; a keeper holds no directory
            for fd in fds:
                os.close(fd)
        while True:
            ready = dict(self.poll.poll(SWEEP_MS if self.killing else None))
            if self.line.fileno() in ready and not self.obey():
                return False
            if any(fd in ready for fd in self.others):
                return False
            if self.wake.reader in ready:
                self.wake.drain()
            if self.reaped() and self.status is not None:
                self.line.send(b"E%d\0%d" % (self.status, len(self.killed)))
                return True

    def obey(self) -> bool:
        message, fds = receive(self.line)
        for fd in fds:
            os.close(fd)
        if message == b"T" and self.status is None:
            # The whole group, as a terminal does it: a shell waits for its command before it looks at a signal.
            leaders = below(self.tool, self.depth)
            self.killing = self.killing or not leaders  # nobody has come so far that it could be asked
            for leader in leaders:
                signal_group(leader, signal.SIGTERM)
                signal_group(leader, signal.SIGCONT)
        elif message == b"X":
            self.killing = True
        # A launch while there is one is a host that has lost count: the line ends, rather than mix up two calls.
        return message[:1] not in (b"", b"L", b"M")

    def reaped(self) -> bool:
        """Reap what has ended, kill what must; return whether all of it is gone."""
        if self.killing and time.monotonic() >= self.next_pass:
            # Not at every death: looking at each of thousands takes longer than they take to die.
            self.next_pass = time.monotonic() + SWEEP_MS / 1000
            # Before the tool is reaped: what dies with it was not left behind by it.
            killed = kill_tree(os.getpid(), itself=False)
            if self.is_alone:
                kill_all()  # at once, so that nothing can be born meanwhile
            if self.status is not None and self.told:
                self.killed.update(killed)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                break
            if pid == self.tool:
                self.status = status
        if self.status is not None and not self.told and not self.killing:
            self.told = True
            self.line.send(b"S")
        return False


class Wake:
    """A pipe that becomes readable when a child has ended or was stopped."""

    def __init__(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.reader: int = reader
        self.writer: int = writer
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)

    def drain(self) -> None:
        try:
            os.read(self.reader, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self.reader)
        os.close(self.writer)


def start(message: bytes, fds: list[int]) -> tuple[int, int]:
    """Start the tool that an L message describes, in a session of its own; return its pid and how deep the tool is."""
    fields = message[1:].split(b"\0")
    limits, fields = fields[: len(RLIMITS)], fields[len(RLIMITS) :]
    user, depth, argc, cwd, path = fields[0], int(fields[1]), int(fields[2]), fields[3], fields[4]
    argv = fields[5 : 5 + argc]
    environment = dict(pair.split(b"=", 1) for pair in fields[5 + argc :])
    os.chdir(cwd)
    if user[:1] == b"+":
        fds.append(container().namespace_of(*map(int, user.split(b":"))))
        user = b""
    begin = start_plain if not any(limits) and not user and len(fds) == STDIO else start_by_fork
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return begin(path, argv, environment, fds, limits, user), depth
        except OSError as error:
            # Somebody still has the file open for writing, perhaps a child forked by the host while it wrote it.
            if error.errno != errno.ETXTBSY or time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def start_plain(
    path: bytes, argv: list[bytes], environment: dict[bytes, bytes], fds: list[int], _limits: list[bytes], _user: bytes
) -> int:
    return os.posix_spawn(
        path,
        argv,
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, place) for place, fd in enumerate(fds)],
        setsid=True,
        setsigmask=(),
        setsigdef=TO_RESET,
    )


def start_by_fork(
    path: bytes, argv: list[bytes], environment: dict[bytes, bytes], fds: list[int], limits: list[bytes], user: bytes
) -> int:
    """The same by fork, so that hard limits and another user bind the tool and not its keeper."""
    failed, failure = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            aside = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ASIDE) for fd in fds]
            for place, fd in enumerate(aside):
                os.dup2(fd, place)
            for number in TO_RESET:
                signal.signal(number, signal.SIG_DFL)
            for which, limit in zip(RLIMITS, limits, strict=True):
                if limit:
                    limit_to(which, int(limit))
            if user:
                become_user(*map(int, user.split(b":")))
            os.execve(path, argv, environment)
        except (OSError, ValueError) as error:
            os.write(failure, b"%d" % (getattr(error, "errno", None) or errno.EINVAL))
        finally:
            os._exit(127)
    os.close(failure)
    answer = os.read(failed, 100)
    os.close(failed)
    if answer:
        os.waitpid(pid, 0)
        raise OSError(int(answer), os.strerror(int(answer)))
    return pid


def limit_to(which: int, limit: int) -> None:
    """Set a hard limit, below an inherited one."""
    _, inherited = resource.getrlimit(which)
    if which == resource.RLIMIT_CPU:
        # Soft below hard: SIGXCPU, which says why, comes before SIGKILL, which does not.
        hard = limit + 1 if inherited == resource.RLIM_INFINITY else min(limit + 1, inherited)
        resource.setrlimit(which, (min(limit, hard), hard))
    else:
        hard = limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)
        resource.setrlimit(which, (hard, hard))
    if which == resource.RLIMIT_DATA:
        # A stack does not count there, and may be made larger up to a limit of its own.
        soft, inherited = resource.getrlimit(resource.RLIMIT_STACK)
        hard = limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)
        resource.setrlimit(resource.RLIMIT_STACK, (hard if soft == resource.RLIM_INFINITY else min(soft, hard), hard))


def become_user(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def receive(line: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and the descriptors that came with it; nothing at its end of file."""
    try:
        # CLOEXEC: a descriptor that comes by message is inheritable otherwise.
        message, extra, flags, _ = line.recvmsg(PACKET, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:  # the peer died with our messages unread; what it said before comes after this
        return receive(line)
    fds = array.array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise ValueError("a message has not come in one piece")
    return message, list(fds)


def tell(line: socket.socket, message: bytes) -> None:
    try:
        line.send(message)
    except OSError:
        pass


def read_file(fd: int) -> bytes:
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def close_inherited() -> None:
    """Close what the host had open without close-on-exec: a socket must not stay bound because of us."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > HOST:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


def become_subreaper(*, is_first: bool) -> None:
    """Take over the orphans of every process below, and let no tool look into this process' memory.

    Args:
        is_first: It is the first process of its namespace: it has the orphans, and the kernel ends all with it.
    """
    # SIGCONT when the parent dies: one that a tool has stopped still has to notice that, and to end its tool.
    options = [(PR_SET_CHILD_SUBREAPER, 1), (PR_SET_DUMPABLE, 0), (PR_SET_PDEATHSIG, signal.SIGCONT)]
    for option, value in [(PR_SET_DUMPABLE, 0)] if is_first else options:
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def container() -> ModuleType:
    """Return the other half of this program, which stands in a folder of its own."""
    folder = sys.argv[2]
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("container")


# The list of this process' own children, opened while it still might.
own_children: int = -1


def keep_sight_of_children() -> None:
    """Open what /proc says of this process: once it is confined, it may open nothing there."""
    global own_children  # noqa: PLW0603 - one process, one list
    pid = os.getpid()
    own_children = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)


def children(pid: int) -> list[int]:
    """Return the children of a process, zombies included."""
    if own_children >= 0:
        # Of others nothing can be known; as orphans they come to this one.
        return [int(word) for word in os.pread(own_children, PACKET, 0).split()] if pid == os.getpid() else []
    if not LISTS_CHILDREN:
        return children_by_search(pid)
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # a thread that has ended meanwhile
    return found


def children_by_search(pid: int) -> list[int]:
    """Look at every process: slow, and only for a kernel that does not list children."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            state = state_of(int(name))
            if state and state[1] == pid:
                found.append(int(name))
    return found


def state_of(pid: int) -> tuple[str, int] | None:
    """Return a process' state letter and its parent, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return "?", 0  # it is there, and that is all that may be known
    return fields[0].decode(), int(fields[1])


def kill_tree(pid: int, *, itself: bool = True) -> set[int]:
    """Send SIGKILL to everything below `pid`, and to it; return those that were alive until then."""
    killed: set[int] = set()
    waiting = [pid] if itself else children(pid)
    while waiting:
        pid = waiting.pop()
        waiting += children(pid)
        state = state_of(pid)
        if state is None or state[0] not in "ZX":  # where /proc hides processes it says nothing of those that are there
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
            killed.add(pid)
    return killed


def kill_all() -> None:
    """Send SIGKILL to every process that this one may send a signal to."""
    try:
        os.kill(-1, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def below(pid: int, depth: int) -> list[int]:
    """Return the processes that are so many steps below one."""
    found = [pid]
    for _ in range(depth):
        found = [child for each in found for child in children(each)]
    return found


def signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(os.getpgid(leader), number)
    except (ProcessLookupError, PermissionError):
        pass


def end_everything(give_up: float) -> None:
    """Kill every process below this one, until none is left."""
    while time.monotonic() < give_up:
        kill_tree(os.getpid(), itself=False)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main()
