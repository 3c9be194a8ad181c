"""A filter of system calls, as bytes that the kernel takes (classic BPF). Pure: nothing is put on anything here.

It is a list of what is denied: tools are arbitrary programs, and nobody can list what those need. It takes away other
namespaces and mounts, looking into other processes, parts of the kernel that only administrators need, and sockets of
families that no tool needs. A denied call fails with the error that a kernel without that feature gives, so that
programs fall back: a clone3 that is not there is done by clone, whose flags a filter can read.

Source: seccomp(2); numbers from the kernel's own tables; the list agrees with what flatpak and docker deny.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from heddle.errors import SandboxUnavailable

__all__ = ["NETWORK_OF_ITS_OWN", "NETWORK_OF_THE_HOST", "NO_NETWORK", "seccomp_program"]

# Families of sockets that a tool may have. A pair of connected sockets it may always have.
NETWORK_OF_THE_HOST = frozenset({socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16})
# 16 is AF_NETLINK, with protocol 0 alone: getaddrinfo asks the kernel for its addresses there. Python has no such name
# on every system.
NETLINK = 16
NETWORK_OF_ITS_OWN = NETWORK_OF_THE_HOST - {NETLINK}
NO_NETWORK: frozenset[int] = frozenset()

Instruction: TypeAlias = tuple[int, int, int, int]

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
# struct seccomp_data: number, architecture, instruction pointer, six arguments of eight bytes.
NUMBER_AT, ARCHITECTURE_AT = 0, 4
ARGUMENTS_AT = 16
# The second half of x86-64's numbers is x32, with other meanings of the arguments.
X32 = 0x40000000
# Every CLONE_NEW* flag of clone(2): mount, cgroup, uts, ipc, user, pid, net. That of time is not for clone.
NAMESPACES = 0x7E020000
# Memory that grows like a stack, which no limit of a process counts.
MAP_GROWSDOWN = 0x100
# Put characters into a terminal's input, or draw on the console.
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
# The personality of an ordinary program, and the question which one it is.
ORDINARY, QUESTION = 0, 0xFFFFFFFF

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}

# Where a number is given once, all architectures share it: so it is since Linux 5.1. Else x86-64's and the generic one.
_Numbers: TypeAlias = Mapping[str, int | tuple[int | None, int | None]]

_NOT_THERE: _Numbers = {
    "clone3": 435,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "open_tree_attr": 467,
}
_DENIED: _Numbers = {
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "statmount": 457,
    "listmount": 458,
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": 440,
    "kcmp": (312, 272),
    "pidfd_getfd": 438,
    # Parts of the kernel that are large, rarely needed and often at fault. io_uring would go round the rules below.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    # Files by handle: past every folder on the way.
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    # What belongs to whoever runs the machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "quotactl": (179, 60),
    "quotactl_fd": 443,
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # Memory of other processors, and its pages.
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": 450,
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
# Where files and processes of the host are in sight, what Landlock does not hold.
_DENIED_IN_SIGHT_OF_THE_HOST: _Numbers = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": 463,
    "removexattrat": 466,
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    # Names of what is made in folders that may not be listed.
    "inotify_add_watch": (254, 27),
}
# What has no path that Landlock could hold, and outlives the process that made it.
_NOT_THERE_IN_SIGHT_OF_THE_HOST: _Numbers = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
# Denied but for the process itself, which is number 0.
_ONLY_FOR_ITSELF: _Numbers = {
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
}
# Where root's files are in sight, and a tool is root.
_DENIED_TO_ROOT_IN_SIGHT_OF_THE_HOST: _Numbers = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": 452,
}
_CLONE, _IOCTL, _PERSONALITY, _SOCKET, _SOCKETPAIR, _MMAP = (
    (56, 220),
    (16, 29),
    (135, 92),
    (41, 198),
    (53, 199),
    (9, 222),
)


def seccomp_program(
    machine: str, families: Collection[int], *, in_sight_of_the_host: bool = False, is_root: bool = False
) -> bytes:
    """Return the filter for one kind of machine, as an array of ``struct sock_filter``.

    Args:
        machine: As ``uname`` calls it: ``x86_64``.
        families: Of sockets that may be made: `NETWORK_OF_THE_HOST`, `NETWORK_OF_ITS_OWN`, `NO_NETWORK`.
        in_sight_of_the_host: The tool sees the host's files and processes, as it does under Landlock alone.
        is_root: And it is root: no mode is changed then.

    Raises:
        SandboxUnavailable: The numbers of such a machine are not known here.
    """
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise SandboxUnavailable("seccomp", f"no filter is known for {machine}, only for {known}")
    instructions = list(_instructions(machine, families, in_sight_of_the_host, is_root))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _instructions(
    machine: str, families: Collection[int], in_sight_of_the_host: bool, is_root: bool
) -> Iterator[Instruction]:
    def number(numbers: int | tuple[int | None, int | None]) -> int | None:
        return numbers if isinstance(numbers, int) else numbers[0 if machine == "x86_64" else 1]

    def numbers_of(table: _Numbers) -> list[int]:
        return [found for found in map(number, table.values()) if found is not None]

    def only(where: int, block: list[Instruction]) -> list[Instruction]:
        """Go through a block for one call alone; it may change what is loaded, and the number is loaded again."""
        return [(EQUAL, 0, len(block) + 1, where), *block, (LOAD, 0, 0, NUMBER_AT)]

    def at(calls: tuple[int, int]) -> int:
        return calls[0 if machine == "x86_64" else 1]

    # The numbers of another architecture mean other calls, so a program of that kind cannot be let through.
    yield (LOAD, 0, 0, ARCHITECTURE_AT)
    yield (EQUAL, 1, 0, _ARCHITECTURES[machine])
    yield (RETURN, 0, 0, KILL)
    yield (LOAD, 0, 0, NUMBER_AT)
    if machine == "x86_64":
        yield (AT_LEAST, 0, 1, X32)
        yield _fails(errno.ENOSYS)
    absent: _Numbers = _NOT_THERE_IN_SIGHT_OF_THE_HOST if in_sight_of_the_host else {}
    for call in numbers_of({**_NOT_THERE, **absent}):
        yield (EQUAL, 0, 1, call)
        yield _fails(errno.ENOSYS)
    more: _Numbers = _DENIED_IN_SIGHT_OF_THE_HOST if in_sight_of_the_host else {}
    if in_sight_of_the_host and is_root:
        more = {**more, **_DENIED_TO_ROOT_IN_SIGHT_OF_THE_HOST}
    for call in numbers_of({**_DENIED, **more}):
        yield (EQUAL, 0, 1, call)
        yield _fails(errno.EPERM)
    yield from only(at(_CLONE), [_argument(0), (ANY_BIT, 0, 1, NAMESPACES), _fails(errno.EPERM)])
    yield from only(at(_IOCTL), [_argument(1), (EQUAL, 1, 0, TIOCSTI), (EQUAL, 0, 1, TIOCLINUX), _fails(errno.EPERM)])
    yield from only(
        at(_PERSONALITY), [_argument(0), (EQUAL, 2, 0, ORDINARY), (EQUAL, 1, 0, QUESTION), _fails(errno.EPERM)]
    )
    if in_sight_of_the_host:
        for call in numbers_of(_ONLY_FOR_ITSELF):
            yield from only(call, [_argument(0), (EQUAL, 1, 0, 0), _fails(errno.EPERM)])
    yield from only(at(_SOCKET), _sockets(families))
    pair = [_argument(0), (EQUAL, 1, 0, int(socket.AF_UNIX)), _fails(errno.EAFNOSUPPORT)]
    yield from only(at(_SOCKETPAIR), pair)
    yield from only(at(_MMAP), [_argument(3), (ANY_BIT, 0, 1, MAP_GROWSDOWN), _fails(errno.EPERM)])
    yield (RETURN, 0, 0, ALLOW)


def _sockets(families: Collection[int]) -> list[Instruction]:
    """Let sockets of some families through; of netlink only the protocol that answers about addresses."""
    plain = sorted(set(families) - {NETLINK})
    block: list[Instruction] = [_argument(0)]
    # Past all that follows: the other families, the three for netlink, and the failure.
    rest = 4 if NETLINK in families else 1
    block += [(EQUAL, len(plain) - place - 1 + rest, 0, family) for place, family in enumerate(plain)]
    if NETLINK in families:
        block += [(EQUAL, 0, 2, NETLINK), _argument(2), (EQUAL, 1, 0, 0)]
    return [*block, _fails(errno.EAFNOSUPPORT)]


def _argument(place: int) -> Instruction:
    """Load the low half of an argument: all of what the kernel itself looks at, where it takes an int."""
    return (LOAD, 0, 0, ARGUMENTS_AT + 8 * place)


def _fails(number: int) -> Instruction:
    return (RETURN, 0, 0, 0x00050000 | number)
