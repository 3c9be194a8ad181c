"""The program that evaluates expressions, one after another, for the host that started it.

Run by path as ``python -I -S -B worker.py MEMORY_BYTES IDLE_SECONDS FOLDER``, where FOLDER holds starlark; uses that
and the standard library alone. What a text does, it does to this process alone. It has standard input and output, can
open nothing else, and ends

    when a text takes more memory or processor time than it may: the kernel sees to that;
    when its host closes its standard input or dies, even in the middle of a text: the kernel sees to that as well.

It ends by itself when nothing has been asked of it for IDLE_SECONDS, with status 0. Each message is one line:

    host → worker   {"check": text, "names": […]}           may this be evaluated? It is compiled, and not run
                    {"text": …, "names": {…}, "steps": …, "depth": …, "output_bytes": …, "seconds": …}
                                                             what is it? Each name has its value as a text of JSON
    worker → host   ready
                    =VALUE                                   as JSON; for a check, null
                    !{"kind": …, "message": …, "line": …, "column": …}
                                                             why not; line and column in the text, or null

No answer and status 70: out of memory, as far as that can still be said. A text may also end it by a signal.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import re
import resource
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlark import AstModule, Dialect, Globals, Module

OUT_OF_MEMORY = 70
BROKEN = 71
# Nobody writes these by accident, and Starlark offers them to nobody who has written something like them.
RESULT = "the_result_of_this_expression"
ENCODED = "what_json_makes_of_that"
FAULT = "what_json_has_left_out"
# An error's text may quote a value; this much of it is enough.
MESSAGE_CHARS = 500
# What Starlark says of memory when it panics: there is no more, or no value may be so large.
NO_ROOM = ("out of memory", "AlignedSize")
# How often Starlark asks whether it is to go on.
STEPS_AT_ONCE = 1000
# 16 MiB: Starlark goes through a value by calls inside of calls, and has to come to the depth that JSON may have,
# whatever the host was started with. At 128 deep that takes 3 MiB.
STACK_BYTES = 16 * 1024 * 1024
PLACE = re.compile(r"\n +--> [ei]:(\d+):(\d+)\n")

# Starlark's own encoder turns infinities into null, and some keys into strings. So the value is looked through.
ENCODE = f"""
def fault_in(waiting):
    for _ in range(2147483647):
        if not waiting:
            return ""
        item = waiting.pop()
        kind = type(item)
        if kind == "list" or kind == "tuple":
            waiting.extend(item)
        elif kind == "dict":
            for key in item:
                if type(key) != "string":
                    return "an object with a key that is no string"
            waiting.extend(item.values())
        elif kind == "float" and item - item != 0.0:
            return "a number that is infinite, or none at all"
    return ""

{ENCODED} = json.encode({RESULT})
{FAULT} = fault_in([{RESULT}])
"""


class Failure(Exception):
    """Why there is no value."""

    def __init__(self, kind: str, message: str, line: int | None = None, column: int | None = None) -> None:
        self.told: dict[str, str | int | None] = {
            "kind": kind,
            "message": message[:MESSAGE_CHARS],
            "line": line,
            "column": column,
        }
        super().__init__(message)


def main() -> None:
    """Serve; when that cannot go on, end without another word."""
    try:
        run()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:  # noqa: BLE001 - Starlark panics with an exception of its own, and cannot go on
        os._exit(OUT_OF_MEMORY if any(words in str(error) for words in NO_ROOM) else BROKEN)


def run() -> None:
    """Say that this is ready, or why not, and serve."""
    memory_bytes, idle_seconds, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    try:
        confine(memory_bytes)
        sys.path.append(folder)
        language()
        encoder()
        # The three that are open stay so; there will be no fourth.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    except (OSError, ValueError, ImportError, AttributeError) as error:
        said = f"the host cannot evaluate expressions within limits here: {type(error).__name__}: {error}"
        say(b"!", Failure("lost", said).told)
        return
    say(b"ready", None)
    serve(idle_seconds)


def confine(memory_bytes: int) -> None:
    """Give up what no text needs, before anything is read."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(
        resource.RLIMIT_STACK, (STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard), hard)
    )
    allow_seconds(10)
    # SIGIO ends us, whatever the host does with its own.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())


def allow_seconds(seconds: float) -> None:
    """Let the kernel end us when the processor has been used for longer from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def serve(idle_seconds: float) -> None:
    """Answer until nothing more comes."""
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    while waiting.poll(idle_seconds * 1000):
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):
            return
        request = json.loads(line)
        allow_seconds(request["seconds"])
        die_with_host(waiting, on=True)
        try:
            mark, answer = b"=", encoded_check(request) if "check" in request else encoded_result(request)
        except Failure as failure:
            mark, answer = b"!", json.dumps(failure.told)
        die_with_host(waiting, on=False)
        sys.stdout.buffer.write(mark + answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def die_with_host(waiting: select.poll, *, on: bool) -> None:
    """Have the kernel end us, in whatever we are, when something happens to standard input: nothing should."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)
    if on and waiting.poll(0):  # it had happened before
        os._exit(BROKEN)


