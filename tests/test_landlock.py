"""Policies for Landlock: their form for each version, and what this kernel makes of them."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Literal

import pytest

import heddle
from heddle.sandbox import landlock
from heddle.sandbox.landlock import Landlock, landlock_abi

LIBC = ctypes.CDLL(None, use_errno=True)


def version_here() -> int:
    try:
        return landlock_abi()
    except heddle.SandboxUnavailable:
        return 0


needs_landlock = pytest.mark.skipif(version_here() < 6, reason=f"Landlock is version {version_here()} here, not 6")

# Restricts itself by structures that it is given, and says what becomes of each attempt.
PROGRAM = """
import ctypes, errno, json, os, signal, socket, sys

libc = ctypes.CDLL(None, use_errno=True)
ruleset, *rules = (bytes.fromhex(argument) for argument in sys.argv[1].split(","))
if ruleset:
    fd = libc.syscall(444, ruleset, ctypes.c_size_t(len(ruleset)), 0)
    assert fd >= 0, ctypes.get_errno()
    for rule in rules:
        assert libc.syscall(445, fd, 1, rule, 0) == 0, ctypes.get_errno()
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.syscall(446, fd, 0) == 0, ctypes.get_errno()

def attempt(step):
    try:
        step()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
"""


def attempts(tmp_path: Path, source: str, ruleset: bytes, rules: list[bytes], fds: list[int]) -> list[str]:
    """Make attempts in a child that is restricted; each line of `source` is one."""
    lines = [line.strip() for line in textwrap.dedent(source).strip().splitlines()]
    body = PROGRAM + "".join(f"print(attempt(lambda: {line}))\n" for line in lines)
    packed = ",".join([ruleset.hex(), *(rule.hex() for rule in rules)])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", body, packed],
        cwd=tmp_path,
        pass_fds=fds,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("abi", "handled", "size", "lacking"),
    [
        (1, 0x1FFF, 8, 5),
        (2, 0x3FFF, 8, 4),
        (3, 0x7FFF, 8, 3),
        (4, 0x7FFF, 16, 2),
        (5, 0xFFFF, 16, 1),
        (6, 0xFFFF, 24, 0),
        (9, 0xFFFF, 24, 0),
    ],
)
def test_each_version_gets_what_it_knows(abi: int, handled: int, size: int, lacking: int) -> None:
    version = Landlock(abi)

    ruleset = version.ruleset(network=False)

    assert version.handled == handled
    assert len(ruleset) == size
    assert struct.unpack(f"={size // 8}Q", ruleset) == (handled, 3, 3)[: size // 8]
    assert len(version.lacks) == lacking


@needs_landlock
@pytest.mark.parametrize("abi", range(1, 7))
def test_this_kernel_takes_what_is_made_for_older_ones(abi: int) -> None:
    for network in (True, False):
        ruleset = Landlock(abi).ruleset(network=network)

        fd = LIBC.syscall(landlock.CREATE_RULESET, ruleset, ctypes.c_size_t(len(ruleset)), 0)

        assert fd >= 0, errno.errorcode[ctypes.get_errno()]
        os.close(fd)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSYS, "it came with Linux 5.13"),
        (errno.EOPNOTSUPP, 'add "landlock" to the lsm= boot option'),
        (errno.EPERM, "the filter of system calls of the container denies it"),
        (errno.EINVAL, "Invalid argument"),
    ],
)
def test_a_kernel_without_it_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, number: int, said: str) -> None:
    class Kernel:
        def syscall(self, *_: object) -> int:
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Kernel())

    with pytest.raises(heddle.SandboxUnavailable, match=f"^landlock: .*{said}"):
        landlock_abi()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for folder in ("ro", "rw/inner", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("ro/file", "rw/file", "outside/file", "alone"):
        (tmp_path / file).write_text("old")
    (tmp_path / "ro/run").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "ro/run").chmod(0o755)
    return tmp_path


FILES = """
    open("ro/file").read()
    open("rw/file").read()
    open("alone").read()
    open("outside/file").read()
    os.listdir("ro")
    os.listdir("outside")
    open("ro/file", "r+")
    open("ro/new", "w")
    os.unlink("ro/file")
    open("rw/new", "w")
    os.rename("rw/new", "rw/inner/new")
    os.symlink("../outside/file", "rw/link")
    open("rw/link").read()
    os.link("outside/file", "rw/same")
    os.rename("rw/file", "outside/stolen")
    os.truncate("outside/file", 0)
    open("alone", "r+")
    os.mknod("rw/device", 0o020666, os.makedev(1, 3))
    os.mkfifo("rw/pipe")
    open("/etc/passwd").read()
    open("/usr/bin/env", "rb").read()
