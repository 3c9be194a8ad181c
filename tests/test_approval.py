"""Calls that somebody has to approve: who is asked, what holds until then, and that an approval is used once."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.operations import Approval, ApprovalRequest, Decision, Journal, Operation, schema
from tests.hosting import ROOT
from tests.support import Toolbox
from tests.test_cli import heddle_cli


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal.open(path) as journal:
        yield journal


class Payments:
    """A tool that pays, and counts how often it did."""

    def __init__(self, *, fails: bool = False, **declared: Any) -> None:
        self.paid: list[int] = []
        self.fails = fails
        options: dict[str, Any] = {"side_effects": "write", "retry": "manual", **declared}
        self.tool = heddle.tool(name="pay", **options)(self.pay)

    async def pay(self, amount: int, password: str = "") -> dict[str, int]:
        self.paid.append(amount)
        if self.fails:
            raise OSError("the line was cut")
        return {"paid": amount}


class Asked:
    """A host's approver that notes what it was asked, and has its answers ready."""

    def __init__(self, *answers: object) -> None:
        self.requests: list[ApprovalRequest] = []
        self.answers = list(answers)

    async def __call__(self, request: ApprovalRequest) -> Any:
        self.requests.append(request)
        return self.answers.pop(0)


def operation_in(journal: Journal, operation_id: str = "op") -> Operation:
    operation = journal.operation(operation_id)
    assert operation is not None
    return operation


def approval_in(journal: Journal) -> Approval:
    """Return the last approval of an operation, without its times."""
    return attrs.evolve(operation_in(journal).approvals[-1], asked_at=NEVER, decided_at=None)


NEVER = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)  # stands for a time that does not matter
PAY: dict[str, Any] = {"arguments": {"amount": 5}, "operation_id": "op"}


# Without a journal


async def test_a_call_is_made_once_it_is_approved() -> None:
    payments, asked = Payments(), Asked(True)

    async with heddle.Runner([payments.tool], approve=asked) as runner:
        result = await runner.call("pay", **PAY)

    (request,) = asked.requests
    assert result == heddle.Returned({"paid": 5})
    assert (request.tool, request.arguments, request.operation_id, request.attempt_id) == (
        payments.tool,
        {"amount": 5, "password": ""},
        "op",
        result.report.attempt_id,
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (False, 'tool "pay" was not called: it was not approved.'),
        (Decision(False, "ann", "too much"), 'tool "pay" was not called: ann did not approve it (too much).'),
        (
            None,
            'tool "pay" was not called: it was not approved (nobody has decided, and without a journal nobody can '
            "later).",
        ),
    ],
)
async def test_a_call_that_is_not_approved_is_denied_and_nothing_is_started(answer: object, said: str) -> None:
    payments = Payments()

    async with heddle.Runner([payments.tool], approve=Asked(answer)) as runner:
        result = await runner.call("pay", **PAY)

    assert result == heddle.Failed(heddle.FailureKind.DENIED, said, code="approval", started=False, retry="allowed")
    assert payments.paid == []


@pytest.mark.parametrize("answer", [1, "yes", "no", {"approved": True}])
async def test_what_is_no_answer_approves_nothing(answer: object) -> None:
    """A host's slip must not pay: of its answers only True and a decision count."""
    payments = Payments()

    async with heddle.Runner([payments.tool], approve=Asked(answer)) as runner:
        with pytest.raises(TypeError, match="approve= has to answer True, False, None or a "):
            await runner.call("pay", **PAY)

    assert payments.paid == []


@pytest.mark.parametrize(("side_effects", "questions"), [("read", 0), ("write", 1), ("unknown", 1)])
async def test_what_only_reads_is_called_without_a_question(side_effects: Any, questions: int) -> None:
    payments, asked = Payments(side_effects=side_effects), Asked(True)

    async with heddle.Runner([payments.tool], approve=asked) as runner:
        await runner.call("pay", **PAY)

    assert (len(asked.requests), payments.paid) == (questions, [5])


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [("pay", {"amount": "five"}, "invalid_input"), ("nothing", {}, "unsupported"), ("missing", {}, "unknown_tool")],
)
async def test_nobody_is_asked_about_a_call_that_cannot_be_made(name: str, arguments: Any, kind: str) -> None:
    asked = Asked()
    tools = [Payments().tool, heddle.ToolDef(name="nothing", side_effects="write")]

    async with heddle.Runner(tools, approve=asked) as runner:
        result = await runner.call(name, arguments)

    assert isinstance(result, heddle.Failed)
    assert (result.kind, asked.requests) == (kind, [])


