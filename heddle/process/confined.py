"""Run programs to their end in a sandbox. How they end is the supervisor's business; what they may do is the tier's.

Three ways, of which a machine offers some: containers that one supervisor inside of bubblewrap makes ahead of the calls
(`Enclosure`), a container of bubblewrap's own for each call, and keepers that Landlock restricts. The guard starts all
of them: what a confined program leaves behind falls to a process that it can neither see nor signal.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import socket
import time
import weakref
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs
import trio

from heddle.errors import SandboxUnavailable
from heddle.limits import Limits
from heddle.process import diagnosis, supervisor
from heddle.process.guard import CONTAINER, IDLE_KEEPERS, PROGRAM, Guard, GuardError, Line, Watch, interpreter
from heddle.process.supervised import Extras, SupervisedLauncher, run_to_the_end, send_by_file, send_launch
from heddle.process.values import ATTEMPT_VARIABLE, Command, Ending, Exit
from heddle.sandbox import bubblewrap
from heddle.sandbox.handles import Handles
from heddle.sandbox.landlock import SCOPES_SINCE, new_ruleset, tasks_of
from heddle.sandbox.policy import Usual

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from heddle.sandbox.policy import Confinement, Network
    from heddle.sandbox.tiers import Tier

__all__ = ["ConfinedLauncher"]

# What a supervisor inside may say on its way out: one line of bubblewrap's, or the end of a traceback.
LAST_WORDS = 4096
# 1: the next call's; a further one would be made while a call could use the processor.
SPARES = 1
# 128: what other calls may start meanwhile, where the kernel counts those of a user together; 32 calls at once, each
# with its keeper, its tool and two more.
OTHERS = 128
# 1 s between two looks at how many processes a user has: one takes about as long as starting a program.
COUNT_SECONDS = 1.0
# 4 ms between two calls: about what a container takes to be made.
BACK_TO_BACK_SECONDS = 0.004
# 2: one call alone needs nothing ready after it.
WORTH_PREPARING = 2
_NOTHING = Limits()
_SIGNALS = frozenset(int(number) for number in signal.Signals)


class ConfinedLauncher(SupervisedLauncher):
    """Brings programs to their end in a sandbox."""

    def __init__(self, tier: Tier) -> None:
        super().__init__()
        self.tier: str = tier.name
        self.guarantees: Mapping[str, str] = tier.guarantees
        # Opened now, before any tool has run: what a path of the policy leads to later may be a tool's work.
        self._handles = Handles.on(grant.path for grant in tier.plan.grants)
        inner = bubblewrap.folders_of_python(os.path.realpath(interpreter())) if tier.kind == "containers" else ()
        tier = attrs.evolve(tier, plan=attrs.evolve(tier.plan, handles=self._handles.by_path, inner=inner))
        self._tier = tier
        self._filters = _Filters(tier)
        self._enclosure = Enclosure(self._guard, tier) if tier.kind == "containers" else None

    async def __aexit__(self, *exception: object) -> None:
        """End what it has started, and wait until it is gone."""
        try:
            if self._enclosure is not None:
                self._enclosure.close()
            await super().__aexit__(*exception)
        finally:
            self._filters.close()
            self._handles.close()

    def start(self) -> None:
        """Start the supervisor, and the one inside of it, ahead of the first launch."""
        super().start()
        if self._enclosure is not None:
            self._enclosure.start()

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[ConfinedSession, None]:
        """Open a session for the calls of one scope."""
        session = self.open(confinement)
        try:
            yield session
        finally:
            session.close()

    def open(self, confinement: Confinement) -> ConfinedSession:
        """Return a session for the calls of one scope, which is closed by whoever asked for it.

        Raises:
            SandboxUnavailable: Its workspace cannot be held to what it should be.
        """
        tier, enclosure = self._tier, self._enclosure
        owned: Enclosure | None = None
        handles: Handles | None = None
        if not tier.reaches(confinement.workspace):
            from heddle.sandbox.choice import tier_of_folder

            if any(root.is_relative_to(confinement.workspace) for root in tier.plan.roots):
                raise SandboxUnavailable(
                    "workspace=…",
                    f"{confinement.workspace} holds the folder in which the runner makes its own workspaces, "
                    "which tools could reach then. Adopt another one, or set TMPDIR elsewhere",
                )
            inside = confinement.inside
            held = [grant for grant in (*tier.plan.grants, *inside) if grant.mode == "ro"]
            lost = [grant.path for grant in held if grant.path.is_relative_to(confinement.workspace)]
            if tier.kind == "landlock" and lost:
                raise SandboxUnavailable(
                    "workspace=…",
                    f"Landlock cannot keep {lost[0]} read-only inside of a folder that tools may write. "
                    "Adopt one that holds no tools and nothing that is only read, or take bubblewrap",
                )
            grants = [*confinement.of_workspace, *inside]
            try:
                handles = Handles.on(grant.path for grant in grants)
            except OSError as error:
                raise SandboxUnavailable("workspace=…", str(error)) from error
            tier = tier_of_folder(tier, confinement.workspace, grants, handles.by_path)
            if enclosure is not None:
                enclosure = owned = Enclosure(self._guard, tier)
        return ConfinedSession(
            tier,
            confinement,
            guard=self._guard,
            enclosure=enclosure,
            owned=owned,
            handles=handles,
            filters=self._filters,
            survivors=self.survivors,
        )


class ConfinedSession:
    """Runs the programs of one scope."""

    def __init__(
        self,
        tier: Tier,
        confinement: Confinement,
        *,
        guard: Guard,
        enclosure: Enclosure | None,
        owned: Enclosure | None,
        handles: Handles | None,
        filters: _Filters,
        survivors: dict[str, tuple[int, ...]],
    ) -> None:
        self._tier = tier
        self._confinement = confinement
        self._guard = guard
        self._enclosure = enclosure
        self._owned = owned
        self._handles = handles
        self._filters = filters
        self.survivors = survivors
        self.guarantees: Mapping[str, str] = tier.guarantees
        self._wardrobe: dict[tuple[Network, Limits], Containers | Restricted] = {}

    @trio.lowlevel.enable_ki_protection  # Ctrl-C comes at a wait, and not between making a thing and minding it
    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Run `command` to its end, and everything that it starts; see `heddle.process.LauncherSession`."""
        if isinstance(limits.processes, Usual) and self._tier.uid == 0:
            limits = attrs.evolve(limits, processes=None)
        if limits.processes is not None and self._tier.uid == 0:
            raise SandboxUnavailable(
                "limits.processes", "tools run as root here, whose processes the kernel does not count; see run_as"
            )
        network = "none" if command.network == "none" else self._tier.plan.network
        program = _without_links(command.argv[0])
        if self._tier.kind == "single":
            command = attrs.evolve(command, argv=(program, *command.argv[1:]))
            return await self._launch_alone(command, stdin, limits, network)
        lines = self._lines(network, limits)
        left = attrs.evolve(limits, memory_bytes=None, processes=None)
        return await run_to_the_end(
            lines, command, stdin, left, survivors=self.survivors, extras=Extras(program=program)
        )

    def _lines(self, network: Network, limits: Limits) -> Containers | Restricted:
        """Return where keepers come from that are confined to this network and these limits."""
        # Only what a keeper can be held to once and for all.
        held = attrs.evolve(_NOTHING, memory_bytes=limits.memory_bytes, processes=limits.processes)
        lines = self._wardrobe.get((network, held))
        if lines is None:
            dress = self._dress(network, held)
            lines = Restricted(self._guard, dress) if self._enclosure is None else Containers(self._enclosure, dress)
            self._wardrobe[network, held] = lines
        return lines

    def _dress(self, network: Network, held: Limits) -> Dress:
        tier, confinement = self._tier, self._confinement
        flags, ruleset = "f", -1
        binds: tuple[bubblewrap.Bind, ...] = ()
        if tier.kind == "landlock":
            grants = [*tier.grants, *confinement.of_workspace]
            ruleset = new_ruleset(tier.abi, grants, handles=tier.plan.handles, network=network == "host")
            flags += "l" + ("s" if tier.abi >= SCOPES_SINCE else "") + ("r" if tier.user else "")
        elif network == "host" and tier.abi >= SCOPES_SINCE:
            ruleset = new_ruleset(tier.abi, scopes_only=True)
            flags += "l"
        if tier.kind == "containers":
            binds = bubblewrap.binds_for(tier.plan, confinement.workspace, confinement.places, confinement.reserved)
            flags += ("n" if network != tier.plan.network else "") + ("r" if tier.plan.joins_namespace else "")
        if tier.kind == "single":  # bubblewrap does all else
            flags = "ls"
        return Dress(
            flags=flags,
            uid=tier.uid,
            gid=tier.gid,
            held=held,
            binds=binds,
            filter=self._filters.of(network) if "f" in flags else -1,
            ruleset=ruleset,
            counts_everybody=tier.kind == "landlock",
        )

    async def _launch_alone(self, command: Command, stdin: bytes, limits: Limits, network: Network) -> Exit:
        """Run it in a container of bubblewrap's own."""
        tier, confinement = self._tier, self._confinement
        plan = attrs.evolve(tier.plan, network=network)
        binds = bubblewrap.binds_for(
            plan, confinement.workspace, confinement.places, confinement.reserved, everything=True
        )
        number = diagnosis.why_no_program(command.argv[0], lambda path: bubblewrap.is_in_sight(path, binds))
        if number:  # a shell would try to run it as a script of its own
            return Exit(ending=Ending.NOT_STARTED, error_number=number, error=os.strerror(number))
        info = os.memfd_create("heddle-info", os.MFD_CLOEXEC)
        try:
            started = bubblewrap.single_command(
                plan,
                binds,
                command.argv,
                cwd=str(command.cwd),
                environment=command.environment,
                seccomp=self._filters.of(network),
                info=info,
                processes=limits.processes,
            )
        except OSError as error:
            os.close(info)
            return Exit(ending=Ending.NOT_STARTED, error=f"its container cannot be made: {error}")
        # bubblewrap itself needs none of the tool's variables, which may be secrets.
        known = {"PATH": os.defpath, ATTEMPT_VARIABLE: command.attempt_id}
        wrapped = attrs.evolve(command, argv=started.argv, cwd=Path("/"), environment=known)
        # Between what is started and the tool: bubblewrap, and the first process of its namespace.
        extras = Extras(user=tier.user, no_core=True, depth=2, handles=tuple(started.handles))
        # With the host's network only Landlock keeps its abstract sockets out of reach.
        lines = self._lines(network, _NOTHING) if network == "host" and tier.abi >= SCOPES_SINCE else self._guard
        try:
            left = attrs.evolve(limits, processes=None)
            exit_ = await run_to_the_end(lines, wrapped, stdin, left, survivors=self.survivors, extras=extras)
            if exit_.ending is Ending.BY_ITSELF and not os.fstat(info).st_size:
                said = exit_.stderr.decode("utf-8", "replace").strip()
                return Exit(ending=Ending.NOT_STARTED, error=f"its container cannot be made: {said}")
            return _with_signal(exit_)
        finally:
            started.close()
            os.close(info)

    def close(self) -> None:
        """Let every keeper of this scope go."""
        for lines in self._wardrobe.values():
            lines.close()
        self._wardrobe.clear()
        if self._owned is not None:
            self._owned.close()
        if self._handles is not None:
            self._handles.close()


