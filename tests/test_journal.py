"""The journal: who gets an operation, what is known of it, who shares the file, and what happens when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle.operations import Journal, Operation, schema
from heddle.operations.records import Asked, digest_of
from heddle.operations.writing import Execute
from heddle.process import Command, Confinement, Exit, Launcher, LauncherSession
from heddle.results import Retry
from tests.hosting import ROOT, host, run_host
from tests.support import Toolbox, until, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal.open(path) as journal:
        yield journal


def asked(operation_id: str = "op", attempt_id: str = "a1", *, tool: str = "pay", retry: Retry = "manual") -> Asked:
    return Asked(
        operation_id=operation_id,
        attempt_id=attempt_id,
        tool=tool,
        revision="0",
        digest=digest_of(tool, "0", {}),
        side_effects="write",
        retry=retry,
    )


def failed(kind: str, *, started: bool, retry: Literal["allowed", "blocked"]) -> heddle.Failed:
    return heddle.Failed(heddle.FailureKind(kind), "it did not work", started=started, retry=retry)


def operation_in(journal: Journal, operation_id: str = "op") -> Operation:
    operation = journal.operation(operation_id)
    assert operation is not None
    return operation


def states(journal: Journal, operation_id: str = "op") -> tuple[str, list[str]]:
    """Return the state of an operation and those of its attempts."""
    operation = operation_in(journal, operation_id)
    return str(operation.state), [str(each.state) for each in operation.attempts]


def counting(
    toolbox: Toolbox, source: str = "echo '{}'", *, name: str = "pay", retry: Retry = "manual"
) -> heddle.ToolDef:
    """Return a program that writes a line for each time that it is started."""
    program = toolbox.sh(name, f'echo "$HEDDLE_OPERATION_ID" >> {toolbox.folder}/ledger\n{source}')
    return heddle.ToolDef(name=name, implementation=heddle.Program(program), side_effects="write", retry=retry)


def ledger(toolbox: Toolbox) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (toolbox.folder / "ledger").read_text().split()
    return []


# What makes two calls the same


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"b": 1, "c": [1]}}, {"a": {"c": [1.0], "b": 1.0}}),
        ({"a": 1}, ' {"a": 1.0}\n'),
        ({"a": "é"}, '{"a": "\\u00e9"}'),
        (None, {}),
        ("", "{}"),
        ("null", {}),
        ("{nonsense", "{nonsense"),
        ({"a": float("nan")}, {"a": float("nan")}),
        (nested(128), json.dumps(nested(128))),
        (nested(5000), nested(5000)),
    ],
)
def test_arguments_that_say_the_same_are_the_same(one: Any, other: Any) -> None:
    assert digest_of("pay", "0", one) == digest_of("pay", "0", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("pay", "0", {"a": 1}), ("pay", "0", {"a": 2})),
        (("pay", "0", {"a": 1}), ("pay", "0", {"a": True})),
        (("pay", "0", {"a": 1}), ("pay", "0", {"a": "1"})),
        (("pay", "0", {"a": [1, 2]}), ("pay", "0", {"a": [2, 1]})),
        (("pay", "0", {"a": None}), ("pay", "0", {})),
        (("pay", "0", nested(127)), ("pay", "0", nested(128))),
        (("pay", "0", "{nonsense"), ("pay", "0", "nonsense")),
        (("pay", "0", {}), ("pay", "1", {})),
        (("pay", "0", {}), ("refund", "0", {})),
    ],
)
def test_arguments_tools_and_revisions_that_differ_are_different(one: Any, other: Any) -> None:
    assert digest_of(*one) != digest_of(*other)


@pytest.mark.parametrize("other", ["arguments", "tool", "revision"])
async def test_an_id_is_not_used_for_something_else(toolbox: Toolbox, path: Path, other: str) -> None:
    tool = counting(toolbox)
    tools = [attrs.evolve(tool, revision="2" if other == "revision" else "0"), counting(toolbox, name="refund")]
    with Journal.open(path) as journal:
        async with heddle.Runner([tool], journal=journal) as runner:
            await runner.call("pay", {"amount": 5}, operation_id="op")

        async with heddle.Runner(tools, journal=journal) as runner:
            name, amount = "refund" if other == "tool" else "pay", 6 if other == "arguments" else 5
            result = await runner.call(name, {"amount": amount}, operation_id="op")

        seen = states(journal)
    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("conflict", False, "allowed")
    assert "An effect of its own needs an id of its own." in result.message
    assert (seen, ledger(toolbox)) == (("succeeded", ["succeeded"]), ["op"])


# One of many


async def test_of_two_calls_at_once_one_runs(toolbox: Toolbox, journal: Journal) -> None:
    tool = counting(toolbox, f"while [ ! -e {toolbox.folder}/go ]; do sleep 0.01; done; echo '{{}}'")
    kinds: list[str] = []

    async def call(runner: heddle.Runner) -> None:
        result = await runner.call("pay", operation_id="op")
        kinds.append(str(getattr(result, "kind", "returned")))

    async with heddle.Runner([tool], journal=journal) as one, heddle.Runner([tool], journal=journal) as other:
        async with trio.open_nursery() as nursery:
            for runner in (one, one, other):
                nursery.start_soon(call, runner)
            assert await until(lambda: len(kinds) == 2, 10)
            (toolbox.folder / "go").touch()

    assert kinds == ["in_progress", "in_progress", "returned"]
    assert ledger(toolbox) == ["op"]
    assert states(journal) == ("succeeded", ["succeeded"])


CALL = """
    import sys, trio, heddle

    async def main():
        tool = heddle.ToolDef(name="pay", implementation=heddle.Program(sys.argv[2]), side_effects="write")
        with heddle.Journal.open(sys.argv[1]) as journal:
            async with heddle.Runner([tool], journal=journal) as runner:
                print("ready", flush=True)
                input()
                result = await runner.call("pay", operation_id="op")
                print(getattr(result, "kind", "returned"))

    trio.run(main)
