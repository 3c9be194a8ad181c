"""Paths, opened without following a link: a tool may have put one where a path leads through what it may write."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Handles", "open_path"]

# The same number on every architecture. Source: openat2(2).
OPENAT2 = 437
RESOLVE_NO_SYMLINKS = 4
AT_FDCWD = -100
HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_path(path: Path) -> int:
    """Return a handle on what is at `path`, an absolute path that is free of links.

    Raises:
        OSError: It cannot be opened; ELOOP where a link has come into the way.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    how = struct.pack("=QQQ", HANDLE, 0, RESOLVE_NO_SYMLINKS)
    fd = int(libc.syscall(OPENAT2, AT_FDCWD, os.fsencode(path), how, ctypes.c_size_t(len(how))))
    if fd >= 0:
        return _no_link(path, fd)
    number = ctypes.get_errno()
    if number == errno.ENOSYS:  # before Linux 5.6, or a kernel that is none: each step by itself
        return _step_by_step(path)
    said = "a link has come into the way" if number == errno.ELOOP else os.strerror(number)
    raise OSError(number, f"{path}: {said}")


def _no_link(path: Path, fd: int) -> int:
    """Return a handle, unless it is one on a link: the last part of a path is not followed, and is opened as it is."""
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, f"{path}: a link has come into the way")
    return fd


def _step_by_step(path: Path) -> int:
    place = os.open("/", HANDLE)
    for name in path.parts[1:]:
        try:
            inner = _no_link(path, os.open(name, HANDLE, dir_fd=place))
        finally:
            os.close(place)
        place = inner
    return place


@attrs.define(eq=False)
class Handles:
    """What a policy grants, opened once: whatever becomes of the paths, it is this that is granted."""

    _open: dict[Path, int] = attrs.field(factory=dict[Path, int])

    @classmethod
    def on(cls, paths: Iterable[Path]) -> Handles:
        """Open paths, each an absolute one that is free of links.

        Raises:
            OSError: One cannot be opened. Nothing is left open.
        """
        handles = cls()
        try:
            for path in paths:
                if path not in handles._open:
                    handles._open[path] = open_path(path)
        except BaseException:
            handles.close()
            raise
        return handles

    @property
    def by_path(self) -> Mapping[Path, int]:
        """Each handle, by its path."""
        return MappingProxyType(self._open)

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            os.close(self._open.popitem()[1])
