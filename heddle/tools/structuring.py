"""Between Python values and JSON values: `to_json` on the way out, `ArgumentsRefused` for what cannot come in.

The work is done in `heddle.tools.conversion`, which is loaded with the first value that needs it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import attrs

from heddle.strictjson import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.tools.definition import Violation

__all__ = ["ArgumentsRefused", "fields_of", "has_fields", "to_json"]


class ArgumentsRefused(Exception):
    """Arguments hold to the schema, and a class that is made of them says no.

    Attributes:
        violations: Where, and the reason that the class gave.
    """

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        self.violations = violations
        super().__init__("; ".join(map(str, violations)))


def to_json(value: object) -> object:
    """Return `value` with what Python keeps in richer types as JSON has it.

    Dataclasses and `attrs` classes become objects, an enum's member its value, tuples, sets and other sequences lists.
    A set's items are sorted where they can be, else put in the order of their text, so that equal sets give equal
    lists. What JSON has no form for (a datetime, bytes, a key that is no string) stays as it is, for the strict check
    of every result to name.

    Raises:
        StrictJsonError: It is nested deeper than JSON may be; perhaps it holds itself.
    """
    if _is_json(value, MAX_DEPTH):
        return value
    from heddle.tools.conversion import unstructured

    return unstructured(value)


def _is_json(value: Any, depth: int) -> bool:
    """Return whether `value` has nothing to convert; no if it is nested deeper than `depth`."""
    kind = cast("Any", type)(value)
    if kind is dict or kind is list:
        items: Iterable[object] = value.values() if kind is dict else value
        return depth > 0 and all(_is_json(item, depth - 1) for item in items)
    return value is None or kind in (str, int, float, bool)


def has_fields(kind: type[Any]) -> bool:
    """Return whether `kind` is an `attrs` class or a dataclass."""
    return hasattr(kind, "__attrs_attrs__") or dataclasses.is_dataclass(kind)


def fields_of(kind: type[Any]) -> tuple[Any, ...]:
    """Return the fields of an `attrs` class or a dataclass."""
    return attrs.fields(kind) if hasattr(kind, "__attrs_attrs__") else dataclasses.fields(kind)
