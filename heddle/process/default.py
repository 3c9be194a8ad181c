"""The launcher that a runner has when it is given none and confines nothing."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from heddle.process.ports import Launcher

__all__ = ["default_launcher"]


def default_launcher() -> AbstractAsyncContextManager[Launcher]:
    """Return heddle's own launcher for this system, for the time of an ``async with`` block.

    For launchers that do something around another one: record what it is asked, or choose where a command runs. It
    confines nothing, and refuses a policy with `heddle.SandboxUnavailable`.
    """
    if sys.platform == "linux":
        from heddle.process.supervised import SupervisedLauncher

        return SupervisedLauncher()
    from heddle.process.direct import DirectLauncher

    return nullcontext(DirectLauncher())
