"""JSON Schema: what is refused when it is compiled, what is filled in, and what is said of a value."""

from __future__ import annotations

import copy
import json
import socket
import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import validators

from heddle import strictjson
from heddle.errors import DefinitionError
from heddle.strictjson import JSON
from heddle.tools.definition import Violation
from heddle.tools.jsontypes import key_of
from heddle.tools.schemas import SchemaChecker

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def of_property(schema: object, **rest: Any) -> SchemaChecker:
    """Compile an object with the property `x`."""
    return SchemaChecker({"type": "object", "properties": {"x": schema}, **rest}, what="input schema")


def first(schema: object, value: JSON) -> tuple[str, str, str]:
    """Return path, rule and message of the first violation of `x`."""
    violation = of_property(schema).violations({"x": value})[0]
    return violation.path, violation.rule, violation.message


# What is refused when a schema is compiled


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "input schema: must be an object, not []"),
        (True, "input schema: must be an object, not True"),
        ({"type": "array"}, 'input schema, at type: must be "object", because arguments are one, not "array"'),
        (
            {"type": ["object", "null"]},
            'input schema, at type: must be "object", because arguments are one, not ["object", "null"]',
        ),
        ({"default": {1}}, "input schema: is not JSON: a value of type set, which is not JSON at $.default"),
        (
            {"properties": {"name": {"required": None}}},
            "input schema, at properties.name.required: must be an array, not null",
        ),
        (
            {"properties": {"name": {"minLength": -1}}},
            "input schema, at properties.name.minLength: cannot be -1 (minimum of the draft's own schema)",
        ),
        (
            {"$schema": DRAFT_2019, "properties": {"n": {"$ref": "#/x"}}, "x": {"properties": []}},
            "input schema, at properties.n.$ref.properties: must be an object, not an array",
        ),
        (
            {"$ref": "#/$defs/none"},
            'input schema, at $ref: "#/$defs/none" leads to nothing inside the schema, and nothing is ever fetched. '
            "Put what it means under $defs",
        ),
        (
            {"$ref": DRAFT_2020},
            f'input schema, at $ref: "{DRAFT_2020}" leads to nothing inside the schema, and nothing is ever fetched. '
            "Put what it means under $defs",
        ),
        (
            {"$defs": {"a": {"$ref": "#/$defs/a/type/x"}}},
            'input schema, at $defs.a.$ref: "#/$defs/a/type/x" leads to nothing inside the schema, and nothing is ever '
            "fetched. Put what it means under $defs",
        ),
        (
            {"title": "t", "properties": {"a b": {"$ref": "#/title"}}},
            'input schema, at properties["a b"].$ref: "#/title" leads to something that is no schema',
        ),
        (
            {"$schema": "https://example.org/schema"},
            f'input schema, at $schema: "https://example.org/schema" is not known. Use "{DRAFT_2020}", or leave it out',
        ),
        ({"$schema": 5}, f'input schema, at $schema: 5 is not known. Use "{DRAFT_2020}", or leave it out'),
        (
            {"properties": {"a": {"$schema": DRAFT_7}}},
            "input schema, at properties.a.$schema: a schema cannot mix drafts",
        ),
        (
            {"$schema": DRAFT_3, "properties": {"a": {"type": "text"}}},
            'input schema, at properties.a.type: "text" is not a type',
        ),
        (
            {"properties": {"a": {"pattern": "(a"}}},
            'input schema, at properties.a.pattern: the pattern "(a" is not one that Python\'s re can read: missing ), '
            "unterminated subpattern at position 0",
        ),
    ],
)
def test_a_wrong_schema_is_refused_with_the_place_of_the_fault(schema: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        SchemaChecker(schema, what="input schema")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"$schema": "http://["}}},
        {"$schema": "http://["},
        {"$id": "http://[", "properties": {"a": {"$ref": "b"}}},
        {"properties": {"a": {"$ref": "http://["}}},
        {"properties": {"a": {"enum": 5}}},
        {"required": "a"},
        {"$schema": DRAFT_7, "properties": {"a": {"$schema": DRAFT_7, "type": 1}}},
    ],
)
def test_no_wrong_schema_lets_another_error_out(schema: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^input schema[:,] "):
        SchemaChecker(schema, what="input schema")


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
@pytest.mark.parametrize("where", ["properties", "$defs", "by reference", "not", "items", "prefixItems"])
def test_an_exponential_pattern_is_found_wherever_it_stands(keyword: str, where: str) -> None:
    bad: Any = {keyword: "^(a+)+$" if keyword == "pattern" else {"^(a+)+$": True}}
    schemas: dict[str, Any] = {
        "properties": {"properties": {"a": bad}},
        "$defs": {"$defs": {"a": bad}},
        "by reference": {"x-shared": {"a": bad}, "properties": {"a": {"$ref": "#/x-shared/a"}}},
        "not": {"properties": {"a": {"not": {"anyOf": [True, bad]}}}},
        "items": {"properties": {"a": {"items": bad}}},
        "prefixItems": {"properties": {"a": {"prefixItems": [False, bad]}}},
    }

    with pytest.raises(DefinitionError, match=rf"\.{keyword}: the pattern .* can grow exponentially"):
        SchemaChecker(schemas[where], what="input schema")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"alice": {"$ref": "#/$defs/bob"}, "bob": {"$ref": "#/$defs/alice"}}, "$ref": "#/$defs/alice"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [True, {"$ref": "#"}]},
        {"oneOf": [{"$ref": "#"}]},
        {"not": {"$ref": "#"}},
        {"if": {"$ref": "#"}},
        {"if": True, "then": {"$ref": "#"}},
        {"if": True, "else": {"$ref": "#"}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"$dynamicAnchor": "node", "allOf": [{"$dynamicRef": "#node"}]},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"$schema": DRAFT_2019, "anyOf": [{"$recursiveRef": "#"}]},
        {"$schema": DRAFT_7, "dependencies": {"a": {"$ref": "#"}}},
        {"$schema": DRAFT_3, "extends": {"$ref": "#"}},
    ],
)
def test_a_schema_that_comes_back_to_itself_on_the_same_value_is_refused(schema: Any) -> None:
    with pytest.raises(DefinitionError, match="refers to itself without going into a property or an item"):
        SchemaChecker(schema, what="input schema")


