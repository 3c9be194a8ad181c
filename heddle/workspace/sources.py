"""What mounts stand for: found, judged, and ready to be put into workspaces.

Everything is looked at before the first call, and every fault is named at once.
"""

from __future__ import annotations

import itertools
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.errors import DefinitionError
from heddle.workspace.changes import Entry, reason_of
from heddle.workspace.copying import is_temporary, size_of
from heddle.workspace.mounts import Mount, Mounts, overlaps
from heddle.workspace.trees import FOLDER, Cursor, Entered, File, Left, NoFile, Unreadable, kind_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["Source", "checked_for"]

# As many are named; whoever mends these sees the rest.
MOST_SHOWN = 5
# A look that goes on longer than this only says how far it came: nobody means to mount a whole disk.
MOST_COUNTED = 1_000_000


_mutex = threading.Lock()
_locks: weakref.WeakValueDictionary[Path | None, threading.Lock] = weakref.WeakValueDictionary()


def _lock_of(path: Path | None) -> threading.Lock:
    with _mutex:
        return _locks.setdefault(path, threading.Lock())


@attrs.frozen(eq=False)
class Source:
    """A mount that was looked at and may be used.

    Attributes:
        mount: What was asked for.
        name: What a message calls it, with the option that it came from.
        path: What is copied, absolute and free of links; None for contents from memory.
        is_folder: Whether that is a folder.
        known: What is known of its files, by path below it: a snapshot's hashes.
        copy: Where a copy of it lies that nobody changes any more; None where there is none.
        lock: Held while it is copied in or back, so that scopes of this process that share it see it whole.
    """

    mount: Mount
    name: str
    path: Path | None
    is_folder: bool
    known: Mapping[str, Entry] = attrs.field(factory=dict[str, Entry])
    copy: Path | None = None

    @property
    def shown(self) -> dict[str, Path]:
        """What of its copy belongs at which place of a workspace."""
        mount, copy = self.mount, self.copy
        if copy is None:
            return {}
        if mount.files is not None and mount.dest is None:
            return {path: copy / path for path in mount.files}
        return {mount.place: copy}

    lock: threading.Lock = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda source: _lock_of(source.path), takes_self=True)
    )


def checked_for(
    mounts: Mounts, keep_in: Path | None, pause: Callable[[], object], taken: Sequence[Source] = ()
) -> list[Source]:
    """Look at mounts and at all that is in them, and return what is to be used.

    Args:
        mounts: What was asked for.
        pause: Called now and then; it may raise, to stop.
        keep_in: Where workspaces are kept. Neither that nor the folder for temporary files may lie in a source.
        taken: Others, which go into the same workspaces.

    Raises:
        DefinitionError: Something is wrong. Every fault is named.
    """
    outside = [Path(tempfile.gettempdir()).resolve(), *filter(None, [keep_in])]
    sources: list[Source] = []
    parsed: list[tuple[Mount, str]] = []
    faults: list[str] = []
    for given in mounts:
        name = mounts.name_of(given)
        try:
            mount = mounts.parsed(given)
            parsed.append((mount, name))
            sources.append(_found(mount, name, mounts.how_to_raise, outside, pause))
        except DefinitionError as error:
            faults.append(f"{name}: {error}")
    faults += overlaps([*((source.mount, source.name) for source in taken), *parsed])
    faults += _written_twice([*taken, *sources])
    if faults:
        many = "a mount cannot be used" if len(faults) == 1 else f"{len(faults)} faults in mounts"
        raise DefinitionError(f"{many}:" + "".join(f"\n  {fault}" for fault in faults))
    return sources


