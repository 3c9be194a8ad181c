"""Approvals in a journal: asked for, decided by somebody, and used by one attempt, in the note of its start.

Each function is a step of a transaction.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from heddle.operations.records import Approval

if TYPE_CHECKING:
    from heddle.operations.writing import Execute

__all__ = ["all_approvals", "ask", "decide", "give_back", "standing", "use"]

_COLUMNS = "arguments, asked_at, approved, decided_by, note, decided_at, attempt_id"


def ask(execute: Execute, operation_id: str, arguments: str) -> Approval:
    """Return the approval that an operation has or waits for; one is asked for where there is none."""
    found = standing(execute, operation_id)
    if found is not None:
        return found
    now = datetime.datetime.now(datetime.UTC)
    execute(
        "INSERT INTO approvals VALUES (?, ?, ?, NULL, '', '', NULL, NULL)", (operation_id, arguments, now.isoformat())
    )
    return Approval(arguments=arguments, asked_at=now)


def standing(execute: Execute, operation_id: str) -> Approval | None:
    """Return the approval of an operation that no attempt has used; there is one at most."""
    row = execute(
        f"SELECT {_COLUMNS} FROM approvals WHERE operation_id = ? AND attempt_id IS NULL",  # noqa: S608 - ours
        (operation_id,),
    ).fetchone()
    return None if row is None else _approval(row)


def decide(execute: Execute, operation_id: str, *, approved: bool, by: str, note: str) -> bool:
    """Note a decision, in place of one that no attempt has used yet. Return whether there is anything to decide."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    changed = execute(
        "UPDATE approvals SET approved = ?, decided_by = ?, note = ?, decided_at = ? "
        "WHERE operation_id = ? AND attempt_id IS NULL",
        (int(approved), by, note, now, operation_id),
    )
    return changed.rowcount == 1


def use(execute: Execute, operation_id: str, attempt_id: str) -> bool:
    """Note that an attempt uses the approval of its operation. Return whether there was one to use."""
    changed = execute(
        "UPDATE approvals SET attempt_id = ? WHERE operation_id = ? AND attempt_id IS NULL AND approved = 1",
        (attempt_id, operation_id),
    )
    return changed.rowcount == 1


def give_back(execute: Execute, attempt_id: str) -> None:
    """Let the approval that an attempt has used be used by the next one, because nothing was started."""
    execute("UPDATE approvals SET attempt_id = NULL WHERE attempt_id = ?", (attempt_id,))


def all_approvals(execute: Execute, operation_id: str | None = None) -> dict[str, list[Approval]]:
    """Return the approvals of one operation, or of all, in the order in which they were asked for."""
    one, values = ("", ()) if operation_id is None else ("WHERE operation_id = ?", (operation_id,))
    found: dict[str, list[Approval]] = {}
    for whose, *row in execute(f"SELECT operation_id, {_COLUMNS} FROM approvals {one} ORDER BY rowid", values):  # noqa: S608
        found.setdefault(whose, []).append(_approval(row))
    return found


def _approval(row: Any) -> Approval:
    arguments, asked_at, approved, by, note, decided_at, attempt_id = row
    return Approval(
        arguments=arguments,
        asked_at=datetime.datetime.fromisoformat(asked_at),
        approved=None if approved is None else bool(approved),
        by=by,
        note=note,
        decided_at=None if decided_at is None else datetime.datetime.fromisoformat(decided_at),
        attempt_id=attempt_id,
    )
