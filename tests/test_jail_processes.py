"""Attacks on processes and on the kernel: what a tool does to others, and which system calls it is denied.

`tests.test_seccomp` shows for each number what the filter decides. Here each call is made once inside of each tier.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import heddle
from heddle.sandbox import seccomp
from tests.jail import APART, NUMBERS, TIERS, Jail, allowed, in_each_tier, numbers_here, reported  # noqa: F401 - a fixture
from tests.support import SUPERVISOR, descendants_of, processes_with, state_of, until
from tests.test_jail_files import IS_ROOT, NOBODY, as_every_user, victim

if TYPE_CHECKING:
    pass

# A process of the user that a tool is unconfined.
OUR_OWN: dict[str, Any] = {"user": os.geteuid(), "group": os.getegid()} if IS_ROOT else {}

# What the kernel itself denies to a plain user, filter or not, shows nothing unconfined.
CALLS = """
    bad = ctypes.c_void_p(1)
    flags = 0xDEAD0000
    given = {
        # Case 8, 9.
        "ptrace": (999, 1 << 29, 0, 0), "process_vm_readv": (os.getpid(), bad, 1, bad, 1, 99),
        "process_vm_writev": (os.getpid(), bad, 1, bad, 1, 99), "kcmp": (os.getpid(), os.getpid(), 999, 0, 0),
        "pidfd_getfd": (-1, -1, 0), "process_madvise": (-1, bad, 1, 99, 99),
        # Case 20, 21, 24.
        "mount": (bad, bad, bad, 0, 0), "umount2": (bad, flags), "pivot_root": (bad, bad), "chroot": (bad,),
        "open_tree": (-1, bad, flags), "open_tree_attr": (-1, bad, flags, bad, 1), "fsopen": (bad, 99),
        "move_mount": (-1, bad, -1, bad, flags), "fsconfig": (-1, 99, bad, bad, 0), "fsmount": (-1, 99, flags),
        "fspick": (-1, bad, flags), "mount_setattr": (-1, bad, flags, bad, 1), "statmount": (bad, bad, 1, flags),
        "listmount": (bad, bad, 1, flags),
        # Case 22, 23.
        "unshare": (0x8000000 | 1,), "setns": (-1, 0), "clone3": (bad, 1),
        # Case 28 to 32, 34.
        "add_key": (bad, bad, bad, 1, 0), "request_key": (bad, bad, bad, 0), "keyctl": (9999, 0, 0, 0, 0),
        "bpf": (9999, bad, 1), "perf_event_open": (bad, 0, -1, -1, flags), "userfaultfd": (flags,),
        "io_uring_setup": (0, bad), "io_uring_enter": (-1, 0, 0, flags, bad, 0),
        "io_uring_register": (-1, 9999, bad, 0),
        "open_by_handle_at": (-1, bad, 0), "name_to_handle_at": (-1, bad, bad, bad, flags),
        "fanotify_init": (flags, 0), "lookup_dcookie": (0, bad, 0),
        # Case 97.
        "settimeofday": (bad, 0), "clock_settime": (-99, bad), "adjtimex": (bad,), "clock_adjtime": (-99, bad),
        "sethostname": (bad, 5), "setdomainname": (bad, 5),
        # Case 98.
        "mbind": (bad, 1, 99, bad, 1, flags), "set_mempolicy": (99, bad, 1), "migrate_pages": (-1, 1, bad, bad),
        "move_pages": (-1, 1, bad, bad, bad, flags), "set_mempolicy_home_node": (bad, 1, 0, 1),
        "modify_ldt": (0, bad, 0), "iopl": (99,), "ioperm": (1 << 20, 1, 1), "kexec_load": (0, 9999, bad, 0x8000),
        "kexec_file_load": (-1, -1, 0, bad, flags), "init_module": (bad, 5, bad), "finit_module": (-1, bad, flags),
        "delete_module": (bad, 0), "syslog": (-1, bad, 0), "acct": (bad,), "quotactl": (-1, bad, 0, bad),
        "quotactl_fd": (-1, -1, 0, bad), "swapon": (bad, 0), "swapoff": (bad,), "reboot": (0, 0, 0, bad),
        "nfsservctl": (99, bad, bad), "uselib": (bad,), "personality": (8,),
        # Where the host is in sight.
        "setxattr": (bad, bad, bad, 1, 0), "lsetxattr": (bad, bad, bad, 1, 0), "fsetxattr": (-1, bad, bad, 1, 0),
        "removexattr": (bad, bad), "lremovexattr": (bad, bad), "fremovexattr": (-1, bad),
        "setxattrat": (-1, bad, flags, bad, bad, 1), "removexattrat": (-1, bad, flags, bad), "chown": (bad, 0, 0),
        "lchown": (bad, 0, 0), "fchown": (-1, 0, 0), "fchownat": (-1, bad, 0, 0, flags), "setpriority": (9, 1, 0),
        "ioprio_set": (99, 1, 0), "prlimit64": (1, 99, 0, 0), "sched_setparam": (1, bad),
        "sched_setscheduler": (1, 99, bad), "sched_setattr": (1, bad, 0), "sched_setaffinity": (1, 0, bad),
        "inotify_add_watch": (-1, bad, 1),
        "shmget": (0, 0, 0), "shmat": (-1, 0, 0), "shmctl": (-1, 99, 0), "semget": (0, 0, 99), "semop": (-1, bad, 1),
        "semctl": (-1, 0, 99, 0), "semtimedop": (-1, bad, 1, 0), "msgget": (0, 99), "msgsnd": (-1, bad, 1, 0),
        "msgrcv": (-1, bad, 1, 0, 0), "msgctl": (-1, 99, 0), "mq_open": (bad, 0, 0, 0), "mq_unlink": (bad,),
    }
    if not arguments.get("is_free"):
        given["vhangup"] = ()  # as root it ends whatever has the terminal
    for name in given.keys() & NUMBERS.keys():
        attempt(name, call, name, *given[name])
    """
IN_SIGHT = {*seccomp._DENIED_IN_SIGHT_OF_THE_HOST, *seccomp._ONLY_FOR_ITSELF}
ABSENT = {*seccomp._NOT_THERE}
ABSENT_IN_SIGHT = {*seccomp._NOT_THERE_IN_SIGHT_OF_THE_HOST}


async def test_every_call_of_the_list_is_denied_in_every_tier(jail: Jail) -> None:
    """Cases 8, 9, 20 to 24, 28 to 32, 34, 97 and 98, by arguments that no kernel takes."""
    everywhere = {*seccomp._DENIED, *ABSENT, "personality"} & numbers_here().keys()
    in_sight = (IN_SIGHT | ABSENT_IN_SIGHT) & numbers_here().keys()

    report, result = await jail.attack(CALLS)
    unconfined, _ = await jail.control(CALLS, {"is_free": True})

    assert report.keys() == everywhere | in_sight, result
    expected = {name: "denied:ENOSYS" if name in ABSENT else "denied:EPERM" for name in everywhere}
    assert {name: report[name] for name in everywhere} == expected
    if jail.tier == "landlock":
        expected = {name: "denied:ENOSYS" if name in ABSENT_IN_SIGHT else "denied:EPERM" for name in in_sight}
        assert {name: report[name] for name in in_sight} == expected
    if IS_ROOT:
        passed = {name for name in unconfined if unconfined[name] != report[name]}
        too_old = {name for name, said in unconfined.items() if said == "denied:ENOSYS"}
        assert everywhere - {"vhangup"} <= passed | too_old


def test_case_100_the_filters_numbers_are_the_kernels() -> None:
    """Against a table made from the kernel's own headers, and against those of this machine where it has them."""
    tables = (
        *(seccomp._NOT_THERE, seccomp._NOT_THERE_IN_SIGHT_OF_THE_HOST),
        *(seccomp._DENIED, seccomp._DENIED_IN_SIGHT_OF_THE_HOST, seccomp._ONLY_FOR_ITSELF),
    )
    filters = {name: numbers for table in tables for name, numbers in table.items()}
    named = {"clone": seccomp._CLONE, "ioctl": seccomp._IOCTL, "socket": seccomp._SOCKET}
    filters |= {**named, "personality": seccomp._PERSONALITY, "socketpair": seccomp._SOCKETPAIR, "mmap": seccomp._MMAP}

    both = {name: numbers if isinstance(numbers, tuple) else (numbers, numbers) for name, numbers in filters.items()}

    assert both == {name: NUMBERS[name] for name in both}
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if header.exists():
        lines = re.findall(r"^#define __NR_(\w+) (\d+)$", header.read_text(), re.MULTILINE)
        known = {name: int(number) for name, number in lines}
        here = numbers_here()
        assert {name: here[name] for name in here.keys() & known} == {name: known[name] for name in here.keys() & known}


