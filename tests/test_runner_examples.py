"""The examples of custom runners: each runs, does what it says, and keeps the promises of its port."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.callers import ScopeCaller, ToolCaller
from heddle.process.supervised import SupervisedLauncher
from heddle.testing import Conformance, ScriptedLauncher, check_launcher, launchers
from tests.support import Toolbox
from tests.test_examples import run

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples/runners"
PAGE = (ROOT / "docs/how-to/runners.md").read_text()


def load(name: str) -> Any:
    """Import an example as somebody would who has copied it."""
    spec = importlib.util.spec_from_file_location(f"copied_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


chroot_backend, recording, caching = load("chroot_backend"), load("recording"), load("caching")


def bubblewrap_works() -> bool:
    words = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap does not work here")


def test_only_what_is_public_is_used() -> None:
    """Whoever copies an example must not depend on what may change."""
    public = {"heddle", "heddle.process", "heddle.sandbox", "heddle.testing", "heddle.callers", "heddle.operations"}
    found = {
        name
        for path in EXAMPLES.glob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (heddle[\w.]*)", path.read_text(), re.MULTILINE)
    }

    assert found - public == set()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


CALLER, BACKEND, LAUNCHER, OUR_TEST, SCRIPT = blocks("python")


@pytest.mark.parametrize(
    ("example", "excerpt"), [("caching", CALLER), ("chroot_backend", BACKEND), ("recording", LAUNCHER)]
)
def test_what_the_page_shows_of_an_example_stands_in_it(example: str, excerpt: str) -> None:
    source = (EXAMPLES / f"{example}.py").read_text()

    assert any(textwrap.indent(excerpt, " " * depth) in source for depth in (0, 4, 8))
    assert f"(../../examples/runners/{example}.py)" in PAGE


def test_the_promises_that_the_page_shows_are_promised() -> None:
    (shown,) = blocks("text")
    promised = {f"- {promise.name}: {promise.text}" for promise in launchers.promises()}

    heading, *lines = shown.splitlines()

    assert heading == f"Plain does not keep 2 of {len(promised)} promises:"
    assert set(lines[::2]) <= promised


@needs_bubblewrap
async def test_the_backend_and_the_recorder_keep_their_promises(tmp_path: Path) -> None:
    """The backend is checked by the very test that the page shows."""
    shutil.copy(EXAMPLES / "chroot_backend.py", tmp_path)
    (tmp_path / "test_ours.py").write_text(OUR_TEST)
    found: list[Conformance] = []
    done: list[subprocess.CompletedProcess[bytes]] = []

    async def check_recorder() -> None:
        async with SupervisedLauncher() as launcher:
            found.append(await check_launcher(recording.Recorder(launcher, io.StringIO())))

    async def check_backend() -> None:
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        done.append(await trio.run_process(words, capture_stdout=True, check=False, cwd=tmp_path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_recorder)
        nursery.start_soon(check_backend)

    assert found == [Conformance(tuple(promise.name for promise in launchers.promises()))]
    assert (done[0].returncode, b"1 passed" in done[0].stdout) == (0, True), done[0].stdout.decode()


def test_the_script_that_the_page_shows_is_played_to_its_end() -> None:
    tools = [heddle.ToolDef(name=name, implementation=heddle.Program("/nowhere")) for name in ("fetch", "send")]
    scope: dict[str, Any] = {"heddle": heddle, "registry": heddle.Registry(tools)}

    exec(SCRIPT, scope)

    assert scope["launcher"].left == {}


# A backend


@needs_bubblewrap
def test_the_backend_shows_another_root_and_a_tool_that_is_ended_in_it() -> None:
    assert run("runners/chroot_backend.py") == (
        "chroot: {'home': 'not there'}\n"
        "made in the workspace: by a tool\n"
        'The call failed (timed_out): tool "wait" did not finish within 0.2 s and was stopped.\n'
        "It is not declared safe to repeat: check what happened before you call it again.\n"
    )


async def test_the_backend_refuses_where_bubblewrap_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tool = heddle.ToolDef(name="quick", implementation=heddle.Program("/bin/true"))

    async with heddle.Runner([tool], backend=chroot_backend.ChrootBackend()) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="chroot: bwrap is not on this machine"):
            await runner.call("quick")


async def test_the_backend_refuses_where_bubblewrap_does_not_work(
    monkeypatch: pytest.MonkeyPatch, toolbox: Toolbox
) -> None:
    toolbox.sh("bwrap", "echo user namespaces are off >&2; exit 1")
    monkeypatch.setenv("PATH", str(toolbox.folder), prepend=os.pathsep)
    tool = heddle.ToolDef(name="quick", implementation=heddle.Program("/bin/true"))

    async with heddle.Runner([tool], backend=chroot_backend.ChrootBackend()) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="chroot: user namespaces are off"):
            await runner.call("quick")


async def test_the_backend_refuses_what_of_a_policy_it_does_not_hold() -> None:
    tool = heddle.ToolDef(name="quick", implementation=heddle.Program("/bin/true"))
    sandbox = heddle.Sandbox(network="none", run_as=1000)

    async with heddle.Runner([tool], backend=chroot_backend.ChrootBackend(), sandbox=sandbox) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="it holds neither backend=… nor run_as=…"):
            await runner.call("quick")


@needs_bubblewrap
async def test_the_backend_gives_what_a_policy_grants(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("look", f"cat {data}/a.txt >&2; echo new > {data}/inner/b.txt; echo '{{}}'")
    sandbox = heddle.Sandbox(network="none", read=[data / "a.txt"], write=[data / "inner"])

    result = await toolbox.call("look", backend=chroot_backend.ChrootBackend(), sandbox=sandbox)

    assert result == heddle.Returned({})
    assert result.report.stderr_tail == "a\n"
    assert (data / "inner/b.txt").read_text() == "new\n"


async def test_the_backend_kills_what_carries_an_attempts_id() -> None:
    """bubblewrap leaves nothing; what an engine would leave is started here by hand."""
    left = subprocess.Popen(["/bin/sleep", "60"], env={"HEDDLE_ATTEMPT_ID": "ours"})
    others = subprocess.Popen(["/bin/sleep", "60"], env={"HEDDLE_ATTEMPT_ID": "theirs"})
    try:
        await chroot_backend.ChrootSession(()).kill("ours")
        status = left.wait(5)
        spared = others.poll() is None
    finally:
        for process in (left, others):
            process.kill()
            process.wait()

    assert (status, spared) == (-signal.SIGKILL, True)


# Launchers


def test_the_recording_shows_calls_that_are_answered_without_a_program() -> None:
    assert run("runners/recording.py") == (
        "none: {'result': 'You searched for: looms'}\n"
        "none: {'result': 'You searched for: shuttles'}\n"
        "replayed: {'result': 'You searched for: looms'}\n"
        "replayed: {'result': 'You searched for: shuttles'}\n"
        'the host called tool "bash_search" with {"query":"reeds"}, and the record holds no call like that. '
        "Record it again, or find out why the host makes this call\n"
    )


async def recorded(registry: heddle.Registry, *calls: tuple[str, Any]) -> tuple[list[heddle.ToolResult], str]:
    """Make calls with the recorder; return their results and the record."""
    file = io.StringIO()
    async with SupervisedLauncher() as launcher:
        async with heddle.Runner(registry, launcher=recording.Recorder(launcher, file)) as runner:
            results = [await runner.call(name, arguments) for name, arguments in calls]
    return results, file.getvalue()


async def replayed(registry: heddle.Registry, record: str, *calls: tuple[str, Any]) -> list[heddle.ToolResult]:
    async with heddle.Runner(registry, launcher=recording.Replayer(record.splitlines())) as runner:
        return [await runner.call(name, arguments) for name, arguments in calls]


async def test_a_record_gives_every_kind_of_end_again(toolbox: Toolbox) -> None:
    toolbox.add("bytes", b"#!/bin/sh\nprintf '\\377\\000'; printf '\\376' >&2\n")
    toolbox.sh("fails", "echo why >&2; exit 3")
    toolbox.sh("dies", "kill -SEGV $$")
    toolbox.sh("says", 'cat >/dev/null; echo "{\\"at\\": \\"$PWD\\"}"')
    toolbox.add("broken", b"#!/nosuch\n")
    registry = toolbox.registry()
    calls: list[tuple[str, Any]] = [(name, {}) for name in ("bytes", "fails", "dies", "says", "broken")]

    results, record = await recorded(registry, *calls)
    again = await replayed(registry, record, *calls)

    assert again == results
    passing = {"started_at", "waited_s", "operation_id", "attempt_id", "tier"}
    for one, other in zip(results, again, strict=True):
        kept = [{k: v for k, v in each.report.as_json().items() if k not in passing} for each in (one, other)]
        assert kept[0] == kept[1]


async def test_a_record_holds_bytes_as_text_and_nothing_of_the_environment(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_SECRET", "hidden away")
    toolbox.sh("echoes", "cat; printf '\\376' >&2")

    _, record = await recorded(toolbox.registry(), ("echoes", {"a": 1}))

    (line,) = map(json.loads, record.splitlines())
    duration_s = line["exit"].pop("duration_s")
    assert line == {
        "tool": "echoes",
        "args": [],
        "cwd": "$HEDDLE_WORKSPACE",
        "stdin": "eyJhIjoxfQ==",
        "exit": {
            "ending": "BY_ITSELF",
            "status": 0,
            "signal": None,
            "stdout": "eyJhIjoxfQ==",
            "stderr": "/g==",
            "truncated": [],
            "error_number": 0,
            "error": "",
            "left_behind": 0,
        },
    }
    assert duration_s > 0
    assert "hidden away" not in record


async def test_the_same_call_gets_what_was_recorded_for_it_in_order_and_then_an_error(toolbox: Toolbox) -> None:
    count = toolbox.folder / "count.txt"
    toolbox.sh("counts", f'echo >> {count}; echo "{{\\"n\\": $(wc -l < {count})}}"')
    registry = toolbox.registry()

    _, record = await recorded(registry, ("counts", {}), ("counts", {}))
    again = await replayed(registry, record, ("counts", {}), ("counts", {}))

    assert again == [heddle.Returned({"n": 1}), heddle.Returned({"n": 2})]
    with pytest.raises(recording.NotRecorded, match=r'tool "counts" with \{\}, and the record holds no further call'):
        await replayed(registry, record, *[("counts", {})] * 3)
    assert count.read_text() == "\n\n"


async def test_a_record_can_be_replayed_where_the_ids_and_the_paths_are_others(toolbox: Toolbox) -> None:
    """An envelope holds the ids of its call, and the tools may lie in another folder."""
    toolbox.sh("speaks", 'cat > request; echo \'{"ok": true, "data": 1}\'')
    tool = heddle.ToolDef(
        name="speaks", implementation=heddle.Program(toolbox.folder / "speaks", ("-x",), protocol="envelope")
    )
    moved = attrs.evolve(tool, implementation=heddle.Program("/nowhere/speaks", ("-x",), protocol="envelope"))

    results, record = await recorded(heddle.Registry([tool]), ("speaks", {}))
    again = await replayed(heddle.Registry([moved]), record, ("speaks", {}))

    assert again == results == [heddle.Returned(1)]


# A caller


def test_the_cache_shows_what_it_remembers_and_when_it_forgets() -> None:
    assert run("runners/caching.py") == (
        "  looked up the price of a loom\n"
        "price: {'result': 4100}\n"
        "price: {'result': 4100}, from memory\n"
        "set_price: {'loom': 3900}\n"
        "  looked up the price of a loom\n"
        "price: {'result': 3900}\n"
    )


def a_tool(name: str, **more: Any) -> heddle.ToolDef:
    return heddle.ToolDef(name=name, implementation=heddle.Program("/nowhere"), **more)


READS = a_tool("reads", side_effects="read", retry="idempotent")
OTHERS = [
    a_tool("reads_once", side_effects="read", retry="manual"),
    a_tool("writes", side_effects="write", retry="idempotent"),
    a_tool("unknown", retry="idempotent"),
]


async def replays_of(*calls: tuple[str, Any], answers: Any = None, **more: Any) -> list[bool]:
    """Make calls through a cache; return which were answered from memory."""
    prepared = {tool.name: {} for tool in [READS, *OTHERS]} | (answers or {})
    async with heddle.Runner([READS, *OTHERS], launcher=ScriptedLauncher(prepared)) as runner:
        cache = caching.CachingCaller(runner, **more)
        return [(await cache.call(name, arguments)).report.replayed for name, arguments in calls]


async def test_a_call_is_known_by_its_tool_and_its_arguments_however_they_are_written() -> None:
    same = [("reads", {"a": 1, "b": [2]}), ("reads", {"b": (2,), "a": 1}), ("reads", '{"b": [2], "a": 1}')]

    assert await replays_of(*same, ("reads", {"a": 1}), ("reads", {"a": True, "b": [2]})) == [
        False,
        True,
        True,
        False,
        False,
    ]


async def test_a_new_revision_of_a_tool_is_asked_again() -> None:
    cache = None
    for revision, expected in (("1", False), ("1", True), ("2", False)):
        tool = attrs.evolve(READS, revision=revision)
        async with heddle.Runner([tool], launcher=ScriptedLauncher({"reads": {}})) as runner:
            if cache is None:
                cache = caching.CachingCaller(runner)
            cache.caller = runner
            assert (await cache.call("reads")).report.replayed is expected


@pytest.mark.parametrize("tool", OTHERS, ids=lambda tool: tool.name)
async def test_only_what_says_that_it_reads_and_may_be_repeated_is_remembered(tool: heddle.ToolDef) -> None:
    assert await replays_of((tool.name, {}), (tool.name, {})) == [False, False]


async def test_what_may_have_changed_something_empties_the_memory() -> None:
    for writer, remembers in (("reads_once", True), ("writes", False), ("unknown", False), ("nosuch", True)):
        assert await replays_of(("reads", {}), (writer, {}), ("reads", {})) == [False, False, remembers]


async def test_a_failure_is_not_remembered() -> None:
    answers = {"reads": [heddle.testing.exits.crashed(), {"n": 1}]}

    assert await replays_of(("reads", {}), ("reads", {}), ("reads", {}), answers=answers) == [False, False, True]


async def test_arguments_that_are_not_json_are_the_runners_to_judge() -> None:
    assert await replays_of(("reads", "{"), ("reads", "{"), ("reads", '{"a": 1, "a": 1}')) == [False] * 3


async def test_the_memory_has_an_end() -> None:
    calls = [("reads", {"n": number}) for number in (1, 2, 1, 3, 1, 2)]

    assert await replays_of(*calls, most=2) == [False, False, True, False, True, False]


async def test_a_caller_that_changes_what_it_got_does_not_change_the_memory() -> None:
    launcher = ScriptedLauncher({"reads": {"rows": [1]}})

    async with heddle.Runner([READS], launcher=launcher) as runner:
        cache = caching.CachingCaller(runner)
        for _ in range(3):
            data: Any = (await cache.call("reads")).unwrap()
            assert data == {"rows": [1]}
            data["rows"].append(2)

    assert len(launcher.asked) == 1


async def test_what_was_read_while_something_was_written_is_not_remembered() -> None:
    reading, written = trio.Event(), trio.Event()

    async def read(asked: heddle.testing.Asked) -> dict[str, int]:
        reading.set()
        await written.wait()
        return {"n": 1}

    launcher = ScriptedLauncher({"reads": read, "writes": {}})
    async with heddle.Runner([READS, *OTHERS], launcher=launcher) as runner:
        cache = caching.CachingCaller(runner)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.call, "reads")
            await reading.wait()
            await cache.call("writes")
            written.set()
        again = await cache.call("reads")

    assert not again.report.replayed


async def test_each_scope_remembers_what_was_read_in_its_own_workspace() -> None:
    async with heddle.Runner([READS, *OTHERS], launcher=ScriptedLauncher({"reads": {}, "writes": {}})) as runner:
        cache = caching.CachingCaller(runner)

        async def replays(*callers: ScopeCaller) -> list[bool]:
            return [(await caller.call("reads")).report.replayed for caller in callers]

        async with cache.scope("one") as one, cache.scope("other", tools=["reads"]) as other:
            assert await replays(cache, one, other) == [False, False, False]
            assert await replays(cache, one, other) == [True, True, True]
            await one.call("writes")
            assert await replays(cache, one, other) == [False, False, False]
            denied = await other.call("writes")
            assert await replays(cache, one, other) == [True, True, True]
        after = await replays(cache)

    assert isinstance(denied, heddle.Failed)
    assert denied.kind == "denied"
    assert after == [False]  # what was written in a scope comes back when that is closed


async def test_a_runner_and_a_scope_are_callers_and_so_is_what_stands_in_front_of_them() -> None:
    """That the signatures fit is for mypy to see, here and in the example."""
    async with heddle.Runner([READS]) as runner, runner.scope() as scope:
        caller: ToolCaller = runner
        sharing: ScopeCaller = scope
        cache = caching.CachingCaller(caller)

        assert [isinstance(each, ToolCaller) for each in (caller, cache, sharing, READS)] == [True, True, False, False]
        assert [isinstance(each, ScopeCaller) for each in (caller, cache, sharing, READS)] == [True, True, True, False]
        assert cache.registry is runner.registry
