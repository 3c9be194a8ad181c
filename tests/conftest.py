"""What the tests share: folders of real tools, and the rule that a skipped test may be forbidden."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heddle.workspace.removal import remove_tree
from tests.support import Toolbox

if TYPE_CHECKING:
    from collections.abc import Iterator

_skipped: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def tmp_of_the_session() -> Iterator[None]:
    """Hosts that are killed on purpose leave their workspaces: here, where they are removed with the rest."""
    folder = tempfile.mkdtemp(prefix="heddle-tests-")
    Path(folder).chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    remove_tree(Path(folder))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of the operator's, with something in it."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    (folder / "inner" / "b.txt").write_text("b\n")
    return folder


@pytest.fixture
def toolbox(tmp_path: Path) -> Iterator[Toolbox]:
    """A folder to put tools in; whatever they leave running is ended after the test, by its process id."""
    box = Toolbox(tmp_path / "tools")
    yield box
    box.end_strays()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(f"{report.nodeid}: {report.longrepr[2] if isinstance(report.longrepr, tuple) else ''}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every test has to run, one that was skipped has shown nothing."""
    if os.environ.get("HEDDLE_FORBID_SKIPS") and _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("HEDDLE_FORBID_SKIPS") and _skipped:
        terminalreporter.write_line("skipped, where every test has to run:", red=True)
        for line in _skipped:
            terminalreporter.write_line(f"  {line}")
