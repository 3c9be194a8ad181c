"""The private folder of one run, for everything that is there only while the run is. Locked as long as that lasts.

A run that was killed cannot remove its folder. The next one finds it: its lock is free, and nothing works in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import re
import tempfile
import weakref
from pathlib import Path

from heddle import strictjson
from heddle.workspace.removal import remove_tree
from heddle.workspace.trees import FOLDER, open_file

__all__ = ["RunFolder", "remove_stale", "remove_stale_once"]

logger: logging.Logger = logging.getLogger("heddle")

PREFIX = "heddle-run-"
_NAME = re.compile(r"heddle-run-[a-z0-9_]{8}")
# Says whose it is, for people, and that it is one of ours: a name alone could be anybody's.
OWNER = "owner.json"
OWNER_BYTES = 4096
VERSION = 1


class RunFolder:
    """A folder that only this user can enter, made when it is first needed.

    It goes when it is closed and empty. What is left in it on purpose keeps it there, locked while the process lives.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1
        self._is_over = False
        self._numbers = itertools.count(2)
        _folders.add(self)

    @property
    def path(self) -> Path:
        """The folder, absolute and free of links."""
        if self._path is None:
            self._path, self._lock = _made()
        return self._path

    def new(self, name: str) -> Path:
        """Make a folder in it, called `name` or `name` and a number."""
        place = self.path / name
        while True:
            try:
                place.mkdir(0o700)
            except FileExistsError:
                place = self.path / f"{name}-{next(self._numbers)}"
            else:
                return place

    def close(self) -> None:
        """Remove it; while there is something in it, that is done by the last `tidy`."""
        self._is_over = True
        self.tidy()

    def tidy(self) -> None:
        """Remove it, if it is closed and nothing is in it any more."""
        if self._path is None or not self._is_over:
            return
        try:
            if os.listdir(self._path) != [OWNER]:
                return
            (self._path / OWNER).unlink()
            self._path.rmdir()
        except OSError as error:
            logger.warning("the folder of a run could not be removed: %s: %s", self._path, error.strerror)
        self._path = None
        self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


_folders: weakref.WeakSet[RunFolder] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: close the copies, or a run that ended would look as if it went on."""
    for folder in _folders:
        folder._let_go()  # noqa: SLF001 - one module


os.register_at_fork(after_in_child=_forget_all)


def _made() -> tuple[Path, int]:
    """Make a folder and lock it; while it has none, a run that looks whether it is stale may hold it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        try:
            lock = os.open(path, FOLDER)
        except FileNotFoundError:
            continue
        try:
            if _is_locked(lock) and os.fstat(lock).st_nlink:
                owner = {"heddle_run": VERSION, "pid": os.getpid()}
                (path / OWNER).write_text(json.dumps(owner) + "\n", encoding="utf-8")
                return path, lock
        except BaseException:
            os.close(lock)
            remove_tree(path)
            raise
        os.close(lock)
        with contextlib.suppress(OSError):
            path.rmdir()


def _is_locked(folder: int) -> bool:
    """Lock a folder, if nobody else has; return whether it is ours now."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


_looked: set[str] = set()


def remove_stale_once() -> None:
    """Do `remove_stale`, if this process has not done it there yet."""
    place = tempfile.gettempdir()
    if place not in _looked:
        _looked.add(place)
        remove_stale()


def remove_stale() -> tuple[Path, ...]:
    """Remove what runs of this user have left that were killed; return which folders that were.

    One is left alone while its run is alive, or while anything works in it.
    """
    removed: list[Path] = []
    place = Path(tempfile.gettempdir()).resolve()
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    for name in names:
        try:
            folder = os.open(place / name, FOLDER)
        except OSError:
            continue  # somebody else's, or gone
        try:
            if _is_stale(folder) and not _is_in_use(place / name):
                faults = remove_tree(place / name)
                for fault in faults:
                    logger.warning("what a killed run has left cannot be removed: %s: %s", place / name, fault)
                removed += [] if faults else [place / name]
        finally:
            os.close(folder)
    return tuple(removed)


def _is_stale(folder: int) -> bool:
    """Return whether it is the folder of a run of ours that has ended; its lock is held then."""
    if os.fstat(folder).st_uid != os.geteuid() or not _is_locked(folder):
        return False
    try:
        fd = open_file(OWNER, folder)
    except OSError:
        return False
    try:
        owner = strictjson.loads(os.read(fd, OWNER_BYTES))
    except ValueError:
        return False
    finally:
        os.close(fd)
    return isinstance(owner, dict) and owner.get("heddle_run") == VERSION


def _is_in_use(path: Path) -> bool:
    """Return whether a process of ours works in it: one that could not be ended, or is just being ended."""
    inside = f"{path}/"
    mark = os.fsencode(f"HEDDLE_WORKSPACE={inside}")
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{name}/cwd").startswith(inside):
                return True
            with open(f"/proc/{name}/environ", "rb") as environment:
                if any(pair.startswith(mark) for pair in environment.read().split(b"\0")):
                    return True
        except OSError:
            continue  # somebody else's, or gone
    return False
