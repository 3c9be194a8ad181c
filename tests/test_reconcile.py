"""What became of an operation whose end nobody has seen, asked of the action that can tell."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import heddle
from heddle.operations import Journal, Operation
from heddle.operations.records import Asked, digest_of
from tests.hosting import ROOT
from tests.support import Toolbox, wait_until

# A bank with a book: it may write the payment down, and not say so; and it can be asked.
BANK = """\
import contextlib, json, os, pathlib, sys, time
request = json.load(sys.stdin)
given, book = request["input"], pathlib.Path(__file__).with_name("book")
orders = book.read_text().splitlines() if book.exists() else []
if request["action"] == "pay":
    if given["then"] != "refuse":
        with book.open("a") as file:
            file.write(request["operationId"] + "\\n")
    if given["then"] == "hang":
        time.sleep(60)
    if given["then"] in ("die", "refuse"):
        sys.exit(3)
    data = {"receipt": request["operationId"]}
else:
    with contextlib.suppress(OSError), book.with_name("asked").open("a") as file:  # it cannot be written in a sandbox
        file.write(request["operationId"] + " " + given["operationId"] + "\\n")
    answer = book.with_name("answer")
    if answer.exists():
        print(answer.read_text())
        sys.exit()
    data = {"outcome": "did_not_happen"}
    if given["operationId"] in orders:
        data = {"outcome": "happened", "data": {"receipt": given["operationId"]}}
