"""What confines runs outside the measured process, so its tests are proved another way: planted faults are caught.

Each fault is one edit of the source of what confines. A check attacks, and returns what has got through: nothing where
all is as it should be, something where a fault was planted. What holds by more than one part has a table of its own.
"""

from __future__ import annotations
import __future__

import ctypes
import functools
import inspect
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
import trio

import heddle
from heddle import Mount, runner
from heddle.process import confined, guard, supervised, supervisor
from heddle.runner import Scope
from heddle.sandbox import bubblewrap, choice, container, handles, landlock, policy, seccomp, tiers, trials
from heddle.workspace.removal import remove_tree
from tests.jail import APART, TIERS, Jail, allowed, in_each_tier, reported  # noqa: F401 - a fixture
from tests.support import SUPERVISOR, descendants_of, processes_with, until

IS_ROOT = os.geteuid() == 0
NOBODY = 65534
MIB = 1 << 20
# The tools are the host's own user: then no mode of a file stands in for what confines.
AS_THE_HOST: dict[str, Any] = {"run_as": 0} if IS_ROOT else {}
CONTAINERS, SINGLE, LANDLOCK = (("containers",), ("single",), ("landlock",))

Check: TypeAlias = Callable[[Jail], Awaitable[object]]


class Refused(Exception):
    """Nothing was run: what confines has noticed that it cannot."""


# Faults


@attrs.frozen
class Edit:
    """One change of the source of what confines.

    Attributes:
        where: A program that runs outside of this process, by its name, or a function of the host's.
        old: What is there now, once.
        new: What is there instead.
    """

    where: Any
    old: str
    new: str


@attrs.frozen
class Fault:
    """One edit, and what must notice it, in some tiers."""

    edit: Edit
    check: Check
    tiers: Sequence[str]


PROGRAMS = {"supervisor.py": Path(supervisor.__file__), "container.py": Path(container.__file__)}
# A keeper that believes in what confines it sends SIGKILL to all that it can reach. With a fault, that may be the host.
NO_KILL_OF_ALL = Edit("supervisor.py", "os.kill(-1, signal.SIGKILL)", "pass")


class Planter:
    """Puts edited sources in the place of the real ones, until the test is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self._folder = folder

    def plant(self, *edits: Edit) -> None:
        edits = edits if NO_KILL_OF_ALL in edits else (*edits, NO_KILL_OF_ALL)
        for where in dict.fromkeys(edit.where for edit in edits):
            here = [edit for edit in edits if edit.where == where]
            if isinstance(where, str):
                self._plant_program(where, here)
            else:
                self._plant_function(where, here)

    def _plant_program(self, name: str, edits: Sequence[Edit]) -> None:
        """Put a copy in a folder of its own, which everybody may read: it is handed over whole."""
        path = self._folder / Path(name).stem / name
        path.parent.mkdir(mode=0o755)
        path.write_text(edited(PROGRAMS[name].read_text(), edits))
        path.chmod(0o644)
        if name == "container.py":
            self._monkeypatch.setattr(container, "__file__", str(path))
        for module in (guard, confined):
            self._monkeypatch.setattr(module, "PROGRAM" if name == "supervisor.py" else "CONTAINER", path)

    def _plant_function(self, function: Any, edits: Sequence[Edit]) -> None:
        plain: Any = function.fget if isinstance(function, property) else inspect.unwrap(function)
        module = sys.modules[plain.__module__]
        source = edited(textwrap.dedent(inspect.getsource(plain)), edits)
        made: dict[str, Any] = {}
        exec(compile(source, module.__file__ or "", "exec", __future__.annotations.compiler_flag), vars(module), made)
        *owners, name = plain.__qualname__.split(".")
        if owners:
            self._monkeypatch.setattr(functools.reduce(getattr, owners, module), name, made[name])
            return
        # Wherever it is called by its name.
        for each in [each for key, each in sys.modules.items() if key.startswith("heddle.")]:
            if vars(each).get(name) is function:
                self._monkeypatch.setattr(each, name, made[name])


def edited(source: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        assert source.count(edit.old) == 1, edit
        source = source.replace(edit.old, edit.new)
    return source


@pytest.fixture
def planter(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planter]:
    """What works here is known before a fault is planted, and nothing that is found out then is remembered."""
    trials.probe("none")
    trials.probe("host")
    monkeypatch.setattr(trials, "_known", dict(trials._known))
    monkeypatch.setattr(choice, "_said", {*choice._said})
    monkeypatch.setattr(supervised, "GRACE_SECONDS", 0.3)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o755)
    yield Planter(monkeypatch, folder)
    remove_tree(folder)


# What checks do


async def said(jail: Jail, code: str, arguments: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return what a tool reports that was run once."""
    _, result = await jail.attack(code, arguments, **more)
    return report_of(result)


def report_of(result: heddle.ToolResult) -> dict[str, Any]:
    """Return what a tool has reported; it must have come to its end."""
    if isinstance(result, heddle.Failed) and (not result.started or result.code == "supervisor_lost"):
        raise Refused(result.message)
    assert isinstance(result, heddle.Returned), (result.message, result.report.stderr_tail)
    return reported(result)


