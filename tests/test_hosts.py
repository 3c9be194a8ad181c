"""Hosts that are killed, that fork, that run trio in a thread: the tools end with their host, and only then."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.workspace.removal import remove_tree
from tests import hosting
from tests.hosting import held, run_cells, run_host, runs
from tests.support import SUPERVISOR, Toolbox, descendants_of, processes_with, state_of, wait_until

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


# One runner, three kinds of host


RUNNERS = [heddle.Runner, heddle.blocking.Runner, heddle.aio.Runner]


@pytest.mark.parametrize("name", ["__init__", "call", "scope"])
@pytest.mark.parametrize("twin", RUNNERS[1:], ids=["blocking", "aio"])
def test_a_twin_takes_what_the_runner_takes(twin: type, name: str) -> None:
    """The same names, in the same order, with the same defaults and types."""
    runners = parameters(getattr(heddle.Runner, name))

    assert parameters(getattr(twin, name)) == runners


@pytest.mark.parametrize("twin", [heddle.blocking.Scope, heddle.aio.Scope], ids=["blocking", "aio"])
def test_a_twins_scope_takes_what_the_runners_takes(twin: type[heddle.blocking.Scope]) -> None:
    assert parameters(twin.call) == parameters(heddle.Scope.call)


def parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@heddle.tool(side_effects="read", retry="idempotent")
def halve(n: int) -> float:
    """Halve a number that is not odd."""
    if n % 2:
        raise heddle.ToolError("odd", f"{n} is odd")
    return n / 2


@heddle.tool
async def nothing() -> None:
    """Do nothing, asynchronously."""


CALLS: list[dict[str, Any]] = [
    {"name": "echo", "arguments": {"a": [1, None, "ä"]}, "operation_id": "the first"},
    {"name": "echo", "arguments": '{"text": "as models write it"}'},
    {"name": "echo", "arguments": "bare", "bare_string": True},
    {"name": "echo", "arguments": "bare"},
    {"name": "echo", "arguments": {"a": "x" * 100}, "limits": heddle.Limits(stdin_bytes=10)},
    {"name": "crash"},
    {"name": "signal"},
    {"name": "garbage"},
    {"name": "late", "limits": heddle.Limits(wall_seconds=0.05)},
    {"name": "echo", "cwd": "nosuch"},
    {"name": "echos"},
    {"name": "halve", "arguments": {"n": 8}},
    {"name": "halve", "arguments": {"n": 7}},
    {"name": "halve", "arguments": {"n": "8", "m": 1}},
    {"name": "nothing"},
]


def test_the_three_runners_give_the_same(toolbox: Toolbox) -> None:
    """Value by value, and what the reports say beside times and ids."""
    toolbox.sh("echo", "cat")
    toolbox.sh("crash", "echo broken >&2; exit 3")
    toolbox.sh("signal", "kill -KILL $$")
    toolbox.sh("garbage", "echo nonsense")
    toolbox.sh("late", "exec sleep {long}")
    registry = toolbox.registry().with_tool(halve).with_tool(nothing)

    async def under_trio() -> list[object]:
        async with heddle.Runner(registry) as runner, runner.scope() as scope:
            return [seen(await caller.call(**call)) for call in CALLS for caller in (runner, scope)]

    async def under_asyncio() -> list[object]:
        async with heddle.aio.Runner(registry) as runner, runner.scope() as scope:
            return [seen(await caller.call(**call)) for call in CALLS for caller in (runner, scope)]

    def without_a_loop() -> list[object]:
        with heddle.blocking.Runner(registry) as runner, runner.scope() as scope:
            return [seen(caller.call(**call)) for call in CALLS for caller in (runner, scope)]

    results = trio.run(under_trio)
    assert asyncio.run(under_asyncio()) == results
    assert without_a_loop() == results
    assert len({str(result) for result in results}) == len(CALLS)


def seen(result: heddle.ToolResult) -> object:
    report = attrs.evolve(
        result.report,
        started_at=None,
        waited_s=0.0,
        duration_s=0.0,
        attempt_id="",
        operation_id="the first" if result.report.operation_id == "the first" else "",
    )
    return result, report


def test_runners_of_all_kinds_work_in_one_process(toolbox: Toolbox) -> None:
    """At the same time, each in its own threads."""
    toolbox.sh("echo", "cat")
    registry = toolbox.registry()

    async def under_trio(number: int) -> list[heddle.ToolResult]:
        async with heddle.Runner(registry) as runner:
            return [await runner.call("echo", {"n": number}) for _ in range(10)]

    async def under_asyncio(number: int) -> list[heddle.ToolResult]:
        async with heddle.aio.Runner(registry) as runner:
            return [await runner.call("echo", {"n": number}) for _ in range(10)]

    def without_a_loop(number: int) -> list[heddle.ToolResult]:
        with heddle.blocking.Runner(registry) as runner:
            return [runner.call("echo", {"n": number}) for _ in range(10)]

    before = held()
    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(trio.run, under_trio, number) for number in (0, 1)]
        futures += [pool.submit(without_a_loop, number) for number in (2, 3)]
        futures += [pool.submit(lambda n: asyncio.run(under_asyncio(n)), number) for number in (4, 5)]
        results = [future.result() for future in futures]

    assert results == [[heddle.Returned({"n": number})] * 10 for number in range(6)]
    assert held() == before


# Notebooks


def test_a_runner_is_used_in_the_cells_of_a_notebook(toolbox: Toolbox) -> None:
    """Where a loop runs already, and Ctrl-C ends a cell. Both kinds work, and side by side."""
    toolbox.sh("echo", "cat")
    toolbox.sh("late", "sleep {long}")
    before = held()

    names = run_cells(
        """
