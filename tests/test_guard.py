"""A supervisor that cannot be started, or breaks, is the host's fault and says so; nothing is left of the attempt."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import heddle
from heddle.process import diagnosis, guard, supervisor
from tests.support import Toolbox, children_of, open_descriptors

CAT = heddle.ToolDef(name="cat", implementation=heddle.Program("/bin/cat"))


async def call_cat() -> heddle.Failed:
    """Call a tool where no supervisor can be had, and see that nothing is left."""
    descriptors = len(open_descriptors())
    async with heddle.Runner([CAT]) as runner:
        result = await runner.call("cat")
    assert children_of(os.getpid()) == []
    assert len(open_descriptors()) == descriptors
    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("cannot_start", False, "allowed")
    return result


def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Put an edited supervisor in the place of ours."""
    source = Path(supervisor.__file__).read_text()
    assert source.count(old) == 1
    edited = tmp_path / "supervisor.py"
    edited.write_text(source.replace(old, new))
    monkeypatch.setattr(guard, "PROGRAM", edited)


async def test_a_supervisor_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(tmp_path, monkeypatch, 'VERSION = "1"', 'VERSION = "0"')

    result = await call_cat()

    assert "version 0, the host speaks 1: heddle was changed while it ran" in result.message


async def test_a_supervisor_that_is_not_there_is_the_hosts_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PROGRAM", Path("/nosuch/supervisor.py"))

    result = await call_cat()

    assert result.message == (
        'tool "cat" cannot be started: the supervisor ends as soon as it is started. '
        "The host's Python or its installation of heddle is broken."
    )


async def test_a_host_without_an_interpreter_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that embeds Python, where `sys.executable` is that program or nothing."""
    monkeypatch.setattr(sys, "executable", "/usr/bin/embedding")
    monkeypatch.setattr(sys, "base_exec_prefix", "/nosuch")
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: "/nosuch")

    result = await call_cat()

    assert "was found beside this program; the supervisor needs one" in result.message


async def test_an_embedded_interpreter_is_found_in_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")

    async with heddle.Runner([CAT]) as runner:
        result = await runner.call("cat", {"a": 1})

    assert result == heddle.Returned({"a": 1})


async def test_a_keeper_that_breaks_is_logged_and_fails_its_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planted(
        tmp_path,
        monkeypatch,
        "        self.tool, self.status, self.killed",
        "        1 / 0\n        self.tool, self.status, self.killed",
    )

    with caplog.at_level(logging.ERROR, "heddle"):
        async with heddle.Runner([CAT]) as runner:
            result = await runner.call("cat")

    assert isinstance(result, heddle.Failed)
    assert result.code == "supervisor_lost"
    assert "a keeper broke: ZeroDivisionError" in caplog.text


def test_a_host_that_runs_out_of_descriptors_fails_the_calls_that_need_more_and_no_others(toolbox: Toolbox) -> None:
    toolbox.sh("wait", "sleep 0.3; echo '{}'")
    source = """
        import os, resource, sys, trio, heddle

        async def main():
            seen = []
            async with heddle.Runner(heddle.discover_tools(sys.argv[1])) as runner, runner.scope() as scope:
                async def call():
                    result = await scope.call("wait")
                    seen.append("ok" if result.ok else f"{result.kind}, {result.message[-90:]}")
                await call()
                used = len(os.listdir("/proc/self/fd"))
                resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, used + 12))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.sleep(0.1)
                    for _ in range(6):
                        nursery.start_soon(call)
                await call()
                left = len(os.listdir("/proc/self/fd"))
            print(*sorted(set(seen)), seen.count("ok") >= 3, left - used <= 6, sep="\\n")

        trio.run(main)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(toolbox.folder)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.stderr == ""
    *outcomes, fine, tight = done.stdout.splitlines()
    assert "ok" in outcomes
    assert "the host has too many files open. Close some, or raise its limit (ulimit -n)." in done.stdout
    assert {outcome.partition(",")[0] for outcome in outcomes} == {"ok", "cannot_start"}
    assert (fine, tight) == ("True", "True")


@pytest.mark.parametrize(
    ("number", "content", "why"),
    [
        (errno.ENOENT, b"#!/bin/sh\n", "the interpreter /bin/sh that tool names needs one itself"),
        (errno.ENOENT, b"\x7fELF", "tool needs a loader or an interpreter that is not on this machine"),
        (errno.EACCES, b"#!/etc/passwd\n", "the interpreter /etc/passwd of tool may not be executed by this user"),
        (errno.EACCES, b"\x7fELF", "tool may not be executed by this user, or its file system is mounted noexec"),
        (errno.EPERM, b"#!/bin/sh\n", "Operation not permitted"),
    ],
)
def test_each_number_of_the_system_becomes_a_sentence(tmp_path: Path, number: int, content: bytes, why: str) -> None:
    tool = tmp_path / "tool"
    tool.write_bytes(content)
    tool.chmod(0o755)

    assert why in diagnosis.why_not_started(str(tool), tmp_path, number, "")


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    why = diagnosis.why_not_started(str(tmp_path / "nosuch"), tmp_path / "gone", errno.ENOENT, "")

    assert why == "its working directory is gone"


def test_only_env_is_asked_why_it_found_nothing(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    for content in (b"#!/bin/sh\n", b"no line", b"#!/usr/bin/env\n", b"#!/usr/bin/env sh\n"):
        tool.write_bytes(content)

        assert diagnosis.why_interpreter_failed(str(tool), os.defpath) is None
