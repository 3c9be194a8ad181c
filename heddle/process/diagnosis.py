"""Why a program did not start, in words that name the fault and the way out. Looks at the file, and starts nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOT_FOUND", "why_interpreter_failed", "why_not_started"]

# The kernel reads as much of a file to see what runs it. Source: BINPRM_BUF_SIZE, linux/binfmts.h.
FIRST_LINE = 256
# What a shell and env(1) exit with when they find a program but cannot start it, or do not find it.
NOT_FOUND = frozenset({126, 127})
ELF_HEADER = 64
_BINARY_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def why_not_started(path: str, cwd: Path, number: int, text: str, *, confined: bool = False) -> str:
    """Return why the system refused to start `path`, from the errno that it gave; where `confined`, in a sandbox."""
    unseen = _out_of_sight(path) if confined and number in {errno.ENOENT, errno.EACCES} else None
    return unseen or _why_not_started(path, cwd, number, text)


def _why_not_started(path: str, cwd: Path, number: int, text: str) -> str:
    name = Path(path).name
    first = _first_line(path)
    if first is None and number in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
        if not Path(cwd).is_dir():
            return "its working directory is gone"
        return f"the tool's file {name} is gone. Put it back, or read the folder again"
    if number == errno.ENOENT and first is not None and first.startswith(b"#!"):
        return _interpreter_missing(name, first)
    if number == errno.ENOENT:
        return f"{name} needs a loader or an interpreter that is not on this machine"
    if number == errno.EACCES:
        return _no_access(path, name, first)
    if number == errno.ENOEXEC:
        return _no_format(path, name, first)
    if number == errno.EAGAIN:
        return (
            "no more processes may be started: so many are running of this user, or of this call. "
            "Wait for some to end, or raise limits.processes"
        )
    if number in {errno.EMFILE, errno.ENFILE}:
        return "the host has too many files open. Close some, or raise its limit (ulimit -n)"
    if number == errno.ETXTBSY:
        return f"{name} is still open for writing. Close it before you call the tool"
    if number == errno.E2BIG:
        return (
            "its arguments or its environment are too long for the system (one string may have 128 KiB). "
            "The host passes too much: see Environment(allow=…)"
        )
    return text or os.strerror(number)


def why_no_program(path: str, is_in_sight: Callable[[str], bool]) -> int:
    """Return the errno with which the system would refuse to start a file; 0 where it seems to be a program.

    Args:
        path: The file.
        is_in_sight: Whether a path can be seen where it is to be started.
    """
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)
        first = _first_line(path) if is_file else None
    except OSError as error:
        return error.errno or errno.ENOENT
    if first is None:
        return errno.EACCES
    if not first.startswith(b"#!"):
        return 0 if _is_binary(path) else errno.ENOEXEC
    interpreter = _interpreter(first)
    if not interpreter or len(first) >= FIRST_LINE:
        return errno.ENOEXEC
    if not os.path.exists(interpreter) or not is_in_sight(interpreter):
        return errno.ENOENT
    return 0 if os.path.isfile(interpreter) and os.access(interpreter, os.X_OK) else errno.EACCES


def _is_binary(path: str) -> bool:
    """Return whether a file begins as the program does that runs this: of its kind, and for such a machine."""
    with open(path, "rb") as file, open("/proc/self/exe", "rb") as ours:
        header, own = file.read(ELF_HEADER), ours.read(ELF_HEADER)
    # Magic number, class and byte order; the machine. Source: elf(5).
    return len(header) == ELF_HEADER and header[:6] == own[:6] and header[18:20] == own[18:20]


def why_interpreter_failed(path: str, search_path: str, *, confined: bool = False) -> str | None:
    """Return why ``#!/usr/bin/env NAME`` could not find its program, or None when that is not what happened.

    Args:
        path: The tool's file.
        search_path: The ``PATH`` that it was started with.
        confined: It was started in a sandbox.
    """
    first = _first_line(path) or b""
    words = first.removeprefix(b"#!").split()
    if not first.startswith(b"#!") or not words or not words[0].endswith(b"/env"):
        return None
    arguments = [word for word in words[1:] if not word.startswith(b"-") and b"=" not in word]
    if not arguments:
        return None
    name = Path(path).name
    if first.endswith(b"\r"):
        return _carriage_return(name)
    if len(words) > 2 and not words[1].startswith(b"-"):  # noqa: PLR2004 - env and one word
        rest = os.fsdecode(b" ".join(words[1:]))
        return f"line 1 of {name} hands {rest!r} to env as one word. Write #!/usr/bin/env -S {rest}"
    program = os.fsdecode(arguments[0])
    found = shutil.which(program, path=search_path)
    if found is None:
        return f"{name} needs {program}, which is not on the tool's PATH. Install it, or change the #! line"
    return _not_granted(name, found) if confined else None


def _interpreter_missing(name: str, first: bytes) -> str:
    if first.endswith(b"\r"):
        return _carriage_return(name)
    interpreter = _interpreter(first)
    if not Path(interpreter).exists():
        return f"{name} needs {interpreter}, which is not on this machine. Install it, or change the #! line"
    return f"the interpreter {interpreter} that {name} names needs one itself that is not on this machine"


def _out_of_sight(path: str) -> str | None:
    """Return what a script's interpreter has to do with a sandbox in which it does not start."""
    first = _first_line(path) or b""
    interpreter = _interpreter(first)
    if not first.startswith(b"#!") or first.endswith(b"\r") or not os.access(path, os.X_OK):
        return None
    return _not_granted(Path(path).name, interpreter) if os.access(interpreter, os.X_OK) else None


def _not_granted(name: str, program: str) -> str:
    return (
        f"{name} needs {program}, which is on this machine and which the sandbox does not let it run. "
        f"Allow it with Sandbox(read=…) or --allow-read, or change the #! line"
    )


def _carriage_return(name: str) -> str:
    return (
        f"line 1 of {name} ends in a carriage return (CRLF), so the system looks for an interpreter of that name. "
        "Save the file with Unix line endings (LF)"
    )


def _no_access(path: str, name: str, first: bytes | None) -> str:
    if Path(path).is_dir():
        return f"{name} is a folder"
    if not os.access(path, os.X_OK):
        return f"{name} is not executable. Run chmod +x on it"
    if first is not None and first.startswith(b"#!"):
        return f"the interpreter {_interpreter(first)} of {name} may not be executed by this user"
    return f"{name} may not be executed by this user, or its file system is mounted noexec"


def _no_format(path: str, name: str, first: bytes | None) -> str:
    try:
        if Path(path).stat().st_size == 0:
            return f"{name} is empty. Write the tool, or take the file away"
    except OSError:
        pass
    if first is not None and first.startswith(_BINARY_MAGIC):
        return f"{name} is a binary for another system"
    if first is not None and first.startswith(b"#!") and not _interpreter(first):
        return f"line 1 of {name} names no interpreter after #!"
    if first is not None and first.startswith(b"\xef\xbb\xbf#!"):
        return f"{name} begins with a byte-order mark, which hides its #! line. Save it without one"
    return f"line 1 of {name} is no #! line, so the system does not know what runs it. Add one, like #!/bin/sh"


def _interpreter(first: bytes) -> str:
    """Return what a ``#!`` line names, empty when it names nothing."""
    words = first[2:].split()
    return os.fsdecode(words[0]) if words else ""


def _first_line(path: str) -> bytes | None:
    """Return the first line without its newline; None when there is no such file, or it is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return file.read(FIRST_LINE).split(b"\n", 1)[0]
    except OSError:
        return None
