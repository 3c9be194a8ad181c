"""How an environment file is written: bytes in, entries or every fault out. Nothing is read, started or looked up.

Each line that is not blank and does not begin with ``#`` is ``NAME=${NAME}`` or ``NAME=$(command)``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

import attrs

from heddle.references.faults import MAX_ENTRIES, MAX_FILE_BYTES, MAX_LINE_BYTES, Fault, FaultCode, Unresolved

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ALWAYS", "CommandOutput", "Entry", "Reference", "ShellVariable", "parse"]

# What a program needs to find others, itself and its language. LC_* come with them. Tools get them from the host.
ALWAYS = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")
# What decides which code a program loads before its own, or how a shell reads it.
_UNSAFE = frozenset(
    {"BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PS4", "PYTHONSTARTUP", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT"}
)
_UNSAFE_BEGINNINGS = ("LD_", "DYLD_", "HEDDLE_")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPACES = " \t\r"
_BOM = b"\xef\xbb\xbf"


@attrs.frozen
class ShellVariable:
    """``${NAME}``: what a variable of the login shell holds."""

    name: str = attrs.field(repr=False)


@attrs.frozen
class CommandOutput:
    """``$(command)``: what a command prints."""

    command: str = attrs.field(repr=False)


Reference: TypeAlias = ShellVariable | CommandOutput


@attrs.frozen
class Entry:
    """One line that gives a variable its value."""

    line: int
    name: str
    reference: Reference


def parse(data: bytes, file: str) -> tuple[Entry, ...] | Unresolved:
    """Return the entries of a file in their order, or everything that is wrong with it.

    Args:
        data: Its contents. A byte-order mark and CRLF are fine; spaces at the end of a line do not count.
        file: What faults call it.
    """
    if len(data) > MAX_FILE_BYTES:
        return Unresolved((Fault(FaultCode.FILE_TOO_LARGE, file),))
    reading = _Reading(file)
    for line, raw in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        if not reading.take(line, raw):
            break
    return Unresolved(tuple(reading.faults)) if reading.faults else tuple(reading.entries)


@attrs.define
class _Reading:
    """What has been read of a file."""

    file: str
    entries: list[Entry] = attrs.field(factory=list[Entry])
    faults: list[Fault] = attrs.field(factory=list[Fault])
    names: set[str] = attrs.field(factory=set[str])
    lines: int = 0

    def take(self, line: int, raw: bytes) -> bool:
        """Read one line; return whether the next one is to be read."""
        text = self._text(line, raw.rstrip(_SPACES.encode()))
        if not text or text.lstrip(_SPACES)[0] == "#":
            return True
        self.lines += 1
        if self.lines > MAX_ENTRIES:
            self._refuse(FaultCode.TOO_MANY_ENTRIES, line)
            return False
        left, equals, right = text.partition("=")
        if not equals:
            # What stands there may be anything, a piece of a secret too.
            self._refuse(FaultCode.MISSING_EQUALS, line)
            return True
        name = left if _NAME.fullmatch(left) else ""
        value = _value(right)
        for code in self._wrong_with(left):
            self._refuse(code, line, name)
        if isinstance(value, FaultCode):
            self._refuse(value, line, name)
        else:
            self.entries.append(Entry(line, name, value))
        self.names.add(name)
        return True

    def _text(self, line: int, raw: bytes) -> str:
        """Return a line as text; nothing where it cannot be read, which is said once for a file of another encoding."""
        if len(raw) > MAX_LINE_BYTES:
            self._refuse(FaultCode.LINE_TOO_LONG, line)
            return ""
        code = FaultCode.NUL_BYTE
        if b"\0" not in raw:
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                code = FaultCode.NOT_UTF8
        if all(fault.code is not code for fault in self.faults):
            self._refuse(code, line)
        return ""

    def _wrong_with(self, left: str) -> Iterator[FaultCode]:
        if not left:
            yield FaultCode.EMPTY_NAME
        elif not _NAME.fullmatch(left):
            yield FaultCode.INVALID_NAME
        elif left in ALWAYS or left.startswith("LC_"):
            yield FaultCode.RESERVED_NAME
        elif left in _UNSAFE or left.startswith(_UNSAFE_BEGINNINGS):
            yield FaultCode.UNSAFE_NAME
        if left and left in self.names:
            yield FaultCode.DUPLICATE_NAME

    def _refuse(self, code: FaultCode, line: int, name: str = "") -> None:
        self.faults.append(Fault(code, self.file, line, name))


# What stands to the right of an "="


def _value(text: str) -> Reference | FaultCode:
    """Return what a value refers to, or why it is no reference."""
    inner = text.lstrip(_SPACES)
    if inner != text:
        code = _value(inner)
        return code if isinstance(code, FaultCode) else FaultCode.MIXED_VALUE
    if not text:
        return FaultCode.EMPTY_VALUE
    if text[0] in "'\"":
        return FaultCode.QUOTED_VALUE
    if text.startswith("$(("):
        return FaultCode.ARITHMETIC
    if text.startswith("$("):
        return _command(text)
    if text.startswith("${"):
        return _variable(text)
    if text[0] == "$":
        return FaultCode.BAD_REFERENCE
    if text[0] == "`":
        return FaultCode.BACKTICKS
    is_mixed = "${" in text or "$(" in text
    return FaultCode.MIXED_VALUE if is_mixed else FaultCode.LITERAL_VALUE


def _variable(text: str) -> Reference | FaultCode:
    end = text.find("}")
    if end < 0:
        return FaultCode.UNTERMINATED
    name = text[2:end]
    if not _NAME.fullmatch(name):
        return FaultCode.BAD_REFERENCE
    return _beside(text[end + 1 :]) or ShellVariable(name)


def _command(text: str) -> Reference | FaultCode:
    end = _closing(text, 2)
    if end is None:
        return FaultCode.UNTERMINATED
    command = text[2:end].strip()
    if not command:
        return FaultCode.EMPTY_COMMAND
    return _beside(text[end + 1 :]) or CommandOutput(command)


def _beside(rest: str) -> FaultCode | None:
    """Return what is wrong where something follows a reference."""
    if not rest:
        return None
    is_comment = rest[0] in _SPACES and rest.lstrip(_SPACES)[0] == "#"
    return FaultCode.TRAILING_COMMENT if is_comment else FaultCode.MIXED_VALUE


# What each bracket and quote of a shell lets begin inside of it, and what ends that.
_QUOTES = {"'": "'", '"': '"', "`": "`", "$(": ")", "${": "}"}
_BEGINS = {
    ")": _QUOTES | {"(": ")"},
    "}": _QUOTES,
    '"': {opening: end for opening, end in _QUOTES.items() if opening not in "'\""},
    "`": {},
    "'": {},
}


def _closing(text: str, start: int) -> int | None:
    """Return where the command that begins at `start` is closed, as a shell counts: not in quotes, balanced."""
    ends = [")"]
    place = start
    while place < len(text):
        inside = ends[-1]
        opening = text[place : place + 2] if text[place] == "$" else text[place]
        if text[place] == "\\" and inside != "'":
            place += 2
        elif text[place] == inside:
            ends.pop()
            if not ends:
                return place
            place += 1
        elif opening in _BEGINS[inside]:
            ends.append(_BEGINS[inside][opening])
            place += len(opening)
        else:
            place += 1
    return None
