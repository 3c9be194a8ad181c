"""What hostile tests are made with: a tool that attacks, the tier that holds it, what of the host must stay untouched.

A test runs the same attack twice: in the tier, and unconfined, which shows that the check can fail. It asserts on what
the tool reports and on what the host sees.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
import socket
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import heddle
from heddle.sandbox import choice, trials
from heddle.workspace.removal import remove_tree
from tests.support import processes_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heddle.sandbox.tiers import Kind

TIERS: tuple[Kind, ...] = ("containers", "single", "landlock")
# The two in which a call sees nothing but its own processes and mounts.
APART: tuple[Kind, ...] = ("containers", "single")
PYTHON = "/usr/bin/python3"

# From linux/asm/unistd_64.h and asm-generic/unistd.h: kept apart from the filter's own table, so that a wrong number
# there is seen. None: that architecture has no such call.
NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "ioctl": (16, 29),
    "getpid": (39, 172),
    "socket": (41, 198),
    "clone": (56, 220),
    "kill": (62, 129),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "uselib": (134, None),
    "personality": (135, 92),
    "getpriority": (140, 141),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "vhangup": (153, 58),
    "modify_ldt": (154, None),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "sched_setaffinity": (203, 122),
    "lookup_dcookie": (212, 18),
    "clock_settime": (227, 112),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "fchownat": (260, 54),
    "inotify_add_watch": (254, 27),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "socketpair": (53, 199),
    "mmap": (9, 222),
    "unshare": (272, 97),
    "move_pages": (279, 239),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "sched_setattr": (314, 274),
    "renameat2": (316, 276),
    "memfd_create": (319, 279),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443),
    "set_mempolicy_home_node": (450, 450),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "open_tree_attr": (467, 467),
}


def numbers_here() -> dict[str, int]:
    """Return the numbers of system calls on this machine."""
    at = 0 if platform.machine() == "x86_64" else 1
    return {name: number for name, both in NUMBERS.items() if (number := both[at]) is not None}


# What every attack begins with. `report` is printed at the end; whoever ends early calls `finish`.
PRELUDE = """\
#!/usr/bin/python3 -IS
import ctypes, errno, fcntl, json, os, signal, socket, stat, struct, sys, time

sys.stdin.reconfigure(errors="surrogateescape")
arguments = json.loads(sys.stdin.read() or "{}")
report = {}
MARK = @MARK@  # as an argument of what is to be found again; `sleep MARK` is a minute, and unique
NUMBERS = json.loads(@NUMBERS@)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def attempt(label, step, *more):
    \"\"\"Report that a step was allowed, and what came of it, or with what error it was denied.\"\"\"
    try:
        report[label] = f"allowed:{step(*more)!r:.300}"
        return True
    except OSError as error:
        report[label] = "denied:" + errno.errorcode.get(error.errno, str(error.errno))
        return False


def checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(name, *given):
    \"\"\"Make a system call by its name; whole numbers, bytes and ctypes' objects go in.\"\"\"
    number = NUMBERS[name] if isinstance(name, str) else name
    return checked(libc.syscall(ctypes.c_long(number), *(ctypes.c_long(x) if isinstance(x, int) else x for x in given)))


def read(path, mode="r"):
    with open(path, mode) as file:
        return file.read()


def write(path, text="touched"):
    with open(path, "w") as file:
        file.write(text)


def in_child(step, *more):
    \"\"\"Do a step in a child; return how that has ended.\"\"\"
    pid = os.fork()
    if pid == 0:
        try:
            step(*more)
        except OSError as error:
            os._exit(100)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leave_behind():
    \"\"\"Start a process of another session that outlives this one, if it can.\"\"\"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            os.execv("/bin/sleep", ["sleep", MARK])
        os._exit(0)
    os.wait()


def finish(status=0):
    print(json.dumps(report), flush=True)
    os._exit(status)