def _with_signal(exit_: Exit) -> Exit:
    """Return an exit of bubblewrap as the tool's: it adds 128 to the signal that has ended its program."""
    number = (exit_.status or 0) - 128
    if number not in _SIGNALS:
        return exit_
    return attrs.evolve(exit_, status=None, signal=signal.Signals(number).name)


def _without_links(path: str) -> str:
    """Return where a program really is: links on the way to it are not in sight in a sandbox."""
    return os.path.realpath(path)


@attrs.frozen(kw_only=True, eq=False)
class Dress:
    """What a keeper is confined to."""

    flags: str
    uid: int
    gid: int
    held: Limits
    binds: tuple[bubblewrap.Bind, ...]
    filter: int
    ruleset: int
    counts_everybody: bool

    def put_on(self, line: Line) -> None:
        """Tell a new keeper what it is confined to; its first launch says if that cannot be.

        Raises:
            OSError: It cannot be told.
        """
        processes = self.held.processes
        if processes is not None:
            processes += 1  # the keeper is one of them
            if self.counts_everybody:
                line.most_tasks = processes = tasks_of(self.uid) + processes + OTHERS
        limits = ["", self.held.memory_bytes, "", "", processes, 0]
        fields = [self.flags, str(self.uid), str(self.gid), *("" if limit is None else str(limit) for limit in limits)]
        for bind in self.binds:
            fields += [bind.mode, bind.source, bind.target]
        fds = [fd for fd in (self.filter, self.ruleset) if fd >= 0]
        send_by_file(line.socket, b"N" + os.fsencode("\0".join(fields)), fds, b"O")

    def close(self) -> None:
        """Close what only this scope needs."""
        if self.ruleset >= 0:
            os.close(self.ruleset)


