"""Whether a call may bring its effect about: its host is asked, once the arguments are known to be right.

Nothing is started before the answer, and no slot is taken. With a journal the question outlives the host: whoever
decides it later, the next call of the operation finds the answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from heddle.errors import JournalError
from heddle.logs import logger
from heddle.results import Failed, FailureKind
from heddle.strictjson import JSON
from heddle.threads import in_thread
from heddle.tools.definition import ToolDef

if TYPE_CHECKING:
    from heddle.operations.journal import Journal
    from heddle.operations.records import Approval
    from heddle.walk import Call

__all__ = ["ApprovalRequest", "Approver", "Decision", "awaiting", "permit", "refused"]

# 0.5 s: whoever approves on another terminal sees the call go on at once.
LOOK_SECONDS = 0.5
# 16,384 characters of what a call asks for are kept: more than anybody reads before a decision.
SHOWN_CHARS = 16_384


@attrs.frozen(kw_only=True)
class ApprovalRequest:
    """What somebody is to approve: this call of this tool, as it would be made.

    Attributes:
        tool: What would be called.
        arguments: What it would be given. They are exact, and may hold what is nobody's business.
        shown: The same for people: JSON, without what is known to be secret, cut where it is too long to be read.
        operation_id: The intended effect.
        attempt_id: The try that waits.
    """

    tool: ToolDef
    arguments: Mapping[str, JSON] = attrs.field(repr=False, hash=False)
    shown: str
    operation_id: str
    attempt_id: str


@attrs.frozen
class Decision:
    """What somebody has decided, with what is to be known of it later.

    Attributes:
        approved: Whether the call may be made, once.
        by: Who has decided.
        note: Why.
    """

    approved: bool
    by: str = ""
    note: str = ""


Answer: TypeAlias = Decision | bool | None
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Answer] | Answer]
Ask: TypeAlias = Callable[[ApprovalRequest], Awaitable[object]]


async def permit(call: Call, arguments: dict[str, JSON], ask: Ask, journal: Journal | None) -> Failed | None:
    """Return why a call may not be made; None when it may. What the host raises when it is asked comes through."""
    request = ApprovalRequest(
        tool=call.tool,
        arguments=arguments,
        shown=await in_thread(_shown, call, arguments),
        operation_id=call.operation_id,
        attempt_id=call.attempt_id,
    )
    if journal is None:
        decision = _decision(await ask(request))
        if decision is None:
            return refused(call.tool.name, "", "nobody has decided, and without a journal nobody can later")
        return None if decision.approved else refused(call.tool.name, decision.by, decision.note)
    approval = await in_thread(journal.ask, call.operation_id, request.shown)
    if approval.approved is None:
        approval = await _decided(ask, request, journal)
    if approval.approved is None:
        return awaiting(call.tool.name, call.operation_id)
    return None if approval.approved else refused(call.tool.name, approval.by, approval.note)


def refused(tool: str, by: str, note: str) -> Failed:
    """Return the failure of a call that was not approved."""
    who = f"{by} did not approve it" if by else "it was not approved"
    return Failed(
        FailureKind.DENIED, f'tool "{tool}" was not called: {who}{f" ({note})" if note else ""}.', code="approval"
    )


def awaiting(tool: str, operation_id: str) -> Failed:
    """Return the failure of a call whose approval nobody has decided yet."""
    return Failed(
        FailureKind.IN_PROGRESS,
        f'tool "{tool}" was not called: operation {operation_id!r} awaits approval. Somebody has to decide, with '
        "`heddle operations approve` or Journal.decide; then call it again with the same operation id and arguments.",
        code="awaiting_approval",
    )


async def _decided(ask: Ask, request: ApprovalRequest, journal: Journal) -> Approval:
    """Ask the host, and look into the journal meanwhile; whichever decides first."""
    answer: object = None
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch, journal, request.operation_id, nursery.cancel_scope.cancel)
        try:
            answer = await ask(request)
        except Exception as raised:  # noqa: BLE001 - raised again, and not in a group
            error = raised
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    decision = _decision(answer)
    return await in_thread(journal.settle_approval, request.operation_id, decision)


async def _watch(journal: Journal, operation_id: str, on_decision: Callable[[], object]) -> None:
    while True:
        await trio.sleep(LOOK_SECONDS)
        try:
            approval = await in_thread(journal.approval, operation_id)
        except JournalError as error:
            logger.warning("the journal cannot be looked into: %s", error)
        else:
            if approval is not None and approval.approved is not None:
                on_decision()
                return


def _decision(answer: object) -> Decision | None:
    """Return what a host has answered. What is no answer is a fault of its own, and approves nothing."""
    if answer is None or isinstance(answer, Decision):
        return answer
    if isinstance(answer, bool):
        return Decision(answer)
    raise TypeError(f"approve= has to answer True, False, None or a heddle.operations.Decision, not {answer!r:.60}")


def _shown(call: Call, arguments: dict[str, JSON]) -> str:
    text = json.dumps(call.redactor.arguments(arguments, call.tool.input_schema), ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} … [{len(text) - SHOWN_CHARS} more characters]"
