"""The deadline holds and nothing survives: real programs that do not want to end."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import trio

import heddle
from tests.support import Toolbox, state_of, until

# Deadline + 2 s of grace + 0.5 s.
BEYOND = 2.5

NEVER_ENDING = {
    "waits": "sleep {long}",
    "waits for a child": "sleep {long} & wait",
    "ignores SIGTERM": "trap '' TERM; while :; do sleep {long}; done",
    "leaves a session": "setsid sleep {long} & sleep {long}",
    "ignores SIGTERM in a session of its own": "trap '' TERM; setsid sleep {long} & while :; do sleep {long}; done",
    "stops itself": "kill -STOP $$",
    "is busy": "while :; do :; done",
    "floods standard error": "yes >&2",
    "has closed its streams": "exec <&- >&- 2>&-; sleep {long}",
    "keeps forking": "while :; do sleep {long} & sleep 0.01; done",
}


@pytest.mark.parametrize("source", NEVER_ENDING.values(), ids=NEVER_ENDING)
async def test_a_program_that_does_not_end_is_ended_with_all_it_started(toolbox: Toolbox, source: str) -> None:
    began = time.monotonic()

    result = await toolbox.run_sh(source, wall_seconds=0.5)

    assert isinstance(result, heddle.Failed)
    assert result.kind == "timed_out"
    assert result.started
    assert time.monotonic() - began < 0.5 + BEYOND + 0.5  # the runner's own beginning and end are in this
    assert result.report.duration_s < 0.5 + BEYOND
    assert result.report.survivors == ()
    assert toolbox.strays() == []


async def test_a_program_that_is_asked_to_end_may_clean_up(toolbox: Toolbox) -> None:
    """SIGTERM goes to the whole group: a shell looks at it only when its command has ended."""
    result = await toolbox.run_sh(
        "trap 'echo cleaned > done; echo cleaned >&2; exit 3' TERM; sleep {long}", wall_seconds=0.3
    )

    assert isinstance(result, heddle.Failed)
    assert result.kind == "timed_out"
    assert "cleaned" in result.message
    assert result.report.exit_status == 3
    assert result.report.duration_s < 1.5


async def test_the_message_of_a_late_program_has_what_it_said(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("echo '{\"half\":'; echo thinking >&2; sleep {long}", wall_seconds=0.3)

    assert isinstance(result, heddle.Failed)
    assert result.message == (
        'tool "tool" did not finish within 0.3 s and was stopped.\nIts standard error ends with:\nthinking'
    )
    assert result.report.stdout_head == '{"half":\n'
    assert result.report.stderr_tail == "thinking\n"


LEAVES_BEHIND = {
    "a child": "sleep {long} & echo '{}'",
    "a child that holds its output": "sleep {long} 2>&1 & echo '{}'",
    "a child that holds nothing": "sleep {long} </dev/null >/dev/null 2>&1 & echo '{}'",
    "a session": "setsid sleep {long} & echo '{}'",
    "a child that ignores SIGTERM and SIGHUP": "(trap '' TERM HUP; exec sleep {long}) & echo '{}'",
    "a stopped child": "sleep {long} & kill -STOP $!; echo '{}'",
}


@pytest.mark.parametrize("source", LEAVES_BEHIND.values(), ids=LEAVES_BEHIND)
async def test_what_a_program_leaves_behind_is_ended_and_counted(toolbox: Toolbox, source: str) -> None:
    began = time.monotonic()

    result = await toolbox.run_sh(source)

    assert result == heddle.Returned({})
    assert result.report.left_behind == 1
    assert toolbox.strays() == []
    assert time.monotonic() - began < 2


async def test_a_daemon_does_not_outlive_the_call(toolbox: Toolbox) -> None:
    """A double fork and setsid, the way daemons are written."""
    toolbox.add(
        "daemon.py",
        """
        #!/usr/bin/env python3
        import os
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execlp("sleep", "sleep", "{long}")
            os._exit(0)
        os.wait()
        print("{}")
        """,
    )

    result = await toolbox.call("daemon")

    assert result == heddle.Returned({})
    assert result.report.left_behind == 1
    assert toolbox.strays() == []


async def test_late_output_is_waited_for_a_moment(toolbox: Toolbox) -> None:
    """A shell with ``exec > >(tee log)`` ends before its last lines are through."""
    result = await toolbox.run_sh("(sleep 0.03; echo '{\"late\": true}') &")

    assert result == heddle.Returned({"late": True})
    assert result.report.left_behind == 0


async def test_a_flood_on_standard_output_is_stopped(toolbox: Toolbox) -> None:
    began = time.monotonic()

    result = await toolbox.run_sh("yes", wall_seconds=10)

    assert isinstance(result, heddle.Failed)
    assert result.kind == "too_large"
    assert "1,048,576 bytes" in result.message
    assert result.report.truncated == {"stdout"}
    assert time.monotonic() - began < 5


async def test_a_flood_that_ignores_sigterm_is_stopped_as_well(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("trap '' TERM; while :; do cat /dev/zero; done", wall_seconds=10)

    assert isinstance(result, heddle.Failed)
    assert result.kind == "too_large"
    assert result.report.duration_s < 4


async def test_a_flood_does_not_hold_up_other_calls(toolbox: Toolbox) -> None:
    """Output is read a chunk at a time, and the deadline does not depend on the reader."""
    toolbox.sh("flood", "cat /dev/zero >&2")
    toolbox.sh("quick", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: runner.call("flood", limits=heddle.Limits(wall_seconds=1.5)))
        await trio.sleep(0.3)
        for _ in range(10):
            result = await runner.call("quick", limits=heddle.Limits(wall_seconds=1))
            assert result == heddle.Returned({})


async def test_only_the_tail_of_a_flood_on_standard_error_is_kept(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("seq 1 100000 >&2; echo '{}'")

    assert result == heddle.Returned({})
    # But for the line that the cut has broken, which might be a piece of a secret.
    assert 64 * 1024 - len("99999\n") <= len(result.report.stderr_tail) <= 64 * 1024
    assert result.report.stderr_tail.endswith("\n99999\n100000\n")
    assert result.report.stderr_tail.endswith("99999\n100000\n")
    assert result.report.truncated == {"stderr"}


async def test_output_up_to_the_limit_is_kept_whole(toolbox: Toolbox) -> None:
    """Read to its end after the program has ended, pipes and all."""
    text = "x" * (1024 * 1024 - len('{"text": ""}\n'))
    (toolbox.folder / "big.json").write_text(f'{{"text": "{text}"}}\n')

    result = await toolbox.run_sh(f"cat {toolbox.folder}/big.json")

    assert result == heddle.Returned({"text": text})


async def test_one_byte_over_the_limit_is_too_much(toolbox: Toolbox) -> None:
    text = "x" * (1024 * 1024 - len('{"text": ""}'))
    (toolbox.folder / "big.json").write_text(f'{{"text": "{text}"}}\n')

    result = await toolbox.run_sh(f"cat {toolbox.folder}/big.json")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "too_large"


INPUT_NOT_READ = {
    "ends at once": "echo '{}'",
    "never reads": "sleep 0.2; echo '{}'",
    "closes its input": "exec <&-; sleep 0.1; echo '{}'",
    "reads a little": "head -c 100 >/dev/null; echo '{}'",
}


@pytest.mark.parametrize("source", INPUT_NOT_READ.values(), ids=INPUT_NOT_READ)
async def test_a_program_need_not_read_its_input(toolbox: Toolbox, source: str) -> None:
    result = await toolbox.run_sh(source, {"text": "x" * 1_000_000})

    assert result == heddle.Returned({})


async def test_a_large_input_arrives_whole(toolbox: Toolbox) -> None:
    arguments: Any = {"text": "x" * 1_000_000}

    result = await toolbox.run_sh("cat", arguments)

    assert result == heddle.Returned(arguments)


async def test_closing_standard_output_early_is_no_end(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("echo '{\"early\": 1}'; exec >&-; sleep 0.2; echo done > here; exit 4")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "crashed"
    assert result.report.exit_status == 4


# What a tool can do to those that watch over it. $PPID is its keeper; the keeper's parent is the supervisor.
_SUPERVISOR_PID = "S=$(awk '{print $4}' /proc/$PPID/stat);"
ATTACKS = {
    "kills its parent": "kill -KILL $PPID; sleep {long}",
    "stops its parent": "kill -STOP $PPID; sleep {long}",
    "kills the supervisor": _SUPERVISOR_PID + "kill -KILL $S; sleep {long}",
    "stops the supervisor": _SUPERVISOR_PID + "kill -STOP $S; sleep 0.1; echo '{}'",
    "kills both": _SUPERVISOR_PID + "kill -KILL $S $PPID; sleep {long}",
    "kills its parent and leaves a session": "setsid sleep {long} & kill -KILL $PPID; sleep {long}",
}


@pytest.mark.parametrize("source", ATTACKS.values(), ids=ATTACKS)
async def test_a_tool_that_attacks_what_watches_it_fails_and_the_next_call_works(toolbox: Toolbox, source: str) -> None:
    toolbox.sh("attack", source)
    toolbox.sh("good", "echo '{\"good\": true}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        attacked = await runner.call("attack", limits=heddle.Limits(wall_seconds=5))
        strays = toolbox.strays()
        good = await runner.call("good")

    assert isinstance(attacked, heddle.Failed)
    assert (attacked.kind, attacked.code, attacked.started) == ("crashed", "supervisor_lost", True)
    assert attacked.report.duration_s < 2
    assert strays == []
    assert good == heddle.Returned({"good": True})


async def test_a_tool_that_stops_all_that_watches_it_is_ended_at_its_deadline(toolbox: Toolbox) -> None:
    """A stopped keeper does not stay either: it is continued when its supervisor is ended, sees that, and ends."""
    toolbox.sh("attack", _SUPERVISOR_PID + "echo $S $PPID >&2; kill -STOP $S $PPID; sleep {long}")
    toolbox.sh("good", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        attacked = await runner.call("attack", limits=heddle.Limits(wall_seconds=0.5))
        good = await runner.call("good")

    assert isinstance(attacked, heddle.Failed)
    assert attacked.kind == "timed_out"
    assert attacked.report.duration_s <= 0.5 + BEYOND + 0.1
    assert good == heddle.Returned({})
    assert toolbox.strays() == []
    watchers = [int(pid) for pid in attacked.report.stderr_tail.split()]
    assert len(watchers) == 2
    assert await until(lambda: {state_of(pid) for pid in watchers} <= {None, "Z"}, 2)


async def test_another_runner_does_not_notice(toolbox: Toolbox) -> None:
    toolbox.sh("attack", ATTACKS["kills both"])
    toolbox.sh("slow", "sleep 0.5; echo '{}'")
    results = []

    async with heddle.Runner(toolbox.registry()) as one, heddle.Runner(toolbox.registry()) as other:

        async def slow() -> None:
            results.append(await other.call("slow"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            await trio.sleep(0.1)
            await one.call("attack", limits=heddle.Limits(wall_seconds=5))

    assert results == [heddle.Returned({})]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
async def test_a_signal_meant_for_the_whole_service_does_not_take_the_watch_away(toolbox: Toolbox, name: str) -> None:
    result = await toolbox.run_sh(_SUPERVISOR_PID + f"kill -{name} $S $PPID; sleep 0.1; echo '{{}}'")

    assert result == heddle.Returned({})


async def test_a_tool_starts_with_default_signals(toolbox: Toolbox) -> None:
    """Python and the supervisor ignore some, and what is ignored stays so over an exec."""
    result = await toolbox.run_sh("grep -E 'SigIgn|SigBlk' /proc/self/status >&2")

    masks = {line.split()[0]: int(line.split()[1], 16) for line in result.report.stderr_tail.splitlines()}
    # Beyond 31 are signals that the C library keeps for itself.
    assert {name: mask & 0x7FFFFFFF for name, mask in masks.items()} == {"SigIgn:": 0, "SigBlk:": 0}


async def test_a_tool_has_three_descriptors_and_no_more() -> None:
    os.set_inheritable(leaked := os.open("/dev/null", os.O_RDONLY), True)
    listing = heddle.ToolDef(name="ls", implementation=heddle.Program("/bin/ls", args=("/proc/self/fd",)))

    try:
        async with heddle.Runner([listing]) as runner:
            result = await runner.call("ls")
    finally:
        os.close(leaked)

    assert result.report.stdout_head.split() == ["0", "1", "2", "3"]  # the last is the listing's own


async def test_a_tool_leads_a_session_of_its_own_and_has_the_hosts_umask(toolbox: Toolbox) -> None:
    os.umask(umask := os.umask(0o022))

    result = await toolbox.run_sh(
        'echo "{\\"leads\\": $(awk \'{print ($1 == $6)}\' /proc/$$/stat), \\"umask\\": $((0$(umask)))}"'
    )

    assert result == heddle.Returned({"leads": 1, "umask": umask})