print(json.dumps({"ok": True, "data": data}))
"""


def manifest(**pay: Any) -> dict[str, Any]:
    action = {"execution": "supported", "description": "As it says.", "retry": "manual"}
    receipt = {"type": "object", "properties": {"receipt": {"type": "string"}}, "required": ["receipt"]}
    return {
        "schemaVersion": 1,
        "id": "my-bank",
        "revision": "1",
        "name": "Bank",
        "description": "Pays.",
        "files": [{"path": "main.py"}],
        "process": {"executable": "python3", "args": ["main.py"]},
        "limits": {"timeoutSeconds": 20, "maxInputBytes": 65536, "maxResultBytes": 4096, "maxLogBytes": 2048},
        "actions": [
            {
                "id": "pay",
                "path": ["pay"],
                "name": "Pay",
                "sideEffects": "write",
                "inputSchema": {"type": "object", "properties": {"then": {"type": "string"}}, "required": ["then"]},
                "outputSchema": receipt,
                "reconcile": "status",
                **action,
                **pay,
            },
            {
                "id": "status",
                "path": ["status"],
                "name": "Status",
                "sideEffects": "read",
                "inputSchema": {"type": "object", "properties": {"operationId": {"type": "string"}}},
                "outputSchema": True,
                **action,
            },
        ],
    }


@attrs.frozen
class Bank:
    folder: Path

    @property
    def registry(self) -> heddle.Registry:
        return heddle.discover_tools(self.folder)

    def answers(self, data: object) -> None:
        self.folder.joinpath("answer").write_text(json.dumps({"ok": True, "data": data}))

    @property
    def book(self) -> list[str]:
        return self.lines("book")

    @property
    def asked(self) -> list[str]:
        return self.lines("asked")

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    folder = tmp_path / "bank"
    folder.mkdir()
    folder.joinpath("main.py").write_text(BANK)
    folder.joinpath("bank.tool.json").write_text(json.dumps(manifest()))
    return Bank(folder)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db") as journal:
        yield journal


def operation_in(journal: Journal, operation_id: str = "op") -> Operation:
    operation = journal.operation(operation_id)
    assert operation is not None
    return operation


PAY = "my-bank.pay"


async def pay(runner: heddle.Runner, then: str = "die", operation_id: str = "op") -> heddle.ToolResult:
    return await runner.call(PAY, {"then": then}, operation_id=operation_id)


async def test_what_has_happened_is_answered_and_not_done_again(bank: Bank, journal: Journal) -> None:
    async with heddle.Runner(bank.registry, journal=journal) as runner:
        first = await pay(runner, "die")
        second = await pay(runner, "die")

    assert isinstance(first, heddle.Failed)
    assert (first.kind, first.retry) == ("crashed", "blocked")
    assert (second, second.report.replayed) == (heddle.Returned({"receipt": "op"}), True)
    assert bank.book == ["op"]
    assert (operation_in(journal).state, operation_in(journal).note) == ("succeeded", "my-bank.status says so")


async def test_what_has_not_happened_is_tried_again(bank: Bank, journal: Journal) -> None:
    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner, "refuse")
        second = await pay(runner, "refuse")

    assert isinstance(second, heddle.Failed)
    assert second.kind == "crashed"
    assert [str(each.state) for each in operation_in(journal).attempts] == ["crashed", "crashed"]


async def test_the_question_names_the_operation_and_is_none_itself(bank: Bank, journal: Journal) -> None:
    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner)
        await pay(runner)

    ((own, named),) = [line.split() for line in bank.asked]
    assert (named, own == named) == ("op", False)
    assert [each.operation_id for each in journal.operations()] == ["op"]


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": "unknown"},
        {"outcome": "perhaps"},
        {"outcome": True},
        "happened",
        None,
        {},
        {"outcome": "happened"},
        {"outcome": "happened", "data": {"receipt": 5}},
    ],
    ids=json.dumps,
)
async def test_what_is_no_answer_settles_nothing(bank: Bank, journal: Journal, answer: object) -> None:
    """Least of all that it happened, with a result that the tool could not have given: nobody could be answered."""
    bank.answers(answer)

    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner)
        second = await pay(runner)

    assert isinstance(second, heddle.Failed)
    assert (second.kind, operation_in(journal).state, bank.book) == ("needs_attention", "needs_attention", ["op"])


async def test_a_witness_that_fails_settles_nothing(bank: Bank, journal: Journal) -> None:
    bank.folder.joinpath("answer").write_text("this is no envelope")

    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner)
        second = await pay(runner)

    assert isinstance(second, heddle.Failed)
    assert (second.kind, bank.book) == ("needs_attention", ["op"])


async def test_data_that_the_journal_would_not_keep_settles_nothing(bank: Bank, tmp_path: Path) -> None:
    bank.answers({"outcome": "happened", "data": {"receipt": "x" * 200}})

    with Journal.open(tmp_path / "small.db", max_result_bytes=100) as journal:
        async with heddle.Runner(bank.registry, journal=journal) as runner:
            await pay(runner)
            second = await pay(runner)

    assert isinstance(second, heddle.Failed)
    assert second.kind == "needs_attention"


async def test_nobody_is_asked_while_the_outcome_is_known(bank: Bank, journal: Journal) -> None:
    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner, "return")
        await pay(runner, "return")

    assert (bank.book, bank.asked) == (["op"], [])


async def test_an_answer_that_came_too_late_settles_nothing(bank: Bank, journal: Journal) -> None:
    """What is said of two tries is not said of a third that was made meanwhile."""
    async with heddle.Runner(bank.registry, journal=journal) as runner:
        await pay(runner)
        before = operation_in(journal)
        journal.resolve("op", "did_not_happen")
        bank.answers({"outcome": "unknown"})
        await pay(runner)

    assert operation_in(journal).state == "needs_attention"
    assert journal.settle(before, "did_not_happen", data=None, note="") is False
    assert operation_in(journal).state == "needs_attention"


async def test_a_witness_can_be_reached_by_a_call_that_needs_no_program_itself(journal: Journal, bank: Bank) -> None:
    """The tool is a function, the one that can tell a program: a session has to be there for it."""

    @heddle.tool(name="pay", side_effects="write", reconcile="my-bank.status")
    async def broken() -> None:
        raise OSError("the line was cut")

    async with heddle.Runner(bank.registry.with_tool(broken), journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        await runner.call("pay", operation_id="op")

    assert len(bank.asked) == 1
    assert len(operation_in(journal).attempts) == 2


@pytest.mark.parametrize("name", ["missing", "writes"])
async def test_a_tool_that_may_change_something_is_never_asked(
    journal: Journal, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    @heddle.tool(name="pay", side_effects="write", reconcile=name)
    async def broken() -> None:
        raise OSError("the line was cut")

    @heddle.tool(name="writes", side_effects="unknown")
    async def writes(operationId: str) -> dict[str, str]:  # noqa: N803
        asked.append(operationId)
        return {"outcome": "did_not_happen"}

    async with heddle.Runner([broken, writes], journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        second = await runner.call("pay", operation_id="op")

    assert isinstance(second, heddle.Failed)
    assert (second.kind, asked) == ("needs_attention", [])
    assert f"{name} is to be asked about calls of pay, and is no tool here that only reads" in caplog.text


# After a crash

DYING = """
import sys
import heddle

