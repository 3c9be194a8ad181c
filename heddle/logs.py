"""The library's logger, ``heddle``. It says nothing where the host has not asked: it has a handler that does nothing.

Records about a call have fields of their own, for handlers that write structured logs: ``tool``, ``operation_id``,
``attempt_id``, and at its end ``outcome`` (``returned``, the failure's kind or ``raised``), ``code`` (the failure's,
or the class of the exception), ``waited_s``, ``duration_s`` and ``tier``. None of these holds arguments, results or
output.
"""

from __future__ import annotations

import logging

__all__ = ["logger"]

logger: logging.Logger = logging.getLogger("heddle")
logger.addHandler(logging.NullHandler())
