"""`Journal`: what hosts have set out to do, on disk before they do it, and what came of it, on disk before they say so.

    journal = heddle.Journal.open("operations.db")
    async with heddle.Runner(registry, journal=journal) as runner:
        await runner.call("pay", {"amount": 5}, operation_id="order-17")

However a host ends, an effect that may have happened is not brought about a second time unasked: a call that has
succeeded is answered from here, and one whose outcome is unknown needs attention until somebody resolves it.

One SQLite file, which any number of hosts may share. Every function here waits for the disk; runners call them in
threads.
"""

from __future__ import annotations

import datetime
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from heddle import strictjson
from heddle.errors import JournalError
from heddle.operations import approvals, owners, schema
from heddle.operations.permission import awaiting, refused
from heddle.operations.records import Approval, Attempt, AttemptState, Operation, OperationState, report_of, state_after
from heddle.operations.writing import Database
from heddle.results import CallReport, Failed, FailureKind, Returned

if TYPE_CHECKING:
    import os
    from typing import Self

    from heddle.operations.permission import Decision
    from heddle.operations.records import Asked
    from heddle.operations.writing import Execute
    from heddle.results import ToolResult
    from heddle.strictjson import JSON

__all__ = ["Journal"]

# 1 MiB: what a result may have at most where the host has said nothing else.
MAX_RESULT_BYTES = 1024 * 1024
# 10 s: what another host writes takes milliseconds; a disk that stalls for longer is the operator's to know of.
BUSY_SECONDS = 10.0
# 2,000 characters of a failure's message are kept; the whole of it was returned to the caller.
MESSAGE_CHARS = 2000

_LIVE = (AttemptState.PREPARED, AttemptState.STARTING)


