"""The last net: find the processes of one attempt by the id in their environment, and end them.

Needed only where a tool has killed both its keeper and the supervisor, or where a process cannot be killed at all.
What has thrown its environment away is not found; that takes a sandbox.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import trio

from heddle.process import supervisor
from heddle.process.values import ATTEMPT_VARIABLE
from heddle.threads import in_thread

__all__ = ["end_attempt", "processes_of"]

# 0.1 s: inside the half second that a call may take beyond its deadline and grace.
SWEEP_SECONDS = 0.1


async def end_attempt(attempt_id: str, stuck_below: int = 0) -> tuple[int, ...]:
    """Kill every process that carries `attempt_id`; return those that are alive all the same.

    Args:
        attempt_id: The call's own.
        stuck_below: A supervisor whose children did not die when they were killed; they are named as well.
    """
    survivors: tuple[int, ...] = ()
    with trio.CancelScope(shield=True):
        survivors = await in_thread(_end_attempt, attempt_id, stuck_below)
    return survivors  # noqa: RET504 - a scope may swallow, so a return inside of it may not be reached


def _end_attempt(attempt_id: str, stuck_below: int) -> tuple[int, ...]:
    give_up = time.monotonic() + SWEEP_SECONDS
    while True:
        found = processes_of(attempt_id)
        for pid in found:
            _kill(pid, attempt_id)
        if not found or time.monotonic() > give_up:
            break
        time.sleep(0.005)
    stuck = [pid for pid in supervisor.children(stuck_below) if _was_killed(pid)] if stuck_below else []
    return tuple(sorted({*found, *stuck}))


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


def _was_killed(pid: int) -> bool:
    """Return whether SIGKILL is pending for a process that still lives."""
    state = supervisor.state_of(pid)
    if state is None or state[0] in "ZX":
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in pending)