class Restricted:
    """Keepers that have restricted themselves, with all that they start; each runs one call after another."""

    def __init__(self, guard: Guard, dress: Dress) -> None:
        self._guard = guard
        self._dress = dress
        self._idle: list[Line] = []
        self._tasks = 0
        self._counted_at = 0.0
        self._is_over = False

    def take(self) -> Line:
        """Return a line to a keeper that is free; see `heddle.process.supervised.Lines`."""
        watch = self._guard.start()
        while self._idle:
            line = self._idle.pop()
            if line.watch is watch and self._has_room(line):
                return line
            line.close()
        return _dressed(watch, self._dress, self)

    def _has_room(self, line: Line) -> bool:
        """Return whether a keeper may still start as many processes as a call may have."""
        if not line.most_tasks or not self._dress.counts_everybody:
            return True
        now = time.monotonic()
        if now - self._counted_at > COUNT_SECONDS:
            self._tasks, self._counted_at = tasks_of(self._dress.uid), now
        return self._tasks + (self._dress.held.processes or 0) <= line.most_tasks

    def was_sent(self) -> None:
        """Do nothing: these keepers are used again."""

    def give_back(self, line: Line) -> None:
        """Keep a line for the next call, or let its keeper go."""
        if self._is_over or line.watch.ended or len(self._idle) >= IDLE_KEEPERS:
            line.close()
        else:
            self._idle.append(line)

    def lose(self, watch: Watch) -> None:
        """Put a supervisor out of use."""
        self._guard.lose(watch)

    def close(self) -> None:
        """Let the keepers go."""
        self._is_over = True
        while self._idle:
            self._idle.pop().close()
        self._dress.close()


