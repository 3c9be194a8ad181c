"""Two launchers: one records what it runs, the other answers from the record and starts nothing.

python examples/runners/recording.py

A record is a file of JSON lines, each a command with its input and its exit. What differs from run to run, the ids of
a call and the path of its workspace, stands in it by name; the path of the program does not, so that a record can be
replayed on another machine; nor do variables, which may hold secrets.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import attrs
import trio

import heddle
from heddle.process import Command, Ending, Exit, Launcher, LauncherSession, default_launcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from heddle.process import Confinement

# What is different in every run, by the variable that holds it.
VARYING = ("HEDDLE_ATTEMPT_ID", "HEDDLE_OPERATION_ID", "HEDDLE_WORKSPACE")


@attrs.frozen
class Recorder:
    """Records what another launcher runs.

    Attributes:
        launcher: The one that does the work, ready for use.
        file: Open for writing text.
    """

    launcher: Launcher
    file: TextIO

    @property
    def tier(self) -> str:
        """What confines calls is not changed by watching them."""
        return self.launcher.tier

    @property
    def guarantees(self) -> Mapping[str, str]:
        """What is promised is not either."""
        return self.launcher.guarantees

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession, None]:
        """Open a session around one of the other launcher."""
        async with self.launcher.session(confinement) as session:
            yield RecordingSession(session, self.file)


@attrs.frozen
class RecordingSession:
    """Records the commands of one scope."""

    session: LauncherSession
    file: TextIO

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:
        """Run a command, and write down how it went. One that is cancelled leaves no line."""
        exit_ = await self.session.launch(command, stdin, limits)
        # One call of write for the whole line: calls that run at once do not get into each other's.
        self.file.write(json.dumps({**request_of(command, stdin), "exit": exit_as_json(exit_)}) + "\n")
        self.file.flush()
        return exit_


class NotRecorded(Exception):
    """A call is not in the record, or was made more often than it was recorded. Nothing was started."""


class Replayer:
    """Answers calls from a record: the same call, made again, gets the next exit that was recorded for it."""

    tier = "replayed"
    guarantees: Mapping[str, str] = {"processes": "enforced"}

    def __init__(self, lines: Iterable[str]) -> None:
        self.exits: defaultdict[str, deque[Exit]] = defaultdict(deque)
        for line in lines:
            recorded = json.loads(line)
            self.exits[key_of(recorded)].append(exit_from_json(recorded["exit"]))

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[LauncherSession, None]:  # noqa: ARG002 - nothing runs
        """Open a session; there is nothing to it."""
        yield self

    async def launch(self, command: Command, stdin: bytes, limits: heddle.Limits) -> Exit:  # noqa: ARG002 - nothing runs
        """Return the exit that was recorded for a command."""
        await trio.lowlevel.checkpoint()
        request = request_of(command, stdin)
        exits = self.exits.get(key_of(request))
        if not exits:
            how_many = "no call" if exits is None else "no further call"
            raise NotRecorded(
                f'the host called tool "{request["tool"]}" with {stdin[:80].decode(errors="replace")}, and the record '
                f"holds {how_many} like that. Record it again, or find out why the host makes this call"
            )
        return exits.popleft()


def request_of(command: Command, stdin: bytes) -> dict[str, Any]:
    """Return what tells one call from another, and is the same in every run."""
    varying = {name: command.environment[name] for name in VARYING if command.environment.get(name)}

    def settled(text: str) -> str:
        for name, value in varying.items():
            text = text.replace(value, f"${name}")
        return text

    return {
        "tool": command.environment.get("HEDDLE_TOOL", ""),
        "args": [settled(word) for word in command.argv[1:]],
        "cwd": settled(str(command.cwd)),
        "stdin": _text(os.fsencode(settled(os.fsdecode(stdin)))),
    }


def key_of(request: Mapping[str, Any]) -> str:
    return json.dumps([request[name] for name in ("tool", "args", "cwd", "stdin")])


def exit_as_json(exit_: Exit) -> dict[str, Any]:
    """Return an exit as JSON, without what has no meaning later: when it was, and what could not be ended."""
    passing = {"started_at", "waited_s", "survivors"}
    values = attrs.asdict(exit_, filter=lambda field, _: field.name not in passing)
    return {
        **values,
        "ending": exit_.ending.name,
        "stdout": _text(exit_.stdout),
        "stderr": _text(exit_.stderr),
        "truncated": sorted(exit_.truncated),
    }


def exit_from_json(values: Mapping[str, Any]) -> Exit:
    given: dict[str, Any] = {
        **values,
        "ending": Ending[values["ending"]],
        "stdout": _bytes(values["stdout"]),
        "stderr": _bytes(values["stderr"]),
        "truncated": frozenset(values["truncated"]),
    }
    return Exit(**given)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


async def main() -> None:
    tools = heddle.discover_tools(Path(__file__).parent.parent / "tools")
    calls = [("python_search", {"query": "looms"}), ("bash_search", {"query": "shuttles"})]

    with tempfile.TemporaryFile("w+") as record:
        async with (
            default_launcher() as launcher,
            heddle.Runner(tools, launcher=Recorder(launcher, record)) as runner,
        ):
            for name, arguments in calls:
                show(await runner.call(name, arguments))
        record.seek(0)
        replayer = Replayer(record)

    async with heddle.Runner(tools, launcher=replayer) as runner:
        for name, arguments in calls:
            show(await runner.call(name, arguments))
        try:
            await runner.call("bash_search", {"query": "reeds"})
        except NotRecorded as error:
            print(error)


def show(result: heddle.ToolResult) -> None:
    print(f"{result.report.tier}: {result.unwrap()}")


if __name__ == "__main__":
    trio.run(main)
