"""Trees of files, walked step by step. No link is followed, no path gets long, and one descriptor is open.

Whatever is written in a tree while it is walked, or was written there to mislead, the walk stays inside: a folder is
entered by its name alone, and left through ``..`` only to the very folder that it was entered from.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

__all__ = [
    "FOLDER",
    "Cursor",
    "Entered",
    "Event",
    "File",
    "Left",
    "NoFile",
    "Unreadable",
    "change_mode",
    "go_on",
    "kind_of",
    "open_file",
    "open_folder",
    "readable",
    "shown",
    "walk",
]

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: what was a file when it was looked at may be a pipe when it is opened.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A million names of one folder take about 100 MB; nobody who mounts or keeps more than that does so on purpose.
MOST_NAMES = 1_000_000
# Paths are made of all names above, so that a walk down a chain of folders takes time with the square of its length.
MOST_LEVELS = 10_000
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def kind_of(mode: int) -> str:
    """Return what a file's mode says that it is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "no file")


def shown(path: str) -> str:
    r"""Return a path as text: bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def readable(path: str) -> str:
    """Return a path for a line of a log or a terminal: whatever does not print is escaped as well."""
    text = shown(path)
    return text if text.isprintable() else repr(text)[1:-1]


@attrs.define(eq=False)
class Cursor:
    """A place in a tree.

    Attributes:
        fd: The folder. The cursor's own: it is closed when the cursor moves on.
        owner: User and group that a folder is given to which it makes; None leaves it ours.
        mode: Of a folder that it makes; None leaves it to the system.
    """

    fd: int
    owner: tuple[int, int] | None = None
    mode: int | None = None
    _above: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]], init=False)

    @classmethod
    def at(cls, folder: int, owner: tuple[int, int] | None = None, mode: int | None = None) -> Self:
        """Return a cursor at a folder that somebody else keeps open."""
        return cls(os.open(".", FOLDER, dir_fd=folder), owner, mode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def enter(self, name: str, *, make: bool = False, open_up: bool = False) -> None:
        """Go into a folder of this one.

        Args:
            name: Of the folder.
            make: Make it, if it is not there yet.
            open_up: Give ourselves the right to read it.

        Raises:
            OSError: It is none, or cannot be entered. The cursor stays where it is.
        """
        if make:
            try:
                os.mkdir(name, dir_fd=self.fd)
            except FileExistsError:
                pass
            else:
                if self.owner is not None:
                    os.chown(name, *self.owner, dir_fd=self.fd, follow_symlinks=False)
                if self.mode is not None:
                    os.chmod(name, self.mode, dir_fd=self.fd)
        inner = open_folder(name, self.fd) if open_up else os.open(name, FOLDER, dir_fd=self.fd)
        try:
            os.stat(".", dir_fd=inner)  # one that can be listed and not entered could not be left either
        except BaseException:
            os.close(inner)
            raise
        self._above.append(_identity(self.fd))
        os.close(self.fd)
        self.fd = inner

    def leave(self) -> None:
        """Go back to the folder from which this one was entered.

        Raises:
            OSError: It was moved elsewhere meanwhile.
        """
        outer = os.open("..", FOLDER, dir_fd=self.fd)
        if _identity(outer) != self._above.pop():
            os.close(outer)
            raise OSError("a folder was moved while it was looked through")
        os.close(self.fd)
        self.fd = outer

    def enter_all(self, names: Sequence[str], *, make: bool = False) -> None:
        """Go into one folder after the other."""
        for name in names:
            self.enter(name, make=make)


def _identity(folder: int) -> tuple[int, int]:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


# What a walk meets. Paths are relative to where it began, with slashes.


@attrs.frozen
class Entered:
    """The walk went into a folder."""

    path: str
    name: str


@attrs.frozen
class Left:
    """The walk came back from the folder that it entered last."""


@attrs.frozen
class File:
    """A file, of which `info` was true a moment ago."""

    path: str
    name: str
    info: os.stat_result


@attrs.frozen
class NoFile:
    """A link, a pipe, a socket or a device: it was not opened."""

    path: str
    kind: str


@attrs.frozen
class Unreadable:
    """A folder that could not be entered, or something that could not be looked at."""

    path: str
    error: OSError


Event: TypeAlias = Entered | Left | File | NoFile | Unreadable


def go_on() -> None:
    """Do not stop."""


def nothing(_path: str) -> bool:
    """Leave nothing out."""
    return False


def walk(cursor: Cursor, *, open_up: bool = False, leaves_out: Callable[[str], bool] = nothing) -> Iterator[Event]:
    """Walk the folder at `cursor`: by name, a folder's files before its folders. The cursor goes along.

    What goes away meanwhile is not met.

    Args:
        cursor: Where it begins, and where it ends.
        open_up: Give ourselves the right to read folders, where somebody took it away.
        leaves_out: Whether a path does not count.

    Raises:
        OSError: A folder was moved while it was looked through.
    """
    path = ""
    events, folders = _listed(cursor.fd, path, leaves_out)
    yield from events
    waiting = [iter(folders)]
    while waiting:
        name = next(waiting[-1], None)
        if name is None:
            waiting.pop()
            if waiting:
                cursor.leave()
                path = path[: path.rfind("/", 0, -1) + 1]
                yield Left()
            continue
        if len(waiting) > MOST_LEVELS:
            yield Unreadable(path + name, OSError(errno.ELOOP, f"more than {MOST_LEVELS:,} folders lie in each other"))
            continue
        try:
            cursor.enter(name, open_up=open_up)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Unreadable(path + name, error)
            continue
        yield Entered(path + name, name)
        path += name + "/"
        events, folders = _listed(cursor.fd, path, leaves_out)
        yield from events
        waiting.append(iter(folders))


def _listed(folder: int, path: str, leaves_out: Callable[[str], bool]) -> tuple[Iterator[Event], list[str]]:
    """Return what is in a folder: its files and the like, and the names of its folders."""
    entries: list[str] = []
    folders: list[str] = []
    with os.scandir(folder) as found:
        for entry in itertools.islice(found, MOST_NAMES):
            if not leaves_out(path + entry.name):
                (folders if entry.is_dir(follow_symlinks=False) else entries).append(entry.name)
        is_cut = next(found, None) is not None
    entries.sort()
    folders.sort()
    return _looked_at(folder, path, entries, is_cut=is_cut), folders


def _looked_at(folder: int, path: str, names: list[str], *, is_cut: bool) -> Iterator[Event]:
    if is_cut:
        yield Unreadable(path or ".", OSError(errno.E2BIG, f"the rest of more than {MOST_NAMES:,} names"))
    for name in names:
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Unreadable(path + name, error)
            continue
        yield (
            File(path + name, name, info) if stat.S_ISREG(info.st_mode) else NoFile(path + name, kind_of(info.st_mode))
        )


def open_file(name: str, folder: int, *, open_up: bool = False) -> int:
    """Open a file for reading, and nothing that is no file.

    Args:
        name: Of the file.
        folder: Where it is.
        open_up: Read it even where its own mode does not let its owner.

    Raises:
        OSError: It is something else by now, or cannot be read.
    """
    try:
        fd = os.open(name, FILE, dir_fd=folder)
    except PermissionError:
        if not open_up:
            raise
        fd = _opened_up(name, folder)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(f"it is {kind_of(info.st_mode)}")
    return fd


def _opened_up(name: str, folder: int) -> int:
    """Open a file of ours that has no mode to read it, and leave that as it was."""
    mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    change_mode(name, folder, mode | stat.S_IRUSR)
    try:
        return os.open(name, FILE, dir_fd=folder)
    finally:
        change_mode(name, folder, mode)


def open_folder(name: str, parent: int | None) -> int:
    """Open a folder that is no link, and make it ours to read and write whatever its mode was."""
    try:
        folder = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        change_mode(name, parent, stat.S_IRWXU)
        folder = os.open(name, FOLDER, dir_fd=parent)
    if stat.S_IMODE(os.fstat(folder).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(folder, stat.S_IRWXU)
    return folder


def change_mode(name: str, parent: int | None, mode: int) -> None:
    """Change the mode of what has this name now, never of what a link points to."""
    if sys.platform != "linux":
        os.chmod(name, mode, dir_fd=parent, follow_symlinks=False)
        return
    # A descriptor that only names it: the mode changes on the very thing that was looked at.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)
