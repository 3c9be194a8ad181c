"""Finds the tools of a folder. Nothing is run.

Of a file nothing but its first bytes is read, unless a manifest lists it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import TOOL_NAME, Notice, Program, ToolDef
from heddle.tools.described import Described, load_described
from heddle.tools.documents import BrokenDocument, Problem, read_start, reason_of, shown
from heddle.tools.fields import field_notices
from heddle.tools.registry import Registry
from heddle.tools.sidecars import sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["described_tools", "discover_tools"]

# 256: how much of a file Linux looks at to find its interpreter. Source: ``BINPRM_BUF_SIZE``, linux/binfmts.h.
_START_BYTES = 256
_ELF = b"\x7fELF"
# Mach-O of 32 and 64 bits in either byte order, and the universal form. Source: mach-o/loader.h, mach-o/fat.h.
_MACH_O = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def discover_tools(folder: str | os.PathLike[str], *, strict: bool = False) -> Registry:
    """Return the tools that stand directly in `folder`.

    A tool is a regular file, or a link to one, with an execute bit. Its name is the file's without the last extension;
    a sidecar beside it can say otherwise, and a manifest describes several tools at once. A file that belongs to a tool
    of theirs, as its program, as an argument or in a list of files, is no second tool of its own. Hidden files and
    folders are left out.

    Where two have one name the first in the order of file names is taken; a sidecar stands where its own name without
    the ending would. A tool of a manifest comes before any other.

    Args:
        folder: Made absolute, but not resolved through links, so that a tool sees the path that its author knows.
        strict: Raise where there would be a notice.

    Raises:
        DefinitionError: The folder cannot be read, a sidecar or a manifest is broken or lacks its program, or `strict`
            is set and something would be left out or cannot work; everything that was found wrong is listed.
    """
    where, entries = _listed(folder)
    files, notices = _looked_at(where, entries)
    sidecars = _sidecars(where, entries)
    described = _described(sidecars, files)
    claimed = {path for each in described for path in each.files()}
    undescribed = [file for file in files if file.path not in claimed]
    offers = [offer for file in undescribed if (offer := _offered(file, notices)) is not None]
    offers = _listed_by_manifests(offers, described, notices)
    registry = _registry(sidecars, files, [*_described_offers(described), *offers], notices)
    if strict and registry.notices:
        raise DefinitionError("\n".join(map(str, registry.notices)))
    return registry


def described_tools(path: Path) -> Registry:
    """Return the tools that one file describes: a sidecar or a manifest, whatever its name.

    Raises:
        DefinitionError: The file is broken; everything that was found wrong is listed.
    """
    path = path.absolute()
    files, _ = _looked_at(*_listed(path.parent))
    sidecars = {_stem_of(path): [path]}
    described = _described(sidecars, files)
    return _registry(sidecars, files, _described_offers(described), [])


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
    """A tool, the file that it comes from, where it stands among those of the same name, and what describes it."""

    order: bytes
    path: Path
    tool: ToolDef
    described: Described | None = None

    @property
    def rank(self) -> tuple[bool, bytes]:
        """What comes first of two with one name: those of manifests, then the order of file names."""
        return self.described is None or self.described.id is None, self.order


def _listed(folder: str | os.PathLike[str]) -> tuple[Path, list[os.DirEntry[str]]]:
    """Return the absolute folder and what is in it but hidden, in the order of the names' bytes."""
    try:
        where = Path(folder).absolute()
        with os.scandir(where) as entries:
            return where, sorted(
                (entry for entry in entries if entry.name[0] != "."), key=lambda entry: os.fsencode(entry.name)
            )
    except (OSError, ValueError) as error:
        said = f"the tools folder {shown(Path(folder))} cannot be read: {reason_of(error)}"
        raise DefinitionError(said) from error


def _looked_at(where: Path, entries: Iterable[os.DirEntry[str]]) -> tuple[list[_File], list[Notice]]:
    """Return the files that may be tools or belong to some, and what is left out for a reason worth telling."""
    files: list[_File] = []
    notices: list[Notice] = []
    for entry in entries:
        found = _look_at(entry, where / entry.name) if sidecar_stem(entry.name) is None else None
        if isinstance(found, _File):
            files.append(found)
        elif found is not None:
            notices.append(found)
    return files, notices


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


