"""What a tool may read, write and reach: `Sandbox`, and what a scope asks of a tier. Data; nothing is done here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from heddle.errors import DefinitionError, SandboxUnavailable
from heddle.limits import Limits

__all__ = [
    "CONFINED_LIMITS",
    "BackendName",
    "Confinement",
    "Grant",
    "Network",
    "Sandbox",
    "Usual",
    "mode_at",
    "with_pins",
]

Network: TypeAlias = Literal["host", "none"]
BackendName: TypeAlias = Literal["auto", "bubblewrap", "landlock", "seatbelt"]

GIB = 1024**3
MIB = 1024**2


class Usual(int):
    """A limit that nobody has asked for: where it cannot be held it is left out."""


# 64 processes: a build with a few workers fits, a fork bomb does not matter. 2 GiB: an interpreter with a data set.
CONFINED_LIMITS = Limits(processes=Usual(64), memory_bytes=2 * GIB)
# 64 MiB: what compilers and interpreters put into /tmp. It is memory.
TMP_BYTES = 64 * MIB
# What has no owner of its own anywhere.
NOBODY = 65534


def _network(network: Network) -> Network:
    if network == "host":
        return "host"
    if network == "none":
        return "none"
    if isinstance(network, (list, tuple, set, frozenset)):
        raise SandboxUnavailable(
            "network", "this version cannot hold tools to a list of host names; say network='none', or 'host' for all"
        )
    raise DefinitionError(f"Sandbox(network=…) takes 'host' or 'none', not {network!r:.60}")


def _paths(paths: Iterable[str | Path]) -> tuple[Path, ...]:
    if isinstance(paths, (str, Path)):
        raise DefinitionError(f"Sandbox takes several paths, not the one {str(paths)!r}: put it into a list")
    return tuple(Path(os.path.abspath(path)) for path in paths)


def _one_of(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    choices = _CHOICES[attribute.name]
    if value not in choices:
        named = ", ".join(map(repr, choices))
        raise DefinitionError(f"Sandbox({attribute.name}=…) takes one of {named}, not {value!r:.60}")


_CHOICES: Mapping[str, tuple[object, ...]] = {
    "backend": ("auto", "bubblewrap", "landlock", "seatbelt"),
    "require": (None, "namespaces"),
}


def _a_user(_instance: object, _attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise DefinitionError(f"Sandbox(run_as=…) takes the number of a user, not {value!r:.60}")


@attrs.frozen(kw_only=True)
class Sandbox:
    """What tools may read, write and reach. Whatever is not granted is denied; what cannot be held is refused.

    Every tool may read the system's programs and libraries, its own folder and what is mounted, and may write its
    workspace and a temporary folder of its own.

    Attributes:
        network: ``host`` is all that the host can reach; ``none`` is nothing, not even the host itself.
        read: Folders and files that tools may read and execute as well.
        write: Folders and files that tools may change as well.
        backend: What has to hold it: ``bubblewrap``, ``landlock`` or ``seatbelt``, and nothing in its place. ``auto``
            takes the strongest that works here; on macOS that is Seatbelt, which was never tried by heddle's makers.
        require: ``namespaces`` refuses Landlock, under which the host's files and processes are in sight though out of
            reach.
        run_as: The user that tools run as when the host is root: by default 65534, nobody, where the files let that
            user work. 0 stays root, and leaves some limits without effect.
        tmp_bytes: The size of each call's own ``/tmp``, where there is one of its own. It is memory.
    """

    network: Network = attrs.field(converter=_network)
    read: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    write: tuple[Path, ...] = attrs.field(default=(), converter=_paths)
    backend: BackendName = attrs.field(default="auto", validator=_one_of)
    require: Literal["namespaces"] | None = attrs.field(default=None, validator=_one_of)
    run_as: int | None = attrs.field(default=None, validator=_a_user)
    tmp_bytes: int = attrs.field(default=TMP_BYTES, validator=attrs.validators.ge(MIB))


@attrs.frozen
class Grant:
    """One path that a call may use. Paths are the host's, absolute."""

    path: Path
    mode: Literal["ro", "rw"]


def with_pins(grants: Iterable[Grant], kept: Iterable[Path] = ()) -> tuple[Grant, ...]:
    """Return grants, the outer first, with each folder on the way from one that may be written to one that may not.

    A folder that is bound by itself cannot be moved: else a tool would put one of its own in the place of what it may
    only read, for the next call or for the host.

    Args:
        grants: What may be used.
        kept: Other places to which the way has to stay as it is.
    """
    known = sorted(dict.fromkeys(grants), key=lambda each: len(each.path.parts))
    paths = {grant.path for grant in known}
    inner = [*(grant.path for grant in known if grant.mode == "ro"), *kept]
    pins = {
        parent for path in inner for parent in path.parents if parent not in paths and mode_at(parent, known) == "rw"
    }
    return tuple(sorted([*known, *(Grant(path, "rw") for path in pins)], key=lambda each: len(each.path.parts)))


def mode_at(path: Path, grants: Iterable[Grant]) -> Literal["ro", "rw"] | None:
    """Return what the innermost of the grants that hold a path lets be done with it; None where none does."""
    holding = [grant for grant in grants if path.is_relative_to(grant.path)]
    return max(holding, key=lambda each: len(each.path.parts)).mode if holding else None


@attrs.frozen(kw_only=True)
class Confinement:
    """What a session of calls may use: asked of a `Launcher` or a `Backend`, once per scope.

    Attributes:
        workspace: The directory in which the calls work.
        grants: In order; a later grant inside an earlier one wins. The workspace comes first.
        limits: The ceiling of every call in the session.
        sandbox: The policy, where the runner was given one.
        places: What lies elsewhere and is read at a place in the workspace: place → what is there.
        reserved: The folder of tools, which is read-only.
        temporary: A folder for temporary files, where a call has no ``/tmp`` of its own.
    """

    workspace: Path
    grants: tuple[Grant, ...] = ()
    limits: Limits = attrs.field(factory=Limits)
    sandbox: Sandbox | None = None
    places: Mapping[str, Path] = attrs.field(factory=dict[str, Path], hash=False)
    reserved: Path | None = None
    temporary: Path | None = None

    @property
    def of_workspace(self) -> tuple[Grant, ...]:
        """What of it has to do with the workspace: the rest of what our own tiers need was found before any call."""
        return (
            Grant(self.workspace, "rw"),
            *([] if self.temporary is None else [Grant(self.temporary, "rw")]),
            *([] if self.reserved is None else [Grant(self.reserved, "ro")]),
            *(Grant(path, "ro") for path in self.places.values()),
        )

    @property
    def inside(self) -> tuple[Grant, ...]:
        """What of it lies in the workspace and may only be read: tools of a folder that is adopted with them."""
        own = set(self.of_workspace)
        real = (Grant(Path(os.path.realpath(grant.path)), grant.mode) for grant in self.grants if grant not in own)
        return tuple(grant for grant in real if grant.mode == "ro" and grant.path.is_relative_to(self.workspace))
