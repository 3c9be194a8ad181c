"""Exports: what providers are told of tools, and the way back from what a model says."""

from __future__ import annotations

import copy
import importlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle.errors import DefinitionError
from heddle.tools.definition import FieldDef, ToolDef, Validation
from heddle.tools.exports import Export
from heddle.tools.registry import Registry
from heddle.tools.schemas import SchemaChecker

PAGE = Path(__file__).parent.parent / "docs/how-to/models.md"

SEARCH = ToolDef(
    name="web.search",
    title="Search the web",
    description="Find pages.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
        "required": ["query"],
    },
    output_schema={"type": "object", "properties": {"hits": {"type": "array", "items": {"type": "string"}}}},
    side_effects="read",
)
PING = ToolDef.from_fields("ping")
UNDECLARED = ToolDef(name="anything")
TREE = ToolDef(
    name="plant",
    input_schema={
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Node"}},
        "required": ["tree"],
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "value": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
            }
        },
    },
)


@attrs.frozen
class Address:
    """Where somebody lives."""

    street: str
    floor: int = 0
    zip: str | None = None


@heddle.tool
def pay(
    amount: int,
    currency: Literal["EUR", "USD"] = "EUR",
    to: Address | None = None,
    tags: list[str] | None = None,
    at: Address = Address("here"),
) -> list[int]:
    """Pay somebody."""
    return [amount]


ALL = Registry([SEARCH, PING, UNDECLARED, TREE, pay])


def takes(properties: dict[str, Any], **more: Any) -> ToolDef:
    """Return a tool that takes these arguments."""
    return ToolDef(name="f", input_schema={"type": "object", "properties": properties, **more})


def parameters(export: Export) -> Any:
    """Return the schema of the one tool in an export to OpenAI's chat."""
    return export.tools[0]["function"]["parameters"]


# What each format has


def test_chat_completions_are_told_of_functions() -> None:
    export = Registry([SEARCH]).to_openai()

    assert export.tools == [
        {
            "type": "function",
            "function": {
                "name": "web_search",
                "description": "Find pages.",
                "parameters": SEARCH.input_schema,
                "strict": False,
            },
        }
    ]


def test_responses_are_told_the_same_without_a_level_between() -> None:
    """Where nothing is said of it, a function of responses is strict."""
    export = Registry([SEARCH]).to_openai("responses")

    assert export.tools == [
        {
            "type": "function",
            "name": "web_search",
            "description": "Find pages.",
            "parameters": SEARCH.input_schema,
            "strict": False,
        }
    ]


def test_messages_are_told_the_input_schema() -> None:
    export = Registry([SEARCH]).to_anthropic()

    assert export.tools == [{"name": "web_search", "description": "Find pages.", "input_schema": SEARCH.input_schema}]


def test_a_server_lists_title_schemas_and_hints_under_the_own_name() -> None:
    export = Registry([SEARCH]).to_mcp()

    assert export.tools == [
        {
            "name": "web.search",
            "title": "Search the web",
            "description": "Find pages.",
            "inputSchema": SEARCH.input_schema,
            "outputSchema": SEARCH.output_schema,
            "annotations": {"readOnlyHint": True},
        }
    ]


def test_agent_spec_has_a_component_whose_inputs_have_titles() -> None:
    export = Registry([SEARCH]).to_agentspec()

    assert export.tools == [
        {
            "component_type": "ServerTool",
            "id": "tool:web.search",
            "name": "web.search",
            "description": "Find pages.",
            "metadata": {},
            "inputs": [
                {"title": "query", "type": "string"},
                {"title": "limit", "type": "integer", "default": 10},
            ],
            "outputs": [{"title": "hits", "type": "array", "items": {"type": "string"}}],
            "requires_confirmation": False,
            "agentspec_version": "25.4.2",
        }
    ]


