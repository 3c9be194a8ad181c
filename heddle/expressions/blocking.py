"""Asks a process that evaluates, and blocks until it has answered: for rules, which are synchronous functions.

The processes are the host's, not a caller's: each takes 20 ms to start, so a few are kept for the next rule. They end
when nothing has been asked of them for a minute, with the host, and at `end_idle`.
"""

from __future__ import annotations

import select
import subprocess
import time
from collections import deque

from heddle.expressions.children import END_SECONDS, IDLE_SECONDS, START_SECONDS, Child, Ended, Talk
from heddle.expressions.messages import failure_of, late, unstarted
from heddle.expressions.values import RULE_LIMITS

__all__ = ["ask", "end_idle"]

# 4: as many threads judge arguments at once.
MOST_IDLE = 4

_idle: deque[Child] = deque()  # any thread takes and puts


def ask(request: bytes) -> bytes:
    """Return the answer to a request, under `RULE_LIMITS`.

    Raises:
        DefinitionError: Starlark is not installed.
        ExpressionFailed: There is no answer.
    """
    while True:
        child = _taken() or _started()
        try:
            answer = _driven(child.exchange(request, RULE_LIMITS), RULE_LIMITS.wall_seconds)
        except Ended:
            status = _end(child)
            if status == 0:  # it had waited for long enough
                continue
            raise failure_of(status, RULE_LIMITS) from None
        except TimeoutError:
            _end(child)
            raise late(RULE_LIMITS) from None
        except BaseException:
            _end(child)
            raise
        _put_back(child)
        return answer


def end_idle() -> None:
    """End the processes that are kept for rules. None is left when this returns, unless a rule is being checked."""
    while (child := _taken()) is not None:
        _end(child)


def _started() -> Child:
    child = Child.start(RULE_LIMITS, IDLE_SECONDS)
    try:
        _driven(child.greeting(), START_SECONDS)
    except (Ended, TimeoutError):
        _end(child)
        raise unstarted() from None
    except BaseException:
        _end(child)
        raise
    return child


def _taken() -> Child | None:
    while True:
        try:
            child = _idle.pop()  # the last one that was used: the others may grow old
        except IndexError:
            return None
        if child.status() is None:
            return child
        child.close()


def _put_back(child: Child) -> None:
    _idle.append(child)
    if len(_idle) > MOST_IDLE:
        try:
            _end(_idle.popleft())
        except IndexError:
            pass  # another thread has taken them


def _driven(talk: Talk, seconds: float) -> bytes:
    """Return what a talk comes to; TimeoutError when that takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            descriptor, event = next(talk)
        except StopIteration as stop:
            return bytes(stop.value)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN if event == "read" else select.POLLOUT)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError


def _end(child: Child) -> int:
    """End a child; return its status."""
    child.kill()
    try:
        child.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    return child.close()
