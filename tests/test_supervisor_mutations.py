"""The supervisor runs outside the measured process, so its tests are proved another way: planted faults are caught.

Each fault is one edit of its source; a check that holds for the real one must fail for the edited one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import heddle
from heddle.process import guard, supervised, supervisor, sweep
from tests.support import SUPERVISOR, Toolbox, descendants_of, processes_with, wait_until

Check = Callable[[Toolbox], Awaitable[None]]


async def what_is_left_behind_is_ended(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("sleep {long} & echo '{}'")
    assert toolbox.strays() == []
    assert result.report.survivors == ()
    assert result == heddle.Returned({})


async def a_daemon_is_ended(toolbox: Toolbox) -> None:
    await toolbox.run_sh("(setsid sleep {long} &) & wait; sleep 0.05; echo '{}'")
    assert toolbox.strays() == []


async def what_outlives_a_killed_keeper_is_ended(toolbox: Toolbox) -> None:
    toolbox.sh("attack", "setsid env -i sleep {long} & sleep 0.05; kill -KILL $PPID; sleep {long}")
    async with heddle.Runner(toolbox.registry()) as runner:
        await runner.call("attack", limits=heddle.Limits(wall_seconds=2))
        assert toolbox.strays() == []


async def a_stopped_keeper_is_noticed_at_once(toolbox: Toolbox) -> None:
    toolbox.sh("attack", "kill -STOP $PPID; sleep {long}")
    async with heddle.Runner(toolbox.registry()) as runner:
        result = await runner.call("attack", limits=heddle.Limits(wall_seconds=2))
    assert isinstance(result, heddle.Failed)
    assert result.code == "supervisor_lost"


async def an_idle_supervisor_uses_no_processor(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "echo '{}'")
    async with heddle.Runner(toolbox.registry()) as runner:
        await runner.call("tool")
        watching = [pid for pid in descendants_of(os.getpid()) if pid in processes_with(SUPERVISOR)]
        before = sum(ticks(pid) for pid in watching)
        await trio.sleep(0.5)
        assert sum(ticks(pid) for pid in watching) - before <= 5  # of 50 that one busy process would use
        assert len(watching) == 2


def ticks(pid: int) -> int:
    """Return the processor time that a process has used, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def a_group_is_asked_to_end(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("trap 'echo cleaned >&2; exit 3' TERM; sleep {long}", wall_seconds=0.3)
    assert "cleaned" in result.report.stderr_tail


async def signals_are_reset(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("grep SigIgn /proc/self/status >&2")
    assert int(result.report.stderr_tail.split()[1], 16) & 0x7FFFFFFF == 0


async def a_cpu_limit_says_why(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "while :; do :; done")
    async with heddle.Runner(toolbox.registry()) as runner:
        result = await runner.call("tool", limits=heddle.Limits(cpu_seconds=1, wall_seconds=10))
    assert isinstance(result, heddle.Failed)
    assert result.kind == "limit_exceeded"


async def the_tools_of_a_killed_host_are_ended(toolbox: Toolbox) -> None:
    """The host has a child that keeps every descriptor, as a fork in C code leaves it."""
    await trio.to_thread.run_sync(_kill_a_host, toolbox)


def _kill_a_host(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "sleep {long}")
    source = f"""
        import ctypes, pathlib, sys, trio, heddle
        from heddle.process import guard
        guard.PROGRAM = pathlib.Path({str(guard.PROGRAM)!r})
        libc = ctypes.CDLL(None)
        async def main():
            async with heddle.Runner(heddle.discover_tools(sys.argv[1])) as runner, trio.open_nursery() as nursery:
                nursery.start_soon(runner.call, "wait")
                await trio.sleep(0.5)
                if libc.fork() == 0:
                    libc.sleep(4)
                    libc._exit(0)
                print("ready", flush=True)
                await trio.sleep(60)
        trio.run(main)
    """
    host = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), str(toolbox.folder)], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == "ready\n"
        assert wait_until(lambda: len(toolbox.strays()) == 1, 3)
        supervisors = {pid for pid in processes_with(SUPERVISOR) if pid in descendants_of(host.pid)}
        assert supervisors
        host.kill()
        assert wait_until(lambda: not toolbox.strays(), 1)
        assert wait_until(lambda: not supervisors & set(processes_with(SUPERVISOR)), 1)
    finally:
        host.kill()
        host.wait()
        host.stdout.close()


