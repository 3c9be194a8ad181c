"""What the supervisor's program does to confine a keeper, and with it every tool that the keeper starts.

The other half of ``heddle/process/supervisor.py``: runs in that program, with the standard library alone, and is loaded
by it only where something is confined. Two things are done here:

    contained    a process becomes the first of namespaces of its own. Only inside bubblewrap, where the program may.
    confine      a process gives up, for good, all that its tools must not have. In every tier.

A tool's own steps come after `confine`, so none of it can be undone by one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import stat
import struct
import sys

libc: ctypes.CDLL = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 28, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
# NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock: being root means nothing any more.
SECUREBITS = 0b11101111
CAPABILITIES_VERSION = 0x20080522
# The same numbers on every architecture.
OPEN_TREE, MOVE_MOUNT, OPENAT2, MOUNT_SETATTR, RESTRICT_SELF = 428, 429, 437, 442, 446
AT_FDCWD, RESOLVE_NO_SYMLINKS = -100, 4
AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE = 0x1000, 0x8000, 1
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
MOUNT_ATTR_RDONLY = 1
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Where every container has a folder of its own, in memory.
TMP, SHM, PTS, HOME = "/tmp", "/dev/shm", "/dev/pts", "/tmp/home"  # noqa: S108 - inside the container
# A cover is empty but for the ways to what is bound into it.
COVER = "mode=755,size=1m,nr_inodes=4096"
# Files in memory need little more than their name; 65,536 of them are some 64 MiB of the kernel's.
MOST_FILES = 65536
# In /proc, what root may write without any capability.
OF_ROOT = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi")


class Room:
    """What containers are made from, once per session: where to go back to, and how large things are."""

    def __init__(self, own_network: bool, tmp_bytes: int, is_root: bool = False) -> None:
        self.pid_namespace: int = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.own_network = own_network
        self.tmp_bytes = tmp_bytes
        # Anybody else is kept from the rest by the files' own modes.
        names = OF_ROOT if is_root else OF_ROOT[:1]
        self.read_only: list[str] = [f"/proc/{name}" for name in names if os.path.exists(f"/proc/{name}")]
        # What is made for tools on the way to their files has to let them pass, whatever the host's own files do.
        os.umask(0o022)
        # Once, for all containers: what one of them mounts is no other's business.
        mount(None, "/", None, MS_REC | MS_PRIVATE)

    def fork(self) -> int:
        """Fork; the child is the first process of a pid namespace of its own."""
        check(libc.unshare(CLONE_NEWPID), "unshare(pid)")
        try:
            pid = os.fork()
        except OSError:
            self._return()
            raise
        if pid:
            self._return()
        return pid

    def _return(self) -> None:
        check(libc.setns(self.pid_namespace, CLONE_NEWPID), "setns(pid)")

    def furnish(self) -> dict[str, int]:
        """Give this process, the first of its namespace, the others; return the folders in memory of before, open.

        Everything else is still where the session put it, and is taken away by `confine`.
        """
        network = CLONE_NEWNET if self.own_network else 0
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | network), "unshare")
        if network:
            raise_loopback()
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for path in self.read_only:
            bind_read_only(path)
        # Terminals are numbered from 0 in each: those of another call are not there.
        mount("devpts", PTS, "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
        before = {place: os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for place in (TMP, SHM)}
        options = f"mode=1777,size={self.tmp_bytes},nr_inodes={MOST_FILES}"
        for place in before:
            mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
        return before


class Confinement:
    """What one keeper and its tools are confined to, as its message says; see `supervisor`."""

    def __init__(self, message: bytes, fds: list[int]) -> None:
        """Read ``N flags uid gid limits… (mode source target)…``, the filter and the ruleset that the flags speak of.

        Raises:
            ValueError: One of them has not come.
        """
        fields = message[1:].split(b"\0")
        self.flags: bytes = fields[0]
        if len(fds) != (b"f" in self.flags) + (b"l" in self.flags):
            raise ValueError("what confines it has not come with the message")
        self.uid: int = int(fields[1])
        self.gid: int = int(fields[2])
        self.limits: list[bytes] = fields[3:9]
        self.binds: list[tuple[bytes, ...]] = [(*fields[at : at + 3],) for at in range(9, len(fields), 3)]
        self.seccomp: int = fds.pop(0) if b"f" in self.flags else -1
        self.ruleset: int = fds.pop(0) if b"l" in self.flags else -1
        # Whether a signal to everybody reaches only what is below this process: true once the ruleset is in force.
        self.signals_are_held: bool = False

    def prepare(self, before: dict[str, int] | None) -> None:
        """Take what tools must not have out of sight, and become who they run as.

        Args:
            before: What `Room.furnish` returned; None outside of a container.
        """
        if before is not None:
            bind_all(self.binds, before)
            for fd in before.values():
                os.close(fd)
            os.chdir("/")
            if b"n" in self.flags:
                check(libc.unshare(CLONE_NEWNET), "unshare(net)")
                raise_loopback()
        if b"r" in self.flags and before is None:
            drop_bounds()  # while it has the right to
        if b"r" in self.flags:
            os.setgroups([])
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        if before is not None:
            os.mkdir(HOME, 0o700)
            become(self.uid, self.gid)

    def put_on(self) -> None:
        """Give up every right that is left, for good; without a filter only what a ruleset takes."""
        # What a program with another user id may read of this one, none may now: the change of it has reset that.
        check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(dumpable)")
        if self.seccomp >= 0:
            drop_capabilities()
        check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(no_new_privs)")
        if self.ruleset >= 0:
            check(libc.syscall(RESTRICT_SELF, self.ruleset, 0), "landlock_restrict_self")
            os.close(self.ruleset)
            self.signals_are_held = b"s" in self.flags
        if self.seccomp >= 0:
            filter_calls(read_all(self.seccomp))
            os.close(self.seccomp)


def check(result: int, what: str) -> int:
    """Raise what a system call has left in errno."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = (os.fsencode(text) if text is not None else None for text in (source, target, kind))
    data = None if options is None else options.encode()
    check(libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount({kind or 'bind'} on {target})")


def bind_read_only(path: str) -> None:
    mount(path, path, None, MS_BIND | MS_REC)
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount(None, path, None, flags)


def bind_all(binds: list[tuple[bytes, ...]], before: dict[str, int]) -> None:
    """Put what the tools may use in its place, and an empty folder over the rest.

    Everything that is bound is opened first, as the session has it: no tool has ever been in the way there, and what
    comes later covers it. A bind is made by handle, never by a path that a tool could have changed.
    """
    opened = [open_before(os.fsdecode(source), before) if source else -1 for _, source, _ in binds]
    covers: list[str] = []
    for (mode, _, encoded), tree in zip(binds, opened, strict=True):
        target = os.fsdecode(encoded)
        if tree < 0:
            mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, COVER)
            covers.append(target)
            continue
        is_folder = stat.S_ISDIR(os.fstat(tree).st_mode)
        place = way_to(target, is_folder=is_folder)
        copy = check(
            libc.syscall(OPEN_TREE, tree, b"", OPEN_TREE_CLONE | AT_EMPTY_PATH | AT_RECURSIVE | os.O_CLOEXEC),
            f"open_tree({target})",
        )
        if mode == b"r":
            set_read_only(copy, target)
        moved = libc.syscall(MOVE_MOUNT, copy, b"", place, b"", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)
        check(moved, f"move_mount({target})")
        for fd in (copy, place, tree):
            os.close(fd)
    for target in covers:
        cover = os.open(target, HANDLE)
        set_read_only(cover, target, recursive=False)
        os.close(cover)


