"""Finds the tools of a folder. Nothing is run, and of each file nothing but its first bytes is read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import TOOL_NAME, Notice, Program, ToolDef
from heddle.tools.documents import read_start, shown
from heddle.tools.fields import unchecked_types
from heddle.tools.registry import Registry
from heddle.tools.sidecars import load_sidecar, sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["discover_tools"]

# 256: how much of a file Linux looks at to find its interpreter. Source: ``BINPRM_BUF_SIZE``, linux/binfmts.h.
_START_BYTES = 256
_ELF = b"\x7fELF"
# Mach-O of 32 and 64 bits in either byte order, and the universal form. Source: mach-o/loader.h, mach-o/fat.h.
_MACH_O = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def discover_tools(folder: str | os.PathLike[str], *, strict: bool = False) -> Registry:
    """Return the tools that stand directly in `folder`.

    A tool is a regular file, or a link to one, with an execute bit. Its name is the file's without the last extension;
    a sidecar beside it (see `load_sidecar`) can say otherwise. A file that a sidecar starts, as its program or as an
    argument, is no second tool of its own. Hidden files and folders are left out.

    Where two have one name the first in the order of file names is taken; a sidecar stands where its own name without
    the ending would.

    Args:
        folder: Made absolute, but not resolved through links, so that a tool sees the path that its author knows.
        strict: Raise where there would be a notice.

    Raises:
        DefinitionError: The folder cannot be read, a sidecar is broken or lacks its program, or `strict` is set and
            something would be left out or cannot work; everything that was found wrong is listed.
    """
    where, entries = _listed(folder)
    files: list[_File] = []
    notices: list[Notice] = []
    for entry in entries:
        found = _look_at(entry, where / entry.name) if sidecar_stem(entry.name) is None else None
        if isinstance(found, _File):
            files.append(found)
        elif found is not None:
            notices.append(found)
    described = _described(_sidecars(where, entries), files)
    claimed = {path for offer in described for path in _named_by(offer.tool)}
    plain = [offer for file in files if file.path not in claimed and (offer := _offered(file, notices)) is not None]
    tools = _named_once([*described, *plain], notices)
    programs = {tool.implementation.path for tool in tools if isinstance(tool.implementation, Program)}
    notices += [remark for file in files if file.path in programs and (remark := _remark(file)) is not None]
    notices += [notice for tool in tools for notice in _misspelt_types(tool)]
    notices.sort(key=lambda notice: notice.path)
    if strict and notices:
        raise DefinitionError("\n".join(map(str, notices)))
    return Registry(tools, notices=notices)


@attrs.frozen
class _File:
    """A regular file. `start` is None when it cannot be read."""

    path: Path
    executable: bool
    start: bytes | None

    @property
    def stem(self) -> str:
        return os.path.splitext(self.path.name)[0]


@attrs.frozen
class _Offer:
    """A tool, the file that describes it, and where it stands among those of the same name."""

    order: bytes
    path: Path
    tool: ToolDef


def _listed(folder: str | os.PathLike[str]) -> tuple[Path, list[os.DirEntry[str]]]:
    """Return the absolute folder and what is in it but hidden, in the order of the names' bytes."""
    try:
        where = Path(folder).absolute()
        with os.scandir(where) as entries:
            return where, sorted(
                (entry for entry in entries if entry.name[0] != "."), key=lambda entry: os.fsencode(entry.name)
            )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DefinitionError(f"the tools folder {shown(Path(folder))} cannot be read: {reason}") from error


def _look_at(entry: os.DirEntry[str], path: Path) -> _File | Notice | None:
    """Return a regular file, or why it is left out; None for what is not meant to be a tool."""
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        if entry.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return _notice(path, "dangling_link", "it is left out: it is a link to a file that is not there")
        return _notice(path, "unreadable", f"it is left out: it cannot be looked at ({error.strerror})")
    if not stat.S_ISREG(mode):
        return None
    try:
        start = read_start(path, _START_BYTES)
    except OSError:
        start = None
    return _File(path, bool(mode & 0o111), start)


def _sidecars(where: Path, entries: Iterable[os.DirEntry[str]]) -> dict[str, list[Path]]:
    """Return the sidecars by stem."""
    found: dict[str, list[Path]] = {}
    for entry in entries:
        stem = sidecar_stem(entry.name)
        if stem is not None and not os.path.isdir(where / entry.name):
            found.setdefault(stem, []).append(where / entry.name)
    return found


