"""`Exchange`: what goes along a route, and how a body becomes the arguments of a tool."""

from __future__ import annotations

from typing import Any, cast

import attrs

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.strictjson import JSON
from heddle.tools.jsontypes import copied, is_mapping

__all__ = ["Exchange", "arguments_from", "normalized_headers"]

_BOM = "\ufeff"


@attrs.define
class Exchange:
    """What goes along a route. Each step changes it.

    Attributes:
        body: A JSON value: the arguments at first, and in the end the result.
        headers: What is said about the body, by name.
        properties: What belongs to this exchange and to no message: scripts keep here what they want to know later.
    """

    body: JSON = None
    headers: dict[str, JSON] = attrs.field(factory=dict[str, "JSON"])
    properties: dict[str, Any] = attrs.field(factory=dict[str, Any])


def normalized_headers(headers: object) -> dict[str, JSON]:
    """Return headers as plain values of JSON; nothing of them is shared.

    Raises:
        StrictJsonError: JSON cannot say them, or they are no mapping.
    """
    if not is_mapping(headers):
        raise StrictJsonError(f"headers of type {type(headers).__name__}, which is no mapping")
    return cast("dict[str, JSON]", strictjson.normalized(headers))


def arguments_from(body: object) -> dict[str, JSON]:
    """Return a body as the arguments of a tool; nothing of it is shared.

    A mapping is taken as it is. Text and bytes are read as strict JSON; where that gives no object they become
    ``{"input": text}``, as does any other value. None is the empty object.

    Raises:
        StrictJsonError: JSON cannot say it.
    """
    if body is None:
        return {}
    if is_mapping(body):
        return cast("dict[str, JSON]", strictjson.normalized(body))
    if isinstance(body, (bytes, bytearray)):
        body = bytes(body).decode("utf-8", "replace")
    if not isinstance(body, str):
        return {"input": copied(strictjson.normalized(body))}
    try:
        value = strictjson.loads(body.removeprefix(_BOM))
    except StrictJsonError:
        value = None
    return value if isinstance(value, dict) else {"input": strictjson.normalized(body)}
