"""YAML as its version 1.2 reads it, and only what JSON can say: ``no`` is a string, a date is a string.

Built from the parser's events, one at a time and without recursion, so that whatever is refused is refused with its
line, before it has taken time or memory: tags, cycles, repeated keys, keys that are no strings, deep nesting, aliases
that unfold to a flood. Needs PyYAML; import it where it is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import yaml

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.strictjson import JSON, MAX_DEPTH, MAX_DIGITS
from heddle.tools.documents import Place, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["MAX_REPEATED", "YamlError", "parse"]

# 10,000: what a few lines of aliases can unfold to. A string counts once more for every 100 characters.
MAX_REPEATED = 10_000

_WORDS: dict[str, JSON] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Source: YAML 1.2.2, section 10.3.2, "Tag Resolution" of the core schema.
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)
_NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class YamlError(Exception):
    """The text is not what is read here.

    Attributes:
        what: What was seen, as a clause.
        line: From 1; 0 when it cannot be told.
        column: From 1; 0 when it cannot be told.
    """

    def __init__(self, what: str, line: int = 0, column: int = 0) -> None:
        self.what = what
        self.line = line
        self.column = column
        super().__init__(what)


def parse(text: str) -> tuple[JSON, Place]:
    """Return the one value in `text`, and where its parts stand.

    Raises:
        YamlError: With the line and the column of what was refused.
    """
    _refuse_control_characters(text)
    builder = _Builder()
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        clauses = [clause for clause in (error.context, error.problem) if clause]
        _refuse(f"text that is not YAML ({', '.join(clauses)})", error.problem_mark or error.context_mark)
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: escapes and versions out of range
        raise YamlError(f"text that is not YAML ({error})") from None
    if builder.root is None:
        raise YamlError("nothing but comments where a value should be")
    return builder.root.value, builder.root.place


@attrs.frozen(eq=False)
class _Built:
    """A finished value. `size` and `height` count what its aliases repeat."""

    value: JSON
    place: Place
    size: int
    height: int


@attrs.define(eq=False)
class _Open:
    """A mapping or a sequence whose end has not been seen yet. `key` is the key that waits for its value."""

    value: list[JSON] | dict[str, JSON]
    place: Place
    anchor: str | None
    size: int = 1
    height: int = 1
    key: tuple[str, Place] | None = None


class _Builder:
    """Turns events into one value."""

    def __init__(self) -> None:
        self.root: _Built | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, _Built | None] = {}  # None: its value is still open
        self._repeated = 0

    def take(self, event: yaml.Event) -> None:
        mark = event.start_mark
        match event:
            case yaml.DocumentStartEvent() if self.root is not None:
                _refuse("a second document; a file holds one", mark)
            case yaml.AliasEvent():
                self._add(self._repeat(event.anchor or "", mark), mark)
            case yaml.ScalarEvent() | yaml.CollectionStartEvent() if event.tag is not None:
                _refuse(f"the tag {excerpt(event.tag)}; tags are not read", mark)
            case yaml.ScalarEvent():
                value = _scalar(event.value, plain=event.implicit[0], mark=mark)
                self._finish(_Built(value, _place(mark), 1 + len(event.value) // 100, 0), event.anchor, mark)
            case yaml.CollectionStartEvent():
                self._start([] if isinstance(event, yaml.SequenceStartEvent) else {}, event, mark)
            case yaml.CollectionEndEvent():
                done = self._open.pop()
                self._finish(_Built(done.value, done.place, done.size, done.height), done.anchor, mark)
            case _:
                pass

    def _start(self, value: list[JSON] | dict[str, JSON], event: yaml.CollectionStartEvent, mark: Any) -> None:
        if len(self._open) == MAX_DEPTH:
            _refuse(f"nesting deeper than {MAX_DEPTH}", mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._open.append(_Open(value, _place(mark), event.anchor))

    def _repeat(self, anchor: str, mark: Any) -> _Built:
        if anchor not in self._anchors:
            _refuse(f"the alias *{excerpt(anchor)}, which nothing before it is named", mark)
        built = self._anchors[anchor]
        if built is None:
            _refuse(f"the alias *{excerpt(anchor)} inside what it repeats", mark)
        self._repeated += built.size
        if self._repeated > MAX_REPEATED:
            _refuse(f"aliases that repeat more than {MAX_REPEATED:,} values", mark)
        if len(self._open) + built.height > MAX_DEPTH:
            _refuse(f"nesting deeper than {MAX_DEPTH}", mark)
        return built

    def _finish(self, built: _Built, anchor: str | None, mark: Any) -> None:
        if anchor is not None:
            self._anchors[anchor] = built
        self._add(built, mark)

    def _add(self, built: _Built, mark: Any) -> None:
        """Put a finished value where it belongs."""
        if not self._open:
            self.root = built
            return
        around = self._open[-1]
        around.size += built.size
        around.height = max(around.height, 1 + built.height)
        if isinstance(around.value, list):
            around.place.parts[len(around.value)] = built.place
            around.value.append(built.value)
        elif around.key is None:
            around.key = _key(built.value, around.place.parts, mark), _place(mark)
        else:
            key, place = around.key
            around.place.parts[key] = Place(place.line, place.column, built.place.parts)
            around.value[key] = built.value
            around.key = None


def _events(text: str) -> Iterator[yaml.Event]:
    # The parser written in C is not in every build of PyYAML; both give the same events.
    return yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _refuse_control_characters(text: str) -> None:
    found = _NOT_PRINTABLE.search(text)
    if found is not None:
        before = text[: found.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise YamlError(f"the character U+{ord(found[0]):04X}, which YAML does not allow", line, column)


def _key(value: JSON, before: dict[int | str, Place], mark: Any) -> str:
    if not isinstance(value, str):
        seen = f"{value!r}" if value is None or isinstance(value, (bool, int, float)) else "a mapping or a sequence"
        _refuse(f"a key that is no string ({excerpt(seen)}); put it in quotes", mark)
    if value in before:
        _refuse(f'the key "{excerpt(value)}" again, first given in line {before[value].line}', mark)
    return value


def _scalar(text: str, *, plain: bool, mark: Any) -> JSON:
    """Return what a scalar means in the core schema; only a plain one can be anything but a string."""
    if plain and text in _WORDS:
        return _WORDS[text]
    convert: Callable[[str], JSON] = str
    if plain:
        convert = next((number for pattern, number in _NUMBERS if pattern.fullmatch(text)), str)
    try:
        return strictjson.normalized(convert(text))
    except StrictJsonError as error:
        _refuse(f"{excerpt(text)}: {error.what}", mark)
    except ValueError:  # Python does not convert that many digits
        _refuse(f"an integer of more than {MAX_DIGITS:,} digits", mark)


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _refuse(what: str, mark: Any) -> NoReturn:
    if mark is None:
        raise YamlError(what)
    raise YamlError(what, mark.line + 1, mark.column + 1)
