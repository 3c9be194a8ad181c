"""The commands. Data goes to standard output, everything else to standard error.

Exit status: 0 returned, 1 a failed call, 2 usage, an unreadable folder, a broken definition, malformed JSON;
130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import trio

from heddle import strictjson
from heddle.cli import confining, views
from heddle.cli.completion import completion, folders, tool_names
from heddle.cli.doctor import doctor
from heddle.cli.exports import FORMATS, lint
from heddle.cli.new import new
from heddle.cli.operations import operations
from heddle.cli.send import send
from heddle.cli.validate import validate
from heddle.environment import Environment
from heddle.errors import DefinitionError, HeddleError, JournalError, StrictJsonError
from heddle.limits import Limits
from heddle.logs import logger
from heddle.operations import Journal
from heddle.operations.terminal import ask_on_terminal
from heddle.results import Returned, ToolResult
from heddle.runner import Runner, Scope
from heddle.tools.discovery import discover_tools
from heddle.workspace import ScopeReport
from heddle.workspace.mounts import MAX_BYTES, MAX_ENTRIES, Mounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from heddle.strictjson import JSON
    from heddle.tools.definition import ToolDef
    from heddle.tools.registry import Registry

__all__ = ["heddle"]

# 1 s: whoever pressed Ctrl-C begins to wonder.
PATIENCE_SECONDS = 1.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), shell_complete=folders)
_NAME = click.argument("name", shell_complete=tool_names)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 returned; 1 failed; 2 usage, an unreadable folder, a broken definition or malformed JSON; "
    "128 and the signal's number when stopped by one (130 after Ctrl-C).",
)
@click.version_option(package_name="heddle", message="%(package)s %(version)s")
def heddle() -> None:
    """Run tools: executables that read one JSON object and write one."""
    # A library says nothing unless its host asks for it; this is the host.
    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("warning: %(message)s"))
    logger.addHandler(warnings)


heddle.add_command(new)
heddle.add_command(doctor)
heddle.add_command(completion)
heddle.add_command(operations)
heddle.add_command(validate)
heddle.add_command(send)
heddle.add_command(lint)


@heddle.command()
@_FOLDER
@click.option("--export", "form", type=click.Choice([*FORMATS]), help="Print them as JSON that this one takes.")
@_JSON
def tools(folder: Path, *, form: str | None, as_json: bool) -> None:
    """List the tools in DIR."""
    with _faults_of_the_user():
        registry = _read(folder)
        exported = None if form is None else FORMATS[form](registry).tools
    if exported is not None:
        _print([*exported])
    elif as_json:
        _print([views.tool_as_json(tool) for tool in registry])
    elif not len(registry):
        click.echo(f"no tools in {folder}: put executables there (chmod +x)", err=True)
    else:
        views.print_tools(registry)


@heddle.command()
@_FOLDER
@_NAME
@_JSON
def describe(folder: Path, name: str, *, as_json: bool) -> None:
    """Show the tool NAME of DIR as its callers see it."""
    with _faults_of_the_user():
        tool = _tool(_read(folder, name), name)
    if as_json:
        _print(views.tool_as_json(tool))
    else:
        views.print_tool(tool)


@heddle.command()
@_FOLDER
@_NAME
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
    default=MAX_BYTES,
    metavar="N",
    help="Most bytes of each mount.",
    show_default=True,
)
@click.option(
    "--mount-max-entries",
    type=click.IntRange(min=1),
    default=MAX_ENTRIES,
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
    if timeout is not None and not timeout > 0:
        raise click.BadParameter("must be greater than 0", param_hint="--timeout")
    with _faults_of_the_user():
        journal = None
        if journal_file is not None:
            journal = click.get_current_context().with_resource(Journal.open(journal_file))
        runner = Runner(
            _read(folder, name),
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
    result, files = _run(
        runner,
        name,
        lambda scope: scope.call(name, _as_given(given), limits=limits, cwd=cwd, operation_id=operation_id),
        changes,
    )
    if as_json:
        shown = result.as_json()
        if mounts or keep_in is not None or changes:
            shown["files"] = files.as_json()
        _print(shown)
    elif isinstance(result, Returned):
        _print(result.data)
    else:
        click.echo(views.failure_text(result), err=True)
    if not as_json:
        views.print_files(files)
    sys.exit(0 if result.ok else 1)


def _run(
    runner: Runner, label: str, call: Callable[[Scope], Awaitable[ToolResult]], report_changes: bool
) -> tuple[ToolResult, ScopeReport]:
    """Make the call; on SIGINT or SIGTERM end the tool first, and exit as the shell expects."""
    stopped_by = 0
    result: ToolResult | None = None
    scope: Scope | None = None
    fault: Exception | None = None

    async def make_the_call(calling: trio.CancelScope, listening: trio.CancelScope) -> None:
        nonlocal result, scope, fault
        try:
            with calling:
                async with runner, runner.scope(label, report_changes=report_changes) as scope:
                    result = await call(scope)
        except (HeddleError, OSError, ValueError) as error:
            fault = error  # as itself, not in a group
        finally:
            listening.cancel()

    async def be_patient() -> None:
        await trio.sleep(PATIENCE_SECONDS)
        click.echo("stopping: the tool is ended, and what it changed is copied back", err=True)

    async def main() -> None:
        nonlocal stopped_by
        calling, listening = trio.CancelScope(), trio.CancelScope()
        # Listening goes on to the very end: a second Ctrl-C while the tool is being ended changes nothing.
        with trio.open_signal_receiver(*_STOPPING) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make_the_call, calling, listening)
                with listening:
                    async for number in signals:
                        if not stopped_by:
                            nursery.start_soon(be_patient)
                        stopped_by = stopped_by or number
                        calling.cancel()
                nursery.cancel_scope.cancel()  # the call is over: nobody has to be patient any more

    with _faults_of_the_user():
        trio.run(main, strict_exception_groups=True)
        if fault is not None:
            raise fault
    files = scope.report if scope is not None else ScopeReport()
    if result is None:
        views.print_files(files)
        how_far = " before the tool was started" if scope is None else "; the tool was ended"
        click.echo(f"stopped by {signal.Signals(stopped_by).name}{how_far}", err=True)
        sys.exit(128 + stopped_by)
    return result, files


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


def _read(folder: Path, name: str | None = None) -> Registry:
    """Read the tools of a folder; say what was left out, or what of it concerns the one tool that was asked for."""
    registry = discover_tools(folder)
    origin = registry[name].origin if name is not None and name in registry else None
    for notice in registry.notices:
        about = notice.path == origin or Path(notice.path).name.partition(".")[0] == (name or "").partition(".")[0]
        if name is None or about:
            click.echo(f"note: {notice}", err=True)
    return registry


def _tool(registry: Registry, name: str) -> ToolDef:
    if name in registry:
        return registry[name]
    near = registry.near(name)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    click.echo(f'there is no tool "{name}".{hint}', err=True)
    sys.exit(1)


@contextlib.contextmanager
def _faults_of_the_user() -> Generator[None, None, None]:
    """Turn what whoever typed the command can mend into one sentence and exit status 2."""
    try:
        yield
    except StrictJsonError as error:
        _refuse(f"the arguments are not strict JSON: {error}")
    except DefinitionError as error:
        _refuse(str(error))
    except JournalError as error:
        gave = "" if error.result is None else f". Only this says how it went: {json.dumps(error.result.as_json())}"
        _refuse(f"{error}{gave}")
    except (HeddleError, ValueError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))


def _refuse(sentence: str) -> NoReturn:
    click.echo(f"heddle: {sentence}", err=True)
    sys.exit(2)


def _print(value: JSON) -> None:
    """Print JSON as UTF-8 whatever the locale says: indented for a person, on one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if indent is not None:  # as JSON writes what does not print
        text = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