async def test_case_8_no_process_is_traced(jail: Jail) -> None:
    """Not even a child, which a kernel lets everybody trace."""
    code = """
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        targets = {"child": child, "parent": os.getppid(), "first": 1, "victim": arguments["victim"]}
        for label, pid in targets.items():
            for name, request in (("attach", 16), ("seize", 0x4206)):
                if attempt(f"{name} {label}", call, "ptrace", request, pid, 0, 0) and name == "attach":
                    os.waitpid(pid, 0x40000000)  # __WALL, until it is stopped
                    call("ptrace", 17, pid, 0, 0)
            attempt(f"memory {label}", lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR)))
            here = ctypes.create_string_buffer(8)
            vector = struct.pack("PN", ctypes.addressof(here), 8)
            attempt(f"read {label}", call, "process_vm_readv", pid, vector, 1, vector, 1, 0)
            attempt(f"write {label}", call, "process_vm_writev", pid, vector, 1, vector, 1, 0)
            attempt(f"same {label}", call, "kcmp", pid, os.getpid(), 0, 0, 0)
        os.kill(child, signal.SIGKILL)
        """
    with victim(jail.mark) as pid:
        report, result = await jail.attack(code, {"victim": pid})
        state = state_of(pid)
    # A victim of the host's own user, and not its parent, a keeper, which would be stopped.
    with victim(jail.mark, **OUR_OWN) as pid:
        free = code.replace('"parent": os.getppid(), "first": 1, ', "")
        unconfined, _ = await jail.control(free, {"victim": pid})

    assert state == "S"

    # Case 10: the memory of its own child, and of bubblewrap's own first process, is the call's.
    own = {"memory child"} | ({"memory first", "memory parent"} if jail.tier == "single" else set())
    assert len(report) == 24, result
    assert allowed(report).keys() <= own
    assert {name: said for name, said in report.items() if not name.startswith("memory")} == dict.fromkeys(
        [name for name in report if not name.startswith("memory")], "denied:EPERM"
    )
    assert {"attach child", "read child", "same child", "memory child"} <= allowed(unconfined).keys()


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
@as_every_user
async def test_case_10_the_first_process_of_a_container_keeps_to_itself(jail: Jail, user: dict[str, Any]) -> None:
    code = """
        for name in ("mem", "environ", "maps", "auxv", "syscall", "stack", "io", "personality", "timers"):
            attempt(f"read {name}", read, f"/proc/1/{name}", "rb")
            attempt(f"write {name}", lambda: os.close(os.open(f"/proc/1/{name}", os.O_WRONLY)))
        for name in ("root", "cwd", "exe", "ns/user", "ns/pid", "fd/0", "fd/3", "fd/5"):
            attempt(f"follow {name}", os.readlink, f"/proc/1/{name}")
            attempt(f"open {name}", lambda: os.close(os.open(f"/proc/1/{name}", os.O_RDONLY)))
        attempt("fds", os.listdir, "/proc/1/fd")
        attempt("own environ", read, "/proc/self/environ", "rb")
        """

    report, result = await jail.attack(code, sandbox=user)

    assert result.ok
    # Its files are of root in there, who may be the user of the host: that one may count what it has open, and no more.
    assert {"own environ"} <= allowed(report).keys() <= {"own environ", "fds"}


