"""The one door for JSON that crosses a boundary: one value, UTF-8, nothing that two readers could read differently.

Refused both ways: ``NaN`` and infinities, numbers that only fit as an infinity, lone surrogates, nesting deeper than
`MAX_DEPTH`, integers of more than `MAX_DIGITS` digits. Refused in text also: duplicate keys, a second value, bad UTF-8.
Every refusal is a `StrictJsonError`, the same on every Python.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias, TypeGuard

from heddle.errors import StrictJsonError

__all__ = [
    "JSON",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "canonical",
    "dumps",
    "encoded",
    "is_large",
    "kind_of",
    "loads",
    "normalized",
    "same",
]

JSON: TypeAlias = "None | bool | int | float | str | list[JSON] | dict[str, JSON]"

# 128: far below the recursion limit of any Python, far above what a tool's data needs.
MAX_DEPTH = 128
# 4300: where Python itself stops by default, because converting decimal digits takes quadratic time.
MAX_DIGITS = 4300

_TOO_MANY_DIGITS = 10**MAX_DIGITS
_BOM = b"\xef\xbb\xbf"
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class _Fault:
    """Stands in a parsed value where something was refused, so that its path can be found afterwards."""

    def __init__(self, what: str) -> None:
        self.what = what


def loads(data: bytes | bytearray | str) -> JSON:
    """Return the one JSON value in `data`.

    One leading byte-order mark is ignored. Integers are exact.

    Raises:
        StrictJsonError: With a byte offset or a path to what was refused.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    raw = raw.removeprefix(_BOM)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictJsonError("bytes that are not UTF-8", f"byte {error.start}") from None
    _refuse_deep_text(raw)
    return _parsed(text, raw)


def dumps(value: object) -> bytes:
    """Return `value` as compact UTF-8 JSON.

    Raises:
        StrictJsonError: With the path to what JSON cannot say.
    """
    return encoded(normalized(value))


def encoded(value: JSON) -> bytes:
    """Return as text what has come from `loads` or `normalized` and needs no second look."""
    return _encode(value).encode("utf-8")


def canonical(value: object) -> bytes:
    """Return JSON text that is the same for values that are the same: members sorted, 1.0 written as 1.

    Raises:
        StrictJsonError: With the path to what JSON cannot say.
    """
    return json.dumps(
        _with_integers(normalized(value)), ensure_ascii=False, sort_keys=True, separators=(",", ":")
    ).encode("utf-8")


def normalized(value: object) -> JSON:
    """Return a copy of `value` in plain JSON types: mappings as dicts, tuples as lists, subclasses as their base.

    Raises:
        StrictJsonError: With the path to what JSON cannot say.
    """
    return _normalized(value, (), MAX_DEPTH)


def is_large(value: object, most: int = 2000) -> bool:
    """Return whether walking `value` visits more than `most` places; gives up counting there.

    A string counts once for every 100 characters.
    """
    waiting: list[Any] = [value]
    seen = 0
    while waiting:
        seen += 1
        item = waiting.pop()
        if isinstance(item, str):
            seen += len(item) // 100
        elif item is None or isinstance(item, (int, float)):
            continue
        elif _is_mapping(item) or _is_sequence(item):
            parts: Collection[Any] = item.values() if _is_mapping(item) else item
            seen += len(parts)
            waiting.extend(parts if len(parts) <= most else ())
        if seen > most:
            return True
    return False


def same(one: JSON, other: JSON) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, and neither equals true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    return one == other


def kind_of(value: JSON) -> str:
    """Return what a value is, in words: ``an object``, ``a number``."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list():
            return "an array"
        case _:
            return "an object"


_encode: Callable[[JSON], str] = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def _refuse_deep_text(raw: bytes) -> None:
    """Refuse text nested too deeply before a recursive parser meets it."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in re.findall(rb"[\[\]{}]", _STRINGS.sub(b"", raw)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise StrictJsonError(f"nesting deeper than {MAX_DEPTH}")


def _parsed(text: str, raw: bytes) -> JSON:
    try:
        value: JSON = (_LONG if len(text) > MAX_DIGITS else _SHORT).decode(text)
    except _Refused:
        raise _refusal(text) from None
    except json.JSONDecodeError as error:
        raise _from_decoder(error, text) from None
    except ValueError as error:  # a host that lowered the interpreter's own limit on digits
        raise StrictJsonError(f"an integer that this interpreter does not convert ({error})") from None
    if _SURROGATE_ESCAPE.search(raw):
        return normalized(value)  # the escapes may be a proper pair; a walk tells
    return value


class _Refused(Exception):
    """Something in a text is refused; it is read again to say what and where."""


def _refuse(what: str) -> Any:
    raise _Refused(what)


