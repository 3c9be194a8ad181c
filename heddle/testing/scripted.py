"""Answer calls with what was prepared. No process is started, so that a test of a host is quick and alike everywhere.

Everything before and after the process is real: arguments are checked, answers are decoded and checked as those of a
program are.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import attrs
import trio

from heddle import strictjson
from heddle.limits import Limits
from heddle.process.capture import Head, Tail
from heddle.process.values import Command, Ending, Exit
from heddle.strictjson import JSON
from heddle.testing import exits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from heddle.process.ports import LauncherSession
    from heddle.sandbox.policy import Confinement

__all__ = ["Answer", "Asked", "ScriptedLauncher", "UnexpectedCall"]

# 200 characters of arguments tell one call from another.
SHOWN_CHARS = 200


@attrs.frozen(kw_only=True)
class Asked:
    """What a launcher was asked to run.

    Attributes:
        command: What would have been started.
        stdin: What it would have read.
        limits: What it could have used.
        arguments: What it was called with, from `stdin`; that of the envelope where there is one.
    """

    command: Command
    stdin: bytes = attrs.field(repr=False)
    limits: Limits
    arguments: Mapping[str, JSON] = attrs.field(hash=False)

    @property
    def tool(self) -> str:
        """The name that was called."""
        return self.command.environment.get("HEDDLE_TOOL", "")


One: TypeAlias = Exit | Mapping[str, object] | BaseException
Reaction: TypeAlias = Callable[[Asked], One | Awaitable[One]]
# What a tool answers: the same each time, or a list with one answer for each call.
Answer: TypeAlias = One | Reaction | Sequence[One | Reaction]


class UnexpectedCall(AssertionError):
    """A tool was called for which nothing was prepared, or nothing any more.

    Attributes:
        asked: What was called.
        prepared: How many answers there were, by tool; infinite where one answers every call.
    """

    def __init__(self, asked: Asked, prepared: Mapping[str, float]) -> None:
        self.asked = asked
        self.prepared = prepared
        shown = json.dumps(asked.arguments, ensure_ascii=False)
        shown = shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "…"
        if asked.tool in prepared:
            had = f"has used up its answers for it, which were {prepared[asked.tool]}. Prepare one more"
        else:
            known = ", ".join(f'"{tool}"' for tool in prepared) or "nothing"
            had = f"has an answer for {known}, and none for it. Prepare one"
        super().__init__(
            f'the host called tool "{asked.tool}" with {shown}, and the script {had}, or find out why the host makes '
            "this call"
        )


class ScriptedLauncher:
    """Answers calls as a script says. Give it to ``Runner(launcher=…)``.

        launcher = ScriptedLauncher({
            "fetch": {"rows": 3},
            "send": [exits.timed_out(), {"sent": True}],
            "count": lambda asked: {"words": len(str(asked.arguments["text"]).split())},
        })

    An answer is an object that the program prints before it exits with 0, an `Exit`, or an exception that is raised;
    or a function that is given the `Asked` and returns one of these. An asynchronous one is awaited until the time of
    the call is up. Whatever is longer than the call's limits allow is cut as the output of a program is.

    Args:
        answers: By the name of the tool. One answer is given to every call; those in a list to one call each, in
            their order.

    Attributes:
        asked: Every call that came this far, in order, those without an answer as well.

    Raises:
        TypeError: Something is no answer.
        StrictJsonError: JSON cannot say an object.
    """

    tier: str = "scripted"
    guarantees: Mapping[str, str] = MappingProxyType({"processes": "enforced"})

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.asked: list[Asked] = []
        self._prepared = {tool: _Prepared.of(tool, answer) for tool, answer in answers.items()}

    @property
    def left(self) -> dict[str, int]:
        """How many answers of lists nobody has asked for, by tool; empty when the script was played to its end."""
        return {tool: len(each.left) for tool, each in self._prepared.items() if each.left and not each.repeats}

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession, None]:  # noqa: ARG002 - nothing is confined
        """Open a session; there is nothing to it."""
        yield self

    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Answer `command` as the script says; see `heddle.process.LauncherSession`.

        Raises:
            UnexpectedCall: There is no answer for it.
        """
        await trio.lowlevel.checkpoint()  # first: from here to its answer no other call comes between
        asked = Asked(command=command, stdin=stdin, limits=limits, arguments=_arguments(command, stdin))
        self.asked.append(asked)
        prepared = self._prepared.get(asked.tool)
        if prepared is None or not prepared.left:
            raise UnexpectedCall(asked, {tool: each.count for tool, each in self._prepared.items()})
        answer = await _told(prepared.take(), asked)
        if isinstance(answer, BaseException):
            raise answer
        return _held(answer, limits)


