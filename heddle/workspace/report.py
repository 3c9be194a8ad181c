"""What became of the files of a scope, told when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.workspace.changes import Changes, FileFault
from heddle.workspace.trees import shown

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["ScopeReport"]


@attrs.frozen(kw_only=True)
class ScopeReport:
    """What became of the files of a scope. Complete when its block has been left.

    Paths are those in the workspace, in their order.

    Attributes:
        copied_back: Files of ``rw`` mounts that were written to where they came from.
        overwritten: Those of them that somebody else had changed, made or deleted there meanwhile.
        failed: What tools have changed in ``rw`` mounts and was not copied back, and why. It is lost with the
            workspace, unless that is kept.
        changes: How the workspace differs from what was put in it; None when nobody asked.
        kept: Where the workspace stays; None when it is removed.
    """

    copied_back: tuple[str, ...] = ()
    overwritten: tuple[str, ...] = ()
    failed: tuple[FileFault, ...] = ()
    changes: Changes | None = None
    kept: Path | None = None

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        return {
            "copied_back": [shown(path) for path in self.copied_back],
            "overwritten": [shown(path) for path in self.overwritten],
            "failed": [fault.as_json() for fault in self.failed],
            "changes": None if self.changes is None else self.changes.as_json(),
            "kept": None if self.kept is None else shown(str(self.kept)),
        }
