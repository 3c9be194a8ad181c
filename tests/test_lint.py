"""The linter: what it says of each thing that a provider refuses, and that it agrees with the exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from heddle.cli.commands import heddle
from heddle.errors import DefinitionError
from heddle.tools.definition import ToolDef
from heddle.tools.exports import LintFinding, Provider
from heddle.tools.registry import Registry
from tests.test_exports import ALL, PING, SEARCH, TREE, takes

PROVIDERS: list[Provider] = ["openai", "anthropic", "mcp", "agentspec"]


def found(tool: ToolDef, provider: Provider, *, strict: bool = False) -> list[tuple[str, str, str, bool]]:
    """Return what is found in one tool, without what is the same in all."""
    return [
        (finding.path, finding.code, finding.message, finding.mended)
        for finding in Registry([tool]).lint(provider, strict=strict)
    ]


def test_nothing_is_found_in_tools_that_every_provider_takes() -> None:
    tool = takes({"a": {"type": "array", "items": {"type": "integer", "maximum": 2**53 - 1}}}, required=["a"])

    assert Registry([tool, PING]).lint(strict=True) == ()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_required_name_that_is_no_property_is_found(provider: Provider) -> None:
    """A provider may answer with 400, and then to every request that has the tool."""
    inner = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]}
    tool = takes({"o": inner}, required=["x"])

    said = "is required and no property: a model does not know what it is; declare it"
    assert found(tool, provider) == [
        ("input_schema.properties.o.required", "required", f'"b" {said}', False),
        ("input_schema.required", "required", f'"x" {said}', False),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"properties": {"a": {"type": "string"}}}]},
        {"patternProperties": {"^a": {"type": "string"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"type": "string"}}}}},
    ],
)
def test_a_required_name_may_be_declared_elsewhere(schema: dict[str, Any]) -> None:
    assert found(takes({}, required=["a"], **schema), "mcp") == []


def test_a_condition_on_names_needs_no_properties_of_its_own() -> None:
    choice = {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}]}

    assert found(takes({"o": choice}), "mcp") == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_root_that_says_no_type_is_found_and_mended(provider: Provider) -> None:
    tool = ToolDef(name="f", input_schema={"properties": {"a": {"type": "string"}}})

    assert found(tool, provider) == [
        ("input_schema", "type", 'the root does not say "type": "object"; exports add it', True)
    ]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize(("name", "exported"), [("a.b", "a_b"), ("x" * 65, "x" * 55 + "_9537c5fd")])
def test_a_name_that_is_not_taken_is_found_and_mended(provider: Provider, name: str, exported: str) -> None:
    said = f'a name holds up to 64 letters, digits, "_" and "-"; exports call it "{exported}"'

    assert found(ToolDef(name=name), provider) == [("name", "name", said, True)]
    assert found(ToolDef(name=name), "mcp") == []


def test_names_that_would_become_one_are_found_in_each() -> None:
    findings = Registry([ToolDef(name="a.b"), ToolDef(name="a_b")]).lint("openai")

    said = 'it would be exported as "a_b", and so would "{}"; rename one'
    assert findings == (
        LintFinding("a.b", "openai", "name", "name_clash", said.format("a_b")),
        LintFinding("a_b", "openai", "name", "name_clash", said.format("a.b")),
    )


@pytest.mark.parametrize(
    ("keyword", "value", "refused_by"),
    [
        ("anyOf", [{"required": ["a"]}], ["openai", "anthropic"]),
        ("oneOf", [{"required": ["a"]}], ["openai", "anthropic"]),
        ("allOf", [{"required": ["a"]}], ["openai", "anthropic"]),
        ("not", {"required": ["b"]}, ["openai"]),
        ("enum", [{"a": "x"}], ["openai"]),
        ("const", {"a": "x"}, ["openai"]),
    ],
)
def test_what_is_refused_at_the_root_is_found_there(keyword: str, value: Any, refused_by: list[Provider]) -> None:
    tool = takes({"a": {"type": "string"}}, **{keyword: value})

    findings = Registry([tool]).lint()

    said = f"{keyword} is refused at the root of a schema; put it into a property"
    assert findings == tuple(
        LintFinding("f", provider, f"input_schema.{keyword}", "root", said) for provider in sorted(refused_by)
    )


def test_an_array_without_items_is_found_at_any_depth() -> None:
    tool = takes({"o": {"type": "object", "properties": {"l": {"type": "array"}}}})

    said = "an array that does not say what its items are is refused; say it, or write {} for whatever they are"
    assert found(tool, "openai") == [("input_schema.properties.o.properties.l", "items", said, False)]
    assert found(tool, "anthropic") == []


@pytest.mark.parametrize("name", ["filter[id]", "a b", "x" * 65, ""])
def test_a_property_that_anthropic_does_not_take_is_found(name: str) -> None:
    tool = takes({name: {"type": "string"}, "fine.1-_": {"type": "string"}})

    findings = found(tool, "anthropic")

    said = "a property's name holds up to 64 letters, digits, '_', '.' and '-'; rename it"
    assert [finding[1:] for finding in findings] == [("property_name", said, False)]


def test_another_draft_is_found() -> None:
    tool = takes({}, **{"$schema": "http://json-schema.org/draft-07/schema#"})

    said = 'schemas are read as draft 2020-12, not as "http://json-schema.org/draft-07/schema"; write it in that draft'
    assert found(tool, "anthropic") == [("input_schema.$schema", "draft", said, False)]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("maximum", 2**63 - 1),
        ("minimum", -(2**63)),
        ("enum", [1, 2**53]),
        ("default", 2**53),
        ("exclusiveMaximum", 1e19),
    ],
)
def test_an_integer_that_javascript_cannot_hold_is_found(keyword: str, value: Any) -> None:
    """It would arrive as another one, and nobody would say so."""
    schema = {"type": "integer", keyword: value}
    tool = ToolDef(
        name="f",
        input_schema={"type": "object", "properties": {"n": schema}},
        output_schema={"type": "array", "items": schema},
    )

    findings = Registry([tool]).lint()

    places = [f"input_schema.properties.n.{keyword}", f"output_schema.items.{keyword}"]
    assert [(finding.provider, finding.path, finding.code) for finding in findings] == [
        ("mcp", place, "large_integer") for place in places
    ]


@pytest.mark.parametrize("schema", [{"type": "number", "maximum": 2**60}, {"type": "integer", "minimum": -(2**53) + 1}])
def test_a_number_that_javascript_holds_as_well_as_anybody_is_not_found(schema: dict[str, Any]) -> None:
    assert found(takes({"n": schema}), "mcp") == []


@pytest.mark.parametrize("where", ["input_schema", "output_schema"])
def test_a_name_that_cannot_be_a_title_in_agent_spec_is_found(where: str) -> None:
    schemas: dict[str, Any] = {where: {"type": "object", "properties": {"a b": {"type": "string"}}}}

    said = "a property's name holds no space, quotes, braces, commas or dots; rename it"
    assert found(ToolDef(name="f", **schemas), "agentspec") == [
        (f'{where}.properties["a b"]', "property_name", said, False)
    ]


def test_a_schema_that_holds_itself_is_found_where_there_are_no_references() -> None:
    assert [finding.provider for finding in Registry([TREE]).lint()] == ["agentspec"]
    assert found(TREE, "agentspec")[0][:2] == ("input_schema", "reference")


def test_what_strict_mode_does_not_take_is_found_all_of_it() -> None:
    tool = takes({"a": {"type": "object"}, "b": {}, "c": {"type": "string", "not": {"const": "x"}}}, required=["x"])

    findings = found(tool, "openai", strict=True)

    assert [finding[:2] for finding in findings] == [
        ("input_schema.properties.a", "open"),
        ("input_schema.properties.b", "untyped"),
        ("input_schema.properties.c.not", "keyword"),
        ("input_schema.required", "required"),
    ]
    assert [finding[:2] for finding in found(tool, "openai")] == [("input_schema.required", "required")]


def test_findings_are_sorted_whatever_the_order_of_the_tools() -> None:
    tools = [*ALL, takes({"l": {"type": "array"}})]

    findings = Registry(tools).lint(strict=True)

    assert list(findings) == sorted(findings)
    assert findings == Registry(tools[::-1]).lint(strict=True)


def test_a_provider_that_is_not_known_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        ALL.lint("gemini")  # type: ignore[arg-type]

    assert str(caught.value) == ("'gemini' is no provider that is known; known are openai, anthropic, mcp, agentspec")


ODD = [
    takes({"any": True}),
    takes({"a": {"$ref": "#/properties/b"}, "b": {"type": "string"}}),
    takes({"a b": {"type": "string"}}, required=["a b"]),
    takes({"a": {"type": "string"}}, anyOf=[{"required": ["a"]}]),
    takes({"a": {"type": "string"}}, required=["b"]),
    ToolDef(name="f", input_schema={"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}),
    ToolDef(name="f", output_schema={"type": "object", "properties": {"x": {"$ref": "#"}}}),
]


@pytest.mark.parametrize("tool", [*ALL, *ODD])
def test_the_exports_refuse_exactly_what_the_linter_finds(tool: ToolDef) -> None:
    """But for what a provider refuses and heddle exports all the same."""
    registry = Registry([tool])
    strictly = [finding for finding in registry.lint("openai", strict=True) if not finding.mended]
    plainly = [finding for finding in registry.lint("agentspec") if finding.code in {"property_name", "reference"}]

    assert is_refused(lambda: registry.to_openai(strict=True)) == bool(strictly)
    assert is_refused(registry.to_agentspec) == bool(plainly)


def is_refused(export: Any) -> bool:
    try:
        export()
    except DefinitionError:
        return True
    return False


# The command line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one tool, whose name has a dot."""
    script(tmp_path, "web.search", dict(SEARCH.input_schema))
    return tmp_path


