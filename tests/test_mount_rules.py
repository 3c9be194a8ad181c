"""What may be mounted, where it may land, what of it lands there: every rule, and what is said when one is broken."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle import DefinitionError, Mount, ScopeReport, Workspace
from heddle.workspace import Changes, trees
from heddle.workspace.removal import remove_tree
from tests.support import Toolbox, holdings, open_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

IS_ROOT = os.geteuid() == 0


async def faults_of(*mounts: Mount | str, keep: Path | None = None) -> list[str]:
    """Return what a runner says is wrong with mounts; a copy that waits for something would be too late."""
    with trio.fail_after(20), pytest.raises(DefinitionError) as caught:
        async with heddle.Runner([], mounts=mounts, keep_workspaces=keep):
            pass
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


async def fault_of(mount: Mount | str, keep: Path | None = None) -> str:
    """Return the one thing that is wrong with a mount, without what the mount is called."""
    (fault,) = await faults_of(mount, keep=keep)
    prefix = f"Runner(mounts=…) {mount}: "
    assert fault.startswith(prefix)
    return fault.removeprefix(prefix)


# How a mount is written


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("src", Mount("src")),
        ("src:dest", Mount("src", "dest")),
        ("src:dest:ro", Mount("src", "dest")),
        ("src:dest:rw", Mount("src", "dest", "rw")),
        ("src:ro", Mount("src")),
        ("src:rw", Mount("src", None, "rw")),
        ("ro", Mount("ro")),
        ("rw:rw", Mount("rw", None, "rw")),
        ("src:RW", Mount("src", "RW")),
        (r"a\:b", Mount("a:b")),
        (r"a\:rw", Mount("a:rw")),
        (r"a\:b:c\:d:rw", Mount("a:b", "c:d", "rw")),
        (r"\::\:", Mount(":", ":")),
        (r"a\b:c\d", Mount(r"a\b", r"c\d")),
        ("/a b/*:x y", Mount("/a b/*", "x y")),
    ],
)
def test_a_mount_is_a_source_a_dest_and_a_mode(text: str, mount: Mount) -> None:
    assert Mount.parse(text) == mount


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the source of a mount is a path, not ''"),
        (":dest", "the source of a mount is a path, not ''"),
        ("src:", "the dest is empty: name a place in the workspace"),
        ("src::rw", "the dest is empty: name a place in the workspace"),
        ("a\0b", "the source of a mount is a path, not 'a\\x00b'"),
        (
            "a:b:c",
            r"'a:b:c' has 3 parts, where a mount is source[:dest][:ro|:rw]; write \: for a colon in a name",
        ),
        (
            "a:b:c:rw",
            r"'a:b:c:rw' has 3 parts, where a mount is source[:dest][:ro|:rw]; write \: for a colon in a name",
        ),
    ],
)
def test_a_mount_that_is_written_in_another_way_is_refused(text: str, said: str) -> None:
    with pytest.raises(DefinitionError, match=f"^{re.escape(said)}$"):
        Mount.parse(text)


NAMES = st.text(st.sampled_from(": \\:.a*-\nüro\udcff"), min_size=1, max_size=8)
SOURCES = NAMES.map(lambda name: "/" + name).filter(lambda path: not path.endswith("\\"))
DESTS = NAMES.filter(lambda name: name not in (".", "..", "ro", "rw") and not name.endswith("\\"))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(SOURCES, st.none() | DESTS, st.sampled_from(["ro", "rw"]))
def test_the_text_of_a_mount_means_the_mount(source: str, dest: str | None, mode: object) -> None:
    mount = Mount(source, dest, mode)  # type: ignore[arg-type]

    assert Mount.parse(str(mount)) == mount


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_dest_that_is_called_like_a_mode_is_refused(mode: str) -> None:
    """``Mount("a", "rw")`` would be mounted under that name, and never come back."""
    with pytest.raises(DefinitionError, match=f'^the dest {mode!r} reads like a mode: say mode="{mode}"'):
        Mount("a", mode)


@pytest.mark.parametrize("given", ["./x", Path("x"), Mount("x"), {"x": "y"}, None, 3])
def test_mounts_are_several(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^Runner\(mounts=…\) takes "):
        heddle.Runner([], mounts=given)


async def test_a_colon_that_was_not_meant_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b.txt").touch()
    (tmp_path / "data").mkdir()

    with pytest.raises(DefinitionError) as raised:
        async with heddle.Runner([], mounts=["a:b.txt", Mount("data:rw"), "/"]):
            pass

    assert str(raised.value).splitlines()[1:] == [
        "  Runner(mounts=…) a:b.txt: there is no such file or folder; a file of the whole name is there: "
        "write a\\:b.txt",
        '  Runner(mounts=…) data\\:rw: there is no such file or folder; a Mount takes the mode apart: mode="rw"',
        "  Runner(mounts=…) /: it has no name of its own: give it a dest",
    ]


@pytest.mark.parametrize("mount", [Mount("a\\", "b"), Mount("a\\", None, "rw"), Mount("a", "b\\", "rw")])
def test_a_name_may_end_in_a_backslash(mount: Mount) -> None:
    assert Mount.parse(str(mount)) == mount


def test_a_mode_is_one_of_two() -> None:
    with pytest.raises(DefinitionError, match=r'^the mode of a mount is "ro" or "rw", not "?\'?w'):
        Mount("a", "b", "w")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_bytes", "max_entries"])
def test_a_budget_is_at_least_one(name: str) -> None:
    with pytest.raises(DefinitionError, match=f"^a mount's {name} is a whole number of at least 1, not 0$"):
        Mount("a", **{name: 0})  # type: ignore[arg-type]


# Where it may land

CLIMBS = "leaves the workspace"
NAMELESS = "names nothing"
RESERVED = "is reserved"
REFUSED = {
    "": "is empty",
    "/": "is absolute",
    "/a": "is absolute",
    "//a": "is absolute",
    ".": NAMELESS,
    "./a": NAMELESS,
    "a/.": NAMELESS,
    "a/./b": NAMELESS,
    "a//b": NAMELESS,
    "a/": NAMELESS,
    "\N{FULLWIDTH FULL STOP}": NAMELESS,
    "..": CLIMBS,
    "../a": CLIMBS,
    "a/..": CLIMBS,
    "a/../../x": CLIMBS,
    "a/../b": CLIMBS,
    "\N{TWO DOT LEADER}": CLIMBS,
    "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/a": CLIMBS,
    ".heddle": RESERVED,
    ".heddle/bin": RESERVED,
    ".HEDDLE": RESERVED,
    ".Heddle/x": RESERVED,
    "\N{FULLWIDTH FULL STOP}heddle": RESERVED,
    ".he\N{SMALL ROMAN NUMERAL FIVE HUNDRED}\N{SMALL ROMAN NUMERAL FIVE HUNDRED}le": RESERVED,
    "a\N{FULLWIDTH SOLIDUS}b": "looks like a slash",
    "a\0b": "has a NUL character",
    "\0": "has a NUL character",
    "x" * 256: "more than 255 bytes",
    "a/" + "ü" * 128: "more than 255 bytes",
    "\ud800": "no file name can hold",
    "a/\udfff": "no file name can hold",
}


@pytest.mark.parametrize(("dest", "why"), REFUSED.items(), ids=map(ascii, REFUSED))
def test_a_dest_that_is_no_place_of_its_own_is_refused(dest: str, why: str) -> None:
    """Whichever way it is said: as a dest, or as a path of contents from memory."""
    makes: list[Callable[[], Mount]] = [
        lambda: Mount("a", dest),
        lambda: Mount.from_files({"a": b""}, dest),
        lambda: Mount.from_files({dest: b""}),
        lambda: Mount.from_files({dest: b""}, "there"),
    ]
    for make in makes:
        with pytest.raises(DefinitionError, match=why):
            make()


@pytest.mark.parametrize(
    "dest",
    [
        "a",
        "a/b/c",
        "...",
        "..a",
        "a..",
        ".a",
        "heddle",
        ".heddle2",
        "x.heddle",
        " ",
        "-rf",
        "*",
        "a\nb",
        "a:b",
        "\\",
        "ü" * 127,
        "x" * 255,
        "\udcff",
        "/".join(["x" * 255] * 20),
    ],
    ids=ascii,
)
async def test_every_other_dest_is_a_place(data: Path, dest: str) -> None:
    async with Workspace.open(mounts=[Mount(data / "a.txt", dest, "rw")]) as workspace:
        changes = await workspace.changes()
        folder = os.open(workspace.path, os.O_RDONLY)
        *above, last = dest.split("/")
        for name in above:
            folder = _into(folder, name)
        with open(os.open(last, os.O_RDWR, dir_fd=folder), "r+") as file:
            found = file.read()
            file.write("more\n")
        os.close(folder)

    assert found == "a\n"
    assert changes == Changes()
    assert workspace.report == ScopeReport(copied_back=(dest,))
    assert (data / "a.txt").read_text() == "a\nmore\n"


def _into(folder: int, name: str | bytes) -> int:
    """Go into a folder of an open one, which is closed."""
    inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    os.close(folder)
    return inner


async def test_a_source_whose_name_is_no_dest_needs_one(tmp_path: Path) -> None:
    for name in (".heddle", "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}"):
        (tmp_path / name).mkdir()

    faults = await faults_of(
        str(tmp_path / ".heddle"), str(tmp_path / "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}"), "/"
    )

    assert [fault.rpartition(": ")[0].rpartition(": ")[2] for fault in faults] == [
        "the dest '.heddle' is reserved",
        "the dest '\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}' leaves the workspace",
        "it has no name of its own",
    ]


@pytest.mark.parametrize("source", ["..", "inner/..", "."])
async def test_a_source_that_is_a_way_lands_under_the_name_of_where_it_leads(
    data: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(data / "inner" if source == ".." else data)

    async with Workspace.open(mounts=[source]) as workspace:
        names = sorted(os.listdir(workspace.path))

    assert names == [".heddle", "data"]


# Several together


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{data}:x", "{data}/a.txt:x"),
        ("{data}", "{data}:data"),
        ("{data}:x", "{data}/inner:x/y/z"),
        ("{data}/inner:x/y/z", "{data}:x"),
        ("{data}/a.txt:x", "{data}/a.txt:x/y"),
        ("{data}:x:rw", "{data}:x"),
    ],
)
async def test_mounts_that_would_lie_in_each_other_are_refused(data: Path, one: str, other: str) -> None:
    mounts = [text.format(data=data) for text in (one, other)]

    (fault,) = await faults_of(*mounts)

    assert all(f"Runner(mounts=…) {mount}" in fault for mount in mounts)
    assert "give one another dest" in fault


async def test_contents_from_memory_overlap_by_each_of_their_paths(data: Path) -> None:
    inside = Mount.from_files({"data/x.txt": b"", "free/y.txt": b""})
    around = Mount.from_files({"a": b""}, "x/y")

    faults = await faults_of(inside, str(data), around, f"{data}:x")

    assert len(faults) == 2
    assert [fault.count("Runner(mounts=…)") for fault in faults] == [2, 2]


async def test_mounts_side_by_side_go_together(data: Path) -> None:
    mounts: list[Mount | str] = [
        Mount.from_files({"x/a": b"1", "y": b"2"}),
        Mount.from_files({"a": b"3"}, "x/b"),
        f"{data}:x/c",
        f"{data}/a.txt:x/ca",
        f"{data}/inner:x/d/e:rw",
    ]

    async with Workspace.open(mounts=mounts) as workspace:
        top = workspace.path
        found = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}

    assert found == {"x/a", "y", "x/b/a", "x/c/a.txt", "x/c/inner/b.txt", "x/ca", "x/d/e/b.txt"}


@pytest.mark.parametrize("other", ["{data}:y:rw", "{data}/inner:y:rw", "{data}/a.txt:y:rw", "{link}:y:rw"])
async def test_what_is_written_back_is_mounted_once(data: Path, other: str) -> None:
    """Two copies of one file would come back one over the other."""
    (data.parent / "link").symlink_to(data / "inner")
    mounts = [f"{data}:x:rw", other.format(data=data, link=data.parent / "link")]

    faults = await faults_of(*mounts)
    async with Workspace.open(mounts=[mounts[0].replace(":rw", ""), mounts[1]]):
        pass  # one of them is only read

    assert faults == [
        f"Runner(mounts=…) {mounts[1]}: Runner(mounts=…) {mounts[0]} is copied back to the same place; mount it once"
    ]


# What may be mounted


def _socket(path: Path) -> None:
    """Bind a socket; its address must be short, the folder's own is not."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "a named pipe"),
    "a socket": (_socket, "a socket"),
    "a link to a file": (lambda path: path.symlink_to("a.txt"), "a link"),
    "a link to a folder": (lambda path: path.symlink_to("inner"), "a link"),
    "a link upwards": (lambda path: path.symlink_to(".."), "a link"),
    "a link that dangles": (lambda path: path.symlink_to("nosuch"), "a link"),
    "a link to itself": (_loop, "a link"),
    "a link to what never ends": (lambda path: path.symlink_to("/dev/zero"), "a link"),
}


