"""What can confine calls on this machine, found by trying: the real command lines, once per process.

Nothing here stands for a system call that was read about: a kernel may have namespaces and a container's profile deny
them, a package may be there and be too old. What fails says why, and what to do.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from heddle.errors import SandboxUnavailable
from heddle.sandbox import container
from heddle.sandbox.bubblewrap import PROGRAMS, Plan, Started, folders_of_python, session_command, single_command
from heddle.sandbox.landlock import Landlock, landlock_abi
from heddle.sandbox.policy import TMP_BYTES, Network
from heddle.sandbox.seccomp import NETWORK_OF_ITS_OWN, seccomp_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Findings", "Trial", "find_bubblewrap", "probe"]

# 10 s: a hundred times what it takes. A machine that is slower than that is not one that can run tools.
TRIAL_SECONDS = 10.0
SAID_BYTES = 8192
# 64, as calls have it by default.
MOST_IN_TRIAL = 64
SAY_CONFINED = "readlink /proc/self/ns/pid >&2; grep -E '^(CapBnd|Seccomp):' /proc/self/status >&2"
Way: TypeAlias = Literal["containers", "single", "landlock", "seatbelt"]


@attrs.frozen
class Trial:
    """Whether one way of confining calls works here.

    Attributes:
        works: It was tried, and did what it should.
        reason: Why it does not, in a clause; empty when it works.
        fix: What to do about that.
        said: What the program itself said.
    """

    works: bool
    reason: str = ""
    fix: str = ""
    said: str = ""


@attrs.frozen(kw_only=True)
class Findings:
    """What can confine calls here, for one user of one machine.

    Attributes:
        bwrap: The program that was tried; None where there is none.
        containers: bubblewrap once, and a container of its own for each call.
        single: bubblewrap for each call.
        landlock: Landlock and a filter of system calls.
        seatbelt: macOS's own. Its profile was never run by heddle's makers, and `Trial.said` says so.
        abi: The version of Landlock; 0 where there is none.
        lacks: What that version does not hold.
    """

    bwrap: str | None
    containers: Trial
    single: Trial
    landlock: Trial
    seatbelt: Trial
    abi: int
    lacks: tuple[str, ...]


_known: dict[tuple[object, ...], Trial] = {}


def probe(network: Network = "none") -> Findings:
    """Return what can confine calls here. Tries what has not been tried by this process; blocks some 0.1 s then.

    Args:
        network: What the tools of the trial may reach; a network of their own takes one right more.
    """
    bwrap, missing = find_bubblewrap()
    abi = _abi()
    return Findings(
        bwrap=bwrap,
        containers=missing or try_containers(bwrap or "", network),
        single=missing or try_single(bwrap or "", network),
        landlock=try_landlock(),
        seatbelt=try_seatbelt(),
        abi=abi,
        lacks=Landlock(abi).lacks if abi else (),
    )


def find_bubblewrap(search_path: str | None = None) -> tuple[str | None, Trial | None]:
    """Return where bubblewrap is; else why there is none that can be trusted.

    Args:
        search_path: Where to look; by default the host's ``PATH``. Only absolute folders count: what lies in the
            current one may be a tool's work.
    """
    folders = (os.environ.get("PATH", os.defpath) if search_path is None else search_path).split(os.pathsep)
    doubted: list[str] = []
    for folder in folders:
        path = os.path.realpath(os.path.join(folder, "bwrap"))
        if not os.path.isabs(folder) or not os.access(path, os.X_OK):
            continue
        info = os.stat(path)
        if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            doubted.append(path)
        else:
            return path, None
    if doubted:
        reason = f"{doubted[0]} is not root's alone, so anybody could have put something else there"
        return None, Trial(works=False, reason=reason, fix="install bubblewrap from the system's packages")
    return None, _explained("", is_missing=True)


def try_containers(bwrap: str, network: Network) -> Trial:
    """Try what most calls use: one bubblewrap, inside of which containers are made."""
    return _once(("containers", bwrap, network), lambda: _try_containers(bwrap, network))


def _try_containers(bwrap: str, network: Network) -> Trial:
    unknown = _unknown_filter()
    if unknown is not None:
        return unknown
    program = Path(container.__file__)
    words = [f"{PROGRAMS}/sandbox/{program.name}", "1" if network == "none" else "0", "/bin/sh", "-c", SAY_CONFINED]
    try:
        python = os.path.realpath(sys.executable)
        plan = attrs.evolve(_plan(bwrap, network), inner=folders_of_python(python))
        command = session_command(plan, python, {"sandbox": program.parent}, words)
    except OSError as error:
        return Trial(works=False, reason=f"what it needs cannot be opened: {error}")
    status, said = _run(command, extra=2)
    return _judged(status, said) if status else _believed(bwrap, said)


def _unknown_filter() -> Trial | None:
    """Return why there is no filter of system calls for this machine; None where there is one."""
    try:
        seccomp_program(platform.machine(), ())
    except SandboxUnavailable as error:
        return Trial(works=False, reason=error.reason)
    return None


def try_single(bwrap: str, network: Network) -> Trial:
    """Try a container for one call."""
    return _once(("single", bwrap, network), lambda: _try_single(bwrap, network))


def _try_single(bwrap: str, network: Network) -> Trial:
    seccomp = os.memfd_create("heddle-filter", os.MFD_CLOEXEC)
    info = os.memfd_create("heddle-info", os.MFD_CLOEXEC)
    try:
        os.write(seccomp, seccomp_program(platform.machine(), NETWORK_OF_ITS_OWN))
        words = ["/bin/sh", "-c", SAY_CONFINED]
        command = single_command(
            _plan(bwrap, network),
            (),
            words,
            cwd="/",
            environment={"PATH": os.defpath},
            seccomp=seccomp,
            info=info,
            processes=MOST_IN_TRIAL,
        )
    except OSError as error:
        return Trial(works=False, reason=f"what it needs cannot be opened: {error}")
    except SandboxUnavailable as error:
        return Trial(works=False, reason=error.reason)
    finally:
        os.close(seccomp)
        os.close(info)
    status, said = _run(command, extra=0)
    return _judged(status, said) if status else _believed(bwrap, said, is_filtered=True)


def _believed(bwrap: str, said: str, *, is_filtered: bool = False) -> Trial:
    """Judge what a program says that should be confined: another namespace, no capabilities, and perhaps a filter.

    The host itself may be under a filter, and then everything is.
    """
    words = said.split()
    is_confined = len(words) == 5 and words[0] != os.readlink("/proc/self/ns/pid")  # noqa: PLR2004 - see SAY_CONFINED
    if not is_confined or int(words[2], 16) or (is_filtered and words[4] != "2"):
        return _not_confined(bwrap, said)
    return Trial(works=True)


def _not_confined(bwrap: str, said: str) -> Trial:
    reason = f"{bwrap} runs programs and does not confine them"
    return Trial(works=False, reason=reason, fix="install bubblewrap from the system's packages", said=said)


def try_landlock() -> Trial:
    """Ask the kernel for Landlock, and whether the filter of system calls is known for this machine."""
    try:
        landlock_abi()
        seccomp_program(platform.machine(), ())
    except SandboxUnavailable as error:
        reason, _, fix = error.reason.partition(": ")
        return Trial(works=False, reason=reason, fix=fix)
    return Trial(works=True)


def try_seatbelt() -> Trial:
    """Say how it stands with macOS."""
    if sys.platform != "darwin":
        return Trial(works=False, reason="this is not macOS")
    if shutil.which("sandbox-exec", path="/usr/bin") is None:
        return Trial(works=False, reason="/usr/bin/sandbox-exec is not there")
    from heddle.sandbox.seatbelt import NEVER_RUN

    return Trial(works=True, said=NEVER_RUN)


def _abi() -> int:
    try:
        return landlock_abi()
    except SandboxUnavailable:
        return 0


def _plan(bwrap: str, network: Network) -> Plan:
    return Plan(bwrap=bwrap, network=network, tmp_bytes=TMP_BYTES, is_root=os.geteuid() == 0)


def _once(key: tuple[object, ...], step: Callable[[], Trial]) -> Trial:
    """Return what was found before, if it is the same program and the same user."""
    info = os.stat(str(key[1]))
    key = (*key, info.st_mtime_ns, info.st_ino, os.geteuid())
    if key not in _known:
        _known[key] = step()
    return _known[key]


def _judged(status: int, said: str) -> Trial:
    if status == 0:
        return Trial(works=True)
    return _explained(said)


def _explained(said: str, *, is_missing: bool = False) -> Trial:
    """Return a failure with its reason, and what to do."""
    from heddle.sandbox.hints import facts_of_this_machine, hint_for  # large, and only for what does not work

    hint = hint_for(said, facts_of_this_machine(), is_missing=is_missing)
    return Trial(works=False, reason=hint.reason, fix=hint.fix, said=said)


def _run(command: Started, *, extra: int) -> tuple[int, str]:
    """Run a command to its end, and return its status and what it said.

    Args:
        command: What to run; it is closed.
        extra: How many descriptors it expects before its own, which a trial does not need.
    """
    said, saying = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    fds = [null, null, saying, *[null] * extra, *command.handles]
    try:
        # Aside first: each has to leave the place that another is put at, and dup2 closes what is there.
        aside = max(*fds, len(fds)) + 1
        pid = os.posix_spawn(
            command.argv[0],
            command.argv,
            {"PATH": os.defpath},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, fd, aside + place) for place, fd in enumerate(fds)),
                *((os.POSIX_SPAWN_DUP2, aside + place, place) for place in range(len(fds))),
                *((os.POSIX_SPAWN_CLOSE, aside + place) for place in range(len(fds))),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        os.close(said)
        return 1, f"{command.argv[0]}: {error.strerror}"
    finally:
        command.close()
        os.close(saying)
        os.close(null)
    try:
        text = _read(said, time.monotonic() + TRIAL_SECONDS)
        # Whatever happened: while it is not reaped the number is its own, and its group may have outlived it.
        status = 0
        with contextlib.suppress(ChildProcessError):  # a host that ignores SIGCHLD: then what it says decides
            if text is not None:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
    finally:
        os.close(said)
    if text is None:
        return 1, f"it did not end within {TRIAL_SECONDS:g} s"
    return os.waitstatus_to_exitcode(status), text.decode("utf-8", "replace").strip()


def _read(fd: int, give_up: float) -> bytes | None:
    """Read to the end of file; return None if that does not come."""
    text = b""
    while (left := give_up - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            break
        chunk = os.read(fd, SAID_BYTES)
        if not chunk:
            return text
        text = (text + chunk)[-SAID_BYTES:]
    return None


def ways_of(findings: Findings) -> Sequence[tuple[Way, Trial]]:
    """Return every way with what became of it, the strongest first."""
    return (
        ("containers", findings.containers),
        ("single", findings.single),
        ("landlock", findings.landlock),
        ("seatbelt", findings.seatbelt),
    )
