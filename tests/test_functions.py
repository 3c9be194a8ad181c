"""Python functions as tools: in place or in a thread, never beyond their time, and their failures are values."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import heddle
from heddle.threads import MOST_LEFT
from tests.support import until


async def call(tool: heddle.ToolDef, arguments: object = None, *, wall_seconds: float = 5) -> heddle.ToolResult:
    async with heddle.Runner([tool]) as runner:
        return await runner.call(tool.name, arguments, limits=heddle.Limits(wall_seconds=wall_seconds))  # type: ignore[arg-type]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Order:
    item: str
    count: int = 1


async def test_arguments_are_structured_and_results_unstructured() -> None:
    @heddle.tool
    def repeat(orders: list[Order], colour: Colour = Colour.RED, *, tags: set[str] | None = None) -> list[Order]:
        """Repeat orders."""
        assert colour is Colour.BLUE
        assert tags == {"a"}
        return [attrs.evolve(order, count=order.count * 2) for order in orders]

    result = await call(
        repeat, {"orders": [{"item": "loom"}, {"item": "warp", "count": 2}], "colour": "blue", "tags": ["a"]}
    )

    assert result == heddle.Returned({"result": [{"item": "loom", "count": 2}, {"item": "warp", "count": 4}]})
    assert result.report.tier == "in_process"
    assert result.report.guarantees == {}
    assert repeat.input_schema["additionalProperties"] is False


async def test_a_tool_can_still_be_called_as_the_function() -> None:
    @heddle.tool
    def double(n: int) -> int:
        return 2 * n

    assert double(21) == 42
    assert await call(double, {"n": 21}) == heddle.Returned({"result": 42})


async def test_a_class_that_refuses_its_arguments_makes_them_invalid() -> None:
    @attrs.frozen
    class Positive:
        n: int = attrs.field(validator=attrs.validators.gt(0))

    @heddle.tool
    def take(value: Positive) -> None:
        """Take a number."""

    result = await call(take, {"value": {"n": -1}})

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started) == ("invalid_input", False)
    violations = result.details["violations"]
    assert isinstance(violations, list)
    assert isinstance(violations[0], dict)
    assert violations[0]["path"] == "value"


async def test_an_exception_is_a_crash_with_its_class_as_code() -> None:
    @heddle.tool
    async def fail() -> None:
        raise LookupError("no such loom")

    code = fail.function.__code__
    result = await call(fail)

    assert result == heddle.Failed(
        heddle.FailureKind.CRASHED,
        'tool "fail" raised LookupError: no such loom',
        code="LookupError",
        details={"raised_in": f"{__name__}:{code.co_firstlineno + 2} in {code.co_qualname}"},
        started=True,
        retry="blocked",
    )


async def test_a_tool_error_is_the_tools_own_word() -> None:
    @heddle.tool(side_effects="read", retry="idempotent")
    def fail() -> None:
        raise heddle.ToolError("no_loom", "There is no loom.")

    result = await call(fail)

    assert result == heddle.Failed(
        heddle.FailureKind.TOOL_ERROR, 'tool "fail" reports no_loom: There is no loom.', code="no_loom", started=True
    )


async def test_a_group_of_one_is_the_one() -> None:
    @heddle.tool
    async def fail() -> None:
        async def inner() -> None:
            raise heddle.ToolError("inner", "from a nursery")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inner)

    result = await call(fail)

    assert isinstance(result, heddle.Failed)
    assert result.code == "inner"


async def test_leaving_the_interpreter_ends_the_tool_only() -> None:
    @heddle.tool
    def leave() -> None:
        raise SystemExit(3)

    result = await call(leave)

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code) == ("crashed", "SystemExit")


async def test_an_async_function_is_cancelled_at_its_deadline() -> None:
    ended = []

    @heddle.tool
    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    result = await call(wait, wall_seconds=0.1)

    assert result == heddle.Failed(
        heddle.FailureKind.TIMED_OUT,
        'tool "wait" did not finish within 0.1 s and was cancelled.',
        details={"still_running": False},
        started=True,
        retry="blocked",
    )
    assert ended == [True]


async def test_a_sync_function_past_its_deadline_is_left_and_said_to_be_running() -> None:
    release = threading.Event()

    @heddle.tool
    def wait() -> None:
        release.wait(10)

    began = time.monotonic()
    result = await call(wait, wall_seconds=0.1)
    took = time.monotonic() - began
    release.set()

    assert result == heddle.Failed(
        heddle.FailureKind.TIMED_OUT,
        'tool "wait" did not finish within 0.1 s and is still running.',
        details={"still_running": True},
        started=True,
        retry="blocked",
    )
    assert took < 2


async def test_the_number_of_functions_left_running_is_bounded() -> None:
    release = threading.Event()

    @heddle.tool
    def wait() -> None:
        release.wait(20)

    async with heddle.Runner([wait], max_concurrent=4) as runner:

        async def late() -> heddle.ToolResult:
            return await runner.call("wait", limits=heddle.Limits(wall_seconds=0.05))

        left = [await late() for _ in range(MOST_LEFT)]
        refused = await late()
        release.set()
        assert await until(lambda: runner._opened().threads.left == 0, 5)
        again = await runner.call("wait")

    assert {result.kind for result in left if isinstance(result, heddle.Failed)} == {"timed_out"}
    assert isinstance(refused, heddle.Failed)
    assert (refused.kind, refused.started, refused.retry) == ("cannot_start", False, "allowed")
    assert again == heddle.Returned({"result": None})


async def test_cancelling_a_call_leaves_a_sync_function_at_once() -> None:
    release = threading.Event()

    @heddle.tool
    def wait() -> None:
        release.wait(10)

    async with heddle.Runner([wait]) as runner:
        with trio.move_on_after(0.1) as scope:
            await runner.call("wait")
        left = runner._opened().threads.left
        release.set()
        assert await until(lambda: runner._opened().threads.left == 0, 5)

    assert scope.cancelled_caught
    assert left == 1


async def test_the_callers_context_reaches_functions() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @heddle.tool
    async def in_place() -> str:
        return variable.get()

    @heddle.tool
    def in_thread() -> str:
        return variable.get()

    variable.set("seen")

    async with heddle.Runner([in_place, in_thread]) as runner:
        results = [(await runner.call(name)).unwrap() for name in ("in_place", "in_thread")]

    assert results == [{"result": "seen"}] * 2


async def test_a_tool_context_is_filled_in_and_not_published() -> None:
    @heddle.tool
    def write(text: str, context: heddle.ToolContext) -> str:
        (context.workspace / "note").write_text(text)
        return f"{context.operation_id} {context.attempt_id} {context.workspace}"

    async with heddle.Runner([write]) as runner, runner.scope() as scope:
        result = await scope.call("write", {"text": "hello"}, operation_id="op")
        note = (scope.workspace.path / "note").read_text()
        path = scope.workspace.path

    assert list(write.input_schema["properties"]) == ["text"]
    assert result == heddle.Returned({"result": f"op {result.report.attempt_id} {path}"})
    assert note == "hello"


async def test_results_that_json_cannot_say_are_invalid_output() -> None:
    @heddle.tool
    async def infinite():  # type: ignore[no-untyped-def]
        return {"n": float("inf")}

    @heddle.tool
    async def path():  # type: ignore[no-untyped-def]
        return Path("/")

    @heddle.tool
    async def endless():  # type: ignore[no-untyped-def]
        value: list[object] = []
        value.append(value)
        return value

    results = [await call(tool) for tool in (infinite, path, endless)]

    messages = [result.message for result in results if isinstance(result, heddle.Failed)]
    assert messages[0] == 'tool "infinite" returned what JSON cannot say: inf, which is not JSON at $.n.'
    assert messages[1].startswith('tool "path" returned what JSON cannot say: a value of type PosixPath')
    assert messages[2] == 'tool "endless" returned what JSON cannot say: nesting deeper than 128.'
    assert {result.kind for result in results if isinstance(result, heddle.Failed)} == {"invalid_output"}


async def test_a_result_over_the_limit_is_too_large() -> None:
    @heddle.tool
    async def big() -> str:
        return "x" * 2_000_000

    result = await call(big)

    assert isinstance(result, heddle.Failed)
    assert result.kind == "too_large"
    assert result.message == 'tool "big" returned 2,000,013 bytes; a result may have 1,048,576.'


async def test_a_return_annotation_is_enforced() -> None:
    @heddle.tool
    async def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    result = await call(wrong)

    assert isinstance(result, heddle.Failed)
    assert result.kind == "output_mismatch"
    assert "result: must be an integer, not a string" in result.message


async def test_a_function_may_be_given_to_a_definition_by_hand() -> None:
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    tool = heddle.ToolDef.from_fields(
        "add",
        "Add two numbers",
        input={"a": heddle.FieldDef("integer", required=True), "b": heddle.FieldDef("integer", default=1)},
        implementation=heddle.Function(add),
    )

    assert await call(tool, {"a": 2}) == heddle.Returned({"sum": 3})
    assert isinstance(await call(tool, {"a": True}), heddle.Failed)


async def test_rules_are_checked_after_the_schema() -> None:
    rule = heddle.Rule("positive_amount", lambda args: args["amount"] > 0, "amount must be positive")  # type: ignore[operator]

    @heddle.tool(validation=heddle.Validation(rules=(rule,)))
    async def pay(amount: float) -> None:
        """Move money."""

    refused = await call(pay, {"amount": -1})
    paid = await call(pay, {"amount": 1})

    assert isinstance(refused, heddle.Failed)
    assert refused.message == 'tool "pay" input validation failed: amount must be positive'
    assert paid == heddle.Returned({"result": None})


async def test_large_arguments_and_results_do_not_hold_the_loop() -> None:
    """A heartbeat goes on while a megabyte is checked; how late it may be is the benchmark's business."""

    @heddle.tool
    async def count(items: list[list[int]]) -> list[list[int]]:
        return items

    items: Any = [[number] * 10 for number in range(15_000)]
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await trio.sleep(0.001)
            beats += 1

    async with heddle.Runner([count]) as runner, trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        result = await runner.call("count", {"items": items})
        nursery.cancel_scope.cancel()

    assert result == heddle.Returned({"result": items})
    assert beats > 3


