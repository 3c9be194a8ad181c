"""Tools as model providers and protocols take them: what a model is told, and the way back from what it says.

`heddle.Registry` makes exports: ``to_openai``, ``to_anthropic``, ``to_mcp``, ``to_agentspec``. Its ``lint`` says what
would be refused.
"""

from __future__ import annotations

from heddle.tools.exports.export import Export
from heddle.tools.exports.lint import LintFinding, Provider

__all__ = ["Export", "LintFinding", "Provider"]
