"""Every exception of heddle, on one page.

What the model, the flow or the next step can act on is a `Failed` value. These are for whoever wrote or
operates the host: each says what was seen and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.results import Failed, ToolResult
    from heddle.strictjson import JSON

__all__ = [
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
]


class HeddleError(Exception):
    """The base of everything that heddle raises on purpose."""


class DefinitionError(HeddleError):
    """A tool, a schema or a catalogue is wrong as it is written. Nothing was registered or started."""


class StrictJsonError(HeddleError, ValueError):
    """Text or a value is not strict JSON.

    Attributes:
        what: What was seen, as a clause: ``duplicate key "ok"``.
        where: A byte offset (``byte 12``) or a path (``$.items[2]``); empty where neither says more.
    """

    def __init__(self, what: str, where: str = "") -> None:
        self.what = what
        self.where = where
        super().__init__(f"{what} at {where}" if where else what)


class SandboxUnavailable(HeddleError):
    """What was asked for cannot be enforced here, so nothing was run.

    Attributes:
        what: The confinement or the limit that was asked for.
        reason: Why it cannot be had, and what to do instead.
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"{what}: {reason}")


class JournalError(HeddleError):
    """A journal cannot be used, or what it was asked for does not fit what it holds.

    Attributes:
        result: What a tool gave whose end could not be noted: it is known here, and nowhere else. None otherwise.
    """

    def __init__(self, message: str, result: ToolResult | None = None) -> None:
        self.result = result
        super().__init__(message)


class RunnerClosed(HeddleError):
    """A runner or a scope was used outside its ``async with`` block. Nothing was started."""


class WrongLoop(HeddleError):
    """A runner was used where its event loop does not run: in another loop, or in none. Nothing was started."""


class WrongProcess(HeddleError):
    """A runner or a journal was used in a child of the process that opened it. Nothing was started.

    Attributes:
        opened_in: The process that opened the runner.
        used_in: The process that tried to use it.
    """

    def __init__(self, opened_in: int, used_in: int, what: str = "runner") -> None:
        self.opened_in = opened_in
        self.used_in = used_in
        super().__init__(
            f"this {what} was opened in process {opened_in} and cannot be used in its child {used_in}: "
            f"open a {what} after the fork"
        )


class RouteError(HeddleError):
    """What was sent along a route did not arrive: a tool or a step has failed.

    Attributes:
        failed: The `Failed` that says everything.
        headers: Those of the exchange when it failed: they name the tool that was called last.
    """

    def __init__(self, failed: Failed, headers: Mapping[str, JSON]) -> None:
        self.failed = failed
        self.headers = headers
        super().__init__(failed.message)


class ToolFailed(HeddleError):
    """A call failed and its result was unwrapped.

    Attributes:
        result: The `Failed` that says everything.
    """

    def __init__(self, result: Failed) -> None:
        self.result = result
        super().__init__(result.message)


class ToolError(Exception):
    """Raise it in a Python tool to report a failure that the tool has handled: `Failed(tool_error, code=…)`.

    It is no `HeddleError`: it belongs to the tool.
    """

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")
