"""Hosts that are killed, that fork, that run trio in a thread: the tools end with their host, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import heddle
from tests.support import SUPERVISOR, Toolbox, descendants_of, processes_with, wait_until

# A host that opens a runner over the folder in argv[1], calls ``wait`` and says so.
HOST = """
import os, sys, threading, time, trio, heddle

async def main():
    registry = heddle.discover_tools(sys.argv[1])
    {before}
    async with heddle.Runner(registry) as runner:
        {after}
        async with trio.open_nursery() as nursery:
            for _ in range({calls}):
                nursery.start_soon(runner.call, "wait")
            while not os.path.exists(sys.argv[2]):
                await trio.sleep(0.01)
            print("ready", flush=True)

{run}
"""
PLAIN_RUN = "trio.run(main)"
THREAD_RUN = "thread = threading.Thread(target=trio.run, args=(main,)); thread.start(); thread.join()"
FORK = "if os.fork() == 0: time.sleep(5); os._exit(0)"
# A fork that Python's own hooks do not see: the child keeps every descriptor of its parent.
HIDDEN_FORK = (
    "import ctypes; libc = ctypes.CDLL(None); pid = libc.fork(); (libc.sleep(5), libc._exit(0)) if pid == 0 else None"
)


@contextmanager
def host(toolbox: Toolbox, tmp_path: Path, **parts: object) -> Iterator[subprocess.Popen[str]]:
    """Run a host until its tools run."""
    ready = tmp_path / "ready"
    toolbox.sh("wait", f"touch {ready}; setsid sleep {{long}} & sleep {{long}}")
    values = {"before": "pass", "after": "pass", "run": PLAIN_RUN, "calls": 1} | parts
    source = textwrap.dedent(HOST).format(**values)
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(toolbox.folder), str(ready)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert wait_until(lambda: len(toolbox.strays()) == 2 * int(str(values["calls"])), 5)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


WAYS: dict[str, dict[str, object]] = {
    "trio in the main thread": {},
    "trio in another thread": {"run": THREAD_RUN},
    "three calls at once": {"calls": 3},
    "a child forked before": {"before": FORK},
    "a child forked after": {"after": FORK},
    "a child forked behind Python's back": {"after": HIDDEN_FORK},
}


@pytest.mark.parametrize("parts", WAYS.values(), ids=WAYS)
def test_the_tools_of_a_killed_host_are_gone_within_a_second(
    toolbox: Toolbox, tmp_path: Path, parts: dict[str, object]
) -> None:
    with host(toolbox, tmp_path, **parts) as process:
        supervisors = [pid for pid in processes_with(SUPERVISOR) if pid in descendants_of(process.pid)]

        process.kill()

        assert wait_until(lambda: not toolbox.strays(), 1)
        assert wait_until(lambda: not set(supervisors) & set(processes_with(SUPERVISOR)), 1)
        assert supervisors


def test_a_tool_lives_longer_than_the_thread_that_its_runner_was_opened_in(toolbox: Toolbox) -> None:
    """A supervisor tied to a thread would end its tools with the thread; see PR_SET_PDEATHSIG in prctl(2)."""
    toolbox.sh("slow", "sleep 0.6; echo '{}'")
    results: list[heddle.ToolResult] = []
    runner = heddle.Runner(toolbox.registry())

    async def main() -> None:
        # Opened from a worker's thread, which is gone when the call runs.
        thread = threading.Thread(target=lambda: starter(runner))
        async with runner:
            thread.start()
            thread.join()
            results.append(await runner.call("slow"))

    trio.run(main)

    assert results == [heddle.Returned({})]


def starter(runner: heddle.Runner) -> None:
    """Start the supervisor of an open runner in the current thread."""
    opened = runner._open
    assert opened is not None
    guard = opened.launcher._guard  # type: ignore[attr-defined]
    guard.lose(guard.start())
    guard.start()


def test_several_runners_in_several_threads(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "cat")
    results: list[heddle.ToolResult] = []

    async def main(number: int) -> None:
        async with heddle.Runner(toolbox.registry()) as runner:
            for _ in range(5):
                results.append(await runner.call("quick", {"number": number}))  # noqa: PERF401

    threads = [threading.Thread(target=trio.run, args=(main, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(str(result.unwrap()) for result in results) == sorted(str({"number": n}) for n in [0, 1, 2, 3] * 5)


async def test_a_runner_of_the_parent_is_refused_in_a_forked_child(toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        await runner.call("quick")
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer = "nothing was raised"
            try:
                runner.call("quick").send(None)
            except heddle.WrongProcess as error:
                answer = str(error)
            except BaseException as error:  # noqa: BLE001 - the child must not go on as the test
                answer = repr(error)
            os.write(write_end, answer.encode())
            os._exit(0)
        os.close(write_end)
        answer = os.read(read_end, 1000).decode()
        os.close(read_end)
        os.waitpid(pid, 0)
        still_works = await runner.call("quick")

    assert answer == (
        f"this runner was opened in process {os.getpid()} and cannot be used in its child {pid}: "
        "open a runner after the fork"
    )
    assert still_works == heddle.Returned({})


async def test_a_forked_child_holds_nothing_of_the_runner_open(toolbox: Toolbox) -> None:
    """Else a tool would never see the end of its input while the child lives."""
    toolbox.sh("read", "cat > /dev/null; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        await runner.call("read")
        before = set(os.listdir("/proc/self/fd"))
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            kept = [name for name in os.listdir("/proc/self/fd") if name in before and is_ours(name)]
            os.write(write_end, repr(kept).encode())
            os._exit(0)
        os.close(write_end)
        said = os.read(read_end, 10_000).decode()
        os.close(read_end)
        os.waitpid(pid, 0)

    assert said == "[]"


def is_ours(name: str) -> bool:
    """Trio and pytest have descriptors too; a runner's are sockets of their own kind and epolls that watch them."""
    try:
        target = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return False
    inode = target.removeprefix("socket:[").removesuffix("]")
    seqpacket = [line for line in Path("/proc/net/unix").read_text().splitlines() if line.split()[4] == "0005"]
    return any(inode in line.split() for line in seqpacket)


