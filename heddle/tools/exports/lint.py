"""What a provider would refuse of a tool, said before anybody asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import attrs

from heddle import strictjson
from heddle.errors import DefinitionError
from heddle.tools import wording
from heddle.tools.definition import ToolDef
from heddle.tools.exports.agentspec import is_title
from heddle.tools.exports.inlining import NEWEST_DRAFT, dialect_of, inlined
from heddle.tools.exports.lowering import lowered
from heddle.tools.exports.names import MOST_CHARACTERS, exported_name
from heddle.tools.exports.published import arguments_schema
from heddle.tools.jsontypes import is_array
from heddle.tools.subschemas import Outline, outline_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self


__all__ = ["LintFinding", "Provider", "lint"]

Provider: TypeAlias = Literal["openai", "anthropic", "mcp", "agentspec"]
PROVIDERS: tuple[Provider, ...] = get_args(Provider)

# Source for each: the message with which the provider's API refuses such a tool.
_NOT_AT_THE_ROOT: dict[str, tuple[str, ...]] = {
    "openai": ("allOf", "anyOf", "const", "enum", "not", "oneOf"),
    "anthropic": ("allOf", "anyOf", "oneOf"),
}
# Schemas in which further properties of the same object may be declared.
_SAY_MORE = frozenset({"allOf", "anyOf", "dependentSchemas", "else", "if", "oneOf", "patternProperties", "then"})
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ANTHROPIC_TAKES = "a property's name holds up to 64 letters, digits, '_', '.' and '-'"
_AGENTSPEC_TAKES = "a property's name holds no space, quotes, braces, commas or dots"
# Above it not every integer is a number of JavaScript's, and another one arrives instead. Source: ECMA-262,
# Number.MAX_SAFE_INTEGER.
_LARGEST = 2**53 - 1
_NUMBERS = ("const", "default", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum")


@attrs.frozen(order=True)
class LintFinding:
    """One thing in a tool that a provider would refuse or get wrong.

    Attributes:
        tool: Its name.
        provider: ``openai``, ``anthropic``, ``mcp`` or ``agentspec``.
        path: Where in the definition: ``name``, ``input_schema.properties.n.maximum``.
        code: A word for programs: ``name``, ``name_clash``, ``type``, ``required``, ``root``, ``items``, ``draft``,
            ``property_name``, ``reference``, ``large_integer``; in strict mode also ``open``, ``untyped`` and
            ``keyword``.
        message: What was seen, and what to do.
        mended: Whether heddle's own exports see to it, so that only who hands the definition over as it is must.
    """

    tool: str
    provider: Provider
    path: str
    code: str
    message: str
    mended: bool = False

    def __str__(self) -> str:
        return f"{self.tool}: {self.provider}: {self.path}: {self.message}"


def lint(tools: Iterable[ToolDef], provider: Provider | None, *, strict: bool) -> tuple[LintFinding, ...]:
    """Return what `provider`, or any of them, would refuse of `tools`: sorted by tool, provider and place.

    Raises:
        DefinitionError: There is no such provider.
    """
    if provider is not None and provider not in PROVIDERS:
        raise DefinitionError(f"{provider!r:.60} is no provider that is known; known are {', '.join(PROVIDERS)}")
    looks = [_Look.at(tool) for tool in tools]
    clashes = _clashes(look.tool.name for look in looks)
    findings = {
        LintFinding(look.tool.name, each, wording.in_schema(path), code, message, mended)
        for each in (PROVIDERS if provider is None else (provider,))
        for look in looks
        for path, code, message, mended in _of(look, each, clashes, strict=strict)
    }
    return tuple(sorted(findings))


@attrs.frozen(eq=False)
class _Schema:
    """One schema of a tool, and every one in it."""

    where: str
    root: dict[str, Any]
    outline: Outline

    @classmethod
    def read(cls, where: str, schema: Mapping[str, Any]) -> Self:
        root: dict[str, Any] = strictjson.normalized(schema)  # type: ignore[assignment]
        return cls(where, root, outline_of(root, dialect_of(root))[0])


@attrs.frozen(eq=False)
class _Look:
    """One tool, read once for all providers."""

    tool: ToolDef
    input: _Schema
    output: _Schema | None

    @classmethod
    def at(cls, tool: ToolDef) -> Self:
        output = tool.output_schema if isinstance(tool.output_schema, Mapping) else None
        return cls(
            tool,
            _Schema.read("input_schema", tool.input_schema),
            None if output is None else _Schema.read("output_schema", output),
        )

    @property
    def schemas(self) -> tuple[_Schema, ...]:
        return (self.input,) if self.output is None else (self.input, self.output)


# Where, a word for it, what was seen, and whether exports mend it.
_Seen: TypeAlias = "tuple[wording.Path, str, str, bool]"


def _of(look: _Look, provider: Provider, clashes: Mapping[str, str], *, strict: bool) -> Iterator[_Seen]:
    """Yield what one provider would refuse of one tool."""
    if "type" not in look.input.root:
        yield ("input_schema",), "type", 'the root does not say "type": "object"; exports add it', True
    yield from _required(look.input)
    if provider in _NOT_AT_THE_ROOT:
        yield from _name(look.tool.name, clashes)
        yield from _root(look.input.root, _NOT_AT_THE_ROOT[provider])
    match provider:
        case "openai":
            yield from _items(look.input)
            if strict:
                yield from _strict(look.tool)
        case "anthropic":
            yield from _draft(look.input.root)
            yield from _properties(look.input, lambda name: _PROPERTY.fullmatch(name) is not None, _ANTHROPIC_TAKES)
        case "mcp":
            for schema in look.schemas:
                yield from _large_integers(schema)
        case "agentspec":
            for schema in look.schemas:
                yield from _properties(schema, is_title, _AGENTSPEC_TAKES)
                yield from _references(schema)


def _clashes(names: Iterable[str]) -> dict[str, str]:
    """Return the names that cannot be exported together, each with the others."""
    together: dict[str, list[str]] = {}
    for name in names:
        together.setdefault(exported_name(name), []).append(name)
    return {
        name: " and ".join(f'"{other}"' for other in names if other != name)
        for names in together.values()
        for name in (names if len(names) > 1 else ())
    }


def _name(name: str, clashes: Mapping[str, str]) -> Iterator[_Seen]:
    exported = exported_name(name)
    if name in clashes:
        said = f'it would be exported as "{exported}", and so would {clashes[name]}; rename one'
        yield ("name",), "name_clash", said, False
    elif exported != name:
        said = f'a name holds up to {MOST_CHARACTERS} letters, digits, "_" and "-"; exports call it "{exported}"'
        yield ("name",), "name", said, True


def _root(root: Mapping[str, Any], refused: Iterable[str]) -> Iterator[_Seen]:
    for keyword in refused:
        if keyword in root:
            said = f"{keyword} is refused at the root of a schema; put it into a property"
            yield ("input_schema", keyword), "root", said, False


def _required(schema: _Schema) -> Iterator[_Seen]:
    """Yield what is required and no property, where a schema says itself which properties there are."""
    for found in schema.outline.values():
        own = found.schema
        shared = bool(found.targets) or any(keyword in _SAY_MORE for keyword, _ in found.inner)
        if shared or not is_array(own.get("required")) or ("properties" not in own and own.get("type") != "object"):
            continue
        for name in own["required"]:
            if name not in own.get("properties", {}):
                said = (
                    f"{wording.shown(name)} is required and no property: a model does not know what it is; declare it"
                )
                yield (schema.where, *found.path, "required"), "required", said, False


def _items(schema: _Schema) -> Iterator[_Seen]:
    for found in schema.outline.values():
        if found.schema.get("type") == "array" and "items" not in found.schema:
            said = "an array that does not say what its items are is refused; say it, or write {} for whatever they are"
            yield (schema.where, *found.path), "items", said, False


def _strict(tool: ToolDef) -> Iterator[_Seen]:
    for fault in lowered(arguments_schema(tool, inline=False)).faults:
        if fault.code == "required" or fault.path[:1] in {(keyword,) for keyword in _NOT_AT_THE_ROOT["openai"]}:
            continue  # told already: it is refused in any mode
        yield ("input_schema", *fault.path), fault.code, fault.message, False


def _draft(root: dict[str, Any]) -> Iterator[_Seen]:
    draft = dialect_of(root).rstrip("#")
    if draft != NEWEST_DRAFT:
        said = f"schemas are read as draft 2020-12, not as {wording.shown(draft)}; write it in that draft"
        yield ("input_schema", "$schema"), "draft", said, False


def _properties(schema: _Schema, is_taken: Callable[[str], bool], taken: str) -> Iterator[_Seen]:
    for name in schema.root.get("properties", {}):
        if not is_taken(name):
            yield (schema.where, "properties", name), "property_name", f"{taken}; rename it", False


def _references(schema: _Schema) -> Iterator[_Seen]:
    try:
        inlined(schema.root)
    except DefinitionError as error:
        yield (schema.where,), "reference", f"each property stands alone, without references: {error}", False


def _large_integers(schema: _Schema) -> Iterator[_Seen]:
    for found in schema.outline.values():
        if "integer" not in found.schema.get("type", "integer"):
            continue
        for keyword in _NUMBERS:
            values = found.schema.get(keyword)
            for value in values if is_array(values) else [values]:
                if isinstance(value, (int, float)) and abs(value) > _LARGEST:
                    said = (
                        f"{wording.shown(value)} is more than clients in JavaScript hold exactly (2**53 - 1): take "
                        "such numbers as text"
                    )
                    yield (schema.where, *found.path, keyword), "large_integer", said, False