"""


def test_of_two_processes_at_once_one_runs(toolbox: Toolbox, path: Path) -> None:
    counting(toolbox, "sleep 0.5; echo '{}'")

    with host(CALL, path, toolbox.folder / "pay") as one, host(CALL, path, toolbox.folder / "pay") as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=30) for process in (one, other)]

    # The later one finds it in flight, or done if this machine has stopped for half a second.
    assert sorted(said) in ([("in_progress\n", ""), ("returned\n", "")], [("returned\n", ""), ("returned\n", "")])
    assert ledger(toolbox) == ["op"]


async def test_a_call_after_a_failure_is_another_attempt_at_the_same_operation(
    toolbox: Toolbox, journal: Journal
) -> None:
    """A program is told: by its request, and by its environment."""
    source = 'cat > "$0.$HEDDLE_ATTEMPT_ID"; echo "$HEDDLE_OPERATION_ID" >> "$0.$HEDDLE_ATTEMPT_ID"; exit 1'
    program = heddle.Program(toolbox.sh("note", source), protocol="envelope")
    tool = heddle.ToolDef(name="note", implementation=program, side_effects="write", retry="idempotent")

    async with heddle.Runner([tool], journal=journal) as runner:
        results = [await runner.call("note", operation_id="op") for _ in range(3)]

    attempts = [result.report.attempt_id for result in results]
    told = {}
    for attempt in attempts:
        request, variable = (toolbox.folder / f"note.{attempt}").read_text().replace("}op", "}\nop").splitlines()
        told[attempt] = (json.loads(request)["operationId"], json.loads(request)["attemptId"], variable)
    assert told == {attempt: ("op", attempt, "op") for attempt in attempts}
    assert len(told) == 3
    assert [(each.number, each.attempt_id) for each in operation_in(journal).attempts] == list(enumerate(attempts, 1))


# Attention


def blocked(journal: Journal, operation_id: str = "op") -> None:
    """Leave an operation that needs attention."""
    call = asked(operation_id, f"{operation_id}-1")
    assert journal.claim(call) is None
    journal.start(call)
    journal.finish(call, failed("timed_out", started=True, retry="blocked"))
    journal.forget(call.attempt_id)


async def test_what_needs_attention_is_not_called_again(toolbox: Toolbox, journal: Journal) -> None:
    async with heddle.Runner([counting(toolbox, "exit 1")], journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        result = await runner.call("pay", operation_id="op")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("needs_attention", False, "blocked")
    assert "have it resolved" in result.message
    assert ledger(toolbox) == ["op"]


async def test_what_is_said_to_have_happened_is_answered_with_what_is_said(toolbox: Toolbox, journal: Journal) -> None:
    async with heddle.Runner([counting(toolbox, "exit 1")], journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        resolved = journal.resolve("op", "happened", data={"receipt": 7}, note="seen at the bank")
        result = await runner.call("pay", operation_id="op")

    assert result == heddle.Returned({"receipt": 7})
    assert (result.report.tool, result.report.operation_id, result.report.replayed) == ("pay", "op", True)
    assert (resolved.state, resolved.data, resolved.note) == ("succeeded", {"receipt": 7}, "seen at the bank")
    assert ledger(toolbox) == ["op"]


async def test_what_is_said_not_to_have_happened_may_be_called(toolbox: Toolbox, journal: Journal) -> None:
    tool = counting(toolbox, f"[ -e {toolbox.folder}/ready ] || exit 1; echo '{{}}'")

    async with heddle.Runner([tool], journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        (toolbox.folder / "ready").touch()
        resolved = journal.resolve("op", "did_not_happen", note="not at the bank")
        result = await runner.call("pay", operation_id="op")

    assert result == heddle.Returned({})
    assert (resolved.state, resolved.note) == ("open", "not at the bank")
    assert states(journal) == ("succeeded", ["crashed", "succeeded"])


@pytest.mark.parametrize("state", ["open", "succeeded", "in_progress", None])
def test_only_what_needs_attention_is_resolved(journal: Journal, state: str | None) -> None:
    if state is not None:
        journal.claim(asked())
    if state == "open":
        journal.finish(asked(), failed("invalid_input", started=False, retry="allowed"))
    elif state == "succeeded":
        journal.finish(asked(), heddle.Returned({}))
    before = journal.operation("op")

    with pytest.raises(heddle.JournalError, match=r"needs? attention|there is no operation 'op'"):
        journal.resolve("op", "happened", data={"other": True})

    assert journal.operation("op") == before
    assert (None if before is None else before.state) == state


def test_an_outcome_is_one_of_two(journal: Journal) -> None:
    blocked(journal)

    with pytest.raises(ValueError, match="outcome must be 'happened' or 'did_not_happen', not 'maybe'"):
        journal.resolve("op", "maybe")  # type: ignore[arg-type]

    assert operation_in(journal).state == "needs_attention"


def test_operations_are_listed_by_their_state_the_latest_first(journal: Journal) -> None:
    for name in ("first", "second"):
        blocked(journal, name)
    journal.claim(asked("third", "a3"))

    listed = {
        state: [each.operation_id for each in journal.operations(state)]
        for state in (None, "needs_attention", "in_progress", "open")
    }

    assert listed == {
        None: ["third", "second", "first"],
        "needs_attention": ["second", "first"],
        "in_progress": ["third"],
        "open": [],
    }


# Several hosts


IN_FLIGHT = """
    import sys, heddle
    from heddle.operations.records import Asked, digest_of

    journal = heddle.Journal.open(sys.argv[1])
    for state in ("prepared", "starting"):
        name = f"{sys.argv[2]}-{state}"
        call = Asked(operation_id=name, attempt_id=name, tool="pay", revision="0", digest=digest_of("pay", "0", {}),
                     side_effects="write", retry=sys.argv[3])
        assert journal.claim(call) is None
        if state == "starting":
            journal.start(call)
    print("ready", flush=True)
    input()