async def in_turn(
    jail: Jail, *codes: str, arguments: dict[str, Any] | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Return what tools report that are run in one scope, one after the other."""
    for number, code in enumerate(codes):
        jail.add(f"tool-{number}", code)
    async with jail.runner(**more) as runner, runner.scope("agent") as scope:
        return [report_of(await scope.call(f"tool-{number}", arguments)) for number in range(len(codes))]


@contextmanager
def workspaces_in(folder: str) -> Iterator[None]:
    """Have workspaces made somewhere else."""
    top = Path(tempfile.mkdtemp(dir=folder, prefix="heddle-top-"))
    top.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(top))
        try:
            yield
        finally:
            patch.undo()
            remove_tree(top)


# System calls and rights


async def a_tool_makes_no_namespace(jail: Jail) -> object:
    code = """
        attempt("unshare", call, "unshare", 0x10000000)
        attempt("clone", lambda: call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0) or os._exit(0))
        new = struct.pack("8Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
        attempt("clone3", lambda: call("clone3", new, 64) or os._exit(0))
        """
    return allowed(await said(jail, code))


async def a_tool_traces_nobody(jail: Jail) -> object:
    code = """
        child = os.fork()
        if child == 0:
            time.sleep(30)
        attempt("attach", call, "ptrace", 16, child, 0, 0)
        """
    return allowed(await said(jail, code))


async def no_program_gives_rights(jail: Jail) -> object:
    """The bit for it, and where the host is root, a program that is."""
    arguments = {}
    if IS_ROOT:
        path = jail.host.folder / "setuid"
        shutil.copy("/usr/bin/id", path)
        path.chmod(0o4755)
        arguments = {"setuid": str(path)}
    code = """
        report["may"] = libc.prctl(39, 0, 0, 0, 0) != 1
        out, into = os.pipe()
        if "setuid" in arguments:
            if os.fork() == 0:
                os.dup2(into, 1)
                os.execv(arguments["setuid"], ["id", "-u"])
            report["uid"] = os.read(out, 20).decode().strip()
        """
    report = await said(jail, code, arguments, sandbox={"read": [jail.host.folder]})
    # In a namespace of one user nobody becomes another.
    becomes_root = report.get("uid") == "0"
    return becomes_root if IS_ROOT and not jail.is_apart else report["may"]


async def no_capability_is_left(jail: Jail) -> object:
    code = """
        header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        checked(libc.capget(header, data))
        report["has"] = any(data.raw)
        report["bounds"] = sum(libc.prctl(23, number, 0, 0, 0) == 1 for number in range(41))
        """
    report = await said(jail, code, sandbox=AS_THE_HOST if jail.is_apart else {})
    # A plain user may not change what bounds it; without new privileges nothing comes of it.
    return report["has"] or (report["bounds"] and (jail.is_apart or IS_ROOT))


async def a_tool_has_no_capability(jail: Jail) -> object:
    code = """
        header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        checked(libc.capget(header, data))
        report["has"] = any(data.raw)
        """
    return (await said(jail, code, sandbox=AS_THE_HOST))["has"]


async def a_keeper_keeps_to_itself(jail: Jail) -> object:
    code = """
        for name in ("environ", "mem", "maps"):
            attempt(name, lambda: os.close(os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY)))
        """
    return allowed(await said(jail, code, sandbox=AS_THE_HOST))


# Files


async def what_is_read_only_is_not_written(jail: Jail) -> object:
    with workspaces_in("/var/tmp"):
        data = jail.host.folder / "data"
        data.mkdir()
        code = """
            attempt("mount", write, "a/b/new")
            attempt("tools", write, os.environ["HEDDLE_WORKSPACE_BIN"] + "/new")
            attempt("read", write, arguments["granted"] + "/new")
            """
        granted = jail.host.folder / "granted"
        granted.mkdir()
        granted.chmod(0o777)
        [report] = await in_turn(
            jail,
            code,
            arguments={"granted": str(granted)},
            mounts=[Mount(data, "a/b")],
            sandbox={**AS_THE_HOST, "read": [granted]},
        )
    return allowed(report)


async def what_covers_is_not_written(jail: Jail) -> object:
    """The root of what a tool sees, /dev, and the folder in which its workspace is."""
    code = """
        for place in ("/", "/dev", arguments["kept"]):
            attempt(place, write, f"{place}/{MARK}")
        """
    kept = jail.host.folder / "kept"
    return allowed(await said(jail, code, {"kept": str(kept)}, sandbox=AS_THE_HOST, keep_workspaces=kept))


def leave_a_secret(jail: Jail, scope: Scope) -> None:
    """Put a file into a workspace, for its owner."""
    path = scope.workspace.path / "secret"
    path.write_text(jail.host.word)
    info = path.parent.stat()
    os.chown(path, info.st_uid, info.st_gid)
    path.chmod(0o600)


async def a_sibling_is_out_of_reach(jail: Jail) -> object:
    return await _sibling(jail, keep_workspaces=jail.host.folder / "kept")


async def a_sibling_in_tmp_is_out_of_reach(jail: Jail) -> object:
    with workspaces_in("/tmp"):
        return await _sibling(jail)


async def _sibling(jail: Jail, **more: Any) -> object:
    code = """
        attempt("list", os.listdir, arguments["path"])
        attempt("read", read, arguments["path"] + "/secret")
        for pid in ("self", os.getppid()):
            try:
                handles = os.listdir(f"/proc/{pid}/fd")
            except OSError:
                handles = range(20)
            for fd in handles:
                for way in (arguments["path"].removeprefix("/tmp"), arguments["path"]):
                    attempt(f"{pid} {fd} {way}", read, f"/proc/{pid}/fd/{fd}{way}/secret")
        """
    jail.add("attack", code)
    async with jail.runner(**more) as runner, runner.scope("sibling") as sibling, runner.scope("agent") as scope:
        leave_a_secret(jail, sibling)
        return allowed(report_of(await scope.call("attack", {"path": str(sibling.workspace.path)})))


async def a_read_only_mount_stays_in_its_place(jail: Jail) -> object:
    data = jail.host.folder / "data"
    data.mkdir()
    [report] = await in_turn(jail, "attempt('move', os.rename, 'a', 'b')", mounts=[Mount(data, "a/b")])
    return allowed(report)


async def a_workspace_leads_nowhere_else(jail: Jail) -> object:
    """It is a folder of the host's own in one that may be written: a tool puts a link in its place."""
    top = jail.host.folder
    folder = top / "granted" / "way" / "workspace"
    folder.mkdir(parents=True)
    for path in (top / "granted", top / "granted" / "way", folder):
        path.chmod(0o777)
    jail.add(
        "swap",
        """
        way = arguments["top"] + "/granted/way"
        attempt("move", os.rename, way, way + "-moved")
        attempt("make", os.mkdir, way)
        attempt("link", os.symlink, "../..", way + "/workspace")
        """,
    )
    jail.add("attack", "attempt('read', read, arguments['top'] + '/secret')")
    arguments = {"top": str(top)}
    async with heddle.Workspace.adopt(folder) as workspace, jail.runner(sandbox={"write": [top / "granted"]}) as runner:
        async with runner.scope(workspace=workspace) as scope:
            report_of(await scope.call("swap", arguments))
            result = await scope.call("attack", arguments)
    return allowed(reported(result))


async def a_mount_lands_nowhere_else(jail: Jail) -> object:
    """A link in its place would have it put over what a tool names, and seen by the next tool there."""
    data = jail.host.folder / "data"
    data.mkdir()
    (data / "planted").touch()
    swap = """
        attempt("move", os.rename, "a", "c")
        attempt("make", os.mkdir, "a")
        attempt("link", os.symlink, "/opt", "a/b")
        """
    look = "report['seen'] = os.path.exists('/opt/planted')"
    _, report = await in_turn(jail, swap, look, mounts=[Mount(data, "a/b")])
    return report["seen"]


@contextmanager
def one_in_another(name: str) -> Iterator[tuple[Path, Path]]:
    """Two folders that everybody may write, the second two levels below the first."""
    folder = Path(tempfile.mkdtemp(prefix="granted-", dir="/var/tmp"))
    deep = folder / "way" / name
    deep.mkdir(parents=True)
    (deep / "secret").write_text("real")
    for path in (folder, folder / "way", deep):
        path.chmod(0o777)
    try:
        yield folder, deep
    finally:
        remove_tree(folder)


async def read_after(jail: Jail, swap: str, folder: Path, deep: Path, **policy: Any) -> object:
    """Return what a tool reads in the inner folder after another has done what it may. Then all is started anew."""
    jail.add("swap", swap)
    jail.add("attack", "report['read'] = read(arguments['deep'] + '/secret')")
    arguments = {"folder": str(folder), "deep": str(deep)}
    async with jail.runner(sandbox=policy) as runner:
        report_of(await runner.call("swap", arguments))
        launcher = runner._opened().launcher
        enclosure = launcher._enclosure if isinstance(launcher, confined.ConfinedLauncher) else None
        if enclosure is not None and enclosure._watch is not None:
            enclosure.lose(enclosure._watch)
        return report_of(await runner.call("attack", arguments))["read"]


