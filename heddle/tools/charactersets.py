"""The sets of characters in regular expressions, as far as it matters whether two of them have a character in common.

A set may hold more characters here than it does for Python, never fewer.
"""

from __future__ import annotations

import importlib
import itertools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["EVERYTHING", "CharacterSet", "as_bits", "character_set"]

# A set of characters: whether it is negated, ranges of code points, and kinds by the name of Python's category.
CharacterSet: TypeAlias = tuple[bool, frozenset[tuple[int, int]], frozenset[str]]
EVERYTHING: CharacterSet = (True, frozenset(), frozenset())
_LAST = 0x10FFFF
_KINDS = ("digit", "word", "space", "other")
_KINDS_OF = {
    "CATEGORY_DIGIT": {"digit"},
    "CATEGORY_NOT_DIGIT": {"word", "space", "other"},
    "CATEGORY_SPACE": {"space"},
    "CATEGORY_NOT_SPACE": {"digit", "word", "other"},
    "CATEGORY_WORD": {"digit", "word"},
    "CATEGORY_NOT_WORD": {"space", "other"},
}
# 512 characters: every script's letters and digits; whatever is wider is taken to hold characters of all kinds.
_NARROW = 512


def character_set(operation: str, argument: Any, flags: int) -> CharacterSet:
    """Return what one of the parser's operations ``ANY``, ``LITERAL``, ``NOT_LITERAL`` and ``IN`` reads."""
    if operation == "ANY":
        return EVERYTHING if flags & re.DOTALL else (True, frozenset({(10, 10)}), frozenset())
    if operation != "IN":
        argument = [("LITERAL", argument)] if operation == "LITERAL" else [("NEGATE", None), ("LITERAL", argument)]
    negated = False
    ranges: set[tuple[int, int]] = set()
    kinds: set[str] = set()
    for name, value in argument:
        match str(name):
            case "NEGATE":
                negated = True
            case "LITERAL":
                ranges.add((value, value))
            case "RANGE":
                ranges.add((value[0], value[1]))
            case _:
                kinds.add(str(value))
    # Too many characters are no harm, too few are: with ASCII kinds hold less, and what is not of a kind is more.
    opposite = negated or any("_NOT_" in kind for kind in kinds)
    if not kinds <= _KINDS_OF.keys() or (flags & re.ASCII and kinds and opposite):
        return EVERYTHING
    if flags & re.IGNORECASE and not negated:
        if any(high - low > _NARROW for low, high in ranges):
            return EVERYTHING
        ranges |= {(code, code) for low, high in ranges for code in _either_case(low, high)}
    return negated, frozenset(ranges), frozenset(kinds)


def _either_case(low: int, high: int) -> set[int]:
    """Return the code points that Python takes for one of ``low`` to ``high`` where case is ignored."""
    found = set(range(low, high + 1))
    extra: Mapping[int, Sequence[int]] = importlib.import_module("re._casefix")._EXTRA_CASES  # noqa: SLF001 - as the parser, known up to 3.14
    for _ in range(2):  # from any form, two steps lead to all others
        for code in tuple(found):
            character = chr(code)
            forms = {character.lower(), character.upper(), character.title(), character.casefold()}
            found.update(ord(form) for form in forms if len(form) == 1)
            found.update(extra.get(code, ()))
    return found


def as_bits(sets: Sequence[CharacterSet]) -> list[int]:
    """Return each set as bits, one for each kind of characters that no set tells apart."""
    cuts = {0, _LAST + 1}
    for _, ranges, _ in sets:
        for low, high in ranges:
            cuts |= {low, high + 1}
    edges = sorted(cuts)
    by_kind = any(kinds for _, _, kinds in sets)
    atoms = [
        (low, kind) for low, end in itertools.pairwise(edges) for kind in (_kinds(low, end) if by_kind else ("other",))
    ]
    known: dict[CharacterSet, int] = {}
    for each in sets:
        if each not in known:
            known[each] = sum(1 << place for place, atom in enumerate(atoms) if _holds(each, *atom))
    return [known[each] for each in sets]


def _kinds(low: int, end: int) -> Iterable[str]:
    if end - low > _NARROW:
        return _KINDS
    return sorted({_kind(chr(code)) for code in range(low, end)})


def _kind(character: str) -> str:
    if character.isdecimal():
        return "digit"
    if character.isalnum() or character == "_":
        return "word"
    return "space" if character.isspace() else "other"


def _holds(each: CharacterSet, low: int, kind: str) -> bool:
    negated, ranges, kinds = each
    inside = any(start <= low <= end for start, end in ranges) or any(kind in _KINDS_OF[name] for name in kinds)
    return inside != negated
