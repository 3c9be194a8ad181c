"""How a workspace is laid out for what will confine the tools in it. The sandbox decides; here it is only done."""

from __future__ import annotations

from typing import Literal

import attrs

__all__ = ["AS_COPIES", "Layout"]


@attrs.frozen(kw_only=True)
class Layout:
    """How what is read-only comes into a workspace, and whose the files are.

    Attributes:
        read_only: ``copied`` puts copies into it. ``bound`` leaves a place at which the sandbox puts what lies
            elsewhere. ``linked`` puts links to what lies elsewhere, the folder of tools among it: for a sandbox that
            cannot hold a folder inside of another one that tools may write.
        owner: User and group that everything is given to; None leaves it the host's.
    """

    read_only: Literal["copied", "bound", "linked"] = "copied"
    owner: tuple[int, int] | None = None


AS_COPIES = Layout()
