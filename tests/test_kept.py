"""Where workspaces are: kept ones, folders that are adopted, folders inside, and what a killed run has left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import trio

import heddle
from heddle.workspace import Changes, temporary
from heddle.workspace.temporary import RunFolder, remove_stale
from tests.support import Toolbox, open_descriptors, wait_until

# Keeping


async def test_a_workspace_is_kept_under_its_label_and_the_next_under_a_number(
    toolbox: Toolbox, tmp_path: Path
) -> None:
    toolbox.sh("write", "echo x > out; echo '{}'")
    keep = tmp_path / "new" / "out"

    for _ in range(2):  # a second run into the same folder
        async with heddle.Runner(toolbox.registry(), keep_workspaces=keep) as runner:
            await runner.call("write")
            async with runner.scope("my agent") as scope:
                await scope.call("write")
                path = scope.workspace.path
            async with runner.scope("nothing"):
                pass

    assert sorted(os.listdir(keep)) == ["my-agent", "my-agent-2", "write", "write-2"]
    assert {(keep / name / "out").read_text() for name in os.listdir(keep)} == {"x\n"}
    assert scope.report.kept == path == keep.resolve() / "my-agent-2"
    assert (keep / "write").stat().st_mode & 0o777 == 0o700


async def test_mounts_of_a_kept_workspace_are_copied_back_as_well(toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    toolbox.sh("write", "echo x > data/new; echo '{}'")

    async with heddle.Workspace.open("mine", mounts=[f"{tmp_path}/data:rw"], keep_in=tmp_path / "out") as workspace:
        async with heddle.Runner(toolbox.registry()) as runner, runner.scope(workspace=workspace) as scope:
            await scope.call("write")

    assert (tmp_path / "data/new").read_text() == "x\n"
    assert (tmp_path / "out/mine/data/new").read_text() == "x\n"
    assert workspace.report == heddle.ScopeReport(copied_back=("data/new",), kept=tmp_path.resolve() / "out/mine")


def test_several_processes_keep_workspaces_at_once(tmp_path: Path) -> None:
    source = """
import sys, trio, heddle

async def main():
    for _ in range(10):
        async with heddle.Workspace.open("agent", keep_in=sys.argv[1]) as workspace:
            (workspace.path / "mark").write_text(sys.argv[2])

trio.run(main)
"""
    arguments = [sys.executable, "-c", source, str(tmp_path / "out")]

    processes = [subprocess.Popen([*arguments, str(number)]) for number in range(4)]

    assert [process.wait(60) for process in processes] == [0] * 4
    assert set(os.listdir(tmp_path / "out")) == {"agent", *(f"agent-{number}" for number in range(2, 41))}
    marks = sorted((tmp_path / "out" / name / "mark").read_text() for name in os.listdir(tmp_path / "out"))
    assert marks == ["0"] * 10 + ["1"] * 10 + ["2"] * 10 + ["3"] * 10


async def test_old_contents_are_never_worked_in(toolbox: Toolbox, tmp_path: Path) -> None:
    """Whatever is there under a label is left alone: a link, a file, a folder whose .heddle is a link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    keep = tmp_path / "out"
    (keep / "tool-2").mkdir(parents=True)
    (keep / "tool-2" / ".heddle").symlink_to(outside)
    (keep / "tool").symlink_to(outside)
    (keep / "tool-3").write_text("a file")
    (keep / "tool-007").mkdir()
    (keep / "tool-x").mkdir()

    result = await toolbox.run_sh("pwd >&2; echo x > out; echo '{}'", keep_workspaces=keep)

    assert result.report.stderr_tail == f"{keep.resolve()}/tool-4\n"
    assert list(outside.iterdir()) == []
    assert (keep / "tool-4" / ".heddle" / "bin" / "tool").is_symlink()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        ("touch out", "something that is no folder is there"),
        ("mkdir -m 777 out", "everybody may exchange what is in it; chmod o-w"),
        ("ln -s loop out; ln -s out loop", "Symlink loop|Too many levels|something that is no folder is there"),
    ],
)
async def test_a_folder_that_cannot_keep_workspaces_is_refused(tmp_path: Path, prepare: str, said: str) -> None:
    subprocess.run(["/bin/sh", "-c", prepare], cwd=tmp_path, check=True)

    with pytest.raises(heddle.DefinitionError, match=said):
        async with heddle.Runner([], keep_workspaces=tmp_path / "out"):
            pass
    with pytest.raises(heddle.DefinitionError, match=said):
        async with heddle.Workspace.open(keep_in=tmp_path / "out"):
            pass


