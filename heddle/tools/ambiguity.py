"""In how many ways an automaton can read one word, and how fast that grows with the word's length.

A backtracking matcher that fails has tried every way, so this is what a failed match costs. The growth is found as
Weber and Seidl describe it ("On the degree of ambiguity of finite automata", 1991): exponential where a state comes
back to itself in two ways over one word; else of the degree of the longest chain of loops of which each can hand the
same word over to the next.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import attrs

__all__ = ["Automaton", "Growth", "TooIntricateError", "growth"]

Node = TypeVar("Node")
Ways = Mapping[int, int]

# 300,000 steps of the analysis: about 0.2 s, and some fifty times what patterns that people write need.
MOST_STEPS = 300_000
# 256 characters and the 4 best words: hand-written repetitions show their worst before; loops are judged without it.
PROBE_CHARACTERS = 256
PROBE_WORDS = 4


class TooIntricateError(Exception):
    """The automaton is too large to be judged."""


@attrs.frozen
class Automaton:
    """States that each read one character of a set.

    Attributes:
        reads: For each state, the characters that lead into it, as bits.
        ways: For each state, its successors and the number of ways in which each is reached without reading.
        start: Where a word begins. All states may end it.
    """

    reads: Sequence[int]
    ways: Sequence[Ways]
    start: int


@attrs.frozen
class Growth:
    """How the number of ways grows with the length n of the word.

    Attributes:
        degree: It grows like n to this power; None means exponentially.
        factor: In the long run, at most about this many times the ways to choose `degree` places out of n.
        extra: What the first characters take beyond that, all in all.
    """

    degree: int | None
    factor: float = math.inf
    extra: float = math.inf


def growth(automaton: Automaton) -> Growth:
    """Return how the number of ways to read a word grows with its length.

    Raises:
        TooIntricateError: The automaton is too large to be judged.
    """
    return _Analysis(automaton).growth()


class _Analysis:
    def __init__(self, automaton: Automaton) -> None:
        self.reads = automaton.reads
        self.ways = automaton.ways
        self.start = automaton.start
        self.steps = 0
        self.rooms = _components(self.start, lambda state: self.ways[state])
        self.room_of = {state: number for number, room in enumerate(self.rooms) for state in room}

    def growth(self) -> Growth:
        loops = [number for number, room in enumerate(self.rooms) if self._is_loop(room)]
        if any(self._doubles(self.rooms[number]) for number in loops):
            return Growth(None)
        degree = self._degree(loops)
        return self._probed(degree)

    def _count(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise TooIntricateError

    def _is_loop(self, room: Sequence[int]) -> bool:
        return len(room) > 1 or room[0] in self.ways[room[0]]

    def _doubles(self, room: Sequence[int]) -> bool:
        """Return whether a state of `room` comes back to itself in two ways over one word."""
        inside = set(room)
        if any(count > 1 for state in room for after, count in self.ways[state].items() if after in inside):
            return True
        home = (room[0], room[0])
        before: dict[tuple[int, int], list[tuple[int, int]]] = {home: []}
        waiting = [home]
        while waiting:
            pair = waiting.pop()
            for one in self.ways[pair[0]]:
                for other in self.ways[pair[1]]:
                    self._count()
                    if one not in inside or other not in inside or not self.reads[one] & self.reads[other]:
                        continue
                    after = (one, other) if one <= other else (other, one)
                    if after not in before:
                        before[after] = []
                        waiting.append(after)
                    before[after].append(pair)
        return any(one != other for one, other in _reached([home], before.__getitem__))

    def _degree(self, loops: Sequence[int]) -> int:
        """Return the length of the longest chain of loops of which each hands a word over to the next."""
        longest: dict[int, int] = {}
        below: list[set[int]] = []
        # Rooms come in an order in which every room stands behind those that it leads to.
        for number, room in enumerate(self.rooms):
            next_rooms = {self.room_of[after] for state in room for after in self.ways[state]} - {number}
            reached = set[int]().union(*(below[other] for other in next_rooms))
            self._count(len(next_rooms) + len(reached))
            below.append(reached)
            if number not in loops:
                continue
            longest[number] = max((longest[other] for other in reached), default=0)
            for other in sorted(reached, key=lambda other: -longest[other]):
                if longest[other] < longest[number]:
                    break
                if self._hands_over(room, self.rooms[other]):
                    longest[number] = longest[other] + 1
                    break
            below[number] = reached | {number}
        return max(longest.values(), default=0)

    def _hands_over(self, room: Sequence[int], other: Sequence[int]) -> bool:
        """Return whether one word leads p to p, p to q and q to q, for a p of `room` and a q of `other`."""
        inside, there = set(room), set(other)
        towards = _reached(other, self._back().__getitem__)

        def after(places: tuple[int, int, int]) -> Iterable[tuple[int, int, int]]:
            for first in self.ways[places[0]]:
                if first not in inside:
                    continue
                for last in self.ways[places[2]]:
                    self._count()
                    both = self.reads[first] & self.reads[last]
                    if last not in there or not both:
                        continue
                    for middle in self.ways[places[1]]:
                        self._count()
                        if middle in towards and both & self.reads[middle]:
                            yield first, middle, last

        return any((p, q, q) in _reached([(p, p, q)], after) for p in room for q in other)

    def _back(self) -> dict[int, list[int]]:
        back: dict[int, list[int]] = {state: [] for state in self.room_of}
        for state in self.room_of:
            for after in self.ways[state]:
                back[after].append(state)
        self._count(len(back))
        return back

    def _probed(self, degree: int) -> Growth:
        """Follow the words that can be read in the most ways, and compare with what the degree says."""
        letters = self._letters()
        best: list[dict[int, int]] = [{self.start: 1}]
        most: list[float] = []
        work = 0
        while len(most) < PROBE_CHARACTERS and work < MOST_STEPS:
            found: dict[tuple[tuple[int, int], ...], dict[int, int]] = {}
            for counts in best:
                work += len(letters) * sum(1 + len(self.ways[state]) for state in counts)
                for letter in letters:
                    read = self._read(counts, letter)
                    found[tuple(sorted(read.items()))] = read
            best = heapq.nlargest(PROBE_WORDS, found.values(), key=self._price)
            most.append(self._price(best[0]))
        expected = [math.comb(length + degree, degree) for length in range(1, len(most) + 1)]
        half = len(most) // 2
        factor = max(1.0, *(seen / usual for seen, usual in zip(most[half:], expected[half:], strict=True)))
        extra = sum(max(0.0, seen - factor * usual) for seen, usual in zip(most, expected, strict=True))
        return Growth(degree, factor, extra)

    def _price(self, counts: Mapping[int, int]) -> float:
        """Return what standing in these states costs: a step each, and a fraction of one for each way out to try."""
        return sum(count * (1 + len(self.ways[state]) / 16) for state, count in counts.items())

    def _letters(self) -> list[frozenset[int]]:
        """Return the states that each kind of character leads into, without those that another kind covers."""
        kinds: set[frozenset[int]] = set()
        for bit in range(max(self.reads[state] for state in self.room_of).bit_length()):
            kinds.add(frozenset(state for state in self.room_of if self.reads[state] >> bit & 1))
            self._count(len(self.room_of) // 8)
        largest = heapq.nlargest(64, kinds, key=len)
        return [kind for kind in largest if not any(kind < other for other in largest)]

    def _read(self, counts: Mapping[int, int], letter: frozenset[int]) -> dict[int, int]:
        read: dict[int, int] = {}
        for state, count in counts.items():
            for after, ways in self.ways[state].items():
                if after in letter:
                    read[after] = read.get(after, 0) + count * ways
        return read


def _reached(starts: Iterable[Node], after: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Return what `starts` lead to, themselves included only where something leads back to them."""
    seen: set[Node] = set()
    waiting = list(starts)
    while waiting:
        for node in after(waiting.pop()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def _components(start: int, after: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """Return the strongly connected components in reach, each behind those that it leads to (Tarjan, 1972)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    placed: set[int] = set()
    components: list[list[int]] = []
    path: list[tuple[int, list[int]]] = []

    def enter(node: int) -> None:
        order[node] = low[node] = len(order)
        open_nodes.append(node)
        path.append((node, list(after(node))))

    enter(start)
    while path:
        node, waiting = path[-1]
        if waiting:
            follower = waiting.pop()
            if follower not in order:
                enter(follower)
            elif follower not in placed:
                low[node] = min(low[node], order[follower])
            continue
        path.pop()
        if path:
            low[path[-1][0]] = min(low[path[-1][0]], low[node])
        if low[node] == order[node]:
            place = open_nodes.index(node)
            components.append(open_nodes[place:])
            placed.update(open_nodes[place:])
            del open_nodes[place:]
    return components
