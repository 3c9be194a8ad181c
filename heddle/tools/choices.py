"""``anyOf`` and ``oneOf``: which branch was probably meant, and what that one wanted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from heddle.tools import wording
from heddle.tools.faults import Fault, Faults, fault

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["any_of", "one_of"]

# 20 faults: a branch with that many is not the one that was meant.
_MOST_IN_BRANCH = 20


def any_of(validator: Any, branches: Any, instance: Any, _schema: Any) -> Faults:
    """Say what the nearest branch wanted where none fits."""
    faults: list[list[Fault]] = []
    for branch in branches:
        faults.append(_of_branch(validator, instance, branch))
        if not faults[-1]:
            return
    yield _nearest(faults, instance)


def one_of(validator: Any, branches: Any, instance: Any, _schema: Any) -> Faults:
    """Say what the nearest branch wanted where none fits, and how many fit where more than one does."""
    faults = [_of_branch(validator, instance, branch) for branch in branches]
    fitting = sum(not each for each in faults)
    if not fitting:
        yield _nearest(faults, instance)
    elif fitting > 1:
        yield fault(f"must fit one of {len(branches)} forms, and fits {fitting}")


def _of_branch(validator: Any, instance: Any, branch: Any) -> list[Fault]:
    return list(itertools.islice(validator.descend(instance, branch), _MOST_IN_BRANCH))


def _nearest(faults: Sequence[Sequence[Fault]], instance: Any) -> Fault:
    """Say what the branch wanted that was probably meant; where none of them comes near, what all of them want."""
    heads: list[tuple[str, Any]] = [(str(each[0].validator), each[0].validator_value) for each in faults]
    words = {word if not each[0].path else "" for (word, _), each in zip(heads, faults, strict=True)}
    if words == {"type"}:
        wanted = [name for _, types in heads for name in ([types] if isinstance(types, str) else types)]
        return fault(wording.wrong_type(list(dict.fromkeys(wanted)), instance))
    if words <= {"const", "enum"}:
        return fault(
            wording.not_one_of([value for word, given in heads for value in ([given] if word == "const" else given)])
        )
    best = min(faults, key=_distance)[0]
    return fault(best.message, *best.path)


def _distance(faults: Sequence[Fault]) -> tuple[bool, bool, int]:
    """Tell how far a branch is from what was given: wrong type, wrong tag, number of faults."""
    wrong_type = any(error.validator in ("type", None) and not error.path for error in faults)
    wrong_tag = any(error.validator in ("const", "enum") and len(error.path) <= 1 for error in faults)
    return wrong_type, wrong_tag, len(faults)
