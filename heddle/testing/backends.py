"""What a backend promises, and for each promise a check with real programs. They run in this order.

`heddle.process.Backend` says the same to those who write one. The commands are run by a `heddle.Runner`, so that
deadline, output and processes are its business here as well.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from heddle.environment import Environment
from heddle.errors import SandboxUnavailable
from heddle.limits import Limits
from heddle.process.ports import Backend, BackendSession
from heddle.process.values import ATTEMPT_VARIABLE, Command
from heddle.results import Failed, FailureKind, Returned, ToolResult
from heddle.runner import Runner, Scope
from heddle.sandbox.policy import Sandbox
from heddle.testing.ground import AWKWARD, HAS_SETSID, Ground, until
from heddle.testing.launchers import (
    BEGIN_SECONDS,
    BEYOND_SECONDS,
    ORPHAN_SECONDS,
    SHORT_SECONDS,
    expect,
    refuse_names,
)
from heddle.testing.promises import LeftOut, NotKept, Promise
from heddle.tools.definition import Program, ToolDef
from heddle.tools.registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Mapping

    from heddle.sandbox.policy import Confinement

__all__ = ["BackendTrial", "promises"]

# What a shell sets for itself.
SHELL_VARIABLES = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
# 0.2 s: longer no runner waits for `kill`.
KILL_SECONDS = 0.2
VARIABLES = {f"WORD_{number}": word for number, word in enumerate(AWKWARD)}
# An exit status that says that the tool does not begin in its workspace.
NOT_IN_WORKSPACE = 9
PLACE = '[ "$(pwd -P)" = "$(cd "$HEDDLE_WORKSPACE" && pwd -P)" ] || exit 9'
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "fails": "echo why >&2; exit 7",
        # Into files: in what a tool writes on standard error, what it was given is masked.
        "variables": "env -0 > variables; echo '{}'",
        "words": "printf '%s\\0' \"$@\" > words; echo '{}'",
        "writes": f"{PLACE}; mkdir folder && echo by a tool > folder/made; echo '{{}}'",
        "reads": f"{PLACE}; cat from-the-host folder/made >&2; echo '{{}}'",
        "trespasses": (
            'cat "$1/secret" >&2; echo written > "$1/written"; '
            "command -v bash >/dev/null && bash -c \"exec 3<>/dev/tcp/127.0.0.1/$2\"; echo '{}'"
        ),
    }
)
# The programs that are called, with their arguments: paths are in the workspace of the scope.
CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cat": (),
        "fails": (),
        "variables": (),
        "words": AWKWARD,
        "writes": (),
        "reads": (),
        "marks": (),
        "beat": ("beat",),
        "stubborn": ("beat",),
        "leaves a child": ("beat",),
        "leaves a daemon": ("beat",),
        "waits beside a child": ("beat", "other"),
    }
)


def promises() -> tuple[Promise[BackendTrial], ...]:
    """Return what a backend promises."""
    return (
        Promise("names", "results are reported under `name`, with `guarantees` of enforced, partial or no", _names),
        Promise("answer", "a tool reads its input, and its answer, status and standard error come back", _answer),
        Promise("arguments", "argv reaches the tool word by word", _arguments),
        Promise(
            "environment", "the tool has the command's variables, and none of the host's beside them", _environment
        ),
        Promise("workspace", "the tool works in the workspace, which it can write and both sides see", _workspace),
        Promise("cwd", "the tool is started in the `cwd` of its command", _cwd),
        Promise("prepare", "`prepare` is pure, and keeps the attempt's id in the environment", _prepare),
        Promise("kill", "`kill` of a call that is over or never was is no error", _kill),
        Promise("left behind", "nothing that a tool leaves behind is alive after its call", _left_behind),
        Promise("deadline", "nothing of a call is alive after its deadline, wherever it was started", _deadline, 20),
        Promise(
            "cancelled", "nothing of a call is alive after it was cancelled, wherever it was started", _cancelled, 20
        ),
        Promise("policy", "a policy is held, or refused with SandboxUnavailable when the session is opened", _policy),
        Promise("sessions", "sessions can be open at once, and close without an error", _sessions),
    )


@attrs.define(eq=False)
class WatchedSession:
    """A session of the backend that is tried, and what was asked of it."""

    session: BackendSession
    given: list[Command] = attrs.field(factory=list[Command])
    kill_errors: list[Exception] = attrs.field(factory=list[Exception])

    def prepare(self, command: Command) -> Command:
        """Have a command rewritten, and remember it as it was."""
        self.given.append(command)
        return self.session.prepare(command)

    async def kill(self, attempt_id: str) -> None:
        """Have a call ended; a runner would only log what is raised."""
        try:
            await self.session.kill(attempt_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the check tells it
            self.kill_errors.append(error)


@attrs.define(eq=False)
class WatchedBackend:
    """The backend that is tried, and the sessions that were opened."""

    backend: Backend
    sessions: list[WatchedSession] = attrs.field(factory=list[WatchedSession])

    @property
    def name(self) -> str:
        """The backend's own."""
        return self.backend.name

    @property
    def guarantees(self) -> Mapping[str, str]:
        """The backend's own."""
        return self.backend.guarantees

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncGenerator[BackendSession, None]:
        """Open a session, and remember it."""
        async with self.backend.open(confinement) as session:
            self.sessions.append(WatchedSession(session))
            yield self.sessions[-1]


