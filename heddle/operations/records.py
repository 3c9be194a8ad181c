"""What a journal holds, as values: operations, their attempts, and what identifies a call."""

from __future__ import annotations

import datetime
import enum
import hashlib
from typing import TYPE_CHECKING, Any, cast

import attrs

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.results import CallReport, Failed, FailureKind, Retry, SideEffects
from heddle.strictjson import JSON

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.results import ToolResult

__all__ = [
    "Approval",
    "Asked",
    "Attempt",
    "AttemptState",
    "Operation",
    "OperationState",
    "digest_of",
    "report_of",
    "state_after",
]


class OperationState(enum.StrEnum):
    """What is known of an intended effect. Each compares equal to its text."""

    OPEN = "open"
    AWAITING_APPROVAL = "awaiting_approval"
    DENIED = "denied"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    NEEDS_ATTENTION = "needs_attention"


class AttemptState(enum.StrEnum):
    """How far one try has come. ``unknown`` is one whose host has died after it was about to start the tool."""

    PREPARED = "prepared"
    STARTING = "starting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"
    UNKNOWN = "unknown"


@attrs.frozen(kw_only=True)
class Attempt:
    """One try at an effect.

    Attributes:
        number: From 1.
        owner: The journal that made it, as `Journal.owner`.
        prepared_at: When it was noted, before anything was looked at.
        started_at: When it was noted that the tool is about to be started.
        ended_at: When its end was noted, by its own host or in a recovery.
        kind: Why it failed.
        message: The same in words.
    """

    attempt_id: str
    number: int
    state: AttemptState
    owner: str
    prepared_at: datetime.datetime
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    kind: str | None = None
    message: str = ""

    def as_json(self) -> dict[str, JSON]:
        """Return the attempt as JSON: the same names, times in ISO 8601."""
        return _as_json(self)


@attrs.frozen(kw_only=True)
class Approval:
    """A decision of somebody that an effect may be brought about, once; or the wait for it.

    Attributes:
        arguments: What was asked for, as JSON for people: without what is known to be secret, cut where it is long.
        approved: None while nobody has decided.
        by: Who has.
        note: Why.
        attempt_id: The attempt that has used it.
    """

    arguments: str
    asked_at: datetime.datetime
    approved: bool | None = None
    by: str = ""
    note: str = ""
    decided_at: datetime.datetime | None = None
    attempt_id: str | None = None

    def as_json(self) -> dict[str, JSON]:
        """Return the approval as JSON: the same names, times in ISO 8601."""
        return _as_json(self)


@attrs.frozen(kw_only=True)
class Operation:
    """One intended effect, and every try at it.

    Attributes:
        operation_id: The caller's, or the runner's own.
        revision: The tool's, at the first call.
        digest: Of tool, revision and arguments: what a call with this id has to be equal in.
        state: ``open``: nothing is known to have happened, and it may be called; ``needs_attention``: something may
            have happened, and it may not; ``awaiting_approval``: somebody has to decide first.
        approvals: What was asked of people before tries at it.
        note: What was said when it was resolved.
        data: What it returned, once it has succeeded.
    """

    operation_id: str
    tool: str
    revision: str
    digest: str
    side_effects: SideEffects
    retry: Retry
    state: OperationState
    created_at: datetime.datetime
    attempts: tuple[Attempt, ...] = ()
    approvals: tuple[Approval, ...] = ()
    note: str = ""
    data: JSON = attrs.field(default=None, hash=False)

    def as_json(self) -> dict[str, JSON]:
        """Return the operation as JSON: the same names, times in ISO 8601."""
        said = _as_json(self)
        said["attempts"] = [attempt.as_json() for attempt in self.attempts]
        said["approvals"] = [approval.as_json() for approval in self.approvals]
        return said


@attrs.frozen(kw_only=True)
class Asked:
    """What a call asks a journal for: that its operation is this attempt's.

    Attributes:
        is_gated: Whether it may start only with an approval.
    """

    operation_id: str
    attempt_id: str
    tool: str
    revision: str
    digest: str
    side_effects: SideEffects
    retry: Retry
    is_gated: bool = False

    @property
    def is_guarded(self) -> bool:
        """Whether a try that has started may not simply be followed by another."""
        return self.retry == "manual" or self.side_effects == "unknown"


def digest_of(tool: str, revision: str, arguments: Mapping[str, object] | str | None) -> str:
    """Return what identifies a call: the same tool, the same revision, the same arguments as they were given.

    Text that is JSON counts as what it says, so that spaces and the order of members make no difference.
    """
    try:
        given = strictjson.canonical(_given(arguments))
    except StrictJsonError as error:
        given = f"not JSON: {error}".encode("utf-8", "backslashreplace")  # refused now, and when it is made again
    # Apart, so that arguments may be nested as deeply as a call's may.
    return hashlib.sha256(strictjson.canonical([tool, revision]) + b"\n" + given).hexdigest()


def _given(arguments: Mapping[str, object] | str | None) -> object:
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        said = strictjson.loads(arguments) if arguments.strip() else None
    except StrictJsonError:
        return arguments  # it is the same call when it is made again
    return {} if said is None else said


_STATES = {
    FailureKind.TIMED_OUT: AttemptState.TIMED_OUT,
    FailureKind.CRASHED: AttemptState.CRASHED,
    FailureKind.LIMIT_EXCEEDED: AttemptState.CRASHED,
}


def state_after(result: ToolResult) -> AttemptState:
    """Return the state of an attempt that gave `result`."""
    if not isinstance(result, Failed):
        return AttemptState.SUCCEEDED
    if not result.started:
        return AttemptState.NOT_STARTED
    return _STATES.get(result.kind, AttemptState.FAILED)


def report_of(saved: Mapping[str, Any]) -> CallReport:
    """Return the report of a call whose result is replayed, from what `CallReport.as_json` gave."""
    names = [field.name for field in attrs.fields(CallReport)]
    known: dict[str, Any] = {name: saved[name] for name in names if name in saved}
    started_at = known.get("started_at")
    known["started_at"] = None if started_at is None else datetime.datetime.fromisoformat(started_at)
    known["survivors"] = tuple(known.get("survivors", ()))
    known["truncated"] = frozenset(known.get("truncated", ()))
    known["replayed"] = True
    return CallReport(**known)


def _as_json(value: Approval | Attempt | Operation) -> dict[str, JSON]:
    said = attrs.asdict(value, recurse=False)
    for name, each in said.items():
        if isinstance(each, datetime.datetime):
            said[name] = each.isoformat()
        elif isinstance(each, enum.Enum):
            said[name] = str(each)
    return cast("dict[str, JSON]", said)
