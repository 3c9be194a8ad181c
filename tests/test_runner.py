"""How calls share a machine: limits, slots, scopes, names, ids, backends and launchers."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.ids import ID_CHARS
from heddle.process import Command, Confinement, Ending, Exit, Grant
from heddle.process.direct import DirectLauncher
from tests.support import Toolbox, until

CAT = heddle.ToolDef(name="cat", implementation=heddle.Program("/bin/cat"), side_effects="read", retry="idempotent")


async def test_a_result_says_what_happened(toolbox: Toolbox) -> None:
    before = datetime.datetime.now(datetime.UTC)

    async with heddle.Runner([CAT]) as runner:
        result = await runner.call("cat", {"a": 1})

    report = result.report
    assert result == heddle.Returned({"a": 1})
    assert report.started_at is not None
    assert before <= report.started_at <= datetime.datetime.now(datetime.UTC)
    assert 0 < report.duration_s < 5
    assert report == heddle.CallReport(
        tool="cat",
        started_at=report.started_at,
        waited_s=report.waited_s,
        duration_s=report.duration_s,
        exit_status=0,
        tier="none",
        guarantees={"processes": "enforced"},
        operation_id=report.operation_id,
        attempt_id=report.attempt_id,
    )
    assert len(report.operation_id) == len(report.attempt_id) == ID_CHARS


async def test_an_unknown_name_comes_with_near_ones() -> None:
    async with heddle.Runner([CAT]) as runner:
        near = await runner.call("cot")
        far = await runner.call("x" * 10_000)

    assert near == heddle.Failed(
        heddle.FailureKind.UNKNOWN_TOOL, 'there is no tool "cot". Did you mean cat?', details={"near": ["cat"]}
    )
    assert far == heddle.Failed(
        heddle.FailureKind.UNKNOWN_TOOL, f'there is no tool "{"x" * 60}…".', details={"near": []}
    )
    assert near.report.tool == "cot"


async def test_a_tool_without_implementation_is_unsupported() -> None:
    async with heddle.Runner([heddle.ToolDef(name="later")]) as runner:
        result = await runner.call("later")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("unsupported", False, "allowed")


async def test_invalid_arguments_start_nothing(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "touch /started; cat")
    (toolbox.folder / "tool.tool.json").write_text(
        '{"inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}, "m": {}}}}'
    )

    async with heddle.Runner(toolbox.registry()) as runner:
        wrong = await runner.call("tool", {"n": "x"})
        filled = await runner.call("tool", {"m": None})

    assert isinstance(wrong, heddle.Failed)
    assert wrong.message == 'tool "tool" input validation failed: n: must be an integer, not a string'
    assert wrong.details["violations"] == [{"path": "n", "rule": "type", "message": "must be an integer, not a string"}]
    assert filled == heddle.Returned({"m": None, "n": 3})


async def test_output_that_breaks_its_schema_is_a_mismatch(toolbox: Toolbox) -> None:
    toolbox.sh("tool", "cat")
    (toolbox.folder / "tool.tool.json").write_text('{"outputSchema": {"type": "object", "required": ["n", "m"]}}')

    result = await toolbox.call("tool")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started) == ("output_mismatch", True)
    assert result.message == ('tool "tool" returned what its output schema does not allow: n: is required (and 1 more)')


@pytest.mark.parametrize(
    ("side_effects", "retry", "verdict"),
    [
        ("read", "idempotent", "allowed"),
        ("write", "idempotent", "allowed"),
        ("unknown", "idempotent", "blocked"),
        ("read", "manual", "blocked"),
        ("write", "manual", "blocked"),
        ("unknown", "manual", "blocked"),
    ],
)
async def test_a_failure_after_the_start_may_be_retried_only_where_that_is_safe(
    side_effects: Any, retry: Any, verdict: str
) -> None:
    fails = heddle.ToolDef(
        name="fails", implementation=heddle.Program("/bin/false"), side_effects=side_effects, retry=retry
    )

    async with heddle.Runner([fails]) as runner:
        started = await runner.call("fails")
        not_started = await runner.call("fails", "[")

    assert isinstance(started, heddle.Failed)
    assert isinstance(not_started, heddle.Failed)
    assert (started.started, started.retry) == (True, verdict)
    assert (not_started.started, not_started.retry) == (False, "allowed")


# Limits


async def limits_of(*, given: heddle.Limits | None = None, tool: heddle.Limits | None = None, **runner: Any) -> Any:
    """Return the limits that a call ends up with."""
    seen: list[heddle.Limits] = []

    class Looking(Instant):
        async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
            seen.append(limits)
            return await super().launch(command, stdin, limits)

    definition = attrs.evolve(CAT, limits=tool)
    async with heddle.Runner([definition], launcher=Looking(), **runner) as opened:
        await opened.call("cat", limits=given)
    return seen[0]


class Instant:
    """A launcher that answers every command with its own input."""

    tier = "instant"
    guarantees: Mapping[str, str] = {"processes": "enforced"}

    def __init__(self) -> None:
        self.confinements: list[Confinement] = []
        self.open = 0

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[Instant]:
        self.confinements.append(confinement)
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        await trio.lowlevel.checkpoint()
        return Exit(status=0, stdout=stdin, started_at=datetime.datetime.now(datetime.UTC))


async def test_limits_come_from_the_call_the_tool_and_the_runner_and_are_cut_by_the_ceiling() -> None:
    assert await limits_of() == heddle.DEFAULT_LIMITS
    assert (await limits_of(tool=heddle.Limits(wall_seconds=60))).wall_seconds == 60
    assert (await limits_of(tool=heddle.Limits(wall_seconds=1000))).wall_seconds == 300
    assert (await limits_of(tool=heddle.Limits(wall_seconds=math.inf))).wall_seconds == 300
    assert (await limits_of(limits=heddle.Limits(wall_seconds=7))).wall_seconds == 7
    assert (
        await limits_of(limits=heddle.Limits(wall_seconds=7), tool=heddle.Limits(wall_seconds=60))
    ).wall_seconds == 60
    assert (await limits_of(ceiling=heddle.Limits(wall_seconds=5))).wall_seconds == 5
    assert (await limits_of(ceiling=heddle.Limits(), tool=heddle.Limits(wall_seconds=1000))).wall_seconds == 1000
    assert (await limits_of(ceiling=heddle.Limits(memory_bytes=10**8))).memory_bytes == 10**8


async def test_what_a_call_gives_can_only_tighten() -> None:
    tool = heddle.Limits(wall_seconds=10, stdout_bytes=100)

    tighter = await limits_of(given=heddle.Limits(wall_seconds=1, open_files=20), tool=tool)
    wider = await limits_of(given=heddle.Limits(wall_seconds=100, stdout_bytes=1000), tool=tool)

    assert (tighter.wall_seconds, tighter.stdout_bytes, tighter.open_files) == (1, 100, 20)
    assert (wider.wall_seconds, wider.stdout_bytes) == (10, 100)


async def test_process_limits_hold_without_a_sandbox(toolbox: Toolbox) -> None:
    toolbox.sh("cpu", "while :; do :; done")
    toolbox.sh("file", "exec head -c 10000 /dev/zero > big")
    toolbox.sh("files", 'echo "{\\"files\\": $(ulimit -n)}"')
    toolbox.add("memory.py", "#!/usr/bin/env python3\nb = bytearray(400_000_000)\nprint('{}')\n")
    limits = heddle.Limits(cpu_seconds=0.5, file_bytes=4096, open_files=40, memory_bytes=200_000_000)

    async with heddle.Runner(toolbox.registry()) as runner:
        results = {name: await runner.call(name, limits=limits) for name in ("cpu", "file", "files", "memory")}
        unlimited = await runner.call("memory")

    failures = {
        name: (result.kind, result.code) for name, result in results.items() if isinstance(result, heddle.Failed)
    }
    assert failures == {
        "cpu": ("limit_exceeded", "cpu_seconds"),
        "file": ("limit_exceeded", "file_bytes"),
        "memory": ("crashed", None),
    }
    assert results["files"] == heddle.Returned({"files": 40})
    memory = results["memory"]
    assert isinstance(memory, heddle.Failed)
    assert "It was held to 200,000,000 bytes of memory" in memory.message
    assert "MemoryError" in memory.message
    assert unlimited == heddle.Returned({})


async def test_a_number_of_processes_cannot_be_held_and_is_refused() -> None:
    many = heddle.Limits(processes=5)

    makers: list[Callable[[], object]] = [
        lambda: heddle.Runner([CAT], limits=many),
        lambda: heddle.Runner([CAT], ceiling=many),
        lambda: heddle.Runner([attrs.evolve(CAT, limits=many)]),
    ]
    for make in makers:
        with pytest.raises(heddle.SandboxUnavailable, match="only a sandbox can hold it"):
            make()
    async with heddle.Runner([CAT]) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="only a sandbox can hold it"):
            await runner.call("cat", limits=many)


def test_what_a_runner_cannot_do_is_refused_at_once() -> None:
    with pytest.raises(heddle.DefinitionError, match=r"takes a heddle.Sandbox, not 'anything'"):
        heddle.Runner([CAT], sandbox="anything")  # type: ignore[arg-type]
    with pytest.raises(heddle.DefinitionError, match="a backend or a launcher"):
        heddle.Runner([CAT], backend=Chroot(), launcher=Instant())
    with pytest.raises(ValueError, match="at least 1"):
        heddle.Runner([CAT], max_concurrent=0)


# Slots


async def test_no_more_programs_run_at_once_than_there_are_slots(toolbox: Toolbox) -> None:
    toolbox.sh("slow", "sleep 0.2; echo '{}'")
    reports: list[heddle.CallReport] = []

    async with heddle.Runner(toolbox.registry(), max_concurrent=2) as runner:

        async def call() -> None:
            reports.append((await runner.call("slow", limits=heddle.Limits(wall_seconds=2))).report)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(call)

    waits = sorted(report.waited_s for report in reports)
    assert all(wait < 0.15 for wait in waits[:2])
    assert all(wait > 0.35 for wait in waits[4:])
    assert all(report.duration_s < 1 for report in reports)


async def test_waiting_for_a_slot_does_not_count_against_the_deadline(toolbox: Toolbox) -> None:
    toolbox.sh("slow", "sleep 0.4; echo '{}'")
    results: list[heddle.ToolResult] = []

    async with heddle.Runner(toolbox.registry(), max_concurrent=1) as runner:

        async def call() -> None:
            results.append(await runner.call("slow", limits=heddle.Limits(wall_seconds=0.9)))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call)

    assert results == [heddle.Returned({})] * 4


# Scopes


async def test_calls_of_a_scope_share_a_workspace_and_other_scopes_see_an_empty_one(toolbox: Toolbox) -> None:
    toolbox.sh("write", "echo 'a,b' > table.csv; echo '{}'")
    toolbox.sh("look", 'echo "{\\"files\\": \\"$(ls)\\", \\"here\\": \\"$PWD\\", \\"told\\": \\"$HEDDLE_WORKSPACE\\"}"')

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope("agent") as scope:
            await scope.call("write")
            path = str(scope.workspace.path)
            same = await scope.call("look")
        other = (await runner.call("look")).unwrap()

    assert same == heddle.Returned({"files": "table.csv", "here": path, "told": path})
    assert "agent" in path
    assert not Path(path).exists()
    assert isinstance(other, dict)
    assert other["files"] == ""
    assert not Path(str(other["here"])).exists()


async def test_a_scope_may_call_only_its_tools_and_reaches_no_others(toolbox: Toolbox) -> None:
    toolbox.sh("one", 'echo "{\\"reachable\\": \\"$(ls $HEDDLE_WORKSPACE_BIN)\\"}"')
    toolbox.sh("two", "echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(tools=["one"]) as scope:
        allowed = await scope.call("one")
        denied = await scope.call("two")
        unknown = await scope.call("tow")
        with pytest.raises(heddle.DefinitionError):
            async with runner.scope(tools=["three"]):
                pass

    assert allowed == heddle.Returned({"reachable": "one"})
    assert denied == heddle.Failed(
        heddle.FailureKind.DENIED, 'tool "two" is not among those that this scope may call: one.'
    )
    assert isinstance(unknown, heddle.Failed)
    assert unknown.kind == "unknown_tool"


async def test_a_scope_takes_a_workspace_that_outlives_it(toolbox: Toolbox) -> None:
    toolbox.sh("write", "echo 1 > made; echo '{}'")

    async with heddle.Workspace.open("mine") as workspace, heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(workspace=workspace) as scope:
            await scope.call("write")
        assert (workspace.path / "made").read_text() == "1\n"


async def test_a_scope_without_programs_makes_no_directory() -> None:
    @heddle.tool
    async def nothing() -> None:
        """Do nothing."""

    async with heddle.Runner([nothing, CAT]) as runner, runner.scope() as scope:
        await scope.call("nothing")

        assert not scope.workspace.exists


async def test_ids_are_the_callers_where_given() -> None:
    async with heddle.Runner([CAT]) as runner:
        given = (await runner.call("cat", operation_id="order-17")).report
        again = (await runner.call("cat", operation_id="order-17")).report
        for bad in ("", "a\nb", "x" * 256):
            with pytest.raises(ValueError, match="an operation id"):
                await runner.call("cat", operation_id=bad)

    assert given.operation_id == again.operation_id == "order-17"
    assert given.attempt_id != again.attempt_id


async def test_a_runner_or_scope_that_is_not_open_says_so() -> None:
    runner = heddle.Runner([CAT])

    with pytest.raises(heddle.RunnerClosed, match="not open"):
        await runner.call("cat")
    async with runner:
        with pytest.raises(heddle.RunnerClosed, match="open already"):
            async with runner:
                pass
        async with runner.scope() as scope:
            pass
        with pytest.raises(heddle.RunnerClosed, match="scope is over"):
            await scope.call("cat")
    with pytest.raises(heddle.RunnerClosed, match="not open"):
        await runner.call("cat")
    await runner.__aexit__(None, None, None)  # closing twice is no fault

    async with runner:
        assert await runner.call("cat") == heddle.Returned({})


async def test_leaving_a_scope_ends_the_calls_that_run_in_it(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "sleep {long}")
    seen: list[str] = []

    async with heddle.Runner(toolbox.registry()) as runner, trio.open_nursery() as nursery:
        async with runner.scope() as scope:

            async def call() -> None:
                try:
                    await scope.call("wait")
                except heddle.RunnerClosed as error:
                    seen.append(str(error))

            nursery.start_soon(call)
            assert await until(toolbox.strays, 5)
        assert toolbox.strays() == []

    assert seen == ["the runner or the scope was closed while this call ran; it was ended"]


# Custom runners


async def test_a_launcher_gets_one_session_a_scope_and_its_name_is_reported() -> None:
    launcher = Instant()

    async with heddle.Runner([CAT], launcher=launcher) as runner:
        async with runner.scope() as scope:
            first = await scope.call("cat", {"a": 1})
            await scope.call("cat")
            assert launcher.open == 1
            workspace = scope.workspace
            grants = launcher.confinements[0].grants
            path = workspace.path
        await runner.call("nosuch")

    assert first == heddle.Returned({"a": 1})
    assert (first.report.tier, first.report.guarantees) == ("instant", {"processes": "enforced"})
    assert launcher.open == 0
    assert len(launcher.confinements) == 1
    assert launcher.confinements[0].workspace == path
    assert grants == (Grant(path, "rw"), Grant(path / ".heddle", "ro"), Grant(Path("/bin/cat"), "ro"))
    assert launcher.confinements[0].limits == heddle.HOST_CEILING


class Chroot:
    """A backend that runs every command through another program, as a container would."""

    name = "elsewhere"
    guarantees: Mapping[str, str] = {"processes": "enforced", "reads": "no"}

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.killed: list[str] = []

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[Chroot]:
        if self.refuses:
            raise heddle.SandboxUnavailable("elsewhere", "it is not installed")
        yield self

    def prepare(self, command: Command) -> Command:
        return attrs.evolve(command, argv=("/usr/bin/env", "MOVED=yes", *command.argv))

    async def kill(self, attempt_id: str) -> None:
        self.killed.append(attempt_id)


async def test_a_backend_rewrites_commands_and_ends_what_they_started_elsewhere(toolbox: Toolbox) -> None:
    toolbox.sh("look", 'echo "{\\"moved\\": \\"$MOVED\\", \\"secret\\": \\"$SECRET\\"}"')
    toolbox.sh("wait", "sleep {long}")
    (toolbox.folder / "look.tool.json").write_text('{"process": {"inheritEnv": ["SECRET"]}}')
    backend = Chroot()
    os.environ["SECRET"] = "hidden"

    try:
        async with heddle.Runner(toolbox.registry(), backend=backend) as runner:
            looked = await runner.call("look")
            late = await runner.call("wait", limits=heddle.Limits(wall_seconds=0.2))
            with trio.move_on_after(0.2) as scope:
                await runner.call("wait", operation_id="cancelled")
    finally:
        del os.environ["SECRET"]

    assert looked == heddle.Returned({"moved": "yes", "secret": ""})
    assert looked.report.tier == "elsewhere"
    assert looked.report.guarantees == {"processes": "enforced", "reads": "no"}
    assert isinstance(late, heddle.Failed)
    assert scope.cancelled_caught
    assert backend.killed[0] == late.report.attempt_id
    assert len(backend.killed) == 2
    assert toolbox.strays() == []


async def test_a_backend_that_is_not_there_refuses_and_nothing_is_run(toolbox: Toolbox) -> None:
    toolbox.sh("tool", f"touch {toolbox.folder}/started; echo '{{}}'")

    async with heddle.Runner(toolbox.registry(), backend=Chroot(refuses=True)) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="it is not installed"):
            await runner.call("tool")

    assert not (toolbox.folder / "started").exists()


class Stuck(Instant):
    """A launcher whose process cannot be ended."""

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return Exit(ending=Ending.DEADLINE, survivors=(4711,), started_at=datetime.datetime.now(datetime.UTC))


async def test_the_workspace_of_a_process_that_survives_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with heddle.Runner([CAT], launcher=Stuck()) as runner, runner.scope() as scope:
        path = scope.workspace.path
        result = await scope.call("cat")

    assert isinstance(result, heddle.Failed)
    assert result.report.survivors == (4711,)
    assert result.details == {"survivors": [4711]}
    assert "These processes could not be ended: 4711." in result.message
    assert path.is_dir()
    assert "could not be ended" in caplog.text
    (path / ".heddle/bin/cat").unlink()
    for folder in (path / ".heddle/bin", path / ".heddle", path):
        folder.rmdir()


# The launcher for systems without a supervisor


async def test_the_direct_launcher_runs_programs_and_says_what_it_cannot_promise(toolbox: Toolbox) -> None:
    toolbox.sh("good", "cat")
    toolbox.sh("bad", "echo why >&2; exit 3")
    toolbox.sh("signal", "kill -SEGV $$")
    toolbox.sh("deaf", "exec <&-; echo '{}'")
    toolbox.add("broken", b"#!/nosuch\n")

    async with heddle.Runner(toolbox.registry(), launcher=DirectLauncher()) as runner:
        good = await runner.call("good", {"text": "x" * 300_000})
        bad = await runner.call("bad")
        by_signal = await runner.call("signal")
        deaf = await runner.call("deaf", {"text": "x" * 900_000})
        broken = await runner.call("broken")
        with pytest.raises(heddle.SandboxUnavailable, match=r"limits\.memory_bytes"):
            await runner.call("good", limits=heddle.Limits(memory_bytes=10**9))

    assert good == heddle.Returned({"text": "x" * 300_000})
    assert good.report.guarantees == {"processes": "partial"}
    assert isinstance(bad, heddle.Failed)
    assert bad.message == 'tool "bad" exited with status 3.\nIts standard error ends with:\nwhy'
    assert by_signal.report.signal == "SIGSEGV"
    assert deaf == heddle.Returned({})
    assert isinstance(broken, heddle.Failed)
    assert broken.kind == "cannot_start"


async def test_the_direct_launcher_ends_process_groups(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "sleep {long} & sleep {long}")
    toolbox.sh("deaf", "trap '' TERM; while :; do sleep {long}; done")
    toolbox.sh("leaves", "sleep {long} & echo '{}'")
    toolbox.sh("flood", "yes")
    toolbox.sh("late", "(sleep 0.03; echo '{\"late\": 1}') &")

    async with heddle.Runner(toolbox.registry(), launcher=DirectLauncher()) as runner:
        waited = await runner.call("wait", limits=heddle.Limits(wall_seconds=0.2))
        deaf = await runner.call("deaf", limits=heddle.Limits(wall_seconds=0.2))
        leaves = await runner.call("leaves")
        flood = await runner.call("flood")
        late = await runner.call("late")
        with trio.move_on_after(0.2):
            await runner.call("wait")

    assert [r.kind for r in (waited, deaf, flood) if isinstance(r, heddle.Failed)] == [
        "timed_out",
        "timed_out",
        "too_large",
    ]
    assert deaf.report.duration_s < 0.2 + 2.5
    assert leaves == heddle.Returned({})
    assert leaves.report.left_behind == 1
    assert late == heddle.Returned({"late": 1})
    assert toolbox.strays() == []


async def test_the_direct_launcher_waits_a_moment_for_a_busy_file(toolbox: Toolbox) -> None:
    path = toolbox.sh("tool", "echo '{}'")
    registry = toolbox.registry()

    async with heddle.Runner(registry, launcher=DirectLauncher()) as runner, trio.open_nursery() as nursery:
        writing = os.open(path, os.O_WRONLY | os.O_APPEND)

        async def close_soon() -> None:
            await trio.sleep(0.1)
            os.close(writing)

        nursery.start_soon(close_soon)
        result = await runner.call("tool")

    assert result == heddle.Returned({})
