"""The private folder of one run, for everything that is there only while the run is. Locked as long as that lasts.

A run that was killed cannot remove its folder. The next one finds it: its lock is free, its process is gone, and
nothing works in it. Where any of that cannot be known the folder is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.errors import RunnerClosed, WrongProcess
from heddle.logs import logger
from heddle.workspace.removal import remove_tree
from heddle.workspace.trees import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from heddle.strictjson import JSON

__all__ = ["RunFolder", "remove_stale", "remove_stale_once"]

PREFIX = "heddle-run-"
_NAME = re.compile(r"heddle-run-[a-z0-9_]{8}")
# Says whose the folder is, and holds its lock: a name alone could be anybody's.
OWNER = "owner.json"
OWNER_BYTES = 4096
VERSION = 1
# One hour: a run that was killed between making its folder and saying whose it is has left nothing in it.
UNSAID_SECONDS = 3600.0


class RunFolder:
    """A folder that only this user can enter, made when it is first needed. Any thread may use it.

    It goes when it is closed and all that was made in it has been given back.
    """

    def __init__(self) -> None:
        self._admits = False
        self._path: Path | None = None
        self._lock = -1
        self._folder = -1
        self._pid = os.getpid()
        self._is_over = False
        self._taken: set[Path] = set()
        self._made = 0
        self._mutex = threading.RLock()
        _folders.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that made it; a forked child has only a copy of what is known."""
        return self._pid == os.getpid()

    @property
    def path(self) -> Path:
        """Where it is. Made when first asked for.

        Raises:
            RunnerClosed: It is closed.
            WrongProcess: This is a child of the process that has it.
            OSError: It cannot be made.
        """
        return self._now()

    def new(self, name: str) -> Path:
        """Make a folder in it, called `name` or `name` and a number.

        Raises:
            RunnerClosed: It is closed.
            WrongProcess: This is a child of the process that has it.
            OSError: It cannot be made.
        """
        with self._mutex:
            folder = self._now()
            place = folder / name
            while True:
                try:
                    place.mkdir(0o700)
                except FileExistsError:
                    self._made += 1
                    place = folder / f"{name}-{self._made + 1}"
                else:
                    self._taken.add(place)
                    return place

    def _now(self) -> Path:
        if not self.is_ours:
            raise WrongProcess(self._pid, os.getpid())
        with self._mutex:
            if self._is_over:
                raise RunnerClosed("the run is over, and so are its workspaces")
            if self._path is None:
                self._path, self._lock, self._folder = _new_folder()
                self._open_up()
            return self._path

    def admit(self, owner: tuple[int, int] | None) -> None:
        """Let another user pass, who works in some of its folders. Nobody else can list it."""
        self._admits = owner is not None
        self._open_up()

    def _open_up(self) -> None:
        if self._admits and self._folder >= 0:
            os.fchmod(self._folder, 0o711)

    def give_back(self, place: Path) -> None:
        """Say that a folder of it is not needed any more."""
        with self._mutex:
            self._taken.discard(place)
            self._tidy()

    def close(self) -> None:
        """Remove it, as soon as everything was given back."""
        with self._mutex:
            self._is_over = True
            self._tidy()

    def _tidy(self) -> None:
        path = self._path
        if path is None or self._taken or not self._is_over or not self.is_ours:
            return
        for fault in remove_tree(path, self._folder):
            logger.warning("the folder of a run cannot be removed: %s: %s", path, fault)
        self._path = None
        self._let_go()

    def _let_go(self) -> None:
        for fd in {self._lock, self._folder} - {-1}:
            os.close(fd)
        self._lock = self._folder = -1


