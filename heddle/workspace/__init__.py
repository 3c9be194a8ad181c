"""The directory in which the tools of one scope work: made when it is needed, gone when the scope is over."""

from heddle.workspace.directory import Workspace

__all__ = ["Workspace"]
