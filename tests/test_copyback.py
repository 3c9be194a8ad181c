"""What tools cannot do by what they leave in a mount: whatever lies there, only bytes of files come back."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heddle
from heddle import Mount, ScopeReport
from heddle.workspace import Changes, FileFault, FileState, Workspace
from heddle.workspace.changes import Baseline, Entry, Mark, mark_of
from heddle.workspace.copyback import CopiedBack, copy_back
from heddle.workspace.filling import Origin, fill
from heddle.workspace.sources import Source
from heddle.workspace.trees import FOLDER, Cursor, Entered, walk
from tests.support import Toolbox, open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONLY_FILES = "only files are copied back"


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """A copy that waits for a pipe waits in a thread that nobody can cancel: then fail, rather than hang."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What tools may see, and what must neither get into a mount nor be touched."""
    folder = tmp_path / "outside"
    (folder / "data").mkdir(parents=True)
    (folder / "inner").mkdir()
    for path in ("key", "a.txt", "b.txt", "data/a.txt", "inner/b.txt"):
        (folder / path).write_text("secret\n")
    return folder


DATA: dict[bytes, bytes | str] = {b"a.txt": b"a\n", b"inner": "folder", b"inner/b.txt": b"b\n"}


def tree_of(folder: Path) -> dict[bytes, bytes | str]:
    """Return all that is below a folder: contents of files, targets of links, kinds of the rest."""
    found: dict[bytes, bytes | str] = {}
    top = os.fsencode(folder)
    for above, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            what: bytes | str = "something else"
            if stat.S_ISREG(mode):
                what = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(mode):
                what = f"-> {os.fsdecode(os.readlink(path))}"
            elif stat.S_ISDIR(mode):
                what = "folder"
            found[os.path.relpath(path, top)] = what
    return found


async def report_of(toolbox: Toolbox, source: str, *mounts: Mount | str, report_changes: bool = False) -> ScopeReport:
    """Run a Python program in a scope with mounts, and return what is told when that is over."""
    begin = "#!/usr/bin/env python3\nimport os, shutil, socket, stat\n"
    toolbox.add("tool", begin + textwrap.dedent(source).strip() + "\nprint('{}')\n")
    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=mounts, report_changes=report_changes) as scope:
            result = await scope.call("tool", limits=heddle.Limits(wall_seconds=20))
    assert result == heddle.Returned({}), result.report.stderr_tail
    return scope.report


# What a tool leaves in the place of what was mounted


@attrs.frozen
class Attack:
    """What a tool does; what is reported; what is new in the operator's folder."""

    source: str
    failed: tuple[tuple[str, str], ...] = ()
    copied: tuple[str, ...] = ()
    new: dict[bytes, bytes | str] = attrs.field(factory=dict[bytes, "bytes | str"])
    dest: str = "data"


