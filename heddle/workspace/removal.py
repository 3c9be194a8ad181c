"""Remove a directory that untrusted programs have written in. Never follows a link, never leaves what it may remove.

However deep the tree is, two descriptors are open and no path is long: a folder inside a folder is moved up to the
root before its own contents are looked at.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
from typing import TYPE_CHECKING

from heddle.workspace.trees import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["remove_tree"]


def remove_tree(root: Path, folder: int | None = None) -> tuple[str, ...]:
    """Remove `root` and all that is in it; return what could not be removed and why, nothing when it is gone.

    Folders without permissions are opened up first. What is mounted or immutable stays and is named; what is in a
    mount is not touched.

    Args:
        root: Where it is.
        folder: The folder itself, open: whatever has its name now, this is what is emptied.
    """
    faults: list[str] = []
    try:
        if folder is not None:
            os.fchmod(folder, stat.S_IRWXU)  # without the right to enter it, it cannot be opened again
        top = open_folder(str(root), None) if folder is None else open_folder(".", folder)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (str(error),)
    try:
        if not _is_mounted(str(root), None):
            _empty(top, faults)
        if _is_the_same(root, top):
            root.rmdir()
        elif os.fstat(top).st_nlink:
            faults.append(f"{root} was moved; it was emptied where it is")
    except FileNotFoundError:
        pass
    except OSError as error:
        faults.append(str(error))
    finally:
        os.close(top)
    return tuple(faults)


def _is_the_same(root: Path, top: int) -> bool:
    try:
        return os.path.samestat(root.lstat(), os.fstat(top))
    except FileNotFoundError:
        return False


def _is_mounted(name: str, folder: int | None) -> bool:
    """Remove a folder that is empty, and return whether something is mounted there: that is said before all else."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _empty(top: int, faults: list[str]) -> None:
    """Remove everything in the folder `top`."""
    # A name that what is being removed cannot have foreseen.
    prefix = f".removing-{secrets.token_hex(8)}-"
    fresh = (f"{prefix}{number}" for number in itertools.count())
    stuck: set[str] = set()
    while waiting := [entry for entry in _entries(top) if entry[0] not in stuck]:
        for name, is_folder in waiting:
            if is_folder and not _is_mounted(name, top):
                _trying(faults, name, _empty_shallow, name, top, fresh, faults)
            if not _trying(faults, name, os.rmdir if is_folder else os.unlink, name, dir_fd=top):
                stuck.add(name)


def _empty_shallow(name: str, top: int, fresh: Iterator[str], faults: list[str]) -> None:
    """Empty one folder: unlink its files, move its folders up beside it."""
    folder = open_folder(name, top)
    try:
        for inner, is_folder in _entries(folder):
            if is_folder:
                _trying(faults, inner, _move_up, inner, folder, next(fresh), top)
            else:
                _trying(faults, inner, os.unlink, inner, dir_fd=folder)
    finally:
        os.close(folder)


def _move_up(name: str, folder: int, new_name: str, top: int) -> None:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise  # something is mounted there
        # Moving a folder to another parent takes the right to write in it.
        os.close(open_folder(name, folder))
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=top)


def _trying(faults: list[str], name: str, step: Callable[..., object], *args: object, **kwargs: object) -> bool:
    """Take one step of a removal; return whether it was done, and note why not."""
    try:
        step(*args, **kwargs)
    except FileNotFoundError:
        return True
    except OSError as error:
        faults.append(f"{os.fsencode(name)!r}: {error.strerror}")
        return False
    return True


def _entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
