"""``heddle new``: a tool that runs, the file beside it, and a test of it that passes. Nothing is ever overwritten."""

from __future__ import annotations

import json
import os
import re
import shlex
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import click

from heddle.cli.views import escaped, refuse
from heddle.tools.definition import TOOL_NAME
from heddle.tools.sidecars import sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["new"]

Language: TypeAlias = Literal["bash", "python", "node"]

ENDINGS: Mapping[Language, str] = {"bash": ".sh", "python": ".py", "node": ".mjs"}
EXAMPLE = '{"seconds": 3725}'


@click.command()
@click.argument("name")
@click.option("--lang", "language", type=click.Choice([*ENDINGS]), default="python", show_default=True)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default="tools",
    show_default=True,
    help="Where the tool goes.",
)
def new(name: str, language: Language, folder: Path) -> None:
    """Write a new tool NAME that runs, and a test of it that passes.

    The tool and the file that describes it go into DIR, the test into the folder tests of the directory that you are
    in. What is there already is never overwritten.
    """
    if not TOOL_NAME.fullmatch(name):
        rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        refuse(f'"{name}" cannot be a tool\'s name: {rule}')
    files = _files(name, language, folder)
    try:
        taken = _taken(name, files, folder)
        if taken:
            refuse(f"{', '.join(map(str, taken))}: there already, and nothing was written; choose another name")
        _write(files)
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")
    for file in files:
        click.echo(escaped(f"created: {file.path}"))
    click.echo("next:")
    click.echo(escaped(f"  heddle call {shlex.quote(str(folder))} {name} {shlex.quote(EXAMPLE)}"))
    click.echo(f"  pytest {files[-1].path}")


@attrs.frozen
class _File:
    """A file to be written. `mode` is what the user's umask takes from."""

    path: Path
    text: str
    mode: int = 0o666


def _files(name: str, language: Language, folder: Path) -> list[_File]:
    """Return the tool, its sidecar, and its test last."""
    tool = folder / f"{name}{ENDINGS[language]}"
    tests = Path("tests")
    # The path is right from wherever pytest is started: it begins at the folder of the test.
    way = os.path.relpath(os.path.realpath(folder), os.path.realpath(tests))
    path = json.dumps(f"{way}/{tool.name}", ensure_ascii=False)
    return [
        _File(tool, _template(language), 0o777),
        _File(folder / f"{name}.tool.json", _template("sidecar")),
        # A module's name has letters, digits and underscores.
        _File(
            tests / f"test_{re.sub('[-.]', '_', name)}.py",
            _template("test").replace("{name}", name).replace("{path}", path),
        ),
    ]


def _template(name: str) -> str:
    return resources.files("heddle.cli").joinpath("templates", f"{name}.txt").read_text(encoding="utf-8")


def _taken(name: str, files: Sequence[_File], folder: Path) -> list[Path]:
    """Return what stands in the way: one of the files, or anything else of that name among the tools."""
    own = {file.path for file in files}
    taken = [file.path for file in files if os.path.lexists(file.path)]
    if folder.is_dir():
        named = [each for each in sorted(os.listdir(folder)) if name in {sidecar_stem(each), os.path.splitext(each)[0]}]
        taken += [folder / each for each in named if folder / each not in own]
    return taken


def _write(files: Sequence[_File]) -> None:
    """Write all files or, when one cannot be written, none."""
    written: list[Path] = []
    try:
        for file in files:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            with open(
                file.path, "x", encoding="utf-8", newline="\n", opener=partial(os.open, mode=file.mode)
            ) as stream:
                written.append(file.path)
                stream.write(file.text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
