"""``heddle completion``, and what the shell is told of folders and of the tools in them.

A key that is pressed waits for the answer: tools are listed as `heddle.discover_tools` finds them, without preparing
them for calls.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from heddle.errors import DefinitionError
from heddle.tools.definition import TOOL_NAME
from heddle.tools.described import Described, load_described
from heddle.tools.sidecars import sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ["completion", "folders", "tool_names", "tools_in"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, folders and the names of tools.

    Put this line into the file that the shell reads when it starts:

    \b
      bash  ~/.bashrc                   eval "$(heddle completion bash)"
      zsh   ~/.zshrc                    eval "$(heddle completion zsh)"
      fish  ~/.config/fish/config.fish  heddle completion fish | source
    """  # noqa: D301 - click keeps the lines below this mark as they are
    known = get_completion_class(shell)
    assert known is not None  # noqa: S101 - click has all three
    root = click.get_current_context().find_root().command
    click.echo(known(root, {}, "heddle", "_HEDDLE_COMPLETE").source(), nl=False)


def folders(_context: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Have the shell complete a folder in its own way."""
    return [CompletionItem(incomplete, type="dir")]


def tool_names(context: click.Context, _argument: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the tools of the folder that was typed whose names begin as typed; none where it cannot be read."""
    folder = context.params.get("folder")
    if not isinstance(folder, Path):
        return []
    try:
        found = tools_in(folder.expanduser())  # the shell hands over what was typed
    except (DefinitionError, OSError, RuntimeError):
        return []
    return [CompletionItem(name, help=help_) for name, help_ in found.items() if name.startswith(incomplete)]


def tools_in(folder: Path) -> dict[str, str]:
    """Return the names of the tools in a folder, in order, each with the first line of its description.

    Raises:
        DefinitionError: A sidecar is broken.
        OSError: The folder cannot be read.
    """
    where = folder.absolute()
    with os.scandir(where) as entries:
        names = sorted((entry.name for entry in entries if entry.name[0] != "."), key=os.fsencode)
    files = [where / name for name in names if sidecar_stem(name) is None]
    found: dict[str, str] = {}
    claimed: set[str] = set()
    for described in _described(where, names, files):
        claimed |= set(map(str, described.files()))
        for tool in described.tools:
            found.setdefault(tool.name, tool.description.strip().partition("\n")[0])
    for file in files:
        if str(file) not in claimed and TOOL_NAME.fullmatch(_stem(file)) and _is_executable(file):
            found.setdefault(_stem(file), "")
    return dict(sorted(found.items()))


def _described(where: Path, names: Iterable[str], files: Iterable[Path]) -> Iterator[Described]:
    for name in names:
        stem = sidecar_stem(name)
        if stem is not None and not (where / name).is_dir():
            yield load_described(where / name, [file for file in files if _stem(file) == stem])


def _is_executable(file: Path) -> bool:
    try:
        mode = file.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _stem(file: Path) -> str:
    return os.path.splitext(file.name)[0]
