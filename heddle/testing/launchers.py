"""What a launcher promises, and for each promise a check with real programs. They run in this order.

`heddle.process.LauncherSession` says the same to those who write one.
"""

from __future__ import annotations

import math
import os
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from heddle.errors import SandboxUnavailable
from heddle.limits import DEFAULT_LIMITS, PROCESS_LIMITS, Limits
from heddle.process.ports import Launcher, LauncherSession
from heddle.process.values import Command, Ending, Exit
from heddle.sandbox.policy import Sandbox
from heddle.testing.ground import AWKWARD, HAS_SETSID, Ground, until
from heddle.testing.promises import LeftOut, NotKept, Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = [
    "BEGIN_SECONDS",
    "BEYOND_SECONDS",
    "ORPHAN_SECONDS",
    "SHORT_SECONDS",
    "LauncherTrial",
    "expect",
    "promises",
    "refuse_names",
]

GUARANTEES = ("enforced", "partial", "no")
# 5 s: any program here ends by itself within a fraction of that.
USUAL = Limits(wall_seconds=5).or_else(DEFAULT_LIMITS)
# A launch returns by its deadline and this: 2 s of grace, and half a second for the end by force.
BEYOND_SECONDS = 2.5
# 5 s for a command to begin, however busy the machine.
BEGIN_SECONDS = 5.0
# 1 s where only ``partial`` is promised: what was orphaned and killed can be waited for by nobody but its new parent.
ORPHAN_SECONDS = 1.0
# 1 s for launch to return once the command has ended: ten times what late output is waited for.
LATE_SECONDS = 1.0
# Long enough for a program to start, short enough to be waited for.
SHORT_SECONDS = 0.3
# 1 s for some commands to meet that are started together.
MEETING_SECONDS = 1.0
AT_ONCE = 4


def promises() -> tuple[Promise[LauncherTrial], ...]:
    """Return what a launcher promises."""
    return (
        Promise("names", "`tier` is a text, and `guarantees` says enforced, partial or no of each word", _names),
        Promise("arguments", "argv is handed over word by word, and no shell sees it", _arguments),
        Promise("environment", "the environment is the command's: nothing is missing, nothing is added", _environment),
        Promise("cwd", "the command is started in `cwd`", _cwd),
        Promise("start", "what cannot be started is an Exit that says NOT_STARTED and why, not an exception", _start),
        Promise("stdin", "standard input arrives whole, and is closed after it", _stdin),
        Promise("unread stdin", "a command that does not read its input is judged by its exit alone", _unread_stdin),
        Promise("status", "the exit tells the command's own status, or the name of the signal that ended it", _status),
        Promise("streams", "both streams are kept apart and whole, up to exactly their limits", _streams),
        Promise("stdout_bytes", "of standard output `stdout_bytes` are kept, and beyond the command is stopped", _full),
        Promise("stderr_bytes", "of standard error the last `stderr_bytes` are kept, and the command goes on", _tail),
        Promise("late output", "the launch is over with the command, whatever still holds its output", _late_output),
        Promise("left behind", "a child that the command leaves behind is gone when launch returns", _left_behind),
        Promise("daemons", "a child with a session of its own is gone as well, where processes are enforced", _daemons),
        Promise("grace", "at its deadline the command is asked to end with SIGTERM, and has time to", _grace),
        Promise("deadline", "launch returns by `wall_seconds` and 2.5 s, whatever the command does", _deadline, 20),
        Promise("cancelled", "cancelled, launch ends the command and lets the cancellation pass", _cancelled, 20),
        Promise("limits", "a limit is held, or refused with SandboxUnavailable before anything starts", _limits, 40),
        Promise("at once", "commands of one session run at once, and each gets its own answer", _at_once),
        Promise("policy", "a policy is held, or refused with SandboxUnavailable when the session is opened", _policy),
        Promise("sessions", "sessions can be open at once, and nothing of one is alive after it", _sessions),
    )