ATTACKS = {
    "the mount is a link to secrets": Attack(
        "os.rename('data', 'old'); os.symlink(OUTSIDE, 'data')", (("data", "Not a directory"),)
    ),
    "the mount is a link that dangles": Attack(
        "os.rename('data', 'old'); os.symlink(OUTSIDE + '/new', 'data')", (("data", "Not a directory"),)
    ),
    "the mount is gone": Attack("shutil.rmtree('data')"),
    "the mount is a file": Attack(
        "shutil.rmtree('data'); open('data', 'w').write('x')", (("data", "Not a directory"),)
    ),
    "the mount is a pipe": Attack("shutil.rmtree('data'); os.mkfifo('data')", (("data", "Not a directory"),)),
    "the way to the mount is a link": Attack(
        "os.rename('x', 'old'); os.symlink(OUTSIDE, 'x')", (("x/data", "Not a directory"),), dest="x/data"
    ),
    "the way to the mount is gone": Attack("shutil.rmtree('x')", dest="x/data"),
    "a folder is a link outwards": Attack(
        "os.rename('data/inner', 'old'); os.symlink(OUTSIDE, 'data/inner')",
        (("data/inner", f"it is a link: {ONLY_FILES}"),),
    ),
    "a folder is a link upwards": Attack(
        "os.symlink('..', 'data/inner/up')", (("data/inner/up", f"it is a link: {ONLY_FILES}"),)
    ),
    "a file is a link to a secret": Attack(
        "os.unlink('data/a.txt'); os.symlink(OUTSIDE + '/key', 'data/a.txt')",
        (("data/a.txt", f"it is a link: {ONLY_FILES}"),),
    ),
    "a link dangles": Attack(
        "os.symlink(OUTSIDE + '/new', 'data/out')", (("data/out", f"it is a link: {ONLY_FILES}"),)
    ),
    "a link leads to what never ends": Attack(
        "os.symlink('/dev/zero', 'data/zero')", (("data/zero", f"it is a link: {ONLY_FILES}"),)
    ),
    "a pipe that nobody writes": Attack(
        "os.unlink('data/a.txt'); os.mkfifo('data/a.txt'); open('data/z', 'w').write('z')",
        (("data/a.txt", f"it is a named pipe: {ONLY_FILES}"),),
        ("data/z",),
        {b"z": b"z"},
    ),
    "a socket": Attack(
        "os.chdir('data'); socket.socket(socket.AF_UNIX).bind('s')", (("data/s", f"it is a socket: {ONLY_FILES}"),)
    ),
    "a file where a folder was": Attack(
        "shutil.rmtree('data/inner'); open('data/inner', 'w').write('x')",
        (("data/inner", "there is a folder in its place"),),
    ),
    "a folder where a file was": Attack(
        "os.unlink('data/a.txt'); os.mkdir('data/a.txt'); open('data/a.txt/x', 'w').write('x')",
        (("data/a.txt/x", "there is a file where it needs the folder 'a.txt'"),),
    ),
    "hard links to a secret and to each other": Attack(
        "os.link(OUTSIDE + '/key', 'data/h'); os.link('data/h', 'data/i')",
        copied=("data/h", "data/i"),
        new={b"h": b"secret\n", b"i": b"secret\n"},
    ),
    "names that are no text": Attack(
        r"""
        for name in (b'\xff', b'a\nb', b' ', b'-rf', b'*', b'..\xff', b'\xc3\xbc', b'n' * 255):
            open(b'data/' + name, 'w').write('x')
        os.mkdir(b'data/\xfe\xff'); open(b'data/\xfe\xff/\xff', 'w').write('x')""",
        copied=(
            "data/ ",
            "data/*",
            "data/-rf",
            "data/..\udcff",
            "data/a\nb",
            "data/" + "n" * 255,
            "data/ü",
            "data/\udcff",
            "data/\udcfe\udcff/\udcff",
        ),
        new={
            **dict.fromkeys((b"\xff", b"a\nb", b" ", b"-rf", b"*", b"..\xff", b"\xc3\xbc", b"n" * 255), b"x"),
            b"\xfe\xff": "folder",
            b"\xfe\xff/\xff": b"x",
        },
    ),
    "what cannot be read": Attack(
        """
        os.mkdir('data/new'); os.mkdir('data/new/new'); os.mkdir('data/inner/listed')
        for path in ('data/z', 'data/inner/z', 'data/inner/listed/z', 'data/new/new/z'):
            open(path, 'w').write('z'); os.chmod(path, 0)
        os.chmod('data/inner/listed', 0o444)
        for path in ('data/inner', 'data/new/new', 'data/new', 'data'):
            os.chmod(path, 0)""",
        copied=("data/z", "data/inner/z", "data/inner/listed/z", "data/new/new/z"),
        new={
            b"z": b"z",
            b"inner/z": b"z",
            b"inner/listed": "folder",
            b"inner/listed/z": b"z",
            b"new": "folder",
            b"new/new": "folder",
            b"new/new/z": b"z",
        },
    ),
    "files that look as if they were temporary": Attack(
        "open('data/.heddle-0123456789abcdef', 'w').write('x')",
        copied=("data/.heddle-0123456789abcdef",),
        new={b".heddle-0123456789abcdef": b"x"},
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_only_bytes_of_files_come_back(toolbox: Toolbox, data: Path, outside: Path, attack: Attack) -> None:
    """Whatever is in the place of what was mounted: no link is followed, nothing is waited for, nothing is deleted."""
    untouched = tree_of(outside)
    source = f"OUTSIDE = {str(outside)!r}\n" + textwrap.dedent(attack.source)

    report = await report_of(toolbox, source, Mount(data, attack.dest, "rw"))

    assert report == ScopeReport(
        copied_back=tuple(sorted(attack.copied)),
        failed=tuple(FileFault(path, reason) for path, reason in attack.failed),
    )
    assert tree_of(data) == DATA | attack.new
    assert tree_of(outside) == untouched


async def test_a_device_is_reported_and_not_read(toolbox: Toolbox, data: Path) -> None:
    """Only root can make one; for others the tool's attempt fails, and nothing is reported."""
    source = """
    try:
        os.mknod('data/zero', stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pass"""

    report = await report_of(toolbox, source, f"{data}:rw")

    expected = (FileFault("data/zero", f"it is a device: {ONLY_FILES}"),) if os.geteuid() == 0 else ()
    assert report == ScopeReport(failed=expected)
    assert tree_of(data) == DATA


FILE_ATTACKS = {
    "a link to a secret": ("os.symlink(OUTSIDE + '/key', 'a.txt')", "it is a link: a file was mounted here"),
    "a link that dangles": ("os.symlink(OUTSIDE + '/new', 'a.txt')", "it is a link: a file was mounted here"),
    "a folder": ("os.mkdir('a.txt'); open('a.txt/a.txt', 'w')", "it is a folder: a file was mounted here"),
    "a pipe": ("os.mkfifo('a.txt')", "it is a named pipe: a file was mounted here"),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("source", "reason"), FILE_ATTACKS.values(), ids=FILE_ATTACKS)
async def test_a_file_that_was_mounted_alone_is_replaced_by_a_file_only(
    toolbox: Toolbox, data: Path, outside: Path, source: str, reason: str | None
) -> None:
    untouched = tree_of(outside)
    source = f"OUTSIDE = {str(outside)!r}\nos.unlink('a.txt')\n" + source

    report = await report_of(toolbox, source, f"{data}/a.txt:rw")

    assert report == ScopeReport(failed=() if reason is None else (FileFault("a.txt", reason),))
    assert tree_of(data) == DATA
    assert tree_of(outside) == untouched


STEALTHY = {
    "written in place": "open('data/a.txt', 'w').write('A\\n')",
    "another file": "open('new', 'w').write('A\\n'); os.utime('new', ns=times); os.rename('new', 'data/a.txt')",
    "by another name": "os.link('data/a.txt', 'hard'); open('hard', 'w').write('A\\n'); os.unlink('hard')",
    "through memory": """
import mmap
with open('data/a.txt', 'r+b') as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[0:1] = b'A'""",
}


@pytest.mark.parametrize("edit", STEALTHY.values(), ids=STEALTHY)
async def test_new_contents_of_the_same_size_and_time_come_back(toolbox: Toolbox, data: Path, edit: str) -> None:
    """The folder takes long enough to copy in that the file's mark is not doubted for being fresh."""
    for number in range(2000):
        (data / f"z{number}").touch()
    before = "info = os.stat('data/a.txt'); times = (info.st_atime_ns, info.st_mtime_ns)\n"

    report = await report_of(
        toolbox,
        f"{before}{edit}\nos.utime('data/a.txt', ns=times)\nassert os.stat('data/a.txt').st_mtime_ns == times[1]",
        f"{data}:rw",
        report_changes=True,
    )

    new = FileState("data/a.txt", 2, hashlib.sha256(b"A\n").hexdigest())
    assert report == ScopeReport(copied_back=("data/a.txt",), changes=Changes(modified=(new,)))
    assert (data / "a.txt").read_text() == "A\n"


def test_a_mark_from_the_tick_in_which_it_was_taken_proves_nothing(tmp_path: Path) -> None:
    """Where the clock of a file system is coarse, what is written next may have the same time."""
    (tmp_path / "file").write_text("x")
    info = (tmp_path / "file").stat()
    mark = mark_of(info)
    changed_ns = info.st_ctime_ns
    whole_ns = changed_ns // 10**9 * 10**9
    whole: Mark = (*mark[:3], whole_ns)

    class Whole:
        st_ino, st_size, st_mtime_ns, st_ctime_ns = whole

    assert [Entry(1, "hash", mark).is_untouched(info, changed_ns + after) for after in (0, 1, 10**6, 10**10)] == [
        False,
        False,
        False,
        True,
    ]
    assert [
        Entry(1, "hash", whole).is_untouched(Whole(), whole_ns + after)  # type: ignore[arg-type]
        for after in (0, 10**9, 19 * 10**8, 10**10)
    ] == [False, False, False, True]


async def test_no_bit_comes_back_that_gives_rights(toolbox: Toolbox, data: Path) -> None:
    """Neither from a new file, nor on one that had such a bit: its contents are others now."""
    (data / "a.txt").chmod(0o4755)
    source = """
    for path in ('data/new', 'data/a.txt'):
        open(path, 'w').write('x'); os.chmod(path, 0o7777)"""

    report = await report_of(toolbox, source, f"{data}:rw")

    assert report == ScopeReport(copied_back=("data/a.txt", "data/new"))
    assert stat.S_IMODE((data / "a.txt").stat().st_mode) == 0o755
    assert stat.S_IMODE((data / "new").stat().st_mode) & ~0o777 == 0


async def test_hard_links_come_back_as_files_of_their_own(toolbox: Toolbox, data: Path, outside: Path) -> None:
    source = f"os.link({str(outside / 'key')!r}, 'data/h'); os.link('data/h', 'data/i')"

    await report_of(toolbox, source, f"{data}:rw")

    numbers = {path.stat().st_ino for path in (data / "h", data / "i", outside / "key")}
    assert len(numbers) == 3
    assert [(data / name).stat().st_nlink for name in "hi"] == [1, 1]


async def test_a_file_that_claims_a_tebibyte_comes_back_as_what_it_holds(toolbox: Toolbox, data: Path) -> None:
    source = """
    with open('data/big', 'wb') as file:
        file.truncate(2**40); file.seek(2**39); file.write(b'middle')"""

    report = await report_of(toolbox, source, f"{data}:rw")

    info = (data / "big").stat()
    assert report == ScopeReport(copied_back=("data/big",))
    assert info.st_size == 2**40
    assert info.st_blocks * 512 < 2**20
    with (data / "big").open("rb") as file:
        file.seek(2**39)
        assert file.read(8) == b"middle\0\0"


# What a tool does to the workspace itself


async def test_a_workspace_that_was_exchanged_for_a_link_is_not_left_through_it(
    toolbox: Toolbox, data: Path, outside: Path
) -> None:
    """A program that is not confined can do so. What comes back is from where the tool's files are."""
    untouched = tree_of(outside)
    moved = data.parent / "moved"
    source = f"""
    open('data/a.txt', 'w').write('edited')
    os.rename(os.environ['HEDDLE_WORKSPACE'], {str(moved)!r})
    os.symlink({str(outside)!r}, os.environ['HEDDLE_WORKSPACE'])"""

    report = await report_of(toolbox, source, f"{data}:rw")

    assert report == ScopeReport(copied_back=("data/a.txt",))
    assert tree_of(data) == DATA | {b"a.txt": b"edited"}
    assert tree_of(outside) == untouched


async def test_a_workspace_whose_folder_was_exchanged_for_a_link_is_not_removed_through_it(
    toolbox: Toolbox, data: Path, outside: Path
) -> None:
    """One level up: what is called like the workspace, in the folder that a link leads to now, is not ours."""
    (outside / "scope").mkdir()
    (outside / "scope" / "kept").write_text("secret\n")
    untouched = tree_of(outside)
    moved = data.parent / "moved"
    source = f"""
    home = os.path.dirname(os.environ['HEDDLE_WORKSPACE'])
    open('data/a.txt', 'w').write('edited')
    os.rename(home, {str(moved)!r})
    os.symlink({str(outside)!r}, home)"""

    report = await report_of(toolbox, source, f"{data}:rw")

    assert report == ScopeReport(copied_back=("data/a.txt",))
    assert tree_of(outside) == untouched


@pytest.mark.parametrize("report_changes", [False, True])
async def test_a_workspace_without_permissions_still_brings_its_files_back(
    toolbox: Toolbox, data: Path, *, report_changes: bool
) -> None:
    """For a plain user: root needs none."""
    source = "open('data/a.txt', 'w').write('edited'); os.chmod('.', 0)"

    report = await report_of(toolbox, source, f"{data}:rw", report_changes=report_changes)

    assert report.copied_back == ("data/a.txt",)
    assert report.failed == ()
    assert tree_of(data) == DATA | {b"a.txt": b"edited"}


async def test_a_folder_that_can_be_listed_and_not_entered_fails_no_report(toolbox: Toolbox, data: Path) -> None:
    """For a plain user; root can enter it. Leaving a scope raises for nothing that a tool does, and removes it."""
    source = "os.mkdir('d'); open('d/x', 'w').write('x'); os.chmod('d', 0o444)"
    places = sorted(os.listdir(tempfile.gettempdir()))

    report = await report_of(toolbox, source, f"{data}:rw", report_changes=True)

    assert report.failed == ()
    assert report.changes is not None
    assert report.changes.deleted == ()
    assert sorted(os.listdir(tempfile.gettempdir())) == places


# What others have done to the operator's folder meanwhile


async def test_a_large_file_that_no_tool_touched_is_not_copied_back_over_what_others_wrote(
    toolbox: Toolbox, data: Path
) -> None:
    """Beyond 1 GiB a file is not read to be compared; that makes it no changed one."""
    with (data / "large").open("wb") as file:
        file.truncate(2 * 2**30)
    toolbox.sh("nothing", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}:rw"], report_changes=True) as scope:
            await scope.call("nothing")
            (data / "large").write_text("theirs")

    assert (data / "large").stat().st_size == len("theirs")
    assert scope.report == ScopeReport(changes=Changes())


async def test_a_large_file_that_others_changed_meanwhile_is_named_when_it_is_overwritten(
    toolbox: Toolbox, data: Path
) -> None:
    """Its time tells that it is another one, where its contents are not compared."""
    with (data / "large").open("wb") as file:
        file.truncate(2 * 2**30)
    toolbox.sh("edit", "echo tool >> data/large; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        with (data / "large").open("ab") as file:
            file.write(b"theirs")

    assert scope.report == ScopeReport(copied_back=("data/large",), overwritten=("data/large",))


def _file_became_a_link(data: Path, outside: Path) -> None:
    (data / "a.txt").unlink()
    (data / "a.txt").symlink_to(outside / "key")


def _file_became_a_link_that_dangles(data: Path, outside: Path) -> None:
    (data / "a.txt").unlink()
    (data / "a.txt").symlink_to(outside / "new")


def _file_became_a_folder(data: Path, _: Path) -> None:
    (data / "a.txt").unlink()
    (data / "a.txt").mkdir()


def _file_became_a_pipe(data: Path, _: Path) -> None:
    (data / "a.txt").unlink()
    os.mkfifo(data / "a.txt")


def _file_became_read_only(data: Path, _: Path) -> None:
    (data / "a.txt").chmod(0o444)


def _folder_became_a_link(data: Path, outside: Path) -> None:
    shutil.rmtree(data / "inner")
    (data / "inner").symlink_to(outside)


def _folder_became_a_link_that_dangles(data: Path, outside: Path) -> None:
    shutil.rmtree(data / "inner")
    (data / "inner").symlink_to(outside / "new")


def _folder_became_a_file(data: Path, _: Path) -> None:
    shutil.rmtree(data / "inner")
    (data / "inner").write_text("theirs")


MEANWHILE: dict[str, tuple[Callable[[Path, Path], None], tuple[str, str]]] = {
    "file → link": (_file_became_a_link, ("data/a.txt", "there is a link in its place")),
    "file → dangling link": (_file_became_a_link_that_dangles, ("data/a.txt", "there is a link in its place")),
    "file → folder": (_file_became_a_folder, ("data/a.txt", "there is a folder in its place")),
    "file → pipe": (_file_became_a_pipe, ("data/a.txt", "there is a named pipe in its place")),
    "file → read-only": (_file_became_read_only, ("data/a.txt", "the file in its place is read-only")),
    "folder → link": (
        _folder_became_a_link,
        ("data/inner/b.txt", "there is a link where it needs the folder 'inner'"),
    ),
    "folder → dangling link": (
        _folder_became_a_link_that_dangles,
        ("data/inner/b.txt", "there is a link where it needs the folder 'inner'"),
    ),
    "folder → file": (
        _folder_became_a_file,
        ("data/inner/b.txt", "there is a file where it needs the folder 'inner'"),
    ),
}


@pytest.mark.parametrize(("meanwhile", "fault"), MEANWHILE.values(), ids=MEANWHILE)
async def test_what_became_something_else_in_the_operators_folder_stays_and_is_named(
    toolbox: Toolbox, data: Path, outside: Path, meanwhile: Callable[[Path, Path], None], fault: tuple[str, str]
) -> None:
    """A link there is neither followed nor replaced; everything else comes back all the same."""
    toolbox.sh("edit", "echo tool > data/a.txt; echo tool > data/inner/b.txt; echo tool > data/z; echo '{}'")
    untouched = tree_of(outside)

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        meanwhile(data, outside)
        theirs = tree_of(data)

    others = [path for path in ("data/a.txt", "data/z", "data/inner/b.txt") if path != fault[0]]
    assert scope.report == ScopeReport(copied_back=tuple(sorted(others)), failed=(FileFault(*fault),))
    assert tree_of(data) == theirs | {os.fsencode(path.removeprefix("data/")): b"tool\n" for path in others}
    assert tree_of(outside) == untouched


async def test_an_operators_folder_that_is_gone_is_not_made_again(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "echo tool > data/a.txt; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        shutil.rmtree(data)

    assert scope.report == ScopeReport(failed=(FileFault("data/a.txt", "No such file or directory"),))
    assert not data.exists()


async def test_an_operators_folder_that_was_moved_gets_its_files_where_it_is_now(toolbox: Toolbox, data: Path) -> None:
    """And what has its old name now gets nothing."""
    toolbox.sh("edit", "echo tool > data/a.txt; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        moved = data.rename(data.with_name("moved"))
        data.mkdir()

    said = "its source was moved or exchanged meanwhile: what has changed was copied to where it is now"
    assert scope.report == ScopeReport(copied_back=("data/a.txt",), failed=(FileFault("data", said),))
    assert tree_of(moved) == DATA | {b"a.txt": b"tool\n"}
    assert tree_of(data) == {}


async def test_a_folder_that_may_not_be_written_is_named_with_the_reason(toolbox: Toolbox, data: Path) -> None:
    """Root may write it, and does."""
    data.chmod(0o555)
    source = "open('data/z', 'w').write('z'); os.mkdir('data/new'); open('data/new/z', 'w').write('z')"

    report = await report_of(toolbox, source, f"{data}:rw")
    data.chmod(0o755)

    if os.geteuid() == 0:
        assert report == ScopeReport(copied_back=("data/new/z", "data/z"))
    else:
        denied = "Permission denied"
        assert report == ScopeReport(failed=(FileFault("data/new/z", denied), FileFault("data/z", denied)))
        assert tree_of(data) == DATA


async def test_a_file_keeps_its_owner(toolbox: Toolbox, data: Path) -> None:
    """Only root can see to that; for others it is theirs before and after."""
    owner = (12345, 54321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(data / "a.txt", *owner)

    report = await report_of(toolbox, "open('data/a.txt', 'w').write('x')", f"{data}:rw")

    info = (data / "a.txt").stat()
    assert report == ScopeReport(copied_back=("data/a.txt",))
    assert (info.st_uid, info.st_gid) == owner


async def test_a_private_file_is_private_also_while_it_is_written(
    toolbox: Toolbox, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others could read the new contents in the meantime, or open the file then and read on."""
    (data / "a.txt").chmod(0o600)
    toolbox.sh("edit", "echo private > data/a.txt; echo '{}'")
    modes: list[int] = []
    real = os.write

    def write(fd: int, content: bytes) -> int:
        if bytes(content) == b"private\n":
            modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        return real(fd, content)

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        monkeypatch.setattr(os, "write", write)
    monkeypatch.undo()

    assert scope.report == ScopeReport(copied_back=("data/a.txt",))
    assert modes == [0o600]


# What does not fit

FULL = """
import json, resource, sys
import trio, heddle

async def main():
    tools, data = sys.argv[1:]
    async with heddle.Runner(heddle.discover_tools(tools)) as runner:
        async with runner.scope(mounts=[f"{data}:rw"]) as scope:
            result = await scope.call("tool")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    assert result == heddle.Returned({}), result
    print(json.dumps(scope.report.as_json()))

trio.run(main)
"""


def test_where_a_disk_is_full_the_old_file_stays_whole_and_the_rest_comes_back(toolbox: Toolbox, data: Path) -> None:
    """The host may write no more than 100 kB into a file when it copies back: a write fails, in the middle."""
    (data / "large").write_bytes(b"old" * 1000)
    toolbox.sh(
        "tool",
        "head -c 400000 /dev/zero > data/large; head -c 400000 /dev/zero > data/new; echo z > data/z; echo '{}'",
    )

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(toolbox.folder), str(data)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "copied_back": ["data/z"],
        "overwritten": [],
        "failed": [
            {"path": "data/large", "reason": "File too large"},
            {"path": "data/new", "reason": "File too large"},
        ],
        "changes": None,
        "kept": None,
    }
    assert tree_of(data) == DATA | {b"large": b"old" * 1000, b"z": b"z\n"}


NONE = "none of them was copied back. Raise max_entries or max_bytes of the mount"


async def test_what_is_more_than_the_bytes_of_a_mount_is_named_and_stays_out(toolbox: Toolbox, data: Path) -> None:
    source = """
    for name in 'wxyz':
        open('data/' + name, 'w').write(name * 400)"""

    report = await report_of(toolbox, source, Mount(data, "data", "rw", max_bytes=1000))

    said = f"4 new files and folders with 1,600 bytes are more than a mount may hold, 4,096 and 1,000 bytes; {NONE}"
    assert report == ScopeReport(failed=(FileFault("data", said),))
    assert tree_of(data) == DATA


async def test_what_is_more_than_the_entries_of_a_mount_is_named_and_stays_out(toolbox: Toolbox, data: Path) -> None:
    source = """
    for number in range(10):
        open(f'data/n{number}', 'w').write('n')"""

    report = await report_of(toolbox, source, Mount(data, "data", "rw", max_entries=5))

    said = f"10 new files and folders with 10 bytes are more than a mount may hold, 5 and 67,108,864 bytes; {NONE}"
    assert report == ScopeReport(failed=(FileFault("data", said),))
    assert tree_of(data) == DATA


async def test_one_mount_that_fails_keeps_no_other_back(toolbox: Toolbox, data: Path, outside: Path) -> None:
    source = f"""
    os.rename('data', 'old'); os.symlink({str(outside)!r}, 'data')
    open('second/inner/b.txt', 'w').write('edited')"""
    second = shutil.copytree(data, data.with_name("second"))

    report = await report_of(toolbox, source, f"{data}:rw", f"{second}:rw")

    assert report == ScopeReport(copied_back=("second/inner/b.txt",), failed=(FileFault("data", "Not a directory"),))
    assert tree_of(second) == DATA | {b"inner/b.txt": b"edited"}


async def test_nothing_is_held_after_attacks(toolbox: Toolbox, data: Path, outside: Path) -> None:
    """Every way out of a copy closes what it has opened, and no temporary file is left."""
    before, places = open_descriptors(), sorted(os.listdir(tempfile.gettempdir()))

    for attack in ATTACKS.values():
        prefix = f"OUTSIDE = {str(outside)!r}\n"
        await report_of(toolbox, prefix + textwrap.dedent(attack.source), Mount(data, attack.dest, "rw"))

    assert open_descriptors() == before
    assert sorted(os.listdir(tempfile.gettempdir())) == places
    assert [
        path for path in tree_of(data) if path.startswith(b".heddle-") and path != b".heddle-0123456789abcdef"
    ] == []


# What moves while it is looked through. Nothing works in a workspace any more when it is; this is the second lock.


@attrs.frozen
class Filled:
    """A workspace without a scope: its folder, and where its one mount goes back to."""

    path: Path
    root: int
    origin: Origin
    baseline: Baseline

    def copy_back(self) -> CopiedBack:
        done = CopiedBack()
        copy_back(self.origin, self.root, self.baseline, done)
        return done


@pytest.fixture
def filled(tmp_path: Path, data: Path) -> Iterator[Filled]:
    path = tmp_path / "workspace"
    path.mkdir()
    root = os.open(path, FOLDER)
    origins: list[Origin] = []
    files = fill([Source(Mount(data, "data", "rw"), "data", data, is_folder=True)], root, lambda: None, origins)
    yield Filled(path, root, origins[0], Baseline(files))
    origins[0].close()
    os.close(root)


def exchange(one: Path, other: Path) -> None:
    """Exchange what two names stand for, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, both = -100, 2
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), both):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_exchanged_for_a_link_while_it_is_copied_back_is_not_followed(
    filled: Filled, data: Path, outside: Path, what: str
) -> None:
    """2,000 exchanges while the copy runs again and again: bytes of outside never come back."""
    inner = filled.path / "data" / "inner"
    for number in range(30):
        (inner / f"n{number}").write_text("tool")
        (outside / f"n{number}").write_text("secret\n")
    place = inner if what == "folder" else inner / "n5"
    link = filled.path / "link"
    link.symlink_to(outside if what == "folder" else outside / "n5")
    descriptors = open_descriptors()
    exchanged = threading.Event()
    faults: set[str] = set()

    def race() -> None:
        try:
            for _ in range(2000):
                exchange(place, link)
        finally:
            exchanged.set()

    racer = threading.Thread(target=race)
    racer.start()
    while not exchanged.is_set():
        faults |= {fault.path for fault in filled.copy_back().failed}
        for name in os.listdir(data / "inner"):
            os.unlink(data / "inner" / name)  # so that the next one has everything to do
    racer.join()

    assert b"secret\n" not in tree_of(data).values()
    assert open_descriptors() == descriptors
    assert {path.split("/")[0] for path in faults} <= {"data"}


@pytest.mark.parametrize(
    ("become", "reason"),
    [
        (lambda path, outside: path.symlink_to(outside / "key"), "Too many levels of symbolic links"),
        (lambda path, _: os.mkfifo(path), "it is a named pipe"),
        (lambda path, _: path.mkdir(), "it is a folder"),
    ],
    ids=["a link", "a pipe", "a folder"],
)
def test_what_becomes_something_else_as_it_is_opened_is_neither_followed_nor_waited_for(
    filled: Filled,
    data: Path,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
    become: Callable[[Path, Path], object],
    reason: str,
) -> None:
    """Between the look at a file and its opening: too short a time for a race to meet it."""
    file = filled.path / "data" / "a.txt"
    file.write_text("tool")
    descriptors = open_descriptors()
    real = os.open

    def open_(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "a.txt" and file.read_bytes() == b"tool":
            monkeypatch.undo()
            file.unlink()
            become(file, outside)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_)
    done = filled.copy_back()

    assert (done.copied, done.failed) == ([], [FileFault("data/a.txt", reason)])
    assert tree_of(data) == DATA
    assert open_descriptors() == descriptors


def test_a_folder_that_is_moved_while_it_is_looked_through_leads_nowhere_else(tmp_path: Path, outside: Path) -> None:
    """Its ``..`` is outside then. What would be found there is not what was to be walked."""
    (tmp_path / "walked" / "one").mkdir(parents=True)
    (tmp_path / "walked" / "two").mkdir()
    root = os.open(tmp_path / "walked", FOLDER)
    paths: list[str] = []

    def step(cursor: Cursor) -> None:
        for event in walk(cursor):
            assert isinstance(event, Entered), event
            paths.append(event.path)
            (tmp_path / "walked" / "one").rename(outside / "one")

    try:
        with Cursor.at(root) as cursor, pytest.raises(OSError, match="a folder was moved"):
            step(cursor)
    finally:
        os.close(root)

    assert paths == ["one"]


def test_a_folder_that_is_moved_while_it_is_copied_back_leads_nowhere_else(
    filled: Filled, data: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is moved at a moment that a race would meet once in a while: when the first of its files is written."""
    inner = filled.path / "data" / "inner"
    (filled.path / "data" / "z").mkdir()
    (filled.path / "data" / "z" / "z").write_text("tool")
    (outside / "z").mkdir()
    (outside / "z" / "z").write_text("secret\n")
    (inner / "b.txt").write_text("tool")
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        if inner.exists():
            inner.rename(outside / "moved")

    monkeypatch.setattr(os, "fsync", fsync)
    done = filled.copy_back()
    monkeypatch.undo()

    assert (done.copied, done.failed) == (
        ["data/inner/b.txt", "data/z/z"],
        [],
    )
    assert tree_of(data) == DATA | {b"inner/b.txt": b"tool", b"z": "folder", b"z/z": b"tool"}


def test_a_target_that_becomes_a_link_while_it_is_written_is_replaced_and_not_followed(
    filled: Filled, data: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the exchange nothing can be locked: the new file takes the link's name then."""
    (filled.path / "data" / "a.txt").write_text("tool")
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        (data / "a.txt").unlink()
        (data / "a.txt").symlink_to(outside / "key")

    monkeypatch.setattr(os, "fsync", fsync)
    filled.copy_back()
    monkeypatch.undo()

    assert tree_of(data) == DATA | {b"a.txt": b"tool"}
    assert (outside / "key").read_text() == "secret\n"


@pytest.mark.parametrize("step", ["write", "fsync", "rename", "fchmod"])
def test_whatever_step_of_a_copy_fails_the_old_file_stays_and_no_temporary_one(
    filled: Filled, data: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A disk may be full, or gone, at every one of them."""
    (filled.path / "data" / "a.txt").write_text("tool")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    done = filled.copy_back()
    monkeypatch.undo()

    assert (done.copied, done.failed) == ([], [FileFault("data/a.txt", "No space left on device")])
    assert tree_of(data) == DATA


# Any tree, any edits

Name: TypeAlias = bytes
Tree: TypeAlias = "dict[Name, bytes | Tree]"

NAMES = st.sampled_from([b"a", b"b", b"\xff", b"a\nb", b"-rf", b"*", b" ", "ü".encode(), b".heddle"]) | st.binary(
    min_size=1, max_size=5
).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))
CONTENTS = st.binary(max_size=12)
TREES = st.dictionaries(
    NAMES, st.recursive(CONTENTS, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6), max_size=5
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "stealthy", "append", "delete", "touch", "mode", "create", "folder", "move", "remove", "swap"]
        ),
        st.integers(0, 50),
        st.integers(0, 50),
        NAMES,
        CONTENTS,
    ),
    max_size=8,
)
KINDS = st.lists(
    st.tuples(st.sampled_from(["file to folder", "folder to file"]), st.integers(0, 50), st.just(0), NAMES, CONTENTS),
    max_size=3,
)
PATIENT = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def write_tree(folder: bytes, tree: Tree) -> None:
    os.mkdir(folder)
    for name, what in tree.items():
        place = folder + b"/" + name
        if isinstance(what, bytes):
            write(place, what)
        else:
            write_tree(place, what)


def write(path: bytes, content: bytes, mode: str = "wb") -> None:
    with open(path, mode) as file:
        file.write(content)


def below(folder: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the files below a folder, and the folders with the folder itself, by path."""
    files, folders = [], []
    for above, _, names in os.walk(folder):
        folders.append(above)
        files += [above + b"/" + name for name in names]
    return sorted(files), sorted(folders)


def edit(root: bytes, step: tuple[str, int, int, bytes, bytes]) -> None:
    """Do something to what is below `root`, if there is something to do it to."""
    how, one, other, name, content = step
    files, folders = below(root)
    folder = folders[other % len(folders)]
    fresh = folder + b"/" + name
    inner = [path for path in folders if path != root]
    if how == "create" and not os.path.isdir(fresh):
        write(fresh, content)
    elif how == "folder" and not os.path.exists(fresh):
        os.mkdir(fresh)
    elif how == "remove" and inner:
        shutil.rmtree(inner[one % len(inner)])
    elif how == "folder to file" and inner:
        shutil.rmtree(inner[one % len(inner)])
        write(inner[one % len(inner)], content)
    elif files:
        _edit_file(how, files[one % len(files)], files[other % len(files)], fresh, content)


def _edit_file(how: str, file: bytes, another: bytes, fresh: bytes, content: bytes) -> None:
    info = os.stat(file)
    if how == "write":
        write(file, content)
    elif how == "stealthy":
        write(file, bytes(byte ^ 1 for byte in Path(os.fsdecode(file)).read_bytes()))
        os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    elif how == "append":
        write(file, content, "ab")
    elif how == "delete":
        os.unlink(file)
    elif how == "touch":
        os.utime(file)
    elif how == "mode":
        os.chmod(file, 0o640 if content else 0o755)
    elif how == "move" and not os.path.exists(fresh):
        os.rename(file, fresh)
    elif how == "swap" and file != another:
        exchange(Path(os.fsdecode(file)), Path(os.fsdecode(another)))
    elif how == "file to folder":
        os.unlink(file)
        os.mkdir(file)
        write(file + b"/" + os.path.basename(fresh), content)


def files_in(folder: bytes) -> dict[str, bytes]:
    """Return contents by path, as reports write it."""
    top = len(folder) + 1
    return {os.fsdecode(path[top:]): Path(os.fsdecode(path)).read_bytes() for path in below(folder)[0]}


def naive_changes(before: dict[str, bytes], after: dict[str, bytes]) -> Changes:
    """Compare contents, all of them."""

    def states(paths: set[str], contents: dict[str, bytes]) -> tuple[FileState, ...]:
        return tuple(
            FileState(f"data/{path}", len(contents[path]), hashlib.sha256(contents[path]).hexdigest())
            for path in sorted(paths)
        )

    kept = before.keys() & after.keys()
    return Changes(
        created=states(after.keys() - before.keys(), after),
        modified=states({path for path in kept if before[path] != after[path]}, after),
        deleted=states(before.keys() - after.keys(), before),
    )


@attrs.frozen
class Edited:
    """A folder before it was mounted, after edits in the workspace, and after they came back."""

    before: dict[str, bytes]
    edited: dict[str, bytes]
    after: dict[str, bytes]
    folders_before: set[str]
    changes: Changes
    report: ScopeReport


def mounted_and_edited(tree: Tree, edits: list[tuple[str, int, int, bytes, bytes]]) -> Edited:
    """Mount a tree, edit it in the workspace, and close that."""

    async def run(data: Path) -> tuple[dict[str, bytes], Changes, ScopeReport]:
        async with Workspace.open(mounts=[Mount(data, "data", "rw")]) as workspace:
            inside = os.fsencode(workspace.path / "data")
            for step in edits:
                edit(inside, step)
            edited = files_in(inside)
            changes = await workspace.changes()
        return edited, changes, workspace.report

    with tempfile.TemporaryDirectory() as folder:
        data = os.fsencode(folder) + b"/operator"
        write_tree(data, tree)
        before = files_in(data)
        folders = {os.fsdecode(path[len(data) + 1 :]) for path in below(data)[1]}
        edited, changes, report = trio.run(run, Path(folder, "operator"))
        assert folders <= {os.fsdecode(path[len(data) + 1 :]) for path in below(data)[1]}
        return Edited(before, edited, files_in(data), folders, changes, report)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


@PATIENT
@given(TREES, EDITS)
def test_any_edits_come_back_except_what_they_delete(
    tree: Tree, edits: list[tuple[str, int, int, bytes, bytes]]
) -> None:
    """And what has changed is what a comparison of all contents says."""
    done = mounted_and_edited(tree, edits)

    clashing = {
        path
        for path in done.edited
        if path in done.folders_before or any(parent in done.before for parent in _parents(path))
    }
    coming = {path: content for path, content in done.edited.items() if path not in clashing}
    assert done.after == done.before | coming
    assert done.changes == naive_changes(done.before, done.edited)
    changed = {path for path, content in coming.items() if done.before.get(path) != content}
    assert set(done.report.copied_back) == {f"data/{path}" for path in changed}
    assert {fault.path for fault in done.report.failed} == {f"data/{path}" for path in clashing}
    assert done.report.overwritten == ()


@PATIENT
@given(TREES.filter(bool), EDITS.map(lambda edits: edits[:2]), KINDS)
def test_a_file_that_became_a_folder_or_a_folder_a_file_stays_as_it_is_and_is_named(
    tree: Tree,
    edits: list[tuple[str, int, int, bytes, bytes]],
    kinds: list[tuple[str, int, int, bytes, bytes]],
) -> None:
    done = mounted_and_edited(tree, [*edits, *kinds])

    clashing = {
        path
        for path in done.edited
        if path in done.folders_before or any(parent in done.before for parent in _parents(path))
    }
    coming = {path: content for path, content in done.edited.items() if path not in clashing}
    assert done.after == done.before | coming
    assert {fault.path for fault in done.report.failed} == {f"data/{path}" for path in clashing}
    assert done.changes == naive_changes(done.before, done.edited)
