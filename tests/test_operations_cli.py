"""Journals at the command line: real processes, both streams, exit statuses."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from heddle.operations import Journal
from tests.support import Toolbox, wait_until
from tests.test_cli import HEDDLE, heddle_cli, typed

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
def folder(toolbox: Toolbox) -> Path:
    """Tools that write a line each time they run."""
    for name, source in (("pay", "echo '{\"receipt\": 7}'"), ("lose", "exit 3"), ("wait", "sleep {long}")):
        toolbox.sh(name, f"echo {name} >> {toolbox.folder.parent}/ledger\n{source}")
    return toolbox.folder


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def call(folder: Path, journal: Path, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    return typed("call", folder, name, "{}", "--journal", journal, *more)


def ledger(folder: Path) -> list[str]:
    path = folder.parent / "ledger"
    return path.read_text().split() if path.exists() else []


def without_times(text: str) -> str:
    return re.sub(r"\b[0-9A-Z]{26}\b", "ID", re.sub(TIME, "TIME", text))


def test_a_call_with_the_same_id_has_its_effect_once(folder: Path, journal: Path) -> None:
    words: list[str | Path] = ["call", folder, "pay", "{}", "--journal", journal, "--operation-id", "order-17"]

    done = [heddle_cli(*words) for _ in range(2)]

    assert [(each.returncode, each.stdout, each.stderr) for each in done] == [(0, '{"receipt": 7}\n', "")] * 2
    assert ledger(folder) == ["pay"]


def test_what_needs_attention_is_listed_shown_resolved_and_answered(folder: Path, journal: Path) -> None:
    first, again = (call(folder, journal, "lose", "--operation-id", "order-17") for _ in range(2))
    call(folder, journal, "pay", "--operation-id", "order-18")

    listed = typed("operations", "ls", journal)
    only = typed("operations", "ls", journal, "--state", "needs_attention")
    shown = typed("operations", "show", journal, "order-17")
    data = ["--data", '{"receipt": 9}', "--note", "seen at the bank"]
    resolved = typed("operations", "resolve", journal, "order-17", "happened", *data)
    answered = call(folder, journal, "lose", "--operation-id", "order-17")

    assert (first.returncode, again.returncode) == (1, 1)
    assert again.stderr.startswith("failed (needs_attention): operation 'order-17' was tried before")
    row = "order-17\tlose\tneeds_attention\t1\tTIME\tcrashed TIME\n"
    assert without_times(listed.stdout) == "order-18\tpay\tsucceeded\t1\tTIME\tsucceeded TIME\n" + row
    assert (without_times(only.stdout), only.stderr) == (row, "")
    assert without_times(shown.stdout) == (
        "Operation:  order-17\n"
        "Tool:       lose, revision 0\n"
        "Declared:   side effects unknown, retry manual\n"
        "State:      needs_attention\n"
        "Since:      TIME\n"
        "\n"
        "Attempt 1:  crashed (ID)\n"
        "  prepared  TIME\n"
        "  starting  TIME\n"
        "  ended     TIME\n"
        '  why       crashed: tool "lose" exited with status 3.\n'
    )
    assert "heddle operations resolve FILE ID happened, or did_not_happen" in shown.stderr
    assert without_times(resolved.stdout) == "order-17\tlose\tsucceeded\t1\tTIME\tcrashed TIME\n"
    assert (answered.returncode, answered.stdout) == (0, '{"receipt": 9}\n')
    assert ledger(folder) == ["lose", "pay"]
    assert (
        'Note:       seen at the bank\nReturned:   {"receipt": 9}\n'
        in typed("operations", "show", journal, "order-17").stdout
    )


def test_what_did_not_happen_may_be_called_again(folder: Path, journal: Path) -> None:
    call(folder, journal, "lose", "--operation-id", "op")

    resolved = typed("operations", "resolve", journal, "op", "did_not_happen", "--json")
    again = call(folder, journal, "lose", "--operation-id", "op", "--json")

    assert [each["state"] for each in json.loads(resolved.stdout)] == ["open"]
    assert json.loads(again.stdout)["kind"] == "crashed"
    assert ledger(folder) == ["lose", "lose"]


def test_programs_read_json(folder: Path, journal: Path) -> None:
    call(folder, journal, "pay", "--operation-id", "op")
    with Journal.open(journal) as opened:
        operation = opened.operations()[0].as_json()

    listed = typed("operations", "ls", journal, "--json")
    shown = typed("operations", "show", journal, "op", "--json")
    none = typed("operations", "ls", journal, "--state", "open", "--json")

    assert json.loads(listed.stdout) == [operation]
    assert json.loads(shown.stdout) == operation
    assert none.stdout == "[]\n"


def test_operations_are_a_table_on_a_terminal(folder: Path, journal: Path) -> None:
    call(folder, journal, "pay", "--operation-id", "op")
    parent, child = pty.openpty()

    subprocess.run(
        [*HEDDLE, "operations", "ls", str(journal)],
        stdout=child,
        stdin=child,
        env=os.environ | {"COLUMNS": "120"},
        timeout=30,
        check=True,
    )

    os.close(child)
    lines = os.read(parent, 10_000).decode().splitlines()
    os.close(parent)
    assert re.sub(r"\x1b\[[\d;]*m", "", lines[0]).split() == ["Operation", "Tool", "State", "Tries", "Since", "Last"]
    assert without_times(lines[1]).split() == ["op", "pay", "succeeded", "1", "TIME", "succeeded", "TIME"]


def killed_while_it_waits(folder: Path, journal: Path) -> None:
    with subprocess.Popen(
        [*HEDDLE, "call", str(folder), "wait", "--journal", str(journal), "--operation-id", "op"]
    ) as process:
        assert wait_until(lambda: ledger(folder), 20)
        process.kill()


def test_what_a_killed_command_has_left_is_recovered(folder: Path, journal: Path) -> None:
    killed_while_it_waits(folder, journal)

    recovered = typed("operations", "recover", journal)
    again = typed("operations", "recover", journal)
    called = call(folder, journal, "wait", "--operation-id", "op")

    assert (recovered.returncode, without_times(recovered.stdout), recovered.stderr) == (
        0,
        "op\twait\tneeds_attention\t1\tTIME\tunknown TIME\n",
        "",
    )
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "there was nothing to recover\n")
    assert called.stderr.startswith("failed (needs_attention)")
    assert ledger(folder) == ["wait"]


def test_whatever_looks_first_says_what_it_has_recovered(folder: Path, journal: Path) -> None:
    killed_while_it_waits(folder, journal)

    listed = typed("operations", "ls", journal, "--state", "open")

    assert (listed.returncode, listed.stdout) == (0, "")
    assert listed.stderr == "recovered: op is needs_attention now\nnone is open\n"


def test_a_stopped_command_ends_its_tool_and_says_so_in_the_journal(folder: Path, journal: Path) -> None:
    command = [*HEDDLE, "call", str(folder), "wait", "--journal", str(journal), "--operation-id", "op"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        assert wait_until(lambda: ledger(folder), 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143

    shown = json.loads(typed("operations", "show", journal, "op", "--json").stdout)

    assert (shown["state"], shown["attempts"][0]["state"]) == ("needs_attention", "cancelled")


def test_an_operation_that_is_not_there_or_needs_no_attention_is_said(folder: Path, journal: Path) -> None:
    call(folder, journal, "pay", "--operation-id", "op")

    missing = typed("operations", "show", journal, "nobody")
    unknown = typed("operations", "resolve", journal, "nobody", "happened")
    settled = typed("operations", "resolve", journal, "op", "did_not_happen")

    assert [(each.returncode, each.stdout, each.stderr) for each in (missing, unknown, settled)] == [
        (1, "", "there is no operation 'nobody' in journal.db\n"),
        (1, "", "there is no operation 'nobody' in journal.db\n"),
        (1, "", "heddle: operation 'op' does not need attention: it is succeeded\n"),
    ]


def test_an_empty_journal_says_so(journal: Path) -> None:
    Journal.open(journal).close()

    done = typed("operations", "ls", journal)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"no operations in {journal}\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["operations", "ls", "missing.db"], "File 'missing.db' does not exist"),
        (["operations", "ls", "notes.txt"], "notes.txt cannot be used as a journal: file is not a database"),
        (["operations", "resolve", "notes.txt", "op", "maybe"], "'maybe' is not one of 'happened', 'did_not_happen'"),
        (["operations", "resolve", "notes.txt", "op", "happened", "--data", "{"], "--data is not strict JSON: "),
        (["operations", "resolve", "notes.txt", "op", "did_not_happen", "--data", "1"], "only what happened has data"),
        (["call", "tools", "pay", "--journal", "notes.txt"], "notes.txt cannot be used as a journal: "),
        (["call", "tools", "pay", "--journal", "missing/journal.db"], "missing/journal.db: No such file or directory"),
        (["call", "tools", "pay", "--operation-id", ""], "an operation id has 1 to 255 printable characters, not ''"),
    ],
)
def test_what_cannot_be_used_is_the_users_to_mend(folder: Path, arguments: list[str], sentence: str) -> None:
    notes = folder.parent / "notes.txt"
    notes.write_text("these are my notes, " * 100)

    done = typed(*arguments, cwd=folder.parent)

    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert notes.read_text() == "these are my notes, " * 100
    assert ledger(folder) == []