def test_a_tool_that_takes_nothing_is_a_closed_object_and_an_undeclared_one_an_open_object() -> None:
    """Never null, and never without properties: providers refuse both."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    anything = {"type": "object", "properties": {}}

    listed = Registry([PING, UNDECLARED]).to_mcp().tools

    assert [tool["inputSchema"] for tool in listed] == [nothing, anything]


@pytest.mark.parametrize(
    ("effects", "annotations", "hints"),
    [
        ("read", None, {"readOnlyHint": True}),
        ("write", None, {"readOnlyHint": False}),
        ("write", {"destructiveHint": True}, {"readOnlyHint": False, "destructiveHint": True}),
        ("unknown", {"idempotentHint": True}, {"idempotentHint": True}),
        ("unknown", None, None),
    ],
)
def test_hints_say_what_is_known_of_effects(
    effects: Literal["read", "write", "unknown"], annotations: dict[str, bool] | None, hints: dict[str, bool] | None
) -> None:
    """``retry`` is a promise per operation id, and MCP's hint one per arguments: neither follows from the other."""
    tool = ToolDef(name="f", side_effects=effects, retry="idempotent", annotations=annotations)

    assert Registry([tool]).to_mcp().tools[0].get("annotations") == hints


def test_an_export_is_yours_to_change() -> None:
    schema = copy.deepcopy(dict(SEARCH.input_schema))
    registry = Registry([attrs.evolve(SEARCH, input_schema=schema)])

    for export in (registry.to_openai(), registry.to_openai(strict=True), registry.to_mcp(), registry.to_agentspec()):
        scrawl(export.tools)

    assert schema == SEARCH.input_schema
    assert registry.to_anthropic().tools == Registry([SEARCH]).to_anthropic().tools