@attrs.define(eq=False)
class BackendTrial:
    """A backend that is tried, and a runner that uses it."""

    backend: Backend
    watched: WatchedBackend
    ground: Ground
    runner: Runner
    patience_seconds: float

    @classmethod
    @asynccontextmanager
    async def open(
        cls, backend: Backend, ground: Ground, patience_seconds: float
    ) -> AsyncGenerator[BackendTrial, None]:
        """Open a runner for the time of the block.

        Raises:
            SandboxUnavailable: The backend refuses to work here.
        """
        for name, source in SOURCES.items():
            ground.add(name, source)
        watched = WatchedBackend(backend)
        registry = Registry(_tool(ground, name, *args) for name, args in CALLED.items())
        async with Runner(registry, backend=watched, environment=Environment(values=VARIABLES)) as runner:
            async with runner.scope("check"):
                pass
            yield cls(backend, watched, ground, runner, patience_seconds)

    @property
    def holds_processes(self) -> str:
        """What the backend declares about what a tool leaves behind."""
        return self.backend.guarantees.get("processes", "no")

    async def call(self, scope: Scope, program: str, *, wall_seconds: float = 5.0, **more: Any) -> ToolResult:
        """Call a program in a scope."""
        result = await scope.call(_name(program), limits=Limits(wall_seconds=wall_seconds), **more)
        self.ground.note(result.report.attempt_id)
        return result

    async def answered(self, scope: Scope, program: str, **more: Any) -> Returned:
        """Call a program that has to answer."""
        return _returned(await self.call(scope, program, **more))

    async def refuse_survivors(self, result: ToolResult, *beats: Path) -> None:
        """See that nothing of a call is alive, and that it was ended without an error."""
        await self.refuse_alive(result.report.attempt_id, beats, result.report.survivors)

    async def refuse_alive(self, attempt_id: str, beats: Iterable[Path], survivors: Collection[int] = ()) -> None:
        """See that nothing of a call is alive, and that it was ended without an error."""
        patience = 0.0 if self.holds_processes == "enforced" else ORPHAN_SECONDS
        alive = await self.ground.alive(attempt_id, *beats, survivors=survivors, patience_seconds=patience)
        if alive:
            raise NotKept(alive)
        for error in self.watched.sessions[-1].kill_errors:
            raise NotKept(f"`kill` raised {type(error).__name__}: {error}") from error


def _name(program: str) -> str:
    return program.replace(" ", "_")


def _tool(ground: Ground, program: str, *args: str) -> ToolDef:
    return ToolDef(name=_name(program), implementation=Program(ground.programs / program, args))


