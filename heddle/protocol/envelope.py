"""The envelope protocol: a request that says who is called and which attempt it is, an answer that says ok or not.

{"protocolVersion": 1, "toolId", "toolRevision", "action", "input", "operationId", "attemptId"}
{"ok": true, "data": …}    or    {"ok": false, "error": {"code", "message", "exitCode"?, "signal"?}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle import strictjson
from heddle.protocol.exits import failure_of, invalid_output, parsed
from heddle.protocol.values import Reply
from heddle.results import Failed, FailureKind

if TYPE_CHECKING:
    from heddle.process.values import Exit
    from heddle.protocol.values import Request
    from heddle.strictjson import JSON

__all__ = ["PROTOCOL_VERSION", "decode", "encode"]

PROTOCOL_VERSION = 1


def encode(request: Request) -> bytes:
    """Return the request as one JSON document, without a newline."""
    return strictjson.encoded(
        {
            "protocolVersion": PROTOCOL_VERSION,
            "toolId": request.tool_id,
            "toolRevision": request.revision,
            "action": request.action,
            "input": request.arguments,
            "operationId": request.operation_id,
            "attemptId": request.attempt_id,
        }
    )


def decode(exit: Exit, request: Request) -> Reply | Failed:  # noqa: A002 - the word of the walk
    """Return ``data`` of an envelope that says ok, or the failure that it reports, or why it is no envelope."""
    failure = failure_of(exit, request)
    if failure is not None:
        return failure
    value = parsed(exit, request)
    if isinstance(value, Failed):
        return value
    fault = _fault(value)
    if fault is not None or not isinstance(value, dict):
        return invalid_output(exit, request, fault or "")
    if value["ok"] is True:
        return Reply(value["data"])
    return _reported(value["error"], request)


def _fault(value: JSON) -> str | None:
    """Return what makes `value` no envelope."""
    if not isinstance(value, dict):
        return f"it printed {strictjson.kind_of(value)}, where an envelope was expected"
    match value.get("ok"):
        case True:
            return _keys_fault("the envelope", value, {"ok", "data"}, set())
        case False:
            return _keys_fault("the envelope", value, {"ok", "error"}, set()) or _error_fault(value["error"])
        case _:
            return 'an envelope has "ok", which is true or false'


def _error_fault(error: JSON) -> str | None:
    if not isinstance(error, dict):
        return f'"error" is {strictjson.kind_of(error)}, not an object'
    fault = _keys_fault('"error"', error, {"code", "message"}, {"exitCode", "signal"})
    if fault is not None:
        return fault
    for key in ("code", "message"):
        if not isinstance(error[key], str) or not error[key]:
            return f'"error.{key}" must be a text that is not empty'
    exit_code, signal = error.get("exitCode"), error.get("signal")
    if exit_code is not None and (isinstance(exit_code, bool) or not isinstance(exit_code, int)):
        return '"error.exitCode" must be a whole number or null'
    if signal is not None and not isinstance(signal, str):
        return '"error.signal" must be a text or null'
    return None


def _keys_fault(what: str, value: dict[str, JSON], required: set[str], optional: set[str]) -> str | None:
    missing = sorted(required - value.keys())
    extra = sorted(value.keys() - required - optional)
    if missing:
        return f'{what} lacks "{missing[0]}"'
    if extra:
        return f'{what} has "{extra[0][:40]}", which does not belong there'
    return None


def _reported(error: JSON, request: Request) -> Failed:
    assert isinstance(error, dict)  # noqa: S101 - checked by _error_fault
    code, message = str(error["code"]), str(error["message"])
    details: dict[str, JSON] = {key: error[key] for key in ("exitCode", "signal") if key in error}
    return Failed(
        FailureKind.TOOL_ERROR, f'tool "{request.tool}" reports {code}: {message}', code=code, details=details
    )
