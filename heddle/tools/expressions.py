"""Reads a regular expression, as Python's re does, into an automaton whose runs are what a backtracking matcher tries.

Where something is not known exactly, the automaton tries more than the matcher does, never less.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from heddle.tools.ambiguity import Automaton, TooIntricateError
from heddle.tools.charactersets import EVERYTHING, CharacterSet, as_bits, character_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["automaton_of"]

# 64 states: a repetition of a few characters a few times is counted out exactly; a larger one is judged as a loop.
MOST_COPIED = 64
# 2,000 states and 20,000 ways between them: an alternation of some hundred words fits.
MOST_STATES = 2_000
MOST_WAYS = 20_000

Ways: TypeAlias = dict[int, int]


@attrs.frozen(kw_only=True)
class _Part:
    """What a piece of a pattern can do, with the number of ways in which it can.

    Attributes:
        first: The states that it can begin with at the beginning of the string.
        inner: The same behind other characters, where ``^`` does not hold.
        last: The states that it can end with.
        empty: The ways to read nothing at the beginning of the string.
        inner_empty: The same behind other characters.
        sure_last: The states from which its end is reached whatever follows.
        sure: Whether its end is reached without reading, whatever follows.
    """

    first: Ways = attrs.field(factory=dict[int, int])
    inner: Ways = attrs.field(factory=dict[int, int])
    last: Ways = attrs.field(factory=dict[int, int])
    empty: int = 0
    inner_empty: int = 0
    sure_last: frozenset[int] = frozenset()
    sure: bool = False


_NOTHING = _Part(empty=1, inner_empty=1, sure=True)
_CONDITION = attrs.evolve(_NOTHING, sure=False)
_AT_BEGINNING = _Part(empty=1)


def automaton_of(text: str) -> Automaton:
    """Return the automaton of a search for `text`, which Python must be able to compile.

    Raises:
        TooIntricateError: It is too large.
    """
    return _Reader().automaton(text)


class _Reader:
    """Reads one pattern into an automaton of which each state reads one character (Glushkov's construction)."""

    def __init__(self) -> None:
        self._parser: Any = importlib.import_module("re._parser")
        # State 1 is the beginning. State 0 has passed over characters in search of a match, which may begin next.
        self.sets: list[CharacterSet] = [EVERYTHING, (False, frozenset(), frozenset())]
        self.ways: list[Ways] = [{}, {}]
        self.number_of_ways = 0
        self.number_of_items = 0
        self.blind = False

    def automaton(self, text: str) -> Automaton:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = self._parser.parse(text)
        whole = self._sequence(tree, tree.state.flags)
        self._search(whole)
        return Automaton(as_bits(self.sets), self.ways, start=1)

    def _search(self, whole: _Part) -> None:
        """Let the whole begin anywhere, and leave out what is only tried when it can no longer fail."""
        # In a state of `sure` the search succeeds, so it has been in one such state per character at the most;
        # what was tried from there in vain is counted as if it had begun at that character.
        sure = whole.sure_last
        before: Ways = {0: 1}
        if not whole.sure:
            before |= whole.inner
        for state in sure:
            for after, count in self.ways[state].items():
                before[after] = max(before.get(after, 0), count)
        self.ways[0] = before
        self.ways[1] = {0: 1, **whole.first}
        for state, following in enumerate(self.ways):
            kept = {after: count for after, count in following.items() if after not in sure}
            self.ways[state] = {} if state in sure else kept

    def _sequence(self, items: Iterable[tuple[Any, Any]], flags: int) -> _Part:
        part = _NOTHING
        for operation, argument in items:
            part = self._then(part, self._item(str(operation), argument, flags))
        return part

    def _item(self, operation: str, argument: Any, flags: int) -> _Part:
        self.number_of_items += 1
        if self.number_of_items > MOST_WAYS:
            raise TooIntricateError
        match operation:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                return self._state(character_set(operation, argument, flags))
            case "BRANCH":
                return self._choice([self._sequence(branch, flags) for branch in argument[1]])
            case "SUBPATTERN":
                return self._sequence(argument[3], (flags | argument[1]) & ~argument[2])
            case "ATOMIC_GROUP":
                return self._sequence(argument, flags)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self._repeat(argument[0], argument[1], argument[2], flags)
            case "AT":
                at_beginning = str(argument) == "AT_BEGINNING_STRING" or (
                    str(argument) == "AT_BEGINNING" and not flags & re.MULTILINE
                )
                return _AT_BEGINNING if at_beginning else _CONDITION
            case "ASSERT" | "ASSERT_NOT":
                return self._look(argument[0] < 0, argument[1], flags)
            case "GROUPREF_EXISTS":
                return self._choice([self._sequence(branch or (), flags) for branch in argument[1:]])
            case _:  # a back reference, or what a later Python adds: any text
                return attrs.evolve(self._loop(self._state(EVERYTHING), 0), sure_last=frozenset(), sure=False)

    def _state(self, characters: CharacterSet) -> _Part:
        state = len(self.sets)
        if state >= MOST_STATES:
            raise TooIntricateError
        self.sets.append(EVERYTHING if self.blind else characters)
        self.ways.append({})
        return _Part(first={state: 1}, inner={state: 1}, last={state: 1}, sure_last=frozenset({state}))

    def _look(self, behind: bool, body: Any, flags: int) -> _Part:
        """Return a branch that comes to an end where the assertion is decided."""
        # What stands behind was read before: nothing is known of it here.
        blind, self.blind = self.blind, self.blind or behind
        part = self._sequence(body, flags)
        self.blind = blind
        return attrs.evolve(_CONDITION, first=part.first, inner=part.inner)

    def _connect(self, last: Mapping[int, int], first: Mapping[int, int], times: int = 1) -> None:
        self.number_of_ways += len(last) * len(first)
        if self.number_of_ways > MOST_WAYS:
            raise TooIntricateError
        for state, ending in last.items():
            self.ways[state] = _sum(self.ways[state], first, _few(ending * times))

    def _then(self, one: _Part, other: _Part) -> _Part:
        self._connect(one.last, other.inner)
        return _Part(
            first=_sum(one.first, other.first, one.empty),
            inner=_sum(one.inner, other.inner, one.inner_empty),
            last=_sum(other.last, one.last, other.inner_empty),
            empty=_few(one.empty * other.empty),
            inner_empty=_few(one.inner_empty * other.inner_empty),
            sure_last=other.sure_last | one.sure_last if other.sure else other.sure_last,
            sure=one.sure and other.sure,
        )

    def _choice(self, branches: Sequence[_Part]) -> _Part:
        part = _Part()
        for other in branches:
            part = _Part(
                first=_sum(part.first, other.first),
                inner=_sum(part.inner, other.inner),
                last=_sum(part.last, other.last),
                empty=_few(part.empty + other.empty),
                inner_empty=_few(part.inner_empty + other.inner_empty),
                sure_last=part.sure_last | other.sure_last,
                sure=part.sure or other.sure,
            )
        return part

    def _repeat(self, least: int, most: int, body: Any, flags: int) -> _Part:
        before = len(self.sets)
        part = self._sequence(body, flags)
        size = len(self.sets) - before
        endless = most >= int(self._parser.MAXREPEAT)
        copies = max(least, 1) if endless else most
        if most == 0:
            return _NOTHING
        if copies * max(size, 1) > MOST_COPIED:
            if size == 0 and least > MOST_COPIED:
                raise TooIntricateError  # every turn that must be taken costs time, even an empty one
            return self._loop(part, least)
        parts = [part] + [self._sequence(body, flags) for _ in range(copies - 1)]
        rest = self._loop(parts.pop(), min(least, 1)) if endless else _NOTHING
        while parts:
            optional = not endless and len(parts) > least
            rest = self._then(parts.pop(), rest)
            rest = self._choice([rest, _NOTHING]) if optional else rest
        return rest

    def _loop(self, part: _Part, least: int) -> _Part:
        """Return `part` repeated without end; after a turn that reads nothing there is no further one."""
        # The turns that must be taken may all be empty, in any order: each can be left out in one more way.
        turns = 1 + part.inner_empty
        self._connect(part.last, part.inner, turns if least > 1 else 1)
        sure_exit = least <= 1 or part.sure
        return _Part(
            first=_sum({}, part.first, 1 + part.empty if least else 1),
            inner=_sum({}, part.inner, turns if least else 1),
            last=_sum({}, part.last, turns),
            empty=_few(part.empty * (1 + part.empty) if least else 1 + part.empty),
            inner_empty=_few(part.inner_empty * turns if least else turns),
            sure_last=part.sure_last if sure_exit else frozenset(),
            sure=part.sure if least else True,
        )


def _few(count: int) -> int:
    """Keep numbers of ways small: beyond a million a pattern is refused anyhow."""
    return min(count, 1_000_000)


def _sum(one: Mapping[int, int], other: Mapping[int, int], times: int = 1) -> Ways:
    total = dict(one)
    if times:
        for state, count in other.items():
            total[state] = _few(total.get(state, 0) + count * times)
    return total
