"""What a protocol is given and gives back."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from heddle.limits import Limits
from heddle.redaction import Redactor
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
        redactor: Gives what masks secrets in what a message quotes, before that is shortened.
    """

    tool: str
    arguments: dict[str, JSON]
    tool_id: str
    revision: str
    action: str
    operation_id: str
    attempt_id: str
    limits: Limits
    redactor: Callable[[], Redactor] = attrs.field(default=Redactor, eq=False, repr=False)


@attrs.frozen
class Reply:
    """What a program answered."""

    data: JSON
