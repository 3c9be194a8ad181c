"""The walk of one call, from arguments to a result. It reads from top to bottom; the first `Failed` ends it.

    arguments → check → encode → run to the end → decode → check → Returned

Only running touches the operating system. A Python function takes the place of the three steps in the middle.
"""

from __future__ import annotations

import datetime
import inspect
import logging
import math
import os
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, TypeVarTuple

import attrs
import trio

from heddle import strictjson
from heddle.errors import HeddleError, StrictJsonError, ToolError
from heddle.limits import Limits
from heddle.listening import News
from heddle.logs import logger
from heddle.loops import Loop
from heddle.process import diagnosis
from heddle.process.values import ATTEMPT_VARIABLE, Command, Ending, Exit
from heddle.protocol import PROTOCOLS, Reply, Request, WireProtocol
from heddle.protocol.exits import beginning, text_of
from heddle.references import Unresolved
from heddle.results import CallReport, Failed, FailureKind, Returned, ToolResult, Verdict, verdict
from heddle.strictjson import JSON
from heddle.threads import MOST_LEFT, NO_THREAD, NOT_ENDED, in_thread
from heddle.tools.checking import CompiledTool, failure_text
from heddle.tools.definition import Composed, Function, Program, ToolContext, ToolDef, Violation
from heddle.tools.jsontypes import is_mapping
from heddle.tools.registry import Registry
from heddle.tools.structuring import ArgumentsRefused, to_json

if TYPE_CHECKING:
    from heddle.expressions import Evaluator, Expression
    from heddle.redaction import Redactor
    from heddle.threads import Threads
    from heddle.workspace import Workspace

