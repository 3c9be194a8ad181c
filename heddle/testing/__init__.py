"""For tests: of programs that use heddle, of tools, and of runners that somebody else has written.

    scripted    `ScriptedLauncher` answers calls with what was prepared, and starts nothing
    exits       the ends of programs that are met most: printed, crashed, timed_out, not_started
    checks      `check_launcher` and `check_backend` find the promises that a runner of one's own does not keep
    tools       `make_tool` writes a tool into a folder
    fixtures    `RunTool` is what the fixture ``run_tool`` of the pytest plugin gives

Importing this package loads nothing: each name below is resolved when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.testing import exits
    from heddle.testing.checks import Broken, Conformance, ConformanceError, check_backend, check_launcher
    from heddle.testing.fixtures import RunTool
    from heddle.testing.scripted import Answer, Asked, ScriptedLauncher, UnexpectedCall
    from heddle.testing.tools import make_tool

__all__ = [
    "Answer",
    "Asked",
    "Broken",
    "Conformance",
    "ConformanceError",
    "RunTool",
    "ScriptedLauncher",
    "UnexpectedCall",
    "check_backend",
    "check_launcher",
    "exits",
    "make_tool",
]

_ROOMS = {
    "checks": ("Broken", "Conformance", "ConformanceError", "check_backend", "check_launcher"),
    "fixtures": ("RunTool",),
    "scripted": ("Answer", "Asked", "ScriptedLauncher", "UnexpectedCall"),
    "tools": ("make_tool",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


if not TYPE_CHECKING:  # a checker knows the names above, and would take any other as well

    def __getattr__(name: str) -> Any:
        if name == "exits":
            return import_module("heddle.testing.exits")
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module 'heddle.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"heddle.testing.{room}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