class Journal:
    """The operations of one file. Open one with `open`, give it to ``Runner(journal=…)``, and close it after that.

    Any number of runners of a process may use it, in any threads.

    Attributes:
        path: The file. Beside it are SQLite's own two, and the folder ``<name>.owners``.
        max_result_bytes: What a result may have, as JSON, to be kept.
        owner: The name of this host's part in it.
        recovered: What hosts that were gone had left in flight when it was opened, as `recover` returns it.
    """

    def __init__(self, path: Path, database: Database, owner: owners.Owner, max_result_bytes: int) -> None:
        self.path: Path = path
        self.max_result_bytes: int = max_result_bytes
        self.owner: str = owner.name
        self.recovered: tuple[Operation, ...] = ()
        self._owner = owner
        self._in_flight: set[str] = set()
        self._database = database

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, max_result_bytes: int = MAX_RESULT_BYTES) -> Journal:
        """Open a journal, make it if it is not there, and recover what hosts that are gone have left.

        Args:
            path: Of the file; its folder has to be there. A new one is readable by this user alone.
            max_result_bytes: What a result may have, as JSON, to be kept. A call whose result has more fails.

        Raises:
            JournalError: The file is no journal, was written by a newer heddle, or cannot be read and written. Nothing
                was changed.
            OSError: It cannot be made.
        """
        place = Path(path).absolute()
        connection = schema.connect(place, BUSY_SECONDS)
        try:
            owner = owners.Owner.begin(place.with_name(place.name + ".owners"))
        except BaseException:
            connection.close()
            raise
        journal = cls(place, Database(place.name, connection), owner, max_result_bytes)
        try:
            journal._database.write(journal._enter)
            journal.recovered = tuple(journal.recover())
        except BaseException:
            journal.close()
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Calls that are still in flight are recovered as unknown by whoever opens it next."""
        if self._database.close(self._leave):
            self._owner.end()

    # What people and programs ask it

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation with its attempts; None where there is none of that name."""
        found = self._database.read(lambda execute: _operations(execute, operation_id))
        return found[0] if found else None

    def operations(self, state: OperationState | str | None = None) -> list[Operation]:
        """Return all operations, or those in a state; the latest first."""
        wanted = None if state is None else OperationState(state)
        if wanted is OperationState.NEEDS_ATTENTION:  # few, of the many that there may be
            return self._database.read(_needing_attention)
        found = self._database.read(_operations)
        return found if wanted is None else [each for each in found if each.state is wanted]

    def resolve(
        self,
        operation_id: str,
        outcome: Literal["happened", "did_not_happen"],
        *,
        data: JSON = None,
        note: str = "",
    ) -> Operation:
        """Say what became of an operation that needs attention; return it as it is then.

        Args:
            operation_id: Which one.
            outcome: ``happened``: a call with its id is answered with `data` from now on. ``did_not_happen``: it may
                be called again.
            data: What it would have returned.
            note: Why, for whoever reads it later.

        Raises:
            JournalError: There is no such operation, or it does not need attention. Nothing was changed.
        """
        if outcome not in {"happened", "did_not_happen"}:
            raise ValueError(f"outcome must be 'happened' or 'did_not_happen', not {outcome!r}")
        resolution = _resolution(outcome, data, note)

        def step(execute: Execute) -> Operation:
            known = self._named(execute, operation_id)
            if known.state != OperationState.NEEDS_ATTENTION:
                raise JournalError(f"operation {operation_id!r} does not need attention: it is {known.state}")
            execute(_RESOLVE, (*resolution, operation_id))
            return _operations(execute, operation_id)[0]

        return self._database.write(step)

    def decide(self, operation_id: str, approved: bool, by: str = "", note: str = "") -> Operation:
        """Approve an operation that awaits it, or refuse it; return it as it is then.

        A call that waits at this moment, in whatever process, goes on. Else the next call with its id and arguments is
        made, once, without anybody being asked again; or denied. Until then the decision may be changed.

        Args:
            operation_id: Which one.
            approved: Whether it may be called.
            by: Who has decided.
            note: Why, for whoever reads it later.

        Raises:
            JournalError: There is no such operation, or no call of it awaits approval. Nothing was changed.
        """
        if not isinstance(approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - "no" would be true
            raise TypeError(f"approved must be True or False, not {approved!r:.60}")

        def step(execute: Execute) -> Operation:
            known = self._named(execute, operation_id)
            if not approvals.decide(execute, operation_id, approved=approved, by=by, note=note):
                raise JournalError(f"operation {operation_id!r} does not await approval: it is {known.state}")
            return _operations(execute, operation_id)[0]

        return self._database.write(step)

    def recover(self) -> list[Operation]:
        """Settle what hosts that are gone have left in flight, and return the operations that were.

        What was not yet about to start may simply be called again; what was needs attention, whatever the tool
        declares. A host that is alive is let be.
        """

        def step(execute: Execute) -> tuple[list[str], list[Operation]]:
            names = [name for (name,) in execute("SELECT owner FROM owners").fetchall()]
            gone = [name for name in names if not owners.is_alive(self._owner.folder, name)]
            left = [each for name in gone for each in _left_by(execute, name)]
            left += [each for each in _left_by(execute, self.owner) if each[0] not in self._in_flight]
            for attempt_id, operation_id, state in left:
                self._lose(execute, attempt_id, operation_id, state)
            for name in gone:
                execute("DELETE FROM owners WHERE owner = ?", (name,))
            return gone, [_operations(execute, operation_id)[0] for _, operation_id, _ in left]

        gone, found = self._database.write(step)
        for name in gone:
            owners.remove(self._owner.folder, name)
        return found

    # What runners ask it

    def claim(self, asked: Asked) -> ToolResult | None:
        """Note that an attempt is going to be made; None gives it the operation, and a result answers the call.

        The attempt is durable when this returns None, and in flight until `forget`.
        """
        try:
            return self._database.write(lambda execute: self._claim(execute, asked))
        except BaseException:
            self.forget(asked.attempt_id)
            raise

    def forget(self, attempt_id: str) -> None:
        """Note that no call of this host is this attempt any more. One that is still in flight in the file is lost."""
        self._in_flight.discard(attempt_id)

    def start(self, asked: Asked) -> None:
        """Note that a tool is about to be started. Durable when this returns."""

        def step(execute: Execute) -> None:
            changed = execute(
                "UPDATE attempts SET state = ?, started_at = ? WHERE attempt_id = ? AND state = ?",
                (AttemptState.STARTING, _now(), asked.attempt_id, AttemptState.PREPARED),
            )
            self._refuse_lost(asked, changed.rowcount)
            if not approvals.use(execute, asked.operation_id, asked.attempt_id) and asked.is_gated:
                raise JournalError(
                    f"the approval of operation {asked.operation_id!r} was taken back while it waited for its turn; "
                    "nothing was started"
                )

        self._database.write(step)

    def ask(self, operation_id: str, arguments: str) -> Approval:
        """Return the approval that an operation has or waits for; it is asked for where there is none."""
        return self._database.write(lambda execute: approvals.ask(execute, operation_id, arguments))

    def approval(self, operation_id: str) -> Approval | None:
        """Return the approval of an operation that no attempt has used."""
        return self._database.read(lambda execute: approvals.standing(execute, operation_id))

    def settle_approval(self, operation_id: str, decision: Decision | None) -> Approval:
        """Note what a host has decided, unless somebody else was faster; return what holds."""

        def step(execute: Execute) -> Approval:
            approval = approvals.ask(execute, operation_id, "")
            if approval.approved is not None or decision is None:
                return approval
            approvals.decide(execute, operation_id, approved=decision.approved, by=decision.by, note=decision.note)
            return approvals.ask(execute, operation_id, "")

        return self._database.write(step)

    def settle(
        self, operation: Operation, outcome: Literal["happened", "did_not_happen"], *, data: JSON, note: str
    ) -> bool:
        """Resolve an operation like `resolve`, if it is still as it was seen. Return whether it was."""
        resolution = _resolution(outcome, data, note)
        if len(resolution[1] or "") > self.max_result_bytes:
            return False

        def step(execute: Execute) -> bool:
            if _operations(execute, operation.operation_id) != [operation]:
                return False
            execute(_RESOLVE, (*resolution, operation.operation_id))
            return True

        return self._database.write(step)

    def finish(self, asked: Asked, result: ToolResult) -> ToolResult:
        """Note what an attempt gave, and return what the caller is to be given. Durable when this returns."""
        data: str | None = None
        if isinstance(result, Returned):
            encoded = strictjson.dumps(result.data)
            data = encoded.decode()
            if len(encoded) > self.max_result_bytes:
                result, data = self._too_large(asked, result, len(encoded)), None
        state = OperationState.SUCCEEDED
        if isinstance(result, Failed):
            blocked = result.retry == "blocked"
            state = OperationState.NEEDS_ATTENTION if blocked else OperationState.OPEN
        report = None if data is None else strictjson.dumps(result.report.as_json()).decode()
        after, why = state_after(result), _why(result)

        def step(execute: Execute) -> None:
            self._settle(execute, asked, after, *why)
            execute(
                "UPDATE operations SET state = ?, data = ?, report = ? WHERE operation_id = ?",
                (state, data, report, asked.operation_id),
            )

        self._database.write(step)
        return result

    def abandon(self, asked: Asked, error: str, *, nothing_started: bool = False) -> None:
        """Note that a call was cancelled or raised. If its tool was about to start, what is guarded needs attention.

        Args:
            asked: The call.
            error: What it ended with.
            nothing_started: It is known that the tool was not started, though it was about to be.
        """

        def step(execute: Execute) -> None:
            is_prepared = "SELECT 1 FROM attempts WHERE attempt_id = ? AND state = 'prepared'"
            may_have_started = not nothing_started and execute(is_prepared, (asked.attempt_id,)).fetchone() is None
            after = AttemptState.CANCELLED if may_have_started else AttemptState.NOT_STARTED
            self._settle(execute, asked, after, "cancelled" if error == "Cancelled" else "raised", error)
            if may_have_started and asked.is_guarded:
                self._blame(execute, asked.operation_id)

        self._database.write(step)

    # Steps of these

    def _enter(self, execute: Execute) -> None:
        owner = self._owner
        execute("INSERT INTO owners VALUES (?, ?, ?, ?)", (owner.name, owner.pid, socket.gethostname(), _now()))

    def _leave(self, execute: Execute) -> None:
        if not _left_by(execute, self.owner):  # else that is for a recovery to find
            execute("DELETE FROM owners WHERE owner = ?", (self.owner,))
            owners.remove(self._owner.folder, self.owner)

    def _claim(self, execute: Execute, asked: Asked) -> ToolResult | None:
        known = self._known(execute, asked.operation_id)
        if known is None:
            execute(
                "INSERT INTO operations VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, '')",
                (
                    asked.operation_id,
                    asked.tool,
                    asked.revision,
                    asked.digest,
                    asked.side_effects,
                    asked.retry,
                    OperationState.OPEN,
                    _now(),
                ),
            )
        elif (answer := self._answer(execute, asked, known)) is not None:
            return answer
        tries = "SELECT count(*) FROM attempts WHERE operation_id = ?"
        number = execute(tries, (asked.operation_id,)).fetchone()[0] + 1
        execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL, '')",
            (asked.attempt_id, asked.operation_id, number, AttemptState.PREPARED, self.owner, _now()),
        )
        self._in_flight.add(asked.attempt_id)
        return None

    def _known(self, execute: Execute, operation_id: str) -> _Known | None:
        row = execute(
            "SELECT tool, revision, digest, state, data, report FROM operations WHERE operation_id = ?", (operation_id,)
        ).fetchone()
        return None if row is None else _Known(*row)

    def _named(self, execute: Execute, operation_id: str) -> _Known:
        """Return what stands in the file of an operation that somebody has named."""
        known = self._known(execute, operation_id)
        if known is None:
            raise JournalError(f"there is no operation {operation_id!r} in {self.path.name}")
        return known

    def _answer(self, execute: Execute, asked: Asked, known: _Known) -> ToolResult | None:
        """Return what a call of an operation that is known is answered with; None lets it be tried again."""
        if known.digest != asked.digest:
            is_same_tool = (known.tool, known.revision) == (asked.tool, asked.revision)
            what = "other arguments" if is_same_tool else f'tool "{known.tool}" of revision {known.revision}'
            return _refused(
                asked,
                FailureKind.CONFLICT,
                f"operation {asked.operation_id!r} was called before with {what}. An effect of its own needs an id of "
                "its own.",
            )
        live = execute(
            "SELECT attempt_id, state, owner FROM attempts WHERE operation_id = ? "
            "AND state IN ('prepared', 'starting')",
            (asked.operation_id,),
        ).fetchone()
        if live is not None:
            attempt_id, state, owner = live
            if self._is_in_flight(attempt_id, owner):
                said = f"operation {asked.operation_id!r} is being called already; wait for that call to end."
                return _refused(asked, FailureKind.IN_PROGRESS, said)
            self._lose(execute, attempt_id, asked.operation_id, state)
            known = self._known(execute, asked.operation_id) or known
        if known.data is not None:
            report: Any = {} if known.report is None else strictjson.loads(known.report)
            names = {"tool": asked.tool, "operation_id": asked.operation_id}
            return Returned(strictjson.loads(known.data), report_of(report | names))
        if known.state == OperationState.NEEDS_ATTENTION:
            said = (
                f"operation {asked.operation_id!r} was tried before, and what came of it is not known or cannot be "
                "repeated. Find out whether it has happened, and have it resolved; an effect of its own needs an id "
                "of its own."
            )
            return _refused(asked, FailureKind.NEEDS_ATTENTION, said)
        approval = approvals.standing(execute, asked.operation_id)
        if approval is not None and approval.approved is False:
            return attrs.evolve(refused(asked.tool, approval.by, approval.note), report=_report(asked))
        if approval is not None and approval.approved is None and not asked.is_gated:
            return attrs.evolve(awaiting(asked.tool, asked.operation_id), report=_report(asked))
        return None

    def _too_large(self, asked: Asked, result: Returned, size: int) -> Failed:
        return Failed(
            FailureKind.TOO_LARGE,
            f'tool "{asked.tool}" has succeeded, and its result of {size:,} bytes is more than the '
            f"{self.max_result_bytes:,} that the journal keeps. It is not tried again; the host has to raise "
            "max_result_bytes, or the tool to return less.",
            code="journal",
            started=True,
            retry="blocked",
            report=result.report,
        )

    def _lose(self, execute: Execute, attempt_id: str, operation_id: str, state: str) -> None:
        """Settle an attempt whose host is gone."""
        was_started = state != AttemptState.PREPARED
        after = AttemptState.UNKNOWN if was_started else AttemptState.NOT_STARTED
        execute(
            "UPDATE attempts SET state = ?, ended_at = ?, kind = ?, message = ? WHERE attempt_id = ?",
            (after, _now(), "host_lost", "the host ended before it could say what came of it", attempt_id),
        )
        if was_started:
            self._blame(execute, operation_id)

    def _blame(self, execute: Execute, operation_id: str) -> None:
        execute(
            "UPDATE operations SET state = ? WHERE operation_id = ? AND state = ?",
            (OperationState.NEEDS_ATTENTION, operation_id, OperationState.OPEN),
        )

    def _settle(self, execute: Execute, asked: Asked, state: AttemptState, kind: str | None, message: str) -> None:
        """Note the end of an attempt of this host."""
        changed = execute(
            "UPDATE attempts SET state = ?, ended_at = ?, kind = ?, message = ? WHERE attempt_id = ? "
            "AND state IN ('prepared', 'starting')",
            (state, _now(), kind, message[:MESSAGE_CHARS], asked.attempt_id),
        )
        self._refuse_lost(asked, changed.rowcount)
        if state is AttemptState.NOT_STARTED:
            approvals.give_back(execute, asked.attempt_id)

    def _refuse_lost(self, asked: Asked, changed: int) -> None:
        """Refuse to go on with an attempt that another host has settled: it may be making one of its own."""
        if changed != 1:
            raise JournalError(
                f"another host of the journal {self.path.name} took this one for gone, and has settled its call of "
                f"operation {asked.operation_id!r}: all hosts have to share the folder {self._owner.folder.name} and "
                "let its files be"
            )

    def _is_in_flight(self, attempt_id: str, owner: str) -> bool:
        """Return whether somebody is making an attempt. One whose end could not be noted nobody makes any more."""
        if owner == self.owner:
            return attempt_id in self._in_flight
        return owners.is_alive(self._owner.folder, owner)


