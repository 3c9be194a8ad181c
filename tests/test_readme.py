"""The README does what it says: its examples run, and print what it prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SETUP = "python3 -m venv .venv && .venv/bin/pip install -q nox && "


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def run(command: list[str], folder: Path) -> str:
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout


def test_the_python_example_runs_and_is_short(tmp_path: Path) -> None:
    example = blocks("python")[0]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    output = run([sys.executable, "-c", example], tmp_path)

    assert output == blocks("text")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 16


def test_the_scope_example_hands_a_file_from_one_tool_to_the_next(tmp_path: Path) -> None:
    example = blocks("python")[1]
    (tmp_path / "fetch").write_text("#!/bin/sh\ncat > table.json; echo '{}'\n")
    (tmp_path / "summarise").write_text("#!/bin/sh\nsed 's/table/text/' table.json\n")
    for name in ("fetch", "summarise"):
        (tmp_path / name).chmod(0o755)
    program = f"""
import heddle, sys
{example}
with heddle.blocking.Runner(heddle.discover_tools(sys.argv[1])) as runner:
    print(report(runner))
"""

    output = run([sys.executable, "-c", program, str(tmp_path)], tmp_path)

    assert output == "looms\n"


def test_a_tool_of_ones_own_takes_a_minute(tmp_path: Path) -> None:
    first, second, safely = (block for block in blocks("sh") if "shout" in block)
    tmp_path.chmod(0o755)

    outputs = [run(["sh", "-c", block], tmp_path) for block in (first, second)]
    verdict, *_, result = run(["sh", "-c", safely], tmp_path).splitlines()

    assert outputs == blocks("text")[1:]
    assert verdict.startswith("tools are confined by")
    assert result == outputs[0].strip()


def test_the_test_of_a_tool_passes(tmp_path: Path) -> None:
    first = next(block for block in blocks("sh") if "shout" in block)
    (tmp_path / "test_shout.py").write_text(blocks("python")[2])
    run(["sh", "-c", first], tmp_path)

    output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path)

    assert "1 passed" in output, output


def test_the_two_commands_name_sessions_that_exist_and_the_gate_runs_the_second() -> None:
    commands = [block.strip() for block in blocks("sh") if block.startswith(SETUP)]
    sessions = [command.removeprefix(SETUP) for command in commands]
    nox = (ROOT / "noxfile.py").read_text()

    assert sessions == [".venv/bin/nox -s demo", ".venv/bin/nox -s tests"]
    assert all(f"def {session.split()[-1]}(" in nox for session in sessions)
    assert commands[1] in (ROOT / ".ci/run").read_text().splitlines()


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link
    ]

    assert links
    assert [link for page, link in links if not (page.parent / link.partition("#")[0]).exists()] == []
