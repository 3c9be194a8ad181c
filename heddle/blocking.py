"""`Runner` for code that does not wait with ``await``: scripts, notebooks, threads of a web server.

    import heddle

    with heddle.blocking.Runner(heddle.discover_tools("tools")) as runner:
        print(runner.call("word_count", {"text": "a b"}).unwrap())

A call holds its thread until it is over. Interrupted, by Ctrl-C or whatever a signal handler raises, it ends its tool
first, and then raises what has interrupted it.
"""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from heddle.portal import Portal
from heddle.twins import Twin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
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
    """Runs the tools of a catalogue. Use it as ``with heddle.blocking.Runner(registry) as runner:``.

    When the block is left, no process that a call has started is alive. Any number of threads may use one runner at
    once, in the process that opened it. Asynchronous tools are awaited under trio, in the runner's own thread;
    synchronous ones run in threads, and may call the runner again.
    """

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the runner where a ``with`` block does not fit, as in a notebook; then `close` it.

        A host that exits without doing so closes it on its way out.

        Raises:
            RunnerClosed: It is open already.
            SandboxUnavailable: What confines its calls cannot be had. Nothing was opened.
            DefinitionError: A mount cannot be used. Nothing was opened.
        """
        portal = Portal()
        try:
            held = self._begin(portal)
            _wait(held.enter, held.leave)
        except BaseException:
            self._end(portal)
            raise
        return self

    def close(self) -> None:
        """End what is in flight, and wait until it is gone. One that is closed may be closed again."""
        portal = self._closable()
        if portal is not None:
            self._end(portal)

    def _end(self, portal: Portal) -> None:
        try:
            _wait(portal.stop, portal.stop)
        finally:
            portal.join()

    def call(
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
        return _wait(job.begin, job.cancel)

    def recover(self) -> list[Operation]:
        """Settle what hosts that are gone have left in the journal; see `heddle.Runner.recover`."""
        job = self._job(self._runner.recover)
        return _wait(job.begin, job.cancel)

    @contextmanager
    def scope(
        self,
        label: str = "scope",
        *,
        mounts: Iterable[Mount | str] = (),
        tools: Iterable[str] | None = None,
        workspace: Workspace | None = None,
        report_changes: bool = False,
    ) -> Generator[Scope, None, None]:
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
        with _entered(self._held(manager)) as scope:
            yield Scope(self, scope)

    @contextmanager
    def workspace(self, workspace: AbstractAsyncContextManager[TrioWorkspace]) -> Generator[Workspace, None, None]:
        """Have a workspace of your own for the time of the block, for any number of scopes.

        Args:
            workspace: ``heddle.Workspace.adopt(…)`` or ``heddle.Workspace.open(…)``.
        """
        with _entered(self._held(workspace)) as opened:
            yield Workspace(self, opened)


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

    def call(
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
        return _wait(job.begin, job.cancel)

    @property
    def report(self) -> ScopeReport:
        """What became of the files of its workspace; complete when its block has been left."""
        return self._scope.report


class Workspace:
    """A `heddle.Workspace` for code that does not wait. Comes from `Scope.workspace` and `Runner.workspace`.

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

    def changes(self) -> Changes:
        """Return what tools have created, modified and deleted in it so far; see `heddle.Workspace.changes`."""
        job = self._runner._job(self.workspace.changes)  # noqa: SLF001 - one room
        return _wait(job.begin, job.cancel)


@contextmanager
def _entered(held: Held[T]) -> Generator[T, None, None]:
    try:
        yield _wait(held.enter, held.leave)
    finally:
        _wait(held.leave, held.leave)


def _wait(begin: Callable[[], Future[T]], end: Callable[[], Future[Any]]) -> T:
    """Return what comes of what is begun. Interrupted, have it ended, wait for that all the same, and raise then."""
    future: Future[T] | None = None
    try:
        future = begin()
        return future.result()
    except BaseException:
        if future is None or not future.done():
            _see_to(end)
        raise


def _see_to(end: Callable[[], Future[Any]]) -> None:
    """Have something ended, and wait for that, which comes soon; a second Ctrl-C changes nothing."""
    while True:
        try:
            wait([end()])
        except BaseException:  # noqa: BLE001, S112 - the first one is raised when the tool is gone
            continue
        return