# Adopting


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("int main;\n")
    (folder / ".heddle").mkdir()
    (folder / ".heddle" / "own").write_text("the repository's own\n")
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def test_a_folder_that_is_adopted_is_worked_in_and_stays_as_it_is(toolbox: Toolbox, repository: Path) -> None:
    before = listing(repository)
    toolbox.sh("look", 'pwd >&2; echo "${PATH##*:}" >&2; other; echo "$HEDDLE_WORKSPACE" >&2')
    toolbox.sh("other", "echo '{\"reached\": true}'")
    registry = toolbox.registry()

    async with (
        heddle.Workspace.adopt(repository, registry=registry) as workspace,
        heddle.Runner(registry) as runner,
        runner.scope(workspace=workspace) as scope,
    ):
        result = await scope.call("look")
        during = listing(repository)
        tools = workspace.bin

    assert result == heddle.Returned({"reached": True})
    assert result.report.stderr_tail.splitlines() == [str(repository), str(tools), str(repository)]
    assert not tools.is_relative_to(repository)
    assert not tools.exists()
    assert before == during == listing(repository)
    assert workspace.label == "repository"


async def test_what_changed_in_an_adopted_folder_is_told_when_asked_for(toolbox: Toolbox, repository: Path) -> None:
    toolbox.sh("edit", "echo '' >> src/main.c; rm .heddle/own; echo o > a.out; echo '{}'")
    registry = toolbox.registry()

    async with heddle.Runner(registry) as runner:
        async with heddle.Workspace.adopt(repository, registry=registry, track_changes=True) as workspace:
            async with runner.scope(workspace=workspace, report_changes=True) as scope:
                await scope.call("edit")
        async with heddle.Workspace.adopt(repository, registry=registry) as untracked:
            with pytest.raises(heddle.DefinitionError, match="track_changes=True"):
                await untracked.changes()

    changes = scope.report.changes
    assert isinstance(changes, Changes)
    assert [state.path for state in changes.created] == ["a.out"]
    assert [state.path for state in changes.modified] == ["src/main.c"]
    assert [state.path for state in changes.deleted] == [".heddle/own"]


async def test_nothing_is_mounted_into_an_adopted_folder(toolbox: Toolbox, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "more").touch()

    async with heddle.Runner(toolbox.registry(), mounts=[str(tmp_path / "more")]) as runner:
        async with heddle.Workspace.adopt(repository) as workspace, runner.scope(workspace=workspace):
            pass

    assert not (repository / "more").exists()


