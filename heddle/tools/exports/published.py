"""What callers are told of a tool's arguments and results, before a format makes it its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heddle import strictjson
from heddle.errors import DefinitionError
from heddle.tools.exports.inlining import dialect_of, inlined
from heddle.tools.jsontypes import is_array, is_object
from heddle.tools.subschemas import Outline, outline_of

if TYPE_CHECKING:
    from heddle.tools.definition import ToolDef

__all__ = ["RESULT", "arguments_schema", "result_schema"]

RESULT = "result"


def arguments_schema(tool: ToolDef, *, inline: bool) -> dict[str, Any]:
    """Return an object's schema for the arguments, with its properties, even where there are none.

    A tool that is declared to take nothing is a closed object; one of which nothing is declared stays open.

    Raises:
        DefinitionError: A reference cannot be inlined.
    """
    schema = _plain(tool, "input schema", tool.input_schema, inline=inline)
    if tool.validation.dialect == "fields" and not tool.input_fields:
        schema = {**schema, "additionalProperties": False}
    return {"type": "object", "properties": {}, **schema}


def result_schema(tool: ToolDef, *, inline: bool) -> tuple[dict[str, Any] | None, bool | None]:
    """Return an object's schema for the results, and whether they go under ``result`` to fit it.

    Both are None where nothing is declared: a result that is no object goes there then.

    Raises:
        DefinitionError: A reference cannot be inlined.
    """
    if not isinstance(tool.output_schema, Mapping) or not tool.output_schema:
        return None, None
    schema = _plain(tool, "output schema", tool.output_schema, inline=inline)
    if schema.get("type") == "object":
        return schema, False
    moved = _below_result(schema)
    draft = {"$schema": moved.pop("$schema")} if "$schema" in moved else {}
    return {**draft, "type": "object", "properties": {RESULT: moved}, "required": [RESULT]}, True


def _plain(tool: ToolDef, what: str, schema: Mapping[str, Any], *, inline: bool) -> dict[str, Any]:
    """Return a schema as plain JSON, which shares nothing with the tool's own."""
    plain: dict[str, Any] = strictjson.normalized(schema)  # type: ignore[assignment]
    try:
        return inlined(plain) if inline else plain
    except DefinitionError as error:
        raise DefinitionError(f'tool "{tool.name}" cannot be exported without references: {what}, {error}') from None


def _below_result(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose references fit once it stands at ``properties.result``."""
    outline, _ = outline_of(schema, dialect_of(schema))
    moved: dict[str, Any] = _moved(schema, outline)
    return moved


def _moved(value: Any, outline: Outline) -> Any:
    if is_array(value):
        return [_moved(item, outline) for item in value]
    # What has an id of its own is what its references begin at, wherever it stands.
    if not is_object(value) or (id(value) in outline and "$id" in value):
        return value
    whole = {key: _moved(item, outline) for key, item in value.items()}
    if id(value) in outline and str(value.get("$ref", "")).partition("/")[0] == "#":
        whole["$ref"] = f"#/properties/{RESULT}{value['$ref'][1:]}"
    return whole
