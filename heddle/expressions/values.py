"""What an expression may use, and the two ways in which it can go wrong: as it is written, and as it is evaluated."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs
from attrs import validators

from heddle.errors import DefinitionError, HeddleError
from heddle.limits import MIB

__all__ = ["RULE_LIMITS", "ExpressionError", "ExpressionFailed", "ExpressionLimits", "FailedBecause"]

# What keeps an expression from a value:
#   input      it was given what JSON cannot say
#   too_large  what it was given, or its result, has too many bytes
#   steps, depth, memory, time    it reached a limit
#   raised     it went wrong by itself: a key that is not there, `fail`
#   result     JSON, or the text that was promised, cannot say its result
#   lost       the process that evaluates could not be started, or ended for a reason that is not the expression's
FailedBecause: TypeAlias = Literal["input", "too_large", "steps", "depth", "memory", "time", "raised", "result", "lost"]

# 64 MiB: an idle process has a third of that in its address space already.
LEAST_MEMORY_BYTES = 64 * MIB


class ExpressionError(DefinitionError):
    """An expression is wrong as it is written. Nothing was evaluated.

    Attributes:
        message: What was seen, and what to do.
        line: In the text. The first is 1; None when it cannot be told.
        column: In characters. The first is 1; None when it cannot be told.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        super().__init__(_placed(message, line, column))


class ExpressionFailed(HeddleError):
    """An expression has no value this time. It had no effect, so it may be evaluated again.

    Attributes:
        kind: Why, for programs.
        message: Why, for people. It may quote what the expression was given.
        line: In the text. The first is 1; None when it cannot be told.
        column: In characters. The first is 1; None when it cannot be told.
    """

    def __init__(self, kind: FailedBecause, message: str, line: int | None = None, column: int | None = None) -> None:
        self.kind: FailedBecause = kind
        self.message = message
        self.line = line
        self.column = column
        super().__init__(_placed(message, line, column))


@attrs.frozen(kw_only=True)
class ExpressionLimits:
    """Ceilings for one evaluation.

    Attributes:
        steps: Turns of loops and comprehensions, and calls of the text's own functions; the same text takes the same
            number with the same values, everywhere. Counted in thousands.
        depth: Calls inside of calls.
        input_bytes: All that it is given, as JSON.
        output_bytes: Its result, as JSON.
        memory_bytes: The address space of the process that evaluates, which takes some 20 MiB for itself.
            Source: ``RLIMIT_AS``, setrlimit(2).
        wall_seconds: Real time of one evaluation; starting a process is not counted.
    """

    # 1,000,000: all that a transform needs, in some 30 ms.
    steps: int = attrs.field(default=1_000_000, validator=validators.ge(1))
    # 100: a text cannot name its functions to call them again, so more is a mistake.
    depth: int = attrs.field(default=100, validator=validators.ge(1))
    # 2 MiB: a tool's result at the ceiling of 1 MiB, and what is told about it.
    input_bytes: int = attrs.field(default=2 * MIB, validator=validators.ge(1))
    # 1 MiB: what a call may send.
    output_bytes: int = attrs.field(default=MIB, validator=validators.ge(1))
    # 256 MiB: 2 MiB of JSON become up to 100 MiB of values, most of it in the two copies that cross over.
    memory_bytes: int = attrs.field(default=256 * MIB, validator=validators.ge(LEAST_MEMORY_BYTES))
    # 2 s: long for what takes a millisecond, short for whoever waits. An hour: the kernel counts it in whole seconds.
    wall_seconds: float = attrs.field(default=2.0, validator=[validators.gt(0), validators.le(3600)])


# 1 s: whoever checks arguments is waited for.
RULE_LIMITS = ExpressionLimits(wall_seconds=1.0)


def _placed(message: str, line: int | None, column: int | None) -> str:
    """Return a message behind the place that it is about."""
    if line is None:
        return message
    return f"line {line}: {message}" if column is None else f"line {line}, column {column}: {message}"
