"""What changed in a workspace. Contents decide: whoever sets a file's time back does not hide what was written to it.

Reading everything again would be slow, so a file that the kernel says was not touched is believed to be as it was.
A tool can set the time of a modification, but not that of the last change of a file's state.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs

from heddle.workspace.trees import (
    Cursor,
    Entered,
    File,
    Left,
    NoFile,
    Unreadable,
    nothing,
    open_file,
    readable,
    shown,
    walk,
)

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = [
    "Baseline",
    "Changes",
    "Entry",
    "FileFault",
    "FileState",
    "Mark",
    "baseline_of",
    "changes_since",
    "digest_of",
    "mark_of",
]

# Inode, size, time of modification, time of the last change of state; nanoseconds.
Mark: TypeAlias = tuple[int, int, int, int]

CHUNK = 256 * 1024
# 1 GiB: a second of hashing, in one look. A sparse file may claim terabytes.
MOST_HASHED = 1024**3
# 20 ms: two ticks of the slowest kernel clock that stamps files; some file systems know whole seconds only, or two.
TICK_NS = 20_000_000
COARSE_NS = 2_000_000_000
SECOND_NS = 1_000_000_000


@attrs.frozen
class Entry:
    """A file as it was put into a workspace.

    Attributes:
        sha256: Of its contents, in hexadecimal; None where it is too large to be read for that.
        mark: Of the file in the workspace.
        origin: Of the file that it was copied from; None for one that is not copied back.
    """

    size: int
    sha256: str | None
    mark: Mark
    origin: Mark | None = None

    def is_untouched(self, info: os.stat_result, taken_ns: int) -> bool:
        """Return whether a file is this one, and surely nothing was done to it since `taken_ns`."""
        return self._is_untouched(self.mark, info, taken_ns)

    def is_origin_untouched(self, info: os.stat_result, taken_ns: int) -> bool:
        """Return whether a file is the one that this was copied from, and surely nothing was done to it."""
        return self.origin is not None and self._is_untouched(self.origin, info, taken_ns)

    def _is_untouched(self, mark: Mark, info: os.stat_result, taken_ns: int) -> bool:
        # What was written in the same tick of the clock may have been written again in it: then its contents decide.
        changed_ns = mark[3]
        step_ns = TICK_NS if changed_ns % SECOND_NS else COARSE_NS
        return mark == mark_of(info) and (self.sha256 is None or changed_ns + step_ns < taken_ns)


@attrs.frozen
class Baseline:
    """The files of a workspace when no tool had worked in it yet, by path."""

    files: Mapping[str, Entry] = attrs.field(factory=dict[str, Entry])
    taken_ns: int = attrs.field(factory=time.time_ns)

    def is_untouched(self, path: str, info: os.stat_result) -> bool:
        """Return whether a file is the one that was there, and nothing was done to it: no need to read it."""
        entry = self.files.get(path)
        return entry is not None and entry.is_untouched(info, self.taken_ns)


def baseline_of(root: int, pause: Callable[[], object]) -> Baseline:
    """Return what the tree below `root` holds, reading every file."""
    files: dict[str, Entry] = {}
    with Cursor.at(root) as cursor:
        for event in walk(cursor):
            pause()
            if isinstance(event, File):
                try:
                    fd = open_file(event.name, cursor.fd)
                except OSError:
                    continue  # what cannot be read now is not known, and says so later
                try:
                    files[event.path] = Entry(event.info.st_size, digest_of(fd, pause), mark_of(event.info))
                finally:
                    os.close(fd)
    return Baseline(files)


def mark_of(info: os.stat_result) -> Mark:
    """Return what tells, without reading it, whether a file was touched."""
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


@attrs.frozen
class FileState:
    """One file: its path in the workspace with slashes, its size in bytes, and the SHA-256 of its contents.

    Attributes:
        sha256: In hexadecimal; None where more than 1 GiB would have to be read for all of them.
    """

    path: str
    size: int
    sha256: str | None

    def as_json(self) -> dict[str, JSON]:
        r"""Return it as JSON; bytes of a name that are not UTF-8 are written as ``\\xff``."""
        return {"path": shown(self.path), "size": self.size, "sha256": self.sha256}


@attrs.frozen
class FileFault:
    """One path with which something could not be done, and why. An empty path is the whole."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{readable(self.path)}: {self.reason}" if self.path else self.reason

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        return {"path": shown(self.path), "reason": self.reason}