import heddle
runner = heddle.blocking.Runner(registry).open()
# %%
first = runner.call("echo", {"n": 1}).unwrap()
# %%
interrupt()
runner.call("late")
# %%
left = strays()
second = runner.call("echo", {"n": 2}).unwrap()
# %%
awaiting = await heddle.aio.Runner(registry).open()
third = (await awaiting.call("echo", {"n": 3})).unwrap()
# %%
runner.close()
await awaiting.close()
""",
        registry=toolbox.registry(),
        strays=toolbox.strays,
        interrupt=lambda: interrupt_when(toolbox.strays),
    )

    assert [names[name] for name in ("first", "second", "third")] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (names["interrupted"], names["left"]) == (2, [])
    assert wait_until(lambda: held() == before, 1)


def interrupt_when(holds: Callable[[], object]) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        if wait_until(holds, 10):
            signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()


# Forks


BLOCKING_FORK = """
    import os, sys, time, heddle

    runner = heddle.blocking.Runner(heddle.discover_tools(sys.argv[1]))

    def refused(use):
        try:
            print("nothing was raised:", use(), flush=True)
        except heddle.WrongProcess:
            print("refused", flush=True)

    with runner, runner.scope() as scope:
        scope.call("echo").unwrap()
        child = os.fork()
        if child == 0:
            {child}
        for _ in range(1000):  # 10 s
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.01)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            print("the child hangs")
        print("child", status >> 8, flush=True)
        print(scope.call("echo", {{"n": 1}}).unwrap(), runner.call("echo", {{"n": 2}}).unwrap(), flush=True)
"""
CHILDREN = {
    "it uses the runner": (
        'for use in (lambda: runner.call("echo"), lambda: scope.call("echo"), scope.workspace.changes, runner.open, '
        "runner.scope().__enter__): refused(use)\n            runner.close(); os._exit(0)",
        ["refused"] * 5,
        0,
    ),
    "it opens its own": (
        "with heddle.blocking.Runner(runner.registry) as own:\n"
        '                print(own.call("echo", {"n": 0}).unwrap(), flush=True)\n'
        "            os._exit(0)",
        ["{'n': 0}"],
        0,
    ),
    "it leaves the blocks and exits": ("sys.exit(3)", [], 3),
    "it fails in the blocks": ("raise ZeroDivisionError", [], 1),
    "it opens its own and exits with it open": (
        "own = heddle.blocking.Runner(runner.registry).open()\n"
        '            print(own.call("echo", {"n": 0}).unwrap(), flush=True)\n'
        "            sys.exit(4)",
        ["{'n': 0}"],
        4,
    ),
}


@pytest.mark.parametrize(("child", "said", "status"), CHILDREN.values(), ids=CHILDREN)
def test_a_forked_child_harms_nothing_of_its_parents(
    toolbox: Toolbox, child: str, said: list[str], status: int
) -> None:
    """It has copies only: it cannot use them, and leaving their blocks and its own exit end nothing."""
    toolbox.sh("echo", "cat")
    before = runs()

    exit_status, output, complained = run_host(BLOCKING_FORK.format(child=child), toolbox.folder)

    assert output.splitlines() == [*said, f"child {status}", "{'n': 1} {'n': 2}"]
    assert exit_status == 0
    assert complained.splitlines()[-1:] == (["ZeroDivisionError"] if status == 1 else [])
    assert runs() <= before


ASYNCIO_FORK = """
    import asyncio, os, sys, heddle

    registry = heddle.discover_tools(sys.argv[1])

    async def child(runner, scope):
        for use in (runner.call("echo"), scope.call("echo"), scope.workspace.changes(), runner.open()):
            try:
                print("nothing was raised:", await use, flush=True)
            except heddle.WrongProcess:
                print("refused", flush=True)
        await runner.close()
        async with heddle.aio.Runner(registry) as own:
            print((await own.call("echo", {"n": 0})).unwrap(), flush=True)

    async def main():
        async with heddle.aio.Runner(registry) as runner, runner.scope() as scope:
            await scope.call("echo")
            pid = os.fork()
            if pid == 0:
                asyncio.run(child(runner, scope))
                os._exit(0)
            await asyncio.to_thread(os.waitpid, pid, 0)
            print((await scope.call("echo", {"n": 1})).unwrap(), (await runner.call("echo", {"n": 2})).unwrap())

    asyncio.run(main())
