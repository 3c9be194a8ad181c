"""What few machines can show with their own files: other owners, file systems that share blocks, or that say little."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

import heddle
from heddle import strictjson
from heddle.workspace import Changes, FileFault, FileState, temporary, trees
from heddle.workspace.copying import Room
from heddle.workspace.replacing import replace
from heddle.workspace.temporary import remove_stale
from heddle.workspace.trees import FOLDER, Cursor, Unreadable, walk


def replaced(folder: Path, data: bytes, *, owner: int) -> bool:
    """Put a file of a workspace in the place of one that belongs to somebody else."""
    (folder / "from").write_bytes(data)
    fields = list((folder / "file").stat())
    fields[4] = owner
    place = os.open(folder, FOLDER)
    fd = os.open(folder / "from", os.O_RDONLY)
    try:
        return replace(fd, "file", place, os.stat_result(fields), Room(10**6, 10))
    finally:
        os.close(fd)
        os.close(place)
        (folder / "from").unlink()


@pytest.fixture
def no_gifts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain user cannot give files to others."""

    def refuse(_fd: int, _user: int, _group: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)


@pytest.mark.parametrize("data", [b"2\n", b"longer than what was there\n", b""])
def test_a_file_that_its_owner_would_lose_is_written_in_place(tmp_path: Path, no_gifts: None, data: bytes) -> None:
    (tmp_path / "file").write_text("somebody else's\n")
    before = (tmp_path / "file").stat()

    replaced(tmp_path, data, owner=before.st_uid + 1)

    assert (tmp_path / "file").read_bytes() == data
    assert (tmp_path / "file").stat().st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_is_full_is_noticed_before_a_file_is_written_in_place(
    tmp_path: Path, no_gifts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")

    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        replaced(tmp_path, b"much longer", owner=os.geteuid() + 1)

    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_was_exchanged_in_the_last_moment_is_not_written_in_place(
    tmp_path: Path, no_gifts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    real = os.fsync

    def exchange(fd: int) -> None:
        real(fd)
        (tmp_path / "other").write_text("another file")
        (tmp_path / "other").rename(tmp_path / "file")

    monkeypatch.setattr(os, "fsync", exchange)
    with pytest.raises(OSError, match="somebody has exchanged the file"):
        replaced(tmp_path, b"new", owner=os.geteuid() + 1)

    assert (tmp_path / "file").read_text() == "another file"
    assert os.listdir(tmp_path) == ["file"]


async def test_where_files_can_share_their_blocks_they_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "data" / "small").write_bytes(b"y" * 100)
    shared = []

    def clone(writer: int, request: int, reader: int) -> None:
        assert request == 0x40049409
        shared.append(os.write(writer, os.pread(reader, 10**6, 0)))

    monkeypatch.setattr(fcntl, "ioctl", clone)
    async with heddle.Runner([], mounts=[f"{tmp_path}/data:shared"]) as runner:
        async with runner.scope(report_changes=True) as scope:
            text = (scope.workspace.path / "shared/large").read_bytes()
            (scope.workspace.path / "shared/large").write_bytes(b"z")

    assert shared == [100_000, 100_000]
    assert text == b"x" * 100_000
    assert scope.report.changes is not None
    assert [state.path for state in scope.report.changes.modified] == ["shared/large"]


async def test_where_nothing_is_known_of_holes_a_file_is_copied_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(300_000)
        file.seek(200_000)
        file.write(b"x")
    real = os.lseek

    def lseek(fd: int, offset: int, whence: int) -> int:
        if whence == os.SEEK_DATA:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, offset, whence)

    monkeypatch.setattr(os, "lseek", lseek)
    async with heddle.Workspace.open(mounts=[f"{tmp_path}/sparse"]) as workspace:
        copy = (workspace.path / "sparse").read_bytes()

    assert copy == b"\0" * 200_000 + b"x" + b"\0" * 99_999


def test_a_chain_of_folders_is_walked_to_a_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_LEVELS", 3)
    (tmp_path / "a/b/c/d/e").mkdir(parents=True)

    with Cursor(os.open(tmp_path, FOLDER)) as cursor:
        events = [event for event in walk(cursor) if isinstance(event, Unreadable)]

    assert [(event.path, event.error.strerror) for event in events] == [
        ("a/b/c/d", "more than 3 folders lie in each other")
    ]


def test_changes_are_told_as_json_whatever_a_name_holds() -> None:
    changes = Changes(
        created=(FileState("a\udcff", 1, "hash"),),
        deleted=(FileState("b", 2, None),),
        no_files=("link",),
        unreadable=(FileFault("c\n", "denied"),),
    )

    assert changes.as_json() == {
        "created": [{"path": "a\\xff", "size": 1, "sha256": "hash"}],
        "modified": [],
        "deleted": [{"path": "b", "size": 2, "sha256": None}],
        "no_files": ["link"],
        "unreadable": [{"path": "c\n", "reason": "denied"}],
    }
    assert [bool(Changes()), bool(changes)] == [False, True]
    assert [str(FileFault("c\n", "denied")), str(FileFault("", "all of it"))] == ["c\\n: denied", "all of it"]


def test_without_a_list_of_processes_a_number_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems that have no /proc."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "_start_of", lambda _: "")
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    ended = process.pid
    for name, pid in (("anotherx", os.getppid()), ("endedxxx", ended)):
        folder = tmp_path / f"heddle-run-{name}"
        folder.mkdir()
        record = temporary._owner(locked=True) | {"pid": pid}
        (folder / "owner.json").write_bytes(strictjson.dumps(record))

    removed = remove_stale()

    assert removed == (tmp_path.resolve() / "heddle-run-endedxxx",)


def test_a_folder_for_temporary_files_that_cannot_be_listed_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "scandir", refuse)

    assert remove_stale() == ()
