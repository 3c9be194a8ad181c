"""``heddle new``: what it writes runs, its test passes, and what was there stays."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from heddle.cli.new import new
from tests.test_cli import heddle_cli
from tests.test_pytest_plugin import ALONE

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(new, [*arguments])


def tree(folder: Path) -> dict[str, str]:
    """Return every file below a folder, with its text."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("language", "file", "folder"),
    [
        ("python", "spell-out.py", "tools"),
        ("bash", "spell-out.sh", "my tools"),
        pytest.param("node", "spell-out.mjs", "../elsewhere", marks=needs_node),
    ],
)
def test_a_new_tool_runs_and_its_test_passes(here: Path, language: str, file: str, folder: str) -> None:
    """Both commands that it names are run as they are printed."""
    written = heddle_cli("new", "spell-out", "--lang", language, "--folder", folder, cwd=here)

    assert (written.returncode, written.stderr) == (0, "")
    *created, head, call, test = written.stdout.splitlines()
    assert created == [
        f"created: {folder}/{file}",
        f"created: {folder}/spell-out.tool.json",
        "created: tests/test_spell_out.py",
    ]
    assert (head, test) == ("next:", "  pytest tests/test_spell_out.py")
    called, tested = typed(call, here), typed(test, here)
    assert (called.returncode, json.loads(called.stdout), called.stderr) == (0, {"text": "1:02:05"}, "")
    assert tested.returncode == 0, tested.stdout
    assert "3 passed" in tested.stdout


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as it is typed where the virtual environment is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=os.environ | ALONE | {"PATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_python_is_written_where_nothing_is_said(here: Path) -> None:
    done = invoke("greet")

    assert (done.exit_code, done.stderr) == (0, "")
    assert list(tree(here)) == ["tests/test_greet.py", "tools/greet.py", "tools/greet.tool.json"]
    assert os.access("tools/greet.py", os.X_OK)


@pytest.mark.parametrize(
    "taken",
    ["tools/greet.py", "tools/greet.tool.json", "tests/test_greet.py", "tools/greet.sh", "tools/greet.tool.yaml"],
)
def test_nothing_is_overwritten_and_nothing_written_beside_it(here: Path, taken: str) -> None:
    """Another file of that name would be a second tool of one name, or a second sidecar."""
    (here / taken).parent.mkdir()
    (here / taken).write_text("mine")

    done = invoke("greet")

    assert done.exit_code == 2
    assert done.stderr == f"heddle: {taken}: there already, and nothing was written; choose another name\n"
    assert tree(here) == {taken: "mine"}


def test_a_link_to_nowhere_is_there_as_well(here: Path) -> None:
    (here / "tools").mkdir()
    (here / "tools/greet.py").symlink_to(here / "nowhere")

    done = invoke("greet")

    assert (done.exit_code, done.stderr.partition(":")[2].partition(":")[0]) == (2, " tools/greet.py")
    assert tree(here) == {}


@pytest.mark.parametrize("name", [".hidden", "a/b", "a b", "ünï", "x" * 129, ""])
def test_a_name_that_no_tool_can_have_is_refused(here: Path, name: str) -> None:
    done = invoke("--", name)

    assert done.exit_code == 2
    assert "cannot be a tool's name: up to 128 letters" in done.stderr
    assert list(here.iterdir()) == []


def test_a_name_with_dots_and_dashes_makes_a_module_that_pytest_can_import(here: Path) -> None:
    invoke("text.word-count")

    assert list(tree(here)) == [
        "tests/test_text_word_count.py",
        "tools/text.word-count.py",
        "tools/text.word-count.tool.json",
    ]


def test_where_one_file_cannot_be_written_none_is_left(here: Path) -> None:
    (here / "tests").write_text("a file where a folder has to be")

    done = invoke("greet")

    assert done.exit_code == 2
    assert done.stderr.startswith("heddle: tests: ")
    assert list(tree(here)) == ["tests"]


def test_who_may_read_the_files_is_for_the_umask_to_say(here: Path) -> None:
    before = os.umask(0o077)
    try:
        invoke("greet")
    finally:
        os.umask(before)

    modes = {path: (here / path).stat().st_mode & 0o777 for path in tree(here)}
    assert modes == {"tests/test_greet.py": 0o600, "tools/greet.py": 0o700, "tools/greet.tool.json": 0o600}


def test_a_command_that_is_printed_can_be_typed_again(here: Path) -> None:
    folder = "it's; here"

    done = invoke("greet", "--folder", folder)

    call = done.stdout.splitlines()[-2]
    assert shlex.split(call) == ["heddle", "call", folder, "greet", '{"seconds": 3725}']
