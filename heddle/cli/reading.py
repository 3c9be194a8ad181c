"""The folder of tools that a command names, and one sentence for what whoever typed it can mend."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import folders, tool_names
from heddle.cli.views import refuse
from heddle.errors import DefinitionError, HeddleError, JournalError, StrictJsonError
from heddle.tools.discovery import discover_tools

if TYPE_CHECKING:
    from collections.abc import Generator

    from heddle.tools.registry import Registry

__all__ = ["FOLDER", "NAME", "faults_of_the_user", "read_tools"]

FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), shell_complete=folders)
NAME = click.argument("name", shell_complete=tool_names)


def read_tools(folder: Path, name: str | None = None) -> Registry:
    """Read the tools of a folder; say what was left out, or what of it concerns the one tool that was asked for."""
    registry = discover_tools(folder)
    origin = registry[name].origin if name is not None and name in registry else None
    for notice in registry.notices:
        about = notice.path == origin or Path(notice.path).name.partition(".")[0] == (name or "").partition(".")[0]
        if name is None or about:
            click.echo(f"note: {notice}", err=True)
    return registry


@contextlib.contextmanager
def faults_of_the_user() -> Generator[None, None, None]:
    """Turn what whoever typed the command can mend into one sentence and exit status 2."""
    try:
        yield
    except StrictJsonError as error:
        refuse(f"the arguments are not strict JSON: {error}")
    except DefinitionError as error:
        refuse(str(error))
    except JournalError as error:
        gave = "" if error.result is None else f". Only this says how it went: {json.dumps(error.result.as_json())}"
        refuse(f"{error}{gave}")
    except (HeddleError, ValueError) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
