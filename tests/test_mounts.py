"""What is put into a workspace, and what comes back: through the public doors, with real tools and real files."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import heddle
from heddle import Mount
from heddle.workspace import Changes, FileFault, FileState, copying, directory, replacing
from heddle.workspace.filling import fill
from heddle.workspace.removal import remove_tree
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
    assert scope.report == heddle.ScopeReport(copied_back=("data/new/file", "data/numbers.csv"))
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


async def test_the_time_of_copying_in_is_waiting_and_not_the_tools(
    toolbox: Toolbox, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def slow(*args: Any) -> Any:
        time.sleep(2)
        return fill(*args)

    monkeypatch.setattr(directory, "fill", slow)
    result = await toolbox.run_sh("echo '{}'", mounts=[str(data)], wall_seconds=1.5)

    assert result == heddle.Returned({})
    assert result.report.waited_s >= 2


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


async def test_a_file_with_another_owner_is_given_to_it(toolbox: Toolbox, data: Path) -> None:
    """As root; anybody else owns what is copied already."""
    os.chown(data / "numbers.csv", 1234 if os.geteuid() == 0 else -1, 5678 if os.geteuid() == 0 else -1)
    before = (data / "numbers.csv").stat()
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        await runner.call("edit")

    after = (data / "numbers.csv").stat()
    assert (data / "numbers.csv").read_text() == "2\n"
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino


async def test_other_names_of_a_file_keep_its_old_contents(toolbox: Toolbox, data: Path) -> None:
    """They may be somebody's backup."""
    (data / "inner" / "same.csv").hardlink_to(data / "numbers.csv")
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        await runner.call("edit")

    assert contents(data) == {
        "numbers.csv": b"2\n",
        "inner/same.csv": b"1\n",
        "inner/run.sh": b"#!/bin/sh\necho hi\n",
    }


async def test_a_file_keeps_its_extended_attributes(toolbox: Toolbox, data: Path) -> None:
    os.setxattr(data / "numbers.csv", "user.colour", b"indigo")
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        await runner.call("edit")

    assert (data / "numbers.csv").read_text() == "2\n"
    assert os.getxattr(data / "numbers.csv", "user.colour") == b"indigo"


async def test_nobody_reads_a_file_while_it_is_copied_back_who_could_not_before(
    toolbox: Toolbox, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "numbers.csv").chmod(0o600)
    toolbox.sh(
        "edit", "echo 2 > data/numbers.csv; umask 077; echo k > data/key; umask 0; echo o > data/open; echo '{}'"
    )
    modes = []

    def look(reader: int, writer: int, room: object, pause: Callable[[], object], *, hashes: bool) -> None:
        modes.append(stat.S_IMODE(os.fstat(writer).st_mode))
        copying.copy_contents(reader, writer, room, pause, hashes=hashes)  # type: ignore[arg-type]

    monkeypatch.setattr(replacing, "copy_contents", look)
    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner:
        await runner.call("edit")

    final = [stat.S_IMODE((data / name).stat().st_mode) for name in ("numbers.csv", "key", "open")]
    umask = os.umask(0)
    os.umask(umask)
    assert modes == final == [0o600, 0o600, 0o666 & ~umask]


async def test_what_is_written_while_a_file_is_copied_back_is_named(
    toolbox: Toolbox, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo x > data/new; echo '{}'")
    names = iter(["numbers.csv", "new"])

    def slow(reader: int, writer: int, room: object, pause: Callable[[], object], *, hashes: bool) -> None:
        copying.copy_contents(reader, writer, room, pause, hashes=hashes)  # type: ignore[arg-type]
        (data / next(names)).write_text("somebody else, in the last moment")

    monkeypatch.setattr(replacing, "copy_contents", slow)
    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")

    assert scope.report.overwritten == ("data/new", "data/numbers.csv")
    assert {(data / "numbers.csv").read_text(), (data / "new").read_text()} == {"2\n", "x\n"}


async def test_a_source_that_was_moved_away_is_named(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "echo 2 > data/numbers.csv; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope(mounts=[f"{data}:rw"]) as scope:
        await scope.call("edit")
        data.rename(data.with_name("moved"))
        data.mkdir()

    moved = "its source was moved or exchanged meanwhile: what has changed was copied to where it is now"
    assert scope.report == heddle.ScopeReport(copied_back=("data/numbers.csv",), failed=(FileFault("data", moved),))
    assert (data.with_name("moved") / "numbers.csv").read_text() == "2\n"
    assert list(data.iterdir()) == []


async def test_files_that_were_there_come_back_before_new_ones_and_those_all_or_none(
    toolbox: Toolbox, data: Path
) -> None:
    toolbox.sh(
        "edit",
        "mkdir data/.cache; for n in $(seq 30); do echo > data/.cache/$n; done; echo 2 > data/numbers.csv; echo '{}'",
    )

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[Mount(data, "data", "rw", max_entries=20)]) as scope:
            await scope.call("edit")

    assert scope.report == heddle.ScopeReport(
        copied_back=("data/numbers.csv",),
        failed=(
            FileFault(
                "data",
                "31 new files and folders with 30 bytes are more than a mount may hold, 20 and 67,108,864 bytes; none "
                "of them was copied back. Raise max_entries or max_bytes of the mount",
            ),
        ),
    )
    assert not (data / ".cache").exists()


async def test_a_file_that_only_claims_to_be_large_is_not_read_and_comes_back_as_what_it_holds(
    toolbox: Toolbox, data: Path
) -> None:
    toolbox.sh("edit", "truncate -s 4T data/numbers.csv data/new; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}:rw"], report_changes=True) as scope:
            await scope.call("edit")

    tera = 4 * 1024**4
    assert scope.report == heddle.ScopeReport(
        copied_back=("data/new", "data/numbers.csv"),
        changes=Changes(
            created=(FileState("data/new", tera, None),), modified=(FileState("data/numbers.csv", tera, None),)
        ),
    )
    assert (data / "numbers.csv").stat().st_blocks < 100
    with (data / "numbers.csv").open("rb") as file:
        assert file.read(4) == b"1\n\0\0"


