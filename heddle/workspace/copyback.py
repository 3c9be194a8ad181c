"""Bring what tools have changed in a mount back to where it came from. Nothing is deleted there, and nothing raises.

Tools may have put anything in the place of anything. So the way goes by descriptors from folders that were opened
before any tool ran, no link is followed on either side, only files are read, and a file is replaced whole or not at
all. All of it presumes that nothing works in the workspace any more.
"""

from __future__ import annotations

import errno
import os
import stat

import attrs

from heddle.workspace.changes import Baseline, Entry, FileFault, digest_of, reason_of
from heddle.workspace.copying import Room, size_of
from heddle.workspace.filling import Origin
from heddle.workspace.replacing import replace
from heddle.workspace.trees import Cursor, Entered, File, Left, NoFile, Unreadable, go_on, kind_of, open_file, walk

__all__ = ["CopiedBack", "copy_back"]

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@attrs.define(eq=False)
class CopiedBack:
    """What became of the changed files of mounts. Paths are those in the workspace.

    Attributes:
        copied: Files that were written to where their mount came from.
        overwritten: Those of them that somebody else had changed, made or deleted there since they were copied in.
        failed: What was changed and was not copied, and why.
    """

    copied: list[str] = attrs.field(factory=list[str])
    overwritten: list[str] = attrs.field(factory=list[str])
    failed: list[FileFault] = attrs.field(factory=list[FileFault])


def copy_back(origin: Origin, root: int, baseline: Baseline, done: CopiedBack) -> None:
    """Copy what has changed in one mount of a workspace, and note in `done` how it went.

    Args:
        origin: Where the mount came from, and what was copied in.
        root: The workspace, opened before any tool ran.
        baseline: When that was.
        done: What became of other mounts, and now of this one.
    """
    place = origin.source.mount.place
    *above, last = place.split("/")
    back = _Back(origin, baseline, done)
    with origin.source.lock:
        try:
            with Cursor.at(root) as cursor:
                for name in above:
                    cursor.enter(name, open_up=True)
                if origin.name is None:
                    cursor.enter(last, open_up=True)
                    back.look(cursor)
                    back.bring(cursor.fd)
                else:
                    back.bring_file(last, cursor.fd)
        except FileNotFoundError:
            pass  # deleted; that does not go back
        except OSError as error:
            done.failed.append(FileFault(place, reason_of(error)))
    if back.has_copied and not origin.is_in_place():
        moved = "its source was moved or exchanged meanwhile: what has changed was copied to where it is now"
        done.failed.append(FileFault(place, moved))


