"""Where the environment file is, and what it holds, where only its user can have written that."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from heddle.references.faults import MAX_FILE_BYTES, FaultCode

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE_VARIABLE", "Place", "home", "place_of", "read"]

# Names the file where the host's code does not; empty means that there is none.
FILE_VARIABLE = "HEDDLE_ENVIRONMENT_FILE"
ROOT = 0


@attrs.frozen
class Place:
    """Where an environment file is looked for.

    Attributes:
        shown: How messages call it.
        must_exist: Whether somebody has asked for exactly this one.
    """

    path: Path
    shown: str
    must_exist: bool = True


def place_of(file: Path | Literal[False] | None, environ: Mapping[str, str]) -> Place | None:
    """Return where the file is: the given one, else the one that a variable names, else the one in the user's home."""
    if file is False:
        return None
    if file is not None:
        return Place(file, _shown(file))
    named = environ.get(FILE_VARIABLE)
    if named is not None:
        return Place(Path(named), f"{_shown(Path(named))} ({FILE_VARIABLE})") if named else None
    folder = home(environ)
    if folder is None:
        return None
    return Place(folder / ".heddle" / "environment.env", "~/.heddle/environment.env", must_exist=False)


def home(environ: Mapping[str, str]) -> Path | None:
    """Return the user's home; None where there is none."""
    named = environ.get("HOME", "")
    if not named:
        try:
            named = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(named) if os.path.isabs(named) else None


def read(place: Place) -> tuple[bytes, FaultCode | None]:
    """Return what the file holds, and what is wrong with it as a file. One that need not exist may hold nothing."""
    if not place.path.is_absolute():
        return b"", FaultCode.RELATIVE_PATH
    try:
        # NONBLOCK: opening a FIFO would wait for a writer.
        descriptor = os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b"", FaultCode.FILE_MISSING if place.must_exist else None
    except OSError:
        return b"", FaultCode.UNREADABLE
    try:
        status = os.fstat(descriptor)  # of what was opened: a name may mean another file by now
        if not stat.S_ISREG(status.st_mode):
            return b"", FaultCode.UNREADABLE
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return b"", FaultCode.UNREADABLE
    finally:
        os.close(descriptor)
    return data, None if _is_ours(status) else FaultCode.INSECURE_PERMISSIONS


def _is_ours(status: os.stat_result) -> bool:
    """Return whether nobody but its user can have written a file; root can do anything anyway."""
    return status.st_uid in (os.geteuid(), ROOT) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _shown(path: Path) -> str:
    """Return a file's name as a person can read it. Where it is, is the host's business."""
    return "".join(char if char.isprintable() else "?" for char in path.name) or "environment file"
