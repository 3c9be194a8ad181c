"""Nothing is left: processes, descriptors, threads and directories are what they were, however calls end."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from pathlib import Path

import pytest
import trio

import heddle
from tests.support import Toolbox, children_of, descendants_of, open_descriptors, until

FAILING = {
    "crash": "exit 3",
    "signal": "kill -KILL $$",
    "garbage": "echo nonsense",
    "daemon": "setsid sleep {long} & exit 1",
    "flood": "yes",
    "attack": "kill -KILL $PPID; sleep {long}",
    "mess": "mkdir -p a/b; ln -s / a/root; chmod 0 a; exit 1",
}


@pytest.fixture
def private_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory that only this test's workspaces are made in."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@heddle.tool
async def raises() -> None:
    """Fail in process."""
    raise ValueError("on purpose")


def failing_tools(toolbox: Toolbox) -> heddle.Registry:
    for name, source in FAILING.items():
        toolbox.sh(name, source)
    toolbox.add("broken", b"#!/nosuch\n")
    toolbox.sh("late", "sleep {long}")
    toolbox.sh("wait", "sleep 0.02; cat")
    return toolbox.registry().with_tool(raises)


async def test_five_hundred_failing_calls_leave_nothing(toolbox: Toolbox, private_tmp: Path) -> None:
    registry = failing_tools(toolbox)
    names = [*FAILING, "broken", "raises", "nosuch", "late"]

    async with heddle.Runner(registry, max_concurrent=8) as runner:

        async def fail(name: str) -> None:
            result = await runner.call(name, limits=heddle.Limits(wall_seconds=0.1 if name == "late" else 20))
            assert not result.ok
            assert result.report.survivors == ()

        async def fail_all(count: int) -> None:
            limiter = trio.Semaphore(16)
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    async with limiter:
                        nursery.start_soon(fail, names[number % len(names)])

        await fail_all(len(names) * 2)  # the pools are full now
        await runner.call("wait")
        descriptors, threads = len(open_descriptors()), threading.active_count()
        await fail_all(500)
        await runner.call("wait")

        # A keeper that has become idle since costs two: a line, and what watches it.
        assert len(open_descriptors()) <= descriptors + 2 * 8
        # trio keeps a thread for ten seconds after its last use.
        assert await until(lambda: threading.active_count() <= threads, 15)
        assert len(children_of(os.getpid())) == 1  # the supervisor
        assert len(descendants_of(os.getpid())) <= 1 + 8  # and idle keepers

    assert toolbox.strays() == []
    assert children_of(os.getpid()) == []
    assert list(private_tmp.iterdir()) == []


async def test_two_hundred_calls_cancelled_at_any_instant_leave_nothing(toolbox: Toolbox, private_tmp: Path) -> None:
    registry = failing_tools(toolbox)
    instants = random.Random(20)

    async with heddle.Runner(registry) as runner:
        await runner.call("wait")
        descriptors = len(open_descriptors())
        for number in range(200):
            with trio.move_on_after(instants.uniform(0, 0.005)):
                await runner.call("late" if number % 2 else "daemon")
        await runner.call("wait")
        assert len(open_descriptors()) <= descriptors + 2 * 8
        assert len(children_of(os.getpid())) == 1
        assert toolbox.strays() == []

    assert children_of(os.getpid()) == []
    assert list(private_tmp.iterdir()) == []


async def test_cancelled_beginnings_leave_nothing(toolbox: Toolbox, private_tmp: Path) -> None:
    """A runner may be cancelled while its supervisor is still starting."""
    registry = failing_tools(toolbox)
    instants = random.Random(21)
    descriptors = len(open_descriptors())

    for _ in range(30):
        with trio.move_on_after(instants.uniform(0, 0.03)):
            async with heddle.Runner(registry) as runner:
                await runner.call("late")

    assert children_of(os.getpid()) == []
    assert len(open_descriptors()) == descriptors
    assert list(private_tmp.iterdir()) == []
    assert toolbox.strays() == []


async def test_closing_a_runner_ends_the_calls_that_run(toolbox: Toolbox, private_tmp: Path) -> None:
    toolbox.sh("late", "sleep {long}")
    seen: list[BaseException] = []

    async with trio.open_nursery() as nursery:
        async with heddle.Runner(toolbox.registry()) as runner:

            async def call() -> None:
                try:
                    await runner.call("late")
                except heddle.RunnerClosed as error:
                    seen.append(error)

            nursery.start_soon(call)
            while not toolbox.strays():
                await trio.sleep(0.01)

        assert toolbox.strays() == []
        assert children_of(os.getpid()) == []

    assert [str(error) for error in seen] == ["the runner or the scope was closed while this call ran; it was ended"]
    assert list(private_tmp.iterdir()) == []


async def test_an_exception_in_the_body_ends_the_calls_and_leaves_as_itself(toolbox: Toolbox) -> None:
    toolbox.sh("late", "sleep {long}")

    with pytest.raises(ZeroDivisionError):
        async with heddle.Runner(toolbox.registry()) as runner, runner.scope() as scope:
            assert scope.workspace.path.is_dir()
            raise ZeroDivisionError

    assert children_of(os.getpid()) == []
    assert not scope.workspace.exists


def test_ctrl_c_in_a_host_ends_its_tools(toolbox: Toolbox) -> None:
    """trio turns SIGINT into KeyboardInterrupt in the main task, wherever that is."""
    toolbox.sh("late", "sleep {long}")

    async def main() -> None:
        async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            await runner.call("late")

    async def interrupt() -> None:
        while not toolbox.strays():
            await trio.sleep(0.01)
        os.kill(os.getpid(), 2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - the interrupt, alone or in a group
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)

    assert (
        caught.group_contains(KeyboardInterrupt)
        if isinstance(caught.value, BaseExceptionGroup)
        else (caught.type is KeyboardInterrupt)
    )
    assert toolbox.strays() == []
    assert children_of(os.getpid()) == []


async def test_busy_files_are_no_failure_in_a_threaded_host(toolbox: Toolbox) -> None:
    """A file that was just written may still be open in a child that another thread forks: ETXTBSY."""
    results: list[heddle.ToolResult] = []

    async def write_and_call(number: int) -> None:
        for turn in range(25):
            source = f"echo '{{\"n\": {number}}}'"
            path = await trio.to_thread.run_sync(toolbox.sh, f"tool_{number}_{turn}", source)
            tool = heddle.ToolDef(name="tool", implementation=heddle.Program(path))
            async with heddle.Runner([tool]) as runner:
                results.append(await runner.call("tool"))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write_and_call, number)

    assert [result for result in results if not result.ok] == []
    assert len(results) == 200
