"""Real tools in real folders, and what the operating system says about processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

import heddle

if TYPE_CHECKING:
    from collections.abc import Callable

SUPERVISOR = "heddle-supervisor"


class Toolbox:
    """A folder of tools, and a mark that every process they start can be found by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        # A duration that no other process on the machine sleeps for: ``sleep $long`` can be found and told apart.
        self.long = f"60.{secrets.randbelow(10**9):09}"

    def add(self, name: str, source: str | bytes, *, mode: int = 0o755) -> Path:
        """Write a tool. ``{long}`` in its source is a duration to sleep for."""
        path = self.folder / name
        if isinstance(source, str):
            source = textwrap.dedent(source).lstrip("\n").replace("{long}", self.long).encode()
        path.write_bytes(source)
        path.chmod(mode)
        return path

    def sh(self, name: str, source: str) -> Path:
        """Write a tool for /bin/sh."""
        return self.add(name, "#!/bin/sh\n" + textwrap.dedent(source))

    def registry(self) -> heddle.Registry:
        return heddle.discover_tools(self.folder)

    async def call(
        self, name: str, arguments: Any = None, *, wall_seconds: float = 10, **more: Any
    ) -> heddle.ToolResult:
        """Call a tool with a runner of its own. The runner's end is part of the call."""
        async with heddle.Runner(self.registry(), **more) as runner:
            return await runner.call(name, arguments, limits=heddle.Limits(wall_seconds=wall_seconds))

    async def run_sh(self, source: str, arguments: Any = None, **more: Any) -> heddle.ToolResult:
        """Run a shell tool once."""
        self.sh("tool", source)
        return await self.call("tool", arguments, **more)

    def strays(self) -> list[int]:
        """Return the living processes that sleep for this toolbox' duration."""
        return processes_with(self.long)

    def end_strays(self) -> None:
        for pid in self.strays():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)


def processes_with(text: str) -> list[int]:
    """Return the living processes with `text` as one of their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if text.encode() in arguments and state_of(int(entry)) not in {None, "Z", "X"}:
                found.append(int(entry))
    return found


def state_of(pid: int) -> str | None:
    """Return a process' state letter, None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def children_of(pid: int) -> list[int]:
    """Return the children of a process, zombies included."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        except FileNotFoundError:
            continue  # a thread that has ended meanwhile
    return found


def descendants_of(pid: int) -> list[int]:
    """Return every process below one."""
    found, waiting = [], [pid]
    while waiting:
        try:
            below = children_of(waiting.pop())
        except OSError:
            continue
        found += below
        waiting += below
    return found


def open_descriptors() -> dict[int, str]:
    """Return this process' descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def holdings() -> tuple[int, int, int]:
    """Return how many children, descriptors and threads this process has."""
    return len(children_of(os.getpid())), len(open_descriptors()), threading.active_count()


def wait_until(holds: Callable[[], object], seconds: float) -> bool:
    """Return whether something comes true within so many seconds."""
    give_up = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


async def until(holds: Callable[[], object], seconds: float) -> bool:
    """Do the same without holding the loop."""
    give_up = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > give_up:
            return False
        await trio.sleep(0.005)
    return True