def scrawl(value: Any) -> None:
    """Change everything that can be changed in a value."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            scrawl(item)
        value.clear()


@pytest.mark.parametrize(("api", "strict"), [("assistants", False), ("chat", "sometimes")])
def test_what_is_asked_for_in_other_words_is_refused(api: Any, strict: Any) -> None:
    with pytest.raises(DefinitionError, match=r"must be .*, not '(assistants|sometimes)'"):
        ALL.to_openai(api, strict=strict)


# The published types of each format

Validate: TypeAlias = Callable[[Any], Any]


def published(module: str, name: str) -> Validate:
    """Return what validates a value by a type that a provider publishes, and refuses what the type does not know."""
    adapter = importlib.import_module("pydantic").TypeAdapter(getattr(importlib.import_module(module), name))
    return lambda value: adapter.validate_python(value, strict=True, extra="forbid")


@pytest.mark.parametrize("strict", [False, "if_possible"])
def test_exports_to_openai_are_of_its_types(strict: Literal[False, "if_possible"]) -> None:
    chat = published("openai.types.chat", "ChatCompletionFunctionToolParam")
    responses = published("openai.types.responses", "FunctionToolParam")

    for tool in ALL.to_openai(strict=strict).tools:
        assert chat(tool) == tool
    for tool in ALL.to_openai("responses", strict=strict).tools:
        assert responses(tool) == tool


def test_exports_to_anthropic_are_of_its_type() -> None:
    validate = published("anthropic.types", "ToolParam")

    for tool in ALL.to_anthropic().tools:
        assert validate(tool) == tool


@pytest.mark.parametrize("version", ["mcp_types._v2025_11_25", "mcp_types._v2026_07_28"])
def test_exports_to_mcp_are_of_its_type(version: str) -> None:
    """These types are made from the published schema of each version of the protocol."""
    tool_type = importlib.import_module(version).Tool

    for tool in ALL.to_mcp().tools:
        parsed = tool_type.model_validate(tool, strict=True)
        assert parsed.model_dump(by_alias=True, exclude_unset=True) == tool


# Ours. Source: Agent Spec, "ServerTool" and "Property"; written for what exports say, not for all that may be said.
COMPONENT = {
    "type": "object",
    "properties": {
        "component_type": {"const": "ServerTool"},
        "id": {"type": "string"},
        "name": {"type": "string"},
        "description": {"type": "string"},
        "metadata": {"type": "object"},
        "inputs": {"type": "array", "items": {"$ref": "#/$defs/Property"}},
        "outputs": {"type": "array", "items": {"$ref": "#/$defs/Property"}},
        "requires_confirmation": {"type": "boolean"},
        "agentspec_version": {"enum": ["25.4.2"]},
    },
    "required": ["component_type", "id", "name", "inputs", "outputs", "agentspec_version"],
    "additionalProperties": False,
    "$defs": {
        "Property": {"allOf": [{"$ref": "#/$defs/Schema"}, {"required": ["title"]}]},
        "Schema": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "pattern": "^[^.,{} \\n'\"]+$"},
                "$ref": False,
                "$defs": False,
                "items": {"$ref": "#/$defs/Schema"},
                "anyOf": {"type": "array", "items": {"$ref": "#/$defs/Schema"}},
                "properties": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Schema"}},
            },
        },
    },
}


def test_exports_to_agent_spec_are_components_of_it() -> None:
    checker = SchemaChecker(COMPONENT, what="the schema of components")
    odd = takes(
        {
            "pair": {"type": "array", "title": "Two of them", "prefixItems": [{"type": "string"}], "items": False},
            "any": True,
            "choice": {"anyOf": [True, {"type": "object", "properties": {"x": {"title": "a b"}}}]},
            "referred": {"$ref": "#/$defs/A", "description": "An A"},
        },
        **{"$defs": {"A": {"type": "string", "title": "The A"}}},
    )

    export = Registry([SEARCH, PING, pay, odd]).to_agentspec()

    assert [checker.violations(component) for component in export.tools] == [(), (), (), ()]


# Names


def test_names_lead_back() -> None:
    names = ["a.b-c_d", "plain", "x" * 65, "x" * 66, "y." * 64]
    registry = Registry([ToolDef(name=name) for name in names])

    for export in (registry.to_openai("responses"), registry.to_anthropic(), registry.to_mcp()):
        exported = [tool["name"] for tool in export.tools]
        assert [export.name_of(name) for name in exported] == names


def test_a_name_becomes_the_same_wherever_it_is_exported() -> None:
    """A digest that another process would not find, or a name that depends on the others, would break recordings."""
    names = ["a.b", "x" * 128]
    alone = [Registry([ToolDef(name=name)]).to_anthropic().tools[0]["name"] for name in names]

    together = [tool["name"] for tool in Registry([ToolDef(name=name) for name in names]).to_anthropic().tools]

    assert together == alone == ["a_b", "x" * 55 + "_24da1b81"]


def test_names_that_would_become_one_are_refused_with_both() -> None:
    registry = Registry([ToolDef(name="a.b"), ToolDef(name="a_b")])

    for export in (registry.to_openai, registry.to_anthropic):
        with pytest.raises(DefinitionError) as caught:
            export()
        assert str(caught.value) == (
            'tools "a.b" and "a_b" would both be exported as "a_b": rename one, or leave it out with Registry.restrict'
        )
    assert [tool["name"] for tool in registry.to_mcp().tools] == ["a.b", "a_b"]


def test_a_name_that_was_not_exported_leads_to_no_tool() -> None:
    """A model that names a tool it was not offered must not reach it, though the runner may have it."""
    export = ALL.restrict(["ping"]).to_openai()

    for name in ("pay", "web.search", "web_search", "nosuch"):
        with pytest.raises(KeyError, match=name):
            export.name_of(name)
        with pytest.raises(KeyError, match=name):
            export.arguments_of(name, {})


# Strict mode


def test_strict_mode_has_every_property_and_no_other() -> None:
    export = Registry([pay]).to_openai(strict=True)

    address = {
        "type": "object",
        "properties": {
            "street": {"type": "string"},
            "floor": {"type": ["integer", "null"]},
            "zip": {"type": ["string", "null"]},
        },
        "required": ["street", "floor", "zip"],
        "additionalProperties": False,
    }
    assert export.tools[0]["function"]["strict"] is True
    assert parameters(export) == {
        "type": "object",
        "properties": {
            "amount": {"type": "integer"},
            "currency": {"type": ["string", "null"], "enum": ["EUR", "USD", None]},
            "to": {"anyOf": [address, {"type": "null"}]},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "at": {"anyOf": [address, {"type": "null"}]},
        },
        "required": ["amount", "currency", "to", "tags", "at"],
        "additionalProperties": False,
    }


def test_only_the_nulls_that_strict_mode_has_made_are_dropped() -> None:
    """`to`, `tags` and `zip` may be null in their own right, and null is then what the model says."""
    export = Registry([pay]).to_openai(strict=True)
    said = {
        "amount": 1,
        "currency": None,
        "to": {"street": "a", "floor": None, "zip": None},
        "tags": None,
        "at": None,
    }
    before = copy.deepcopy(said)

    arguments = export.arguments_of("pay", said)

    assert arguments == {"amount": 1, "to": {"street": "a", "zip": None}, "tags": None}
    assert said == before


def test_a_default_comes_back_where_the_model_says_null() -> None:
    @heddle.tool
    def double(number: int = 3) -> int:
        """Double a number."""
        return 2 * number

    registry = Registry([double])
    export = registry.to_openai(strict=True)

    with heddle.blocking.Runner(registry) as runner:
        result = runner.call(export.name_of("double"), export.arguments_of("double", '{"number": null}'))

    assert result.unwrap() == {"result": 6}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": 1, "a": 2}'])
def test_what_is_no_object_comes_back_for_the_runner_to_refuse(text: str) -> None:
    assert Registry([pay]).to_openai(strict=True).arguments_of("pay", text) == text


def test_arguments_stay_as_they_are_where_nothing_was_lowered() -> None:
    arguments = {"amount": 1, "currency": None}

    assert Registry([pay]).to_openai().arguments_of("pay", arguments) is arguments


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": "string", "const": "a"}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": "a"}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"enum": ["a", 1, 2.5, True]}, {"enum": ["a", 1, 2.5, True, None], "type": [*"snib"]}),
        ({"enum": ["a", None]}, {"enum": ["a", None], "type": ["string", "null"]}),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "integer", "minimum": 1, "default": 2}, {"type": ["integer", "null"], "minimum": 1}),
        ({"type": "string", "format": "date"}, {"type": ["string", "null"], "format": "date"}),
        ({"type": "string", "format": "uri", "examples": ["x:"]}, {"type": ["string", "null"]}),
        (
            {"type": "string", "minLength": 1, "pattern": "^a"},
            {"type": ["string", "null"], "minLength": 1, "pattern": "^a"},
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "x"},
            {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "x"},
        ),
        ({"allOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"$ref": "#/$defs/A"}, {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}),
        ({"$ref": "#/$defs/A", "title": "x"}, {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "title": "x"}),
        ({"$ref": "#/$defs/MayBeNull"}, {"$ref": "#/$defs/MayBeNull"}),
        ({"$ref": "#/$defs/Other"}, {"$ref": "#/$defs/Other"}),
    ],
)
def test_an_optional_property_may_be_null(before: dict[str, Any], after: dict[str, Any]) -> None:
    definitions = {
        "A": {"type": "string"},
        "MayBeNull": {"type": ["string", "null"]},
        "Other": {"$ref": "#/$defs/MayBeNull"},
    }
    if after.get("type") == [*"snib"]:
        after = {**after, "type": ["string", "integer", "number", "boolean", "null"]}

    export = Registry([takes({"x": before}, **{"$defs": definitions})]).to_openai(strict=True)

    lowered = parameters(export)
    may_be_null = "MayBeNull" in str(after) or "Other" in str(after) or before == {"enum": ["a", None]}
    assert lowered["properties"] == {"x": after}
    assert SchemaChecker(lowered, what="lowered").violations({"x": None}) == ()
    assert export.arguments_of("f", {"x": None}) == ({"x": None} if may_be_null else {})


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        (UNDECLARED, "it takes properties of any name"),
        (takes({"kwargs": {"type": "object"}}), "at properties.kwargs: it takes properties of any name"),
        (takes({"a": {"type": "string"}}, additionalProperties=True), "it takes properties of any name"),
        (
            takes({"m": {"type": "object", "additionalProperties": {"type": "string"}}}),
            "at properties.m: it takes properties of any name",
        ),
        (
            takes({"a": {"type": "string"}}, patternProperties={"^x": {"type": "string"}}),
            "at patternProperties: strict mode does not take patternProperties",
        ),
        (takes({"any": True}), "at properties.any: it lets everything pass or nothing"),
        (takes({"any": {}}), "at properties.any: it says no type"),
        (takes({"a": {"minLength": 1}}), "at properties.a: it says no type"),
        (takes({"l": {"type": "array"}}), "at properties.l: it does not say what its items are"),
        (takes({"l": {"type": "array", "items": {}}}), "at properties.l.items: it says no type"),
        (
            takes({"l": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}),
            "at properties.l.uniqueItems: strict mode does not take uniqueItems",
        ),
        (takes({}, required=["x"], additionalProperties=False), 'at required: "x" is no property'),
        (
            takes({"a": {"type": "string"}}, anyOf=[{"required": ["a"]}]),
            "at anyOf: strict mode takes no anyOf at the root",
        ),
        (
            takes({"a": {"allOf": [{"type": "string"}, {"minLength": 1}]}}),
            "at properties.a.allOf: strict mode takes no allOf",
        ),
        (
            takes({"a": {"type": "string", "anyOf": [{"type": "string"}]}}),
            "at properties.a.type: strict mode takes no type beside anyOf",
        ),
        (
            takes({"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}),
            'at properties.b.$ref: "#/properties/a" leads into another part of the schema',
        ),
    ],
)
def test_what_strict_mode_does_not_take_is_refused_with_tool_and_place(tool: ToolDef, why: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Registry([tool]).to_openai(strict=True)

    assert str(caught.value).startswith(f'tool "{tool.name}" cannot be exported in strict mode: input schema, {why}')


def test_a_tool_that_cannot_be_strict_stays_as_it_is_on_request() -> None:
    free = takes({"options": {"type": "object"}, "any": True})

    export = Registry([SEARCH, free]).to_openai("responses", strict="if_possible")

    assert [tool["strict"] for tool in export.tools] == [True, False]
    assert export.tools[1]["parameters"] == free.input_schema
    assert export.arguments_of("f", {"options": None}) == {"options": None}
    assert [(notice.path, notice.code, notice.message) for notice in export.notices] == [
        (
            "f",
            "not_strict",
            'tool "f" cannot be exported in strict mode: input schema, at properties.options: it takes properties of '
            "any name, and strict mode wants each one named; name them, and add additionalProperties: false where "
            "there are none (and 1 more)",
        )
    ]


def test_a_tree_is_strict_at_every_level() -> None:
    export = Registry([TREE]).to_openai(strict=True)
    said: Any = {"tree": {"value": None, "children": [{"value": "a", "children": None}]}}

    assert SchemaChecker(parameters(export), what="lowered").violations(said) == ()
    assert export.arguments_of("plant", said) == {"tree": {"children": [{"value": "a"}]}}


@pytest.mark.parametrize("reference", ["#", "#/definitions/a~1b%20c"])
def test_a_schema_may_refer_to_the_whole_and_to_names_of_any_kind(reference: str) -> None:
    """`root` is what the whole is called in strict mode, unless something else is."""
    properties = {"n": {"$ref": "#/definitions/root"}, "child": {"$ref": reference}}
    definitions = {"a/b c": {"type": "object", "properties": properties}, "root": {"type": "integer"}}
    export = Registry([takes(properties, definitions=definitions)]).to_openai(strict=True)
    said: Any = {"n": None, "child": {"n": 1, "child": {"n": None, "child": None}}}

    checker = SchemaChecker(parameters(export), what="lowered")

    assert checker.violations(said) == ()
    assert [str(each) for each in checker.violations({"n": 1, "child": {"n": 1}})] == ["child.child: is required"]
    assert export.arguments_of("f", said) == {"child": {"n": 1, "child": {}}}


def test_null_is_judged_by_the_variant_that_was_said() -> None:
    """Where a cat's age is optional and a dog's may be null, null means one for the cat and the other for the dog."""
    cat = {"properties": {"is": {"const": "cat"}, "age": {"type": "integer"}}, "required": ["is"]}
    dog = {"properties": {"is": {"const": "dog"}, "age": {"type": ["integer", "null"]}}, "required": ["is", "age"]}
    export = Registry([takes({"pets": {"type": "array", "items": {"anyOf": [cat, dog]}}})]).to_openai(strict=True)

    arguments = export.arguments_of("f", {"pets": [{"is": "dog", "age": None}, {"is": "cat", "age": None}]})

    assert arguments == {"pets": [{"is": "dog", "age": None}, {"is": "cat"}]}


Drawn: TypeAlias = tuple[dict[str, Any], Any, Any]
SCALARS: list[Drawn] = [
    ({"type": "string", "title": "x"}, "a", "a"),
    ({"type": ["integer", "null"]}, None, None),
    ({"enum": ["a", 1]}, 1, 1),
    ({"const": True}, True, True),
    ({"type": "number", "default": 1.5}, 2.5, 2.5),
]


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    """Return an object's schema, a value that fits it, and how a model says that value in strict mode."""
    schemas: dict[str, Any] = {}
    value: dict[str, Any] = {}
    said: dict[str, Any] = {}
    required = []
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        schemas[name], value[name], said[name] = draw(inner)
        presence = draw(st.sampled_from(["required", "given", "absent"]))
        if presence == "required":
            required.append(name)
        elif presence == "absent" and not fits(schemas[name], None):
            del value[name]
            said[name] = None
    return {"type": "object", "properties": schemas, "required": required, "additionalProperties": False}, value, said


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    schema, value, said = draw(inner)
    return {"type": "array", "items": schema}, [value] * 2, [said] * 2