def _described(sidecars: Mapping[str, Sequence[Path]], files: Iterable[_File]) -> list[_Offer]:
    """Return the tools that have a sidecar.

    Raises:
        DefinitionError: What is wrong with any of the sidecars.
    """
    by_stem: dict[str, list[Path]] = {}
    for file in files:
        by_stem.setdefault(file.stem, []).append(file.path)
    offers: list[_Offer] = []
    faults: list[str] = []
    for stem, paths in sidecars.items():
        if len(paths) > 1:
            both = " and ".join(shown(path) for path in paths)
            faults.append(f'two sidecars describe "{shown(stem)}": {both}; keep one')
            continue
        try:
            tool = load_sidecar(paths[0], by_stem.get(stem, ()))
        except DefinitionError as error:
            faults.append(str(error))
        else:
            offers.append(_Offer(os.fsencode(stem), paths[0], tool))
    if faults:
        raise DefinitionError("\n".join(faults))
    return offers


def _named_by(tool: ToolDef) -> Iterator[Path]:
    """Yield what may be a file of the folder in a tool's command line."""
    if isinstance(tool.implementation, Program):
        yield tool.implementation.path
        yield from map(Path, tool.implementation.args)


def _offered(file: _File, notices: list[Notice]) -> _Offer | None:
    """Return the tool that a file without a sidecar is; note it when it was meant to be one, but is none."""
    if not file.executable:
        if file.start is not None and file.start.startswith(b"#!"):
            fix = f"chmod +x {shown(file.path.name)}"
            notices.append(_notice(file.path, "not_executable", f"it is left out: it has no execute bit; {fix}"))
        return None
    if not TOOL_NAME.fullmatch(file.stem):
        rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        named = f'"{shown(file.stem)}" cannot be a tool\'s name ({rule}); rename the file'
        notices.append(_notice(file.path, "bad_name", f"it is left out: {named}"))
        return None
    tool = ToolDef(name=file.stem, implementation=Program(file.path), origin=shown(file.path))
    return _Offer(os.fsencode(file.path.name), file.path, tool)


def _named_once(offers: Iterable[_Offer], notices: list[Notice]) -> list[ToolDef]:
    """Return the first tool of each name, and note the others."""
    taken: dict[str, _Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.order):
        first = taken.setdefault(offer.tool.name, offer)
        if first is not offer:
            named = f'the name "{offer.tool.name}" is taken by {shown(first.path.name)}, which comes first; rename one'
            notices.append(_notice(offer.path, "name_taken", f"{shown(offer.path.name)} is left out: {named}"))
    return [offer.tool for offer in taken.values()]


def _misspelt_types(tool: ToolDef) -> Iterator[Notice]:
    """Yield what passes unchecked because its type looks like a slip of the pen."""
    for place, word, meant in unchecked_types(tool.input_fields or {}):
        if meant:
            yield Notice(tool.origin, "unknown_type", f'{place}: type "{word}" checks nothing; did you mean "{meant}"?')


def _remark(file: _File) -> Notice | None:
    """Return why a tool's program will not start, as far as its first bytes tell."""
    name, start = shown(file.path.name), file.start
    if start is None:
        return _notice(file.path, "unreadable", f"it cannot be read, so a script will not start: chmod +r {name}")
    if not start:
        return _notice(file.path, "empty", "it is empty, so it will not start")
    if not start.startswith(b"#!"):
        if start.startswith((_ELF, *_MACH_O)):
            return None
        mark = " (a byte-order mark hides it)" if start.startswith(b"\xef\xbb\xbf#!") else ""
        fix = "begin the file with one, such as #!/usr/bin/env python3"
        return _notice(
            file.path, "no_interpreter", f"its first line names no interpreter{mark}, so it will not start; {fix}"
        )
    if start.partition(b"\n")[0].endswith(b"\r"):
        why = "its first line ends in a carriage return (Windows line ends), so its interpreter will not be found"
        return _notice(file.path, "carriage_return", f"{why}; sed -i 's/\\r$//' {name}")
    return None


def _notice(path: Path, code: str, message: str) -> Notice:
    return Notice(shown(path), code, message)