MOUNTS = """
    def text(word):
        return word.encode()

    def mount(source, target, kind, flags):
        return call("mount", text(source), text(target), text(kind), flags, 0)

    os.mkdir("place")
    attempt("namespace", call, "unshare", 0x20000)
    if arguments.get("is_free") and not report["namespace"].startswith("allowed"):
        finish()  # the host's own mounts stay as they are
    if arguments.get("is_free"):
        mount("none", "/", "none", 0x4000 | 0x40000)
    attempt("tmpfs", mount, "tmpfs", "place", "tmpfs", 0)
    attempt("bind", mount, "/usr", "place", "none", 4096)
    attempt("proc", mount, "proc", "place", "proc", 0)
    for label, path in (("root", "/"), ("usr", "/usr"), ("proc", "/proc"), ("etc", "/etc"),
                        ("folder", arguments["folder"])):
        attempt(f"writable {label}", mount, "none", path, "none", 32 | 4096)
        attempt(f"away with {label}", call, "umount2", text(path), 2)
    attempt("root", call, "chroot", b"place")
    attempt("pivot", call, "pivot_root", b"place", b"place")
    attempt("write", write, arguments["folder"] + "/secret")
    """


@as_every_user
async def test_case_20_and_24_mounts_stay_as_they_are(jail: Jail, user: dict[str, Any]) -> None:
    arguments = {"folder": str(jail.host.folder)}

    report, result = await jail.attack(MOUNTS, arguments, sandbox={**user, "read": [jail.host.folder]})
    touched = jail.host.touched()
    unconfined, _ = await jail.control(MOUNTS, {**arguments, "is_free": True})

    write = report.pop("write")
    assert report == dict.fromkeys(report, "denied:EPERM"), result
    assert len(report) == 16
    assert write == ("denied:EROFS" if jail.is_apart else "denied:EACCES")
    assert touched == []
    if IS_ROOT:
        assert {"namespace", "tmpfs", "bind", "proc"} <= allowed(unconfined).keys()


