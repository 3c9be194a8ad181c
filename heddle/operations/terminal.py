"""`ask_on_terminal`: a person at the terminal approves a call, or does not."""

from __future__ import annotations

import getpass
import os
import select
import termios
import threading
from typing import TYPE_CHECKING

from heddle.operations.permission import Decision
from heddle.threads import unless_cancelled

if TYPE_CHECKING:
    from heddle.operations.permission import ApprovalRequest

__all__ = ["ask_on_terminal", "user"]

# 0.1 s: how soon a question is taken back that nobody waits for any more.
LOOK_SECONDS = 0.1
# 4,096 bytes are what a terminal hands over of one line.
LINE_BYTES = 4096

_one_at_a_time = threading.Lock()


def ask_on_terminal(request: ApprovalRequest) -> Decision | None:
    """Ask whoever sits at the host's terminal; None where there is none. For ``Runner(approve=…)``.

    Only ``y`` and ``yes`` approve. What was typed before the question does not count as an answer.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    pause = unless_cancelled()
    try:
        while not _one_at_a_time.acquire(timeout=LOOK_SECONDS):
            pause()
        try:
            return _asked(terminal, request)
        finally:
            _one_at_a_time.release()
    finally:
        os.close(terminal)


def _asked(terminal: int, request: ApprovalRequest) -> Decision:
    termios.tcflush(terminal, termios.TCIFLUSH)
    _say(terminal, f'Tool "{request.tool.name}" ({request.tool.side_effects}) is to be called with\n  ')
    _say(terminal, "".join(map(_visible, request.shown)))
    _say(terminal, f"\nas operation {''.join(map(_visible, request.operation_id))}. Call it? [y/N] ")
    answer = _line(terminal).strip().lower()
    return Decision(answer in {"y", "yes"}, by=user(), note="at the terminal")


def _say(terminal: int, text: str) -> None:
    left = text.encode()
    while left:
        left = left[os.write(terminal, left) :]


def _line(terminal: int) -> str:
    """Return what is typed; nobody waits for it any longer than the call does."""
    pause = unless_cancelled()
    while True:
        pause()
        if select.select([terminal], [], [], LOOK_SECONDS)[0]:
            return os.read(terminal, LINE_BYTES).decode("utf-8", "replace")


def _visible(character: str) -> str:
    """Return a character as it is read, so that nothing can be hidden from whoever decides, or moved about."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def user() -> str:
    """Return who this process works for, by name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
