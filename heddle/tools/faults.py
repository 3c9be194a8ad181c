"""A fault that a keyword finds, and what a caller reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from jsonschema.exceptions import ValidationError

from heddle.tools import wording
from heddle.tools.definition import Violation

__all__ = ["Fault", "Faults", "Keyword", "fault", "holds", "violation_of"]

Fault: TypeAlias = ValidationError
Faults: TypeAlias = Iterator[ValidationError]
# The validator, the keyword's setting, the value, the schema. Typed as little as jsonschema types them.
Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Faults]


def violation_of(error: Fault) -> Violation:
    """Return what a caller reads of `error`."""
    rule = error.validator
    if rule is None:  # pyright: ignore[reportUnnecessaryComparison] - the schema `false`
        return Violation(wording.at(error.absolute_path), "false", wording.REFUSED)
    # jsonschema's own messages, of the keywords that are not ours, may quote a value.
    message = error.message if len(error.message) <= 500 else error.message[:499] + "…"  # noqa: PLR2004 - a long sentence
    return Violation(wording.at(error.absolute_path), str(rule), message)


def fault(message: str, *path: str | int, rule: str | None = None) -> Fault:
    """Return a fault at `path` under the value that is judged; `rule` is the keyword that finds it, unless given."""
    error = ValidationError(message, path=path)
    if rule is not None:
        error.validator = rule
    return error


def holds(validator: Any, instance: Any, subschema: Any) -> bool:
    """Return whether `instance` is valid under `subschema`."""
    return next(validator.descend(instance, subschema), None) is None
