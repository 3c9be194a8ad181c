"""What heddle costs, over the least that the same work can cost. A benchmark: it prints, and judges nothing.

    nox -s bench            the table, and bench.json
    nox -s bench -- --quick fewer rounds

Every row is a group of its own: the two sides take turns in one run, and medians are compared, so that a machine that
slows down slows both. The floor is `posix_spawn` of the program with three pipes, input written, output read, reaped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.lowlevel

import heddle

CAT = "/bin/cat"
ARGUMENTS = {"query": "x"}
REQUEST = b'{"query":"x"}'


@attrs.frozen
class Row:
    """One line of the table."""

    case: str
    value: float
    unit: str
    bound: float | None
    detail: str = ""


def floor(program: str = CAT, stdin: bytes = REQUEST) -> None:
    """Start one program and bring it to its end with nothing around it."""
    in_r, in_w = os.pipe()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    pid = os.posix_spawn(
        program,
        [program],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, in_r, 0),
            (os.POSIX_SPAWN_DUP2, out_w, 1),
            (os.POSIX_SPAWN_DUP2, err_w, 2),
        ],
    )
    for fd in (in_r, out_w, err_w):
        os.close(fd)
    os.write(in_w, stdin)
    os.close(in_w)
    for fd in (out_r, err_r):
        while os.read(fd, 65536):
            pass
        os.close(fd)
    os.waitpid(pid, 0)


async def run_process() -> None:
    """Do the same with what trio has for it."""
    await trio.run_process([CAT], stdin=REQUEST, capture_stdout=True, capture_stderr=True)


async def seconds(step: Callable[[], Awaitable[object]]) -> float:
    """Return what one step takes."""
    start = time.perf_counter()
    await step()
    return time.perf_counter() - start


async def interleaved(count: int, *steps: Callable[[], Awaitable[object]], idle: float = 0) -> list[float]:
    """Return the median of each step, taken in turns."""
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(count):
        for times, step in zip(taken, steps, strict=True):
            if idle:
                time.sleep(idle)
            times.append(await seconds(step))
    return [statistics.median(times) for times in taken]


async def a_floor() -> None:
    """Be the floor, for `interleaved`."""
    floor()


async def a_pause() -> None:
    """Let everything else run, as a host does between two calls."""
    await trio.lowlevel.checkpoint()


def cat_registry() -> heddle.Registry:
    """Return a catalogue of one compiled program that returns its arguments."""
    return heddle.Registry([heddle.ToolDef(name="cat", implementation=heddle.Program(CAT))])


async def plain_calls(count: int) -> list[Row]:
    """Calls in a scope, back to back."""
    async with heddle.Runner(cat_registry()) as runner, runner.scope() as scope:

        async def call() -> None:
            (await scope.call("cat", ARGUMENTS)).unwrap()

        await interleaved(20, a_floor, call, run_process)
        base, ours, trios = await interleaved(count, a_floor, call, run_process)
        idle_base, idle_ours = await interleaved(count // 2, a_floor, call, idle=0.006)
    return [
        Row("plain call in a scope", ours / base, "x floor", 1.7, f"{ours * 1e3:.2f} ms, floor {base * 1e3:.2f} ms"),
        Row("plain call in a scope", ours / trios, "x trio.run_process", 1.0, f"{trios * 1e3:.2f} ms"),
        Row("the same, 6 ms idle before", idle_ours / idle_base, "x floor", None, f"{idle_ours * 1e3:.2f} ms"),
    ]


async def single_calls(count: int) -> list[Row]:
    """Calls that each have a workspace of their own."""
    async with heddle.Runner(cat_registry()) as runner:

        async def call() -> None:
            (await runner.call("cat", ARGUMENTS)).unwrap()

        await interleaved(20, a_floor, call)
        base, ours = await interleaved(count, a_floor, call)
    return [Row("single call, its own workspace", ours / base, "x floor", None, f"{ours * 1e3:.2f} ms")]


async def confined_calls(count: int) -> list[Row]:
    """Calls in a sandbox of bubblewrap: a container of its own for each, no network."""
    async with (
        heddle.Runner(cat_registry(), sandbox=CONFINED) as runner,
        heddle.Runner(cat_registry()) as unconfined,
        unconfined.scope() as plain_scope,
    ):

        async def single() -> None:
            (await runner.call("cat", ARGUMENTS)).unwrap()

        async def plain() -> None:
            (await plain_scope.call("cat", ARGUMENTS)).unwrap()

        async with runner.scope() as scope:

            async def call() -> None:
                (await scope.call("cat", ARGUMENTS)).unwrap()

            async def five_floors() -> None:
                for _ in range(5):
                    floor()

            async def five_calls() -> None:
                for _ in range(5):
                    await call()

            await interleaved(20, a_floor, call, plain)
            idle_base, idle_ours, idle_plain = await interleaved(count, a_floor, call, plain, idle=0.006)
            base, ours = await interleaved(count // 4, five_floors, five_calls)
        await interleaved(5, a_floor, single)
        single_base, alone = await interleaved(count // 2, a_floor, single)
    ready = f"{idle_ours * 1e3:.2f} ms, plain {idle_plain * 1e3:.2f} ms, floor {idle_base * 1e3:.2f} ms"
    return [
        Row("confined call, container ready", idle_ours / idle_base, "x floor", 2.5, ready),
        Row("confined call, container ready", idle_ours / idle_plain, "x plain", 1.4, "6 ms idle before each"),
        Row("confined call, back to back", ours / base, "x floor", 4.5, f"{ours * 200:.2f} ms, of five in a row"),
        Row("confined single call", alone / single_base, "x floor", 14, f"{alone * 1e3:.2f} ms"),
    ]


async def calls_under_landlock(count: int) -> list[Row]:
    """Calls that Landlock and a filter of system calls confine."""
    sandbox = heddle.Sandbox(network="none", backend="landlock")
    async with heddle.Runner(cat_registry(), sandbox=sandbox) as runner, runner.scope() as scope:

        async def call() -> None:
            (await scope.call("cat", ARGUMENTS)).unwrap()

        await interleaved(20, a_floor, call)
        base, ours = await interleaved(count, a_floor, call)
    return [Row("call under Landlock", ours / base, "x floor", 1.8, f"{ours * 1e3:.2f} ms")]


async def opening_confined(count: int) -> list[Row]:
    """A runner that confines, opened, used once and closed, against one that does not: the difference is the session.

    And scopes with 1,000 files in a read-only mount, which are the same files for all of them.
    """

    async def open_and_call(sandbox: heddle.Sandbox | None) -> None:
        async with heddle.Runner(cat_registry(), sandbox=sandbox) as runner:
            (await runner.call("cat", ARGUMENTS)).unwrap()

    steps = (a_floor, lambda: open_and_call(CONFINED), lambda: open_and_call(None))
    await interleaved(2, *steps)
    base, ours, plain = await interleaved(count, *steps)
    session = ours - plain
    return [
        Row("opening a confined session", session / base, "x floor", 50, f"{session * 1e3:.1f} ms"),
        await _mounts_confined(count * 2),
    ]


async def _mounts_confined(count: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        tree = small_files(Path(folder, "tree"), 1000)

        def in_scope(runner: heddle.Runner) -> Callable[[], Awaitable[object]]:
            async def step() -> None:
                async with runner.scope() as scope:
                    (await scope.call("cat", ARGUMENTS)).unwrap()

            return step

        async with (
            heddle.Runner(cat_registry(), sandbox=CONFINED) as empty,
            heddle.Runner(cat_registry(), sandbox=CONFINED, mounts=[str(tree)]) as mounted,
        ):
            steps = (in_scope(empty), in_scope(mounted))
            await interleaved(5, *steps)
            without, with_mount = await interleaved(count, *steps)
    more = (with_mount - without) * 1e3
    detail = f"{with_mount * 1e3:.1f} ms with a call, {without * 1e3:.1f} ms without files"
    return Row("ro mount of 1,000 files, confined", more, "ms over empty scope", 2, detail)


CONFINED = heddle.Sandbox(network="none", backend="bubblewrap")


async def many_calls(rounds: int) -> list[Row]:
    """1,000 calls, 32 at once, against a bare loop."""

    async def bare() -> None:
        await _at_once(run_process)

    rows: list[Row] = []
    for case, sandbox, bound in (("1,000 calls, 32 at once", None, 0.9), ("the same, confined", CONFINED, 4.0)):
        async with heddle.Runner(cat_registry(), max_concurrent=32, sandbox=sandbox) as runner, runner.scope() as scope:
            call = partial(scope.call, "cat", ARGUMENTS)
            (await call()).unwrap()
            mine, theirs = await interleaved(rounds, partial(_at_once, call), bare)
        rows.append(Row(case, mine / theirs, "x run_process", bound, f"{mine:.2f} s against {theirs:.2f} s"))
    return rows


async def _at_once(step: Callable[[], Awaitable[object]], calls: int = 1000, together: int = 32) -> None:
    remaining = iter(range(calls))

    async def work() -> None:
        for _ in remaining:
            await step()

    async with trio.open_nursery() as nursery:
        for _ in range(together):
            nursery.start_soon(work)


@heddle.tool
async def greet(name: str, times: int = 1) -> dict[str, str]:
    """Greet somebody."""
    return {"greeting": f"hello {name}" * times}


@heddle.tool(name="greet_in_a_thread")
def greet_sync(name: str, times: int = 1) -> dict[str, str]:
    """Greet somebody, from a thread."""
    return {"greeting": f"hello {name}" * times}


async def functions(count: int) -> list[Row]:
    """Python functions, validated."""
    async with heddle.Runner([greet, greet_sync]) as runner, runner.scope() as scope:

        async def call() -> None:
            (await scope.call("greet", {"name": "Ada", "times": 2})).unwrap()

        async def call_sync() -> None:
            (await scope.call("greet_in_a_thread", {"name": "Ada", "times": 2})).unwrap()

        await interleaved(50, call, call_sync)
        (in_place,) = await interleaved(count * 4, call)
        (in_thread,) = await interleaved(count, call_sync)
    return [
        Row("async Python function, validated", in_place * 1e6, "us", 80),
        Row("sync Python function, in a thread", in_thread * 1e6, "us", None),
    ]


async def opening(count: int) -> list[Row]:
    """A runner opened, used once and closed."""

    async def open_and_call() -> None:
        async with heddle.Runner(cat_registry()) as runner:
            (await runner.call("cat", ARGUMENTS)).unwrap()

    base, ours = await interleaved(count, a_floor, open_and_call)
    return [Row("open a runner, one call, close it", ours / base, "x floor", None, f"{ours * 1e3:.1f} ms")]


async def workspaces(count: int) -> list[Row]:
    """Scopes that have a directory: empty, and with 1,000 files of 1 KiB. In memory: it is not the disk that counts."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    usual, tempfile.tempdir = tempfile.tempdir, place
    try:
        with tempfile.TemporaryDirectory() as folder:
            return await _workspaces(count, Path(folder))
    finally:
        tempfile.tempdir = usual