"""


@contextlib.contextmanager
def in_flight(path: Path, name: str, retry: Retry = "manual") -> Iterator[subprocess.Popen[str]]:
    """Have another host that has two calls in flight, one of them about to start."""
    with host(IN_FLIGHT, path, name, retry) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.mark.parametrize("retry", ["manual", "idempotent"])
def test_what_a_host_that_was_killed_has_left_is_recovered(path: Path, retry: Retry) -> None:
    """What may have happened needs attention, whatever the tool declares."""
    with in_flight(path, "lost", retry) as lost, in_flight(path, "kept", retry), Journal.open(path) as journal:
        assert journal.recovered == ()
        lost.kill()
        lost.wait()

        recovered = journal.recover()

        assert sorted((each.operation_id, each.state, each.attempts[0].state) for each in recovered) == [
            ("lost-prepared", "open", "not_started"),
            ("lost-starting", "needs_attention", "unknown"),
        ]
        assert states(journal, "kept-prepared") == ("in_progress", ["prepared"])
        assert states(journal, "kept-starting") == ("in_progress", ["starting"])
        assert journal.recover() == []


def test_a_journal_recovers_when_it_is_opened(path: Path) -> None:
    with in_flight(path, "lost") as lost:
        lost.kill()
        lost.wait()

    with Journal.open(path) as journal:
        recovered = journal.recovered

    assert sorted(each.operation_id for each in recovered) == ["lost-prepared", "lost-starting"]
    assert list(path.with_name("journal.db.owners").iterdir()) == []


def test_a_call_finds_out_that_the_host_before_it_is_gone(path: Path) -> None:
    """Nobody has to recover first, and one host may live for weeks."""
    with in_flight(path, "lost") as lost, Journal.open(path) as journal:
        alive = [journal.claim(asked(name, "a")) for name in ("lost-prepared", "lost-starting")]
        lost.kill()
        lost.wait()

        dead = [journal.claim(asked(name, "a")) for name in ("lost-prepared", "lost-starting")]

    assert [getattr(each, "kind", None) for each in alive] == ["in_progress", "in_progress"]
    assert [getattr(each, "kind", None) for each in dead] == [None, "needs_attention"]


FORKING = """
    import os, sys, heddle
    from heddle.operations.records import Asked, digest_of

    journal = heddle.Journal.open(sys.argv[1])
    call = Asked(operation_id="op", attempt_id="a1", tool="pay", revision="0", digest=digest_of("pay", "0", {}),
                 side_effects="write", retry="manual")
    journal.claim(call)
    if os.fork() == 0:
        for use in (journal.operations, journal.recover, lambda: journal.start(call)):
            try:
                use()
            except heddle.WrongProcess as error:
                print("refused", flush=True)
        journal.close()
        sys.exit()
    os.wait()
    journal.start(call)
    print("ready", flush=True)
    input()
    journal.finish(call, heddle.Returned({}))
    journal.close()
"""


def test_a_forked_child_has_no_part_in_a_journal(path: Path) -> None:
    """It can neither write in it nor close it, and its end does not let go of its parent's lock."""
    with host(FORKING, path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(4)]
        with Journal.open(path) as journal:
            meanwhile = journal.recovered, states(journal)
        _, complained = process.communicate("go on\n", timeout=30)

    with Journal.open(path) as journal:
        assert states(journal) == ("succeeded", ["succeeded"])
    assert (said, complained) == (["refused\n"] * 3 + ["ready\n"], "")
    assert meanwhile == ((), ("in_progress", ["starting"]))


@pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "-p", "-f", "true"], check=False, capture_output=True).returncode != 0,
    reason="only root may make a pid namespace here, which stands for a container",
)
def test_a_host_in_a_container_is_told_from_the_process_that_has_its_number(path: Path) -> None:
    """There it is process 1 or 2, and so is somebody else here, who lives for ever."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", textwrap.dedent(IN_FLIGHT)]
    with subprocess.Popen([*command, path, "lost", "manual"], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with Journal.open(path) as journal:
                alive = journal.recovered
                with contextlib.closing(sqlite3.connect(path)) as database:
                    owners = dict(database.execute("SELECT pid, owner FROM owners WHERE pid != ?", (os.getpid(),)))
                process.kill()
                process.wait()
                assert wait_until(journal.recover, 10)
                dead = [states(journal, name) for name in ("lost-prepared", "lost-starting")]
        finally:
            process.kill()

    assert alive == ()
    assert [Path(f"/proc/{pid}").exists() for pid in owners] == [True]
    assert dead == [("open", ["not_started"]), ("needs_attention", ["unknown"])]


async def test_a_host_that_another_takes_for_gone_does_not_go_on(toolbox: Toolbox, path: Path) -> None:
    """Somebody has removed its lock: then the other may have made the call, and it must not be made twice."""
    with Journal.open(path) as journal, Journal.open(path) as other:
        journal.claim(asked())
        path.with_name("journal.db.owners").joinpath(journal.owner).unlink()
        journal._owner.end()

        assert [each.operation_id for each in other.recover()] == ["op"]
        with pytest.raises(
            heddle.JournalError, match=r"another host of the journal journal\.db took this one for gone"
        ):
            journal.start(asked())
        with pytest.raises(
            heddle.JournalError, match=r"another host of the journal journal\.db took this one for gone"
        ):
            journal.finish(asked(), heddle.Returned({}))

        assert states(other) == ("open", ["not_started"])


COMES_AND_GOES = """
    import sys, sqlite3
    database = sqlite3.connect(sys.argv[1])
    database.execute("SELECT count(*) FROM operations").fetchone()
    database.close()
"""


def test_two_journals_of_one_process_do_not_let_go_of_each_others_locks(path: Path) -> None:
    """Else another that comes and goes would take itself for the last one, and remove what is being written."""
    with Journal.open(path) as one:
        with Journal.open(path) as other:
            assert run_host(COMES_AND_GOES, path) == (0, "", "")
            assert path.with_name("journal.db-wal").exists()
            one.claim(asked())
            assert states(other) == ("in_progress", ["prepared"])
        assert run_host(COMES_AND_GOES, path) == (0, "", "")
        one.finish(asked(), heddle.Returned({}))

    with Journal.open(path) as journal:
        assert states(journal) == ("succeeded", ["succeeded"])


OPENS_AT_ONCE = """
    import sys, heddle
    heddle.Journal
    print("ready", flush=True)
    input()
    heddle.Journal.open(sys.argv[1]).close()
"""


def test_hosts_may_make_a_journal_at_once(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(host(OPENS_AT_ONCE, path)) for _ in range(5)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

        ends = [(process.communicate(timeout=30)[1], process.returncode) for process in processes]

    assert ends == [("", 0)] * 5


# The file


def test_only_its_user_can_read_a_journal(path: Path) -> None:
    before = os.umask(0)
    try:
        with Journal.open(path) as journal:
            journal.claim(asked())
            modes = {each.name: oct(each.stat().st_mode & 0o777) for each in path.parent.glob("journal.db*")}
            locks = [oct(each.stat().st_mode & 0o777) for each in path.with_name("journal.db.owners").iterdir()]
    finally:
        os.umask(before)

    assert modes == {
        "journal.db": "0o600",
        "journal.db-wal": "0o600",
        "journal.db-shm": "0o600",
        "journal.db.owners": "0o700",
    }
    assert locks == ["0o600"]


def test_every_commit_is_flushed(journal: Journal) -> None:
    """2 is FULL: with less, the last commits are lost with the power, and a test cannot take that away."""
    pragmas = ("journal_mode", "synchronous", "foreign_keys")
    values = journal._database.read(lambda execute: [execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas])

    assert values == ["wal", 2, 1]


def text(path: Path) -> None:
    path.write_text("these are my notes, " * 100)


def database(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def newer(path: Path) -> None:
    Journal.open(path).close()
    database("PRAGMA user_version = 99")(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (text, "journal.db cannot be used as a journal: file is not a database"),
        (database("CREATE TABLE notes (text)"), "journal.db is a database and no journal; give another path"),
        (
            database("CREATE TABLE notes (text)", "PRAGMA user_version = 1"),
            "journal.db is a database and no journal; give another path",
        ),
        (
            database("PRAGMA application_id = 7", "PRAGMA user_version = 99"),
            "journal.db is a database and no journal; give another path",
        ),
        (newer, f"the journal journal.db is of version 99, and this heddle knows {schema.VERSION}: use a newer one"),
        (Path.mkdir, "journal.db is no file: a journal is a file itself, and no link to one"),
        (os.mkfifo, "journal.db is no file: a journal is a file itself, and no link to one"),
    ],
    ids=["text", "database", "versioned", "application", "newer", "folder", "pipe"],
)
def test_what_is_no_journal_stays_as_it_is(path: Path, make: Callable[[Path], None], message: str) -> None:
    make(path)
    for left in path.parent.glob("journal.db.owners"):
        left.rmdir()
    before = path.read_bytes() if path.is_file() else None

    with pytest.raises(heddle.JournalError) as caught:
        Journal.open(path)

    assert str(caught.value) == message
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [each.name for each in path.parent.iterdir()] == ["journal.db"]


def test_a_link_is_not_followed(path: Path) -> None:
    """Whoever may write in a folder of everybody's could have a journal written anywhere."""
    path.symlink_to(path.parent / "elsewhere")

    with pytest.raises(heddle.JournalError, match=r"journal\.db is no file"):
        Journal.open(path)

    assert not (path.parent / "elsewhere").exists()


