"""Values that are known to be secret, and where they stand in a text in any of their forms."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from heddle.redaction.encodings import SHORTEST, Forms, as_bytes, encoded_forms, written_forms
from heddle.redaction.plain import plain
from heddle.redaction.sieve import REDACTED, Find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from heddle.redaction.sieve import Search

__all__ = ["KnownValues"]

# The end of a secret that was cut may be shown up to here; fewer characters begin too many words.
SHORTEST_PIECE = 4


class KnownValues:
    """Finds values in a text, as they are and encoded. Values under eight characters are left out."""

    def __init__(self, values: Iterable[str], inside: Callable[[str], Iterable[str]]) -> None:
        """Get ready to find `values`, and what `inside` finds in them: the password in a URL."""
        self._groups = tuple(_groups(values, inside))
        self._reach = max((len(form) for group in self._groups for form in group.forms), default=1)

    @property
    def reach(self) -> int:
        """The length of the longest form."""
        return self._reach

    def searches(self, text: str) -> Sequence[Search]:
        """Return what may find something in `text`."""
        near = [group for group in self._groups if group.needle in text]
        return [partial(_find, text, form) for group in near for form in group.forms]

    def without_pieces(self, text: str, *, at_start: bool, at_end: bool) -> str:
        """Return `text`, which was cut out of a longer one, without pieces of values where it was cut."""
        forms = [form for group in self._groups for form in group.forms]
        if at_start and (count := max((_cut_at_start(text, form) for form in forms), default=0)):
            text = REDACTED + text[count:]
        if at_end and (count := max((_cut_at_end(text, form) for form in forms), default=0)):
            text = text[:-count] + REDACTED
        return text


def _find(text: str, form: str, at: int) -> Find | None:
    start = text.find(form, at)
    return None if start < 0 else Find(start, start, start + len(form))


def _cut_at_start(text: str, form: str) -> int:
    """Return how many characters at the start of `text` are the end of `form`."""
    piece = text[:SHORTEST_PIECE]
    at = form.find(piece, 1)
    while at >= 0 and len(piece) == SHORTEST_PIECE:
        if text.startswith(form[at:]):
            return len(form) - at
        at = form.find(piece, at + 1)
    return 0


def _cut_at_end(text: str, form: str) -> int:
    """Return how many characters at the end of `text` are the start of `form`."""
    piece = text[-SHORTEST_PIECE:]
    at = form.rfind(piece, 0, -1)
    while at >= 0 and len(piece) == SHORTEST_PIECE:
        if text.endswith(form[: at + SHORTEST_PIECE]):
            return at + SHORTEST_PIECE
        at = form.rfind(piece, 0, at + SHORTEST_PIECE - 1)
    return 0


def _groups(values: Iterable[str], inside: Callable[[str], Iterable[str]]) -> Iterator[Forms]:
    wholes = dict.fromkeys(part for value in values for part in _parts(value, inside) if _is_worth(part))
    for part in wholes:
        yield written_forms(part)
        yield from encoded_forms(part)
    lines = dict.fromkeys(line.strip() for part in wholes for line in part.splitlines())
    for line in lines:
        if _is_worth(line) and line not in wholes:
            yield written_forms(line)


def _is_worth(part: str) -> bool:
    # What stands in the replacement itself would be found in everything that was masked.
    return len(part) >= SHORTEST and part not in REDACTED


def _parts(value: str, inside: Callable[[str], Iterable[str]]) -> Iterator[str]:
    """Yield what of a value must not be shown."""
    yield value
    yield plain(value)
    # Bytes that are not UTF-8 are replaced where a program's output becomes text.
    yield as_bytes(value).decode("utf-8", "replace")
    for found in inside(value):
        yield from (found, unquote(found), _from_json(found))


def _from_json(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text
