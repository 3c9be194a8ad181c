"""A backend: tools run in another root, where they find the system's programs, their workspace and nothing else.

python examples/runners/chroot_backend.py

bubblewrap stands in for a container engine here: `prepare` would put ``docker run …`` in front of a command in the same
way, and name the container after the attempt, so that `kill` can find it.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

import heddle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from heddle.process import BackendSession, Command, Confinement

# Of /etc what programs need to find libraries, commands and hosts; the rest may hold secrets.
SYSTEM = ("/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")
# On most systems these are links into /usr; where they are folders they are shown as such.
BESIDE_USR = ("/bin", "/sbin", "/lib", "/lib64")
ISOLATION = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent")


class ChrootBackend:
    """Moves tools into a root of their own with bubblewrap."""

    name = "chroot"
    guarantees: Mapping[str, str] = {"processes": "enforced", "reads": "enforced", "writes": "enforced"}

    @asynccontextmanager
    async def open(self, confinement: Confinement) -> AsyncGenerator[BackendSession, None]:
        """Open a session, and refuse what cannot be held."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise heddle.SandboxUnavailable(self.name, "bwrap is not on this machine. Install bubblewrap")
        policy = confinement.sandbox
        if policy is not None and (policy.backend != "auto" or policy.run_as is not None):
            raise heddle.SandboxUnavailable(self.name, "it holds neither backend=… nor run_as=…. Leave them out")
        session = ChrootSession((bwrap, *_view(confinement)))
        # Whether the kernel lets bubblewrap work shows only when it is tried: now, rather than in every call.
        tried = await trio.run_process([*session.moved, "true"], check=False, capture_stdout=True, capture_stderr=True)
        if tried.returncode != 0:
            raise heddle.SandboxUnavailable(self.name, tried.stderr.decode(errors="replace").strip())
        yield session


@attrs.frozen
class ChrootSession:
    """Moves the tools of one scope.

    Attributes:
        moved: The words that start a program in the other root; the program and its arguments come after them.
    """

    moved: tuple[str, ...]

    def prepare(self, command: Command) -> Command:
        """Put bubblewrap in front. It hands its own variables on, so none has to be named where others can read it."""
        network = ["--unshare-net"] if command.network == "none" else []
        argv = (*self.moved, *network, "--chdir", str(command.cwd), "--", *command.argv)
        return attrs.evolve(command, argv=argv)

    async def kill(self, attempt_id: str) -> None:
        """End what carries the attempt's id. bubblewrap leaves nothing behind; an engine would leave a container."""
        for pid in _carrying(f"HEDDLE_ATTEMPT_ID={attempt_id}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _view(confinement: Confinement) -> list[str]:
    """Return the options that show a tool what it may use, and nothing else."""
    policy = confinement.sandbox
    words = [*ISOLATION, "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", str(policy.tmp_bytes), "--tmpfs", "/tmp"] if policy else ["--tmpfs", "/tmp"]
    words += ["--unshare-net"] if policy and policy.network == "none" else []
    for path in SYSTEM:
        words += ["--ro-bind-try", path, path]
    for path in BESIDE_USR:
        is_link = Path(path).is_symlink()
        words += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind-try", path, path]
    if policy:
        for option, paths in (("--ro-bind", policy.read), ("--bind", policy.write)):
            words += [word for path in paths for word in (option, str(path), str(path))]
    for grant in confinement.grants:  # in their order: a later one inside of an earlier one wins
        if not grant.path.resolve().is_relative_to("/usr"):
            words += ["--bind" if grant.mode == "rw" else "--ro-bind", str(grant.path), str(grant.path)]
    return [*words, "--remount-ro", "/"]


def _carrying(variable: str) -> list[int]:
    """Return the processes that have a variable, as far as this user may look."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            if entry.name.isdigit() and os.fsencode(variable) in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


# A tool that writes into its workspace, and looks for a folder of the host's that nobody has granted.
LOOK = """
echo by a tool > made
if [ -e /home ]; then home=there; else home="not there"; fi
printf '{"home": "%s"}' "$home"
"""


async def main() -> None:
    tools = [
        heddle.ToolDef(name="look", implementation=heddle.Program("/bin/sh", ("-c", LOOK))),
        heddle.ToolDef(name="wait", implementation=heddle.Program("/bin/sleep", ("60",))),
    ]
    async with heddle.Runner(tools, backend=ChrootBackend()) as runner, runner.scope() as scope:
        looked = await scope.call("look")
        print(f"{looked.report.tier}: {looked.unwrap()}")
        print("made in the workspace:", (scope.workspace.path / "made").read_text().strip())
        late = await scope.call("wait", limits=heddle.Limits(wall_seconds=0.2))
        print(late.for_model())


if __name__ == "__main__":
    trio.run(main)
