"""Copy files and trees into a place where nobody else works. What is copied is bytes and the execute bit, nothing else.

A link is never followed, a pipe is never waited for, a device is never read: the copy is refused and says where.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from heddle.workspace.changes import CHUNK, MOST_HASHED, Entry, digest_of, mark_of
from heddle.workspace.trees import Cursor, Entered, File, Left, NoFile, Unreadable, go_on, open_file, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from hashlib import _Hash as _Digest

__all__ = [
    "CopyRefused",
    "Copying",
    "Room",
    "copy_contents",
    "is_temporary",
    "make_file",
    "size_of",
    "temporary_name",
    "write_all",
]

# The request of ioctl(2) that lets two files share their blocks until one is written; linux/fs.h.
FICLONE = 0x40049409
# 64 KiB: below that a copy costs less than asking.
WORTH_CLONING = 64 * 1024
BLOCK = 512
_TEMPORARY = re.compile(r"\.heddle-[0-9a-f]{16}")
EXECUTABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ZEROS = bytes(CHUNK)


class CopyRefused(OSError):
    """Something must not be copied, or is more than may be. What was copied before it is there."""


@attrs.define(eq=False)
class Room:
    """How much may still be copied."""

    bytes_left: int
    entries_left: int

    def take_bytes(self, count: int) -> None:
        """Use up bytes.

        Raises:
            CopyRefused: There are not as many left.
        """
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise CopyRefused(errno.EFBIG, "it holds more bytes than a mount may")

    def take_entry(self) -> None:
        """Use up one file or folder.

        Raises:
            CopyRefused: There is none left.
        """
        self.entries_left -= 1
        if self.entries_left < 0:
            raise CopyRefused(errno.EMLINK, "it holds more files and folders than a mount may")


@attrs.define(eq=False)
class Copying:
    """One copy on its way.

    Attributes:
        room: How much may be copied.
        pause: Called before each file; it may raise, to stop.
        known: What is known of the files that are copied, by path: those are not read for their hash.
        owner: User and group that the copies are given to; None leaves them ours.
        only_read: The group may read them, and nobody else.
        entries: The files that were copied, by path below the place that they are copied to.
        folders: How many folders were copied.
    """

    room: Room
    pause: Callable[[], object] = go_on
    known: Mapping[str, Entry] = attrs.field(factory=dict[str, Entry])
    owner: tuple[int, int] | None = None
    only_read: bool = False
    entries: dict[str, Entry] = attrs.field(factory=dict[str, Entry], init=False)
    folders: int = attrs.field(default=0, init=False)
    _can_clone: bool = attrs.field(default=sys.platform == "linux", init=False)

    def folder(self, source: Cursor, target: Cursor) -> None:
        """Copy what is in one folder into another, which is empty.

        Raises:
            OSError: It cannot be copied, or not all of it; see `CopyRefused`. Both cursors may be anywhere.
        """
        for event in walk(source, leaves_out=is_temporary):
            self.pause()
            match event:
                case Entered(_, name):
                    self.room.take_entry()
                    self.folders += 1
                    target.enter(name, make=True)
                case Left():
                    target.leave()
                case File(path, name, _):
                    self.room.take_entry()
                    self.file(path, name, source.fd, name, target.fd)
                case NoFile(path, kind):
                    raise CopyRefused(errno.EINVAL, f"{path!r} is {kind}, which is not copied")
                case Unreadable(path, error):
                    raise CopyRefused(error.errno, f"{path!r}: {error.strerror}")

    def file(self, path: str, name: str, source: int, new_name: str, target: int) -> None:
        """Copy one file, and note under `path` what was copied.

        Args:
            path: Below the place that is copied to.
            name: In the folder `source`.
            source: An open folder.
            new_name: In the folder `target`, where nothing has this name.
            target: An open folder.

        Raises:
            OSError: It cannot be copied.
        """
        try:
            reader = open_file(name, source)
        except FileNotFoundError:
            return  # it has gone away since the folder was listed
        try:
            info = os.fstat(reader)
            writer = make_file(new_name, target, 0o777 if info.st_mode & EXECUTABLE else 0o666)
            try:
                known = self.known.get(path)
                if known is not None and known.mark != mark_of(info):
                    known = None  # somebody has written to what nobody should
                if self._cloned(reader, writer, info):
                    self.room.take_bytes(size_of(info))
                    digest = None if known is not None else digest_of(writer, self.pause)
                else:
                    digest = copy_contents(reader, writer, self.room, self.pause, hashes=known is None)
                self._give(writer)
                copied = os.fstat(writer)
            finally:
                os.close(writer)
        finally:
            os.close(reader)
        if known is not None:
            digest = known.sha256
        self.entries[path] = Entry(copied.st_size, digest, mark_of(copied), mark_of(info))

    def contents(self, path: str, data: bytes, new_name: str, target: int) -> None:
        """Write a file that comes from memory, and note it under `path`."""
        self.room.take_bytes(len(data))
        writer = make_file(new_name, target, 0o666)
        try:
            write_all(writer, data)
            self._give(writer)
            copied = os.fstat(writer)
        finally:
            os.close(writer)
        self.entries[path] = Entry(len(data), hashlib.sha256(data).hexdigest(), mark_of(copied))

    def _give(self, writer: int) -> None:
        if self.owner is not None:
            os.fchown(writer, *self.owner)
        if self.only_read:
            os.fchmod(writer, 0o750 if os.fstat(writer).st_mode & stat.S_IXUSR else 0o640)

    def _cloned(self, reader: int, writer: int, info: os.stat_result) -> bool:
        """Let the new file share the blocks of the old one, where the file system can."""
        if not self._can_clone or info.st_size < WORTH_CLONING:
            return False
        try:
            fcntl.ioctl(writer, FICLONE, reader)
        except OSError:
            self._can_clone = False  # the next one is on the same file system, most likely
            return False
        return True


def make_file(name: str, folder: int, mode: int) -> int:
    """Make a file that was not there, and return it open; what the host's umask says is taken from its mode."""
    return os.open(name, NEW_FILE, mode, dir_fd=folder)


