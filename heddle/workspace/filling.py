"""Put the contents of mounts into a workspace, and keep what is needed to bring changes back."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

import attrs

from heddle.workspace.changes import Entry
from heddle.workspace.copying import Copying, Room, make_file
from heddle.workspace.sources import Source
from heddle.workspace.trees import FOLDER, Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


__all__ = ["Origin", "fill", "make_place", "replace_link", "snapshot"]


@attrs.frozen(eq=False)
class Origin:
    """Where a mount came from, opened before any tool could do anything to the way there.

    Attributes:
        source: The mount.
        folder: The folder itself, or the one that holds the file. Open until `close`.
        name: Of the file; None for a folder.
        entries: What was copied in, by path below `source`'s place in the workspace; one file is the path ``""``.
        folders: How many folders were copied in.
    """

    source: Source
    folder: int
    name: str | None
    entries: Mapping[str, Entry]
    folders: int

    def is_in_place(self) -> bool:
        """Return whether that is still what its path leads to."""
        path = self.source.path
        assert path is not None  # noqa: S101 - contents from memory are not copied back
        try:
            there = os.stat(path if self.name is None else path.parent)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.folder))

    def close(self) -> None:
        """Let the folder go."""
        os.close(self.folder)


def fill(
    sources: Iterable[Source],
    root: int,
    pause: Callable[[], object],
    origins: list[Origin],
    owner: tuple[int, int] | None = None,
) -> dict[str, Entry]:
    """Copy mounts into a workspace in which nobody works yet; return its files by path.

    Args:
        sources: Mounts that go together.
        root: The workspace, open.
        pause: Called now and then; it may raise, to stop.
        origins: What is copied back later is added here, open.
        owner: User and group that all of it is given to; None leaves it ours.

    Raises:
        OSError: A mount cannot be copied: it has changed since it was looked at, or there is no room. It is named.
    """
    files: dict[str, Entry] = {}
    for source in sources:
        try:
            with source.lock if source.mount.mode == "rw" else nullcontext():
                files |= _fill(source, root, pause, origins, owner)
        except OSError as error:
            raise _named(source, error) from error
    return files


def _fill(
    source: Source,
    root: int,
    pause: Callable[[], object],
    origins: list[Origin],
    owner: tuple[int, int] | None,
) -> dict[str, Entry]:
    mount = source.mount
    copying = Copying(Room(mount.max_bytes, mount.max_entries), pause, source.known, owner)
    *above, last = mount.place.split("/")
    with Cursor.at(root, owner) as target:
        if source.path is None:
            target.enter_all([*above, last] if last else [], make=True)
            _write_files(mount.files or {}, target, copying)
        else:
            target.enter_all(above, make=True)
            folder, name = _opened(source.path, is_folder=source.is_folder)
            try:
                _copy(folder, name, target, last, copying)
                if mount.mode == "rw":
                    origins.append(Origin(source, os.dup(folder), name, copying.entries, copying.folders))
            finally:
                os.close(folder)
    return {_joined(mount.place, path): entry for path, entry in copying.entries.items()}


def snapshot(source: Source, folder: Path, pause: Callable[[], object], owner: tuple[int, int] | None = None) -> Source:
    """Return a source with the same contents, which nobody changes any more: a copy, in `folder`, of what it is now.

    Args:
        source: What is copied.
        folder: Where the copy is made; a file becomes a file of that name.
        pause: Called now and then; it may raise, to stop.
        owner: Whose group may read it, and nobody but us may change it; None leaves it ours.

    Raises:
        OSError: It cannot be copied; it is named.
    """
    mode = None
    if owner is not None:  # who owns a file may change its mode, wherever it lies
        owner, mode = (os.geteuid(), owner[1]), 0o750
    room = Room(source.mount.max_bytes, source.mount.max_entries)
    copying = Copying(room, pause, owner=owner, only_read=owner is not None)
    if source.path is None:
        with Cursor(os.open(folder.parent, FOLDER), owner, mode) as target:
            target.enter(folder.name, make=True)
            _write_files(source.mount.files or {}, target, copying)
        return attrs.evolve(source, copy=folder)
    try:
        original, name = _opened(source.path, is_folder=source.is_folder)
        try:
            with Cursor(os.open(folder.parent, FOLDER), owner, mode) as target:
                _copy(original, name, target, folder.name, copying)
        finally:
            os.close(original)
    except OSError as error:
        raise _named(source, error) from error
    return attrs.evolve(source, path=folder, known=copying.entries, copy=folder)


def make_place(root: int, place: str, copy: Path, *, link: bool, owner: tuple[int, int] | None) -> None:
    """Make what a sandbox puts something else over, of the same kind as `copy`; or a link to it.

    Args:
        root: The workspace, open.
        place: In it.
        copy: What belongs there.
        link: Make a link.
        owner: User and group that it is given to.
    """
    *above, last = place.split("/")
    with Cursor.at(root, owner) as target:
        target.enter_all(above, make=True)
        if link:
            os.symlink(copy, last, dir_fd=target.fd)
        elif copy.is_dir():
            target.enter(last, make=True)
        else:
            os.close(make_file(last, target.fd, 0o666))


def replace_link(root: int, place: str, copy: Path | None = None) -> bool:
    """Put a copy of what a link leads to in its place, or nothing; return False where a tool has put something else.

    Raises:
        OSError: It cannot be done.
    """
    *above, last = place.split("/")
    with Cursor.at(root) as target:
        target.enter_all(above)
        if not stat.S_ISLNK(os.stat(last, dir_fd=target.fd, follow_symlinks=False).st_mode):
            return False
        os.unlink(last, dir_fd=target.fd)
        if copy is not None:
            folder, name = _opened(copy, is_folder=copy.is_dir())
            try:
                _copy(folder, name, target, last, Copying(Room(sys.maxsize, sys.maxsize)))
            finally:
                os.close(folder)
    return True


def _copy(folder: int, name: str | None, target: Cursor, new_name: str, copying: Copying) -> None:
    """Copy a file of `folder`, or all that is in it, to `new_name` in another folder."""
    if name is not None:
        copying.room.take_entry()
        copying.file("", name, folder, new_name, target.fd)
        return
    target.enter(new_name, make=True)
    with Cursor.at(folder) as inside:
        copying.folder(inside, target)


def _opened(path: Path, *, is_folder: bool) -> tuple[int, str | None]:
    """Open what is copied: the folder, or the folder that holds the file and the file's name in it."""
    return (os.open(path, FOLDER), None) if is_folder else (os.open(path.parent, FOLDER), path.name)


def _write_files(files: Mapping[str, bytes], target: Cursor, copying: Copying) -> None:
    for path, data in files.items():
        copying.pause()
        *folders, name = path.split("/")
        with Cursor.at(target.fd, target.owner, target.mode) as place:
            place.enter_all(folders, make=True)
            copying.contents(path, data, name, place.fd)


def _named(source: Source, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"{source.name}: it was in order when it was looked at, and cannot be copied now: {error.strerror or error}",
    )


def _joined(place: str, path: str) -> str:
    return f"{place}/{path}" if place and path else place or path
