"""Workspaces that stay: where they go, whatever lies there from earlier runs or belongs to others."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from heddle.errors import DefinitionError
from heddle.workspace.trees import FOLDER

__all__ = ["new_kept", "place_for_kept"]


def place_for_kept(folder: str | Path) -> Path:
    """Return the folder that workspaces are kept in, made if it was not there; absolute and free of links.

    Raises:
        DefinitionError: It cannot be made or used, or others could exchange what is in it.
    """
    if not str(folder):
        raise DefinitionError("workspaces cannot be kept in '': name a folder")
    try:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        place = place.resolve(strict=True)
        mode = place.stat().st_mode
    except (OSError, RuntimeError, ValueError) as error:
        is_file = isinstance(error, (FileExistsError, NotADirectoryError))
        said = "something that is no folder is there" if is_file else getattr(error, "strerror", None) or error
        raise DefinitionError(f"workspaces cannot be kept in {str(folder)!r}: {said}") from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise DefinitionError(
            f"workspaces cannot be kept in {str(folder)!r}: everybody may exchange what is in it; chmod o-w"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise DefinitionError(f"workspaces cannot be kept in {str(folder)!r}: permission denied")
    return place


def new_kept(place: Path, label: str) -> Path:
    """Make a folder called `label`, or `label` with the next number; what is there already is left alone.

    Several processes may do so at once: making a folder either succeeds or says that there is one.
    """
    folder = os.open(place, FOLDER)
    try:
        number = _last_number(folder, label)
        while True:
            name = label if not number else f"{label}-{number + 1}"
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                number += 1
                continue
            return place / name
    finally:
        os.close(folder)


def _last_number(folder: int, label: str) -> int:
    """Return the highest number that the label has there: 0 for none, 1 for the label alone."""
    numbered = re.compile(re.escape(label) + r"(?:-([1-9][0-9]{0,8}))?")
    found = (numbered.fullmatch(name) for name in os.listdir(folder))
    return max((int(match[1] or 1) for match in found if match), default=0)
