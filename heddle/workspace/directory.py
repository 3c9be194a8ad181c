"""`Workspace`: a private directory, its reserved folder of tools, and the variables that say where it is."""

from __future__ import annotations

import logging
import os
import re
import shlex
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.threads import in_thread
from heddle.tools.definition import Program, ToolDef
from heddle.workspace.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable


__all__ = ["Workspace", "label_from"]

logger: logging.Logger = logging.getLogger("heddle")

# 40 characters: a label is for people who look for a directory, and paths have to stay short.
LABEL_CHARS = 40
RESERVED = ".heddle"
# 30 links take about as long as starting a process.
FEW_TOOLS = 30


def label_from(text: str) -> str:
    """Return `text` as a label: ``[A-Za-z0-9._-]``, at most 40 characters, never empty, ``.`` or ``..``."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:LABEL_CHARS]
    return label if label.strip(".") else "scope"


def _as_tuple(tools: Iterable[ToolDef]) -> tuple[ToolDef, ...]:
    return tuple(tools)


@attrs.define(eq=False)
class Workspace:
    """The directory in which a scope's tools work: their cwd and ``HEDDLE_WORKSPACE``, readable by this user alone.

    It is made when `path` is first asked for. Tools reach each other by name in ``.heddle/bin``, which is reserved.

    Attributes:
        label: What it is called, for people.
    """

    label: str = attrs.field(converter=label_from)
    _tools: tuple[ToolDef, ...] = attrs.field(default=(), converter=_as_tuple, alias="tools", repr=False)
    _path: Path | None = attrs.field(default=None, init=False)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, label: str = "scope", *, registry: Iterable[ToolDef] | None = None
    ) -> AsyncGenerator[Workspace, None]:
        """Have a workspace for the time of the block; it is removed at its end, whatever tools have done to it.

        Args:
            label: What it is called.
            registry: The tools that are reachable by name in it.
        """
        workspace = cls(label, registry or ())
        try:
            yield workspace
        finally:
            await workspace.remove()

    @property
    def path(self) -> Path:
        """The directory, absolute and free of links. Made when first asked for."""
        if self._path is None:
            self._path = self._made()
        return self._path

    async def make(self) -> None:
        """Make the directory now, without holding the loop where it takes more than a moment."""
        if self._path is None and len(self._tools) > FEW_TOOLS:
            self._path = await in_thread(self._made)
        elif self._path is None:
            self._path = self._made()

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return self._path is not None

    @property
    def bin(self) -> Path:
        """The folder in which every tool of the scope is reachable by its name."""
        return self.path / RESERVED / "bin"

    def variables(self, search_path: str) -> dict[str, str]:
        """Return what tells a tool where it works. The tools' own folder comes last on ``PATH``: it shadows nothing."""
        return {
            "HEDDLE_WORKSPACE": str(self.path),
            "HEDDLE_WORKSPACE_BIN": str(self.bin),
            "PATH": f"{search_path}{os.pathsep}{self.bin}",
        }

    async def remove(self) -> None:
        """Remove it and all that is in it, cancelled or not. What cannot be removed is logged and left."""
        path, self._path = self._path, None
        if path is None:
            return
        faults: tuple[str, ...] = ()
        with trio.CancelScope(shield=True):
            faults = await in_thread(remove_tree, path)
        for fault in faults:
            logger.warning("a workspace could not be removed entirely: %s: %s", path, fault)

    def leave(self) -> None:
        """Let the directory be: something that could not be ended still works in it."""
        logger.warning("a workspace is left, because a process of it could not be ended: %s", self._path)
        self._path = None

    def _made(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix=f"heddle-{self.label}-")).resolve()
        try:
            folder = path / RESERVED / "bin"
            folder.mkdir(parents=True)
            for tool in self._tools:
                _make_reachable(tool, folder / tool.name)
        except BaseException:
            remove_tree(path)
            raise
        return path


def _make_reachable(tool: ToolDef, place: Path) -> None:
    """Put a link where the program can be started as it is, else a small script."""
    program = tool.implementation
    if isinstance(program, Program) and not program.args:
        place.symlink_to(program.path)
        return
    if isinstance(program, Program):
        words = shlex.join([str(program.path), *program.args])
        script = f'#!/bin/sh\nexec {words} "$@"\n'
    else:
        said = f'heddle: "{tool.name}" is no program and cannot be started from here: call it through heddle'
        script = f"#!/bin/sh\necho {shlex.quote(said)} >&2\nexit 1\n"
    place.write_text(script, encoding="utf-8", errors="surrogateescape")
    place.chmod(0o700)
