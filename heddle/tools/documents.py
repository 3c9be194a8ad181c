"""Documents that people write: one file of JSON or YAML becomes a value in which every key's line is known.

Whatever the file holds, what comes out is a `Document` or a `DefinitionError` that names the file and, wherever it can
be told, the line and the column. Nothing here waits: only regular files are opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs

from heddle import strictjson
from heddle.errors import DefinitionError, StrictJsonError
from heddle.strictjson import JSON

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MAX_BYTES",
    "BrokenDocument",
    "Document",
    "Place",
    "Problem",
    "Step",
    "excerpt",
    "load_document",
    "parse_document",
    "read_start",
    "reason_of",
    "shown",
]

# 1 MiB: a hundred times what a large catalogue needs; a data file in the wrong place is refused before it is parsed.
MAX_BYTES = 1024 * 1024
EXCERPT_CHARACTERS = 40

# One step from a value into it: a key, or an index.
Step: TypeAlias = str | int

_BOM = b"\xef\xbb\xbf"
_BYTE = re.compile(r"byte (\d+)")
# Whatever is no string and no bracket is a number or a word; commas and colons say nothing that the rest does not.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|[^\s\[\]{},:"]+')


@attrs.frozen(kw_only=True)
class Problem:
    """One thing that is wrong with a file as it is written.

    Attributes:
        path: The file.
        message: What was seen, and what to do.
        line: The first is 1; 0 where it cannot be told.
        column: In characters. The first is 1; 0 where the line is enough, or cannot be told.
        key: The part it is about, as ``process.args[1]`` says it; empty for the whole file.
    """

    path: Path
    message: str
    line: int = 0
    column: int = 0
    key: str = ""

    def __str__(self) -> str:
        place = f", line {self.line}" if self.line else f", {self.key}" if self.key else ""
        place += f", column {self.column}" if self.column else ""
        return f"{shown(self.path)}{place}: {self.message}"

    def as_line(self) -> str:
        """Return it as compilers write theirs, for programs that jump to a place: ``FILE:LINE:COLUMN: KEY: WHAT``."""
        start = f"{shown(self.path)}:{self.line}:" if self.line else f"{shown(self.path)}:"
        start += f"{self.column}:" if self.column else ""
        return f"{start} {self.key}: {self._rest}" if self.key else f"{start} {self.message}"

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON: ``null`` for what cannot be told."""
        return {
            "path": shown(self.path),
            "line": self.line or None,
            "column": self.column or None,
            "key": self.key,
            "message": self.message,
        }

    @property
    def _rest(self) -> str:
        """The message without the key, where it begins with it."""
        rest = self.message.removeprefix(self.key)
        return rest.lstrip(":, ") if rest[:1] in {":", ",", " "} else self.message


