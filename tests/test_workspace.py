"""The directory of a scope: private, filled with the scope's tools, and gone afterwards whatever was done to it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import heddle
from heddle.workspace.directory import label_from
from heddle.workspace.removal import remove_tree
from tests.support import Toolbox


async def test_a_workspace_is_private_and_removed(toolbox: Toolbox) -> None:
    async with heddle.Workspace.open("my agent/1") as workspace:
        path = workspace.path
        mode = stat.S_IMODE(path.stat().st_mode)
        mode_above = path.parent.stat().st_mode
        (path / "file").write_text("x")

    assert mode == 0o700
    assert path.name == "my-agent-1"
    assert stat.S_IMODE(mode_above) == 0o700
    assert not path.parent.exists()
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("agent", "agent"),
        ("a b/c\n", "a-b-c-"),
        ("", "scope"),
        (".", "scope"),
        ("..", "scope"),
        ("ü", "-"),
        ("x" * 100, "x" * 40),
        ("../../etc", "..-..-etc"),
    ],
)
def test_a_label_is_made_of_any_text(text: str, label: str) -> None:
    assert label_from(text) == label


async def test_tools_reach_each_other_by_name_and_shadow_nothing(toolbox: Toolbox) -> None:
    toolbox.sh("ls", "echo '{\"shadowed\": true}'")
    toolbox.sh("inner.sh", "echo '{\"inner\": true}'")
    toolbox.sh("outer", "type ls >&2; inner")
    toolbox.sh("where", 'echo "{\\"last\\": \\"${PATH##*:}\\", \\"bin\\": \\"$HEDDLE_WORKSPACE_BIN\\"}"')

    async with heddle.Runner(toolbox.registry()) as runner:
        result = await runner.call("outer")
        where = (await runner.call("where")).unwrap()

    assert result == heddle.Returned({"inner": True})
    assert "/bin/ls" in result.report.stderr_tail
    assert isinstance(where, dict)
    assert where["last"] == where["bin"]


async def test_a_program_with_arguments_is_reached_through_a_script(toolbox: Toolbox) -> None:
    show = toolbox.sh("show it", 'printf \'{"arguments": "%s|%s|%s"}\' "$@"')
    registry = heddle.Registry(
        [heddle.ToolDef(name="show", implementation=heddle.Program(show, args=("a b", "$HOME")))]
    )

    async with heddle.Workspace.open(registry=registry) as workspace:
        output = subprocess.run([workspace.bin / "show", "more"], capture_output=True, text=True, check=True)

    assert output.stdout == '{"arguments": "a b|$HOME|more"}'


async def test_a_tool_that_is_no_program_says_so() -> None:
    @heddle.tool
    def count() -> None:
        """Count."""

    async with heddle.Workspace.open(registry=[count]) as workspace:
        output = subprocess.run([workspace.bin / "count"], capture_output=True, text=True, check=False)

    assert output.returncode == 1
    assert output.stderr == 'heddle: "count" is no program and cannot be started from here: call it through heddle\n'


HOSTILE = {
    "folders without permissions": "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c a/b a",
    "3,000 levels": """
        python3 -c '
import os
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
open("bottom", "w").close()'""",
    "links out": "ln -s {outside} out; ln -s {outside}/file file; ln -s /nosuch dangling; mkdir d; ln -s .. d/up",
    "odd names": r"touch -- '-rf' 'a b' \"$(printf 'a\nb')\" \"$(printf '\377')\" '*'; mkdir -- '--'",
    "special files": "mkfifo pipe; python3 -c 'import socket; socket.socket(1).bind(\"s\")'",
    "a reserved folder that is a link": "rm -rf .heddle; ln -s {outside} .heddle",
    "names that look like ours": "mkdir -p .removing-0/x .removing-1/y; touch .removing-2",
    "many files": "mkdir m; cd m; seq 1 3000 | xargs touch",
    "a root without permissions": "touch f; chmod 0 .",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
async def test_a_workspace_is_removed_whatever_was_done_to_it(toolbox: Toolbox, tmp_path: Path, source: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    toolbox.sh("mess", source.replace("{outside}", str(outside)) + "\necho '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope() as scope:
        path = scope.workspace.path
        result = await scope.call("mess")

    assert result == heddle.Returned({}), result.report.stderr_tail
    assert not os.path.lexists(path)
    assert (outside / "file").read_text() == "kept"
    assert stat.S_IMODE(outside.stat().st_mode) & 0o700 == 0o700


async def test_what_cannot_be_removed_is_logged_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stays":
            raise PermissionError(1, "Operation not permitted")
        real(path, dir_fd=dir_fd)

    async with heddle.Workspace.open() as workspace:
        path = workspace.path
        for folder in ("", "d", "d/e"):
            (path / folder).mkdir(exist_ok=True)
            (path / folder / "stays").touch()
            (path / folder / "goes").touch()
        monkeypatch.setattr(os, "unlink", refuse)  # an immutable file: the file system of a test may have none
    monkeypatch.undo()

    left = sorted(each.name for each in path.rglob("*") if each.is_file())
    assert left == ["stays", "stays", "stays"]
    assert "Operation not permitted" in caplog.text
    assert remove_tree(path) == ()


def test_removing_what_is_not_there_or_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    assert remove_tree(tmp_path / "nosuch") == ()
    assert len(remove_tree(tmp_path / "file")) == 1
    assert len(remove_tree(tmp_path / "link")) == 1
    assert (tmp_path / "file").exists()


def test_what_is_mounted_in_a_tree_is_neither_entered_nor_emptied(tmp_path: Path) -> None:
    """A tool with a namespace of its own, or root, can mount what it likes; it belongs to somebody else."""
    for folder in ("theirs/inner", "tree/a/mount", "tree/mount"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("theirs/file", "theirs/inner/file", "tree/goes", "tree/a/goes"):
        (tmp_path / file).touch()
    source = """
import sys
from pathlib import Path
from heddle.workspace.removal import remove_tree
for fault in remove_tree(Path("tree")):
    print(fault)
"""
    script = """
mount --bind theirs tree/mount && mount --bind theirs tree/a/mount || exit 9
"$1" -c "$2"
"""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", sys.executable, source]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "b'mount': Device or resource busy" in done.stdout
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "theirs",
        "theirs/file",
        "theirs/inner",
        "theirs/inner/file",
        "tree",
        "tree/a",
        "tree/a/mount",
        "tree/mount",
    ]
