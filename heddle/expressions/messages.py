"""What is said to the process that evaluates, and what its answers and its end mean. Pure; `worker` has the form."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.expressions import worker
from heddle.expressions.values import ExpressionFailed
from heddle.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from heddle.expressions.values import ExpressionLimits
    from heddle.strictjson import JSON

__all__ = ["failure_of", "late", "most_bytes", "request_to_check", "request_to_evaluate", "unstarted", "value_of"]

# 8 KiB: an error's sentence and its place.
FAILURE_BYTES = 8 * 1024


def request_to_check(text: str, names: Collection[str], limits: ExpressionLimits) -> bytes:
    """Return the request to compile `text`.

    Raises:
        StrictJsonError: It holds a lone surrogate.
    """
    return strictjson.dumps({"check": text, "names": list(names), "seconds": limits.wall_seconds}) + b"\n"


def request_to_evaluate(text: str, names: Mapping[str, JSON], limits: ExpressionLimits) -> bytes:
    """Return the request to evaluate `text` with a value for each of `names`.

    Raises:
        ExpressionFailed: ``input`` or ``too_large``; the request cannot be made.
    """
    given = {name: _as_text(name, value) for name, value in names.items()}
    size = sum(len(text) for text in given.values())
    if size > limits.input_bytes:
        said = f"what the expression is given takes {size:,} bytes; it may take {limits.input_bytes:,}"
        raise ExpressionFailed("too_large", said)
    asked: JSON = {
        "text": text,
        "names": {name: text.decode() for name, text in given.items()},
        "steps": limits.steps,
        "depth": limits.depth,
        "output_bytes": limits.output_bytes,
        "seconds": limits.wall_seconds,
    }
    return strictjson.encoded(asked) + b"\n"


def _as_text(name: str, value: JSON) -> bytes:
    try:
        return strictjson.dumps(value)
    except StrictJsonError as error:
        raise ExpressionFailed("input", f"what the expression is given as {name!a} is not JSON: {error}") from None


def most_bytes(limits: ExpressionLimits) -> int:
    """Return how long an answer may be."""
    return max(limits.output_bytes, FAILURE_BYTES) + 2


def value_of(answer: bytes) -> JSON:
    """Return the value that is in an answer.

    Raises:
        ExpressionFailed: There is none; its place is one in the text that was sent.
    """
    if not answer.startswith(b"="):
        told = json.loads(answer[1:])
        subject = "the expression's result " if told["kind"] == "result" else ""
        raise ExpressionFailed(told["kind"], subject + told["message"], told["line"], told["column"])
    try:
        return strictjson.loads(answer[1:])
    except StrictJsonError as error:
        raise ExpressionFailed("result", f"the expression's result is not JSON: {error}") from None


def failure_of(status: int, limits: ExpressionLimits) -> ExpressionFailed:
    """Return what it means that the process ended with `status`, and without an answer."""
    if status in (worker.OUT_OF_MEMORY, -signal.SIGABRT):
        return ExpressionFailed(
            "memory", f"the expression needs more than {limits.memory_bytes // MIB:,} MiB of memory"
        )
    if status in (-signal.SIGSEGV, -signal.SIGBUS):  # its stack is full
        return ExpressionFailed("depth", "the expression, or its result, is nested too deeply")
    if status == -signal.SIGXCPU:
        return late(limits)
    how = f"by {signal.Signals(-status).name}" if -status in signal.valid_signals() else f"with status {status}"
    return ExpressionFailed(
        "lost", f"the process that evaluates expressions ended {how}; the expression is not to blame"
    )


def unstarted() -> ExpressionFailed:
    """Return the failure of a process that was not there in time."""
    said = "the host cannot evaluate expressions: the process for it ended at once, or did not answer in time"
    return ExpressionFailed("lost", said)


def late(limits: ExpressionLimits) -> ExpressionFailed:
    """Return the failure of an evaluation that took too long."""
    return ExpressionFailed("time", f"the expression takes longer than {limits.wall_seconds:g} s")