async def test_a_supervisor_that_is_killed_from_outside_is_replaced(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "sleep {long}")
    toolbox.sh("quick", "echo '{}'")
    results: dict[str, heddle.ToolResult] = {}

    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:

        async def wait() -> None:
            results["wait"] = await runner.call("wait")

        nursery.start_soon(wait)
        while not toolbox.strays():
            await trio.sleep(0.01)
        (supervisor,) = [pid for pid in processes_with(SUPERVISOR) if parent_of(pid) == os.getpid()]
        began = time.monotonic()
        os.kill(supervisor, signal.SIGKILL)
        while "wait" not in results:
            await trio.sleep(0.01)
        took = time.monotonic() - began
        results["quick"] = await runner.call("quick")

    failed = results["wait"]
    assert isinstance(failed, heddle.Failed)
    assert (failed.kind, failed.code) == ("crashed", "supervisor_lost")
    assert took < 1
    assert results["quick"] == heddle.Returned({})
    assert toolbox.strays() == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_host_that_ignores_sigchld_can_run_tools(toolbox: Toolbox) -> None:
    """Then the kernel reaps the supervisor, and nobody can ask for its state."""
    toolbox.sh("quick", "echo '{}'")
    toolbox.sh("attack", "kill -STOP $(awk '{print $4}' /proc/$PPID/stat); sleep 0.1; echo '{}'")
    source = """
        import signal, sys, trio, heddle
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        async def main():
            async with heddle.Runner(heddle.discover_tools(sys.argv[1])) as runner:
                for name in ("quick", "attack", "quick"):
                    print((await runner.call(name)).ok, flush=True)
        trio.run(main)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(toolbox.folder)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("True\nFalse\nTrue\n", "")


def test_a_host_without_standard_streams_can_run_tools(toolbox: Toolbox, tmp_path: Path) -> None:
    """A daemon has closed them, and new descriptors take their numbers."""
    toolbox.sh("quick", "cat; echo seen >&2")
    source = """
        import os, sys, trio, heddle
        for fd in (0, 1, 2):
            os.close(fd)
        async def main():
            async with heddle.Runner(heddle.discover_tools(sys.argv[1])) as runner:
                result = await runner.call("quick", {"a": 1})
                open(sys.argv[2], "w").write(repr(result) + result.report.stderr_tail)
        trio.run(main)
    """

    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(toolbox.folder), str(tmp_path / "out")],
        timeout=20,
        check=True,
    )

    assert (tmp_path / "out").read_text() == "Returned(data={'a': 1})seen\n"


def test_a_host_in_the_root_folder_finds_its_interpreter() -> None:
    """An interpreter that is started under another name looks for its library from the current folder on."""
    source = """
import heddle, trio

async def main():
    tool = heddle.ToolDef(name="cat", implementation=heddle.Program("/bin/cat"))
    async with heddle.Runner([tool]) as runner:
        print(await runner.call("cat", {"a": 1}))

trio.run(main)
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd="/", check=False)

    assert done.stdout == "Returned(data={'a': 1})\n", done.stderr
