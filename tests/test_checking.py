"""What stands between a call's arguments and its tool."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from heddle import strictjson
from heddle.errors import DefinitionError
from heddle.tools.checking import compile_tool, failure_text
from heddle.tools.definition import FieldDef, Rule, ToolDef, Validation, Violation
from heddle.tools.patterns import safe_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.strictjson import JSON

PAY_SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "currency": {"type": "string", "enum": ["USD", "EUR"]},
        "note": {"type": "string", "default": "-"},
    },
    "required": ["amount", "currency"],
}
POSITIVE = Rule("positive_amount", lambda args: args["amount"] > 0, "amount must be positive")  # type: ignore[operator]


def pay(**validation: Any) -> ToolDef:
    return ToolDef(name="pay", input_schema=PAY_SCHEMA, validation=Validation(**validation))


def test_valid_arguments_come_back_with_their_defaults() -> None:
    arguments: dict[str, JSON] = {"amount": 1, "currency": "EUR"}

    checked = compile_tool(pay(rules=(POSITIVE,))).check_arguments(arguments)

    assert checked == {"amount": 1, "currency": "EUR", "note": "-"}
    assert arguments == {"amount": 1, "currency": "EUR"}


def test_the_outcome_of_a_check_can_be_matched() -> None:
    seen: list[str] = []
    given: tuple[dict[str, JSON], ...] = ({"amount": 1, "currency": "EUR"}, {})
    for arguments in given:
        match compile_tool(pay()).check_arguments(arguments):
            case dict():
                seen.append("arguments")
            case tuple():
                seen.append("violations")

    assert seen == ["arguments", "violations"]


def test_all_violations_are_listed_and_the_first_is_the_message() -> None:
    one = compile_tool(pay()).check_arguments({"amount": 1, "currency": "GBP"})
    three = compile_tool(pay()).check_arguments({"amount": "1", "currency": "GBP", "note": 1})

    assert one == (Violation("currency", "enum", 'must be one of "USD", "EUR"'),)
    assert failure_text("pay", one) == 'tool "pay" input validation failed: currency: must be one of "USD", "EUR"'
    assert isinstance(three, tuple)
    assert failure_text("pay", three) == (
        'tool "pay" input validation failed: amount: must be a number, not a string (and 2 more)'
    )


def test_rules_are_asked_in_order_when_the_schema_holds() -> None:
    asked: list[str] = []

    def rule(name: str, holds: object) -> Rule:
        def check(args: Mapping[str, JSON]) -> object:
            asked.append(name)
            return holds

        return Rule(name, check, f"{name} must hold")

    compiled = compile_tool(pay(rules=(rule("one", holds=True), rule("two", holds=0), rule("three", holds=None))))

    assert compiled.check_arguments({"amount": "x", "currency": "EUR"}) == (
        Violation("amount", "type", "must be a number, not a string"),
    )
    assert asked == []
    assert compiled.check_arguments({"amount": 1, "currency": "EUR"}) == (
        Violation("", "two", "two must hold"),
        Violation("", "three", "three must hold"),
    )
    assert asked == ["one", "two", "three"]


def test_a_rule_that_raises_does_not_hold() -> None:
    def endless(args: Mapping[str, JSON]) -> object:
        return endless(args)

    rules = (Rule("missing", lambda args: args["nothing"], "there is nothing"), Rule("deep", endless, "too deep"))

    assert compile_tool(pay(rules=rules)).check_arguments({"amount": 1, "currency": "EUR"}) == (
        Violation("", "missing", "there is nothing"),
        Violation("", "deep", "too deep"),
    )


def test_a_rule_sees_the_defaults_and_cannot_change_the_arguments() -> None:
    seen: list[object] = []

    def greedy(args: Any) -> bool:
        seen.append(json.loads(json.dumps(args)))
        args["items"][0]["n"] = 99
        args.clear()
        return True

    tool = ToolDef(
        name="t",
        input_schema={"properties": {"note": {"default": "-"}}},
        validation=Validation(rules=(Rule("a", greedy, ""), Rule("b", greedy, ""))),
    )
    arguments: dict[str, JSON] = {"items": [{"n": 1}]}

    checked = compile_tool(tool).check_arguments(arguments)

    assert checked == {"items": [{"n": 1}], "note": "-"}
    assert arguments == {"items": [{"n": 1}]}
    assert seen == [checked, checked]


def test_without_the_schema_defaults_are_still_filled_and_rules_still_asked() -> None:
    compiled = compile_tool(pay(schema=False, rules=(POSITIVE,)))

    assert compiled.check_arguments({"amount": 5, "currency": 7}) == {"amount": 5, "currency": 7, "note": "-"}
    assert compiled.check_arguments({"amount": "x"}) == (Violation("", "positive_amount", "amount must be positive"),)


def test_fields_are_judged_leniently_and_strictly_where_asked() -> None:
    fields = {"n": FieldDef("integer", required=True), "when": FieldDef("date"), "m": FieldDef("string", default="x")}
    lenient = compile_tool(ToolDef.from_fields("t", input=fields))
    strict = compile_tool(ToolDef.from_fields("t", input=fields, validation=Validation(strict=True)))

    assert lenient.check_arguments({"n": 1.5, "when": 7, "m": None, "extra": 1}) == {
        "n": 1.5,
        "when": 7,
        "m": "x",
        "extra": 1,
    }
    assert strict.check_arguments({"n": 1.5}) == (Violation("n", "type", "must be an integer, not 1.5"),)


def test_an_output_is_judged_by_what_is_declared() -> None:
    nothing = compile_tool(pay())
    schema = compile_tool(ToolDef(name="t", output_schema={"properties": {"n": {"type": "integer", "default": 1}}}))
    never = compile_tool(ToolDef(name="t", output_schema=False))
    fields = compile_tool(ToolDef.from_fields("t", output={"n": FieldDef("integer", required=True)}))
    no_fields = compile_tool(ToolDef.from_fields("t"))

    assert nothing.check_output("anything") == ()
    assert schema.check_output({"n": "x"}) == (Violation("n", "type", "must be an integer, not a string"),)
    assert schema.check_output({}) == ()
    assert [each.rule for each in never.check_output({})] == ["not"]
    assert fields.check_output({}) == (Violation("n", "required", "is required"),)
    assert fields.check_output({"n": 1.5}) == ()
    assert no_fields.check_output(5) == ()


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (
            ToolDef(name="pay", input_schema={"type": "array"}),
            'tool "pay": input schema, at type: must be "object", because arguments are one, not "array"',
        ),
        (
            ToolDef(name="pay", output_schema={"properties": {"n": {"type": 5}}}),
            'tool "pay": output schema, at properties.n.type: cannot be 5 (anyOf of the draft\'s own schema)',
        ),
        (
            ToolDef(name="pay", validation=Validation(dialect="fields")),
            'tool "pay": the dialect "fields" needs input_fields: use ToolDef.from_fields',
        ),
        (
            ToolDef(
                name="pay", validation=Validation(dialect="fields"), input_fields={"n": FieldDef("string", enum=[])}
            ),
            'tool "pay": input field n: its enum is empty, so that nothing could be given',
        ),
        (
            ToolDef(
                name="pay",
                validation=Validation(dialect="fields"),
                input_fields={},
                output_fields={"n": FieldDef("string", items=FieldDef("string"))},
            ),
            'tool "pay": output field n: only the type "array" has items, not "string"',
        ),
        (
            ToolDef(name="pay", input_schema=5),  # type: ignore[arg-type]
            'tool "pay": input schema: must be an object, not 5',
        ),
    ],
)
def test_a_wrong_tool_is_refused_by_its_name(tool: ToolDef, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        compile_tool(tool)

    assert str(caught.value) == message


# Large arguments: a thread checks them, and whatever it does, the others get their turn. How long single steps take
# was measured; what is held here is that large inputs are judged at all, completely, and where a cap cuts in.


@pytest.mark.parametrize(
    ("pattern", "worst"),
    [
        (r"^(?:[a-z0-9]+-)*[a-z0-9]+$", "a"),
        (r"(?:ab|cd)+$", "ab"),
        (r"^(.*),(.*),(.*)!$", ","),
        (r"(?:\w|--)*(?:\w|--)*!", "x"),
        (r"(?:a|b|c|dd|e|f)*\d", "ab"),
    ],
)
def test_the_worst_string_at_the_cap_is_judged_and_the_next_longer_one_is_not(pattern: str, worst: str) -> None:
    compiled = compile_tool(ToolDef(name="t", input_schema={"properties": {"s": {"pattern": pattern}}}))
    longest = safe_pattern(pattern).longest
    text = (worst * longest)[: longest - 1] + "~"

    at_the_cap = compiled.check_arguments({"s": text})
    beyond = compiled.check_arguments({"s": text + "~"})

    assert isinstance(at_the_cap, tuple)
    assert isinstance(beyond, tuple)
    assert at_the_cap[0].message.startswith("must match the pattern")
    assert beyond[0].message.startswith(f"has {longest + 1:,} characters")


def test_a_mebibyte_of_arguments_is_judged_in_a_thread() -> None:
    schema = {
        "properties": {
            "rows": {
                "items": {"properties": {"n": {"type": "integer"}, "kind": {"default": "row"}}, "required": ["n"]},
                "uniqueItems": True,
                "not": {"const": []},
            },
            "text": {"type": "string", "pattern": "^a+$"},
        }
    }
    compiled = compile_tool(ToolDef(name="t", input_schema=schema))
    rows: list[JSON] = [{"n": number} for number in range(85_000)]
    arguments: dict[str, JSON] = {"rows": rows}
    found: list[object] = []

    assert len(strictjson.dumps(arguments)) > 900_000
    thread = threading.Thread(target=lambda: found.append(compiled.check_arguments(arguments)))
    thread.start()
    thread.join()

    assert found == [{"rows": [{"n": number, "kind": "row"} for number in range(85_000)]}]
    assert rows[0] == {"n": 0}