async def test_a_tool_cannot_keep_heddle_from_looking(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "echo 2 > data/numbers.csv; chmod 000 data/numbers.csv data/inner data .; echo '{}'")

    async with heddle.Runner(toolbox.registry()) as runner:
        async with runner.scope(mounts=[f"{data}:rw"], report_changes=True) as scope:
            path = scope.workspace.path
            await scope.call("edit")

    assert scope.report == heddle.ScopeReport(
        copied_back=("data/numbers.csv",), changes=Changes(modified=(state_of("data/numbers.csv", b"2\n"),))
    )
    assert not path.exists()


async def test_a_function_that_is_left_running_keeps_its_workspace(data: Path) -> None:
    """What it is still writing is not copied over the operator's file."""
    go_on = threading.Event()

    @heddle.tool(limits=heddle.Limits(wall_seconds=0.05))
    def write(context: heddle.ToolContext) -> None:
        """Write half a file."""
        with (context.workspace / "data/numbers.csv").open("w") as file:
            file.write("half\n")
            file.flush()
            go_on.wait(30)

    async with heddle.Runner([write], mounts=[f"{data}:rw"]) as runner:
        async with runner.scope() as scope:
            path = scope.workspace.path
            result = await scope.call("write")
        left = path.exists()
        go_on.set()

    assert isinstance(result, heddle.Failed)
    assert scope.report.failed == (FileFault("data", "something that could not be ended may still work in it"),)
    assert (data / "numbers.csv").read_text() == "1\n"
    assert left
    remove_tree(path.parent)


async def test_a_function_that_has_ended_after_its_time_keeps_nothing(data: Path) -> None:
    @heddle.tool(limits=heddle.Limits(wall_seconds=0.05))
    def write(context: heddle.ToolContext) -> None:
        """Write a file, slowly."""
        time.sleep(0.1)
        (context.workspace / "data/numbers.csv").write_text("2\n")

    async with heddle.Runner([write], mounts=[f"{data}:rw"]) as runner, runner.scope() as scope:
        path = scope.workspace.path
        result = await scope.call("write")
        while path.joinpath("data/numbers.csv").read_text() == "1\n":
            await trio.sleep(0.01)
        await trio.sleep(0.05)

    assert isinstance(result, heddle.Failed)
    assert scope.report.copied_back == ("data/numbers.csv",)
    assert not path.exists()