async def what_is_granted_for_reading_stays_what_it_is(jail: Jail) -> object:
    """It lies in a folder that may be written: a tool puts one of its own in its place."""
    swap = """
        way = arguments["folder"] + "/way"
        attempt("move", os.rename, way, way + "-moved")
        attempt("make", os.makedirs, way + "/deep")
        attempt("forge", write, way + "/deep/secret", "forged")
        """
    with one_in_another("deep") as (folder, deep):
        return await read_after(jail, swap, folder, deep, read=[deep], write=[folder]) != "real"


async def what_is_granted_in_tmp_leads_nowhere_else(jail: Jail) -> object:
    """There what is bound is found again for each call. A link leads to where the workspaces of others are."""
    with workspaces_in("/tmp"):
        folder = Path(tempfile.mkdtemp()) / "one" / "two"
        deep = folder / "way" / "deep"
        deep.mkdir(parents=True)
        for path in (folder.parent.parent, folder.parent, folder, folder / "way", deep):
            path.chmod(0o777)
        jail.add(
            "swap",
            """
            way = arguments["folder"] + "/way"
            attempt("move", os.rename, way, way + "-moved")
            attempt("make", os.mkdir, way)
            attempt("link", os.symlink, os.path.relpath(arguments["run"], way), way + "/deep")
            """,
        )
        jail.add("attack", "attempt('read', read, arguments['run'] + '/' + arguments['name'] + '/secret')")
        policy = {**AS_THE_HOST, "write": [folder, deep]}
        async with jail.runner(sandbox=policy) as runner, runner.scope("sibling") as sibling:
            leave_a_secret(jail, sibling)
            path = sibling.workspace.path
            arguments = {"folder": str(folder), "run": str(path.parent), "name": path.name}
            async with runner.scope("agent") as scope:
                report_of(await scope.call("swap", arguments))
                return allowed(reported(await scope.call("attack", arguments)))


async def what_is_granted_leads_nowhere_else(jail: Jail) -> object:
    """The way to it becomes a link, to where the host has something of the same name."""
    swap = """
        way = arguments["folder"] + "/way"
        attempt("move", os.rename, way, way + "-moved")
        attempt("link", os.symlink, "..", way)
        """
    with one_in_another(jail.host.folder.name) as (folder, deep):
        return await read_after(jail, swap, folder, deep, write=[folder, deep]) == jail.host.word


async def the_passwords_of_the_machine_are_out_of_reach(jail: Jail) -> object:
    return allowed(await said(jail, "attempt('read', lambda: len(read('/etc/shadow')))", sandbox=AS_THE_HOST))


def of_root(folder: str) -> list[str]:
    """Return a file in a folder of /proc that its owner may write, if there is one. None is written here."""
    for above, _, names in os.walk(folder):
        for path in (f"{above}/{name}" for name in names):
            if os.stat(path).st_mode & stat.S_IWUSR:
                return [path]
    return []


# More of them than the first is there on some machines only.
SETTINGS = ["/proc/sys/kernel/core_pattern", *of_root("/proc/irq"), *of_root("/proc/bus"), *of_root("/proc/fs")]


async def settings_of_the_machine_are_not_opened_for_writing(jail: Jail) -> object:
    code = """
        for path in arguments["paths"]:
            attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
        """
    return allowed(await said(jail, code, {"paths": SETTINGS}, sandbox=AS_THE_HOST))


async def a_secret_of_the_host_is_out_of_reach(jail: Jail) -> object:
    code = """
        attempt("read", read, arguments["secret"])
        attempt("cut", os.truncate, arguments["secret"], 0)
        """
    return {**allowed(await said(jail, code, {"secret": str(jail.host.secret)})), **dict.fromkeys(jail.host.touched())}


async def two_calls_share_no_temporary_files(jail: Jail) -> object:
    leave = """
        for place in ("/tmp", "/dev/shm"):
            attempt(place, write, f"{place}/left")
        """
    look = "report['seen'] = [place for place in ('/tmp', '/dev/shm') if os.path.exists(f'{place}/left')]"
    _, report = await in_turn(jail, leave, look)
    return report["seen"]


async def temporary_files_have_a_size(jail: Jail) -> object:
    code = """
        for place in ("/tmp", "/dev/shm"):
            found = os.statvfs(place)
            report[place] = [found.f_blocks * found.f_bsize, found.f_files]
        """
    found = await said(jail, code, sandbox={"tmp_bytes": MIB})
    most_files = 65536 if jail.tier == "containers" else 1 << 62
    return [place for place, (size, files) in found.items() if size > MIB or files > most_files]


# Processes


async def only_its_own_processes_are_in_sight(jail: Jail) -> object:
    code = """
        report["own"] = [1, os.getpid()]
        report["seen"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        """
    report = await said(jail, code)
    return report["seen"] != report["own"]


async def every_namespace_is_its_own(jail: Jail) -> object:
    """Of two calls at once, and of the host: their numbers are given again when one has ended."""
    kinds = ("user", "pid", "mnt", "ipc", "uts", "net", *(["cgroup"] if os.path.exists("/proc/self/ns/cgroup") else []))
    jail.add(
        "attack",
        """
        report.update((kind, os.readlink(f"/proc/self/ns/{kind}")) for kind in arguments["kinds"])
        if arguments["waits"]:
            write("there")
            while not os.path.exists("done"):
                time.sleep(0.005)
        """,
    )
    found: list[dict[str, str]] = [{kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}]

    async def look(scope: Any, waits: bool) -> None:
        found.append(report_of(await scope.call("attack", {"kinds": kinds, "waits": waits})))

    async with jail.runner(sandbox=AS_THE_HOST) as runner, runner.scope() as scope, trio.open_nursery() as nursery:
        nursery.start_soon(look, scope, True)
        assert await until((scope.workspace.path / "there").exists, 5)
        await look(scope, False)
        (scope.workspace.path / "done").touch()
    return [kind for kind in kinds if len({each[kind] for each in found}) < 3]


@contextmanager
def shared_memory() -> Iterator[int]:
    """Memory of the host's with a key that everybody may use."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x10000000 + os.getpid()
    number = libc.shmget(key, 4096, 0o1666)
    try:
        yield key
    finally:
        libc.shmctl(number, 0, None)


async def shared_memory_of_the_host_is_out_of_reach(jail: Jail) -> object:
    with shared_memory() as key:
        code = "attempt('get', lambda: checked(libc.shmget(arguments['key'], 0, 0)))"
        return allowed(await said(jail, code, {"key": key}))


@contextmanager
def victim(mark: str) -> Iterator[int]:
    """A process of the host's, of the user that tools run as."""
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if IS_ROOT else {}
    with subprocess.Popen(["sleep", mark], cwd="/", **user) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def a_process_of_the_host_is_left_alone(jail: Jail) -> object:
    code = """
        pid = arguments["victim"]
        attempt("signal", os.kill, pid, 0)
        attempt("priority", os.setpriority, os.PRIO_PROCESS, pid, 19)
        attempt("limit", call, "prlimit64", pid, 7, struct.pack("QQ", 5, 5), 0)
        """
    with victim(jail.mark) as pid:
        return allowed(await said(jail, code, {"victim": pid}))


