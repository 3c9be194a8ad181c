"""`Pipeline`: a tool that is a few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from heddle.pipelines.exchange import Exchange
from heddle.pipelines.running import HEADERS, Headers, Run, Stopped
from heddle.pipelines.steps import Routes, Step, targets_of
from heddle.tools.definition import Composed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.results import Failed
    from heddle.strictjson import JSON
    from heddle.tools.definition import Visit

__all__ = ["Pipeline", "reached_by"]


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(steps)


@attrs.frozen
class Pipeline(Composed):
    """The implementation of a tool that is a few steps.

    It works on an exchange of its own: the body is the arguments at first, there are no headers and no properties, and
    what it gives back is the body. What it returns is published, and not enforced.

    Attributes:
        steps: Taken one after another; the first that fails ends it, and the call.
        routes: Where ``direct://NAME`` leads.
        headers: How the headers are called that say which tool was called last.
    """

    steps: tuple[Step, ...] = attrs.field(converter=_steps)
    routes: Routes = attrs.field(factory=dict[str, tuple[Step, ...]], hash=False, repr=False)
    headers: Headers = HEADERS

    @property
    def targets(self) -> frozenset[str]:
        """The names of the tools that its steps may call, along whatever routes."""
        return frozenset(reached_by(self.steps, self.routes))

    async def run(self, tool: str, body: JSON, visit: Visit) -> JSON | Failed:
        """Return the body at the end of the steps, or why there is none."""
        exchange = Exchange(body)
        try:
            await Run(visit, f'tool "{tool}"', self.routes, self.headers).take(self.steps, exchange)
        except Stopped as stopped:
            return stopped.failure
        return exchange.body


def reached_by(steps: Iterable[Step], routes: Routes) -> set[str]:
    """Return the names of the tools that steps may call, those along routes among them."""
    found: set[str] = set()
    seen: set[str] = set()
    left = list(targets_of(steps))
    while left:
        uri = left.pop()
        if uri.scheme == "tool":
            found.add(uri.name)
        elif uri.name not in seen:
            seen.add(uri.name)
            left += targets_of(routes.get(uri.name, ()))
    return found
