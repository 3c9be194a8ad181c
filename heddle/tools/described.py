"""One file that describes tools, in whichever form: a sidecar describes one, a manifest several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.tools.definition import Notice, Program, ToolDef
from heddle.tools.documents import Document, load_document
from heddle.tools.inventory import Inventory
from heddle.tools.manifests import manifest_of
from heddle.tools.sidecars import has_actions, tool_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Described", "load_described"]


@attrs.frozen(eq=False)
class Described:
    """What one file describes.

    Attributes:
        document: The file.
        tools: At least one.
        id: Of a manifest; None for a sidecar.
        inventory: The files that belong to the tools of a manifest.
        notices: What its author would want to know.
    """

    document: Document
    tools: tuple[ToolDef, ...]
    id: str | None = None
    inventory: Inventory | None = None
    notices: tuple[Notice, ...] = ()

    def files(self) -> Iterator[Path]:
        """Yield what may be a file of the folder and belongs to the tools: nobody should call it in another way."""
        for tool in self.tools:
            if isinstance(tool.implementation, Program):
                yield tool.implementation.path
                yield from map(Path, tool.implementation.args)
        if self.inventory is not None:
            yield from self.inventory.paths


def load_described(path: Path, same_stem: Sequence[Path], *, closely: bool = False) -> Described:
    """Return what a file describes.

    Args:
        path: A sidecar or a manifest; absolute, so that what it names is found from any working directory.
        same_stem: The other files beside it that have its stem, the preferred one first.
        closely: Report what is wrong with the schemas as well, which registration would find later and one at a time.

    Raises:
        BrokenDocument: Every problem of the file, each with its line.
    """
    document = load_document(path, what="sidecar")
    if not has_actions(document.value):
        return Described(document, (tool_of(document, same_stem, closely=closely),))
    manifest = manifest_of(document, closely=closely)
    return Described(document, manifest.tools, manifest.id, manifest.inventory, manifest.notices)
