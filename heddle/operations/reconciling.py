"""What became of an operation, asked of the tool that can tell.

A tool may name another that only reads (`ToolDef.reconcile`). That one is given ``{"operationId": …}``, and its answer
settles what nobody has seen the end of: ``{"outcome": "happened", "data": …}``, where the data is what the tool would
have returned, ``{"outcome": "did_not_happen"}``, or ``{"outcome": "unknown"}``. Whatever else it says is no answer.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import trio

from heddle.logs import logger
from heddle.operations.records import OperationState
from heddle.results import Failed, ToolResult
from heddle.threads import in_thread
from heddle.tools.checking import CompiledTool

if TYPE_CHECKING:
    from heddle.operations.journal import Journal
    from heddle.operations.records import Operation
    from heddle.strictjson import JSON

__all__ = ["Witness", "reconciled"]

# 2 s: a tool ends within one of them after its host was killed, and may bring its effect about until then.
DYING_SECONDS = 2.0

Outcome: TypeAlias = Literal["happened", "did_not_happen"]


@attrs.frozen
class Witness:
    """Who can tell what became of the operations of a tool.

    Attributes:
        name: Of the tool that is asked.
        asked_for: The tool whose operations they are.
        ask: Calls it with an operation's id. It may raise what calls raise.
    """

    name: str
    asked_for: CompiledTool
    ask: Callable[[str], Awaitable[ToolResult]]


async def reconciled(journal: Journal, operation_id: str, witness: Witness) -> Outcome | None:
    """Return what the witness says has become of an operation that needs attention, once that is in the journal.

    None leaves it as it is: the witness does not know, or somebody was faster.
    """
    operation = await in_thread(journal.operation, operation_id)
    if operation is None or operation.state is not OperationState.NEEDS_ATTENTION:
        return None
    await _outlive(operation)
    answer = await in_thread(_answer, witness, await witness.ask(operation_id))
    if answer is None:
        return None
    outcome, data = answer
    # Only if nobody has tried it again meanwhile: what is said is said of the tries until now.
    settle = partial(journal.settle, operation, outcome, data=data, note=f"{witness.name} says so")
    return outcome if await in_thread(settle) else None


async def _outlive(operation: Operation) -> None:
    """Wait until what a lost host had started is gone; when exactly that host ended nobody knows."""
    last = operation.attempts[-1]
    if last.kind == "host_lost" and last.ended_at is not None:
        since = (datetime.datetime.now(datetime.UTC) - last.ended_at).total_seconds()
        await trio.sleep(min(max(DYING_SECONDS - since, 0.0), DYING_SECONDS))


def _answer(witness: Witness, result: ToolResult) -> tuple[Outcome, JSON] | None:
    if isinstance(result, Failed):
        _warn(witness, f"it failed ({result.kind}): {result.message}")
        return None
    said = result.data
    outcome = said.get("outcome") if isinstance(said, dict) else None
    if outcome == "did_not_happen":
        return "did_not_happen", None
    if outcome == "happened" and isinstance(said, dict):
        data = said.get("data")
        violations = witness.asked_for.check_output(data)
        if not violations:
            return "happened", data
        _warn(witness, f"that it happened, with data which is not what that tool returns: {violations[0]}")
    elif outcome != "unknown":
        _warn(witness, "what is no answer")
    return None


def _warn(witness: Witness, why: str) -> None:
    logger.warning(
        "%s was asked what became of a call of %s, and says: %s", witness.name, witness.asked_for.tool.name, why
    )