NAMESPACES = """
    kinds = {"ns": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
             "pid": 0x20000000, "net": 0x40000000, "time": 0x80}

    def child(flags):
        pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "made"

    def child3(flags):
        pid = call("clone3", struct.pack("8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "made"

    """
MADE = (
    NAMESPACES
    + """
    for name in ("uts", "user"):
        attempt(f"clone {name}", child, kinds[name])
        attempt(f"clone3 {name}", child3, kinds[name])
    """
)
NAMESPACES += """
    for name, flags in kinds.items():
        attempt(f"unshare {name}", lambda: in_child(call, "unshare", flags) and checked(call("unshare", flags)))
        if name != "time":
            attempt(f"clone {name}", child, flags)
            attempt(f"clone high {name}", child, flags | 1 << 40)
        attempt(f"clone3 {name}", child3, flags)
        for pid in (1, os.getppid(), arguments["victim"]):
            label = {1: "first", arguments["victim"]: "victim"}.get(pid, "parent")
            attempt(f"join {name} of {label}", lambda: call("setns", os.open(f"/proc/{pid}/ns/{name}", 0), flags))
    try:
        handle = os.pidfd_open(arguments["victim"])
    except OSError:
        handle = -1
    attempt("join by handle", call, "setns", handle, 0x20000)
    attempt("plain child", child, 0)
    """


