"""`Runner` and `Scope`: how calls share a machine.

A runner owns what calls have in common: the catalogue, the slots, the launcher. A scope is the time in which calls
share one workspace and one session. Whatever either of them starts is gone when its block is left.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from copy import copy
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.environment import Environment
from heddle.errors import DefinitionError, RunnerClosed, SandboxUnavailable, WrongLoop, WrongProcess
from heddle.expressions import Evaluator, end_idle
from heddle.ids import MOST_ID_CHARS, fresh_id, part_of
from heddle.limits import DEFAULT_LIMITS, HOST_CEILING, PROCESS_LIMITS, Limits
from heddle.listening import Listening, News
from heddle.logs import logger
from heddle.loops import Elsewhere, Loop, TrioLoop
from heddle.operations.journaling import journaled
from heddle.operations.permission import permit
from heddle.operations.reconciling import Witness, reconciled
from heddle.operations.records import OperationState
from heddle.operations.retrying import Retries
from heddle.places import Removals, ScopePlace
from heddle.process import Launcher, default_launcher
from heddle.process.confined import ConfinedLauncher
from heddle.process.direct import DirectLauncher
from heddle.process.guard import GuardError
from heddle.process.seatbelt import SeatbeltLauncher
from heddle.process.supervised import SupervisedLauncher
from heddle.results import CallReport, Failed, FailureKind, ToolResult
from heddle.sandbox.policy import CONFINED_LIMITS, Confinement, Grant, Sandbox
from heddle.sandbox.tiers import Tier
from heddle.threads import MOST_LEFT, Threads, in_thread
from heddle.tools.definition import Composed, Function, Program, ToolDef
from heddle.tools.registry import Registry
from heddle.walk import Call, walk
from heddle.workspace import ScopeReport, Workspace
from heddle.workspace.kept import place_for_kept
from heddle.workspace.layout import AS_COPIES, Layout
from heddle.workspace.mounts import Mounts
from heddle.workspace.stock import Stock
from heddle.workspace.temporary import RunFolder, remove_stale_once

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
    from contextlib import AbstractContextManager
    from typing import Self

    from heddle.events import Listener
    from heddle.operations import ApprovalRequest, Approver, Backoff, Journal, Operation
    from heddle.process import Backend
    from heddle.strictjson import JSON
    from heddle.tools.checking import CompiledTool
    from heddle.workspace import Mount

__all__ = ["Runner", "Scope"]

# 16: deeper than anybody reads; a pipeline that calls itself is found before it costs much.
MOST_DEPTH = 16
ONCE = Retries(0, 0.0)
# An unknown name comes from a model and may be anything; this much of it is shown.
SHOWN_CHARS = 60


class Runner:
    """Runs the tools of a catalogue. Use it as ``async with Runner(registry) as runner:``.

    When the block is left, no process that a call has started is alive. A runner may be used by any number of tasks at
    once, in the process that opened it.

    Args:
        registry: What can be called; tools in any iterable become a `Registry`.
        sandbox: What programs may read, write and reach. None confines nothing. A Python function is the host's own
            code, and never confined.
        mounts: What every workspace holds: each a `Mount` or its text, ``source[:dest][:ro|:rw]``. All are looked at
            when the runner is opened. What is ``ro`` is copied then, once, and stays as it was.
        keep_workspaces: A folder in which workspaces stay, each under its label or that and a number; None removes
            them.
        limits: What calls may use where neither they nor their tool say anything.
        ceiling: What no call may exceed.
        environment: What tools may see of the host's variables.
        max_concurrent: Programs, and functions in threads, that run at once; further ones wait.
        backend: Confines or moves programs; see `heddle.process.Backend`.
        launcher: Brings programs to their end in a way of its own; see `heddle.process.Launcher`.
        journal: Where operations are noted, so that no effect is brought about twice unasked; see `heddle.Journal`.
            It stays the host's to close.
        listeners: Hear of every call; see `heddle.events.Listener`.
        approve: Is asked before a call of a tool that may change something, with a `heddle.operations.ApprovalRequest`:
            an asynchronous function, or one that waits, which is called in a thread. True lets this call be made, False
            refuses it, and None leaves it undecided: with a journal somebody may decide later. What it raises ends the
            call; nothing was started.

    Raises:
        DefinitionError: A definition or a combination is wrong.
        SandboxUnavailable: Something was asked for that cannot be enforced here.
    """

    def __init__(
        self,
        registry: Registry | Iterable[ToolDef],
        *,
        sandbox: Sandbox | None = None,
        mounts: Iterable[Mount | str] = (),
        keep_workspaces: str | Path | None = None,
        limits: Limits = DEFAULT_LIMITS,
        ceiling: Limits = HOST_CEILING,
        environment: Environment | None = None,
        max_concurrent: int = 32,
        backend: Backend | None = None,
        launcher: Launcher | None = None,
        journal: Journal | None = None,
        listeners: Iterable[Listener] = (),
        approve: Approver | None = None,
    ) -> None:
        if sandbox is not None and not isinstance(sandbox, Sandbox):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Runner(sandbox=…) takes a heddle.Sandbox, not {sandbox!r:.60}")
        if backend is not None and launcher is not None:
            raise DefinitionError("give a backend or a launcher: a launcher starts programs in its own way")
        if sandbox is not None and isinstance(launcher, (SupervisedLauncher, DirectLauncher)):
            raise DefinitionError("give a sandbox or this launcher: it confines nothing")
        if approve is not None and not callable(approve):
            raise DefinitionError(f"Runner(approve=…) takes a function that is asked, not {approve!r:.60}")
        for name, value in (("limits", limits), ("ceiling", ceiling)):
            if not isinstance(value, Limits):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
                raise DefinitionError(f"Runner({name}=…) takes Limits, not {value!r:.60}")
        if max_concurrent < 1:
            raise ValueError(f"max_concurrent must be at least 1, not {max_concurrent}")
        self.registry: Registry = registry if isinstance(registry, Registry) else Registry(registry)
        self.limits: Limits = limits.or_else(DEFAULT_LIMITS)
        self._usual = self.limits
        self.ceiling = ceiling
        self.environment: Environment = environment or Environment()
        self._mounts = Mounts.of(mounts, "Runner(mounts=…)")
        self._keep_workspaces = keep_workspaces
        self._backend = backend
        self._given_launcher = launcher
        self._max_concurrent = max_concurrent
        self._open: _Open | None = None
        self._is_opening = False
        self._held: dict[str, Limits] = {}  # what each tool is held to when a call says nothing
        self._sandbox = sandbox
        self._journal = journal
        self._listeners = tuple(listeners)
        self._approve = approve
        self._elsewhere: Elsewhere | None = None  # where asynchronous functions are awaited, if that is not here
        if launcher is None and backend is None and sandbox is None:
            self._refuse_unheld()

    def _refuse_unheld(self) -> None:
        """Refuse now what every call would have to refuse later."""
        asked = [("Runner(limits=…)", self.limits), ("Runner(ceiling=…)", self.ceiling)]
        asked += [(f'tool "{tool.name}"', tool.limits) for tool in self.registry if tool.limits is not None]
        for whose, limits in asked:
            if limits.processes is not None:
                raise SandboxUnavailable(f"{whose}: limits.processes", "only a sandbox can hold it; leave it out")

    async def __aenter__(self) -> Self:
        if not trio.lowlevel.in_trio_run():
            raise WrongLoop(
                "heddle.Runner runs on trio, and no trio loop runs here: under asyncio use heddle.aio.Runner, and "
                "without an event loop heddle.blocking.Runner"
            )
        if self._open is not None or self._is_opening:
            raise RunnerClosed("this runner is open already: open another one, or share this one")
        self._is_opening = True
        try:
            opened = self._open = await self._begin()
        finally:
            self._is_opening = False
        opened.removals.begin(lambda: in_thread(remove_stale_once, lambda: self._open is opened))
        if any(isinstance(tool.implementation, Function) for tool in self.registry):
            import_module("heddle.tools.conversion")  # now, rather than while a first call holds the loop
        if isinstance(opened.launcher, SupervisedLauncher) and any(map(_is_program, self.registry)):
            with contextlib.suppress(GuardError):  # the call that needs it says so
                opened.launcher.start()
        return self

    async def _begin(self) -> _Open:
        async with AsyncExitStack() as stack:
            tier: Tier | None = None
            home = RunFolder()
            stack.callback(home.close)
            if self._sandbox is not None and self._given_launcher is None and self._backend is None:
                tier = await in_thread(self._choose, self._sandbox, home)
            if any(self.registry.compiled(tool.name).waits for tool in self.registry):
                stack.push_async_callback(in_thread, end_idle)
            listening = Listening(self._listeners)
            listening.open()
            stack.push_async_callback(listening.close)
            stock = await stack.enter_async_context(
                Stock.open(self._mounts, self._keep_workspaces, home, _layout_for(tier, self._keep_workspaces))
            )
            launcher = self._given_launcher
            if launcher is None:
                launcher = await stack.enter_async_context(_our_launcher(tier))
            return _Open(
                tier=tier,
                pid=os.getpid(),
                token=trio.lowlevel.current_trio_token(),
                listening=listening,
                launcher=launcher,
                slots=trio.Semaphore(self._max_concurrent),
                threads=Threads(self._max_concurrent + MOST_LEFT),
                evaluator=await stack.enter_async_context(Evaluator()),
                stock=stock,
                stack=stack.pop_all(),
            )

    async def __aexit__(self, *_: object) -> None:
        """End what is in flight, and wait until it is gone."""
        opened, self._open = self._open, None
        if opened is None or opened.pid != os.getpid():
            return  # in a child of the process that opened it nothing is ours to end
        for scope in list(opened.scopes):
            await scope._end_calls()  # noqa: SLF001 - one room
        await opened.removals.wait()
        await opened.stack.aclose()

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
        """Call a tool in a scope of its own, and return how it went.

        What it changes in mounts that are ``rw`` is copied back before this returns; what becomes of that is logged,
        and in the report of a `scope`.

        Args:
            name: As the registry has it.
            arguments: A mapping, or JSON text as models write it; nothing is the empty object.
            limits: Can only tighten.
            cwd: A folder of the workspace in which a program is started.
            operation_id: The effect that is intended, where the caller tells repeats apart; ours otherwise.
            bare_string: Text that is not JSON becomes ``{"input": text}``; a pipeline that takes one string and nothing
                else gets that as its body.
            retries: How often it is made again, where it fails before the start or the tool is declared safe to repeat
                (`ToolDef.retry`), and where another try may end in another way. The result says how often it was, and
                why not again. Each try is an attempt of its own, with limits of its own; they share the workspace.
            backoff: Seconds before the first retry, twice as long before each further one, to at most 30 s, and up to
                a quarter less by chance; or what gives the pause after the n-th try, the first being 1.

        Raises:
            RunnerClosed: The runner is not open. Nothing was started.
            WrongProcess: A child of the process that opened it. Nothing was started.
            WrongLoop: Another event loop than the one that opened it. Nothing was started.
            SandboxUnavailable: `limits` asks for what cannot be enforced. Nothing was started.
            DefinitionError: `cwd` is given for a Python function. Nothing was started.
            OSError: A mount cannot be copied. Nothing was started.
            JournalError: The journal cannot be written. Nothing was started, unless the error has a `result`.
        """
        opened = self._opened()
        began = trio.current_time()
        wish, again = _Wish(name, arguments, limits, cwd, bare_string), Retries(retries, backoff)
        only = [self.registry[name]] if name in self.registry else []
        workspace = await opened.stock.workspace(name, self.registry)
        async with self._scope(opened, self.registry, workspace, wanted=only, is_ours=True) as scope:
            return await scope._call(wish, operation_id, again, began)  # noqa: SLF001 - one room

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
        """Let calls share one workspace and one session for the time of the block.

        When it is left, what tools have changed in mounts that are ``rw`` is copied back, whatever the reason; a copy
        that fails is in `Scope.report` and is not raised.

        Args:
            label: What it is called, for people.
            mounts: What its workspace holds beside the mounts of the runner.
            tools: The names that may be called in it; None means all. Only these are reachable in the workspace.
            workspace: One of the caller's own, which outlives the scope; it holds what it was opened with.
            report_changes: Put into `Scope.report` how the workspace has changed.

        Raises:
            DefinitionError: `tools` names what the registry does not have, or a mount cannot be used; every fault is
                named.
            SandboxUnavailable: What confines calls cannot hold them to a `workspace` from outside.
            OSError: A mount cannot be copied.
            RunnerClosed: The runner is not open.
            WrongProcess: A child of the process that opened it.
        """
        opened = self._opened()
        registry = self.registry if tools is None else self.registry.restrict(tools)
        mounts = Mounts.of(mounts, "scope(mounts=…)")
        if workspace is not None and not isinstance(workspace, Workspace):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                "workspace takes one that is open: async with heddle.Workspace.adopt(…) as workspace, "
                f"not {workspace!r:.60}"
            )
        if workspace is not None and mounts:
            raise DefinitionError(
                "give mounts to Workspace.open: a workspace of your own holds what it was opened with"
            )
        is_ours = workspace is None
        if workspace is None:
            workspace = await opened.stock.workspace(label, registry, mounts)
        else:
            if report_changes:
                workspace.refuse_untracked()
            if opened.tier is not None:
                await _fit(workspace, opened.tier)
        async with self._scope(
            opened,
            registry,
            workspace,
            wanted=registry,
            is_ours=is_ours,
            is_filled=is_ours and workspace.has_mounts,
            report_changes=report_changes,
        ) as scope:
            yield scope

    @asynccontextmanager
    async def _scope(
        self,
        opened: _Open,
        registry: Registry,
        workspace: Workspace,
        *,
        wanted: Iterable[ToolDef],
        is_ours: bool,
        is_filled: bool = False,
        report_changes: bool = False,
    ) -> AsyncGenerator[Scope, None]:
        """Open a scope for calls of the tools that are `wanted`; close its workspace with it if that `is_ours`.

        One that `is_filled` has its workspace from the beginning; else the first call that needs it makes it.
        """
        scope = Scope(self, opened, registry, workspace)
        place = scope._place  # noqa: SLF001 - one room
        opened.scopes.add(scope)
        try:
            async with AsyncExitStack() as stack:
                if is_filled:
                    await workspace.make()
                if any(map(_is_program, self._reachable(wanted))):
                    await place.open_session(
                        stack, opened.launcher, self._backend, lambda: self._confinement(workspace, registry)
                    )
                try:
                    yield scope
                finally:
                    await scope._end_calls()  # noqa: SLF001
        finally:
            opened.scopes.discard(scope)
            if opened.pid == os.getpid():  # a forked child that unwinds has only copies
                await scope._close_workspace(is_ours=is_ours, report_changes=report_changes)  # noqa: SLF001

    async def _bare_scope(self) -> Scope:
        """Return a scope for calls that only await a function: it has no session, no directory, and no end."""
        opened = self._opened()
        return Scope(self, opened, self.registry, await opened.stock.workspace("calls", self.registry))

    async def recover(self) -> list[Operation]:
        """Settle what hosts that are gone have left in the journal, and ask what became of what needs attention.

        Asked is whoever a tool names for it (`ToolDef.reconcile`), one operation after another. Operations of tools
        that this runner does not have, or has in another revision, are let be.

        Returns:
            The operations that are in another state now than before, as they are now.

        Raises:
            DefinitionError: The runner has no journal.
            JournalError: The journal cannot be used.
        """
        journal = self._journal
        self._opened()
        if journal is None:
            raise DefinitionError("this runner has no journal to recover: give it one, Runner(journal=…)")
        changed = [each.operation_id for each in await in_thread(journal.recover)]
        async with self.scope("recover") as scope:
            attention = await in_thread(journal.operations, OperationState.NEEDS_ATTENTION)
            changed += [each.operation_id for each in attention if await scope._reconcile(journal, each)]  # noqa: SLF001
        found = [await in_thread(journal.operation, each) for each in dict.fromkeys(changed)]
        return [operation for operation in found if operation is not None]

    def _choose(self, sandbox: Sandbox, home: RunFolder) -> Tier:
        """Return what confines calls here, and have it remembered what calls may use where they say nothing."""
        from heddle.sandbox.choice import choose, grants_of

        roots = [home.path]
        if self._keep_workspaces is not None:
            roots.append(place_for_kept(self._keep_workspaces))
        tier = choose(sandbox, grants_of(sandbox, _files_of(self.registry), roots), roots)
        usual = CONFINED_LIMITS if tier.uid else attrs.evolve(CONFINED_LIMITS, processes=None)
        if tier.kind == "seatbelt":
            usual = Limits()  # there nothing holds them
        self._usual = self.limits.or_else(usual)
        self._held.clear()
        return tier

    def _confinement(self, workspace: Workspace, registry: Registry) -> Confinement:
        """Return what calls of these tools may use."""
        temporary = workspace.temporary
        return Confinement(
            workspace=workspace.path,
            grants=(
                Grant(workspace.path, "rw"),
                *([] if temporary is None else [Grant(temporary, "rw")]),
                Grant(workspace.tools, "ro"),
                *(Grant(path, "ro") for path in workspace.places.values()),
                *(Grant(path, "ro") for path in _files_of(registry)),
            ),
            limits=self.ceiling,
            sandbox=self._sandbox,
            places=workspace.places,
            reserved=workspace.tools,
            temporary=temporary,
        )

    def _opened(self) -> _Open:
        if self._open is None:
            raise RunnerClosed("this runner is not open: call it inside its `async with` block")
        if self._open.pid != os.getpid():
            raise WrongProcess(self._open.pid, os.getpid())
        if not trio.lowlevel.in_trio_run() or trio.lowlevel.current_trio_token() is not self._open.token:
            raise WrongLoop(
                "this runner was opened in another event loop: open one in each loop, or share a "
                "heddle.blocking.Runner between threads"
            )
        return self._open

    def _reachable(self, tools: Iterable[ToolDef]) -> Iterable[ToolDef]:
        """Return tools, and those that are called for them: by pipelines, and to ask what became of an operation."""
        found = {tool.name: tool for tool in tools}
        new = list(found.values())
        while new:
            tool = new.pop()
            names = set[str]()
            if self._journal is not None and tool.reconcile is not None:
                names.add(tool.reconcile)
            if isinstance(tool.implementation, Composed):
                names |= tool.implementation.targets
            others = [self.registry[name] for name in names if name in self.registry and name not in found]
            found |= {other.name: other for other in others}
            new += others
        return found.values()

    def _limits_for(self, tool: ToolDef, given: Limits | None) -> Limits:
        if given is not None and isinstance(tool.implementation, (Function, Composed)):
            for name in PROCESS_LIMITS:
                if getattr(given, name) is not None:
                    kind = "Python function" if isinstance(tool.implementation, Function) else "pipeline"
                    raise SandboxUnavailable(f"limits.{name}", f'"{tool.name}" is a {kind}; leave it out')
        held = self._held.get(tool.name)
        if held is None:
            declared = self._usual if tool.limits is None else tool.limits.or_else(self._usual)
            held = self._held[tool.name] = declared.tightened_by(self.ceiling)
        return held if given is None else held.tightened_by(given)


def _is_program(tool: ToolDef) -> bool:
    return isinstance(tool.implementation, Program)


def _files_of(tools: Iterable[ToolDef]) -> list[Path]:
    """Return what a sandbox has to show: the programs, and the files that belong to them."""
    programs = [tool.implementation for tool in tools if isinstance(tool.implementation, Program)]
    own = [path for program in programs if program.inventory is not None for path in program.inventory.paths]
    return [*(program.path for program in programs), *own]


async def _fit(workspace: Workspace, tier: Tier) -> None:
    """See to it that tools can work in a workspace from outside, and be held to it.

    Raises:
        SandboxUnavailable: They cannot be held to what is read-only in it.
        DefinitionError: It is everything that there is.
    """
    if workspace.is_adopted:
        from heddle.sandbox.choice import refuse_too_much

        refuse_too_much(workspace.path, writes=True)
        if tier.uid != os.geteuid():
            workspace.admit((tier.uid, tier.gid))
        return
    if tier.kind == "landlock":
        raise SandboxUnavailable(
            "workspace=…",
            "Landlock cannot keep the folder of tools read-only inside of this one. "
            "Let runner.scope(mounts=…) make the workspace, or adopt a folder",
        )
    if tier.uid != os.geteuid():
        await workspace.give_to((tier.uid, tier.gid))


def _layout_for(tier: Tier | None, keep_workspaces: str | Path | None) -> Layout:
    """Return how workspaces are laid out for what confines the tools in them."""
    if tier is None:
        return AS_COPIES
    owner = (tier.uid, tier.gid) if tier.uid != os.geteuid() else None
    if tier.kind in ("landlock", "seatbelt"):
        return Layout(read_only="linked", owner=owner)
    # One that is kept should hold what was in it.
    return Layout(read_only="bound" if keep_workspaces is None else "copied", owner=owner)


def _our_launcher(tier: Tier | None) -> AbstractAsyncContextManager[Launcher]:
    if tier is None:
        return default_launcher()
    return nullcontext(SeatbeltLauncher(tier)) if tier.kind == "seatbelt" else ConfinedLauncher(tier)


@attrs.define(eq=False, kw_only=True)
class _Open:
    """What a runner holds while its block runs."""

    pid: int
    token: trio.lowlevel.TrioToken
    tier: Tier | None
    listening: Listening
    launcher: Launcher
    slots: trio.Semaphore
    threads: Threads
    evaluator: Evaluator
    stock: Stock
    stack: AsyncExitStack
    scopes: set[Scope] = attrs.field(factory=set["Scope"])
    removals: Removals = attrs.field(factory=Removals)


@attrs.frozen
class _Wish:
    """What a caller wants done, however often it is tried."""

    name: str
    arguments: Mapping[str, object] | str | None
    limits: Limits | None
    cwd: str | Path | None
    bare_string: bool
    parent: Call | None = None


class Scope:
    """The time in which calls share a workspace and a session. Comes from `Runner.scope`.

    Attributes:
        registry: What can be called in it.
        workspace: The directory that the calls share; made when its `path` is first asked for.
    """

    def __init__(self, runner: Runner, opened: _Open, registry: Registry, workspace: Workspace) -> None:
        self.registry = registry
        self.workspace = workspace
        self._runner = runner
        self._place = ScopePlace(
            workspace,
            environment=runner.environment,
            launcher=opened.launcher,
            slots=opened.slots,
            threads=opened.threads,
            evaluator=opened.evaluator,
            removals=opened.removals,
        )
        self._loop: Loop = TrioLoop(runner._opened, opened.threads, runner._elsewhere)  # noqa: SLF001 - one room
        self._listening = opened.listening
        self._report: ScopeReport | None = None

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
        """Call a tool in this scope, and return how it went; see `Runner.call`."""
        self._loop.check()
        began = self._loop.now()
        wish, again = _Wish(name, arguments, limits, cwd, bare_string), Retries(retries, backoff)
        return await self._call(wish, operation_id, again, began)

    @property
    def report(self) -> ScopeReport:
        """What became of the files of its workspace; complete when its block has been left."""
        return self._report if self._report is not None else self.workspace.report

    async def _call(self, wish: _Wish, operation_id: str | None, again: Retries, began: float) -> ToolResult:
        operation_id = fresh_id() if operation_id is None else _checked_id(operation_id)
        tries = 1
        while True:
            result = await self._try(wish, operation_id, began)
            pause = again.pause(result, tries)
            if pause is None:
                return again.told(result, tries) if again.most else result
            await self._loop.unless_over(self._loop.sleep, pause)
            tries, began = tries + 1, self._loop.now()

    async def _try(self, wish: _Wish, operation_id: str, began: float) -> ToolResult:
        """Make one attempt at an operation, and return how it went."""
        name, arguments, parent = wish.name, wish.arguments, wish.parent
        if self._loop.is_over:
            raise RunnerClosed("this scope is over: call it inside its `async with` block")
        attempt_id = fresh_id()
        # A part of a call need not be one that may be called by itself.
        registry = self.registry if parent is None else self._runner.registry
        tool = registry[name] if name in registry else None  # noqa: SIM401 - a registry is no dict
        news: AbstractContextManager[News | None] = nullcontext()
        if self._listening.wants_news:
            news = News(self._listening, tool, arguments, name=name, operation_id=operation_id, attempt_id=attempt_id)
        with news as told:
            if tool is None:
                report = CallReport(tool=name, operation_id=operation_id, attempt_id=attempt_id)
                result: ToolResult = attrs.evolve(self._not_callable(name), report=report)
            else:
                if wish.cwd is not None and not isinstance(tool.implementation, (Program, NoneType)):
                    kind = "a Python function" if isinstance(tool.implementation, Function) else "a pipeline"
                    raise DefinitionError(f'cwd is for programs, and "{name}" is {kind}; leave it out')
                call = Call(
                    tool=tool,
                    compiled=registry.compiled(name),
                    arguments=arguments,
                    limits=self._runner._limits_for(tool, wish.limits),  # noqa: SLF001
                    bare_string=wish.bare_string,
                    cwd=wish.cwd,
                    place=self._place,
                    loop=self._loop,
                    operation_id=operation_id,
                    attempt_id=attempt_id,
                    began=began,
                    news=told,
                    permit=self._permit if self._has_to_ask(tool) else None,
                    catalogue=self._runner.registry,
                    nested=self._nested,
                    parent=parent,
                    depth=0 if parent is None else parent.depth + 1,
                )
                result = await self._loop.unless_over(self._walked, call)
            if told is not None:
                told.result = result
        return result

    async def _walked(self, call: Call) -> ToolResult:
        """Take a call on its walk, and note it where there is a journal."""
        journal = self._runner._journal  # noqa: SLF001
        if journal is None:
            return await walk(call)
        return await journaled(journal, call, walk, self._witness_of(call.tool))

    def _witness_of(self, tool: ToolDef) -> Witness | None:
        """Return who can tell what became of an operation of `tool`."""
        registry, name = self._runner.registry, tool.reconcile
        if name is None:
            return None
        if name not in registry or registry[name].side_effects != "read":
            logger.warning("%s is to be asked about calls of %s, and is no tool here that only reads", name, tool.name)
            return None
        return Witness(name, registry.compiled(tool.name), partial(self._testify, registry.compiled(name)))

    async def _testify(self, witness: CompiledTool, operation_id: str) -> ToolResult:
        """Return what a tool says of an operation. It is no effect of its own, and not noted."""
        call = Call(
            tool=witness.tool,
            compiled=witness,
            arguments={"operationId": operation_id},
            limits=self._runner._limits_for(witness.tool, None),  # noqa: SLF001
            bare_string=False,
            cwd=None,
            place=self._place,
            loop=self._loop,
            operation_id=fresh_id(),
            attempt_id=fresh_id(),
            began=self._loop.now(),
        )
        return await walk(call)

    async def _reconcile(self, journal: Journal, operation: Operation) -> bool:
        """Ask what became of an operation that needs attention; return whether that is known now."""
        if operation.tool not in self.registry or self.registry[operation.tool].revision != operation.revision:
            return False
        witness = self._witness_of(self.registry[operation.tool])
        if witness is None:
            return False
        return await self._loop.unless_over(reconciled, journal, operation.operation_id, witness) is not None

    async def _nested(self, parent: Call, name: str, arguments: Mapping[str, object], step: str) -> ToolResult:
        """Call a tool as a part of another call, under an operation of its own that is the same in every try."""
        if parent.depth >= MOST_DEPTH:
            said = f'tool "{name}" was not called: {MOST_DEPTH} pipelines call each other already. '
            return Failed(
                FailureKind.DENIED, said + "One of them calls itself, or they have to be fewer.", code="depth"
            )
        wish = _Wish(name, arguments, None, None, bare_string=False, parent=parent)
        return await self._call(wish, part_of(parent.operation_id, step), ONCE, self._loop.now())

    def _has_to_ask(self, tool: ToolDef) -> bool:
        """Return whether the host is asked. What a pipeline has called is asked about when that is called."""
        if self._runner._approve is None or tool.implementation is None:  # noqa: SLF001
            return False
        return (
            tool.side_effects == "write" if isinstance(tool.implementation, Composed) else tool.side_effects != "read"
        )

    async def _permit(self, call: Call, arguments: dict[str, JSON]) -> Failed | None:
        """Ask the host whether a call may be made; what it is not allowed to do is said by the failure."""
        return await permit(call, arguments, self._ask, self._runner._journal)  # noqa: SLF001

    async def _ask(self, request: ApprovalRequest) -> object:
        """Return what the host answers."""
        approve = self._runner._approve  # noqa: SLF001
        assert approve is not None  # noqa: S101 - else nobody asks

        def called() -> tuple[object]:
            return (approve(request),)

        # In a thread, because it may wait; an asynchronous one gives there what is to be awaited on the host's loop.
        limiter = trio.CapacityLimiter(1)
        (answer,) = await trio.to_thread.run_sync(called, abandon_on_cancel=True, limiter=limiter)
        if not inspect.isawaitable(answer):
            return answer
        return await self._loop.await_function(partial(_itself, answer), {}, None, _leave)

    def _not_callable(self, name: str) -> Failed:
        if name in self._runner.registry:
            allowed = ", ".join(tool.name for tool in self.registry) or "none"
            return Failed(FailureKind.DENIED, f'tool "{name}" is not among those that this scope may call: {allowed}.')
        near = self.registry.near(name)
        shown = name if len(name) <= SHOWN_CHARS else name[:SHOWN_CHARS] + "…"
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return Failed(FailureKind.UNKNOWN_TOOL, f'there is no tool "{shown}".{hint}', details={"near": [*near]})

    async def _close_workspace(self, *, is_ours: bool, report_changes: bool) -> None:
        """Complete the report; settle and remove a workspace that is ours."""
        if is_ours:
            try:
                await self.workspace.settle(report_changes=report_changes)
            finally:
                await self._place.remove_workspace()
        elif report_changes:
            with trio.CancelScope(shield=True):
                self._report = ScopeReport(changes=await self.workspace.changes())

    async def _end_calls(self) -> None:
        """Let no new call begin, end those in flight, and wait until they are gone."""
        self._loop.end()
        await self._loop.gone()

    def _only_awaits(self, name: str) -> bool:
        """Return whether a call does nothing but await a function: no journal, question or workspace is part of it."""
        tool = self.registry[name] if name in self.registry else None  # noqa: SIM401 - a registry is no dict
        if tool is None or self._runner._journal is not None or self._has_to_ask(tool):  # noqa: SLF001
            return False
        function = tool.implementation
        return isinstance(function, Function) and function.is_async and function.context is None

    def _in(self, loop: Loop) -> Scope:
        """Return this scope for calls in another loop, of functions that are only awaited; whoever has it ends them."""
        twin = copy(self)
        twin._loop = loop  # noqa: SLF001
        return twin


async def _itself(answer: Awaitable[object]) -> object:
    return await answer


def _leave(is_running: Callable[[], bool]) -> None:
    """Let a question be that goes on though nobody waits for its answer any more: it has started nothing."""


def _checked_id(operation_id: str) -> str:
    if not operation_id or len(operation_id) > MOST_ID_CHARS or not operation_id.isprintable():
        raise ValueError(f"an operation id has 1 to {MOST_ID_CHARS} printable characters, not {operation_id[:40]!r}")
    return operation_id