@st.composite
def choices(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    """Return a choice of objects that say what they are, so that there is no doubt which one was meant."""
    kinds = [draw(objects(inner)) for _ in range(2)]
    for number, (schema, value, said) in enumerate(kinds):
        schema["properties"]["kind"] = {"const": number}
        schema["required"].append("kind")
        value["kind"] = said["kind"] = number
    meant = draw(st.sampled_from(kinds))
    return {draw(st.sampled_from(["anyOf", "oneOf"])): [schema for schema, _, _ in kinds]}, meant[1], meant[2]


def fits(schema: dict[str, Any], value: Any) -> bool:
    return not SchemaChecker(schema, what="schema", root="any").violations(value)


ANY = st.recursive(
    st.sampled_from(SCALARS), lambda inner: objects(inner) | arrays(inner) | choices(inner), max_leaves=8
)


@settings(max_examples=100, deadline=None)
@given(objects(ANY))
def test_whatever_can_be_said_to_a_tool_can_be_said_in_strict_mode_and_comes_back(drawn: Drawn) -> None:
    schema, value, said = drawn
    export = Registry([ToolDef(name="f", input_schema=schema)]).to_openai(strict=True)

    lowered = parameters(export)

    assert faults_in_strict_mode(lowered) == []
    assert fits(lowered, said)
    assert export.arguments_of("f", said) == value


def faults_in_strict_mode(schema: dict[str, Any]) -> list[str]:
    """Return what breaks the rules of strict mode. Source: OpenAI's guide to structured outputs."""
    known = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "title"}
    faults = [keyword for keyword in schema if keyword not in known]
    if not {"type", "anyOf"} & schema.keys():
        faults.append("no type")
    if "properties" in schema:
        closed = schema["additionalProperties"] is False and schema["required"] == [*schema["properties"]]
        faults += [] if closed else ["open"]
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    parts += [schema["items"]] if "items" in schema else []
    return faults + list(itertools.chain.from_iterable(map(faults_in_strict_mode, parts)))