class BrokenDocument(DefinitionError):
    """One or more files are wrong as they are written.

    Attributes:
        problems: Everything that was found wrong.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@attrs.frozen(eq=False)
class Place:
    """Where a value stands in its text, and what it holds.

    Attributes:
        line: Of the key when the value belongs to one, else of the value's first character. The first is 1.
        column: In characters. The first is 1.
        parts: The places of what it holds, by key or by index.
    """

    line: int
    column: int
    parts: dict[Step, Place] = attrs.field(factory=dict[Step, "Place"], repr=False)


@attrs.frozen(eq=False)
class Document:
    """What one file says.

    Attributes:
        path: The file.
        value: Plain JSON types. What an alias repeats is the same object each time: do not change it.
        place: Where each part of `value` stands.
    """

    path: Path
    value: JSON
    place: Place = attrs.field(repr=False)

    def line_of(self, *steps: Step) -> int:
        """Return the line of the part that `steps` lead to, or of the nearest part around it that is there."""
        return self.place_of(*steps).line

    def place_of(self, *steps: Step) -> Place:
        """Return the place of the part that `steps` lead to, or of the nearest part around it that is there."""
        place = self.place
        for step in steps:
            if step not in place.parts:
                break
            place = place.parts[step]
        return place

    def where(self, *steps: Step) -> str:
        """Return ``FILE, line 3``, the way an error about that part should begin."""
        return f"{shown(self.path)}, line {self.line_of(*steps)}"


def load_document(path: Path, *, what: str) -> Document:
    """Return the one value that a ``.json``, ``.yaml`` or ``.yml`` file holds.

    Args:
        path: The file; a link to one is followed.
        what: What the file is to be, for errors: ``sidecar``.

    Raises:
        DefinitionError: It cannot be read, or it is not one well-formed value.
    """
    try:
        data = read_start(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _refused(path, f"this {what} cannot be read: {reason_of(error)}") from error
    return parse_document(data, path, what=what)


def parse_document(data: bytes, path: Path, *, what: str) -> Document:
    """Return the one value in `data`, read as the ending of `path` says.

    Raises:
        DefinitionError: It is not one well-formed value.
    """
    if len(data) > MAX_BYTES:
        raise _refused(path, f"this {what} is larger than {MAX_BYTES:,} bytes")
    text = _decoded(data.removeprefix(_BOM), path)
    if not text.strip():
        raise _refused(path, f"this {what} is empty")
    if path.suffix == ".json":
        return _from_json(text, path)
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(text, path)
    raise _refused(path, f"a {what} ends in .json, .yaml or .yml")


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file; never wait for anybody.

    Raises:
        OSError: It cannot be opened or read, or it is no regular file.
    """
    # Asked before it is opened, because opening a device may already do something; and again after, because
    # a name can come to mean another file in between. O_NONBLOCK: a fifo then does not hold us.
    _refuse_irregular(os.stat(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        _refuse_irregular(os.fstat(descriptor))
        return file.read(most)


def shown(path: Path | str) -> str:
    """Return a path or a name as a person can read it: what no terminal should see is escaped."""
    return "".join(char if char.isprintable() else _escaped(char) for char in str(path))


def excerpt(text: str) -> str:
    """Return the first 40 characters of a text as `shown` shows them: enough to recognise it in an error."""
    return shown(text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "…")


def reason_of(error: OSError | ValueError) -> str:
    """Return why a file cannot be used, without its name."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _refused(path: Path, message: str, line: int = 0, column: int = 0) -> BrokenDocument:
    return BrokenDocument([Problem(path=path, message=message, line=line, column=column)])


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python carries a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def _refuse_irregular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _position(data[: error.start].decode("utf-8"), error.start)
        raise _refused(path, "bytes that are not UTF-8", *place) from None


def _position(text: str, index: int) -> tuple[int, int]:
    """Return the line and the column of ``text[index]``, both counted from 1."""
    before = text[:index]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _from_yaml(text: str, path: Path) -> Document:
    try:
        from heddle.tools import yamltext
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        said = "reading YAML needs PyYAML: pip install 'heddle[yaml]', or write it as JSON"
        raise _refused(path, said) from None
    try:
        value, place = yamltext.parse(text)
    except yamltext.YamlError as error:
        raise _refused(path, error.what, error.line, error.column) from None
    return Document(path, value, place)


def _from_json(text: str, path: Path) -> Document:
    try:
        value = strictjson.loads(text)
    except StrictJsonError as error:
        raise _not_strict(path, error, text) from None
    return Document(path, value, _json_places(text))


def _not_strict(path: Path, error: StrictJsonError, text: str) -> BrokenDocument:
    """Say it with the line and the column where strict JSON gives an offset, else with the path that it gives."""
    found = _BYTE.fullmatch(error.where)
    if found is None:
        return BrokenDocument([Problem(path=path, message=error.what, key=error.where)])
    before = text.encode()[: int(found[1])].decode()
    return _refused(path, error.what, *_position(before, len(before)))


def _json_places(text: str) -> Place:
    """Return the places of everything in `text`, which is known to be strict JSON."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    root = Place(1, 1)
    around: list[tuple[Place, bool]] = []  # the open containers, and whether each is an object
    key: tuple[str, int] | None = None
    for token in _JSON_TOKEN.finditer(text):
        symbol, start = token[0], token.start()
        if symbol in "]}":
            around.pop()
            continue
        in_object = bool(around) and around[-1][1]
        if in_object and key is None:
            key = (json.loads(symbol), start)
            continue
        step, at = key if key is not None else (len(around[-1][0].parts) if around else None, start)
        line = bisect_right(starts, at)
        place = Place(line, at - starts[line - 1] + 1)
        key = None
        if step is None:
            root = place
        else:
            around[-1][0].parts[step] = place
        if symbol in "[{":
            around.append((place, symbol == "{"))
    return root