@as_every_user
async def test_case_22_and_23_a_tool_makes_and_joins_no_namespace(jail: Jail, user: dict[str, Any]) -> None:
    with victim(jail.mark) as pid:
        report, result = await jail.attack(NAMESPACES, {"victim": pid}, sandbox=user)
        # Only what is made and not entered: a tool unconfined would have a hard time to report from another.
        unconfined, _ = await jail.control(MADE)

    assert report.pop("plain child") == "allowed:'made'", result
    assert len(report) == 8 * (4 if jail.is_apart else 5) + 7 * 2 + 1  # there its parent is the first
    assert allowed(report) == {}
    clones = {label: said for label, said in report.items() if label.startswith("clone")}
    assert clones == {label: "denied:ENOSYS" if label.startswith("clone3") else "denied:EPERM" for label in clones}
    if IS_ROOT:
        assert len(allowed(unconfined)) == 4


RIGHTS = """
    def capabilities():
        header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        checked(libc.capget(header, data))
        return struct.unpack("=6I", data.raw)

    def run(*command):
        out, into = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(into, 1)
            if arguments.get("become"):
                os.setgroups([])
                os.setgid(arguments["become"])
                os.setuid(arguments["become"])
            try:
                os.execv(command[0], command)
            finally:
                os._exit(126)
        os.close(into)
        os.waitpid(pid, 0)
        return os.read(out, 100).decode().strip()

    report["capabilities"] = capabilities()
    report["bounding"] = sum(libc.prctl(23, number, 0, 0, 0) == 1 for number in range(41))
    report["no new"] = libc.prctl(39, 0, 0, 0, 0)
    report["filter"] = libc.prctl(21, 0, 0, 0, 0)
    report["uid"] = str(os.geteuid())
    if arguments.get("setuid"):
        report["by setuid"] = run(arguments["setuid"], "-u")
        report["by capability"] = run(arguments["capable"], arguments["locked"])
    own = os.path.abspath("own")
    with open("/usr/bin/id", "rb") as program, os.fdopen(os.open(own, os.O_CREAT | os.O_WRONLY, 0o6755), "wb") as copy:
        copy.write(program.read())
    report["by own"] = run(own, "-u")
    attempt("setuid", os.setuid, 0 if os.getuid() else 1234)
    attempt("groups", os.setgroups, [0])
    header = struct.pack("=Ii", 0x20080522, 0)
    attempt("raise", lambda: checked(libc.capset(header, struct.pack("=6I", *[1 << 21] * 6))))
    attempt("ambient", lambda: checked(libc.prctl(47, 2, 21, 0, 0)))
    """


@as_every_user
async def test_case_25_to_27_no_program_gives_rights(jail: Jail, user: dict[str, Any]) -> None:
    """Programs of root's with the setuid bit and with a capability: where the host is root, it makes them."""
    arguments: dict[str, Any] = {}
    if IS_ROOT:
        setuid, capable, locked = (jail.host.folder / name for name in ("setuid", "capable", "locked"))
        shutil.copy("/usr/bin/id", setuid)
        setuid.chmod(0o4755)
        shutil.copy("/usr/bin/cat", capable)
        capable.chmod(0o755)
        # Version 2, effective; CAP_DAC_READ_SEARCH, which opens every file. Source: linux/capability.h.
        os.setxattr(capable, "security.capability", struct.pack("<5I", 0x02000001, 1 << 2, 0, 0, 0))
        locked.write_text(jail.host.word)
        locked.chmod(0o600)
        os.chown(locked, 12345, 12345)  # so that root needs that capability as well
        arguments = {"setuid": str(setuid), "capable": str(capable), "locked": str(locked)}

    report, result = await jail.attack(RIGHTS, arguments, sandbox={**user, "read": [jail.host.folder]})
    unconfined, _ = await jail.control(RIGHTS, {**arguments, "become": NOBODY} if IS_ROOT else arguments)

    assert result.ok
    uid = "0" if user else str(NOBODY if IS_ROOT else os.geteuid())
    assert (report["uid"], report["by own"]) == (uid, uid)
    assert report["capabilities"] == [0] * 6
    # A plain user may not change what bounds it; without new privileges nothing comes of it.
    assert report["bounding"] == 0 or (jail.tier == "landlock" and not IS_ROOT)
    assert (report["no new"], report["filter"]) == (1, 2)
    assert allowed({name: report[name] for name in ("setuid", "groups", "raise", "ambient")}) == {}
    if IS_ROOT:
        assert report["by setuid"] == uid
        assert report["by capability"] == ""
        assert (unconfined["by setuid"], unconfined["by capability"]) == ("0", jail.host.word)
    assert (unconfined["no new"], unconfined["filter"]) == (0, 0)


