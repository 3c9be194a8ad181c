"""Every program in examples/ runs, and shows what it is there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | environment,
    )
    assert done.stderr == ""
    return done.stdout


def test_the_demo_calls_three_languages_and_a_function_and_shows_a_failure() -> None:
    lines = run("demo.py").splitlines()

    for name in ("bash_search", "python_search", "node_search"):
        assert any(line.startswith(f"  {name} ") and "You searched for: looms" in line for line in lines), lines
    assert any(line.startswith("  word_count") and "{'words': 3, 'characters': 13}" in line for line in lines)
    assert any("failed (invalid_input)" in line for line in lines)
    assert any("A quotation mark or a line break inside a string has to be escaped" in line for line in lines)


def test_the_demo_says_which_language_is_missing(tmp_path: Path) -> None:
    for name in ("bash", "python3", "env", "cat"):
        found = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
        (tmp_path / name).symlink_to(found)

    output = run("demo.py", PATH=str(tmp_path))

    assert "node_search    skipped: node is not on this machine" in output
    assert output.count("You searched for: looms") == 2


@pytest.mark.parametrize("tool", sorted(path.name for path in (EXAMPLES / "tools").iterdir() if path.suffix != ".json"))
def test_the_tools_work_without_heddle(tool: str) -> None:
    done = subprocess.run(
        [str(EXAMPLES / "tools" / tool)],
        input='{"query": "looms"}',
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert done.stdout.strip().replace(" ", "") == '{"result":"Yousearchedfor:looms"}'


def test_the_csv_report_goes_from_tool_to_tool_and_comes_back() -> None:
    assert run("csv_report.py") == (
        "{'rows': 3, 'best': 'attic'}\n"
        "report/best.txt came back: attic: 5200 picks\n"
        "created in the workspace: readings.csv, report/best.txt\n"
    )
