"""What holds for every call holds for a confined one: its time, its files, its report. Real tools, in each tier."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import trio

import heddle
from heddle.sandbox import choice
from tests.jail import APART, Jail, in_each_tier, reported  # noqa: F401 - a fixture
from tests.support import descendants_of, until

SEES_NETWORK = """
attempt("connect", lambda: socket.create_connection(("127.0.0.1", arguments["port"]), timeout=2).close())
"""


def sh(jail: Jail, name: str, source: str) -> None:
    """Add a tool for /bin/sh."""
    path = jail.tools / name
    path.write_text(f"#!/bin/sh\n{source}\n")
    path.chmod(0o755)


# The report


async def test_a_result_names_what_confined_it(jail: Jail) -> None:
    _, result = await jail.attack("report['ok'] = True")

    assert result == heddle.Returned({"ok": True})
    assert result.report.tier == ("bubblewrap" if jail.is_apart else "landlock")
    for word in ("reads", "network", "processes"):
        assert result.report.guarantees[word] == "enforced"
    assert result.report.guarantees["writes"] == ("enforced" if jail.is_apart else "partial")
    assert result.report.guarantees["other_calls"] == ("enforced" if jail.is_apart else "partial")


async def test_a_tool_that_asks_for_no_network_has_none_where_the_policy_has_one(jail: Jail) -> None:
    jail.add("attack", SEES_NETWORK)
    (jail.tools / "attack.tool.json").write_text('{"sandbox": {"network": "none"}}')
    jail.add("other", SEES_NETWORK)

    async with jail.runner(sandbox={"network": "host"}) as runner, runner.scope() as scope:
        asked = await scope.call("attack", {"port": jail.host.tcp})
        other = await scope.call("other", {"port": jail.host.tcp})

    assert reported(asked)["connect"].startswith("denied:")
    assert reported(other) == {"connect": "allowed:None"}
    assert (asked.report.asked, asked.report.guarantees["network"]) == ({"network": "none"}, "enforced")
    assert (other.report.asked, other.report.guarantees["network"]) == ({}, "no")
    assert jail.host.touched() == ["tcp"]


async def test_a_tool_that_asks_for_a_network_has_none_where_the_policy_has_none(jail: Jail) -> None:
    jail.add("attack", SEES_NETWORK)
    (jail.tools / "attack.tool.json").write_text('{"sandbox": {"network": "host"}}')

    async with jail.runner() as runner:
        result = await runner.call("attack", {"port": jail.host.tcp})

    assert reported(result)["connect"].startswith("denied:")
    assert (result.report.asked, result.report.guarantees["network"]) == ({"network": "host"}, "enforced")
    assert jail.host.touched() == []


async def test_a_python_function_is_never_confined_and_says_so(jail: Jail) -> None:
    @heddle.tool
    def where() -> str:
        """Say where it runs."""
        return str(os.getpid())

    async with heddle.Runner([where], sandbox=heddle.Sandbox(network="none")) as runner:
        result = await runner.call("where")

    assert result == heddle.Returned({"result": str(os.getpid())})
    assert (result.report.tier, result.report.guarantees) == ("in_process", {})


# Time


async def test_what_it_takes_to_open_a_session_is_no_time_of_the_tool(jail: Jail) -> None:
    """The first call of a runner waits for bubblewrap and Python to start, some hundred times as long as this limit."""
    sh(jail, "quick", "echo '{}'")

    async with jail.runner() as runner:
        result = await runner.call("quick", limits=heddle.Limits(wall_seconds=2))
        waited = result.report.waited_s

    assert result == heddle.Returned({})
    assert waited > 0
    assert result.report.duration_s < 2


async def test_a_confined_tool_is_asked_to_end_before_it_is_forced(jail: Jail) -> None:
    sh(jail, "trap", "trap 'echo cleaned >&2; exit 3' TERM; sleep 60 & wait")

    async with jail.runner() as runner:
        result = await runner.call("trap", limits=heddle.Limits(wall_seconds=0.5))

    assert isinstance(result, heddle.Failed)
    assert result.kind == "timed_out"
    assert "cleaned" in result.report.stderr_tail


async def test_a_confined_tool_that_ignores_being_asked_is_forced_in_time(jail: Jail) -> None:
    sh(jail, "deaf", f"trap '' TERM; setsid sleep {jail.mark} & while :; do sleep 0.1; done")

    async with jail.runner() as runner:
        result = await runner.call("deaf", limits=heddle.Limits(wall_seconds=0.5))
        duration = result.report.duration_s

    assert isinstance(result, heddle.Failed)
    assert result.kind == "timed_out"
    assert 2.5 <= duration <= 3.0
    assert jail.strays() == []


# Limits


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (heddle.Limits(memory_bytes=64 << 20), "x = bytearray(256 << 20)", "MemoryError"),
        (heddle.Limits(file_bytes=4096), "attempt('write', write, 'f', 'x' * 9000)", "EFBIG"),
        (heddle.Limits(open_files=32), "attempt('open', lambda: [os.open('/usr', 0) for _ in range(99)])", "EMFILE"),
        (
            heddle.Limits(processes=4),
            "attempt('fork', lambda: [os.fork() or time.sleep(1) for _ in range(9)])",
            "EAGAIN",
        ),
        (heddle.Limits(cpu_seconds=1), "while True: pass", "SIGXCPU"),
    ],
    ids=["memory", "file size", "open files", "processes", "processor time"],
)
async def test_a_limit_of_one_call_binds_that_call(jail: Jail, limits: heddle.Limits, code: str, said: str) -> None:
    if limits.processes is not None and not jail.is_apart:
        return  # the kernel counts a user's there; what that holds is in test_jail_limits.py
    jail.add("attack", code)
    sh(jail, "plain", "ulimit -d >&2; echo '{}'")

    async with jail.runner() as runner, runner.scope() as scope:
        before = await scope.call("plain")
        limited = await scope.call("attack", limits=limits)
        after = await scope.call("plain")

    words = f"{limited.as_json()} {limited.report.stderr_tail}"
    assert said in words
    assert before == after == heddle.Returned({})
    assert before.report.stderr_tail == after.report.stderr_tail == f"{2 * 1024 * 1024}\n"


async def test_a_tool_may_have_more_than_the_usual_limits_where_it_says_so(jail: Jail) -> None:
    jail.add("attack", "import mmap; x = mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE); report['size'] = len(x)")
    tools = heddle.discover_tools(jail.tools)
    import attrs

    large = attrs.evolve(tools["attack"], limits=heddle.Limits(memory_bytes=4 << 30))

    async with heddle.Runner([large], sandbox=heddle.Sandbox(network="none")) as runner:
        result = await runner.call("attack")

    assert result == heddle.Returned({"size": 3 << 30})


# Sessions


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_a_session_that_is_lost_is_replaced(jail: Jail) -> None:
    sh(jail, "tool", "echo '{}'")

    async with jail.runner() as runner, runner.scope() as scope:
        first = await scope.call("tool")
        (bwrap,) = [pid for pid in descendants_of(os.getpid()) if _name(pid) == "bwrap"]
        os.kill(bwrap, signal.SIGKILL)
        assert await until(lambda: _name(bwrap) != "bwrap", 2)
        others = [await scope.call("tool") for _ in range(3)]

    assert [first, *others] == [heddle.Returned({})] * 4


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_calls_in_flight_fail_when_their_session_is_lost(jail: Jail) -> None:
    sh(jail, "slow", f"sleep {jail.mark}")
    results = []

    async with jail.runner() as runner, runner.scope() as scope, trio.open_nursery() as nursery:

        async def call() -> None:
            results.append(await scope.call("slow", limits=heddle.Limits(wall_seconds=20)))

        nursery.start_soon(call)
        assert await until(jail.strays, 5)
        (bwrap,) = [pid for pid in descendants_of(os.getpid()) if _name(pid) == "bwrap"]
        os.kill(bwrap, signal.SIGKILL)

    (lost,) = results
    assert isinstance(lost, heddle.Failed)
    assert (lost.kind, lost.code, lost.started) == ("crashed", "supervisor_lost", True)
    assert jail.strays() == []


@pytest.mark.parametrize("jail", ["containers"], indirect=True)
async def test_scopes_and_single_calls_share_one_session(jail: Jail) -> None:
    sh(jail, "tool", "echo '{}'")

    async with jail.runner() as runner:
        async with runner.scope() as one, runner.scope() as two:
            await one.call("tool")
            await two.call("tool")
        await runner.call("tool")
        sessions = [pid for pid in descendants_of(os.getpid()) if _name(pid) == "bwrap"]

    assert len(sessions) == 1
    assert [pid for pid in descendants_of(os.getpid()) if _name(pid) == "bwrap"] == []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def test_two_calls_of_a_scope_share_files_and_each_has_a_temporary_folder(jail: Jail) -> None:
    jail.add(
        "attack", "write('shared', 'x'); write('/tmp/mine' if arguments['apart'] else os.environ['TMPDIR'] + '/mine')"
    )
    jail.add(
        "other",
        "report['shared'] = os.path.exists('shared'); report['mine'] = os.path.exists(os.environ['TMPDIR'] + '/mine')",
    )

    async with jail.runner() as runner, runner.scope() as scope:
        await scope.call("attack", {"apart": jail.is_apart})
        seen = await scope.call("other")

    assert reported(seen) == {"shared": True, "mine": not jail.is_apart}


async def test_home_and_the_folder_for_temporary_files_are_thrown_away(jail: Jail) -> None:
    code = """
    for name in ("HOME", "TMPDIR"):
        attempt(name, write, os.environ[name] + "/x")
        report[name + " is"] = os.environ[name]
    """

    report, _ = await jail.attack(code)
    again, _ = await jail.attack(code.replace("write,", "read,"))

    assert (report["HOME"], report["TMPDIR"]) == ("allowed:None", "allowed:None")
    assert (again["HOME"], again["TMPDIR"]) == ("denied:ENOENT", "denied:ENOENT")
    assert report["HOME is"] != os.environ.get("HOME")
    assert not Path(report["TMPDIR is"], "x").exists()


# What does not work says why


async def test_an_interpreter_out_of_sight_is_named(jail: Jail) -> None:
    folder = jail.host.folder / "bin"
    folder.mkdir()
    shutil.copy("/bin/sh", folder / "shell")
    script = jail.tools / "script"
    script.write_text(f"#!{folder}/shell\necho '{{}}'\n")
    script.chmod(0o755)

    async with jail.runner() as runner:
        result = await runner.call("script")
    async with jail.runner(sandbox={"read": [folder]}) as runner:
        granted = await runner.call("script")

    assert isinstance(result, heddle.Failed)
    assert granted == heddle.Returned({})
    assert result.kind == "cannot_start"
    assert f"script needs {folder}/shell, which is on this machine" in result.message
    assert "--allow-read" in result.message


async def test_what_was_granted_and_is_gone_makes_a_call_fail(jail: Jail) -> None:
    granted = jail.host.folder / "data"
    granted.mkdir()
    sh(jail, "tool", f"ls {granted} >&2; echo '{{}}'")

    with pytest.raises(heddle.DefinitionError, match=r"the sandbox names what is not there: .*/gone"):
        async with jail.runner(sandbox={"read": [granted, granted / "gone"]}):
            pass
    async with jail.runner(sandbox={"read": [granted]}) as runner:
        result = await runner.call("tool")

    assert result == heddle.Returned({})


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_a_container_that_cannot_be_made_starts_nothing(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose bubblewrap stops working after it was tried: the tool has not run, so the call may be repeated."""
    sh(jail, "tool", f"touch {jail.host.folder}/ran; echo '{{}}'")
    broken = jail.host.folder / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    make = choice._tier

    def with_broken(*arguments: object) -> object:
        import attrs

        tier = make(*arguments)  # type: ignore[arg-type]
        return attrs.evolve(tier, plan=attrs.evolve(tier.plan, bwrap=str(broken)))

    monkeypatch.setattr(choice, "_tier", with_broken)

    async with jail.runner() as runner:
        result = await runner.call("tool")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("cannot_start", False, "allowed")
    assert "No permissions to create new namespace" in result.message
    assert not (jail.host.folder / "ran").exists()