async def test_case_33_there_is_one_kind_of_system_call(jail: Jail) -> None:
    """The numbers of 32-bit programs mean other calls: whoever uses them is ended. x32's are not there."""
    code = """
        import mmap
        page = mmap.mmap(-1, 4096, prot=7)
        page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        report["i386"] = in_child(ctypes.CFUNCTYPE(ctypes.c_int)(start))
        attempt("x32 getpid", call, 0x40000000 | 39)
        attempt("x32 mount", call, 0x40000000 | 165, 0, 0, 0, 0, 0)
        attempt("getpid", lambda: call("getpid") == os.getpid())
        """
    if platform.machine() != "x86_64":
        code = code[code.index('attempt("getpid"') :]

    report, result = await jail.attack(code)
    unconfined, _ = await jail.control(code)

    assert report.pop("getpid") == "allowed:True", result
    if report:
        assert report == {"i386": -signal.SIGSYS, "x32 getpid": "denied:ENOSYS", "x32 mount": "denied:ENOSYS"}
        assert unconfined["i386"] != -signal.SIGSYS


@as_every_user
async def test_case_35_a_tool_makes_no_devices(jail: Jail, user: dict[str, Any]) -> None:
    code = """
        for name, kind, device in (("null", stat.S_IFCHR, (1, 3)), ("memory", stat.S_IFCHR, (1, 1)),
                                   ("loop", stat.S_IFBLK, (7, 0)), ("fuse", stat.S_IFCHR, (10, 229))):
            for place in (".", os.environ["TMPDIR"], "/dev/shm"):
                attempt(f"{name} in {place}", os.mknod, f"{place}/{name}", kind | 0o666, os.makedev(*device))
        """

    report, result = await jail.attack(code, sandbox=user)
    unconfined, _ = await jail.control(code.replace(', "/dev/shm"', "").replace(', os.environ["TMPDIR"]', ""))

    assert len(report) == 12, result
    assert allowed(report) == {}
    assert len(allowed(unconfined)) == (4 if IS_ROOT else 0)


