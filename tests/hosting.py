"""What the tests of hosts share: programs that are hosts, and what a host holds of the system."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

from tests.support import children_of, open_descriptors

ROOT = Path(__file__).parent.parent
# A process in the background may have been told to ignore Ctrl-C; a host at a terminal has not.
AT_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
# Later Pythons warn of every fork of a process with threads: that it is done with care is what is tested.
MAY_FORK = "ignore:This process:DeprecationWarning"


def held() -> dict[str, object]:
    """Return the children, descriptors, threads and folders of runs of this process. Whole, to be compared."""
    return {
        "children": children_of(os.getpid()),
        "descriptors": open_descriptors(),
        # trio keeps its idle threads for ten seconds, for whoever needs one next.
        "threads": sorted(each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")),
        "runs": sorted(path for path in runs() if owner_of(path) == os.getpid()),
    }


def runs() -> set[Path]:
    """Return the folders of runs that have not been removed. Hosts that were killed leave theirs to the next one."""
    return set(Path(tempfile.gettempdir()).glob("heddle-run-*"))


def owner_of(run: Path) -> object:
    """Return the process that has made the folder of a run; None when it is just being made or removed."""
    try:
        return json.loads((run / "owner.json").read_text())["pid"]
    except (OSError, ValueError):
        return None


@contextmanager
def host(source: str, *arguments: object, pass_fds: Sequence[int] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a program that is a host, with every warning an error; whatever becomes of the test, it is gone after."""
    program = AT_A_TERMINAL + textwrap.dedent(source)
    command = [sys.executable, "-W", "error", "-W", MAY_FORK, "-c", program, *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, pass_fds=pass_fds
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_host(source: str, *arguments: object) -> tuple[int, str, str]:
    """Run a program that is a host to its end; return its exit status, and what it has said."""
    with host(source, *arguments) as process:
        said, complained = process.communicate(timeout=30)
    return process.returncode, said, complained


def run_cells(cells: str, **names: object) -> dict[str, object]:
    """Run cells one after another in a running loop, as the kernel of a notebook does; return what they have named."""
    scope: dict[str, object] = dict(names)

    async def kernel() -> None:
        for number, cell in enumerate(re.split(r"(?m)^(?=# %%)", cells)):
            code = compile(cell, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            try:
                waiting = eval(code, scope)
                if inspect.iscoroutine(waiting):
                    await waiting
            except KeyboardInterrupt:
                scope["interrupted"] = number

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(kernel())
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)
    return scope
