"""What the fixtures of the pytest plugin give to tests. Every runner that is opened here ends with its test."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from heddle.blocking import Runner
from heddle.errors import DefinitionError
from heddle.events import CallFinished
from heddle.testing.tools import tool_at
from heddle.testing.wording import section_of
from heddle.tools.definition import ToolDef
from heddle.tools.discovery import discover_tools
from heddle.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Self

    from heddle.environment import Environment
    from heddle.events import CallEvent, CallWaiting
    from heddle.limits import Limits
    from heddle.results import ToolResult
    from heddle.sandbox.policy import Sandbox

__all__ = ["Calls", "RunTool", "runner_of"]

# 1 s: what is told of a call arrives within a moment, and a report must not wait for one that still runs.
LATE_SECONDS = 1.0


class RunTool:
    """Runs tools in a test. The fixture ``run_tool`` gives one.

    Calls of the same tool share a runner, and all calls share `workspace`. The environment is that of the moment of
    the call, so that ``monkeypatch.setenv`` counts.
    """

    def __init__(self, folders: Sequence[Path], temporary: pytest.TempPathFactory, calls: Calls) -> None:
        self._folders = folders
        self._temporary = temporary
        self._calls = calls
        self._runners: list[tuple[_Setting, Runner]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __repr__(self) -> str:
        return "<run_tool>"

    @cached_property
    def workspace(self) -> Path:
        """The folder in which all calls of this test work; pytest keeps it for a while, as it keeps ``tmp_path``."""
        return self._temporary.mktemp("workspace")

    def __call__(
        self,
        tool: str | os.PathLike[str] | ToolDef,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: Limits | None = None,
        cwd: str | Path | None = None,
        sandbox: Sandbox | None = None,
        environment: Environment | None = None,
    ) -> ToolResult:
        """Call a tool, and return how it went.

        Args:
            tool: The path of an executable or of its sidecar; a function decorated with ``@heddle.tool``; a `ToolDef`.
            arguments: A mapping, or JSON text as models write it; nothing is the empty object.
            limits: Can only tighten what the tool declares.
            cwd: A folder of the workspace in which a program is started.
            sandbox: What a program may read, write and reach. None confines nothing.
            environment: What a program may see of the host's variables.

        Raises:
            FileNotFoundError: There is no such file; the message names the places that were tried.
            DefinitionError: It is no tool, or its sidecar is broken.
            SandboxUnavailable: Something was asked for that cannot be enforced here.
        """
        __tracebackhide__ = True
        definition = tool if isinstance(tool, ToolDef) else tool_at(self._found(tool))
        runner = self._runner((definition, sandbox, environment))
        with (
            runner.workspace(Workspace.adopt(self.workspace)) as workspace,
            runner.scope(definition.name, workspace=workspace) as scope,
        ):
            return scope.call(definition.name, arguments, limits=limits, cwd=cwd)

    def _found(self, tool: str | os.PathLike[str]) -> Path:
        __tracebackhide__ = True
        if not isinstance(tool, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise TypeError(
                f"run_tool takes a path, a function decorated with @heddle.tool or a ToolDef, not {tool!r:.60}"
            )
        places = list(dict.fromkeys(folder / tool for folder in self._folders))
        for place in places:
            if place.exists():
                return place.parent.resolve() / place.name if ".." in place.parts else place
        tried = [os.path.normpath(place) for place in places]
        if len(tried) == 1:
            raise FileNotFoundError(f"there is no tool {str(tool)!r}: {tried[0]} is not there")
        raise FileNotFoundError(
            f"there is no tool {str(tool)!r}: neither {' nor '.join(tried)} is there. A relative path starts at the "
            "folder of the test file, then at pytest's rootdir"
        )

    def _runner(self, setting: _Setting) -> Runner:
        for known, runner in self._runners:
            if known == setting:
                return runner
        definition, sandbox, environment = setting
        runner = Runner([definition], sandbox=sandbox, environment=environment, listeners=[self._calls])
        self._stack.enter_context(runner)
        self._runners.append((setting, runner))
        return runner


_Setting = tuple[ToolDef, "Sandbox | None", "Environment | None"]


def runner_of(config: pytest.Config, option: str, calls: Calls) -> Runner:
    """Return a runner, not yet open, with the tools of the folder that an option of the configuration names.

    Whoever reads that the fixture failed can mend the configuration or the folder, so no traceback is shown.
    """
    folder = config.getini(option)
    if not folder:
        pytest.fail(_how_to_say(config, option), pytrace=False)
    try:
        return Runner(discover_tools(config.rootpath / folder), listeners=[calls])
    except DefinitionError as error:
        pytest.fail(f"{option} = {folder}: {error}", pytrace=False)


def _how_to_say(config: pytest.Config, option: str) -> str:
    """Return the line to write, and where: in the syntax of the file that pytest has read."""
    path = config.inipath or config.rootpath / "pytest.ini"
    table = _TABLES.get(path.name, "[pytest]")
    line = f'{option} = "tools"' if path.suffix == ".toml" else f"{option} = tools"
    return f"the fixture tool_runner needs a folder of tools. Write into {path}, under {table}:\n\n{line}"


_TABLES = {
    "pyproject.toml": "[tool.pytest.ini_options], or [tool.pytest] where you have that",
    "setup.cfg": "[tool:pytest]",
}


class Calls:
    """What the calls of one test gave. It listens to every runner that the fixtures open."""

    def __init__(self) -> None:
        self._made = 0
        self._over: list[CallFinished] = []
        self._news = threading.Condition()

    def around(self, event: CallWaiting) -> AbstractContextManager[Mapping[str, str]]:  # noqa: ARG002 - one is like another
        """Count a call that is made, in line, so that its end is waited for."""
        with self._news:
            self._made += 1
        return nullcontext({})

    def on_event(self, event: CallEvent) -> None:
        """Remember the end of a call."""
        if isinstance(event, CallFinished):
            with self._news:
                self._over.append(event)
                self._news.notify_all()

    def sections(self) -> list[tuple[str, str]]:
        """Return the sections of a report on the calls that are over."""
        with self._news:
            self._news.wait_for(lambda: len(self._over) == self._made, LATE_SECONDS)
            results = [event.result for event in self._over if event.result is not None]
        return [section for result in results if (section := section_of(result)) is not None]
