"""Which tier confines the calls of a runner: the strongest that works here and that the policy lets be taken.

A tier that cannot hold what the policy asks for is passed over and said; where none is left nothing is run.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from heddle.errors import DefinitionError, SandboxUnavailable
from heddle.logs import logger
from heddle.sandbox import trials
from heddle.sandbox.bubblewrap import LINKS, SYSTEM, Plan
from heddle.sandbox.landlock import SCOPES_SINCE, landlock_abi
from heddle.sandbox.policy import NOBODY, BackendName, Grant, Sandbox, mode_at, with_pins
from heddle.sandbox.seatbelt import GUARANTEES as SEATBELT
from heddle.sandbox.seatbelt import NEVER_RUN
from heddle.sandbox.tiers import Kind, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["choose", "grants_of", "guarantees_of", "refuse_too_much", "tier_of_folder"]

# The ways to try for each name, in order.
WAYS: Mapping[BackendName, Sequence[Kind]] = {
    "auto": ("containers", "single", "landlock") if sys.platform != "darwin" else ("seatbelt",),
    "bubblewrap": ("containers", "single"),
    "landlock": ("landlock",),
    "seatbelt": ("seatbelt",),
}
# What a container has of its own.
OWN = ("/tmp", "/dev/shm", "/proc", "/dev")  # noqa: S108 - names, not uses
NEVER = ("/proc", "/dev/pts", "/dev/mqueue")
_said: set[str] = set()


def choose(sandbox: Sandbox, grants: Sequence[Grant], roots: Sequence[Path]) -> Tier:
    """Return what will confine calls. Blocks for a moment where it has not been tried yet.

    Args:
        sandbox: The policy.
        grants: What every call may use, in order; see `grants_of`.
        roots: Folders in which workspaces are made.

    Raises:
        SandboxUnavailable: Nothing here can hold the policy; each reason is named, with what to do.
    """
    reasons: list[str] = []
    for kind in WAYS[sandbox.backend]:
        reason = _why_not(kind, sandbox, grants, roots)
        if reason is None:
            tier = _tier(kind, sandbox, grants, roots)
            _say_what_is_less(tier, reasons)
            return tier
        reasons.append(reason)
    raise SandboxUnavailable(
        "sandbox", "nothing here can confine tools, so none is run. " + " ".join(dict.fromkeys(reasons))
    )


def grants_of(sandbox: Sandbox, programs: Iterable[Path], roots: Sequence[Path]) -> tuple[Grant, ...]:
    """Return what every call may use beside its workspace and the system: of two that meet, the inner one wins.

    Args:
        sandbox: The policy.
        programs: The tools' files. Each may be read with the folder that it is in, where that is a folder of tools.
        roots: Folders in which workspaces are made.

    Raises:
        DefinitionError: A path of the policy is not there.
    """
    missing = [str(path) for path in (*sandbox.read, *sandbox.write) if not path.exists()]
    if missing:
        raise DefinitionError(f"the sandbox names what is not there: {', '.join(missing)}")
    for path in (*sandbox.read, *sandbox.write):
        refuse_too_much(path, writes=path in sandbox.write)
    writable = [Path(os.path.realpath(path)) for path in sandbox.write]
    for path in (*sandbox.read, *sandbox.write):
        _refuse_planted(path, writable)
    wanted = [(Grant(Path(os.path.realpath(path)), "ro"), 0) for path in sandbox.read]
    wanted += [(Grant(Path(os.path.realpath(path)), "rw"), 1) for path in sandbox.write]
    places = dict.fromkeys(_place_of(Path(os.path.realpath(path)), roots) for path in programs)
    wanted += [(Grant(place, "ro"), 2) for place in places if not _is_of_the_system(place)]
    # The outer first; of the same path, what is written over what is read, and a tool's own folder over both.
    return tuple(
        grant for grant, _ in sorted(dict.fromkeys(wanted), key=lambda each: (len(each[0].path.parts), each[1]))
    )


def refuse_too_much(path: Path, *, writes: bool) -> None:
    """Refuse a path with which little is left of a sandbox, or that is another one inside.

    Raises:
        DefinitionError: It is one.
    """
    real = Path(os.path.realpath(path))
    if any(Path(own).is_relative_to(real) for own in OWN) or any(map(real.is_relative_to, NEVER)):
        raise DefinitionError(f"a sandbox cannot grant {path}: every call has its own. Name the folders in it")
    system = {Path(os.path.realpath(name)) for name in (*SYSTEM, *LINKS, "/etc")}
    if writes and any(folder.is_relative_to(real) for folder in system):
        raise DefinitionError(f"a sandbox in which tools may write {path} is none. Name the folder that they need")


def _refuse_planted(path: Path, writable: Sequence[Path]) -> None:
    """Refuse a path that leads over a link in a folder that tools may write: one of them may have put it there."""
    for place in (*reversed(path.parents), path):
        folder = Path(os.path.realpath(place.parent))
        if place.is_symlink() and any(folder.is_relative_to(outer) for outer in writable):
            raise DefinitionError(
                f"a sandbox cannot grant {path}: {place} is a link in a folder that tools may write, and may lead "
                "anywhere. Grant what it leads to, by that name"
            )


def _place_of(program: Path, roots: Sequence[Path]) -> Path:
    """Return the folder of a tool, or only its file where that folder is one for everything."""
    folder = program.parent
    shared = [Path(os.path.realpath(tempfile.gettempdir())), *roots]
    with contextlib.suppress(RuntimeError):  # a user of whom nothing is known
        shared.append(Path(os.path.realpath(Path.home())))
    return program if any(place.is_relative_to(folder) for place in shared) else folder


def _is_of_the_system(path: Path) -> bool:
    return any(path.is_relative_to(system) for system in (*SYSTEM, *LINKS))


def _why_not(kind: Kind, sandbox: Sandbox, grants: Sequence[Grant], roots: Sequence[Path]) -> str | None:
    """Return why this way cannot be taken, as a sentence; None when it can."""
    if kind == "seatbelt":
        if sandbox.require == "namespaces":
            return "Seatbelt has no namespaces, which require='namespaces' asks for."
        trial = trials.try_seatbelt()
        return None if trial.works else _sentence("Seatbelt", trial)
    if kind == "landlock":
        if sandbox.require == "namespaces":
            return "Landlock would be left, and require='namespaces' refuses it."
        inner = next(
            (grant.path for grant in grants if grant.mode == "ro" and mode_at(grant.path.parent, grants) == "rw"), None
        )
        shown = next((root for root in roots if mode_at(root, grants) is not None), None)
        if shown is not None:
            return f"Landlock cannot hide {shown}, where workspaces are made, inside of a folder that is granted."
        if inner is not None:
            return f"Landlock cannot keep {inner} read-only inside of a folder that may be written."
        trial = trials.try_landlock()
        return None if trial.works else _sentence("Landlock", trial)
    bwrap, missing = trials.find_bubblewrap()
    if missing is not None or bwrap is None:
        return _sentence("bubblewrap", missing) if missing is not None else "bubblewrap is missing."
    trial = (trials.try_containers if kind == "containers" else trials.try_single)(bwrap, sandbox.network)
    return None if trial.works else _sentence("bubblewrap", trial)


def _sentence(what: str, trial: trials.Trial) -> str:
    """Return a trial's failure as sentences."""
    fix = f" {trial.fix[:1].upper()}{trial.fix[1:].rstrip('.')}." if trial.fix else ""
    return f"{what}: {trial.reason}.{fix}"