class Containers:
    """Keepers that each have a container of their own and run one call; the next is ready before it is needed."""

    def __init__(self, enclosure: Enclosure, dress: Dress) -> None:
        self._enclosure = enclosure
        self._dress = dress
        self._spares: list[Line] = []
        self._calls = 0
        self._ended_at = -math.inf

    def take(self) -> Line:
        """Return a line to a keeper that is free; see `heddle.process.supervised.Lines`."""
        watch = self._enclosure.start()
        while self._spares:
            line = self._spares.pop()
            if line.watch is watch and line.is_there():
                return line
            line.close()
        line = self._enclosure.take_blank()
        _put_on(line, self._dress)
        return line

    def was_sent(self) -> None:
        """Make the next container now where calls come back to back: else it would be late for every one of them."""
        if trio.current_time() - self._ended_at < BACK_TO_BACK_SECONDS and self._enclosure.in_use() == 1:
            self._make_the_next()

    def give_back(self, line: Line) -> None:
        """Let a keeper go that has run its call, and make the next: sooner, the two would be in each other's way."""
        line.close()
        self._calls += 1
        self._ended_at = trio.current_time()
        self._make_the_next()

    def _make_the_next(self) -> None:
        """Make ahead what the next call needs; where that fails it says so."""
        self._enclosure.refill()
        if self._calls < WORTH_PREPARING or len(self._spares) >= SPARES:
            return
        with contextlib.suppress(OSError, GuardError):
            self._spares.append(_dressed(self._enclosure.start(), self._dress, self))

    def lose(self, watch: Watch) -> None:
        """Put a supervisor out of use."""
        self._enclosure.lose(watch)

    def close(self) -> None:
        """Let the keepers go."""
        while self._spares:
            self._spares.pop().close()
        self._dress.close()


