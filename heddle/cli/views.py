"""How tools and results look on a terminal, and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

from heddle.limits import Limits
from heddle.tools.definition import Program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.results import Failed
    from heddle.strictjson import JSON
    from heddle.tools.definition import ToolDef
    from heddle.workspace import ScopeReport

BYTE, PLANE = 0x100, 0x10000

__all__ = [
    "escaped",
    "failure_text",
    "print_files",
    "print_json",
    "print_table",
    "print_tool",
    "print_tools",
    "refuse",
    "tool_as_json",
]


def tool_as_json(tool: ToolDef) -> dict[str, JSON]:
    """Return what a caller may know of a tool."""
    program = tool.implementation if isinstance(tool.implementation, Program) else None
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": _plain(tool.input_schema),
        "outputSchema": _plain(tool.output_schema),
        "sideEffects": tool.side_effects,
        "retry": tool.retry,
        "reconcile": tool.reconcile,
        "revision": tool.revision,
        "contentHash": tool.content_hash or None,
        "unsupportedReason": tool.unsupported_reason or None,
        "annotations": _plain(tool.annotations),
        "protocol": None if program is None else program.protocol,
        "inheritEnv": [] if program is None else [*program.inherit_env],
        "limits": {name: value for name, value in (tool.limits or Limits()).items() if value is not None},
        "origin": tool.origin,
    }


def print_tools(tools: Iterable[ToolDef]) -> None:
    """Print a table on a terminal, one tab-separated line a tool elsewhere."""
    rows = [(tool.name, _signature(tool), _first_line(tool.description)) for tool in tools]
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    print_table(("Tool", "Arguments", "Description"), rows)


def print_table(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table for a person."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_tool(tool: ToolDef) -> None:
    """Print one tool for a person who wants to call it."""
    click.echo(tool.name + (f" - {tool.title}" if tool.title else ""))
    if tool.description:
        click.echo(f"\n{tool.description}")
    click.echo("\nArguments:")
    properties: dict[str, Any] = tool.input_schema.get("properties", {})
    required: list[str] = tool.input_schema.get("required", [])
    for name, schema in properties.items():
        click.echo(f"  {name}: {_argument(schema, is_required=name in required)}")
    if not properties:
        click.echo("  (none)" if _takes_nothing(tool) else "  (undeclared: any object)")
    program = tool.implementation
    if isinstance(program, Program):
        click.echo(f"\nProgram:      {program.path} ({program.protocol} protocol)")
        if program.inherit_env:
            click.echo(f"Asks for:     {', '.join(program.inherit_env)}")
    if tool.unsupported_reason:
        click.echo(f"\nUnsupported:  {tool.unsupported_reason}")
    if tool.limits is not None:
        limits = [f"{name} {value:g}" for name, value in tool.limits.items() if value is not None]
        click.echo(f"Limits:       {', '.join(limits)}")
    click.echo(f"Side effects: {tool.side_effects}\nRetry:        {tool.retry}")
    if tool.reconcile is not None:
        click.echo(f"Reconcile:    {tool.reconcile}")
    if tool.content_hash:
        click.echo(f"Revision:     {tool.revision}, {tool.content_hash}")


def print_json(value: JSON) -> None:
    """Print JSON as UTF-8 whatever the locale says: indented for a person, on one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if indent is not None:  # as JSON writes what does not print
        text = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")


def print_files(files: ScopeReport) -> None:
    """Say on standard error what became of the files of a workspace; what went wrong with them was logged."""
    from heddle.workspace.trees import readable  # brings trio, which nothing else of this takes

    if files.changes is not None:
        for what in ("created", "modified", "deleted"):
            for state in getattr(files.changes, what):
                click.echo(f"{what}: {readable(state.path)} ({state.size:,} bytes)", err=True)
        for path in files.changes.no_files:
            click.echo(f"no file: {readable(path)}", err=True)
        for fault in files.changes.unreadable:
            click.echo(f"not looked at: {fault}", err=True)
    for path in files.copied_back:
        click.echo(f"copied back: {readable(path)}", err=True)
    if files.kept is not None:
        click.echo(f"the workspace is kept: {readable(str(files.kept))}", err=True)


def failure_text(failure: Failed) -> str:
    """Return a failure for a person. What a tool has written in it draws nothing on the terminal."""
    return escaped("\n".join([f"failed ({failure.kind}): {failure.message}", *failure.advice()]))


def refuse(sentence: str) -> NoReturn:
    """Say why a command is not carried out, and exit as for a wrong use of it."""
    click.echo(escaped(f"heddle: {sentence}"), err=True)
    sys.exit(2)


def escaped(text: str) -> str:
    """Return a text with whatever does not print written out, but for line ends and tabs."""
    return "".join(each if each.isprintable() or each in "\n\t" else _written_out(each) for each in text)


def _written_out(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < BYTE else f"\\u{number:04x}" if number < PLANE else f"\\U{number:08x}"


def _signature(tool: ToolDef) -> str:
    """Return ``text, limit?``."""
    required: list[str] = tool.input_schema.get("required", [])
    properties: dict[str, Any] = tool.input_schema.get("properties", {})
    names = ", ".join(name if name in required else f"{name}?" for name in properties)
    return names or ("(none)" if _takes_nothing(tool) else "(undeclared)")


def _takes_nothing(tool: ToolDef) -> bool:
    """Return whether a tool that names no argument takes none."""
    schema = tool.input_schema
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _argument(schema: Any, *, is_required: bool) -> str:
    if isinstance(schema, bool):
        return "any value"
    declared: Mapping[str, Any] = schema
    words = [_type(declared.get("type")), "required" if is_required else "optional"]
    if "default" in declared:
        words += [f"default {json.dumps(declared['default'], ensure_ascii=False)}"]
    if "enum" in declared:
        words += ["one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in declared["enum"])]
    description = declared.get("description")
    return ", ".join(words) + (f" - {description}" if description else "")


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else " or ".join(kind or ["any value"])


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _plain(value: Mapping[str, Any] | bool | None) -> JSON:
    return dict(value) if isinstance(value, Mapping) else value
