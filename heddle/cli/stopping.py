"""One call in a scope of its own, which a signal ends: the tool first, then the command as the shell expects."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import click
import trio

from heddle.cli import views
from heddle.cli.reading import faults_of_the_user
from heddle.errors import HeddleError
from heddle.workspace import ScopeReport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from heddle.results import ToolResult
    from heddle.runner import Runner, Scope

__all__ = ["run_unless_stopped"]

# 1 s: whoever pressed Ctrl-C begins to wonder.
PATIENCE_SECONDS = 1.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_unless_stopped(
    runner: Runner, label: str, call: Callable[[Scope], Awaitable[ToolResult]], report_changes: bool
) -> tuple[ToolResult, ScopeReport]:
    """Make the call; on SIGINT, SIGTERM or SIGHUP end the tool first, and exit as the shell expects."""
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

    with faults_of_the_user():
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
