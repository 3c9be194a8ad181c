"""What holds for root holds for a plain user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unprivileged import why_not


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_suites_that_meet_the_operating_system_pass_as_plain_user(
    as_plain_user: tuple[subprocess.Popen[str], Path] | None,
) -> None:
    """The run began with the first test."""
    assert as_plain_user is not None
    run, output = as_plain_user

    status = run.wait(timeout=900)

    said = output.read_text()
    assert status == 0, said[-10_000:]
    assert "skipped" not in said
