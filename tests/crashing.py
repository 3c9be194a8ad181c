"""Hosts that are killed at a chosen instant of a journaled call, and what has to hold whenever that was.

    python -m tests.crashing        starts hosts as they are asked for on standard input

Every host is a fork of one process that has imported everything and has no threads, so that two hundred of them take
seconds. It is killed by itself, between two statements of its journal; or by its tool, in the middle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import attrs
import trio

import heddle
from heddle import places
from heddle.operations import Journal, OperationState, approvals, schema
from heddle.operations.records import Asked
from heddle.strictjson import JSON

ROOT = Path(__file__).parent.parent
DATA: JSON = {"paid": 5}
# The steps of a journal that a host takes; each is some statements.
STEPS = ("recover", "claim", "ask", "settle_approval", "start", "finish")


@attrs.frozen
class Crash:
    """Where a host ends.

    Attributes:
        step: One of `STEPS`; or ``launch``: the program has ended; or ``tool``: it kills its host.
        nth: Before which of the statements, from 1; 0 means after them all. Of ``tool``: 1 is before the line that it
            writes, 0 after it.
        tool: ``pay`` must not be repeated, ``note`` may be.
    """

    step: str
    nth: int
    tool: str = "pay"

    @property
    def is_started(self) -> bool:
        """Whether it is in the journal that the tool is about to start."""
        return (self.step, self.nth) == ("start", 0) or self.step in {"launch", "tool", "finish", "recover"}

    @property
    def is_finished(self) -> bool:
        return (self.step, self.nth) == ("finish", 0)

    @property
    def leaves(self) -> OperationState | None:
        """What is known of the operation when somebody opens the journal afterwards."""
        if self.is_finished:
            return OperationState.SUCCEEDED
        if self.is_started:
            return OperationState.NEEDS_ATTENTION
        if (self.step, self.nth) == ("ask", 0) or (self.step == "settle_approval" and self.nth):
            return OperationState.AWAITING_APPROVAL
        return None if self.step == "claim" and self.nth else OperationState.OPEN


def tools_of(folder: Path) -> heddle.Registry:
    """Return two tools that write a line into the folder's ledger each time they run, and may kill their host."""
    program = folder / "tool"
    if not program.exists():
        program.write_text(
            textwrap.dedent(f"""\
            #!/bin/sh
            cd {folder}
            kill_host() {{ kill -9 "$(cat host)"; exec sleep 60; }}
            [ -e before ] && kill_host
            echo "$HEDDLE_OPERATION_ID" >> ledger
            [ -e after ] && kill_host
            echo '{json.dumps(DATA)}'
            """)
        )
        program.chmod(0o755)
    implementation = heddle.Program(program)
    return heddle.Registry(
        [
            heddle.ToolDef(name="pay", implementation=implementation, side_effects="write", retry="manual"),
            heddle.ToolDef(name="note", implementation=implementation, side_effects="write", retry="idempotent"),
        ]
    )


def ledger_of(folder: Path) -> Counter[str]:
    """Return how often each operation has happened."""
    with contextlib.suppress(FileNotFoundError):
        return Counter((folder / "ledger").read_text().split())
    return Counter()


# The host that is killed


def be_a_host(folder: Path, operation_id: str, crash: Crash, fault: str) -> None:
    """Make one call, and be killed in the middle of it."""
    if fault:
        FAULTS[fault]()
    (folder / "host").write_text(str(os.getpid()))
    if crash.step == "tool":
        (folder / ("before" if crash.nth else "after")).touch()
    _watch(crash, folder / "statements")
    trio.run(_call, folder, crash.tool, operation_id)


async def _call(folder: Path, tool: str, operation_id: str) -> None:
    with Journal.open(folder / "journal.db") as journal:
        async with heddle.Runner(tools_of(folder), journal=journal, approve=lambda _: True) as runner:
            await runner.call(tool, {"amount": 5}, operation_id=operation_id)


def _watch(crash: Crash, survey: Path) -> None:
    """Have this process killed before the statement of the step, and every statement before that written down."""
    step, nth = "", 0

    def at(this_step: str, this_nth: int) -> None:
        if (this_step, this_nth) == (crash.step, crash.nth):
            os.kill(os.getpid(), signal.SIGKILL)

    class Watched:
        def __init__(self, database: sqlite3.Connection) -> None:
            self.database = database

        def __getattr__(self, name: str) -> Any:
            return getattr(self.database, name)

        def execute(self, *statement: Any) -> sqlite3.Cursor:
            nonlocal nth
            if step:
                nth += 1
                at(step, nth)
                with survey.open("a") as file:
                    file.write(f"{step}\n")
            return self.database.execute(*statement)

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def take(*args: Any, **options: Any) -> Any:
            nonlocal step, nth
            step, nth = name, 0
            result = method(*args, **options)
            at(name, 0)
            step = ""
            return result

        return take

    for name in STEPS:
        setattr(Journal, name, watched(name, getattr(Journal, name)))
    connect, launch = schema.connect, places.ScopePlace.launch

    async def launch_and_die(*args: Any) -> Any:
        result = await launch(*args)
        at("launch", 0)
        return result

    _replace(schema, "connect", lambda *args: Watched(connect(*args)))
    _replace(places.ScopePlace, "launch", launch_and_die)


# Faults, to prove that they are found