async def test_a_process_limit_on_a_call_of_a_function_is_refused() -> None:
    @heddle.tool
    def nothing() -> None:
        """Do nothing."""

    async with heddle.Runner([nothing]) as runner:
        with pytest.raises(heddle.SandboxUnavailable, match="is a Python function"):
            await runner.call("nothing", limits=heddle.Limits(memory_bytes=10**9))


def test_a_process_limit_on_a_function_is_a_definition_error() -> None:
    with pytest.raises(heddle.DefinitionError, match="memory_bytes"):

        @heddle.tool(limits=heddle.Limits(memory_bytes=10**6))
        def big() -> None:
            """Be big."""

    by_hand = heddle.ToolDef(name="big", implementation=heddle.Function(print), limits=heddle.Limits(cpu_seconds=1))
    with pytest.raises(heddle.DefinitionError, match="cpu_seconds"):
        heddle.Registry([by_hand])


async def test_a_pattern_that_takes_time_is_tried_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty texts of a thousand characters: each a few milliseconds, together too long for the loop."""
    schema = {"type": "object", "properties": {"names": {"items": {"type": "string", "pattern": "[a-z]+@[a-z]+"}}}}
    tried_in: set[int] = set()

    def note(arguments: object) -> bool:
        tried_in.add(threading.get_ident())
        return True

    tool = heddle.ToolDef(
        name="names",
        input_schema=schema,
        implementation=heddle.Function(lambda **_: None),
        validation=heddle.Validation(rules=(heddle.Rule("note", note, ""),)),
    )

    results = [await call(tool, {"names": names}) for names in (["a@b"], ["a" * 995 + "@b"] * 20)]

    assert results == [heddle.Returned({"result": None})] * 2
    assert len(tried_in) == 2
    assert threading.get_ident() in tried_in


def test_a_function_for_the_other_kind_of_loop_fails_and_its_caller_is_told_which_runner_has_that() -> None:
    @heddle.tool
    async def of_asyncio() -> None:
        """Sleep under asyncio."""
        asyncio.get_running_loop()

    @heddle.tool
    async def of_trio() -> None:
        """Sleep under trio."""
        await trio.sleep(1)

    async def in_asyncio() -> heddle.ToolResult:
        async with heddle.aio.Runner([of_trio]) as runner:
            return await runner.call("of_trio")

    with heddle.blocking.Runner([of_asyncio]) as runner:
        under_trio = runner.call("of_asyncio")
    under_asyncio = asyncio.run(in_asyncio())

    assert isinstance(under_trio, heddle.Failed)
    assert isinstance(under_asyncio, heddle.Failed)
    assert under_trio.message == (
        'tool "of_asyncio" raised RuntimeError: no running event loop. It needs asyncio, and this runner awaits its '
        "tools under trio: heddle.aio.Runner awaits them on the loop of an asyncio host."
    )
    assert under_asyncio.message == (
        'tool "of_trio" raised RuntimeError: must be called from async context. It needs trio, and this runner awaits '
        "its tools under asyncio: heddle.Runner and heddle.blocking.Runner await them under trio."
    )
