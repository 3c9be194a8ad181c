"""What can be called like a runner: agents, flows and doors take a `ToolCaller`, and `heddle.Runner` is one.

An object of the host's own that adds something to every call (a cache, a price, a question to a person) has the same
three names and stands in front of another caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from heddle.limits import Limits
    from heddle.operations import Backoff
    from heddle.results import ToolResult
    from heddle.runner import Runner, Scope
    from heddle.tools.registry import Registry
    from heddle.workspace import Mount, Workspace

__all__ = ["ScopeCaller", "ToolCaller"]


@runtime_checkable
class ScopeCaller(Protocol):
    """Calls tools that share one workspace. What `ToolCaller.scope` gives; `heddle.Scope` is one.

    Attributes:
        registry: What can be called in it.
    """

    @property
    def registry(self) -> Registry:
        """What can be called."""
        ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: Limits | None = None,
        cwd: str | Path | None = None,
        operation_id: str | None = None,
        bare_string: bool = False,
        retries: int = 0,
        backoff: Backoff = 0.5,
    ) -> ToolResult:
        """Call a tool, and return how it went; see `heddle.Runner.call`.

        What the caller of the tool, or the tool itself, can act on is a `heddle.Failed`, an unknown name among it.
        Only what the host has to mend is raised, and a cancellation passes.
        """
        ...


@runtime_checkable
class ToolCaller(ScopeCaller, Protocol):
    """Calls tools, each in a workspace of its own or several in one. Any number of tasks may use it at once.

    `isinstance` asks for the names alone; whether the signatures fit, a type checker says.

    Attributes:
        registry: What can be called.
    """

    def scope(
        self,
        label: str = "scope",
        *,
        mounts: Iterable[Mount | str] = (),
        tools: Iterable[str] | None = None,
        workspace: Workspace | None = None,
        report_changes: bool = False,
    ) -> AbstractAsyncContextManager[ScopeCaller]:
        """Let calls share one workspace for the time of the block; see `heddle.Runner.scope`."""
        ...


if TYPE_CHECKING:
    # Refused by a type checker where our own have grown away from what is asked of everybody.
    _OURS: tuple[type[ToolCaller], type[ScopeCaller]] = (Runner, Scope)
