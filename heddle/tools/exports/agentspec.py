"""Tools as components of Agent Spec."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from heddle.errors import DefinitionError
from heddle.tools import wording
from heddle.tools.exports.export import Export, Exported
from heddle.tools.exports.lowering import takes_null
from heddle.tools.exports.nulls import Nulls
from heddle.tools.exports.published import RESULT, arguments_schema, result_schema
from heddle.tools.jsontypes import is_array, is_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.tools.definition import ToolDef

__all__ = ["is_title", "to_agentspec"]

# Source: Agent Spec, on the titles of properties.
_NOT_IN_TITLES = re.compile(r"[.,{} \n'\"]")
# The first version in which a tool may require confirmation.
_VERSION = "25.4.2"


def to_agentspec(tools: Iterable[ToolDef]) -> Export:
    """Return each tool as a ``ServerTool``.

    Raises:
        DefinitionError: A property's name cannot be a title there, or a schema holds itself: each property stands
            alone there, so there is no place for what it refers to.
    """
    return Export(map(_server_tool, tools))


def is_title(name: str) -> bool:
    """Return whether a name can be the title of a property there."""
    return bool(name) and not _NOT_IN_TITLES.search(name)


def _server_tool(tool: ToolDef) -> Exported:
    schema = arguments_schema(tool, inline=True)
    nulls = Nulls()
    inputs = [_input(tool, name, schema, nulls) for name in schema["properties"]]
    output, wraps = result_schema(tool, inline=True)
    if output is not None and not output.get("properties"):
        output, wraps = {"properties": {RESULT: output}}, True
    properties: dict[str, Any] = {} if output is None else output["properties"]
    component: dict[str, Any] = {
        "component_type": "ServerTool",
        "id": f"tool:{tool.name}",
        "name": tool.name,
        "description": tool.description,
        "metadata": {},
        "inputs": inputs,
        "outputs": [_property(tool, name, inner) for name, inner in properties.items()],
        "requires_confirmation": tool.side_effects != "read",
        "agentspec_version": _VERSION,
    }
    return Exported(ours=tool.name, theirs=tool.name, tool=component, nulls=nulls if nulls.names else None, wraps=wraps)


def _input(tool: ToolDef, name: str, schema: dict[str, Any], nulls: Nulls) -> dict[str, Any]:
    """Return one input. There, one with a default may be left out, and no other."""
    whole = _property(tool, name, schema["properties"][name])
    if name in schema.get("required", ()):
        whole.pop("default", None)
        return whole
    if "default" in whole:
        return whole
    if takes_null(schema["properties"][name]):
        return {**whole, "default": None}
    nulls.names.add(name)
    said = {key: item for key, item in whole.items() if key in {"title", "description"}}
    alone = {key: item for key, item in whole.items() if key not in said}
    return {**said, "anyOf": [alone, {"type": "null"}], "default": None}


def _property(tool: ToolDef, name: str, schema: Any) -> dict[str, Any]:
    if not is_title(name):
        raise DefinitionError(
            f'tool "{tool.name}" cannot be exported to Agent Spec: {wording.shown(name)} cannot be the title of a '
            "property there, which holds no space, quotes, braces, commas or dots. Rename it"
        )
    return {"title": name, **{key: item for key, item in _readable(schema).items() if key != "title"}}


def _readable(schema: Any) -> dict[str, Any]:
    """Return a schema as readers of Agent Spec take it: never a boolean, and no title that they refuse."""
    if not is_object(schema):
        return {} if schema else {"not": {}}
    whole = {key: item for key, item in schema.items() if key != "title" or is_title(item)}
    if "items" in schema:
        whole["items"] = _readable(schema["items"])
    if is_object(schema.get("additionalProperties")):
        whole["additionalProperties"] = _readable(schema["additionalProperties"])
    if is_array(schema.get("anyOf")):
        whole["anyOf"] = [_readable(inner) for inner in schema["anyOf"]]
    if is_object(schema.get("properties")):
        whole["properties"] = {name: _readable(inner) for name, inner in schema["properties"].items()}
    return whole
