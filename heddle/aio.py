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
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from heddle.errors import RunnerClosed, WrongLoop
from heddle.hostloop import AsyncioLoop, HostLoop, until
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


class Runner(Twin):
    """Runs the tools of a catalogue. Use it as ``async with heddle.aio.Runner(registry) as runner:``.

    When the block is left, no process that a call has started is alive. Any number of tasks may use one runner at
    once, in the loop that opened it. The calls themselves run in a thread of the runner's own, so that however busy
    the host's loop is, deadlines hold. A call that only awaits an ``async def`` tool stays on the host's loop with it.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _here: trio_runner.Scope | None = None  # takes calls on this loop that are made without a scope
    _loops: WeakSet[AsyncioLoop]  # have the calls that are in flight on this loop

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
            self._loop, self._loops, self._here = loop, WeakSet(), None
            self._runner._elsewhere = HostLoop(loop)  # noqa: SLF001 - its own runner
            await _wait(held.enter(), held.leave)
            scope = await self._across(self._runner._bare_scope)  # noqa: SLF001
            self._here = scope._in(self._loop_for(scope))  # noqa: SLF001
        except BaseException:
            await self._end(portal)
            raise
        return self

    async def close(self) -> None:
        """End what is in flight, and wait until it is gone. One that is closed may be closed again."""
        portal = self._closable()
        if portal is not None:
            await self._end(portal, *self._loops)
            if self._portal is portal:
                self._portal = None

    async def _end(self, portal: Portal, *loops: AsyncioLoop) -> None:
        async with AsyncExitStack() as stack:  # which leaves out none of it, whoever is cancelled meanwhile
            stack.callback(portal.join)
            stack.push_async_callback(_wait, portal.stop(), portal.stop)
            for loop in loops:
                loop.end()
                stack.push_async_callback(loop.gone)

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
        here = _taking(self._here, name)
        work = partial(
            (here or self._runner).call,
            name,
            arguments,
            limits=limits,
            cwd=cwd,
            operation_id=operation_id,
            bare_string=bare_string,
            retries=retries,
            backoff=backoff,
        )
        return await (work() if here else self._across(work))

    async def recover(self) -> list[Operation]:
        """Settle what hosts that are gone have left in the journal; see `heddle.Runner.recover`."""
        return await self._across(self._runner.recover)

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
            loop = self._loop_for(scope)
            try:
                yield Scope(self, scope, scope._in(loop))  # noqa: SLF001
            finally:
                loop.end()
                await loop.gone()

    @asynccontextmanager
    async def workspace(self, workspace: AbstractAsyncContextManager[TrioWorkspace]) -> AsyncGenerator[Workspace, None]:
        """Have a workspace of your own for the time of the block, for any number of scopes.

        Args:
            workspace: ``heddle.Workspace.adopt(…)`` or ``heddle.Workspace.open(…)``.
        """
        async with _entered(self._held(workspace)) as opened:
            yield Workspace(self, opened)

    def _loop_for(self, scope: trio_runner.Scope) -> AsyncioLoop:
        loop = AsyncioLoop(self._check_here, scope._loop, self._across)  # noqa: SLF001 - its own runner's
        self._loops.add(loop)
        return loop

    async def _across(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what comes of work that is done in the runner's thread."""
        job = self._job(work)
        return await _wait(job.begin(), job.cancel)

    def _check_here(self) -> None:
        portal = self._portal
        if portal is not None and portal.is_stopping:  # what began now nobody would end
            raise RunnerClosed("this runner was closed meanwhile")
        self._opened()

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

    def __init__(self, runner: Runner, scope: trio_runner.Scope, here: trio_runner.Scope) -> None:
        self.registry: Registry = scope.registry
        self.workspace: Workspace = Workspace(runner, scope.workspace)
        self._runner = runner
        self._scope = scope
        self._here = here

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
        here = _taking(self._here, name)
        work = partial(
            (here or self._scope).call,
            name,
            arguments,
            limits=limits,
            cwd=cwd,
            operation_id=operation_id,
            bare_string=bare_string,
            retries=retries,
            backoff=backoff,
        )
        return await (work() if here else self._runner._across(work))  # noqa: SLF001 - one room

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
        return await self._runner._across(self.workspace.changes)  # noqa: SLF001 - one room


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
    await until(ended, end)
    return future.result()


def _taking(here: trio_runner.Scope | None, name: str) -> trio_runner.Scope | None:
    """Return a scope on the host's loop if it takes calls of this tool."""
    return here if here is not None and here._only_awaits(name) else None  # noqa: SLF001 - its own runner's


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongLoop(
            "heddle.aio.Runner runs on asyncio, and no asyncio loop runs here: under trio use heddle.Runner, and "
            "without an event loop heddle.blocking.Runner"
        ) from None
