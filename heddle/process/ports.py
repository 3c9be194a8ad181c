"""The two places at which a custom runner plugs in: a `Launcher` starts processes, a `Backend` rewrites commands.

What is promised here is what results are believed for. `heddle.testing.check_launcher` and
`heddle.testing.check_backend` find out which of it a runner of one's own does not keep.
"""

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
        """Run `command` to its end, and everything that it starts. Calls of one session may run at once.

        It is started as it stands: `argv` word by word and by no shell, in `cwd`, with the variables of `environment`
        and no others. What fails before that is an `Exit` (`Ending.NOT_STARTED`) with its errno or its reason, and
        never an exception.

        It is over when its own process has ended. What holds its output then has a moment for late words, 100 ms in
        heddle's own launchers, and is ended; nobody waits for the end of a stream. At its deadline a command is asked
        to end with SIGTERM, has 2 s to do so, and is ended by force, which `Ending.DEADLINE` says. So launch returns
        by ``limits.wall_seconds`` and 2.5 s, counted from the start, whatever the command does.

        When it returns or raises, no process of the command is alive, except for those that `Exit.survivors` names;
        `Launcher.guarantees` says how far that goes for children that have left its process group. Cancelled, it ends
        the command in the same way and lets the cancellation pass.

        The two streams are read all the time and kept apart. Of standard output there are at most
        ``limits.stdout_bytes``; a command that prints more is stopped, which `Ending.STDOUT_FULL` says. Of standard
        error the last ``limits.stderr_bytes`` are kept, and the command goes on. `Exit.truncated` names the streams of
        which a part was dropped.

        Args:
            command: What to start.
            stdin: Written to the command's standard input, which is then closed. A command that does not read it, or
                closes it early, is judged by its exit alone.
            limits: All fields that hold for this call are set; a limit that cannot be held raises
                `heddle.SandboxUnavailable` before anything is started.
        """
        ...


@runtime_checkable
class Launcher(Protocol):
    """Brings processes to their end. Give your own to ``Runner(launcher=…)``.

    Whoever gives it to a runner opens and closes it; the runner opens its sessions.

    Attributes:
        tier: What its calls are confined by, for `CallReport.tier`; ``none`` when by nothing, and never empty.
        guarantees: What it promises, for `CallReport.guarantees`: of each word ``enforced``, ``partial`` or ``no``.
            ``{"processes": "enforced"}`` when nothing that a command starts can be alive after it; ``partial`` when
            what leaves its process group may be.
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
        """Open a session for the calls of one scope; it is closed after the last of them has ended.

        Several may be open at once. When one is closed nothing of its calls is alive, nor of what it has started
        itself.

        Args:
            confinement: What its calls may use. What cannot be held of it is refused here, with
                `heddle.SandboxUnavailable`.
        """
        ...


class BackendSession(Protocol):
    """Rewrites the commands of one scope."""

    def prepare(self, command: Command) -> Command:
        """Return the command that runs `command` in the confined place. Pure: nothing is started or changed.

        In there it finds its arguments word by word, its variables and none of the host's beside them, its `cwd` and
        the workspace, which it can write and whose files the host sees. ``HEDDLE_WORKSPACE`` names it as it is called
        in there.

        The returned command is supervised like any other: its deadline, output and processes are the runner's
        business. It begins with an absolute path, and has the attempt's id in its environment.
        """
        ...

    async def kill(self, attempt_id: str) -> None:
        """End what a call has started outside of the process tree of its command, a container for instance.

        Called after the command was ended by force or cancelled, and never waited for longer than 0.2 s. Where there
        is nothing to end, because the call is over or never came that far, nothing is raised.
        """
        ...


@runtime_checkable
class Backend(Protocol):
    """Confines or moves commands with another program. Give your own to ``Runner(backend=…)``.

    What it cannot hold it refuses by raising `heddle.SandboxUnavailable` from `open`: no call is ever run with less.
    That goes for every word of `Confinement.sandbox`, where the runner has a policy: what is not granted is denied.

    Attributes:
        name: The tier that results are reported under, never empty.
        guarantees: What it promises, for `CallReport.guarantees`: of each word ``enforced``, ``partial`` or ``no``.
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
        """Open a session for the calls of one scope; it is closed after the last of them has ended.

        Several may be open at once. What a session starts for itself is gone when it is closed.
        """
        ...