_folders: weakref.WeakSet[RunFolder] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child: close the copies, or a run that has ended would look as if it went on."""
    for folder in _folders:
        folder._let_go()  # noqa: SLF001 - one module


os.register_at_fork(after_in_child=_forget_all)


def _new_folder() -> tuple[Path, int, int]:
    """Make a folder, and return it with the lock that says that its run is alive, and open."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    with contextlib.ExitStack() as stack:
        stack.callback(remove_tree, path)
        folder = os.open(path, FOLDER)
        stack.callback(os.close, folder)
        # Before it says whose it is nobody takes it for a stale one; and after that it is locked.
        lock = os.open(OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        stack.callback(os.close, lock)
        os.write(lock, json.dumps(_owner(locked=_lock(lock, wait=True)) | {"made": time.time()}).encode() + b"\n")
        stack.pop_all()
    return path, lock, folder


def _owner(*, locked: bool) -> dict[str, JSON]:
    """Return what tells this process from any other, on this machine and on others that share the folder."""
    pid = os.getpid()
    return {
        "heddle_run": VERSION,
        "host": _read("/etc/machine-id") or os.uname().nodename,
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "pid": pid,
        "started": _start_of(pid),
        "locked": locked,
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _start_of(pid: int) -> str:
    """Return when a process has started, in ticks since boot; empty where there is none, or none can say."""
    # Its name is in brackets, and may hold brackets and blanks of its own.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""  # noqa: PLR2004 - field 22 of stat(5), of which two are cut off


def _lock(fd: int, *, wait: bool = False) -> bool:
    """Lock an open file; return whether it is ours. Some network file systems have no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


_looked: set[str] = set()


def remove_stale_once(goes_on: Callable[[], bool]) -> None:
    """Do `remove_stale`, if this process has not done it there yet."""
    place = tempfile.gettempdir()
    if place not in _looked:
        _looked.add(place)
        remove_stale(goes_on)


def remove_stale(goes_on: Callable[[], bool] = lambda: True) -> tuple[Path, ...]:
    """Remove what runs of this user have left that were killed; return which folders that were.

    One is left alone while its run is alive, while anything works in it, and if it is another machine's.

    Args:
        goes_on: Asked before each.
    """
    removed: list[Path] = []
    place = Path(tempfile.gettempdir()).resolve()
    try:
        with os.scandir(place) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    except OSError:
        return ()  # a folder in which we may make things, and may not look
    for name in names:
        if not goes_on():
            break
        try:
            folder = os.open(place / name, FOLDER)
        except OSError:
            continue  # somebody else's, or gone
        try:
            if _is_removed(place / name, folder):
                removed.append(place / name)
        finally:
            os.close(folder)
    return tuple(removed)


def _is_removed(path: Path, folder: int) -> bool:
    """Remove a folder if it is stale; return whether it is gone."""
    info = os.fstat(folder)
    if info.st_uid != os.geteuid():
        return False
    try:
        lock = os.open(OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return _is_unsaid(path, info)
    try:
        # Locked first: what is said does not change any more then.
        if not _lock(lock) or not _has_ended(lock) or _is_in_use(path):
            return False
        faults = remove_tree(path, folder)
    finally:
        os.close(lock)
    for fault in faults:
        logger.warning("what a killed run has left cannot be removed: %s: %s", path, fault)
    return not faults


def _is_unsaid(path: Path, info: os.stat_result) -> bool:
    """Remove a folder that nobody has ever said anything about, if it is old and empty; return whether it is gone."""
    if time.time() - info.st_mtime < UNSAID_SECONDS:
        return False
    with contextlib.suppress(OSError):
        path.rmdir()
        return True
    return False


def _has_ended(lock: int) -> bool:
    """Return whether an owner's record is one of ours, and the process that wrote it has surely ended."""
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        return False
    try:
        owner = strictjson.loads(os.read(lock, OWNER_BYTES))
    except ValueError:
        return False
    known = _owner(locked=True)
    if not isinstance(owner, dict) or any(owner.get(key) != known[key] for key in ("heddle_run", "host", "locked")):
        return False
    if owner.get("boot") != known["boot"]:
        return True
    pid, started = owner.get("pid"), owner.get("started")
    if not isinstance(pid, int) or not isinstance(started, str):
        return False
    if not started:  # no process can say here: then its number decides
        return not _is_alive(pid)
    return _start_of(pid) != started


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _is_in_use(path: Path) -> bool:
    """Return whether another process works in it: one that could not be ended, or is just being ended."""
    inside = os.fsencode(f"{path}/")
    return any(
        word.startswith(inside)
        for name in (os.listdir("/proc") if os.path.isdir("/proc/self") else ())
        if name.isdigit() and int(name) != os.getpid()
        for word in _places_of(name)
    )


def _places_of(pid: str) -> Iterable[bytes]:
    """Return where a process works: its directory, what it has open, and what it was told about its workspace."""
    with contextlib.suppress(OSError):  # somebody else's, or gone
        yield os.readlink(f"/proc/{pid}/cwd".encode())
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        yield from (pair.partition(b"=")[2] for pair in environment if pair.startswith(b"HEDDLE_WORKSPACE"))
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{fd}".encode())