async def test_a_process_that_cannot_be_killed_is_named_in_time_and_its_workspace_is_left(
    toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stuck in the kernel, say: here nobody's SIGKILL does anything. Who is fine goes on."""
    source = Path(supervisor.__file__).read_text()
    kill = "                os.kill(pid, signal.SIGKILL)\n            except (ProcessLookupError"
    powerless = tmp_path / "supervisor.py"
    powerless.write_text(source.replace(kill, kill.replace("os.kill(pid, signal.SIGKILL)", "pass")))
    monkeypatch.setattr(guard, "PROGRAM", powerless)
    monkeypatch.setattr(sweep, "_kill", lambda _pid, _attempt_id: None)
    toolbox.sh("deaf", "trap '' TERM; echo $$ >&2; while :; do sleep {long}; done")
    toolbox.sh("good", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope() as scope:
            began = time.monotonic()
            stuck = await scope.call("deaf", limits=heddle.Limits(wall_seconds=0.3))
            took = time.monotonic() - began
            path = scope.workspace.path
        alive = toolbox.strays()
        good = await runner.call("good")

    assert isinstance(stuck, heddle.Failed)
    assert stuck.kind == "timed_out"
    assert took - stuck.report.waited_s < 0.3 + 2.5
    assert {int(stuck.report.stderr_tail), *alive} <= set(stuck.report.survivors)
    assert path.is_dir()
    assert good == heddle.Returned({})
    monkeypatch.undo()
    for pid in stuck.report.survivors:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


FAULTS: dict[str, tuple[str, str, Check]] = {
    "no kill": (
        "                os.kill(pid, signal.SIGKILL)\n            except (ProcessLookupError",
        "                pass\n            except (ProcessLookupError",
        what_is_left_behind_is_ended,
    ),
    "no subreaper": ("(PR_SET_CHILD_SUBREAPER, 1), ", "", a_daemon_is_ended),
    "no kill of what a dead keeper leaves": (
        "            for pid in orphans:\n                kill_tree(pid)",
        "            orphans = []",
        what_outlives_a_killed_keeper_is_ended,
    ),
    "no look at stopped keepers": (" | os.WUNTRACED", "", a_stopped_keeper_is_noticed_at_once),
    "no drain": (
        "            os.read(self.reader, 4096)\n",
        "            pass\n",
        an_idle_supervisor_uses_no_processor,
    ),
    "no pidfd": (
        "(self.control.fileno(), HOST, self.wake.reader)",
        "(self.control.fileno(), self.wake.reader)",
        the_tools_of_a_killed_host_are_ended,
    ),
    "no group": (
        "signal_group(leader, signal.SIGTERM)",
        "os.kill(leader, signal.SIGTERM)",
        a_group_is_asked_to_end,
    ),
    "no reset of signals": ("setsigdef=TO_RESET", "setsigdef=()", signals_are_reset),
    "no warning before the hard limit": (
        "resource.setrlimit(which, (min(limit, hard), hard))",
        "resource.setrlimit(which, (min(limit, hard), min(limit, hard)))",
        a_cpu_limit_says_why,
    ),
}


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault makes calls go all the way to the last step; two seconds less each."""
    monkeypatch.setattr(supervised, "GRACE_SECONDS", 0.3)


@pytest.mark.parametrize(
    "check", dict.fromkeys(check for _, _, check in FAULTS.values()), ids=lambda check: check.__name__
)
async def test_the_real_supervisor_passes(toolbox: Toolbox, check: Check) -> None:
    await check(toolbox)


@pytest.mark.parametrize(("old", "new", "check"), FAULTS.values(), ids=FAULTS)
@pytest.mark.usefixtures("short_grace")
async def test_a_planted_fault_is_caught(
    toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, check: Check
) -> None:
    source = Path(supervisor.__file__).read_text()
    assert source.count(old) == 1
    faulty = tmp_path / "supervisor.py"
    faulty.write_text(source.replace(old, new))
    monkeypatch.setattr(guard, "PROGRAM", faulty)

    with pytest.raises(AssertionError):
        await check(toolbox)

    for pid in [pid for pid in processes_with(str(faulty)) if pid in descendants_of(os.getpid())]:
        os.kill(pid, signal.SIGKILL)
    toolbox.end_strays()
    time.sleep(0.05)