def _dressed(watch: Watch, dress: Dress, lines: Containers | Restricted) -> Line:
    """Return a line to a new keeper that is confined.

    Raises:
        GuardError: None can be made.
        BlockingIOError: The supervisor has as much to do as its socket holds.
    """
    try:
        line = watch.add_keeper(confined=True)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in {errno.EPIPE, errno.ECONNRESET}:
            lines.lose(watch)
        raise GuardError(f"the host cannot make a way to a keeper: {error}") from error
    _put_on(line, dress)
    return line


def _put_on(line: Line, dress: Dress) -> None:
    try:
        dress.put_on(line)
    except BaseException as error:
        line.close()
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            raise GuardError(line.watch.why_it_ended()) from error
        raise


class Enclosure:
    """A supervisor inside of bubblewrap, for any number of scopes: started when first needed, replaced when lost."""

    def __init__(self, guard: Guard, tier: Tier) -> None:
        self._guard = guard
        self._tier = tier
        self._plan = tier.plan
        self._watch: Inner | None = None
        _enclosures.add(self)

    def start(self) -> Inner:
        """Return the supervisor in charge, starting one when there is none that can be trusted.

        Raises:
            GuardError: It cannot be started here.
        """
        watch = self._watch
        if watch is not None and not watch.is_sound():
            self.lose(watch)
            watch = None
        if watch is None:
            watch = self._watch = self._started()
            self._add_blank(watch)
        return watch

    def take_blank(self) -> Line:
        """Return a line to a keeper whose container is made, or being made, and which is not confined yet."""
        watch = self.start()
        while watch.idle:
            line = watch.idle.pop()
            if line.is_there():
                return line
            line.close()
        self._add_blank(watch)
        if not watch.idle:
            raise GuardError(watch.why_it_ended())
        return watch.idle.pop()

    def in_use(self) -> int:
        """Return how many containers there are beside those that were made for any call."""
        return 0 if self._watch is None else len(self._watch.lines) - len(self._watch.idle)

    def refill(self) -> None:
        """Make the next container ahead."""
        if self._watch is not None and not self._watch.ended and len(self._watch.idle) < SPARES:
            with contextlib.suppress(BlockingIOError):  # it has enough to do
                self._add_blank(self._watch)

    def _add_blank(self, watch: Inner) -> None:
        try:
            watch.idle.append(watch.add_keeper(confined=True))
        except BlockingIOError:
            raise
        except OSError:
            pass  # whoever needs it says so

    def lose(self, watch: Watch) -> None:
        """Put a supervisor out of use; the calls on its lines end by themselves."""
        if not watch.ended:
            watch.kill()
        if self._watch is watch:
            self._watch = None

    def close(self) -> None:
        """End the supervisor, and everything below it."""
        if self._watch is not None:
            self._watch.kill()
            self._watch = None

    def forget(self) -> None:
        """In a forked child: give up the copies."""
        if self._watch is not None:
            self._watch.forget()

    def _started(self) -> Inner:
        line = self._guard.take()
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said, saying = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        owned = [said]
        started: bubblewrap.Started | None = None
        given: list[int] = []
        try:
            near.setblocking(False)
            given = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), saying, os.pidfd_open(os.getpid())]
            python = interpreter()
            started = bubblewrap.session_command(
                self._plan,
                os.path.realpath(python),
                {"process": PROGRAM.parent, "sandbox": CONTAINER.parent},
                [
                    f"{bubblewrap.PROGRAMS}/process/{PROGRAM.name}",
                    supervisor.VERSION,
                    f"{bubblewrap.PROGRAMS}/sandbox",
                    "1" if self._plan.network == "none" else "0",
                    str(self._plan.tmp_bytes),
                    "1" if self._plan.is_root else "0",
                ],
            )
            null, error, host = given
            fds = [null, null, error, far.fileno(), host, *started.handles]
            command = Command(argv=started.argv, cwd=Path("/"), environment={"PATH": os.defpath})
            send_launch(line.socket, command, _NOTHING, fds, Extras(user=self._tier.user))
            owned.clear()
        except OSError as error:
            near.close()
            line.close()
            raise GuardError(f"bubblewrap cannot be started: {error}") from error
        except BaseException:
            near.close()
            line.close()
            raise
        finally:
            far.close()
            for fd in [*given, *owned]:
                os.close(fd)
            if started is not None:
                started.close()
        return Inner(control=near, session=line, said=said)


