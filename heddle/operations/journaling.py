"""How a call goes with a journal: noted before it is made, before its tool starts, before its result is returned."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from heddle.errors import JournalError, SandboxUnavailable
from heddle.logs import logger
from heddle.operations.reconciling import reconciled
from heddle.operations.records import Asked, digest_of
from heddle.results import Failed, FailureKind
from heddle.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from heddle.operations.journal import Journal
    from heddle.operations.reconciling import Witness
    from heddle.results import ToolResult
    from heddle.walk import Call

__all__ = ["journaled"]


async def journaled(
    journal: Journal, call: Call, walk: Callable[[Call], Awaitable[ToolResult]], witness: Witness | None
) -> ToolResult:
    """Return what the journal knows of the operation of `call`, or what `walk` gives, once that is in the journal.

    Args:
        journal: The journal.
        call: The call.
        walk: Takes it from its arguments to its result.
        witness: Is asked what became of an earlier try, where that is not known.

    Raises:
        JournalError: It cannot be written. Nothing was started, unless the error has a `result`.
    """
    asked, answer = await in_thread(_claim, journal, call)
    is_unknown = isinstance(answer, Failed) and answer.kind is FailureKind.NEEDS_ATTENTION
    if is_unknown and witness is not None and await reconciled(journal, call.operation_id, witness):
        asked, answer = await in_thread(_claim, journal, call)
    if answer is not None:
        return answer

    try:
        try:
            result = await _walked(journal, call, asked, walk)
        except BaseException as error:
            await _abandon(journal, asked, error)
            raise
        return await _finish(journal, asked, result)
    finally:
        journal.forget(asked.attempt_id)


async def _walked(
    journal: Journal, call: Call, asked: Asked, walk: Callable[[Call], Awaitable[ToolResult]]
) -> ToolResult:
    """Return what `walk` gives; the start is in the journal before it happens."""
    fault: JournalError | None = None

    async def note_start() -> None:
        nonlocal fault
        try:
            await in_thread(journal.start, asked)
        except JournalError as error:
            fault = error  # a walk takes what is raised here for the failure of a Python tool
            raise

    call.before_start = note_start
    result = await walk(call)
    if fault is not None:
        raise fault
    return result


async def _abandon(journal: Journal, asked: Asked, error: BaseException) -> None:
    # Both are raised before anything is started.
    nothing_started = isinstance(error, (JournalError, SandboxUnavailable))
    note = partial(journal.abandon, asked, type(error).__name__, nothing_started=nothing_started)
    with trio.CancelScope(shield=True):
        try:
            await in_thread(note)
        except JournalError as fault:
            # What stays in flight in the file counts as lost, and a cancellation has to pass.
            logger.warning("the end of a call is not in the journal: %s", fault)


async def _finish(journal: Journal, asked: Asked, result: ToolResult) -> ToolResult:
    given = result
    try:
        with trio.CancelScope(shield=True):
            given = await in_thread(journal.finish, asked, result)
    except JournalError as error:
        error.result = result
        raise
    return given


def _claim(journal: Journal, call: Call) -> tuple[Asked, ToolResult | None]:
    tool = call.tool
    asked = Asked(
        operation_id=call.operation_id,
        attempt_id=call.attempt_id,
        tool=tool.name,
        revision=tool.revision,
        digest=digest_of(tool.name, tool.revision, call.arguments),
        side_effects=tool.side_effects,
        retry=tool.retry,
        is_gated=call.permit is not None,
    )
    return asked, journal.claim(asked)
