"""Bad answers, bad files, bad arguments: each has one outcome, and a message that says whose fault it is."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

import heddle
from tests.support import Toolbox

LOGS = "progress and logs go to standard error."
QUOTES = "A quotation mark or a line break inside a string has to be escaped: let a JSON library write the output."
# What a tool does, what is wrong with it, the likely cause, and what of its output is shown.
BAD_OUTPUT: dict[str, tuple[str, str, str, str]] = {
    "a banner": (
        "echo hello; echo '{}'",
        "text that is not JSON (expecting value) at byte 0.",
        f" Something was printed before the object; {LOGS}",
        r"'hello\n{}\n'",
    ),
    "two objects": (
        "echo '{}'; echo '{}'",
        r"more after the first value at byte 3, near '{}\n{}\n'.",
        f" Only one object may be printed; {LOGS}",
        r"'{}\n{}\n'",
    ),
    "an array": ("echo '[1]'", "it printed an array.", "", r"'[1]\n'"),
    "a quotation mark": (
        """echo '{"result": "say "hi""}'""",
        """text that is not JSON (expecting ',' delimiter) at byte 17, near '{"result": "say "hi""}\\n'.""",
        f" {QUOTES}",
        r"""'{"result": "say "hi""}\n'""",
    ),
    "NaN": ("""echo '{"a": [NaN]}'""", "NaN, which is not JSON at $.a[0].", "", r"""'{"a": [NaN]}\n'"""),
    "duplicate keys": (
        """echo '{"x": {"ok": true, "ok": false}}'""",
        'duplicate key "ok" at $.x.',
        "",
        r"""'{"x": {"ok": true, "ok": false}}\n'""",
    ),
    "a lone surrogate": (
        r"""printf '{"a": "\\ud800"}'""",
        r"a lone surrogate (\ud800) at $.a.",
        "",
        r"""'{"a": "\\ud800"}'""",
    ),
    "200,000 brackets": (
        r"head -c 200000 /dev/zero | tr '\0' '['",
        "nesting deeper than 128.",
        "",
        f"'{'[' * 80}'…",
    ),
    "a number of 5,000 digits": (
        r"""printf '{"a": '; head -c 5000 /dev/zero | tr '\0' '1'; echo '}'""",
        "an integer of more than 4,300 digits at $.a.",
        "",
        '\'{"a": ' + "1" * 74 + "'…",
    ),
    "bad UTF-8": (
        r"printf '{\360}'",
        "bytes that are not UTF-8 at byte 1, near '{\ufffd}'.",
        "",
        "'{\ufffd}'",
    ),
    "a number beyond every float": (
        """echo '{"a": 1e400}'""",
        "a number too large for JSON readers (1e400) at $.a.",
        "",
        r"""'{"a": 1e400}\n'""",
    ),
}


@pytest.mark.parametrize(("source", "what", "cause", "seen"), BAD_OUTPUT.values(), ids=BAD_OUTPUT)
async def test_bad_output_is_named_and_shown(toolbox: Toolbox, source: str, what: str, cause: str, seen: str) -> None:
    result = await toolbox.run_sh(source)

    assert result == heddle.Failed(
        heddle.FailureKind.INVALID_OUTPUT,
        f'tool "tool" did not answer with one JSON object: {what}{cause}\nIt printed: {seen}',
        started=True,
        retry="blocked",
    )
    assert result.report.exit_status == 0


GOOD_OUTPUT: dict[str, tuple[str, Any]] = {
    "nothing": ("true", {}),
    "blanks": ("printf ' \\n\\t '", {}),
    "a byte-order mark": (r"printf '\357\273\277'; echo '{}'", {}),
    "nothing but a byte-order mark": (r"printf '\357\273\277'", {}),
    "a large integer": ("echo '{\"id\": 2512292042121000001}'", {"id": 2512292042121000001}),
    "128 levels": ("""printf '{"a":'; printf '%0127d' 0 | tr 0 '['; printf '%0127d' 0 | tr 0 ']'; echo '}'""", None),
}


@pytest.mark.parametrize(("source", "data"), GOOD_OUTPUT.values(), ids=GOOD_OUTPUT)
async def test_good_output_is_returned(toolbox: Toolbox, source: str, data: Any) -> None:
    result = await toolbox.run_sh(source)

    assert isinstance(result, heddle.Returned), result
    if data is not None:
        assert result.data == data


async def test_bad_bytes_on_standard_error_are_replaced(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh(r"printf 'a\360b' >&2; exit 1")

    assert isinstance(result, heddle.Failed)
    assert result.report.stderr_tail == "a\ufffdb"


async def test_a_crash_says_its_status_and_the_end_of_standard_error(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("echo starting >&2; echo 'no such table: looms' >&2; echo '{\"ok\": true}'; exit 3")

    assert result == heddle.Failed(
        heddle.FailureKind.CRASHED,
        'tool "tool" exited with status 3.\nIts standard error ends with:\nstarting\nno such table: looms',
        details={"exit_status": 3},
        started=True,
        retry="blocked",
    )


async def test_a_death_by_signal_is_named(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("kill -SEGV $$")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, result.report.signal) == ("crashed", "SIGSEGV", "SIGSEGV")
    assert result.report.exit_status is None


# Files


CANNOT_START: dict[str, tuple[bytes, str]] = {
    "a CRLF #! line": (
        b"#!/bin/sh\r\necho '{}'\r\n",
        "line 1 of tool ends in a carriage return (CRLF), so the system looks for an interpreter of that name. "
        "Save the file with Unix line endings (LF)",
    ),
    "a CRLF #! line with env": (
        b"#!/usr/bin/env python3\r\nprint('{}')\r\n",
        "line 1 of tool ends in a carriage return (CRLF), so the system looks for an interpreter of that name. "
        "Save the file with Unix line endings (LF)",
    ),
    "a missing interpreter": (
        b"#!/usr/bin/nosuch\n",
        "tool needs /usr/bin/nosuch, which is not on this machine. Install it, or change the #! line",
    ),
    "a missing interpreter with env": (
        b"#!/usr/bin/env nosuch\n",
        "tool needs nosuch, which is not on the tool's PATH. Install it, or change the #! line",
    ),
    "a missing interpreter with env -S": (
        b"#!/usr/bin/env -S X=1 nosuch -u\n",
        "tool needs nosuch, which is not on the tool's PATH. Install it, or change the #! line",
    ),
    "two words for env": (
        b"#!/usr/bin/env python3 -u\n",
        "line 1 of tool hands 'python3 -u' to env as one word. Write #!/usr/bin/env -S python3 -u",
    ),
    "no #! line": (
        b"echo '{}'\n",
        "line 1 of tool is no #! line, so the system does not know what runs it. Add one, like #!/bin/sh",
    ),
    "a byte-order mark before the #! line": (
        b"\xef\xbb\xbf#!/bin/sh\necho '{}'\n",
        "tool begins with a byte-order mark, which hides its #! line. Save it without one",
    ),
    "an empty file": (b"", "tool is empty. Write the tool, or take the file away"),
    "a #! line that names nothing": (b"#!\n", "line 1 of tool names no interpreter after #!"),
    "a broken binary": (b"\x7fELF and nothing more", "tool is a binary for another system"),
}


@pytest.mark.parametrize(("content", "why"), CANNOT_START.values(), ids=CANNOT_START)
async def test_a_file_that_cannot_be_started_says_why(toolbox: Toolbox, content: bytes, why: str) -> None:
    toolbox.add("tool", content)

    result = await toolbox.call("tool")

    assert result == heddle.Failed(heddle.FailureKind.CANNOT_START, f'tool "tool" cannot be started: {why}.')
    assert (result.started, result.retry, result.report.tier, result.report.started_at) == (
        False,
        "allowed",
        None,
        None,
    )


async def test_a_file_that_lost_its_execute_bit_says_so(toolbox: Toolbox) -> None:
    path = toolbox.sh("tool", "echo '{}'")
    registry = toolbox.registry()
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)

    async with heddle.Runner(registry) as runner:
        result = await runner.call("tool")

    assert isinstance(result, heddle.Failed)
    assert result.message == 'tool "tool" cannot be started: tool is not executable. Run chmod +x on it.'


async def test_a_file_that_is_gone_says_so(toolbox: Toolbox) -> None:
    path = toolbox.sh("tool", "echo '{}'")
    registry = toolbox.registry()
    path.unlink()

    async with heddle.Runner(registry) as runner:
        result = await runner.call("tool")

    assert isinstance(result, heddle.Failed)
    assert result.message == (
        'tool "tool" cannot be started: the tool\'s file tool is gone. Put it back, or read the folder again.'
    )


async def test_a_folder_in_the_place_of_a_file_says_so(toolbox: Toolbox) -> None:
    path = toolbox.sh("tool", "echo '{}'")
    registry = toolbox.registry()
    path.unlink()
    path.mkdir()

    async with heddle.Runner(registry) as runner:
        result = await runner.call("tool")

    assert isinstance(result, heddle.Failed)
    assert result.message == 'tool "tool" cannot be started: tool is a folder.'


async def test_a_name_of_the_environment_that_is_too_long_is_the_hosts_fault(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "echo '{}'")

    result = await toolbox.call("tool", environment=heddle.Environment(values={"LONG": "x" * 200_000}))

    assert isinstance(result, heddle.Failed)
    assert result.kind == "cannot_start"
    assert "The host passes too much" in result.message


async def test_a_large_environment_arrives_whole(toolbox: Toolbox) -> None:
    """Beyond what fits one packet to the keeper."""
    toolbox.sh("tool", 'echo "{\\"size\\": $(printenv A B | wc -c)}"')
    values = {"A": "x" * 100_000, "B": "y" * 100_000}

    result = await toolbox.call("tool", environment=heddle.Environment(values=values))

    assert result == heddle.Returned({"size": 200_002})


async def test_a_file_still_open_for_writing_is_waited_for_a_moment(toolbox: Toolbox) -> None:
    path = toolbox.sh("tool", "echo '{}'")
    registry = toolbox.registry()
    writing = os.open(path, os.O_WRONLY | os.O_APPEND)

    async with heddle.Runner(registry) as runner:
        busy = await runner.call("tool")
        os.close(writing)
        free = await runner.call("tool")

    assert isinstance(busy, heddle.Failed)
    assert busy.message == (
        'tool "tool" cannot be started: tool is still open for writing. Close it before you call the tool.'
    )
    assert free == heddle.Returned({})


# Arguments


async def test_arguments_arrive_as_they_are(toolbox: Toolbox) -> None:
    """Whatever a model writes is data: nothing of it meets a shell."""
    arguments: Any = {
        "nul": "a\0b",
        "shell": '"; touch pwned; $(touch pwned) `touch pwned`',
        "path": "C:\\new\\t",
        "big": 2**70,
        "text": "ünï\u2028\U0001f600",
        "unknown": {"deep": [1, 2.5, None, True]},
    }

    result = await toolbox.run_sh("cat", arguments)

    assert result == heddle.Returned(arguments)
    assert not list(toolbox.folder.glob("**/pwned"))


@pytest.mark.parametrize("arguments", ["", "  ", "null", None, {}, "{}"])
async def test_no_arguments_are_the_empty_object(toolbox: Toolbox, arguments: Any) -> None:
    result = await toolbox.run_sh("cat", arguments)

    assert result == heddle.Returned({})


BAD_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "broken text": ('{"a": }', "are not strict JSON: text that is not JSON (expecting value) at byte 6."),
    "an array": ("[1]", "must be an object, not an array."),
    "a word": ("hello", "are not strict JSON: text that is not JSON (expecting value) at byte 0."),
    "NaN": ({"a": float("nan")}, "are not strict JSON: nan, which is not JSON at $.a."),
    "an object of Python": ({"a": object()}, "are not strict JSON: a value of type object, which is not JSON at $.a."),
    "a key that is no text": ({"a": {1: 2}}, "are not strict JSON: a key of type int (1) at $.a."),
    "brackets": ("[" * 200_000, "are not strict JSON: nesting deeper than 128."),
    "duplicate keys": ('{"a": 1, "a": 2}', 'are not strict JSON: duplicate key "a" at $.'),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
async def test_arguments_that_are_no_object_are_refused_before_the_start(
    toolbox: Toolbox, arguments: Any, message: str
) -> None:
    result = await toolbox.run_sh("touch started; cat", arguments)

    assert result == heddle.Failed(heddle.FailureKind.INVALID_INPUT, f'the arguments of tool "tool" {message}')


@pytest.mark.parametrize("as_text", [True, False])
async def test_arguments_over_the_limit_start_nothing(toolbox: Toolbox, *, as_text: bool) -> None:
    text = "x" * 2 * 1024 * 1024

    result = await toolbox.run_sh("cat", f'{{"text": "{text}"}}' if as_text else {"text": text})

    assert result == heddle.Failed(
        heddle.FailureKind.TOO_LARGE,
        'the arguments of tool "tool" are larger than the 1,048,576 bytes that a call may send.',
    )


async def test_a_bare_string_may_stand_for_an_object(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "cat")

    async with heddle.Runner(toolbox.registry()) as runner:
        bare = await runner.call("tool", "two words", bare_string=True)
        json = await runner.call("tool", '{"a": 1}', bare_string=True)

    assert bare == heddle.Returned({"input": "two words"})
    assert json == heddle.Returned({"a": 1})


# The envelope


def envelope_tool(toolbox: Toolbox, source: str) -> None:
    toolbox.sh("tool", source)
    (toolbox.folder / "tool.tool.json").write_text('{"protocol": "envelope", "revision": "7"}')


async def test_the_envelope_says_who_is_called_and_which_attempt_this_is(toolbox: Toolbox) -> None:
    envelope_tool(
        toolbox,
        """
        input=$(cat)
        echo "{\\"ok\\": true, \\"data\\": [$input, \\"$HEDDLE_TOOL $HEDDLE_OPERATION_ID $HEDDLE_ATTEMPT_ID\\"]}"
        """,
    )

    async with heddle.Runner(toolbox.registry()) as runner:
        result = await runner.call("tool", {"a": 1}, operation_id="op-1")

    attempt = result.report.attempt_id
    assert result == heddle.Returned(
        [
            {
                "protocolVersion": 1,
                "toolId": "tool",
                "toolRevision": "7",
                "action": "tool",
                "input": {"a": 1},
                "operationId": "op-1",
                "attemptId": attempt,
            },
            f"tool op-1 {attempt}",
        ]
    )
    assert attempt


async def test_a_handled_failure_is_a_tool_error(toolbox: Toolbox) -> None:
    envelope_tool(
        toolbox,
        """echo '{"ok": false, "error": {"code": "no_loom", "message": "No loom.", "exitCode": 2, "signal": null}}'""",
    )

    result = await toolbox.call("tool")

    assert result == heddle.Failed(
        heddle.FailureKind.TOOL_ERROR,
        'tool "tool" reports no_loom: No loom.',
        code="no_loom",
        details={"exitCode": 2, "signal": None},
        started=True,
        retry="blocked",
    )


BAD_ENVELOPES = {
    "nothing": ("", "nothing where a value should be"),
    "an array": ("[]", "it printed an array, where an envelope was expected"),
    "no ok": ('{"data": 1}', 'an envelope has "ok", which is true or false'),
    "ok is a number": ('{"ok": 1, "data": 1}', 'an envelope has "ok", which is true or false'),
    "no data": ('{"ok": true}', 'the envelope lacks "data"'),
    "too much": ('{"ok": true, "data": 1, "log": []}', 'the envelope has "log", which does not belong there'),
    "no error": ('{"ok": false}', 'the envelope lacks "error"'),
    "error is a text": ('{"ok": false, "error": "no"}', '"error" is a string, not an object'),
    "no code": ('{"ok": false, "error": {"message": "m"}}', '"error" lacks "code"'),
    "an empty message": (
        '{"ok": false, "error": {"code": "c", "message": ""}}',
        '"error.message" must be a text that is not empty',
    ),
    "more error": (
        '{"ok": false, "error": {"code": "c", "message": "m", "hint": 1}}',
        '"error" has "hint", which does not belong there',
    ),
    "a boolean exit code": (
        '{"ok": false, "error": {"code": "c", "message": "m", "exitCode": true}}',
        '"error.exitCode" must be a whole number or null',
    ),
    "a signal number": (
        '{"ok": false, "error": {"code": "c", "message": "m", "signal": 9}}',
        '"error.signal" must be a text or null',
    ),
}


@pytest.mark.parametrize(("output", "what"), BAD_ENVELOPES.values(), ids=BAD_ENVELOPES)
async def test_what_is_no_envelope_is_invalid_output(toolbox: Toolbox, output: str, what: str) -> None:
    envelope_tool(toolbox, f"echo '{output}'")

    result = await toolbox.call("tool")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "invalid_output"
    assert f": {what}." in result.message


async def test_an_envelope_is_not_read_from_a_program_that_crashed(toolbox: Toolbox) -> None:
    envelope_tool(toolbox, 'echo \'{"ok": true, "data": 1}\'; exit 1')

    result = await toolbox.call("tool")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "crashed"
