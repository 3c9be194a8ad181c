"""`Mount`: what is put into a workspace before tools run, and the rules by which several of them go together."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from heddle.errors import DefinitionError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["MAX_BYTES", "MAX_ENTRIES", "RESERVED", "Mount", "Mounts"]

Mode: TypeAlias = Literal["ro", "rw"]

RESERVED = ".heddle"
# 64 MiB and 4,096 files and folders: a folder of notes or a small repository, copied in well under a second.
MAX_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 4096
# What file systems take for one name.
NAME_BYTES = 255


def _as_path(source: object) -> Path:
    if not isinstance(source, (str, Path)) or not str(source) or "\0" in str(source):
        raise DefinitionError(f"the source of a mount is a path, not {source!r:.60}")
    return Path(source)


def _as_files(files: Mapping[str, object] | None) -> Mapping[str, bytes] | None:
    if files is None:
        return None
    if not isinstance(files, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
        raise DefinitionError(f"files are contents by path, in a dict, not {files!r:.60}")
    known: dict[str, bytes] = {}
    for path, content in files.items():
        if not isinstance(content, (bytes, bytearray)):
            raise DefinitionError(f"the contents of {path!r:.60} are bytes, not {type(content).__name__}: encode them")
        known[path] = bytes(content)
    return known


def _positive(_mount: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DefinitionError(f"a mount's {attribute.name} is a whole number of at least 1, not {value!r:.60}")


@attrs.frozen
class Mount:
    """A file or a folder of the host that every workspace holds.

    Attributes:
        source: Where it is. A link is resolved when the mount is checked; links inside of a folder are refused.
        dest: Where it lands, relative to the workspace; by default under the source's own name.
        mode: ``ro`` gives every workspace a copy, and the source stays as it is. ``rw`` copies it in when a scope
            opens, and when that closes what its tools have changed is copied back; see `heddle.workspace.ScopeReport`.
        max_bytes: The most that it may hold, in bytes of contents. Holes of sparse files do not count.
        max_entries: The most files and folders that it may hold.
        files: Contents that come from memory instead; see `from_files`.

    Raises:
        DefinitionError: `dest` is empty, absolute, climbs, is reserved, or is no plain path.
    """

    source: Path = attrs.field(converter=_as_path)
    dest: str | None = None
    mode: Mode = attrs.field(default="ro")
    max_bytes: int = attrs.field(default=MAX_BYTES, kw_only=True, validator=_positive)
    max_entries: int = attrs.field(default=MAX_ENTRIES, kw_only=True, validator=_positive)
    files: Mapping[str, bytes] | None = attrs.field(
        default=None, kw_only=True, converter=_as_files, hash=False, repr=False
    )

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("ro", "rw"):
            raise DefinitionError(f'the mode of a mount is "ro" or "rw", not {self.mode!r}')
        if self.dest in ("ro", "rw"):
            raise DefinitionError(f'the dest {self.dest!r} reads like a mode: say mode="{self.dest}", or take another')
        if self.dest is not None:
            _refuse_dest(self.dest)
        if self.files is None:
            return
        if self.mode != "ro":
            raise DefinitionError("a mount of contents from memory has nowhere to be copied back to: it is read-only")
        for path in self.files:
            _refuse_dest(path)
        for overlap in _overlaps((path, f"the file {path!r}") for path in self.files):
            raise DefinitionError(overlap)

    @classmethod
    def parse(cls, text: str, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> Self:
        r"""Return what ``source[:dest][:ro|:rw]`` means.

        In a name ``\:`` stands for a colon, and two backslashes before a colon for one backslash.

        Raises:
            DefinitionError: It is written in another way.
        """
        parts = _split(text)
        mode: Mode = "ro"
        if len(parts) > 1 and parts[-1] in ("ro", "rw"):
            mode = "rw" if parts.pop() == "rw" else "ro"
        if len(parts) > 2:  # noqa: PLR2004 - a source and a dest
            raise DefinitionError(
                f"{text!r} has {len(parts)} parts, where a mount is source[:dest][:ro|:rw]; "
                r"write \: for a colon in a name"
            )
        dest = parts[1] if len(parts) > 1 else None
        return cls(parts[0], dest, mode, max_bytes=max_bytes, max_entries=max_entries)

    @classmethod
    def from_files(
        cls,
        files: Mapping[str, bytes],
        dest: str | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        max_entries: int = MAX_ENTRIES,
    ) -> Self:
        """Return a read-only mount of contents that come from memory.

        Args:
            files: Contents by path, relative to `dest`.
            dest: A folder of the workspace; None means the workspace itself.
            max_bytes: As for every mount.
            max_entries: As for every mount.
        """
        return cls("memory", dest, files=files, max_bytes=max_bytes, max_entries=max_entries)

    @property
    def place(self) -> str:
        """Where it lands in a workspace; empty where contents from memory land in the workspace itself."""
        if self.dest is not None:
            return self.dest
        if self.files is not None:
            return ""
        # ``.`` and ``..`` have a name only when they are resolved.
        return self.source.name if self.source.name not in ("", "..") else self.source.resolve().name

    @property
    def places(self) -> tuple[str, ...]:
        """What of a workspace it takes up."""
        return tuple(self.files or ()) if self.files is not None and self.dest is None else (self.place,)

    def __str__(self) -> str:
        if self.files is not None:
            return f"{len(self.files)} files from memory"
        parts = [str(self.source)] if self.dest is None else [str(self.source), self.dest]
        return _joined([*parts, "rw"] if self.mode == "rw" else parts)


@attrs.define(eq=False)
class Mounts:
    """What a caller gave as mounts, and the option by which it came.

    Attributes:
        given: Each a `Mount` or its text.
        option: For messages: ``--mount``.
        how_to_raise: What raises the budget of a mount, with ``{}`` for ``bytes`` or ``entries``.
        max_bytes: Of those that are given as text.
        max_entries: Of those that are given as text.
    """

    given: tuple[Mount | str, ...] = attrs.field(converter=tuple[Mount | str, ...])
    option: str
    how_to_raise: str = "Mount(…, max_{}=…)"
    max_bytes: int = MAX_BYTES
    max_entries: int = MAX_ENTRIES

    @classmethod
    def of(cls, given: Mounts | Iterable[Mount | str], option: str) -> Mounts:
        """Return `given`, with its option if it has none yet.

        Raises:
            DefinitionError: It is one mount, where several were expected.
        """
        if isinstance(given, Mounts):
            return given
        if isinstance(given, (str, Path, Mount)):
            raise DefinitionError(f"{option} takes several mounts, not the one {str(given)!r}: write it in a list")
        if isinstance(given, Mapping) or not isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{option} takes a list of mounts, each a Mount or a text, not {given!r:.60}")
        return cls(tuple(given), option)

    def __iter__(self) -> Iterator[Mount | str]:
        return iter(self.given)

    def __bool__(self) -> bool:
        return bool(self.given)

    def parsed(self, given: Mount | str) -> Mount:
        """Return one of them as a mount.

        Raises:
            DefinitionError: It is none, or lands where nothing may.
        """
        if isinstance(given, str):
            given = Mount.parse(given, max_bytes=self.max_bytes, max_entries=self.max_entries)
        if not isinstance(given, Mount):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise DefinitionError(f"a mount is a Mount or a text, not {given!r:.60}")
        if not given.place and given.files is None:
            raise DefinitionError("it has no name of its own: give it a dest")
        for place in given.places:
            _refuse_dest(place)
        return given

    def name_of(self, mount: Mount | str) -> str:
        """Return what a message calls one of them."""
        return f"{self.option} {mount}"


def overlaps(named: Iterable[tuple[Mount, str]]) -> list[str]:
    """Say which mounts would lie inside each other."""
    return list(_overlaps((place, name) for mount, name in named for place in mount.places))


def _overlaps(places: Iterable[tuple[str, str]]) -> Iterator[str]:
    taken: dict[tuple[str, ...], str] = {}
    for place, name in sorted(places, key=lambda each: each[0].count("/")):
        parts = tuple(place.split("/"))
        around = next((parts[:length] for length in range(1, len(parts) + 1) if parts[:length] in taken), None)
        if around is not None:
            where = "/".join(around)
            yield f"{name}: it would be in the same place, {where!r}, as {taken[around]}; give one another dest"
        taken.setdefault(parts, name)


def _refuse_dest(dest: object) -> None:
    """Refuse what is no plain relative path below the workspace."""
    if not isinstance(dest, str):
        raise DefinitionError(f"the dest of a mount is a text, not {dest!r:.60}")
    shown = f"the dest {dest!r}"
    if not dest:
        raise DefinitionError("the dest is empty: name a place in the workspace")
    if dest.startswith("/"):
        raise DefinitionError(f"{shown} is absolute: it is relative to the workspace")
    if "\0" in dest:
        raise DefinitionError(f"{shown} has a NUL character")
    for part in dest.split("/"):
        # What only looks like these is refused as well: some file systems, and all readers, take it for the same.
        looks_like = unicodedata.normalize("NFKC", part).casefold()
        if looks_like == "..":
            raise DefinitionError(f"{shown} leaves the workspace: it may not climb")
        if looks_like in ("", "."):
            raise DefinitionError(f"{shown} has a part that names nothing: write it as a/b")
        if looks_like == RESERVED:
            raise DefinitionError(f"{shown} is reserved: {RESERVED} holds what belongs to the run")
        if "/" in looks_like:
            raise DefinitionError(f"{shown} has a character that looks like a slash")
        try:
            length = len(os.fsencode(part))
        except UnicodeEncodeError:
            raise DefinitionError(f"{shown} has a character that no file name can hold") from None
        if length > NAME_BYTES:
            raise DefinitionError(f"{shown} has a part of more than {NAME_BYTES} bytes, which no file system takes")


def _split(text: str) -> list[str]:
    """Split at colons that are not escaped."""
    parts = [""]
    end = 0
    for match in re.finditer(r"(\\*):", text):
        backslashes = len(match[1])
        parts[-1] += text[end : match.start()] + "\\" * (backslashes // 2)
        if backslashes % 2:
            parts[-1] += ":"
        else:
            parts.append("")
        end = match.end()
    parts[-1] += text[end:]
    return parts


def _joined(parts: list[str]) -> str:
    """Return a text that is split into `parts`."""
    escaped = [re.sub(r"(\\*):", r"\1\1\:", part) for part in parts]
    before = [re.sub(r"(\\+)\Z", r"\1\1", part) for part in escaped[:-1]]
    return ":".join([*before, escaped[-1]])