async def a_tool_has_three_descriptors(jail: Jail) -> object:
    """And nothing that the host had left open to whom it starts."""
    secret = os.open(jail.host.secret, os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        code = "report['fds'] = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in range(3, 600) if not bad(fd)]"
        bad = """
            def bad(fd):
                try:
                    fcntl.fcntl(fd, fcntl.F_GETFD)
                except OSError:
                    return True
            """
        return (await said(jail, textwrap.dedent(bad) + code))["fds"]
    finally:
        os.close(secret)


async def keys_of_the_host_stay_there(jail: Jail) -> object:
    """In no environment that a tool can see: its own, or that of what it runs under."""
    code = """
        for pid in ("self", os.getppid(), 1):
            try:
                report[str(pid)] = arguments["key"] in read(f"/proc/{pid}/environ", "rb").decode(errors="replace")
            except OSError:
                pass
        """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_KEY", jail.host.word)
        report = await said(jail, code, {"key": jail.host.word})
    return [pid for pid, seen in report.items() if seen]


# Users


async def tools_are_nobody(jail: Jail) -> object:
    jail.add("attack", "write('mine')")
    async with jail.runner() as runner, runner.scope() as scope:
        report_of(await scope.call("attack"))
        info = (scope.workspace.path / "mine").stat()
    return (info.st_uid, info.st_gid) != (NOBODY, NOBODY)


async def tools_are_in_no_group_of_the_host(jail: Jail) -> object:
    """What may be read by a group that the host is in."""
    group = 54321
    jail.host.key.chmod(0o640)
    place = jail.host.folder / "of-the-group"
    place.write_text(jail.host.word)
    os.chown(place, 0, group)
    place.chmod(0o640)
    before = os.getgroups()
    os.setgroups([*before, group])
    try:
        code = "attempt('read', read, arguments['place'])"
        return allowed(await said(jail, code, {"place": str(place)}, sandbox={"read": [jail.host.folder]}))
    finally:
        os.setgroups(before)


# The network


CONNECT = """
def connect(family, kind, address):
    with socket.socket(family, kind) as mine:
        mine.settimeout(1)
        mine.connect(address)
        mine.send(b"x")
attempt("tcp", connect, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", arguments["tcp"]))
attempt("udp", connect, socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", arguments["udp"]))
attempt("abstract", connect, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + arguments["abstract"])
"""


def addresses(jail: Jail) -> dict[str, Any]:
    return {"tcp": jail.host.tcp, "udp": jail.host.udp, "abstract": jail.host.abstract}


async def without_a_network_nothing_reaches_the_host(jail: Jail) -> object:
    await said(jail, CONNECT, addresses(jail))
    return jail.host.touched()


async def a_tool_that_asks_for_no_network_reaches_nothing(jail: Jail) -> object:
    jail.add("attack", CONNECT)
    (jail.tools / "attack.tool.json").write_text('{"sandbox": {"network": "none"}}')
    await said(jail, CONNECT, addresses(jail), sandbox={"network": "host"})
    return jail.host.touched()


async def abstract_sockets_of_the_host_are_out_of_reach(jail: Jail) -> object:
    await said(jail, CONNECT, addresses(jail), sandbox={"network": "host"})
    return "abstract" in jail.host.touched()


async def tcp_is_held_by_landlock_too(jail: Jail) -> object:
    await said(jail, CONNECT, addresses(jail))
    return "tcp" in jail.host.touched()


# Limits


FORK = """
def fork_until_it_fails():
    count = 0
    try:
        while count < 200:
            if os.fork() == 0:
                signal.pause()
            count += 1
    except BlockingIOError:
        pass
    return count
"""


async def processes_are_counted(jail: Jail) -> object:
    """Where the kernel counts all of a user together, how many there will be is not known: there the limit is read."""
    code = """
        import resource
        report["limit"] = resource.getrlimit(resource.RLIMIT_NPROC)
        report["count"] = fork_until_it_fails() if arguments["forks"] else 0
        """
    code = FORK + textwrap.dedent(code)
    report = await said(jail, code, {"forks": jail.is_apart}, limits=heddle.Limits(processes=16))
    return report["count"] > 15 or report["limit"] == list(resource.getrlimit(resource.RLIMIT_NPROC))


async def processes_of_another_call_do_not_count(jail: Jail) -> object:
    jail.add(
        "other",
        """
        for _ in range(12):
            os.fork() or time.sleep(30)
        write("there")
        while not os.path.exists("done"):
            time.sleep(0.005)
        """,
    )
    jail.add("attack", FORK + "report['count'] = fork_until_it_fails()")
    limits = heddle.Limits(processes=16)
    async with jail.runner() as runner, runner.scope() as scope, trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(scope.call, "other", limits=limits))
        assert await until((scope.workspace.path / "there").exists, 5)
        report = report_of(await scope.call("attack", limits=limits))
        (scope.workspace.path / "done").touch()
    return report["count"] < 15


async def memory_is_limited(jail: Jail) -> object:
    code = """
        import mmap
        attempt("map", lambda: mmap.mmap(-1, 512 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close())
        """
    return allowed(await said(jail, code, limits=heddle.Limits(memory_bytes=128 * MIB)))


async def no_image_of_memory_is_left(jail: Jail) -> object:
    code = """
        import resource
        report["limit"] = resource.getrlimit(resource.RLIMIT_CORE)
        """
    before = resource.getrlimit(resource.RLIMIT_CORE)
    assert before[1] != 0 or IS_ROOT, "this user may have none anyway"
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY if IS_ROOT else before[1],) * 2)
    try:
        return (await said(jail, code))["limit"] != [0, 0]
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


# Endings


async def a_tool_is_asked_to_end(jail: Jail) -> object:
    path = jail.tools / "trap"
    path.write_text("#!/bin/sh\ntrap 'echo cleaned >&2; exit 3' TERM; echo there >&2; sleep 60 & wait\n")
    path.chmod(0o755)
    async with jail.runner() as runner:
        result = await runner.call("trap", limits=heddle.Limits(wall_seconds=0.5))
    assert isinstance(result, heddle.Failed)
    assert "there" in result.report.stderr_tail, result
    return "cleaned" not in result.report.stderr_tail


async def a_chain_of_processes_is_ended_at_once(jail: Jail) -> object:
    """Who is confined by Landlock sees its own children, and no grandchildren: those come to it one by one."""
    code = """
        os.setsid() if os.fork() == 0 else os._exit(print("{}", flush=True) or 0)
        for fd in (0, 1, 2):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        for _ in range(30):
            if os.fork():
                time.sleep(30)
        time.sleep(0.2)
        write("outlived")
        os._exit(0)
        """
    jail.add("attack", code)
    async with jail.runner() as runner, runner.scope() as scope:
        report_of(await scope.call("attack"))
        await trio.sleep(0.3)
        return (scope.workspace.path / "outlived").exists()


