"""What a host may put in: its own classes, which need to inherit nothing."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import assert_never

import heddle
import heddle.otel
from heddle.callers import ScopeCaller, ToolCaller
from heddle.events import CallEvent, CallFinished, CallStarted, CallWaiting, Listener, Tracer
from heddle.operations import Backoff
from heddle.process import Backend, BackendSession, Command, Confinement, Exit, Launcher, LauncherSession

# Listeners


class Counting:
    def on_event(self, event: CallEvent) -> None:
        match event:
            case CallWaiting():
                print(event.definition.description if event.definition else "", event.arguments)
            case CallStarted():
                print(event.waited_s)
            case CallFinished(result=heddle.Failed(kind)):
                print(kind)
            case CallFinished():
                print(event.result, event.error)
            case _:
                assert_never(event)


class Narrow:
    def on_event(self, event: CallFinished) -> None: ...


class Misnamed:
    def on_call(self, event: CallEvent) -> None: ...


class Around(Counting):
    @contextmanager
    def around(self, event: CallWaiting) -> Generator[Mapping[str, str], None, None]:
        yield {"TRACE": event.attempt_id}


class AroundNothing(Counting):
    def around(self, event: CallWaiting) -> AbstractContextManager[int]:
        raise NotImplementedError


def listening() -> None:
    heddle.Runner([], listeners=[Counting(), Around(), heddle.otel.Tracing()])
    heddle.aio.Runner([], listeners=[Counting(), Around(), heddle.otel.Tracing()])
    heddle.blocking.Runner([], listeners=[Counting(), Around(), heddle.otel.Tracing()])
    heddle.Runner([], listeners=[Narrow()])  # E: mypy[list-item] pyright[reportArgumentType]
    heddle.Runner([], listeners=[Misnamed()])  # E: mypy[list-item] pyright[reportArgumentType]
    heddle.Runner([], listeners=[print])  # E: mypy[list-item] pyright[reportArgumentType]
    tracer: Tracer = Around()
    listener: Listener = tracer
    tracer = Counting()  # E: mypy[assignment] pyright[reportAssignmentType]
    tracer = AroundNothing()  # E: mypy[assignment] pyright[reportAssignmentType]
    print(listener)


# Launchers


class Elsewhere:
    """With plain attributes, where the port has properties."""

    tier: str = "elsewhere"

    def __init__(self) -> None:
        self.guarantees: dict[str, str] = {"processes": "enforced"}

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator["ElsewhereSession", None]:
        yield ElsewhereSession()


class ElsewhereSession:
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        print(command.argv, command.attempt_id, limits.wall_seconds)
        return Exit(status=0, stdout=stdin)


class Hasty:
    tier: str = "hasty"
    guarantees: Mapping[str, str] = {}

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator["HastySession", None]:
        yield HastySession()


class HastySession:
    def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return Exit(status=0)


class Nameless:
    def session(self, confinement: Confinement) -> AbstractAsyncContextManager[LauncherSession]:
        raise NotImplementedError


def launching() -> None:
    launcher: Launcher = Elsewhere()
    heddle.Runner([], launcher=launcher)
    heddle.Runner([], launcher=Hasty())  # E: mypy[arg-type] pyright[reportArgumentType]
    heddle.Runner([], launcher=Nameless())  # E: mypy[arg-type] pyright[reportArgumentType]
    heddle.Runner([], launcher=Elsewhere)  # E: mypy[arg-type] pyright[reportArgumentType]


# Backends


class Jail:
    name: str = "jail"
    guarantees: Mapping[str, str] = {}

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncGenerator["JailSession", None]:
        yield JailSession(confinement)


class JailSession:
    def __init__(self, confinement: Confinement) -> None:
        self.confinement = confinement

    def prepare(self, command: Command) -> Command:
        return Command(argv=("jail", *command.argv), cwd=command.cwd, environment=command.environment)

    async def kill(self, attempt_id: str) -> None: ...


class Waiting:
    async def prepare(self, command: Command) -> Command:
        return command

    async def kill(self, attempt_id: str) -> None: ...


def confining() -> None:
    backend: Backend = Jail()
    heddle.blocking.Runner([], backend=backend)
    heddle.Runner([], backend=Elsewhere())  # E: mypy[arg-type] pyright[reportArgumentType]
    session: BackendSession = Waiting()  # E: mypy[assignment] pyright[reportAssignmentType]
    print(session)


# Callers


class Cached:
    """Stands in front of another caller."""

    def __init__(self, inner: ToolCaller) -> None:
        self.inner = inner
        self.known: dict[str, heddle.ToolResult] = {}

    @property
    def registry(self) -> heddle.Registry:
        return self.inner.registry

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: heddle.Limits | None = None,
        cwd: object = None,
        operation_id: str | None = None,
        bare_string: bool = False,
        retries: int = 0,
        backoff: Backoff = 0.5,
    ) -> heddle.ToolResult:
        return self.known.setdefault(name, await self.inner.call(name, arguments, limits=limits))

    def scope(self, label: str = "scope", **more: object) -> AbstractAsyncContextManager[ScopeCaller]:
        return self.inner.scope(label)


class Simple:
    registry: heddle.Registry = heddle.Registry()

    async def call(self, name: str, arguments: Mapping[str, object]) -> heddle.ToolResult:
        return heddle.Returned({})


async def agent(caller: ToolCaller, name: str) -> heddle.ToolResult:
    async with caller.scope("agent", tools=[name]) as scope:
        return await scope.call(name, {"tools": len(caller.registry)})


async def calling(runner: heddle.Runner, blocking: heddle.blocking.Runner) -> None:
    await agent(runner, "shout")
    await agent(Cached(runner), "shout")
    await agent(Cached(Cached(runner)), "shout")
    await agent(blocking, "shout")  # E: mypy[arg-type] pyright[reportArgumentType]
    await agent(Simple(), "shout")  # E: mypy[arg-type] pyright[reportArgumentType]
    async with runner.scope() as scope:
        simple: ScopeCaller = scope
        await agent(scope, "shout")  # E: mypy[arg-type] pyright[reportArgumentType]
    print(simple)
