"""The directory in which the tools of one scope work: what is put in, what comes back, what changed.

mounts      what is put into a workspace, and how several go together
sources     mounts that were looked at and may be used
filling     their contents, copied in
copyback    what tools have changed, brought back
changes     what changed, by contents
directory   `Workspace`: made when it is needed, gone when the scope is over
kept        workspaces that stay
temporary   the private folder of a run, and what killed runs have left
trees, copying, removal    how trees are walked, copied, removed; no link is ever followed
"""

from heddle.workspace.changes import Changes, FileFault, FileState
from heddle.workspace.directory import Workspace
from heddle.workspace.mounts import Mount
from heddle.workspace.report import ScopeReport

__all__ = ["Changes", "FileFault", "FileState", "Mount", "ScopeReport", "Workspace"]
