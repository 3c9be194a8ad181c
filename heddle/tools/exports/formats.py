"""Tools as OpenAI, Anthropic and the Model Context Protocol take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import Notice
from heddle.tools.exports.export import Export, Exported
from heddle.tools.exports.lowering import lowered
from heddle.tools.exports.names import exported_names
from heddle.tools.exports.published import arguments_schema, result_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from heddle.tools.definition import ToolDef

__all__ = ["OpenAIApi", "Strict", "to_anthropic", "to_mcp", "to_openai"]

OpenAIApi: TypeAlias = Literal["chat", "responses"]
Strict: TypeAlias = Literal["if_possible"] | bool


def to_openai(tools: Iterable[ToolDef], *, api: OpenAIApi, strict: Strict, inline: bool) -> Export:
    """Return `tools` as chat completions or as responses take them.

    Raises:
        DefinitionError: Two names become one, a tool cannot be strict, or a reference cannot be inlined.
    """
    if api not in {"chat", "responses"}:
        raise DefinitionError(f'api must be "chat" or "responses", not {api!r:.60}')
    if not isinstance(strict, bool) and strict != "if_possible":
        raise DefinitionError(f'strict must be True, False or "if_possible", not {strict!r:.60}')

    def form(tool: ToolDef, name: str) -> Exported:
        exported = _function(tool, name, strict=strict, inline=inline)
        of_chat = {"function": exported.tool} if api == "chat" else exported.tool
        return attrs.evolve(exported, tool={"type": "function", **of_chat})

    return _plainly_named(tools, form)


def to_anthropic(tools: Iterable[ToolDef], *, inline: bool) -> Export:
    """Return `tools` as messages take them.

    Raises:
        DefinitionError: Two names become one, or a reference cannot be inlined.
    """

    def form(tool: ToolDef, name: str) -> Exported:
        whole = {**_named(tool, name), "input_schema": arguments_schema(tool, inline=inline)}
        return Exported(ours=tool.name, theirs=name, tool=whole)

    return _plainly_named(tools, form)


def to_mcp(tools: Iterable[ToolDef], *, inline: bool) -> Export:
    """Return `tools` as a server lists them.

    Raises:
        DefinitionError: A reference cannot be inlined.
    """
    return Export(_listed(tool, inline=inline) for tool in tools)


def _function(tool: ToolDef, name: str, *, strict: Strict, inline: bool) -> Exported:
    parameters = arguments_schema(tool, inline=inline)
    narrow = lowered(parameters) if strict else None
    notice = None
    if narrow is not None and narrow.faults:
        first, *others = narrow.faults
        more = f" (and {len(others)} more)" if others else ""
        notice = _not_strict(tool, f"input schema, {first}{more}")
        if strict is True:
            raise DefinitionError(f'{notice.message}. With strict="if_possible" such a tool is exported as it is')
        narrow = None
    function = {
        **_named(tool, name),
        "parameters": parameters if narrow is None else narrow.schema,
        # Said in any case: responses are strict where nothing is said.
        "strict": narrow is not None,
    }
    nulls = None if narrow is None else narrow.nulls
    return Exported(ours=tool.name, theirs=name, tool=function, nulls=nulls, notice=notice)


def _listed(tool: ToolDef, *, inline: bool) -> Exported:
    output, wraps = result_schema(tool, inline=inline)
    hints = _hints(tool)
    whole: dict[str, Any] = {
        "name": tool.name,
        **({"title": tool.title} if tool.title else {}),
        **({"description": tool.description} if tool.description else {}),
        "inputSchema": arguments_schema(tool, inline=inline),
        **({} if output is None else {"outputSchema": output}),
        **({"annotations": hints} if hints else {}),
    }
    return Exported(ours=tool.name, theirs=tool.name, tool=whole, wraps=wraps)


def _hints(tool: ToolDef) -> dict[str, Any]:
    """Return MCP's annotations. Of unknown effects nothing is said: clients expect the worst then.

    ``retry`` is about a second run under the same operation id and ``idempotentHint`` about one with the same
    arguments, so only an author can say that.
    """
    of_effects = {"read": {"readOnlyHint": True}, "write": {"readOnlyHint": False}, "unknown": {}}[tool.side_effects]
    return {**of_effects, **(tool.annotations or {})}


def _plainly_named(tools: Iterable[ToolDef], form: Callable[[ToolDef, str], Exported]) -> Export:
    chosen = list(tools)
    names = exported_names(tool.name for tool in chosen)
    return Export(form(tool, names[tool.name]) for tool in chosen)


def _named(tool: ToolDef, name: str) -> dict[str, Any]:
    return {"name": name, **({"description": tool.description} if tool.description else {})}


def _not_strict(tool: ToolDef, said: str) -> Notice:
    return Notice(
        tool.origin or tool.name, "not_strict", f'tool "{tool.name}" cannot be exported in strict mode: {said}'
    )