async def test_waiting_for_an_approval_is_no_running_and_takes_no_slot(toolbox: Toolbox) -> None:
    """The deadline is counted from the start, and others are served meanwhile."""
    toolbox.sh("slow", "echo '{}'")
    toolbox.sh("other", "echo '{}'")
    decided = trio.Event()

    async def approve(request: ApprovalRequest) -> bool:
        if request.tool.name == "slow":
            await decided.wait()
        return True

    results: dict[str, Any] = {}

    async def call(runner: heddle.Runner) -> None:
        results["slow"] = await runner.call("slow", limits=heddle.Limits(wall_seconds=0.3))

    async with heddle.Runner(toolbox.registry(), approve=approve, max_concurrent=1) as runner:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, runner)
            await trio.sleep(0.4)
            results["other"] = await runner.call("other")
            decided.set()

    assert {name: result.ok for name, result in results.items()} == {"slow": True, "other": True}
    assert results["slow"].report.waited_s >= 0.4
    assert results["slow"].report.duration_s < 0.3


async def test_a_function_that_waits_is_asked_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    def approve(_: ApprovalRequest) -> bool:
        threads.append(threading.current_thread())
        return True

    async with heddle.Runner([Payments().tool], approve=approve) as runner:
        result = await runner.call("pay", **PAY)

    assert result.ok
    assert threads != [threading.main_thread()]


async def test_what_the_host_raises_when_it_is_asked_ends_the_call_as_itself(journal: Journal) -> None:
    payments = Payments()

    async def approve(_: ApprovalRequest) -> bool:
        raise LookupError("the person on duty is not known")

    async with heddle.Runner([payments.tool], approve=approve, journal=journal) as runner:
        with pytest.raises(LookupError, match="the person on duty"):
            await runner.call("pay", **PAY)

    assert (payments.paid, operation_in(journal).state) == ([], "awaiting_approval")
    assert [str(each.state) for each in operation_in(journal).attempts] == ["not_started"]


async def test_a_call_that_waits_for_an_approval_can_be_cancelled(journal: Journal) -> None:
    payments = Payments()

    async def approve(_: ApprovalRequest) -> bool:
        await trio.sleep_forever()
        return True

    async with heddle.Runner([payments.tool], approve=approve, journal=journal) as runner:
        with trio.move_on_after(0.1) as cancelling:
            await runner.call("pay", **PAY)

    assert cancelling.cancelled_caught
    assert (payments.paid, operation_in(journal).state) == ([], "awaiting_approval")


def test_a_host_of_plain_python_is_asked_in_a_thread() -> None:
    payments = Payments()

    with heddle.blocking.Runner([payments.tool], approve=lambda request: request.arguments["amount"] == 5) as runner:
        results = [runner.call("pay", {"amount": amount}).ok for amount in (5, 6)]

    assert (results, payments.paid) == ([True, False], [5])


def test_an_asyncio_host_is_asked_on_its_own_loop() -> None:
    payments = Payments()
    loops: list[object] = []

    async def approve(_: ApprovalRequest) -> Decision:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return Decision(True, by="ann")

    async def main() -> tuple[bool, object]:
        async with heddle.aio.Runner([payments.tool], approve=approve) as runner:
            return (await runner.call("pay", **PAY)).ok, asyncio.get_running_loop()

    ok, loop = asyncio.run(main())
    assert (ok, loops) == (True, [loop])


# With a journal