__all__ = ["Call", "Place", "alone", "failure_of_raised", "walk"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# 2,000 characters of a failed program's output go into the report.
HEAD_CHARS = 2000
# Longer texts are checked in a thread: parsing and checking them takes milliseconds.
LONG_TEXT = 16_384
# Where a pattern takes more than linear time, ten values or a thousand characters take tens of milliseconds.
SLOW_TEXT = 1000
SLOW_PLACES = 10


class Place(Protocol):
    """Where calls are run: what a scope offers to a walk."""

    @property
    def tier(self) -> str:
        """What confines its programs."""
        ...

    def guarantees_for(self, command: Command) -> Mapping[str, str]:
        """Return what holds for one of its programs."""
        ...

    async def variables(self, inherit: tuple[str, ...]) -> dict[str, str] | Unresolved:
        """Return what a program that asks for `inherit` gets, apart from what tells one call from another."""
        ...

    def redactor(self, inherit: tuple[str, ...]) -> Redactor:
        """Return what masks the secrets of a program that asks for `inherit`."""
        ...

    @property
    def workspace(self) -> Workspace:
        """The directory that its calls share."""
        ...

    async def make_workspace(self) -> None:
        """Make the directory, if it is not there yet."""
        ...

    async def launch(
        self, command: Command, stdin: bytes, limits: Limits, on_start: Callable[[], Awaitable[None]]
    ) -> tuple[Exit, float]:
        """Run a program to its end; return that, and the seconds that it waited before `on_start`."""
        ...

    @property
    def threads(self) -> Threads:
        """Where its synchronous functions run."""
        ...

    @property
    def evaluator(self) -> Evaluator:
        """Where the expressions of its pipelines are evaluated."""
        ...


Nested: TypeAlias = "Callable[[Call, str, Mapping[str, object], str], Awaitable[ToolResult]]"


@attrs.define(eq=False, kw_only=True)
class Call:
    """One call on its walk."""

    tool: ToolDef
    compiled: CompiledTool
    arguments: Mapping[str, object] | str | None
    limits: Limits
    bare_string: bool
    cwd: str | Path | None
    place: Place
    loop: Loop
    began: float
    operation_id: str
    attempt_id: str
    news: News | None = None
    permit: Callable[[Call, dict[str, JSON]], Awaitable[Failed | None]] | None = None  # asks whether it may be made
    before_start: Callable[[], Awaitable[None]] | None = None  # what has to be done before the tool may be started
    catalogue: Registry | None = None  # what parts of it may call
    nested: Nested | None = None  # has another tool called as a part of this call
    parent: Call | None = None  # of which it is a part
    part: Call | None = None  # the one of its own that has started, and has not come to its end
    depth: int = 0
    # What is known so far; the result is made of it.
    large: bool = False
    is_left: bool = False
    started_at: datetime.datetime | None = None
    started_time: float = 0.0
    report: CallReport | None = None

    async def starts(self) -> None:
        """Note that a Python function begins now."""
        await self.is_about_to_start()
        self.started_at = datetime.datetime.now(datetime.UTC)
        self.started_time = self.loop.now()

    async def starts_once(self) -> None:
        """Note that something is brought about, if that is the first."""
        if self.started_at is None:
            await self.starts()

    async def is_about_to_start(self) -> None:
        """Do what has to be done before the tool is started, and tell whoever listens."""
        if self.parent is not None:
            self.parent.part = self
            await self.parent.starts_once()
        if self.before_start is not None:
            await self.before_start()
        if self.news is not None:
            self.news.started()

    def completed(self, failure: Failed) -> Failed:
        """Return `failure` with what this call knows: whether it started, whether it may be made again, its report."""
        started = self.started_at is not None
        may = self.verdict(started=started)
        if isinstance(self.tool.implementation, Composed) and failure.retry == "blocked":
            may = "blocked"  # a part of it may not be made again
        redactor = self.redactor
        return attrs.evolve(
            failure,
            message=redactor.kept(failure.message),
            code=None if failure.code is None else redactor.kept(failure.code),
            details={name: redactor.json(value) for name, value in failure.details.items()},
            started=started,
            retry=may,
            report=self.known_report,
        )

    def verdict(self, *, started: bool) -> Verdict:
        """Return whether it may be made again, should it fail now. How far a part has come then is not known."""
        if self.part is not None and self.part.verdict(started=True) == "blocked":
            return "blocked"
        return verdict(started=started, side_effects=self.tool.side_effects, retry=self.tool.retry)

    @property
    def redactor(self) -> Redactor:
        """What masks the secrets of its tool."""
        program = self.tool.implementation
        return self.place.redactor(program.inherit_env if isinstance(program, Program) else ())

    @property
    def known_report(self) -> CallReport:
        """The report; while nothing has been started it has only names."""
        if self.report is not None:
            return self.report
        return CallReport(tool=self.tool.name, operation_id=self.operation_id, attempt_id=self.attempt_id)


async def walk(call: Call) -> ToolResult:
    """Take `call` from its arguments to its result."""
    checked = await _check_arguments(call)
    if isinstance(checked, Failed):
        return call.completed(checked)
    if call.permit is not None and (refused := await call.permit(call, checked)) is not None:
        return call.completed(refused)
    match call.tool.implementation:
        case Program() as program:
            reply = await _run_program(call, program, checked)
        case Function() as function:
            reply = await _call_function(call, function, checked)
        case Composed() as composed:
            reply = await _compose(call, composed, checked)
        case _:
            reply = _unsupported(call.tool)
    if isinstance(reply, Failed):
        return call.completed(reply)
    return Returned(reply.data, call.known_report)


def _unsupported(tool: ToolDef) -> Failed:
    said = "is declared and nothing here runs it. The host has to register an implementation."
    if tool.unsupported_reason:
        said = f"is declared as unsupported: {tool.unsupported_reason}"
    return Failed(FailureKind.UNSUPPORTED, f'tool "{tool.name}" {said}')


async def _aside(call: Call, large: bool, step: Callable[[*Ts], T], *args: *Ts) -> T:
    """Take a pure step, in a thread where it would hold the loop for longer than a moment."""
    return await call.loop.judge(step, *args) if large else step(*args)


def _takes_long(call: Call, value: object) -> bool:
    """Return whether judging a value may take longer than a moment."""
    if isinstance(value, (str, bytes)):
        return len(value) > (SLOW_TEXT if call.compiled.is_slow else LONG_TEXT)
    return strictjson.is_large(value, SLOW_PLACES) if call.compiled.is_slow else strictjson.is_large(value)


# Arguments


async def _check_arguments(call: Call) -> dict[str, JSON] | Failed:
    given = call.arguments
    call.large = _takes_long(call, given)
    return await _aside(call, call.large or call.compiled.waits, _checked, call)


def _checked(call: Call) -> dict[str, JSON] | Failed:
    tool = call.tool.name
    most = call.limits.stdin_bytes
    given = call.arguments
    try:
        # A text that is too long is not even read.
        too_large = isinstance(given, str) and _is_over(most, len(given))
        arguments = None if too_large else _as_json(given, bare_string=call.bare_string)
        if too_large or _is_over(most, len(strictjson.encoded(arguments))):
            said = f'the arguments of tool "{tool}" are larger than the {most:,} bytes that a call may send.'
            return Failed(FailureKind.TOO_LARGE, said)
    except StrictJsonError as error:
        return Failed(FailureKind.INVALID_INPUT, f'the arguments of tool "{tool}" are not strict JSON: {error}.')
    if not isinstance(arguments, dict):
        kind = strictjson.kind_of(arguments)
        return Failed(FailureKind.INVALID_INPUT, f'the arguments of tool "{tool}" must be an object, not {kind}.')
    checked = call.compiled.check_arguments(arguments)
    return checked if isinstance(checked, dict) else _refused(tool, checked)


def _is_over(limit: int | None, size: int) -> bool:
    return limit is not None and size > limit


def _as_json(given: Mapping[str, object] | str | None, *, bare_string: bool) -> JSON:
    """Return arguments as JSON; a model that has none to give says ``""`` or ``null``."""
    if given is None:
        return {}
    if not isinstance(given, str):
        return strictjson.normalized(given)
    if not given.strip():
        return {}
    try:
        value = strictjson.loads(given)
    except StrictJsonError:
        if bare_string:
            return {"input": strictjson.normalized(given)}
        raise
    return {} if value is None else value


def _refused(tool: str, violations: tuple[Violation, ...]) -> Failed:
    return Failed(
        FailureKind.INVALID_INPUT,
        failure_text(tool, violations),
        details={"violations": [violation.as_json() for violation in violations]},
    )


# Programs


async def _run_program(call: Call, program: Program, arguments: dict[str, JSON]) -> Reply | Failed:
    protocol = PROTOCOLS[program.protocol]
    request = _request(call, program, arguments)
    stdin = await _aside(call, call.large, protocol.encode, request)
    if _is_over(call.limits.stdin_bytes, len(stdin)):
        return Failed(
            FailureKind.TOO_LARGE,
            f'the request to tool "{call.tool.name}" takes {len(stdin):,} bytes; '
            f"a call may send {call.limits.stdin_bytes:,}.",
        )
    await call.place.make_workspace()
    cwd = _cwd(call)
    if isinstance(cwd, Failed):
        return cwd
    variables = await call.place.variables(program.inherit_env)
    if isinstance(variables, Unresolved):
        return _unresolved(call, variables)
    command = _command(call, program, cwd, variables)
    waited_s = call.loop.now() - call.began
    try:
        exit_, in_line_s = await call.place.launch(command, stdin, call.limits, partial(_begin, call, program))
    except _Drifted as drifted:
        return drifted.failure
    exit_ = _explained(exit_, command, confined=call.place.tier != "none")
    if exit_.ending is not Ending.NOT_STARTED:
        # A launcher need not say when: that it was started is what counts.
        call.started_at = exit_.started_at or datetime.datetime.now(datetime.UTC)
    exit_ = await _aside(call, len(exit_.stderr) > LONG_TEXT, _redacted, call, exit_)
    reply = await _aside(call, _takes_long(call, exit_.stdout), _decoded, call, protocol, exit_, request)
    call.report = _report(call, command, exit_, waited_s + in_line_s, failed=isinstance(reply, Failed))
    return reply


class _Drifted(Exception):
    """Files that belong to a program are not what they were; it was not started."""

    def __init__(self, failure: Failed) -> None:
        self.failure = failure
        super().__init__(failure.message)


async def _begin(call: Call, program: Program) -> None:
    """Let a program be started whose turn has come, unless a file that belongs to it is not what it was."""
    drift = {} if program.inventory is None else await in_thread(program.inventory.drift)
    if drift:
        (name, what), *others = drift.items()
        more = f", and {len(others)} more of its files are not what they were" if others else ""
        said = f'tool "{call.tool.name}" was not started: {name} {what}{more}. Its manifest vouches for what was there '
        said += "when it was read: the host has to put that back, or read the manifest again."
        raise _Drifted(Failed(FailureKind.CANNOT_START, said, code="content_drift", details={"files": {**drift}}))
    await call.is_about_to_start()


def _redacted(call: Call, exit_: Exit) -> Exit:
    """Mask what is secret in standard error before anything quotes or shortens it."""
    if not exit_.stderr:
        return exit_
    said = call.redactor.kept(text_of(exit_.stderr), cut_before="stderr" in exit_.truncated)
    return attrs.evolve(exit_, stderr=said.encode())


def _decoded(call: Call, protocol: WireProtocol, exit_: Exit, request: Request) -> Reply | Failed:
    reply = protocol.decode(exit_, request)
    return reply if isinstance(reply, Failed) else _checked_output(call, reply)


def _request(call: Call, program: Program, arguments: dict[str, JSON]) -> Request:
    return Request(
        tool=call.tool.name,
        arguments=arguments,
        tool_id=program.tool_id or call.tool.name,
        revision=call.tool.revision,
        action=program.action or call.tool.name,
        operation_id=call.operation_id,
        attempt_id=call.attempt_id,
        limits=call.limits,
        redactor=lambda: call.redactor,
    )


def _cwd(call: Call) -> Path | Failed:
    """Return where a program is started: in the workspace, or in a folder of it."""
    workspace = call.place.workspace.path
    if call.cwd is None:
        return workspace
    said = f'tool "{call.tool.name}" was not started in {str(call.cwd)!r}: '
    try:
        cwd = (workspace / call.cwd).resolve()
        is_folder = cwd.is_dir()
    except (OSError, RuntimeError, ValueError):
        return Failed(FailureKind.CANNOT_START, said + "it is no path to a folder.")
    if not cwd.is_relative_to(workspace):
        return Failed(FailureKind.DENIED, said + "that leaves the workspace.")
    if not is_folder:
        return Failed(FailureKind.CANNOT_START, said + "there is no such folder in the workspace.")
    return cwd


def _unresolved(call: Call, why: Unresolved) -> Failed:
    said = f'tool "{call.tool.name}" was not started: the host cannot give it variables that it asks for. {why}.'
    return Failed(FailureKind.CANNOT_START, said, code=why.code, details={"faults": why.as_json()})


def _command(call: Call, program: Program, cwd: Path, variables: dict[str, str]) -> Command:
    """Return the command that starts the tool, with all that it may know of its call."""
    identity = {
        "HEDDLE_TOOL": call.tool.name,
        "HEDDLE_OPERATION_ID": call.operation_id,
        ATTEMPT_VARIABLE: call.attempt_id,
    }
    told = {} if call.news is None else call.news.variables
    return Command(
        argv=(str(program.path), *program.args),
        cwd=cwd,
        environment=variables | told | identity,
        network="none" if program.network == "none" else None,
    )


def _explained(exit_: Exit, command: Command, *, confined: bool) -> Exit:
    """Say why a program did not start, where the system says only a number or env(1) says it for the system."""
    path = command.argv[0]
    if exit_.ending is Ending.NOT_STARTED:
        why = diagnosis.why_not_started(path, command.cwd, exit_.error_number, exit_.error, confined=confined)
        return attrs.evolve(exit_, error=why)
    if exit_.ending is Ending.BY_ITSELF and exit_.status in diagnosis.NOT_FOUND:
        search_path = command.environment.get("PATH", os.defpath)
        failed = diagnosis.why_interpreter_failed(path, search_path, confined=confined)
        if failed is not None:
            return attrs.evolve(exit_, ending=Ending.NOT_STARTED, error=failed)
    return exit_


def _report(call: Call, command: Command, exit_: Exit, waited_s: float, *, failed: bool) -> CallReport:
    started = call.started_at is not None
    program = call.tool.implementation
    asks = program.network if isinstance(program, Program) else None
    return CallReport(
        tool=call.tool.name,
        operation_id=call.operation_id,
        attempt_id=call.attempt_id,
        started_at=call.started_at,
        waited_s=waited_s,
        duration_s=exit_.duration_s,
        exit_status=exit_.status,
        signal=exit_.signal,
        stdout_head=beginning(exit_.stdout, HEAD_CHARS, call.redactor) if failed else "",
        stderr_tail=text_of(exit_.stderr),
        tier=call.place.tier if started else None,
        guarantees=call.place.guarantees_for(command) if started else {},
        asked={} if asks is None else {"network": asks},
        left_behind=exit_.left_behind,
        survivors=exit_.survivors,
        truncated=exit_.truncated,
    )


# Python functions


@attrs.frozen
class _Value:
    """What a function returned; it may be anything."""

    value: object


async def _call_function(call: Call, function: Function, arguments: dict[str, JSON]) -> Reply | Failed:
    try:
        prepared: dict[str, Any] = arguments
        if function.prepare is not None:
            prepared = await _aside(call, call.large, function.prepare, arguments)
    except ArgumentsRefused as refused:
        return _refused(call.tool.name, refused.violations)
    if function.context is not None:
        if call.place.workspace.has_mounts:
            await call.place.make_workspace()
        prepared = {**prepared, function.context: _context(call)}
    try:
        outcome = await _outcome(call, function, prepared)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is its failure, not the host's
        outcome = _raised(call, error)
    if call.started_at is not None:
        call.report = CallReport(
            tool=call.tool.name,
            operation_id=call.operation_id,
            attempt_id=call.attempt_id,
            started_at=call.started_at,
            waited_s=call.started_time - call.began,
            duration_s=call.loop.now() - call.started_time,
            tier="in_process",
        )
    if isinstance(outcome, Failed):
        return outcome
    return await _aside(call, _takes_long(call, outcome.value), _result, call, function, outcome.value)


async def _outcome(call: Call, function: Function, prepared: Mapping[str, Any]) -> _Value | Failed:
    """Call the function and wait for it, for as long as it may take."""
    wall_seconds = call.limits.wall_seconds
    left = partial(_leave, call, function)
    if function.is_async:
        await call.starts()
        value = await call.loop.await_function(function.function, prepared, wall_seconds, left)
        return _late(call) if value is NOT_ENDED else _Value(value)
    result = await call.place.threads.run(
        lambda: _Value(function.function(**prepared)),
        wall_seconds,
        call.starts,
        left,
    )
    if result is NOT_ENDED:
        return _late(call)
    if result is NO_THREAD:
        return Failed(
            FailureKind.CANNOT_START,
            f'tool "{call.tool.name}" cannot be started: {MOST_LEFT} functions of this runner are still running after '
            "their time was up. The host has to mend the tools that do not end.",
        )
    assert isinstance(result, _Value)  # noqa: S101 - what the function returned is inside
    return result


def _leave(call: Call, function: Function, is_running: Callable[[], bool]) -> None:
    """Let the workspace be while a function that was left running may still write in it."""
    call.is_left = True
    if function.context is not None:
        call.place.workspace.note_user(is_running)


def _context(call: Call) -> ToolContext:
    def open_workspace() -> Path:
        return call.place.workspace.path

    return ToolContext(call.operation_id, call.attempt_id, open_workspace)


def _late(call: Call) -> Failed:
    end = "and is still running" if call.is_left else "and was cancelled"
    return Failed(
        FailureKind.TIMED_OUT,
        f'tool "{call.tool.name}" did not finish within {call.limits.wall_seconds:g} s {end}.',
        details={"still_running": call.is_left},
    )


_NEEDS_ASYNCIO = (
    ". It needs asyncio, and this runner awaits its tools under trio: heddle.aio.Runner awaits them on the loop of an "
    "asyncio host."
)
_NEEDS_TRIO = (
    ". It needs trio, and this runner awaits its tools under asyncio: heddle.Runner and heddle.blocking.Runner await "
    "them under trio."
)
# What asyncio and trio say when their functions are awaited on each other's loops.
_WRONG_LOOP = {
    "no running event loop": _NEEDS_ASYNCIO,
    "must be called from async context": _NEEDS_TRIO,
    "Task got bad yield: <class 'trio": _NEEDS_TRIO,
}


def _raised(call: Call, raised: BaseException) -> Failed:
    return failure_of_raised(f'tool "{call.tool.name}"', raised, call.redactor)


def failure_of_raised(whose: str, raised: BaseException, redactor: Redactor | None = None) -> Failed:
    """Return the failure of code of the host that has raised.

    Args:
        whose: What it was called for: ``tool "pay"``.
        raised: What it raised.
        redactor: Masks what is logged.
    """
    error = alone(raised)
    if isinstance(error, ToolError):
        return Failed(FailureKind.TOOL_ERROR, f"{whose} reports {error.code}: {error.message}", code=error.code)
    if logger.isEnabledFor(logging.DEBUG):
        said = "".join(traceback.format_exception(error))
        logger.debug("%s raised\n%s", whose, said if redactor is None else redactor.text(said))
    text = f": {error}" if str(error) else ""
    hint = next((hint for said, hint in _WRONG_LOOP.items() if str(error).startswith(said)), "")
    said = f"{whose} raised {type(error).__name__}{text}{hint}"
    return Failed(FailureKind.CRASHED, said, code=type(error).__name__, details={"raised_in": _place_of(error)})


def _place_of(error: BaseException) -> str:
    """Return where an exception was raised, by module and line: a host's paths are nobody's business."""
    places = list(traceback.walk_tb(error.__traceback__))
    if not places:
        return ""
    frame, line = places[-1]
    return f"{frame.f_globals.get('__name__', '?')}:{line} in {frame.f_code.co_qualname}"


def alone(error: BaseException) -> BaseException:
    """Return what a group of one holds; a nursery makes a group of everything."""
    inner: list[BaseException] = list(getattr(error, "exceptions", ()))
    while len(inner) == 1:
        error, inner = inner[0], list(getattr(inner[0], "exceptions", ()))
    return error


def _result(call: Call, function: Function, value: object) -> Reply | Failed:
    """Turn what a function returned into JSON."""
    tool = call.tool.name
    finish = to_json if function.finish is None else function.finish
    try:
        data = strictjson.normalized(finish(value))
        wrapped = not isinstance(data, dict) if function.wrap is None else function.wrap
        if wrapped:
            data = {"result": data}
        size = len(strictjson.encoded(data))
    except StrictJsonError as error:
        return Failed(FailureKind.INVALID_OUTPUT, f'tool "{tool}" returned what JSON cannot say: {error}.')
    except Exception as error:  # noqa: BLE001 - a result's own code may do anything while it is taken apart
        return Failed(FailureKind.INVALID_OUTPUT, f'tool "{tool}" returned what cannot be turned into JSON: {error}.')
    most = call.limits.stdout_bytes
    if _is_over(most, size):
        return Failed(FailureKind.TOO_LARGE, f'tool "{tool}" returned {size:,} bytes; a result may have {most:,}.')
    return _checked_output(call, Reply(data))


# Pipelines


@attrs.frozen
class _Visit:
    """What a call offers to an implementation that has other tools called."""

    _call: Call

    async def call(self, tool: str, arguments: Mapping[str, object], step: str) -> ToolResult:
        assert self._call.nested is not None  # noqa: S101 - every call of a scope has it
        result = await self._call.nested(self._call, tool, arguments, step)
        self._call.part = None  # not when it is cut off
        return result

    def describe(self, tool: str) -> str:
        catalogue = self._call.catalogue
        return catalogue[tool].description if catalogue is not None and tool in catalogue else ""

    async def evaluate(self, expression: Expression, names: Mapping[str, JSON]) -> JSON:
        return await self._call.place.evaluator.evaluate(expression, names)

    async def perform(self, function: Callable[[T], object], argument: T) -> object | Failed:
        await self._call.starts_once()
        try:
            given = function(argument)
            return await self._awaited(given) if inspect.isawaitable(given) else given
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is its failure, not the host's
            return _raised(self._call, error)

    async def _awaited(self, given: Awaitable[object]) -> object:
        async def itself() -> object:
            return await given

        return await self._call.loop.await_function(itself, {}, None, self._leave)

    def _leave(self, _is_running: Callable[[], bool]) -> None:
        self._call.is_left = True


async def _compose(call: Call, composed: Composed, arguments: dict[str, JSON]) -> Reply | Failed:
    """Run a pipeline. It has started when the first of what it has called has."""
    started_at, started_time = datetime.datetime.now(datetime.UTC), call.loop.now()
    body = _bare(call.tool, arguments) if call.bare_string else arguments
    wall_seconds = call.limits.wall_seconds
    outcome: JSON | Failed = _late(call)
    with trio.move_on_after(math.inf if wall_seconds is None else wall_seconds):
        try:
            outcome = await composed.run(call.tool.name, body, _Visit(call))
        except (Exception, SystemExit) as error:
            if isinstance(error, HeddleError):
                raise  # the host's to mend
            outcome = _raised(call, error)
    call.report = CallReport(
        tool=call.tool.name,
        operation_id=call.operation_id,
        attempt_id=call.attempt_id,
        started_at=started_at,
        waited_s=started_time - call.began,
        duration_s=call.loop.now() - started_time,
        tier="in_process",
    )
    if isinstance(outcome, Failed):
        return outcome
    # What is published of its result is not enforced: it is whatever its steps have made.
    size = len(strictjson.encoded(outcome))
    if _is_over(call.limits.stdout_bytes, size):
        said = f'tool "{call.tool.name}" returned {size:,} bytes; a result may have {call.limits.stdout_bytes:,}.'
        return Failed(FailureKind.TOO_LARGE, said)
    return Reply(outcome)


def _bare(tool: ToolDef, arguments: dict[str, JSON]) -> JSON:
    """Return the only argument of a tool that takes one string and nothing else, as its steps would rather have it."""
    declared = tool.input_schema.get("properties", {})
    if len(declared) != 1:
        return arguments
    ((name, schema),) = declared.items()
    is_text = is_mapping(schema) and schema.get("type") == "string"
    value = arguments.get(name)
    return value if is_text and set(arguments) == {name} and isinstance(value, str) else arguments


# Results


def _checked_output(call: Call, reply: Reply) -> Reply | Failed:
    """Return the reply if its data is what the tool has declared."""
    violations = call.compiled.check_output(reply.data)
    if not violations:
        return reply
    first, *others = violations
    more = f" (and {len(others)} more)" if others else ""
    return Failed(
        FailureKind.OUTPUT_MISMATCH,
        f'tool "{call.tool.name}" returned what its output schema does not allow: {first}{more}',
        details={"violations": [violation.as_json() for violation in violations]},
    )