@attrs.frozen
class _Known:
    """What stands in the file of an operation."""

    tool: str
    revision: str
    digest: str
    state: str
    data: str | None
    report: str | None


def _refused(asked: Asked, kind: FailureKind, message: str) -> Failed:
    """Return the failure of a call that is not made."""
    return Failed(
        kind,
        message,
        retry="blocked" if kind is FailureKind.NEEDS_ATTENTION else "allowed",
        report=_report(asked),
    )


def _report(asked: Asked) -> CallReport:
    """Return the report of a call that is not made."""
    return CallReport(tool=asked.tool, operation_id=asked.operation_id, attempt_id=asked.attempt_id)


def _why(result: ToolResult) -> tuple[str | None, str]:
    """Return the kind and the message of a failure, as they are kept."""
    if not isinstance(result, Failed):
        return None, ""
    # What is said of arguments that were refused may quote them, and arguments are not kept.
    return str(result.kind), "" if result.kind is FailureKind.INVALID_INPUT else result.message


def _left_by(execute: Execute, owner: str) -> list[tuple[str, str, str]]:
    """Return the attempts of a host that are in flight: their ids, their operations and their states."""
    return execute(
        "SELECT attempt_id, operation_id, state FROM attempts WHERE owner = ? AND state IN ('prepared', 'starting')",
        (owner,),
    ).fetchall()