def script(folder: Path, name: str, schema: dict[str, Any]) -> None:
    (folder / f"{name}.sh").write_text("#!/bin/sh\necho '{}'\n")
    (folder / f"{name}.sh").chmod(0o755)
    (folder / f"{name}.tool.json").write_text(json.dumps({"description": "Find pages.", "inputSchema": schema}))


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Return the exit status and both streams."""
    result = CliRunner().invoke(heddle, [*map(str, arguments)], prog_name="heddle")
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_tools_of_a_folder_are_printed_as_a_provider_takes_them(folder: Path, provider: Provider) -> None:
    import heddle

    status, printed, said = run("tools", folder, "--export", provider)

    assert (status, said) == (0, "")
    assert json.loads(printed) == getattr(heddle.discover_tools(folder), f"to_{provider}")().tools


def test_an_export_that_cannot_be_is_refused_on_the_command_line(folder: Path) -> None:
    script(folder, "web_search", {"type": "object"})

    status, printed, said = run("tools", folder, "--export", "openai")

    assert (status, printed) == (2, "")
    assert said.startswith('heddle: tools "web.search" and "web_search" would both be exported as "web_search"')


def test_what_exports_mend_is_told_and_is_no_fault(folder: Path) -> None:
    said = 'a name holds up to 64 letters, digits, "_" and "-"; exports call it "web_search"'

    assert run("lint", folder) == (
        0,
        f"mended: web.search: anthropic: name: {said}\nmended: web.search: openai: name: {said}\n",
        "",
    )
    assert run("lint", folder, "--provider", "mcp") == (0, "", "")


def test_what_is_to_be_done_is_told_with_exit_status_1(folder: Path) -> None:
    """And draws nothing on the terminal."""
    script(folder, "pay", {"type": "object", "properties": {"\x1b[2J\u202e": {"type": "integer", "maximum": 2**60}}})

    status, printed, said = run("lint", folder, "--provider", "mcp")

    assert (status, said) == (1, "")
    assert printed == (
        'pay: mcp: input_schema.properties["\\u001b[2J\\u202e"].maximum: 1152921504606846976 is more than clients in '
        "JavaScript hold exactly (2**53 - 1): take such numbers as text\n"
    )


def test_findings_are_printed_as_json(folder: Path) -> None:
    script(folder, "free", {"type": "object", "properties": {"options": {"type": "object"}}})

    status, printed, said = run("lint", folder, "--provider", "openai", "--strict", "--json")

    finding = {
        "tool": "free",
        "provider": "openai",
        "path": "input_schema.properties.options",
        "code": "open",
        "message": "it takes properties of any name, and strict mode wants each one named; name them, and add "
        "additionalProperties: false where there are none",
        "mended": False,
    }
    assert (status, said) == (1, "")
    assert json.loads(printed)[0] == finding


def test_a_folder_that_cannot_be_read_is_not_linted(tmp_path: Path) -> None:
    status, printed, said = run("lint", tmp_path / "nosuch")

    assert (status, printed) == (2, "")
    assert "cannot be read" in said
