"""What an exit says before anybody reads its output: it was too late, too much, crashed or never started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.process.values import Ending, Exit
from heddle.redaction.plain import plain
from heddle.results import Failed, FailureKind

if TYPE_CHECKING:
    from heddle.protocol.values import Request
    from heddle.redaction import Redactor
    from heddle.strictjson import JSON

__all__ = ["beginning", "failure_of", "parsed", "text_of"]

# 80 characters: enough to recognise a banner or a traceback by.
SEEN_CHARS = 80
# 2,000 characters of stderr in a message: the end of a traceback; the report has more.
TAIL_CHARS = 2000
# Characters on either side of the place where JSON broke.
NEAR_CHARS = 20
# Bytes beyond what is shown that are looked at for secrets which the cut would break.
BEYOND = 8192


def failure_of(exit: Exit, request: Request) -> Failed | None:  # noqa: A002 - the word of the walk
    """Return why the exit is a failure whatever was printed, or None when its output decides."""
    tool = f'tool "{request.tool}"'
    limits = request.limits
    match exit.ending:
        case Ending.NOT_STARTED:
            return Failed(FailureKind.CANNOT_START, f"{tool} cannot be started: {exit.error}.")
        case Ending.DEADLINE:
            said = f"{tool} did not finish within {limits.wall_seconds:g} s and was stopped."
            return Failed(FailureKind.TIMED_OUT, said + _tail(exit) + _alive(exit), details=_survivors(exit))
        case Ending.STDOUT_FULL:
            said = f"{tool} printed more than {limits.stdout_bytes:,} bytes and was stopped.\n"
            said += f"It began with: {_seen(exit, request)}"
            return Failed(FailureKind.TOO_LARGE, said + _tail(exit), details=_survivors(exit))
        case Ending.SUPERVISOR_LOST:
            said = (
                f"{tool} was ended, and what it did is unknown: the process that watched over it was killed or stopped "
                "by a tool of this runner, or from outside."
            )
            return Failed(FailureKind.CRASHED, said + _tail(exit), code="supervisor_lost", details=_survivors(exit))
        case Ending.BY_ITSELF:
            return _crash(exit, request)


def _crash(exit: Exit, request: Request) -> Failed | None:  # noqa: A002
    tool = f'tool "{request.tool}"'
    limits = request.limits
    if exit.signal == "SIGXCPU" and limits.cpu_seconds is not None:
        said = f"{tool} used more than {limits.cpu_seconds:g} s of processor time and was stopped."
        return Failed(FailureKind.LIMIT_EXCEEDED, said + _tail(exit), code="cpu_seconds")
    if exit.signal == "SIGXFSZ" and limits.file_bytes is not None:
        said = f"{tool} wrote more than {limits.file_bytes:,} bytes to one file and was stopped."
        return Failed(FailureKind.LIMIT_EXCEEDED, said + _tail(exit), code="file_bytes")
    if exit.signal is not None:
        hint = " The system does that when memory runs out." if exit.signal == "SIGKILL" else ""
        said = f"{tool} was ended by {exit.signal}, which heddle did not send.{hint}"
        return Failed(FailureKind.CRASHED, said + _limit_hint(request) + _tail(exit), code=exit.signal)
    if exit.status != 0:
        said = f"{tool} exited with status {exit.status}."
        return Failed(
            FailureKind.CRASHED, said + _limit_hint(request) + _tail(exit), details={"exit_status": exit.status}
        )
    return None


def parsed(exit: Exit, request: Request) -> JSON | Failed:  # noqa: A002
    """Return the one JSON value on standard output, or what is wrong with it."""
    try:
        return strictjson.loads(exit.stdout)
    except StrictJsonError as error:
        return invalid_output(exit, request, f"{error}{_near(exit, error, request)}", _cause(exit, error))


def invalid_output(exit: Exit, request: Request, what: str, cause: str = "") -> Failed:  # noqa: A002
    """Return the failure of a program that exited well and answered badly."""
    said = f'tool "{request.tool}" did not answer with one JSON object: {what}.'
    hint = f" {cause}" if cause else ""
    seen = f"\nIt printed: {_seen(exit, request)}" if exit.stdout else ""
    return Failed(FailureKind.INVALID_OUTPUT, said + hint + seen + _tail(exit))


def text_of(data: bytes) -> str:
    """Return a program's bytes as text; what is not UTF-8 is replaced."""
    return data.decode("utf-8", "replace")


def beginning(data: bytes, chars: int, redactor: Redactor) -> str:
    """Return the first `chars` characters of a program's bytes; what is secret is masked before they are cut."""
    window = data[: chars * 4 + BEYOND]
    return redactor.kept(text_of(window), cut_after=len(data) > len(window))[:chars]


def _seen(exit: Exit, request: Request) -> str:  # noqa: A002
    text = beginning(exit.stdout, SEEN_CHARS + 1, request.redactor())
    return repr(text[:SEEN_CHARS]) + ("…" if len(text) > SEEN_CHARS else "")


def _near(exit: Exit, error: StrictJsonError, request: Request) -> str:  # noqa: A002
    """Show the place where JSON broke, when it is not the beginning, which is shown anyway."""
    if not error.where.startswith("byte "):
        return ""
    place = int(error.where.removeprefix("byte "))
    if place == 0:
        return ""
    around = text_of(exit.stdout[max(0, place - BEYOND) : place + BEYOND])
    if request.redactor().text(around) != plain(around):
        return ""  # a piece of a secret could not be told from what is near it
    return f", near {text_of(exit.stdout[max(0, place - NEAR_CHARS) : place + NEAR_CHARS])!r}"


def _cause(exit: Exit, error: StrictJsonError) -> str:  # noqa: A002
    """Name the likely cause of output that is not JSON, and the way out."""
    lines = exit.stdout.strip().splitlines()
    if "delimiter" in error.what:
        return (
            "A quotation mark or a line break inside a string has to be escaped: let a JSON library write the output."
        )
    if error.what.startswith("more after"):
        return "Only one object may be printed; progress and logs go to standard error."
    if len(lines) > 1 and not lines[0].lstrip().startswith(b"{") and lines[-1].rstrip().endswith(b"}"):
        return "Something was printed before the object; progress and logs go to standard error."
    if not lines:
        return "It printed nothing."
    return ""


def _tail(exit: Exit) -> str:  # noqa: A002
    text = text_of(exit.stderr).strip()
    if not text:
        return ""
    cut = "…" if len(text) > TAIL_CHARS or "stderr" in exit.truncated else ""
    return f"\nIts standard error ends with:\n{cut}{text[-TAIL_CHARS:]}"


def _limit_hint(request: Request) -> str:
    """Name the limits that make a program fail in its own words: it sees a refused allocation or open file."""
    limits = request.limits
    held = [
        f"{limits.memory_bytes:,} bytes of memory" if limits.memory_bytes is not None else "",
        f"{limits.open_files} open files" if limits.open_files is not None else "",
        f"{limits.file_bytes:,} bytes in one file" if limits.file_bytes is not None else "",
    ]
    held = [word for word in held if word]
    return f" It was held to {' and '.join(held)}." if held else ""


def _survivors(exit: Exit) -> dict[str, JSON]:  # noqa: A002
    return {"survivors": list(exit.survivors)} if exit.survivors else {}


def _alive(exit: Exit) -> str:  # noqa: A002
    if not exit.survivors:
        return ""
    return f"\nThese processes could not be ended: {', '.join(map(str, exit.survivors))}."
