"""How results look in the report of a failed test."""

from __future__ import annotations

import attrs

from heddle.results import Failed, Returned, ToolResult

__all__ = ["section_of", "why_unequal"]

# 60 characters: a line of a report holds two sides of a comparison.
SIDE_CHARS = 60
# pytest shows 8 lines of an explanation; the whole of standard error has a section of its own.
TAIL_LINES = 4


def why_unequal(left: object, right: object) -> list[str] | None:
    """Return the lines that explain why a result is not equal to something; None where pytest does so well enough."""
    results = [side for side in (left, right) if isinstance(side, (Returned, Failed))]
    if not results or type(left) is type(right):
        return None
    # What was expected was made by hand, and has no report of a call.
    result = next((each for each in results if each.report.tool), results[0])
    summary = f"{_side(left)} == {_side(right)}"
    if isinstance(result, Failed):
        return [summary, *_of_failed(result)]
    if len(results) > 1:
        return [summary, f"The call returned {result.data!r}"]
    return [
        summary,
        "A result is not the data in it: compare result.unwrap(), or compare with heddle.Returned(...).",
        f"Its data: {result.data!r}",
    ]


def section_of(result: ToolResult) -> tuple[str, str] | None:
    """Return a section of a report: its title, and what a tool has written; None where there is nothing to say."""
    lines = harmless(result.report.stderr_tail).splitlines()
    if isinstance(result, Failed):
        if not lines and result.report.tier not in {None, "in_process"}:
            lines = ["(standard error is empty)"]
        lines = [f"failed ({result.kind}): {_first_line(result)}", *_raised_in(result), *lines]
    return (f"tool stderr: {harmless(result.report.tool)}", "\n".join(lines)) if lines else None


def harmless(text: str) -> str:
    """Return a text with whatever does not print written out, but for line ends and tabs."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def _of_failed(failed: Failed) -> list[str]:
    """Return kind, message and, where the message does not say so, exit status and the end of standard error."""
    code = f", {failed.code}" if failed.code else ""
    faults = attrs.evolve(failed, retry="allowed").advice()  # whether a call may be repeated is nothing for a test
    text = harmless("\n".join([f"The call failed ({failed.kind}{code}): {failed.message}", *faults]))
    lines = [*text.splitlines(), *_raised_in(failed)]
    report = failed.report
    if report.exit_status is not None and f"status {report.exit_status}" not in text:
        lines.append(f"Its exit status is {report.exit_status}.")
    tail = harmless(report.stderr_tail).strip("\n")
    if tail and tail not in text:
        lines += ["Its standard error ends with:", *tail.splitlines()[-TAIL_LINES:]]
    return lines


def _first_line(failed: Failed) -> str:
    return harmless(failed.message).partition("\n")[0]


def _raised_in(failed: Failed) -> list[str]:
    place = failed.details.get("raised_in")
    return [f"It was raised at {place}."] if place else []


def _side(value: object) -> str:
    if isinstance(value, Failed):
        return f"Failed({value.kind})"
    text = repr(value)
    return text if len(text) <= SIDE_CHARS else text[: SIDE_CHARS - 1] + "…"