def say(mark: bytes, told: object) -> None:
    """Write a line."""
    sys.stdout.buffer.write(mark + (b"" if told is None else json.dumps(told).encode()) + b"\n")
    sys.stdout.buffer.flush()


@functools.cache
def language() -> tuple[Dialect, Globals]:
    """Return what a text may be, expressions alone, and what it finds there: Starlark's own functions, without I/O."""
    from starlark import Dialect, Globals

    dialect = Dialect.standard()
    dialect.enable_def = False
    dialect.enable_load = False
    dialect.enable_top_level_stmt = False
    return dialect, Globals.standard()


# Checking


def encoded_check(request: dict[str, Any]) -> str:
    """Compile a text without evaluating it; return null."""
    from starlark import Module, StarlarkError, eval, parse  # noqa: A004 - it is called that

    text = request["check"]
    refuse_unbalanced(text)
    dialect, functions = language()
    module = Module()
    for name in request["names"]:
        module[name] = None
    try:
        eval(module, parse("e", f"{RESULT} = lambda: (\n{text}\n)", dialect), functions)
    except StarlarkError as error:
        raise failure_of(error) from None
    return "null"


def refuse_unbalanced(text: str) -> None:
    """Refuse what is no single expression: only that stands in brackets of either kind."""
    from starlark import StarlarkError, parse

    dialect, _ = language()
    failures: list[Failure] = []
    for opening, closing in ("()", "[]"):
        try:
            parse("e", f"{opening}\n{text}\n{closing}", dialect)
        except StarlarkError as error:
            failures.append(failure_of(error))
    if not failures:
        return
    lines = text.split("\n")
    end = (len(lines), len(lines[-1]))
    for failure in failures:
        line, column = failure.told["line"], failure.told["column"]
        if isinstance(line, int) and isinstance(column, int) and (line, column) <= end:
            raise failure
    # All were seen behind the text, at our own bracket.
    raise Failure("raised", "the expression ends before it is complete", end[0], end[1] + 1)


# Evaluating


def encoded_result(request: dict[str, Any]) -> str:
    """Return the value of a text as JSON."""
    from starlark import StarlarkError, eval  # noqa: A004 - it is called that

    module = evaluated(request)
    try:
        eval(module, *encoder())
    except StarlarkError as error:
        raise Failure("result", unsayable(failure_of(error))) from None
    if fault := module[FAULT]:
        raise Failure("result", f"holds {fault}")
    encoded, most = str(module[ENCODED]), request["output_bytes"]
    size = len(encoded.encode())
    if size > most:
        raise Failure("too_large", f"the expression's result takes {size:,} bytes; it may take {most:,}")
    return encoded


@functools.cache
def encoder() -> tuple[AstModule, Globals]:
    """Return what makes JSON of a result, and what it needs; no text sees that."""
    from starlark import Dialect, Globals, LibraryExtension, parse

    return parse("i", ENCODE, Dialect.standard()), Globals.extended_by([LibraryExtension.Json])


def evaluated(request: dict[str, Any]) -> Module:
    """Evaluate a text, and return the module that holds its value."""
    from starlark import EvalOptions, Module, StarlarkError, eval_with, parse

    dialect, functions = language()
    module = Module()
    for name, value in request["names"].items():
        module[name] = json.loads(value)
    steps, most = 0, int(request["steps"])

    def is_over() -> bool:
        nonlocal steps
        steps += STEPS_AT_ONCE
        return steps > most

    options = EvalOptions(check_cancelled=is_over, max_callstack_size=request["depth"])
    try:
        eval_with(options, module, parse("e", f"{RESULT} = (\n{request['text']}\n)", dialect), functions)
    except StarlarkError as error:
        if steps > most:
            raise Failure("steps", f"the expression takes more than {most:,} steps") from None
        raise failure_of(error, depth=request["depth"]) from None
    return module


# What Starlark says


def failure_of(error: Exception, depth: int = 0) -> Failure:
    """Return what an error says, without the text that it quotes."""
    said = str(error)
    place = PLACE.search(said)
    said = said if place is None else said[: place.start()]
    if not said.startswith("error: "):  # the calls that led there come first
        said = said.partition("\nerror: ")[2] or said
    said = said.removeprefix("error: ").removeprefix("Parse error: ").partition(", expected one of ")[0]
    if said.startswith("Starlark call stack overflow"):
        return Failure("depth", f"the expression makes calls inside of calls, more than {depth} deep")
    if place is None:
        return Failure("raised", said)
    return Failure("raised", said, int(place[1]) - 1, int(place[2]))  # the first line is ours


def unsayable(failure: Failure) -> str:
    """Return what it is in a value that JSON cannot say, from Starlark's words for that."""
    said = str(failure)
    if "on type `" in said:
        return f"holds a {said.partition('on type `')[2].rstrip('`')}, which JSON cannot say"
    return "holds itself" if "Cycle" in said else "holds an object with a key that is no string"


if __name__ == "__main__":
    main()