async def test_case_41_nothing_of_a_process_outside_is_changed(jail: Jail) -> None:
    """A victim of the same user: its priority, its limits, its processors, and its life."""
    code = """
        pid, uid = arguments["victim"], os.getuid()
        attempt("priority", os.setpriority, os.PRIO_PROCESS, pid, 19)
        attempt("priority of all", os.setpriority, os.PRIO_USER, uid, 18)
        attempt("io of all", call, "ioprio_set", 3, uid, 3 << 13)
        attempt("io", call, "ioprio_set", 1, pid, 3 << 13)
        attempt("limit", call, "prlimit64", pid, 7, struct.pack("QQ", 5, 5), 0)
        attempt("processors", os.sched_setaffinity, pid, {0})
        attempt("scheduler", os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0))
        attempt("session", os.getsid, pid)
        attempt("group", os.setpgid, pid, 0)

        def steered():
            # The kernel sends SIGIO, which ends a program, to whom a pipe is said to belong.
            out, into = os.pipe()
            fcntl.fcntl(out, fcntl.F_SETOWN, pid)
            fcntl.fcntl(out, fcntl.F_SETFL, fcntl.fcntl(out, fcntl.F_GETFL) | os.O_ASYNC)
            os.write(into, b"x")
            return "sent"

        if "is_free" not in arguments:
            attempt("steered signal", steered)
            attempt("queued signal", lambda: checked(libc.sigqueue(pid, signal.SIGTERM, None)))
            attempt("signal", os.kill, pid, signal.SIGKILL)
            attempt("signal to the group", os.killpg, pid, signal.SIGKILL)
            attempt("by handle", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
        """

    def state(pid: int) -> tuple[object, ...]:
        limits = Path(f"/proc/{pid}/limits").read_text()
        return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getaffinity(pid), os.sched_getscheduler(pid), limits

    with victim(jail.mark, start_new_session=True) as pid:
        before = state(pid)
        report, result = await jail.attack(code, {"victim": pid})
        await trio.sleep(0.05)  # a signal takes a moment
        after, alive = state(pid), state_of(pid)
    free = code.replace("os.PRIO_USER, uid", "os.PRIO_PROCESS, pid").replace("3, uid, 3", "1, pid, 3")
    with victim(jail.mark, start_new_session=True, **OUR_OWN) as pid:
        unconfined, _ = await jail.control(free, {"victim": pid, "is_free": True})
        changed = state(pid)

    assert len(report) == 14, result
    assert (after, alive) == (before, "S")
    # Of all processes of a user those in sight are meant: in a container, the call's own. In the other, a pipe may have
    # any owner; the signal does not arrive.
    mine = {"priority of all", "io of all"} if jail.is_apart else {"session", "steered signal"}
    assert allowed(report).keys() <= mine
    assert {"priority", "limit", "processors", "scheduler"} <= allowed(unconfined).keys()
    assert changed != before


async def test_case_99_no_program_of_another_system_is_run(jail: Jail) -> None:
    """Where Windows runs Linux, its programs run outside of everything: by /init, and by what is registered."""
    code = """
        with open("program.exe", "wb") as file:
            file.write(b"MZ" + bytes(510))
        os.chmod("program.exe", 0o755)

        def run(path):
            out, into = os.pipe2(os.O_CLOEXEC)
            pid = os.fork()
            if pid == 0:
                try:
                    os.execv(path, [path, "x"])
                except OSError as error:
                    os.write(into, b"%d" % error.errno)
                os._exit(0)
            os.close(into)
            os.waitpid(pid, 0)
            said = os.read(out, 9)
            if said:
                raise OSError(int(said), "exec")

        attempt("exe", run, "./program.exe")
        attempt("init", run, "/init")
        attempt("windows", os.listdir, "/mnt/c")
        attempt("register", lambda: os.close(os.open("/proc/sys/fs/binfmt_misc/register", os.O_WRONLY)))
        attempt("interop", os.listdir, "/run/WSL")
        attempt("own", run, "/bin/true")
        """

    report, result = await jail.attack(code)

    assert report.pop("own") == "allowed:None", result
    assert len(report) == 5
    assert allowed(report) == {}


def watching() -> list[int]:
    """Return the supervisors and keepers below this process."""
    return [pid for pid in descendants_of(os.getpid()) if pid in processes_with(SUPERVISOR)]


