"""Which variables a tool gets. A key in the host's environment never reaches one by accident."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import attrs

from heddle.errors import DefinitionError

__all__ = ["Environment"]

# What a program needs to find others, itself and its language. LC_* come with them.
ALWAYS = ("PATH", "HOME", "TMPDIR", "LANG", "TZ")


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
    """

    allow: tuple[str, ...] | None = attrs.field(default=None, converter=_names)
    values: Mapping[str, str] = attrs.field(
        factory=dict[str, str], converter=_values, hash=False, repr=lambda values: str([*values])
    )

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

    def values_of(self, *names: str) -> dict[str, str]:
        """Return those of the host's own values that have these names."""
        return {name: self.values[name] for name in names if name in self.values}

    def _names_for(self, inherit: Sequence[str], *, confined: bool) -> Sequence[str]:
        if self.allow is None:
            return ALWAYS if confined else (*ALWAYS, *inherit)
        allowed = [name for name in inherit if name in self.allow] if inherit else self.allow
        return (*ALWAYS, *allowed)