async def nothing_outlives_the_guard(jail: Jail) -> object:
    """Whoever watches is ended at one blow."""
    jail.add("attack", "leave_behind(); os.execv('/bin/sleep', ['sleep', MARK])")
    async with jail.runner() as runner, trio.open_nursery() as nursery:
        nursery.start_soon(runner.call, "attack")
        assert await until(lambda: len(jail.strays()) == 2, 10)
        watching = [pid for pid in descendants_of(os.getpid()) if pid in processes_with(SUPERVISOR)]
        assert watching
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in watching:
                os.kill(pid, number)
        await until(lambda: not jail.strays(), 0.5)
        nursery.cancel_scope.cancel()  # what has lost whoever watches is not to be waited for
        return jail.strays()


async def what_cannot_be_confined_does_not_run(jail: Jail) -> object:
    """The kernel does not take its filter."""
    jail.add("attack", "write('ran')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "seccomp_program", lambda *_, **__: bytes(8 * 5000))
        async with jail.runner() as runner, runner.scope() as scope:
            await scope.call("attack")
            return (scope.workspace.path / "ran").exists()


# What is taken for bubblewrap


def fake(jail: Jail, source: str) -> Path:
    path = jail.tools / "fake" / "bwrap"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(source).lstrip("\n"))
    path.chmod(0o755)
    return path


async def a_bubblewrap_of_somebody_elses_is_not_taken(jail: Jail) -> object:
    path = fake(jail, "#!/bin/sh\n")
    if IS_ROOT:
        os.chown(path, NOBODY, NOBODY)
    return trials.find_bubblewrap(str(path.parent))[0]


async def a_bubblewrap_that_others_may_write_is_not_taken(jail: Jail) -> object:
    path = fake(jail, "#!/bin/sh\n")
    path.chmod(0o775)
    return trials.find_bubblewrap(str(path.parent))[0]


async def a_bubblewrap_whose_program_is_not_the_first_is_not_taken(jail: Jail) -> object:
    """All that is below it ends with the first, and with no other."""
    path = fake(
        jail,
        f"""
        #!/bin/sh
        while [ "$1" != -- ]; do shift; done; shift
        for word in "$@"; do
            shift
            case $word in {bubblewrap.PROGRAMS}/sandbox/*) word={Path(container.__file__).parent}/${{word##*/}} ;; esac
            set -- "$@" "$word"
        done
        exec unshare --user --map-root-user --mount --pid --fork --mount-proc sh -c '"$@"; exit $?' sh "$@"
        """,
    )
    return trials.try_containers(str(path), "none").works


LEAVES_OUT = """
    #!/usr/bin/python3 -IS
    import os, sys
    left_out = {left_out!r}
    fd = int(sys.argv[2])
    words = os.read(fd, 1 << 20).split(b"\\0")
    while left_out[0] in words:
        at = words.index(left_out[0])
        del words[at : at + left_out[1]]
    other = os.memfd_create("options", 0)
    os.write(other, b"\\0".join(words))
    os.lseek(other, 0, os.SEEK_SET)
    os.dup2(other, fd)
    bwrap = {bwrap!r}
    os.execv(bwrap, [bwrap, *sys.argv[1:]])
    """


def that_leaves_out(option: str, words: int) -> Check:
    """Return a check with a bubblewrap that is not given one of its options."""

    async def it_is_not_taken(jail: Jail) -> object:
        bwrap, _ = trials.find_bubblewrap()
        path = fake(jail, LEAVES_OUT.format(left_out=(option.encode(), words), bwrap=bwrap))
        return trials.try_single(str(path), "none").works

    it_is_not_taken.__name__ = f"a_bubblewrap_without_{option.strip('-')}_is_not_taken"
    return it_is_not_taken


without_a_filter = that_leaves_out("--seccomp", 2)
without_a_pid_namespace = that_leaves_out("--unshare-pid", 1)
without_dropping = that_leaves_out("--cap-drop", 2)


# The faults


def of(program: str, old: str, new: str = "pass") -> Edit:
    return Edit(program, old, new)


FILTER = of("container.py", "filter_calls(read_all(self.seccomp))")
NO_NEW_PRIVILEGES = of("container.py", 'check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(no_new_privs)")')
RULESET = of("container.py", 'check(libc.syscall(RESTRICT_SELF, self.ruleset, 0), "landlock_restrict_self")')
DUMPABLE = of("container.py", 'check(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(dumpable)")')
BECOME = of("container.py", "become(self.uid, self.gid)\n\n", "pass\n\n")
SHM = of("container.py", "        for place in before:\n", "        for place in (TMP,):\n")
TMP = of("container.py", "        for place in before:\n", "        for place in (SHM,):\n")
PINS = Edit(policy.with_pins, "for parent in path.parents", "for parent in ()")
FOLLOWING = of(
    "container.py",
    'struct.pack("=QQQ", HANDLE, 0, RESOLVE_NO_SYMLINKS)',
    'struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, 0)',
)
FOLLOWING_HERE = Edit(
    handles.open_path, '"=QQQ", HANDLE, 0, RESOLVE_NO_SYMLINKS', '"=QQQ", os.O_PATH | os.O_CLOEXEC, 0, 0'
)
WAY = of("container.py", "HANDLE | (os.O_DIRECTORY if as_folder else 0)", "os.O_PATH | os.O_CLOEXEC")


def without(function: Any, *words: str) -> Edit:
    """Leave words out of a list of options."""
    return Edit(function, ", ".join(f'"{word}"' for word in words), "*()")


LATE = Edit(bubblewrap._Options.bind, "self.known.get(path)", "None")
machine, session, single = bubblewrap._machine, bubblewrap.session_command, bubblewrap.single_command
ORPHAN = without(machine, "--die-with-parent")

