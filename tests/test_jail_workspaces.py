"""What confined tools cannot do to workspaces, to what is mounted in them, and to where that is copied back."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

import heddle
from heddle import Mount
from heddle.workspace.removal import remove_tree
from tests.jail import APART, TIERS, Jail, allowed, in_each_tier, is_denied, reported  # noqa: F401 - a fixture
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.runner import Scope

# A tool that does whatever its arguments say: calls of one scope differ, and its tools do not.
ANY = """
def exchange(new, old):
    os.mkdir(new)
    return call("renameat2", -100, os.fsencode(new), -100, os.fsencode(old), 2)

exec(arguments["code"], globals())
"""
PEER = "report['peer'] = 'original'"
MIB = 1 << 20
LIMITS = heddle.Limits(wall_seconds=20)


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """What waits for a pipe waits in a thread that nobody can cancel: then fail, rather than hang."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can pass: what is in it is out of reach by the sandbox alone."""
    folder = Path(tempfile.mkdtemp(prefix="place-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


def unconfined(jail: Jail, **more: Any) -> heddle.Runner:
    """Return a runner of the same tools that confines nothing."""
    return heddle.Runner(heddle.discover_tools(jail.tools), **more)


async def does(scope: Scope, code: str, **arguments: object) -> dict[str, Any]:
    """Have the tool ``any`` run some code in a scope; return what it has reported."""
    result = await scope.call("any", {"code": textwrap.dedent(code), **arguments}, limits=LIMITS)
    assert isinstance(result, heddle.Returned), (result.message, result.report.stderr_tail)
    return reported(result)


def what(said: str) -> str:
    """Return what came of an attempt that was allowed; else with what it was denied."""
    return said.removeprefix("allowed:")


def tree_of(folder: Path) -> dict[str, str]:
    """Return all that is below a folder: contents of small files, targets of links, kinds of the rest."""
    found: dict[str, str] = {}
    for above, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(above) / name
            mode = path.lstat().st_mode
            kind = "folder" if stat.S_ISDIR(mode) else "something else"
            kind = f"-> {path.readlink()}" if stat.S_ISLNK(mode) else kind
            if stat.S_ISREG(mode):
                kind = path.read_text() if path.stat().st_size < MIB else f"{path.stat().st_size} bytes"
            found[str(path.relative_to(folder))] = kind
    return found


DATA = {"a.txt": "a\n", "inner": "folder", "inner/b.txt": "b\n"}


# The workspaces of others


STEAL = """
for whose, path in arguments["paths"].items():
    attempt(f"list {whose}", os.listdir, path)
    attempt(f"read {whose}", read, f"{path}/secret")
    attempt(f"write {whose}", write, f"{path}/secret")
    attempt(f"make in {whose}", os.mkdir, f"{path}/made")
"""


@pytest.mark.parametrize("where", ["/tmp", "/var/tmp"])
async def test_the_workspaces_of_others_are_out_of_reach(
    jail: Jail, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 71: by their exact paths; those of another run, and those of another scope of the same."""
    jail.add("any", ANY)
    keep = "write('secret', arguments['word']); os.chmod('secret', 0o666)"
    top = Path(tempfile.mkdtemp(dir=where, prefix="heddle-top-"))
    top.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(top))
    try:
        async with jail.runner() as theirs, theirs.scope("agent") as other, jail.runner() as ours:
            async with ours.scope("sibling") as sibling, ours.scope("thief") as thief:
                scopes = {"another run": other, "another scope": sibling}
                for scope in scopes.values():
                    await does(scope, keep, word=jail.host.word)
                paths = {whose: str(scope.workspace.path) for whose, scope in scopes.items()}
                report = await does(thief, STEAL, paths=paths)
                seen = await does(thief, "attempt('look', os.listdir, arguments['top'])", top=str(top))
                held = [tree_of(scope.workspace.path) for scope in scopes.values()]
                modes = [stat.S_IMODE(scope.workspace.path.stat().st_mode) for scope in scopes.values()]
                way = stat.S_IMODE(other.workspace.path.parent.stat().st_mode)
                run = other.workspace.path.parent.name
        async with unconfined(jail) as free, free.scope() as victim, free.scope() as thief:
            await does(victim, keep, word=jail.host.word)
            control = await does(thief, STEAL, paths={"it": str(victim.workspace.path)})
    finally:
        remove_tree(top)

    assert len(report) == 8
    assert allowed(report) == {}
    assert run not in seen["look"]
    assert [(tree["secret"], "made" in tree) for tree in held] == [(jail.host.word, False)] * 2
    assert modes == [0o700] * 2
    assert way & 0o066 == 0
    assert len(allowed(control)) == 4
    assert jail.host.word in control["read it"]


# The folder of tools


SPOIL = """
import shutil
here, tools = os.environ["HEDDLE_WORKSPACE"], os.environ["HEDDLE_WORKSPACE_BIN"]
evil = "#!/bin/sh\\necho '{\\"peer\\": \\"evil\\"}'\\n"
attempt("write through the name", write, f"{tools}/peer", evil)
attempt("remove the name", os.unlink, f"{tools}/peer")
write("evil", evil)
os.chmod("evil", 0o755)
attempt("put a file in its place", os.replace, "evil", f"{tools}/peer")
attempt("link in its place", os.symlink, f"{here}/evil", f"{tools}/peer")
attempt("add a name", write, f"{tools}/python3", evil)
"""
MOVE = """
attempt("move the folder", os.rename, tools, f"{tools}-2")
attempt("exchange the folder", exchange, "mine", tools)
"""
# What changes the name in the workspace, and nothing else where that is not the folder itself.
RENAME = """
attempt("rename", os.rename, ".heddle", "moved")
attempt("remove", os.rmdir, ".heddle")
attempt("exchange", exchange, "others", ".heddle")
attempt("make anew", os.makedirs, ".heddle/bin")
attempt("put an own one there", write, ".heddle/bin/peer", evil)
attempt("make it a program", os.chmod, ".heddle/bin/peer", 0o755)
"""
ASK_THE_PEER = """
import subprocess
done = subprocess.run(["peer"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
report.update(json.loads(done.stdout))
report["found"] = shutil.which("peer") if "shutil" in globals() else ""
"""


async def test_a_peer_stays_what_it_was_whatever_a_tool_does_to_the_folder_of_tools(jail: Jail) -> None:
    """Case 72. In Landlock's tier the name in the workspace can be taken, as documented; the way to peers cannot."""
    jail.add("any", ANY)
    original = jail.add("peer", PEER).read_bytes()

    async with jail.runner() as runner, runner.scope() as scope:
        spoilt = await does(scope, SPOIL + MOVE + RENAME)
        asked = await does(scope, ASK_THE_PEER)
        called = await scope.call("peer")
        there = sorted(path.name for path in scope.workspace.bin.iterdir())
    held = (jail.tools / "peer").read_bytes()
    async with unconfined(jail) as free, free.scope() as other:
        await does(other, SPOIL)
        control = await does(other, ASK_THE_PEER)

    names = ("rename", "remove", "exchange", "make anew", "put an own one there", "make it a program")
    let_through = allowed(spoilt)
    if not jail.is_apart:
        assert "rename" in let_through  # Landlock cannot hold a name inside of what may be written
        let_through = {label: said for label, said in let_through.items() if label not in names}
    assert let_through == {}
    assert asked["peer"] == "original"
    assert called == heddle.Returned({"peer": "original"})
    assert there == ["any", "peer"]
    assert held == original
    assert control["peer"] == "evil"


# What is mounted read-only


SWAP = """
attempt("move the mount", os.rename, "a/b", "a/c")
attempt("move what is above", os.rename, "a", "a2")
attempt("exchange it", exchange, "own", "a")
attempt("remove it", os.rmdir, "a/b")
attempt("make its parent", os.makedirs, "a", 0o777, True)
attempt("put a link there", os.symlink, arguments["target"], "a/b")
attempt("put a link there from elsewhere", lambda: (os.symlink(arguments["target"], "l"), os.replace("l", "a/b")))
report.pop("make its parent")
"""
LOOK = """
attempt("names", lambda: sorted(os.listdir("a/b")))
attempt("a.txt", read, "a/b/a.txt")
attempt("secret", read, "a/b/secret")
attempt("write", write, "a/b/new")
"""
ORIGINAL = {"names": "['a.txt', 'inner']", "a.txt": repr("a\n"), "secret": "denied:ENOENT", "write": "denied:EROFS"}


@pytest.mark.parametrize("target", ["the host's /tmp", "/proc", "an absolute path", "a secret place"])
async def test_what_is_mounted_read_only_cannot_be_exchanged_between_two_calls(
    jail: Jail, data: Path, target: str
) -> None:
    """Case 73: the second call once bound what a link in the workspace led to, which was the host's."""
    jail.add("any", ANY)
    to = {
        "the host's /tmp": "../" * 12 + "tmp",
        "/proc": "../" * 12 + "proc",
        "an absolute path": str(jail.host.folder),
        "a secret place": "../" * 12 + str(jail.host.folder).lstrip("/"),
    }[target]

    async with jail.runner(mounts=[Mount(data, "a/b")]) as runner:
        async with runner.scope() as scope:
            swapped = await does(scope, SWAP, target=to)
            second = {label: what(said) for label, said in (await does(scope, LOOK)).items()}
            elsewhere = {label: what(said) for label, said in (await does(scope, LOOK)).items()}
        async with runner.scope() as fresh:
            third = {label: what(said) for label, said in (await does(fresh, LOOK)).items()}
    async with unconfined(jail, mounts=[Mount(data, "a/b")]) as free, free.scope() as other:
        await does(other, SWAP, target=str(jail.host.folder))
        control = await does(other, LOOK)

    if jail.is_apart:
        assert allowed(swapped) == {}
        assert second == elsewhere == third == ORIGINAL
    else:
        # The name is the workspace's; what it leads to is held all the same, and is the original in the next scope.
        assert {label: said for label, said in second.items() if not is_denied(said)} == {}
        assert third == {**ORIGINAL, "write": "denied:EACCES"}
    assert tree_of(data) == DATA
    assert jail.host.touched() == ["folder"]  # by the control
    assert jail.host.word in control["secret"]


WRITE = """
attempt("write", write, "a/b/a.txt")
attempt("cut", os.truncate, "a/b/a.txt", 0)
attempt("make", write, "a/b/new")
attempt("make a folder", os.mkdir, "a/b/folder")
attempt("remove", os.unlink, "a/b/a.txt")
attempt("remove below", os.unlink, "a/b/inner/b.txt")
attempt("move away", os.rename, "a/b/a.txt", "a.txt")
attempt("move there", lambda: (write("own"), os.rename("own", "a/b/own")))
attempt("link there", os.link, "own", "a/b/own")
attempt("name twice", os.link, "a/b/a.txt", "twice")
attempt("write by a second name", write, "twice")
attempt("write by the process's own files", lambda: write(f"/proc/self/fd/{os.open('a/b/a.txt', os.O_RDONLY)}"))
attempt("write by its working folder", write, "/proc/self/cwd/a/b/a.txt")
"""
MODES = """
attempt("mode", os.chmod, "a/b/a.txt", 0o777)
attempt("mode of the folder", os.chmod, "a/b", 0o777)
attempt("time", os.utime, "a/b/a.txt", (0, 0))
attempt("attribute", os.setxattr, "a/b/a.txt", "user.note", b"1")
"""


@pytest.mark.parametrize("kept", [False, True])
async def test_what_is_mounted_read_only_is_not_written(jail: Jail, data: Path, place: Path, *, kept: bool) -> None:
    """Case 73. In Landlock's tier the modes of what is the tools' own user's can be changed, not what is in it."""
    jail.add("any", ANY)
    keep: dict[str, Any] = {"keep_workspaces": place / "kept"} if kept else {}

    async with jail.runner(mounts=[Mount(data, "a/b")], **keep) as runner:
        async with runner.scope() as scope:
            written = await does(scope, WRITE)
            modes = await does(scope, MODES) if jail.is_apart else {}
            again = await does(scope, LOOK)
        async with runner.scope() as fresh:
            afresh = await does(fresh, LOOK)
    async with unconfined(jail, mounts=[Mount(data, "a/b")]) as free, free.scope() as other:
        control = await does(other, "import shutil\n" + MODES + WRITE)

    assert allowed(written) == {"write by a second name": "allowed:None"}  # a file of that name, and of the workspace
    assert allowed(modes) == {}
    assert what(again["a.txt"]) == what(afresh["a.txt"]) == repr("a\n")
    assert what(again["names"]) == what(afresh["names"]) == "['a.txt', 'inner']"
    assert tree_of(data) == DATA
    assert len(allowed(control)) >= 11


async def test_a_kept_workspace_is_not_exchanged_between_two_calls(jail: Jail, data: Path, place: Path) -> None:
    """Case 73, where what is read-only lies in the workspace itself: it stays there afterwards."""
    jail.add("any", ANY)

    async with jail.runner(mounts=[Mount(data, "a/b")], keep_workspaces=place / "kept") as runner:
        async with runner.scope("agent") as scope:
            swapped = await does(scope, SWAP, target=str(jail.host.folder))
            second = {label: what(said) for label, said in (await does(scope, LOOK)).items()}

    if jail.is_apart:
        assert allowed(swapped) == {}
        assert second == ORIGINAL
        assert tree_of(place / "kept" / "agent" / "a") == {
            "b": "folder",
            **{f"b/{path}": it for path, it in DATA.items()},
        }
    else:
        assert {label: said for label, said in second.items() if not is_denied(said)} == {}
    assert jail.host.touched() == []


# What comes back from a mount that is written


@attrs.frozen
class Attack:
    """What a tool does in a workspace with a mount; what is said of it, and what is new in the operator's folder."""

    code: str
    failed: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    new: dict[str, str] = attrs.field(factory=dict[str, str])


NO_FILE = "only files are copied back"
ODD = ["a\nb", "-rf", " ", "\udcff", "\x1b[2J", "x" * 255]
ATTACKS = {
    "the mount is a link to secrets": Attack(
        "os.rename('data', 'old'); os.symlink(arguments['folder'], 'data')", ("data: Not a directory",)
    ),
    "the mount is a link to what is above": Attack(
        "os.rename('data', 'old'); os.symlink('/', 'data')", ("data: Not a directory",)
    ),
    "a file is a link to a secret": Attack(
        "os.unlink('data/a.txt'); os.symlink(arguments['secret'], 'data/a.txt')",
        (f"data/a.txt: it is a link: {NO_FILE}",),
    ),
    "a new file is a link to a secret": Attack(
        "os.symlink(arguments['secret'], 'data/key')", (f"data/key: it is a link: {NO_FILE}",)
    ),
    "a folder on the way is a link to secrets": Attack(
        "os.rename('data/inner', 'old'); os.symlink(arguments['folder'], 'data/inner')",
        (f"data/inner: it is a link: {NO_FILE}",),
    ),
    "a secret under a second name": Attack(
        "attempt('link', os.link, arguments['secret'], 'data/key')\nassert report['link'].startswith('denied:'), report"
    ),
    "a pipe": Attack(
        "os.unlink('data/a.txt'); os.mkfifo('data/a.txt'); os.mkfifo('data/pipe')",
        (f"data/a.txt: it is a named pipe: {NO_FILE}", f"data/pipe: it is a named pipe: {NO_FILE}"),
    ),
    "a device": Attack(
        """
        for kind, number in ((stat.S_IFCHR, os.makedev(1, 5)), (stat.S_IFBLK, os.makedev(8, 0))):
            attempt('device', os.mknod, 'data/device', kind | 0o666, number)
            assert report['device'].startswith('denied:'), report
        """
    ),
    "a folder where a file was": Attack(
        "os.unlink('data/a.txt'); os.mkdir('data/a.txt'); write('data/a.txt/new', 'new')",
        ("data/a.txt/new: there is a file where it needs the folder 'a.txt'",),
    ),
    "a file where a folder was": Attack(
        "os.unlink('data/inner/b.txt'); os.rmdir('data/inner'); write('data/inner', 'new')",
        ("data/inner: there is a folder in its place",),
    ),
    "a second name of a file in the workspace": Attack(
        "write('own', 'own'); os.link('own', 'data/own'); os.link('own', 'data/inner/own')",
        copied=("data/inner/own", "data/own"),
        new={"own": "own", "inner/own": "own"},
    ),
    "every bit of a mode": Attack(
        "for name in ('data/a.txt', 'data/new'): write(name, 'new'); os.chmod(name, 0o7777)",
        copied=("data/a.txt", "data/new"),
        new={"a.txt": "new", "new": "new"},
    ),
    "no bit of a mode": Attack(
        "write('data/a.txt', 'new')\nfor name in ('data/a.txt', 'data/inner', 'data', '.'): os.chmod(name, 0)",
        copied=("data/a.txt",),
        new={"a.txt": "new"},
    ),
    "other contents of the same size and time": Attack(
        """
        before = os.stat('data/a.txt')
        write('data/a.txt', 'A\\n')
        os.utime('data/a.txt', ns=(before.st_atime_ns, before.st_mtime_ns))
        """,
        copied=("data/a.txt",),
        new={"a.txt": "A\n"},
    ),
    "odd names": Attack(
        f"for name in {ODD!r}: write('data/' + name, 'odd')",
        copied=tuple(f"data/{name}" for name in ODD),
        new=dict.fromkeys(ODD, "odd"),
    ),
    "more files than a mount may hold": Attack(
        "for number in range(300): write(f'data/{number}', '')",
        (
            "data: 300 new files and folders with 0 bytes are more than a mount may hold, 200 and 67,108,864 bytes; "
            "none of them was copied back. Raise max_entries or max_bytes of the mount",
        ),
    ),
    "a file that claims four tebibytes": Attack(
        "write('data/large', 'x'); os.truncate('data/large', 1 << 42)",
        copied=("data/large",),
        new={"large": f"{1 << 42} bytes"},
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_only_bytes_of_files_come_back_from_a_confined_tool(jail: Jail, data: Path, attack: Attack) -> None:
    """Cases 48, 82 to 85 and 87, through the whole runner."""
    jail.add("any", ANY)

    mount = Mount(data, "data", "rw", max_entries=200)
    async with jail.runner() as runner, runner.scope(mounts=[mount]) as scope:
        path = scope.workspace.path
        await does(scope, attack.code, folder=str(jail.host.folder), secret=str(jail.host.secret))

    assert tuple(map(str, scope.report.failed)) == attack.failed
    assert set(scope.report.copied_back) == set(attack.copied)
    assert tree_of(data) == {**DATA, **attack.new}
    assert sum(file.stat().st_blocks for file in data.rglob("*") if file.is_file()) * 512 < MIB
    assert [path for path in data.rglob("*") if path.lstat().st_mode & 0o7000] == []
    assert not path.exists()
    assert jail.host.touched() == []


async def test_a_socket_does_not_come_back(jail: Jail, data: Path) -> None:
    """Case 84. Landlock's tier lets no tool make one."""
    jail.add("any", ANY)
    make = "attempt('bind', lambda: socket.socket(socket.AF_UNIX).bind('data/socket'))"

    async with jail.runner() as runner, runner.scope(mounts=[Mount(data, "data", "rw")]) as scope:
        report = await does(scope, make)

    failed = [f"data/socket: it is a socket: {NO_FILE}"] if jail.is_apart else []
    assert is_denied(report["bind"]) is not jail.is_apart
    assert list(map(str, scope.report.failed)) == failed
    assert tree_of(data) == DATA


async def test_what_lies_too_deep_for_a_path_or_a_recursion_comes_back(jail: Jail, data: Path) -> None:
    """Cases 87 and 88: and the workspace with it goes. A path has 4,096 bytes at most, a recursion 1,000 levels."""
    jail.add("any", ANY)
    depth = 1100
    dig = f"""
    os.chdir("data")
    for _ in range({depth}):
        os.mkdir("deep")
        os.chdir("deep")
    write("bottom", "found")
    """

    async with jail.runner() as runner, runner.scope(mounts=[Mount(data, "data", "rw")]) as scope:
        path = scope.workspace.path
        await does(scope, dig)

    assert not path.exists()
    assert scope.report.failed == ()
    assert scope.report.copied_back == (f"data/{'deep/' * depth}bottom",)
    levels = 0
    folder = os.open(data, os.O_RDONLY)
    try:
        while "deep" in os.listdir(folder):
            inner = os.open("deep", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
            levels += 1
        assert (levels, os.listdir(folder)) == (depth, ["bottom"])
    finally:
        os.close(folder)
        remove_tree(data)  # pytest's own removal recurses


async def test_a_link_in_the_operators_folder_is_not_followed(jail: Jail, data: Path) -> None:
    """Case 86: somebody has put it there while the tool worked; and a file that nobody may write stays."""
    jail.add("any", ANY)
    (data / "fixed").write_text("fixed\n")
    (data / "fixed").chmod(0o444)

    async with jail.runner() as runner, runner.scope(mounts=[Mount(data, "data", "rw")]) as scope:
        await does(scope, "for name in ('a.txt', 'inner/b.txt'): write(f'data/{name}', 'new')")
        await does(scope, "os.chmod('data/fixed', 0o666); write('data/fixed', 'new')")
        (data / "a.txt").unlink()
        (data / "a.txt").symlink_to(jail.host.secret)
        (data / "inner").rename(data.parent / "moved")
        (data / "inner").symlink_to(jail.host.folder)

    assert list(map(str, scope.report.failed)) == [
        "data/a.txt: there is a link in its place",
        "data/fixed: the file in its place is read-only",
        "data/inner/b.txt: there is a link where it needs the folder 'inner'",
    ]
    assert scope.report.copied_back == ()
    assert (data / "fixed").read_text() == "fixed\n"
    assert jail.host.touched() == []


async def test_a_confined_tool_does_bring_its_work_back(jail: Jail, data: Path) -> None:
    """The other side of cases 82 to 87: what they refuse is not simply everything."""
    jail.add("any", ANY)

    async with jail.runner() as runner:
        async with runner.scope(mounts=[Mount(data, "data", "rw")]) as scope:
            await does(scope, "write('data/a.txt', 'new'); os.makedirs('data/x/y'); write('data/x/y/z', 'z')")
        async with runner.scope(mounts=[Mount(data, "data", "rw")]) as later:
            seen = await does(later, "attempt('z', read, 'data/x/y/z')")

    assert (scope.report.copied_back, scope.report.failed) == (("data/a.txt", "data/x/y/z"), ())
    assert tree_of(data) == {**DATA, "a.txt": "new", "x": "folder", "x/y": "folder", "x/y/z": "z"}
    assert what(seen["z"]) == "'z'"


# What goes in


async def test_a_mount_in_another_place_than_its_own_is_refused_before_anything_runs(jail: Jail, data: Path) -> None:
    """Case 80."""
    jail.add("any", ANY)
    dests = [
        *("", "/", "/etc", "../x", "a/../../x", "a/..", "..", ".", "./a", "a//b", "a/", "a/./b"),
        *(".heddle", ".heddle/bin", ".heddle/../x", "a/.heddle", ".HEDDLE", "a\0b", "x" * 256),
        *("\u2025/x", "\uff0e\uff0e/x", "a\uff0f..\uff0fx", ".\uff48eddle"),
    ]
    let_through = []

    for dest in dests:
        with contextlib.suppress(heddle.DefinitionError):
            async with jail.runner(mounts=[Mount(data, dest)]):
                let_through.append(dest)

    assert let_through == []


async def test_a_mount_may_land_under_any_name(jail: Jail, data: Path) -> None:
    """Case 80: a name that looks like an option, or like two lines, is just a name."""
    jail.add("any", ANY)
    dests = ["--bind", "--ro-bind-data 0 /etc/passwd", "a\nb", " ", "...", "a:b", "x" * 255, "d/--/e"]
    code = """
    for dest in arguments["dests"]:
        attempt(dest, read, f"{dest}/a.txt")
        attempt(f"write {dest}", write, f"{dest}/a.txt")
    """

    async with jail.runner(mounts=[Mount(data, dest) for dest in dests]) as runner:
        async with runner.scope() as scope:
            report = await does(scope, code, dests=dests)

    denied = "denied:EROFS" if jail.is_apart else "denied:EACCES"
    wanted = {dest: f"allowed:{'a' + chr(10)!r}" for dest in dests} | {f"write {dest}": denied for dest in dests}
    assert report == wanted


async def test_a_source_with_anything_but_files_is_refused(jail: Jail, data: Path) -> None:
    """Case 81. Of a second name only the bytes are copied."""
    jail.add("any", ANY)
    os.link(jail.host.secret, jail.host.folder / "twice")
    odd = jail.host.folder / "odd"
    odd.mkdir()
    (odd / "link").symlink_to(jail.host.secret)
    (odd / "loop").symlink_to("loop")
    os.mkfifo(odd / "pipe")
    if os.geteuid() == 0:
        os.mknod(odd / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))

    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(heddle.DefinitionError) as refused:
            await stack.enter_async_context(jail.runner(mounts=[Mount(odd, "odd")]))
    async with jail.runner(mounts=[Mount(jail.host.folder / "twice", "twice")]) as runner, runner.scope() as scope:
        report = await does(
            scope, "attempt('links', lambda: os.stat('twice').st_nlink); attempt('read', read, 'twice')"
        )

    for said in ("'link' is a link", "'loop' is a link", "'pipe' is a named pipe"):
        assert said in str(refused.value)
    assert ("'device' is a device" in str(refused.value)) is (os.geteuid() == 0)
    assert report == {"links": "allowed:1", "read": f"allowed:{jail.host.word!r}"}


# What is left


HOSTILE = {
    "folders without permissions": "os.makedirs('a/b'); write('a/b/f'); os.chmod('a/b', 0); os.chmod('a', 0)",
    "links out": """
        os.symlink(arguments['folder'], 'out'); os.symlink(arguments['secret'], 'file'); os.symlink('/nosuch', 'to')
        os.symlink('/', 'root'); os.mkdir('d'); os.symlink('..', 'd/up'); os.symlink('../' * 20, 'up')
    """,
    "odd names": f"for name in {ODD!r}: write(name)\nos.mkdir('--')",
    "pipes": "os.mkfifo('pipe'); os.mkdir('d'); os.mkfifo('d/pipe')",
    "a reserved folder of its own": """
        attempt('move', os.rename, '.heddle', 'x'); attempt('make', os.symlink, '/', '.heddle')
    """,
    "names that look like ours": "os.makedirs('.removing-0/x'); write('.removing-1')",
    "a root without permissions": "write('f'); os.chmod('.', 0)",
    "what belongs to it beside the workspace": """
        for place in (os.environ['TMPDIR'], os.environ['HOME']):
            attempt(place, os.symlink, arguments['folder'], place + '/out'); attempt(place, os.mkdir, place + '/d')
            attempt(place, os.chmod, place + '/d', 0); attempt(place, os.chmod, place, 0)
    """,
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
async def test_a_workspace_is_removed_whatever_a_confined_tool_has_left_in_it(
    jail: Jail, place: Path, code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 88."""
    jail.add("any", ANY)
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    async with jail.runner() as runner:
        async with runner.scope() as scope:
            await does(scope, code, folder=str(jail.host.folder), secret=str(jail.host.secret))
        caplog.clear()

    assert list(place.iterdir()) == []
    assert caplog.text == ""
    assert jail.host.touched() == []


async def test_a_workspace_is_removed_after_all_that_worked_in_it_is_gone(
    jail: Jail, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 89: three of them make files and folders to the last, and three more in sessions of their own."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    code = """
    leave_behind()
    for _ in range(3):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            number = 0
            while True:
                number += 1
                os.mkdir(f"{os.getpid()}-{number % 500}") if number <= 500 else write(f"{os.getpid()}-{number % 500}/f")
    while len(os.listdir(".")) < 500:
        time.sleep(0.001)
    """

    _, result = await jail.attack(code)

    assert result == heddle.Returned({})
    assert result.report.survivors == ()
    assert list(place.iterdir()) == []
    assert wait_until(lambda: not jail.strays(), 2)


# Where workspaces are made


async def test_a_run_takes_no_folder_that_is_there_already(
    jail: Jail, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 90: nobody can guess its name, it is private, and a link on the way is resolved once."""
    jail.add("any", ANY)
    real = place / "real"
    real.mkdir()
    planted = real / "heddle-run-00000000"
    planted.symlink_to(jail.host.folder)
    (place / "link").symlink_to(real)
    monkeypatch.setattr(tempfile, "tempdir", str(place / "link"))

    async with jail.runner() as one, jail.runner() as two, one.scope() as first, two.scope() as second:
        for scope in (first, second):
            await does(scope, "write('file')")
        runs = [scope.workspace.path.parent for scope in (first, second)]
        modes = [path.stat().st_mode & 0o066 for path in runs]
        there = [sorted(os.listdir(scope.workspace.path)) for scope in (first, second)]

    assert len({*runs}) == 2
    assert {run.parent for run in runs} == {real}
    assert modes == [0, 0]
    assert there == [[".heddle", "file"]] * 2
    assert list(real.iterdir()) == [planted]
    assert jail.host.touched() == []


async def test_what_lies_where_workspaces_are_kept_is_left_alone(jail: Jail, place: Path) -> None:
    """Case 91: what an earlier run left there may be hostile."""
    jail.add("any", ANY)
    jail.add("peer", PEER)
    kept = place / "kept"
    old = kept / "agent"
    old.mkdir(parents=True)
    (old / ".heddle").symlink_to(jail.host.folder)
    (kept / "agent-2").symlink_to(jail.host.folder)
    (place / "link").symlink_to(kept)

    async with jail.runner(keep_workspaces=place / "link") as runner, runner.scope("agent") as scope:
        report = await does(scope, "write('file', 'new')\n" + ASK_THE_PEER)

    assert scope.report.kept == kept / "agent-3"
    assert report["peer"] == "original"
    assert (kept / "agent-3" / "file").read_text() == "new"
    assert old.joinpath(".heddle").readlink() == jail.host.folder
    assert jail.host.touched() == []


async def test_an_adopted_folder_with_a_hostile_reserved_folder_misleads_nobody(jail: Jail, place: Path) -> None:
    """Case 91: the folder of tools of an adopted folder lies elsewhere."""
    jail.add("any", ANY)
    jail.add("peer", PEER)
    folder = folder_of(place / "repository", os.geteuid(), 0o777)
    (folder / ".heddle").symlink_to(jail.host.folder)
    attack = (
        "write('file', 'new'); attempt('through it', write, '.heddle/new'); attempt('look', os.listdir, '.heddle/')"
    )

    async with heddle.Workspace.adopt(folder, registry=heddle.discover_tools(jail.tools)) as workspace:
        async with jail.runner() as runner, runner.scope(workspace=workspace) as scope:
            report = await does(scope, attack)
            asked = await does(scope, ASK_THE_PEER)

    assert allowed(report) == {}
    assert asked["peer"] == "original"
    assert tree_of(folder) == {".heddle": f"-> {jail.host.folder}", "file": "new", "own": "own"}
    assert jail.host.touched() == []


# Workspaces of the host's own


TESTER = 1001
# Whose the folder is that a host adopts; as a plain user, always its own.
OWNERS = {"the host's user": os.geteuid(), "another user": TESTER if os.geteuid() == 0 else os.geteuid()}
KEEP_OUT = """
attempt("outside", write, arguments["secret"])
attempt("read outside", read, arguments["secret"])
attempt("beside", read, arguments["beside"])
attempt("add a tool", write, os.environ["HEDDLE_WORKSPACE_BIN"] + "/new")
attempt("remove a tool", os.unlink, os.environ["HEDDLE_WORKSPACE_BIN"] + "/peer")
"""


def folder_of(path: Path, owner: int, mode: int = 0o755) -> Path:
    """Make a folder, with a file of its own in it, that belongs to a user."""
    path.mkdir()
    (path / "own").write_text("own")
    for each in (path, path / "own"):
        os.chown(each, owner, -1)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o777])
@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
async def test_tools_work_in_an_adopted_folder_and_nowhere_else(jail: Jail, place: Path, owner: int, mode: int) -> None:
    """Case 91. As root, what tools write in it belongs to whom it belongs to, unless everybody may write there."""
    jail.add("any", ANY)
    jail.add("peer", PEER)
    folder = folder_of(place / "repository", owner, mode)
    (folder / "own").unlink() if mode == 0o777 else None
    beside = place / "beside"
    beside.write_text("beside")
    beside.chmod(0o666)

    async with heddle.Workspace.adopt(folder, registry=heddle.discover_tools(jail.tools)) as workspace:
        async with jail.runner() as runner, runner.scope(workspace=workspace) as scope:
            await does(scope, "write('own', 'changed'); os.mkdir('new'); write('new/file', 'new')")
            report = await does(scope, KEEP_OUT, secret=str(jail.host.secret), beside=str(beside))
            asked = await does(scope, ASK_THE_PEER)
            peer = await scope.call("peer")

    assert allowed(report) == {}
    assert len(report) == 5
    assert asked["peer"] == "original"
    assert peer == heddle.Returned({"peer": "original"})
    assert tree_of(folder) == {"own": "changed", "new": "folder", "new/file": "new"}
    owners = {path.stat().st_uid for path in folder.rglob("*")}
    assert owners == ({65534} if mode == 0o777 and os.geteuid() == 0 else {owner})
    assert jail.host.touched() == []


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
async def test_the_tools_of_a_folder_that_is_adopted_with_them_stay_as_they_are(
    jail: Jail, place: Path, owner: int
) -> None:
    """Case 74: a repository often holds its own tools. Where they cannot be kept from being written, nothing is run."""
    folder = folder_of(place / "repository", owner)
    tools = folder_of(folder / "tools", owner)
    (tools / "own").unlink()
    jail.tools = tools
    paths = [jail.add("any", ANY), jail.add("peer", PEER)]
    for path in paths:
        os.chown(path, owner, -1)
    before = [path.read_bytes() for path in paths]
    attack = """
    for name in ("any", "peer"):
        attempt(f"write {name}", write, f"tools/{name}", "#!/bin/sh\\n")
        attempt(f"remove {name}", os.unlink, f"{arguments['tools']}/{name}")
    attempt("add", write, "tools/new")
    attempt("exchange", lambda: (os.rename("tools", "old"), os.mkdir("tools")))
    """
    report: dict[str, Any] = {}

    async with heddle.Workspace.adopt(folder, registry=heddle.discover_tools(tools)) as workspace:
        with contextlib.suppress(*([] if jail.is_apart else [heddle.SandboxUnavailable])):
            async with jail.runner() as runner, runner.scope(workspace=workspace) as scope:
                report = await does(scope, attack, tools=str(tools))

    assert allowed(report) == {}
    assert bool(report) is jail.is_apart
    assert [path.read_bytes() for path in paths] == before
    assert tree_of(folder).keys() == {"own", "tools", "tools/any", "tools/peer"}


TAKE_THE_WAY = """
top = arguments["top"]
attempt("move the way", os.rename, f"{top}/x", f"{top}/old")
attempt("remove the way", os.rmdir, f"{top}/x")
attempt("exchange it", exchange, f"{top}/mine", f"{top}/x")
attempt("link elsewhere", os.symlink, arguments["folder"], f"{top}/x")
attempt("make it anew", os.makedirs, f"{top}/x/inner")
attempt("put a tool there", write, f"{top}/x/inner/peer", "#!/bin/sh\\necho '{\\"peer\\": \\"evil\\"}'\\n")
attempt("make it run", os.chmod, f"{top}/x/inner/peer", 0o755)
"""


@pytest.mark.parametrize("what_is_read", ["the tools", "data"])
@pytest.mark.parametrize("how", ["granted", "adopted"])
async def test_the_way_to_what_is_only_read_cannot_be_taken_where_more_is_written(
    jail: Jail, place: Path, how: str, what_is_read: str
) -> None:
    """Cases 73 and 74: two levels down, moving the folder above moves what is mounted below it, on the host as well.

    The next call then ran what the tool had put there, or was shown what its link led to.
    """
    top = folder_of(place / "top", os.geteuid(), 0o777)
    inner = top / "x" / "inner"
    inner.mkdir(parents=True)
    for folder in (top / "x", inner):
        folder.chmod(0o777)
    (inner / "secret").write_text("inner")
    theirs = jail.host.folder / "inner"
    theirs.mkdir()
    (theirs / "secret").write_text(jail.host.word)
    if what_is_read == "the tools":
        jail.tools = inner
    jail.add("any", ANY)
    jail.add("peer", PEER)
    before = tree_of(top)
    policy: dict[str, Any] = {"write": [top]} if how == "granted" else {}
    policy |= {"read": [inner]} if what_is_read == "data" else {}
    report: dict[str, Any] = {}
    second: dict[str, Any] = {}
    peer: heddle.ToolResult | None = None

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(contextlib.suppress(*([] if jail.is_apart else [heddle.SandboxUnavailable])))
        workspace: heddle.Workspace | None = None
        if how == "adopted":
            registry = heddle.discover_tools(jail.tools)
            workspace = await stack.enter_async_context(heddle.Workspace.adopt(top, registry=registry))
        runner = await stack.enter_async_context(jail.runner(sandbox=policy))
        scope = await stack.enter_async_context(runner.scope(workspace=workspace))
        report = await does(scope, TAKE_THE_WAY, top=str(top), folder=str(jail.host.folder))
        assert allowed(report) == {}
        peer = await scope.call("peer")
        second = await does(scope, "attempt('secret', read, arguments['path'])", path=str(inner / "secret"))

    assert bool(report) or not jail.is_apart
    assert tree_of(top) in (before, {**before, "mine": "folder"})
    if report:
        assert peer == heddle.Returned({"peer": "original"})
        assert second == {"secret": "allowed:'inner'"}


async def test_a_whole_system_is_not_adopted(jail: Jail) -> None:
    """Case 91: a sandbox in which tools may write everything is none; see ``write="/"``."""
    jail.add("any", ANY)

    async with heddle.Workspace.adopt("/", registry=heddle.discover_tools(jail.tools)) as workspace:
        with pytest.raises((heddle.DefinitionError, heddle.SandboxUnavailable)) as refused:
            async with jail.runner() as runner, runner.scope(workspace=workspace) as scope:
                await does(scope, "attempt('write', write, arguments['secret'])", secret=str(jail.host.secret))

    assert "limits.processes" not in str(refused.value)
    assert jail.host.touched() == []


@pytest.mark.parametrize("kept", [False, True])
async def test_a_workspace_of_the_hosts_own_holds_what_one_of_the_runners_does(
    jail: Jail, data: Path, place: Path, *, kept: bool
) -> None:
    """Cases 72 and 73. Where it cannot be held to that, as in Landlock's tier, it is refused before anything runs."""
    jail.add("any", ANY)
    jail.add("peer", PEER)
    notes = data.parent / "notes"
    notes.mkdir()
    mounts = [Mount(data, "a/b"), Mount(notes, "notes", "rw")]
    keep_in = place / "kept" if kept else None
    report: dict[str, Any] = {}
    second: dict[str, Any] = {}
    registry = heddle.discover_tools(jail.tools)

    async with heddle.Workspace.open("agent", mounts=mounts, keep_in=keep_in, registry=registry) as workspace:
        with contextlib.suppress(*([] if jail.is_apart else [heddle.SandboxUnavailable])):
            async with jail.runner() as runner, runner.scope(workspace=workspace) as scope:
                report = await does(scope, SPOIL + MOVE + WRITE)
                report |= await does(scope, SWAP, target=str(jail.host.folder)) if jail.is_apart else {}
                await does(scope, "write('notes/new', 'new')")
                second = await does(scope, LOOK) | await does(scope, ASK_THE_PEER)

    assert allowed(report) == ({"write by a second name": "allowed:None"} if report else {})
    assert bool(report) or not jail.is_apart
    if report:
        assert (second["peer"], what(second["a.txt"])) == ("original", repr("a\n"))
        assert tree_of(notes) == {"new": "new"}
        assert workspace.report.copied_back == ("notes/new",)
    assert tree_of(data) == DATA
    assert jail.host.touched() == []


@pytest.mark.parametrize("mode", [0o755, 0o700])
async def test_tools_work_in_a_workspace_that_is_kept_whoever_may_look_into_its_folder(
    jail: Jail, data: Path, place: Path, mode: int
) -> None:
    """As root, the tools' own user may have no way into a private folder; then they stay root, and that is said."""
    jail.add("any", ANY)
    jail.add("peer", PEER)
    kept = place / "kept"
    kept.mkdir()
    kept.chmod(mode)

    async with jail.runner(mounts=[Mount(data, "a/b")], keep_workspaces=kept) as runner:
        async with runner.scope("agent") as scope:
            await does(scope, "write('file', 'new')")
            asked = await does(scope, ASK_THE_PEER)

    assert asked["peer"] == "original"
    assert scope.report.kept == kept / "agent"
    assert (kept / "agent" / "file").read_text() == "new"
    assert tree_of(kept / "agent")["a/b/a.txt"] == "a\n"  # as the folder's docs have it: it stays, with what it held


LEFT = {
    "links": """
        for name in (".heddle", "a/b", "a"):
            attempt(f"move {name}", os.rename, name, "old-" + name.replace("/", "-"))
            attempt(f"link {name}", os.symlink, arguments["folder"], name)
    """,
    "folders with links": """
        for name in (".heddle", "a/b"):
            attempt(f"move {name}", os.rename, name, "old-" + name.replace("/", "-"))
            attempt(f"make {name}", os.mkdir, name)
            attempt(f"link in {name}", os.symlink, arguments["folder"], name + "/bin")
    """,
    "no permissions": "os.chmod('.', 0); attempt('a', os.chmod, 'a', 0)",
}


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
async def test_nothing_is_followed_or_written_elsewhere_when_a_workspace_is_kept(
    jail: Jail, data: Path, place: Path, code: str
) -> None:
    """Cases 82 and 91: what stays is completed after tools have been in it."""
    jail.add("any", ANY)

    async with jail.runner(mounts=[Mount(data, "a/b")], keep_workspaces=place / "kept") as runner:
        async with runner.scope("agent", report_changes=True) as scope:
            await does(scope, code, folder=str(jail.host.folder))

    assert scope.report.kept == place / "kept" / "agent"
    assert jail.host.touched() == []
    assert tree_of(data) == DATA


# Programs that a workspace could put in the way


async def test_programs_in_the_workspace_are_not_taken_for_those_of_the_system(
    jail: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 77. Empty and relative parts of the host's PATH mean the workspace, and are left out."""
    jail.add("any", ANY)
    jail.add("ls", PEER)
    path = jail.tools / "plain"
    path.write_text(
        "#!/usr/bin/env python3\nimport os\nos.system('ls > /dev/null; sh -c :')\nprint('{\"plain\": 1}')\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f":.:bin:{os.environ['PATH']}::.")
    plant = """
    for name in ("python3", "sh", "env", "ls", "bwrap", "dash", "bin/python3", "bin/sh"):
        os.makedirs("bin", exist_ok=True)
        write(name, "#!/bin/sh\\ntouch $HEDDLE_WORKSPACE/hijacked\\necho '{\\"plain\\": \\"evil\\"}'\\n")
        os.chmod(name, 0o755)
    report["path"] = os.environ["PATH"]
    report["bin"] = os.environ["HEDDLE_WORKSPACE_BIN"]
    """
    fall = """
    import subprocess
    os.environ["PATH"] = os.getcwd() + ":" + os.environ["PATH"]
    report["evil"] = subprocess.run([arguments["plain"]], capture_output=True, text=True).stdout
    """

    async with jail.runner() as runner, runner.scope() as scope:
        planted = await does(scope, plant)
        second = await scope.call("plain")
        third = await scope.call("plain", cwd="bin")
        hijacked = (scope.workspace.path / "hijacked").exists()
        control = await does(scope, fall, plain=str(path))

    assert [second, third] == [heddle.Returned({"plain": 1})] * 2
    assert not hijacked
    folders = planted["path"].split(":")
    assert folders[-1] == planted["bin"]
    assert [folder for folder in folders if not folder.startswith("/")] == []
    assert "evil" in control["evil"]


async def test_variables_that_lead_into_the_workspace_do_not_reach_what_confines_or_runs_tools(
    jail: Jail, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 78: neither the supervisor, nor bubblewrap, nor a tool loads what another tool has left."""
    jail.add("any", ANY)
    kept = place / "kept"
    workspace = kept / "agent"
    code = f"import os\nopen({str(workspace / 'hijacked')!r}, 'a').write('1')\n"
    names = ["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PERL5LIB", "NODE_PATH", "LD_LIBRARY_PATH"]
    names += ["BASH_ENV", "ENV", "NODE_OPTIONS", "GIT_CONFIG_GLOBAL", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH"]
    kept.mkdir()
    kept.chmod(0o755)
    for name in names:
        # A library that is not there would be complained of on standard error.
        monkeypatch.setenv(name, str(workspace / ("bad.so" if name in {"LD_PRELOAD", "LD_AUDIT"} else "")))
    monkeypatch.setenv("FAKE_KEY", jail.host.word)
    plain = jail.tools / "plain"
    plain.write_text(
        "#!/usr/bin/python3\nimport json, os, sys\nprint(json.dumps({'names': [*os.environ], 'path': sys.path}))\n"
    )
    plain.chmod(0o755)
    shell = jail.tools / "shell"
    shell.write_text("#!/bin/bash\necho '{}'\n")
    shell.chmod(0o755)
    plant = """
    for name in ("json.py", "os.py", "site.py", "sitecustomize.py", "usercustomize.py", "encodings.py"):
        write(name, arguments["code"])
    write("x.pth", "import os; " + arguments["code"].replace("\\n", "; "))
    write(".env", "FAKE_KEY=1\\n")
    """.replace('arguments["code"]', 'arguments["planted"]')

    async with jail.runner(keep_workspaces=kept) as runner, runner.scope("agent") as scope:
        assert scope.workspace.path == workspace
        await does(scope, plant, planted=code)
        second = await scope.call("plain")
        third = await scope.call("shell")
        hijacked = (workspace / "hijacked").exists()
    granted = heddle.Environment(values={"PYTHONPATH": str(kept / "agent-2")})
    async with jail.runner(keep_workspaces=kept, environment=granted) as free, free.scope("agent") as later:
        (later.workspace.path / "json.py").write_text("raise SystemExit(3)")
        control = await later.call("plain")

    assert isinstance(second, heddle.Returned), second
    assert isinstance(second.data, dict)
    usual = {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "HEDDLE_WORKSPACE", "HEDDLE_WORKSPACE_BIN", "LC_CTYPE", "PWD"}
    seen = {str(name) for name in second.data["names"]}  # type: ignore[union-attr]
    assert {name for name in seen - usual if not name.startswith(("LC_", "HEDDLE_"))} == set()
    assert str(workspace) not in second.data["path"]  # type: ignore[operator]
    assert second.data["path"][0] == str(jail.tools)  # type: ignore[index]
    assert (second.report.stderr_tail, third.report.stderr_tail) == ("", "")
    assert third == heddle.Returned({})
    assert not hijacked
    assert isinstance(control, heddle.Failed)
    assert control.report.exit_status == 3


# Tools that are none, and names that look like something else


async def test_files_that_are_no_tools_are_said_to_be_none_and_hold_nothing_up(jail: Jail, place: Path) -> None:
    """Case 76: nothing of them is run, neither by the kernel nor by a shell that takes everything for its own."""
    ran = place / "ran"
    ran.mkdir()
    ran.chmod(0o777)
    line = f"\ntouch {ran}/it\n".encode()
    interpreter = jail.host.folder / "interpreter"
    interpreter.write_text("#!/bin/sh\necho '{}'\n")
    interpreter.chmod(0o755)
    os.mkfifo(jail.host.folder / "pipe")
    files = {
        "empty": b"",
        "text": b"hello" + line,
        "missing": b"#!/nosuch/interpreter" + line,
        "unseen": f"#!{interpreter}".encode() + line,
        "pipe-line": f"#!{jail.host.folder}/pipe".encode() + line,
        "folder-line": b"#!/usr" + line,
        "relative": b"#!sh" + line,
        "long": b"#!/bin/" + b"x" * 5000 + line,
        "binary": b"\x7fELF\0\1\2garbage" + line,
        "late-pipe": b"#!/bin/sh" + line,
        "late-folder": b"#!/bin/sh" + line,
        "late-gone": b"#!/bin/sh" + line,
    }
    for name, contents in files.items():
        (jail.tools / name).write_bytes(contents)
        (jail.tools / name).chmod(0o755)
    (jail.tools / "not-executable").write_bytes(b"#!/bin/sh" + line)
    (jail.tools / "folder").mkdir()
    os.mkfifo(jail.tools / "pipe", 0o755)
    (jail.tools / "dangling").symlink_to(place / "nosuch")
    (jail.tools / "loop").symlink_to("loop")
    kinds: dict[str, str] = {}

    registry = heddle.discover_tools(jail.tools)
    async with jail.runner(sandbox={"write": [ran]}) as runner:
        for late in ("pipe", "folder", "gone"):
            (jail.tools / f"late-{late}").unlink()
        os.mkfifo(jail.tools / "late-pipe", 0o755)
        (jail.tools / "late-folder").mkdir()
        for tool in registry:
            result = await runner.call(tool.name, limits=heddle.Limits(wall_seconds=5))
            kinds[tool.name] = str(result.kind) if isinstance(result, heddle.Failed) else "returned"

    left_out = {Path(notice.path).name for notice in registry.notices if "left out" in notice.message}
    assert left_out == {"not-executable", "dangling", "loop"}
    assert sorted(kinds) == sorted(files)
    assert list(ran.iterdir()) == []
    assert kinds == dict.fromkeys(files, "cannot_start")
    assert set(jail.host.touched()) <= {"folder"}  # what this test has put there


async def test_a_tool_that_is_a_link_runs_as_what_it_leads_to(jail: Jail, place: Path) -> None:
    """Case 76: the host has put it there. It sees that file's own folder, as every tool, and no more."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    jail.add("real", ANY).rename(elsewhere / "real")
    (elsewhere / "beside").write_text("beside")
    (jail.tools / "any").symlink_to(elsewhere / "real")
    code = """
    attempt("beside", read, arguments["beside"])
    attempt("write", write, arguments["beside"])
    attempt("itself", write, arguments["beside"].replace("beside", "real"))
    attempt("secret", read, arguments["secret"])
    """

    async with jail.runner() as runner, runner.scope() as scope:
        report = await does(scope, code, beside=str(elsewhere / "beside"), secret=str(jail.host.secret))

    assert allowed(report) == {"beside": "allowed:'beside'"}
    assert len(report) == 4


@pytest.mark.parametrize("folder", ["--bind", "--ro-bind-data 3", "a\nb", "--", "'; touch x; '", "a=b"])
async def test_names_that_look_like_options_are_names(jail: Jail, place: Path, folder: str) -> None:
    """Case 79: of the folder of tools, of a tool's file, of its words, of the workspace and of where a tool starts."""
    jail.tools = place / folder
    jail.tools.mkdir(0o755)
    jail.tools.chmod(0o755)
    path = jail.add(
        "--bind\n", "report['argv'] = sys.argv; report['cwd'] = os.getcwd(); report['secret'] = os.path.exists(SECRET)"
    )
    path.write_text(path.read_text().replace("SECRET", repr(str(jail.host.secret))))
    words = ("--bind", "/", "/", "--", "$(id)", "a\nb", "--args", "0", "")
    tool = heddle.ToolDef(name="odd", implementation=heddle.Program(path, args=words))
    backend: Any = "landlock" if jail.tier == "landlock" else "bubblewrap"
    sandbox = heddle.Sandbox(network="none", backend=backend)
    kept = place / "kept\n--bind"
    kept.mkdir(0o755)

    async with heddle.Runner([tool], sandbox=sandbox, keep_workspaces=kept) as runner, runner.scope("--bind") as scope:
        (scope.workspace.path / folder).mkdir()
        (scope.workspace.path / folder).chmod(0o777)
        result = await scope.call("odd", cwd=folder)

    assert isinstance(result, heddle.Returned), (result.message, result.report.stderr_tail)
    cwd = str(kept / "--bind" / folder)
    assert result.data == {
        "argv": [str(path), *words],
        "cwd": cwd,
        "secret": not jail.is_apart,
    }  # Landlock hides no name


async def test_what_no_command_line_can_hold_is_refused(jail: Jail) -> None:
    """Case 79: a list of options is separated by NUL characters."""
    path = jail.add("any", ANY)
    backend: Any = "landlock" if jail.tier == "landlock" else "bubblewrap"
    tool = None
    result: heddle.ToolResult | None = None

    with contextlib.suppress(heddle.DefinitionError, ValueError):
        tool = heddle.ToolDef(name="odd", implementation=heddle.Program(path, args=("a\0--bind\0/\0/",)))
        async with heddle.Runner([tool], sandbox=heddle.Sandbox(network="none", backend=backend)) as runner:
            result = await runner.call("odd", {"code": "1"})
    with pytest.raises(heddle.DefinitionError):
        heddle.Environment(values={"A=B": "1"})
    with pytest.raises(heddle.DefinitionError):
        heddle.Environment(values={"A": "1\0--bind"})

    assert result is None or isinstance(result, heddle.Failed)
    assert result is None or not result.started
