"""``heddle send``: one body along a route of a document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from heddle import strictjson
from heddle.cli.reading import faults_of_the_user
from heddle.cli.views import failure_text, print_json
from heddle.errors import RouteError, StrictJsonError
from heddle.results import Failed

if TYPE_CHECKING:
    from heddle.pipelines import Exchange, Router

__all__ = ["send"]


@click.command()
@click.argument("document", metavar="DOC", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("uri")
@click.argument("body", required=False, metavar="[BODY | @FILE | -]")
@click.option(
    "--tools-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Let its steps call the tools of this folder as well.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what came out as a whole: body and headers.")
def send(document: Path, uri: str, body: str | None, *, tools_dir: Path | None, as_json: bool) -> None:
    """Send BODY to URI, tool://NAME or direct://NAME, by the routes of DOC, and print what comes out.

    For a tool BODY is its arguments, one JSON object; any other text it is given as its input. For a route it is JSON,
    or else a text.
    """
    from heddle.pipelines import Router
    from heddle.tools.discovery import discover_tools
    from heddle.tools.registry import Registry

    try:
        with faults_of_the_user():
            text = _text(body)
            tools = Registry() if tools_dir is None else discover_tools(tools_dir)
            router = Router.load(document, tools=tools)
            exchange = trio.run(_sent, router, uri, _as_value(text) if uri.startswith("direct://") else text)
    except KeyboardInterrupt:
        click.echo("stopped by SIGINT; what it had called was ended", err=True)
        sys.exit(130)
    if isinstance(exchange, Failed):
        if as_json:
            print_json(exchange.as_json())
        else:
            click.echo(failure_text(exchange), err=True)
        sys.exit(1)
    print_json({"body": exchange.body, "headers": {**exchange.headers}} if as_json else exchange.body)


async def _sent(router: Router, uri: str, body: object) -> Exchange | Failed:
    async with router:
        try:
            return await router.send(uri, body)
        except RouteError as error:
            return error.failed


def _text(given: str | None) -> str | None:
    """Return a body from where it is."""
    if given == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    if given is not None and given.startswith("@"):
        return Path(given[1:]).read_bytes().decode("utf-8", "replace")
    return given


def _as_value(text: str | None) -> object:
    try:
        return None if text is None else strictjson.loads(text)
    except StrictJsonError:
        return text