def test_an_older_journal_becomes_a_newer_one_and_keeps_what_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.open(path) as journal:
        blocked(journal)
        before = journal.operations()
    step = (
        "CREATE TABLE tags (operation_id TEXT, tag TEXT) STRICT",
        "INSERT INTO tags SELECT operation_id, 'old' FROM operations",
    )
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, step))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)

    for _ in range(2):
        with Journal.open(path) as journal:
            after = journal.operations()

    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM tags").fetchall() == [("op", "old")]
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    assert after == before


def test_a_step_that_fails_leaves_an_older_journal_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal.open(path) as journal:
        blocked(journal)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, ("CREATE TABLE tags (tag)", "INSERT INTO nowhere VALUES (1)")))
        patch.setattr(schema, "VERSION", schema.VERSION + 1)

        with pytest.raises(heddle.JournalError, match="no such table: nowhere"):
            Journal.open(path)

    with Journal.open(path) as journal:
        assert states(journal) == ("needs_attention", ["timed_out"])


OPENS = """
    import sys, heddle
    try:
        heddle.Journal.open(sys.argv[1])
    except (heddle.JournalError, OSError) as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["a journal", "no journal"])
def test_a_journal_in_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "folder" / "journal.db"
    path.parent.mkdir()
    if is_there:
        Journal.open(path).close()
    before = [(each.name, each.is_file() and each.read_bytes()) for each in path.parent.iterdir()]
    program = [sys.executable, "-c", textwrap.dedent(OPENS), str(path)]
    if os.geteuid() == 0:  # modes mean nothing to root
        folder = shlex.quote(str(path.parent))
        bind = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec {shlex.join(program)}"
        program = ["unshare", "--mount", "sh", "-c", bind]
    path.parent.chmod(0o500)

    try:
        done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    finally:
        path.parent.chmod(0o700)

    kind = "JournalError journal.db cannot be used as a journal: " if is_there else "OSError [Errno "
    assert done.stdout.replace("PermissionError", "OSError").startswith(kind), done
    assert [(each.name, each.is_file() and each.read_bytes()) for each in path.parent.iterdir()] == before


# When it cannot be written


FULL = """
    import json, resource, sys, trio, heddle
    from heddle.operations import Journal

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    ran = []
    step = getattr(Journal, sys.argv[2])

    def step_on_a_full_disk(*args):
        full()
        return step(*args)

    setattr(Journal, sys.argv[2], step_on_a_full_disk)

    @heddle.tool(side_effects="write", retry="manual")
    def pay() -> dict[str, int]:
        ran.append(1)
        return {"receipt": 7}

    async def main():
        with Journal.open(sys.argv[1]) as journal:
            async with heddle.Runner([pay], journal=journal) as runner:
                try:
                    said = await runner.call("pay", operation_id="op")
                except heddle.JournalError as error:
                    said = [str(error), error.result and error.result.data]
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
                setattr(Journal, sys.argv[2], step)
                before = len(ran)
                again = await runner.call("pay", operation_id="op")
        print(json.dumps([said, before, getattr(again, "kind", "returned"), len(ran)]))

    trio.run(main)