_RESOLVE = "UPDATE operations SET state = ?, data = ?, note = ? WHERE operation_id = ?"


def _resolution(outcome: Literal["happened", "did_not_happen"], data: JSON, note: str) -> tuple[str, str | None, str]:
    """Return what is noted when it is known what became of an operation: its state, its data, a note."""
    if outcome == "happened":
        return OperationState.SUCCEEDED, strictjson.dumps(data).decode(), note
    return OperationState.OPEN, None, note


def _needing_attention(execute: Execute) -> list[Operation]:
    ids = "SELECT operation_id FROM operations WHERE state = 'needs_attention' ORDER BY created_at DESC, operation_id"
    return [each for (operation_id,) in execute(ids).fetchall() for each in _operations(execute, operation_id)]


def _operations(execute: Execute, operation_id: str | None = None) -> list[Operation]:
    """Return one operation, or all, with their attempts."""
    # Not one statement for both: no index would be used.
    one, values = ("", ()) if operation_id is None else ("WHERE operation_id = ?", (operation_id,))
    columns = "operation_id, tool, revision, digest, side_effects, retry, state, created_at, data, note"
    newest_first = f"SELECT {columns} FROM operations {one} ORDER BY created_at DESC, operation_id"  # noqa: S608 - ours
    in_order = f"SELECT * FROM attempts {one} ORDER BY operation_id, number"  # noqa: S608
    rows = execute(newest_first, values).fetchall()
    tries: dict[str, list[Attempt]] = {}
    for row in execute(in_order, values):
        tries.setdefault(row[1], []).append(_attempt(row))
    asked = approvals.all_approvals(execute, operation_id)
    return [_operation(row, tuple(tries.get(row[0], ())), tuple(asked.get(row[0], ()))) for row in rows]


