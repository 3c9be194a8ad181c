"""What a protocol is given and gives back."""

from __future__ import annotations

import attrs

from heddle.limits import Limits
from heddle.strictjson import JSON

__all__ = ["Reply", "Request"]


@attrs.frozen(kw_only=True)
class Request:
    """One call of a program, checked and ready to be encoded.

    Attributes:
        tool: The name that was called.
        arguments: Checked; defaults are filled in.
        tool_id: Who the envelope says is called.
        revision: Of the tool.
        action: What the envelope asks for.
        limits: What the call may use, for messages.
    """

    tool: str
    arguments: dict[str, JSON]
    tool_id: str
    revision: str
    action: str
    operation_id: str
    attempt_id: str
    limits: Limits


@attrs.frozen
class Reply:
    """What a program answered."""

    data: JSON
