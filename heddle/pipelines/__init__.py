"""Pipelines and routes: tools that are a few steps, and the addresses under which they are called.

The walk of their calls is that of every tool: arguments are judged, and limits, the sandbox and the journal apply to
whatever the steps call.
"""

from heddle.pipelines.documents import AgentDef, load_tools
from heddle.pipelines.exchange import Exchange
from heddle.pipelines.pipeline import Pipeline
from heddle.pipelines.router import Router
from heddle.pipelines.running import Headers
from heddle.pipelines.steps import Choice, Script, SetBody, SetHeader, Step, Target, Transform, When

__all__ = [
    "AgentDef",
    "Choice",
    "Exchange",
    "Headers",
    "Pipeline",
    "Router",
    "Script",
    "SetBody",
    "SetHeader",
    "Step",
    "Target",
    "Transform",
    "When",
    "load_tools",
]
