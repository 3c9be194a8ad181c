"""Arguments in field form: what is published, what passes, and that both dialects say the same of the same fault."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest

from heddle.errors import DefinitionError
from heddle.tools.definition import UNSET, FieldDef, Violation
from heddle.tools.fields import FieldChecker, fields_from_document, schema_of
from heddle.tools.schemas import SchemaChecker

if TYPE_CHECKING:
    from heddle.strictjson import JSON

PAY = {
    "amount": FieldDef("number", required=True),
    "currency": FieldDef("string", required=True, enum=["USD", "EUR"]),
    "note": FieldDef("string", description="What it is for", default=""),
}


# A definition as it comes from code that no type checker has seen.
unchecked: Any = FieldDef


def checker(fields: dict[str, FieldDef], *, strict: bool = False) -> FieldChecker:
    return FieldChecker(fields, strict=strict)


def said(fields: dict[str, FieldDef], value: JSON, *, strict: bool = False) -> list[tuple[str, str, str]]:
    return [(each.path, each.rule, each.message) for each in checker(fields, strict=strict).violations(value)]


# What is published


def test_fields_are_published_as_a_schema_in_their_order() -> None:
    schema = schema_of(
        {
            **PAY,
            "to": FieldDef("object", fields={"name": FieldDef("string", required=True), "since": FieldDef("date")}),
            "tags": FieldDef("array", items=FieldDef("string", description="One tag"), default=[]),
            "anything": FieldDef("money", default=None),
        }
    )

    assert schema == {
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "currency": {"type": "string", "enum": ["USD", "EUR"]},
            "note": {"type": "string", "description": "What it is for", "default": ""},
            "to": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "since": {"type": "string", "format": "date"}},
                "required": ["name"],
            },
            "tags": {"type": "array", "items": {"type": "string", "description": "One tag"}, "default": []},
            "anything": {"default": None},
        },
        "required": ["amount", "currency"],
    }
    assert list(schema["properties"]) == ["amount", "currency", "note", "to", "tags", "anything"]
    SchemaChecker(schema, what="input schema")


def test_no_fields_are_any_object() -> None:
    assert schema_of({}) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "name", ["date", "email", "uri", "date-time", "time", "uuid", "hostname", "ipv4", "ipv6", "duration"]
)
def test_a_type_that_is_a_known_format_is_published_as_a_string_of_it(name: str) -> None:
    assert schema_of({"x": FieldDef(name)})["properties"] == {"x": {"type": "string", "format": name}}


def test_what_is_published_shares_nothing_with_the_definition() -> None:
    default: list[JSON] = [1]
    fields = {"x": FieldDef("array", default=default, enum=[default])}

    schema = schema_of(fields)
    default.append(2)

    assert schema["properties"]["x"] == {"type": "array", "default": [1], "enum": [[1]]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": unchecked("string", fields={})}, 'field x: only the type "object" has fields, not "string"'),
        (
            {"x": unchecked("object", items=unchecked("string"))},
            'field x: only the type "array" has items, not "object"',
        ),
        (
            {"x": unchecked("any", default=math.nan)},
            "field x: its default is not JSON: nan, which is not JSON at $",
        ),
        (
            {"x": unchecked("any", enum=[{1}])},
            "field x: its enum is not JSON: a value of type set, which is not JSON at $[0]",
        ),
        ({"x": unchecked("string", enum=[])}, "field x: its enum is empty, so that nothing could be given"),
        ({"x": unchecked("string", enum="ab")}, "field x: its enum cannot be 'ab'"),
        ({"x": unchecked("")}, "field x: its type is empty"),
        ({"x": unchecked(None)}, "field x: its type cannot be None"),
        ({"x": unchecked("string", required="yes")}, "field x: its required cannot be 'yes'"),
        ({"x": unchecked("string", description=None)}, "field x: its description cannot be None"),
        ({"x": unchecked("object", fields=[])}, "field x: its fields cannot be []"),
        ({"x": unchecked("array", items={})}, "field x: its items cannot be {}"),
        ({"x": "string"}, "the fields: must hold fields by name, not 'x': 'string'"),
        (
            {"a b": unchecked("object", fields={5: unchecked("string")})},
            'field ["a b"]: must hold fields by name, not 5: '
            "FieldDef(type='string', description='', required=False, defa",
        ),
        (
            {"x": unchecked("array", items=unchecked("object", fields={"y": unchecked("number", fields={})}))},
            'field x.items.y: only the type "object" has fields, not "number"',
        ),
    ],
)
def test_a_malformed_field_is_refused_by_its_path(fields: Any, message: str) -> None:
    for compile_fields in (schema_of, checker):
        with pytest.raises(DefinitionError) as caught:
            compile_fields(fields)

        assert str(caught.value) == message


@pytest.mark.parametrize("kind", ["object", "array"])
def test_fields_nested_beyond_any_use_are_refused(kind: str) -> None:
    field = FieldDef("string")
    document: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        field = FieldDef("object", fields={"a": field}) if kind == "object" else FieldDef("array", items=field)
        document = {"type": kind, **({"fields": {"a": document}} if kind == "object" else {"items": document})}

    with pytest.raises(DefinitionError, match="nested more than 60 levels deep"):
        schema_of({"a": field})
    with pytest.raises(DefinitionError, match="nested more than 60 levels deep"):
        fields_from_document({"a": document}, where="input")


# How values are judged


@pytest.mark.parametrize(
    ("name", "passes", "fails"),
    [
        ("string", ["", "a"], [1, True, [], {}]),
        ("number", [1, 1.5, -0.0, 10**400], ["1", True, False, math.nan, math.inf, [], {}]),
        ("integer", [1, 5.0, 1.5, 10**400], ["1", True, False, math.nan, -math.inf, []]),
        ("boolean", [True, False], [0, 1, "true"]),
        ("object", [{}, {"a": 1}], [[], "{}", 1]),
        ("array", [[], [1]], [{}, "[]"]),
        ("date", ["2020-01-01", 5, True, [], {}], []),
        ("money", [1, "x", {}], []),
    ],
)
def test_a_type_lets_pass_what_it_means(name: str, passes: list[Any], fails: list[Any]) -> None:
    fields = {"x": FieldDef(name)}

    assert [each for each in passes if said(fields, {"x": each})] == []
    assert [each for each in fails if not said(fields, {"x": each})] == []


@pytest.mark.parametrize(
    ("value", "violations"),
    [
        (5.0, []),
        (5, []),
        (1.5, [("x", "type", "must be an integer, not 1.5")]),
        (math.nan, [("x", "type", "must be an integer, not NaN")]),
    ],
)
def test_a_fraction_is_no_integer_where_it_is_strict(value: Any, violations: Any) -> None:
    assert said({"x": FieldDef("integer")}, {"x": value}, strict=True) == violations


def test_required_fields_come_first_then_each_field_with_type_enum_and_what_is_in_it() -> None:
    fields = {
        "kind": FieldDef("string", enum=["a"]),
        "to": FieldDef("object", fields={"zip": FieldDef("string"), "city": FieldDef("string", required=True)}),
        "list": FieldDef("array", items=FieldDef("integer", enum=[1])),
        "late": FieldDef("string", required=True),
        "none": FieldDef("string", required=True),
    }

    found = said(fields, {"kind": "b", "to": {"zip": 5}, "list": [1, 2, "x", None], "none": None, "extra": 1})

    assert found == [
        ("late", "required", "is required"),
        ("none", "required", "is required and cannot be null"),
        ("kind", "enum", 'must be one of "a"'),
        ("to.city", "required", "is required"),
        ("to.zip", "type", "must be a string, not a number"),
        ("list[1]", "enum", "must be one of 1"),
        ("list[2]", "type", "must be an integer, not a string"),
        ("list[3]", "type", "must be an integer, not null"),
    ]


def test_an_enum_compares_as_json() -> None:
    fields = {"x": FieldDef("any", enum=[1, "a", [True]])}

    assert said(fields, {"x": 1.0}) == said(fields, {"x": [True]}) == []
    assert said(fields, {"x": True}) == said(fields, {"x": [1]}) == [("x", "enum", 'must be one of 1, "a", [true]')]


def test_what_is_no_object_is_one_violation() -> None:
    assert checker(PAY).check([1]) == ([1], (Violation("", "type", "must be an object, not an array"),))


def test_what_is_not_declared_passes_and_stays() -> None:
    value: JSON = {"amount": 1, "currency": "EUR", "note": "x", "extra": {"a": None}, "more": None}

    assert checker(PAY).check(value) == (value, ())


def test_a_flood_of_violations_is_only_counted() -> None:
    found = said({"x": FieldDef("array", items=FieldDef("string"))}, {"x": [1] * 2000})

    assert len(found) == 101
    assert found[100] == ("", "more", "at least 900 more violations are not listed")


@pytest.mark.parametrize(
    ("field", "value", "filled"),
    [
        (FieldDef("integer", default=10), {}, {"x": 10}),
        (FieldDef("integer", default=10), {"x": None}, {"x": 10}),
        (FieldDef("integer", default=10, required=True), {}, {}),
        (FieldDef("integer", default=10, required=True), {"x": None}, {"x": None}),
        (FieldDef("integer"), {"x": None, "y": None}, {"y": None}),
        (FieldDef("any", default=None), {}, {"x": None}),
        (FieldDef("object", fields={"y": FieldDef("any", default=1)}), {}, {}),
        (FieldDef("object", fields={"y": FieldDef("any", default=1)}), {"x": {}}, {"x": {"y": 1}}),
        (FieldDef("object", fields={"y": FieldDef("any", default=1)}), {"x": 5}, {"x": 5}),
        (FieldDef("object", default={}, fields={"y": FieldDef("any", default=1)}), {}, {"x": {"y": 1}}),
        (
            FieldDef("array", items=FieldDef("object", fields={"y": FieldDef("any", default=1)})),
            {"x": [{}, {"y": None}, {"y": 2}, None]},
            {"x": [{"y": 1}, {"y": 1}, {"y": 2}, None]},
        ),
    ],
)
def test_a_default_is_filled_in_where_an_optional_field_is_absent_or_null(
    field: FieldDef, value: Any, filled: JSON
) -> None:
    before = copy.deepcopy(value)

    assert checker({"x": field}).filled(value) == filled
    assert value == before


def test_what_has_no_gap_comes_back_as_it_is() -> None:
    fields = {"l": FieldDef("array", items=FieldDef("object", fields={"n": FieldDef("any", default=1)}))}
    value: JSON = {"l": [{"n": 2}], "other": 1}

    assert checker(fields).filled(value) is value


def test_a_filled_default_is_a_copy_each_time_and_the_definition_may_change() -> None:
    default: list[JSON] = [1]
    judge = checker({"x": FieldDef("array", default=default)})

    default.append(2)
    one: Any = judge.filled({})
    one["x"].append(3)

    assert judge.filled({}) == {"x": [1]}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (FieldDef("string", default=5), "field x: its default would not pass: must be a string, not a number"),
        (
            FieldDef("string", default="c", enum=["a", "b"]),
            'field x: its default would not pass: must be one of "a", "b"',
        ),
        (
            FieldDef("object", fields={"y": FieldDef("integer")}, default={"y": "a"}),
            "field x: its default would not pass: y: must be an integer, not a string",
        ),
        (
            FieldDef("array", items=FieldDef("object", fields={"y": FieldDef("integer", default="a")})),
            "field x.items.y: its default would not pass: must be an integer, not a string",
        ),
    ],
)
def test_a_default_that_would_not_pass_is_refused(field: FieldDef, said: str) -> None:
    """It would fail calls whose callers have not given it."""
    with pytest.raises(DefinitionError) as refused:
        checker({"x": field})

    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (FieldDef("string", required=True), {}),
        (FieldDef("string"), {"x": 5}),
        (FieldDef("string"), {"x": True}),
        (FieldDef("number"), {"x": "5"}),
        (FieldDef("integer"), {"x": 1.5}),
        (FieldDef("boolean"), {"x": 0}),
        (FieldDef("object"), {"x": []}),
        (FieldDef("array"), {"x": {}}),
        (FieldDef("string", enum=["USD", "EUR"]), {"x": "GBP"}),
        (FieldDef("any", enum=list(range(30))), {"x": "GBP"}),
        (FieldDef("object", fields={"a b": FieldDef("string", required=True)}), {"x": {}}),
        (FieldDef("array", items=FieldDef("string")), {"x": ["a", 5]}),
    ],
)
def test_both_dialects_say_the_same_of_the_same_fault(field: FieldDef, value: JSON) -> None:
    fields = {"x": field}
    as_schema = SchemaChecker(schema_of(fields), what="input schema").violations(value)

    assert len(as_schema) == 1
    assert FieldChecker(fields, strict=True).violations(value) == as_schema


# How fields are read from a document


def test_a_document_gives_fields() -> None:
    fields = fields_from_document(
        {
            "query": {"type": "string", "description": "What to look for", "required": True, "enum": ["a", "b"]},
            "limit": {"type": "integer", "default": 10},
            "none": {"type": "any", "default": None, "enum": None, "fields": None, "items": None},
            "to": {"type": "object", "fields": {"city": {"type": "string"}}},
            "tags": {"type": "array", "items": {"type": "object", "fields": {"n": {"type": "number"}}}},
        },
        where="input",
    )

    assert fields == {
        "query": FieldDef("string", description="What to look for", required=True, enum=["a", "b"]),
        "limit": FieldDef("integer", default=10),
        "none": FieldDef("any", default=None),
        "to": FieldDef("object", fields={"city": FieldDef("string")}),
        "tags": FieldDef("array", items=FieldDef("object", fields={"n": FieldDef("number")})),
    }
    assert list(fields) == ["query", "limit", "none", "to", "tags"]
    assert fields["query"].default is UNSET


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"q": {"type": "string", "requird": True}},
            "pay.yaml, input: field q: unknown key 'requird'; did you mean \"required\"?",
        ),
        (
            {"q": {"type": "string", "x": True}},
            "pay.yaml, input: field q: unknown key 'x'; "
            "known are type, description, required, default, enum, fields, items",
        ),
        ({"q": {"description": "a"}}, "pay.yaml, input: field q: its type is missing"),
        ({"q": "string"}, "pay.yaml, input: field q: must hold its type and other parts by name, not 'string'"),
        ([], "pay.yaml, input: the fields: must hold fields by name, not []"),
        ({5: {"type": "string"}}, "pay.yaml, input: the fields: a field's name must be a string, not 5"),
        ({"": {"type": "string"}}, "pay.yaml, input: the fields: must hold fields by name, not '': FieldDef("),
        ({"q": {"type": "object", "fields": []}}, "pay.yaml, input: field q: must hold fields by name, not []"),
        (
            {"q": {"type": "array", "items": "string"}},
            "pay.yaml, input: field q.items: must hold its type and other parts by name, not 'string'",
        ),
        ({"q": {"type": "string", "required": "yes"}}, "pay.yaml, input: field q: its required cannot be 'yes'"),
        ({"q": {"type": "string", 5: 1}}, "pay.yaml, input: field q: unknown key '5'; known are type"),
        ({"q": {"type": ["string"]}}, "pay.yaml, input: field q: its type cannot be ['string']"),
    ],
)
def test_a_malformed_document_is_refused_with_the_place_and_the_nearest_key(document: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        fields_from_document(document, where="pay.yaml, input")

    assert str(caught.value).startswith(message)
