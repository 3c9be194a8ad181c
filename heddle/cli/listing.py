"""``heddle tools`` and ``heddle describe``: what a folder has, and one tool of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from heddle.cli import views
from heddle.cli.exports import FORMATS
from heddle.cli.reading import FOLDER, NAME, faults_of_the_user, read_tools

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.tools.definition import ToolDef
    from heddle.tools.registry import Registry

__all__ = ["describe", "tools"]

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@FOLDER
@click.option("--export", "form", type=click.Choice([*FORMATS]), help="Print them as JSON that this one takes.")
@_JSON
def tools(folder: Path, *, form: str | None, as_json: bool) -> None:
    """List the tools in DIR."""
    with faults_of_the_user():
        registry = read_tools(folder)
        exported = None if form is None else FORMATS[form](registry).tools
    if exported is not None:
        views.print_json([*exported])
    elif as_json:
        views.print_json([views.tool_as_json(tool) for tool in registry])
    elif not len(registry):
        click.echo(f"no tools in {folder}: put executables there (chmod +x)", err=True)
    else:
        views.print_tools(registry)


@click.command()
@FOLDER
@NAME
@_JSON
def describe(folder: Path, name: str, *, as_json: bool) -> None:
    """Show the tool NAME of DIR as its callers see it."""
    with faults_of_the_user():
        tool = _tool(read_tools(folder, name), name)
    if as_json:
        views.print_json(views.tool_as_json(tool))
    else:
        views.print_tool(tool)


def _tool(registry: Registry, name: str) -> ToolDef:
    if name in registry:
        return registry[name]
    near = registry.near(name)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    click.echo(f'there is no tool "{name}".{hint}', err=True)
    sys.exit(1)
