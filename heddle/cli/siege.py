"""Live attacks: a hostile tool is run, and the host looks at what became of all that it was to reach."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from heddle.cli import attacks
from heddle.limits import Limits
from heddle.results import Failed, Returned
from heddle.runner import Runner
from heddle.sandbox.policy import NOBODY, Sandbox
from heddle.tools.definition import Program, ToolDef

if TYPE_CHECKING:
    from heddle.results import ToolResult
    from heddle.strictjson import JSON

__all__ = ["GOALS", "Attempt", "attack"]

# 10 s: a hundred times what an attack takes.
ATTACK_SECONDS = 10.0
# What a signal may take to arrive.
SETTLE_SECONDS = 0.2


@attrs.frozen(kw_only=True)
class Attempt:
    """How an attack went.

    Attributes:
        tier: What was to contain it.
        attack: Its name, for programs.
        title: What it has tried.
        contained: The host was not reached.
        how: What has stopped it, or what it has done.
    """

    tier: str
    attack: str
    title: str
    contained: bool
    how: str


async def attack(policy: Sandbox | None) -> tuple[Attempt, ...]:
    """Run every attack under a policy, and return how each went; None confines nothing.

    Raises:
        SandboxUnavailable: The policy cannot be held here. Nothing was run.
    """
    # Whatever an attack leaves behind has this in its arguments.
    mark = secrets.token_hex(16)
    tool, folders = _hostile_tool(mark)
    if policy is not None:
        policy = attrs.evolve(policy, read=(*policy.read, *folders))
    async with Runner([tool], sandbox=policy) as runner:
        return tuple([await _attempt(runner, name, mark) for name in attacks.ATTACKS])


def _hostile_tool(mark: str) -> tuple[ToolDef, Sequence[str]]:
    """Return a tool that attacks, and what it has to be able to read: the interpreter, and nothing of heddle."""
    python = os.path.realpath(sys.executable)
    source = Path(attacks.__file__).read_text(encoding="utf-8")
    program = Program(Path(python), args=("-I", "-S", "-c", source, mark))
    tool = ToolDef(name="attack", implementation=program, limits=Limits(wall_seconds=ATTACK_SECONDS))
    return tool, (sys.base_prefix, os.path.dirname(python))


async def _attempt(runner: Runner, name: str, mark: str) -> Attempt:
    with _scene() as scene:
        async with runner.scope(name) as scope:
            workspace = scope.workspace.path
            os.symlink(scene.outside, workspace / attacks.LINK)
            result = await scope.call("attack", scene.request(name))
            left = _ended(mark)
            contained, how = _judged(GOALS[name], scene, workspace, result, left)
    return Attempt(
        tier=result.report.tier or "none", attack=name, title=GOALS[name].title, contained=contained, how=how
    )


def _judged(goal: Goal, scene: Scene, workspace: Path, result: ToolResult, left: int) -> tuple[bool, str]:
    """Return whether the host was not reached, and what has stopped the attack, or what it has done."""
    data = result.data if isinstance(result, Returned) else None
    said = {key: str(value) for key, value in data.items()} if isinstance(data, dict) else {}
    got = said.get("got", "")
    if left:
        return False, f"{left} of its processes outlived the call"
    if goal.is_reached(scene, workspace, got):
        return False, goal.reached
    if isinstance(result, Failed):
        return False, f"it could not be tried: {result.message.splitlines()[0]}"
    return True, said.get("stopped") or goal.held.format(got=got)


def _ended(mark: str) -> int:
    """End what an attack has left behind, and return how many processes that were."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                os.kill(int(name), signal.SIGKILL)
                count += 1
    return count


@attrs.frozen(kw_only=True, eq=False)
class Scene:
    """What an attack is to reach, laid out by the host for one attack alone.

    Attributes:
        secret: Lies in everything that may not be read.
        name: Of everything that has to have one; no secret.
        folder: Of the host, beside those that workspaces are in. Everybody may write it.
        canary: A file in the home folder.
        outside: A file that a link in the workspace leads to.
        port: What listens on the loopback device.
        abstract: What listens on an abstract socket.
        process: Of the host, but a user's who owns no more than tools do.
    """

    secret: str
    name: str
    folder: Path
    canary: Path
    outside: Path
    port: socket.socket
    abstract: socket.socket
    process: subprocess.Popen[bytes]

    def request(self, name: str) -> dict[str, JSON]:
        """Return what an attack is told: where everything is, and not the secret."""
        return {
            "attack": name,
            "name": self.name,
            "folder": str(self.folder),
            "canary": str(self.canary),
            "port": self.port.getsockname()[1],
            "pid": self.process.pid,
        }


