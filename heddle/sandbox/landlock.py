"""What Landlock holds on this kernel, and a policy in the form that the kernel takes. Nothing is restricted here.

A process that restricts itself stays restricted, with all that it starts. So the restricting is done by a small program
that then starts tools; it is given the structures that are made here, and needs three system calls.

Source: the kernel's page on Landlock, userspace-api/landlock; linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from heddle.errors import SandboxUnavailable
from heddle.sandbox.handles import open_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from heddle.sandbox.policy import Grant

__all__ = [
    "ADD_RULE",
    "CREATE_RULESET",
    "RESTRICT_SELF",
    "SCOPES_SINCE",
    "Landlock",
    "landlock_abi",
    "new_ruleset",
    "tasks_of",
]

# The same on every architecture.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
PATH_BENEATH = 1

Mode: TypeAlias = Literal["ro", "rw"]

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = (1 << bit for bit in range(4))
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(4, 13)
)
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))
BIND_TCP, CONNECT_TCP = 1, 2
ABSTRACT_UNIX_SOCKET, SIGNAL = 1, 2

# Since when the kernel knows a right. It refuses a ruleset with one that it does not know.
_SINCE = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
_FIRST = (1 << 13) - 1
_NETWORK_SINCE, SCOPES_SINCE = 4, 6
READING = EXECUTE | READ_FILE | READ_DIR
# What can be asked of a file; the kernel refuses the others for one.
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
# Devices are for nobody to make, and those that are there are used by name.
NEVER = MAKE_CHAR | MAKE_BLOCK

_LACKING = {
    2: "files cannot be renamed or linked from one folder to another",
    3: "a file outside of what may be written can be cut to nothing, if its own mode lets its owner",
    4: "TCP is not held",
    5: "devices that may be opened can be sent any request",
    6: "abstract sockets and signals of the same user are not held",
}


def landlock_abi() -> int:
    """Return which version of Landlock this kernel has.

    Raises:
        SandboxUnavailable: It has none, or it is switched off; what to do is said.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)))
    if abi >= 1:
        return abi
    number = ctypes.get_errno()
    reason = {
        errno.ENOSYS: "this kernel has none (it came with Linux 5.13), or what runs it does not pass it on",
        errno.EOPNOTSUPP: 'it is built into this kernel and switched off: add "landlock" to the lsm= boot option',
        errno.EPERM: "the filter of system calls of the container denies it: allow landlock_create_ruleset and the "
        "two others there",
    }.get(number, os.strerror(number))
    raise SandboxUnavailable("landlock", reason)


def new_ruleset(
    abi: int,
    grants: Iterable[Grant] = (),
    *,
    handles: Mapping[Path, int] | None = None,
    network: bool = True,
    scopes_only: bool = False,
) -> int:
    """Return a policy of this kernel's, open: a process that restricts itself with it is held to it.

    Args:
        abi: What the kernel has; see `landlock_abi`.
        grants: What may be used. What is not there is left out.
        handles: What of it was opened already, by path.
        network: Let TCP be.
        scopes_only: Hold nothing but abstract sockets and signals.

    Raises:
        OSError: The kernel does not take it.
    """
    landlock = Landlock(abi)
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = landlock.scopes() if scopes_only else landlock.ruleset(network=network)
    ruleset = int(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        for grant in grants:
            try:
                path = _opened(grant.path, handles or {})
            except FileNotFoundError:
                continue
            try:
                if libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, landlock.rule(path, grant.mode), ctypes.c_uint32(0)):
                    raise OSError(ctypes.get_errno(), f"landlock_add_rule: {grant.path}")
            finally:
                os.close(path)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def _opened(path: Path, handles: Mapping[Path, int]) -> int:
    known = handles.get(path)
    return open_path(path) if known is None else os.dup(known)


def tasks_of(uid: int) -> int:
    """Return how many processes and threads a user has, as the kernel counts them for ``RLIMIT_NPROC``."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += os.stat(f"/proc/{name}/task").st_nlink - 2
    return count


@attrs.frozen
class Landlock:
    """One version of Landlock, and policies for it.

    Attributes:
        abi: The version; see `landlock_abi`.
    """

    abi: int = attrs.field(validator=attrs.validators.ge(1))

    @property
    def lacks(self) -> tuple[str, ...]:
        """What this version does not hold, where later ones do, as sentences without an end."""
        return tuple(said for since, said in _LACKING.items() if self.abi < since)

    @property
    def handled(self) -> int:
        """Every right to files that this version knows. What is handled is denied unless a rule grants it."""
        return _FIRST | sum(right for since, right in _SINCE.items() if self.abi >= since)

    def ruleset(self, *, network: bool) -> bytes:
        """Return a ``struct landlock_ruleset_attr`` that denies everything, of the size that this version takes.

        Args:
            network: Let TCP be.
        """
        fields = [self.handled]
        if self.abi >= _NETWORK_SINCE:
            fields.append(0 if network else BIND_TCP | CONNECT_TCP)
        if self.abi >= SCOPES_SINCE:
            fields.append(ABSTRACT_UNIX_SOCKET | SIGNAL)
        return struct.pack(f"={len(fields)}Q", *fields)

    def scopes(self) -> bytes:
        """Return a ``struct landlock_ruleset_attr`` that holds abstract sockets and signals, and nothing else."""
        return struct.pack("=3Q", 0, 0, ABSTRACT_UNIX_SOCKET | SIGNAL)

    def rule(self, path: int, mode: Mode) -> bytes:
        """Return a ``struct landlock_path_beneath_attr`` that grants a file, or a folder with all that is in it.

        Args:
            path: What is granted, open; ``O_PATH`` is enough.
            mode: ``ro`` is reading and executing, ``rw`` everything but making devices.
        """
        is_folder = stat.S_ISDIR(os.fstat(path).st_mode)
        rights = self.handled & (READING if mode == "ro" else ~NEVER)
        return struct.pack("=Qi", rights if is_folder else rights & OF_FILES, path)
