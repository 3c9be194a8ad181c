"""The plain protocol: the arguments on standard input, one JSON object on standard output, exit status 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.protocol.exits import failure_of, invalid_output, parsed
from heddle.protocol.values import Reply
from heddle.results import Failed

if TYPE_CHECKING:
    from heddle.process.values import Exit
    from heddle.protocol.values import Request

__all__ = ["decode", "encode"]


def encode(request: Request) -> bytes:
    """Return the arguments as one JSON document, without a newline."""
    return strictjson.encoded(request.arguments)


def decode(exit: Exit, request: Request) -> Reply | Failed:  # noqa: A002 - the word of the walk
    """Return the object that was printed; nothing at all, or only blanks, is the empty object."""
    failure = failure_of(exit, request)
    if failure is not None:
        return failure
    if not exit.stdout.removeprefix(b"\xef\xbb\xbf").strip():
        return Reply({})
    value = parsed(exit, request)
    if isinstance(value, Failed):
        return value
    if not isinstance(value, dict):
        return invalid_output(exit, request, f"it printed {strictjson.kind_of(value)}")
    return Reply(value)
