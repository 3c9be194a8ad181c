"""Run tools for agents and workflows: validated, time-limited, in a workspace, recorded.

    import heddle

    with heddle.blocking.Runner(heddle.discover_tools("tools")) as runner:
        print(runner.call("word_count", {"text": "a b"}).unwrap())

`heddle.aio.Runner` is the same for asyncio, and `heddle.Runner` for trio.

The rooms, in the order in which they may import each other:

    errors, strictjson, limits, results    values
    ids                                    names of operations and attempts
    expressions                            short texts that compute, each in a small process of its own
    redaction                              what is masked in what is recorded and quoted
    logs, threads                          the library's logger; work in threads
    process                                run one program to its end
    references, environment                environment.env, looked up once; which variables a tool gets
    sandbox                                what a tool may read, write and reach, and what holds it to that
    tools                                  what can be called: definitions, schemas, the catalogue, a folder's tools
    protocol                               a call to bytes, an exit to a reply; no I/O
    workspace                              the directory of a scope: what is put in, what comes back, what changed
    events, listening                      what hosts may hear of calls, and how it reaches them
    loops                                  the event loop of a call: what is needed of it, and trio's
    walk                                   one call from its arguments to its result
    operations                             the journal: what is set out to do, and what came of it
    places                                 where the calls of a scope are run
    runner                                 how calls share a machine
    pipelines                              tools that are a few steps, and the routes to them
    portal, hostloop, twins,               the same runner for synchronous and asyncio hosts
    blocking, aio
    callers, otel                          what stands in for a runner; traces
    testing                                fakes and checks for hosts, tools and custom runners
    cli                                    a door; nothing imports it

Importing this package loads nothing heavy: each name below is resolved when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle import aio as aio
    from heddle import blocking as blocking
    from heddle import testing as testing
    from heddle.environment import Environment
    from heddle.errors import (
        DefinitionError,
        HeddleError,
        JournalError,
        RouteError,
        RunnerClosed,
        SandboxUnavailable,
        StrictJsonError,
        ToolError,
        ToolFailed,
        WrongLoop,
        WrongProcess,
    )
    from heddle.limits import DEFAULT_LIMITS, HOST_CEILING, Limits
    from heddle.operations import Journal
    from heddle.pipelines import Exchange, Pipeline, Router, load_tools
    from heddle.results import CallReport, Failed, FailureKind, Returned, ToolResult
    from heddle.runner import Runner, Scope
    from heddle.sandbox.policy import Sandbox
    from heddle.tools.decorator import tool
    from heddle.tools.definition import (
        UNSET,
        FieldDef,
        Function,
        Notice,
        Program,
        Rule,
        ToolContext,
        ToolDef,
        Validation,
    )
    from heddle.tools.discovery import discover_tools
    from heddle.tools.registry import Registry
    from heddle.workspace import Mount, ScopeReport, Workspace

__all__ = [
    "DEFAULT_LIMITS",
    "HOST_CEILING",
    "UNSET",
    "CallReport",
    "DefinitionError",
    "Environment",
    "Exchange",
    "Failed",
    "FailureKind",
    "FieldDef",
    "Function",
    "HeddleError",
    "Journal",
    "JournalError",
    "Limits",
    "Mount",
    "Notice",
    "Pipeline",
    "Program",
    "Registry",
    "Returned",
    "RouteError",
    "Router",
    "Rule",
    "Runner",
    "RunnerClosed",
    "Sandbox",
    "SandboxUnavailable",
    "Scope",
    "ScopeReport",
    "StrictJsonError",
    "ToolContext",
    "ToolDef",
    "ToolError",
    "ToolFailed",
    "ToolResult",
    "Validation",
    "Workspace",
    "WrongLoop",
    "WrongProcess",
    "discover_tools",
    "load_tools",
    "tool",
]

_ROOMS = {
    "heddle.environment": ("Environment",),
    "heddle.errors": (
        "DefinitionError",
        "HeddleError",
        "JournalError",
        "RouteError",
        "RunnerClosed",
        "SandboxUnavailable",
        "StrictJsonError",
        "ToolError",
        "ToolFailed",
        "WrongLoop",
        "WrongProcess",
    ),
    "heddle.limits": ("DEFAULT_LIMITS", "HOST_CEILING", "Limits"),
    "heddle.operations": ("Journal",),
    "heddle.pipelines": ("Exchange", "Pipeline", "Router", "load_tools"),
    "heddle.results": ("CallReport", "Failed", "FailureKind", "Returned", "ToolResult"),
    "heddle.runner": ("Runner", "Scope"),
    "heddle.sandbox.policy": ("Sandbox",),
    "heddle.tools.decorator": ("tool",),
    "heddle.tools.definition": (
        "UNSET",
        "FieldDef",
        "Function",
        "Notice",
        "Program",
        "Rule",
        "ToolContext",
        "ToolDef",
        "Validation",
    ),
    "heddle.tools.discovery": ("discover_tools",),
    "heddle.tools.registry": ("Registry",),
    "heddle.workspace": ("Mount", "ScopeReport", "Workspace"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
# Rooms that are reached by their own names, without an import of theirs.
_DOORS = ("aio", "blocking", "testing")


if not TYPE_CHECKING:  # a checker knows the names above, and would take any other as well

    def __getattr__(name: str) -> Any:
        if name in _DOORS:
            return import_module(f"heddle.{name}")
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module 'heddle' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(room), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_DOORS})
