"""What a violation says and where: the same words for the same fault, whichever dialect finds it."""

from __future__ import annotations

import difflib
import itertools
import json
import math
from typing import TYPE_CHECKING, TypeAlias

from heddle import strictjson
from heddle.tools.definition import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heddle.strictjson import JSON
    from heddle.tools.patterns import SafePattern

__all__ = [
    "MOST_VIOLATIONS",
    "REFUSED",
    "REQUIRED",
    "Path",
    "at",
    "count_of",
    "cut",
    "in_schema",
    "kind_of",
    "listed",
    "near",
    "not_known",
    "not_one_of",
    "shown",
    "too_long",
    "wrong_type",
]

Path: TypeAlias = "tuple[str | int, ...]"

REQUIRED = "is required"
REFUSED = "is not allowed here"

# 100: more than anybody corrects at once. Of the others up to 900 are counted, so that a flood costs little.
MOST_VIOLATIONS = 100
_MOST_COUNTED = 1000

# 60 characters: enough to recognise a value, little enough for a sentence.
_MOST_SHOWN = 60
# 10: more names than that help nobody to choose one.
_MOST_LISTED = 10
_ARTICLES = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}

_JSON_TYPES = (type(None), bool, int, float, str, list, dict)


def at(path: Iterable[str | int]) -> str:
    """Return ``address.city``, ``tags[2]`` or ``["a b"].x``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier():
            text += f".{cut(step)}" if text else cut(step)
        else:
            text += f"[{json.dumps(cut(step), ensure_ascii=False)}]"
    return text


def in_schema(path: Iterable[str | int]) -> str:
    """Return ``$defs.name.pattern``: a place in a schema, where keywords may begin with a dollar sign."""
    text = ""
    for step in path:
        if isinstance(step, str) and step.removeprefix("$").isidentifier():
            text += f".{cut(step)}" if text else cut(step)
        else:
            text += at((step,))
    return text


def cut(text: str) -> str:
    """Return `text`, shortened where it is long."""
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def shown(value: JSON) -> str:
    """Return `value` as JSON, shortened; what is large is only described."""
    if isinstance(value, str):
        return cut(json.dumps(value[: _MOST_SHOWN + 1], ensure_ascii=False))
    if isinstance(value, int) and value.bit_length() > 200:  # noqa: PLR2004 - some 60 digits
        return f"an integer of about {int(value.bit_length() * math.log10(2)) + 1:,} digits"
    if isinstance(value, (list, dict)) and strictjson.is_large(value, _MOST_SHOWN):
        things = "items" if isinstance(value, list) else "members"
        return f"{kind_of(value)} of {len(value):,} {things}"
    return cut(json.dumps(value, ensure_ascii=False, default=str))


def kind_of(value: JSON) -> str:
    """Return what `value` is: ``a string``, ``null``; a value of Python's own may come from a host."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if type(value) in _JSON_TYPES:
        return strictjson.kind_of(value)
    return f"a value of type {type(value).__name__}"


def wrong_type(wanted: Sequence[str], value: JSON) -> str:
    """Return ``must be a string or null, not a number``."""
    fraction = isinstance(value, float) and math.isfinite(value) and "integer" in wanted
    seen = shown(value) if fraction else kind_of(value)
    return f"must be {' or '.join(_ARTICLES.get(word, word) for word in wanted)}, not {seen}"


def not_one_of(allowed: Sequence[JSON]) -> str:
    """Return ``must be one of "USD", "EUR"``."""
    return f"must be one of {_listed([shown(each) for each in allowed])}"


def not_known(name: str, known: Sequence[str], noun: str) -> str:
    """Return ``is not a known argument; did you mean "limit"?``."""
    close = near(name, known)
    if close:
        return f'is not a known {noun}; did you mean "{cut(close)}"?'
    if not known:
        return f"is not a known {noun}; there are none"
    return f"is not a known {noun}; known are {_listed([shown(each) for each in known])}"


def near(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant."""
    # What is longer than any sensible name is compared with none: comparing takes quadratic time.
    close = difflib.get_close_matches(name, list(known)[:1000], n=1) if len(name) <= 100 else []  # noqa: PLR2004 - comparing takes quadratic time
    return close[0] if close else None


def count_of(least_or_most: str, wanted: float, thing: str, seen: int, which: str = "") -> str:
    """Return ``must have at least 3 characters, not 2``."""
    things = thing if wanted == 1 else plural(thing)
    return f"must have at {least_or_most} {wanted:,} {things}{which and f' {which}'}, not {seen:,}"


def plural(thing: str) -> str:
    """Return ``items``, ``properties``."""
    return f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"


def too_long(length: int, pattern: SafePattern) -> str:
    """Say why a string was not tried on a pattern."""
    return (
        f"has {length:,} characters, and the pattern {shown(pattern.text)} is only tried on {pattern.longest:,} "
        "at the most: matching more could take too long, and it cannot be stopped"
    )


def listed(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return at most `MOST_VIOLATIONS` of them, and behind those one that counts the others."""
    found = tuple(itertools.islice(violations, _MOST_COUNTED))
    if len(found) <= MOST_VIOLATIONS:
        return found
    number = f"{'at least ' if len(found) == _MOST_COUNTED else ''}{len(found) - MOST_VIOLATIONS}"
    return (*found[:MOST_VIOLATIONS], Violation("", "more", f"{number} more violations are not listed"))


def _listed(texts: Sequence[str]) -> str:
    text = ", ".join(texts[:_MOST_LISTED])
    return text if len(texts) <= _MOST_LISTED else f"{text} … ({len(texts)} in all)"
