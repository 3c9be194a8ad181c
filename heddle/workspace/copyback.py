"""Bring what tools have changed in a mount back to where it came from. Nothing is deleted there, and nothing raises.

Tools may have put anything in the place of anything. So the way goes by descriptors from folders that were opened
before any tool ran, no link is followed on either side, only files are read, and a file is replaced whole or not at
all. All of it presumes that nothing works in the workspace any more.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat

import attrs

from heddle.workspace.changes import Baseline, Entry, FileFault, digest_of, is_untouched, reason_of
from heddle.workspace.copying import EXECUTABLE, CopyRefused, Room, copy_contents, make_file
from heddle.workspace.filling import Origin
from heddle.workspace.trees import Cursor, Entered, File, Left, NoFile, Unreadable, kind_of, open_file, walk

__all__ = ["CopiedBack", "copy_back"]

# 07777 without set-user-id, set-group-id and sticky.
PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
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
        baseline: When that was, and what the workspace held.
        done: What became of other mounts, and now of this one.
    """
    mount = origin.source.mount
    *above, last = mount.place.split("/")
    back = _Back(origin, baseline, done, Room(mount.max_bytes, mount.max_entries))
    try:
        with Cursor.at(root) as cursor:
            for name in above:
                cursor.enter(name, open_up=True)
            if origin.name is None:
                cursor.enter(last, open_up=True)
                back.folder(cursor)
            else:
                back.only_file(last, cursor.fd)
    except FileNotFoundError:
        pass  # deleted; that does not go back
    except CopyRefused as error:
        rest = "the rest was not copied back; raise the max_bytes or the max_entries of the mount"
        done.failed.append(FileFault(mount.place, f"{error.strerror}: {rest}"))
    except OSError as error:
        done.failed.append(FileFault(mount.place, reason_of(error)))


@attrs.define(eq=False)
class _Back:
    """The way back of one mount."""

    origin: Origin
    baseline: Baseline
    done: CopiedBack
    room: Room

    def folder(self, cursor: Cursor) -> None:
        """Bring back what changed in the folder at `cursor`."""
        for event in walk(cursor, open_up=True):
            match event:
                case File(path, name, info):
                    self.room.take_entry()
                    self._file(path, name, cursor.fd, info)
                case Entered():
                    self.room.take_entry()
                case NoFile(path, kind):
                    self.room.take_entry()
                    self._fails(path, f"it is {kind}: only files are copied back")
                case Unreadable(path, error):
                    self._fails(path, reason_of(error))
                case Left():
                    pass

    def only_file(self, name: str, folder: int) -> None:
        """Bring back a mount that is one file."""
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(info.st_mode):
            self._file("", name, folder, info)
        else:
            self._fails("", f"it is {kind_of(info.st_mode)}: a file was mounted here")

    def _file(self, path: str, name: str, folder: int, info: os.stat_result) -> None:
        try:
            before = self.origin.entries.get(path)
            if before is not None and is_untouched(before.mark, info, self.baseline.taken_ns):
                return
            fd = open_file(name, folder, open_up=True)
            try:
                self._changed(path, fd, before)
            finally:
                os.close(fd)
        except CopyRefused:
            raise
        except OSError as error:
            self._fails(path, reason_of(error))

    def _changed(self, path: str, fd: int, before: Entry | None) -> None:
        """Copy a file back that was touched, if its contents are others."""
        info = os.fstat(fd)
        ours = digest_of(fd, _go_on)
        if before is not None and ours is not None and (info.st_size, ours) == (before.size, before.sha256):
            return
        *folders, name = path.split("/") if self.origin.name is None else [self.origin.name]
        with Cursor.at(self.origin.folder) as target:
            for folder in folders:
                _enter(target, folder)
            there = _file_at(name, target.fd)
            theirs = None if there is None else self._their_digest(name, target.fd, there, before)
            if there is not None and theirs is not None and theirs == ours:
                return  # somebody has brought it there already
            os.lseek(fd, 0, os.SEEK_SET)
            self._replace(fd, info, name, target.fd, there)
        shown = self._path(path)
        self.done.copied.append(shown)
        if theirs != (None if before is None else before.sha256):
            self.done.overwritten.append(shown)

    def _their_digest(self, name: str, folder: int, there: os.stat_result, before: Entry | None) -> str | None:
        """Return the hash of what is there now, without reading it where nobody can have touched it."""
        origin = None if before is None else before.origin
        if before is not None and origin is not None and is_untouched(origin, there, self.baseline.taken_ns):
            return before.sha256
        fd = open_file(name, folder)
        try:
            return digest_of(fd, _go_on)
        finally:
            os.close(fd)

    def _replace(self, fd: int, info: os.stat_result, name: str, folder: int, there: os.stat_result | None) -> None:
        """Put a copy of an open file in the place of another, or of none; whatever fails, that stays as it was."""
        executable = bool(info.st_mode & EXECUTABLE)
        temporary = f".heddle-{secrets.token_hex(8)}"
        writer = make_file(temporary, folder, executable=executable)
        try:
            try:
                copy_contents(fd, writer, self.room, _go_on)
                if there is not None:
                    _take_over(writer, there, executable=executable)
                os.fsync(writer)
            finally:
                os.close(writer)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    def _fails(self, path: str, reason: str) -> None:
        self.done.failed.append(FileFault(self._path(path), reason))

    def _path(self, path: str) -> str:
        place = self.origin.source.mount.place
        return f"{place}/{path}" if path else place


def _go_on() -> None:
    pass


def _enter(target: Cursor, name: str) -> None:
    """Go into a folder of the mount's source, which is made where there is none."""
    try:
        target.enter(name, make=True)
    except OSError:
        kind = kind_of(os.stat(name, dir_fd=target.fd, follow_symlinks=False).st_mode)
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


def _take_over(writer: int, there: os.stat_result, *, executable: bool) -> None:
    """Give a new file the owner and the permissions of the one that it replaces, and its own execute bit."""
    ours = os.fstat(writer)
    if (ours.st_uid, ours.st_gid) != (there.st_uid, there.st_gid):
        try:
            os.fchown(writer, there.st_uid, there.st_gid)
        except PermissionError:
            pass  # only root can give a file to somebody else
    mode = there.st_mode & PERMISSIONS & ~EXECUTABLE
    if executable:
        mode |= (mode & (stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)) >> 2
    os.fchmod(writer, mode)
