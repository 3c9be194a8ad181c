"""Reads what may stand before an expression: a version, what comes out, what goes in, and a line ``---``.

    %sl 2.0
    output application/json
    input payload
    ---
    {"query": payload}

A text that does not begin with ``%`` is an expression from its first line on.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import attrs

from heddle.expressions.values import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Header", "Output", "parse_header"]

Output: TypeAlias = Literal["application/json", "text/plain"]

OUTPUTS: tuple[Output, ...] = get_args(Output)
DIRECTIVES = ("output", "input")
SHOWN_CHARS = 40


@attrs.frozen(kw_only=True)
class Header:
    """What stands before an expression.

    Attributes:
        output: What its result is.
        inputs: The names that it says it uses, in order.
        body: The expression itself.
        line: Where that begins in the text. The first is 1.
    """

    output: Output = "application/json"
    inputs: tuple[str, ...] = ()
    body: str
    line: int = 1


def parse_header(text: str, names: Collection[str]) -> Header:
    """Return what stands before the expression in `text`, and the expression.

    Args:
        text: All of it.
        names: What may be declared as ``input``.

    Raises:
        ExpressionError: With the line that is wrong.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise ExpressionError("there is no expression: the text is empty")
    if not lines[first].startswith("%"):
        _refuse_headless(lines, first)
        return Header(body=text)
    _check_version(lines[first].strip(), first + 1)
    end = next((number for number, line in enumerate(lines) if line.rstrip() == "---"), None)
    if end is None:
        raise ExpressionError('there is no line "---" between the header and the expression', first + 1)
    output, inputs = _directives(lines, range(first + 1, end), names)
    return Header(output=output, inputs=inputs, body="\n".join(lines[end + 1 :]), line=end + 2)


def _refuse_headless(lines: list[str], first: int) -> None:
    """Refuse a header without its version; two words side by side can be no expression."""
    words = lines[first].split()
    if len(words) > 1 and words[0] in DIRECTIVES and words[1][0].isalpha() and "---" in map(str.rstrip, lines):
        raise ExpressionError('a header begins with the line "%sl 2.0"', first + 1)


def _check_version(said: str, line: int) -> None:
    language, _, version = said.partition(" ")
    if language != "%sl":
        raise ExpressionError(f'a header begins with the line "%sl 2.0", not "{_shown(said)}"', line)
    if version.strip() != "2.0":
        raise ExpressionError(f'version "{_shown(version.strip())}" is not known; write "%sl 2.0"', line)


def _directives(lines: list[str], numbers: range, names: Collection[str]) -> tuple[Output, tuple[str, ...]]:
    output: Output | None = None
    inputs: list[str] = []
    for number in numbers:
        words, line = lines[number].split(), number + 1
        if not words:
            continue
        match words:
            case ["output", said] if output is None:
                output = _output(said, line)
            case ["input", name] if name not in inputs:
                inputs.append(_input(name, line, names))
            case ["output" | "input", _]:
                raise ExpressionError(f'"{_shown(" ".join(words))}": this was said before', line)
            case ["output" | "input" as directive, *_]:
                wanted = "media type" if directive == "output" else "name"
                raise ExpressionError(f'"{directive}" takes one {wanted} and nothing else', line)
            case _:
                hint = _hint(words[0], DIRECTIVES) or '; there may be "output" and "input"'
                raise ExpressionError(f'"{_shown(words[0])}" is not known in a header{hint}', line)
    return output or "application/json", tuple(inputs)


def _output(said: str, line: int) -> Output:
    for output in OUTPUTS:
        if said == output:
            return output
    hint = _hint(said, OUTPUTS) or f"; there are {' and '.join(OUTPUTS)}"
    raise ExpressionError(f'output "{_shown(said)}" is not known{hint}', line)


def _input(name: str, line: int, names: Collection[str]) -> str:
    if name in names:
        return name
    hint = _hint(name, names) or f"; there is {' and '.join(names)}"
    raise ExpressionError(f'input "{_shown(name)}" is not there{hint}', line)


def _hint(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word[:100], known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