@pytest.mark.parametrize(("make", "kind"), SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("mode", ["ro", "rw"])
async def test_a_folder_that_holds_anything_but_files_and_folders_is_refused(
    data: Path, make: Callable[[Path], object], kind: str, mode: str
) -> None:
    """It is named before anything is opened that would wait, or never end."""
    make(data / "inner" / "special")

    fault = await fault_of(f"{data}:{mode}" if mode == "rw" else str(data))

    assert fault == (
        f"it holds what cannot be copied: 'inner/special' is {kind}. Only files and folders that can be read are "
        "mounted; take the others away, or mount another folder"
    )


async def test_a_long_list_of_what_cannot_be_copied_is_cut_and_counted(data: Path) -> None:
    for number in range(7):
        (data / f"link{number}").symlink_to("a.txt")

    fault = await fault_of(str(data))

    assert fault.startswith("it holds what cannot be copied: 'link0' is a link; ")
    assert "'link4' is a link and 2 more. Only" in fault


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.exists, "there is no such file or folder"),
        (lambda path: path.symlink_to("nosuch"), "there is no such file or folder"),
        (os.mkfifo, "it is a named pipe: only files and folders can be mounted"),
        (_socket, "it is a socket: only files and folders can be mounted"),
        (
            lambda path: path.symlink_to("/dev/zero"),
            "it is a device: only files and folders can be mounted",
        ),
    ],
    ids=["nothing", "a link that dangles", "a pipe", "a socket", "a device"],
)
async def test_a_source_that_is_neither_file_nor_folder_is_refused(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "source")

    assert await fault_of(str(tmp_path / "source")) == said


