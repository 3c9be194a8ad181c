"""Shell completion: through click's protocol as a shell speaks it, and in a real bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import heddle
from heddle.cli.completion import tools_in
from heddle.testing import make_tool
from tests.support import Toolbox

HEDDLE = Path(sys.executable).with_name("heddle")
CAT = "#!/bin/sh\ncat"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which each rule of discovery has something to decide."""
    folder = tmp_path / "tools"
    make_tool(folder, CAT, name="word_count.sh", sidecar={"description": "Count the words of a text.\nAll of them."})
    make_tool(folder, CAT, name="word_list.sh")
    make_tool(folder, CAT, name="other", sidecar={"name": "word.named"})
    make_tool(folder, CAT, name="word_forgotten").chmod(0o644)
    make_tool(folder, CAT, name=".word_hidden")
    make_tool(folder, CAT, name="word bad")
    make_tool(folder, CAT, name="word_list.zsh")
    (folder / "word_folder").mkdir()
    (folder / "word_lost").symlink_to("nowhere")
    make_tool(folder, CAT, name="word_main.sh")
    (folder / "started.tool.json").write_text('{"process": {"executable": "word_main.sh"}}')
    return folder


def asked(shell: str, words: str, count: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask as the function does that a shell calls for a key."""
    return subprocess.run(
        [HEDDLE],
        env=os.environ
        | {"_HEDDLE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": count}
        | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def answer(words: str, count: int, cwd: Path, **environment: str) -> list[str]:
    done = asked("bash", words, str(count), cwd, **environment)

    assert done.stderr == ""
    return done.stdout.split()


def test_commands_are_completed(tmp_path: Path) -> None:
    assert answer("heddle c", 1, tmp_path) == ["plain,call", "plain,completion"]


@pytest.mark.parametrize("command", ["call", "describe"])
def test_the_names_of_the_tools_in_the_folder_are_completed(folder: Path, command: str) -> None:
    found = answer(f"heddle {command} tools word_", 3, folder.parent)

    assert found == ["plain,word_count", "plain,word_list"]


def test_what_a_tool_does_stands_beside_its_name_where_the_shell_shows_it(folder: Path) -> None:
    done = asked("zsh", "heddle call tools word_c", "3", folder.parent)

    assert done.stdout.splitlines() == ["plain", "word_count", "Count the words of a text."]


def test_a_folder_is_left_to_the_shell(tmp_path: Path) -> None:
    assert answer("heddle tools to", 2, tmp_path) == ["dir,to"]


def test_a_folder_in_the_home_is_found(folder: Path, tmp_path: Path) -> None:
    """The shell hands over the word as it was typed."""
    found = answer("heddle call ~/tools word_c", 3, tmp_path, HOME=str(folder.parent))

    assert found == ["plain,word_count"]


@pytest.mark.parametrize("where", ["nosuch", "tools"])
def test_a_folder_that_is_broken_or_not_there_completes_nothing(folder: Path, where: str) -> None:
    (folder / "broken.tool.json").write_text("{")

    assert answer(f"heddle call {where} w", 3, folder.parent) == []


def test_what_is_completed_is_what_is_discovered(folder: Path) -> None:
    found = tools_in(folder)

    assert list(found) == ["started", "word.named", "word_count", "word_list"]
    assert list(found) == sorted(tool.name for tool in heddle.discover_tools(folder))


def test_names_are_found_without_what_makes_tools_ready_to_be_called(folder: Path) -> None:
    source = f"""
import sys
from pathlib import Path
from heddle.cli.completion import tools_in
assert tools_in(Path({str(folder)!r}))
print(sorted({{"trio", "jsonschema", "cattrs", "rich", "yaml"}} & set(sys.modules)))
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_bash_that_has_read_the_script_completes(folder: Path) -> None:
    script = """
source <(heddle completion bash)
complete -p heddle
COMP_WORDS=(heddle call tools word_c) COMP_CWORD=3
_heddle_completion heddle
echo "${COMPREPLY[@]}"
"""

    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=os.environ | {"PATH": f"{HEDDLE.parent}{os.pathsep}{os.environ['PATH']}"},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("complete -o nosort -F _heddle_completion heddle\nword_count\n", "")


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("zsh", "compdef _heddle_completion heddle"),
        ("fish", 'complete --no-files --command heddle --arguments "(_heddle_completion)";'),
    ],
)
def test_other_shells_have_a_script_too(shell: str, line: str) -> None:
    done = subprocess.run([HEDDLE, "completion", shell], capture_output=True, text=True, timeout=30, check=False)

    assert done.stderr == ""
    assert line in [each.strip() for each in done.stdout.splitlines()]
    assert f"_HEDDLE_COMPLETE={shell}_complete" in done.stdout


def test_the_tools_of_a_manifest_complete_and_its_files_do_not(toolbox: Toolbox) -> None:
    toolbox.add("main.py", "#!/usr/bin/env python3\n")
    toolbox.add("helper", "#!/bin/sh\n")
    manifest = {
        "schemaVersion": 1,
        "id": "my-tools.user.text",
        "revision": "1",
        "name": "Text",
        "description": "Texts",
        "files": [{"path": "main.py", "executable": True}, {"path": "helper", "executable": True}],
        "process": {"executable": "./main.py", "args": []},
        "limits": {"timeoutSeconds": 5, "maxInputBytes": 1000, "maxResultBytes": 1000, "maxLogBytes": 1000},
        "actions": [
            {
                "id": action,
                "path": ["text", action],
                "name": action,
                "description": f"{action} a text",
                "inputSchema": {"type": "object"},
                "outputSchema": True,
                "execution": "supported",
                "sideEffects": "read",
                "retry": "idempotent",
            }
            for action in ("count", "sort")
        ],
    }
    (toolbox.folder / "text.tool.json").write_text(json.dumps(manifest))

    found = tools_in(toolbox.folder)

    assert found == {"my-tools.user.text.count": "count a text", "my-tools.user.text.sort": "sort a text"}