def test_a_tree_may_refer_to_itself() -> None:
    checker = SchemaChecker(
        {
            "$defs": {
                "node": {"properties": {"children": {"items": {"$ref": "#/$defs/node"}}, "n": {"type": "integer"}}}
            },
            "$ref": "#/$defs/node",
        },
        what="input schema",
    )

    assert checker.violations({"children": [{"children": [{"n": "x"}]}]}) == (
        Violation("children[0].children[0].n", "type", "must be an integer, not a string"),
    )
    assert checker.violations({"children": [{"children": [{"n": 1}]}]}) == ()


@pytest.mark.parametrize("depth", [60, 3000])
def test_a_schema_nested_too_deeply_is_refused(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"properties": {"a": {"allOf": [schema]}}}

    with pytest.raises(DefinitionError, match="nest"):
        SchemaChecker(schema, what="input schema")


def test_a_schema_that_a_short_stack_cannot_hold_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"not": {"anyOf": [schema]}}
    found: list[str] = []

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
            return
        with pytest.raises(DefinitionError) as caught:
            SchemaChecker(schema, what="input schema")
        found.append(str(caught.value))

    thread = threading.Thread(target=deep, args=(850,))
    thread.start()
    thread.join()

    assert found == ["input schema: is nested too deeply to be checked"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n", "default": {}}}}}, "$ref": "#/$defs/n"},
        {"properties": {"a": {"default": [{}], "items": {"$ref": "#"}}}},
        {"properties": {"t": {"$ref": "#", "default": {"t": {"n": 1}}}}},
        {
            "properties": {"a": {"default": {}, "properties": {"b": {"$ref": "#/properties/a"}}}},
        },
        {"properties": {"a": {"default": {"b": [1, {}]}, "properties": {"b": {"items": {"$ref": "#"}}}}}},
    ],
)
def test_a_default_that_would_be_filled_without_an_end_is_refused(schema: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^input schema: the default of .* never ends"):
        SchemaChecker(schema, what="input schema")


def test_no_connection_is_ever_made() -> None:
    """A schema is data from elsewhere: what it names must not be fetched."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        for schema in (
            {"$ref": url},
            {"$schema": url},
            {"$id": url, "properties": {"a": {"$ref": "other.json"}}},
            {"$schema": DRAFT_7, "properties": {"a": {"$ref": url}}},
            {"properties": {"a": {"$dynamicRef": f"{url}#x"}}},
        ):
            with pytest.raises(DefinitionError):
                SchemaChecker(schema, what="input schema")
        SchemaChecker({"$id": url, "properties": {"a": {"$ref": url}}}, what="input schema").check({"a": {"a": 1}})
        server.setblocking(False)

        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_identifier_inside_the_schema_resolves() -> None:
    checker = SchemaChecker(
        {
            "$id": "https://example.org/tool/",
            "$defs": {"text": {"$id": "text", "$anchor": "t", "type": "string"}},
            "properties": {"a": {"$ref": "text"}, "b": {"$ref": "https://example.org/tool/text#t"}},
        },
        what="input schema",
    )

    assert [str(each) for each in checker.violations({"a": 1, "b": 2})] == [
        "a: must be a string, not a number",
        "b: must be a string, not a number",
    ]


def test_the_original_may_change_afterwards() -> None:
    schema: dict[str, Any] = {"properties": {"x": {"type": "string", "default": "a"}}}
    checker = SchemaChecker(schema, what="input schema")

    schema["properties"]["x"] = {"type": "integer", "default": 1}

    assert checker.check({}) == ({"x": "a"}, ())


@pytest.mark.parametrize(
    ("schema", "violations"), [(True, ()), (False, (Violation("", "not", "is what the schema rules out"),))]
)
def test_an_output_schema_may_be_a_boolean(schema: bool, violations: tuple[Violation, ...]) -> None:
    assert SchemaChecker(schema, what="output schema", root="any").violations([1]) == violations


def test_an_output_schema_may_describe_anything_but_not_be_anything() -> None:
    checker = SchemaChecker({"type": "array", "items": {"additionalProperties": False}}, what="output", root="any")

    assert checker.violations([{"n": 1}]) == (
        Violation("[0].n", "additionalProperties", "is not a known field; there are none"),
    )
    with pytest.raises(DefinitionError, match=r"^output: must be an object or a boolean, not 'x'$"):
        SchemaChecker("x", what="output", root="any")  # type: ignore[arg-type]


# Defaults


@pytest.mark.parametrize(
    ("schema", "value", "filled"),
    [
        ({"properties": {"n": {"default": 1}}}, {}, {"n": 1}),
        ({"properties": {"n": {"default": 1}}}, {"n": None}, {"n": None}),
        ({"properties": {"n": {"default": None}}}, {}, {"n": None}),
        ({"properties": {"n": {"default": 1}}, "required": ["n"]}, {}, {}),
        ({"properties": {"o": {"properties": {"n": {"default": 1}}}}}, {"o": {}}, {"o": {"n": 1}}),
        ({"properties": {"o": {"properties": {"n": {"default": 1}}}}}, {}, {}),
        ({"properties": {"o": {"default": {}, "properties": {"n": {"default": 1}}}}}, {}, {"o": {"n": 1}}),
        ({"properties": {"o": {"default": {"n": 2}, "properties": {"n": {"default": 1}}}}}, {}, {"o": {"n": 2}}),
        (
            {"properties": {"l": {"items": {"properties": {"n": {"default": 1}}}}}},
            {"l": [{}, 5, {"n": 2}]},
            {"l": [{"n": 1}, 5, {"n": 2}]},
        ),
        (
            {"properties": {"l": {"prefixItems": [True, {"properties": {"n": {"default": 1}}}]}}},
            {"l": [{}, {}, {}]},
            {"l": [{}, {"n": 1}, {}]},
        ),
        (
            {
                "properties": {
                    "l": {
                        "default": [{}],
                        "prefixItems": [{"properties": {"n": {"default": 1}}}],
                        "items": {"properties": {"m": {"default": 2}}},
                    }
                }
            },
            {"l": [{}, {}]},
            {"l": [{"n": 1}, {"m": 2}]},
        ),
        ({"$defs": {"d": {"default": 7}}, "properties": {"n": {"$ref": "#/$defs/d"}}}, {}, {"n": 7}),
        ({"$defs": {"d": {"default": 7}}, "properties": {"n": {"$ref": "#/$defs/d", "default": 8}}}, {}, {"n": 8}),
        (
            {"allOf": [{"properties": {"n": {"default": 1}}}, {"properties": {"m": {"default": 2}}}]},
            {},
            {"n": 1, "m": 2},
        ),
        ({"allOf": [{"properties": {"n": {"default": 1}}}, {"required": ["n"]}]}, {}, {}),
        ({"anyOf": [{"properties": {"n": {"default": 1}}}]}, {}, {}),
        (
            {"$schema": DRAFT_3, "properties": {"n": {"default": 1, "required": True}, "m": {"default": 2}}},
            {},
            {"m": 2},
        ),
        (
            {"$schema": DRAFT_7, "properties": {"l": {"items": [{"properties": {"n": {"default": 1}}}]}}},
            {"l": [{}, {}]},
            {"l": [{"n": 1}, {}]},
        ),
    ],
)
def test_defaults_are_filled_in_at_every_depth(schema: Any, value: Any, filled: Any) -> None:
    before = copy.deepcopy(value)

    result = SchemaChecker(schema, what="input schema").filled(value)

    assert result == filled
    assert value == before


def test_a_recursive_default_that_ends_is_filled() -> None:
    checker = SchemaChecker(
        {
            "properties": {"n": {"default": 0}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
        },
        what="input schema",
    )

    assert checker.filled({"left": {"right": {}}}) == {"left": {"right": {"n": 0}, "n": 0}, "n": 0}


def test_what_has_no_gap_comes_back_as_it_is_and_only_what_changes_is_copied() -> None:
    checker = of_property({"default": 1})
    nested = SchemaChecker(
        {"properties": {"o": {"properties": {"n": {"default": [1]}}}, "l": {"items": {"$ref": "#"}}}},
        what="input schema",
    )
    complete: dict[str, JSON] = {"x": 2}
    partly: dict[str, JSON] = {"o": {}, "l": [{"o": {"n": 1}}], "p": {"q": 1}}

    filled = nested.filled(partly)

    assert checker.filled(complete) is complete
    assert isinstance(filled, dict)
    assert filled["l"] is partly["l"]
    assert filled["p"] is partly["p"]
    assert filled["o"] is not partly["o"]
    assert partly["o"] == {}


def test_a_filled_default_is_a_copy_each_time() -> None:
    checker = of_property({"default": [[]]})

    one: Any = checker.filled({})
    one["x"][0].append("changed")

    assert checker.filled({}) == {"x": [[]]}


def test_a_default_is_judged_like_any_value() -> None:
    assert of_property({"type": "string", "default": None}).check({}) == (
        {"x": None},
        (Violation("x", "type", "must be a string, not null"),),
    )


# What is said of a value


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "number"}, "1", ("x", "type", "must be a number, not a string")),
        ({"type": "number"}, True, ("x", "type", "must be a number, not a boolean")),
        ({"type": "integer"}, 1.5, ("x", "type", "must be an integer, not 1.5")),
        ({"type": ["string", "null"]}, [], ("x", "type", "must be a string or null, not an array")),
        ({"type": "boolean"}, None, ("x", "type", "must be a boolean, not null")),
        ({"type": "array"}, {}, ("x", "type", "must be an array, not an object")),
        ({"enum": ["USD", "EUR"]}, "GBP", ("x", "enum", 'must be one of "USD", "EUR"')),
        ({"enum": [1]}, True, ("x", "enum", "must be one of 1")),
        ({"enum": list(range(40))}, 41, ("x", "enum", "must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 … (40 in all)")),
        ({"const": {"a": 1}}, 2, ("x", "const", 'must be {"a": 1}')),
        ({"minLength": 3}, "ab", ("x", "minLength", "must have at least 3 characters, not 2")),
        ({"maxLength": 1}, "ab", ("x", "maxLength", "must have at most 1 character, not 2")),
        ({"minItems": 1}, [], ("x", "minItems", "must have at least 1 item, not 0")),
        ({"maxItems": 0}, [1], ("x", "maxItems", "must have at most 0 items, not 1")),
        ({"minProperties": 2}, {}, ("x", "minProperties", "must have at least 2 properties, not 0")),
        ({"maxProperties": 1}, {"a": 1, "b": 2}, ("x", "maxProperties", "must have at most 1 property, not 2")),
        ({"minimum": 1}, 0, ("x", "minimum", "must be at least 1, not 0")),
        ({"maximum": 1}, 1.5, ("x", "maximum", "must be at most 1, not 1.5")),
        ({"exclusiveMinimum": 0}, 0, ("x", "exclusiveMinimum", "must be greater than 0, not 0")),
        ({"exclusiveMaximum": 0}, 0, ("x", "exclusiveMaximum", "must be less than 0, not 0")),
        ({"multipleOf": 5}, 7, ("x", "multipleOf", "must be a multiple of 5, not 7")),
        ({"pattern": "^a+$"}, "b", ("x", "pattern", 'must match the pattern "^a+$", unlike "b"')),
        (
            {"uniqueItems": True},
            [1, 2, 1.0],
            ("x", "uniqueItems", "must not hold an item twice: [0] and [2] are both 1.0"),
        ),
        ({"required": ["a"]}, {}, ("x.a", "required", "is required")),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ("x.b", "dependentRequired", 'is required where "a" is given')),
        (
            {"additionalProperties": False},
            {"a b": 1},
            ('x["a b"]', "additionalProperties", "is not a known argument; there are none"),
        ),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, ("x.a", "type", "must be a string, not a number")),
        (
            {"properties": {"limit": {}}, "additionalProperties": False},
            {"limt": 1},
            ("x.limt", "additionalProperties", 'is not a known argument; did you mean "limit"?'),
        ),
        (
            {"properties": {"limit": {}, "query": {}}, "unevaluatedProperties": False},
            {"other": 1},
            ("x.other", "unevaluatedProperties", 'is not a known argument; known are "limit", "query"'),
        ),
        ({"unevaluatedProperties": {"type": "string"}}, {"a": 1}, ("x.a", "type", "must be a string, not a number")),
        (
            {"prefixItems": [True], "unevaluatedItems": False},
            [1, 2],
            ("x", "unevaluatedItems", "has items that nothing in the schema describes"),
        ),
        ({"prefixItems": [True], "items": False}, [1, 2], ("x", "items", "must have at most 1 item, not 2")),
        ({"items": {"type": "string"}}, ["a", 1], ("x[1]", "type", "must be a string, not a number")),
        ({"contains": {"const": 1}}, [2], ("x", "contains", "must have at least 1 item of a certain kind, not 0")),
        (
            {"contains": {"const": 1}, "minContains": 2},
            [1],
            ("x", "minContains", "must have at least 2 items of a certain kind, not 1"),
        ),
        (
            {"contains": {"const": 1}, "maxContains": 1},
            [1, 1],
            ("x", "maxContains", "must have at most 1 item of a certain kind, not 2"),
        ),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            ("x.ab", "propertyNames", "is no name that is allowed here: it must have at most 1 character, not 2"),
        ),
        ({"not": {"type": "string"}}, "a", ("x", "not", "is what the schema rules out")),
        (False, 1, ("x", "properties", "is not allowed here")),
        ({"prefixItems": [True, False]}, [1, 2], ("x[1]", "prefixItems", "is not allowed here")),
        ({"patternProperties": {"^a": False}}, {"ab": 1}, ("x.ab", "patternProperties", "is not allowed here")),
        ({"allOf": [False]}, 1, ("x", "false", "is not allowed here")),
        (
            {"patternProperties": {"^n_": {"type": "number"}}},
            {"n_a": "1"},
            ("x.n_a", "type", "must be a number, not a string"),
        ),
        (
            {"if": {"type": "string"}, "then": {"minLength": 1}},
            "",
            ("x", "minLength", "must have at least 1 character, not 0"),
        ),
        ({"allOf": [{"type": "string"}]}, 1, ("x", "type", "must be a string, not a number")),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            5,
            ("x", "anyOf", "must be a string or null, not a number"),
        ),
        (
            {"anyOf": [{"type": ["string", "array"]}, {"type": "null"}]},
            5,
            ("x", "anyOf", "must be a string or an array or null, not a number"),
        ),
        (
            {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
            "",
            ("x", "anyOf", "must have at least 1 character, not 0"),
        ),
        ({"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}, "d", ("x", "oneOf", 'must be one of "a", "b", "c"')),
        (
            {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            1,
            ("x", "oneOf", "must fit one of 2 forms, and fits 2"),
        ),
        (
            {
                "oneOf": [
                    {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}},
                    {
                        "properties": {
                            "kind": {"const": "dog"},
                            "tail": {"type": "boolean"},
                            "legs": {"type": "integer"},
                        }
                    },
                ]
            },
            {"kind": "dog", "tail": "long", "legs": "four"},
            ("x.tail", "oneOf", "must be a boolean, not a string"),
        ),
        (
            {"type": "string", "$comment": "a" * 10_000},
            ["a" * 100] * 100,
            ("x", "type", "must be a string, not an array"),
        ),
    ],
)
def test_a_violation_says_where_what_and_how(schema: Any, value: Any, said: tuple[str, str, str]) -> None:
    assert first(schema, value) == said


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [1]}, 1.0),
        ({"const": [1.0]}, [1]),
        ({"multipleOf": 0.01}, 19.99),
        ({"multipleOf": 0.5}, 10**400),
        ({"multipleOf": 10**400}, 0.0),
        ({"minimum": 0.5}, 10**4000),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, None, False, 0, 2**70, -(2**70), "", [], {}]),
        ({"uniqueItems": False}, [1, 1]),
        ({"uniqueItems": True}, "aa"),
        ({"type": "integer"}, 5.0),
        ({"contains": {"const": 1}, "minContains": 0}, []),
        ({"contains": {"const": 1}}, "text"),
        ({"items": {"type": "string"}}, "text"),
        ({"items": False}, []),
        ({"pattern": "a"}, 1),
        ({"minimum": 5}, True),
        ({"minimum": 5}, "1"),
        ({"required": ["a"]}, 1),
        ({"dependentRequired": {"a": ["b"]}}, {"c": 1}),
        ({"dependentRequired": {"a": ["b"]}}, 1),
        ({"minLength": 5}, [1]),
        ({"multipleOf": 5}, "5"),
        ({"additionalProperties": False}, 1),
        ({"unevaluatedProperties": False}, 1),
        ({"unevaluatedItems": False}, 1),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1]),
        ({"patternProperties": {"a": False}}, 1),
        ({"patternProperties": {"^a": True}, "additionalProperties": False}, {"ab": 1}),
        ({"additionalProperties": True, "patternProperties": {"^a": True}}, {"b": 1}),
        ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, {"a": 1}),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}),
        ({"propertyNames": {"maxLength": 1}}, 1),
        ({"not": {"type": "string"}}, 1),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, 1),
        ({"anyOf": [{"type": "number"}, {"uniqueItems": True}]}, "a"),
        ({"format": "email"}, "not an address"),
        ({"x-unknown": {"type": "string"}}, 1),
        ({"type": ["string", "null"]}, None),
        (True, 1),
    ],
)
def test_what_is_valid_passes(schema: Any, value: Any) -> None:
    assert of_property(schema).violations({"x": value}) == ()


@pytest.mark.parametrize(
    ("value", "end"),
    [
        ("x" * 1000, '"' + "x" * 58 + "…"),
        (10**4000, "an integer of about 4,001 digits"),
        (list(range(1000)), "an array of 1,000 items"),
        ({str(number): 1 for number in range(1000)}, "an object of 1,000 members"),
        ([1, "a"], '[1, "a"]'),
    ],
)
def test_a_message_never_quotes_a_whole_large_value(value: Any, end: str) -> None:
    assert first({"uniqueItems": True}, [value, value])[2] == f"must not hold an item twice: [0] and [1] are both {end}"


def test_long_messages_of_jsonschema_itself_are_cut() -> None:
    schema = {"$schema": DRAFT_7, "properties": {"x": {"items": [True], "additionalItems": False}}}

    found = SchemaChecker(schema, what="input schema").violations({"x": ["a" * 1000, "b" * 1000]})

    assert [(each.path, each.rule, len(each.message)) for each in found] == [("x", "additionalItems", 500)]


def test_a_long_name_is_cut_in_a_path() -> None:
    assert first({"additionalProperties": False}, {"a" * 1000: 1})[0] == "x." + "a" * 59 + "…"


def test_all_violations_are_listed_up_to_a_hundred() -> None:
    checker = of_property({"items": {"type": "string"}})

    few = checker.violations({"x": [1] * 100})
    more = checker.violations({"x": [1] * 137})
    flood = checker.violations({"x": [1] * 5000})

    assert [each.path for each in few] == [f"x[{place}]" for place in range(100)]
    assert more[:100] == few
    assert more[100:] == (Violation("", "more", "37 more violations are not listed"),)
    assert flood[100:] == (Violation("", "more", "at least 900 more violations are not listed"),)


@pytest.mark.parametrize(("pattern", "longest"), [("^[a-z]*$", 65_536), ("[a-z]+$", 1000), ("^(.*),(.*),(.*)$", 128)])
def test_a_string_too_long_for_its_pattern_is_not_tried_on_it(pattern: str, longest: int) -> None:
    """Nothing can stop a match that has begun."""
    path, rule, message = first({"pattern": pattern}, "a" * (longest + 1))

    assert (path, rule) == ("x", "pattern")
    assert message == (
        f'has {longest + 1:,} characters, and the pattern "{pattern}" is only tried on {longest:,} at the most: '
        "matching more could take too long, and it cannot be stopped"
    )


@pytest.mark.parametrize("others", [{}, {"additionalProperties": False}, {"unevaluatedProperties": False}])
def test_a_name_too_long_for_a_pattern_is_a_violation_wherever_patterns_are_used(others: Any) -> None:
    name = "a" * 1001
    violations = of_property({"patternProperties": {"[a-z]+$": True}, **others}).violations({"x": {name: 1, "ok": 1}})

    assert {(each.path, each.rule) for each in violations} <= {
        ("x." + "a" * 59 + "…", "patternProperties"),
        ("x." + "a" * 59 + "…", "unevaluatedProperties"),
    }
    assert "its name has 1,001 characters" in violations[0].message


def test_arrays_too_long_to_be_told_apart_are_a_violation() -> None:
    assert first({"prefixItems": [True], "unevaluatedItems": False}, [1] * 5000) == (
        "x",
        "unevaluatedItems",
        "has 5,000 items, and only 4,096 can be told apart here",
    )


TREES = [
    {"properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}},
    {"properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "n": {"type": "integer"}}},
    {"properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "n": {"not": {"type": "string"}}}},
]


@pytest.mark.parametrize("schema", TREES)
def test_the_deepest_value_that_json_allows_is_judged(schema: Any) -> None:
    checker = SchemaChecker(schema, what="input schema")
    valid: JSON = {"n": 1}
    invalid: JSON = {"n": "x"}
    for _ in range(strictjson.MAX_DEPTH - 1):
        valid, invalid = {"next": valid, "n": 1}, {"next": invalid, "n": 1}

    assert checker.check(strictjson.loads(json.dumps(valid))) == (valid, ())
    assert len(checker.violations(invalid)) == 1


def test_a_value_too_deep_for_the_stack_is_a_violation() -> None:
    checker = SchemaChecker({"properties": {"next": {"oneOf": [{"$ref": "#"}]}}}, what="input schema")
    value: JSON = {}
    for _ in range(1000):
        value = {"next": value}

    assert checker.violations(value) == (Violation("", "nesting", "is nested too deeply to be checked"),)


# Drafts


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (
            {"$schema": DRAFT_4, "properties": {"x": {"minimum": 1, "exclusiveMinimum": True}}},
            1,
            "x: 1 is less than or equal to the minimum of 1",
        ),
        ({"$schema": DRAFT_3, "properties": {"x": {"divisibleBy": 5}}}, 7, "x: must be a multiple of 5, not 7"),
        (
            {"$schema": DRAFT_3, "properties": {"x": {"type": ["string", {"type": "array"}]}}},
            7,
            "x: 7 is not of type 'string', {'type': 'array'}",
        ),
        ({"$schema": DRAFT_3, "properties": {"x": {"disallow": ["number"]}}}, 7, "x: 'number' is disallowed for 7"),
        (
            {"$schema": DRAFT_7, "properties": {"x": {"items": [{"type": "string"}]}}},
            [7],
            "x[0]: must be a string, not a number",
        ),
        (
            {"$schema": DRAFT_7, "properties": {"x": {"contains": {"type": "string"}}}},
            [7],
            "x: None of [7] are valid under the given schema",
        ),
        (
            {"$schema": DRAFT_2019, "properties": {"x": {"contains": {"type": "string"}, "minContains": 2}}},
            [7],
            "x: must have at least 2 items of a certain kind, not 0",
        ),
        ({"$schema": DRAFT_2019, "properties": {"x": {"$recursiveRef": "#"}}}, {"x": {"x": 1}}, None),
        (
            {"$schema": DRAFT_2020, "properties": {"x": {"$ref": "#"}}, "additionalProperties": False},
            {"y": 1},
            'x.y: is not a known argument; known are "x"',
        ),
    ],
)
def test_a_draft_means_what_it_says(schema: Any, value: Any, message: str | None) -> None:
    found = SchemaChecker(schema, what="input schema").violations({"x": value})

    assert [str(each) for each in found] == ([] if message is None else [message])


def test_a_nested_name_of_the_same_draft_keeps_the_bounds() -> None:
    """jsonschema would change to its own keywords there."""
    checker = of_property({"$schema": DRAFT_2020, "not": {"const": 0}, "pattern": "[a-z]+$"})

    assert [each.rule for each in checker.violations({"x": "a" * 5000})] == ["pattern"]


# Properties


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a", "ab", 2**61, 2.0**61]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(values, values)
@example([True], [1])
@example({"a": 1}, {"a": 1.0})
@example(2**61 - 1, 0)
def test_keys_are_equal_exactly_where_values_are(one: JSON, other: JSON) -> None:
    assert (key_of(one) == key_of(other)) == strictjson.same(one, other)


def test_equal_hashes_do_not_slow_down_the_search_for_equal_items() -> None:
    """Python hashes every multiple of 2**61 - 1 to 0."""
    items = [number * (2**61 - 1) for number in range(1, 2000)]

    assert len({hash(key_of(item)) for item in items}) > 1900


def schemas() -> st.SearchStrategy[Any]:
    types = st.sampled_from(["string", "number", "integer", "boolean", "null", "object", "array"])
    leaves = st.one_of(
        st.booleans(),
        st.fixed_dictionaries({"type": types | st.lists(types, min_size=1, max_size=2, unique=True)}),
        st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"const": values}),
        st.fixed_dictionaries({"minimum": st.integers(-1, 2)}),
        st.sampled_from(
            [
                {"exclusiveMaximum": 1},
                {"maximum": 0.5},
                {"minLength": 1},
                {"maxLength": 1},
                {"minItems": 1},
                {"maxItems": 1},
                {"uniqueItems": True},
                {"pattern": "^a"},
                {"exclusiveMinimum": 0},
                {"$ref": "#/$defs/d"},
            ]
        ),
    )

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.fixed_dictionaries({"items": inner}),
            st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
            st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
            st.fixed_dictionaries(
                {"properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2)},
                optional={"required": st.lists(st.sampled_from("abc"), unique=True), "additionalProperties": inner},
            ),
        )

    return st.recursive(leaves, larger, max_leaves=5)


@settings(max_examples=400, deadline=None)
@given(schemas(), schemas(), values)
def test_the_quick_way_and_the_full_check_agree_with_jsonschema(schema: Any, shared: Any, value: Any) -> None:
    """With the one difference that pattern and uniqueItems are bounded, which these values do not reach."""
    whole = {"properties": {"x": schema}, "$defs": {"d": {"items": {"type": "integer"}} if shared is False else {}}}
    quick = SchemaChecker(whole, what="input schema")
    slow = SchemaChecker({**whole, "not": {"required": ["never"]}}, what="input schema")
    expected = validators.Draft202012Validator(whole).is_valid({"x": value})

    assert (quick.violations({"x": value}) == ()) == expected
    assert (slow.violations({"x": value}) == ()) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "properties",
                        "items",
                        "$ref",
                        "required",
                        "pattern",
                        "anyOf",
                        "default",
                        "enum",
                        "patternProperties",
                        "$defs",
                        "a",
                        "minimum",
                        "not",
                        "$id",
                        "$anchor",
                        "$dynamicRef",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    values,
)
def test_whatever_is_given_as_a_schema_is_compiled_or_refused(schema: Any, value: JSON) -> None:
    """Never a bare RecursionError, re.error or KeyError; and what was compiled judges every value."""
    try:
        checker = SchemaChecker(schema, what="output schema", root="any")
    except DefinitionError as error:
        assert str(error).startswith("output schema")
    else:
        filled, violations = checker.check(value)
        assert isinstance(violations, tuple)
        assert checker.filled(filled) == filled
