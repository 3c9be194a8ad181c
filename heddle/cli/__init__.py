"""The command line: parse, assemble, call, print. A door: nothing imports it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point ``heddle``."""
    try:
        from heddle.cli.commands import heddle
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich"}:
            raise
        sys.stderr.write("heddle: the command line needs an extra: pip install 'heddle[cli]'\n")
        sys.exit(2)
    heddle()