async def test_a_source_that_no_file_system_can_hold_is_refused(tmp_path: Path) -> None:
    """Like every other fault: named, and beside the rest."""
    (tmp_path / "loop").symlink_to("loop")

    faults = await faults_of(
        Mount("\ud800", "a"), Mount("x" * 5000, "b"), Mount(tmp_path / "loop", "c"), Mount(tmp_path / "nosuch", "d")
    )

    assert len(faults) == 4


async def test_a_source_that_is_a_link_is_what_it_leads_to_under_its_own_name(data: Path) -> None:
    (data.parent / "link").symlink_to("data")
    (data.parent / "file").symlink_to("data/a.txt")

    async with Workspace.open(mounts=[f"{data.parent}/link:rw", f"{data.parent}/file"]) as workspace:
        (workspace.path / "link/inner/b.txt").write_text("edited")
        content = (workspace.path / "file").read_text()

    assert content == "a\n"
    assert (data / "inner" / "b.txt").read_text() == "edited"
    assert (data.parent / "link").is_symlink()


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("inner/b.txt", 0, "'inner/b.txt' cannot be read."),
        ("inner", 0, "'inner' cannot be read: Permission denied."),
        ("inner", 0o444, "'inner' cannot be read: Permission denied."),
        ("inner", 0o111, "'inner' cannot be read: Permission denied."),
    ],
)
async def test_what_cannot_be_read_is_named(data: Path, name: str, mode: int, said: str) -> None:
    """For a plain user; root reads everything, and gets it."""
    (data / name).chmod(mode)

    if IS_ROOT:
        async with Workspace.open(mounts=[str(data)]) as workspace:
            assert (workspace.path / "data/inner/b.txt").read_text() == "b\n"
        return
    fault = await fault_of(str(data))
    (data / name).chmod(0o700)

    assert fault.startswith(f"it holds what cannot be copied: {said} Only")


