"""`Runner` for asyncio: web applications, agents, notebooks that await.

    import asyncio, heddle

    async def main():
        async with heddle.aio.Runner(heddle.discover_tools("tools")) as runner:
            print((await runner.call("word_count", {"text": "a b"})).unwrap())

    asyncio.run(main())

Cancelling a task cancels its call, and waits until the tool is gone. An ``async def`` tool runs on the loop that opened
the runner, in the context of its caller, and may await whatever that loop's other code may.
"""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from heddle.errors import WrongLoop
from heddle.logs import logger
from heddle.portal import Portal
from heddle.twins import Twin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from typing import Self

    from heddle import runner as trio_runner
    from heddle.limits import Limits
    from heddle.operations import Backoff, Operation
    from heddle.portal import Held
    from heddle.results import ToolResult
    from heddle.tools.registry import Registry
    from heddle.workspace import Changes, Mount, ScopeReport
    from heddle.workspace import Workspace as TrioWorkspace

__all__ = ["Runner", "Scope", "Workspace"]

T = TypeVar("T")

# 2 s, as a program has when its time is up: to close a connection, not to finish the work.
GRACE_SECONDS = 2.0


class Runner(Twin):
    """Runs the tools of a catalogue. Use it as ``async with heddle.aio.Runner(registry) as runner:``.

    When the block is left, no process that a call has started is alive. Any number of tasks may use one runner at
    once, in the loop that opened it. The calls themselves run in a thread of the runner's own, so that however busy
    the host's loop is, deadlines hold.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Self:
        """Open the runner where an ``async with`` block does not fit; then `close` it.

        Raises:
            RunnerClosed: It is open already.
            WrongLoop: No asyncio loop runs here.
            SandboxUnavailable: What confines its calls cannot be had. Nothing was opened.
            DefinitionError: A mount cannot be used. Nothing was opened.
        """
        loop = _running_loop()
        portal = Portal()
        try:
            held = self._begin(portal)
            self._loop = loop
            self._runner._elsewhere = HostLoop(loop)  # noqa: SLF001 - its own runner
            await _wait(held.enter(), held.leave)
        except BaseException:
            await self._end(portal)
            raise
        return self

    async def close(self) -> None:
        """End what is in flight, and wait until it is gone. One that is closed may be closed again."""
        portal = self._closable()
        if portal is not None:
            await self._end(portal)

    async def _end(self, portal: Portal) -> None:
        try:
            await _wait(portal.stop(), portal.stop)
        finally:
            portal.join()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: Limits | None = None,
        cwd: str | Path | None = None,
        operation_id: str | None = None,
        bare_string: bool = False,
        retries: int = 0,
        backoff: Backoff = 0.5,
    ) -> ToolResult:
        """Call a tool in a scope of its own, and return how it went; see `heddle.Runner.call`."""
        work = partial(
            self._runner.call,
            name,
            arguments,
            limits=limits,
            cwd=cwd,
            operation_id=operation_id,
            bare_string=bare_string,
            retries=retries,
            backoff=backoff,
        )
        job = self._job(work)
        return await _wait(job.begin(), job.cancel)

    async def recover(self) -> list[Operation]:
        """Settle what hosts that are gone have left in the journal; see `heddle.Runner.recover`."""
        job = self._job(self._runner.recover)
        return await _wait(job.begin(), job.cancel)

    @asynccontextmanager
    async def scope(
        self,
        label: str = "scope",
        *,
        mounts: Iterable[Mount | str] = (),
        tools: Iterable[str] | None = None,
        workspace: Workspace | None = None,
        report_changes: bool = False,
    ) -> AsyncGenerator[Scope, None]:
        """Let calls share one workspace and one session for the time of the block; see `heddle.Runner.scope`.

        Args:
            label: What it is called, for people.
            mounts: What its workspace holds beside the mounts of the runner.
            tools: The names that may be called in it; None means all.
            workspace: One from `workspace`, which outlives the scope.
            report_changes: Put into `Scope.report` how the workspace has changed.
        """
        manager = self._runner.scope(
            label,
            mounts=mounts,
            tools=tools,
            workspace=None if workspace is None else workspace.workspace,
            report_changes=report_changes,
        )
        async with _entered(self._held(manager)) as scope:
            yield Scope(self, scope)

    @asynccontextmanager
    async def workspace(self, workspace: AbstractAsyncContextManager[TrioWorkspace]) -> AsyncGenerator[Workspace, None]:
        """Have a workspace of your own for the time of the block, for any number of scopes.

        Args:
            workspace: ``heddle.Workspace.adopt(…)`` or ``heddle.Workspace.open(…)``.
        """
        async with _entered(self._held(workspace)) as opened:
            yield Workspace(self, opened)

    def _check(self, portal: Portal) -> None:
        super()._check(portal)
        if _running_loop() is not self._loop:
            raise WrongLoop(
                "this runner was opened in another event loop: open one in each loop, or share a "
                "heddle.blocking.Runner between threads"
            )


class Scope:
    """The time in which calls share a workspace and a session. Comes from `Runner.scope`.

    Attributes:
        registry: What can be called in it.
        workspace: The directory that the calls share; made when its `path` is first asked for.
    """

    def __init__(self, runner: Runner, scope: trio_runner.Scope) -> None:
        self.registry: Registry = scope.registry
        self.workspace: Workspace = Workspace(runner, scope.workspace)
        self._runner = runner
        self._scope = scope

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: Limits | None = None,
        cwd: str | Path | None = None,
        operation_id: str | None = None,
        bare_string: bool = False,
        retries: int = 0,
        backoff: Backoff = 0.5,
    ) -> ToolResult:
        """Call a tool in this scope, and return how it went; see `heddle.Runner.call`."""
        work = partial(
            self._scope.call,
            name,
            arguments,
            limits=limits,
            cwd=cwd,
            operation_id=operation_id,
            bare_string=bare_string,
            retries=retries,
            backoff=backoff,
        )
        job = self._runner._job(work)  # noqa: SLF001 - one room
        return await _wait(job.begin(), job.cancel)

    @property
    def report(self) -> ScopeReport:
        """What became of the files of its workspace; complete when its block has been left."""
        return self._scope.report


class Workspace:
    """A `heddle.Workspace` for asyncio. Comes from `Scope.workspace` and `Runner.workspace`.

    Attributes:
        workspace: The one that it stands for.
        label: What it is called, for people.
    """

    def __init__(self, runner: Runner, workspace: TrioWorkspace) -> None:
        self.workspace: TrioWorkspace = workspace
        self.label: str = workspace.label
        self._runner = runner

    @property
    def path(self) -> Path:
        """Where it is; made when that is first asked for."""
        return self.workspace.path

    @property
    def report(self) -> ScopeReport:
        """What became of its files; complete when it is closed."""
        return self.workspace.report

    async def changes(self) -> Changes:
        """Return what tools have created, modified and deleted in it so far; see `heddle.Workspace.changes`."""
        job = self._runner._job(self.workspace.changes)  # noqa: SLF001 - one room
        return await _wait(job.begin(), job.cancel)


@attrs.frozen
class HostLoop:
    """Awaits asynchronous functions on the host's own loop, for calls that run in another thread."""

    loop: asyncio.AbstractEventLoop

    async def __call__(
        self,
        function: Callable[..., Awaitable[object]],
        arguments: Mapping[str, Any],
        on_left: Callable[[Callable[[], bool]], None],
    ) -> object:
        """Return what `function` returns; cancelled, have its task cancelled and wait a while for its end."""
        visit = _Visit(self.loop, trio.lowlevel.current_trio_token(), contextvars.copy_context())
        self.loop.call_soon_threadsafe(visit.begin, function, arguments)
        try:
            await visit.ended.wait()
        finally:
            if not visit.ended.is_set():
                with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE_SECONDS):
                    visit.cancel()
                    await visit.ended.wait()
                if not visit.ended.is_set():
                    on_left(lambda: not visit.ended.is_set())
        return visit.result()


