"""``heddle operations``: what a journal holds, and what somebody has found out about it."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from heddle import strictjson
from heddle.cli.views import escaped, print_table, refuse
from heddle.errors import JournalError, StrictJsonError
from heddle.operations import Journal, OperationState
from heddle.operations.terminal import user

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from heddle.operations import Attempt, Operation
    from heddle.strictjson import JSON

__all__ = ["operations"]

_FILE = click.argument("file", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False))
_ID = click.argument("operation_id", metavar="ID")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_NOTE = click.option("--note", default="", metavar="TEXT", help="Why, for whoever reads it later.")
_BY = click.option("--by", metavar="NAME", help="Who decides; the name of this user unless given.")
_WHAT_TO_DO = {
    OperationState.NEEDS_ATTENTION: "Find out whether it has happened, then say so: "
    "heddle operations resolve FILE ID happened, or did_not_happen",
    OperationState.AWAITING_APPROVAL: "Decide: heddle operations approve FILE ID, or heddle operations deny FILE ID",
}


@click.group()
def operations() -> None:
    """Say what is in a journal, resolve what needs attention, and approve what awaits it.

    Whatever hosts that are gone have left in flight is recovered first; what it was is said on standard error.
    """


@operations.command("ls")
@_FILE
@click.option("--state", type=click.Choice([str(each) for each in OperationState]), help="Only those in this state.")
@_JSON
def list_operations(file: Path, *, state: str | None, as_json: bool) -> None:
    """List the operations in FILE, the latest first."""
    with _opened(file) as journal:
        found = journal.operations(state)
    _show(found, as_json=as_json, none=f"no operations in {file}" if state is None else f"none is {state}")


@operations.command()
@_FILE
@_ID
@_JSON
def show(file: Path, operation_id: str, *, as_json: bool) -> None:
    """Show the operation ID in FILE, and every attempt at it."""
    with _opened(file) as journal:
        operation = _operation(journal, operation_id)
    if as_json:
        click.echo(json.dumps(operation.as_json()))
        return
    click.echo(escaped("\n".join(_lines(operation))))
    if operation.state in _WHAT_TO_DO:
        click.echo(f"\n{_WHAT_TO_DO[operation.state]}", err=True)


@operations.command()
@_FILE
@_ID
@click.argument("outcome", type=click.Choice(["happened", "did_not_happen"]))
@click.option("--data", metavar="JSON", help="What it would have returned, for calls with its id. null unless given.")
@_NOTE
@_JSON
def resolve(
    file: Path,
    operation_id: str,
    outcome: Literal["happened", "did_not_happen"],
    *,
    data: str | None,
    note: str,
    as_json: bool,
) -> None:
    """Say what became of the operation ID in FILE, which needs attention.

    If it happened, calls with its id are answered from now on; if it did not, it may be called again.
    """
    if data is not None and outcome != "happened":
        raise click.BadParameter("only what happened has data", param_hint="--data")
    try:
        value = None if data is None else strictjson.loads(data)
    except StrictJsonError as error:
        refuse(f"--data is not strict JSON: {error}")
    with _opened(file) as journal:
        _operation(journal, operation_id)
        with _refusals():
            operation = journal.resolve(operation_id, outcome, data=value, note=note)
    _show([operation], as_json=as_json)


@operations.command()
@_FILE
@_ID
@_BY
@_NOTE
@_JSON
def approve(file: Path, operation_id: str, *, by: str | None, note: str, as_json: bool) -> None:
    """Approve the operation ID in FILE, which awaits that.

    A call of it that waits at this moment goes on. Else its next call is made, once, without another question.
    """
    _decide(file, operation_id, approved=True, by=by, note=note, as_json=as_json)


@operations.command()
@_FILE
@_ID
@_BY
@_NOTE
@_JSON
def deny(file: Path, operation_id: str, *, by: str | None, note: str, as_json: bool) -> None:
    """Refuse the operation ID in FILE, which awaits approval; calls of it are denied until somebody approves it."""
    _decide(file, operation_id, approved=False, by=by, note=note, as_json=as_json)


def _decide(file: Path, operation_id: str, *, approved: bool, by: str | None, note: str, as_json: bool) -> None:
    with _opened(file) as journal:
        _operation(journal, operation_id)
        with _refusals():
            operation = journal.decide(operation_id, approved, user() if by is None else by, note)
    _show([operation], as_json=as_json)


@operations.command()
@_FILE
@_JSON
def recover(file: Path, *, as_json: bool) -> None:
    """Settle what hosts that are gone have left in flight in FILE, and list it.

    What was about to start needs attention then; what was not may be called again. Hosts that live are let be.
    """
    with _opened(file, says_what_was_recovered=False) as journal:
        found = journal.recovered
    _show(found, as_json=as_json, none="there was nothing to recover")


@contextlib.contextmanager
def _opened(file: Path, *, says_what_was_recovered: bool = True) -> Generator[Journal, None, None]:
    try:
        journal = Journal.open(file)
    except JournalError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename or file}: {error.strerror}")
    with journal:
        if says_what_was_recovered:
            for operation in journal.recovered:
                click.echo(escaped(f"recovered: {operation.operation_id} is {operation.state} now"), err=True)
        yield journal


@contextlib.contextmanager
def _refusals() -> Generator[None, None, None]:
    """Say why a journal refuses what was asked for, and exit."""
    try:
        yield
    except JournalError as error:
        click.echo(escaped(f"heddle: {error}"), err=True)
        sys.exit(1)


def _operation(journal: Journal, operation_id: str) -> Operation:
    operation = journal.operation(operation_id)
    if operation is None:
        click.echo(escaped(f"there is no operation {operation_id!r} in {journal.path.name}"), err=True)
        sys.exit(1)
    return operation


# How operations look


def _show(operations: Iterable[Operation], *, as_json: bool, none: str = "") -> None:
    """Print JSON; or a table on a terminal, one tab-separated line an operation elsewhere."""
    if as_json:
        said: list[JSON] = [operation.as_json() for operation in operations]
        click.echo(json.dumps(said))
        return
    rows = [_row(operation) for operation in operations]
    if not rows:
        click.echo(escaped(none), err=True)
    elif sys.stdout.isatty():
        print_table(("Operation", "Tool", "State", "Tries", "Since", "Last"), rows)
    else:
        for row in rows:
            click.echo("\t".join(row))


def _row(operation: Operation) -> tuple[str, ...]:
    last = operation.attempts[-1] if operation.attempts else None
    return (
        escaped(operation.operation_id),
        operation.tool,
        str(operation.state),
        str(len(operation.attempts)),
        _time(operation.created_at),
        "" if last is None else f"{last.state} {_time(last.ended_at or last.started_at or last.prepared_at)}",
    )


def _lines(operation: Operation) -> Iterable[str]:
    yield f"Operation:  {operation.operation_id}"
    yield f"Tool:       {operation.tool}, revision {operation.revision}"
    yield f"Declared:   side effects {operation.side_effects}, retry {operation.retry}"
    yield f"State:      {operation.state}"
    yield f"Since:      {_time(operation.created_at)}"
    if operation.note:
        yield f"Note:       {operation.note}"
    if operation.state is OperationState.SUCCEEDED:
        yield f"Returned:   {json.dumps(operation.data, ensure_ascii=False)}"
    for approval in operation.approvals:
        yield ""
        yield f"Asked for:  {approval.arguments}"
        yield f"  asked     {_time(approval.asked_at)}"
        if approval.decided_at is not None:
            by = f" by {approval.by}" if approval.by else ""
            yield f"  {'approved ' if approval.approved else 'denied   '} {_time(approval.decided_at)}{by}"
        if approval.note:
            yield f"  note      {approval.note}"
        if approval.attempt_id is not None:
            yield f"  used      by attempt {approval.attempt_id}"
    for attempt in operation.attempts:
        yield ""
        yield f"Attempt {attempt.number}:  {attempt.state} ({attempt.attempt_id})"
        yield from _times(attempt)
        if attempt.kind is not None:
            yield f"  why       {attempt.kind}" + (f": {attempt.message}" if attempt.message else "")


def _times(attempt: Attempt) -> Iterable[str]:
    named = (("prepared", attempt.prepared_at), ("starting", attempt.started_at), ("ended", attempt.ended_at))
    for name, moment in named:
        if moment is not None:
            yield f"  {name:<9} {_time(moment)}"


def _time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