def set_read_only(tree: int, target: str, *, recursive: bool = True) -> None:
    attributes = struct.pack("=QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    check(libc.syscall(MOUNT_SETATTR, tree, b"", flags, attributes, len(attributes)), f"mount_setattr({target})")


def open_before(path: str, before: dict[str, int]) -> int:
    """Open what the session has at `path`, which may lie in a folder of before; no link on the way is followed."""
    covered = next((place for place in before if path.startswith(f"{place}/")), None)
    folder = AT_FDCWD if covered is None else before[covered]
    name = os.fsencode(path if covered is None else path[len(covered) + 1 :])
    how = struct.pack("=QQQ", HANDLE, 0, RESOLVE_NO_SYMLINKS)
    fd = check(libc.syscall(OPENAT2, folder, name, how, ctypes.c_size_t(len(how))), f"open({path})")
    if stat.S_ISLNK(os.fstat(fd).st_mode):  # the last part of a path is opened as it is
        raise OSError(errno.ELOOP, f"{path} is a link: a tool has replaced it")
    return fd


def way_to(path: str, *, is_folder: bool) -> int:
    """Open the place that something is bound to, making what is missing of the way; a link on it is refused."""
    names = path.strip("/").split("/")
    place = os.open("/", HANDLE)
    for number, name in enumerate(names, 1):
        as_folder = is_folder or number < len(names)
        try:
            inner = os.open(name, HANDLE | (os.O_DIRECTORY if as_folder else 0), dir_fd=place)
        except FileNotFoundError:
            if as_folder:
                os.mkdir(name, 0o755, dir_fd=place)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_WRONLY, 0o600, dir_fd=place))
            inner = os.open(name, HANDLE, dir_fd=place)
        except NotADirectoryError:
            raise OSError(errno.ENOTDIR, f"{path}: {name} is no folder any more: a tool has replaced it") from None
        os.close(place)
        place = inner
    if not is_folder and not stat.S_ISREG(os.fstat(place).st_mode):
        raise OSError(errno.EINVAL, f"{path} is no file any more: a tool has replaced it")
    return place