"""


def test_a_forked_child_of_an_asyncio_host_opens_its_own(toolbox: Toolbox) -> None:
    toolbox.sh("echo", "cat")

    ended = run_host(ASYNCIO_FORK, toolbox.folder)

    assert ended == (0, "refused\n" * 4 + "{'n': 0}\n{'n': 1} {'n': 2}\n", "")


PREFORK = """
    import os, sys, heddle

    registry = heddle.discover_tools(sys.argv[1])
    runner = heddle.blocking.Runner(registry)
    with runner:
        runner.call("echo").unwrap()
    {before}

    def serve(runner):
        return [runner.call("echo", {{"n": n}}).unwrap()["n"] for n in range(20)] == list(range(20))

    def work(number):
        with runner if {same} else heddle.blocking.Runner(registry) as own:
            # At once, with its end: print may write that alone, after what another worker has written.
            os.write(1, f"worker {{number}} has {{os.getpid()}}: {{serve(own)}}\\n".encode())
            if number == 0:
                own.call("late")
            os.read(0, 1)
            os._exit(0 if serve(own) else 1)

    workers = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            work(number)
        workers.append(pid)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers], flush=True)
"""


@pytest.mark.parametrize(
    "parts",
    [
        {"before": "pass", "same": True},
        {"before": 'parent = heddle.blocking.Runner(registry).open(); parent.call("echo")', "same": False},
    ],
    ids=["the parent has closed it", "the parent has one open"],
)
def test_the_workers_of_a_server_each_open_their_own(toolbox: Toolbox, parts: dict[str, object]) -> None:
    """And one that is killed takes its tools with it, and nobody else's."""
    toolbox.sh("echo", "cat")
    toolbox.sh("late", "setsid sleep {long} & sleep {long}")

    with hosting.host(PREFORK.format(**parts), toolbox.folder) as process:
        assert process.stdout is not None
        lines = sorted(process.stdout.readline() for _ in range(4))
        assert [line.partition(": ")[2] for line in lines] == ["True\n"] * 4, lines
        assert wait_until(lambda: len(toolbox.strays()) == 2, 5)
        os.kill(int(lines[0].split()[3].rstrip(":")), signal.SIGKILL)
        gone = wait_until(lambda: not toolbox.strays(), 1)
        output, complained = process.communicate("ggg", timeout=20)

    assert gone
    assert (output, complained) == ("[-9, 0, 0, 0]\n", "")


MULTIPROCESSING = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

import heddle


def work(folder, n):
    with heddle.blocking.Runner(heddle.discover_tools(folder)) as runner:
        return runner.call("echo", {"n": n}).unwrap()["n"]


def main(folder):
    with heddle.blocking.Runner(heddle.discover_tools(folder)) as runner:
        runner.call("echo").unwrap()
        for method in ("fork", "spawn"):
            with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
                print(method, list(pool.map(work, [folder] * 4, range(4))), runner.call("echo", {"n": 9}).unwrap())


if __name__ == "__main__":
    main(sys.argv[1])
"""


def test_worker_processes_open_their_own(toolbox: Toolbox, tmp_path: Path) -> None:
    toolbox.sh("echo", "cat")
    program = tmp_path / "program.py"
    program.write_text(MULTIPROCESSING)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", hosting.MAY_FORK, str(program), str(toolbox.folder)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("fork [0, 1, 2, 3] {'n': 9}\nspawn [0, 1, 2, 3] {'n': 9}\n", "")


# Exits


BEGIN = """
    import asyncio, os, sys, threading, time, heddle, heddle.portal
    from tests.support import children_of

    registry = heddle.discover_tools(sys.argv[1])
    # Made before the runner: what is registered first is called last.
    import atexit
    atexit.register(lambda: print("supervisors:", *watching, flush=True))
    watching = []

    def watched(runner):
        watching.extend(children_of(os.getpid()))
        return runner