# Without references


def test_what_references_lead_to_is_put_in_their_places() -> None:
    text = {"type": "string", "title": "Text"}
    tool = takes(
        {"a": {"$ref": "#/$defs/A", "title": "My"}, "b": {"$ref": "#/$defs/B"}, "$ref": {"enum": [{"$ref": "#/x"}]}},
        **{"$defs": {"A": text, "B": {"type": "array", "items": {"$ref": "#/$defs/A"}}}},
    )
    registry = Registry([tool])
    whole = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "title": "My"},
            "b": {"type": "array", "items": text},
            "$ref": {"enum": [{"$ref": "#/x"}]},
        },
    }

    assert parameters(registry.to_openai(inline=True)) == whole
    assert registry.to_anthropic(inline=True).tools[0]["input_schema"] == whole
    assert registry.to_mcp(inline=True).tools[0]["inputSchema"] == whole


def test_what_stands_beside_a_reference_is_not_mixed_with_what_it_leads_to() -> None:
    """Put into one object, ``additionalProperties`` would let `b` pass, which it refuses."""
    closed = {"properties": {"a": True}, "additionalProperties": False}
    tool = takes({"x": {"$ref": "#/$defs/Closed", "properties": {"b": True}}}, **{"$defs": {"Closed": closed}})

    inlined = parameters(Registry([tool]).to_openai(inline=True))

    assert inlined["properties"]["x"] == {"allOf": [closed], "properties": {"b": True}}