def raise_loopback() -> None:
    """Bring up the network of this namespace, which is ``lo`` alone: programs talk to themselves."""
    # By the system's own names: Python's socket is slow to make for the first time, and every keeper is a first time.
    any_socket = check(libc.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0), "socket")
    try:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    except OSError as error:
        raise OSError(error.errno, f"loopback device: {error.strerror}") from None
    finally:
        os.close(any_socket)


def become(uid: int, gid: int) -> None:
    """Enter a user namespace with one user alone, called `uid`: it may do nothing to the namespaces from before.

    The kernel counts the processes of a user in each of these apart.
    """
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER), "unshare(user)")
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(dumpable)")  # else these files are root's
    for name, text in (("uid_map", f"{uid} {outer_uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {outer_gid} 1")):
        write(f"/proc/self/{name}", text)


def namespace_of(uid: int, gid: int) -> int:
    """Return a new user namespace, open, in which root and one other user are who they are outside of it."""
    asleep, wake = os.pipe2(os.O_CLOEXEC)
    made, say = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(wake)
        os.write(say, b"%d" % (ctypes.get_errno() if libc.unshare(CLONE_NEWUSER) else 0))
        os.read(asleep, 1)
        os._exit(0)
    try:
        number = int(os.read(made, 10))
        if number:
            raise OSError(number, f"unshare(user): {os.strerror(number)}")
        for name, inside in (("uid_map", uid), ("gid_map", gid)):
            write(f"/proc/{pid}/{name}", "".join(f"{each} {each} 1\n" for each in sorted({0, inside})))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (asleep, wake, made, say):
            os.close(fd)
        os.waitpid(pid, 0)


def drop_capabilities() -> None:
    """Give up every capability, and every way to have one again.

    A process without any to begin with may not change what it is bounded by, and need not.
    """
    drop_bounds()
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0)
    header = struct.pack("=Ii", CAPABILITIES_VERSION, 0)
    check(libc.capset(header, bytes(24)), "capset")


def drop_bounds() -> None:
    for number in range(64):
        if libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break


def filter_calls(program: bytes) -> None:
    """Put a filter of system calls on this process."""
    instructions = ctypes.create_string_buffer(program, len(program))
    filled = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filled, 0, 0), "prctl(seccomp)")


def write(path: str, text: str) -> None:
    """Write a short text at once; what is imported for an encoding may be out of sight here."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def try_it(arguments: list[str]) -> int:
    """Make one container, run one program in it, and say how that went: what `heddle.sandbox.probe` asks.

    Args:
        arguments: Whether with a network of its own, and the program.
    """
    if os.getpid() != 1:
        say("this program is not the first of its namespace: what started it does not confine")
        return 1
    try:
        room = Room(arguments[0] == "1", 1 << 20)
        pid = room.fork()
    except OSError as error:
        say(str(error.strerror))
        return 1
    if pid == 0:
        try:
            before = room.furnish()
            bind_all([(b"r", b"/usr", b"/tmp/usr")], before)
            become(1000, 1000)
            drop_capabilities()
            os.execv(arguments[1], arguments[1:])
        except OSError as error:
            say(str(error.strerror))
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(try_it(sys.argv[1:]))
