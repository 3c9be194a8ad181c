"""``heddle call``: assemble a runner, make one call, print what came of it.

What makes the call is imported when it is made: a key that is pressed to complete its arguments does not wait for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle import strictjson
from heddle.cli import confining, views
from heddle.cli.reading import FOLDER, NAME, faults_of_the_user, read_tools
from heddle.limits import MIB, Limits
from heddle.results import Returned

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["call"]

# Those of `heddle.workspace.mounts`, which a test compares.
_MOUNT_BYTES = 64 * MIB
_MOUNT_ENTRIES = 4096


@click.command()
@FOLDER
@NAME
@click.argument("arguments", required=False, metavar="[JSON | @FILE | -]")
@click.option(
    "--timeout", type=float, metavar="SECONDS", help="Stop the tool earlier than its own limit, or the default of 30 s."
)
@click.option("--allow-env", multiple=True, metavar="NAME", help="Let tools see this variable. May be repeated.")
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="SRC[:DEST][:ro|:rw]",
    help="Put a file or a folder into the workspace, under DEST or its own name. ro: a copy, the default. rw: what the "
    "tool changes is copied back. \\: is a colon in a name. May be repeated.",
)
@click.option(
    "--mount-max-bytes",
    type=click.IntRange(min=1),
    default=_MOUNT_BYTES,
    metavar="N",
    help="Most bytes of each mount.",
    show_default=True,
)
@click.option(
    "--mount-max-entries",
    type=click.IntRange(min=1),
    default=_MOUNT_ENTRIES,
    metavar="N",
    help="Most files and folders of each.",
    show_default=True,
)
@click.option("--workspace", "keep_in", metavar="DIR", help="Keep the workspace, in DIR under the name of the tool.")
@click.option("--cwd", metavar="PATH", help="Start the tool in this folder of the workspace.")
@click.option(
    "--safe",
    is_flag=True,
    help="Run the tool in a sandbox: it may read the system's programs, its own folder and this one, write its "
    "workspace, and nothing else. heddle doctor says what holds it to that here.",
)
@click.option(
    "--sandbox",
    "backend",
    type=click.Choice(["auto", "bubblewrap", "landlock", "seatbelt"]),
    help="With --safe: what has to hold it, and nothing in its place.",
)
@click.option("--allow-read", multiple=True, metavar="PATH", help="With --safe: let it read this. May be repeated.")
@click.option("--allow-write", multiple=True, metavar="PATH", help="With --safe: let it write this. May be repeated.")
@click.option("--deny-net", is_flag=True, help="With --safe: no network.")
@click.option(
    "--journal",
    "journal_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Note the call in this journal; it is made if it is not there. Calls with the same --operation-id have their "
    "effect once.",
)
@click.option("--operation-id", metavar="ID", help="What the effect is called, where it may be asked for again.")
@click.option(
    "--approve",
    is_flag=True,
    help="Ask at the terminal before a tool that may change something is called. Where there is no terminal, the "
    "operation awaits approval in the --journal.",
)
@click.option("--changes", is_flag=True, help="Say which files the tool has created, modified and deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result, with its report.")
def call(
    folder: Path,
    name: str,
    arguments: str | None,
    *,
    timeout: float | None,
    allow_env: tuple[str, ...],
    mounts: tuple[str, ...],
    mount_max_bytes: int,
    mount_max_entries: int,
    keep_in: str | None,
    cwd: str | None,
    safe: bool,
    backend: str | None,
    allow_read: tuple[str, ...],
    allow_write: tuple[str, ...],
    deny_net: bool,
    journal_file: Path | None,
    operation_id: str | None,
    approve: bool,
    changes: bool,
    as_json: bool,
) -> None:
    """Call the tool NAME of DIR, and print what it returns.

    The arguments are one JSON object: as text, from a file, or from standard input. None means {}.
    """
    from heddle.cli.stopping import run_unless_stopped
    from heddle.environment import Environment
    from heddle.operations import Journal
    from heddle.operations.terminal import ask_on_terminal
    from heddle.runner import Runner
    from heddle.workspace.mounts import Mounts

    if timeout is not None and not timeout > 0:
        raise click.BadParameter("must be greater than 0", param_hint="--timeout")
    with faults_of_the_user():
        journal = None
        if journal_file is not None:
            journal = click.get_current_context().with_resource(Journal.open(journal_file))
        runner = Runner(
            read_tools(folder, name),
            journal=journal,
            approve=ask_on_terminal if approve else None,
            sandbox=confining.sandbox_of(
                safe=safe, backend=backend, allow_read=allow_read, allow_write=allow_write, deny_net=deny_net
            ),
            environment=Environment(allow=allow_env or None),
            mounts=Mounts(mounts, "--mount", "--mount-max-{}", mount_max_bytes, mount_max_entries),
            keep_workspaces=keep_in,
        )
        given = _arguments(arguments)
        limits = Limits(wall_seconds=timeout)
    result, files = run_unless_stopped(
        runner,
        name,
        lambda scope: scope.call(name, _as_given(given), limits=limits, cwd=cwd, operation_id=operation_id),
        changes,
    )
    if as_json:
        shown = result.as_json()
        if mounts or keep_in is not None or changes:
            shown["files"] = files.as_json()
        views.print_json(shown)
    elif isinstance(result, Returned):
        views.print_json(result.data)
    else:
        click.echo(views.failure_text(result), err=True)
    if not as_json:
        views.print_files(files)
    sys.exit(0 if result.ok else 1)


def _as_given(arguments: JSON) -> dict[str, JSON] | str:
    """Return what the call takes; what is no object is for the call to refuse."""
    return arguments if isinstance(arguments, dict) else json.dumps(arguments)


def _arguments(text: str | None) -> JSON:
    """Read the arguments from where they are."""
    if text is None:
        return {}
    if text == "-":
        data: bytes | str = sys.stdin.buffer.read()
    elif text.startswith("@"):
        data = Path(text[1:]).read_bytes()
    else:
        data = text
    return strictjson.loads(data) if data.strip() else {}
