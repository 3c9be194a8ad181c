"""Manifests: one file describes several tools that share a process, limits and files, and each of them in full.

Nothing has a default, because a manifest is a promise to people who have not written it. All problems of a file are
reported at once, each with its line. Reading one reads the files that it lists, and runs nothing.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import attrs

from heddle import strictjson
from heddle.limits import Limits
from heddle.tools.definition import TOOL_NAME, Notice, Program, ToolDef
from heddle.tools.documents import excerpt, shown
from heddle.tools.inventory import Inventory
from heddle.tools.sections import Section
from heddle.tools.sidecars import RETRIES, SIDE_EFFECTS, found_on_path, names_of_variables, sidecar_stem
from heddle.tools.subset import refuse_beyond_subset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from heddle.tools.documents import Document

__all__ = ["Manifest", "manifest_of"]

_KEYS = ("schemaVersion", "id", "revision", "name", "description", "files", "process", "limits", "actions")
_ACTION_KEYS = ("id", "path", "name", "description", "inputSchema", "outputSchema", "execution", "sideEffects", "retry")
_LIMITS = ("timeoutSeconds", "maxInputBytes", "maxResultBytes", "maxLogBytes")
_EXECUTIONS: tuple[Literal["supported", "unsupported"], ...] = ("supported", "unsupported")

_SEGMENT = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_ID = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_ACTION_ID = re.compile(_SEGMENT)
_REVISION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}")
_SEGMENT_CHARACTERS = 64

# 256 actions, 256 files: ten times what the command line of a large service has.
_MOST_ACTIONS = 256
_MOST_FILES = 256
# 64 arguments of 4 KiB, 64 variables: far below what the system takes, far above what a program is started with.
_MOST_ARGUMENTS = 64
_ARGUMENT_BYTES = 4096
_MOST_VARIABLES = 64


@attrs.frozen
class Manifest:
    """What one manifest describes.

    Attributes:
        id: Of the whole; each tool is named after it and its own action.
        tools: One of each action, in their order.
        inventory: The files that belong to all of them.
        notices: What its author would want to know.
    """

    id: str
    tools: tuple[ToolDef, ...]
    inventory: Inventory
    notices: tuple[Notice, ...]


def manifest_of(document: Document, *, closely: bool = False) -> Manifest:
    """Return what a manifest describes.

    Args:
        document: Its path is absolute, so that what it lists is found from any working directory.
        closely: Report what is wrong with the schemas as well, which registration would find later and one at a time.

    Raises:
        BrokenDocument: Every problem of the file, each with its line.
    """
    top = Section.of(document)
    top.refuse_unknown((*_KEYS, "icon"))
    top.require(_KEYS)
    if top.count("schemaVersion") not in {None, 1}:
        top.refuse("schemaVersion must be 1, the only one there is", "schemaVersion")
    top.text("icon", None)
    top.full_text("name")
    top.full_text("description")
    shared = _Shared.of(top)
    sections = _actions(top)
    actions = [_Action.of(action, shared.id, closely=closely) for action in sections]
    _refuse_wrong_witnesses(sections)
    top.raise_problems()
    notices = [notice for action in actions for notice in action.notices]
    if "cwd" in top.section("process").value:
        notices.append(_notice(document, "ignored", "process.cwd is ignored: a tool works in its call's workspace"))
    content_hash = _content_hash(top, shared.inventory)
    tools = [action.tool(shared, content_hash=content_hash, origin=shown(document.path)) for action in actions]
    return Manifest(shared.id, tuple(tools), shared.inventory, tuple(notices))


@attrs.frozen
class _Shared:
    """What all tools of a manifest have in common."""

    id: str
    revision: str
    limits: Limits
    inventory: Inventory
    program: Program | None

    @classmethod
    def of(cls, top: Section) -> _Shared:
        inventory = _inventory(top)
        return cls(
            _id(top),
            _matching(
                top, "revision", _REVISION, "up to 64 letters, digits, '.', '+' and '-', not starting with a mark"
            ),
            _limits(top),
            inventory,
            _program(top, inventory),
        )


@attrs.frozen
class _Action:
    """What a manifest says of one tool."""

    id: str
    described: dict[str, Any]
    notices: tuple[Notice, ...]

    @classmethod
    def of(cls, action: Section, tool_id: str, *, closely: bool) -> _Action:
        action.refuse_unknown((*_ACTION_KEYS, "unsupportedReason", "reconcile"))
        action.require(_ACTION_KEYS)
        action_id = _action_id(action, tool_id)
        _path(action)
        described = {
            "title": action.full_text("name"),
            "description": action.full_text("description"),
            "input_schema": _schema(action, "inputSchema", closely=closely),
            "output_schema": _schema(action, "outputSchema", closely=closely),
            "side_effects": action.word("sideEffects", SIDE_EFFECTS, "unknown"),
            "retry": action.word("retry", RETRIES, "manual"),
            "reconcile": action.text("reconcile", "") or None,
            "unsupported_reason": _unsupported_reason(action),
        }
        return cls(action_id, described, _guarded(action, described))

    def tool(self, shared: _Shared, *, content_hash: str, origin: str) -> ToolDef:
        program = None
        if shared.program is not None and not self.described["unsupported_reason"]:
            program = attrs.evolve(shared.program, tool_id=shared.id, action=self.id)
        described = dict(self.described)
        if described["reconcile"] is not None:
            described["reconcile"] = f"{shared.id}.{described['reconcile']}"
        return ToolDef(
            name=f"{shared.id}.{self.id}",
            implementation=program,
            limits=shared.limits,
            revision=shared.revision,
            content_hash=content_hash,
            origin=origin,
            **described,
        )


# Names


def _matching(section: Section, key: str, pattern: re.Pattern[str], rule: str) -> str:
    text = section.text(key, "")
    if isinstance(section.value.get(key), str) and not pattern.fullmatch(text):
        section.refuse(f'{section.label(key)} cannot be "{excerpt(text)}": {rule}', key)
    return text


def _id(top: Section) -> str:
    rule = "lower-case letters and digits in parts joined by '.' and '-', like my-tools.user.text"
    found = _matching(top, "id", _ID, rule)
    if any(len(segment) > _SEGMENT_CHARACTERS for segment in found.split(".")):
        top.refuse(f"id has a part of more than {_SEGMENT_CHARACTERS} characters between its dots", "id")
    return found


def _action_id(action: Section, tool_id: str) -> str:
    found = _matching(action, "id", _ACTION_ID, "lower-case letters and digits in parts joined by '-', like word-count")
    if len(found) > _SEGMENT_CHARACTERS:
        action.refuse(f"{action.label('id')} has more than {_SEGMENT_CHARACTERS} characters", "id")
    elif _ACTION_ID.fullmatch(found) and _ID.fullmatch(tool_id) and not TOOL_NAME.fullmatch(f"{tool_id}.{found}"):
        action.refuse(
            f'{action.label("id")}: "{excerpt(tool_id)}.{found}" is too long for a tool: 128 characters', "id"
        )
    return found


# What tools share


def _limits(top: Section) -> Limits:
    limits = top.section("limits")
    if isinstance(top.value.get("limits"), dict):
        limits.refuse_unknown(_LIMITS)
        limits.require(_LIMITS)
    wall_seconds, stdin_bytes, stdout_bytes, stderr_bytes = map(limits.count, _LIMITS)
    return Limits(
        wall_seconds=wall_seconds, stdin_bytes=stdin_bytes, stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes
    )


def _inventory(top: Section) -> Inventory:
    """Read the files that a manifest lists."""
    files = top.objects("files")
    if len(files) > _MOST_FILES:
        top.refuse(f"files has {len(files)} entries; there may be {_MOST_FILES}", "files")
        files = []
    listed: dict[str, Section] = {}
    for file in files:
        file.refuse_unknown(("path", "executable"))
        file.require(("path",))
        file.flag("executable", default=False)
        name = _listed_name(file)
        if name in listed:
            file.refuse(f'{file.label("path")}: "{excerpt(name)}" is listed already', "path")
        elif name:
            listed[name] = file
    starts = {name: file.value.get("executable") is True for name, file in listed.items()}
    inventory, faults = Inventory.take(top.document.path.parent, starts)
    for name, fault in faults.items():
        listed[name].refuse(f'{listed[name].label("path")}: "{excerpt(name)}" {fault}', "path")
    return inventory


def _listed_name(file: Section) -> str:
    """Return the path of an entry without the ``./`` that it may begin with; an empty one when it cannot be listed."""
    text = file.text("path", "")
    if not isinstance(file.value.get("path"), str):
        return ""
    name = _plain(text)
    fault = _fault_of_name(name)
    if fault is not None:
        file.refuse(f'{file.label("path")} cannot be "{excerpt(text)}": {fault}', "path")
        return ""
    return name


def _fault_of_name(name: str) -> str | None:
    if not name:
        return "it is empty"
    if "\0" in name:
        return "it holds a NUL character"
    if name.startswith("/"):
        return "files are named from the manifest's folder, not from the root"
    if ".." in name.split("/"):
        return "it leaves the manifest's folder"
    if str(PurePosixPath(name)) != name:
        return f'write "{excerpt(str(PurePosixPath(name)))}"'
    if sidecar_stem(PurePosixPath(name).name) is not None:
        return "a manifest or a sidecar is no file of a tool"
    return None


def _plain(path: str) -> str:
    return path.removeprefix("./")


def _program(top: Section, inventory: Inventory) -> Program | None:
    """Return what is started for each action; None when it cannot be told."""
    process = top.section("process")
    if isinstance(top.value.get("process"), dict):
        process.refuse_unknown(("executable", "args", "inheritEnv", "cwd"))
        process.require(("executable", "args"))
    inherit_env = names_of_variables(process, "inheritEnv")
    args = process.texts("args")
    _refuse_many(process, inherit_env, args)
    path = _executable(top, process, inventory)
    if path is None or top.problems:
        return None
    names = {file.name for file in inventory.files}
    return Program(
        path,
        [str(inventory.folder / _plain(arg)) if _plain(arg) in names else arg for arg in args],
        "envelope",
        inherit_env,
        inventory=inventory,
    )


def _refuse_many(process: Section, variables: Sequence[str], args: Sequence[str]) -> None:
    for key, found, most in (("inheritEnv", variables, _MOST_VARIABLES), ("args", args, _MOST_ARGUMENTS)):
        if len(found) > most:
            process.refuse(f"{process.label(key)} has {len(found)} entries; there may be {most}", key)
    for place, arg in enumerate(args):
        if len(arg.encode()) > _ARGUMENT_BYTES:
            process.refuse(f"{process.label('args', place)} is longer than {_ARGUMENT_BYTES:,} bytes", "args", place)


def _executable(top: Section, process: Section, inventory: Inventory) -> Path | None:
    """Return what is started: a file of the inventory, or a command that is found on ``PATH`` now."""
    text = process.full_text("executable")
    if not text.strip():
        return None
    label = f'{process.label("executable")}: "{excerpt(text)}"'
    listed = {_plain(path): starts for path, starts in _listed(top)}
    if _plain(text) in listed:
        if not listed[_plain(text)]:
            process.refuse(f"{label} is listed in files without executable: true", "executable")
        return inventory.folder / _plain(text)
    if "/" in text:
        fix = "put it into files, with executable: true; or give the bare name of a command that is on PATH"
        process.refuse(f"{label} is not listed in files; {fix}", "executable")
        return None
    found = found_on_path(text)
    if found is None:
        process.refuse(
            f"{label} is neither listed in files nor a command on PATH; install it, or list it", "executable"
        )
    return found


def _listed(top: Section) -> list[tuple[str, bool]]:
    """Return the entries of files as they are written, and whether each is to be started."""
    files = top.value.get("files")
    entries = [entry for entry in files if isinstance(entry, dict)] if isinstance(files, list) else []
    return [(str(entry.get("path")), entry.get("executable") is True) for entry in entries]


# Actions


def _actions(top: Section) -> list[Section]:
    actions = top.objects("actions")
    if top.value.get("actions") == []:
        top.refuse("actions must not be empty: each is a tool", "actions")
    if len(actions) > _MOST_ACTIONS:
        top.refuse(f"actions has {len(actions)} entries; there may be {_MOST_ACTIONS}", "actions")
        return []
    for key in ("id", "path"):
        taken: dict[str, str] = {}
        for action in actions:
            if not action.value.get(key):
                continue
            first = taken.setdefault(repr(action.value[key]), action.label())
            if first != action.label():
                action.refuse(f"{action.label(key)} is the same as that of {first}; each needs its own", key)
    return actions


def _refuse_wrong_witnesses(actions: Sequence[Section]) -> None:
    """Refuse an action that is to tell what became of another and cannot, or might change something when asked."""
    known = {str(action.value.get("id")): action for action in actions}
    for action in actions:
        name = action.value.get("reconcile")
        if not isinstance(name, str):
            continue
        witness = known.get(name)
        if witness is None or witness is action:
            others = ", ".join(each for each in known if known[each] is not action) or "none"
            fault = f"it has to name another action of this manifest: {others}"
        elif witness.value.get("sideEffects") != "read":
            fault = "that action is not declared with sideEffects: read, and is asked without anybody's knowledge"
        elif witness.value.get("execution") == "unsupported":
            fault = "nothing runs that action"
        else:
            continue
        action.refuse(f'{action.label("reconcile")} cannot be "{excerpt(name)}": {fault}', "reconcile")


def _path(action: Section) -> None:
    """Check where an action stands in a catalogue; it says nothing of how it is run."""
    words = action.texts("path")
    if action.value.get("path") == []:
        action.refuse(f"{action.label('path')} must not be empty: give at least one word", "path")
    for place, word in enumerate(words):
        if not word.strip():
            action.refuse(f"{action.label('path', place)} must not be empty", "path", place)


def _schema(action: Section, key: str, *, closely: bool) -> dict[str, Any] | bool:
    value = action.value.get(key)
    if isinstance(value, bool) and key == "outputSchema":
        return value
    if key in action.value and not isinstance(value, dict):
        wanted = "a schema" if key == "inputSchema" else "a schema, true or false"
        action.refuse(f"{action.label(key)} must be {wanted}", key)
        return {}
    before = len(action.problems)
    for schema in action.parts(key):
        refuse_beyond_subset(schema)
    if closely and len(action.problems) == before:
        from heddle.tools.precheck import refuse_uncompilable

        refuse_uncompilable(action, key, "object" if key == "inputSchema" else "any")
    return dict(value) if isinstance(value, dict) else {}


def _unsupported_reason(action: Section) -> str:
    """Return why nothing runs an action; empty when something does."""
    execution = action.word("execution", _EXECUTIONS, "supported")
    label = action.label("unsupportedReason")
    reason = action.full_text("unsupportedReason")
    if execution == "unsupported" and "unsupportedReason" not in action.value:
        action.refuse(f"{label} is missing: say why execution is unsupported", "unsupportedReason")
    elif execution == "supported" and "unsupportedReason" in action.value and "execution" in action.value:
        action.refuse(f"{label} is for execution: unsupported; remove it, or say that", "unsupportedReason")
    return reason if execution == "unsupported" else ""


def _guarded(action: Section, described: dict[str, Any]) -> tuple[Notice, ...]:
    declared = (described["side_effects"], described["retry"])
    if declared != ("unknown", "idempotent") or described["unsupported_reason"]:
        return ()
    line = action.document.line_of(*action.steps, "retry")
    said = (
        f"line {line}: {action.label('retry')}: idempotent has no effect while sideEffects is unknown: a call that has "
        "failed may not simply be made again; declare sideEffects as read or write"
    )
    return (_notice(action.document, "guarded", said),)


def _notice(document: Document, code: str, message: str) -> Notice:
    return Notice(shown(document.path), code, message)


# The hash


def _content_hash(top: Section, inventory: Inventory) -> str:
    """Return what stands for exactly this manifest and these files, in whatever format and order they are written."""
    said: dict[str, Any] = dict(top.value)
    said["files"] = [[file.name, file.executable] for file in inventory.files]
    process: dict[str, Any] = dict(top.section("process").value)
    process["inheritEnv"] = sorted(set(process.get("inheritEnv", ())))
    process.pop("cwd", None)
    said["process"] = process
    said["actions"] = sorted(said["actions"], key=lambda action: str(action["id"]))
    contents = {file.name: file.digest for file in inventory.files}
    text = strictjson.canonical(said) + b"\n" + strictjson.canonical(contents)
    return f"sha256:{hashlib.sha256(text).hexdigest()}"
