"""Whether a call that has failed is made again unasked, and when. Pure: nothing here waits or calls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from heddle.results import Failed, FailureKind, ToolResult

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["Backoff", "Retries"]

# 30 s: a service that is being restarted is back by then, and a caller who watches has not left yet.
MOST_SECONDS = 30.0
# A quarter of each pause is chance, so that callers who failed together do not come back together.
JITTER = 0.25

Backoff: TypeAlias = float | Callable[[int], float]

# They say something of the call itself, or wait for somebody; another try would end in the same way.
_FINAL = frozenset(
    {
        FailureKind.UNKNOWN_TOOL,
        FailureKind.DENIED,
        FailureKind.INVALID_INPUT,
        FailureKind.UNSUPPORTED,
        FailureKind.TOO_LARGE,
        FailureKind.CONFLICT,
        FailureKind.IN_PROGRESS,
        FailureKind.NEEDS_ATTENTION,
    }
)


@attrs.frozen
class Retries:
    """How often a call may be made again, and after which pauses.

    Attributes:
        most: Tries after the first.
        backoff: Seconds before the first of them, each further pause twice as long, to at most 30 s, and up to a
            quarter of it less by chance; or what gives the pause after the n-th try, the first being 1.

    Raises:
        ValueError: One of them is no such number.
    """

    most: int
    backoff: Backoff

    def __attrs_post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"retries must be 0 or more, not {self.most}")
        if not callable(self.backoff):
            _checked(self.backoff)

    def pause(self, result: ToolResult, tries: int) -> float | None:
        """Return the seconds after which a call is made again that gave `result` at the try `tries`; None: never."""
        if not isinstance(result, Failed) or tries > self.most or _why_not(result) is not None:
            return None
        if callable(self.backoff):
            return _checked(self.backoff(tries))
        whole = min(self.backoff * 2.0 ** min(tries - 1, 64), MOST_SECONDS)
        return whole * (1 - JITTER * random.random())  # noqa: S311 - chance, and no secret

    def told(self, result: ToolResult, tries: int) -> ToolResult:
        """Return the last of several results with how many there were, and why there is no other."""
        result = attrs.evolve(result, report=attrs.evolve(result.report, tries=tries))
        if not isinstance(result, Failed):
            return result
        why_not = _why_not(result)
        if why_not is not None:
            ended, said = why_not
            return _ended(result, self.most, tries, ended, f"It was not tried again: {said}.")
        return _ended(result, self.most, tries, "used_up", f"It was tried {tries} times.")


def _why_not(failure: Failed) -> tuple[str, str] | None:
    """Return why a call is not made again unasked, as a word and in words; None where it may be."""
    if failure.retry == "blocked":
        return "blocked", "what it may have done is not declared safe to repeat"
    if failure.kind in _FINAL:
        return "final", "another try would end in the same way"
    if failure.details.get("still_running") or failure.report.survivors:
        return "still_running", "what was started could not be ended and is still running"
    return None


def _ended(failure: Failed, most: int, tries: int, ended: str, said: str) -> Failed:
    retries: JSON = {"asked": most, "made": tries - 1, "ended": ended}
    details = {**failure.details, "retries": retries}
    return attrs.evolve(failure, message=f"{failure.message.rstrip()} {said}", details=details)


def _checked(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"backoff must be a number of seconds, 0 or more, not {seconds!r}")
    return seconds
