"""The host's ``environment.env``: variables for tools whose values are looked up elsewhere, and not in it.

Nothing that stands to the right of an ``=``, and nothing that was looked up, gets into a message, a record or a `repr`.
"""

from __future__ import annotations

from heddle.references.faults import Fault, FaultCode, Unresolved
from heddle.references.grammar import ALWAYS
from heddle.references.resolving import Source, source_for

__all__ = ["ALWAYS", "Fault", "FaultCode", "Source", "Unresolved", "source_for"]