@attrs.frozen(kw_only=True)
class Changes:
    """How the files of a workspace differ from those that were put there. In the order of their paths.

    Attributes:
        created: Files that were not there.
        modified: Files with other contents than they had.
        deleted: Files that are gone, as they were.
        no_files: Links, named pipes, sockets and devices that are there now.
        unreadable: What could not be looked at.
    """

    created: tuple[FileState, ...] = ()
    modified: tuple[FileState, ...] = ()
    deleted: tuple[FileState, ...] = ()
    no_files: tuple[str, ...] = ()
    unreadable: tuple[FileFault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.modified or self.deleted or self.no_files or self.unreadable)

    def as_json(self) -> dict[str, JSON]:
        """Return them as JSON."""
        return {
            "created": [state.as_json() for state in self.created],
            "modified": [state.as_json() for state in self.modified],
            "deleted": [state.as_json() for state in self.deleted],
            "no_files": [shown(path) for path in self.no_files],
            "unreadable": [fault.as_json() for fault in self.unreadable],
        }


def changes_since(
    baseline: Baseline,
    root: int,
    pause: Callable[[], object],
    *,
    leaves_out: Callable[[str], bool] = nothing,
    open_up: bool = False,
) -> Changes:
    """Return how the tree below `root` differs from `baseline`.

    Args:
        baseline: What was there.
        root: The workspace, open.
        pause: Called now and then; it may raise, to stop.
        leaves_out: Whether a path does not count.
        open_up: Give ourselves the right to read what is there.
    """
    look = _Look(baseline, pause, open_up)
    with Cursor.at(root) as cursor:
        for event in walk(cursor, open_up=open_up, leaves_out=leaves_out):
            pause()
            match event:
                case File():
                    look.at(event, cursor.fd)
                case NoFile(path, _):
                    look.no_files.append(path)
                case Unreadable(path, error):
                    look.faults.append(FileFault(path, reason_of(error)))
                case Entered() | Left():
                    pass
    return look.changes()


@attrs.define(eq=False)
class _Look:
    """One look at a tree, and what it has found so far."""

    baseline: Baseline
    pause: Callable[[], object]
    open_up: bool
    created: list[FileState] = attrs.field(factory=list[FileState])
    modified: list[FileState] = attrs.field(factory=list[FileState])
    no_files: list[str] = attrs.field(factory=list[str])
    faults: list[FileFault] = attrs.field(factory=list[FileFault])
    seen: set[str] = attrs.field(factory=set[str])
    bytes_left: int = MOST_HASHED

    def at(self, file: File, folder: int) -> None:
        """Look at one file, and into it where it may have changed."""
        self.seen.add(file.path)
        if self.baseline.is_untouched(file.path, file.info):
            return
        try:
            state = self._state(file, folder)
        except OSError as error:
            self.faults.append(FileFault(file.path, reason_of(error)))
            return
        before = self.baseline.files.get(file.path)
        if before is None:
            self.created.append(state)
        elif state.sha256 is None:  # not read: what was touched counts
            if before.mark != mark_of(file.info):
                self.modified.append(state)
        elif (state.size, state.sha256) != (before.size, before.sha256):
            self.modified.append(state)

    def _state(self, file: File, folder: int) -> FileState:
        fd = open_file(file.name, folder, open_up=self.open_up)
        try:
            size = os.fstat(fd).st_size
            if size > self.bytes_left:
                return FileState(file.path, size, None)
            self.bytes_left -= size
            return FileState(file.path, size, digest_of(fd, self.pause))
        finally:
            os.close(fd)

    def changes(self) -> Changes:
        """Return what was found."""
        # What lies in a folder that cannot be read may still be there.
        hidden = tuple(fault.path + "/" for fault in self.faults)
        before = self.baseline.files
        seen = self.seen | {fault.path for fault in self.faults}
        gone = [path for path in before if path not in seen and not path.startswith(hidden)]
        return Changes(
            created=_sorted(self.created),
            modified=_sorted(self.modified),
            deleted=_sorted([FileState(path, before[path].size, before[path].sha256) for path in gone]),
            no_files=tuple(sorted(self.no_files)),
            unreadable=tuple(sorted(self.faults, key=lambda fault: fault.path)),
        )


def _sorted(states: list[FileState]) -> tuple[FileState, ...]:
    return tuple(sorted(states, key=lambda state: state.path))


def digest_of(fd: int, pause: Callable[[], object]) -> str | None:
    """Return the SHA-256 of an open file from its beginning; None where it is too large for that."""
    if os.fstat(fd).st_size > MOST_HASHED:
        return None
    digest = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    while chunk := os.read(fd, CHUNK):
        digest.update(chunk)
        pause()
    return digest.hexdigest()


def reason_of(error: OSError) -> str:
    """Return what went wrong, in words and without a path."""
    return error.strerror or str(error)