with heddle.Journal.open(sys.argv[2]) as journal:
    with heddle.blocking.Runner(heddle.discover_tools(sys.argv[1]), journal=journal) as runner:
        runner.call("my-bank.pay", {"then": "hang"}, operation_id=sys.argv[3])
"""


def lose_a_host(bank: Bank, path: Path, operation_id: str) -> None:
    """Have a host killed while the bank has written a payment down and not said so."""
    with subprocess.Popen([sys.executable, "-c", DYING, bank.folder, path, operation_id], cwd=ROOT) as host:
        assert wait_until(lambda: operation_id in bank.book, 20)
        host.send_signal(signal.SIGKILL)


async def test_recovery_asks_what_became_of_the_calls_of_a_host_that_was_killed(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    lose_a_host(bank, path, "op")

    with Journal.open(path) as journal:
        at_open = [(each.operation_id, str(each.state)) for each in journal.recovered]
        async with heddle.Runner(bank.registry, journal=journal) as runner:
            recovered = await runner.recover()
            again = await pay(runner, "hang")
            nothing = await runner.recover()

    assert at_open == [("op", "needs_attention")]
    assert [(each.operation_id, str(each.state), each.data) for each in recovered] == [
        ("op", "succeeded", {"receipt": "op"})
    ]
    assert (again, bank.book, nothing) == (heddle.Returned({"receipt": "op"}), ["op"], [])


def test_the_other_hosts_recover_as_well(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    lose_a_host(bank, path, "op")

    with Journal.open(path) as journal, heddle.blocking.Runner(bank.registry, journal=journal) as runner:
        recovered = runner.recover()

    assert [str(each.state) for each in recovered] == ["succeeded"]


async def test_nobody_is_asked_before_what_a_killed_host_had_started_is_gone(bank: Bank, tmp_path: Path) -> None:
    """A tool lives up to a second longer than its host: what has not happened yet may still happen then."""
    path = tmp_path / "journal.db"
    bank.answers({"outcome": "did_not_happen"})
    lose_a_host(bank, path, "op")
    with Journal.open(path) as journal:
        lost_at = operation_in(journal).attempts[-1].ended_at
        assert lost_at is not None
        async with heddle.Runner(bank.registry, journal=journal) as runner:
            await runner.recover()

    assert bank.folder.joinpath("asked").stat().st_mtime >= lost_at.timestamp() + 1.99


async def test_operations_of_other_tools_are_let_be(bank: Bank, journal: Journal) -> None:
    for operation_id, tool, revision in (("a", "unheard-of", "1"), ("b", PAY, "0"), ("c", "my-bank.status", "1")):
        asked = Asked(
            operation_id=operation_id,
            attempt_id=operation_id,
            tool=tool,
            revision=revision,
            digest=digest_of(tool, revision, {}),
            side_effects="write",
            retry="manual",
        )
        journal.claim(asked)
        journal.start(asked)
        journal.finish(asked, heddle.Failed(heddle.FailureKind.CRASHED, "no", started=True, retry="blocked"))
        journal.forget(operation_id)

    async with heddle.Runner(bank.registry, journal=journal) as runner:
        recovered = await runner.recover()

    assert (recovered, bank.asked) == ([], [])


async def test_a_runner_without_a_journal_has_nothing_to_recover(bank: Bank) -> None:
    async with heddle.Runner(bank.registry) as runner:
        with pytest.raises(heddle.DefinitionError, match="this runner has no journal to recover"):
            await runner.recover()


async def test_the_witness_is_asked_in_the_sandbox_as_well(bank: Bank, journal: Journal) -> None:
    """Its files are shown to it, though the scope may not call it."""

    @heddle.tool(name="pay", side_effects="write", reconcile="my-bank.status")
    async def broken() -> None:
        raise OSError("the line was cut")

    registry, sandbox = bank.registry.with_tool(broken), heddle.Sandbox(network="none")
    async with heddle.Runner(registry, journal=journal, sandbox=sandbox) as runner:
        async with runner.scope(tools=["pay"]) as scope:
            await scope.call("pay", operation_id="op")
            await scope.call("pay", operation_id="op")

    assert [str(each.state) for each in operation_in(journal).attempts] == ["crashed", "crashed"]


# Manifests


@pytest.mark.parametrize(
    ("reconcile", "changes", "fault"),
    [
        ("stats", {}, "it has to name another action of this manifest: status"),
        ("pay", {}, "it has to name another action of this manifest: status"),
        ("status", {"sideEffects": "unknown"}, "that action is not declared with sideEffects: read"),
        ("status", {"execution": "unsupported", "unsupportedReason": "no"}, "nothing runs that action"),
    ],
)
def test_an_action_that_cannot_be_asked_is_refused(
    bank: Bank, reconcile: str, changes: dict[str, Any], fault: str
) -> None:
    said = manifest(reconcile=reconcile)
    said["actions"][1] |= changes
    bank.folder.joinpath("bank.tool.json").write_text(json.dumps(said, indent=1))

    with pytest.raises(heddle.DefinitionError) as refused:
        heddle.discover_tools(bank.folder)

    assert f'actions[0].reconcile cannot be "{reconcile}": {fault}' in str(refused.value)


@pytest.mark.parametrize("key", ["inputSchema", "outputSchema"])
def test_reading_a_manifest_fetches_nothing(bank: Bank, key: str) -> None:
    """A description comes from strangers, and must not make a host ask around in its own network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        schema = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"}
        bank.folder.joinpath("bank.tool.json").write_text(json.dumps(manifest(**{key: schema})))

        with pytest.raises(heddle.DefinitionError, match=rf"{key}\.\$ref"):
            heddle.discover_tools(bank.folder)

        with pytest.raises(TimeoutError):
            server.accept()


