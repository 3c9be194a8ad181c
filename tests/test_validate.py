"""``heddle validate``: what it finds in folders and files, where it says that it is, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from heddle.cli.commands import heddle

MANIFEST = """\
schemaVersion: 1
id: my-tools.user.text
revision: "1"
name: Text
description: Works on a text.
files: [{path: main.sh, executable: true}]
process: {executable: ./main.sh, args: []}
limits: {timeoutSeconds: 10, maxInputBytes: 65536, maxResultBytes: 4096, maxLogBytes: 4096}
actions:
  - id: summarize
    path: [summarize]
    name: Summarize
    description: Count the characters of a text.
    inputSchema: {type: object}
    outputSchema: true
    execution: supported
    sideEffects: read
    retry: idempotent
"""


def validate(*arguments: str | Path) -> tuple[int, str, str]:
    """Return the exit status and both streams."""
    result = CliRunner().invoke(heddle, ["validate", *map(str, arguments)], prog_name="heddle")
    return result.exit_code, result.stdout, result.stderr


def as_json(*arguments: str | Path) -> tuple[int, Any]:
    status, said, _ = validate(*arguments, "--json")
    return status, json.loads(said)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest and a tool without one, and nothing wrong."""
    for name in ("main.sh", "plain.sh"):
        (tmp_path / name).write_text("#!/bin/sh\necho '{}'\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "text.tool.yaml").write_text(MANIFEST)
    return tmp_path


def test_a_sound_folder_is_told_with_its_tools(folder: Path) -> None:
    assert validate(folder) == (0, "sound: 2 tools: plain, my-tools.user.text.summarize\n", "")
    assert as_json(folder) == (
        0,
        {
            "sound": True,
            "noun": "tool",
            "names": ["plain", "my-tools.user.text.summarize"],
            "problems": [],
            "notices": [],
        },
    )


def test_a_manifest_can_be_judged_alone(folder: Path) -> None:
    """Whatever is wrong beside it, and whatever it is called: it is known by what it holds."""
    (folder / "broken.tool.yaml").write_text("retry: never")
    (folder / "other.yml").write_text(MANIFEST)

    assert validate(folder / "text.tool.yaml") == (0, "sound: 1 tool: my-tools.user.text.summarize\n", "")
    assert validate(folder / "other.yml") == (0, "sound: 1 tool: my-tools.user.text.summarize\n", "")


def test_a_sidecar_can_be_judged_alone(folder: Path) -> None:
    (folder / "plain.tool.json").write_text('{"description": "Plain"}')

    assert validate(folder / "plain.tool.json") == (0, "sound: 1 tool: plain\n", "")


def test_a_folder_without_tools_is_sound(tmp_path: Path) -> None:
    assert validate(tmp_path) == (0, "sound: no tools\n", "")


def test_every_problem_of_every_file_stands_on_a_line_of_its_own(folder: Path) -> None:
    (folder / "text.tool.yaml").write_text(MANIFEST.replace("retry: idem", "retrie: idem") + "    extra: 1\n")
    (folder / "plain.tool.json").write_text(
        '{"inputSchema":\n {"type": "object",\n  "properties": {"n": {"minLength": -1}}}}'
    )
    (folder / "other.tool.yaml").write_text("process:\n  executable: [sh]\n  args: [1]\n")
    (folder / "yaml.tool.yaml").write_text("a: b: c\n")

    status, said, notes = validate(folder)

    assert (status, notes) == (1, "")
    assert said.replace(f"{folder}/", "").splitlines() == [
        "other.tool.yaml:2: process.executable: must be text, not a list",
        "other.tool.yaml:3: process.args[0]: must be text, not 1; put it in quotes",
        ("plain.tool.json:3: inputSchema.properties.n.minLength: cannot be -1 (minimum of the draft's own schema)"),
        "text.tool.yaml:10: actions[0].retry: is missing; it has no default",
        'text.tool.yaml:18: actions[0].retrie: unknown key "retrie" in actions[0]; did you mean "retry"?',
        ('text.tool.yaml:19: actions[0].extra: unknown key "extra" in actions[0]; did you mean "retry"?'),
        "yaml.tool.yaml:1:5: text that is not YAML (mapping values are not allowed in this context)",
    ]


def test_problems_are_values_for_programs(folder: Path) -> None:
    (folder / "text.tool.yaml").write_text(MANIFEST.replace("id: my-tools", "id: My-tools"))
    (folder / "a.tool.json").write_text('{"a": 1, "a": 2}')

    status, found = as_json(folder)

    assert status == 1
    assert (found["sound"], found["names"], found["notices"]) == (False, [], [])
    assert found["problems"] == [
        {
            "path": f"{folder}/a.tool.json",
            "line": None,
            "column": None,
            "key": "$",
            "message": 'duplicate key "a"',
        },
        {
            "path": f"{folder}/text.tool.yaml",
            "line": 2,
            "column": None,
            "key": "id",
            "message": (
                "id cannot be \"My-tools.user.text\": lower-case letters and digits in parts joined by '.' and '-', "
                "like my-tools.user.text"
            ),
        },
    ]


def test_what_is_only_noticed_does_not_make_a_folder_unsound(folder: Path) -> None:
    (folder / "forgotten.sh").write_text("#!/bin/sh\n")
    (folder / "text.tool.yaml").write_text(MANIFEST.replace("sideEffects: read", "sideEffects: unknown"))

    status, said, _ = validate(folder)
    found = as_json(folder / "text.tool.yaml")[1]

    assert status == 0
    assert said.replace(f"{folder}/", "").splitlines() == [
        "forgotten.sh: note: it is left out: it has no execute bit; chmod +x forgotten.sh",
        (
            "text.tool.yaml: note: line 18: actions[0].retry: idempotent has no effect while sideEffects is unknown: a "
            "call that has failed may not simply be made again; declare sideEffects as read or write"
        ),
        "sound: 2 tools: plain, my-tools.user.text.summarize",
    ]
    assert [(notice["path"], notice["code"]) for notice in found["notices"]] == [
        (f"{folder}/text.tool.yaml", "guarded")
    ]


def test_a_file_that_is_no_document_at_all_is_a_problem_of_that_file(folder: Path) -> None:
    (folder / "x.json").write_text('{"actions": [}')
    (folder / "list.tool.yaml").write_text("- 1")

    assert validate(folder / "x.json") == (
        1,
        f"{folder}/x.json:1:14: text that is not JSON (expecting value)\n",
        "",
    )
    assert validate(folder / "list.tool.yaml") == (
        1,
        f"{folder}/list.tool.yaml:1: there must be an object here, not a list\n",
        "",
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "{}/missing: No such file or directory"),
        ("plain.sh", "{}/plain.sh is neither a folder nor a document: those end in .json, .yaml, .yml"),
        (
            "notes.yaml",
            (
                "{}/notes.yaml is no document that heddle knows: what describes a tool is called NAME.tool.yaml, "
                "what describes several has actions, and what describes routes has tools, workflows or agents"
            ),
        ),
    ],
)
def test_what_cannot_be_judged_is_a_matter_of_usage(folder: Path, name: str, said: str) -> None:
    (folder / "notes.yaml").write_text("a: 1")

    assert validate(folder / name) == (2, "", f"heddle: {said.format(folder)}\n")


def test_names_draw_nothing_on_the_terminal(folder: Path) -> None:
    (folder / "plain.tool.json").write_text('{"\\u001b[31m": 1, "title": "\\u001b[0m"}')

    status, said, _ = validate(folder)

    assert status == 1
    assert "\x1b" not in said
    assert r"\x1b[31m" in said


def test_it_is_a_command_of_its_own(folder: Path) -> None:
    """As it is typed, with a path from here, in a locale that knows no letters but those of ASCII."""
    (folder / "plain.tool.json").write_text('{"größe": 1}', encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "heddle.cli", "validate", ".", "--json"],
        cwd=folder,
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout)["problems"][0]["key"] == "größe"
