"""A caller in front of a runner: what only reads is answered from memory when it is asked again.

python examples/runners/caching.py

Whoever takes a `ToolCaller` can be given a cache in place of a runner. It keeps the answers of tools that say
``side_effects="read"`` and ``retry="idempotent"``, and believes them: a tool whose answer changes by itself should not
say so. A call of any other tool may change what the readers read, so that everything is forgotten then.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

import heddle
from heddle import strictjson

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from pathlib import Path

    from heddle.callers import ScopeCaller, ToolCaller
    from heddle.operations import Backoff


@attrs.define(eq=False)
class Memory:
    """Answers by the call that they were given to.

    Attributes:
        most: Answers to keep; beyond that the one that was not asked for the longest goes.
        age: How often everything was forgotten.
    """

    most: int
    age: int = 0
    _answers: OrderedDict[str, heddle.Returned] = attrs.field(factory=OrderedDict[str, heddle.Returned], init=False)

    def find(self, key: str) -> heddle.Returned | None:
        """Return an answer that is the caller's own, marked as one that was given before."""
        known = self._answers.get(key)
        if known is None:
            return None
        self._answers.move_to_end(key)
        return heddle.Returned(copy.deepcopy(known.data), attrs.evolve(known.report, replayed=True))

    def keep(self, key: str, answer: heddle.Returned) -> None:
        """Keep a copy of an answer."""
        self._answers[key] = heddle.Returned(copy.deepcopy(answer.data), answer.report)
        while len(self._answers) > self.most:
            self._answers.popitem(last=False)

    def forget(self) -> None:
        """Forget every answer, and those that are on their way."""
        self._answers.clear()
        self.age += 1


class CachingScope:
    """Calls tools that share a workspace. What they read there is not what others read elsewhere."""

    def __init__(self, caller: ScopeCaller, memory: Memory, place: int) -> None:
        self.caller = caller
        self.memory = memory
        self.place = place
        self.has_written = False

    @property
    def registry(self) -> heddle.Registry:
        """What can be called."""
        return self.caller.registry

    async def call(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        limits: heddle.Limits | None = None,
        cwd: str | Path | None = None,
        operation_id: str | None = None,
        bare_string: bool = False,
        retries: int = 0,
        backoff: Backoff = 0.5,
    ) -> heddle.ToolResult:
        """Return the answer that is known, or call the tool; ``report.replayed`` says which it was."""
        key = self._key(name, arguments, cwd)
        known = self.memory.find(key) if key else None
        if known is not None:
            return known
        age = self.memory.age
        try:
            result = await self.caller.call(
                name,
                arguments,
                limits=limits,
                cwd=cwd,
                operation_id=operation_id,
                bare_string=bare_string,
                retries=retries,
                backoff=backoff,
            )
        finally:
            if name in self.registry and self.registry[name].side_effects != "read":
                self.has_written = True
                self.memory.forget()
        # What was read while something was written may be out of date by now.
        if key and age == self.memory.age and isinstance(result, heddle.Returned):
            self.memory.keep(key, result)
        return result

    def _key(self, name: str, arguments: Mapping[str, object] | str | None, cwd: str | Path | None) -> str:
        """Return what a call is known by; empty where its answer is not to be kept."""
        if name not in self.registry:
            return ""
        tool = self.registry[name]
        if (tool.side_effects, tool.retry) != ("read", "idempotent"):
            return ""
        try:
            given = strictjson.loads(arguments) if isinstance(arguments, str) else strictjson.normalized(arguments)
        except heddle.StrictJsonError:
            return ""  # whether that is a call the runner says
        identity = [self.place, None if cwd is None else str(cwd), name, tool.revision, given]
        return json.dumps(identity, sort_keys=True)


class CachingCaller(CachingScope):
    """Calls tools through a runner, or through any other caller, and remembers what they read.

    Args:
        caller: Makes the calls.
        most: Answers to keep; beyond that the one that was not asked for the longest goes.
    """

    def __init__(self, caller: ToolCaller, most: int = 1000) -> None:
        super().__init__(caller, Memory(most), place=0)
        self._open_scope = caller.scope
        self._places = itertools.count(1)

    @asynccontextmanager
    async def scope(
        self,
        label: str = "scope",
        *,
        mounts: Iterable[heddle.Mount | str] = (),
        tools: Iterable[str] | None = None,
        workspace: heddle.Workspace | None = None,
        report_changes: bool = False,
    ) -> AsyncGenerator[CachingScope, None]:
        """Let calls share one workspace."""
        scope: CachingScope | None = None
        try:
            async with self._open_scope(
                label, mounts=mounts, tools=tools, workspace=workspace, report_changes=report_changes
            ) as inner:
                scope = CachingScope(inner, self.memory, next(self._places))
                yield scope
        finally:
            if scope is not None and scope.has_written:  # what was written has come back to where others read
                self.memory.forget()


async def main() -> None:
    prices = {"loom": 4100}

    @heddle.tool(side_effects="read", retry="idempotent")
    async def price(item: str) -> int:
        print(f"  looked up the price of a {item}")
        return prices[item]

    @heddle.tool(side_effects="write", retry="idempotent")
    async def set_price(item: str, amount: int) -> dict[str, int]:
        prices[item] = amount
        return prices

    async with heddle.Runner([price, set_price]) as runner:
        caller: ToolCaller = CachingCaller(runner)
        for name, arguments in (
            ("price", {"item": "loom"}),
            ("price", '{"item": "loom"}'),
            ("set_price", {"item": "loom", "amount": 3900}),
            ("price", {"item": "loom"}),
        ):
            result = await caller.call(name, arguments)
            print(f"{name}: {result.unwrap()}{', from memory' if result.report.replayed else ''}")


if __name__ == "__main__":
    trio.run(main)
