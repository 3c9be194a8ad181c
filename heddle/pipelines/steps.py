"""The steps of which pipelines are made. Data: what they do is in `heddle.pipelines.running`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from heddle.expressions import Expression
from heddle.pipelines.exchange import Exchange
from heddle.pipelines.uris import Address, address_of
from heddle.strictjson import JSON

__all__ = ["Choice", "Routes", "Script", "SetBody", "SetHeader", "Step", "Target", "Transform", "When", "targets_of"]


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(steps)


def _address(uri: Address | str) -> Address:
    return address_of(uri) if isinstance(uri, str) else uri


def _expression(text: Expression | str) -> Expression:
    return Expression.parse(text) if isinstance(text, str) else text


@attrs.frozen
class SetBody:
    """Makes a value the body.

    Attributes:
        value: A JSON value, or an `Expression` that sees ``payload`` and ``headers``.
    """

    value: JSON | Expression = attrs.field(hash=False)


@attrs.frozen
class SetHeader:
    """Sets a header.

    Attributes:
        name: Of the header.
        value: A JSON value, or an `Expression` that sees ``payload`` and ``headers``.
    """

    name: str
    value: JSON | Expression = attrs.field(hash=False)


@attrs.frozen
class Transform:
    """Makes the body what an expression comes to, which sees ``payload`` and ``headers``.

    Attributes:
        expression: Text is parsed when the step is made.
    """

    expression: Expression = attrs.field(converter=_expression)


@attrs.frozen
class Target:
    """Sends the exchange on: to a tool, whose result becomes the body, or along the steps of a route.

    Attributes:
        uri: ``tool://NAME`` or ``direct://NAME``.
    """

    uri: Address = attrs.field(converter=_address)


@attrs.frozen
class When:
    """One way of a `Choice`.

    Attributes:
        condition: An `Expression`, or its text; taken where it comes to exactly true.
        steps: What is done then.
    """

    condition: Expression = attrs.field(converter=_expression)
    steps: tuple[Step, ...] = attrs.field(converter=_steps)


def _whens(whens: Iterable[When]) -> tuple[When, ...]:
    return tuple(whens)


@attrs.frozen
class Choice:
    """Takes the first way whose condition holds, or the way for all others.

    Attributes:
        when: In the order in which they are tried.
        otherwise: What is done where none holds; nothing unless given.
    """

    when: tuple[When, ...] = attrs.field(converter=_whens)
    otherwise: tuple[Step, ...] = attrs.field(default=(), converter=_steps)


@attrs.frozen
class Script:
    """Calls a Python function of the host with the exchange.

    Attributes:
        function: Changes the exchange; anything but None that it returns becomes the body. An ``async def`` is awaited,
            under `heddle.aio` on the host's loop; any other is called where the steps run, and must not wait.
    """

    function: Callable[[Exchange], object | Awaitable[object]]


Step: TypeAlias = SetBody | SetHeader | Transform | Target | Choice | Script
# The steps of each ``direct://`` route, by name.
Routes: TypeAlias = Mapping[str, tuple[Step, ...]]


def targets_of(steps: Iterable[Step]) -> Iterator[Address]:
    """Yield where steps may send an exchange, those inside of choices among them."""
    for step in steps:
        match step:
            case Target(uri):
                yield uri
            case Choice(when, otherwise):
                for way in when:
                    yield from targets_of(way.steps)
                yield from targets_of(otherwise)
            case _:
                pass