@attrs.define(eq=False)
class _Visit:
    """One function on the host's loop, seen from the portal's."""

    loop: asyncio.AbstractEventLoop
    token: trio.lowlevel.TrioToken
    context: contextvars.Context
    ended: trio.Event = attrs.field(factory=trio.Event)
    task: asyncio.Task[None] | None = None
    is_over: bool = False
    value: object = None
    error: Exception | SystemExit | None = None

    def begin(self, function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any]) -> None:
        """Start it, in the host's loop."""
        self.task = self.loop.create_task(self._run(function, arguments), context=self.context)
        self.task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Have it cancelled, from the portal's loop."""
        try:
            self.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            self.ended.set()  # the host's loop is closed, and has ended its tasks

    def result(self) -> object:
        """Return what it returned, or raise what it raised."""
        if not self.is_over:
            raise RuntimeError("its task was cancelled by other code of the host")
        if self.error is not None:
            raise self.error
        return self.value

    async def _run(self, function: Callable[..., Awaitable[object]], arguments: Mapping[str, Any]) -> None:
        try:
            self.value = await function(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the call's, and would end the host's loop
            self.error = error
        self.is_over = True
        self._tell()  # a turn of the loop earlier than the task's own callbacks

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        if not self.is_over:
            if not task.cancelled():
                task.exception()  # what ends the host's loop too is heard of there
            self._tell()

    def _tell(self) -> None:
        try:
            self.token.run_sync_soon(self.ended.set)
        except trio.RunFinishedError:
            logger.debug("a function ended after its runner")


@asynccontextmanager
async def _entered(held: Held[T]) -> AsyncGenerator[T, None]:
    try:
        yield await _wait(held.enter(), held.leave)
    finally:
        await _wait(held.leave(), held.leave)


async def _wait(future: Future[T], end: Callable[[], object]) -> T:
    """Return what `future` holds. Cancelled, have it ended, wait for that all the same, and raise then."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def hear(_: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(ended.set)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    future.add_done_callback(hear)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        end()
        while not future.done():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                pass  # the first one is raised when the tool is gone
        raise
    return future.result()


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongLoop(
            "heddle.aio.Runner runs on asyncio, and no asyncio loop runs here: under trio use heddle.Runner, and "
            "without an event loop heddle.blocking.Runner"
        ) from None
