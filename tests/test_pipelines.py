"""Tools that are a few steps: what goes in, what comes out, what leaks neither way, how a failing step ends it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import heddle
from heddle import Exchange, FieldDef, Pipeline
from heddle.events import CallEvent, CallFinished
from heddle.expressions import Expression, predicate
from heddle.operations import ApprovalRequest, Journal
from heddle.pipelines import Choice, Script, SetBody, SetHeader, Step, Target, Transform, When
from tests.support import Toolbox, children_of


def piped(name: str, *steps: Step, routes: Any = None, **declared: Any) -> heddle.ToolDef:
    """Return a tool of these steps that takes anything."""
    return heddle.ToolDef(name=name, implementation=Pipeline(steps, routes or {}), **declared)


async def called(tools: list[heddle.ToolDef], name: str, arguments: Any = None, **options: Any) -> heddle.ToolResult:
    async with heddle.Runner(tools) as runner:
        return await runner.call(name, arguments, **options)


@heddle.tool(side_effects="read")
async def double(n: int) -> dict[str, int]:
    return {"n": 2 * n}


# Steps


async def test_the_body_at_the_end_is_the_result() -> None:
    result = await called([piped("p", SetBody({"a": 1}))], "p")

    assert result == heddle.Returned({"a": 1})
    assert (result.report.tier, result.report.tool) == ("in_process", "p")


async def test_a_pipeline_without_steps_gives_back_its_arguments() -> None:
    assert await called([piped("p")], "p", {"a": [1, {"b": None}]}) == heddle.Returned({"a": [1, {"b": None}]})


@pytest.mark.parametrize("body", [None, 5, "text", [1, 2], True])
async def test_a_body_may_be_any_value(body: Any) -> None:
    assert await called([piped("p", SetBody(body))], "p") == heddle.Returned(body)


async def test_an_expression_sees_the_body_and_the_headers() -> None:
    steps: list[Step] = [
        SetHeader("who", "ann"),
        SetBody(Expression.parse('{"n": payload["n"] + 1, "who": headers["who"]}')),
        Transform('%sl 2.0\noutput application/json\ninput payload\n---\n{"all": [payload["n"], payload["who"]]}'),
    ]

    assert await called([piped("p", *steps)], "p", {"n": 1}) == heddle.Returned({"all": [2, "ann"]})


async def test_numbers_are_exact_on_their_way_through_a_transform() -> None:
    given: Any = {"id": 2512292042121000001, "one": 1.0, "yes": True}

    assert await called([piped("p", Transform("payload"))], "p", given) == heddle.Returned(given)


@pytest.mark.parametrize(("n", "way"), [(5, "small"), (50, "middle"), (500, "large")])
async def test_a_choice_takes_the_first_way_that_holds(n: int, way: str) -> None:
    choice = Choice(
        [When('payload["n"] < 10', [SetBody("small")]), When('payload["n"] < 100', [SetBody("middle")])],
        [SetBody("large")],
    )

    assert await called([piped("p", choice)], "p", {"n": n}) == heddle.Returned(way)


async def test_a_choice_of_which_nothing_holds_changes_nothing() -> None:
    choice = Choice([When("False", [SetBody("no")])])

    assert await called([piped("p", choice)], "p", {"n": 1}) == heddle.Returned({"n": 1})


@pytest.mark.parametrize("condition", ["1", '"yes"', "payload", "[0]"])
async def test_a_condition_holds_only_when_it_is_exactly_true(condition: str) -> None:
    choice = Choice([When(condition, [SetBody("taken")])], [SetBody("not taken")])

    assert await called([piped("p", choice)], "p") == heddle.Returned("not taken")


async def test_a_script_changes_the_exchange_or_returns_the_body() -> None:
    def change(exchange: Exchange) -> None:
        exchange.body = {"from": exchange.body}
        exchange.properties["seen"] = object()

    async def add(exchange: Exchange) -> dict[str, Any]:
        await trio.sleep(0)
        assert "seen" in exchange.properties
        return {"then": exchange.body}

    result = await called([piped("p", Script(change), Script(add))], "p", {"a": 1})

    assert result == heddle.Returned({"then": {"from": {"a": 1}}})


async def test_a_target_gives_its_result_and_says_who_it_was() -> None:
    seen: list[dict[str, Any]] = []
    described = heddle.tool(name="double", description="Twice as much", side_effects="read")(double.function)

    result = await called(
        [described, piped("p", Target("tool://double"), Script(lambda exchange: seen.append(dict(exchange.headers))))],
        "p",
        {"n": 4},
    )

    assert result == heddle.Returned({"n": 8})
    assert seen == [{"HelixToolID": "double", "HelixToolDescription": "Twice as much"}]


async def test_the_headers_may_have_other_names() -> None:
    seen: list[dict[str, Any]] = []
    steps: list[Step] = [Target("tool://double"), Script(lambda exchange: seen.append(dict(exchange.headers)))]
    tool = heddle.ToolDef(
        name="p", implementation=Pipeline(steps, headers=heddle.pipelines.Headers("X-Tool", "X-About"))
    )

    await called([double, tool], "p", {"n": 4})

    assert seen == [{"X-Tool": "double", "X-About": ""}]


# Nothing leaks


async def test_what_a_tool_does_to_its_exchange_stays_with_it() -> None:
    """Its headers, its properties and its body are its own; what comes out is the body it ends with."""
    seen: list[Exchange] = []

    def dirty(exchange: Exchange) -> None:
        assert (exchange.headers, exchange.properties) == ({}, {})
        exchange.headers["secret"] = "inner"
        exchange.properties["secret"] = "inner"
        exchange.body["list"].append("inner")  # type: ignore[index, union-attr, call-overload]

    inner = piped("inner", Script(dirty))
    outer = piped(
        "outer",
        SetHeader("mine", 1),
        Script(lambda exchange: exchange.properties.update(mine=1)),
        Target("tool://inner"),
        Script(seen.append),
    )
    given = {"list": ["given"]}

    result = await called([inner, outer], "outer", given)

    assert given == {"list": ["given"]}
    assert result == heddle.Returned({"list": ["given", "inner"]})
    assert (seen[0].headers, seen[0].properties) == (
        {"mine": 1, "HelixToolID": "inner", "HelixToolDescription": ""},
        {"mine": 1},
    )


async def test_what_a_script_keeps_does_not_change_later() -> None:
    kept: list[Any] = []

    def keep(exchange: Exchange) -> None:
        kept.append(exchange.body)

    tools = [piped("inner", Script(keep)), piped("outer", Script(keep), Target("tool://inner"), SetBody({"n": 2}))]

    await called(tools, "outer", {"n": [1]})
    kept[1]["n"].append("changed")

    assert kept[0] == {"n": [1]}


async def test_calls_at_once_do_not_see_each_other() -> None:
    async def slowly(exchange: Exchange) -> None:
        exchange.properties["n"] = exchange.body["n"]  # type: ignore[index, call-overload]
        await trio.sleep(0.01)
        exchange.body = exchange.properties["n"]

    results: dict[int, Any] = {}

    async def call(runner: heddle.Runner, n: int) -> None:
        results[n] = (await runner.call("p", {"n": n})).unwrap()

    async with heddle.Runner([piped("p", Script(slowly))]) as runner, trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(call, runner, n)

    assert results == {n: n for n in range(20)}


# Arguments and results


async def test_arguments_are_judged_before_the_steps() -> None:
    ran: list[Exchange] = []
    tool = heddle.ToolDef.from_fields(
        "pay",
        input={
            "amount": FieldDef("number", required=True),
            "currency": FieldDef("string", required=True, enum=["USD", "EUR"]),
            "note": FieldDef("string", default="none"),
        },
        implementation=Pipeline([Script(ran.append)]),
    )

    bad = await called([tool], "pay", {"amount": "5", "currency": "GBP"})
    good = await called([tool], "pay", {"amount": 5, "currency": "EUR"})

    assert isinstance(bad, heddle.Failed)
    assert (bad.kind, bad.started, len(ran)) == ("invalid_input", False, 1)
    assert bad.message.startswith('tool "pay" input validation failed: ')
    assert [each["path"] for each in bad.details["violations"]] == ["amount", "currency"]  # type: ignore[union-attr, index, call-overload]
    assert good == heddle.Returned({"amount": 5, "currency": "EUR", "note": "none"})


async def test_the_loop_turns_while_a_rule_is_worked_out() -> None:
    """A rule that is a text is worked out in another process, and may take a second of it."""
    endless = "(lambda x: [x.append(x[-1] * x.pop()) for _ in range(40)])([3]) == args"
    forever = predicate(Expression.parse(endless, names=("args",)))
    tool = heddle.ToolDef(
        name="t",
        validation=heddle.Validation(rules=[heddle.Rule("r", forever, "no")]),
        implementation=Pipeline([]),
    )
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.01)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        result = await called([tool], "t")
        nursery.cancel_scope.cancel()

    assert isinstance(result, heddle.Failed)
    assert (result.kind, turns > 5) == ("invalid_input", True)


async def test_what_works_out_rules_ends_with_the_runner() -> None:
    tool = heddle.ToolDef(
        name="t",
        validation=heddle.Validation(
            rules=[heddle.Rule("r", predicate(Expression.parse("True", names=("args",))), "no")]
        ),
        implementation=Pipeline([]),
    )

    async with heddle.Runner([tool]) as runner:
        assert (await runner.call("t")).ok
        during = children_of(os.getpid())
    after = children_of(os.getpid())

    assert len(during) >= 1
    assert set(after).isdisjoint(during)


async def test_what_is_published_of_a_result_is_not_enforced() -> None:
    tool = heddle.ToolDef.from_fields(
        "p", output={"n": FieldDef("integer", required=True)}, implementation=Pipeline([SetBody("no number")])
    )

    assert tool.output_schema == {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert await called([tool], "p") == heddle.Returned("no number")


async def test_what_a_target_has_declared_is_enforced() -> None:
    @heddle.tool(name="wrong")
    async def wrong() -> dict[str, int]:
        return {"n": "text"}  # type: ignore[dict-item]

    result = await called([wrong, piped("p", Target("tool://wrong"))], "p")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "output_mismatch"


ONE = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}


@pytest.mark.parametrize(
    ("schema", "arguments", "body"),
    [
        (ONE, {"sql": "SELECT 1"}, "SELECT 1"),
        (ONE, '{"sql": "SELECT 1"}', "SELECT 1"),
        (ONE, {"sql": "SELECT 1", "more": 1}, {"sql": "SELECT 1", "more": 1}),
        ({"type": "object", "properties": {"sql": {"type": "string"}}}, {}, {}),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": 1}, {"n": 1}),
        (
            {"type": "object", "properties": {"sql": {"type": "string"}, "n": {"type": "integer"}}},
            {"sql": "SELECT 1"},
            {"sql": "SELECT 1"},
        ),
        ({"type": "object"}, {"sql": "SELECT 1"}, {"sql": "SELECT 1"}),
    ],
)
async def test_an_only_string_is_given_bare_when_an_agent_calls(schema: Any, arguments: Any, body: Any) -> None:
    tool = piped("query", input_schema=schema)

    bare = await called([tool], "query", arguments, bare_string=True)
    whole = await called([tool], "query", arguments)

    assert bare == heddle.Returned(body)
    assert whole == heddle.Returned(json.loads(arguments) if isinstance(arguments, str) else arguments)


# Failures


async def test_a_failing_target_fails_the_pipeline_with_the_same_kind() -> None:
    ran: list[Exchange] = []
    steps: list[Step] = [SetBody({"n": "four"}), Target("tool://double"), Script(ran.append)]

    result = await called([double, piped("p", *steps)], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.details["step"], ran) == ("invalid_input", False, "2", [])
    assert result.message.startswith('tool "double" input validation failed: n: ')
    assert result.message.endswith(' (step 2 of tool "p")')


async def test_the_way_to_a_failure_is_said_from_the_inside_out() -> None:
    @heddle.tool(name="broken")
    async def broken() -> None:
        raise heddle.ToolError("no_money", "the account is empty")

    tools = [broken, piped("b", SetBody({}), Target("tool://broken")), piped("a", Target("tool://b"))]

    result = await called(tools, "a")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code) == ("tool_error", "no_money")
    assert result.message.endswith('the account is empty (step 2 of tool "b") (step 1 of tool "a")')


@pytest.mark.parametrize(
    ("side_effects", "retry", "inner", "expected"),
    [
        ("read", "idempotent", "manual", "blocked"),
        ("write", "idempotent", "idempotent", "allowed"),
        ("unknown", "manual", "idempotent", "blocked"),
    ],
)
async def test_a_pipeline_has_started_when_a_part_has_and_is_as_safe_as_its_parts(
    side_effects: Any, retry: Any, inner: Any, expected: str
) -> None:
    @heddle.tool(name="broken", side_effects="write", retry=inner)
    async def broken() -> None:
        raise OSError("the line was cut")

    outer = piped("p", Target("tool://broken"), side_effects=side_effects, retry=retry)

    result = await called([broken, outer], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("crashed", True, expected)


async def test_a_script_that_raises_has_started() -> None:
    def broken(_: Exchange) -> None:
        raise LookupError("nothing there")

    result = await called([piped("p", SetBody(1), Script(broken))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, result.started) == ("crashed", "LookupError", True)
    assert result.message == 'tool "p" raised LookupError: nothing there (step 2 of tool "p")'


async def test_a_script_may_fail_as_a_tool_does() -> None:
    def refuse(_: Exchange) -> None:
        raise heddle.ToolError("no_money", "the account is empty")

    result = await called([piped("p", Script(refuse))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, result.details) == ("tool_error", "no_money", {"step": "1"})


async def test_an_error_of_heddle_in_a_script_is_a_failure_of_the_script() -> None:
    def unwrap(_: Exchange) -> None:
        heddle.Failed(heddle.FailureKind.CRASHED, "what another runner said").unwrap()

    result = await called([piped("p", Script(unwrap))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code) == ("crashed", "ToolFailed")


@pytest.mark.parametrize("headers", [{5: 1}, {"a": {1, 2}}, None])
async def test_headers_that_json_cannot_say_do_not_leave_a_script(headers: Any) -> None:
    def change(exchange: Exchange) -> None:
        exchange.headers = headers

    result = await called([piped("p", Script(change))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.details["step"]) == ("invalid_output", "1")


async def test_what_json_cannot_say_does_not_leave_a_script() -> None:
    result = await called([piped("p", SetBody(1), Script(lambda _: {"a": {1, 2}}))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.details["step"]) == ("invalid_output", "2")


@pytest.mark.parametrize(("text", "said"), [('payload["missing"]', "missing"), ("1 // 0", "zero"), ('"a" + 1', "+")])
async def test_an_expression_that_fails_says_which_step_it_was(text: str, said: str) -> None:
    result = await called([piped("p", SetBody({}), Transform(text))], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.details["step"]) == ("crashed", False, "2")
    assert said in result.message


async def test_a_target_that_is_not_there_is_said() -> None:
    result = await called([piped("p", Target("tool://missing"))], "p")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "unknown_tool"


async def test_a_tool_that_is_declared_without_steps_is_unsupported() -> None:
    result = await called([heddle.ToolDef(name="p")], "p")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "unsupported"


async def test_the_deadline_of_a_pipeline_covers_all_of_it(toolbox: Toolbox) -> None:
    toolbox.sh("slow", "exec sleep {long}")
    steps: list[Step] = [Target("tool://slow"), SetBody("too late")]

    with trio.fail_after(10):
        result = await called([*toolbox.registry(), piped("p", *steps)], "p", limits=heddle.Limits(wall_seconds=0.3))

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started) == ("timed_out", True)
    assert toolbox.strays() == []


async def test_a_result_that_is_too_large_is_refused() -> None:
    result = await called([piped("p", SetBody("x" * 2000))], "p", limits=heddle.Limits(stdout_bytes=1000))

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.message) == (
        "too_large",
        'tool "p" returned 2,002 bytes; a result may have 1,000.',
    )


@pytest.mark.parametrize("loop", [["p"], ["a", "b", "c"]])
async def test_tools_that_call_themselves_end_with_a_clear_failure(loop: list[str]) -> None:
    tools = [piped(name, Target(f"tool://{loop[(number + 1) % len(loop)]}")) for number, name in enumerate(loop)]

    with trio.fail_after(10):
        result = await called(tools, loop[0])

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code, result.started) == ("denied", "depth", False)
    assert "16 pipelines call each other already" in result.message


async def test_routes_that_lead_to_themselves_end_with_a_clear_failure() -> None:
    routes = {"a": (Target("direct://b"),), "b": (Target("direct://a"),)}

    result = await called([piped("p", Target("direct://a"), routes=routes)], "p")

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.code) == ("denied", "depth")
    assert "32 routes lead into each other already" in result.message


async def test_depth_is_bounded_by_what_is_said_and_not_by_the_stack() -> None:
    """16 pipelines, each of which goes along 31 routes before it calls the next: as much as there may be of both."""
    names = [f"r{number}" for number in range(31)]
    tools = []
    for number in range(18):
        ends = (*(f"direct://{name}" for name in names[1:]), f"tool://p{number + 1}")
        routes = {name: (Target(end),) for name, end in zip(names, ends, strict=True)}
        tools.append(piped(f"p{number}", Target("direct://r0"), routes=routes))

    done = await called([*tools[2:], piped("p18")], "p2", {"n": 1})
    too_deep = await called([*tools, piped("p18")], "p0")

    assert done == heddle.Returned({"n": 1})
    assert isinstance(too_deep, heddle.Failed)
    assert (too_deep.kind, too_deep.code) == ("denied", "depth")


@pytest.mark.parametrize("limit", ["memory_bytes", "processes", "cpu_seconds", "open_files", "file_bytes"])
async def test_a_limit_that_only_a_process_can_be_held_to_is_refused(limit: str) -> None:
    with pytest.raises(heddle.DefinitionError, match=f"{limit} cannot be held for a pipeline"):
        heddle.Registry([piped("p", limits=heddle.Limits(**{limit: 100_000_000}))])


@pytest.mark.parametrize(("retry", "expected"), [("idempotent", "allowed"), ("manual", "blocked")])
async def test_a_part_that_is_cut_off_may_have_done_anything(toolbox: Toolbox, retry: Any, expected: str) -> None:
    """The whole is declared idempotent, and the deadline comes while a part runs that may not be."""
    toolbox.sh("slow", 'echo paid >> "$0.ledger"; exec sleep {long}')
    program = heddle.Program(toolbox.folder / "slow")
    slow = heddle.ToolDef(name="slow", implementation=program, side_effects="write", retry=retry)
    between = piped("between", Target("tool://slow"), side_effects="write", retry="idempotent")
    whole = piped("whole", Target("tool://between"), side_effects="write", retry="idempotent")

    with trio.fail_after(10):
        result = await called([slow, between, whole], "whole", limits=heddle.Limits(wall_seconds=1))

    assert isinstance(result, heddle.Failed)
    assert (result.kind, result.started, result.retry) == ("timed_out", True, expected)
    assert (toolbox.folder / "slow.ledger").read_text() == "paid\n"


# Everything is a tool


async def test_programs_functions_and_pipelines_are_called_alike(toolbox: Toolbox) -> None:
    toolbox.sh("program", """read x; echo '{"n": 7}'""")
    pipeline = piped("pipeline", Target("tool://program"), Target("tool://double"))

    async with heddle.Runner([*toolbox.registry(), double, pipeline], max_concurrent=1) as runner:
        result = await runner.call("pipeline")

    assert result == heddle.Returned({"n": 14})


async def test_a_pipeline_waits_for_no_slot_of_its_own(toolbox: Toolbox) -> None:
    """One slot for all: a pipeline that held it would wait for itself."""
    toolbox.sh("program", "echo '{}'")
    tools = [*toolbox.registry(), piped("p", Target("tool://program"), Target("tool://program"))]
    results: list[bool] = []

    async def call(runner: heddle.Runner) -> None:
        results.append((await runner.call("p")).ok)

    with trio.fail_after(20):
        async with heddle.Runner(tools, max_concurrent=1) as runner, trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call, runner)

    assert results == [True] * 5


async def test_the_parts_of_a_call_share_a_workspace(toolbox: Toolbox) -> None:
    toolbox.sh("writes", "echo '{\"n\": 3}' > file; echo '{}'")
    toolbox.sh("reads", "cat file")
    tools = [*toolbox.registry(), piped("p", Target("tool://writes"), Target("tool://reads"))]

    async with heddle.Runner(tools) as runner:
        assert await runner.call("p") == heddle.Returned({"n": 3})


async def test_the_sandbox_holds_what_a_pipeline_calls(toolbox: Toolbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    toolbox.sh("writes", f"echo x > {outside}; echo '{{}}'")
    tools = [*toolbox.registry(), piped("p", Target("tool://writes"))]

    async with heddle.Runner(tools, sandbox=heddle.Sandbox(network="none")) as runner:
        async with runner.scope(tools=["p"]) as scope:
            result = await scope.call("p")
            direct = await scope.call("writes")

    assert isinstance(direct, heddle.Failed)
    assert (direct.kind, outside.exists(), isinstance(result, heddle.Failed)) == ("denied", False, False)


async def test_the_journal_has_an_operation_of_each_part_and_repeats_none(toolbox: Toolbox, tmp_path: Path) -> None:
    """The second try of the whole finds what the first has done."""
    toolbox.sh("pay", 'echo paid >> "$0.ledger"; echo \'{"receipt": 7}\'')
    fails = [True]

    def fail_once(_: Exchange) -> None:
        if fails.pop():
            raise OSError("the line was cut")

    pay = heddle.ToolDef(
        name="pay", implementation=heddle.Program(toolbox.folder / "pay"), side_effects="write", retry="manual"
    )
    order = piped("order", Target("tool://pay"), Script(fail_once), side_effects="write", retry="idempotent")
    fails.insert(0, False)

    with Journal.open(tmp_path / "journal.db") as journal:
        async with heddle.Runner([pay, order], journal=journal) as runner:
            first = await runner.call("order", {"n": 1}, operation_id="order-17")
            second = await runner.call("order", {"n": 1}, operation_id="order-17")
        operations = {each.operation_id: str(each.state) for each in journal.operations()}

    assert (first.ok, second) == (False, heddle.Returned({"receipt": 7}))
    assert operations == {"order-17": "succeeded", "order-17/1": "succeeded"}
    assert (toolbox.folder / "pay.ledger").read_text() == "paid\n"


@pytest.mark.parametrize(("side_effects", "asked"), [("unknown", ["pay"]), ("read", ["pay"]), ("write", ["p", "pay"])])
async def test_the_host_is_asked_about_what_a_pipeline_calls(side_effects: Any, asked: list[str]) -> None:
    questions: list[str] = []

    def approve(request: ApprovalRequest) -> bool:
        questions.append(request.tool.name)
        return True

    @heddle.tool(name="pay", side_effects="write")
    async def pay() -> None: ...

    tools = [pay, piped("p", Target("tool://pay"), side_effects=side_effects)]
    async with heddle.Runner(tools, approve=approve) as runner:
        await runner.call("p")

    assert questions == asked


async def test_listeners_hear_of_the_parts() -> None:
    heard: list[tuple[str, str]] = []

    class Ear:
        def on_event(self, event: CallEvent) -> None:
            if isinstance(event, CallFinished):
                heard.append((event.tool, event.operation_id))

    tools = [double, piped("p", Target("tool://double"))]
    async with heddle.Runner(tools, listeners=[Ear()]) as runner:
        await runner.call("p", {"n": 1}, operation_id="op")

    assert heard == [("double", "op/1"), ("p", "op")]


async def test_a_long_operation_id_stays_one() -> None:
    heard: list[str] = []

    @heddle.tool(name="who")
    async def who(context: heddle.ToolContext) -> None:
        heard.append(context.operation_id)

    async with heddle.Runner([who, piped("p", Target("tool://who"))]) as runner:
        for _ in range(2):
            await runner.call("p", operation_id="x" * 254)

    assert (len(set(heard)), len(heard[0])) == (1, 64)


def test_the_other_hosts_call_pipelines_too() -> None:
    with heddle.blocking.Runner([double, piped("p", Target("tool://double"))]) as runner:
        assert runner.call("p", {"n": 21}) == heddle.Returned({"n": 42})


def test_an_asyncio_hosts_script_is_awaited_on_its_own_loop() -> None:
    loops: list[object] = []

    async def script(exchange: Exchange) -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return "done"

    async def main() -> heddle.ToolResult:
        loops.append(asyncio.get_running_loop())
        async with heddle.aio.Runner([piped("p", Script(script))]) as runner:
            return await runner.call("p")

    assert asyncio.run(main()) == heddle.Returned("done")
    assert loops[0] is loops[1]


async def test_closing_a_runner_ends_a_pipeline(toolbox: Toolbox) -> None:
    toolbox.sh("slow", "touch running; exec sleep {long}")
    tools = [*toolbox.registry(), piped("p", Target("tool://slow"))]
    raised: list[BaseException] = []

    async def call(scope: heddle.Scope) -> None:
        try:
            await scope.call("p")
        except heddle.RunnerClosed as error:
            raised.append(error)

    with trio.fail_after(10):
        async with heddle.Runner(tools) as runner, trio.open_nursery() as nursery:
            async with runner.scope() as scope:
                nursery.start_soon(call, scope)
                while not (scope.workspace.path / "running").exists():
                    await trio.sleep(0.01)

    assert len(raised) == 1
    assert toolbox.strays() == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Target("search"), "'search' is no address: write tool://NAME or direct://NAME"),
        (lambda: Target("tool://"), "the name is missing"),
        (lambda: Target("tool://search?x=1"), "takes no parameters"),
        (lambda: Target("http://search"), 'there is nothing under "http://"'),
        (lambda: Target("tool://a b"), "that cannot be a name"),
        (lambda: Transform("payload +"), ""),
        (lambda: Transform("no_such_name"), "no_such_name"),
    ],
)
def test_a_step_that_cannot_be_is_refused_when_it_is_made(make: Callable[[], Step], said: str) -> None:
    with pytest.raises((heddle.DefinitionError, ValueError)) as refused:
        make()

    assert said in str(refused.value)
