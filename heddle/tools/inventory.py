"""The files that belong to a tool: read once, and compared before each start.

Their bytes are read again only where the system says of a file something else than when it was read last. Every
function here waits for the disk: call it in a thread where a loop must not be held.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = ["InventoriedFile", "Inventory"]

# Device, inode, size, and when a file was last written and changed: where two are equal, nobody has touched it.
_Stamp: TypeAlias = "tuple[int, int, int, int, int]"

# 2 s: the coarsest clock of a file system in use (FAT). A file that was changed less long ago may be changed once more
# without its times telling.
_SETTLED_NS = 2_000_000_000


@attrs.frozen
class InventoriedFile:
    """One file that belongs to a tool, as it was when it was read.

    Attributes:
        name: Its path from the tool's folder, with slashes.
        digest: Of its bytes: SHA-256, in hexadecimal digits.
        executable: Whether it is to be started.
    """

    name: str
    digest: str
    executable: bool = False


@attrs.frozen
class Inventory:
    """The files that belong to a tool. It knows when they are no longer what they were.

    Attributes:
        folder: Absolute; links to it are followed.
        files: In the order of their names. No link is followed to any of them.
    """

    folder: Path
    files: tuple[InventoriedFile, ...]
    # What is known of the files whose bytes need not be read again. Threads may share it: each entry is one value.
    _settled: dict[str, _Stamp] = attrs.field(factory=dict[str, "_Stamp"], init=False, eq=False, repr=False)

    @classmethod
    def take(cls, folder: Path, names: Mapping[str, bool]) -> tuple[Self, dict[str, str]]:
        """Read files, each named with whether it is to be started.

        Returns:
            Their inventory, and of each that cannot be in it the reason, as the end of a sentence.
        """
        files: list[InventoriedFile] = []
        faults: dict[str, str] = {}
        settled: dict[str, _Stamp] = {}
        for name, executable in sorted(names.items()):
            try:
                digest, stamp = _read(folder, name)
                if executable:
                    _refuse_unexecutable(folder, name)
            except (OSError, ValueError) as error:
                faults[name] = _in_words(error)
                continue
            files.append(InventoriedFile(name, digest, executable))
            if stamp is not None:
                settled[name] = stamp
        inventory = cls(folder, tuple(files))
        inventory._settled.update(settled)
        return inventory, faults

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, absolute."""
        return tuple(self.folder / file.name for file in self.files)

    def drift(self) -> dict[str, str]:
        """Return what has become of each file that is not what it was, as the end of a sentence: ``is gone``."""
        found: dict[str, str] = {}
        for file in self.files:
            try:
                if not self._is_the_same(file):
                    found[file.name] = "has other contents"
                elif file.executable:
                    _refuse_unexecutable(self.folder, file.name)
            except (OSError, ValueError) as error:
                found[file.name] = "is gone" if isinstance(error, FileNotFoundError) else _in_words(error)
        return found

    def _is_the_same(self, file: InventoriedFile) -> bool:
        known = self._settled.get(file.name)
        if known is not None and known == _stamp(_look_at(self.folder, file.name)):
            return True
        digest, stamp = _read(self.folder, file.name)
        if digest != file.digest:
            return False
        if stamp is not None:
            self._settled[file.name] = stamp
        return True


class _Unfit(OSError):
    """A file cannot be in an inventory; says why, as the end of a sentence."""


def _in_words(error: OSError | ValueError) -> str:
    from heddle.tools.documents import reason_of

    return str(error) if isinstance(error, _Unfit) else f"cannot be read: {reason_of(error)}"


def _look_at(folder: Path, name: str) -> os.stat_result:
    """Return what the system says of a file that no link leads to.

    Raises:
        OSError: There is none.
    """
    way = folder
    status = None
    for step in PurePosixPath(name).parts:
        way /= step
        status = way.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise _Unfit("is a link" if way == folder / name else f"is reached through a link, {way.name}")
    if status is None or not stat.S_ISREG(status.st_mode):
        raise _Unfit("is not a regular file")
    return status


def _read(folder: Path, name: str) -> tuple[str, _Stamp | None]:
    """Return the digest of a file's bytes, and the stamp that vouches for them; None where none does yet.

    Raises:
        OSError: It cannot be read.
    """
    import hashlib

    began_ns = time.time_ns()
    before = _stamp(_look_at(folder, name))
    # O_NONBLOCK: should it have become a fifo meanwhile, nobody is waited for.
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Unfit("is not a regular file")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        after = _stamp(os.fstat(descriptor))
    is_settled = before == after and before[-1] < began_ns - _SETTLED_NS
    return digest, after if is_settled else None


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _refuse_unexecutable(folder: Path, name: str) -> None:
    if not (folder / name).stat().st_mode & 0o111:
        raise _Unfit(f"has no execute bit: chmod +x {PurePosixPath(name).name}")
