"""What is put into a workspace, and what comes back: through the public doors, with real tools and real files."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest
import trio

import heddle
from heddle import Mount
from heddle.workspace import Changes, FileFault, FileState
from tests.support import Toolbox


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of the operator's, with something in it."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "numbers.csv").write_text("1\n")
    (folder / "inner" / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (folder / "inner" / "run.sh").chmod(0o4755)
    return folder


def state_of(path: str, content: bytes) -> FileState:
    return FileState(path, len(content), hashlib.sha256(content).hexdigest())


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What a tool sees


async def test_a_tool_finds_what_was_mounted(toolbox: Toolbox, data: Path) -> None:
    """A folder, a file under another name, contents from memory; of the mode only the execute bit stays."""
    toolbox.sh("look", "find . -path ./.heddle -prune -o -print | sort >&2; inner=$(data/inner/run.sh); echo '{}'")
    mounts: list[Mount | str] = [
        str(data),
        f"{data / 'numbers.csv'}:given/input.csv",
        Mount.from_files({"a/b.txt": b"memory"}, dest="notes"),
        Mount.from_files({"at/the/top.txt": b"memory"}),
    ]

    async with heddle.Runner(toolbox.registry(), mounts=mounts) as runner, runner.scope() as scope:
        result = await scope.call("look")
        mode = stat.S_IMODE((scope.workspace.path / "data/inner/run.sh").stat().st_mode)

    assert result == heddle.Returned({})
    assert result.report.stderr_tail.split() == [
        ".",
        "./at",
        "./at/the",
        "./at/the/top.txt",
        "./data",
        "./data/empty",
        "./data/inner",
        "./data/inner/run.sh",
        "./data/numbers.csv",
        "./given",
        "./given/input.csv",
        "./notes",
        "./notes/a",
        "./notes/a/b.txt",
    ]
    assert mode == 0o755


async def test_every_scope_gets_its_own_copy_of_what_is_read_only(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "cat data/numbers.csv >&2; echo 2 >> data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[str(data)]) as runner:
        first = await runner.call("edit")
        (data / "numbers.csv").write_text("changed while the runner is open\n")
        second = await runner.call("edit")

    assert [first.report.stderr_tail, second.report.stderr_tail] == ["1\n", "1\n"]
    assert (data / "numbers.csv").read_text() == "changed while the runner is open\n"


async def test_scopes_hand_files_on_through_a_mount_that_is_written_back(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("add", "echo 2 >> data/numbers.csv; mkdir data/new; echo x > data/new/file; rm -r data/inner; echo '{}'")
    toolbox.sh("read", "cat data/numbers.csv data/new/file >&2; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        async with runner.scope() as scope:
            await scope.call("add")
            inside = (data / "numbers.csv").read_text()
        result = await runner.call("read")

    assert inside == "1\n", "nothing is copied back before the scope is over"
    assert scope.report == heddle.ScopeReport(copied_back=("data/numbers.csv", "data/new/file"))
    assert result.report.stderr_tail == "1\n2\nx\n"
    assert (data / "inner/run.sh").exists(), "what tools delete stays where it came from"


async def test_a_file_that_is_mounted_alone_is_written_back(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "sed -i s/1/one/ in.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}/numbers.csv:in.csv:rw"]) as scope:
            await scope.call("edit")

    assert scope.report == heddle.ScopeReport(copied_back=("in.csv",))
    assert (data / "numbers.csv").read_text() == "one\n"


def fail() -> None:
    raise KeyError("the body's own")


@pytest.mark.parametrize("way", ["raised", "cancelled", "closed"])
async def test_however_a_scope_ends_its_files_are_copied_back(toolbox: Toolbox, data: Path, way: str) -> None:
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")
    scopes = []

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        with trio.CancelScope() as cancelling:
            try:
                async with runner.scope() as scope:
                    scopes.append(scope)
                    path = scope.workspace.path
                    await scope.call("edit")
                    if way == "cancelled":
                        cancelling.cancel()
                        await trio.sleep_forever()
                    if way == "raised":
                        fail()
                    await runner.__aexit__(None, None, None)
            except KeyError:
                pass

    assert (data / "numbers.csv").read_text() == "2\n"
    assert scopes[0].report.copied_back == ("data/numbers.csv",)
    assert not path.parent.exists()


async def test_a_tool_that_is_cancelled_in_the_middle_leaves_what_it_wrote(toolbox: Toolbox, data: Path) -> None:
    """Everything that the call started is gone before anything is copied."""
    toolbox.sh("edit", "echo 2 > data/numbers.csv; (trap '' TERM; sleep {long}) & echo 3 > data/started; wait")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        with trio.CancelScope() as cancelling:
            async with runner.scope() as scope, trio.open_nursery() as nursery:
                nursery.start_soon(scope.call, "edit")
                while not (scope.workspace.path / "data/started").exists():
                    await trio.sleep(0.01)
                cancelling.cancel()

    assert contents(data)["numbers.csv"] == b"2\n"
    assert toolbox.strays() == []


async def test_functions_find_what_was_mounted(data: Path) -> None:
    @heddle.tool
    def read(context: heddle.ToolContext) -> str:
        """Read a file, and write to it."""
        path = context.workspace / "data/numbers.csv"
        text = path.read_text()
        path.write_text("2\n")
        return text

    async with heddle.Runner([read], mounts=[f"{data}:rw"]) as runner:
        result = await runner.call("read")

    assert result == heddle.Returned({"result": "1\n"})
    assert (data / "numbers.csv").read_text() == "2\n"


async def test_a_function_that_needs_no_workspace_costs_no_copy(data: Path) -> None:
    @heddle.tool
    def nothing() -> None:
        """Do nothing."""

    async with heddle.Runner([nothing], mounts=[f"{data}:rw"]) as runner:
        (data / "pipe").unlink(missing_ok=True)
        data.rename(data.with_name("elsewhere"))
        result = await runner.call("nothing")

    assert result == heddle.Returned({"result": None})


async def test_what_was_given_to_a_scope_is_there_beside_what_the_runner_has(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("look", "ls >&2; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[str(data)]) as runner:
        async with runner.scope(mounts=[Mount(data / "numbers.csv", "more.csv")]) as scope:
            result = await scope.call("look")
        with pytest.raises(heddle.DefinitionError, match=r"scope\(mounts=…\) .*:data: .* as Runner\(mounts=…\) .*"):
            async with runner.scope(mounts=[f"{data}/numbers.csv:data"]):
                pass

    assert result.report.stderr_tail == "data\nmore.csv\n"


async def test_a_workspace_of_ones_own_has_its_own_mounts(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with heddle.Workspace.open("mine", mounts=[f"{data}:rw"]) as workspace:
            async with runner.scope(workspace=workspace) as scope:
                await scope.call("edit")
            between = (data / "numbers.csv").read_text()
            with pytest.raises(heddle.DefinitionError, match=r"give mounts to Workspace\.open"):
                async with runner.scope(workspace=workspace, mounts=[str(data)]):
                    pass
    after = (data / "numbers.csv").read_text()

    assert (between, after) == ("1\n", "2\n")
    assert workspace.report == heddle.ScopeReport(copied_back=("data/numbers.csv",))


# What changed


async def test_what_changed_is_told_with_sizes_and_hashes(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh(
        "edit",
        """
        echo 2 > data/numbers.csv; rm data/inner/run.sh; echo new > out.txt; ln -s /etc/passwd link; mkfifo pipe
        touch data/empty; echo '{}'""",
    )
    script = (data / "inner/run.sh").read_bytes()

    async with heddle.Runner(toolbox.registry(), mounts=[str(data)]) as runner:
        async with runner.scope(report_changes=True) as scope:
            before = await scope.workspace.changes()
            await scope.call("edit")
            changes = await scope.workspace.changes()

    assert before == Changes()
    assert changes == Changes(
        created=(state_of("out.txt", b"new\n"),),
        modified=(state_of("data/numbers.csv", b"2\n"),),
        deleted=(state_of("data/inner/run.sh", script),),
        no_files=("link", "pipe"),
    )
    assert scope.report == heddle.ScopeReport(changes=changes)


async def test_a_scope_without_a_directory_has_changed_nothing() -> None:
    async with heddle.Runner([]) as runner, runner.scope(report_changes=True) as scope:
        changes = await scope.workspace.changes()

    assert changes == Changes()
    assert scope.report == heddle.ScopeReport(changes=Changes())
    assert not scope.workspace.exists


async def test_a_file_with_new_contents_of_the_same_size_and_time_has_changed(toolbox: Toolbox, data: Path) -> None:
    """And one that was only touched has not."""
    toolbox.sh(
        "edit",
        """
        cp -p data/numbers.csv stamp; echo 2 > data/numbers.csv; touch -r stamp data/numbers.csv; rm stamp
        touch data/inner/run.sh; echo '{}'""",
    )

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}:rw"], report_changes=True) as scope:
            await scope.call("edit")

    assert scope.report == heddle.ScopeReport(
        copied_back=("data/numbers.csv",), changes=Changes(modified=(state_of("data/numbers.csv", b"2\n"),))
    )
    assert (data / "numbers.csv").read_text() == "2\n"


# Copying back over what others did meanwhile


async def test_files_that_others_changed_meanwhile_are_overwritten_and_named(
    toolbox: Toolbox, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("changed", "deleted", "alike", "untouched"):
        (data / name).write_text("before")
    toolbox.sh("edit", "for name in changed deleted alike untouched made; do echo tool > data/$name; done; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        (data / "changed").write_text("somebody else")
        (data / "made").write_text("somebody else")
        (data / "alike").write_text("tool\n")
        (data / "deleted").unlink()

    assert scope.report == heddle.ScopeReport(
        copied_back=("data/changed", "data/deleted", "data/made", "data/untouched"),
        overwritten=("data/changed", "data/deleted", "data/made"),
    )
    assert {(data / name).read_text() for name in ("changed", "deleted", "alike", "untouched", "made")} == {"tool\n"}
    assert "data/changed" in caplog.text


async def test_a_file_that_is_read_only_stays_and_is_named(
    toolbox: Toolbox, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for root, who could write it."""
    (data / "numbers.csv").chmod(0o444)
    toolbox.sh("edit", "chmod u+w data/numbers.csv; echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        result = await scope.call("edit")

    assert result == heddle.Returned({})
    assert scope.report == heddle.ScopeReport(
        failed=(FileFault("data/numbers.csv", "the file in its place is read-only"),)
    )
    assert (data / "numbers.csv").read_text() == "1\n"
    assert "data/numbers.csv: the file in its place is read-only" in caplog.text


async def test_a_file_keeps_its_permissions_when_it_is_copied_back(toolbox: Toolbox, data: Path) -> None:
    (data / "numbers.csv").chmod(0o640)
    toolbox.sh("edit", "echo 2 > data/numbers.csv; chmod 777 data/numbers.csv; chmod 644 data/inner/run.sh; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")

    assert scope.report.copied_back == ("data/numbers.csv",)
    assert stat.S_IMODE((data / "numbers.csv").stat().st_mode) == 0o750
    assert stat.S_IMODE((data / "inner/run.sh").stat().st_mode) == 0o4755, "a mode alone is no change"
