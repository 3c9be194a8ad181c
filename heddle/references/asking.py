"""Ask the login shell and commands for values. When a function here returns or raises, the process group is ended.

They run in a session of their own, without a terminal and with nothing to read: neither can stop to ask the user
something, or take the terminal from the host.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pwd
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from heddle.references.faults import KIB, MAX_OUTPUT_BYTES, FaultCode
from heddle.references.reading import home

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

__all__ = ["Asked", "ask_command", "ask_shell"]

# 20 ms between two looks at whether anybody still waits.
TURN_SECONDS = 0.02
# 2 s: a process that SIGKILL has not ended by then hangs in the kernel.
FORCE_SECONDS = 2
# 4 MiB: the system lets an environment have 2, and startup files may print a page of news before it.
MAX_SHELL_BYTES = 4096 * KIB


@attrs.frozen
class Refusal:
    """Why there is no answer.

    Attributes:
        seen: More of what was seen; never output.
    """

    code: FaultCode
    seen: str = ""


@attrs.frozen
class Asked:
    """How those that are asked are treated.

    Attributes:
        seconds: How long each may take.
        pause: Called again and again; it raises when nobody waits for the answer any more.
    """

    seconds: float
    pause: Callable[[], None]


def ask_shell(names: Iterable[str], asked: Asked) -> Mapping[str, str] | Refusal:
    """Return those of the variables `names` that the user's interactive login shell sets, after one start of it."""
    mark = secrets.token_hex(16)
    # Startup files print, at the end too, so the answer begins with a mark and is the last thing that is printed.
    # What they set without `export` counts as well. This is for every shell that takes -i -l -c, fish included.
    answer = f"""exec /bin/sh -c 'printf "\\0%s\\0" {mark}; exec /usr/bin/env -0'"""
    script = f"export {' '.join(sorted(names))}; {answer}"
    try:
        output = _run([_shell(), "-i", "-l", "-c", script], MAX_SHELL_BYTES, asked)
    except OSError as error:
        return Refusal(FaultCode.SHELL_FAILED, f"starting it gives {error.strerror}")
    if output is Stopped.LATE:
        return Refusal(FaultCode.SHELL_TIMEOUT, f"{asked.seconds:g} s")
    if output is Stopped.FULL:
        return Refusal(FaultCode.SHELL_FAILED, "it printed too much")
    _, marked, dump = output.data.partition(f"\0{mark}\0".encode())
    if not marked or output.status:
        return Refusal(FaultCode.SHELL_FAILED, _ended(output.status))
    pairs = (os.fsdecode(each).partition("=") for each in dump.split(b"\0"))
    known = {name: value for name, _, value in pairs}
    return {name: known[name] for name in names if name in known}


def ask_command(command: str, asked: Asked) -> str | Refusal:
    """Return what a command of /bin/sh prints, without the line ends at its end."""
    try:
        output = _run(["/bin/sh", "-c", command], MAX_OUTPUT_BYTES, asked)
    except OSError as error:
        return Refusal(FaultCode.COMMAND_FAILED, f"starting it gives {error.strerror}")
    if output is Stopped.LATE:
        return Refusal(FaultCode.COMMAND_TIMEOUT, f"{asked.seconds:g} s")
    if output is Stopped.FULL:
        return Refusal(FaultCode.COMMAND_OUTPUT_TOO_LARGE)
    if output.status:
        return Refusal(FaultCode.COMMAND_FAILED, _ended(output.status))
    if b"\0" in output.data:
        return Refusal(FaultCode.COMMAND_OUTPUT_NUL)
    try:
        return output.data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        return Refusal(FaultCode.COMMAND_NOT_UTF8)


def _shell() -> str:
    """Return the user's shell: ``$SHELL``, else the one of the user database."""
    named = os.environ.get("SHELL", "")
    if os.path.isabs(named) and os.access(named, os.X_OK):
        return named
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def _ended(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


class Stopped(enum.Enum):
    """Why a program was not let to its end."""

    LATE = "it took too long"
    FULL = "it printed too much"


@attrs.frozen(repr=False)
class Output:
    """What a program printed until it ended, and its exit status, negative for a signal."""

    data: bytes
    status: int


def _run(argv: Sequence[str], most: int, asked: Asked) -> Output | Stopped:
    """Run a program; end it, and all of its process group, when it takes too long or prints too much.

    It works in the user's home, wherever the host was started.

    Raises:
        OSError: It was not started.
    """
    folder = home(os.environ)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder if folder is not None and folder.is_dir() else "/",
        start_new_session=True,
    )
    try:
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        return _output(process, process.stdout, most, asked)
    finally:
        _end(process)


def _output(process: subprocess.Popen[bytes], stdout: IO[bytes], most: int, asked: Asked) -> Output | Stopped:
    give_up = time.monotonic() + asked.seconds
    os.set_blocking(stdout.fileno(), False)
    kept = bytearray()
    is_open = True
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            # Asked before reading: what a program that has ended had printed is in the pipe by then.
            status = process.poll()
            is_open = is_open and _take(stdout, kept, most)
            if len(kept) > most:
                return Stopped.FULL
            if status is not None:
                return Output(bytes(kept), status)
            if time.monotonic() > give_up:
                return Stopped.LATE
            asked.pause()
            if is_open:
                selector.select(TURN_SECONDS)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TURN_SECONDS)


def _take(stdout: IO[bytes], kept: bytearray, most: int) -> bool:
    """Take what is in the pipe, and no more than may come; return whether more can come."""
    while len(kept) <= most:
        try:
            chunk = os.read(stdout.fileno(), most + 1 - len(kept))
        except BlockingIOError:
            return True
        if not chunk:
            return False
        kept += chunk
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program with its group: what it left running in the background would hold the pipe, or go on for ever."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # an interactive shell ignores SIGTERM
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(FORCE_SECONDS)
    if process.stdout is not None:
        process.stdout.close()
