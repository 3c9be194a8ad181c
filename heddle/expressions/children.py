"""One process that evaluates, as its host sees it. Nothing here waits: who drives it decides how.

A child is used by one task at a time. It ends with its host, or when its host closes its standard input; a fork of the
host closes what it inherits of it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from heddle.errors import DefinitionError
from heddle.expressions import worker
from heddle.expressions.messages import most_bytes, value_of
from heddle.expressions.values import ExpressionFailed

if TYPE_CHECKING:
    from collections.abc import Generator

    from heddle.expressions.values import ExpressionLimits

__all__ = ["END_SECONDS", "IDLE_SECONDS", "START_SECONDS", "Child", "Ended", "Talk"]

# A descriptor, and what is waited for: what a talk says each time that it cannot go on.
Talk: TypeAlias = "Generator[tuple[int, Literal['read', 'write']], None, bytes]"

# 10 s: five hundred times what a start takes, for a machine that does something else.
START_SECONDS = 10.0
# 60 s: longer than a pause between two calls of one agent.
IDLE_SECONDS = 60.0
# 5 s: the kernel takes milliseconds to end a process; one that it cannot end holds nobody up.
END_SECONDS = 5.0

CHUNK_BYTES = 64 * 1024


class Ended(Exception):
    """A child has ended, or is about to, and did not answer."""


@attrs.define(eq=False)
class Child:
    """A process that evaluates."""

    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int

    @classmethod
    def start(cls, limits: ExpressionLimits, idle_seconds: float) -> Child:
        """Start one; listen to its `greeting` before anything else.

        Raises:
            DefinitionError: Starlark is not installed.
            ExpressionFailed: No process can be had: ``lost``.
        """
        arguments = (str(limits.memory_bytes), str(idle_seconds), _folder_of_starlark())
        try:
            process = subprocess.Popen(
                [_interpreter(), "-I", "-S", "-B", worker.__file__, *arguments],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,  # a Ctrl-C is for the host
            )
        except OSError as error:
            raise ExpressionFailed("lost", f"the host cannot start a process for expressions: {error}") from error
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        child = cls(process, process.stdin.fileno(), process.stdout.fileno())
        _CHILDREN.add(child)
        os.set_blocking(child.stdin, False)
        os.set_blocking(child.stdout, False)
        return child

    def greeting(self) -> Talk:
        """Hear that it is there.

        Raises:
            Ended: It is not.
            ExpressionFailed: It says why it cannot be.
        """
        said = yield from self._line(CHUNK_BYTES)
        if said != b"ready\n":
            value_of(said)
        return said

    def exchange(self, request: bytes, limits: ExpressionLimits) -> Talk:
        """Send a request, and return the answer.

        Raises:
            Ended: There is none.
        """
        left = memoryview(request)
        while left:
            try:
                left = left[os.write(self.stdin, left) :]
            except BlockingIOError:
                yield self.stdin, "write"
            except BrokenPipeError:
                raise Ended from None
        return (yield from self._line(most_bytes(limits)))

    def _line(self, most: int) -> Talk:
        said = bytearray()
        while not said.endswith(b"\n"):
            try:
                chunk = os.read(self.stdout, CHUNK_BYTES)
            except BlockingIOError:
                yield self.stdout, "read"
                continue
            said += chunk
            if not chunk or len(said) > most:
                raise Ended
        return bytes(said)

    def status(self) -> int | None:
        """Return how it has ended, as `subprocess` says it; None while it has not."""
        return self.process.poll()

    def kill(self) -> None:
        """End it; its `status` follows in a moment. One that is ending already keeps the status that it has."""
        self.process.kill()

    def close(self) -> int:
        """Forget one that has ended; return its status."""
        status = self.status()
        _CHILDREN.discard(self)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None  # noqa: S101 - both are pipes
            pipe.close()
        return -signal.SIGKILL if status is None else status  # not even the kernel could end it so soon


def _folder_of_starlark() -> str:
    spec = importlib.util.find_spec("starlark")
    places = None if spec is None else spec.submodule_search_locations
    if not places:
        raise DefinitionError("expressions need starlark-pyo3: pip install 'heddle[starlark]'")
    return str(Path(places[0]).parent)


def _interpreter() -> str:
    """Return an interpreter; in a program that embeds Python `sys.executable` may be something else or nothing."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, os.path.join(sys.base_exec_prefix, "bin", name)):
        if path and os.path.basename(path).startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    raise ExpressionFailed("lost", f"the host has no {name} beside it, which expressions need")


_CHILDREN: set[Child] = set()


def _forget_all() -> None:
    """In a fork of the host, let go of its children: they have ended for us, and must notice when the host dies."""
    for child in list(_CHILDREN):
        child.process.returncode = 0
        child.close()


os.register_at_fork(after_in_child=_forget_all)