"""
OPEN = """
    runner = watched(heddle.blocking.Runner(registry).open())
    runner.call("echo").unwrap()
"""
EXITS = {
    "with an open runner": (OPEN, 0, ""),
    "with an open scope": (
        OPEN
        + """
    scope = runner.scope()
    scope.__enter__().call("echo").unwrap()
""",
        0,
        "",
    ),
    "with an open scope, long after its last call": (
        """
    import trio._core._thread_cache
    trio._core._thread_cache.IDLE_TIMEOUT = 0.05  # what is removed is removed in a thread, and none is there any more
"""
        + OPEN
        + """
    scope = runner.scope()
    scope.__enter__().call("echo").unwrap()
    time.sleep(0.3)
""",
        0,
        "",
    ),
    "with an error": (OPEN + "\n    raise ZeroDivisionError\n", 1, "ZeroDivisionError"),
    "while a daemon thread calls": (
        OPEN
        + """
    threading.Thread(target=runner.call, args=("late",), daemon=True).start()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
""",
        0,
        "",
    ),
    "while a daemon thread has a runner": (
        """
    def serve():
        with heddle.blocking.Runner(registry) as runner:
            watched(runner).call("late")

    threading.Thread(target=serve, daemon=True).start()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
""",
        0,
        "",
    ),
    "while a daemon thread has a loop": (
        """
    async def serve():
        async with heddle.aio.Runner(registry) as runner:
            await watched(runner).call("late")

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
""",
        0,
        "",
    ),
    "with what a loop that has ended left open": (
        """
    async def main():
        runner = await heddle.aio.Runner(registry).open()
        (await watched(runner).call("echo")).unwrap()

    asyncio.run(main())
""",
        0,
        "",
    ),
}


@pytest.mark.parametrize(("program", "status", "complaint"), EXITS.values(), ids=EXITS)
def test_a_host_exits_in_peace(toolbox: Toolbox, tmp_path: Path, program: str, status: int, complaint: str) -> None:
    """At once, with no traceback but its own, no tool, no supervisor and no folder left."""
    toolbox.sh("echo", "cat")
    toolbox.sh("late", f"touch {tmp_path}/ready; setsid sleep {{long}} & sleep {{long}}")
    before = runs()
    began = time.monotonic()

    exit_status, output, complained = run_host(BEGIN + program, toolbox.folder, tmp_path / "ready")

    assert time.monotonic() - began < 15  # a tool sleeps for a minute
    assert exit_status == status
    assert complained.splitlines()[-1:] == ([complaint] if complaint else [])
    supervisors = [int(pid) for pid in output.removeprefix("supervisors:").split()]
    assert supervisors
    assert [pid for pid in supervisors if state_of(pid) is not None] == []
    assert toolbox.strays() == []
    assert runs() <= before


def test_that_it_exits_in_peace_is_because_it_closes_what_is_open(toolbox: Toolbox, tmp_path: Path) -> None:
    """The same test sees it if it does not."""
    toolbox.sh("echo", "cat")
    before = runs()
    careless = "\n    heddle.portal.Portal._stop_at_exit = lambda self: None\n"

    run_host(BEGIN + careless + OPEN, toolbox.folder)

    (left,) = runs() - before
    remove_tree(left)


@pytest.mark.parametrize("end", ["os._exit(5)", "os.kill(os.getpid(), 9)"], ids=["at once", "by SIGKILL"])
@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_the_tools_of_a_host_that_is_gone_at_once_are_gone_within_a_second(
    toolbox: Toolbox, tmp_path: Path, kind: str, end: str
) -> None:
    toolbox.sh("late", "touch ready; setsid sleep {long} & sleep {long}")
    blocking = f"""
    def wait():
        while len(strays(sys.argv[2])) < 2:
            time.sleep(0.01)
        {end}

    threading.Thread(target=wait).start()
    """
    call = {
        "blocking": "\n    with heddle.blocking.Runner(registry) as runner: runner.call('late')\n",
        "aio": """
    async def main():
        async with heddle.aio.Runner(registry) as runner:
            await runner.call("late")
    asyncio.run(main())
    """,
    }
    begin = """
    import asyncio, os, sys, threading, time, heddle
    from tests.support import processes_with as strays
    registry = heddle.discover_tools(sys.argv[1])
    """

    exit_status, _, complained = run_host(begin + blocking + call[kind], toolbox.folder, toolbox.long)

    assert exit_status == (5 if "_exit" in end else -9)
    assert complained == ""
    assert wait_until(lambda: not toolbox.strays(), 1)
