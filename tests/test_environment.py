"""Which variables a tool gets: a key in the host's environment never reaches one by accident."""

from __future__ import annotations

import json
import os

import pytest

import heddle
from tests.support import Toolbox

BASE = {"PATH": "/usr/bin:/bin", "HOME": "/home/ada", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "LC_TIME": "C", "TZ": "UTC"}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in BASE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("OTHER", "public")
    monkeypatch.setenv("HEDDLE_WORKSPACE", "/not/ours")


def test_a_tool_gets_what_a_program_needs_and_no_more() -> None:
    assert heddle.Environment().variables() == BASE


def test_where_the_host_says_nothing_a_tool_gets_what_it_declares_unless_it_is_confined() -> None:
    environment = heddle.Environment()

    assert environment.variables(["API_KEY", "MISSING"]) == BASE | {"API_KEY": "secret"}
    assert environment.variables(["API_KEY"], confined=True) == BASE


def test_what_the_host_allows_reaches_tools_that_declare_nothing_or_that() -> None:
    environment = heddle.Environment(allow=["API_KEY", "OTHER"])

    assert environment.variables() == BASE | {"API_KEY": "secret", "OTHER": "public"}
    assert environment.variables(["API_KEY"]) == BASE | {"API_KEY": "secret"}
    assert environment.variables(["API_KEY"], confined=True) == BASE | {"API_KEY": "secret"}
    assert heddle.Environment(allow=[]).variables(["API_KEY"]) == BASE


def test_a_star_allows_everything() -> None:
    assert heddle.Environment(allow=["*"]).variables() == dict(os.environ)


def test_values_of_the_host_win(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = heddle.Environment(values={"API_KEY": "mine", "HOME": "/elsewhere"})

    assert environment.variables() == BASE | {"API_KEY": "mine", "HOME": "/elsewhere"}
    monkeypatch.delenv("PATH")
    assert heddle.Environment().variables()["PATH"] == os.defpath


def test_values_do_not_show_in_a_repr() -> None:
    assert "mine" not in repr(heddle.Environment(values={"API_KEY": "mine"}))


@pytest.mark.parametrize("values", [{"A=B": "x"}, {"": "x"}, {"A": "\0"}, {"A\0": "x"}])
def test_what_cannot_be_a_variable_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(heddle.DefinitionError):
        heddle.Environment(values=values)


def test_one_text_is_no_list_of_names() -> None:
    with pytest.raises(heddle.DefinitionError, match="takes several names"):
        heddle.Environment(allow="API_KEY")


async def test_a_tool_sees_no_more_than_that(toolbox: Toolbox) -> None:
    toolbox.add("env.py", "#!/usr/bin/python3\nimport json, os\nprint(json.dumps(dict(os.environ)))\n")

    async with heddle.Runner(toolbox.registry()) as runner, runner.scope() as scope:
        result = await scope.call("env", operation_id="op")
        path = scope.workspace.path

    seen = result.unwrap()
    assert isinstance(seen, dict)
    assert seen == BASE | {
        "PATH": f"/usr/bin:/bin:{path}/.heddle/bin",
        "HEDDLE_TOOL": "env",
        "HEDDLE_OPERATION_ID": "op",
        "HEDDLE_ATTEMPT_ID": result.report.attempt_id,
        "HEDDLE_WORKSPACE": str(path),
        "HEDDLE_WORKSPACE_BIN": f"{path}/.heddle/bin",
    } | {name: seen[name] for name in ("LC_CTYPE",) if name in seen}
    assert "secret" not in json.dumps(seen)


async def test_bytes_that_are_not_utf8_pass_through(toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"HOME", b"/home/\xff")
    toolbox.sh("tool", "printf '%s' \"$HOME\" | od -An -tx1 >&2")

    result = await toolbox.call("tool")

    assert result.report.stderr_tail.split() == ["2f", "68", "6f", "6d", "65", "2f", "ff"]