def _returned(result: ToolResult) -> Returned:
    if isinstance(result, Failed):
        raise NotKept(f"a call failed ({result.kind}): {result.message}")
    return result


def _written(scope: Scope, name: str) -> list[str]:
    """Return the texts, each ended by a NUL, that a tool has written into a file of the workspace."""
    path = scope.workspace.path / name
    if not path.exists():
        raise NotKept(f"a file that the tool wrote, {name}, is not in the workspace")
    return path.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]


async def _names(trial: BackendTrial) -> None:
    refuse_names(trial.backend.name, "name", trial.backend.guarantees)
    async with trial.runner.scope("names") as scope:
        report = (await trial.answered(scope, "marks")).report

    expect(report.tier, trial.backend.name, "the tier of a result is")
    expect({**report.guarantees}, {**trial.backend.guarantees}, "the guarantees of a result are")


async def _answer(trial: BackendTrial) -> None:
    arguments = {"text": "x" * 200_000, "umlaut": "größer"}
    async with trial.runner.scope("answer") as scope:
        answer = await trial.answered(scope, "cat", arguments=arguments)
        failed = await trial.call(scope, "fails")

    expect(answer.data, arguments, "a tool that repeats its arguments answered")
    expect(failed.report.exit_status, 7, "exit 7 is told as")
    if "why" not in failed.report.stderr_tail:
        raise NotKept(f"what a tool said on standard error is told as {failed.report.stderr_tail[-100:]!r}")


async def _arguments(trial: BackendTrial) -> None:
    async with trial.runner.scope("arguments") as scope:
        await trial.answered(scope, "words")
        got = _written(scope, "words")

    expect(tuple(got), AWKWARD, "the tool got")


async def _environment(trial: BackendTrial) -> None:
    async with trial.runner.scope("environment") as scope:
        await trial.answered(scope, "variables")
        got = _written(scope, "variables")

    given = trial.watched.sessions[-1].given[-1].environment
    pairs = (pair.partition("=") for pair in got)
    seen = {name: value for name, _, value in pairs}
    kept = {*VARIABLES, "HEDDLE_TOOL", "HEDDLE_OPERATION_ID", ATTEMPT_VARIABLE}
    expect({name: seen.get(name) for name in kept}, {name: given[name] for name in kept}, "the tool got the variables")
    leaked = {
        name for name, value in os.environ.items() if name not in {*given, *SHELL_VARIABLES} and seen.get(name) == value
    }
    if leaked:
        raise NotKept(f"the tool has got variables of the host that its command does not have: {sorted(leaked)}")


async def _workspace(trial: BackendTrial) -> None:
    async with trial.runner.scope("workspace") as scope:
        path = scope.workspace.path
        (path / "from-the-host").write_text("by the host\n")
        wrote = await trial.call(scope, "writes")
        if wrote.report.exit_status == NOT_IN_WORKSPACE:
            raise NotKept("the tool does not begin in the folder that HEDDLE_WORKSPACE names")
        _returned(wrote)
        made = path / "folder/made"
        expect(made.read_text() if made.exists() else None, "by a tool\n", "a file that the tool wrote holds, here,")
        read = await trial.answered(scope, "reads")
    expect(read.report.stderr_tail, "by the host\nby a tool\n", "two files that were there held, for the next tool,")


async def _cwd(trial: BackendTrial) -> None:
    async with trial.runner.scope("cwd") as scope:
        folder = scope.workspace.path / "a folder"
        folder.mkdir()
        await trial.answered(scope, "marks", cwd="a folder")
        if not (folder / "here").exists():
            raise NotKept("a file that the tool made in its current folder is not in `cwd`")