async def test_scopes_at_once_share_a_mount_without_seeing_half_of_it(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh(
        "edit", "for file in data/* data/.h*; do [ -f $file ] && echo $$ >> $file; done; ls -A data >&2; echo '{}'"
    )
    names = sorted(os.listdir(data))
    results = []

    async def call() -> None:
        for _ in range(8):
            results.append(await runner.call("edit"))  # noqa: PERF401 - as they come

    async with heddle.Runner(toolbox.registry(), mounts=[f"{data}:rw"]) as runner, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(call)

    assert all(result.ok for result in results)
    assert {result.report.stderr_tail for result in results} == {"\n".join(names) + "\n"}
    assert sorted(os.listdir(data)) == names


async def test_what_a_killed_host_was_writing_is_mounted_nowhere(toolbox: Toolbox, data: Path) -> None:
    (data / ".heddle-0123456789abcdef").write_text("half of a fi")
    (data / ".heddle-notes").write_text("somebody's own")

    result = await toolbox.run_sh("ls -A data >&2; echo '{}'", mounts=[str(data)])

    assert result.report.stderr_tail == ".heddle-notes\nempty\ninner\nnumbers.csv\n"


async def test_a_copy_for_all_scopes_that_a_tool_has_written_to_is_read_again(toolbox: Toolbox, data: Path) -> None:
    """It is no boundary, but the scope that gets it next is not said to have changed it."""
    toolbox.sh("nothing", "echo '{}'")

    async with heddle.Runner(toolbox.registry(), mounts=[str(data)]) as runner:
        async with runner.scope() as scope:
            (scope.workspace.path / "../mounts/0/numbers.csv").write_text("a tool was here\n")
        async with runner.scope(report_changes=True) as scope:
            text = (scope.workspace.path / "data/numbers.csv").read_text()

    assert text == "a tool was here\n"
    assert scope.report.changes == Changes()


# When it is over


async def test_a_workspace_that_is_gone_says_so(toolbox: Toolbox, data: Path, tmp_path: Path) -> None:
    async with heddle.Runner([], mounts=[str(data)], keep_workspaces=tmp_path / "out") as runner:
        async with runner.scope("job") as kept:
            pass
        async with heddle.Workspace.open("mine") as workspace:
            path = workspace.path
        for gone in (workspace, kept.workspace):
            with pytest.raises(heddle.RunnerClosed, match="this workspace is gone"):
                await gone.changes()
        with pytest.raises(heddle.RunnerClosed, match="this workspace is gone"):
            workspace.path  # noqa: B018 - asking is the point

    assert kept.workspace.path == tmp_path.resolve() / "out/job"
    assert os.listdir(tmp_path / "out") == ["job"]
    assert not path.exists()


async def test_a_scope_that_is_open_when_its_runner_is_closed_makes_no_workspace(toolbox: Toolbox) -> None:
    async with heddle.Runner([]) as runner:
        async with runner.scope() as scope:
            await runner.__aexit__(None, None, None)
            with pytest.raises(heddle.RunnerClosed):
                scope.workspace.path  # noqa: B018 - asking is the point


async def test_what_will_not_be_known_is_refused_at_once(data: Path) -> None:
    async with heddle.Runner([]) as runner, heddle.Workspace.adopt(data) as workspace:
        with pytest.raises(heddle.DefinitionError, match="track_changes=True"):
            async with runner.scope(workspace=workspace, report_changes=True):
                raise AssertionError("the scope has been opened")


async def test_a_forked_child_that_unwinds_touches_nothing_of_its_parent(data: Path) -> None:
    async with heddle.Runner([], mounts=[str(data)]) as runner:
        async with heddle.Workspace.open(mounts=[f"{data}:rw"]) as workspace, runner.scope() as scope:
            (workspace.path / "data/numbers.csv").write_text("half")
            assert runner._open is not None
            places = [workspace.path, scope.workspace.path, scope.workspace.path.parent / "mounts/0/numbers.csv"]
            # The loop belongs to the parent: a child can only take steps that wait for nothing.
            steps = [workspace.close(), scope.workspace.close(), runner._open.stack.aclose(), runner.__aexit__()]
            child = os.fork()
            if child == 0:
                try:
                    for step in steps:
                        with pytest.raises(StopIteration):
                            step.send(None)
                    os._exit(0)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            for step in steps:
                step.close()
            between = (data / "numbers.csv").read_text()
            found = [place.exists() for place in places]
            (workspace.path / "data/numbers.csv").write_text("whole")

    assert (status, between, found) == (0, "1\n", [True, True, True])
    assert (data / "numbers.csv").read_text() == "whole"


async def test_a_runner_is_entered_once_however_many_try(data: Path) -> None:
    runner = heddle.Runner([], mounts=[str(data)])
    outcomes = []

    async def enter() -> None:
        try:
            async with runner:
                outcomes.append("open")
                await trio.sleep(0.2)
        except heddle.RunnerClosed:
            outcomes.append("refused")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter)
        nursery.start_soon(enter)

    assert sorted(outcomes) == ["open", "refused"]


async def test_functions_in_threads_that_ask_at_once_share_one_workspace(data: Path) -> None:
    barrier = threading.Barrier(6)

    @heddle.tool
    def where(context: heddle.ToolContext) -> str:
        """Say where it works."""
        barrier.wait(10)
        return str(context.workspace)

    results = []

    async def call() -> None:
        results.append((await scope.call("where")).unwrap())

    async with heddle.Runner([where]) as runner, runner.scope() as scope, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(call)

    assert len(results) == 6
    assert len({str(result) for result in results}) == 1
