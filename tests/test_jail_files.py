"""Attacks on files: what a tool reads and writes of the host's is what it was granted, in every tier."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import stat
import subprocess
import sys
import tempfile
import termios
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import heddle
from heddle.process.confined import ConfinedLauncher
from heddle.workspace.removal import remove_tree
from tests.jail import APART, Jail, allowed, in_each_tier, reported  # noqa: F401 - a fixture
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator

IS_ROOT = os.geteuid() == 0
NOBODY = 65534
# As whom tools run. Only a host that is root has a choice, and one that stays root is the harder case.
USERS: list[dict[str, Any]] = [{}, {"run_as": 0}] if IS_ROOT else [{}]
as_every_user = pytest.mark.parametrize("user", USERS, ids=["usual", "root"][: len(USERS)])


@contextmanager
def victim(mark: str, **more: Any) -> Iterator[int]:
    """A process of the host's which tools must not reach, of the user that they run as."""
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if IS_ROOT else {}
    with subprocess.Popen(["sleep", mark], cwd="/", **{**user, **more}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@as_every_user
async def test_case_1_and_2_secrets_in_a_home_are_out_of_reach(jail: Jail, user: dict[str, Any]) -> None:
    """Known gap: under Landlock a tool can ask whether a file is there, and how large it is."""
    code = """
        for place in ("key", "secret"):
            attempt(f"read {place}", read, arguments[place])
        for place in ("home", "folder"):
            attempt(f"list {place}", os.listdir, arguments[place])
        try:
            report["parent"] = os.listdir(os.path.dirname(arguments["home"]))
        except OSError:
            report["parent"] = []
        attempt("stat", lambda: os.stat(arguments["secret"]).st_size)
        """
    host = jail.host
    arguments = {name: str(getattr(host, name)) for name in ("key", "secret", "home", "folder")}

    report, result = await jail.attack(code, arguments, sandbox=user)
    unconfined, _ = await jail.control(code, arguments)

    assert len(report) == 6, result
    size, parent = report.pop("stat"), report.pop("parent")
    assert allowed(report) == {}
    assert size == ("denied:ENOENT" if jail.is_apart else "allowed:32")
    assert host.home.name not in parent  # the way to the host's interpreter may be
    assert unconfined["read key"] == unconfined["read secret"] == f"allowed:{host.word!r}"
    assert host.home.name in unconfined["parent"]
    assert len(allowed(unconfined)) == 5
    assert host.touched() == []


async def test_a_folder_that_is_granted_can_be_read_and_not_written(jail: Jail) -> None:
    """The control of what a policy does: of the same attacks, the grant lets through one."""
    code = """
        attempt("read", read, arguments["secret"])
        attempt("write", write, arguments["secret"])
        """
    arguments = {"secret": str(jail.host.secret)}

    readable, _ = await jail.attack(code, arguments, sandbox={"read": [jail.host.folder]})
    writable, _ = await jail.attack(code, arguments, sandbox={"write": [jail.host.folder]})

    assert readable == {
        "read": f"allowed:{jail.host.word!r}",
        "write": "denied:EROFS" if jail.is_apart else "denied:EACCES",
    }
    assert writable == {"read": f"allowed:{jail.host.word!r}", "write": "allowed:None"}
    assert jail.host.touched() == ["secret"]


@as_every_user
async def test_case_3_the_passwords_of_the_machine_are_out_of_reach(jail: Jail, user: dict[str, Any]) -> None:
    code = """
        for name in ("shadow", "gshadow", "sudoers", "shadow-"):
            attempt(name, lambda: len(read(f"/etc/{name}", "rb")))
        for name in ("ssl/private", "ssh", "sudoers.d"):
            attempt(name, lambda: [read(f"/etc/{name}/{each}", "rb") for each in os.listdir(f"/etc/{name}")])
        attempt("passwd", lambda: len(read("/etc/passwd")) > 0)
        """

    report, result = await jail.attack(code, sandbox=user)
    unconfined, _ = await jail.control(code)

    assert report.pop("passwd") == "allowed:True", result
    if not user:
        # Nobody's own rights are held by the files' modes: what everybody may read there is no secret.
        report = {name: said for name, said in report.items() if name not in {"ssh", "sudoers.d"}}
    assert allowed(report) == {}
    assert unconfined["shadow"].startswith("allowed:" if IS_ROOT else "denied:EACCES")


async def test_case_4_keys_in_the_hosts_environment_stay_there(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "report['environ'] = dict(os.environ)"
    keys = dict.fromkeys(("FAKE_API_KEY", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_"), jail.host.word)
    keys |= {"PYTHONPATH": f"/{jail.host.word}", "DBUS_SESSION_BUS_ADDRESS": jail.host.word, "XDG_RUNTIME_DIR": "/run"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)

    report, result = await jail.attack(code)
    unconfined, _ = await jail.control(code, environment=heddle.Environment(allow=["*"]))

    seen = report["environ"]
    usual = {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "PWD", "LC_CTYPE"}
    assert result.ok
    assert {name for name in seen if not name.startswith(("HEDDLE_", "LC_"))} <= usual
    assert jail.host.word not in json.dumps(seen)
    assert keys.items() <= unconfined["environ"].items()


async def test_case_5_to_7_no_process_in_sight_shows_what_the_host_knows(
    jail: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bubblewrap's own first process too: its environment and its arguments can be read by the tool."""
    monkeypatch.setenv("FAKE_API_KEY", jail.host.word)
    code = """
        found, texts = [], []
        pids = {str(pid) for pid in (*range(1, 50), *arguments["pids"])}
        try:
            pids |= {name for name in os.listdir("/proc") if name.isdigit()}
        except OSError:
            report["list"] = "denied"
        for pid in pids:
            for name in ("environ", "cmdline", "maps", "status", "mountinfo", "task", "fd",
                         "cwd", "root", "exe", "mem"):
                path = f"/proc/{pid}/{name}"
                try:
                    if name in ("task", "fd"):
                        text = " ".join(os.listdir(path) and [path, *map(str, os.listdir(path))])
                    elif name in ("cwd", "root", "exe"):
                        text = os.readlink(path)
                    elif name == "mem":
                        os.close(os.open(path, os.O_RDONLY))
                        text = "opened"
                    else:
                        text = read(path, "rb").decode("latin-1")
                except OSError:
                    continue
                if int(pid) in arguments["pids"]:
                    found.append(name)
                if name in ("environ", "cmdline"):
                    texts.append(text)
        report["found"] = sorted(set(found))
        report["texts"] = "".join(texts)
        """
    with victim(jail.mark, env={"FAKE_API_KEY": jail.host.word}) as pid:
        arguments = {"pids": [os.getpid(), pid]}

        report, result = await jail.attack(code, arguments, sandbox={"read": [jail.host.folder]})
        unconfined, _ = await jail.control(code, arguments)

    assert result.ok
    assert report["found"] == []
    assert jail.host.word not in report["texts"]
    assert str(jail.host.folder) not in report["texts"]
    assert jail.mark not in report["texts"]
    assert {"cmdline", "cwd", "environ", "fd", "maps", "mem", "root"} <= set(unconfined["found"])
    assert jail.host.word in unconfined["texts"]


OUTSIDE = """
    secret, folder = arguments["secret"], arguments["folder"]
    up = "../" * 40
    os.mkdir("inner")
    os.symlink(secret, "to-secret")
    os.symlink(folder, "to-folder")
    os.symlink("/", "to-root")
    write("mine")
    for label, path in (("absolute", secret), ("up", up + secret), ("inner", "inner/.." + f"/{up}" + secret),
                        ("own root", "/proc/self/root" + secret), ("own cwd", "/proc/self/cwd/" + up + secret),
                        ("link", "to-secret"), ("root link", "to-root" + secret),
                        ("folder link", "to-folder/secret")):
        attempt(f"read by {label}", read, path)
        attempt(f"write by {label}", write, path)
    for label, place in (("absolute", folder), ("up", up + folder), ("folder link", "to-folder"),
                         ("root link", "to-root" + folder)):
        attempt(f"create by {label}", write, f"{place}/new")
        attempt(f"folder by {label}", os.mkdir, f"{place}/made")
        attempt(f"link by {label}", os.symlink, "/", f"{place}/linked")
        attempt(f"pipe by {label}", os.mkfifo, f"{place}/pipe")
        attempt(f"cut by {label}", os.truncate, f"{place}/secret", 0)
        attempt(f"out by {label}", os.rename, "mine", f"{place}/stolen")
        if os.path.lexists(f"{place}/stolen"):
            write("mine")
        attempt(f"hard link out by {label}", os.link, "mine", f"{place}/same")
        attempt(f"hard link in by {label}", os.link, f"{place}/secret", f"in-{label}")
        # 2: change the two for each other.
        attempt(f"exchange by {label}", call, "renameat2", -100, b"mine", -100, f"{place}/secret".encode(), 2)
        attempt(f"in by {label}", os.rename, f"{place}/secret", "in")
        attempt(f"remove by {label}", os.unlink, f"{place}/secret")
    """
# Which of them a host that moves files across file systems does not let through either.
ACROSS = ("out by", "in by", "hard link", "exchange by")


@as_every_user
async def test_case_11_to_15_nothing_outside_is_changed_by_any_way(jail: Jail, user: dict[str, Any]) -> None:
    """Absolute paths, ways up, links of both kinds, files moved out and in, /proc/self/root."""
    arguments = {"secret": str(jail.host.secret), "folder": str(jail.host.folder)}

    report, result = await jail.attack(OUTSIDE, arguments, sandbox=user)
    touched = jail.host.touched()
    unconfined, _ = await jail.control(OUTSIDE, arguments)

    assert len(report) == 16 + 4 * 11, result
    assert allowed(report) == {}
    assert set(report.values()) <= {"denied:ENOENT", "denied:EACCES", "denied:EXDEV", "denied:EROFS"}
    assert touched == []
    assert jail.host.touched() == ["secret", "folder"]
    first = {label: said for label, said in unconfined.items() if label.endswith(("by absolute", "by link"))}
    assert {label for label in first if label not in allowed(first) and not label.startswith(ACROSS)} <= {
        "remove by absolute"  # it was moved before
    }


@as_every_user
async def test_case_11_programs_and_settings_of_the_system_stay_as_they_are(jail: Jail, user: dict[str, Any]) -> None:
    """Also inside of the container: what one call leaves there is no other call's program."""
    code = """
        name = "heddle-" + MARK
        places = ("/", "/usr", "/usr/bin", "/bin", "/lib", "/etc", "/opt", "/dev", "/proc", "/run",
                  "/var/tmp", "/root", "/home", "/var", "/srv", "/mnt", "/sys", "/sys/fs/cgroup", "/proc/self",
                  "/proc/sys/kernel", arguments["parent"])
        for place in places:
            attempt(f"create in {place}", write, f"{place}/{name}")
            attempt(f"folder in {place}", os.mkdir, f"{place}/{name}.d")
        for path in ("/etc/passwd", "/bin/sh", "/usr/bin/env", "/etc/hosts"):
            attempt(f"append to {path}", lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)))
        """
    workspaces = str(Path(os.environ["TMPDIR"]))

    report, result = await jail.attack(code, {"parent": workspaces}, sandbox=user)

    assert len(report) == 46, result
    if jail.is_apart:  # its own /tmp, over whatever the host's TMPDIR is
        report = {label: said for label, said in report.items() if not label.endswith(f" {workspaces}")}
    assert allowed(report) == {}
    for place in ("/", "/usr/bin", "/etc", "/opt", "/dev", "/var/tmp", workspaces):
        assert [name for name in os.listdir(place) if jail.mark in name] == []


async def test_case_13_a_readable_file_does_not_become_writable_by_another_name(jail: Jail) -> None:
    """The tool's own file is in the file system of its workspace: a second name there would be writable."""
    code = """
        own = arguments["tool"]
        attempt("link", os.link, own, "same")
        attempt("rename", os.rename, own, "moved")
        attempt("exchange", lambda: (write("mine"), call("renameat2", -100, b"mine", -100, own.encode(), 2)))
        attempt("by descriptor", lambda: os.link(f"/proc/self/fd/{os.open(own, os.O_RDONLY)}", "same2"))
        """
    arguments = {"tool": str(jail.add("attack", code))}
    before = Path(arguments["tool"]).read_bytes()

    report, result = await jail.attack(code, arguments)
    content = Path(arguments["tool"]).read_bytes()
    unconfined, _ = await jail.control(code, arguments)

    assert len(report) == 4, result
    assert allowed(report) == {}
    assert content == before
    assert {"link", "rename"} <= set(allowed(unconfined))


@as_every_user
async def test_case_15_every_root_in_sight_is_the_tools_own(jail: Jail, user: dict[str, Any]) -> None:
    code = """
        report["seen"] = {}
        for pid in ["self", "thread-self", *map(str, range(1, 40)), str(os.getppid())]:
            for way in ("root", "cwd", "root/proc/1/root", "task/1/root"):
                for target in ("secret", "key"):
                    up = "/.." * 30 if way == "cwd" else ""
                    attempt(f"{pid} {way} {target}", read, f"/proc/{pid}/{way}{up}{arguments[target]}")
        """
    arguments = {"secret": str(jail.host.secret), "key": str(jail.host.key)}

    report, result = await jail.attack(code, arguments, sandbox=user)
    unconfined, _ = await jail.control(code, arguments)

    assert len(report) > 300, result
    assert allowed(report) == {}
    assert allowed(unconfined)["self root secret"] == f"allowed:{jail.host.word!r}"
    assert jail.host.touched() == []


async def test_case_16_a_file_opened_for_reading_is_not_opened_again_for_writing(jail: Jail) -> None:
    code = """
        fd = os.open(arguments["secret"], os.O_RDONLY)
        again = f"/proc/self/fd/{fd}"
        attempt("write", lambda: os.write(os.open(again, os.O_RDWR), b"touched"))
        attempt("cut", os.truncate, again, 0)
        attempt("own descriptor", os.write, fd, b"touched")
        """
    arguments = {"secret": str(jail.host.secret)}

    report, result = await jail.attack(code, arguments, sandbox={"read": [jail.host.folder]})
    touched = jail.host.touched()
    unconfined, _ = await jail.control(code, arguments)

    denied = "denied:EROFS" if jail.is_apart else "denied:EACCES"
    assert report == {"write": denied, "cut": denied, "own descriptor": "denied:EBADF"}, result
    assert touched == []
    assert set(allowed(unconfined)) == {"write", "cut"}


async def test_case_17_a_tool_has_three_descriptors(jail: Jail) -> None:
    """bubblewrap passes on what it is given, so nothing may be given by accident."""
    code = """
        def is_open(fd):
            try:
                return fcntl.fcntl(fd, fcntl.F_GETFD) >= 0
            except OSError:
                return False
        report["open"] = [fd for fd in range(4096) if is_open(fd)]
        report["read"] = []
        for fd in report["open"][3:]:
            try:
                report["read"] += [fd] if os.pread(fd, 100, 0).decode() == arguments["word"] else []
            except OSError:
                pass  # no file

        """
    secret = os.open(jail.host.secret, os.O_RDONLY)
    high = fcntl.fcntl(secret, fcntl.F_DUPFD, 700)
    for fd in (secret, high):
        os.set_inheritable(fd, True)
    try:
        report, result = await jail.attack(code, {"word": jail.host.word})
        unconfined = subprocess.run(
            [jail.tools / "attack"],
            input=json.dumps({"word": jail.host.word}),
            close_fds=False,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(secret)
        os.close(high)

    assert report == {"open": [0, 1, 2], "read": []}, result
    assert high in json.loads(unconfined.stdout)["read"]


HOST_WITH_A_TERMINAL = """
import fcntl, json, os, sys, termios
import trio
import heddle
from heddle.sandbox import choice
from tests.jail import only_way, reported

tier, tools = sys.argv[1:]
choice.WAYS = only_way(tier)
backend = "landlock" if tier == "landlock" else "bubblewrap"


async def main():
    os.close(os.open("/dev/tty", os.O_RDWR))  # it has one itself
    policy = heddle.Sandbox(network="none", backend=backend)
    async with heddle.Runner(heddle.discover_tools(tools), sandbox=policy) as runner:
        result = await runner.call("attack")
    return reported(result) or {"failed": result.message}


print(json.dumps(trio.run(main)), file=sys.stderr)
"""


def test_case_18_and_19_a_tool_has_no_terminal_and_types_nothing_into_one(jail: Jail) -> None:
    """The host is started in a terminal, as a person starts it. A pipe tells the filter's answer from the kernel's."""
    jail.add(
        "attack",
        """
        report["terminals"] = [fd for fd in (0, 1, 2) if os.isatty(fd)]
        attempt("tty", os.open, "/dev/tty", os.O_RDWR)
        attempt("console", os.open, "/dev/console", os.O_RDWR)
        character = ctypes.create_string_buffer(b"x")
        for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C)):
            attempt(name, call, "ioctl", 0, request, character)
            attempt(name + " high", call, "ioctl", 0, request | 1 << 32, character)
            attempt(name + " negative", call, "ioctl", 0, request - (1 << 40), character)
        attempt("FIONREAD", call, "ioctl", 0, 0x541B, ctypes.create_string_buffer(8))
        try:
            one, other = os.openpty()
            attempt("own TIOCSTI", call, "ioctl", other, 0x5412, character)
        except OSError as error:
            report["own TIOCSTI"] = "denied:" + errno.errorcode[error.errno]
        """,
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", HOST_WITH_A_TERMINAL, jail.tier, jail.tools],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            timeout=30,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    unconfined = json.loads(
        subprocess.run([jail.tools / "attack"], input=b"{}", stdout=subprocess.PIPE, check=True).stdout
    )

    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stderr.decode().splitlines()[-1])
    assert report.pop("console") in {"denied:ENOENT", "denied:EACCES", "denied:EPERM"}
    assert report == {
        "terminals": [],
        "tty": "denied:ENXIO",
        **dict.fromkeys(["TIOCSTI", "TIOCSTI high", "TIOCSTI negative", "own TIOCSTI"], "denied:EPERM"),
        **dict.fromkeys(["TIOCLINUX", "TIOCLINUX high", "TIOCLINUX negative"], "denied:EPERM"),
        "FIONREAD": "allowed:0",
    } | ({} if jail.is_apart else {"own TIOCSTI": "denied:EACCES"})
    assert unconfined["TIOCSTI"] == unconfined["TIOCSTI high"] == unconfined["TIOCLINUX negative"] == "denied:ENOTTY"


HARMLESS = {"null", "zero", "full", "random", "urandom", "tty"}


@as_every_user
async def test_case_36_no_device_but_those_that_lead_nowhere(jail: Jail, user: dict[str, Any]) -> None:
    """Whatever devices the host has. A watchdog is left alone: who opens one and goes restarts the machine."""
    code = """
        for path in arguments["paths"]:
            attempt(path, lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))
        for name in arguments["harmless"]:
            attempt(name, lambda: os.close(os.open(f"/dev/{name}", os.O_RDWR)))
        """
    paths = {
        f"/dev/{name}" for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "net/tun")
    }
    paths |= {
        f"/dev/{name}" for name in ("loop-control", "loop0", "userfaultfd", "vhost-net", "hpet", "uinput", "ttyS0")
    }
    for folder, _, names in os.walk("/dev"):
        if not folder.startswith(("/dev/pts", "/dev/shm", "/dev/fd")):
            paths |= {f"{folder}/{name}" for name in names if not name.startswith("watchdog")}
    links = {path for path in paths if Path(path).is_symlink()}
    paths = {path for path in paths - links if not Path(path).exists() or is_device(Path(path))}
    paths -= {f"/dev/{name}" for name in (*HARMLESS, "ptmx")}
    arguments = {"paths": sorted(paths), "harmless": sorted(HARMLESS - {"tty"})}

    report, result = await jail.attack(code, arguments, sandbox=user)

    assert set(allowed(report)) == HARMLESS - {"tty"}, result
    assert len(report) == len(paths) + len(HARMLESS) - 1


def is_device(path: Path) -> bool:
    mode = path.stat().st_mode
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_case_36_dev_holds_what_is_listed(jail: Jail) -> None:
    code = "report['dev'] = sorted(os.listdir('/dev'))"

    report, _ = await jail.attack(code)
    unconfined, _ = await jail.control(code)

    links = {"fd", "stdin", "stdout", "stderr", "core", "ptmx"}
    assert set(report["dev"]) == HARMLESS | links | {"pts", "shm"} | ({"console"} & set(report["dev"]))
    assert set(unconfined["dev"]) == set(os.listdir("/dev"))


SETTINGS = """
    def for_writing(path):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # and nothing is written

    named = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
             "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register",
             "/proc/sys/kernel/unprivileged_userns_clone", "/sys/kernel/uevent_helper", "/sys/power/state",
             "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent",
             "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/kcore", "/proc/mtrr", "/proc/scsi/scsi"]
    for path in named:
        attempt(path, for_writing, path)
    count = 0
    for root in ("/proc", "/sys"):
        for folder, folders, names in os.walk(root):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
            if folder.startswith("/sys/devices"):
                folders[:] = []
            for name in names:
                path, count = f"{folder}/{name}", count + 1
                if stat.S_ISREG(os.lstat(path).st_mode) and path not in report:
                    try:
                        for_writing(path)
                    except OSError:
                        continue
                    report[path] = "allowed:found"
            if folder.count("/") > 5:
                folders[:] = []
    report["count"] = count
    try:
        report["ipc"] = os.readlink("/proc/self/ns/ipc")
    except OSError:
        pass
    """
# What belongs to a namespace that bubblewrap makes for one call, and is its user's to set, as the kernel sees it.
OF_A_NAMESPACE = (
    "/proc/sys/fs/mqueue/",
    *(f"/proc/sys/kernel/{name}" for name in ("msg", "sem", "shm", "auto_msgmni")),
)
OF_A_NAMESPACE += ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/ns_last_pid")


@as_every_user
async def test_case_37_and_38_no_setting_of_the_machine_can_be_written(jail: Jail, user: dict[str, Any]) -> None:
    """One that is root needs no capability for most of them. Opened, and never written."""
    report, result = await jail.attack(SETTINGS, sandbox=user)
    unconfined, _ = await jail.control(SETTINGS[: SETTINGS.index("    count = 0")])

    count = report.pop("count", 0)
    # Every user of the machine may ask the kernel for a word when it is short of something.
    report = {label: said for label, said in report.items() if not label.startswith("/proc/pressure/")}
    assert len(report) >= 16, result
    if jail.tier == "single" and report["ipc"] != os.readlink("/proc/self/ns/ipc"):
        report = {label: said for label, said in report.items() if not label.startswith(OF_A_NAMESPACE)}
    assert allowed(report) == {}
    assert count > 1000 if jail.is_apart else count == 0
    if IS_ROOT:
        assert "/proc/sys/kernel/core_pattern" in allowed(unconfined)


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_case_38_there_is_no_sys(jail: Jail) -> None:
    report, _ = await jail.attack(
        "attempt('list', os.listdir, '/sys')\nattempt('proc', lambda: len(os.listdir('/proc')))"
    )

    assert report["list"] == "denied:ENOENT"
    assert report["proc"].startswith("allowed:")


async def test_case_74_a_tool_changes_neither_itself_nor_its_neighbours(
    jail: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what lies where the host was started, which it does not even see."""
    code = """
        own, folder, launched = arguments["tool"], arguments["folder"], arguments["launched"]
        neighbour = f"{folder}/neighbour"
        for label, path in (("own", own), ("neighbour", neighbour), ("new", f"{folder}/new"), ("launched", launched)):
            attempt(f"write {label}", write, path)
        attempt("read launched", read, launched)
        attempt("cut", os.truncate, neighbour, 0)
        attempt("make", os.mkdir, f"{folder}/made")
        attempt("replace", lambda: (write("mine"), os.replace("mine", neighbour)))
        attempt("move the folder", os.rename, folder, folder + "-moved")
        if not os.path.isdir(folder):
            os.rename(folder + "-moved", folder)
        attempt("remove", os.unlink, neighbour)
        attempt("by its command", write, arguments["command"])
        """
    neighbour = jail.add("neighbour", "report['said'] = 'neighbour'")
    launched = jail.host.folder / "flow.yaml"
    launched.write_text("steps: []\n")
    jail.host.touched()
    monkeypatch.chdir(jail.host.folder)
    before = neighbour.read_bytes()
    arguments = {"tool": str(jail.add("attack", code)), "folder": str(jail.tools), "launched": str(launched)}
    arguments["command"] = ".heddle/bin/neighbour"

    report, result = await jail.attack(code, arguments)
    names, content, touched = sorted(os.listdir(jail.tools)), neighbour.read_bytes(), jail.host.touched()
    async with jail.runner() as runner:
        afterwards = await runner.call("neighbour")
    unconfined, _ = await jail.control(code, {**arguments, "command": str(jail.tools / "other")})

    assert len(report) == 11, result
    assert allowed(report) == {}
    assert (names, content, touched) == (["attack", "neighbour"], before, [])
    assert afterwards == heddle.Returned({"said": "neighbour"})
    assert launched.read_text() == "touched"
    assert len(allowed(unconfined)) == len(unconfined)


async def test_case_75_a_tool_that_is_replaced_on_the_host_is_the_old_one_or_the_new_one(jail: Jail) -> None:
    """The old one runs to its end; what comes after is one of the two, whole."""
    jail.add(
        "attack", "write('started')\ntime.sleep(0.6)\nreport['version'] = 1\nreport['own'] = len(read(sys.argv[0]))"
    )
    versions: list[heddle.ToolResult] = []

    async with jail.runner() as runner, runner.scope() as scope, trio.open_nursery() as nursery:

        async def call() -> None:
            versions.append(await scope.call("attack"))

        nursery.start_soon(call)
        started = scope.workspace.path / "started"
        assert await until(started.exists, 5)
        new = jail.add(".new", "report['version'] = 2\nreport['own'] = len(read(sys.argv[0]))")
        new.rename(jail.tools / "attack")
    async with jail.runner() as runner, runner.scope() as scope:
        await scope.call("attack")
        newer = jail.add(".new", "report['version'] = 3\nreport['own'] = len(read(sys.argv[0]))")
        size = newer.stat().st_size
        newer.rename(jail.tools / "attack")
        versions.append(await scope.call("attack"))

    first, second = map(reported, versions)
    assert first["version"] == 1, versions
    assert second == {"version": 3, "own": size}


async def test_case_75_a_tool_that_became_a_link_to_elsewhere_is_not_run(jail: Jail) -> None:
    """What it leads to is granted to nobody."""
    tool = jail.add("attack", "report['version'] = 1")
    elsewhere = jail.host.folder / "elsewhere"

    async with jail.runner() as runner:
        before = await runner.call("attack")
        elsewhere.write_bytes(tool.read_bytes().replace(b"'version'] = 1", b"'version'] = 6"))
        elsewhere.chmod(0o755)
        tool.unlink()
        tool.symlink_to(elsewhere)
        confined = await runner.call("attack")
    async with heddle.Runner(heddle.discover_tools(jail.tools)) as runner:
        unconfined = await runner.call("attack")

    assert before == heddle.Returned({"version": 1})
    assert isinstance(confined, heddle.Failed)
    assert unconfined == heddle.Returned({"version": 6})


async def test_case_103_what_a_tool_does_to_its_users_own_files_outside(jail: Jail) -> None:
    """Known gap of Landlock: it holds neither modes nor times, as it holds what is in a file and whose it is."""
    code = """
        secret = arguments["secret"]
        attempt("mode", os.chmod, secret, 0o600)
        attempt("times", os.utime, secret, (1, 1))
        attempt("owner", os.chown, secret, os.getuid(), os.getgid())
        attempt("attribute", os.setxattr, secret, "user.heddle", b"touched")
        attempt("attributes", os.listxattr, secret)
        attempt("content", write, secret)
        """
    if IS_ROOT:
        os.chown(jail.host.secret, NOBODY, NOBODY)
    jail.host.touched()

    report, result = await jail.attack(code, {"secret": str(jail.host.secret)})
    touched = jail.host.touched()
    mode, content = stat.S_IMODE(jail.host.secret.stat().st_mode), jail.host.secret.read_text()
    unconfined, _ = await jail.control(code, {"secret": str(jail.host.secret)})

    assert content == jail.host.word
    if jail.is_apart:
        assert report == dict.fromkeys(report, "denied:ENOENT"), result
        assert (touched, mode) == ([], 0o666)
    else:
        assert report == {
            "mode": "allowed:None",
            "times": "allowed:None",
            "owner": "denied:EPERM",
            "attribute": "denied:EPERM",
            "attributes": "allowed:[]",
            "content": "denied:EACCES",
        }, result
        assert (touched, mode) == (["secret"], 0o600)
    assert {"mode", "times", "owner", "content"} <= set(allowed(unconfined))


@pytest.mark.parametrize("inner", ["read", "write"])
async def test_case_73_a_grant_does_not_follow_a_link_that_a_tool_has_put_on_its_way(jail: Jail, inner: str) -> None:
    """One folder that is granted lies in another that may be written.

    A tool moves what is between the two, and leaves a link. It leads to a folder that is in sight of the tool as well,
    and has the same name in it: bubblewrap makes the place for a mount along the same link.
    """
    folder = Path(tempfile.mkdtemp(prefix="granted-", dir=jail.host.folder.parent))
    deep = folder / "way" / jail.host.folder.name
    deep.mkdir(parents=True)
    for path in (folder, folder / "way", deep):
        path.chmod(0o777)
    jail.add(
        "swap",
        """
        folder = arguments["folder"]
        if attempt("move", os.rename, f"{folder}/way", f"{folder}/moved"):
            os.symlink("..", f"{folder}/way")
        """,
    )
    jail.add(
        "attack",
        """
        for path in (arguments["deep"], arguments["elsewhere"]):
            attempt(f"read {path}", read, f"{path}/secret")
            attempt(f"write {path}", write, f"{path}/new")
        """,
    )
    arguments = {"folder": str(folder), "deep": str(deep), "elsewhere": str(jail.host.folder)}
    sandbox: dict[str, Any] = {"write": [folder, deep]} if inner == "write" else {"write": [folder], "read": [deep]}

    try:
        if inner == "read" and jail.tier == "landlock":
            with pytest.raises(heddle.SandboxUnavailable, match="Landlock cannot keep"):
                await jail.runner(sandbox=sandbox).__aenter__()
            return
        async with jail.runner(sandbox=sandbox) as runner:
            swapped = await runner.call("swap", arguments)
            lose_the_inner_supervisor(runner)
            afterwards = await runner.call("attack", arguments)
        touched = jail.host.touched()
        async with heddle.Runner(heddle.discover_tools(jail.tools)) as runner:
            unconfined = await runner.call("attack", arguments)
    finally:
        remove_tree(folder)

    assert "move" in reported(swapped), swapped
    assert jail.host.word not in json.dumps(reported(afterwards)), afterwards
    assert touched == []
    assert jail.host.word in json.dumps(reported(unconfined))


def lose_the_inner_supervisor(runner: heddle.Runner) -> None:
    """End the supervisor inside of bubblewrap, if there is one, as a machine that is short of memory does."""
    launcher = runner._opened().launcher
    enclosure = launcher._enclosure if isinstance(launcher, ConfinedLauncher) else None
    if enclosure is not None and enclosure._watch is not None:
        enclosure.lose(enclosure._watch)
