"""`Expression`: a text that is known to be one, and what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from heddle.errors import StrictJsonError
from heddle.expressions import blocking
from heddle.expressions.header import Header, Output, parse_header
from heddle.expressions.messages import request_to_check, request_to_evaluate, value_of
from heddle.expressions.values import RULE_LIMITS, ExpressionError, ExpressionFailed, ExpressionLimits
from heddle.strictjson import JSON, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

__all__ = ["Expression", "Predicate", "predicate"]

# 64 KiB: a long program; a data file in the wrong place is refused before it is read.
MAX_TEXT_CHARS = 64 * 1024


@attrs.frozen(kw_only=True)
class Expression:
    """A text in Starlark that may be evaluated. `parse` makes one.

    Attributes:
        text: All of it, with its header.
        output: What its result is: JSON, or text.
        inputs: The names that its header declares, in order; others may be used as well.
        body: What is evaluated.
        line: Where that begins in the text. The first is 1.
    """

    text: str
    output: Output = "application/json"
    inputs: tuple[str, ...] = ()
    body: str = attrs.field(repr=False)
    line: int = attrs.field(default=1, repr=False)

    @classmethod
    def parse(cls, text: str, *, names: Collection[str] = ("payload", "headers")) -> Self:
        """Return the expression in `text`; nothing of it is evaluated.

        It is compiled in another process, which takes 20 ms the first time and less than one from then on.

        Args:
            text: A bare expression, or one with a header; see `heddle.expressions.header`.
            names: What it will be given, beside what Starlark itself has.

        Raises:
            ExpressionError: With the line and the column where they can be told.
            DefinitionError: Starlark is not installed.
        """
        if len(text) > MAX_TEXT_CHARS:
            raise ExpressionError(f"the text has {len(text):,} characters; it may have {MAX_TEXT_CHARS:,}")
        header = parse_header(text, names)
        _check(header, names)
        return cls(text=text, output=header.output, inputs=header.inputs, body=header.body, line=header.line)

    def evaluate(self, names: Mapping[str, JSON]) -> JSON:
        """Return its value, and block until it is there: a second at most. For rules; see `Evaluator` for the rest.

        Raises:
            ExpressionFailed: It has no value.
        """
        return self.value(blocking.ask(self.request(names, RULE_LIMITS)))

    def request(self, names: Mapping[str, JSON], limits: ExpressionLimits) -> bytes:
        """Return what is sent to have it evaluated.

        Raises:
            ExpressionFailed: What it is to be given cannot be sent.
        """
        return request_to_evaluate(self.body, names, limits)

    def value(self, answer: bytes) -> JSON:
        """Return its value out of the answer to its `request`.

        Raises:
            ExpressionFailed: It has none, or not the one that its header promises.
        """
        try:
            value = value_of(answer)
        except ExpressionFailed as failed:
            raise ExpressionFailed(failed.kind, failed.message, _moved(failed.line, self.line), failed.column) from None
        if self.output == "text/plain" and not isinstance(value, str):
            said = f'the expression\'s result is {kind_of(value)}; "output text/plain" promises a text'
            raise ExpressionFailed("result", said)
        return value


@attrs.frozen
class Predicate:
    """Whether an expression over ``args`` is true. Anything but exactly true is false, and so is having no value."""

    # So that nobody asks it where a loop would be held.
    waits: ClassVar[bool] = True

    expression: Expression

    def __call__(self, arguments: Mapping[str, JSON]) -> bool:
        """Return whether it is true of `arguments`. Blocks, a second at most."""
        try:
            return self.expression.evaluate({"args": dict(arguments)}) is True
        except ExpressionFailed:
            return False


def predicate(expression: Expression) -> Predicate:
    """Return what judges arguments by `expression`, which sees them as ``args``."""
    return Predicate(expression)


def _check(header: Header, names: Collection[str]) -> None:
    lines = header.body.split("\n")
    if not any(line.partition("#")[0].strip() for line in lines):
        raise ExpressionError(
            "there is no expression after the header" if header.line > 1 else "there is no expression"
        )
    try:
        value_of(blocking.ask(request_to_check(header.body, names, RULE_LIMITS)))
    except StrictJsonError as error:
        raise ExpressionError(f"the text holds {error.what}") from None
    except ExpressionFailed as failed:
        raise ExpressionError(failed.message, _moved(failed.line, header.line), failed.column) from None


def _moved(line: int | None, first: int) -> int | None:
    """Return a line of the body as one of the text."""
    return None if line is None else line + first - 1