@pytest.mark.parametrize("path", ["nosuch", "file", ""])
async def test_what_is_no_folder_cannot_be_adopted(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(heddle.DefinitionError, match="cannot be adopted as a workspace: "):
        async with heddle.Workspace.adopt(f"{tmp_path}/{path}" if path else "\0"):
            pass


# The folder that a program is started in


async def test_a_program_is_started_in_a_folder_of_the_workspace(toolbox: Toolbox) -> None:
    toolbox.sh("here", "pwd >&2; echo '{}'")
    toolbox.sh(
        "prepare",
        "mkdir -p a/b ../scope-evil; ln -s a/b inside; ln -s /tmp outside; ln -s ../scope-evil sibling; "
        "ln -s a/../.. climbing; touch file; echo '{}'",
    )

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope() as scope:
        await scope.call("prepare")
        found = {
            cwd: await scope.call("here", cwd=cwd)
            for cwd in (
                "a/b",
                "inside",
                ".",
                "a/b/..",
                "outside",
                "sibling",
                "climbing",
                "..",
                "/tmp",
                "nosuch",
                "file",
                "a\0",
                "../x",
            )
        }
        workspace = scope.workspace.path

    started = {cwd: result.report.stderr_tail.strip() for cwd, result in found.items() if result.ok}
    refused = {
        cwd: (str(result.kind), result.message, result.started)
        for cwd, result in found.items()
        if isinstance(result, heddle.Failed)
    }
    leaves = "that leaves the workspace."
    assert started == {
        "a/b": f"{workspace}/a/b",
        "inside": f"{workspace}/a/b",
        ".": str(workspace),
        "a/b/..": f"{workspace}/a",
    }
    assert refused == {
        "outside": ("denied", f"tool \"here\" was not started in 'outside': {leaves}", False),
        "sibling": ("denied", f"tool \"here\" was not started in 'sibling': {leaves}", False),
        "climbing": ("denied", f"tool \"here\" was not started in 'climbing': {leaves}", False),
        "..": ("denied", f"tool \"here\" was not started in '..': {leaves}", False),
        "../x": ("denied", f"tool \"here\" was not started in '../x': {leaves}", False),
        "/tmp": ("denied", f"tool \"here\" was not started in '/tmp': {leaves}", False),
        "nosuch": (
            "cannot_start",
            "tool \"here\" was not started in 'nosuch': there is no such folder in the workspace.",
            False,
        ),
        "file": (
            "cannot_start",
            "tool \"here\" was not started in 'file': there is no such folder in the workspace.",
            False,
        ),
        "a\0": ("cannot_start", "tool \"here\" was not started in 'a\\x00': it is no path to a folder.", False),
    }


async def test_a_function_is_started_nowhere() -> None:
    @heddle.tool
    def nothing() -> None:
        """Do nothing."""

    async with heddle.Runner([nothing]) as runner:
        with pytest.raises(heddle.DefinitionError, match="cwd is for programs"):
            await runner.call("nothing", cwd=".")


# What a killed run has left

HOST = """
import sys, trio, heddle

async def main():
    registry = heddle.discover_tools(sys.argv[1])
    async with heddle.Runner(registry, mounts=[sys.argv[1] + ":tools"]) as runner, runner.scope("agent") as scope:
        print(scope.workspace.path, flush=True)
        await scope.call("wait")

trio.run(main)
"""


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that nobody else uses."""
    folder = tmp_path / "private"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def runs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("heddle-run-*"))


def test_the_next_run_removes_what_a_killed_one_has_left_and_nothing_in_use(toolbox: Toolbox, private: Path) -> None:
    toolbox.sh("wait", "chmod 0 tools; exec sleep {long}")
    toolbox.sh("nothing", "echo '{}'")
    arguments = [sys.executable, "-c", HOST, str(toolbox.folder)]

    hosts = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = [Path(host.stdout.readline().strip()) for host in hosts if host.stdout]
    try:
        assert wait_until(lambda: len(toolbox.strays()) == 2, 10)
        hosts[0].kill()
        hosts[0].communicate()
        assert wait_until(lambda: len(toolbox.strays()) == 1, 5)
        assert paths[0].exists()
        command = [sys.executable, "-m", "heddle.cli", "call", str(toolbox.folder), "nothing"]
        subprocess.run(command, check=True, capture_output=True)

        assert not paths[0].parent.exists()
        assert paths[1].exists()
    finally:
        hosts[1].send_signal(signal.SIGINT)
        hosts[1].communicate()
    assert runs_in(private) == []


def stale_folder(private: Path, **said: object) -> Path:
    """Make what a killed run leaves, but for what is `said`."""
    folder = private / "heddle-run-abcdefgh"
    (folder / "agent").mkdir(parents=True)
    (folder / "owner.json").write_text(json.dumps(temporary._owner(locked=True) | {"pid": 1, "started": "0"} | said))
    return folder


def test_a_stale_folder_is_removed_with_all_that_is_in_it(private: Path) -> None:
    folder = stale_folder(private)
    outside = private / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    (folder / "agent" / "link").symlink_to(outside)
    (folder / "agent" / "closed").mkdir(mode=0)

    removed = remove_stale()

    assert removed == (folder,)
    assert [path.name for path in private.iterdir()] == ["outside"]
    assert (outside / "file").read_text() == "stays"


@pytest.mark.parametrize(
    "prepare",
    [
        "rm owner.json",
        "echo '{}' > owner.json",
        'sed -i \'s/"heddle_run": 1/"heddle_run": 2/\' owner.json',
        "echo nonsense > owner.json",
        "rm owner.json; mkfifo owner.json",
        "mv owner.json other; ln -s other owner.json",
        "mv ../heddle-run-abcdefgh ../heddle-run-abc",
        "mv ../heddle-run-abcdefgh ../elsewhere; ln -s elsewhere ../heddle-run-abcdefgh",
        "cd ..; rm -r heddle-run-abcdefgh; touch heddle-run-abcdefgh",
    ],
)
def test_a_folder_that_only_looks_like_one_of_ours_is_left_alone(private: Path, prepare: str) -> None:
    folder = stale_folder(private)
    subprocess.run(["/bin/sh", "-c", prepare], cwd=folder, check=True)
    before = listing(private)

    removed = remove_stale()

    assert removed == ()
    assert listing(private) == before


@pytest.mark.parametrize(
    "said",
    [{"host": "another machine"}, {"locked": False}, {"pid": "1"}, {"started": None}],
    ids=["another machine's", "one that could not be locked", "nonsense", "more nonsense"],
)
def test_a_folder_of_which_nothing_is_known_is_left_alone(private: Path, said: dict[str, object]) -> None:
    folder = stale_folder(private, **said)

    removed = remove_stale()

    assert removed == ()
    assert folder.exists()


def test_a_folder_is_left_alone_while_the_process_that_made_it_lives(private: Path) -> None:
    """Whatever its lock says: some file systems keep locks to themselves."""
    process = subprocess.Popen(["sleep", "60"], cwd="/")
    folder = stale_folder(private, pid=process.pid, started=temporary._start_of(process.pid))

    while_it_lives = remove_stale()
    process.kill()
    process.wait()
    afterwards = remove_stale()

    assert (while_it_lives, afterwards) == ((), (folder,))


def test_a_folder_from_before_the_machine_was_started_is_stale(private: Path) -> None:
    folder = stale_folder(private, boot="earlier", pid=os.getpid(), started=temporary._start_of(os.getpid()))

    assert remove_stale() == (folder,)


def test_a_folder_that_nobody_ever_said_anything_about_goes_when_it_is_old_and_empty(private: Path) -> None:
    folders = [private / f"heddle-run-{name}" for name in ("emptyold", "emptynew", "fullyold")]
    for folder in folders:
        folder.mkdir()
    (folders[2] / "thesis").touch()
    for folder in (folders[0], folders[2]):
        os.utime(folder, (1, 1))

    assert remove_stale() == (folders[0],)
    assert runs_in(private) == sorted(folders[1:])


def test_another_folder_that_was_put_in_the_place_of_a_stale_one_is_not_touched(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stale_folder(private)
    mine = private / "mine"
    mine.mkdir()
    (mine / "thesis").touch()

    def exchange(_path: Path) -> bool:
        folder.rename(private / "elsewhere")
        mine.rename(folder)
        return False

    monkeypatch.setattr(temporary, "_is_in_use", exchange)
    removed = remove_stale()

    assert removed == ()
    assert listing(folder) == ["thesis"]


def test_a_folder_in_which_something_works_is_left_until_that_ends(private: Path) -> None:
    folder = stale_folder(private)
    inside = folder / "agent"
    environments = [{"HEDDLE_WORKSPACE": str(inside)}, {"HEDDLE_WORKSPACE_BIN": str(inside / "bin")}]
    with (inside / "log").open("w") as log:
        processes = [
            subprocess.Popen(["sleep", "60"], cwd=inside, env={}),
            *(subprocess.Popen(["sleep", "60"], cwd="/", env=environment) for environment in environments),
            subprocess.Popen(["sleep", "60"], cwd="/", env={}, stdout=log),
        ]
    removed = []
    for process in processes:
        removed.append(remove_stale())
        process.kill()
        process.wait()
    removed.append(remove_stale())

    assert removed == [(), (), (), (), (folder,)]


def test_a_folder_is_there_while_its_run_is_alive(private: Path) -> None:
    run = RunFolder()
    place = run.new("agent")
    again = run.new("agent")

    first = remove_stale()
    run.close()
    while_used = place.exists()
    run.give_back(place)
    run.give_back(again)

    assert (first, while_used) == ((), True)
    assert again.name == "agent-2"
    assert runs_in(private) == []


def test_what_tools_leave_beside_their_workspace_goes_with_the_run(private: Path) -> None:
    run = RunFolder()
    place = run.new("agent")
    (place / "../owner.json").unlink()
    (place / "../junk").mkdir()
    (place / "../junk/file").touch()

    run.give_back(place)
    run.close()

    assert runs_in(private) == []


def test_a_run_that_is_over_makes_nothing(private: Path) -> None:
    run = RunFolder()
    run.close()

    with pytest.raises(heddle.RunnerClosed):
        run.new("agent")
    assert runs_in(private) == []


def test_where_nothing_can_be_locked_a_folder_is_made_and_never_taken_for_stale(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _how: int) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refuse)  # a network file system
        run = RunFolder()
        place = run.new("agent")
    record = json.loads((place.parent / "owner.json").read_text())
    with monkeypatch.context() as patch:
        patch.setattr(temporary, "_start_of", lambda _: "another process")
        removed = remove_stale()
    run.give_back(place)
    run.close()

    assert (record["locked"], removed) == (False, ())
    assert runs_in(private) == []


def test_a_forked_child_that_lives_on_holds_no_lock(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder()
    run.new("agent")
    reader, writer = os.pipe()
    is_up, up = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(up, b"x")
        os.read(reader, 1)
        os._exit(0)
    try:
        os.read(is_up, 1)
        run._let_go()  # as if this process had been killed
        with monkeypatch.context() as patch:
            patch.setattr(temporary, "_start_of", lambda _: "another process")
            removed = remove_stale()
    finally:
        for fd in (writer, reader, is_up, up):
            os.close(fd)
        os.waitpid(child, 0)

    assert len(removed) == 1


def test_runs_that_begin_and_look_at_once_never_lose_their_folder(private: Path) -> None:
    lost: list[Path] = []

    def work() -> None:
        for _ in range(30):
            run = RunFolder()
            place = run.new("agent")
            remove_stale()
            if not place.exists():
                lost.append(place)
            run.close()
            run.give_back(place)

    threads = [threading.Thread(target=work) for _ in range(4)]
    descriptors = len(open_descriptors())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lost == []
    assert runs_in(private) == []
    assert len(open_descriptors()) == descriptors


async def test_a_scope_that_ends_after_its_runner_leaves_no_folder(toolbox: Toolbox, private: Path) -> None:
    toolbox.sh("nothing", "echo '{}'")
    runner = heddle.Runner(toolbox.registry())
    closed = trio.Event()

    async def use() -> None:
        async with runner.scope() as scope:
            await scope.call("nothing")
            await closed.wait()

    async with trio.open_nursery() as nursery:
        async with runner:
            nursery.start_soon(use)
            await trio.testing.wait_all_tasks_blocked(0.3)
        closed.set()

    assert runs_in(private) == []
