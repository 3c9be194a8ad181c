"""The pytest plugin: fixtures that run tools, and failure reports that show what a tool has written.

pytest loads it wherever heddle is installed, so importing it loads nothing else of heddle; the fixtures do that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from heddle.blocking import Runner
    from heddle.testing.fixtures import Calls, RunTool

__all__ = ["pytest_addoption", "pytest_assertrepr_compare", "pytest_runtest_makereport", "run_tool", "tool_runner"]

OPTION = "heddle_tools"
_CALLS = pytest.StashKey["Calls"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where the tools are."""
    parser.addini(OPTION, "The folder of tools that the fixture tool_runner calls; relative to rootdir.")


@pytest.fixture
def run_tool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _heddle_calls: Calls
) -> Generator[RunTool, None, None]:
    """Run a tool, and return how it went: ``run_tool("tools/word_count.py", {"text": "a b"})``.

    A relative path starts at the folder of the test file or, where there is no such file, at pytest's rootdir. The
    sidecar beside the tool applies. A function decorated with ``@heddle.tool`` is taken in place of a path.

    All calls of one test work in the folder ``run_tool.workspace``: put files there before, and look at them after.
    """
    from heddle.testing.fixtures import RunTool

    with RunTool((request.path.parent, request.config.rootpath), tmp_path_factory, _heddle_calls) as running:
        yield running


@pytest.fixture
def tool_runner(request: pytest.FixtureRequest, _heddle_calls: Calls) -> Generator[Runner, None, None]:
    """A `heddle.blocking.Runner` with the tools of the folder that ``heddle_tools`` in pytest's configuration names.

    ``tool_runner.call("word_count", {"text": "a b"})``
    """
    from heddle.testing.fixtures import runner_of

    with runner_of(request.config, OPTION, _heddle_calls) as runner:
        yield runner


@pytest.fixture
def _heddle_calls(request: pytest.FixtureRequest) -> Calls:
    """What the calls of this test gave, for its report."""
    from heddle.testing.fixtures import Calls

    calls = request.node.stash[_CALLS] = Calls()
    return calls


# Not wrapper=True: a host's pytest may be old, and must not break because heddle is installed beside it.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add to a failed test's report what its tools have written on standard error."""
    report: pytest.TestReport = (yield).get_result()
    calls = item.stash.get(_CALLS, None)
    if calls is not None and report.failed:
        report.sections.extend(calls.sections())


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say why a result is not what it is compared to."""
    if op != "==" or "heddle.results" not in sys.modules:
        return None  # nothing that is compared can be a result
    from heddle.testing.wording import why_unequal

    return why_unequal(left, right)