"""


@pytest.mark.parametrize(
    ("step", "result", "before", "again", "ran"),
    [
        ("claim", None, 0, "returned", 1),
        ("start", None, 0, "returned", 1),
        ("finish", {"receipt": 7}, 1, "needs_attention", 1),
    ],
)
def test_on_a_full_disk_nothing_starts_and_what_has_happened_is_said(
    path: Path, step: str, result: object, before: int, again: str, ran: int
) -> None:
    """When there is room again, the same host knows what it has not noted."""
    status, said, complained = run_host(FULL, path, step)

    assert (status, complained) == (0, "")
    seen = json.loads(said)
    assert seen[0][0].startswith("the journal journal.db cannot be written: ")
    assert [seen[0][1], *seen[1:]] == [result, before, again, ran]
    with Journal.open(path) as journal:
        assert operation_in(journal).state == {"returned": "succeeded"}.get(again, again)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("retry", ["manual", "idempotent"])
async def test_a_result_that_is_too_large_to_keep_is_not_tried_again(
    toolbox: Toolbox, path: Path, retry: Retry
) -> None:
    """It has succeeded, so it is not repeated; and nobody would be answered with it."""
    tool = counting(toolbox, """printf '{"text": "'; head -c 500 /dev/zero | tr '\\0' x; echo '"}'""", retry=retry)
    with Journal.open(path, max_result_bytes=500) as journal:
        async with heddle.Runner([tool], journal=journal) as runner:
            result = await runner.call("pay", operation_id="op")
            again = await runner.call("pay", operation_id="op")

        assert states(journal) == ("needs_attention", ["failed"])
    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, result.started, result.retry) == ("too_large", "journal", True, "blocked")
    assert "has succeeded, and its result of 511 bytes is more than the 500" in result.message
    assert getattr(again, "kind", None) == "needs_attention"
    assert ledger(toolbox) == ["op"]


async def test_data_as_deep_as_a_tool_may_return_is_kept(journal: Journal) -> None:
    @heddle.tool(side_effects="write", retry="manual")
    def deep(value: dict[str, Any]) -> dict[str, Any]:
        return value

    arguments = {"value": nested(127)}
    async with heddle.Runner([deep], journal=journal) as runner:
        results = [await runner.call("deep", arguments, operation_id="op") for _ in range(2)]
        journal_free = await heddle_call(deep, arguments)

    assert results == [journal_free] * 2
    assert results[0].ok
    assert [each.report.replayed for each in results] == [False, True]


async def heddle_call(tool: heddle.ToolDef, arguments: dict[str, Any]) -> heddle.ToolResult:
    async with heddle.Runner([tool]) as runner:
        return await runner.call(tool.name, arguments)


HOLDS_THE_LOCK = """
    import sqlite3, sys
    database = sqlite3.connect(sys.argv[1], isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    print("ready", flush=True)
    input()
    database.execute("COMMIT")
"""


async def test_the_loop_goes_on_while_another_host_writes(journal: Journal, path: Path) -> None:
    @heddle.tool(side_effects="write", retry="manual")
    def pay() -> dict[str, int]:
        return {"receipt": 7}

    results: list[heddle.ToolResult] = []

    async def call(runner: heddle.Runner) -> None:
        results.append(await runner.call("pay"))

    with host(HOLDS_THE_LOCK, path) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        async with heddle.Runner([pay], journal=journal) as runner, trio.open_nursery() as nursery:
            nursery.start_soon(call, runner)
            for _ in range(20):  # a loop that is held does not come to its end before the call has given up
                await trio.sleep(0.01)
            meanwhile = list(results)
            process.stdin.write("go on\n")
            process.stdin.flush()

    assert (meanwhile, results) == ([], [heddle.Returned({"receipt": 7})])


def at_once(journal: Journal, *steps: Callable[[], object]) -> list[object]:
    """Return what each step returns or raises when all of them wait for the file at the same time."""
    found: dict[int, object] = {}

    def take(number: int, step: Callable[[], object]) -> None:
        try:
            found[number] = step()
        except heddle.JournalError as error:
            found[number] = error

    threads = [threading.Thread(target=take, args=each) for each in enumerate(steps)]
    with journal._database._mutex:
        for thread in threads:
            thread.start()
        assert wait_until(lambda: len(journal._database._waiting) == len(steps), 10)
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(steps))]


def test_what_waits_is_written_together_and_each_gets_its_own_answer(journal: Journal) -> None:
    """One that is refused takes nothing from the others, and they wait for the disk once."""
    statements: list[str] = []
    journal._database._connection.set_trace_callback(statements.append)

    def write_and_refuse(execute: Execute) -> None:
        execute("DELETE FROM attempts")
        raise heddle.JournalError("no")

    claimed, refused, other, again, missing = at_once(
        journal,
        lambda: journal.claim(asked("one", "a1")),
        lambda: journal._database.write(write_and_refuse),
        lambda: getattr(journal.claim(asked("two", "a2")), "kind", None),
        lambda: getattr(journal.claim(asked("two", "a3")), "kind", None),
        lambda: journal.resolve("missing", "happened"),
    )

    assert (claimed, str(refused), str(missing)) == (None, "no", "there is no operation 'missing' in journal.db")
    assert {other, again} == {None, "in_progress"}
    assert statements.count("COMMIT") == 1
    assert [states(journal, name) for name in ("one", "two")] == [("in_progress", ["prepared"])] * 2


def test_what_cannot_be_written_together_fails_for_each(journal: Journal) -> None:
    """Each error goes with the result of its own call."""
    calls = [asked(f"op-{number}", f"a{number}") for number in range(3)]
    for call in calls:
        journal.claim(call)
        journal.start(call)
    connection = journal._database._connection
    connection.execute("PRAGMA max_page_count = 1")  # as full as a disk can be: what is there is all that there may be
    large = heddle.Returned({"text": "x" * 100_000})

    errors = at_once(journal, *(partial(journal.finish, call, large) for call in calls))

    assert [str(each) for each in errors] == ["the journal journal.db cannot be written: database or disk is full"] * 3
    assert len({id(each) for each in errors}) == 3
    assert [states(journal, call.operation_id) for call in calls] == [("in_progress", ["starting"])] * 3
    connection.execute("PRAGMA max_page_count = 1000000")
    journal.finish(calls[0], large)
    assert states(journal, "op-0") == ("succeeded", ["succeeded"])


# When it, a scope or a runner is closed


async def test_a_journal_that_is_closed_starts_nothing(toolbox: Toolbox, path: Path) -> None:
    journal = Journal.open(path)
    journal.close()
    journal.close()

    async with heddle.Runner([counting(toolbox)], journal=journal) as runner:
        with pytest.raises(heddle.JournalError, match=r"the journal journal\.db is closed") as caught:
            await runner.call("pay", operation_id="op")

    assert caught.value.result is None
    assert ledger(toolbox) == []


async def test_a_journal_that_is_closed_too_early_leaves_its_calls_to_the_next(toolbox: Toolbox, path: Path) -> None:
    """The result is with whoever has called, and nowhere else."""
    tool = counting(toolbox, f"while [ ! -e {toolbox.folder}/go ]; do sleep 0.01; done; echo '{{\"receipt\": 7}}'")
    journal = Journal.open(path)
    raised: list[heddle.JournalError] = []

    async def call(runner: heddle.Runner) -> None:
        try:
            await runner.call("pay", operation_id="op")
        except heddle.JournalError as error:
            raised.append(error)

    async with heddle.Runner([tool], journal=journal) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(call, runner)
        assert await until(lambda: ledger(toolbox), 10)
        journal.close()
        (toolbox.folder / "go").touch()

    assert [(str(each), each.result) for each in raised] == [
        ("the journal journal.db is closed", heddle.Returned({"receipt": 7}))
    ]
    with Journal.open(path) as after:
        assert [each.operation_id for each in after.recovered] == ["op"]
        assert states(after) == ("needs_attention", ["unknown"])


async def test_a_cancellation_passes_though_the_journal_cannot_be_written(
    toolbox: Toolbox, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal.open(path)
    async with heddle.Runner([counting(toolbox, "exec sleep {long}")], journal=journal) as runner:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: runner.call("pay", operation_id="op"))
            assert await until(lambda: ledger(toolbox), 10)
            journal.close()
            nursery.cancel_scope.cancel()

    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "the end of a call is not in the journal: the journal journal.db is closed"
    ]
    with Journal.open(path) as after:
        assert states(after) == ("needs_attention", ["unknown"])


@pytest.mark.parametrize(("retry", "state"), [("manual", "needs_attention"), ("idempotent", "open")])
async def test_a_call_whose_runner_is_closed_is_noted_as_cancelled(
    toolbox: Toolbox, journal: Journal, retry: Retry, state: str
) -> None:
    tool = counting(toolbox, "exec sleep {long}", retry=retry)

    async def call(runner: heddle.Runner) -> None:
        with pytest.raises(heddle.RunnerClosed):
            await runner.call("pay", operation_id="op")

    async with trio.open_nursery() as nursery:
        async with heddle.Runner([tool], journal=journal) as runner:
            nursery.start_soon(call, runner)
            assert await until(lambda: ledger(toolbox), 10)

    assert states(journal) == (state, ["cancelled"])


class Refusing(Launcher):
    """Starts nothing, because it cannot hold a limit."""

    tier = "refusing"
    guarantees: dict[str, str] = {}  # noqa: RUF012 - it never changes

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession]:
        yield RefusingSession()


class RefusingSession(LauncherSession):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        raise heddle.SandboxUnavailable("limits.memory_bytes", "it cannot be held here")


async def test_what_a_launcher_refuses_was_not_started(toolbox: Toolbox, journal: Journal) -> None:
    async with heddle.Runner([counting(toolbox)], journal=journal, launcher=Refusing()) as runner:
        with pytest.raises(heddle.SandboxUnavailable):
            await runner.call("pay", operation_id="op")

    assert states(journal) == ("open", ["not_started"])


# What it does not hold


KILLED = """
    import os, signal, sys, trio, heddle

    async def main():
        tools = heddle.discover_tools(sys.argv[2])
        journal = heddle.Journal.open(sys.argv[1])
        async with heddle.Runner(tools, journal=journal) as runner:
            for name, arguments in (
                ("takes", {"text": "xyzzy-1"}),
                ("takes", '{"text": "xyzzy-2"}'),
                ("takes", {"text": "ok", "xyzzy-3": 1}),
                ("takes", {"text": ["xyzzy-4"]}),
                ("takes", "xyzzy-5"),
                ("fails", {"text": "xyzzy-6"}),
            ):
                await runner.call(name, arguments)
            os.kill(os.getpid(), signal.SIGKILL)

    trio.run(main)
"""


def test_arguments_are_not_in_the_file(toolbox: Toolbox, path: Path) -> None:
    closed = {
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    }
    for name, source in (("takes", "cat >/dev/null; echo '{}'"), ("fails", "echo why >&2; exit 1")):
        toolbox.sh(name, source)
        (toolbox.folder / f"{name}.tool.json").write_text(json.dumps(closed))

    status, _, complained = run_host(KILLED, path, toolbox.folder)

    assert (status, complained) == (-signal.SIGKILL, "")
    files = {each.name: each.read_bytes() for each in path.parent.glob("journal.db*") if each.is_file()}
    assert set(files) == {"journal.db", "journal.db-wal", "journal.db-shm"}
    assert [name for name, data in files.items() if b"xyzzy" in data] == []
    with Journal.open(path) as journal:
        kinds = sorted(str(each.attempts[0].kind) for each in journal.operations())
    assert kinds == ["None", "None", "crashed", "invalid_input", "invalid_input", "invalid_input"]


# Any order of calls, crashes and decisions


ACTIONS = ("claim", "start", "return_", "fail", "refuse", "cancel", "happened", "did_not_happen", "kill")


class Modelled:
    """What has to be known of one operation, by the table alone."""

    def __init__(self, name: str, *, guarded: bool) -> None:
        self.name = name
        self.guarded = guarded
        self.state = "open"
        self.attempts = 0
        self.may_have_happened = False

    @property
    def shown(self) -> tuple[str, int] | None:
        if not self.attempts:
            return None
        return {"prepared": "in_progress", "starting": "in_progress"}.get(self.state, self.state), self.attempts

    @property
    def call(self) -> Asked:
        """The latest attempt."""
        return asked(self.name, f"{self.name}-{self.attempts}", retry="manual" if self.guarded else "idempotent")

    def claim(self, journal: Journal) -> None:
        self.attempts += 1
        answer = journal.claim(self.call)
        answers = {"open": None, "succeeded": "returned", "needs_attention": "needs_attention"}
        kind = None if answer is None else str(getattr(answer, "kind", "returned"))
        assert kind == answers.get(self.state, "in_progress")
        if answer is None:
            self.state = "prepared"
        else:
            self.attempts -= 1

    def start(self, journal: Journal) -> None:
        if self.state == "prepared":
            assert not self.may_have_happened
            journal.start(self.call)
            self.state, self.may_have_happened = "starting", True

    def return_(self, journal: Journal) -> None:
        if self.state == "starting":
            self._finish(journal, heddle.Returned({}), "succeeded")

    def fail(self, journal: Journal) -> None:
        if self.state == "starting" and self.guarded:
            self._finish(journal, failed("crashed", started=True, retry="blocked"), "needs_attention")
        elif self.state == "starting":
            self._finish(journal, failed("crashed", started=True, retry="allowed"), "open")

    def refuse(self, journal: Journal) -> None:
        if self.state in {"prepared", "starting"}:
            self._finish(journal, failed("cannot_start", started=False, retry="allowed"), "open")

    def cancel(self, journal: Journal) -> None:
        if self.state in {"prepared", "starting"}:
            journal.abandon(self.call, "Cancelled")
            self._end(journal, "needs_attention" if self.guarded and self.state == "starting" else "open")

    def _finish(self, journal: Journal, result: heddle.ToolResult, state: str) -> None:
        journal.finish(self.call, result)
        self._end(journal, state)

    def _end(self, journal: Journal, state: str) -> None:
        journal.forget(self.call.attempt_id)
        self.state, self.may_have_happened = state, state != "open"

    def happened(self, journal: Journal) -> None:
        self._resolve(journal, "happened", "succeeded")

    def did_not_happen(self, journal: Journal) -> None:
        self._resolve(journal, "did_not_happen", "open")

    def _resolve(self, journal: Journal, outcome: Literal["happened", "did_not_happen"], state: str) -> None:
        if self.state == "needs_attention":
            journal.resolve(self.name, outcome)
            self.state, self.may_have_happened = state, state != "open"
        else:
            with pytest.raises(heddle.JournalError):
                journal.resolve(self.name, outcome)

    def is_left(self) -> None:
        """Note that the host was killed."""
        self.state = {"prepared": "open", "starting": "needs_attention"}.get(self.state, self.state)


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3)), min_size=10, max_size=40))
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
def test_whatever_happens_nothing_is_run_again_that_may_have_happened(actions: list[tuple[str, int]]) -> None:
    """Two operations are guarded. A host is killed by taking its lock away, and leaving everything else as it is."""
    models = [Modelled(f"op-{number}", guarded=number < 2) for number in range(4)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        journal = stack.enter_context(Journal.open(Path(folder, "journal.db")))
        for action, number in actions:
            if action == "kill":
                journal._owner.end()
                journal = stack.enter_context(Journal.open(Path(folder, "journal.db")))
                for model in models:
                    model.is_left()
            else:
                getattr(models[number], action)(journal)

            found = [journal.operation(model.name) for model in models]
            assert [each and (each.state, len(each.attempts)) for each in found] == [each.shown for each in models]


@pytest.mark.parametrize("step", ["claim", "finish"])
async def test_a_scope_that_is_closed_waits_for_what_its_calls_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """So that the host may close the journal afterwards; and what has not started yet is not started any more."""
    ran: list[str] = []
    raised: list[BaseException] = []
    is_there, go_on = threading.Event(), threading.Event()
    real = getattr(Journal, step)

    def slow(*args: object) -> object:
        is_there.set()
        go_on.wait(10)
        return real(*args)

    def let_it_go_on() -> None:
        threading.Event().wait(0.2)
        go_on.set()

    monkeypatch.setattr(Journal, step, slow)

    @heddle.tool(side_effects="write", retry="manual")
    def pay() -> dict[str, int]:
        ran.append("pay")
        return {}

    async def call(scope: heddle.Scope) -> None:
        try:
            await scope.call("pay", operation_id="op")
        except heddle.RunnerClosed as error:
            raised.append(error)

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([pay], journal=journal) as runner, trio.open_nursery() as nursery:
            async with runner.scope() as scope:
                nursery.start_soon(call, scope)
                await trio.to_thread.run_sync(is_there.wait)
                nursery.start_soon(trio.to_thread.run_sync, let_it_go_on)
            operation = journal.operation("op")

    assert operation is not None
    if step == "claim":
        assert (ran, len(raised), operation.state, operation.attempts[0].state) == ([], 1, "open", "not_started")
    else:
        assert (ran, raised, operation.state) == (["pay"], [], "succeeded")