def _found(mount: Mount, name: str, how_to_raise: str, outside: Sequence[Path], pause: Callable[[], object]) -> Source:
    if mount.files is not None:
        folders = {parent for path in mount.files for parent in Path(path).parents} - {Path()}
        size = sum(map(len, mount.files.values()))
        _refuse_excess(mount, how_to_raise, size, len(mount.files) + len(folders))
        return Source(mount, name, None, is_folder=True)
    try:
        path = mount.source.resolve(strict=True)
        info = path.stat()
    except FileNotFoundError:
        raise DefinitionError(f"there is no such file or folder{_hint(mount, name)}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise DefinitionError(f"it cannot be looked at: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISREG(info.st_mode):
        if not os.access(path, os.R_OK):
            raise DefinitionError("it cannot be read: permission denied")
        _refuse_excess(mount, how_to_raise, size_of(info), 1)
        return Source(mount, name, path, is_folder=False)
    if not stat.S_ISDIR(info.st_mode):
        raise DefinitionError(f"it is {kind_of(info.st_mode)}: only files and folders can be mounted")
    for inner in outside:
        if inner.is_relative_to(path):
            raise DefinitionError(
                "workspaces are made inside of it, and it would be copied into itself; mount a smaller part of it"
            )
    _look_through(mount, path, how_to_raise, pause)
    return Source(mount, name, path, is_folder=True)


def _hint(mount: Mount, name: str) -> str:
    """Return what to do where a colon has been taken for something else."""
    given = name.rpartition(" ")[2]
    if ":" in given and Path(given).exists():
        escaped = given.replace(":", "\\:")
        return f"; a file of the whole name is there: write {escaped}"
    if str(mount.source).endswith((":ro", ":rw")):
        return '; a Mount takes the mode apart: mode="rw"'
    return ""


def _look_through(mount: Mount, path: Path, how_to_raise: str, pause: Callable[[], object]) -> None:
    """Refuse a folder that holds what cannot be copied, or too much."""
    faults: list[str] = []
    size = entries = 0
    try:
        with Cursor(os.open(path, FOLDER)) as cursor:
            for event in walk(cursor, leaves_out=is_temporary):
                pause()
                if entries >= MOST_COUNTED:
                    break
                match event:
                    case File(inner, name, info):
                        entries += 1
                        size += size_of(info)
                        if not os.access(name, os.R_OK, dir_fd=cursor.fd):
                            faults.append(f"{inner!r} cannot be read")
                    case Entered():
                        entries += 1
                    case NoFile(inner, kind):
                        faults.append(f"{inner!r} is {kind}")
                    case Unreadable(inner, error):
                        faults.append(f"{inner!r} cannot be read: {reason_of(error)}")
                    case Left():
                        pass
    except OSError as error:
        raise DefinitionError(f"it cannot be looked through: {reason_of(error)}") from None
    if faults:
        more = f" and {len(faults) - MOST_SHOWN} more" if len(faults) > MOST_SHOWN else ""
        raise DefinitionError(
            f"it holds what cannot be copied: {'; '.join(faults[:MOST_SHOWN])}{more}. "
            "Only files and folders that can be read are mounted; take the others away, or mount another folder"
        )
    _refuse_excess(mount, how_to_raise, size, entries)


def _refuse_excess(mount: Mount, how_to_raise: str, size: int, entries: int) -> None:
    at_least = "at least " if entries >= MOST_COUNTED else ""
    over: list[str] = []
    if size > mount.max_bytes:
        raised = how_to_raise.format("bytes")
        over.append(f"{at_least}{size:,} bytes, and a mount may hold {mount.max_bytes:,} (raise it with {raised})")
    if entries > mount.max_entries:
        raised = how_to_raise.format("entries")
        over.append(
            f"{at_least}{entries:,} files and folders, and a mount may hold {mount.max_entries:,} "
            f"(raise it with {raised})"
        )
    if over:
        raise DefinitionError(f"it holds {'; it holds '.join(over)}")


def _written_twice(sources: Sequence[Source]) -> Iterator[str]:
    """Say which mounts would be copied back over each other."""
    written = [
        (source.path, source.name) for source in sources if source.mount.mode == "rw" and source.path is not None
    ]
    for (one, its_name), (other, other_name) in itertools.combinations(written, 2):
        if one.is_relative_to(other) or other.is_relative_to(one):
            yield f"{other_name}: {its_name} is copied back to the same place; mount it once"
