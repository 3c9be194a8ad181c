"""Intended effects and what became of them: the journal, and what it decides about a call that is made again."""

from heddle.operations.journal import Journal
from heddle.operations.records import Attempt, AttemptState, Operation, OperationState

__all__ = ["Attempt", "AttemptState", "Journal", "Operation", "OperationState"]