def _described(
    sidecars: Mapping[str, Sequence[Path]], files: Iterable[_File], *, closely: bool = False
) -> list[Described]:
    """Return what sidecars and manifests describe.

    Raises:
        BrokenDocument: Everything that is wrong with any of them.
    """
    by_stem: dict[str, list[Path]] = {}
    for file in files:
        by_stem.setdefault(file.stem, []).append(file.path)
    found: list[Described] = []
    problems: list[Problem] = []
    for stem, (path, *others) in sidecars.items():
        said = f'{shown(path)} describes "{shown(stem)}" as well; keep one'
        problems += [Problem(path=other, message=said) for other in others]
        try:
            found.append(load_described(path, by_stem.get(stem, ()), closely=closely))
        except BrokenDocument as broken:
            problems += broken.problems
    problems += _repeated_ids(found)
    if problems and not closely:
        return _described(sidecars, files, closely=True)  # to have everything in one report
    if problems:
        raise BrokenDocument(problems)
    return found


def _repeated_ids(described: Iterable[Described]) -> Iterator[Problem]:
    taken: dict[str, Path] = {}
    for each in described:
        path = each.document.path
        if each.id is not None and (first := taken.setdefault(each.id, path)) is not path:
            said = f'id "{each.id}" is that of {shown(first)} as well; each manifest needs its own'
            yield Problem(path=path, message=said, line=each.document.line_of("id"), key="id")


def _described_offers(described: Iterable[Described]) -> list[_Offer]:
    return [
        _Offer(os.fsencode(_stem_of(each.document.path)), each.document.path, tool, each)
        for each in described
        for tool in each.tools
    ]


def _stem_of(path: Path) -> str:
    """Return what a file that describes tools says before its ending."""
    return sidecar_stem(path.name) or path.stem


def _listed_by_manifests(
    offers: Iterable[_Offer], described: Iterable[Described], notices: list[Notice]
) -> list[_Offer]:
    """Return the offers whose files are not called like a manifest, and note the others."""
    manifests = {_stem_of(each.document.path): each.document.path.name for each in described if each.id is not None}
    kept: list[_Offer] = []
    for offer in offers:
        manifest = manifests.get(offer.tool.name)
        if manifest is None:
            kept.append(offer)
            continue
        said = f"it is left out: {shown(manifest)} is called the same and does not list it; list it there, or rename it"
        notices.append(_notice(offer.path, "name_taken", said))
    return kept


def _registry(
    sidecars: Mapping[str, Sequence[Path]], files: Iterable[_File], offers: Sequence[_Offer], notices: list[Notice]
) -> Registry:
    """Return the first tool of each name, with what was found about them.

    Raises:
        DefinitionError: Everything that is wrong with the schemas.
    """
    tools = _named_once(offers, notices)
    programs = {tool.implementation.path for tool in tools if isinstance(tool.implementation, Program)}
    notices += [remark for file in files if file.path in programs and (remark := _remark(file)) is not None]
    notices += [notice for tool in tools for notice in field_notices(tool)]
    described = {id(offer.described): offer.described for offer in offers if offer.described is not None}
    notices += [notice for each in described.values() for notice in each.notices]
    notices.sort(key=lambda notice: notice.path)
    try:
        return Registry(tools, notices=notices)
    except DefinitionError:
        _described(sidecars, files, closely=True)  # says the same with its line, and of every schema
        raise


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
    """Return the first tool of each name, in the order of file names, and note the others."""
    taken: dict[str, _Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.rank):
        first = taken.setdefault(offer.tool.name, offer)
        if first is not offer:
            named = f'the name "{offer.tool.name}" is taken by {shown(first.path.name)}, which comes first; rename one'
            notices.append(_notice(offer.path, "name_taken", f"{shown(offer.path.name)} is left out: {named}"))
    return [offer.tool for offer in sorted(taken.values(), key=lambda offer: offer.order)]


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