@attrs.define(eq=False)
class _Prepared:
    """The answers for one tool."""

    left: list[Exit | BaseException | Reaction]
    repeats: bool
    count: float

    @classmethod
    def of(cls, tool: str, answer: Answer) -> _Prepared:
        if isinstance(answer, (list, tuple)):
            several = cast("Sequence[One | Reaction]", answer)
            return cls([_checked(tool, each) for each in several], False, len(several))
        return cls([_checked(tool, answer)], True, math.inf)

    def take(self) -> Exit | BaseException | Reaction:
        return self.left[0] if self.repeats else self.left.pop(0)


def _checked(tool: str, answer: object) -> Exit | BaseException | Reaction:
    if callable(answer) and not isinstance(answer, type):
        return cast("Reaction", answer)
    return _ended(tool, answer)


def _ended(tool: str, answer: object) -> Exit | BaseException:
    """Return the end that an answer stands for."""
    if isinstance(answer, (Exit, BaseException)):
        return answer
    if isinstance(answer, Mapping):
        return exits.printed(answer)  # pyright: ignore[reportUnknownArgumentType] - whatever is in it, JSON judges
    raise TypeError(
        f'the script\'s answer for tool "{tool}" must be an object, an Exit, an exception, a function that returns '
        f"one of these, or a list of them, not {answer!r:.60}"
    )


async def _told(prepared: Exit | BaseException | Reaction, asked: Asked) -> Exit | BaseException:
    """Return what a function says, and what is no function as it is."""
    if isinstance(prepared, (Exit, BaseException)):
        return prepared
    said: Any = prepared(asked)
    if inspect.isawaitable(said):
        with trio.move_on_after(asked.limits.wall_seconds or math.inf) as timer:
            said = await said
        if timer.cancelled_caught:
            return exits.timed_out()
    return _ended(asked.tool, said)


def _arguments(command: Command, stdin: bytes) -> Mapping[str, JSON]:
    """Return what a tool was called with, whichever protocol it speaks."""
    request = cast("dict[str, JSON]", strictjson.loads(stdin))
    arguments = request.get("input")
    # No caller knows the id of an attempt beforehand, so that only an envelope can hold it.
    is_envelope = isinstance(arguments, dict) and request.get("attemptId") == command.attempt_id
    return arguments if isinstance(arguments, dict) and is_envelope else request


def _held(answer: Exit, limits: Limits) -> Exit:
    """Cut what is longer than the limits allow."""
    out, err = Head(limits.stdout_bytes or sys.maxsize), Tail(limits.stderr_bytes or sys.maxsize)
    out.take(answer.stdout)
    err.take(answer.stderr)
    cut = {name for name, kept in (("stdout", out), ("stderr", err)) if kept.full}
    too_much = out.full and answer.ending is Ending.BY_ITSELF
    return attrs.evolve(
        answer,
        ending=Ending.STDOUT_FULL if too_much else answer.ending,
        stdout=bytes(out.kept),
        stderr=bytes(err.kept),
        truncated=answer.truncated | cut,
    )
