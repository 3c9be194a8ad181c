"""Mask what is found in a text, whole or in pieces: both give the same.

A find begins with something of bounded length, which is looked for, and may go on for as long as characters of some
kind follow, which needs no looking back. So a piece can be decided when as much follows it as a beginning may take.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

__all__ = ["LOOK_BACK", "REDACTED", "Find", "Finder", "Search", "Sieve", "hidden_in", "sifted"]

REDACTED = "[REDACTED]"

# Characters before a place that may decide whether something begins there.
LOOK_BACK = 64
# Characters that the smallest part of a find's rest may have.
_UNIT = 4
# Characters that are looked at together, though less would do: each look has a price of its own.
_BATCH = 2048


@attrs.frozen
class Find:
    """Something to be masked.

    Attributes:
        start: Where what shows it begins: a key, a prefix.
        hidden: Where what is masked begins.
        end: Where that ends, or where its `rest` begins.
        rest: Matches the rest from any place in it: parts of at most `_UNIT` characters, one after another.
    """

    start: int
    hidden: int
    end: int
    rest: re.Pattern[str] | None = None


Search: TypeAlias = Callable[[int], Find | None]


class Finder(Protocol):
    """Knows what is to be masked."""

    @property
    def reach(self) -> int:
        """Characters from the start of a find that decide about it, all but its rest."""
        ...

    def searches(self, text: str) -> Sequence[Search]:
        """Return what may find something in `text`: each gives its first find that starts at a place or later."""
        ...


class Sieve:
    """Masks what a finder finds in a text that comes in pieces. What overlaps an earlier find is not looked for again.

    Holds back at most twice the reach, and `_BATCH` if that is more.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        # Looking at each small piece with all that is held back would take quadratic time.
        self._enough = LOOK_BACK + max(2 * finder.reach, _BATCH)
        self._pieces: list[str] = []
        self._size = 0
        self._at = 0  # what stands before is given out already, and kept to look back at
        self._rest: re.Pattern[str] | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain."""
        self._pieces.append(text)
        self._size += len(text)
        return self._sift(is_end=False) if self._size >= self._enough else ""

    def finish(self, text: str = "") -> str:
        """Take the last piece; return all that was held back, and be ready for another text."""
        self._pieces.append(text)
        out = self._sift(is_end=True)
        self._pieces, self._size, self._at, self._rest = [], 0, 0, None
        return out

    def _sift(self, *, is_end: bool) -> str:
        text = "".join(self._pieces)
        certain = len(text) if is_end else len(text) - self._finder.reach
        out: list[str] = []
        at = self._after_rest(text, self._at, is_end=is_end)
        first = _first_of(self._finder.searches(text), at)
        while self._rest is None and (find := first(at)) is not None and find.start < certain:
            out += (text[at : find.hidden], REDACTED)
            self._rest = find.rest
            at = self._after_rest(text, find.end, is_end=is_end)
        if self._rest is None and at < certain:
            out.append(text[at:certain])
            at = certain
        kept = text[max(0, at - LOOK_BACK) :]
        self._pieces, self._size, self._at = [kept], len(kept), min(at, LOOK_BACK)
        return "".join(out)

    def _after_rest(self, text: str, at: int, *, is_end: bool) -> int:
        """Return where the rest of a find ends, or how far it goes if it may go on in what comes."""
        match = None if self._rest is None else self._rest.match(text, at)
        if match is None:
            return at
        if is_end or match.end() <= len(text) - _UNIT:
            self._rest = None
        return match.end()


def sifted(text: str, finder: Finder) -> str:
    """Return `text` with what the finder finds masked."""
    return Sieve(finder).finish(text)


def hidden_in(text: str, finder: Finder) -> list[str]:
    """Return what `sifted` would mask in `text`."""
    found: list[str] = []
    first = _first_of(finder.searches(text), 0)
    at = 0
    while (find := first(at)) is not None:
        rest = None if find.rest is None else find.rest.match(text, find.end)
        at = find.end if rest is None else rest.end()
        found.append(text[find.hidden : at])
    return found


def _first_of(searches: Sequence[Search], at: int) -> Search:
    """Return what gives the first find of all searches; of those that start at one place, the longest."""
    found = ((order, search, search(at)) for order, search in enumerate(searches))
    waiting = [_Waiting(find, order, search) for order, search, find in found if find is not None]
    heapq.heapify(waiting)

    def first(at: int) -> Find | None:
        while waiting and waiting[0].find.start < at:
            next_ = waiting[0]
            again = next_.search(at)
            if again is None:
                heapq.heappop(waiting)
            else:
                heapq.heapreplace(waiting, _Waiting(again, next_.order, next_.search))
        return waiting[0].find if waiting else None

    return first


@attrs.frozen(eq=False)
class _Waiting:
    """A search with what it found next."""

    find: Find
    order: int
    search: Search

    def __lt__(self, other: _Waiting) -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int, int]:
        return self.find.start, -self.find.end, self.order
