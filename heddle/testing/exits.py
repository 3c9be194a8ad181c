"""The ends of programs that are met most, as a launcher gives them back. For `ScriptedLauncher` and other fakes."""

from __future__ import annotations

import errno

from heddle import strictjson
from heddle.process.values import Ending, Exit

__all__ = ["crashed", "not_started", "printed", "timed_out"]


def printed(value: object, *, stderr: str | bytes = b"") -> Exit:
    """Return the end of a program that printed `value` and exited with 0.

    Args:
        value: Bytes are what it printed; anything else is printed as JSON.
        stderr: What it said beside that.

    Raises:
        StrictJsonError: JSON cannot say `value`.
    """
    stdout = value if isinstance(value, bytes) else strictjson.dumps(value)
    return Exit(status=0, stdout=stdout, stderr=_bytes(stderr))


def crashed(*, status: int = 1, signal: str | None = None, stdout: bytes = b"", stderr: str | bytes = b"") -> Exit:
    """Return the end of a program that exited with another status than 0, or died of a signal: ``SIGSEGV``."""
    return Exit(status=status if signal is None else None, signal=signal, stdout=stdout, stderr=_bytes(stderr))


def timed_out(*, stdout: bytes = b"", stderr: str | bytes = b"") -> Exit:
    """Return the end of a program that was asked to end at its deadline, and did."""
    return Exit(ending=Ending.DEADLINE, signal="SIGTERM", stdout=stdout, stderr=_bytes(stderr))


def not_started(error: str) -> Exit:
    """Return what there is of a program that could not be started; `error` is a clause: ``its image is gone``."""
    return Exit(ending=Ending.NOT_STARTED, error_number=errno.EINVAL, error=error)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