FAULTS: dict[str, Fault] = {
    # The filter
    "no filter": Fault(FILTER, a_tool_makes_no_namespace, ("containers", "landlock")),
    "no filter given to bubblewrap": Fault(
        Edit(single, 'options.add("--seccomp", options.hold(', "str(options.hold("), a_tool_makes_no_namespace, SINGLE
    ),
    "clone is not looked at": Fault(
        Edit(seccomp._instructions, "(ANY_BIT, 0, 1, NAMESPACES)", "(ANY_BIT, 0, 1, 0)"),
        a_tool_makes_no_namespace,
        TIERS,
    ),
    "clone3 is there": Fault(
        Edit(seccomp._instructions, "{**_NOT_THERE, **absent}", "{**absent}"), a_tool_makes_no_namespace, TIERS
    ),
    "no list of what is denied": Fault(
        Edit(seccomp._instructions, "{**_DENIED, **more}", "{**more}"), a_tool_traces_nobody, TIERS
    ),
    "no list for who sees the host": Fault(
        Edit(tiers.Tier.filter_for, 'in_sight = self.kind == "landlock"', "in_sight = False"),
        shared_memory_of_the_host_is_out_of_reach,
        LANDLOCK,
    ),
    "others' priorities are let through": Fault(
        Edit(seccomp._instructions, "_DENIED_IN_SIGHT_OF_THE_HOST if", "{} if"),
        a_process_of_the_host_is_left_alone,
        LANDLOCK,
    ),
    "others' limits are let through": Fault(
        Edit(seccomp._instructions, "_ONLY_FOR_ITSELF)", "{})"), a_process_of_the_host_is_left_alone, LANDLOCK
    ),
    "sockets without a network": Fault(
        Edit(
            tiers.Tier.filter_for, 'NO_NETWORK if self.kind == "landlock" else NETWORK_OF_ITS_OWN', "NETWORK_OF_ITS_OWN"
        ),
        without_a_network_nothing_reaches_the_host,
        LANDLOCK,
    ),
    # Who keeps
    "a dumpable keeper": Fault(DUMPABLE, a_keeper_keeps_to_itself, CONTAINERS),
    "runs what is not confined": Fault(
        of("supervisor.py", "        if self.unfit:\n", "        if False:\n"),
        what_cannot_be_confined_does_not_run,
        ("containers", "landlock"),
    ),
    # Mounts
    "nothing is made read-only": Fault(
        of(
            "container.py",
            "check(libc.syscall(MOUNT_SETATTR, tree",
            "(lambda *_: None)((MOUNT_SETATTR, tree",
        ),
        what_is_read_only_is_not_written,
        CONTAINERS,
    ),
    "what is bound is not made read-only": Fault(
        of("container.py", 'if mode == b"r":', "if False:"), what_is_read_only_is_not_written, CONTAINERS
    ),
    "covers are not made read-only": Fault(
        of("container.py", "set_read_only(cover, target, recursive=False)"), what_covers_is_not_written, CONTAINERS
    ),
    "bubblewrap binds all for writing": Fault(
        Edit(bubblewrap._Options.bind, '"--ro-bind-fd" if mode == "r" else "--bind-fd"', '"--bind-fd"'),
        what_is_read_only_is_not_written,
        SINGLE,
    ),
    "a root that is written": Fault(
        Edit(session, '"--remount-ro", "/", "--chdir"', '"--chdir"'), what_covers_is_not_written, CONTAINERS
    ),
    "a root that is written, one a call": Fault(
        Edit(single, '"--remount-ro", "/", "--chdir"', '"--chdir"'), what_covers_is_not_written, SINGLE
    ),
    "a /dev that is written": Fault(without(machine, "--remount-ro", "/dev"), what_covers_is_not_written, APART),
    "the way to a mount is not held": Fault(PINS, a_read_only_mount_stays_in_its_place, APART),
    "no cover over workspaces": Fault(
        Edit(bubblewrap._covered, "for root in plan.roots if", "for root in plan.roots[:0] if"),
        a_sibling_is_out_of_reach,
        CONTAINERS,
    ),
    "one /dev/shm for all": Fault(SHM, two_calls_share_no_temporary_files, CONTAINERS),
    "no size": Fault(
        of("container.py", "size={self.tmp_bytes},nr_inodes", "nr_inodes"), temporary_files_have_a_size, CONTAINERS
    ),
    "no number of files": Fault(
        of("container.py", ",nr_inodes={MOST_FILES}", ""), temporary_files_have_a_size, CONTAINERS
    ),
    "no size of /tmp, one a call": Fault(
        Edit(single, '"--size", str(plan.tmp_bytes), ', ""), temporary_files_have_a_size, SINGLE
    ),
    "no size of /dev/shm, one a call": Fault(
        Edit(machine, '"--size", str(plan.tmp_bytes), ', ""), temporary_files_have_a_size, SINGLE
    ),
    # Namespaces
    "the session's /proc": Fault(
        of("container.py", 'mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)'),
        only_its_own_processes_are_in_sight,
        CONTAINERS,
    ),
    "the host's /proc": Fault(
        Edit(machine, '"--proc", "/proc"', '"--ro-bind", "/proc", "/proc"'), only_its_own_processes_are_in_sight, SINGLE
    ),
    "the session's processes": Fault(
        of("container.py", 'check(libc.unshare(CLONE_NEWPID), "unshare(pid)")'),
        only_its_own_processes_are_in_sight,
        CONTAINERS,
    ),
    "the host's processes": Fault(without(machine, "--unshare-pid"), only_its_own_processes_are_in_sight, SINGLE),
    "the session's network": Fault(
        of("container.py", "network = CLONE_NEWNET if self.own_network else 0", "network = 0"),
        without_a_network_nothing_reaches_the_host,
        CONTAINERS,
    ),
    "the host's network": Fault(without(single, "--unshare-net"), without_a_network_nothing_reaches_the_host, SINGLE),
    "the host's shared memory": Fault(
        without(machine, "--unshare-ipc"), shared_memory_of_the_host_is_out_of_reach, SINGLE
    ),
    "the session's user namespace": Fault(BECOME, every_namespace_is_its_own, CONTAINERS),
    **{
        f"the session's {kind} namespace": Fault(
            of("container.py", f"CLONE_NEW{name} | ", ""), every_namespace_is_its_own, CONTAINERS
        )
        for kind, name in (("mnt", "NS"), ("ipc", "IPC"), ("uts", "UTS"))
    },
    "the session's cgroup namespace": Fault(
        of("container.py", " | CLONE_NEWCGROUP", ""), every_namespace_is_its_own, CONTAINERS
    ),
    **{
        f"the host's {kind} namespace": Fault(without(where, option), every_namespace_is_its_own, SINGLE)
        for kind, option, where in (
            ("ipc", "--unshare-ipc", machine),
            ("cgroup", "--unshare-cgroup-try", machine),
        )
    },
    # The network
    "the wish of a tool is not heard": Fault(
        Edit(
            confined.ConfinedSession.launch,
            '"none" if command.network == "none" else self._tier.plan.network',
            "self._tier.plan.network",
        ),
        a_tool_that_asks_for_no_network_reaches_nothing,
        TIERS,
    ),
    "the wish of a tool is not done": Fault(
        of("container.py", 'if b"n" in self.flags:', "if False:"),
        a_tool_that_asks_for_no_network_reaches_nothing,
        CONTAINERS,
    ),
    "no hold on the host's sockets": Fault(
        Edit(confined.ConfinedSession._dress, 'elif network == "host" and tier.abi', 'elif network == "" and tier.abi'),
        abstract_sockets_of_the_host_are_out_of_reach,
        CONTAINERS,
    ),
    "no hold on the host's sockets by what starts bubblewrap": Fault(
        Edit(confined.ConfinedSession._launch_alone, 'if network == "host" and', 'if network == "" and'),
        abstract_sockets_of_the_host_are_out_of_reach,
        SINGLE,
    ),
    "no scope of sockets": Fault(
        Edit(landlock.Landlock.ruleset, "ABSTRACT_UNIX_SOCKET | SIGNAL", "SIGNAL"),
        abstract_sockets_of_the_host_are_out_of_reach,
        LANDLOCK,
    ),
    "no scope of sockets alone": Fault(
        Edit(landlock.Landlock.scopes, "ABSTRACT_UNIX_SOCKET | SIGNAL", "SIGNAL"),
        abstract_sockets_of_the_host_are_out_of_reach,
        APART,
    ),
    # Landlock
    "no ruleset": Fault(RULESET, a_secret_of_the_host_is_out_of_reach, LANDLOCK),
    "no scopes": Fault(RULESET, abstract_sockets_of_the_host_are_out_of_reach, TIERS),
    "no scope of signals": Fault(
        Edit(landlock.Landlock.ruleset, "ABSTRACT_UNIX_SOCKET | SIGNAL", "ABSTRACT_UNIX_SOCKET"),
        a_process_of_the_host_is_left_alone,
        LANDLOCK,
    ),
    "cutting is not handled": Fault(
        Edit(landlock.Landlock.handled, "in _SINCE.items() if", "in _SINCE.items() if right != TRUNCATE and"),
        a_secret_of_the_host_is_out_of_reach,
        LANDLOCK,
    ),
    "reading grants writing": Fault(
        Edit(landlock.Landlock.rule, 'READING if mode == "ro" else ~NEVER', "~NEVER"),
        what_is_read_only_is_not_written,
        LANDLOCK,
    ),
    # Limits
    "no limit of processes": Fault(
        Edit(confined.Dress.put_on, '"", "", processes, 0]', '"", "", None, 0]'),
        processes_are_counted,
        ("containers", "landlock"),
    ),
    "no limit of processes, one a call": Fault(
        Edit(single, '"" if processes is None else', '"" if True else'), processes_are_counted, SINGLE
    ),
    "no limit of memory": Fault(
        Edit(confined.Dress.put_on, "self.held.memory_bytes", "None"), memory_is_limited, ("containers", "landlock")
    ),
    "no limit of memory, one a call": Fault(
        Edit(supervised.encode_launch, "limits.memory_bytes", "None"), memory_is_limited, SINGLE
    ),
    "images of memory": Fault(
        Edit(confined.Dress.put_on, "processes, 0]", "processes, None]"),
        no_image_of_memory_is_left,
        ("containers", "landlock"),
    ),
    "images of memory, one a call": Fault(
        Edit(confined.ConfinedSession._launch_alone, "no_core=True", "no_core=False"),
        no_image_of_memory_is_left,
        SINGLE,
    ),
    "no limit is set": Fault(
        of("supervisor.py", "zip(RLIMITS, confinement.limits, strict=True)", "()"),
        memory_is_limited,
        ("containers", "landlock"),
    ),
    "calls are counted together": Fault(BECOME, processes_of_another_call_do_not_count, CONTAINERS),
    # Descriptors and the environment
    "what the host has open": Fault(
        of("supervisor.py", "        close_inherited()\n", ""), a_tool_has_three_descriptors, TIERS
    ),
    "the ways to the host stay open": Fault(
        of("supervisor.py", "os.set_inheritable(fd, False)"), a_tool_has_three_descriptors, ("containers", "landlock")
    ),
    "what came by message stays open": Fault(
        of("supervisor.py", "MOST_FDS, socket.MSG_CMSG_CLOEXEC", "MOST_FDS, 0"), a_tool_has_three_descriptors, TIERS
    ),
    "the host's environment": Fault(
        Edit(confined.ConfinedSession._launch_alone, '{"PATH": os.defpath, ', "{**os.environ, "),
        keys_of_the_host_stay_there,
        SINGLE,
    ),
    # Endings
    "bubblewrap is asked to end": Fault(
        Edit(confined.ConfinedSession._launch_alone, "depth=2", "depth=0"), a_tool_is_asked_to_end, SINGLE
    ),
    "not all at once": Fault(NO_KILL_OF_ALL, a_chain_of_processes_is_ended_at_once, LANDLOCK),
    "bubblewrap outlives its keeper": Fault(ORPHAN, nothing_outlives_the_guard, CONTAINERS),
    # What is taken for bubblewrap
    "anybody's bubblewrap": Fault(
        Edit(trials.find_bubblewrap, "info.st_uid != 0 or ", ""), a_bubblewrap_of_somebody_elses_is_not_taken, SINGLE
    ),
    "a trial that does not ask where it is": Fault(
        of("container.py", "if os.getpid() != 1:", "if False:"),
        a_bubblewrap_whose_program_is_not_the_first_is_not_taken,
        CONTAINERS,
    ),
    "a trial that does not look at processes": Fault(
        Edit(trials._believed, ' and words[0] != os.readlink("/proc/self/ns/pid")', ""), without_a_pid_namespace, SINGLE
    ),
    "a trial that does not look at filters": Fault(
        Edit(trials._believed, 'words[4] != "2"', "False"), without_a_filter, SINGLE
    ),
}
OF_ROOT: dict[str, Fault] = {
    # For anybody else bubblewrap makes one unasked.
    "the host's user namespace": Fault(without(single, "--unshare-user"), every_namespace_is_its_own, SINGLE),
    "no capability is dropped": Fault(
        of("container.py", "            drop_capabilities()\n        check", "            pass\n        check"),
        no_capability_is_left,
        CONTAINERS,
    ),
    "no bound is dropped": Fault(
        of("container.py", "drop_bounds()  # while it has the right to"), no_capability_is_left, LANDLOCK
    ),
    "bubblewrap drops none": Fault(without(machine, "--cap-drop", "ALL"), no_capability_is_left, SINGLE),
    "all of /etc": Fault(
        Edit(machine, 'PUBLIC_ETC) if plan.is_root else ("/etc",):', 'PUBLIC_ETC) if False else ("/etc",):'),
        the_passwords_of_the_machine_are_out_of_reach,
        APART,
    ),
    "all of /etc is granted": Fault(
        Edit(tiers.Tier.grants, "if self.plan.is_root else", "if False else"),
        the_passwords_of_the_machine_are_out_of_reach,
        LANDLOCK,
    ),
    "settings are not made read-only": Fault(
        of("container.py", "            bind_read_only(path)\n", "            pass\n"),
        settings_of_the_machine_are_not_opened_for_writing,
        CONTAINERS,
    ),
    "settings are not made read-only, one a call": Fault(
        without(machine, "--ro-bind", "/proc/sys", "/proc/sys"),
        settings_of_the_machine_are_not_opened_for_writing,
        SINGLE,
    ),
    "stays in root's group": Fault(
        of("container.py", "os.setresgid(self.gid, self.gid, self.gid)"), tools_are_nobody, ("containers", "landlock")
    ),
    "root is chosen": Fault(
        Edit(choice._user_for, "NOBODY if sandbox.run_as is None else", "0 if sandbox.run_as is None else"),
        tools_are_nobody,
        TIERS,
    ),
    "keeps its groups": Fault(
        of("container.py", "os.setgroups([])"), tools_are_in_no_group_of_the_host, ("containers", "landlock")
    ),
    "bubblewrap keeps its groups": Fault(
        of("supervisor.py", "os.setgroups([])"), tools_are_in_no_group_of_the_host, SINGLE
    ),
    "a bubblewrap that others may write": Fault(
        Edit(trials.find_bubblewrap, " or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)", ""),
        a_bubblewrap_that_others_may_write_is_not_taken,
        SINGLE,
    ),
    "a trial that does not look at capabilities": Fault(
        Edit(trials._believed, " or int(words[2], 16)", ""), without_dropping, SINGLE
    ),
}
if IS_ROOT:
    FAULTS |= OF_ROOT
