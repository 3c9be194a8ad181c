"""What a tool may read, write and reach, and what holds it to that.

policy       `Sandbox`, the host's policy; what a scope asks of a tier. Data
trials       what can confine calls on this machine, found by trying
hints        why bubblewrap does not work somewhere, and what to do
choice       the tier for one policy: the strongest that works and holds it
tiers        one way of confining, with all that it needs to know
bubblewrap   its command lines: containers made ahead by one supervisor inside, or one container a call
landlock     what Landlock holds on this kernel, and policies for it
seccomp      the filter of system calls that every tier puts on its tools
container    what is done inside of bubblewrap, by the supervisor's own program
seatbelt     profiles for macOS
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heddle.sandbox.policy import Sandbox
    from heddle.sandbox.trials import Findings, Trial, probe

__all__ = ["Findings", "Sandbox", "Trial", "probe"]

_ROOM_OF = {"Findings": "trials", "Sandbox": "policy", "Trial": "trials", "probe": "trials"}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'heddle.sandbox' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"heddle.sandbox.{_ROOM_OF[name]}"), name)
    return value