def _operation(row: tuple[Any, ...], attempts: tuple[Attempt, ...], approved: tuple[Approval, ...]) -> Operation:
    operation_id, tool, revision, digest, side_effects, retry, state, created_at, data, note = row
    return Operation(
        operation_id=operation_id,
        tool=tool,
        revision=revision,
        digest=digest,
        side_effects=side_effects,
        retry=retry,
        state=_state(OperationState(state), attempts, approved),
        created_at=datetime.datetime.fromisoformat(created_at),
        attempts=attempts,
        approvals=approved,
        note=note,
        data=None if data is None else strictjson.loads(data),
    )


def _state(noted: OperationState, attempts: tuple[Attempt, ...], approved: tuple[Approval, ...]) -> OperationState:
    """Return the state of an operation, which is more than what is noted of it."""
    standing = approved[-1] if approved and approved[-1].attempt_id is None else None
    if noted is OperationState.OPEN and standing is not None and not standing.approved:
        return OperationState.AWAITING_APPROVAL if standing.approved is None else OperationState.DENIED
    return OperationState.IN_PROGRESS if any(attempt.state in _LIVE for attempt in attempts) else noted


def _attempt(row: tuple[Any, ...]) -> Attempt:
    attempt_id, _operation_id, number, state, owner, prepared_at, started_at, ended_at, kind, message = row
    return Attempt(
        attempt_id=attempt_id,
        number=number,
        state=AttemptState(state),
        owner=owner,
        prepared_at=datetime.datetime.fromisoformat(prepared_at),
        started_at=None if started_at is None else datetime.datetime.fromisoformat(started_at),
        ended_at=None if ended_at is None else datetime.datetime.fromisoformat(ended_at),
        kind=kind,
        message=message,
    )


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()
