"""What one call may use before heddle stops it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT_LIMITS", "HOST_CEILING", "PROCESS_LIMITS", "Limits"]

KIB = 1024
MIB = 1024 * KIB

# What only the kernel can hold, and only for a process: a Python function cannot be given these.
PROCESS_LIMITS = ("cpu_seconds", "memory_bytes", "processes", "open_files", "file_bytes")


def _positive(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    wanted = "a number" if attribute.name.endswith("_seconds") else "a whole number"
    if isinstance(value, bool) or not isinstance(value, (int, float) if wanted == "a number" else int):
        raise TypeError(f"{attribute.name} takes {wanted} or None, not {value!r}")
    if math.isnan(value) or value <= 0:
        raise ValueError(f"{attribute.name} must be greater than 0, not {value!r}")


def _limit() -> Any:
    return attrs.field(default=None, validator=_positive)


@attrs.frozen(kw_only=True)
class Limits:
    """Ceilings for one call. ``None`` says nothing; whoever stands behind decides.

    Field by field a call takes what it was given, else what the tool declares, else the runner's, and is then
    cut by the runner's ceiling. What a call gives can only tighten.

    Attributes:
        wall_seconds: Real time from the start of the tool to its end. ``math.inf`` means no end, as far as the
            ceiling lets it.
        stdin_bytes: The request, encoded. Over it nothing is started: ``too_large``.
        stdout_bytes: Standard output, counted before it is decoded. Over it the tool is stopped: ``too_large``.
        stderr_bytes: How much of standard error is kept. Over it the tool goes on and only the tail stays.
        cpu_seconds: Processor time of any one process, in whole seconds (a fraction counts as one more).
            Source: ``RLIMIT_CPU``, setrlimit(2).
        memory_bytes: Private memory of any one process: heap, stack and anonymous mappings, not shared ones.
            Source: ``RLIMIT_DATA``, setrlimit(2).
        processes: Processes and threads alive at once. Only a sandbox can hold it: outside one the kernel counts
            a user's processes, not a call's, and does not count root's at all.
        open_files: One more than the highest file descriptor. Source: ``RLIMIT_NOFILE``, setrlimit(2).
        file_bytes: The largest file that a process may write. Source: ``RLIMIT_FSIZE``, setrlimit(2).
    """

    wall_seconds: float | None = attrs.field(default=None, validator=_positive)
    stdin_bytes: int | None = _limit()
    stdout_bytes: int | None = _limit()
    stderr_bytes: int | None = _limit()
    cpu_seconds: float | None = attrs.field(default=None, validator=_positive)
    memory_bytes: int | None = _limit()
    processes: int | None = _limit()
    open_files: int | None = _limit()
    file_bytes: int | None = _limit()

    def tightened_by(self, other: Limits) -> Limits:
        """Return the smaller of each limit, so that nesting can only narrow."""
        return Limits(**{name: _smaller(mine, getattr(other, name)) for name, mine in self.items()})

    def or_else(self, other: Limits) -> Limits:
        """Return these limits, and `other`'s where these say nothing."""
        return Limits(**{name: getattr(other, name) if mine is None else mine for name, mine in self.items()})

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield each limit's name and value in the order in which they are declared."""
        for name in FIELD_NAMES:
            yield name, getattr(self, name)


FIELD_NAMES = tuple(field.name for field in attrs.fields(Limits))


def _smaller(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


# 30 s: longer than most tools need, shorter than a model's own timeout.
# 64 KiB of stderr: a long traceback fits, a flood does not.
DEFAULT_LIMITS = Limits(wall_seconds=30, stdin_bytes=MIB, stdout_bytes=MIB, stderr_bytes=64 * KIB)
# 300 s and 1 MiB a stream: what one call may take of a host that many share.
HOST_CEILING = Limits(wall_seconds=300, stdin_bytes=MIB, stdout_bytes=MIB, stderr_bytes=MIB)
