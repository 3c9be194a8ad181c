"""What a review of the process room has found: each was possible once."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import heddle
from heddle.process import Command, Confinement, Exit, guard, supervisor
from heddle.workspace import directory, removal
from tests.support import SUPERVISOR, Toolbox, descendants_of, processes_with, state_of, until

_SUPERVISOR_PID = "S=$(awk '{print $4}' /proc/$PPID/stat);"


async def test_a_tool_that_takes_its_output_back_does_not_hold_the_loop(toolbox: Toolbox) -> None:
    """Through /proc/self/fd it can read what the host was just told is there to be read."""
    toolbox.add(
        "thief.py",
        """
        #!/usr/bin/env python3
        import os
        ends = [(out, os.open(f"/proc/self/fd/{out}", os.O_RDONLY | os.O_NONBLOCK)) for out in (1, 2)]
        while True:
            for out, back in ends:
                os.write(out, b"x")
                try:
                    os.read(back, 1)
                except BlockingIOError:
                    pass
        """,
    )
    gaps: list[float] = []

    async def beat() -> None:
        last = time.monotonic()
        while True:
            await trio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    results: list[heddle.ToolResult] = []
    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await runner.call("thief", limits=heddle.Limits(wall_seconds=1.5)))
            nursery.cancel_scope.cancel()

        nursery.start_soon(beat)
        nursery.start_soon(call)
        await trio.sleep(0.5)
        watch = runner._opened().launcher._guard._watch  # type: ignore[attr-defined]
        pipes = [fd for line in watch.lines for fd in line.pipes]
        flags = [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in pipes]

    assert isinstance(results[0], heddle.Failed)
    assert results[0].kind in {"timed_out", "too_large"}
    assert max(gaps) < 2
    assert len(flags) == 2  # its input is written and closed
    assert all(flags)


def test_a_second_ctrl_c_waits_for_the_tool_and_mixes_up_no_results(toolbox: Toolbox) -> None:
    toolbox.sh("deaf", "trap '' TERM INT; while :; do sleep {long}; done")
    toolbox.sh("quick", "echo '{\"real\": 1}'")
    seen: list[object] = []

    async def main() -> None:
        async with heddle.Runner(toolbox.registry()) as runner:
            timers = [threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)) for delay in (0.5, 1.0)]
            try:
                for timer in timers:
                    timer.start()
                await runner.call("deaf")
            except KeyboardInterrupt:
                seen.append(toolbox.strays())
            for timer in timers:
                timer.join()
            seen.append(await runner.call("quick"))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)

    assert seen == [[], heddle.Returned({"real": 1})]


async def test_a_cancelled_tool_that_kills_all_that_watches_it_is_found(toolbox: Toolbox) -> None:
    toolbox.sh(
        "attack", _SUPERVISOR_PID + "trap 'kill -KILL $S $PPID; sleep {long}' TERM; while :; do sleep 0.05; done"
    )

    async with heddle.Runner(toolbox.registry()) as runner:
        with trio.move_on_after(0.4) as cancelled:
            await runner.call("attack")
        strays = toolbox.strays()

    assert cancelled.cancelled_caught
    assert strays == []


def test_a_burst_of_calls_is_no_reason_to_distrust_the_supervisor(toolbox: Toolbox) -> None:
    """Its control socket holds some three hundred requests."""
    toolbox.sh("quick", "echo '{}'")
    source = """
        import collections, resource, sys, trio, heddle
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        seen = collections.Counter()
        async def main():
            async with heddle.Runner(heddle.discover_tools(sys.argv[1]), max_concurrent=600) as runner:
                async with runner.scope() as scope, trio.open_nursery() as nursery:
                    async def call():
                        result = await scope.call("quick", limits=heddle.Limits(wall_seconds=60))
                        seen["ok" if result.ok else result.message] += 1
                    for _ in range(450):
                        nursery.start_soon(call)
            print(dict(seen))
        trio.run(main)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(toolbox.folder)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("{'ok': 450}\n", "")


