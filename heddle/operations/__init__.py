"""Intended effects and what became of them: the journal, and what it decides about a call that is made again."""

from heddle.operations.journal import Journal
from heddle.operations.permission import ApprovalRequest, Approver, Decision
from heddle.operations.records import Approval, Attempt, AttemptState, Operation, OperationState
from heddle.operations.retrying import Backoff
from heddle.operations.terminal import ask_on_terminal

__all__ = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "Attempt",
    "AttemptState",
    "Backoff",
    "Decision",
    "Journal",
    "Operation",
    "OperationState",
    "ask_on_terminal",
]
