"""What is said to a program and what is made of its answer. Pure: a call to bytes, an exit to a reply; no I/O."""

from typing import Protocol

from heddle.process.values import Exit
from heddle.protocol import envelope, plain
from heddle.protocol.values import Reply, Request
from heddle.results import Failed

__all__ = ["PROTOCOLS", "Reply", "Request", "WireProtocol"]


class WireProtocol(Protocol):
    """One way of talking to a program."""

    def encode(self, request: Request, /) -> bytes:
        """Return what is written to the program's standard input."""
        ...

    def decode(self, exit: Exit, request: Request, /) -> Reply | Failed:  # noqa: A002 - the word of the walk
        """Return what the program answered, or why that is no answer."""
        ...


PROTOCOLS: dict[str, WireProtocol] = {"plain": plain, "envelope": envelope}