async def test_who_has_approved_what_is_in_the_journal(journal: Journal) -> None:
    payments = Payments()
    asked = Asked(Decision(True, "ann", "as agreed"))

    async with heddle.Runner([payments.tool], approve=asked, journal=journal) as runner:
        result = await runner.call("pay", {"amount": 5, "password": "hunter2-hunter2"}, operation_id="op")

    assert result == heddle.Returned({"paid": 5})
    assert operation_in(journal).state == "succeeded"
    assert approval_in(journal) == Approval(
        arguments='{"amount": 5, "password": "[REDACTED]"}',
        asked_at=NEVER,
        approved=True,
        by="ann",
        note="as agreed",
        attempt_id=result.report.attempt_id,
    )
    assert asked.requests[0].shown == '{"amount": 5, "password": "[REDACTED]"}'


async def test_what_nobody_has_decided_waits_and_is_decided_later_once(path: Path) -> None:
    """Of another process, and after the first one has gone."""
    payments, asked = Payments(), Asked(None)
    with Journal.open(path) as journal:
        async with heddle.Runner([payments.tool], approve=asked, journal=journal) as runner:
            waiting = await runner.call("pay", **PAY, retries=3, backoff=0)
    with Journal.open(path) as journal:
        states = [str(operation_in(journal).state), str(journal.decide("op", True, "ann", "fine").state)]

    with Journal.open(path) as journal:
        async with heddle.Runner([payments.tool], approve=Asked(), journal=journal) as runner:
            result = await runner.call("pay", **PAY)
            again = await runner.call("pay", **PAY)

    assert isinstance(waiting, heddle.Failed)
    assert (waiting.kind, waiting.code, waiting.started, waiting.report.tries) == (
        "in_progress",
        "awaiting_approval",
        False,
        1,
    )
    assert waiting.message.startswith("tool \"pay\" was not called: operation 'op' awaits approval.")
    assert states == ["awaiting_approval", "open"]
    assert (result, again.report.replayed, payments.paid) == (heddle.Returned({"paid": 5}), True, [5])


@pytest.mark.parametrize("retry", ["manual", "idempotent"])
async def test_an_approval_is_used_once_whatever_came_of_the_call(journal: Journal, retry: Any) -> None:
    payments, asked = Payments(fails=True, retry=retry), Asked(True, None)

    async with heddle.Runner([payments.tool], approve=asked, journal=journal) as runner:
        await runner.call("pay", **PAY)
        if retry == "manual":
            journal.resolve("op", "did_not_happen")
        second = await runner.call("pay", **PAY)

    assert isinstance(second, heddle.Failed)
    assert (second.code, len(asked.requests), payments.paid) == ("awaiting_approval", 2, [5])
    assert [each.approved for each in operation_in(journal).approvals] == [True, None]


async def test_each_retry_needs_an_approval_of_its_own(journal: Journal) -> None:
    payments, asked = Payments(fails=True, retry="idempotent"), Asked(True, True, False)

    async with heddle.Runner([payments.tool], approve=asked, journal=journal) as runner:
        result = await runner.call("pay", **PAY, retries=5, backoff=0)

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.report.tries, payments.paid) == ("denied", 3, [5, 5])


async def test_an_approval_that_was_not_used_is_kept_for_the_next_try(journal: Journal, toolbox: Toolbox) -> None:
    """The program was not there: nothing has happened, and nobody has to be asked again."""
    program = toolbox.folder / "late"
    tool = heddle.ToolDef(name="pay", side_effects="write", implementation=heddle.Program(program))
    asked = Asked(True)

    async with heddle.Runner([tool], approve=asked, journal=journal) as runner:
        first = await runner.call("pay", operation_id="op")
        toolbox.sh("late", "echo '{}'")
        second = await runner.call("pay", operation_id="op")

    assert isinstance(first, heddle.Failed)
    assert (first.kind, second.ok, len(asked.requests)) == ("cannot_start", True, 1)
    assert [each.attempt_id for each in operation_in(journal).approvals] == [second.report.attempt_id]


async def test_an_approval_is_for_these_arguments_alone(journal: Journal) -> None:
    payments = Payments()
    async with heddle.Runner([payments.tool], approve=Asked(None), journal=journal) as runner:
        await runner.call("pay", {"amount": 5}, operation_id="op")
        journal.decide("op", True)

        other = await runner.call("pay", {"amount": 5000}, operation_id="op")

    assert isinstance(other, heddle.Failed)
    assert (other.kind, payments.paid) == ("conflict", [])


