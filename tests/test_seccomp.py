"""The filter of system calls: what it decides, and what the kernel makes of it."""

from __future__ import annotations

import errno
import json
import operator
import os
import platform
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle.sandbox import seccomp
from heddle.sandbox.seccomp import NETWORK_OF_ITS_OWN, NETWORK_OF_THE_HOST, NO_NETWORK, seccomp_program

MACHINES = ["x86_64", "aarch64", "riscv64"]
LETS_THROUGH = "let through"
KILLS = "killed"


def decision(program: bytes, number: int, *arguments: int, architecture: int) -> str:
    """Do what the kernel does with a filter and one call."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", program))
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return {0x7FFF0000: LETS_THROUGH, 0x80000000: KILLS}.get(value) or errno.errorcode[value & 0xFFFF]
        else:
            at += if_true if _TESTS[code](loaded, value) else if_false


_TESTS: dict[int, Callable[[int, int], object]] = {0x15: operator.eq, 0x35: operator.ge, 0x45: operator.and_}


def number_of(name: str, machine: str) -> int | None:
    """Return the number of a call that the filter knows."""
    named = {"clone": seccomp._CLONE, "ioctl": seccomp._IOCTL, "socket": seccomp._SOCKET}
    named |= {"personality": seccomp._PERSONALITY, "socketpair": seccomp._SOCKETPAIR, "mmap": seccomp._MMAP}
    tables = [seccomp._NOT_THERE, seccomp._DENIED, seccomp._DENIED_IN_SIGHT_OF_THE_HOST, seccomp._ONLY_FOR_ITSELF]
    tables.append(seccomp._NOT_THERE_IN_SIGHT_OF_THE_HOST)
    numbers = next(table[name] for table in [named, *tables] if name in table)
    return numbers if isinstance(numbers, int) else numbers[0 if machine == "x86_64" else 1]


def decide(name: str, *arguments: int, machine: str = "x86_64", families: frozenset[int] = NETWORK_OF_THE_HOST) -> str:
    number = number_of(name, machine)
    assert number is not None
    program = seccomp_program(machine, families)
    return decision(program, number, *arguments, architecture=seccomp._ARCHITECTURES[machine])


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_lists_is_denied_and_all_others_pass(machine: str) -> None:
    architecture = seccomp._ARCHITECTURES[machine]
    for in_sight, tables in (
        (False, [seccomp._DENIED]),
        (True, [seccomp._DENIED, seccomp._DENIED_IN_SIGHT_OF_THE_HOST]),
    ):
        program = seccomp_program(machine, NETWORK_OF_THE_HOST, in_sight_of_the_host=in_sight)
        more = seccomp._NOT_THERE_IN_SIGHT_OF_THE_HOST if in_sight else {}
        absent = {number_of(name, machine) for name in (*seccomp._NOT_THERE, *more)}
        denied = {number_of(name, machine) for table in tables for name in table} - {None}

        found = {number: decision(program, number, architecture=architecture) for number in range(600)}

        for number, what in found.items():
            expected = "ENOSYS" if number in absent else "EPERM" if number in denied else LETS_THROUGH
            if number in {number_of("socket", machine), number_of("socketpair", machine)}:
                expected = "EAFNOSUPPORT"  # family 0
            assert (number, what) == (number, expected)


@pytest.mark.parametrize("machine", MACHINES)
def test_pairs_of_sockets_are_local_and_no_memory_grows_by_itself(machine: str) -> None:
    pairs = [decide("socketpair", family, machine=machine) for family in (1, 0, 2, 10, 16, 17, 40)]
    mappings = [decide("mmap", 0, 4096, 3, flags, machine=machine) for flags in (0x22, 0x20022, 0x122, 0x40122)]

    assert pairs == [LETS_THROUGH, *["EAFNOSUPPORT"] * 6]
    assert mappings == [LETS_THROUGH, LETS_THROUGH, "EPERM", "EPERM"]


def test_a_program_for_another_machine_is_killed_and_x32_is_not_there() -> None:
    program = seccomp_program("x86_64", NO_NETWORK)

    foreign = decision(program, 1, architecture=0x40000003)
    x32 = [decision(program, 0x40000000 + number, architecture=0xC000003E) for number in (0, 41, 165)]

    assert foreign == KILLS
    assert x32 == ["ENOSYS"] * 3


@pytest.mark.parametrize("machine", MACHINES)
def test_a_child_shares_every_namespace_with_its_parent(machine: str) -> None:
    sigchld, thread = 17, 0x003D0F00
    flags = {name: 1 << bit for name, bit in [("ns", 17), ("cgroup", 25), ("uts", 26), ("ipc", 27), ("user", 28)]}
    flags |= {"pid": 1 << 29, "net": 1 << 30}

    ordinary = [decide("clone", value, machine=machine) for value in (sigchld, thread, 0)]
    others = {name: decide("clone", sigchld | value, machine=machine) for name, value in flags.items()}

    assert ordinary == [LETS_THROUGH] * 3
    assert others == dict.fromkeys(flags, "EPERM")


def test_only_the_low_half_of_an_argument_counts_where_the_kernel_looks_at_no_more() -> None:
    high = 0xDEAD << 32

    assert decide("ioctl", 0, high | 0x5412) == "EPERM"
    assert decide("ioctl", 0, high | 0x541C) == "EPERM"
    assert decide("ioctl", 0, 0x5401) == LETS_THROUGH
    assert decide("clone", high | 0x10000000) == "EPERM"
    assert decide("socket", high | socket.AF_VSOCK, 1, 0) == "EAFNOSUPPORT"
    assert decide("personality", 0) == decide("personality", 0xFFFFFFFF) == LETS_THROUGH
    assert decide("personality", 8) == "EPERM"


@pytest.mark.parametrize(
    ("families", "allowed"),
    [
        (NETWORK_OF_THE_HOST, {(1, 0), (2, 0), (2, 17), (10, 0), (16, 0)}),
        (NETWORK_OF_ITS_OWN, {(1, 0), (2, 0), (2, 17), (10, 0)}),
        (NO_NETWORK, set()),
        (frozenset({16}), {(16, 0)}),
    ],
)
def test_sockets_are_of_families_that_are_allowed(families: frozenset[int], allowed: set[tuple[int, int]]) -> None:
    """Netlink only to ask for addresses; not to be told of audit (9) or of every process (connector, 11)."""
    asked = {(family, protocol) for family in range(50) for protocol in (0, 9, 11, 17)} | allowed

    found = {what for what in asked if decide("socket", what[0], 1, what[1], families=families) == LETS_THROUGH}

    assert found == {
        (family, protocol) for family, protocol in asked if family in families and (family != 16 or protocol == 0)
    }
    assert allowed <= found


@settings(derandomize=True, deadline=None)
@given(
    st.sampled_from(MACHINES), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=6), st.booleans()
)
def test_every_call_is_decided(machine: str, number: int, arguments: list[int], in_sight: bool) -> None:
    """Whatever is called: the filter ends, and with one of four answers."""
    program = seccomp_program(machine, NETWORK_OF_THE_HOST, in_sight_of_the_host=in_sight)

    found = decision(program, number, *arguments, architecture=seccomp._ARCHITECTURES[machine])

    assert found in {LETS_THROUGH, "EPERM", "ENOSYS", "EAFNOSUPPORT"}
    assert len(program) // 8 <= 4096


def test_a_machine_that_is_not_known_is_refused() -> None:
    with pytest.raises(heddle.SandboxUnavailable, match="no filter is known for vax, only for x86_64, aarch64"):
        seccomp_program("vax", NO_NETWORK)


needs_linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp._ARCHITECTURES,
    reason=f"no filter is known for {sys.platform} on {platform.machine()}",
)

# What the kernel makes of it. Calls are made by their names in the C library, which knows numbers of its own; each with
# arguments that are wrong, so that a call that is let through fails in another way and does nothing.

CALLS = """
import ctypes, errno, json, os, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
filter_ = bytes.fromhex(sys.argv[1])
if filter_:
    buffer = ctypes.create_string_buffer(filter_)
    program = struct.pack("HP", len(filter_) // 8, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0, ctypes.get_errno()

bad = ctypes.c_void_p(1)
wrong = ctypes.create_string_buffer(b'\\xff' * 8, 64)  # a time before all times
calls = {
    "unshare": (0x8000000 | 0x1,), "setns": (-1, 0), "mount": (bad, bad, bad, 0, 0), "umount2": (bad, 0),
    "chroot": (bad,), "ptrace": (999, 1, 0, 0), "process_vm_readv": (1, bad, 1, bad, 1, 0),
    "process_vm_writev": (1, bad, 1, bad, 1, 0), "open_by_handle_at": (-1, bad, 0),
    "name_to_handle_at": (-1, bad, bad, bad, 0), "fanotify_init": (-1, 0), "swapon": (bad, 0), "swapoff": (bad,),
    "quotactl": (-1, bad, 0, 0), "klogctl": (-1, 0, 0), "settimeofday": (wrong, 0),
    "clock_settime": (-5, wrong), "sethostname": (bad, 5), "setdomainname": (bad, 5),
    "init_module": (bad, 5, bad), "delete_module": (bad, 0), "acct": (bad,), "personality": (8,),
    "setxattr": (bad, bad, bad, 1, 0), "lsetxattr": (bad, bad, bad, 1, 0), "fsetxattr": (-1, bad, bad, 1, 0),
    "removexattr": (bad, bad), "fchown": (-1, 0, 0), "chown": (bad, 0, 0), "lchown": (bad, 0, 0),
    "fchownat": (-1, bad, 0, 0, 0), "setpriority": (9, 1, 0), "prlimit": (1, 99, 0, 0),
    "sched_setscheduler": (1, 99, bad), "sched_setaffinity": (1, 0, bad), "socket": (40, 1, 0),
}
found = {}
for name, arguments in calls.items():
    result = getattr(libc, name)(*arguments)
    found[name] = "let through" if result >= 0 else errno.errorcode[ctypes.get_errno()]
print(json.dumps(found))
"""
IN_SIGHT = ["setxattr", "lsetxattr", "fsetxattr", "removexattr", "fchown", "chown", "lchown", "fchownat", "setpriority"]
IN_SIGHT += ["prlimit", "sched_setscheduler", "sched_setaffinity"]


def calls_under(program: bytes) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", CALLS, program.hex()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@needs_linux
def test_the_kernel_denies_what_the_filter_says() -> None:
    machine = platform.machine()

    without = calls_under(b"")
    under = calls_under(seccomp_program(machine, NETWORK_OF_THE_HOST))
    in_sight = calls_under(seccomp_program(machine, NETWORK_OF_THE_HOST, in_sight_of_the_host=True))

    expected = dict.fromkeys(without, "EPERM") | {"socket": "EAFNOSUPPORT"}
    assert in_sight == expected
    assert {name: what for name, what in under.items() if name not in IN_SIGHT} == {
        name: what for name, what in expected.items() if name not in IN_SIGHT
    }
    assert {name: under[name] for name in IN_SIGHT} == {name: without[name] for name in IN_SIGHT}
    if os.geteuid() == 0:  # a plain user is denied many of these by the kernel itself
        assert {name for name in expected if without[name] == expected[name]} == set()


@needs_linux
@pytest.mark.parametrize("in_sight", [False, True])
def test_ordinary_programs_run_under_it(in_sight: bool) -> None:
    """Threads, processes, sockets in pairs, names of hosts, temporary files, time."""
    program = seccomp_program(platform.machine(), NETWORK_OF_THE_HOST, in_sight_of_the_host=in_sight)
    source = CALLS[: CALLS.index("bad = ")] + textwrap.dedent("""
        import multiprocessing, random, socket, subprocess, tempfile, threading, time
        thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
        print(subprocess.run(["/bin/sh", "-c", "echo shell | cat"], capture_output=True, text=True).stdout.strip())
        one, other = socket.socketpair(); one.send(b"pair"); print(other.recv(9).decode())
        server = socket.create_server(("127.0.0.1", 0)); client = socket.create_connection(server.getsockname())
        print(socket.getaddrinfo("localhost", 80)[0][4][1])
        with tempfile.NamedTemporaryFile() as file:
            os.chmod(file.name, 0o600); os.utime(file.name); print(os.stat(file.name).st_size)
        child = os.fork()
        if child == 0:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)

    done = subprocess.run([sys.executable, "-c", source, program.hex()], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.split()) == (0, ["shell", "pair", "80", "0", "7"]), done.stderr


@needs_linux
def test_a_filter_is_passed_on_to_what_a_tool_starts() -> None:
    program = seccomp_program(platform.machine(), NO_NETWORK)
    source = CALLS[: CALLS.index("bad = ")] + textwrap.dedent("""
        os.execv(sys.executable, [sys.executable, "-c", "import socket; socket.socket()"])
        """)

    done = subprocess.run([sys.executable, "-c", source, program.hex()], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "Address family not supported" in done.stderr
