"""Names as a provider takes them. What one becomes depends on nothing else, so it stays when others come and go."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from heddle.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MOST_CHARACTERS", "exported_name", "exported_names"]

# 64: OpenAI's limit, and the least that Anthropic's API has been seen to hold to.
MOST_CHARACTERS = 64
# 8 hexadecimal digits: among a thousand long names that begin alike, two share them once in 8,000 catalogues.
_DIGEST = 8


def exported_name(name: str) -> str:
    """Return a tool's name in letters, digits, ``_`` and ``-``; a long one keeps its beginning and gets a digest."""
    plain = name.replace(".", "_")
    if len(plain) <= MOST_CHARACTERS:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{plain[: MOST_CHARACTERS - _DIGEST - 1]}_{digest}"


def exported_names(names: Iterable[str]) -> dict[str, str]:
    """Return what each name becomes.

    Raises:
        DefinitionError: Two become the same.
    """
    ours: dict[str, str] = {}
    for name in names:
        taken = ours.setdefault(exported_name(name), name)
        if taken != name:
            raise DefinitionError(
                f'tools "{taken}" and "{name}" would both be exported as "{exported_name(name)}": rename one, or '
                "leave it out with Registry.restrict"
            )
    return {name: exported for exported, name in ours.items()}
