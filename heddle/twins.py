"""What the runners for hosts without trio share: each drives a `heddle.Runner` in the loop of a portal.

There is one implementation, and a thread of it per open runner. A twin hands it work, and waits in its host's own way.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

from heddle import runner as trio_runner
from heddle.errors import RunnerClosed, WrongLoop, WrongProcess
from heddle.limits import DEFAULT_LIMITS, HOST_CEILING, Limits
from heddle.portal import Held, Job, Portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from heddle.environment import Environment
    from heddle.events import Listener
    from heddle.operations import Approver, Journal
    from heddle.process import Backend, Launcher
    from heddle.sandbox.policy import Sandbox
    from heddle.tools.definition import ToolDef
    from heddle.tools.registry import Registry
    from heddle.workspace import Mount

__all__ = ["Twin"]

T = TypeVar("T")


class Twin:
    """A `heddle.Runner` in a thread of its own, while it is open.

    Args:
        registry: What can be called, as in `heddle.Runner`; so are all the others.
        sandbox: What programs may read, write and reach.
        mounts: What every workspace holds.
        keep_workspaces: A folder in which workspaces stay.
        limits: What calls may use where neither they nor their tool say anything.
        ceiling: What no call may exceed.
        environment: What tools may see of the host's variables.
        max_concurrent: Programs, and functions in threads, that run at once.
        backend: Confines or moves programs; its methods are called in the thread, under trio.
        launcher: Brings programs to their end in a way of its own, in the thread, under trio.
        journal: Where operations are noted.
        listeners: Hear of every call.
        approve: Is asked before a call of a tool that may change something; an asynchronous function on the loop of an
            asyncio host, and any other in a thread.

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
        self._runner = trio_runner.Runner(
            registry,
            sandbox=sandbox,
            mounts=mounts,
            keep_workspaces=keep_workspaces,
            limits=limits,
            ceiling=ceiling,
            environment=environment,
            max_concurrent=max_concurrent,
            backend=backend,
            launcher=launcher,
            journal=journal,
            listeners=listeners,
            approve=approve,
        )
        self.registry: Registry = self._runner.registry
        self.limits: Limits = self._runner.limits
        self.ceiling: Limits = self._runner.ceiling
        self.environment: Environment = self._runner.environment
        self._portal: Portal | None = None
        self._mutex = threading.RLock()  # a signal handler may close what the code below it is opening

    def _begin(self, portal: Portal) -> Held[trio_runner.Runner]:
        """Take `portal` for the runner's own and start it; return what opens the runner in it.

        Raises:
            RunnerClosed: The runner is open already.
        """
        with self._mutex:
            if (current := self._current()) is not None:
                self._check(current)
                raise RunnerClosed("this runner is open already: open another one, or share this one")
            self._portal = portal
        portal.start()
        return Held(self._runner, portal)

    def _closable(self) -> Portal | None:
        """Return the portal that is to be stopped; None where there is none that is this process' to stop."""
        portal = self._current()
        if portal is None or portal.pid != os.getpid():
            return None
        self._check(portal)
        return portal

    def _current(self) -> Portal | None:
        """Return the portal in use, which one that has ended is not."""
        portal = self._portal
        return None if portal is None or portal.has_ended else portal

    def _job(self, work: Callable[[], Awaitable[T]]) -> Job[T]:
        return Job(work, self._opened())

    def _held(self, manager: AbstractAsyncContextManager[T]) -> Held[T]:
        return Held(manager, self._opened())

    def _opened(self) -> Portal:
        portal = self._current()
        if portal is None:
            raise RunnerClosed("this runner is not open: call it inside its block")
        self._check(portal)
        return portal

    def _check(self, portal: Portal) -> None:
        """Refuse a process or a thread that is not the one to ask."""
        if portal.pid != os.getpid():
            raise WrongProcess(portal.pid, os.getpid())
        if portal.is_here:
            raise WrongLoop(
                "an asynchronous tool cannot call its own runner, which would wait for itself: make the tool a `def`, "
                "which runs in a thread"
            )
