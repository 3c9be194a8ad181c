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
from typing import TypeAlias

import attrs

from heddle import strictjson
from heddle.errors import DefinitionError, StrictJsonError
from heddle.strictjson import JSON

__all__ = [
    "MAX_BYTES",
    "Document",
    "Place",
    "Step",
    "excerpt",
    "load_document",
    "parse_document",
    "read_start",
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
        place = self.place
        for step in steps:
            if step not in place.parts:
                break
            place = place.parts[step]
        return place.line

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
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DefinitionError(f"{shown(path)}: this {what} cannot be read: {reason}") from error
    return parse_document(data, path, what=what)


def parse_document(data: bytes, path: Path, *, what: str) -> Document:
    """Return the one value in `data`, read as the ending of `path` says.

    Raises:
        DefinitionError: It is not one well-formed value.
    """
    name = shown(path)
    if len(data) > MAX_BYTES:
        raise DefinitionError(f"{name}: this {what} is larger than {MAX_BYTES:,} bytes")
    text = _decoded(data.removeprefix(_BOM), name)
    if not text.strip():
        raise DefinitionError(f"{name}: this {what} is empty")
    if path.suffix == ".json":
        return _from_json(text, path)
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(text, path)
    raise DefinitionError(f"{name}: a {what} ends in .json, .yaml or .yml")


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


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python carries a byte of a file name that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def _refuse_irregular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _position(data[: error.start].decode("utf-8"), error.start)
        raise DefinitionError(f"{name}, line {line}, column {column}: bytes that are not UTF-8") from None


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
        raise DefinitionError(
            f"{shown(path)}: reading YAML needs PyYAML: pip install 'heddle[yaml]', or write it as JSON"
        ) from None
    try:
        value, place = yamltext.parse(text)
    except yamltext.YamlError as error:
        where = f", line {error.line}, column {error.column}" if error.line else ""
        raise DefinitionError(f"{shown(path)}{where}: {error.what}") from None
    return Document(path, value, place)


def _from_json(text: str, path: Path) -> Document:
    try:
        value = strictjson.loads(text)
    except StrictJsonError as error:
        raise DefinitionError(f"{shown(path)}{_json_position(error, text)}: {error.what}") from None
    return Document(path, value, _json_places(text))


def _json_position(error: StrictJsonError, text: str) -> str:
    """Return the line and the column where strict JSON gives an offset, else the path that it gives."""
    found = _BYTE.fullmatch(error.where)
    if found is None:
        return f", {error.where}" if error.where else ""
    before = text.encode()[: int(found[1])].decode()
    line, column = _position(before, len(before))
    return f", line {line}, column {column}"


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