"""
EXPECTED = {
    'open("outside/file").read()': "EACCES",
    'os.listdir("outside")': "EACCES",
    'open("ro/file", "r+")': "EACCES",
    'open("ro/new", "w")': "EACCES",
    'os.unlink("ro/file")': "EACCES",
    'open("rw/link").read()': "EACCES",
    'os.link("outside/file", "rw/same")': "EXDEV",
    'os.rename("rw/file", "outside/stolen")': "EACCES",
    'os.truncate("outside/file", 0)': "EACCES",
    'open("alone", "r+")': "EACCES",
    'os.mknod("rw/device", 0o020666, os.makedev(1, 3))': "EACCES",
    'open("/etc/passwd").read()': "EACCES",
}


def policy(place: Path) -> tuple[bytes, list[bytes], list[int]]:
    """Return a ruleset, its rules and what has to stay open: one folder to read, one to write, one file to read."""
    version = Landlock(landlock_abi())
    grants: list[tuple[Path, Literal["ro", "rw"]]] = [
        *((Path(path), "ro") for path in ("/usr", "/lib", sys.base_prefix)),
        (place / "ro", "ro"),
        (place / "rw", "rw"),
        (place / "alone", "ro"),
    ]
    fds = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path, _ in grants]
    rules = [version.rule(fd, mode) for fd, (_, mode) in zip(fds, grants, strict=True)]
    return version.ruleset(network=False), rules, fds


@needs_landlock
def test_files_are_held_as_the_policy_says(place: Path) -> None:
    lines = [line.strip() for line in FILES.strip().splitlines()]
    ruleset, rules, fds = policy(place)
    try:
        held = attempts(place, FILES, ruleset, rules, fds)
    finally:
        for fd in fds:
            os.close(fd)

    assert dict(zip(lines, held, strict=True)) == dict.fromkeys(lines, "done") | EXPECTED
    assert (place / "outside/file").read_text() == "old"


def test_without_a_policy_everything_can_be_done(place: Path) -> None:
    """The control: each attempt that was denied is one that would have worked."""
    lines = [line.strip() for line in FILES.strip().splitlines()]

    free = attempts(place, FILES, b"", [], [])

    failing = {line: what for line, what in zip(lines, free, strict=True) if what != "done"}
    devices = "os.mknod("  # a plain user may make none in any case
    assert {line for line in failing if not line.startswith(devices)} == set()


@needs_landlock
def test_the_rest_of_the_host_is_out_of_reach(place: Path) -> None:
    """TCP, the parent by signal, and abstract sockets; a pair of sockets of its own is not."""
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as server:
        name = f"\0heddle-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        source = f"""
            socket.create_connection({server.getsockname()!r})
            socket.create_server(("127.0.0.1", 0))
            socket.socket(socket.AF_UNIX).connect({name!r})
            os.kill(os.getppid(), 0)
            os.kill(os.getpid(), 0)
            socket.socketpair()
        """
        free = attempts(place, source, b"", [], [])
        ruleset, rules, fds = policy(place)
        try:
            held = attempts(place, source, ruleset, rules, fds)
            ruleset = Landlock(landlock_abi()).ruleset(network=True)
            with_network = attempts(place, source, ruleset, rules, fds)
        finally:
            for fd in fds:
                os.close(fd)

    assert free == ["done"] * 6
    assert held == ["EACCES", "EACCES", "EPERM", "EPERM", "done", "done"]
    assert with_network == ["done", "done", "EPERM", "EPERM", "done", "done"]
