"""What a journal makes of every way in which a call may end, for tools that may be repeated and for those that may not.

Each row is made by real calls of one tool that is declared in six ways: twice as safe to repeat, four times as not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
import trio

import heddle
from heddle.operations import Journal
from heddle.results import Retry, SideEffects
from tests.support import Toolbox, until, wait_until

Declared: TypeAlias = tuple[SideEffects, Retry]
SAFE: list[Declared] = [("read", "idempotent"), ("write", "idempotent")]
# What has unknown effects is not repeated, whatever it says about that.
GUARDED: list[Declared] = [("write", "manual"), ("read", "manual"), ("unknown", "manual"), ("unknown", "idempotent")]

# retry, the operation afterwards, what the next call with its id does
FREE = ("allowed", "open", "tried again")
BLOCKED = ("blocked", "needs_attention", "needs_attention")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@attrs.frozen
class Row:
    """A way to end.

    Attributes:
        make: Gives the options of a `heddle.ToolDef`, or the function that is the tool.
        kind: Of the failure.
        started: Whether the tool was.
        attempt: The state of the attempt afterwards.
        safe: What holds then for a tool that may be repeated.
        guarded: The same for one that may not.
        call: What is given to the call.
    """

    make: Callable[[Toolbox], Any]
    kind: str
    started: bool
    attempt: str
    safe: tuple[str, str, str]
    guarded: tuple[str, str, str]
    call: dict[str, Any] = attrs.field(factory=dict[str, Any])


def plain(source: str, **more: Any) -> Callable[[Toolbox], Any]:
    return lambda toolbox: {"implementation": heddle.Program(toolbox.sh("tool", source)), **more}


def envelope(source: str, **more: Any) -> Callable[[Toolbox], Any]:
    return lambda toolbox: {
        "implementation": heddle.Program(toolbox.sh("tool", source), protocol="envelope"),
        **more,
    }


def function(body: Callable[..., Any]) -> Callable[[Toolbox], Any]:
    return lambda _: body


def fails(n: int = 0) -> dict[str, int]:
    raise heddle.ToolError("declined", "the bank says no")


def breaks(n: int = 0) -> dict[str, int]:
    raise ZeroDivisionError


async def sleeps(n: int = 0) -> dict[str, int]:
    await trio.sleep_forever()
    return {}


def says_what_is_no_json(n: int = 0) -> Any:
    return {"n": float("nan")}


def says_something_else(n: int = 0) -> dict[str, int]:
    return {"n": "five"}  # type: ignore[dict-item]


def says_a_lot(n: int = 0) -> dict[str, str]:
    return {"text": "x" * 5000}


def unreachable(toolbox: Toolbox) -> Any:
    return {"implementation": heddle.Program(toolbox.folder / "missing")}


def not_executable(toolbox: Toolbox) -> Any:
    return {"implementation": heddle.Program(toolbox.add("tool", "#!/bin/sh\n", mode=0o644))}


def without_interpreter(toolbox: Toolbox) -> Any:
    return {"implementation": heddle.Program(toolbox.add("tool", "#!/usr/bin/env no-such-interpreter\n"))}


BEFORE: dict[str, Any] = {"started": False, "attempt": "not_started", "safe": FREE, "guarded": FREE}
AFTER: dict[str, Any] = {"started": True, "safe": FREE, "guarded": BLOCKED}
WRONG = {"arguments": {"n": "five"}}
LONG = {"arguments": {"n": 10**90}, "limits": heddle.Limits(stdin_bytes=80)}
SHORT = {"limits": heddle.Limits(wall_seconds=0.15)}
SMALL = {"limits": heddle.Limits(stdout_bytes=1000)}
LITTLE = {"limits": heddle.Limits(file_bytes=1)}

TABLE = {
    # before the start
    "the arguments of a program are wrong": Row(
        plain("cat", input_schema=SCHEMA), "invalid_input", call=WRONG, **BEFORE
    ),
    "the arguments of an envelope are wrong": Row(
        envelope("cat", input_schema=SCHEMA), "invalid_input", call=WRONG, **BEFORE
    ),
    "the arguments of a function are wrong": Row(function(fails), "invalid_input", call=WRONG, **BEFORE),
    "the arguments are too large": Row(plain("cat"), "too_large", call=LONG, **BEFORE),
    "nothing runs it": Row(lambda _: {}, "unsupported", **BEFORE),
    "there is no program": Row(unreachable, "cannot_start", **BEFORE),
    "the program may not be run": Row(not_executable, "cannot_start", **BEFORE),
    "there is no interpreter": Row(without_interpreter, "cannot_start", **BEFORE),
    "there is no such folder": Row(plain("cat"), "cannot_start", call={"cwd": "missing"}, **BEFORE),
    "the folder is outside": Row(plain("cat"), "denied", call={"cwd": ".."}, **BEFORE),
    # a failure that the tool has handled
    "an envelope says no": Row(
        envelope("""echo '{"ok": false, "error": {"code": "declined", "message": "no"}}'"""),
        "tool_error",
        attempt="failed",
        **AFTER,
    ),
    "a function says no": Row(function(fails), "tool_error", attempt="failed", **AFTER),
    # a crash, or output that is of no use
    "a program fails": Row(plain("exit 3"), "crashed", attempt="crashed", **AFTER),
    "an envelope fails": Row(
        envelope("""echo '{"ok": true, "data": 1}'; exit 3"""), "crashed", attempt="crashed", **AFTER
    ),
    "a program is killed": Row(plain("kill -9 $$"), "crashed", attempt="crashed", **AFTER),
    "a function raises": Row(function(breaks), "crashed", attempt="crashed", **AFTER),
    "a program prints no JSON": Row(plain("echo hello"), "invalid_output", attempt="failed", **AFTER),
    "an envelope is none": Row(envelope("echo '{}'"), "invalid_output", attempt="failed", **AFTER),
    "a function returns no JSON": Row(function(says_what_is_no_json), "invalid_output", attempt="failed", **AFTER),
    "a program prints something else": Row(
        plain("""echo '{"n": "five"}'""", output_schema=SCHEMA), "output_mismatch", attempt="failed", **AFTER
    ),
    "an envelope holds something else": Row(
        envelope("""echo '{"ok": true, "data": {"n": "five"}}'""", output_schema=SCHEMA),
        "output_mismatch",
        attempt="failed",
        **AFTER,
    ),
    "a function returns something else": Row(
        function(says_something_else), "output_mismatch", attempt="failed", **AFTER
    ),
    "a program prints too much": Row(
        plain("head -c 5000 /dev/zero"), "too_large", attempt="failed", call=SMALL, **AFTER
    ),
    "a function returns too much": Row(function(says_a_lot), "too_large", attempt="failed", call=SMALL, **AFTER),
    "a program writes too large a file": Row(
        plain("head -c 5000 /dev/zero > file || kill -XFSZ $$"),
        "limit_exceeded",
        attempt="crashed",
        call=LITTLE,
        **AFTER,
    ),
    # a timeout
    "a program takes too long": Row(plain("exec sleep {long}"), "timed_out", attempt="timed_out", call=SHORT, **AFTER),
    "an envelope takes too long": Row(
        envelope("exec sleep {long}"), "timed_out", attempt="timed_out", call=SHORT, **AFTER
    ),
    "a function takes too long": Row(function(sleeps), "timed_out", attempt="timed_out", call=SHORT, **AFTER),
}


def declared(made: Any, name: str, side_effects: SideEffects, retry: Retry) -> heddle.ToolDef:
    if callable(made):
        return heddle.tool(name=name, side_effects=side_effects, retry=retry)(made)
    return heddle.ToolDef(name=name, side_effects=side_effects, retry=retry, **made)


@pytest.mark.parametrize("name", TABLE)
async def test_a_failure_leaves_the_operation_as_its_declaration_says(
    toolbox: Toolbox, tmp_path: Path, name: str
) -> None:
    row = TABLE[name]
    made = row.make(toolbox)
    tools = {
        f"{effects}_{retry}": declared(made, f"{effects}_{retry}", effects, retry) for effects, retry in SAFE + GUARDED
    }
    call: dict[str, Any] = {"arguments": {}, **row.call}
    seen = {}

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner(tools.values(), journal=journal) as runner:
            for tool in tools:
                failure = await runner.call(tool, operation_id=tool, **call)
                operation = journal.operation(tool)
                again = await runner.call(tool, operation_id=tool, **call)
                assert isinstance(failure, heddle.Failed)
                assert isinstance(again, heddle.Failed)
                assert operation is not None
                seen[tool] = (
                    (failure.kind, failure.started, [each.state for each in operation.attempts]),
                    (
                        failure.retry,
                        operation.state,
                        next_of(journal, again, failure),
                    ),
                )

    ended = (row.kind, row.started, [row.attempt])
    expected = {f"{effects}_{retry}": (ended, row.safe) for effects, retry in SAFE}
    assert seen == expected | {f"{effects}_{retry}": (ended, row.guarded) for effects, retry in GUARDED}


def next_of(journal: Journal, again: heddle.Failed, first: heddle.Failed) -> str:
    """Return what the second call of an operation has come to; all that is known of it has to agree."""
    operation = journal.operation(again.report.operation_id)
    assert operation is not None
    tries = [(each.number, each.attempt_id) for each in operation.attempts]
    before = (1, first.report.attempt_id)
    if (again.kind, tries) == (first.kind, [before, (2, again.report.attempt_id)]):
        return "tried again"
    if (again.started, again.retry, tries) == (False, "blocked", [before]):
        return str(again.kind)
    return f"{again} after {tries}"


RETURNS = {
    "a program": plain("""echo run >> "$0.runs"; echo '{"n": 5}'"""),
    "an envelope": envelope("""echo run >> "$0.runs"; echo '{"ok": true, "data": {"n": 5}}'"""),
}


@pytest.mark.parametrize("name", RETURNS)
@pytest.mark.parametrize("declaration", [*SAFE, *GUARDED], ids="-".join)
async def test_a_call_that_has_succeeded_is_answered_from_the_journal(
    toolbox: Toolbox, tmp_path: Path, name: str, declaration: Declared
) -> None:
    tool = declared(RETURNS[name](toolbox), "tool", *declaration)

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([tool], journal=journal) as runner:
            first = await runner.call("tool", operation_id="op")
            again = await runner.call("tool", operation_id="op")
        operation = journal.operation("op")

    assert first == again == heddle.Returned({"n": 5})
    assert again.report == attrs.evolve(first.report, replayed=True)
    assert (toolbox.folder / "tool.runs").read_text() == "run\n"
    assert operation is not None
    assert (operation.state, operation.data, [each.state for each in operation.attempts]) == (
        "succeeded",
        {"n": 5},
        ["succeeded"],
    )


@pytest.mark.parametrize(("declaration", "state"), [(SAFE[1], "open"), (GUARDED[0], "needs_attention")], ids=str)
@pytest.mark.parametrize("kind", ["program", "function"])
async def test_a_call_that_is_cancelled_after_its_start_is_blocked_unless_it_may_be_repeated(
    toolbox: Toolbox, tmp_path: Path, declaration: Declared, state: str, kind: str
) -> None:
    made = {"program": plain("exec sleep {long}")(toolbox), "function": sleeps}[kind]
    tool = declared(made, "tool", *declaration)

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([tool], journal=journal) as runner:
            await cancelled(runner, journal, lambda attempt: attempt == "starting")
        operation = journal.operation("op")

    assert operation is not None
    assert (operation.state, [(each.state, each.kind) for each in operation.attempts]) == (
        state,
        [("cancelled", "cancelled")],
    )


async def test_a_call_that_is_cancelled_while_it_waits_may_be_made_again(toolbox: Toolbox, tmp_path: Path) -> None:
    """It has not been about to start, and the journal knows."""
    tool = declared(plain("exec sleep {long}")(toolbox), "tool", *GUARDED[0])

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([tool], journal=journal, max_concurrent=1) as runner, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: runner.call("tool", operation_id="first"))
            assert await until(lambda: state_of_attempt(journal, "first") == "starting", 10)
            await cancelled(runner, journal, lambda attempt: attempt == "prepared")
            nursery.cancel_scope.cancel()
        operation = journal.operation("op")

    assert operation is not None
    assert (operation.state, [each.state for each in operation.attempts]) == ("open", ["not_started"])


async def cancelled(runner: heddle.Runner, journal: Journal, is_time: Callable[[str | None], bool]) -> None:
    """Call the tool, and cancel that when its attempt is in some state."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: runner.call("tool", operation_id="op"))
        assert await until(lambda: is_time(state_of_attempt(journal, "op")), 10)
        nursery.cancel_scope.cancel()


