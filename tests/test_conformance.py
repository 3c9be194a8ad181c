"""The checks for runners of one's own: the good ones pass, and each broken promise is found and named."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.process import Backend, BackendSession, Command, Confinement, Ending, Exit, Launcher, LauncherSession
from heddle.process.direct import DirectLauncher
from heddle.process.supervised import SupervisedLauncher
from heddle.testing import (
    Broken,
    Conformance,
    ConformanceError,
    backends,
    check_backend,
    check_launcher,
    ground,
    launchers,
)
from heddle.testing.promises import Promise, examine
from tests.support import wait_until

LAUNCHER_PROMISES = tuple(promise.name for promise in launchers.promises())
BACKEND_PROMISES = tuple(promise.name for promise in backends.promises())


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a launcher leaves behind, the checks end it, and remove their folder."""
    yield
    # What no look at /proc has found ends by itself when its folder is gone.
    wait_until(lambda: processes_of_checks() == [], 5)
    folder = Path(tempfile.gettempdir())
    assert [path.name for path in folder.glob("heddle-checks-*")] == []
    assert processes_of_checks() == []


def processes_of_checks() -> list[bytes]:
    """Return what runs out of a folder of these tests; others may be checking something as well."""
    mark = os.fsencode(Path(tempfile.gettempdir(), "heddle-checks-"))
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark in arguments:
            found.append(arguments)
    return found


@pytest.fixture
async def good() -> AsyncIterator[SupervisedLauncher]:
    async with SupervisedLauncher() as launcher:
        yield launcher


async def test_runners_that_keep_their_promises_pass(good: SupervisedLauncher) -> None:
    """The launcher for other systems says that it cannot vouch for daemons, and is not asked about them."""
    outside = Outside()
    found: dict[str, Conformance] = {}

    async def check_one(launcher: Launcher) -> None:
        found[type(launcher).__name__] = await check_launcher(launcher)

    async def check_other(backend: Backend, only: list[str] | None = None) -> None:
        found[type(backend).__name__] = await check_backend(backend, only=only)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_one, good)
        nursery.start_soon(check_one, DirectLauncher())
        nursery.start_soon(check_other, Plainly())
        nursery.start_soon(check_other, outside, ["deadline", "cancelled"])

    assert found == {
        "SupervisedLauncher": Conformance(LAUNCHER_PROMISES),
        "DirectLauncher": Conformance(
            tuple(name for name in LAUNCHER_PROMISES if name != "daemons"),
            {"daemons": "the launcher's guarantees say 'partial' of processes"},
        ),
        "Plainly": Conformance(BACKEND_PROMISES),
        "Outside": Conformance(("deadline", "cancelled")),
    }
    assert outside.started == {}


# Launchers that break one promise each


class Spoiled:
    """A launcher that is as good as another, but for one thing."""

    tier: Any = "spoiled"
    guarantees: Mapping[str, str] = {"processes": "enforced"}

    def __init__(self, inner: SupervisedLauncher) -> None:
        self.inner = inner

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[LauncherSession]:
        yield self

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return await self.inner.launch(command, stdin, limits)


class Nameless(Spoiled):
    tier = ""


class Vague(Spoiled):
    guarantees: Mapping[str, str] = {"processes": "enforced", "reads": "mostly"}


