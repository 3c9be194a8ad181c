"""The last net: find the processes of one attempt by the id in their environment, and end them.

Needed only where a tool has killed both its keeper and the supervisor, or where a process cannot be killed at all.
What has thrown its environment away is not found; that takes a sandbox.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from heddle.process import supervisor
from heddle.process.values import ATTEMPT_VARIABLE
from heddle.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MARK", "end_attempt", "processes_of"]

# One of the arguments of every supervisor and keeper.
MARK = "heddle-supervisor"
# 0.1 s: inside the half second that a call may take beyond its deadline and grace.
SWEEP_SECONDS = 0.1


async def end_attempt(attempt_id: str, watch: int, keepers: Collection[int]) -> tuple[int, ...]:
    """Kill every process that carries `attempt_id`; return those that are alive all the same.

    Args:
        attempt_id: The call's own.
        watch: The supervisor. What fell to it and did not die is named as well.
        keepers: Its children that are as they should be.
    """
    survivors: tuple[int, ...] = ()
    with trio.CancelScope(shield=True):
        survivors = await in_thread(_end_attempt, attempt_id, watch, keepers)
    return survivors  # noqa: RET504 - a scope may swallow, so a return inside of it may not be reached


def _end_attempt(attempt_id: str, watch: int, keepers: Collection[int]) -> tuple[int, ...]:
    give_up = time.monotonic() + SWEEP_SECONDS
    while True:
        found = processes_of(attempt_id)
        for pid in found:
            _kill(pid, attempt_id)
        # The supervisor kills what falls to it, of any call: what is alive at the end has not died of that.
        orphans = supervisor.children(watch) if watch else []
        alive = {*found, *(pid for pid in orphans if pid not in keepers and _is_orphan(pid))}
        if not alive or time.monotonic() > give_up:
            return tuple(sorted(alive))
        time.sleep(0.005)


def processes_of(attempt_id: str) -> list[int]:
    """Return the living processes whose environment holds `attempt_id`, as far as this user may look."""
    if not attempt_id:
        return []
    mark = os.fsencode(f"{ATTEMPT_VARIABLE}={attempt_id}")
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _carries(int(name), mark)]


def _carries(pid: int, mark: bytes) -> bool:
    try:
        # An empty environment is also what a zombie shows.
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, attempt_id: str) -> None:
    """Kill a process and nothing that took its number: the look is repeated on a handle that cannot change."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _carries(pid, os.fsencode(f"{ATTEMPT_VARIABLE}={attempt_id}")):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def _is_orphan(pid: int) -> bool:
    """Return whether a supervisor's child lives and is none of its keepers, which have its own command line."""
    state = supervisor.state_of(pid)
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return state is not None and state[0] not in "ZX" and MARK.encode() not in arguments.split(b"\0")