def state_of_attempt(journal: Journal, operation_id: str) -> str | None:
    operation = journal.operation(operation_id)
    return None if operation is None else operation.attempts[-1].state


# What the pages show


ROOT = Path(__file__).parent.parent
PAYMENTS = ROOT / "examples/payment_tools"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)
HOW_TO = BLOCK.findall((ROOT / "docs/how-to/effects.md").read_text())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the tools of the page."""
    shutil.copytree(PAYMENTS, tmp_path / "tools")
    return tmp_path


def run(program: list[str | Path], place: Path, **environment: str) -> str:
    done = subprocess.run(
        program,
        cwd=place,
        env=os.environ | {"BANK_BOOK": str(place / "book"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def lose_a_payment(place: Path, order: str) -> None:
    """Have a host killed while it pays, so that the order needs attention."""
    call = ["call", "tools", "pay", '{"amount": 5}', "--journal", "operations.db", "--operation-id", order]
    book = place / "book"
    with subprocess.Popen(
        [sys.executable, "-m", "heddle.cli", *call],
        cwd=place,
        env=os.environ | {"BANK_BOOK": str(book), "BANK_SECONDS": "60"},
    ) as host:
        assert wait_until(lambda: book.exists() and f"{order} 5\n" in book.read_text(), 30)
        host.kill()
    Journal.open(place / "operations.db").close()


def test_the_tool_of_the_page_is_the_one_of_the_example() -> None:
    assert [text for _, title, text in HOW_TO if title] == [(PAYMENTS / "pay.tool.json").read_text()]


def test_the_programs_of_the_page_print_what_it_says(place: Path) -> None:
    programs = [text for language, _, text in HOW_TO if language == "python"]
    outputs = [text for language, _, text in HOW_TO if language == "text"]

    first, tried = (run([sys.executable, "-c", program], place) for program in programs[:2])
    lose_a_payment(place, "order-18")
    lost, asked = (run([sys.executable, "-c", program], place) for program in programs[2:])

    assert [first, tried, lost, asked] == outputs
    assert (place / "book").read_text() == "order-17 5\norder-18 5\norder-19 5\n"


def test_the_commands_of_the_page_resolve_what_needs_attention(place: Path) -> None:
    lose_a_payment(place, "order-17")
    commands, _ = (text for language, _, text in HOW_TO if language == "sh")
    said = []

    for line in commands.splitlines():
        name, *arguments = shlex.split(line)
        assert name == "heddle"
        said.append(
            run([sys.executable, "-m", "heddle.cli", *arguments, "--json"], place) if "show" not in line else ""
        )

    assert [[each["state"] for each in json.loads(text)] for text in said if text] == [
        ["needs_attention"],
        ["succeeded"],
    ]


def test_the_commands_of_the_page_approve_what_awaits_it(place: Path) -> None:
    programs = [text for language, _, text in HOW_TO if language == "python"]
    _, commands = (text for language, _, text in HOW_TO if language == "sh")
    run([sys.executable, "-c", programs[-1]], place)

    for line in commands.splitlines():
        if "show" not in line:
            run([sys.executable, "-m", "heddle.cli", *shlex.split(line)[1:]], place)
    call = ["call", "tools", "pay", '{"amount": 5000}', "--journal", "operations.db", "--operation-id", "order-20"]
    run([sys.executable, "-m", "heddle.cli", *call], place)

    assert (place / "book").read_text() == "order-19 5\norder-20 5000\n"


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (shown,) = (text for language, _, text in BLOCK.findall((ROOT / "docs/explanation/journal.md").read_text()))

    assert run([sys.executable, ROOT / "examples/payments.py"], tmp_path) == shown