def _start_is_not_committed() -> None:
    connect, start = schema.connect, Journal.start
    is_starting = False

    class Forgetful:
        def __init__(self, database: sqlite3.Connection) -> None:
            self.database = database

        def __getattr__(self, name: str) -> Any:
            return getattr(self.database, name)

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            is_dropped = is_starting and statement == "COMMIT"
            return self.database.execute("ROLLBACK" if is_dropped else statement, *values)

    def start_and_forget(journal: Journal, asked: Asked) -> None:
        nonlocal is_starting
        is_starting = True
        start(journal, asked)
        is_starting = False

    _replace(schema, "connect", lambda *args: Forgetful(connect(*args)))
    _replace(Journal, "start", start_and_forget)


def _finish_is_written_before_the_end() -> None:
    start = Journal.start

    def start_and_finish(journal: Journal, asked: Asked) -> None:
        start(journal, asked)
        journal.finish(asked, heddle.Returned(DATA))

    _replace(Journal, "start", start_and_finish)


def _recovery_takes_all_for_not_started() -> None:
    lose = Journal._lose
    _replace(
        Journal,
        "_lose",
        lambda journal, execute, attempt, operation, _: lose(journal, execute, attempt, operation, "prepared"),
    )


def _an_approval_is_not_used_up() -> None:
    _replace(approvals, "use", lambda *_: True)


FAULTS: dict[str, Callable[[], None]] = {
    "start is not committed": _start_is_not_committed,
    "finish is written before the end": _finish_is_written_before_the_end,
    "an approval is not used up": _an_approval_is_not_used_up,
    "recovery takes all for not started": _recovery_takes_all_for_not_started,
}


def _replace(owner: Any, name: str, value: object) -> None:
    setattr(owner, name, value)


# Where hosts come from


class Hosts:
    """Starts hosts and waits until they are dead."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crashing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def run(self, folder: Path, operation_id: str, crash: Crash, fault: str = "") -> int:
        """Have a host make a call; return how it ended, as `os.waitstatus_to_exitcode` does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = [str(folder), operation_id, attrs.astuple(crash), fault]
        print(json.dumps(order), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        for name in ("before", "after"):
            (folder / name).unlink(missing_ok=True)
        return status

    def crash(self, folder: Path, operation_id: str, crash: Crash, fault: str = "") -> None:
        """Have a host killed there. One that is killed in a recovery finds something to recover."""
        if crash.step == "recover":
            assert self.run(folder, operation_id, attrs.evolve(crash, step="tool", nth=0), fault) == -signal.SIGKILL
        assert self.run(folder, operation_id, crash, fault) == -signal.SIGKILL, f"{crash} was not reached"

    def boundaries(self, folder: Path) -> list[Crash]:
        """Return every place at which a host may be killed, as a host that is not killed passes them."""
        self.crash(folder, "left", Crash("tool", 0))
        (folder / "statements").unlink()
        assert self.run(folder, "survey", Crash("none", 0)) == 0
        statements = Counter((folder / "statements").read_text().split())
        found = [Crash(step, nth) for step in STEPS for nth in range(statements[step] + 1)]
        return [*found, Crash("launch", 0), Crash("tool", 0), Crash("tool", 1)]


def _start_hosts() -> None:
    for line in sys.stdin:
        folder, operation_id, crash, fault = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                be_a_host(Path(folder), operation_id, Crash(*crash), fault)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


# What has to hold


async def broken_promises(folder: Path, operation_id: str, crash: Crash) -> list[str]:
    """Open the journal after a crash, call again, resolve, call again; return whatever is not as it has to be."""
    found: list[str] = []

    def expect(what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            found.append(f"{crash}: {what}: {seen!r}, not {wanted!r}")

    def happened() -> int:
        return ledger_of(folder)[operation_id]

    with Journal.open(folder / "journal.db") as journal:
        operation = journal.operation(operation_id)
        state = None if operation is None else operation.state
        expect("the operation is", state, crash.leaves)
        expect("in flight are", [each.operation_id for each in journal.operations("in_progress")], [])
        if state == OperationState.SUCCEEDED:
            expect("happened", happened(), 1)
        elif state != OperationState.NEEDS_ATTENTION:
            expect("happened", happened(), 0)
        async with heddle.Runner(tools_of(folder), journal=journal, approve=lambda _: True) as runner:
            again = partial(runner.call, crash.tool, {"amount": 5}, operation_id=operation_id)
            before, result = happened(), await again()
            answer = (result.ok, getattr(result, "kind", None), result.report.replayed, happened() - before)
            expect("called again it gives", answer, ANSWERS[crash.leaves])
            if isinstance(result, heddle.Failed) and result.kind == "needs_attention":
                if happened():  # as somebody would who looks into the ledger
                    journal.resolve(operation_id, "happened", data=DATA)
                else:
                    journal.resolve(operation_id, "did_not_happen")
            expect("in the end it gives", await again(), heddle.Returned(DATA))
        expect("in the end it has happened", happened(), 1)
        operation = journal.operation(operation_id)
        assert operation is not None
        approved = [each.attempt_id for each in operation.approvals]
        expect("approved are", approved, [each.attempt_id for each in operation.attempts if each.started_at])
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as database:
        expect("the database is", database.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
    return found


# ok, kind, replayed, how often it runs
ANSWERS = {
    None: (True, None, False, 1),
    OperationState.OPEN: (True, None, False, 1),
    OperationState.AWAITING_APPROVAL: (True, None, False, 1),
    OperationState.NEEDS_ATTENTION: (False, "needs_attention", False, 0),
    OperationState.SUCCEEDED: (True, None, True, 0),
}

if __name__ == "__main__":
    _start_hosts()