_enclosures: weakref.WeakSet[Enclosure] = weakref.WeakSet()


def _forget_all() -> None:
    for enclosure in _enclosures:
        enclosure.forget()


os.register_at_fork(after_in_child=_forget_all)


@attrs.define(eq=False, kw_only=True)
class Inner(Watch):
    """A supervisor inside of bubblewrap. What runs in its containers cannot reach it.

    Attributes:
        session: The line to the guard's keeper that runs bubblewrap as if it were a tool.
        said: What bubblewrap, and Python, write to standard error.
    """

    session: Line
    said: int
    # 10 s: some hundred times what bubblewrap and Python take to start.
    making_seconds: ClassVar[float] = 10.0
    is_gone: bool = False
    last_words: str = ""

    def is_sound(self) -> bool:
        """Return whether it is there."""
        if self.ended or not self.session.watch.is_sound():
            return False
        while not self.is_gone:
            try:
                message = self.session.socket.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if message[:1] == b"R":
                self.session.pid = int(message[1:])
                continue
            self.is_gone = True
            if message[:1] == b"F":
                self.last_words = message.partition(b"\0")[2].decode("utf-8", "replace")
        return not self.is_gone

    def kill(self) -> None:
        """End it, and everything in it: its keeper at the guard does that when its line is closed."""
        self.is_sound()
        self._listen_to_the_end()
        self.close()
        self.session.close()
        if self.said >= 0:
            os.close(self.said)
            self.said = -1

    def why_it_ended(self) -> str:
        """Return what bubblewrap said, as far as it said anything."""
        self._listen_to_the_end()
        if not self.last_words and not self.session.watch.is_sound():
            return self.session.watch.why_it_ended()
        return f"bubblewrap has ended: {self.last_words or 'it did not say why'}"

    def _listen_to_the_end(self) -> None:
        if self.said < 0:
            return
        try:
            text = os.read(self.said, LAST_WORDS).decode("utf-8", "replace").strip()
        except OSError:
            return
        self.last_words = text.splitlines()[-1] if text else self.last_words

    def forget(self) -> None:
        """In a forked child: close the copies."""
        super().forget()
        os.close(self.said)


class _Filters:
    """The filters of system calls, each in an open file; made when first needed."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._made: dict[Network, int] = {}

    def of(self, network: Network) -> int:
        """Return the filter for tools with such a network, open."""
        if network not in self._made:
            fd = os.memfd_create("heddle-filter", os.MFD_CLOEXEC)
            os.write(fd, self._tier.filter_for(network))
            os.lseek(fd, 0, os.SEEK_SET)
            self._made[network] = fd
        return self._made[network]

    def close(self) -> None:
        """Close them."""
        while self._made:
            os.close(self._made.popitem()[1])
