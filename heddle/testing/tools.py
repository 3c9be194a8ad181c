"""Tools of one file each: written for a test, or found as a runner would find them. Nothing is run."""

from __future__ import annotations

import json
import os
import stat
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import DefinitionError
from heddle.tools.definition import TOOL_NAME, Program, ToolDef
from heddle.tools.documents import shown
from heddle.tools.sidecars import load_sidecar, sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["make_tool", "tool_at"]

SHOWN_CHARS = 60


def make_tool(
    folder: str | os.PathLike[str], source: str, *, name: str = "tool", sidecar: Mapping[str, object] | None = None
) -> Path:
    """Write an executable and, where one is given, its sidecar; return the path of the executable.

    Args:
        folder: Made if it is not there.
        source: Indented as a whole or not, with a ``#!`` line first: ``#!/usr/bin/env python3``.
        name: The file's: ``word_count`` or ``word_count.py``. What stands there under that name is replaced.
        sidecar: What ``NAME.tool.json`` is to say; see the reference of the sidecar.

    Raises:
        ValueError: `source` has no ``#!`` line, or `name` is not a file's name. Nothing was written.
    """
    text = textwrap.dedent(source).lstrip("\n")
    if not text.startswith("#!"):
        first = text.partition("\n")[0]
        raise ValueError(
            f"the source of a tool begins with a line that names its interpreter, such as #!/usr/bin/env python3 "
            f"or #!/bin/sh; this one begins with {first[:SHOWN_CHARS]!r}"
        )
    if name in {"", ".", ".."} or os.path.basename(name) != name:
        raise ValueError(f"the name of a tool is the name of its file in the folder, not {name[:SHOWN_CHARS]!r}")
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    path.chmod(0o755)
    if sidecar is not None:
        beside = path.with_name(f"{_stem(name)}.tool.json")
        beside.write_text(json.dumps(sidecar, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return path


def tool_at(path: str | os.PathLike[str]) -> ToolDef:
    """Return the tool that a file is, as `heddle.discover_tools` finds it in its folder.

    Only what belongs to it counts: another tool's broken sidecar is nobody's business here.

    Args:
        path: An executable, a file that a sidecar starts, or a sidecar.

    Raises:
        DefinitionError: It is no tool, or its sidecar is broken.
        OSError: Its folder cannot be read.
    """
    file = Path(path).absolute()
    names = sorted(os.listdir(file.parent), key=os.fsencode)
    stem = sidecar_stem(file.name)
    if stem is not None:
        return load_sidecar(file, _of_stem(stem, file.parent, names))
    own = [file.with_name(name) for name in names if sidecar_stem(name) == _stem(file.name)]
    if len(own) > 1:
        both = " and ".join(shown(sidecar) for sidecar in own)
        raise DefinitionError(f'two sidecars describe "{shown(_stem(file.name))}": {both}; keep one')
    if own and _starts(described := load_sidecar(own[0], [file]), file):
        return described
    return _started_by_another(file, names) or _without_sidecar(file)


def _started_by_another(file: Path, names: Iterable[str]) -> ToolDef | None:
    """Return the tool whose sidecar has another stem and starts this file: ``args: [main.mjs]``."""
    for name in names:
        stem = sidecar_stem(name)
        if stem is None or stem == _stem(file.name):
            continue
        try:
            tool = load_sidecar(file.with_name(name), _of_stem(stem, file.parent, names))
        except DefinitionError:
            continue  # whatever is wrong with it, it is another tool's
        if _starts(tool, file):
            return tool
    return None


def _without_sidecar(file: Path) -> ToolDef:
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise DefinitionError(f"{shown(file)} is no tool: it is not a regular file")
    if not mode & 0o111:
        raise DefinitionError(f"{shown(file)} has no execute bit: chmod +x {shown(file.name)}")
    if not TOOL_NAME.fullmatch(_stem(file.name)):
        rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        raise DefinitionError(f'"{shown(_stem(file.name))}" cannot be a tool\'s name ({rule}); rename {shown(file)}')
    return ToolDef(name=_stem(file.name), implementation=Program(file), origin=shown(file))


def _of_stem(stem: str, folder: Path, names: Iterable[str]) -> list[Path]:
    return [folder / name for name in names if _stem(name) == stem and sidecar_stem(name) is None]


def _starts(tool: ToolDef, file: Path) -> bool:
    program = tool.implementation
    return isinstance(program, Program) and (program.path == file or str(file) in program.args)


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]