async def test_a_file_that_cannot_be_read_is_refused(data: Path) -> None:
    """For a plain user."""
    (data / "a.txt").chmod(0)

    if IS_ROOT:
        async with Workspace.open(mounts=[f"{data}/a.txt"]) as workspace:
            assert (workspace.path / "a.txt").read_text() == "a\n"
        return

    assert await fault_of(f"{data}/a.txt") == "it cannot be read: permission denied"


INTO_ITSELF = "workspaces are made inside of it, and it would be copied into itself; mount a smaller part of it"


async def test_a_source_in_which_workspaces_are_made_is_refused(data: Path, tmp_path: Path) -> None:
    """Before it is looked through: that could be the whole disk."""
    temporary = Path(tempfile.gettempdir())
    kept = tmp_path / "data" / "inner" / "kept"

    assert await fault_of(Mount("/", "all")) == INTO_ITSELF
    assert await fault_of(Mount(temporary, "tmp")) == INTO_ITSELF
    assert await fault_of(Mount(temporary.parent, "above")) == INTO_ITSELF
    assert await fault_of(Mount(data), keep=kept) == INTO_ITSELF
    assert await fault_of(Mount(kept), keep=kept) == INTO_ITSELF


async def test_a_source_beside_the_workspaces_that_stay_is_mounted(data: Path, tmp_path: Path) -> None:
    """A folder whose name only begins like theirs holds none, and a part of what was kept may be mounted again."""
    kept = tmp_path / "data-kept"
    async with Workspace.open("first", mounts=[str(data)], keep_in=kept):
        pass

    async with Workspace.open("second", mounts=[f"{kept}/first/data"], keep_in=kept) as workspace:
        pass

    assert (workspace.report.kept, sorted(os.listdir(kept))) == (kept / "second", ["first", "second"])
    assert (kept / "second" / "data" / "inner" / "b.txt").read_text() == "b\n"


