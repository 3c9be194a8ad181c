"""What a call gives back: `Returned` or `Failed`, each with a report of what happened."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from typing import Literal, NoReturn, TypeAlias

import attrs

from heddle.errors import ToolFailed
from heddle.strictjson import JSON

__all__ = [
    "CallReport",
    "Failed",
    "FailureKind",
    "Retry",
    "Returned",
    "SideEffects",
    "ToolResult",
    "Verdict",
    "verdict",
]

SideEffects: TypeAlias = Literal["read", "write", "unknown"]
Retry: TypeAlias = Literal["idempotent", "manual"]
Verdict: TypeAlias = Literal["allowed", "blocked"]


class FailureKind(enum.StrEnum):
    """Why a call failed. The set is closed; each compares equal to its text."""

    UNKNOWN_TOOL = "unknown_tool"
    DENIED = "denied"
    INVALID_INPUT = "invalid_input"
    UNSUPPORTED = "unsupported"
    CANNOT_START = "cannot_start"
    TIMED_OUT = "timed_out"
    LIMIT_EXCEEDED = "limit_exceeded"
    TOO_LARGE = "too_large"
    CRASHED = "crashed"
    INVALID_OUTPUT = "invalid_output"
    OUTPUT_MISMATCH = "output_mismatch"
    TOOL_ERROR = "tool_error"
    NEEDS_ATTENTION = "needs_attention"
    CONFLICT = "conflict"
    IN_PROGRESS = "in_progress"


@attrs.frozen(kw_only=True)
class CallReport:
    """What is known of one call.

    Attributes:
        tool: The name that was called.
        started_at: When the tool started, with a time zone; None when nothing was started.
        waited_s: Seconds before the start: for a slot, a session, a thread.
        duration_s: Seconds from the start to the end of everything that it started; 0.0 when nothing was started.
        exit_status: The exit status of a program that ended by itself.
        signal: The signal that ended a program, by name: ``SIGKILL``.
        stdout_head: The first 2,000 characters of a failed program's output; bad bytes are replaced.
        stderr_tail: The end of standard error, at most `Limits.stderr_bytes`; bad bytes are replaced.
        tier: What really confined the call: ``none``, ``in_process``, a backend's name; None when nothing started.
        guarantees: What holds in this tier, word by word: ``enforced``, ``partial`` or ``no``. ``processes`` is the
            promise that nothing which the call started is alive after it.
        asked: What the tool itself asks for in a sandbox, which it gets only where that is less than the host's policy.
        left_behind: Processes that were still alive when the tool itself had ended, and were ended then. A helper
            that a language runtime keeps (multiprocessing's resource tracker) counts as well.
        survivors: Processes that could not be ended: stuck in the kernel, or out of reach. Their workspace is kept.
        operation_id: The intended effect; the same when a call is tried again.
        attempt_id: This try.
        replayed: The result was recorded earlier, and nothing was started.
        tries: How often the call was made; more than once only where its caller has asked for that.
        truncated: The streams of which a part was dropped.
    """

    tool: str
    started_at: datetime.datetime | None = None
    waited_s: float = 0.0
    duration_s: float = 0.0
    exit_status: int | None = None
    signal: str | None = None
    stdout_head: str = ""
    stderr_tail: str = ""
    tier: str | None = None
    guarantees: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)
    asked: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)
    left_behind: int = 0
    survivors: tuple[int, ...] = ()
    operation_id: str = ""
    attempt_id: str = ""
    replayed: bool = False
    tries: int = 1
    truncated: frozenset[str] = frozenset()

    def as_json(self) -> dict[str, JSON]:
        """Return the report as JSON: the same names, times in ISO 8601, sets sorted."""
        values: dict[str, JSON] = {name: getattr(self, name) for name in _REPORT_FIELDS}
        values["started_at"] = None if self.started_at is None else self.started_at.isoformat()
        values["guarantees"] = {**self.guarantees}
        values["asked"] = {**self.asked}
        values["survivors"] = [*self.survivors]
        values["truncated"] = [*sorted(self.truncated)]
        return values


_REPORT_FIELDS = tuple(field.name for field in attrs.fields(CallReport))

# Results are compared by what the tool said, not by how long it took.
_NO_REPORT = CallReport(tool="")


@attrs.frozen
class Returned:
    """The tool did what it was asked.

    Attributes:
        data: The JSON value that it returned.
    """

    data: JSON = attrs.field(hash=False)
    report: CallReport = attrs.field(default=_NO_REPORT, eq=False, repr=False)

    @property
    def ok(self) -> Literal[True]:
        """Always true. To tell the two apart for a type checker, use ``match``, `isinstance` or ``ok is True``."""
        return True

    def unwrap(self) -> JSON:
        """Return the data."""
        return self.data

    def as_json(self) -> dict[str, JSON]:
        """Return the whole result as JSON."""
        return {"ok": True, "data": self.data, "report": self.report.as_json()}

    def for_model(self, max_chars: int = 8000) -> str:
        """Return the data as the JSON text that a model should see, at most `max_chars` characters."""
        return _shortened(json.dumps(self.data, ensure_ascii=False), max_chars)


@attrs.frozen
class Failed:
    """The call did not do what was asked; the message says who is at fault, what was seen and what to do.

    Attributes:
        kind: Why, from a closed set.
        message: One or more sentences for the model or the next step.
        code: The tool's own word for it (`tool_error`), an exception's class name, or None.
        details: More for programs, by kind: ``violations`` of arguments, ``near`` names, ``still_running``.
        started: Whether the tool was started, so that it may have had an effect.
        retry: Whether the call may be made again without asking anybody.
    """

    kind: FailureKind = attrs.field(converter=FailureKind)
    message: str
    code: str | None = None
    details: Mapping[str, JSON] = attrs.field(factory=dict[str, "JSON"], hash=False)
    started: bool = False
    retry: Verdict = "allowed"
    report: CallReport = attrs.field(default=_NO_REPORT, eq=False, repr=False)

    @property
    def ok(self) -> Literal[False]:
        """Always false. To tell the two apart for a type checker, use ``match``, `isinstance` or ``ok is True``."""
        return False

    def unwrap(self) -> NoReturn:
        """Raise `ToolFailed` with this result."""
        __tracebackhide__ = True  # in a test's report the line that has called this is what counts
        raise ToolFailed(self)

    def as_json(self) -> dict[str, JSON]:
        """Return the whole result as JSON."""
        return {
            "ok": False,
            "kind": str(self.kind),
            "message": self.message,
            "code": self.code,
            "details": dict(self.details),
            "started": self.started,
            "retry": self.retry,
            "report": self.report.as_json(),
        }

    def for_model(self, max_chars: int = 8000) -> str:
        """Return what a model should read to correct itself, at most `max_chars` characters."""
        text = f"The call failed ({self.kind}{f', {self.code}' if self.code else ''}): {self.message}"
        return _shortened("\n".join([text, *self.advice()]), max_chars)

    def advice(self) -> list[str]:
        """Return what belongs below the message, a line each: every violation if there are several, and a warning."""
        violations = self.details.get("violations")
        lines: list[str] = []
        if isinstance(violations, list) and len(violations) > 1:
            lines = [f"- {_violation(each)}" for each in violations if isinstance(each, dict)]
        if self.retry == "blocked":
            lines.append("It is not declared safe to repeat: check what happened before you call it again.")
        return lines


ToolResult: TypeAlias = Returned | Failed


def verdict(*, started: bool, side_effects: SideEffects, retry: Retry) -> Verdict:
    """Return whether a failed call may simply be made again.

    Before the start always; after it only where the tool is declared idempotent and its effects are known.
    """
    if started and (retry == "manual" or side_effects == "unknown"):
        return "blocked"
    return "allowed"


def _shortened(text: str, max_chars: int) -> str:
    """Cut `text` to `max_chars`, and say in it how much is missing."""
    if len(text) <= max_chars:
        return text
    kept = max(0, max_chars - len(_missing(len(text))))
    return (text[:kept] + _missing(len(text) - kept))[: max(0, max_chars)]


def _violation(violation: dict[str, JSON]) -> str:
    path, message = violation.get("path"), violation.get("message")
    return f"{path}: {message}" if path else f"{message}"


def _missing(count: int) -> str:
    return f" … [{count} more characters]"
