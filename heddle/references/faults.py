"""What can be wrong with an environment file, in words that hold nothing of what stands to the right of an ``=``."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.strictjson import JSON

__all__ = [
    "LOOKUP_SECONDS",
    "MAX_ENTRIES",
    "MAX_FILE_BYTES",
    "MAX_LINE_BYTES",
    "MAX_OUTPUT_BYTES",
    "Fault",
    "FaultCode",
    "Unresolved",
]

KIB = 1024
# A line for each variable of every tool that there is, with comments. A file that is larger is another file.
MAX_FILE_BYTES = 64 * KIB
MAX_LINE_BYTES = 4 * KIB
MAX_ENTRIES = 256
# 32 KiB: a key with its certificates. The system takes 128 KiB for one variable.
MAX_OUTPUT_BYTES = 32 * KIB
# 10 s: a secret manager over a slow network, and a login shell that sets up everything there is.
LOOKUP_SECONDS = 10
# A message names so many faults; `Unresolved.faults` has all of them.
SHOWN_FAULTS = 10


class FaultCode(enum.StrEnum):
    """What is wrong; each compares equal to its text."""

    FILE_MISSING = "file_missing"
    RELATIVE_PATH = "relative_path"
    UNREADABLE = "unreadable"
    INSECURE_PERMISSIONS = "insecure_permissions"
    FILE_TOO_LARGE = "file_too_large"
    NOT_UTF8 = "not_utf8"
    NUL_BYTE = "nul_byte"
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_ENTRIES = "too_many_entries"
    MISSING_EQUALS = "missing_equals"
    EMPTY_NAME = "empty_name"
    INVALID_NAME = "invalid_name"
    DUPLICATE_NAME = "duplicate_name"
    RESERVED_NAME = "reserved_name"
    UNSAFE_NAME = "unsafe_name"
    EMPTY_VALUE = "empty_value"
    LITERAL_VALUE = "literal_value"
    QUOTED_VALUE = "quoted_value"
    MIXED_VALUE = "mixed_value"
    TRAILING_COMMENT = "trailing_comment"
    BAD_REFERENCE = "bad_reference"
    BACKTICKS = "backticks"
    ARITHMETIC = "arithmetic"
    EMPTY_COMMAND = "empty_command"
    UNTERMINATED = "unterminated"
    VARIABLE_UNSET = "variable_unset"
    SHELL_FAILED = "shell_failed"
    SHELL_TIMEOUT = "shell_timeout"
    COMMAND_FAILED = "command_failed"
    COMMAND_TIMEOUT = "command_timeout"
    COMMAND_NOT_UTF8 = "command_not_utf8"
    COMMAND_OUTPUT_TOO_LARGE = "command_output_too_large"
    COMMAND_OUTPUT_NUL = "command_output_nul"


# What was seen, and after the semicolon what to do.
_WHY: Final[Mapping[FaultCode, str]] = {
    FaultCode.FILE_MISSING: "there is no such file; create it, or name another one",
    FaultCode.RELATIVE_PATH: "it names a relative path; write an absolute one",
    FaultCode.UNREADABLE: "it cannot be read; make it a regular file that the host's user may read",
    FaultCode.INSECURE_PERMISSIONS: "it runs commands, and others than the host's user own it or may write it; "
    "chown it to that user, and chmod go-w it",
    FaultCode.FILE_TOO_LARGE: f"it is larger than {MAX_FILE_BYTES // KIB} KiB; keep nothing but references in it",
    FaultCode.NOT_UTF8: "here it is not UTF-8; save it as UTF-8",
    FaultCode.NUL_BYTE: "here it has a NUL byte; save it as UTF-8 text",
    FaultCode.LINE_TOO_LONG: f"the line has more than {MAX_LINE_BYTES // KIB} KiB; put the command into a script",
    FaultCode.TOO_MANY_ENTRIES: f"it has more than {MAX_ENTRIES} entries, and the rest was not read; remove some",
    FaultCode.MISSING_EQUALS: "the line has no '='; write NAME=${NAME} or NAME=$(command)",
    FaultCode.EMPTY_NAME: "nothing stands before the '='; write NAME=${NAME} or NAME=$(command)",
    FaultCode.INVALID_NAME: "what stands before the '=' is no name; it has letters, digits and '_' alone, "
    "without 'export' and without spaces",
    FaultCode.DUPLICATE_NAME: "an earlier line has the same name; keep one of them",
    FaultCode.RESERVED_NAME: "every tool gets this one from the host; set it where the host is started",
    FaultCode.UNSAFE_NAME: "this one changes how programs are loaded, or is heddle's own; "
    "no tool gets it from here, so remove the line",
    FaultCode.EMPTY_VALUE: "nothing stands after the '='; write ${NAME} or $(command)",
    FaultCode.LITERAL_VALUE: "the value itself stands here; keep it elsewhere, and write ${NAME} or $(command)",
    FaultCode.QUOTED_VALUE: "the value is in quotes; write ${NAME} or $(command) without them",
    FaultCode.MIXED_VALUE: "there is more than one reference, or other text beside it; write exactly one, and put "
    "the rest into a command",
    FaultCode.TRAILING_COMMENT: "a comment follows the reference; give it a line of its own",
    FaultCode.BAD_REFERENCE: "the reference is neither ${NAME} nor $(command); nothing but a name stands in ${}",
    FaultCode.BACKTICKS: "the command is in backticks; write $(command)",
    FaultCode.ARITHMETIC: "this is arithmetic; write $(command), and for a subshell a space after the first '('",
    FaultCode.EMPTY_COMMAND: "no command stands in $(); write one",
    FaultCode.UNTERMINATED: "the reference is not closed on its line; close it, and any quote in it",
    FaultCode.VARIABLE_UNSET: "the variable that it refers to is not set in the login shell of the host's user; "
    "export it in the shell's startup files",
    FaultCode.SHELL_FAILED: "the login shell of the host's user gave no answer; "
    "see to it that `$SHELL -i -l -c env` works without a terminal",
    FaultCode.SHELL_TIMEOUT: "the login shell of the host's user did not answer in time; "
    "look for what waits in its startup files",
    FaultCode.COMMAND_FAILED: "the command failed; run it by hand, without a terminal",
    FaultCode.COMMAND_TIMEOUT: "the command did not end in time; run it by hand, without a terminal",
    FaultCode.COMMAND_NOT_UTF8: "the command's output is not UTF-8; have it print text",
    FaultCode.COMMAND_OUTPUT_TOO_LARGE: f"the command printed more than {MAX_OUTPUT_BYTES // KIB} KiB; "
    "have it print the value alone",
    FaultCode.COMMAND_OUTPUT_NUL: "the command's output has a NUL byte, which no variable can hold; have it print text",
}


@attrs.frozen
class Fault:
    """One thing that keeps variables from tools. It holds no value, no command and no output of one.

    Attributes:
        code: What is wrong.
        file: The file as it may be shown: a host's folders are nobody's business.
        line: Counted from 1; 0 is the whole file.
        name: The variable, where the line gives it a valid name; empty otherwise.
        seen: More of what was seen: ``exit status 3``.
    """

    code: FaultCode
    file: str
    line: int = 0
    name: str = ""
    seen: str = ""

    @property
    def why(self) -> str:
        """What was seen, and what to do."""
        what, _, remedy = _WHY[self.code].partition("; ")
        return f"{what}{f' ({self.seen})' if self.seen else ''}; {remedy}"

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        name = f", {self.name}" if self.name else ""
        return f"{self.file}{line}{name}: {self.why} [{self.code}]"

    def as_json(self) -> dict[str, JSON]:
        """Return it as JSON."""
        return {"file": self.file, "line": self.line, "name": self.name, "code": str(self.code), "message": self.why}


@attrs.frozen
class Unresolved:
    """Variables that a tool lists and cannot be given, because of these faults. The tool was not started.

    Attributes:
        faults: At least one, in the order of the file.
    """

    faults: tuple[Fault, ...]

    @property
    def code(self) -> FaultCode:
        """The first fault's."""
        return self.faults[0].code

    def __str__(self) -> str:
        shown = ". ".join(str(fault) for fault in self.faults[:SHOWN_FAULTS])
        more = len(self.faults) - SHOWN_FAULTS
        rest = f". And {more} more" if more > 0 else ""
        return f"{shown}{rest}. Mend it and restart the host, which looks once"

    def as_json(self) -> list[JSON]:
        """Return every fault as JSON."""
        return [fault.as_json() for fault in self.faults]
