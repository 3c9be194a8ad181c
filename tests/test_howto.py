"""The how-to pages: what they show runs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio

import heddle
from heddle.sandbox import probe
from tests.support import Toolbox
from tests.test_cli import heddle_cli

ROOT = Path(__file__).parent.parent
FILES, UNTRUSTED = ((ROOT / "docs/how-to" / name).read_text() for name in ("files.md", "untrusted.md"))


def blocks(language: str, page: str = FILES) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def place(toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the page speaks of."""
    toolbox.sh("summarise", "cat input.csv skills/* 2>/dev/null >&2; mkdir -p notes; echo x > notes/new; echo '{}'")
    toolbox.sh("build", "ls >&2; echo '{}'")
    for name in ("data", "skills", "notes", "repository/src"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/report.csv").write_text("1\n")
    (tmp_path / "skills/weaving.md").write_text("over, under\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_piece_of_python_runs(toolbox: Toolbox, place: Path, number: int) -> None:
    source = blocks("python")[number]
    opens_runner = "heddle.Runner(" in source
    body = (
        source if opens_runner else f"async with heddle.Runner(registry) as runner:\n{textwrap.indent(source, '    ')}"
    )
    scope: dict[str, Any] = {"heddle": heddle, "registry": toolbox.registry()}
    exec(f"async def main():\n{textwrap.indent(body, '    ')}", scope)

    trio.run(scope["main"])

    assert (place / "notes/new").exists() == (":rw" in source)


@pytest.mark.parametrize("command", [line for block in blocks("sh") for line in block.splitlines()])
def test_a_command_runs(place: Path, command: str) -> None:
    program, *arguments = command.split()

    done = heddle_cli(*arguments)

    assert program == "heddle"
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{}\n"


needs_a_sandbox = pytest.mark.skipif(
    not any(trial.works for trial in (probe().containers, probe().single, probe().landlock)),
    reason="nothing here confines tools",
)


@needs_a_sandbox
@pytest.mark.parametrize("source", blocks("python", UNTRUSTED))
def test_a_piece_of_python_that_confines_runs(toolbox: Toolbox, place: Path, source: str) -> None:
    scope: dict[str, Any] = {"heddle": heddle, "registry": toolbox.registry()}
    exec(f"async def main():\n{textwrap.indent(source, '    ')}", scope)

    trio.run(scope["main"])


@needs_a_sandbox
@pytest.mark.parametrize("command", [line for block in blocks("sh", UNTRUSTED) for line in block.splitlines()])
def test_a_command_that_confines_runs(place: Path, command: str) -> None:
    _, *arguments = command.split()

    done = heddle_cli(*arguments)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "{}\n" or "doctor" in command
