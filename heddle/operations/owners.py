"""Which hosts of a journal are alive. Each holds a lock for as long as it lives; the kernel lets go of it.

A process id proves nothing: it is used again, and another container has its own. A lock is the same for all who see
the file, and a forked child of a host does not have it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

import attrs

__all__ = ["Owner", "is_alive", "remove"]

# Those of this process: its own locks do not keep it out, and a look at one of them would let go of it.
_own: dict[str, int] = {}


@attrs.define(eq=False)
class Owner:
    """This host's part in a journal: a name, and a lock on a file of that name.

    Attributes:
        name: Different for every journal that was ever opened.
        folder: Where the locks of all owners of the journal are.
        pid: The process that holds the lock.
    """

    name: str
    folder: Path
    pid: int
    _fd: int

    @classmethod
    def begin(cls, folder: Path) -> Owner:
        """Take a name and its lock.

        Raises:
            OSError: The folder or the file cannot be made, or the file system has no locks.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        name = secrets.token_hex(8)
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        _own[name] = os.getpid()
        return cls(name, folder, os.getpid(), fd)

    def end(self) -> None:
        """Let go of the lock. What it has left undone is anybody's to recover from now on."""
        if _own.pop(self.name, None) is not None and self.pid == os.getpid():
            os.close(self._fd)


def is_alive(folder: Path, name: str) -> bool:
    """Return whether the host that took `name` still holds its lock. One whose file is gone does not."""
    if _own.get(name) == os.getpid():
        return True
    try:
        fd = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, as systems like it
        return True
    else:
        return False
    finally:
        os.close(fd)


def remove(folder: Path, name: str) -> None:
    """Remove the file of an owner that is gone."""
    with contextlib.suppress(OSError):
        os.unlink(folder / name)