@attrs.define(eq=False)
class LauncherTrial:
    """A launcher that is tried.

    Attributes:
        session: One that is open for all checks, as for the calls of a scope.
        patience_seconds: How much later than promised something may be.
    """

    launcher: Launcher
    ground: Ground
    session: LauncherSession
    patience_seconds: float

    @property
    def holds_processes(self) -> str:
        """What the launcher declares about what a command leaves behind."""
        return self.launcher.guarantees.get("processes", "no")

    async def launch(
        self,
        command: Command,
        stdin: bytes = b"",
        *,
        limits: Limits = USUAL,
        session: LauncherSession | None = None,
    ) -> Exit:
        """Launch a command; where `limits` says nothing it has what is usual here."""
        exit_ = await (session or self.session).launch(command, stdin, limits.or_else(USUAL))
        if not isinstance(exit_, Exit):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise NotKept(f"launch returned {exit_!r:.60}, which is no heddle.process.Exit")
        return exit_

    async def refuse_survivors(self, command: Command, exit_: Exit | None, *beats: Path) -> None:
        """See that nothing of a command is alive, apart from what its exit names."""
        alive = await self.ground.alive(
            command.attempt_id,
            *beats,
            survivors=exit_.survivors if exit_ else (),
            patience_seconds=0.0 if self.holds_processes == "enforced" else ORPHAN_SECONDS,
        )
        if alive:
            raise NotKept(alive)


def expect(seen: object, expected: object, what: str) -> None:
    """See that two values are the same; `what` is said before them."""
    if seen != expected:
        raise NotKept(f"{what} {_shown(seen)} instead of {_shown(expected)}")


def _shown(value: object) -> str:
    text = value.name if isinstance(value, Ending) else repr(value)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-100:]}"  # noqa: PLR2004 - both ends tell


async def _names(trial: LauncherTrial) -> None:
    refuse_names(trial.launcher.tier, "tier", trial.launcher.guarantees)


def refuse_names(name: object, what: str, guarantees: Any) -> None:
    """See that what stands in reports is fit for it."""
    if not isinstance(name, str) or not name:
        raise NotKept(f"{what} is {name!r:.60}")
    wrong = {word: value for word, value in dict(guarantees).items() if value not in GUARANTEES}
    if wrong:
        raise NotKept(f"guarantees holds {wrong!r:.100}")


async def _arguments(trial: LauncherTrial) -> None:
    exit_ = await trial.launch(trial.ground.command("arguments", *AWKWARD))

    expect(exit_.stdout, b"".join(os.fsencode(word) + b"\0" for word in AWKWARD), "the command got")


async def _environment(trial: LauncherTrial) -> None:
    given = {f"WORD_{number}": word for number, word in enumerate(AWKWARD)}
    # No shell stands between: one would add variables of its own.
    command = trial.ground.command(shutil.which("env") or "/usr/bin/env", "-0", more=given)

    exit_ = await trial.launch(command)

    pairs = (os.fsdecode(pair).partition("=") for pair in exit_.stdout.split(b"\0") if pair)
    seen = {name: value for name, _, value in pairs}
    wanted = command.environment
    added = {name: value for name, value in seen.items() if name not in wanted}
    changed = {name: seen.get(name) for name, value in wanted.items() if seen.get(name) != value}
    if added:
        raise NotKept(f"the command has also got {_shown(added)}")
    if changed:
        raise NotKept(f"the command has got {_shown(changed)}, where None is a variable that is missing")


async def _cwd(trial: LauncherTrial) -> None:
    folder = trial.ground.fresh("a folder")
    folder.mkdir()

    await trial.launch(trial.ground.command("marks", cwd=folder))

    if not (folder / "here").exists():
        raise NotKept("a file that the command made in its current folder is not in `cwd`")


async def _start(trial: LauncherTrial) -> None:
    not_executable = trial.ground.fresh("not-executable")
    not_executable.write_text("#!/bin/sh\n")
    for why, command in (
        ("a file that is not there", trial.ground.command("nosuch")),
        ("a file that is not executable", trial.ground.command(not_executable)),
        ("a `cwd` that is not there", trial.ground.command("marks", cwd=trial.ground.fresh("nosuch"))),
    ):
        exit_ = await trial.launch(command)
        expect(exit_.ending, Ending.NOT_STARTED, f"{why} ended as")
        if not exit_.error and not exit_.error_number:
            raise NotKept(f"{why}: neither `error` nor `error_number` says what is wrong")