async def test_every_fault_is_named_at_once_with_the_option_that_it_came_from(data: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (data / "link").symlink_to("a.txt")
    mounts: list[Mount | str] = [
        f"{tmp_path}/nosuch",
        f"{tmp_path}/pipe",
        f"{data}",
        f"{data}/a.txt:../x",
        f"{data}/a.txt:b:c:d",
        Mount(data / "a.txt", "small", max_bytes=1),
        f"{data}/inner:same:rw",
        f"{data}/inner/b.txt:same/b:rw",
    ]
    async with heddle.Runner([]) as runner:
        options: list[tuple[str, Callable[[], object]]] = [
            ("Runner(mounts=…)", lambda: heddle.Runner([], mounts=mounts)),
            ("scope(mounts=…)", lambda: runner.scope(mounts=mounts)),
            ("Workspace.open(mounts=…)", lambda: Workspace.open(mounts=mounts)),
        ]
        for option, opened in options:
            with pytest.raises(DefinitionError) as caught:
                async with opened():  # type: ignore[attr-defined]
                    pass
            first, *faults = str(caught.value).splitlines()

            assert first == "8 faults in mounts:"
            assert all(fault.startswith(f"  {option} ") for fault in faults)
            assert {fault for fault in faults if "same" not in fault} == {
                f"  {option} {tmp_path}/nosuch: there is no such file or folder",
                f"  {option} {tmp_path}/pipe: it is a named pipe: only files and folders can be mounted",
                f"  {option} {data}: it holds what cannot be copied: 'link' is a link. Only files and folders that can "
                "be read are mounted; take the others away, or mount another folder",
                f"  {option} {data}/a.txt:../x: the dest '../x' leaves the workspace: it may not climb",
                f"  {option} {data}/a.txt:b:c:d: '{data}/a.txt:b:c:d' has 4 parts, where a mount is "
                r"source[:dest][:ro|:rw]; write \: for a colon in a name",
                f"  {option} {data}/a.txt:small: it holds 2 bytes, and a mount may hold 1 "
                "(raise it with Mount(…, max_bytes=…))",
            }
            assert len([fault for fault in faults if "same" in fault]) == 2


# How much may be mounted


async def test_a_mount_holds_exactly_what_it_may(data: Path) -> None:
    async with Workspace.open(mounts=[Mount(data, "data", "rw", max_bytes=4, max_entries=3)]) as workspace:
        content = (workspace.path / "data/inner/b.txt").read_text()

    assert content == "b\n"


async def test_what_is_too_much_is_told_with_how_to_raise_it(data: Path) -> None:
    many = Mount.from_files({"x/a": b"123", "x/b": b"", "y/z/c": b""}, "memory", max_bytes=2, max_entries=5)

    faults = await faults_of(Mount(data, "data", max_bytes=3, max_entries=2), many)

    assert faults == [
        f"Runner(mounts=…) {data}:data: it holds 4 bytes, and a mount may hold 3 (raise it with Mount(…, max_bytes=…))"
        "; it holds 3 files and folders, and a mount may hold 2 (raise it with Mount(…, max_entries=…))",
        "Runner(mounts=…) 3 files from memory: it holds 3 bytes, and a mount may hold 2 "
        "(raise it with Mount(…, max_bytes=…)); it holds 6 files and folders, and a mount may hold 5 "
        "(raise it with Mount(…, max_entries=…))",
    ]


async def test_a_mount_that_has_grown_since_it_was_looked_at_is_refused_then(data: Path) -> None:
    async with heddle.Runner([_looks], mounts=[Mount(data, "data", "rw", max_bytes=10)]) as runner:
        (data / "more").write_bytes(bytes(20))
        with pytest.raises(OSError, match=r"^\[Errno 27\] Runner\(mounts=…\) .*: it holds more bytes than a mount may"):
            async with runner.scope():
                pass
        (data / "more").unlink()
        async with runner.scope() as scope:
            names = sorted(os.listdir(scope.workspace.path / "data"))

    assert names == ["a.txt", "inner"]


@pytest.mark.parametrize(("make", "kind"), SPECIAL.values(), ids=SPECIAL)
async def test_what_came_into_a_source_since_it_was_looked_at_is_neither_followed_nor_waited_for(
    data: Path, make: Callable[[Path], object], kind: str
) -> None:
    async with heddle.Runner([_looks], mounts=[f"{data}:rw"]) as runner:
        make(data / "inner" / "special")
        with trio.fail_after(20), pytest.raises(OSError, match=f"'inner/special' is {kind}, which is not copied"):
            async with runner.scope():
                pass


@heddle.tool
def _looks(context: heddle.ToolContext) -> None:
    """Use a workspace, so that it is made."""


@pytest.mark.parametrize("mode", ["ro", "rw"])
async def test_a_file_that_claims_a_tebibyte_is_counted_and_copied_by_what_it_holds(
    toolbox: Toolbox, data: Path, mode: str
) -> None:
    with (data / "big").open("wb") as file:
        file.truncate(2**40)
        file.seek(2**39)
        file.write(b"middle")
    toolbox.sh("tool", f"dd if=data/big bs=1 skip={2**39} count=7 2>/dev/null | od -c >&2; echo '{{}}'")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:{mode}"]) as runner:
        async with runner.scope() as scope:
            result = await scope.call("tool")
            info = (scope.workspace.path / "data/big").stat()

    assert result.report.stderr_tail.split() == ["0000000", *"middle", "\\0", "0000007"]
    assert info.st_size == 2**40
    assert info.st_blocks * 512 < 2**20


@pytest.mark.parametrize("size", [4096, 500_000, 2**20 - 1, 2**20, 3 * 2**20])
@pytest.mark.parametrize("mode", ["ro", "rw"])
async def test_holes_do_not_count_whatever_their_size(data: Path, size: int, mode: str) -> None:
    """What passes the look at a mount is copied: both count alike."""
    (data / "hole").touch()
    os.truncate(data / "hole", size)

    mount = Mount(data, "data", "rw" if mode == "rw" else "ro", max_bytes=1000)
    async with heddle.Runner([_looks], mounts=[mount]) as runner, runner.scope() as scope:
        content = (scope.workspace.path / "data/hole").read_bytes()

    assert content == bytes(size)


# What lands in the workspace


async def test_hard_links_become_files_of_their_own(data: Path) -> None:
    os.link(data / "a.txt", data / "same")

    async with Workspace.open(mounts=[f"{data}:rw"]) as workspace:
        inside = workspace.path / "data"
        numbers = {path.stat().st_ino for path in (inside / "a.txt", inside / "same", data / "a.txt")}
        links = [(inside / name).stat().st_nlink for name in ("a.txt", "same")]
        (inside / "same").write_text("edited")

    assert (len(numbers), links) == (3, [1, 1])
    assert ((data / "a.txt").read_text(), (data / "same").read_text()) == ("a\n", "edited")


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o444, 0o755, 0o711, 0o700, 0o4755, 0o2755, 0o1777, 0o6711])
async def test_of_a_mode_only_the_execute_bit_is_copied(data: Path, mode: int) -> None:
    (data / "a.txt").chmod(mode)
    umask = os.umask(0o022)
    os.umask(umask)

    async with heddle.Runner([_looks], mounts=[f"{data}:ro", f"{data}:written:rw"]) as runner, runner.scope() as scope:
        modes = [stat.S_IMODE((scope.workspace.path / place / "a.txt").stat().st_mode) for place in ("data", "written")]

    assert modes == [(0o777 if mode & 0o111 else 0o666) & ~umask] * 2


