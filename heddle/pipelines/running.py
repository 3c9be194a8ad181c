"""Takes an exchange along the steps of a pipeline. The first failure ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from heddle import strictjson
from heddle.errors import StrictJsonError
from heddle.expressions import Expression, ExpressionFailed
from heddle.pipelines.exchange import Exchange, arguments_from, normalized_headers
from heddle.pipelines.steps import Choice, Routes, Script, SetBody, SetHeader, Step, Target, Transform
from heddle.results import Failed, FailureKind
from heddle.tools.definition import Visit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from heddle.strictjson import JSON

__all__ = ["HEADERS", "Headers", "Run", "Stopped"]

# 32: a route that leads back to itself is found before it costs much.
MOST_ROUTES = 32


@attrs.frozen
class Headers:
    """The names of the headers that say which tool was called last.

    Attributes:
        tool: Holds its name.
        description: Holds what it is for.
    """

    tool: str = "HelixToolID"
    description: str = "HelixToolDescription"


HEADERS = Headers()


class Stopped(Exception):
    """A step has failed, and those after it are not taken."""

    def __init__(self, failure: Failed) -> None:
        self.failure = failure
        super().__init__(failure.message)


@attrs.frozen
class _Way:
    """Steps that lie ahead.

    Attributes:
        steps: Those that are left, and the number of each.
        at: Where they stand, for messages and for the ids of what they call.
        along: The routes that they are on, the innermost last.
    """

    steps: Iterator[tuple[int, Step]]
    at: str
    along: tuple[str, ...]

    @classmethod
    def of(cls, steps: Iterable[Step], at: str, along: tuple[str, ...]) -> Self:
        """Return the way along steps, none of which was taken."""
        return cls(enumerate(steps, start=1), at, along)


@attrs.frozen
class Run:
    """One exchange on its way.

    Attributes:
        visit: What the call offers.
        whose: Whose steps are taken, for messages: ``tool "pay"``.
        routes: Where ``direct://`` leads.
        headers: How those are called that say which tool was called.
    """

    visit: Visit
    whose: str
    routes: Routes
    headers: Headers = HEADERS

    async def take(self, steps: Iterable[Step], exchange: Exchange) -> None:
        """Take the steps one after another.

        Raises:
            Stopped: One has failed.
        """
        await self._go(_Way.of(steps, "", ()), exchange)

    async def follow(self, route: str, exchange: Exchange) -> None:
        """Take the steps of a route.

        Raises:
            Stopped: One has failed, or there is no such route.
        """
        await self._go(self._along(route, "", ()), exchange)

    async def _go(self, first: _Way, exchange: Exchange) -> None:
        # In a list: routes and choices inside of each other take nothing of Python's own stack, which pipelines that
        # call each other need.
        ways = [first]
        while ways:
            way = ways[-1]
            for number, step in way.steps:
                further = await self._take(step, exchange, f"{way.at}{number}", way.along)
                if further is not None:
                    ways.append(further)
                    break
            else:
                ways.pop()

    async def _take(self, step: Step, exchange: Exchange, at: str, along: tuple[str, ...]) -> _Way | None:
        """Take a step; return the way that it leads to, where that has to be gone before the next one."""
        match step:
            case SetBody(value):
                exchange.body = await self._value(value, exchange, at)
            case SetHeader(name, value):
                exchange.headers[name] = await self._value(value, exchange, at)
            case Transform(expression):
                exchange.body = await self._value(expression, exchange, at)
            case Target(uri) if uri.scheme == "tool":
                await self.send(uri.name, exchange, at)
            case Target(uri):
                return self._along(uri.name, at, along)
            case Choice(when, otherwise):
                for number, way in enumerate(when, start=1):
                    if await self._value(way.condition, exchange, f"{at}.{number}") is True:
                        return _Way.of(way.steps, f"{at}.{number}.", along)
                return _Way.of(otherwise, f"{at}.0.", along)
            case Script(function):
                await self._call(function, exchange, at)
        return None

    async def send(self, tool: str, exchange: Exchange, at: str) -> None:
        """Have a tool called with the body, and make the body what it returns."""
        # Before anything is judged, so that whoever hears of a failure can say whose it is.
        exchange.headers[self.headers.tool] = tool
        exchange.headers[self.headers.description] = self.visit.describe(tool)
        try:
            arguments = arguments_from(exchange.body)
        except StrictJsonError as error:
            said = f'the arguments of tool "{tool}" are not strict JSON: {error}'
            raise self._stopped(at, FailureKind.INVALID_INPUT, said) from None
        result = await self.visit.call(tool, arguments, at)
        if isinstance(result, Failed):
            raise Stopped(self._of_part(result, at))
        exchange.body = result.data

    def _along(self, route: str, at: str, along: tuple[str, ...]) -> _Way:
        """Return the way along a route, which is gone with the same exchange."""
        steps = self.routes.get(route)
        if steps is None:
            known = ", ".join(self.routes) or "none"
            raise self._stopped(at, FailureKind.UNSUPPORTED, f"there is no route direct://{route}; there are {known}")
        if len(along) >= MOST_ROUTES:
            way = " → ".join((*along[-3:], route))
            said = f"{MOST_ROUTES} routes lead into each other already ({way}); one of them leads back to itself"
            raise self._stopped(at, FailureKind.DENIED, said, code="depth")
        return _Way.of(steps, f"{at}/{route}." if at else f"{route}.", (*along, route))

    async def _value(self, value: JSON | Expression, exchange: Exchange, at: str) -> JSON:
        if not isinstance(value, Expression):
            return strictjson.normalized(value)
        try:
            return await self.visit.evaluate(value, {"payload": exchange.body, "headers": exchange.headers})
        except ExpressionFailed as error:
            raise self._stopped(at, FailureKind.CRASHED, f"an expression failed: {error}", code=error.kind) from None

    async def _call(self, function: Callable[[Exchange], object], exchange: Exchange, at: str) -> None:
        given = await self.visit.perform(function, exchange)
        if isinstance(given, Failed):
            raise Stopped(self._of_part(given, at))
        try:
            exchange.body = strictjson.normalized(exchange.body if given is None else given)
            exchange.headers = normalized_headers(exchange.headers)
        except StrictJsonError as error:
            said = f"a script left what JSON cannot say: {error}"
            raise self._stopped(at, FailureKind.INVALID_OUTPUT, said) from None

    def _stopped(self, at: str, kind: FailureKind, said: str, *, code: str | None = None) -> Stopped:
        return Stopped(self._of_part(Failed(kind, said, code=code), at))

    def _of_part(self, failure: Failed, at: str) -> Failed:
        """Return the failure of a step as that of the whole; what was wrong is said first."""
        if not at:
            return failure
        step: JSON = at
        message = f"{failure.message} (step {at} of {self.whose})"
        return attrs.evolve(failure, message=message, details={**failure.details, "step": step})