async def _stdin(trial: LauncherTrial) -> None:
    # More than two pipes hold, and what text is not.
    for sent in (b"", bytes(range(256)) * 1200):
        exit_ = await trial.launch(trial.ground.command("cat"), sent)
        expect(exit_.ending, Ending.BY_ITSELF, f"a command that reads {len(sent):,} bytes to their end ended as")
        expect(exit_.stdout, sent, "the command read")


async def _unread_stdin(trial: LauncherTrial) -> None:
    sent = b"x" * 5_000_000
    for program in ("ignores its input", "closes its input"):
        exit_ = await trial.launch(trial.ground.command(program), sent)
        expect((exit_.ending, exit_.status), (Ending.BY_ITSELF, 0), f"a command that {program} ended as")
        expect(exit_.stdout, b"done", f"a command that {program} printed")


async def _status(trial: LauncherTrial) -> None:
    for number in (0, 7):
        exit_ = await trial.launch(trial.ground.command("ends", str(number)), limits=Limits(wall_seconds=math.inf))
        expect(
            (exit_.ending, exit_.status, exit_.signal), (Ending.BY_ITSELF, number, None), f"exit {number} is told as"
        )
    exit_ = await trial.launch(trial.ground.command("signals"))
    expect((exit_.ending, exit_.status, exit_.signal), (Ending.BY_ITSELF, None, "SIGUSR1"), "a signal is told as")


async def _streams(trial: LauncherTrial) -> None:
    exit_ = await trial.launch(trial.ground.command("speaks"))
    expect((exit_.stdout, exit_.stderr), (b"out", b"err"), "standard output and error are")
    expect(exit_.truncated, frozenset[str](), "`truncated` is")

    exit_ = await trial.launch(trial.ground.command("fills", "200000"), limits=Limits(stdout_bytes=200_000))
    expect(
        (exit_.ending, exit_.truncated), (Ending.BY_ITSELF, frozenset[str]()), "output of exactly the limit ended as"
    )
    expect(len(exit_.stdout), 200_000, "of output of exactly the limit there are")


async def _full(trial: LauncherTrial) -> None:
    exit_ = await trial.launch(trial.ground.command("floods"), limits=Limits(stdout_bytes=10_000))

    expect(exit_.ending, Ending.STDOUT_FULL, "a command that prints without end ended as")
    expect(exit_.stdout, b"y\n" * 5000, "of its output there is")
    expect(exit_.truncated, frozenset({"stdout"}), "`truncated` is")


async def _tail(trial: LauncherTrial) -> None:
    exit_ = await trial.launch(trial.ground.command("complains"), limits=Limits(stderr_bytes=1000))

    said = "".join(f"{number}\n" for number in range(1, 20_001)).encode()
    expect(exit_.stderr, said[-1000:], "of standard error there is")
    expect(exit_.truncated, frozenset({"stderr"}), "`truncated` is")
    expect((exit_.ending, exit_.stdout), (Ending.BY_ITSELF, b"done"), "the command ended as")


async def _late_output(trial: LauncherTrial) -> None:
    command = trial.ground.command("leaves a child that holds its output", trial.ground.fresh("beat"))

    with trio.move_on_after(LATE_SECONDS + trial.patience_seconds) as timer:
        exit_ = await trial.launch(command, limits=Limits(wall_seconds=60))
        expect((exit_.ending, exit_.stdout), (Ending.BY_ITSELF, b"{}\n"), "the command ended as")
    if timer.cancelled_caught:
        raise NotKept("launch waits for a child that holds standard output, though the command has ended")