async def _prepare(trial: BackendTrial) -> None:
    async with trial.runner.scope("prepare") as scope:
        command = trial.ground.command("cat", cwd=scope.workspace.path)
        before = attrs.evolve(command, environment={**command.environment})
        session = trial.watched.sessions[-1].session
        first = session.prepare(command)
        second = session.prepare(command)

    if not isinstance(first, Command):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
        raise NotKept(f"`prepare` returned {first!r:.60}, which is no heddle.process.Command")
    expect(command, before, "the command that was given is now")
    expect(second, first, "the same command, prepared again, is")
    expect(first.attempt_id, command.attempt_id, "the attempt's id in the environment is")
    if not os.path.isabs(first.argv[0]):
        raise NotKept(f"the program of the command is {first.argv[0]!r}, which is no absolute path")


async def _kill(trial: BackendTrial) -> None:
    async with trial.runner.scope("kill") as scope:
        over = await trial.answered(scope, "marks")
        session = trial.watched.sessions[-1].session
        with trio.move_on_after(KILL_SECONDS + trial.patience_seconds) as timer:
            await session.kill(over.report.attempt_id)
            await session.kill(secrets.token_hex(16))
    if timer.cancelled_caught:
        raise NotKept(f"`kill` had not returned after {KILL_SECONDS + trial.patience_seconds:g} s")


async def _left_behind(trial: BackendTrial) -> None:
    if trial.holds_processes == "no":
        raise LeftOut("the backend's guarantees do not speak for processes")
    programs = ["leaves a child"]
    if trial.holds_processes == "enforced" and HAS_SETSID:
        programs.append("leaves a daemon")
    for program in programs:
        async with trial.runner.scope("left behind") as scope:
            answer = await trial.answered(scope, program)
            await trial.refuse_survivors(answer, scope.workspace.path / "beat")


async def _deadline(trial: BackendTrial) -> None:
    async with trial.runner.scope("deadline") as scope:
        began = trio.current_time()
        result = await trial.call(scope, "stubborn", wall_seconds=SHORT_SECONDS)
        took = trio.current_time() - began - result.report.waited_s
        expect(result.kind if isinstance(result, Failed) else "returned", FailureKind.TIMED_OUT, "the call ended as")
        await trial.refuse_survivors(result, scope.workspace.path / "beat")
    if took > SHORT_SECONDS + BEYOND_SECONDS + trial.patience_seconds:
        raise NotKept(f"with {SHORT_SECONDS:g} s of time the call took {took:.1f} s")


async def _cancelled(trial: BackendTrial) -> None:
    async with trial.runner.scope("cancelled") as scope:
        beats = [scope.workspace.path / name for name in CALLED["waits beside a child"]]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: trial.call(scope, "waits beside a child", wall_seconds=60))
            has_begun = await until(lambda: all(map(Path.exists, beats)), BEGIN_SECONDS)
            nursery.cancel_scope.cancel()
        if not has_begun:
            raise NotKept("the tool has not started")
        attempt_id = trial.watched.sessions[-1].given[-1].attempt_id
        trial.ground.note(attempt_id)
        await trial.refuse_alive(attempt_id, beats)


async def _policy(trial: BackendTrial) -> None:
    """Have a tool do what a policy without any grants denies."""
    outside = trial.ground.fresh("outside")
    outside.mkdir()
    (outside / "secret").write_text("the secret\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        tool = _tool(trial.ground, "trespasses", str(outside), str(server.getsockname()[1]))
        try:
            async with Runner([tool], backend=trial.watched, sandbox=Sandbox(network="none")) as runner:
                result = await runner.call(tool.name)
        except SandboxUnavailable:
            return
        did = [
            *(["read"] if "the secret" in result.report.stderr_tail else []),
            *(["wrote"] if (outside / "written").exists() else []),
            *(["reached the network"] if _has_been_reached(server) else []),
        ]
    if did:
        raise NotKept(f"with a policy that grants nothing the tool {' and '.join(did)}")


def _has_been_reached(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


async def _sessions(trial: BackendTrial) -> None:
    scope = trial.runner.scope
    async with scope("first") as first, scope("second") as second:
        for each in (first, second):
            await trial.answered(each, "cat")
    async with scope("third") as third:
        await trial.answered(third, "cat")