@contextlib.contextmanager
def _scene() -> Generator[Scene, None, None]:
    secret, name = (attacks.MARK + secrets.token_hex(8) for _ in range(2))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-doctor-"))).resolve()
        folder.chmod(0o777)
        outside = folder / "outside"
        outside.write_text(secret, encoding="utf-8")
        outside.chmod(0o666)
        canary = _canary(secret, folder)
        stack.callback(canary.unlink, missing_ok=True)
        os.environ[name] = secret
        stack.callback(os.environ.pop, name)
        yield Scene(
            secret=secret,
            name=name,
            folder=folder,
            canary=canary,
            outside=outside,
            port=stack.enter_context(_listener(socket.AF_INET, ("127.0.0.1", 0))),
            abstract=stack.enter_context(_listener(socket.AF_UNIX, f"\0{name}")),
            process=stack.enter_context(_process(secret)),
        )


def _canary(secret: str, folder: Path) -> Path:
    """Put a secret into the home folder; into another of the host's where there is no home that may be written."""
    try:
        fd, path = tempfile.mkstemp(prefix=".heddle-doctor-", dir=os.path.expanduser("~"))
    except OSError:
        fd, path = tempfile.mkstemp(dir=folder)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)  # it is not its mode that should hold
        file.write(secret)
    return Path(path)


@contextlib.contextmanager
def _listener(family: socket.AddressFamily, address: tuple[str, int] | str) -> Generator[socket.socket, None, None]:
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        yield listener


@contextlib.contextmanager
def _process(secret: str) -> Generator[subprocess.Popen[bytes], None, None]:
    """Run something that waits, with a secret in its arguments and its environment. It ends when this process does."""
    user = NOBODY if os.geteuid() == 0 else None
    with subprocess.Popen(
        ["/bin/sh", "-c", "read forever", secret],
        stdin=subprocess.PIPE,
        env={"SECRET": secret},
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@attrs.frozen
class Goal:
    """What an attack is after.

    Attributes:
        title: What it tries.
        is_reached: Asked with the scene, the workspace and what the attack has got: whether the host was reached.
        reached: What has happened then.
        held: What else has happened, where nothing has stopped it.
    """

    title: str
    is_reached: Callable[[Scene, Path, str], bool]
    reached: str
    held: str = "the host was not reached"


def _has_secret(scene: Scene, _workspace: Path, got: str) -> bool:
    return scene.secret in got


def _has_written(scene: Scene, workspace: Path, _got: str) -> bool:
    return any((folder / scene.name).exists() for folder in (scene.folder, workspace.parent))


def _has_followed(scene: Scene, _workspace: Path, got: str) -> bool:
    return scene.secret in got or scene.outside.read_text(encoding="utf-8") != scene.secret


def _has_ended_it(scene: Scene, _workspace: Path, got: str) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        scene.process.wait(SETTLE_SECONDS if got else 0)
    return scene.secret in got or scene.process.returncode is not None


def _is_connected(listener: socket.socket) -> bool:
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


def _is_never_reached(_scene: Scene, _workspace: Path, _got: str) -> bool:
    return False


def _says_so(_scene: Scene, _workspace: Path, got: str) -> bool:
    return bool(got)


# The host looks for itself; where only the attack can know, its word against itself is believed.
GOALS: Mapping[str, Goal] = {
    "read_home": Goal("read a file in the home folder", _has_secret, "it was read"),
    "write_beside": Goal(
        "write beside the workspace",
        _has_written,
        "the host has a file that it wrote",
        held="what it wrote is in a folder of its own",
    ),
    "follow_link": Goal(
        "read and change a file by a link out of the workspace", _has_followed, "the file was read or changed"
    ),
    "reach_port": Goal(
        "connect to a port of the host", lambda scene, _workspace, _got: _is_connected(scene.port), "it was connected"
    ),
    "reach_socket": Goal(
        "connect to an abstract socket of the host",
        lambda scene, _workspace, _got: _is_connected(scene.abstract),
        "it was connected",
    ),
    "meet_process": Goal("see a process of the host, and end it", _has_ended_it, "it was seen or ended"),
    "read_environment": Goal("read the host's variables", _has_secret, "a secret was found"),
    "trace": Goal("trace a process of the host", _says_so, "it was traced"),
    "mount": Goal("mount a file system", _says_so, "it was mounted"),
    "fork_bomb": Goal(
        "start processes without end",
        lambda _scene, _workspace, got: got == str(attacks.MOST_FORKS),
        f"it got all {attacks.MOST_FORKS}. No limit of processes holds where tools run as root: run heddle as a plain "
        f"user, or with an interpreter that user {NOBODY} may use",
        held="{got} and no more",
    ),
    # What is left is looked for after every attack.
    "daemon": Goal("leave a process behind", _is_never_reached, "it was left", held="it was ended with the call"),
}