async def _left_behind(trial: LauncherTrial) -> None:
    if trial.holds_processes == "no":
        raise LeftOut("the launcher's guarantees do not speak for processes")
    beat = trial.ground.fresh("beat")
    command = trial.ground.command("leaves a child", beat)

    exit_ = await trial.launch(command)

    await trial.refuse_survivors(command, exit_, beat)


async def _daemons(trial: LauncherTrial) -> None:
    if trial.holds_processes != "enforced":
        raise LeftOut(f"the launcher's guarantees say {trial.holds_processes!r} of processes")
    if not HAS_SETSID:
        raise LeftOut("setsid(1) is not on this machine")
    beat = trial.ground.fresh("beat")
    command = trial.ground.command("leaves a daemon", beat)

    exit_ = await trial.launch(command)

    await trial.refuse_survivors(command, exit_, beat)


async def _grace(trial: LauncherTrial) -> None:
    for wall_seconds in (SHORT_SECONDS, BEGIN_SECONDS):
        beat = trial.ground.fresh("beat")
        exit_ = await trial.launch(trial.ground.command("tidies", beat), limits=Limits(wall_seconds=wall_seconds))
        if beat.exists():
            break  # else it was asked before it had come to its first line, which a busy machine makes possible
    expect(exit_.ending, Ending.DEADLINE, "a command that was asked to end ended as")
    if b"tidied" not in exit_.stderr:
        raise NotKept("the command could not say its last word: it was ended at once")
    expect(exit_.status, 3, "its status is")


async def _deadline(trial: LauncherTrial) -> None:
    beat, daemon, other = (trial.ground.fresh("beat") for _ in range(3))
    async with trio.open_nursery() as nursery:
        stubborn = trial.ground.command("stubborn", beat)
        nursery.start_soon(_over_in_time, trial, stubborn, "ignores SIGTERM", beat)
        if HAS_SETSID:
            # Where processes are not enforced the daemon may live on, and hold the output for as long as it likes.
            beats = (daemon, other) if trial.holds_processes == "enforced" else ()
            command = trial.ground.command("waits beside a daemon", daemon, other)
            nursery.start_soon(_over_in_time, trial, command, "has a daemon that holds its output", *beats)


async def _over_in_time(trial: LauncherTrial, command: Command, what: str, *beats: Path) -> None:
    allowed = SHORT_SECONDS + BEYOND_SECONDS + trial.patience_seconds
    began = trio.current_time()
    with trio.move_on_after(allowed + trial.patience_seconds):
        exit_ = await trial.launch(command, limits=Limits(wall_seconds=SHORT_SECONDS))
        if trio.current_time() - began - exit_.waited_s <= allowed:
            expect(exit_.ending, Ending.DEADLINE, f"a command that {what} ended as")
            if beats:
                await trial.refuse_survivors(command, exit_, *beats)
            return
    raise NotKept(
        f"{allowed:g} s after its start launch had not returned: the command has {SHORT_SECONDS:g} s, and {what}"
    )


