"""The commands by name. Whoever asks for help or presses TAB waits for what that takes, and for nothing else.

Data goes to standard output, everything else to standard error.

Exit status: 0 returned, 1 a failed call, 2 usage, an unreadable folder, a broken definition, malformed JSON;
130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import click

from heddle.logs import logger

__all__ = ["heddle"]

# The module that has each, and what the list of commands says of it: how its own help begins.
_COMMANDS = {
    "new": ("new", "Write a new tool NAME that runs, and a test of it that passes."),
    "doctor": ("doctor", "Say what confines tools here."),
    "completion": ("completion", "Print what makes a shell complete commands, folders and the names of tools."),
    "operations": ("operations", "Say what is in a journal, resolve what needs attention, and approve what awaits it."),
    "validate": ("validate", "Say everything that is wrong with PATH."),
    "send": ("send", "Send BODY to URI, tool://NAME or direct://NAME, by the routes of DOC, and print what comes out."),
    "lint": ("exports", "Say what providers of models would refuse of the tools in DIR."),
    "tools": ("listing", "List the tools in DIR."),
    "describe": ("listing", "Show the tool NAME of DIR as its callers see it."),
    "call": ("calling", "Call the tool NAME of DIR, and print what it returns."),
}


class Named(click.Command):
    """A command of the list. The module that has it is imported when it is used."""

    def __init__(self, name: str, room: str, first_line: str) -> None:
        super().__init__(name, help=first_line)
        self.room = room

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return what the command itself makes of its arguments; what is done with them is its own from there."""
        return self.itself().make_context(info_name, args, parent, **extra)

    def itself(self) -> click.Command:
        """Return the command."""
        command: click.Command = getattr(import_module(f"heddle.cli.{self.room}"), str(self.name))
        return command


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[Named(name, room, first_line) for name, (room, first_line) in _COMMANDS.items()],
    epilog="Exit status: 0 returned; 1 failed; 2 usage, an unreadable folder, a broken definition or malformed JSON; "
    "128 and the signal's number when stopped by one (130 after Ctrl-C).",
)
@click.version_option(package_name="heddle", message="%(package)s %(version)s")
@click.pass_context
def heddle(context: click.Context) -> None:
    """Run tools: executables that read one JSON object and write one."""
    # A library says nothing unless its host asks for it; this is the host.
    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("warning: %(message)s"))
    logger.addHandler(warnings)
    context.call_on_close(lambda: logger.removeHandler(warnings))
