"""`Router`: routes by name, and the runner that their tools are called by."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from heddle import strictjson
from heddle.errors import RouteError, RunnerClosed, StrictJsonError
from heddle.expressions import Evaluator
from heddle.ids import fresh_id, part_of
from heddle.pipelines.documents import AgentDef, Handler, load_routes
from heddle.pipelines.exchange import Exchange, normalized_headers
from heddle.pipelines.running import HEADERS, Headers, Run, Stopped
from heddle.pipelines.uris import address_of
from heddle.results import Failed, FailureKind, ToolResult, verdict
from heddle.runner import Runner
from heddle.tools.registry import Registry
from heddle.walk import failure_of_raised

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Self

    from heddle.expressions import Expression
    from heddle.pipelines.steps import Routes, Step
    from heddle.pipelines.uris import Address
    from heddle.results import Verdict
    from heddle.strictjson import JSON

__all__ = ["Router"]

T = TypeVar("T")


class Router:
    """Sends bodies to tools and along routes. Use it as ``async with Router.load(path) as router:``.

    Args:
        registry: The tools.
        routes: The steps of each ``direct://`` route, by name.
        runner: Calls the tools. It has to be open, stays the host's to close, and has `registry`, or one with the same
            names. None: the router opens one of its own.
        headers: How the headers are called that say which tool was called.
        agents: What a document says of agents.
        options: What the router's own runner takes: ``sandbox=``, ``journal=``, ``limits=``; see `heddle.Runner`.
    """

    def __init__(
        self,
        registry: Registry,
        routes: Mapping[str, tuple[Step, ...]] | None = None,
        *,
        runner: Runner | None = None,
        headers: Headers = HEADERS,
        agents: tuple[AgentDef, ...] = (),
        **options: Any,
    ) -> None:
        if runner is not None and options:
            raise TypeError(f"give a runner or its options: {', '.join(options)}")
        self.registry: Registry = registry
        self.routes: Routes = dict(routes or {})
        self.headers: Headers = headers
        self.agents: tuple[AgentDef, ...] = agents
        self._runner = Runner(registry, **options) if runner is None else runner
        self._is_own = runner is None
        self._evaluator: Evaluator | None = None
        self._stack: AsyncExitStack | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        tools: Registry | None = None,
        handlers: Mapping[str, Handler] | None = None,
        runner: Runner | None = None,
        headers: Headers = HEADERS,
        **options: Any,
    ) -> Self:
        """Return a router for all that a route document describes.

        Args:
            path: The document.
            tools: What its steps may call beside its own tools.
            handlers: Python functions that are routes, by name.
            runner: Calls the tools; None: one of its own.
            headers: How the headers are called that say which tool was called.
            options: What its own runner takes.

        Raises:
            BrokenDocument: Everything that is wrong with the document, each with its line and column.
        """
        found = load_routes(path, tools=tools, handlers=handlers, headers=headers)
        return cls(found.tools, found.routes, runner=runner, headers=headers, agents=found.agents, **options)

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise RunnerClosed("this router is open already: open another one, or share this one")
        async with AsyncExitStack() as stack:
            if self._is_own:
                await stack.enter_async_context(self._runner)
            self._evaluator = await stack.enter_async_context(Evaluator())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def send(
        self,
        uri: str,
        body: object = None,
        *,
        headers: Mapping[str, object] | None = None,
        operation_id: str | None = None,
    ) -> Exchange:
        """Send a body to a tool or along a route, and return what comes out at its end.

        What is given stays as it is.

        Args:
            uri: ``tool://NAME`` or ``direct://NAME``.
            body: For a tool its arguments: a mapping, or text or bytes that hold a JSON object; any other value is
                given as ``{"input": …}``.
            headers: What the steps of a route find in ``headers``. A tool does not see them.
            operation_id: The effect that is intended, where there is a journal; ours otherwise.

        Raises:
            RouteError: A tool or a step has failed; `RouteError.failed` is how, and whether anything has started.
            DefinitionError: The URI leads nowhere.
            RunnerClosed: The router is not open.
        """
        if self._evaluator is None or self._stack is None:
            raise RunnerClosed("this router is not open: use it inside its `async with` block")
        address = address_of(uri)
        exchange = _exchange_of(body, headers, address)
        visit = _Sent(self._runner.call, self.registry, self._evaluator, str(address), operation_id or fresh_id())
        run = Run(visit, str(address), self.routes, self.headers)
        try:
            if address.scheme == "tool":
                await run.send(address.name, exchange, "")
            else:
                async with self._runner.scope(address.name) as scope:
                    visit.have_called = scope.call
                    await run.follow(address.name, exchange)
        except Stopped as stopped:
            raise RouteError(visit.of_whole(stopped.failure), exchange.headers) from None
        return exchange


def _exchange_of(body: object, headers: Mapping[str, object] | None, address: Address) -> Exchange:
    """Return what is sent as an exchange that nobody else has. Bytes are text.

    Raises:
        RouteError: JSON cannot say it.
    """
    if isinstance(body, (bytes, bytearray)):
        body = bytes(body).decode("utf-8", "replace")
    try:
        return Exchange(strictjson.normalized(body), normalized_headers(headers or {}))
    except StrictJsonError as error:
        said = f"what was sent to {address} is not strict JSON: {error}"
        raise RouteError(Failed(FailureKind.INVALID_INPUT, said), {}) from None


@attrs.define(eq=False)
class _Sent:
    """What a router offers to the steps of a route. It notes what they have begun."""

    have_called: Callable[..., Awaitable[ToolResult]]
    _registry: Registry
    _evaluator: Evaluator
    _whose: str
    _operation_id: str
    _has_begun: bool = False
    _is_repeatable: bool = True

    async def call(self, tool: str, arguments: Mapping[str, object], step: str) -> ToolResult:
        operation_id = part_of(self._operation_id, step) if step else self._operation_id
        result = await self.have_called(tool, arguments, operation_id=operation_id)
        if isinstance(result, Failed):
            self._note(begun=result.started, retry=result.retry)
        else:
            called = self._registry[tool]
            self._note(begun=True, retry=verdict(started=True, side_effects=called.side_effects, retry=called.retry))
        return result

    def _note(self, *, begun: bool, retry: Verdict) -> None:
        self._has_begun |= begun
        self._is_repeatable &= retry == "allowed"

    def of_whole(self, failure: Failed) -> Failed:
        """Return the failure of a step as that of all that was done: what was brought about before it counts too."""
        return attrs.evolve(failure, started=self._has_begun, retry="allowed" if self._is_repeatable else "blocked")

    def describe(self, tool: str) -> str:
        return self._registry[tool].description if tool in self._registry else ""

    async def evaluate(self, expression: Expression, names: Mapping[str, JSON]) -> JSON:
        return await self._evaluator.evaluate(expression, names)

    async def perform(self, function: Callable[[T], object], argument: T) -> object | Failed:
        self._note(begun=True, retry="blocked")  # what it does is for the host to know
        try:
            given = function(argument)
            return await given if inspect.isawaitable(given) else given
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a step that raises has failed
            return failure_of_raised(self._whose, error)