async def _cancelled(trial: LauncherTrial) -> None:
    beats = [trial.ground.fresh("beat"), trial.ground.fresh("beat")]
    command = trial.ground.command("waits beside a child", *beats)
    if trial.holds_processes == "no":
        beats = beats[:1]
        command = trial.ground.command("beat", *beats)
    returned: list[Exit] = []
    cancelling = trio.CancelScope()

    async def launch() -> None:
        with cancelling:
            returned.append(await trial.launch(command, limits=Limits(wall_seconds=60)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(launch)
        has_begun = await until(beats[-1].exists, BEGIN_SECONDS)
        cancelling.cancel()
        began = trio.current_time()
    if not has_begun:
        raise NotKept("the command has not started")
    took = trio.current_time() - began
    if took > BEYOND_SECONDS + trial.patience_seconds:
        raise NotKept(f"launch returned {took:.1f} s after it was cancelled")
    if returned:
        raise NotKept(f"launch returned {_shown(returned[0])}, as if it had not been cancelled")
    await trial.refuse_survivors(command, None, *beats)


async def _limits(trial: LauncherTrial) -> None:
    wrong = [name for name in PROCESS_LIMITS if not await _is_held_or_refused(trial, name)]
    if wrong:
        raise NotKept(f"the command was started and not held to {', '.join(f'limits.{name}' for name in wrong)}")


def _got_none(cwd: Path, _: Exit) -> bool:
    return not (cwd / "got").exists()


# What a command is held to, the program that does not keep to it, and how it can be told that it had to.
_OVER_THE_LIMIT: Mapping[str, tuple[Limits, str, Callable[[Path, Exit], bool]]] = MappingProxyType(
    {
        # 15 s: one second of processor time is had by then on any machine.
        "cpu_seconds": (
            Limits(cpu_seconds=1, wall_seconds=15),
            "computes",
            lambda _, exit_: exit_.ending is Ending.BY_ITSELF,
        ),
        "memory_bytes": (Limits(memory_bytes=64 * 1024 * 1024), "takes memory", _got_none),
        "processes": (Limits(processes=8), "starts many", _got_none),
        "open_files": (Limits(open_files=20), "opens many files", _got_none),
        "file_bytes": (
            Limits(file_bytes=4096),
            "writes a large file",
            lambda cwd, _: (cwd / "large").stat().st_size <= 4096,  # noqa: PLR2004 - as it says
        ),
    }
)


async def _is_held_or_refused(trial: LauncherTrial, name: str) -> bool:
    limits, program, is_held = _OVER_THE_LIMIT[name]
    cwd = trial.ground.fresh(name)
    cwd.mkdir()
    try:
        exit_ = await trial.launch(trial.ground.command(program, cwd=cwd), limits=limits)
    except SandboxUnavailable:
        if (cwd / "started").exists():
            raise NotKept(f"limits.{name} was refused after the command had been started") from None
        return True
    if not (cwd / "started").exists():
        raise NotKept(f"held to limits.{name}, a command that begins with much less has not begun")
    return is_held(cwd, exit_)


async def _at_once(trial: LauncherTrial) -> None:
    folder = trial.ground.fresh("meeting")
    folder.mkdir()
    limits = Limits(wall_seconds=MEETING_SECONDS + trial.patience_seconds)
    answers: dict[bytes, bytes] = {}

    async def launch(number: int) -> None:
        sent = b"%d" % number
        command = trial.ground.command("meets", str(number), str(AT_ONCE), cwd=folder)
        exit_ = await trial.launch(command, sent, limits=limits)
        if exit_.ending is Ending.DEADLINE:
            raise NotKept(f"{AT_ONCE} commands that wait for each other did not run at the same time")
        answers[sent] = exit_.stdout

    async with trio.open_nursery() as nursery:
        for number in range(AT_ONCE):
            nursery.start_soon(launch, number)
    expect(answers, {sent: sent for sent in answers}, "commands that repeat what they read answered")


async def _policy(trial: LauncherTrial) -> None:
    """Have a command read what a policy without any grants denies."""
    outside = trial.ground.folder / "outside"
    outside.write_text("the secret\n")
    policy = attrs.evolve(trial.ground.confinement, sandbox=Sandbox(network="none"))
    try:
        async with trial.launcher.session(policy) as session:
            command = trial.ground.command("copies", str(outside))
            exit_ = await trial.launch(command, session=session)
    except SandboxUnavailable:
        return
    if b"the secret" in exit_.stdout:
        raise NotKept("with a policy that grants nothing the command read a file outside of the workspace")


async def _sessions(trial: LauncherTrial) -> None:
    commands: list[Command] = []

    async def launch(session: LauncherSession) -> None:
        commands.append(trial.ground.command("cat"))
        exit_ = await trial.launch(commands[-1], b"here", session=session)
        expect(exit_.stdout, b"here", "a command in one of several sessions printed")

    opened = trial.launcher.session
    async with opened(trial.ground.confinement) as first, opened(trial.ground.confinement) as second:
        await launch(first)
        await launch(second)
    async with opened(trial.ground.confinement) as third:
        await launch(third)
    for command in commands:
        await trial.refuse_survivors(command, None)