"""


@attrs.define(eq=False)
class Canary:
    """One thing of the host's that no tool may reach; says whether it was reached since it was last asked."""

    name: str
    path: Path | None = None
    listener: socket.socket | None = None
    _last: object = None

    def __attrs_post_init__(self) -> None:
        self._last = self._state()

    def was_touched(self) -> bool:
        if self.listener is not None:
            return self._visitors() > 0
        before, self._last = self._last, self._state()
        return before != self._last

    def _state(self) -> object:
        if self.path is None or self.listener is not None:
            return None
        if not self.path.exists():
            return "gone"
        info = self.path.stat()
        inside = sorted(os.listdir(self.path)) if self.path.is_dir() else self.path.read_bytes()
        return info.st_ino, info.st_mode, info.st_nlink, info.st_ctime_ns, inside

    def _visitors(self) -> int:
        assert self.listener is not None
        count = 0
        while True:
            try:
                if self.listener.type == socket.SOCK_DGRAM:
                    self.listener.recv(65536)
                else:
                    self.listener.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


class Host:
    """What lies on the host and is granted to nobody. Modes let every user at it, so that only a sandbox keeps one off.

    Attributes:
        folder: A folder that everybody may write.
        secret: A file in it, which everybody may read and write.
        word: What is in the file.
        home: A folder in the user's home.
        key: A file in that.
        tcp: The port of a listener at 127.0.0.1.
        udp: The port of another.
        abstract: The name of an abstract socket, without its NUL.
        sockets: Unix sockets that everybody may connect to, by path.
    """

    def __init__(self) -> None:
        self.word = secrets.token_hex(16)
        self.abstract = f"heddle-canary-{secrets.token_hex(8)}"
        # Not in $TMPDIR: there every container has a folder of its own over it.
        self.folder = Path(tempfile.mkdtemp(prefix="heddle-canary-", dir="/var/tmp"))
        self.folder.chmod(0o777)
        self.secret = self._file(self.folder / "secret")
        self.home = Path(tempfile.mkdtemp(prefix=".heddle-canary-", dir=Path.home()))
        self.key = self._file(self.home / "id_rsa")
        self.sockets: list[Path] = []
        self.canaries = [Canary(path.name, path) for path in (self.secret, self.key)]
        self.canaries += [Canary("folder", self.folder), Canary("home", self.home)]
        self.tcp = self._listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)).getsockname()[1]
        self.udp = self._listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)).getsockname()[1]
        self._listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.abstract}")
        for parent in (Path("/tmp"), Path("/run"), self.folder):
            if os.access(parent, os.W_OK):
                path = parent / f"{self.abstract}.sock"
                self._listen(f"unix in {parent.name}", socket.AF_UNIX, socket.SOCK_STREAM, str(path))
                path.chmod(0o777)
                self.sockets.append(path)
        self.touched()  # making all this was us

    def touched(self) -> list[str]:
        """Return which canaries were reached since this was last asked, by name."""
        return [canary.name for canary in self.canaries if canary.was_touched()]

    def close(self) -> None:
        for canary in self.canaries:
            if canary.listener is not None:
                canary.listener.close()
        for path in self.sockets:
            path.unlink(missing_ok=True)
        remove_tree(self.folder)
        remove_tree(self.home)

    def _file(self, path: Path) -> Path:
        path.write_text(self.word)
        path.chmod(0o666)
        return path

    def _listen(self, name: str, family: int, kind: int, address: Any) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.setblocking(False)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        self.canaries.append(Canary(name, None, listener))
        return listener


