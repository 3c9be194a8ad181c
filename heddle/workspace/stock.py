"""What the workspaces of one runner are made from: where they go, and what is put into each."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.threads import in_thread, unless_cancelled
from heddle.workspace.directory import Workspace
from heddle.workspace.filling import snapshot
from heddle.workspace.kept import place_for_kept
from heddle.workspace.layout import AS_COPIES, Layout
from heddle.workspace.mounts import Mounts
from heddle.workspace.removal import remove_tree
from heddle.workspace.sources import Source, checked_for
from heddle.workspace.temporary import RunFolder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from heddle.tools.definition import ToolDef
    from heddle.workspace.mounts import Mount

__all__ = ["Stock"]

# 2: copying is work for the interpreter, and each thread more makes the loop wait longer for its turn.
MOST_COPYING = 2


@attrs.frozen(eq=False)
class Stock:
    """What the workspaces of a runner have in common.

    Attributes:
        home: The private folder of the run.
        sources: The mounts of the runner. Those that are ``ro`` are copies that nobody changes.
        keep_in: Where workspaces stay; None removes them.
        limiter: How many workspaces are filled or emptied at once.
        layout: How each is laid out.
    """

    home: RunFolder
    sources: tuple[Source, ...] = ()
    keep_in: Path | None = None
    limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(MOST_COPYING))
    layout: Layout = AS_COPIES

    @classmethod
    @asynccontextmanager
    async def open(
        cls, mounts: Mounts, keep_in: str | Path | None, home: RunFolder, layout: Layout = AS_COPIES
    ) -> AsyncGenerator[Stock, None]:
        """Look at the mounts, copy those that are ``ro``, and have a home for the time of the block.

        Raises:
            DefinitionError: Something cannot be used; every fault is named. Nothing is left.
            OSError: A mount cannot be copied.
        """
        kept = None if keep_in is None else place_for_kept(keep_in)
        home.admit(layout.owner)
        copies: list[Path] = []
        try:
            sources: tuple[Source, ...] = ()
            if mounts:
                sources = await in_thread(_prepared, mounts, home, kept, copies, layout.owner)
            yield cls(home, sources, kept, layout=layout)
        finally:
            if home.is_ours:  # a forked child that unwinds has only copies
                with trio.CancelScope(shield=True):
                    for copy in copies:
                        await in_thread(remove_tree, copy)
                        home.give_back(copy)
                home.close()

    async def workspace(self, label: str, tools: Iterable[ToolDef], mounts: Iterable[Mount | str] = ()) -> Workspace:
        """Return a workspace that holds the mounts of the runner and more; it is not made yet.

        Raises:
            DefinitionError: A mount cannot be used; every fault is named.
        """
        group = Mounts.of(mounts, "scope(mounts=…)")
        sources = self.sources
        if group:
            sources = (*sources, *await in_thread(checked_for, group, self.keep_in, unless_cancelled(), self.sources))
        return Workspace(
            label,
            tools,
            home=self.home,
            sources=sources,
            keep_in=self.keep_in,
            limiter=self.limiter,
            layout=self.layout,
        )


def _prepared(
    mounts: Mounts, home: RunFolder, kept: Path | None, copies: list[Path], owner: tuple[int, int] | None
) -> tuple[Source, ...]:
    """Look at mounts, and take copies of what is read-only; they are added to `copies`."""
    pause = unless_cancelled()
    sources = checked_for(mounts, kept, pause)
    if not any(source.mount.mode == "ro" for source in sources):
        return tuple(sources)
    folder = home.new("mounts")
    copies.append(folder)
    if owner is not None:
        folder.chmod(0o711)
    return tuple(
        snapshot(source, folder / str(number), pause, owner) if source.mount.mode == "ro" else source
        for number, source in enumerate(sources)
    )
