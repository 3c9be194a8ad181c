"""Small questions about JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["copied", "is_array", "is_mapping", "is_object", "key_of"]

# Python's hashes repeat from 2**61 - 1 on; larger numbers are told apart by their text.
_SMALL = 1 << 60


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether `value` is an object, whatever it holds."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return whether `value` is an array, whatever it holds."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return whether `value` is any mapping."""
    return isinstance(value, Mapping)


def copied(value: JSON) -> JSON:
    """Return a copy that shares nothing that can be changed."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def key_of(value: JSON) -> object:
    """Return something hashable that is equal exactly for values that are equal as JSON."""
    match value:
        case bool():
            return ("boolean", value)
        case float() if value.is_integer():
            return key_of(int(value))
        case int() if not -_SMALL < value < _SMALL:
            return ("integer", f"{value:x}")
        case list():
            return ("array", tuple(map(key_of, value)))
        case dict():
            return ("object", frozenset((name, key_of(item)) for name, item in value.items()))
        case _:
            return value
