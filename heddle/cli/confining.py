"""The options that confine tools, as a policy. Each but ``--safe`` says nothing without it, and is refused then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from heddle.errors import DefinitionError
from heddle.sandbox.policy import BackendName, Sandbox

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["sandbox_of"]


def sandbox_of(
    *, safe: bool, backend: str | None, allow_read: Sequence[str], allow_write: Sequence[str], deny_net: bool
) -> Sandbox | None:
    """Return the policy that the options ask for; None where they ask for none.

    Raises:
        DefinitionError: An option is given without ``--safe``, or names what is not there; all of them are named.
    """
    if not safe:
        _refuse_without_safe(
            {"--sandbox": backend, "--allow-read": allow_read, "--allow-write": allow_write, "--deny-net": deny_net}
        )
        return None
    missing = [
        f"{option} {path}"
        for option, paths in (("--allow-read", allow_read), ("--allow-write", allow_write))
        for path in paths
        if not Path(path).exists()
    ]
    if missing:
        raise DefinitionError(f"not there: {', '.join(missing)}")
    return Sandbox(
        network="none" if deny_net else "host",
        read=[*_launch_folder(), *allow_read],
        write=allow_write,
        backend=cast("BackendName", backend or "auto"),
    )


def _refuse_without_safe(given: dict[str, object]) -> None:
    offenders = [option for option, value in given.items() if value]
    if offenders:
        verb = "confines" if len(offenders) == 1 else "confine"
        raise DefinitionError(f"{', '.join(offenders)} {verb} nothing without --safe: add it, or leave them out")


def _launch_folder() -> list[Path]:
    """Return the folder that heddle was started from; nothing, with a word, where that is everything a user has."""
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        click.echo("note: the folder in which heddle was started is gone", err=True)
        return []
    try:
        home = Path(os.path.realpath(Path.home()))
    except RuntimeError:  # a user of whom nothing is known
        home = folder
    if home.is_relative_to(folder) or Path("/tmp").is_relative_to(folder):  # noqa: S108 - a name, not a use
        click.echo(f"note: tools may not read {folder}, where heddle was started: that is too much", err=True)
        return []
    return [folder]
