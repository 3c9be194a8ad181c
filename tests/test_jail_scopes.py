"""Attacks of one scope on another, and on the runner itself: what they share is out of every tool's sight."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import heddle
from heddle.process import confined, supervised
from heddle.workspace.removal import remove_tree
from tests.jail import APART, Jail, allowed, in_each_tier, reported  # noqa: F401 - a fixture
from tests.support import descendants_of

WRITES_SECRET = "write('secret', 'of another scope')"


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that everybody may write, in none that a container has for itself."""
    folder = Path(tempfile.mkdtemp(prefix="heddle-shelf-", dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    remove_tree(folder)


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_terminals_of_another_call_are_not_there(jail: Jail) -> None:
    jail.add("attack", "attempt('mine', os.openpty); report['all'] = sorted(os.listdir('/dev/pts')); time.sleep(1)")
    results = []

    async with jail.runner() as runner, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(reported(await runner.call("attack")))

        nursery.start_soon(call)
        await trio.sleep(0.3)
        nursery.start_soon(call)

    assert [report["all"] for report in results] == [["0", "ptmx"]] * 2


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_workspaces_that_are_made_inside_of_a_grant_are_not_granted(jail: Jail, shelf: Path, mode: str) -> None:
    kept = shelf / "kept"
    kept.mkdir()
    kept.chmod(0o755)
    jail.add("victim", WRITES_SECRET)
    jail.add("attack", "attempt('read', read, arguments['path']); attempt('write', write, arguments['path'], 'evil')")
    policy = {mode: [shelf]}

    if jail.tier == "landlock":
        with pytest.raises(heddle.SandboxUnavailable, match="where workspaces are made, inside of a folder"):
            async with jail.runner(sandbox=policy, keep_workspaces=kept):
                pass
        return
    async with jail.runner(sandbox=policy, keep_workspaces=kept) as runner:
        async with runner.scope("victim") as scope:
            await scope.call("victim")
            secret = scope.workspace.path / "secret"
            report = reported(await runner.call("attack", {"path": str(secret)}))

    assert allowed(report) == {}
    assert secret.read_text() == "of another scope"


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_the_way_to_where_workspaces_are_made_cannot_be_taken(jail: Jail, shelf: Path) -> None:
    (shelf / "way" / "kept").mkdir(parents=True)
    (shelf / "way").chmod(0o777)
    way = str(shelf / "way")
    jail.add("attack", f"attempt('move', os.rename, {way!r}, {way + '2'!r})")

    async with jail.runner(sandbox={"write": [shelf]}, keep_workspaces=shelf / "way" / "kept") as runner:
        report = reported(await runner.call("attack"))

    assert report == {"move": "denied:EBUSY"}


async def test_a_folder_that_holds_the_runners_own_is_not_adopted(
    jail: Jail, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shelf / "tmp").mkdir()
    (shelf / "tmp").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(shelf / "tmp"))
    jail.add("attack", "report['ran'] = True")

    async with jail.runner() as runner, heddle.Workspace.adopt(shelf) as workspace:
        with pytest.raises(heddle.SandboxUnavailable, match="makes its own workspaces"):
            async with runner.scope(workspace=workspace) as scope:
                await scope.call("attack")


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_more_mounts_than_a_message_holds_are_all_there(jail: Jail, tmp_path: Path) -> None:
    """A message that was cut would leave the last of them writable and empty."""
    names = [f"{number:03}-{'x' * 90}" for number in range(300)]
    mounts = [heddle.Mount.from_files({"file": name.encode()}, name) for name in names]
    jail.add(
        "attack",
        """
        names = sorted(name for name in os.listdir(".") if name[0] != ".")
        report["right"] = sum(read(name + "/file") == name for name in names)
        report["written"] = [name for name in names if os.access(name, os.W_OK)]
        """,
    )

    async with jail.runner() as runner, runner.scope(mounts=mounts) as scope:
        report = reported(await scope.call("attack"))

    assert report == {"right": 300, "written": []}


async def test_what_confines_and_has_not_come_lets_nothing_run(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that has no descriptor free drops those that come with a message, and delivers the rest."""
    jail.add("attack", "report['ran'] = True")
    send = supervised.send_by_file

    def lose_the_last(line: object, message: bytes, fds: list[int], letter: bytes) -> None:
        send(line, message, fds[:-1], letter)  # type: ignore[arg-type]

    monkeypatch.setattr(confined, "send_by_file", lose_the_last)

    async with jail.runner(sandbox={"network": "host"}) as runner:
        result = await runner.call("attack")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started) == ("cannot_start", False)
    assert "what confines it has not come" in result.message


async def test_a_hosts_own_umask_keeps_no_tool_from_working(jail: Jail) -> None:
    jail.add("attack", "report['peers'] = sorted(os.listdir(os.environ['HEDDLE_WORKSPACE_BIN']))")
    before = os.umask(0o077)
    try:
        async with jail.runner() as runner:
            report = reported(await runner.call("attack"))
    finally:
        os.umask(before)

    assert report == {"peers": ["attack"]}


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_workspaces_may_be_made_in_shared_memory(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    folder.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    jail.add("attack", "write('x'); report['shm'] = sorted(os.listdir('/dev/shm')); report['here'] = os.getcwd()")
    try:
        async with jail.runner() as runner:
            report = reported(await runner.call("attack"))
    finally:
        remove_tree(folder)

    assert report["here"].startswith(str(folder))
    assert report["shm"] == [folder.name]


def test_a_host_that_ignores_its_children_confines_as_well(jail: Jail) -> None:
    backend = "landlock" if jail.tier == "landlock" else "bubblewrap"
    jail.add("attack", "report['ran'] = True")
    source = f"""
import heddle, signal, trio
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
async def main():
    sandbox = heddle.Sandbox(network="none", backend={backend!r})
    async with heddle.Runner(heddle.discover_tools({str(jail.tools)!r}), sandbox=sandbox) as runner:
        print((await runner.call("attack")).unwrap())
trio.run(main)
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    assert done.stdout == "{'ran': True}\n", done.stderr


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_what_a_session_needs_for_itself_is_in_no_containers_sight(jail: Jail) -> None:
    """Its interpreter may lie in the user's home, and be installed there with that for its folder."""
    jail.add(
        "attack",
        "attempt('list', lambda: sorted(os.listdir('/.heddle'))); attempt('python', os.listdir, arguments['python'])",
    )
    prefix = os.path.realpath(sys.base_prefix)

    async with jail.runner() as runner:
        report = reported(await runner.call("attack", {"python": prefix}))

    assert report["list"] == "allowed:[]"
    assert prefix.startswith("/usr") or report["python"] == "allowed:[]"


@pytest.mark.parametrize("jail", ["landlock"], indirect=True)
async def test_a_tool_that_is_root_changes_no_modes_where_the_host_is_in_sight(jail: Jail) -> None:
    path = str(jail.host.secret)
    if os.geteuid() != 0:
        return  # no tool of a plain user's can be root

    report, _ = await jail.attack(f"attempt('chmod', os.chmod, {path!r}, 0o4755)", sandbox={"run_as": 0})

    assert report == {"chmod": "denied:EPERM"}
    assert jail.host.touched() == []


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_a_container_that_was_killed_before_its_call_fails_no_call(jail: Jail) -> None:
    jail.add("attack", "report['ran'] = True")

    async with jail.runner() as runner, runner.scope() as scope:
        for _ in range(3):
            await scope.call("attack")
        await trio.sleep(0.1)
        spares = [pid for pid in descendants_of(os.getpid()) if _is_spare(pid)]
        for pid in spares:
            os.kill(pid, signal.SIGKILL)
        await trio.sleep(0.1)
        after = [await scope.call("attack") for _ in range(3)]

    assert spares
    assert after == [heddle.Returned({"ran": True})] * 3


def _is_spare(pid: int) -> bool:
    """Return whether a process is the first of a container: one of a supervisor's, in a pid namespace inside of its."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return b"/.heddle/process/supervisor.py" in words and len(numbers) > 2 and numbers[-1] == "1"


async def test_more_calls_at_once_than_a_socket_holds_messages_are_all_answered(jail: Jail) -> None:
    (jail.tools / "quick").write_text("#!/bin/sh\necho '{}'\n")
    (jail.tools / "quick").chmod(0o755)
    results: list[heddle.ToolResult] = []

    async with jail.runner(max_concurrent=300) as runner, runner.scope() as scope, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await scope.call("quick"))

        for _ in range(300 if jail.tier == "containers" else 40):
            nursery.start_soon(call)

    assert {repr(result) for result in results} == {"Returned(data={})"}