@attrs.define(eq=False)
class _Back:
    """The way back of one mount."""

    origin: Origin
    baseline: Baseline
    done: CopiedBack
    room: Room = attrs.field(init=False)
    touched: list[str] = attrs.field(factory=list[str], init=False)
    new: list[str] = attrs.field(factory=list[str], init=False)
    new_bytes: int = attrs.field(default=0, init=False)
    new_entries: int = attrs.field(init=False)
    has_copied: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        mount = self.origin.source.mount
        self.room = Room(mount.max_bytes, mount.max_entries)
        self.new_entries = -self.origin.folders

    # Looking

    def look(self, cursor: Cursor) -> None:
        """Find what may have changed in the folder at `cursor`, and what is new in it."""
        for event in walk(cursor, open_up=True):
            match event:
                case File(path, _, info):
                    self._found(path, info)
                case Entered():
                    self.new_entries += 1
                case NoFile(path, kind):
                    self._fails(path, f"it is {kind}: only files are copied back")
                case Unreadable(path, error):
                    self._fails(path, reason_of(error))
                case Left():
                    pass

    def _found(self, path: str, info: os.stat_result) -> None:
        before = self.origin.entries.get(path)
        if before is None:
            self.new_entries += 1
            self.new_bytes += size_of(info)
            if len(self.new) <= self.room.entries_left:
                self.new.append(path)
        elif not before.is_untouched(info, self.baseline.taken_ns):
            self.touched.append(path)

    # Bringing

    def bring(self, folder: int) -> None:
        """Bring back what was found: first the files that were there, then the new ones, all of them or none."""
        for path in self.touched:
            self._bring(path, folder)
        mount = self.origin.source.mount
        if self.new and (self.new_entries > self.room.entries_left or self.new_bytes > self.room.bytes_left):
            self._fails(
                "",
                f"{self.new_entries:,} new files and folders with {self.new_bytes:,} bytes are more than a mount may "
                f"hold, {mount.max_entries:,} and {mount.max_bytes:,} bytes; none of them was copied back. Raise "
                "max_entries or max_bytes of the mount",
            )
            return
        for path in self.new:
            self._bring(path, folder)

    def _bring(self, path: str, folder: int) -> None:
        *above, name = path.split("/")
        try:
            with Cursor.at(folder) as cursor:
                cursor.enter_all(above)
                self._bring_open(path, name, cursor.fd)
        except OSError as error:
            self._fails(path, reason_of(error))

    def bring_file(self, name: str, folder: int) -> None:
        """Bring back a mount that is one file."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        before = self.origin.entries.get("")
        if not stat.S_ISREG(info.st_mode):
            self._fails("", f"it is {kind_of(info.st_mode)}: a file was mounted here")
        elif before is None or not before.is_untouched(info, self.baseline.taken_ns):
            try:
                self._bring_open("", name, folder)
            except OSError as error:
                self._fails("", reason_of(error))

    def _bring_open(self, path: str, name: str, folder: int) -> None:
        fd = open_file(name, folder, open_up=True)
        try:
            self._bring_changed(path, fd)
        finally:
            os.close(fd)

    def _bring_changed(self, path: str, fd: int) -> None:
        """Copy a file back that was touched, if its contents are others."""
        info = os.fstat(fd)
        before = self.origin.entries.get(path)
        most = max(self.origin.source.mount.max_bytes, 0 if before is None else before.size)
        if size_of(info) > most:
            raise OSError(errno.EFBIG, f"it has {size_of(info):,} bytes, and the mount may hold {most:,}")
        if before is not None and before.size == info.st_size and digest_of(fd, go_on) == before.sha256 is not None:
            return
        *folders, name = path.split("/") if self.origin.name is None else [self.origin.name]
        with Cursor.at(self.origin.folder) as target:
            for folder in folders:
                _enter(target, folder)
            there = _file_at(name, target.fd)
            if there is not None and _is_there(fd, info, name, target.fd, there):
                return  # somebody has brought it there already
            is_theirs = self._was_changed(before, name, target.fd, there)
            os.lseek(fd, 0, os.SEEK_SET)
            is_theirs |= replace(fd, name, target.fd, there, self.room)
        self.has_copied = True
        self.done.copied.append(self._path(path))
        if is_theirs:
            self.done.overwritten.append(self._path(path))

    def _was_changed(self, before: Entry | None, name: str, folder: int, there: os.stat_result | None) -> bool:
        """Return whether somebody else has changed, made or deleted what a file takes the place of."""
        if before is None or there is None:
            return before is not None or there is not None
        if before.is_origin_untouched(there, self.baseline.taken_ns):
            return False
        return before.sha256 is None or there.st_size != before.size or _digest_at(name, folder) != before.sha256

    def _fails(self, path: str, reason: str) -> None:
        self.done.failed.append(FileFault(self._path(path), reason))

    def _path(self, path: str) -> str:
        place = self.origin.source.mount.place
        return f"{place}/{path}" if path else place


def _enter(target: Cursor, name: str) -> None:
    """Go into a folder of the mount's source, which is made where there is none."""
    try:
        target.enter(name, make=True)
    except OSError as error:
        try:
            kind = kind_of(os.stat(name, dir_fd=target.fd, follow_symlinks=False).st_mode)
        except OSError:
            raise error from None
        if kind == "a folder":
            raise
        raise OSError(errno.ENOTDIR, f"there is {kind} where it needs the folder {name!r}") from None


def _file_at(name: str, folder: int) -> os.stat_result | None:
    """Return what is to be replaced, None where nothing is.

    Raises:
        OSError: It is no file, or one that this user may not write.
    """
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EEXIST, f"there is {kind_of(info.st_mode)} in its place")
    # Renaming would not ask; and root may do everything, but a file that nobody may write is meant to stay.
    if not info.st_mode & WRITABLE or not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, "the file in its place is read-only")
    return info


def _is_there(fd: int, info: os.stat_result, name: str, folder: int, there: os.stat_result) -> bool:
    if info.st_size != there.st_size:
        return False
    digest = digest_of(fd, go_on)
    return digest is not None and digest == _digest_at(name, folder)


def _digest_at(name: str, folder: int) -> str | None:
    fd = open_file(name, folder)
    try:
        return digest_of(fd, go_on)
    finally:
        os.close(fd)