async def test_the_file_beside_a_tool_may_name_who_is_asked(toolbox: Toolbox, journal: Journal) -> None:
    toolbox.sh("pay", "exit 3")
    toolbox.sh("status", """echo '{"outcome": "happened", "data": {"receipt": 7}}'""")
    toolbox.add("pay.tool.json", json.dumps({"sideEffects": "write", "reconcile": "status"}), mode=0o644)
    toolbox.add("status.tool.json", json.dumps({"sideEffects": "read"}), mode=0o644)

    async with heddle.Runner(toolbox.registry(), journal=journal) as runner:
        await runner.call("pay", operation_id="op")
        second = await runner.call("pay", operation_id="op")

    assert second == heddle.Returned({"receipt": 7})


def test_a_description_says_who_is_asked(bank: Bank) -> None:
    tool = bank.registry[PAY]

    assert (tool.reconcile, bank.registry["my-bank.status"].reconcile) == ("my-bank.status", None)
    for options, said in (([], "Reconcile:    my-bank.status"), (["--json"], '"reconcile": "my-bank.status"')):
        done = subprocess.run(
            [sys.executable, "-m", "heddle.cli", "describe", bank.folder, PAY, *options],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=ROOT,
            env=os.environ,
        )
        assert said in done.stdout, done.stderr
