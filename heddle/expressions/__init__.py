"""Expressions in Starlark: short texts that judge arguments and reshape messages, and can do nothing else.

A text is never read or evaluated in the host: reading one is enough to fill memory or to overflow a stack. It goes to a
small process that has no files, no network and no environment, and ends when its limits or its host do.
"""

from heddle.expressions.blocking import end_idle
from heddle.expressions.evaluator import Evaluator
from heddle.expressions.expression import Expression, Predicate, predicate
from heddle.expressions.values import ExpressionError, ExpressionFailed, ExpressionLimits, FailedBecause

__all__ = [
    "Evaluator",
    "Expression",
    "ExpressionError",
    "ExpressionFailed",
    "ExpressionLimits",
    "FailedBecause",
    "Predicate",
    "end_idle",
    "predicate",
]