class Jail:
    """One tier, tools that attack it, and the host that must not notice.

    Attributes:
        tier: Which.
        host: What must stay untouched.
        tools: A folder of tools that everybody may read.
        mark: A word that is in the arguments of what tools leave behind, and of nothing else on the machine.
    """

    def __init__(self, tier: Kind, tools: Path, host: Host) -> None:
        self.tier = tier
        self.host = host
        self.tools = tools
        self.mark = f"60.{secrets.randbelow(10**9):09}"

    @property
    def is_apart(self) -> bool:
        """Whether a call has processes and mounts of its own here."""
        return self.tier in APART

    def add(self, name: str, code: str) -> Path:
        """Write a tool: `PRELUDE`, the code, and the report."""
        filled = PRELUDE.replace("@MARK@", repr(self.mark)).replace("@NUMBERS@", repr(json.dumps(numbers_here())))
        path = self.tools / name
        path.write_text(filled + textwrap.dedent(code) + "\nfinish()\n")
        path.chmod(0o755)
        return path

    def runner(self, *, sandbox: Mapping[str, Any] | None = None, **more: Any) -> heddle.Runner:
        """Return a runner of this tier with the tools that were added; the network is ``none`` if nothing is said.

        Args:
            sandbox: For `heddle.Sandbox`.
            **more: For `heddle.Runner`.
        """
        backend = "landlock" if self.tier == "landlock" else "bubblewrap"
        policy = {"network": "none", "backend": backend, **(sandbox or {})}
        return heddle.Runner(heddle.discover_tools(self.tools), sandbox=heddle.Sandbox(**policy), **more)

    async def attack(
        self,
        code: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        sandbox: Mapping[str, Any] | None = None,
        limits: heddle.Limits | None = None,
        wall_seconds: float = 15,
        **more: Any,
    ) -> tuple[dict[str, Any], heddle.ToolResult]:
        """Run a tool once, confined, by a runner of its own; return what it reported, if anything, and the result."""
        self.add("attack", code)
        async with self.runner(sandbox=sandbox, **more) as runner:
            return await _reported(runner, arguments, limits, wall_seconds)

    async def control(
        self,
        code: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        limits: heddle.Limits | None = None,
        wall_seconds: float = 15,
        **more: Any,
    ) -> tuple[dict[str, Any], heddle.ToolResult]:
        """Do the same unconfined: what was denied must be possible there, or its denial has shown nothing."""
        self.add("attack", code)
        async with heddle.Runner(heddle.discover_tools(self.tools), **more) as runner:
            return await _reported(runner, arguments, limits, wall_seconds)

    def strays(self) -> list[int]:
        """Return the living processes that bear this jail's mark."""
        return processes_with(self.mark)


async def _reported(
    runner: heddle.Runner, arguments: Mapping[str, Any] | None, limits: heddle.Limits | None, wall_seconds: float
) -> tuple[dict[str, Any], heddle.ToolResult]:
    bound = (limits or heddle.Limits()).or_else(heddle.Limits(wall_seconds=wall_seconds))
    result = await runner.call("attack", arguments, limits=bound)
    return reported(result), result


def reported(result: heddle.ToolResult) -> dict[str, Any]:
    """Return what a tool has reported; nothing when it failed."""
    return result.data if isinstance(result, heddle.Returned) and isinstance(result.data, dict) else {}


def is_denied(said: str) -> bool:
    """Return whether an attempt was denied."""
    return said.startswith("denied:")


def allowed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attempts of a report that were let through, whole: the failed assertion then says what they saw."""
    return {label: said for label, said in report.items() if str(said).startswith("allowed:")}


def only_way(kind: Kind) -> Mapping[str, Sequence[Kind]]:
    """Return what `choice.WAYS` has to be for one tier alone to be tried."""
    ways: dict[str, Sequence[Kind]] = dict.fromkeys(choice.WAYS, ())
    return {**ways, "auto": (kind,), "landlock" if kind == "landlock" else "bubblewrap": (kind,)}


@pytest.fixture(name="jail", params=TIERS)
def in_each_tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jail]:
    """One tier after another. For some alone: ``@pytest.mark.parametrize("jail", APART, indirect=True)``."""
    tier: Kind = request.param
    trial: trials.Trial = getattr(trials.probe(), tier)
    if not trial.works:
        pytest.skip(f"the tier {tier!r} does not work here: {trial.reason}")
    monkeypatch.setattr(choice, "WAYS", only_way(tier))
    tools = Path(tempfile.mkdtemp(prefix="tools-"))
    tools.chmod(0o755)
    host = Host()
    jail = Jail(tier, tools, host)
    try:
        yield jail
    finally:
        for pid in jail.strays():
            os.kill(pid, signal.SIGKILL)
        host.close()
        remove_tree(tools)