def test_a_schema_that_is_a_reference_becomes_an_object_with_its_properties() -> None:
    tool = ToolDef(
        name="f", input_schema={"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"type": "string"}}}}}
    )

    inlined = parameters(Registry([tool]).to_openai(inline=True))

    assert inlined == {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize("export", [lambda registry: registry.to_openai(inline=True), Registry.to_agentspec])
def test_a_schema_that_holds_itself_is_refused_with_the_reason(export: Callable[[Registry], Export]) -> None:
    with pytest.raises(DefinitionError) as caught:
        export(Registry([TREE]))

    assert str(caught.value) == (
        'tool "plant" cannot be exported without references: input schema, at $defs.Node.properties.children.items.'
        '$ref: "#/$defs/Node" holds itself, so it cannot be put in its place. Write out as many levels as are needed, '
        "or take what is nested as a text of JSON"
    )


def test_a_few_references_cannot_become_billions_of_parts() -> None:
    """Thirty definitions that hold the next one twice: written out, a thousand million parts."""
    definitions: dict[str, Any] = {
        f"d{n}": {"properties": {each: {"$ref": f"#/$defs/d{n + 1}"} for each in "ab"}} for n in range(30)
    }
    tool = takes({"x": {"$ref": "#/$defs/d0"}}, **{"$defs": {**definitions, "d30": {"type": "string"}}})

    with pytest.raises(DefinitionError, match="more than 10,000 parts"):
        Registry([tool]).to_mcp(inline=True)


def test_a_chain_of_references_that_would_nest_too_deeply_is_refused() -> None:
    definitions: dict[str, Any] = {f"d{n}": {"contains": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(1000)}
    tool = takes({"x": {"$ref": "#/$defs/d0"}}, **{"$defs": {**definitions, "d1000": {"type": "string"}}})
    registry = Registry([tool])

    with pytest.raises(DefinitionError, match="in their places it is nested too deeply"):
        registry.to_mcp(inline=True)


@pytest.mark.parametrize(("target", "whole"), [(True, {}), (False, {"not": {}})])
def test_a_reference_to_a_boolean_becomes_a_schema_that_says_the_same(target: bool, whole: dict[str, Any]) -> None:
    tool = takes({"x": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": target}})

    assert parameters(Registry([tool]).to_openai(inline=True))["properties"]["x"] == whole


def test_a_dynamic_reference_is_not_written_out() -> None:
    tool = takes({"x": {"$dynamicRef": "#A"}}, **{"$defs": {"A": {"$dynamicAnchor": "A", "type": "string"}}})

    with pytest.raises(DefinitionError, match=r"at properties\.x\.\$dynamicRef: what it leads to depends on who asks"):
        Registry([tool]).to_openai(inline=True)


# Results


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}},
        {"type": ["object", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "object"}]},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"},
    ],
)
def test_a_result_that_may_be_no_object_goes_under_result(schema: dict[str, Any]) -> None:
    tool = ToolDef(name="f", output_schema=schema)
    export = Registry([tool]).to_mcp()

    published_schema = export.tools[0]["outputSchema"]

    own = {key: item for key, item in schema.items() if key != "$schema"}
    assert published_schema["type"] == "object"
    assert published_schema["properties"] == {"result": own}
    assert published_schema["required"] == ["result"]
    assert published_schema.get("$schema") == schema.get("$schema")
    assert export.result_of("f", {"a": 1}) == {"result": {"a": 1}}


