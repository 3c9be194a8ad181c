"""The two places at which a custom runner plugs in: a `Launcher` starts processes, a `Backend` rewrites commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from heddle.limits import Limits
    from heddle.process.values import Command, Exit
    from heddle.sandbox.policy import Confinement

__all__ = ["Backend", "BackendSession", "Launcher", "LauncherSession"]


class LauncherSession(Protocol):
    """Runs the commands of one scope."""

    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Run `command` to its end, and everything that it starts.

        When it returns or raises, cancelled or not, no process of the command is alive, except for those that
        `Exit.survivors` names. It returns by ``limits.wall_seconds`` and 2.5 s, counted from the start, whatever
        the command does. Standard output is read to at most ``limits.stdout_bytes``, beyond which the command is
        stopped; of standard error the last ``limits.stderr_bytes`` are kept. A command that does not read its input
        is judged by its exit alone. What fails before the start is an `Exit` too (`Ending.NOT_STARTED`).

        Args:
            command: What to start. Its environment is complete; add nothing to it.
            stdin: Written to the command's standard input, which is then closed.
            limits: All fields that hold for this call are set; a limit that cannot be held raises
                `heddle.SandboxUnavailable` before anything is started.
        """
        ...


@runtime_checkable
class Launcher(Protocol):
    """Brings processes to their end. Give your own to ``Runner(launcher=…)``.

    Attributes:
        tier: What its calls are confined by, for `CallReport.tier`; ``none`` when by nothing.
        guarantees: What it promises, for `CallReport.guarantees`: ``{"processes": "enforced"}`` when nothing that a
            command starts can be alive after it.
    """

    @property
    def tier(self) -> str:
        """What confines its calls."""
        ...

    @property
    def guarantees(self) -> Mapping[str, str]:
        """What it promises."""
        ...

    def session(self, confinement: Confinement) -> AbstractAsyncContextManager[LauncherSession]:
        """Open a session for the calls of one scope; it is closed after the last of them has ended."""
        ...


class BackendSession(Protocol):
    """Rewrites the commands of one scope."""

    def prepare(self, command: Command) -> Command:
        """Return the command that runs `command` in the confined place. Pure: nothing is started.

        The returned command is supervised like any other: its deadline, output and processes are the runner's
        business. Keep the attempt's id in its environment.
        """
        ...

    async def kill(self, attempt_id: str) -> None:
        """End what a call has started outside of the process tree of its command, a container for instance.

        Called after the command was ended by force or cancelled, and never waited for longer than 0.2 s.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """Confines or moves commands with another program. Give your own to ``Runner(backend=…)``.

    What it cannot hold it refuses by raising `heddle.SandboxUnavailable` from `open`: no call is ever run with less.

    Attributes:
        name: The tier that results are reported under.
        guarantees: What it promises, for `CallReport.guarantees`.
    """

    @property
    def name(self) -> str:
        """The tier that results are reported under."""
        ...

    @property
    def guarantees(self) -> Mapping[str, str]:
        """What it promises."""
        ...

    def open(self, confinement: Confinement) -> AbstractAsyncContextManager[BackendSession]:
        """Open a session for the calls of one scope; it is closed after the last of them has ended."""
        ...