class ThroughAShell(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        line = " ".join(command.argv)
        return await self.inner.launch(attrs.evolve(command, argv=("/bin/sh", "-c", line)), stdin, limits)


class Inheriting(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        everything = {**os.environ, **command.environment}
        return await self.inner.launch(attrs.evolve(command, environment=everything), stdin, limits)


class Stripping(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        kept = {name: value for name, value in command.environment.items() if value}
        return await self.inner.launch(attrs.evolve(command, environment=kept), stdin, limits)


class Elsewhere(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return await self.inner.launch(attrs.evolve(command, cwd=command.cwd.parent), stdin, limits)


class Raising(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        if exit_.ending is Ending.NOT_STARTED:
            raise OSError(exit_.error_number, "no such luck")
        return exit_


class Silent(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return attrs.evolve(await self.inner.launch(command, stdin, limits), error="", error_number=0)


class OnePipeful(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return await self.inner.launch(command, stdin[:65536], limits)


class Insisting(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        if len(stdin) > 1_000_000:
            raise BrokenPipeError("the command has closed its input")
        return exit_


class LikeAShell(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        if exit_.signal is None:
            return exit_
        return attrs.evolve(exit_, status=128 + signal.Signals[exit_.signal], signal=None)


class OneStream(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        return attrs.evolve(exit_, stdout=exit_.stdout + exit_.stderr, stderr=b"")


class OffByOne(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        assert limits.stdout_bytes is not None
        return await self.inner.launch(command, stdin, attrs.evolve(limits, stdout_bytes=limits.stdout_bytes - 1))


class Quiet(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        return attrs.evolve(exit_, ending=Ending.BY_ITSELF) if exit_.ending is Ending.STDOUT_FULL else exit_


class KeepsTheHead(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, attrs.evolve(limits, stderr_bytes=10**6))
        return attrs.evolve(exit_, stderr=exit_.stderr[: limits.stderr_bytes], truncated=frozenset({"stderr"}))


class WaitsForTheEndOfStreams(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await self.inner.launch(command, stdin, limits)
        await trio.sleep(60 if exit_.left_behind else 0)
        return exit_


class Plain(Spoiled):
    """Starts a program, waits for it, kills it alone when its time is up: what everybody writes first."""

    minds_the_time = True

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        async def kill(process: trio.Process) -> None:
            process.kill()

        done: subprocess.CompletedProcess[bytes] | None = None
        with trio.move_on_after(limits.wall_seconds or 0 if self.minds_the_time else float("inf")):
            done = await trio.run_process(
                command.argv,
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd=command.cwd,
                env=command.environment,
                deliver_cancel=kill,
            )
        if done is None:
            return Exit(ending=Ending.DEADLINE, signal="SIGKILL")
        return Exit(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


class Timeless(Plain):
    minds_the_time = False


class Boasting(Spoiled):
    """Ends process groups, and says that it ends everything."""

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return await DirectLauncher().launch(command, stdin, limits)


class Swallowing(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        try:
            return await self.inner.launch(command, stdin, limits)
        except trio.Cancelled:
            return Exit(ending=Ending.DEADLINE)


class Lingering(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        try:
            return await self.inner.launch(command, stdin, limits)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2.8)


class Refusing(Spoiled):
    """Refuses to hold processor time, as it may."""

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        if limits.cpu_seconds is not None:
            raise heddle.SandboxUnavailable("limits.cpu_seconds", "it cannot be held here")
        return await self.inner.launch(command, stdin, limits)


class Generous(Refusing):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        return await super().launch(command, stdin, attrs.evolve(limits, file_bytes=None, open_files=None))


class LateToRefuse(Refusing):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        exit_ = await super().launch(command, stdin, attrs.evolve(limits, open_files=None))
        if limits.open_files is not None:
            raise heddle.SandboxUnavailable("limits.open_files", "it is too late")
        return exit_


class Strangling(Refusing):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        memory_bytes = None if limits.memory_bytes is None else 1
        return await super().launch(command, stdin, attrs.evolve(limits, memory_bytes=memory_bytes))


class OneByOne(Spoiled):
    def __init__(self, inner: SupervisedLauncher) -> None:
        super().__init__(inner)
        self.lock = trio.Lock()

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        async with self.lock:
            return await self.inner.launch(command, stdin, limits)


class Mixing(Spoiled):
    stdin = b""

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        self.stdin = stdin
        await trio.sleep(0.01)
        return await self.inner.launch(command, self.stdin, limits)


class Alone(Spoiled):
    is_open = False

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[LauncherSession]:
        # The checks hold one open, and two more are the first that are open beside it.
        if self.is_open:
            raise RuntimeError("there is a session already")
        self.is_open = True
        yield self
        self.is_open = False


class TidiesUpLater(Spoiled):
    """Starts something when a session is closed, and does not wait for it."""

    left: subprocess.Popen[bytes] | None = None
    last: Command | None = None

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[LauncherSession]:
        yield self
        if self.last is not None and self.left is None:
            self.left = subprocess.Popen(["/bin/sleep", "60"], env=dict(self.last.environment))

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        self.last = command
        return await super().launch(command, stdin, limits)


class Unconcerned(Spoiled):
    """Takes a policy, and has another launcher work without one."""

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncIterator[LauncherSession]:
        async with self.inner.session(attrs.evolve(confinement, sandbox=None)):
            yield self


class Careless(Spoiled):
    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        await self.inner.launch(command, stdin, limits)
        return None  # type: ignore[return-value]


@attrs.frozen
class PlantedLauncher:
    """A fault, the promise that it breaks, and some of what the check has to see."""

    fault: type[Spoiled]
    promise: str
    seen: str


PLANTED_LAUNCHERS = [
    PlantedLauncher(Nameless, "names", "tier is ''"),
    PlantedLauncher(Vague, "names", "guarantees holds {'reads': 'mostly'}"),
    PlantedLauncher(ThroughAShell, "arguments", "the command got b'' instead of b'two words\\x00\\x00$(echo no)"),
    PlantedLauncher(Careless, "arguments", "launch returned None, which is no heddle.process.Exit"),
    PlantedLauncher(Inheriting, "environment", "the command has also got {"),
    PlantedLauncher(
        Stripping, "environment", "the command has got {'WORD_1': None}, where None is a variable that is missing"
    ),
    PlantedLauncher(Elsewhere, "cwd", "a file that the command made in its current folder is not in `cwd`"),
    PlantedLauncher(Raising, "start", "it raised FileNotFoundError: [Errno 2] no such luck"),
    PlantedLauncher(Silent, "start", "a file that is not there: neither `error` nor `error_number` says what is wrong"),
    PlantedLauncher(OnePipeful, "stdin", "the command read "),
    PlantedLauncher(Insisting, "unread stdin", "it raised BrokenPipeError: the command has closed its input"),
    PlantedLauncher(
        LikeAShell, "status", "a signal is told as (<Ending.BY_ITSELF: 'by itself'>, 138, None) instead of"
    ),
    PlantedLauncher(OneStream, "streams", "standard output and error are (b'outerr', b'') instead of (b'out', b'err')"),
    PlantedLauncher(OffByOne, "streams", "output of exactly the limit ended as (<Ending.STDOUT_FULL"),
    PlantedLauncher(
        Quiet, "stdout_bytes", "a command that prints without end ended as BY_ITSELF instead of STDOUT_FULL"
    ),
    PlantedLauncher(KeepsTheHead, "stderr_bytes", r"of standard error there is b'1\n2\n3\n"),
    PlantedLauncher(Plain, "left behind", "still alive: process "),
    PlantedLauncher(Boasting, "daemons", "still alive: process "),
    PlantedLauncher(Plain, "grace", "the command could not say its last word: it was ended at once"),
    PlantedLauncher(Plain, "cancelled", "still alive: process "),
    PlantedLauncher(Swallowing, "cancelled", "launch returned Exit(ending=<Ending.DEADLINE"),
    PlantedLauncher(Generous, "limits", "the command was started and not held to limits.open_files, limits.file_bytes"),
    PlantedLauncher(LateToRefuse, "limits", "limits.open_files was refused after the command had been started"),
    PlantedLauncher(Strangling, "limits", "held to limits.memory_bytes, a command that begins with much less has not"),
    PlantedLauncher(Mixing, "at once", "commands that repeat what they read answered {"),
    PlantedLauncher(Unconcerned, "policy", "with a policy that grants nothing the command read a file outside"),
    PlantedLauncher(Alone, "sessions", "it raised RuntimeError: there is a session already"),
    PlantedLauncher(TidiesUpLater, "sessions", "still alive: process "),
]
# What comes too late is waited for: these are waited for together.
LATE_LAUNCHERS = [
    PlantedLauncher(WaitsForTheEndOfStreams, "late output", "launch waits for a child that holds standard output"),
    PlantedLauncher(Timeless, "deadline", "2.9 s after its start launch had not returned: the command has 0.3 s, and "),
    PlantedLauncher(Lingering, "cancelled", "s after it was cancelled"),
    PlantedLauncher(OneByOne, "at once", "4 commands that wait for each other did not run at the same time"),
]


@pytest.mark.parametrize(
    "planted", PLANTED_LAUNCHERS, ids=lambda planted: f"{planted.promise}, {planted.fault.__name__}"
)
async def test_a_launcher_that_breaks_a_promise_is_found_out(
    good: SupervisedLauncher, planted: PlantedLauncher
) -> None:
    launcher = planted.fault(good)

    try:
        with pytest.raises(ConformanceError) as raised:
            await check_launcher(launcher, only=planted.promise)
    finally:
        if isinstance(launcher, TidiesUpLater) and launcher.left is not None:
            launcher.left.kill()
            launcher.left.wait()

    (broken,) = raised.value.broken
    assert broken.name == planted.promise
    assert planted.seen in broken.seen


async def test_launchers_that_come_too_late_are_found_out(good: SupervisedLauncher) -> None:
    seen: dict[str, str] = {}

    async def check(planted: PlantedLauncher) -> None:
        with pytest.raises(ConformanceError) as raised:
            await check_launcher(planted.fault(good), only=planted.promise, patience_seconds=0.1)
        (broken,) = raised.value.broken
        seen[broken.name] = broken.seen

    async with trio.open_nursery() as nursery:
        for planted in LATE_LAUNCHERS:
            nursery.start_soon(check, planted)

    assert [planted.seen in seen[planted.promise] for planted in LATE_LAUNCHERS] == [True] * 4, seen


def test_every_promise_of_a_launcher_has_a_fault_that_breaks_it() -> None:
    assert {planted.promise for planted in [*PLANTED_LAUNCHERS, *LATE_LAUNCHERS]} == set(LAUNCHER_PROMISES)


async def test_every_broken_promise_is_told_with_what_was_seen(good: SupervisedLauncher) -> None:
    class Twice(ThroughAShell, Nameless):
        pass

    with pytest.raises(ConformanceError) as raised:
        await check_launcher(Twice(good), only=["names", "arguments", "cwd"])

    error = raised.value
    assert [broken.name for broken in error.broken] == ["names", "arguments"]
    assert error.broken[0] == Broken(
        "names", "`tier` is a text, and `guarantees` says enforced, partial or no of each word", "tier is ''"
    )
    assert error.conformance == Conformance(("cwd",))
    assert str(error) == "\n".join(
        [
            "Twice does not keep 2 of 3 promises:",
            f"- names: {error.broken[0].promise}",
            "  seen: tier is ''",
            f"- arguments: {error.broken[1].promise}",
            f"  seen: {error.broken[1].seen}",
        ]
    )


async def test_what_a_launcher_raised_is_the_cause_of_the_error(good: SupervisedLauncher) -> None:
    """Else its author would have to guess where."""
    with pytest.raises(ConformanceError) as raised:
        await check_launcher(Insisting(good), only=["unread stdin"])

    assert isinstance(raised.value.__cause__, BrokenPipeError)


async def test_a_launcher_that_does_not_speak_for_processes_is_not_asked_about_children(
    good: SupervisedLauncher,
) -> None:
    class Modest(Plain):
        guarantees: Mapping[str, str] = {}

    found = await check_launcher(Modest(good), only=["left behind", "daemons", "cancelled"])

    assert found == Conformance(
        ("cancelled",),
        {
            "left behind": "the launcher's guarantees do not speak for processes",
            "daemons": "the launcher's guarantees say 'no' of processes",
        },
    )


async def test_a_backend_that_does_not_speak_for_processes_is_not_asked_about_children() -> None:
    class Modest(Plainly):
        guarantees: Mapping[str, str] = {}

    found = await check_backend(Modest(), only=["left behind"])

    assert found == Conformance((), {"left behind": "the backend's guarantees do not speak for processes"})


async def test_where_processes_are_out_of_sight_a_file_that_grows_tells(
    good: SupervisedLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems that have no ``/proc``, and for a command that was moved to another machine."""
    monkeypatch.setattr(ground, "HAS_PROC", False)

    kept = await check_launcher(good, only=["left behind"])
    with pytest.raises(ConformanceError) as raised:
        await check_launcher(Plain(good), only=["left behind"])

    assert kept == Conformance(("left behind",))
    assert raised.value.broken[0].seen == "still alive: something that writes into the workspace"


async def test_a_check_that_is_never_over_is_a_promise_that_is_not_kept() -> None:
    async def check(subject: str) -> None:
        await trio.sleep_forever()

    with pytest.raises(
        ConformanceError, match=r"Hanging does not keep 1 of 1 promises:\n- end: it ends\n  seen: nothing"
    ):
        await examine("Hanging", "", [Promise("end", "it ends", check, seconds=0.05)])


async def test_patience_is_given_to_every_check() -> None:
    async def check(subject: str) -> None:
        await trio.sleep(0.1)

    found = await examine("Slow", "", [Promise("end", "it ends", check, seconds=0.05)], patience_seconds=5)

    assert found == Conformance(("end",))


async def test_a_launcher_that_names_its_survivors_is_honest(good: SupervisedLauncher) -> None:
    class Honest(Plain):
        async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
            exit_ = await super().launch(command, stdin, limits)
            return attrs.evolve(exit_, survivors=tuple(processes_with_attempt(command.attempt_id)))

    assert await check_launcher(Honest(good), only=["left behind"]) == Conformance(("left behind",))


def processes_with_attempt(attempt_id: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if attempt_id.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


# Backends


class Plainly:
    """A backend that keeps its promises: it moves nothing, and refuses every policy, which it could not hold."""

    name = "plainly"
    guarantees: Mapping[str, str] = {"processes": "enforced"}

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        if confinement.sandbox is not None:
            raise heddle.SandboxUnavailable(self.name, "it confines nothing")
        yield self

    def prepare(self, command: Command) -> Command:
        return through(command, "/usr/bin/env")

    async def kill(self, attempt_id: str) -> None:
        pass


def through(command: Command, *words: str) -> Command:
    return attrs.evolve(command, argv=(*words, *command.argv))


class Outside(Plainly):
    """A backend as container engines are: beside the command something runs that no process tree holds."""

    def __init__(self) -> None:
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self, command: Command) -> Command:
        if command.attempt_id not in self.started:
            # A process of its own here; with an engine, a container that ``docker run`` has asked for.
            self.started[command.attempt_id] = subprocess.Popen(["/bin/sleep", "60"], env=dict(command.environment))
        return super().prepare(command)

    async def kill(self, attempt_id: str) -> None:
        self.end(attempt_id)

    def end(self, attempt_id: str) -> None:
        process = self.started.pop(attempt_id, None)
        if process is not None:
            process.kill()
            process.wait()


class Unnamed(Plainly):
    name = ""


class Sweeping(Plainly):
    guarantees: Mapping[str, str] = {"processes": "enforced", "everything": "yes"}


class AlwaysWell(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "/bin/sh", "-c", '"$@"; exit 0', "sh")


class Deaf(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "/bin/sh", "-c", 'exec "$@" </dev/null', "sh")


class Mute(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "/bin/sh", "-c", 'exec "$@" 2>/dev/null', "sh")


class Joining(Plainly):
    def prepare(self, command: Command) -> Command:
        return attrs.evolve(command, argv=("/bin/sh", "-c", " ".join(command.argv)))


class Leaking(Plainly):
    def prepare(self, command: Command) -> Command:
        return attrs.evolve(command, environment={**os.environ, **command.environment})


class Forgetting(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "/usr/bin/env", "-u", "WORD_0")


class AtTheRoot(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "/bin/sh", "-c", 'cd / && exec "$@"', "sh")


class InACopy(Plainly):
    """Runs tools in a folder of its own, and brings nothing back."""

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        with tempfile.TemporaryDirectory() as folder:
            self.folder = folder
            yield self

    def prepare(self, command: Command) -> Command:
        moved = {**command.environment, "HEDDLE_WORKSPACE": self.folder}
        return attrs.evolve(command, cwd=Path(self.folder), environment=moved)


class AlwaysAtTheTop(Plainly):
    def prepare(self, command: Command) -> Command:
        return attrs.evolve(command, cwd=Path(command.environment.get("HEDDLE_WORKSPACE", "/")))


class Counting(Plainly):
    numbers = itertools.count()

    def prepare(self, command: Command) -> Command:
        return through(command, "/usr/bin/env", f"NUMBER={next(self.numbers)}")


class Scribbling(Plainly):
    def prepare(self, command: Command) -> Command:
        command.environment["MOVED"] = "yes"  # type: ignore[index]
        return super().prepare(command)


class Anonymous(Plainly):
    def prepare(self, command: Command) -> Command:
        kept = {name: value for name, value in command.environment.items() if name != "HEDDLE_ATTEMPT_ID"}
        return attrs.evolve(command, environment=kept)


class Relative(Plainly):
    def prepare(self, command: Command) -> Command:
        return through(command, "env")


class Worded(Plainly):
    def prepare(self, command: Command) -> Command:
        return ["/usr/bin/env", *command.argv]  # type: ignore[return-value]


class Particular(Plainly):
    async def kill(self, attempt_id: str) -> None:
        raise LookupError(f"no container is called {attempt_id[:2]}")


class Hesitating(Plainly):
    async def kill(self, attempt_id: str) -> None:
        await trio.sleep(60)


class Abandoning(Outside):
    async def kill(self, attempt_id: str) -> None:
        pass


class Promising(Plainly):
    """Says yes to every policy, and holds none."""

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        yield self


class Single(Plainly):
    is_open = False

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        if self.is_open:
            raise RuntimeError("there is a session already")
        self.is_open = True
        try:
            yield self
        finally:
            self.is_open = False


class Stumbling(Plainly):
    """Cannot close a session that anything was run in."""

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        session = Stumbling()
        yield session
        if session.was_used:
            raise RuntimeError("the container is still running")

    was_used = False

    def prepare(self, command: Command) -> Command:
        self.was_used = True
        return super().prepare(command)


@attrs.frozen
class PlantedBackend:
    """A fault, the promise that it breaks, and some of what the check has to see."""

    fault: type[Plainly]
    promise: str
    seen: str
    patience_seconds: float = 2.0


PLANTED_BACKENDS = [
    PlantedBackend(Unnamed, "names", "name is ''"),
    PlantedBackend(Sweeping, "names", "guarantees holds {'everything': 'yes'}"),
    PlantedBackend(AlwaysWell, "answer", "exit 7 is told as 0 instead of 7"),
    PlantedBackend(Deaf, "answer", "a tool that repeats its arguments answered {} instead of {'text'"),
    PlantedBackend(Mute, "answer", "what a tool said on standard error is told as ''"),
    PlantedBackend(Joining, "arguments", 'a call failed (crashed): tool "words" exited with status 2'),
    PlantedBackend(Leaking, "environment", "the tool has got variables of the host that its command does not have: ["),
    PlantedBackend(Forgetting, "environment", "the tool got the variables {"),
    PlantedBackend(AtTheRoot, "workspace", "the tool does not begin in the folder that HEDDLE_WORKSPACE names"),
    PlantedBackend(InACopy, "workspace", "a file that the tool wrote holds, here, None instead of 'by a tool\\n'"),
    PlantedBackend(AlwaysAtTheTop, "cwd", "a file that the tool made in its current folder is not in `cwd`"),
    PlantedBackend(Counting, "prepare", "the same command, prepared again, is "),
    PlantedBackend(Scribbling, "prepare", "the command that was given is now "),
    PlantedBackend(Anonymous, "prepare", "the attempt's id in the environment is '' instead of "),
    PlantedBackend(Relative, "prepare", "the program of the command is 'env', which is no absolute path"),
    PlantedBackend(Worded, "prepare", "`prepare` returned ["),
    PlantedBackend(Particular, "kill", "it raised LookupError: no container is called "),
    PlantedBackend(Hesitating, "kill", "`kill` had not returned after 0.5 s", 0.3),
    PlantedBackend(Outside, "left behind", "still alive: process "),
    PlantedBackend(Abandoning, "deadline", "still alive: process "),
    PlantedBackend(Particular, "cancelled", "`kill` raised LookupError: no container is called "),
    PlantedBackend(
        Promising, "policy", "with a policy that grants nothing the tool read and wrote and reached the net"
    ),
    PlantedBackend(Single, "sessions", "it raised RuntimeError: there is a session already"),
    PlantedBackend(Stumbling, "sessions", "it raised RuntimeError: the container is still running"),
]


@pytest.mark.parametrize(
    "planted", PLANTED_BACKENDS, ids=lambda planted: f"{planted.promise}, {planted.fault.__name__}"
)
async def test_a_backend_that_breaks_a_promise_is_found_out(
    planted: PlantedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "hidden")
    backend = planted.fault()

    try:
        with pytest.raises(ConformanceError) as raised:
            await check_backend(backend, only=planted.promise, patience_seconds=planted.patience_seconds)
    finally:
        if isinstance(backend, Outside):
            for attempt_id in list(backend.started):
                backend.end(attempt_id)

    (broken,) = raised.value.broken
    assert broken.name == planted.promise
    assert planted.seen in broken.seen


def test_every_promise_of_a_backend_has_a_fault_that_breaks_it() -> None:
    assert {planted.promise for planted in PLANTED_BACKENDS} == set(BACKEND_PROMISES)


class NotThere(Plainly):
    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncIterator[BackendSession]:
        raise heddle.SandboxUnavailable(self.name, "it is not installed")
        yield self


async def test_a_runner_that_refuses_to_work_here_is_not_blamed(good: SupervisedLauncher) -> None:
    class Absent(Spoiled):
        @asynccontextmanager
        async def session(self, confinement: Confinement) -> AsyncIterator[LauncherSession]:
            raise heddle.SandboxUnavailable("absent", "it is not installed")
            yield self

    with pytest.raises(heddle.SandboxUnavailable, match="it is not installed"):
        await check_launcher(Absent(good))
    with pytest.raises(heddle.SandboxUnavailable, match="it is not installed"):
        await check_backend(NotThere())


async def test_a_promise_that_does_not_exist_is_a_mistake_of_the_caller(good: SupervisedLauncher) -> None:
    with pytest.raises(ValueError, match=r"there is no promise 'deadlines'; there are 'names', 'arguments', "):
        await check_launcher(good, only=["deadline", "deadlines"])
