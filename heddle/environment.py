"""Which variables a tool gets. A key in the host's environment never reaches one by accident."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs

from heddle.errors import DefinitionError
from heddle.redaction.keys import is_secret_key
from heddle.references import ALWAYS, Unresolved, source_for

__all__ = ["Environment"]


def _names(names: Iterable[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise DefinitionError(f"Environment(allow=…) takes several names, not the one text {names!r}")
    return None if names is None else tuple(names)


def _values(values: Mapping[str, str] | None) -> Mapping[str, str]:
    known: dict[str, str] = {}
    given: Mapping[str, str] = known if values is None else values
    for name, value in given.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise DefinitionError(f"{name!r} cannot be a variable: a name has no '=', and neither part a NUL character")
        known[name] = value
    return known


def _file(file: str | os.PathLike[str] | Literal[False] | None) -> Path | Literal[False] | None:
    if file is None or file is False:
        return file
    if not isinstance(file, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
        raise DefinitionError(f"Environment(file=…) takes a path, False for no file, or None, not {file!r:.60}")
    path = Path(file).absolute()
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        raise DefinitionError(f"Environment(file=…) names no file: {str(path)!r:.200}. Create it, or say False")
    return path


@attrs.frozen(kw_only=True)
class Environment:
    """What the host lets its tools see.

    Every tool gets ``PATH``, ``HOME``, ``TMPDIR``, ``LANG``, ``LC_*`` and ``TZ`` of the host, its own ``HEDDLE_*``,
    and what stands here.

    Attributes:
        allow: Names of the host's variables that tools may have; ``"*"`` is all of them. A tool that declares which
            it needs gets those of them that are allowed. None: the host says nothing, and a tool that is not
            confined gets what it declares.
        values: Variables that every tool gets, whatever the host's own are.
        file: Where values come from that the host's environment does not have: a file of references to the login shell
            and to commands, for tools that declare which names they need. None: the one that
            ``HEDDLE_ENVIRONMENT_FILE`` names, else ``~/.heddle/environment.env`` if there is one. False: none.

    Raises:
        DefinitionError: What is given is not of this form, or `file` is no file.
    """

    allow: tuple[str, ...] | None = attrs.field(default=None, converter=_names)
    values: Mapping[str, str] = attrs.field(
        factory=dict[str, str], converter=_values, hash=False, repr=lambda values: str([*values])
    )
    file: Path | Literal[False] | None = attrs.field(default=None, converter=_file)

    def variables(self, inherit: Sequence[str] = (), *, confined: bool = False) -> dict[str, str]:
        """Return the variables of a tool that declares `inherit`, from the host's as they are now."""
        host = os.environ
        if self.allow is not None and "*" in self.allow:
            chosen = dict(host)
        else:
            chosen = {name: host[name] for name in self._names_for(inherit, confined=confined) if name in host}
            chosen |= {name: value for name, value in host.items() if name.startswith("LC_")}
        chosen |= self.values
        # What is not absolute means the workspace there, and a tool could put a program of its own into that.
        folders = [folder for folder in chosen.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
        chosen["PATH"] = os.pathsep.join(folders) or os.defpath
        return chosen

    async def resolve(self, inherit: Sequence[str] = (), *, confined: bool = False) -> dict[str, str] | Unresolved:
        """Return `variables` with what the environment file gives beside them, or why that cannot be given.

        What the file refers to is looked up when it is first asked for, once in a process; that may take seconds, and
        does not hold the loop. A variable of the host wins, an empty one too.
        """
        known = self.variables(inherit, confined=confined)
        sought = [name for name in inherit if self._may_come_from_file(name, confined=confined)]
        source = source_for(self.file) if sought else None
        if source is None:
            return known
        found = await source.find(sought)
        return found if isinstance(found, Unresolved) else found | known

    def values_of(self, *names: str) -> dict[str, str]:
        """Return those of the host's own values that have these names."""
        return {name: self.values[name] for name in names if name in self.values}

    def named(self, inherit: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
        """Return those of a tool's variables that the host gives by name, or that are named like secrets."""
        names = {*inherit, *self.values, *(self.allow or ())}
        return {name: value for name, value in given.items() if name in names or is_secret_key(name)}

    def _names_for(self, inherit: Sequence[str], *, confined: bool) -> Sequence[str]:
        if self.allow is None:
            return ALWAYS if confined else (*ALWAYS, *inherit)
        allowed = [name for name in inherit if name in self.allow] if inherit else self.allow
        return (*ALWAYS, *allowed)

    def _may_come_from_file(self, name: str, *, confined: bool) -> bool:
        if name in os.environ or name in self.values or name in ALWAYS or name.startswith("LC_"):
            return False
        return not confined if self.allow is None else name in self.allow or "*" in self.allow