ODD = (b"a\nb", b" ", b"-rf", b"*", b"\xff\xfe", b"..\xff", "ü".encode(), b"n" * 255, b"\x1b[31m", b"$(id)", b"'\"\\")


async def test_names_that_are_no_text_go_in_and_come_back(toolbox: Toolbox, data: Path) -> None:
    for name in ODD:
        inner = os.path.join(os.fsencode(data), b"inner", name)
        os.mkdir(inner)
        Path(os.fsdecode(os.path.join(inner, name))).write_text("before\n")
    program = f"""
        #!/usr/bin/env python3
        import os
        for name in {ODD!r}:
            with open(b'data/inner/' + name + b'/' + name, 'a') as file:
                file.write('after\\n')
        print('{{}}')"""
    toolbox.add("tool", textwrap.dedent(program))

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}:rw"], report_changes=True) as scope:
            result = await scope.call("tool")

    paths = tuple(os.fsdecode(b"data/inner/" + name + b"/" + name) for name in sorted(ODD, key=os.fsdecode))
    assert result == heddle.Returned({}), result.report.stderr_tail
    assert scope.report.copied_back == paths
    assert scope.report.failed == ()
    assert scope.report.changes is not None
    assert tuple(change.path for change in scope.report.changes.modified) == paths
    assert {Path(os.fsdecode(os.path.join(os.fsencode(data), b"inner", name, name))).read_text() for name in ODD} == {
        "before\nafter\n"
    }


async def test_sources_with_odd_names_are_mounted_by_their_text(tmp_path: Path) -> None:
    for name in ODD:
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_text("x")
    texts = [str(Mount(tmp_path / os.fsdecode(name))) for name in ODD]

    async with heddle.Runner([_looks], mounts=texts) as runner, runner.scope() as scope:
        found = set(os.listdir(os.fsencode(scope.workspace.path)))

    assert found == {*ODD, b".heddle"}


DEPTH = 3000


