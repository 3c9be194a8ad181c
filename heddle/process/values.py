"""What crosses the process room: a `Command` in, an `Exit` out. Data only."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs

__all__ = ["ATTEMPT_VARIABLE", "Command", "Ending", "Exit"]

# Every process of a call carries its attempt's id here, so that it can be found again when all else is lost.
ATTEMPT_VARIABLE = "HEDDLE_ATTEMPT_ID"


@attrs.frozen(kw_only=True)
class Command:
    """One program to be run to its end.

    Attributes:
        argv: The file to start, an absolute path, and its arguments. Never a shell line.
        cwd: Where it is started.
        environment: All of its variables; nothing is inherited. Holds `ATTEMPT_VARIABLE`.
        network: What it asks for where that is less than its session has: ``none``.
    """

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str] = attrs.field(hash=False)
    network: Literal["none"] | None = None

    @property
    def attempt_id(self) -> str:
        """The attempt that this command belongs to; empty when it carries none."""
        return self.environment.get(ATTEMPT_VARIABLE, "")


class Ending(enum.Enum):
    """How a command came to its end."""

    BY_ITSELF = "by itself"
    DEADLINE = "at its deadline"
    STDOUT_FULL = "because it wrote too much"
    SUPERVISOR_LOST = "because what watched over it was killed or stopped"
    NOT_STARTED = "before it was started"


@attrs.frozen(kw_only=True)
class Exit:
    """How one command ended. Everything that it started is gone, except for what `survivors` names.

    Attributes:
        status: Its exit status, when it ended by itself.
        signal: The name of the signal that ended it.
        stdout: At most `Limits.stdout_bytes`.
        stderr: The tail, at most `Limits.stderr_bytes`.
        truncated: The streams of which a part was dropped.
        error_number: The errno of a start that failed (`Ending.NOT_STARTED`); 0 otherwise.
        error: What failed then, in words.
        waited_s: Seconds before the start: for a session to be opened, a keeper to be made.
        duration_s: Seconds from the start to the end of the last process.
        left_behind: Processes that were alive when the tool itself had ended, and were ended then.
        survivors: Processes that could not be ended.
    """

    ending: Ending = Ending.BY_ITSELF
    status: int | None = None
    signal: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: frozenset[str] = frozenset()
    error_number: int = 0
    error: str = ""
    started_at: datetime.datetime | None = None
    waited_s: float = 0.0
    duration_s: float = 0.0
    left_behind: int = 0
    survivors: tuple[int, ...] = ()
