"""Resolve what an environment file refers to: once per process, when a tool first needs it, whatever became of it.

Several loops and threads may ask at once. One of them looks up, the others wait; one that is cancelled ends what it has
started, and the next takes its turn.
"""

from __future__ import annotations

import enum
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import trio

from heddle.logs import logger
from heddle.references.asking import TURN_SECONDS, Asked, Refusal, ask_command, ask_shell
from heddle.references.faults import LOOKUP_SECONDS, Fault, FaultCode, Unresolved
from heddle.references.grammar import CommandOutput, Entry, Reference, ShellVariable, parse
from heddle.references.reading import Place, place_of, read
from heddle.threads import in_thread, unless_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = ["Source", "source_for"]

T = TypeVar("T")


class _Unknown(enum.Enum):
    UNKNOWN = "nobody has looked yet"


UNKNOWN: Final = _Unknown.UNKNOWN
# Of one name: its value, None where the file does not have it, or what is wrong with it or with the whole file.
Finding: TypeAlias = str | None | Fault | Unresolved


class Once(Generic[T]):
    """What is found out once, by the thread that asks first. One that gives up leaves it to the next."""

    def __init__(self, find_out: Callable[[Asked], T]) -> None:
        self._find_out = find_out
        self._lock = threading.Lock()
        self.known: T | _Unknown = UNKNOWN

    def get(self, asked: Asked) -> T:
        """Return it, as soon as whoever is finding it out is done."""
        while not self._lock.acquire(timeout=TURN_SECONDS):
            asked.pause()
        try:
            if self.known is UNKNOWN:
                self.known = self._find_out(asked)
            return self.known
        finally:
            self._lock.release()


class Source:
    """One environment file, and what its references have given so far.

    Args:
        place: Where it is.
        seconds: How long the login shell, and each command, may take.
    """

    def __init__(self, place: Place, seconds: float = LOOKUP_SECONDS) -> None:
        self._place = place
        self._seconds = seconds
        self._file: Once[dict[str, Once[str | Fault]] | Unresolved] = Once(self._read)
        self._variables: frozenset[str] = frozenset()
        self._shell: Once[Mapping[str, str] | Refusal] = Once(lambda asked: ask_shell(self._variables, asked))

    async def find(self, names: Iterable[str]) -> dict[str, str] | Unresolved:
        """Return those of `names` that the file gives a value, without holding the loop; or what is wrong with them.

        A file with a fault gives nothing to anybody. Of a sound one only what is asked for is looked up.
        """
        found: dict[str, str] = {}
        faults: list[Fault] = []
        for name in names:
            finding = await self._find(name)
            if isinstance(finding, Unresolved):
                return finding
            if isinstance(finding, Fault):
                faults.append(finding)
            elif finding is not None:
                found[name] = finding
        return Unresolved(tuple(sorted(faults, key=lambda fault: fault.line))) if faults else found

    async def _find(self, name: str) -> Finding:
        known = self._known(name)
        if known is UNKNOWN:
            # One of a loop's calls waits in a thread; a thousand that come at once would take a thousand.
            async with _turn_for(self, name):
                known = self._known(name)
                if known is UNKNOWN:
                    return await in_thread(self._look_up, name, Asked(self._seconds, unless_cancelled()))
        return known

    def _known(self, name: str) -> Finding | _Unknown:
        """Return what is known of a name; nobody waits."""
        lines = self._file.known
        if isinstance(lines, (_Unknown, Unresolved)):
            return lines
        return lines[name].known if name in lines else None

    def _look_up(self, name: str, asked: Asked) -> Finding:
        lines = self._file.get(asked)
        if isinstance(lines, Unresolved):
            return lines
        return lines[name].get(asked) if name in lines else None

    def _read(self, _: Asked) -> dict[str, Once[str | Fault]] | Unresolved:
        """Read the file; return what will be found out of each name, or every fault."""
        data, wrong = read(self._place)
        faults: tuple[Fault, ...] = () if wrong is None else (Fault(wrong, self._place.shown),)
        entries = parse(data, self._place.shown)
        if isinstance(entries, Unresolved):
            faults += entries.faults
        if faults or isinstance(entries, Unresolved):
            unresolved = Unresolved(faults)
            logger.warning("the environment file %s cannot be used: %s", self._place.path, unresolved)
            return unresolved
        references = [entry.reference for entry in entries]
        self._variables = frozenset(each.name for each in references if isinstance(each, ShellVariable))
        return {entry.name: Once(partial(self._resolve, entry)) for entry in entries}

    def _resolve(self, entry: Entry, asked: Asked) -> str | Fault:
        """Return what an entry refers to, or why that cannot be had."""
        answer = self._answer(entry.reference, asked)
        if isinstance(answer, str):
            return answer
        fault = Fault(answer.code, self._place.shown, entry.line, entry.name, answer.seen)
        logger.warning("the environment file %s is of no use here: %s", self._place.path, fault)
        return fault

    def _answer(self, reference: Reference, asked: Asked) -> str | Refusal:
        if isinstance(reference, CommandOutput):
            return ask_command(reference.command, asked)
        variables = self._shell.get(asked)
        if isinstance(variables, Refusal):
            return variables
        return variables.get(reference.name, Refusal(FaultCode.VARIABLE_UNSET))


_sources: dict[tuple[Path, bool], Source] = {}
# A child is a process of its own: it looks for itself, and does not wait for threads that it does not have.
os.register_at_fork(after_in_child=_sources.clear)


def source_for(file: Path | Literal[False] | None) -> Source | None:
    """Return the one source that this process has for a file; None where there is to be none.

    Args:
        file: The file, False for none, or None for the one that the host's variables or its user's home say.
    """
    place = place_of(file, os.environ)
    if place is None:
        return None
    return _sources.setdefault((place.path, place.must_exist), Source(place))


_Turns: TypeAlias = dict[tuple[Source, str], trio.Lock]
_turns: trio.lowlevel.RunVar[_Turns | None] = trio.lowlevel.RunVar("heddle.references", None)


def _turn_for(source: Source, name: str) -> trio.Lock:
    """Return the lock that calls of this loop take before one of them looks up a name."""
    turns = _turns.get()
    if turns is None:
        turns = _Turns()
        _turns.set(turns)
    return turns.setdefault((source, name), trio.Lock())