def _deepest(folder: Path) -> int:
    """Return the folder at the bottom, open."""
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        inner = _into(inner, "d")
    return inner


async def test_a_tree_of_3000_levels_goes_in_and_comes_back(toolbox: Toolbox, tmp_path: Path) -> None:
    """No path to its bottom can be written down, and no recursion gets there."""
    deep = tmp_path / "deep"
    deep.mkdir()
    try:
        inner = os.open(deep, os.O_RDONLY)
        for _ in range(DEPTH):
            os.mkdir("d", dir_fd=inner)
            inner = _into(inner, "d")
        with open(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=inner), "w") as file:
            file.write("before")
        os.close(inner)
        source = f"""
            #!/usr/bin/env python3
            import os
            os.chdir('deep')
            for _ in range({DEPTH}):
                os.chdir('d')
            assert open('bottom').read() == 'before'
            open('bottom', 'w').write('after'); open('new', 'w').write('new')
            print('{{}}')"""
        toolbox.add("tool", textwrap.dedent(source))

        async with heddle.Runner(toolbox.registry()) as runner:
            mount = Mount(deep, "deep", "rw", max_entries=2 * DEPTH)
            async with runner.scope(mounts=[mount], report_changes=True) as scope:
                result = await scope.call("tool")

        below = "deep/" + "d/" * DEPTH
        inner = _deepest(deep)
        with open(os.open("bottom", os.O_RDONLY, dir_fd=inner)) as file:
            content = file.read()
        names = sorted(os.listdir(inner))
        os.close(inner)
    finally:
        remove_tree(deep)

    assert result == heddle.Returned({}), result.report.stderr_tail
    assert (content, names) == ("after", ["bottom", "new"])
    assert scope.report.copied_back == (below + "bottom", below + "new")
    assert scope.report.failed == ()


async def test_twenty_thousand_files_go_in_and_what_changed_comes_back(tmp_path: Path) -> None:
    many = tmp_path / "many"
    try:
        for number in range(20):
            folder = many / str(number)
            folder.mkdir(parents=True)
            (folder / "0").touch()
            opened = os.open(folder, os.O_RDONLY)
            for name in range(1, 1000):  # links are made more quickly than files, and copied like them
                os.link("0", str(name), src_dir_fd=opened, dst_dir_fd=opened)
            os.close(opened)

        async with Workspace.open(mounts=[Mount(many, "many", "rw", max_entries=200_000)]) as workspace:
            for path in ("0/0", "15/new", "19/999"):
                (workspace.path / "many" / path).write_text("x")
            (workspace.path / "many/7/7").unlink()

        contents = [(many / path).read_text() for path in ("0/0", "15/new", "19/999", "7/7")]
    finally:
        remove_tree(many)

    assert workspace.report == ScopeReport(copied_back=("many/0/0", "many/15/new", "many/19/999"))
    assert contents == ["x", "x", "x", ""]