async def test_a_refusal_stays_until_somebody_decides_otherwise(journal: Journal) -> None:
    payments = Payments()
    async with heddle.Runner([payments.tool], approve=Asked(Decision(False, "ann", "no")), journal=journal) as runner:
        first = await runner.call("pay", **PAY)
        second = await runner.call("pay", **PAY)
        state = operation_in(journal).state
        journal.decide("op", True, "bob")
        third = await runner.call("pay", **PAY)

    assert isinstance(second, heddle.Failed)
    assert (first, second.message, state) == (
        second,
        'tool "pay" was not called: ann did not approve it (no).',
        "denied",
    )
    assert (third.ok, payments.paid) == (True, [5])


async def test_a_host_that_asks_nobody_respects_what_another_waits_for(path: Path) -> None:
    payments = Payments()
    with Journal.open(path) as asking, Journal.open(path) as other:
        async with heddle.Runner([payments.tool], approve=Asked(None), journal=asking) as runner:
            await runner.call("pay", **PAY)
        async with heddle.Runner([payments.tool], journal=other) as runner:
            waiting = await runner.call("pay", **PAY)
            asking.decide("op", True)
            made = await runner.call("pay", **PAY)

    assert isinstance(waiting, heddle.Failed)
    assert (waiting.code, made.ok, payments.paid) == ("awaiting_approval", True, [5])


async def test_a_call_that_waits_goes_on_when_somebody_else_decides(path: Path) -> None:
    """`heddle operations approve` in another terminal, while the host's own question is open."""
    payments = Payments()
    questions = trio.Event()

    async def approve(_: ApprovalRequest) -> bool:
        questions.set()
        await trio.sleep_forever()
        return False

    results: list[heddle.ToolResult] = []

    async def call(runner: heddle.Runner) -> None:
        results.append(await runner.call("pay", **PAY))

    with Journal.open(path) as journal, Journal.open(path) as other, trio.fail_after(10):
        async with heddle.Runner([payments.tool], approve=approve, journal=journal) as runner:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, runner)
                await questions.wait()
                state = operation_in(other).state
                other.decide("op", True, "ann")

    assert (state, results, payments.paid) == ("awaiting_approval", [heddle.Returned({"paid": 5})], [5])


async def test_of_two_decisions_the_first_holds(path: Path) -> None:
    payments = Payments()
    with Journal.open(path) as journal, Journal.open(path) as other:

        async def approve(_: ApprovalRequest) -> bool:
            other.decide("op", False, "ann", "I was faster")
            return True

        async with heddle.Runner([payments.tool], approve=approve, journal=journal) as runner:
            result = await runner.call("pay", **PAY)

    assert isinstance(result, heddle.Failed)
    assert (result.kind, payments.paid) == ("denied", [])
    assert "ann did not approve it (I was faster)" in result.message


