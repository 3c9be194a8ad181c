"""What a hostile tool tries: one attack a call, said in the request. The other side is in `heddle.cli.doctor`.

A program of the standard library alone: where it runs nothing else is in sight. It answers with what it got hold of, or
with what stopped it. Whatever it does ends with it and stays small, so that an attack that succeeds does no harm.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

__all__ = ["ATTACKS", "LINK", "MARK", "MOST_FORKS"]

Scene: TypeAlias = Mapping[str, Any]

# With this begins every secret that the host has laid out.
MARK = "heddle-doctor-"
# What the host has planted in the workspace, and where it leads out.
LINK = "link"
# 200: three times what a call may have, and nothing to a machine that it may have them on.
MOST_FORKS = 200
# Longer than it takes to look for what is left, shorter than anybody would wait for what was overlooked.
LIFE_SECONDS = 20.0
REACH_SECONDS = 2.0

PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


def read_home(scene: Scene) -> str:
    """Read what lies in the home folder of whoever runs heddle."""
    return _read(scene["canary"])


def write_beside(scene: Scene) -> str:
    """Write into the folder that the workspace is in, and into one of the host's."""
    return _any_of(*(lambda path=folder: _append(f"{path}/{scene['name']}") for folder in ("..", scene["folder"])))


def follow_link(_scene: Scene) -> str:
    """Read and change, by a link in the workspace, what is outside of it."""
    return _any_of(lambda: _read(LINK), lambda: _append(LINK))


def reach_port(scene: Scene) -> str:
    """Connect to what listens on the loopback device."""
    with socket.create_connection(("127.0.0.1", scene["port"]), REACH_SECONDS):
        return "connected"


def reach_socket(scene: Scene) -> str:
    """Connect to an abstract socket, which has no file that could be hidden."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(REACH_SECONDS)
        connection.connect(f"\0{scene['name']}")
        return "connected"


def meet_process(scene: Scene) -> str:
    """See a process of the host, and end it."""
    return _any_of(lambda: _read(f"/proc/{_other(scene)}/cmdline"), lambda: _end(_other(scene)))


def read_environment(scene: Scene) -> str:
    """Find the host's variables: in the own environment, or in that of any process in sight."""
    found = [value for value in os.environ.values() if MARK in value]
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found += [text for text in _read(f"/proc/{name}/environ").split("\0") if MARK in text]
    return "\n".join(found) or _read(f"/proc/{scene['pid']}/environ")


def trace(scene: Scene) -> str:
    """Take control of a process of the host, as a debugger does."""
    libc = _libc()
    _checked(libc.ptrace(PTRACE_SEIZE, _other(scene), None, None))
    libc.ptrace(PTRACE_DETACH, _other(scene), None, None)
    return "traced"


def mount(_scene: Scene) -> str:
    """Mount a file system, in namespaces of its own if need be."""
    libc = _libc()
    # Away from the host first: then nobody else sees what succeeds.
    if not libc.unshare(CLONE_NEWNS) or not libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    os.mkdir("mounted")
    _checked(libc.mount(b"none", b"mounted", b"tmpfs", 0, None))
    libc.umount2(b"mounted", 0)
    return "mounted"


def fork_bomb(_scene: Scene) -> str:
    """Start as many processes as there can be, up to `MOST_FORKS`; say how many that were."""
    for count in range(MOST_FORKS):
        try:
            pid = os.fork()
        except OSError:
            return str(count)
        if pid == 0:
            _live_on()
    return str(MOST_FORKS)


def daemon(_scene: Scene) -> str:
    """Leave a process behind that has left the group and the session, and does not listen to signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            _live_on()
        os._exit(0)
    os.wait()
    return "started"


ATTACKS: Mapping[str, Callable[[Scene], str]] = {
    attack.__name__: attack
    for attack in (
        *(read_home, write_beside, follow_link, reach_port, reach_socket, meet_process, read_environment),
        *(trace, mount, fork_bomb, daemon),
    )
}


def _any_of(*steps: Callable[[], str]) -> str:
    """Do all of it, and return what came of it.

    Raises:
        OSError: Nothing came of any; the last of them.
    """
    got: list[str] = []
    last: OSError | None = None
    for step in steps:
        try:
            got.append(step())
        except OSError as error:
            last = error
    if last is not None and not got:
        raise last
    return "\n".join(got)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _append(path: str) -> str:
    with open(path, "a", encoding="utf-8") as file:
        file.write("written by an attack\n")
    return "written"


def _other(scene: Scene) -> int:
    """Return the host's process. Where numbers are counted anew, the same one can be this program's own."""
    if scene["pid"] in {1, os.getpid(), os.getppid()}:
        raise ProcessLookupError(None, "its number means another process")
    return int(scene["pid"])


def _end(pid: int) -> str:
    os.kill(pid, signal.SIGTERM)
    return "sent"


def _live_on() -> NoReturn:
    time.sleep(LIFE_SECONDS)
    os._exit(0)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Try what the request names."""
    scene: Scene = json.load(sys.stdin)
    try:
        answer = {"got": ATTACKS[scene["attack"]](scene)}
    except OSError as error:
        answer = {"stopped": error.strerror or str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