async def test_a_folder_with_more_names_than_are_listed_is_refused_rather_than_copied_in_part(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is a million names; here it is ten, for the test not to make as many."""
    monkeypatch.setattr(trees, "MOST_NAMES", 10)
    for number in range(20):
        (data / f"n{number}").touch()

    names: list[str] = []
    with pytest.raises((DefinitionError, OSError)):
        async with Workspace.open(mounts=[str(data)]) as workspace:
            names = os.listdir(workspace.path / "data")

    assert names == []


# Contents from memory


async def test_contents_from_memory_land_as_they_are(tmp_path: Path) -> None:
    files: dict[str, bytes] = {"a": b"", "b/c.bin": bytes(range(256)), "\udcff": b"x", "b/d": b"y"}
    mounts = [Mount.from_files(files), Mount.from_files(files, "x/y"), Mount.from_files({}, "empty")]
    files["a"] = b"changed afterwards"

    async with Workspace.open(mounts=mounts) as workspace:
        top = workspace.path
        found = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        empty = os.listdir(top / "empty")
        changes = await workspace.changes()

    expected = {"a": b"", "b/c.bin": bytes(range(256)), "\udcff": b"x", "b/d": b"y"}
    assert found == expected | {f"x/y/{path}": content for path, content in expected.items()}
    assert empty == []
    assert changes == Changes()


@pytest.mark.parametrize("files", [{"a": b"", "a/b": b""}, {"x/a/b": b"", "x/a": b""}])
def test_contents_from_memory_that_would_lie_in_each_other_are_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(DefinitionError, match=r"the file '.*a/b'.*the file '.*a'"):
        Mount.from_files(files)


def test_contents_from_memory_go_nowhere_back() -> None:
    with pytest.raises(DefinitionError, match="has nowhere to be copied back to"):
        Mount("memory", "x", "rw", files={"a": b""})


# While it is copied


async def test_the_loop_turns_while_files_are_copied(tmp_path: Path) -> None:
    """Hundreds of turns, where a copy that holds the loop leaves one or two."""
    for number in range(5000):
        (tmp_path / f"n{number}").touch()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.001)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        async with Workspace.open(mounts=[Mount(tmp_path, "data", "rw", max_entries=10_000)]) as workspace:
            copying = turns
            (workspace.path / "data" / "n0").write_text("x")
        closing = turns - copying
        nursery.cancel_scope.cancel()

    assert min(copying, closing) > 20


@pytest.fixture
def places(tmp_path: Path) -> Callable[[], list[str]]:
    """What is in the folder for temporary files, and in the one in which workspaces stay."""
    (tmp_path / "kept").mkdir()
    return lambda: sorted(os.listdir(tempfile.gettempdir())) + sorted(os.listdir(tmp_path / "kept"))


@pytest.mark.parametrize("way", ["workspace", "kept", "runner", "scope"])
async def test_copying_that_is_cancelled_leaves_nothing(
    tmp_path: Path, places: Callable[[], list[str]], way: str
) -> None:
    """At 40 instants, from before the first file to after the last."""
    source = tmp_path / "source"
    for folder in range(6):
        (source / str(folder)).mkdir(parents=True)
        for number in range(10):
            (source / str(folder) / str(number)).write_text("x")

    entered: list[int] = []

    async def copy(instant: int) -> None:
        if way == "runner":
            async with heddle.Runner([_looks], mounts=[Mount(source, "or"), Mount(source, "wr", "rw")]):
                entered.append(instant)
                await trio.lowlevel.checkpoint()
        elif way == "scope":
            async with heddle.Runner([_looks]) as runner, runner.scope(mounts=[Mount(source, "wr", "rw")]):
                entered.append(instant)
                await trio.lowlevel.checkpoint()
        else:
            keep_in = tmp_path / "kept" if way == "kept" else None
            async with Workspace.open(mounts=[Mount(source, "wr", "rw")], keep_in=keep_in):
                entered.append(instant)
                await trio.lowlevel.checkpoint()

    began = trio.current_time()
    await copy(-1)
    whole = trio.current_time() - began
    remove_tree(tmp_path / "kept" / "scope")
    before, held = places(), holdings()

    for instant in range(40):
        with trio.move_on_after(whole * instant / 40):
            await copy(instant)
        if instant in entered:  # it was made, and stays
            remove_tree(tmp_path / "kept" / "scope")

        assert places() == before, f"cancelled at {instant} of 40"
        children, descriptors, threads = holdings()
        assert (children, descriptors) == held[:2]
        assert threads <= held[2] + 1, "trio keeps a thread that is idle for the next one"


@pytest.mark.parametrize("way", ["workspace", "kept", "runner ro", "runner rw"])
async def test_copying_that_fails_leaves_nothing(
    data: Path, tmp_path: Path, places: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The system refuses a write, as it does where a disk is full: to fill a disk takes one of one's own."""
    first = tmp_path / "first"
    first.mkdir()
    (first / "a.txt").write_text("a\n")
    before, held = places(), open_descriptors()
    real = os.write

    def write(fd: int, content: bytes) -> int:
        if bytes(content) == b"b\n":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, content)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=rf"mounts=…\) {data}.*No space left on device"):
        patch.setattr(os, "write", write)
        if way.startswith("runner"):
            async with (
                heddle.Runner([_looks], mounts=[f"{first}:{way[-2:]}", f"{data}:{way[-2:]}"]) as runner,
                runner.scope(),
            ):
                pass
        else:
            keep_in = tmp_path / "kept" if way == "kept" else None
            async with Workspace.open(mounts=[f"{first}:rw", f"{data}:rw"], keep_in=keep_in):
                pass

    assert places() == before
    assert open_descriptors() == held


FULL = """
import os, resource, sys
import trio, heddle

async def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    before = len(os.listdir("/proc/self/fd"))
    try:
        async with heddle.Workspace.open(mounts=[sys.argv[1]]):
            pass
    except OSError as error:
        print(error.strerror)
    print(len(os.listdir("/proc/self/fd")) - before)

trio.run(main)
"""


def test_a_file_that_does_not_fit_leaves_nothing(data: Path, places: Callable[[], list[str]]) -> None:
    """The system's own refusal: a host that may write no more than 100 kB into one file."""
    (data / "large").write_bytes(bytes(400_000))
    before = places()

    done = subprocess.run(
        [sys.executable, "-c", FULL, str(data)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.splitlines() == [
        f"Workspace.open(mounts=…) {data}: it was in order when it was looked at, and cannot be copied now: "
        "File too large",
        "0",
    ], done.stderr
    assert places() == before
