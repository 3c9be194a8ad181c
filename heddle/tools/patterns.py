"""Which regular expressions are safe to search with, and in strings of which length.

Matching holds the interpreter's lock, so nothing can stop it: what it may cost is settled before. A pattern whose
cost can grow exponentially is refused; for any other one there is a length up to which its worst string takes a few
hundredths of a second. The analysis errs on the side of more cost, never of less.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable

import attrs

from heddle.errors import DefinitionError
from heddle.tools.ambiguity import Growth, TooIntricateError, growth
from heddle.tools.expressions import automaton_of

__all__ = ["SafePattern", "matching_cost", "safe_pattern"]

# What no string under a pattern may exceed, by the degree of the cost: linear, quadratic, cubic.
LONGEST = {1: 64 * 1024, 2: 1000, 3: 128}
# 700,000 steps of a backtracking matcher: 30 ms at the 40 ns that the slowest kind of step takes.
MOST_STEPS = 700_000
# A pattern that cannot be tried on 64 characters is of no use for names, addresses or dates.
SHORTEST = 64


@attrs.frozen
class SafePattern:
    """A pattern and how it may be used.

    Attributes:
        text: As it was written.
        cost: The power of a string's length with which the worst case of a search grows.
        longest: The longest string, in characters, that it may be tried on.
        search: `re.Pattern.search`.
    """

    text: str
    cost: int
    longest: int
    search: Callable[[str], object] = attrs.field(repr=False, eq=False)


@functools.lru_cache(maxsize=1024)
def safe_pattern(text: str) -> SafePattern:
    """Return `text` compiled, with the longest string that it may be tried on.

    Raises:
        DefinitionError: Python cannot read it, or matching can take exponential time.
    """
    compiled = _compiled(text)
    found = _judged(text)
    if found.degree is None:
        raise _refusal(
            text,
            "the time it takes can grow exponentially with the length of the string",
            "Write it so that one text can match in one way only, as in ^a+$ for ^(a+)+$",
        )
    cost = found.degree + 1
    longest = min(LONGEST.get(cost, 0), _longest(cost, found))
    if longest < SHORTEST:
        raise _refusal(
            text,
            f"too many of its parts can match the same text: the time it takes grows with the power {cost} of the "
            f"length of the string, times {max(found.factor, found.extra):,.0f}",
            "Anchor it, or let each part match other characters than the next",
        )
    return SafePattern(text, cost, longest, compiled.search)


def matching_cost(text: str) -> int | None:
    """Return the power of a string's length with which a search for `text` grows: 1 is linear, 2 quadratic.

    Returns:
        None where it can grow exponentially.

    Raises:
        DefinitionError: Python cannot read it, or it is too large to be judged.
    """
    _compiled(text)
    degree = _judged(text).degree
    return None if degree is None else degree + 1


def _longest(cost: int, found: Growth) -> int:
    """Return the length at which the steps of the worst string come near to `MOST_STEPS`."""
    if found.extra > MOST_STEPS / 2:
        return 0
    factorial = (1, 1, 2, 6)[min(cost, 3)]
    return int(((MOST_STEPS - found.extra) * factorial / found.factor) ** (1 / cost))


def _refusal(text: str, reason: str, way_out: str) -> DefinitionError:
    return DefinitionError(
        f"the pattern {_quoted(text)} is refused: {reason}, and matching cannot be stopped. {way_out}"
    )


def _quoted(text: str) -> str:
    return f'"{text}"' if len(text) <= 100 else f'"{text[:100]}…"'  # noqa: PLR2004 - enough to recognise it


def _compiled(text: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            # Python warns of what it may read differently one day; it is judged as it is read today.
            warnings.simplefilter("ignore")
            return re.compile(text)
    except (re.error, OverflowError) as error:
        raise DefinitionError(f"the pattern {_quoted(text)} is not one that Python's re can read: {error}") from None
    except RecursionError:
        raise DefinitionError(f"the pattern {_quoted(text)} is nested too deeply") from None


def _judged(text: str) -> Growth:
    try:
        return growth(automaton_of(text))
    except (TooIntricateError, RecursionError):
        raise DefinitionError(
            f"the pattern {_quoted(text)} is refused: it is too large to tell how long matching takes. Make it smaller"
        ) from None
