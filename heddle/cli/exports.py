"""``heddle tools --export``: tools as a provider takes them; ``heddle lint``: what it would refuse of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from heddle.cli.completion import folders
from heddle.cli.views import escaped, refuse
from heddle.errors import DefinitionError
from heddle.tools.discovery import discover_tools
from heddle.tools.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.tools.exports import Export, LintFinding, Provider

__all__ = ["FORMATS", "lint"]

FORMATS: Final[dict[str, Callable[[Registry], Export]]] = {
    "openai": Registry.to_openai,
    "anthropic": Registry.to_anthropic,
    "mcp": Registry.to_mcp,
    "agentspec": Registry.to_agentspec,
}


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), shell_complete=folders)
@click.option("--provider", type=click.Choice([*FORMATS]), help="Only what this one would refuse.")
@click.option("--strict", is_flag=True, help="Also what OpenAI's strict mode would refuse.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lint(folder: Path, *, provider: Provider | None, strict: bool, as_json: bool) -> None:
    """Say what providers of models would refuse of the tools in DIR.

    The exit status is 1 where there is something that exports do not mend by themselves.
    """
    try:
        findings = discover_tools(folder).lint(provider, strict=strict)
    except DefinitionError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{folder}: {error.strerror}")
    if as_json:
        found: list[dict[str, Any]] = [attrs.asdict(finding) for finding in findings]
        sys.stdout.buffer.write(json.dumps(found, ensure_ascii=False).encode("utf-8") + b"\n")
    else:
        for finding in findings:
            click.echo(escaped(_line(finding)))
    sys.exit(0 if all(finding.mended for finding in findings) else 1)


def _line(finding: LintFinding) -> str:
    return f"{'mended: ' if finding.mended else ''}{finding}"