# What kills and what stops whom, after a process of another session was left behind. `others` are the host's numbers.
ENDINGS = {
    "kill its parent": "os.kill(os.getppid(), signal.SIGKILL)",
    "stop its parent": "os.kill(os.getppid(), signal.SIGSTOP)",
    "kill its init": "os.kill(1, signal.SIGKILL)",
    "stop its init": "os.kill(1, signal.SIGSTOP)",
    "kill its supervisor": "[os.kill(pid, signal.SIGKILL) for pid in arguments['others']]",
    "stop its supervisor": "[os.kill(pid, signal.SIGSTOP) for pid in arguments['others']]",
    "kill all": "os.kill(-1, signal.SIGKILL)",
    "kill its group": "os.killpg(0, signal.SIGKILL)",
    "kill its parents group": "os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)",
    "every signal": "[attempt(str(n), os.kill, os.getppid(), n) for n in range(1, 65) if n not in (32, 33)]",
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_case_39_and_40_whoever_is_killed_nothing_survives_and_others_go_on(jail: Jail, ending: str) -> None:
    """Whatever it does to what watches over it: another scope's call ends well, and the runner serves the next."""
    jail.add("slow", "write('started'); time.sleep(0.6); report['said'] = 'slow'")
    jail.add("quick", "report['said'] = 'quick'")
    jail.add(
        "attack",
        f"""
        leave_behind()
        with open("attacked", "w") as file:
            file.write("x")
        try:
            {ENDINGS[ending]}
        except OSError as error:
            report["denied"] = errno.errorcode[error.errno]
        report["said"] = "attack"
        time.sleep(0.1)
        """,
    )
    found: dict[str, heddle.ToolResult] = {}

    async with jail.runner() as runner:
        async with runner.scope() as other, runner.scope() as scope, trio.open_nursery() as nursery:

            async def slow() -> None:
                found["slow"] = await other.call("slow")

            nursery.start_soon(slow)
            assert await until((other.workspace.path / "started").exists, 5)
            arguments = {"others": [*watching(), os.getpid(), os.getppid()]}
            began = time.monotonic()
            found["attack"] = await scope.call("attack", arguments, limits=heddle.Limits(wall_seconds=5))
            took = time.monotonic() - began
            survivors = jail.strays()
            attacked = (scope.workspace.path / "attacked").exists()
            found["same scope"] = await scope.call("quick")
        found["next"] = await runner.call("quick")
    left = watching()

    assert attacked
    assert survivors == []
    assert took < 4  # and not because its time was over
    assert {name: reported(result).get("said") for name, result in found.items() if name != "attack"} == {
        "slow": "slow",
        "same scope": "quick",
        "next": "quick",
    }, found
    assert jail.strays() == []
    assert left == []
    if jail.is_apart and ending not in {"kill all", "kill its group", "kill its parents group"}:
        assert reported(found["attack"])["said"] == "attack"


async def test_case_39_signals_to_the_host_and_to_who_watches_are_denied(jail: Jail) -> None:
    """Landlock, since its version 6: nothing but its own keeper, which began the restriction, is in reach."""
    code = """
        for number, pid in enumerate(arguments["others"]):
            attempt(str(number), os.kill, pid, 0)
        attempt("pid of the host", os.kill, arguments["host"], 0)
        """
    jail.add("attack", code)

    async with jail.runner() as runner, runner.scope() as scope:
        await scope.call("attack", {"others": [], "host": os.getpid()})
        others = watching()
        result = await scope.call("attack", {"others": others, "host": os.getpid()})
    unconfined, _ = await jail.control(code, {"others": [], "host": os.getpid()})

    report = reported(result)
    assert len(others) >= 2
    assert report.pop("pid of the host") == ("denied:ESRCH" if jail.is_apart else "denied:EPERM")
    assert len(allowed(report)) <= (0 if jail.is_apart else 1), report
    assert unconfined == {"pid of the host": "allowed:None"}


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_case_40_a_call_sees_the_processes_of_nobody_else(jail: Jail) -> None:
    jail.add("slow", "write('started'); time.sleep(0.5)")
    pids = "report['pids'] = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
    jail.add("attack", pids + "\nreport['own'] = os.getpid()")
    found: list[heddle.ToolResult] = []

    async with jail.runner() as runner, runner.scope() as scope, trio.open_nursery() as nursery:
        nursery.start_soon(scope.call, "slow")
        assert await until((scope.workspace.path / "started").exists, 5)
        found.append(await scope.call("attack"))

    report = reported(found[0])
    assert report == {"pids": [1, report["own"]], "own": report["own"]}
    assert report["own"] < 10