if IS_ROOT and SETTINGS[1:]:
    FAULTS["only some settings are made read-only"] = Fault(
        of("container.py", "OF_ROOT if is_root else OF_ROOT[:1]", "OF_ROOT[:1]"),
        settings_of_the_machine_are_not_opened_for_writing,
        CONTAINERS,
    )


@attrs.frozen
class Layers:
    """Edits that take one part of what holds each: with all of them a check fails, with any one left it holds."""

    edits: Sequence[Edit]
    check: Check
    tiers: Sequence[str]


LAYERED: dict[str, Layers] = {
    "no new privileges: and the filter and the ruleset": Layers(
        (NO_NEW_PRIVILEGES, FILTER, RULESET), no_program_gives_rights, LANDLOCK
    ),
    "a keeper's memory: and files are held": Layers(
        (DUMPABLE, of("supervisor.py", "(PR_SET_DUMPABLE, 0), (PR_SET_PDEATHSIG", "(PR_SET_PDEATHSIG"), RULESET),
        a_keeper_keeps_to_itself,
        LANDLOCK,
    ),
    "links to what is bound": Layers((FOLLOWING, WAY), what_is_granted_in_tmp_leads_nowhere_else, CONTAINERS),
    "links in the place of a mount": Layers((PINS, WAY), a_mount_lands_nowhere_else, CONTAINERS),
    "grants: the way is held, and they were opened before": Layers(
        (PINS, LATE), what_is_granted_for_reading_stays_what_it_is, APART
    ),
    "grants: opened before, and without a link on the way": Layers(
        (LATE, FOLLOWING_HERE), what_is_granted_leads_nowhere_else, APART
    ),
    "/tmp: and without one no home can be made": Layers(
        (TMP, Edit(session, '"--remount-ro", "/", "--chdir"', '"--chdir"')),
        a_sibling_in_tmp_is_out_of_reach,
        CONTAINERS,
    ),
    "what /tmp was before": Layers(
        (of("container.py", "            for fd in before.values():\n                os.close(fd)\n", ""), DUMPABLE),
        a_sibling_in_tmp_is_out_of_reach,
        CONTAINERS,
    ),
    "shared memory of the host": Layers(
        (without(machine, "--unshare-ipc"), of("container.py", "CLONE_NEWIPC | ", "")),
        shared_memory_of_the_host_is_out_of_reach,
        CONTAINERS,
    ),
    "tcp, by the filter and by the ruleset": Layers(
        (
            Edit(landlock.Landlock.ruleset, "0 if network else BIND_TCP | CONNECT_TCP", "0"),
            Edit(
                tiers.Tier.filter_for,
                'NO_NETWORK if self.kind == "landlock" else NETWORK_OF_ITS_OWN',
                "NETWORK_OF_ITS_OWN",
            ),
        ),
        tcp_is_held_by_landlock_too,
        LANDLOCK,
    ),
    "the environment of the host": Layers(
        (
            Edit(confined.Enclosure._started, 'environment={"PATH": os.defpath}', "environment=dict(os.environ)"),
            DUMPABLE,
        ),
        keys_of_the_host_stay_there,
        CONTAINERS,
    ),
    "one call a container": Layers(
        (
            of("supervisor.py", "self.serves_once: bool = room is not None", "self.serves_once: bool = False"),
            Edit(confined.Containers.give_back, "line.close()\n", "self._spares.append(line)\n"),
        ),
        two_calls_share_no_temporary_files,
        CONTAINERS,
    ),
    "its name: bubblewrap gives none to another namespace": Layers(
        (without(machine, "--unshare-uts"), without(machine, "--hostname", "heddle")),
        every_namespace_is_its_own,
        SINGLE,
    ),
}


