"""What a tool was given in confidence is in nothing that is said of its call; what it returns is its own business."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import heddle
from heddle.testing import make_tool

KEY = "T4nk-w4ter/and+salt"
# Pieces of it, in case that a cut has left the rest.
TRACES = (KEY, "T4nk", "nd+salt")
LEAKS = {
    "in what it says when it fails": "sys.exit('boom ' + key)",
    "at the edge of what is shown of its output": "print('x' * 70 + key)",
    "near the place where its JSON breaks": "print('{\"a\": \"' + key + '\" oops')",
    "as its whole output": "print(key)",
    "behind a long output": "print('hello\\n' * 700 + key + 'x')",
    "behind more than is kept of standard error": (
        "sys.stderr.write('a' * 70000 + key + '\\nlast ' + key); sys.exit(1)"
    ),
    "wherever standard error is cut": "sys.stderr.write((key + '\\n') * 9000); sys.exit(1)",
    "as base64": "sys.exit(base64.b64encode(('u:' + key).encode()).decode())",
    "at the edge of the kept head of its output": "print('z' * 1990 + key)",
    "beside a good answer": "print('{}'); sys.stderr.write(key)",
}


async def call(folder: Path, body: str) -> heddle.ToolResult:
    source = f"#!/usr/bin/env python3\nimport base64, json, os, sys\nkey = os.environ['MY_KEY']\n{body}\n"
    program = heddle.Program(make_tool(folder, source), inherit_env=("MY_KEY",))
    async with heddle.Runner([heddle.ToolDef(name="tool", implementation=program)]) as runner:
        return await runner.call("tool")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


@pytest.mark.parametrize("body", LEAKS.values(), ids=LEAKS)
async def test_a_secret_is_masked_wherever_a_tool_lets_it_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    caplog.set_level(logging.DEBUG, "heddle")

    result = await call(tmp_path, body)
    said = f"{result.report}{result.for_model()}{result.as_json()}{caplog.text}"

    assert [trace for trace in TRACES if trace in said] == []


async def test_what_a_tool_returns_is_never_changed(tmp_path: Path) -> None:
    result = await call(tmp_path, "print(json.dumps({'password': key}))")

    assert result == heddle.Returned({"password": KEY})


async def test_what_looks_like_a_secret_is_masked_in_what_a_function_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "heddle")

    @heddle.tool
    def log_in() -> None:
        """Log in."""
        raise ValueError("login with password=hunter2 failed")

    async with heddle.Runner([log_in]) as runner:
        result = await runner.call("log_in")

    assert isinstance(result, heddle.Failed)
    assert result.message == 'tool "log_in" raised ValueError: login with password=[REDACTED] failed'
    assert "hunter2" not in f"{result.as_json()}{caplog.text}"