def temporary_name() -> str:
    """Return a name for a file that takes the place of another when it is complete."""
    return f".heddle-{secrets.token_hex(8)}"


def is_temporary(path: str) -> bool:
    """Return whether a file is one that is being written in the place of another, or was left by a host that died."""
    return _TEMPORARY.fullmatch(path[path.rfind("/") + 1 :]) is not None


def size_of(info: os.stat_result) -> int:
    """Return how many bytes of contents a file has, holes left out."""
    return min(info.st_size, info.st_blocks * BLOCK)


def copy_contents(reader: int, writer: int, room: Room, pause: Callable[[], object], *, hashes: bool) -> str | None:
    """Copy one open file into another, empty one, holes as holes; return the SHA-256 of the contents if it `hashes`.

    Args:
        reader: Open for reading, at its beginning.
        writer: Open for writing.
        room: How much may be copied.
        pause: Called after each chunk; it may raise, to stop.
        hashes: Read the holes as well, for their part of the hash.

    Raises:
        OSError: It cannot be read or written, or there is more than `room`.
    """
    info = os.fstat(reader)
    digest = hashlib.sha256() if hashes and info.st_size <= MOST_HASHED else None
    has_holes = size_of(info) < info.st_size
    at = 0
    for start, end in _data_of(reader) if has_holes else [(0, sys.maxsize)]:
        _add_zeros(digest, start - at, pause)
        os.lseek(reader, start, os.SEEK_SET)
        os.lseek(writer, start, os.SEEK_SET)
        at = start
        while chunk := os.read(reader, min(CHUNK, end - at)):
            room.take_bytes(len(chunk))
            write_all(writer, chunk)
            if digest is not None:
                digest.update(chunk)
            at += len(chunk)
            pause()
    if has_holes and at < info.st_size:
        _add_zeros(digest, info.st_size - at, pause)
        os.ftruncate(writer, info.st_size)
    return None if digest is None else digest.hexdigest()


def _data_of(reader: int) -> Iterator[tuple[int, int]]:
    """Return where a file's data lies between its holes, each as beginning and end."""
    end = 0
    while True:
        try:
            start = os.lseek(reader, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            if end:
                raise
            yield 0, sys.maxsize  # this file system does not say
            return
        end = os.lseek(reader, start, os.SEEK_HOLE)
        yield start, end


def _add_zeros(digest: _Digest | None, count: int, pause: Callable[[], object]) -> None:
    while digest is not None and count > 0:
        digest.update(_ZEROS[:count])
        count -= CHUNK
        pause()


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; the system may take it in parts."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
