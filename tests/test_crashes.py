"""A host may be killed at any instant: no effect is brought about twice, and what is not known is said not to be."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from heddle.operations import Journal
from tests.crashing import FAULTS, STEPS, Crash, Hosts, broken_promises, ledger_of

# The session `crashes` takes 200.
CRASHES = int(os.environ.get("HEDDLE_CRASHES", "0"))


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts() as hosts:
        yield hosts


def plan_of(boundaries: list[Crash]) -> list[Crash]:
    """Return every boundary, for both kinds of tools by turns, in an order that is always the same; more if asked."""
    order = random.Random(20)
    plan = [attrs.evolve(each, tool=("pay", "note")[number % 2]) for number, each in enumerate(boundaries)]
    plan += [
        attrs.evolve(order.choice(boundaries), tool=order.choice(("pay", "note"))) for _ in range(len(plan), CRASHES)
    ]
    order.shuffle(plan)
    return plan


async def test_a_host_may_be_killed_anywhere(hosts: Hosts, tmp_path: Path) -> None:
    """One journal, in which one host after another is killed: at every statement of every step, and while tools run."""
    (tmp_path / "survey").mkdir()
    (tmp_path / "all").mkdir()
    boundaries = hosts.boundaries(tmp_path / "survey")
    folder = tmp_path / "all"
    broken = []

    for number, crash in enumerate(plan_of(boundaries)):
        hosts.crash(folder, f"op-{number}", crash)
        broken += await broken_promises(folder, f"op-{number}", crash)

    assert broken == []
    assert {crash.step for crash in boundaries} == {*STEPS, "launch", "tool"}
    assert set(ledger_of(folder).values()) == {1}
    assert list((folder / "journal.db.owners").iterdir()) == []


TAKES_A_SECOND_RUN = "in the end it has happened: 2, not 1"


@pytest.mark.parametrize(
    ("fault", "crash", "found"),
    [
        ("start is not committed", Crash("tool", 0), TAKES_A_SECOND_RUN),
        ("finish is written before the end", Crash("tool", 1), "in the end it has happened: 0, not 1"),
        ("an approval is not used up", Crash("tool", 0), "approved are: [None], not ['ID']"),
    ],
)
async def test_a_journal_with_a_fault_is_found_out(
    hosts: Hosts, tmp_path: Path, fault: str, crash: Crash, found: str
) -> None:
    hosts.crash(tmp_path, "op", crash, fault)

    broken = await broken_promises(tmp_path, "op", crash)

    assert any(re.sub(r"\b[0-9A-Z]{26}\b", "ID", each).endswith(found) for each in broken), broken


async def test_a_recovery_that_opens_what_has_started_is_found_out(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.crash(tmp_path, "op", Crash("tool", 0))
    monkeypatch.setattr(Journal, "_lose", Journal._lose)  # put back afterwards
    FAULTS["recovery takes all for not started"]()

    broken = await broken_promises(tmp_path, "op", Crash("tool", 0))

    assert any(each.endswith(TAKES_A_SECOND_RUN) for each in broken), broken