def _tier(kind: Kind, sandbox: Sandbox, grants: Sequence[Grant], roots: Sequence[Path]) -> Tier:
    uid, gid = _user_for(kind, sandbox, grants, roots)
    bwrap, _ = trials.find_bubblewrap()
    abi = _abi() if kind != "seatbelt" else 0
    plan = Plan(
        bwrap=bwrap or "",
        network=sandbox.network,
        grants=with_pins(grants, roots),
        roots=tuple(roots),
        tmp_bytes=sandbox.tmp_bytes,
        is_root=uid == 0,
        joins_namespace=kind == "containers" and uid != os.geteuid(),
    )
    return Tier(
        name=kind if kind in ("landlock", "seatbelt") else "bubblewrap",
        kind=kind,
        plan=plan,
        abi=abi,
        uid=uid,
        gid=gid,
        guarantees=guarantees_of(kind, sandbox, abi, uid),
    )


def tier_of_folder(tier: Tier, folder: Path, grants: Sequence[Grant], handles: Mapping[Path, int]) -> Tier:
    """Return the tier for a workspace that lies where `tier` does not reach: one that the host has brought.

    As root, its tools run as whoever the folder belongs to.

    Args:
        tier: That of the runner.
        folder: The workspace.
        grants: What its tools may use beside what the runner's may; the folder among it.
        handles: All of that, opened.
    """
    uid, gid = tier.uid, tier.gid
    if os.geteuid() == 0:
        info = os.fstat(handles[folder])
        if not _may(info, uid, gid, stat.S_IRWXO):
            uid = info.st_uid
            gid = info.st_gid or _group_of(uid)  # no tool needs to be of root's group
    if uid == 0 and tier.uid != 0:
        _say_once(f"tools run as root in {folder}, which belongs to root: some limits have no effect")
    plan = attrs.evolve(
        tier.plan,
        grants=with_pins([*tier.plan.grants, *grants]),
        roots=(),
        handles={**tier.plan.handles, **handles},
        is_root=uid == 0,
        joins_namespace=tier.kind == "containers" and uid != os.geteuid(),
    )
    guarantees = {**tier.guarantees, "process_limit": "no"} if uid == 0 else tier.guarantees
    return attrs.evolve(tier, plan=plan, uid=uid, gid=gid, guarantees=guarantees)


