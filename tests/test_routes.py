"""Addresses and what is sent to them: bodies become arguments, violations come out as errors."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import heddle
from heddle import Exchange, FieldDef, Pipeline, RouteError, Router
from heddle.pipelines import Headers, Script, SetBody, SetHeader, Target, Transform
from heddle.pipelines.exchange import arguments_from
from tests.support import Toolbox

SEARCH = heddle.ToolDef.from_fields(
    "search",
    "Search the knowledge base",
    input={"query": FieldDef("string", required=True), "limit": FieldDef("integer", default=10)},
    implementation=Pipeline([]),
)
ANYTHING = heddle.ToolDef(name="anything", implementation=Pipeline([]))


def router(*tools: heddle.ToolDef, routes: Any = None, **options: Any) -> Router:
    return Router(heddle.Registry(tools), routes, **options)


# Bodies


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ({"query": "a"}, {"query": "a"}),
        ('{"query": "a"}', {"query": "a"}),
        (b'{"query": "a"}', {"query": "a"}),
        (bytearray(b'{"query": "a"}'), {"query": "a"}),
        ('\ufeff{"query": "a"}', {"query": "a"}),
        ("what is it?", {"input": "what is it?"}),
        ("", {"input": ""}),
        ("42", {"input": "42"}),
        ("[1]", {"input": "[1]"}),
        ('"x"', {"input": '"x"'}),
        ("null", {"input": "null"}),
        ('{"a": 1, "a": 2}', {"input": '{"a": 1, "a": 2}'}),
        ('{"a": NaN}', {"input": '{"a": NaN}'}),
        ('{"a": 1} extra', {"input": '{"a": 1} extra'}),
        (b"caf\xe9", {"input": "caf\ufffd"}),
        (None, {}),
        (5, {"input": 5}),
        ([1, 2], {"input": [1, 2]}),
        (True, {"input": True}),
    ],
)
async def test_a_body_becomes_the_arguments_of_a_tool(body: object, arguments: dict[str, Any]) -> None:
    async with router(ANYTHING) as routes:
        exchange = await routes.send("tool://anything", body)

    assert exchange.body == arguments
    assert arguments_from(body) == arguments


async def test_a_mapping_that_was_given_is_not_changed() -> None:
    def change(exchange: Exchange) -> None:
        exchange.body["list"].append(2)  # type: ignore[index, union-attr, call-overload]

    given = {"list": [1]}
    async with router(heddle.ToolDef(name="t", implementation=Pipeline([Script(change)]))) as routes:
        exchange = await routes.send("tool://t", given)

    assert (given, exchange.body) == ({"list": [1]}, {"list": [1, 2]})


async def test_the_validated_arguments_are_the_body_of_the_pipeline() -> None:
    async with router(SEARCH) as routes:
        exchange = await routes.send("tool://search", {"query": "a"})

    assert exchange == Exchange(
        body={"query": "a", "limit": 10},
        headers={"HelixToolID": "search", "HelixToolDescription": "Search the knowledge base"},
        properties={},
    )


async def test_the_names_of_the_headers_can_be_chosen() -> None:
    async with router(SEARCH, headers=Headers(tool="X-Tool", description="X-About")) as routes:
        exchange = await routes.send("tool://search", {"query": "a"})

    assert exchange.headers == {"X-Tool": "search", "X-About": "Search the knowledge base"}


# Violations


async def test_a_violation_is_an_error_that_begins_with_the_tool() -> None:
    async with router(SEARCH) as routes:
        with pytest.raises(RouteError) as refused:
            await routes.send("tool://search", {"query": 5, "limit": "ten"})

    assert str(refused.value).startswith('tool "search" input validation failed: query: ')
    assert refused.value.failed.kind == "invalid_input"
    assert [each["path"] for each in refused.value.failed.details["violations"]] == ["query", "limit"]  # type: ignore[union-attr, index, call-overload]


@pytest.mark.parametrize(
    ("declared", "given", "passes"),
    [
        ("integer", 5, True),
        ("integer", 5.0, True),
        ("integer", 5.5, True),
        ("number", 5, True),
        ("number", 5.5, True),
        ("number", True, False),
        ("integer", True, False),
        ("boolean", 1, False),
        ("boolean", True, True),
        ("string", 5, False),
        ("object", {}, True),
        ("object", [], False),
        ("array", [], True),
        ("array", {}, False),
        ("date", 5, True),
        ("email", "nobody", True),
    ],
)
async def test_types_are_as_lenient_as_they_are_said_to_be(declared: str, given: Any, passes: bool) -> None:
    tool = heddle.ToolDef.from_fields("t", input={"x": FieldDef(declared)}, implementation=Pipeline([]))

    async with router(tool) as routes:
        if passes:
            assert (await routes.send("tool://t", {"x": given})).body == {"x": given}
        else:
            with pytest.raises(RouteError, match=r'^tool "t" input validation failed: x: '):
                await routes.send("tool://t", {"x": given})


async def test_the_headers_are_set_before_the_arguments_are_judged() -> None:
    """Whoever hears of the failure can say whose it is."""
    async with router(SEARCH, routes={"ask": (SetHeader("a", 1), Target("tool://search"))}) as routes:
        with pytest.raises(RouteError) as refused:
            await routes.send("direct://ask", "no arguments of a search")

    assert refused.value.headers == {
        "a": 1,
        "HelixToolID": "search",
        "HelixToolDescription": "Search the knowledge base",
    }


@pytest.mark.parametrize("uri", ["tool://search", "direct://ask"])
@pytest.mark.parametrize("sent", [{"body": {"query": float("nan")}}, {"body": {5: 1}}, {"headers": {"a": object()}}])
async def test_what_json_cannot_say_is_not_sent(uri: str, sent: Any) -> None:
    async with router(SEARCH, routes={"ask": ()}) as routes:
        with pytest.raises(RouteError, match=f"^what was sent to {uri} is not strict JSON: ") as refused:
            await routes.send(uri, **sent)

    assert (refused.value.failed.kind, refused.value.failed.started) == ("invalid_input", False)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [(LookupError("nothing there"), "crashed", "LookupError"), (heddle.ToolError("x", "nothing"), "tool_error", "x")],
)
@pytest.mark.parametrize("waits", [False, True])
async def test_a_step_that_raises_has_failed(error: Exception, kind: str, code: str, waits: bool) -> None:
    def broken(_: Exchange) -> None:
        raise error

    async def broken_later(_: Exchange) -> None:
        raise error

    async with router(routes={"ask": (Script(broken_later if waits else broken),)}) as routes:
        with pytest.raises(RouteError, match=r"nothing.* \(step ask\.1 of direct://ask\)$") as refused:
            await routes.send("direct://ask")

    failed = refused.value.failed
    assert (failed.kind, failed.code, failed.started, failed.retry) == (kind, code, True, "blocked")


@pytest.mark.parametrize(
    ("first", "started", "retry"),
    [
        (None, False, "allowed"),
        ("manual", True, "blocked"),
        ("idempotent", True, "allowed"),
    ],
)
async def test_what_came_before_a_failure_has_started(first: Any, started: bool, retry: str) -> None:
    """The last step fails before it starts, and yet not everything may simply be sent again."""

    @heddle.tool(name="pay", side_effects="write", retry=first or "manual")
    async def pay() -> None: ...

    steps = (Target("tool://pay"),) if first else ()
    async with router(pay, SEARCH, routes={"order": (*steps, SetBody({}), Target("tool://search"))}) as routes:
        with pytest.raises(RouteError, match=r'^tool "search" input validation failed: query: ') as refused:
            await routes.send("direct://order", {})

    assert (refused.value.failed.started, refused.value.failed.retry) == (started, retry)


# Routes


async def test_a_route_takes_what_was_sent_and_gives_what_comes_out() -> None:
    steps = (SetBody({"query": "a"}), SetHeader("asked", "yes"), Target("tool://search"))

    async with router(SEARCH, routes={"ask": steps}) as routes:
        exchange = await routes.send("direct://ask", "anything", headers={"from": "ann"})

    assert exchange.body == {"query": "a", "limit": 10}
    assert exchange.headers == {
        "from": "ann",
        "asked": "yes",
        "HelixToolID": "search",
        "HelixToolDescription": "Search the knowledge base",
    }


async def test_bytes_are_text_along_a_route() -> None:
    async with router(routes={"ask": (Transform("payload + headers['mark']"),)}) as routes:
        exchange = await routes.send("direct://ask", b"caf\xc3\xa9", headers={"mark": "?"})

    assert exchange.body == "caf\u00e9?"


async def test_one_route_leads_into_another_with_the_same_exchange() -> None:
    order: list[str] = []
    routes = {
        "a": (SetHeader("a", 1), Target("direct://b"), Script(lambda _: order.append("a"))),
        "b": (SetHeader("b", 2), SetBody("of b"), Script(lambda _: order.append("b"))),
    }

    async with router(routes=routes) as opened:
        exchange = await opened.send("direct://a")

    assert (exchange.body, exchange.headers, order) == ("of b", {"a": 1, "b": 2}, ["b", "a"])


async def test_the_calls_of_one_send_share_a_workspace(toolbox: Toolbox) -> None:
    toolbox.sh("writes", "echo '{\"n\": 3}' > file; echo '{}'")
    toolbox.sh("reads", "cat file")
    routes = {"both": (Target("tool://writes"), Target("tool://reads"))}

    async with Router(toolbox.registry(), routes) as opened:
        assert (await opened.send("direct://both", {})).body == {"n": 3}


async def test_a_tool_of_any_kind_can_be_sent_to(toolbox: Toolbox) -> None:
    toolbox.sh("program", "cat")

    @heddle.tool(name="function")
    def function(a: int) -> dict[str, int]:
        return {"a": a + 1}

    async with router(*toolbox.registry(), function, ANYTHING) as routes:
        results = [(await routes.send(f"tool://{name}", {"a": 1})).body for name in ("program", "function", "anything")]

    assert results == [{"a": 1}, {"a": 2}, {"a": 1}]


async def test_a_runner_of_the_host_is_used_and_stays_open() -> None:
    async with heddle.Runner([SEARCH]) as runner:
        async with Router(runner.registry, runner=runner) as routes:
            assert (await routes.send("tool://search", {"query": "a"})).body == {"query": "a", "limit": 10}

        assert (await runner.call("search", {"query": "b"})).ok


async def test_a_router_takes_a_runner_or_what_makes_one() -> None:
    async with heddle.Runner([SEARCH]) as runner:
        with pytest.raises(TypeError, match="give a runner or its options: max_concurrent"):
            Router(runner.registry, runner=runner, max_concurrent=3)


async def test_a_router_has_to_be_open() -> None:
    routes = router(SEARCH)

    with pytest.raises(heddle.RunnerClosed, match="this router is not open"):
        await routes.send("tool://search", {"query": "a"})
    async with routes:
        with pytest.raises(heddle.RunnerClosed, match="this router is open already"):
            await routes.__aenter__()
    with pytest.raises(heddle.RunnerClosed, match="this router is not open"):
        await routes.send("tool://search", {"query": "a"})


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("tool://search?limit=1", "tool:// takes no parameters"),
        ("tool://", "the name is missing"),
        ("search", "is no address"),
        ("mail://ann", 'there is nothing under "mail://"'),
    ],
)
async def test_an_address_that_is_none_is_refused(uri: str, said: str) -> None:
    async with router(SEARCH) as routes:
        with pytest.raises(heddle.DefinitionError, match=said):
            await routes.send(uri)


@pytest.mark.parametrize(
    ("uri", "kind", "said"),
    [
        ("tool://serch", "unknown_tool", 'there is no tool "serch". Did you mean search?'),
        ("direct://nowhere", "unsupported", "there is no route direct://nowhere; there are ask"),
    ],
)
async def test_an_address_that_leads_nowhere_is_a_failure(uri: str, kind: str, said: str) -> None:
    async with router(SEARCH, routes={"ask": ()}) as routes:
        with pytest.raises(RouteError) as refused:
            await routes.send(uri)

    assert (refused.value.failed.kind, str(refused.value)) == (kind, said)


async def test_a_send_can_be_cancelled(toolbox: Toolbox) -> None:
    toolbox.sh("slow", "exec sleep {long}")

    async with Router(toolbox.registry(), {"ask": (Target("tool://slow"),)}) as routes:
        with trio.move_on_after(0.3) as cancelling:
            await routes.send("direct://ask")

    assert cancelling.cancelled_caught
    assert toolbox.strays() == []


async def test_sends_at_once_do_not_see_each_other() -> None:
    steps = (SetHeader("n", 1), Transform("payload + 1"))
    results: dict[int, Any] = {}

    async def send(routes: Router, n: int) -> None:
        results[n] = (await routes.send("direct://add", n)).body

    async with router(routes={"add": steps}) as routes, trio.open_nursery() as nursery:
        for n in range(10):
            nursery.start_soon(send, routes, n)

    assert results == {n: n + 1 for n in range(10)}


async def test_the_journal_knows_the_parts_of_a_send(tmp_path: Any) -> None:
    ran: list[int] = []

    @heddle.tool(name="pay", side_effects="write")
    async def pay() -> dict[str, int]:
        ran.append(1)
        return {"receipt": 7}

    with heddle.Journal.open(tmp_path / "journal.db") as journal:
        async with router(pay, routes={"order": (Target("tool://pay"),)}, journal=journal) as routes:
            bodies = [(await routes.send("direct://order", {}, operation_id="order-17")).body for _ in range(2)]
        names = [each.operation_id for each in journal.operations()]

    assert (bodies, ran, names) == ([{"receipt": 7}] * 2, [1], ["order-17/order.1"])
