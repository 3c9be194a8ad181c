"""What a type checker says to users: nothing about what is right, and something about what is wrong.

The programs in ``tests/typing`` say at the end of a line what each checker finds there:
``# E: mypy[arg-type] pyright[reportArgumentType]``. Needs both checkers, so it runs where types are checked:
``nox -s typing``, or ``pytest -m typing``.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "typing"
CHECKERS = ("mypy", "pyright")

pytestmark = pytest.mark.typing

Finding = tuple[str, int, str]  # a file's name, a line, a rule


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's project: the programs, and heddle where it is installed."""
    folder = tmp_path_factory.mktemp("project")
    for program in PROGRAMS.glob("*.py"):
        shutil.copy(program, folder)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return folder


def found_by_mypy(project: Path) -> set[Finding]:
    lines = output_of(project, "mypy", "--strict", "--output=json", "--cache-dir=.cache", "--config-file=", ".")
    found = [json.loads(line) for line in lines.splitlines()]
    return {(each["file"], each["line"], each["code"]) for each in found if each["severity"] == "error"}


def found_by_pyright(project: Path) -> set[Finding]:
    report = json.loads(output_of(project, "pyright", "--outputjson", "--pythonpath", sys.executable))
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each.get("rule", each["message"]))
        for each in report["generalDiagnostics"]
        if each["severity"] in {"error", "warning"}
    }
    # What is wrong has no known type, which is said as well.
    wrong = {(name, line) for name, line, rule in found if not rule.startswith("reportUnknown")}
    return {each for each in found if not (each[2].startswith("reportUnknown") and each[:2] in wrong)}


def output_of(project: Path, checker: str, *arguments: str) -> str:
    command = [sys.executable, "-m", checker, *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    return done.stdout


def expected_of(checker: str) -> set[Finding]:
    return {
        (program.name, number, rule)
        for program in PROGRAMS.glob("*.py")
        for number, line in enumerate(program.read_text().splitlines(), 1)
        for rule in re.findall(rf"\b{checker}\[(.+?)\]", line.partition("# E: ")[2])
    }


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_checker_finds_what_is_wrong_and_nothing_else(project: Path, checker: str) -> None:
    found = {"mypy": found_by_mypy, "pyright": found_by_pyright}[checker](project)

    expected = expected_of(checker)
    assert (sorted(found - expected), sorted(expected - found)) == ([], [])
    assert len({name for name, _, _ in expected}) == len([*PROGRAMS.glob("*.py")])