def _abi() -> int:
    try:
        return landlock_abi()
    except SandboxUnavailable:
        return 0


def _user_for(kind: Kind, sandbox: Sandbox, grants: Sequence[Grant], roots: Sequence[Path]) -> tuple[int, int]:
    """Return who tools run as: as root somebody else, where the files let them.

    Raises:
        SandboxUnavailable: The policy names a user who may not use what it grants.
    """
    if os.geteuid() != 0 or kind == "seatbelt":
        return os.geteuid(), os.getegid()
    if sandbox.run_as == 0:
        return 0, 0
    uid = NOBODY if sandbox.run_as is None else sandbox.run_as
    gid = _group_of(uid)
    # Inside of namespaces the way to a file is not the host's: only the file itself has to let them.
    obstacle = _obstacle(uid, gid, grants, whole_way=() if kind == "containers" else roots)
    if obstacle is None:
        return uid, gid
    if sandbox.run_as is not None:
        raise SandboxUnavailable(f"run_as={uid}", f"that user {obstacle}: change its mode, or leave run_as out")
    _say_once(f"tools run as root, because user {uid} {obstacle}: some limits have no effect")
    return 0, 0


def _group_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def _obstacle(uid: int, gid: int, grants: Sequence[Grant], whole_way: Sequence[Path]) -> str | None:
    """Return what a user may not do that tools must be able to; None when there is nothing.

    Where there are folders in `whole_way`, the way to each of them and to each grant counts too.
    """
    for grant in grants:
        info = grant.path.stat()
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(info.st_mode) else 0)
        needed |= stat.S_IWOTH if grant.mode == "rw" else 0
        if not _may(info, uid, gid, needed):
            return f"may not {'write' if needed & stat.S_IWOTH else 'read'} {grant.path}"
    if whole_way:
        # The first is the run's own, and is opened up for them.
        ways = [*(parent for grant in grants for parent in grant.path.parents), *whole_way[1:]]
        ways += [parent for root in whole_way for parent in root.parents]
        for place in dict.fromkeys(ways):
            if not _may(place.stat(), uid, gid, stat.S_IXOTH):
                return f"may not pass through {place}"
    return None


def _may(info: os.stat_result, uid: int, gid: int, needed: int) -> bool:
    """Return whether a mode gives a user what is `needed`, in the bits of others."""
    mode = info.st_mode
    if info.st_uid == uid:
        mode >>= 6
    elif info.st_gid == gid:
        mode >>= 3
    return mode & needed == needed


def guarantees_of(kind: Kind, sandbox: Sandbox, abi: int, uid: int) -> Mapping[str, str]:
    """Return what holds in one way of confining, word by word: ``enforced``, ``partial`` or ``no``.

    Args:
        kind: The way.
        sandbox: The policy.
        abi: The version of Landlock.
        uid: Who tools run as.
    """
    if kind == "seatbelt":
        return MappingProxyType({**SEATBELT, "tried_by_its_makers": "no"})
    apart = kind != "landlock"
    words = {
        "processes": "enforced",
        "reads": "enforced",
        # There the mode and the times of what belongs to the same user can be changed.
        "writes": "enforced" if apart else "partial",
        "network": "enforced" if sandbox.network == "none" else "no",
        "signals": "enforced" if apart or abi >= SCOPES_SINCE else "no",
        "other_calls": "enforced" if apart else "partial",
        "process_limit": "no" if uid == 0 else "enforced" if apart else "partial",
        "memory_limit": "partial",
        # Where bubblewrap makes it, a folder in memory has a size and no limit of names.
        "temporary_files_limit": "enforced" if kind == "containers" else "partial" if apart else "no",
    }
    return MappingProxyType(words)


def _say_what_is_less(tier: Tier, reasons: Sequence[str]) -> None:
    """Say once why a stronger tier was not taken."""
    if tier.kind == "seatbelt":
        _say_once(NEVER_RUN)
    if reasons and tier.kind == "landlock":
        _say_once("calls are confined by Landlock, not by namespaces. " + " ".join(dict.fromkeys(reasons)))


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