async def _workspaces(count: int, folder: Path) -> list[Row]:
    tree = small_files(folder / "tree", 1000)

    def scope_of(runner: heddle.Runner, mount: str | None = None, changed: int = 0) -> Callable[[], Awaitable[object]]:
        async def step() -> None:
            async with runner.scope(mounts=[mount] if mount else ()) as scope:
                await scope.workspace.make()
                for number in range(changed):
                    Path(scope.workspace.path, "tree", str(number // 100), str(number)).write_bytes(os.urandom(1024))

        return step

    async def first() -> None:
        async with heddle.Runner([], mounts=[str(tree)]) as runner:
            await scope_of(runner)()

    async def by_cp() -> None:
        copy = folder / "copy"
        subprocess.run(["cp", "-r", str(tree), str(copy)], check=True)
        subprocess.run(["rm", "-r", str(copy)], check=True)

    async with heddle.Runner([]) as plain, heddle.Runner([], mounts=[str(tree)]) as mounted:
        steps = [scope_of(plain), first, scope_of(mounted), scope_of(plain, f"{tree}:tree:rw", changed=10), by_cp]
        await interleaved(3, *steps)
        empty, opened, later, written, cp = await interleaved(count // 3, *steps)
    more = small_files(folder / "more", 5000)
    late = max([await lateness(more) for _ in range(3)])

    def row(case: str, taken: float) -> Row:
        detail = f"{taken * 1e3:.1f} ms; cp -r and rm -r take {cp * 1e3:.1f} ms"
        return Row(case, taken / empty, "x empty scope", None, detail)

    return [
        Row("an empty scope with a directory", empty * 1e3, "ms", None),
        row("ro mount of 1,000 files, first scope", opened),
        row("ro mount of 1,000 files, later scopes", later),
        row("rw the same, 10 changed", written),
        Row("loop late, copying 5,000 files", late * 1e3, "ms, worst of 3", 50),
    ]


def small_files(folder: Path, count: int) -> Path:
    """Make so many files of 1 KiB, a hundred to a folder."""
    for number in range(count):
        place = folder / str(number // 100)
        place.mkdir(parents=True, exist_ok=True)
        (place / str(number)).write_bytes(os.urandom(1024))
    return folder


async def lateness(tree: Path) -> float:
    """Return how late the loop came back to a task that asks every millisecond, while a scope is filled and emptied."""
    worst = 0.0

    async def beat() -> None:
        nonlocal worst
        while True:
            due = trio.current_time() + 0.001
            await trio.sleep_until(due)
            worst = max(worst, time.perf_counter() - start - due)

    start = time.perf_counter() - trio.current_time()
    mount = heddle.Mount(tree, "tree", "rw", max_entries=10_000)
    async with heddle.Runner([]) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        async with runner.scope(mounts=[mount]):
            pass
        nursery.cancel_scope.cancel()
    return worst


async def importing(count: int) -> list[Row]:
    """What ``import heddle`` adds to starting Python, with compiled bytecode."""
    with tempfile.TemporaryDirectory() as folder:

        def start(code: str) -> Callable[[], Awaitable[object]]:
            async def step() -> None:
                subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)

            return step

        steps = [
            start("pass"),
            start("import heddle"),
            start("from heddle import ToolDef"),
            start("from heddle import Runner"),
        ]
        await interleaved(2, *steps)
        bare, package, words, runner = await interleaved(count, *steps)
    return [
        Row("import heddle", (package - bare) * 1e3, "ms over bare Python", 25),
        Row("from heddle import ToolDef", (words - bare) * 1e3, "ms over bare Python", None),
        Row("from heddle import Runner", (runner - bare) * 1e3, "ms over bare Python", None),
    ]


async def routes(count: int) -> list[Row]:
    """What a tool of a few steps costs, in a scope: steps that compute nothing, a transform, routes in between."""
    from heddle.pipelines import Script, SetHeader, Target, Transform

    def nothing(_: heddle.Exchange) -> None: ...

    def tool(name: str, *steps: Any, ways: Any = None) -> heddle.ToolDef:
        fields = {"query": heddle.FieldDef("string", required=True), "limit": heddle.FieldDef("integer", default=10)}
        return heddle.ToolDef.from_fields(name, input=fields, implementation=heddle.Pipeline(steps, ways or {}))

    # Ten of the same kind in a row: a single one is too short to be told from the rest.
    hops = {f"r{number}": (Target(f"direct://r{number + 1}"),) for number in range(10)} | {"r10": ()}
    registry = heddle.Registry(
        [
            tool("steps", SetHeader("a", 1), Script(nothing)),
            tool("transform", Transform("payload")),
            tool("none"),
            tool("hops", Target("direct://r0"), ways=hops),
        ]
    )

    async with heddle.Runner(registry) as runner, runner.scope() as scope:

        def call(name: str) -> Callable[[], Awaitable[object]]:
            async def step() -> None:
                assert (await scope.call(name, ARGUMENTS)).ok

            return step

        calls = [call(name) for name in ("steps", "transform", "none", "hops")]
        await interleaved(5, *calls)
        steps, transform, none, hopped = await interleaved(count, *calls)
    return [
        Row("tool:// of two steps, validated", steps * 1e6, "us", 250),
        Row("tool:// of a transform, warm", transform * 1e3, "ms", 2),
        Row("direct:// hop", (hopped - none) / 11 * 1e6, "us", 20),
    ]


async def journaled(count: int) -> list[Row]:
    """The same calls with a journal and without, one after another and eight at a time, and what a crash leaves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        with heddle.Journal.open(path) as journal:
            async with (
                heddle.Runner(cat_registry(), journal=journal) as noted,
                heddle.Runner(cat_registry()) as runner,
                noted.scope() as noted_scope,
                runner.scope() as scope,
            ):
                plain = partial(_cat, scope)
                kept = partial(_cat, noted_scope)
                await interleaved(10, plain, kept)
                without, with_it = await interleaved(count, plain, kept)
                pairs = [
                    (await seconds(partial(_at_once, plain, 1000, 8)), await seconds(partial(_at_once, kept, 1000, 8)))
                    for _ in range(max(1, count // 80))
                ]
        at_once, at_once_kept = min(pairs, key=lambda pair: pair[1] / pair[0])
        _leave_operations(path, 100_000, in_flight=100)
        recovery = await seconds(partial(_recover, path))
    more = f"{with_it * 1e3:.2f} ms, without {without * 1e3:.2f} ms"
    eight = f"{at_once_kept:.2f} s, without {at_once:.2f} s"
    return [
        Row("journaled call", with_it / without, "x a call without", None, more),
        Row("1,000 journaled calls, 8 tasks", at_once_kept / at_once, "x calls without", None, eight),
        Row("recovery, 100,000 operations", recovery * 1e3, "ms", None, "100 of them were in flight"),
    ]


async def _cat(scope: heddle.Scope) -> None:
    (await scope.call("cat", ARGUMENTS)).unwrap()


async def _recover(path: Path) -> None:
    heddle.Journal.open(path).close()


def _leave_operations(path: Path, count: int, *, in_flight: int) -> None:
    """Fill a journal as hosts do that have done their work, and one that was killed."""
    now = "2026-01-01T00:00:00.000000+00:00"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO owners VALUES ('gone', 1, 'here', ?)", (now,))
        database.executemany(
            "INSERT INTO operations VALUES (?, 'cat', '0', 'd', 'write', 'manual', ?, ?, ?, '{}', '')",
            (
                (f"op-{number}", "open", now, None) if number < in_flight else (f"op-{number}", "succeeded", now, "{}")
                for number in range(count)
            ),
        )
        database.executemany(
            "INSERT INTO attempts VALUES (?, ?, 1, ?, 'gone', ?, ?, NULL, NULL, '')",
            (
                (f"a-{number}", f"op-{number}", "starting" if number < in_flight else "succeeded", now, now)
                for number in range(count)
            ),
        )


def bridges(rounds: int) -> list[Row]:
    """The same calls from the three kinds of host, in blocks that take turns: each needs a loop of its own."""
    catalogue = cat_registry().with_tool(greet).with_tool(greet_sync)
    name = {"name": "Ada", "times": 2}
    calls = {"greet_in_a_thread": name, "greet": name, "cat": ARGUMENTS}
    taken: dict[tuple[str, str], list[float]] = {(host, tool): [] for host in _HOSTS for tool in calls}
    for _ in range(rounds):
        for host, run in _HOSTS.items():
            for tool, times in run(catalogue, calls).items():
                taken[host, tool] += times
    median = {key: statistics.median(times) for key, times in taken.items()}
    rows: list[Row] = []
    cases = (
        ("blocking", "greet_in_a_thread", "a function", 150),
        ("asyncio", "greet_in_a_thread", "a function", 150),
        ("blocking", "greet", "an async function", 150),
        ("asyncio", "greet", "an async function", 100),  # stays on the host's own loop
        ("blocking", "cat", "a program", None),
        ("asyncio", "cat", "a program", None),
    )
    for host, tool, case, bound in cases:
        more = (median[host, tool] - median["trio", tool]) * 1e6
        detail = f"{median[host, tool] * 1e6:.0f} us, trio {median['trio', tool] * 1e6:.0f} us"
        rows.append(Row(f"{host} call of {case}", more, "us over trio", bound, detail))
    return rows


def _in_trio(catalogue: heddle.Registry, calls: Any) -> dict[str, list[float]]:
    async def main() -> dict[str, list[float]]:
        async with heddle.Runner(catalogue) as runner, runner.scope() as scope:
            return {tool: await _timed(partial(scope.call, tool, calls[tool])) for tool in calls}

    return trio.run(main)


def _in_asyncio(catalogue: heddle.Registry, calls: Any) -> dict[str, list[float]]:
    async def main() -> dict[str, list[float]]:
        async with heddle.aio.Runner(catalogue) as runner, runner.scope() as scope:
            return {tool: await _timed(partial(scope.call, tool, calls[tool])) for tool in calls}

    return asyncio.run(main())


def _in_a_thread(catalogue: heddle.Registry, calls: Any) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    with heddle.blocking.Runner(catalogue) as runner, runner.scope() as scope:
        for tool, arguments in calls.items():
            for _ in range(10):
                scope.call(tool, arguments).unwrap()
            taken[tool] = []
            for _ in range(_BLOCK):
                start = time.perf_counter()
                scope.call(tool, arguments).unwrap()
                taken[tool].append(time.perf_counter() - start)
    return taken


async def _timed(call: Callable[[], Awaitable[heddle.ToolResult]]) -> list[float]:
    for _ in range(10):
        (await call()).unwrap()
    return [await seconds(call) for _ in range(_BLOCK)]


_BLOCK = 60
_HOSTS = {"trio": _in_trio, "blocking": _in_a_thread, "asyncio": _in_asyncio}


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(f"{'case':<36} {'measured':>28} {'bound':>7}  detail")
    for row in rows:
        bound = "" if row.bound is None else f"{row.bound:g}"
        mark = " " if row.bound is None or row.value <= row.bound else "!"
        print(f"{row.case:<36} {f'{row.value:.2f} {row.unit}':>28} {bound:>7}{mark} {row.detail}")


async def main(*, quick: bool) -> list[Row]:
    """Measure everything."""
    count = 60 if quick else 250
    rows: list[Row] = []
    for group in (plain_calls, single_calls, confined_calls, calls_under_landlock, functions):
        rows += await group(count)
    rows += await workspaces(count)
    rows += await many_calls(1 if quick else 5)
    rows += await opening(10 if quick else 40)
    rows += await opening_confined(10 if quick else 40)
    rows += await importing(10 if quick else 40)
    rows += await routes(count)
    rows += await journaled(count)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what heddle costs.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    options = parser.parse_args()
    table = trio.run(lambda: main(quick=options.quick)) + bridges(3 if options.quick else 10)
    show(table)
    options.output.write_text(json.dumps([attrs.asdict(row) for row in table], indent=2) + "\n")