async def test_an_approval_that_is_taken_back_before_the_start_stops_it(journal: Journal, toolbox: Toolbox) -> None:
    """Between the answer and the start a call may wait for its turn."""
    toolbox.sh("pay", "echo '{}'")
    toolbox.sh("busy", 'touch "$0.running"; while [ ! -e "$0.go" ]; do sleep 0.01; done; echo "{}"')
    busy = toolbox.folder / "busy"
    failure: list[BaseException] = []

    async def call(runner: heddle.Runner) -> None:
        try:
            await runner.call("pay", operation_id="op")
        except heddle.JournalError as error:
            failure.append(error)

    async with (
        heddle.Runner(toolbox.registry(), approve=lambda _: True, journal=journal, max_concurrent=1) as runner,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(runner.call, "busy")
        while not busy.with_name("busy.running").exists():
            await trio.sleep(0.01)
        nursery.start_soon(call, runner)
        while (known := journal.operation("op")) is None or not (known.approvals and known.approvals[0].approved):
            await trio.sleep(0.01)
        journal.decide("op", False)
        busy.with_name("busy.go").touch()

    assert "was taken back while it waited for its turn; nothing was started" in str(failure[0])
    assert [str(each.state) for each in operation_in(journal).attempts] == ["not_started"]


@pytest.mark.parametrize("operation_id", ["missing", "succeeded"])
async def test_there_has_to_be_something_to_decide(journal: Journal, operation_id: str) -> None:
    async with heddle.Runner([Payments().tool], journal=journal) as runner:
        await runner.call("pay", {"amount": 5}, operation_id="succeeded")

    with pytest.raises(heddle.JournalError) as refused:
        journal.decide(operation_id, True)

    assert (
        str(refused.value)
        == {
            "missing": "there is no operation 'missing' in journal.db",
            "succeeded": "operation 'succeeded' does not await approval: it is succeeded",
        }[operation_id]
    )


@pytest.mark.parametrize("approved", ["no", 0, None])
def test_a_decision_is_true_or_false(journal: Journal, approved: Any) -> None:
    with pytest.raises(TypeError, match="approved must be True or False"):
        journal.decide("op", approved)


def test_who_is_to_be_asked_has_to_be_a_function() -> None:
    answer: Any = True

    with pytest.raises(heddle.DefinitionError, match="takes a function that is asked, not True"):
        heddle.Runner([], approve=answer)


def test_a_journal_from_before_approvals_is_taken_along(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in schema.STEPS[0]:
            database.execute(statement)
        database.execute(
            "INSERT INTO operations VALUES ('old', 'pay', '0', 'd', 'write', 'manual', 'open', "
            "'2026-01-01T00:00:00+00:00', NULL, NULL, '')"
        )
        database.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        database.execute("PRAGMA user_version = 1")
        database.commit()

    with Journal.open(path) as journal:
        operation = operation_in(journal, "old")

    assert (operation.state, operation.approvals) == ("open", ())
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)


# The crash: approved, run, and killed before the result was on disk

DYING = """
import os, pathlib, sys
import heddle, trio

ledger = pathlib.Path(sys.argv[2])

@heddle.tool(side_effects="write", retry="idempotent")
async def pay(amount: int) -> dict[str, int]:
    with ledger.open("a") as file:
        file.write("paid\\n")
    os.kill(os.getpid(), 9)

async def main():
    with heddle.Journal.open(sys.argv[1]) as journal:
        async with heddle.Runner([pay], journal=journal, approve=lambda request: True) as runner:
            await runner.call("pay", {"amount": 5}, operation_id="op")

trio.run(main)
"""


async def test_an_approved_effect_is_not_brought_about_again_after_a_crash(path: Path, tmp_path: Path) -> None:
    """The approval went with the start: whoever goes on after the crash finds neither it nor a way to run again."""
    ledger = tmp_path / "ledger"
    done = subprocess.run([sys.executable, "-c", DYING, path, ledger], cwd=ROOT, check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL

    payments, asked = Payments(retry="idempotent"), Asked(True, True)
    with Journal.open(path) as journal:
        async with heddle.Runner([payments.tool], approve=asked, journal=journal) as runner:
            after = await runner.call("pay", **PAY)
            with pytest.raises(heddle.JournalError, match="does not await approval"):
                journal.decide("op", True)

    assert isinstance(after, heddle.Failed)
    assert (after.kind, payments.paid, asked.requests) == ("needs_attention", [], [])
    assert ledger.read_text() == "paid\n"


# At a terminal

TERMINAL = """
import sys
import heddle
from heddle.operations import Decision
from heddle.operations.terminal import ask_on_terminal

@heddle.tool(side_effects="write")
def pay(text: str) -> str:
    return "paid"

with heddle.blocking.Runner([pay], approve=ask_on_terminal) as runner:
    result = runner.call("pay", {"text": sys.argv[1]}, operation_id="op")
print("RESULT", result.ok, result.kind if not result.ok else "")
"""


def at_terminal(answer: bytes, text: str = "a") -> str:
    """Run a host at a terminal of its own, answer its question, and return all that was to be seen there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", TERMINAL, text])
    seen = b""
    answered = False
    try:
        while select.select([terminal], [], [], 20)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:
                break
            if not piece:
                break
            seen += piece
            if b"[y/N] " in seen and not answered:
                answered = True
                os.write(terminal, answer)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return seen.decode()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"y\n", "RESULT True"),
        (b"YES\n", "RESULT True"),
        (b"\n", "RESULT False denied"),
        (b"yup\n", "RESULT False denied"),
    ],
)
def test_only_a_yes_at_the_terminal_approves(answer: bytes, said: str) -> None:
    seen = at_terminal(answer)

    assert 'Tool "pay" (write) is to be called with\r\n  {"text": "a"}\r\nas operation op. Call it? [y/N] ' in seen
    assert said in seen


def test_nothing_is_hidden_from_whoever_decides_at_the_terminal() -> None:
    """Sequences that move the cursor and marks that turn the order of letters are written out."""
    seen = at_terminal(b"n\n", "\x1b[2Kharmless\u202e")

    assert '{"text": "\\u001b[2Kharmless\\u202e"}' in seen


def test_without_a_terminal_nothing_is_decided() -> None:
    code = "import sys, os; os.setsid(); exec(sys.stdin.read())"
    program = (
        "from tests.test_approval import ApprovalRequest, Payments\n"
        "from heddle.operations.terminal import ask_on_terminal\n"
        "request = ApprovalRequest(tool=Payments().tool, arguments={}, shown='{}', operation_id='op', attempt_id='a')\n"
        "print(ask_on_terminal(request))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=program, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )

    assert done.stdout == "None\n", done.stderr


# At the command line


@pytest.fixture
def folder(toolbox: Toolbox) -> Path:
    toolbox.sh("pay", f"echo paid >> {toolbox.folder.parent}/ledger; echo '{{}}'")
    return toolbox.folder


def call_it(folder: Path, path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Call a tool from where there is no terminal."""
    given = '{"amount": 5, "token": "abcdefgh-abcdefgh"}'
    return heddle_cli("call", folder, "pay", given, "--journal", path, "--operation-id", "op", "--approve", *more)


def test_what_awaits_approval_is_shown_decided_and_called_once(folder: Path, path: Path) -> None:
    first = call_it(folder, path)
    listed = heddle_cli("operations", "ls", path, "--state", "awaiting_approval")
    shown = heddle_cli("operations", "show", path, "op")
    approved = heddle_cli("operations", "approve", path, "op", "--by", "ann", "--note", "fine", "--json")
    second = call_it(folder, path)
    third = call_it(folder, path)
    after = heddle_cli("operations", "show", path, "op")

    assert (first.returncode, "awaits approval" in first.stderr) == (1, True)
    assert listed.stdout.split("\t")[:4] == ["op", "pay", "awaiting_approval", "1"]
    assert 'Asked for:  {"amount": 5, "token": "[REDACTED]"}' in shown.stdout
    assert "heddle operations approve FILE ID" in shown.stderr
    assert [(each["by"], each["note"], each["approved"]) for each in json.loads(approved.stdout)[0]["approvals"]] == [
        ("ann", "fine", True)
    ]
    assert (second.returncode, third.stdout) == (0, second.stdout)
    assert (folder.parent / "ledger").read_text() == "paid\n"
    assert re.search(
        r"^  approved  \S+ by ann\n  note      fine\n  used      by attempt \w+$", after.stdout, re.MULTILINE
    )


def test_what_was_refused_is_denied_until_somebody_approves(folder: Path, path: Path) -> None:
    call_it(folder, path)
    denied = heddle_cli("operations", "deny", path, "op", "--by", "ann")
    refused = call_it(folder, path)
    heddle_cli("operations", "approve", path, "op")
    made = call_it(folder, path)

    assert denied.stdout.split("\t")[2] == "denied"
    assert (refused.returncode, "ann did not approve it" in refused.stderr) == (1, True)
    assert made.returncode == 0


@pytest.mark.parametrize("what", ["approve", "deny"])
def test_what_awaits_nothing_cannot_be_decided(folder: Path, path: Path, what: str) -> None:
    heddle_cli("call", folder, "pay", "--journal", path, "--operation-id", "op")

    done = heddle_cli("operations", what, path, "op")
    missing = heddle_cli("operations", what, path, "nothing")

    assert (done.returncode, done.stderr) == (1, "heddle: operation 'op' does not await approval: it is succeeded\n")
    assert (missing.returncode, missing.stderr) == (1, "there is no operation 'nothing' in journal.db\n")
