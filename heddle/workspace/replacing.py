"""Put one file in the place of another: as a whole or not at all, and without taking anything from its owner."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from heddle.workspace.changes import CHUNK, mark_of
from heddle.workspace.copying import EXECUTABLE, Room, copy_contents, make_file, temporary_name, write_all
from heddle.workspace.trees import go_on, open_file

__all__ = ["replace"]

# 07777 without set-user-id, set-group-id and sticky.
PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
READABLE = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


def replace(fd: int, name: str, folder: int, there: os.stat_result | None, room: Room) -> bool:
    """Write a copy of an open file under `name`; return whether somebody else has written there meanwhile.

    It is complete before it takes the place of what is there, which stays as it was if anything fails; other names of
    that keep the old contents. Only a file whose owner would lose it is written in place, when all is on the disk.

    Args:
        fd: The file, at its beginning.
        name: Where it goes, in `folder`.
        folder: An open folder.
        there: What is there, None for nothing.
        room: How much may be written.

    Raises:
        OSError: It cannot be written.
    """
    temporary = temporary_name()
    writer = make_file(temporary, folder, stat.S_IRUSR | stat.S_IWUSR)
    try:
        # Before the first byte: nobody gets to read it who could not read what it replaces.
        takes_place = _made_like(writer, os.fstat(fd), name, folder, there)
        copy_contents(fd, writer, room, go_on, hashes=False)
        os.fsync(writer)
        was_changed = _mark_at(name, folder) != (None if there is None else mark_of(there))
        if there is None or takes_place:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            _write_in_place(writer, name, folder, there)
            os.unlink(temporary, dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(writer)
    return was_changed


def _made_like(writer: int, info: os.stat_result, name: str, folder: int, there: os.stat_result | None) -> bool:
    """Give a new file the owner and the rights that it needs; return whether it can take the place of the old one."""
    executable = bool(info.st_mode & EXECUTABLE)
    if there is None:
        # Others get no more than the tool and the host give them; the owner can always read it.
        mode = (0o777 if executable else 0o666) & ~_umask() & info.st_mode
        os.fchmod(writer, mode | stat.S_IRUSR | stat.S_IWUSR)
        return True
    ours = os.fstat(writer)
    with contextlib.suppress(PermissionError):
        if ours.st_gid != there.st_gid:
            os.fchown(writer, -1, there.st_gid)
        if ours.st_uid != there.st_uid:
            os.fchown(writer, there.st_uid, -1)
    ours = os.fstat(writer)
    mode = there.st_mode & PERMISSIONS
    if executable and not mode & EXECUTABLE:
        mode |= (mode & READABLE) >> 2
    elif not executable:
        mode &= ~EXECUTABLE
    os.fchmod(writer, mode)
    _copy_attributes(name, folder, writer)
    return (ours.st_uid, ours.st_gid) == (there.st_uid, there.st_gid)


def _copy_attributes(name: str, folder: int, writer: int) -> None:
    """Copy the extended attributes of a file, which hold its access control list as well, as far as we may."""
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):
        reader = open_file(name, folder)
        try:
            for attribute in os.listxattr(reader):
                with contextlib.suppress(OSError):
                    os.setxattr(writer, attribute, os.getxattr(reader, attribute))
        finally:
            os.close(reader)


def _mark_at(name: str, folder: int) -> object:
    try:
        return mark_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def _write_in_place(reader: int, name: str, folder: int, there: os.stat_result) -> None:
    """Write a complete copy into the file that is there, which keeps its owner."""
    target = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not os.path.samestat(os.fstat(target), there):
            raise OSError("somebody has exchanged the file in its place")
        size = os.fstat(reader).st_size
        if size > there.st_size:
            os.posix_fallocate(target, 0, size)  # a disk that is full says so before anything is lost
        os.lseek(reader, 0, os.SEEK_SET)
        while chunk := os.read(reader, CHUNK):
            write_all(target, chunk)
        os.ftruncate(target, size)
        os.fsync(target)
    finally:
        os.close(target)


def _umask() -> int:
    """Return the host's umask; asking the system for it would set it, for all threads at once."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text(encoding="ascii").partition("Umask:")[2].split()[0], 8)
    umask = os.umask(stat.S_IRWXG | stat.S_IRWXO)
    os.umask(umask)
    return umask
