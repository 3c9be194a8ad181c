"""Where the calls of one scope are run: its session, its share of the slots, its workspace, and how that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from heddle.logs import logger
from heddle.process.confined import ConfinedLauncher, ConfinedSession
from heddle.process.direct import DirectLauncher
from heddle.process.seatbelt import SeatbeltLauncher, SeatbeltSession
from heddle.process.supervised import FORCE_SECONDS, SupervisedLauncher
from heddle.process.values import Ending
from heddle.redaction import Redactor
from heddle.references import Unresolved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AsyncExitStack

    from heddle.environment import Environment
    from heddle.expressions import Evaluator
    from heddle.limits import Limits
    from heddle.process import Backend, BackendSession, Command, Launcher, LauncherSession
    from heddle.process.values import Exit
    from heddle.sandbox.policy import Confinement
    from heddle.threads import Threads
    from heddle.workspace import Workspace

__all__ = ["Removals", "ScopePlace"]

# 0.05 s: a thousand files, and inside the half second that a call may take beyond its deadline and grace.
REMOVAL_SECONDS = 0.05


class ScopePlace:
    """Where the calls of one scope are run: its session, its share of the slots, its workspace."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        environment: Environment,
        launcher: Launcher,
        slots: trio.Semaphore,
        threads: Threads,
        removals: Removals,
        evaluator: Evaluator,
    ) -> None:
        self.workspace = workspace
        self.threads = threads
        self.evaluator = evaluator
        self.tier: str = launcher.tier
        self.guarantees: Mapping[str, str] = launcher.guarantees
        self._environment = environment
        self._slots = slots
        # Ours is its own session: unconfined calls share nothing but the supervisor.
        self._session: LauncherSession | None = None
        # A session of ours that confines is opened with the first call that needs it, and with it the workspace.
        self._confined: ConfinedLauncher | SeatbeltLauncher | None = None
        if isinstance(launcher, (ConfinedLauncher, SeatbeltLauncher)):
            self._confined = launcher
        self._confinement: Callable[[], Confinement] | None = None
        if self._confined is None and isinstance(launcher, (SupervisedLauncher, DirectLauncher)):
            self._session = launcher
        self._backend: BackendSession | None = None
        self._variables: dict[tuple[str, ...], dict[str, str]] = {}
        self._redactors: dict[tuple[str, ...], Redactor] = {}
        self._removals = removals

    async def open_session(
        self, stack: AsyncExitStack, launcher: Launcher, backend: Backend | None, confinement: Callable[[], Confinement]
    ) -> None:
        """Open what a custom launcher or backend keeps for the time of the scope."""
        if backend is not None:
            self._backend = await stack.enter_async_context(backend.open(confinement()))
            self.tier, self.guarantees = backend.name, backend.guarantees
        elif self._confined is not None:
            self._confinement = confinement
            stack.callback(self._close_session)
        elif self._session is None:
            self._session = await stack.enter_async_context(launcher.session(confinement()))

    def guarantees_for(self, command: Command) -> Mapping[str, str]:
        """Return what holds for one of its programs."""
        if self._confined is not None and command.network == "none":
            return {**self.guarantees, "network": "enforced"}
        return self.guarantees

    @property
    def _is_confined(self) -> bool:
        return self._backend is not None or self._confined is not None

    async def variables(self, inherit: tuple[str, ...]) -> dict[str, str] | Unresolved:
        """Return what a program that asks for `inherit` gets; the host's variables as they were at its first call."""
        known = self._variables.get(inherit)
        if known is None:
            given = await self._environment.resolve(inherit, confined=self._is_confined)
            if isinstance(given, Unresolved):
                return given
            known = given
            if self._confined is not None:
                known |= self._throw_away()
            known |= self.workspace.variables(known["PATH"])
            self._variables[inherit] = known
        return known

    def redactor(self, inherit: tuple[str, ...]) -> Redactor:
        """Return what masks the secrets of a program that asks for `inherit`; made when it is first needed."""
        known = self._redactors.get(inherit)
        if known is None:
            given = self._variables.get(inherit)
            # Before its first start nothing of a file is known; what fails then can hold nothing of it either.
            have = self._environment.variables(inherit, confined=self._is_confined) if given is None else given
            known = Redactor(self._environment.named(inherit, have))
            if given is not None:
                self._redactors[inherit] = known
        return known

    def _throw_away(self) -> dict[str, str]:
        """Return where confined tools find a home and a place for temporary files that are thrown away."""
        temporary = self.workspace.temporary
        folder, home = ("/tmp", "/tmp/home") if temporary is None else (str(temporary), str(temporary / "home"))  # noqa: S108 - a container's own
        return {"TMPDIR": folder, "HOME": home} | self._environment.values_of("TMPDIR", "HOME")

    def _close_session(self) -> None:
        if isinstance(self._session, (ConfinedSession, SeatbeltSession)):
            self._session.close()
            self._session = None

    async def launch(
        self, command: Command, stdin: bytes, limits: Limits, on_start: Callable[[], Awaitable[None]]
    ) -> tuple[Exit, float]:
        """Run a program to its end when a slot is free; return that, and the seconds that it waited."""
        if self._session is None and self._confined is not None and self._confinement is not None:
            self._session = session = self._confined.open(self._confinement())
            self.guarantees = session.guarantees if isinstance(session, ConfinedSession) else self.guarantees
        assert self._session is not None  # noqa: S101 - opened with the scope, which holds a program
        if self._backend is not None:
            command = self._backend.prepare(command)
        began = trio.current_time()
        try:
            self._slots.acquire_nowait()  # no turn of the loop where nobody waits: starting a program takes one anyway
        except trio.WouldBlock:
            await self._slots.acquire()
        waited_s = trio.current_time() - began
        try:
            await on_start()
            exit_ = await self._session.launch(command, stdin, limits)
        except BaseException:
            ours = self._session if isinstance(self._session, (SupervisedLauncher, ConfinedSession)) else None
            if ours is not None and ours.survivors.pop(command.attempt_id, ()):
                self.workspace.note_survivors()
            await self._kill_elsewhere(command)
            raise
        finally:
            self._slots.release()
        if exit_.survivors:
            self.workspace.note_survivors()
        if exit_.ending not in {Ending.BY_ITSELF, Ending.NOT_STARTED}:
            await self._kill_elsewhere(command)
        return exit_, waited_s + exit_.waited_s

    async def make_workspace(self) -> None:
        """Make the directory, if it is not there yet; calls that come at once make one between them."""
        await self.workspace.make()

    async def _kill_elsewhere(self, command: Command) -> None:
        """Have the backend end what it started outside of the tree that was ended; whatever it raises is logged."""
        if self._backend is None:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FORCE_SECONDS):
            try:
                await self._backend.kill(command.attempt_id)
            except Exception:
                logger.exception("a backend could not end what it started: %s", self.tier)

    async def remove_workspace(self) -> None:
        """Remove the workspace, for longer than a moment behind the caller's back."""
        await self._removals.remove(self.workspace)


class Removals:
    """Removes workspaces. A call waits for that a moment; the runner, at its end, until all are gone.

    A tool may leave a million files, and a call has promised when it returns.
    """

    def __init__(self) -> None:
        self._pending: set[trio.Event] = set()

    async def remove(self, workspace: Workspace) -> None:
        """Remove `workspace`, for longer than a moment behind the caller's back."""
        if not workspace.exists:
            return
        done = self.begin(workspace.remove)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS):
            await done.wait()

    def begin(self, removal: Callable[[], Awaitable[object]]) -> trio.Event:
        """Begin a removal behind the caller's back; return what happens at its end."""
        done = trio.Event()
        self._pending.add(done)
        trio.lowlevel.spawn_system_task(self._do, removal, done)
        return done

    async def _do(self, removal: Callable[[], Awaitable[object]], done: trio.Event) -> None:
        try:
            await removal()
        except Exception:
            logger.exception("something could not be removed")
        finally:
            self._pending.discard(done)
            done.set()

    async def wait(self) -> None:
        """Wait until everything is removed."""
        with trio.CancelScope(shield=True):
            while self._pending:
                await next(iter(self._pending)).wait()