def _decoder(refuse: Callable[[str], Any], *, counts_digits: bool) -> json.JSONDecoder:
    """Return a decoder that calls `refuse` with what is not strict, and puts what that returns in its place."""

    def pairs(items: list[tuple[str, Any]]) -> Any:
        value = dict(items)
        if len(value) == len(items):
            return value
        keys = [key for key, _ in items]
        return refuse(f"duplicate key {json.dumps(next(key for key in keys if keys.count(key) > 1))}")

    def number(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) else refuse(f"a number too large for JSON readers ({_start(digits)})")

    def integer(digits: str) -> Any:
        too_long = len(digits.lstrip("-")) > MAX_DIGITS
        return refuse(f"an integer of more than {MAX_DIGITS:,} digits") if too_long else int(digits)

    return json.JSONDecoder(
        object_pairs_hook=pairs,
        parse_float=number,
        parse_int=integer if counts_digits else None,
        parse_constant=lambda name: refuse(f"{name}, which is not JSON"),
    )


# A text that is too short to hold an integer that is too long need not be looked through for one.
_SHORT = _decoder(_refuse, counts_digits=False)
_LONG = _decoder(_refuse, counts_digits=True)


def _refusal(text: str) -> StrictJsonError:
    """Read a text that was refused once more, with marks where something is wrong, and return the first."""
    faults: list[_Fault] = []

    def mark(what: str) -> _Fault:
        faults.append(_Fault(what))
        return faults[-1]

    try:
        value = _decoder(mark, counts_digits=True).decode(text)
    except json.JSONDecodeError as error:
        return _from_decoder(error, text)
    return StrictJsonError(faults[0].what, _path_of(faults[0], value))


def _from_decoder(error: json.JSONDecodeError, text: str) -> StrictJsonError:
    where = f"byte {len(text[: error.pos].encode('utf-8', 'surrogatepass'))}"
    if error.msg == "Extra data":
        return StrictJsonError("more after the first value", where)
    if not text.strip():
        return StrictJsonError("nothing where a value should be")
    if text.startswith("\ufeff"):
        return StrictJsonError("text that is not JSON (a second byte-order mark)", where)
    return StrictJsonError(f"text that is not JSON ({error.msg[:1].lower()}{error.msg[1:]})", where)


def _with_integers(value: JSON) -> JSON:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return value


def _path_of(fault: _Fault, value: Any) -> str:
    """Find `fault` in a parsed value and return its path."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        path, item = waiting.pop()
        if item is fault:
            return _dotted(path)
        if _is_mapping(item) or _is_sequence(item):
            parts: Iterable[Any] = item.items() if _is_mapping(item) else enumerate(item)
            waiting += [((*path, step), part) for step, part in parts]
    return ""  # it stood under a key that was given twice


def _normalized(value: Any, path: tuple[str | int, ...], depth: int) -> JSON:
    if isinstance(value, str):
        return _text(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) >= _TOO_MANY_DIGITS:
            raise StrictJsonError(f"an integer of more than {MAX_DIGITS:,} digits", _dotted(path))
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StrictJsonError(f"{value!r}, which is not JSON", _dotted(path))
        return float(value)
    if _is_mapping(value) or _is_sequence(value):
        return _container(value, path, depth)
    raise StrictJsonError(f"a value of type {type(value).__name__}, which is not JSON", _dotted(path))


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    # A dict is asked for first: asking an abstract class costs ten times as much.
    return isinstance(value, (dict, Mapping))


def _is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))


def _container(value: Mapping[Any, object] | list[Any] | tuple[Any, ...], path: Any, depth: int) -> JSON:
    if depth == 0:
        raise StrictJsonError(f"nesting deeper than {MAX_DEPTH}")
    if not _is_mapping(value):
        return [_normalized(item, (*path, place), depth - 1) for place, item in enumerate(value)]
    copy: dict[str, JSON] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise StrictJsonError(f"a key of type {type(key).__name__} ({_start(repr(key))})", _dotted(path))
        copy[_text(key, path)] = _normalized(item, (*path, key), depth - 1)
    return copy


def _text(value: str, path: tuple[str | int, ...]) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StrictJsonError(f"a lone surrogate (\\u{ord(value[error.start]):04x})", _dotted(path)) from None
    return value if type(value) is str else str.__str__(value)


def _dotted(path: tuple[str | int, ...]) -> str:
    """Return ``$.items[2].name``; bytes that no terminal should see are escaped."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{json.dumps(step)[1:-1]}" for step in path]
    return "$" + "".join(parts)


def _start(text: str) -> str:
    return text if len(text) <= 20 else text[:20] + "…"  # noqa: PLR2004 - enough to recognise it
