"""``heddle validate``: everything that is wrong with a folder of tools or with one file, each on a line of its own.

What is looked at is known by what it holds. A further kind of document is one more entry of `KINDS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from heddle.cli.views import escaped, refuse
from heddle.errors import DefinitionError
from heddle.tools.definition import Notice
from heddle.tools.discovery import described_tools, discover_tools
from heddle.tools.documents import BrokenDocument, Document, Problem, load_document
from heddle.tools.sidecars import has_actions, sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.strictjson import JSON
    from heddle.tools.registry import Registry

__all__ = ["KINDS", "Kind", "Verdict", "validate"]

_DOCUMENTS = (".json", ".yaml", ".yml")


@attrs.frozen
class Verdict:
    """What was found in a folder or a file.

    Attributes:
        noun: What the names are of: ``tool``.
        names: What can be used of it; empty where there is a problem.
        problems: What has to be mended before anything of it can be used.
        notices: What its author would want to know.
    """

    noun: str
    names: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether it can be used as it is."""
        return not self.problems

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON: the same names."""
        return {
            "sound": self.is_sound,
            "noun": self.noun,
            "names": [*self.names],
            "problems": [problem.as_json() for problem in self.problems],
            "notices": [{"path": each.path, "code": each.code, "message": each.message} for each in self.notices],
        }


@attrs.frozen
class Kind:
    """One kind of document that can be judged.

    Attributes:
        holds: Whether a document is of this kind.
        judge: Returns what is found in the file, and in the folder of tools that it may use.
    """

    holds: Callable[[Document], bool]
    judge: Callable[[Path, Path | None], Verdict]


@click.command()
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option(
    "--tools-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The tools that the steps of routes may call beside their own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(path: Path, *, tools_dir: Path | None, as_json: bool) -> None:
    """Say everything that is wrong with PATH.

    PATH is a folder of tools, one file that describes some, or a document of routes. The exit status is 1 where
    something is wrong.
    """
    try:
        verdict = _judged(path, tools_dir)
    except DefinitionError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{path}: {error.strerror}")
    if as_json:
        sys.stdout.buffer.write(json.dumps(verdict.as_json(), ensure_ascii=False).encode("utf-8") + b"\n")
    else:
        for line in _lines(verdict):
            click.echo(escaped(line))
    sys.exit(0 if verdict.is_sound else 1)


def _judged(path: Path, tools_dir: Path | None) -> Verdict:
    """Return what is found in a folder or a file.

    Raises:
        DefinitionError: It cannot be told what it is to be.
        OSError: It is not there.
    """
    if path.is_dir():
        return _judge_folder(path)
    path.stat()
    if path.suffix not in _DOCUMENTS:
        raise DefinitionError(f"{path} is neither a folder nor a document: those end in {', '.join(_DOCUMENTS)}")
    try:
        document = load_document(path, what="document")
    except BrokenDocument as broken:
        return Verdict("document", problems=broken.problems)
    for kind in KINDS:
        if kind.holds(document):
            return kind.judge(path, tools_dir)
    raise DefinitionError(
        f"{path} is no document that heddle knows: what describes a tool is called NAME.tool.yaml, what describes "
        "several has actions, and what describes routes has tools, workflows or agents"
    )


def _describes_tools(document: Document) -> bool:
    return sidecar_stem(document.path.name) is not None or has_actions(document.value)


def _judge_folder(path: Path) -> Verdict:
    return _tools(lambda: discover_tools(path))


def _judge_tools(path: Path, _tools_dir: Path | None) -> Verdict:
    return _tools(lambda: described_tools(path))


def _describes_routes(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and any(isinstance(value.get(key), list) for key in ("tools", "workflows", "agents"))


def _judge_routes(path: Path, tools_dir: Path | None) -> Verdict:
    from heddle.pipelines.documents import load_routes

    try:
        given = None if tools_dir is None else discover_tools(tools_dir)
        found = load_routes(path, tools=given, lets_routes_be=True)
    except BrokenDocument as broken:
        return Verdict("route", problems=broken.problems)
    own = [tool.name for tool in found.tools if given is None or tool.name not in given]
    names = (*(f"tool://{name}" for name in own), *(f"direct://{name}" for name in found.routes))
    said = "no workflow is there; the host has to give a handler"
    notices = [*found.tools.notices]
    notices += [Notice(str(path), "missing_handler", f"direct://{name}: {said}") for name in found.missing]
    return Verdict("route", names, notices=tuple(notices))


def _tools(find: Callable[[], Registry]) -> Verdict:
    try:
        registry = find()
    except BrokenDocument as broken:
        return Verdict("tool", problems=broken.problems)
    return Verdict("tool", tuple(tool.name for tool in registry), notices=registry.notices)


# In the order in which they are asked.
KINDS: tuple[Kind, ...] = (Kind(_describes_tools, _judge_tools), Kind(_describes_routes, _judge_routes))


def _lines(verdict: Verdict) -> Iterable[str]:
    yield from (problem.as_line() for problem in verdict.problems)
    yield from (f"{notice.path}: note: {notice.message}" for notice in verdict.notices)
    if verdict.is_sound:
        number = len(verdict.names)
        of_what = f"{number or 'no'} {verdict.noun}{'' if number == 1 else 's'}"
        yield f"sound: {of_what}{': ' if number else ''}{', '.join(verdict.names)}"