# Hosts


async def test_a_runner_that_confines_leaves_nothing(jail: Jail) -> None:
    sh(jail, "tool", f"setsid sleep {jail.mark} & echo '{{}}'")
    descriptors = set(os.listdir("/proc/self/fd"))

    for _ in range(5):
        async with jail.runner() as runner:
            async with runner.scope() as scope:
                assert (await scope.call("tool")).ok
                place = scope.workspace.path.parent
            assert (await runner.call("tool")).ok

    assert set(os.listdir("/proc/self/fd")) == descriptors
    assert [pid for pid in descendants_of(os.getpid()) if _name(pid) in {"bwrap", "sleep"}] == []
    assert jail.strays() == []
    assert not place.exists()


@pytest.mark.parametrize("jail", ["landlock"], indirect=True)
async def test_a_keeper_that_has_restricted_itself_serves_its_scope_alone(jail: Jail) -> None:
    """What one scope's keeper may use is not what another's may."""
    jail.add("attack", "attempt('read', read, arguments['path'])")
    sh(jail, "write", "echo secret > file; pwd >&2; echo '{}'")

    async with jail.runner() as runner, runner.scope() as one, runner.scope() as two:
        await one.call("write")
        path = f"{one.workspace.path}/file"
        seen = [await scope.call("attack", {"path": path}) for scope in (two, one, two)]

    assert [reported(result)["read"] for result in seen] == ["denied:EACCES", "allowed:'secret\\n'", "denied:EACCES"]
