"""Where checks are made: small programs, a place for them to work in, and whether anything of them is alive.

No program here runs for ever: what should be ended and is not writes into the workspace until that is gone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.limits import HOST_CEILING
from heddle.process import sweep
from heddle.process.values import ATTEMPT_VARIABLE, Command
from heddle.sandbox.policy import Confinement, Grant
from heddle.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Mapping

__all__ = ["AWKWARD", "HAS_SETSID", "PROGRAMS", "Ground", "until"]

# What a shell, a split at blanks or a careless quotation would change.
AWKWARD = ("two words", "", "$(echo no) `echo no` $HOME", 'it\'s "quoted"', "a\nb\\n*", "-e", "größer")
HAS_SETSID: bool = shutil.which("setsid") is not None
HAS_PROC: bool = os.path.exists("/proc/self/environ")
# Four beats of what writes every 0.05 s.
LISTENING_SECONDS = 0.2

# ``${0%/*}`` is the folder of the programs, and the first argument a file in the workspace.
_BEAT = 'while printf . >> "$1"; do sleep 0.05; done 2>/dev/null'
_BEATS_BESIDE = '"${0%/*}/beat" "$1" </dev/null >/dev/null 2>&1 &'
_HAS_BEGUN = 'while [ ! -s "$1" ]; do sleep 0.01; done'

PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "cat": "exec cat",
        "copies": 'exec cat "$1"',
        "arguments": "printf '%s\\0' \"$@\"",
        "marks": ": > here; echo '{}'",
        "ends": 'exit "$1"',
        "signals": "kill -USR1 $$",
        "speaks": "printf out; printf err >&2",
        "fills": "head -c \"$1\" /dev/zero | tr '\\0' x",
        "floods": "exec yes",
        "complains": "seq 1 20000 >&2; printf done",
        "ignores its input": "printf done",
        "closes its input": "exec <&-; sleep 0.1; printf done",
        "beat": _BEAT,
        "stubborn": 'trap \'\' TERM; exec "${0%/*}/beat" "$1"',
        "tidies": f"trap 'echo tidied >&2; exit 3' TERM; {_BEAT.removesuffix(' 2>/dev/null')}",
        "leaves a child": f"{_BEATS_BESIDE} {_HAS_BEGUN}; echo '{{}}'",
        "leaves a child that holds its output": f'"${{0%/*}}/beat" "$1" & {_HAS_BEGUN}; echo \'{{}}\'',
        "leaves a daemon": f"setsid {_BEATS_BESIDE} {_HAS_BEGUN}; echo '{{}}'",
        "waits beside a daemon": f'setsid "${{0%/*}}/beat" "$1" & {_HAS_BEGUN}; exec "${{0%/*}}/beat" "$2"',
        "waits beside a child": f'{_BEATS_BESIDE} {_HAS_BEGUN}; exec "${{0%/*}}/beat" "$2"',
        "meets": ': > "met-$1"; while [ "$(ls | grep -c ^met-)" -lt "$2" ]; do sleep 0.02; done; exec cat',
        "writes a large file": ": > started; head -c 20000 /dev/zero > large",
        "opens many files": f": > started; paste {'/dev/null ' * 40} && : > got",
        "takes memory": ": > started; dd if=/dev/zero of=/dev/null bs=201326592 count=1 2>/dev/null && : > got",
        "starts many": (
            ": > started; i=0; while [ $i -lt 20 ]; do sleep 5 >/dev/null 2>&1 & i=$((i + 1)); done && : > got"
        ),
        "computes": ": > started; while :; do :; done",
    }
)


async def until(holds: Callable[[], object], seconds: float) -> bool:
    """Wait until something holds, and return whether it did in time."""
    with trio.move_on_after(seconds):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in other processes
            await trio.sleep(0.01)
    return bool(holds())


@attrs.define(eq=False)
class Ground:
    """A folder with the programs, and a workspace beside it. Both are gone when it is closed, and what ran in them.

    Attributes:
        folder: Both lie in it. Nothing grants it as a whole.
    """

    folder: Path
    _attempts: list[str] = attrs.field(factory=list[str])

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator[Ground, None]:
        """Make one for the time of the block."""
        ground = cls(_new_folder())
        try:
            ground.workspace.mkdir()
            ground.programs.mkdir()
            for name, source in PROGRAMS.items():
                ground.add(name, source)
            yield ground
        finally:
            with trio.CancelScope(shield=True):
                await ground.clear()

    @property
    def workspace(self) -> Path:
        """Where the programs work."""
        return self.folder / "workspace"

    @property
    def programs(self) -> Path:
        """Where they lie."""
        return self.folder / "programs"

    def add(self, name: str, source: str) -> None:
        """Write one more program for ``/bin/sh``."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{source}\n")
        path.chmod(0o755)

    @property
    def confinement(self) -> Confinement:
        """What a session is asked for."""
        return Confinement(
            workspace=self.workspace,
            grants=(Grant(self.workspace, "rw"), Grant(self.programs, "ro")),
            limits=HOST_CEILING,
            reserved=self.programs,
        )

    def fresh(self, label: str) -> Path:
        """Return a file of the workspace that is not there yet."""
        return self.workspace / f"{label}-{secrets.token_hex(4)}"

    def command(
        self,
        program: str | Path,
        *args: str | Path,
        cwd: Path | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Command:
        """Return the command that starts one of the programs, or any other, with `more` in its environment."""
        attempt_id = secrets.token_hex(16)
        self.note(attempt_id)
        identity = {"HEDDLE_TOOL": str(program), "HEDDLE_OPERATION_ID": attempt_id, ATTEMPT_VARIABLE: attempt_id}
        return Command(
            argv=(str(self.programs / program), *map(str, args)),
            cwd=cwd or self.workspace,
            environment={"PATH": os.environ.get("PATH", os.defpath), **more, **identity},
        )

    def note(self, attempt_id: str) -> None:
        """Remember a call: whatever happens, nothing of it is alive when the ground is closed."""
        self._attempts.append(attempt_id)

    async def alive(
        self, attempt_id: str, *beats: Path, survivors: Collection[int] = (), patience_seconds: float = 0.0
    ) -> str:
        """Return what is alive of a call, in words; empty when nothing is.

        Args:
            attempt_id: The call's own.
            beats: Files that grow while something of it lives. Where there is no ``/proc``, or the call was moved
                out of its sight, they alone can tell.
            survivors: Processes that were reported as alive, which is honest.
            patience_seconds: How long it may take to be gone.
        """

        def seen() -> list[int]:
            return [pid for pid in sweep.processes_of(attempt_id) if pid not in survivors] if HAS_PROC else []

        await until(lambda: not seen(), patience_seconds)
        pids = seen()
        if pids:
            return f"still alive: process {', '.join(map(str, pids))}"
        if beats and not survivors:
            before = [_size(path) for path in beats]
            await trio.sleep(LISTENING_SECONDS)
            if [_size(path) for path in beats] != before:
                return "still alive: something that writes into the workspace"
        return ""

    async def clear(self) -> None:
        """End what is left of the calls, and remove everything."""
        if HAS_PROC:
            for attempt_id in self._attempts:
                await sweep.end_attempt(attempt_id, 0, ())
        await in_thread(_remove, self.folder)


def _new_folder() -> Path:
    # Free of links, as the workspace of a runner is.
    return Path(tempfile.mkdtemp(prefix="heddle-checks-")).resolve()


def _remove(folder: Path) -> None:
    for _ in range(10):  # what writes into it may put a file back while it is removed
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