LAYERED_OF_ROOT: dict[str, Layers] = {
    "capabilities: there are none, none can be had, and being root gives none": Layers(
        (
            of("container.py", 'check(libc.capset(header, bytes(24)), "capset")'),
            of("container.py", "    drop_bounds()\n    libc", "    libc"),
            of("container.py", "libc.prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0)"),
        ),
        a_tool_has_no_capability,
        CONTAINERS,
    ),
    "another user: and a workspace that root does not own": Layers(
        (
            of("container.py", "os.setresuid(self.uid, self.uid, self.uid)"),
            Edit(runner._layout_for, "if tier.uid != os.geteuid()", "if False"),
        ),
        tools_are_nobody,
        ("containers", "landlock"),
    ),
    "another user, one a call: and a workspace that root does not own": Layers(
        (
            of("supervisor.py", "os.setresuid(uid, uid, uid)"),
            Edit(runner._layout_for, "if tier.uid != os.geteuid()", "if False"),
        ),
        tools_are_nobody,
        SINGLE,
    ),
}
if IS_ROOT:
    LAYERED |= LAYERED_OF_ROOT


def pairs(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(tier, each, id=f"{name}-{tier}") for name, each in table.items() for tier in each.tiers]


# What is held by a single part, which has no fault here.
ALONE: tuple[tuple[str, Check], ...] = tuple((tier, a_workspace_leads_nowhere_else) for tier in TIERS)
CHECKS = {(tier, each.check): None for table in (FAULTS, LAYERED) for each in table.values() for tier in each.tiers}


@pytest.mark.parametrize(
    ("jail", "check"),
    [pytest.param(tier, check, id=f"{check.__name__}-{tier}") for tier, check in (*CHECKS, *ALONE)],
    indirect=["jail"],
)
async def test_what_really_confines_holds(jail: Jail, check: Check) -> None:
    assert not await check(jail)


@pytest.mark.parametrize(("jail", "fault"), pairs(FAULTS), indirect=["jail"])
async def test_a_planted_fault_is_caught(jail: Jail, planter: Planter, fault: Fault) -> None:
    planter.plant(fault.edit)

    assert await fault.check(jail)


@pytest.mark.parametrize(("jail", "layers"), pairs(LAYERED), indirect=["jail"])
async def test_layers_that_are_all_taken_away_are_missed(jail: Jail, planter: Planter, layers: Layers) -> None:
    planter.plant(*layers.edits)

    assert await layers.check(jail)


@pytest.mark.parametrize(
    ("jail", "layers", "left"),
    [
        pytest.param(*pair.values, left, id=f"{pair.id}-{left}")
        for pair in pairs(LAYERED)
        for left in range(len(pair.values[1].edits))
    ],
    indirect=["jail"],
)
async def test_one_layer_that_is_left_is_enough(jail: Jail, planter: Planter, layers: Layers, left: int) -> None:
    """What it lets through is nothing; it may be that nothing runs."""
    planter.plant(*(edit for number, edit in enumerate(layers.edits) if number != left))

    got = None
    try:
        got = await layers.check(jail)
    except* Refused:
        pass

    assert not got
