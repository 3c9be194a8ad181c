"""What a promise is, and how it is found out which ones are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeVar

import attrs
import trio

from heddle.walk import alone

__all__ = ["Broken", "Conformance", "ConformanceError", "LeftOut", "NotKept", "Promise", "chosen", "examine"]

T = TypeVar("T")


@attrs.frozen
class Broken:
    """A promise that was not kept.

    Attributes:
        name: The promise, in a word or two; what `only` takes.
        promise: What was promised.
        seen: What was seen instead.
    """

    name: str
    promise: str
    seen: str

    def __str__(self) -> str:
        return f"{self.name}: {self.promise}\n  seen: {self.seen}"


@attrs.frozen
class Conformance:
    """What was checked and found as promised.

    Attributes:
        kept: The promises, by name.
        left_out: Promises that were not checked, by name, and why.
    """

    kept: tuple[str, ...]
    left_out: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)


class ConformanceError(AssertionError):
    """A runner does not keep its promises.

    Attributes:
        broken: All that were found broken.
        conformance: What was found of the others.
    """

    def __init__(self, whose: str, broken: tuple[Broken, ...], conformance: Conformance) -> None:
        self.broken = broken
        self.conformance = conformance
        of = len(broken) + len(conformance.kept)
        lines = "\n".join(f"- {each}" for each in broken)
        super().__init__(f"{whose} does not keep {len(broken)} of {of} promises:\n{lines}")


class NotKept(Exception):
    """Ends a check: what was seen is not what was promised."""


class LeftOut(Exception):
    """Ends a check that says nothing here, and why."""


@attrs.frozen
class Promise(Generic[T]):
    """One promise, and the check of it.

    Attributes:
        name: In a word or two.
        text: As a sentence.
        check: Raises `NotKept` or `LeftOut`; anything else that it raises was not promised either.
        seconds: When it has not returned by then, and by twice what somebody has patience for, it counts as broken.
    """

    name: str
    text: str
    check: Callable[[T], Awaitable[None]]
    seconds: float = 10.0


def chosen(promises: Iterable[Promise[T]], only: Iterable[str] | None) -> list[Promise[T]]:
    """Return the promises of these names, or all.

    Raises:
        ValueError: There is none of such a name.
    """
    known = {promise.name: promise for promise in promises}
    if only is None:
        return list(known.values())
    names = [only] if isinstance(only, str) else list(only)
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"there is no promise {wrong[0]!r}; there are {', '.join(map(repr, known))}")
    return [promise for name, promise in known.items() if name in names]


async def examine(whose: str, subject: T, promises: Iterable[Promise[T]], patience_seconds: float = 0.0) -> Conformance:
    """Check promises one after another, and return what was found.

    Args:
        whose: Who has made them.
        subject: What is checked.
        promises: What it has promised.
        patience_seconds: How much later than promised something may be.

    Raises:
        ConformanceError: Some are not kept. All of them were checked.
    """
    broken: list[Broken] = []
    kept: list[str] = []
    left_out: dict[str, str] = {}
    cause: BaseException | None = None
    for promise in promises:
        seconds = promise.seconds + 2 * patience_seconds
        try:
            with trio.fail_after(seconds):
                await promise.check(subject)
        except Exception as raised:  # noqa: BLE001 - what somebody else's runner raises is what is asked for
            error = alone(raised)
            if isinstance(error, LeftOut):
                left_out[promise.name] = str(error)
                continue
            broken.append(Broken(promise.name, promise.text, _seen(error, seconds)))
            if cause is None and not isinstance(error, NotKept):
                cause = error
        else:
            kept.append(promise.name)
    conformance = Conformance(tuple(kept), left_out)
    if broken:
        raise ConformanceError(whose, tuple(broken), conformance) from cause
    return conformance


def _seen(error: BaseException, seconds: float) -> str:
    if isinstance(error, NotKept):
        return str(error)
    if isinstance(error, trio.TooSlowError):
        return f"nothing was over after {seconds:g} s"
    return f"it raised {type(error).__name__}: {error}"