@pytest.mark.parametrize(
    "data",
    [
        [{"next": []}],
        [{"next": [{"next": []}]}],
        [{"next": [{}]}],
        [{"next": 1}],
        [{"next": [], "mark": {"$ref": "#"}}],
        [{"next": [], "mark": {"$ref": "#/properties/result"}}],
        1,
    ],
)
def test_a_result_fits_below_result_exactly_if_it_fits_alone(data: Any) -> None:
    """References begin at the root: below ``result`` they have to lead elsewhere."""
    next_and_mark = {"next": {"$ref": "#"}, "mark": {"enum": [{"$ref": "#"}]}, "const": {"$ref": "#/$defs/const"}}
    schema = {
        "type": "array",
        "items": {"$ref": "#/$defs/const"},
        "$defs": {"const": {"type": "object", "properties": next_and_mark, "required": ["next"]}},
    }
    export = Registry([ToolDef(name="f", output_schema=schema)]).to_mcp()

    wrapped = export.result_of("f", data)

    assert fits(export.tools[0]["outputSchema"], wrapped) == fits(schema, data)


@pytest.mark.parametrize(
    ("schema", "data", "result"),
    [
        ({"type": "object"}, {"a": 1}, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
        (None, [1], {"result": [1]}),
        (True, None, {"result": None}),
        ({}, "a", {"result": "a"}),
    ],
)
def test_a_result_is_an_object_for_mcp_and_agent_spec(schema: Any, data: Any, result: Any) -> None:
    registry = Registry([ToolDef(name="f", output_schema=schema)])

    assert registry.to_mcp().result_of("f", data) == result
    assert registry.to_openai().result_of("f", data) == data
    assert ("outputSchema" in registry.to_mcp().tools[0]) == bool(isinstance(schema, dict) and schema)


def test_a_result_of_which_nothing_is_said_is_one_output() -> None:
    export = Registry([ToolDef(name="f", output_schema={"type": "object"})]).to_agentspec()

    assert export.tools[0]["outputs"] == [{"title": "result", "type": "object"}]
    assert export.result_of("f", {"a": 1}) == {"result": {"a": 1}}


# Agent Spec


def test_an_optional_input_has_a_default_there_and_is_dropped_when_it_is_that() -> None:
    """There, an input without a default has to be given."""
    tool = takes(
        {
            "must": {"type": "integer", "default": 1},
            "may": {"type": "string", "description": "Why"},
            "null": {"type": ["string", "null"]},
            "has": {"type": "integer", "default": 1},
        },
        required=["must"],
    )
    export = Registry([tool]).to_agentspec()

    assert export.tools[0]["inputs"] == [
        {"title": "must", "type": "integer"},
        {"title": "may", "description": "Why", "anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        {"title": "null", "type": ["string", "null"], "default": None},
        {"title": "has", "type": "integer", "default": 1},
    ]
    assert export.arguments_of("f", {"must": 1, "may": None, "null": None}) == {"must": 1, "null": None}


@pytest.mark.parametrize("name", ["a b", "a.b", "", 'a"'])
def test_a_name_that_cannot_be_a_title_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=r'tool "f" cannot be exported to Agent Spec: ".*" cannot be the title'):
        Registry([takes({name: {"type": "string"}})]).to_agentspec()


@pytest.mark.parametrize(("effects", "asks"), [("read", False), ("write", True), ("unknown", True)])
def test_what_may_change_something_requires_confirmation(
    effects: Literal["read", "write", "unknown"], asks: bool
) -> None:
    tool = ToolDef(name="f", side_effects=effects)

    assert Registry([tool]).to_agentspec().tools[0]["requires_confirmation"] is asks


def test_arguments_in_field_form_are_exported_as_they_are_published() -> None:
    tool = ToolDef.from_fields("f", input={"n": FieldDef("integer", required=True)}, validation=Validation(strict=True))

    assert parameters(Registry([tool]).to_openai()) == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
    }


# The how-to page


def test_the_page_on_models_does_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Its pieces run one after the other, and what each prints is compared with what is shown below it."""
    scope: dict[str, Any] = {}
    shown, seen = [], []
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        if language == "python":
            exec(text, scope)
        elif language == "text":
            shown.append(text)
            seen.append(capsys.readouterr().out)

    assert len(shown) == 3
    assert seen == shown
