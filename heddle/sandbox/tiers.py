"""What really confines calls here: one way of several, with all that it needs to know. Made by `choice`."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from heddle.sandbox.bubblewrap import LINKS, PUBLIC_ETC, SYSTEM, Plan
from heddle.sandbox.policy import Grant
from heddle.sandbox.seccomp import NETWORK_OF_ITS_OWN, NETWORK_OF_THE_HOST, NO_NETWORK, seccomp_program

if TYPE_CHECKING:
    from heddle.sandbox.policy import Network

__all__ = ["Kind", "Tier"]

Kind: TypeAlias = Literal["containers", "single", "landlock", "seatbelt"]

# What a program may do with devices that lead nowhere.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
# What programs ask about the machine. The processes of the host are not among it.
MACHINE = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version"),
    *("/proc/filesystems", "/proc/sys", "/sys/devices/system/cpu"),
)


@attrs.frozen(kw_only=True, eq=False)
class Tier:
    """One way of confining calls, for one policy.

    Attributes:
        name: As reports have it: ``bubblewrap``, ``landlock`` or ``seatbelt``.
        kind: How: containers that are made ahead, one container a call, Landlock, or Seatbelt.
        plan: What all calls have in common.
        abi: The version of Landlock; 0 where there is none.
        uid: Who tools run as.
        gid: Their group.
        guarantees: What holds, word by word.
    """

    name: str
    kind: Kind
    plan: Plan
    abi: int
    uid: int
    gid: int
    guarantees: Mapping[str, str]

    @property
    def user(self) -> str:
        """Who the program that confines becomes, as a launch has it; empty where it stays who it is."""
        if self.uid == os.geteuid():
            return ""
        return f"{'+' if self.plan.joins_namespace else ''}{self.uid}:{self.gid}"

    @property
    def grants(self) -> tuple[Grant, ...]:
        """What every call may use, where it sees the host's own files."""
        etc = [f"/etc/{name}" for name in PUBLIC_ETC] if self.plan.is_root else ["/etc"]
        paths = [*SYSTEM, *LINKS, *etc, *MACHINE]
        if self.plan.network == "host":
            paths.append(os.path.realpath("/etc/resolv.conf"))
        # The system's own links are followed here: nobody but the system can have made them.
        return (
            *(Grant(Path(os.path.realpath(path)), "ro") for path in paths),
            *(Grant(Path(path), "rw") for path in DEVICES),
            *self.plan.grants,
        )

    def filter_for(self, network: Network) -> bytes:
        """Return the filter of system calls for tools with such a network."""
        if network == "host":
            families = NETWORK_OF_THE_HOST
        else:
            families = NO_NETWORK if self.kind == "landlock" else NETWORK_OF_ITS_OWN
        in_sight = self.kind == "landlock"
        return seccomp_program(platform.machine(), families, in_sight_of_the_host=in_sight, is_root=self.uid == 0)

    def reaches(self, workspace: Path) -> bool:
        """Return whether a workspace lies where the calls of this tier can work."""
        return any(workspace.is_relative_to(root) for root in self.plan.roots)
