"""Intended effects and what became of them: the journal, and what it decides about a call that is made again."""

from heddle.operations.journal import Journal
from heddle.operations.records import Attempt, AttemptState, Operation, OperationState
from heddle.operations.retrying import Backoff

__all__ = ["Attempt", "AttemptState", "Backoff", "Journal", "Operation", "OperationState"]