async def test_one_keeper_that_cannot_be_made_is_one_calls_failure(
    toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(supervisor.__file__).read_text()
    fork = "            pid = fork()\n        except OSError as error:"
    assert source.count(fork) == 1
    faulty = tmp_path / "supervisor.py"
    faulty.write_text(
        source.replace(fork, "            if number == b'2': raise OSError(errno.EAGAIN, 'no more')\n" + fork)
    )
    monkeypatch.setattr(guard, "PROGRAM", faulty)
    toolbox.sh("slow", "sleep 0.5; echo '{}'")
    results: dict[int, heddle.ToolResult] = {}

    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:

        async def call(number: int) -> None:
            results[number] = await runner.call("slow")

        for number in range(3):
            nursery.start_soon(call, number)
            await trio.sleep(0.1)

    kinds = [result.kind if isinstance(result, heddle.Failed) else "ok" for _, result in sorted(results.items())]
    assert kinds in (["ok", "cannot_start", "ok"], ["ok", "ok", "ok"])
    assert results[0] == results[2] == heddle.Returned({})


async def test_killing_idle_keepers_harms_no_later_call(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "sleep 0.1; echo '{}'")
    results: list[heddle.ToolResult] = []

    async with heddle.Runner(toolbox.registry()) as runner:

        async def call() -> None:
            results.append(await runner.call("quick"))

        async def calls() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(call)

        await calls()
        watching = [pid for pid in descendants_of(os.getpid()) if pid in processes_with(SUPERVISOR)]
        keepers = [pid for pid in watching if Path(f"/proc/{pid}/stat").read_text().split()[3] != str(os.getpid())]
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
        # A process that dies has no arguments any more while it still holds its sockets.
        assert await until(lambda: all(state_of(pid) in {None, "Z", "X"} for pid in keepers), 5)
        await calls()

    assert len(keepers) >= 6
    assert results == [heddle.Returned({})] * 12


async def test_a_forked_child_does_not_keep_a_tool_from_the_end_of_its_input(toolbox: Toolbox) -> None:
    toolbox.sh("reads", "sleep 0.3; cat > /dev/null; echo '{}'")
    children: list[int] = []

    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:

        async def fork() -> None:
            await trio.sleep(0.15)
            pid = os.fork()
            if pid == 0:
                time.sleep(4)
                os._exit(0)
            children.append(pid)

        await runner.call("reads")
        nursery.start_soon(fork)
        result = await runner.call("reads", {"text": "x" * 500_000}, limits=heddle.Limits(wall_seconds=3))

    os.kill(children[0], signal.SIGKILL)
    os.waitpid(children[0], 0)
    assert result == heddle.Returned({})
    assert result.report.duration_s < 2


async def test_very_many_processes_left_behind_do_not_spoil_a_result(toolbox: Toolbox) -> None:
    result = await toolbox.run_sh("for n in $(seq 1500); do sleep {long} & done; echo '{}'", wall_seconds=20)

    assert result == heddle.Returned({})
    assert result.report.left_behind == 1500
    assert toolbox.strays() == []


async def test_a_workspace_that_takes_long_to_remove_holds_up_the_runner_and_not_the_call(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox.sh("quick", "echo $PWD >&2; echo '{}'")
    real = removal.remove_tree

    def slow(path: Path, _folder: int | None = None) -> tuple[str, ...]:
        time.sleep(1)
        return real(path)

    monkeypatch.setattr(directory, "remove_tree", slow)

    async with heddle.Runner(toolbox.registry()) as runner:
        await runner.call("quick")
        began = time.monotonic()
        result = await runner.call("quick")
        took = time.monotonic() - began

    assert took < 0.8
    assert not Path(result.report.stderr_tail.strip()).exists()


async def test_a_forked_child_that_unwinds_leaves_the_workspace_alone(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        try:
            async with runner.scope() as scope:
                await scope.call("quick")
                path = scope.workspace.path
                pid = os.fork()
                if pid == 0:
                    sys.exit(3)
                os.waitpid(pid, 0)
                still_there = path.is_dir()
        except SystemExit:
            os._exit(3)

    assert still_there
    assert not path.exists()


async def test_a_directory_that_cannot_be_filled_is_not_left(private: Path) -> None:
    odd = heddle.ToolDef(name="odd", implementation=heddle.Program("/bin/cat", args=("\ud800",)))

    async with heddle.Workspace.open(registry=[odd]) as workspace:
        with pytest.raises(UnicodeEncodeError):
            workspace.path.is_dir()

    assert list(private.iterdir()) == []


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Custom:
    """A launcher and a backend of somebody's own, which say little and fail a lot."""

    tier = name = "custom"
    guarantees: Mapping[str, str] = {}

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[Custom]:
        yield self

    open = session

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return Exit(status=3)

    def prepare(self, command: Command) -> Command:
        return command

    async def kill(self, attempt_id: str) -> None:
        raise RuntimeError("docker is gone")


async def test_a_launcher_that_does_not_say_when_has_started_its_program_all_the_same() -> None:
    cat = heddle.ToolDef(name="cat", implementation=heddle.Program("/bin/cat"))

    async with heddle.Runner([cat], launcher=Custom()) as runner:
        result = await runner.call("cat")

    assert isinstance(result, heddle.Failed)
    assert (result.started, result.retry, result.report.tier) == (True, "blocked", "custom")


async def test_a_backend_that_cannot_kill_changes_no_result(toolbox: Toolbox, caplog: pytest.LogCaptureFixture) -> None:
    toolbox.sh("wait", "sleep {long}")

    async with heddle.Runner(toolbox.registry(), backend=Custom()) as runner:
        late = await runner.call("wait", limits=heddle.Limits(wall_seconds=0.2))
        with trio.move_on_after(0.2) as cancelled:
            await runner.call("wait")

    assert isinstance(late, heddle.Failed)
    assert late.kind == "timed_out"
    assert cancelled.cancelled_caught
    assert "docker is gone" in caplog.text


def test_children_are_found_on_a_kernel_that_does_not_list_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """CONFIG_PROC_CHILDREN is an option of the kernel."""
    with subprocess.Popen(["/bin/sleep", "20"]) as child:
        listed = supervisor.children(os.getpid())
        monkeypatch.setattr(supervisor, "LISTS_CHILDREN", False)
        searched = supervisor.children(os.getpid())
        child.kill()

    assert child.pid in listed
    assert sorted(searched) == sorted(listed)
