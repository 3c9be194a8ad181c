"""Sidecars: ``NAME.tool.yaml``, ``.tool.yml`` or ``.tool.json`` beside an executable says what it takes and gives.

One file is one tool, and every key is optional; files of several tools are for `heddle.tools.manifests`. All problems
of a file are reported at once, each with its line. Reading a sidecar runs nothing: a rule that is written as text is
compiled, in a process of heddle's own.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from heddle.errors import DefinitionError
from heddle.limits import Limits
from heddle.results import Retry, SideEffects
from heddle.tools.definition import ENVIRONMENT_NAME, TOOL_NAME, FieldDef, Program, Rule, ToolDef, Validation
from heddle.tools.documents import excerpt, load_document, reason_of, shown
from heddle.tools.sections import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from heddle.strictjson import JSON
    from heddle.tools.documents import Document

__all__ = [
    "RETRIES",
    "SIDECAR_ENDINGS",
    "SIDE_EFFECTS",
    "fields_of",
    "found_on_path",
    "has_actions",
    "limits_of",
    "load_sidecar",
    "names_of_variables",
    "sidecar_stem",
    "tool_of",
    "validation_of",
]

SIDECAR_ENDINGS = (".tool.yaml", ".tool.yml", ".tool.json")

_KEYS = (
    *("name", "title", "description", "input", "inputSchema", "output", "outputSchema", "protocol", "process"),
    *("limits", "sideEffects", "retry", "validate", "annotations", "revision", "sandbox", "reconcile", "extensions"),
)
_FIELD_KEYS = tuple(attribute.name for attribute in attrs.fields(FieldDef))
_PROTOCOLS: tuple[Literal["plain", "envelope"], ...] = ("plain", "envelope")
_NETWORKS: tuple[Literal["host", "none"], ...] = ("host", "none")
SIDE_EFFECTS: tuple[SideEffects, ...] = get_args(SideEffects)
RETRIES: tuple[Retry, ...] = get_args(Retry)


def sidecar_stem(name: str) -> str | None:
    """Return what a sidecar's file name says before its ending; None for a file that is no sidecar."""
    for ending in SIDECAR_ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    return None


def has_actions(value: JSON) -> bool:
    """Return whether a document describes several tools, or is meant to."""
    return isinstance(value, dict) and ("actions" in value or "schemaVersion" in value)


def load_sidecar(path: Path, same_stem: Sequence[Path]) -> ToolDef:
    """Return the tool that a sidecar describes.

    Its program is ``process.executable``: a path (relative ones start at the sidecar's folder), the name of a file
    beside the sidecar, or a command that is found on ``PATH`` now; without the key, the first executable of
    `same_stem`. In ``process.args`` an argument that is the relative path of a regular file in the sidecar's folder
    becomes that file's absolute path, whatever directory the tool will run in; any other is passed as it is.

    Args:
        path: The sidecar; absolute, so that what it names is found from any working directory.
        same_stem: The other files beside it that have its stem, the preferred one first.

    Raises:
        BrokenDocument: Every problem of the file, each with its line; or it describes several tools.
    """
    document = load_document(path, what="sidecar")
    if has_actions(document.value):
        top = Section.of(document)
        top.refuse("it describes a tool for each of its actions: read its folder with discover_tools", "actions")
        top.raise_problems()
    return tool_of(document, same_stem)


def tool_of(document: Document, same_stem: Sequence[Path], *, closely: bool = False) -> ToolDef:
    """Return the tool that a document describes; see `load_sidecar`.

    Args:
        document: Its path is absolute.
        same_stem: The other files beside it that have its stem, the preferred one first.
        closely: Report what is wrong with the schemas as well, which registration would find later and one at a time.

    Raises:
        BrokenDocument: Every problem of the file, each with its line.
    """
    top, path = Section.of(document), document.path
    top.refuse_unknown(_KEYS)
    described: dict[str, Any] = {
        "name": _name(top, path),
        "title": top.text("title", None),
        "description": top.text("description", ""),
        "side_effects": top.word("sideEffects", SIDE_EFFECTS, "unknown"),
        "retry": top.word("retry", RETRIES, "manual"),
        "reconcile": top.text("reconcile", None),
        "annotations": top.mapping("annotations"),
        "revision": top.text("revision", "0"),
        "limits": limits_of(top),
        "validation": validation_of(top),
        "implementation": _program(top, path, same_stem),
        "origin": shown(path),
    }
    schemas = _Schemas.of(top)
    if closely:
        from heddle.tools.precheck import refuse_uncompilable

        refuse_uncompilable(top, "inputSchema", "object")
        refuse_uncompilable(top, "outputSchema", "any")
    top.raise_problems()
    return schemas.tool(described)


@attrs.frozen
class _Schemas:
    """What a sidecar says of arguments and data, in either form."""

    input_fields: Mapping[str, FieldDef] | None
    input_schema: Mapping[str, Any] | None
    output_fields: Mapping[str, FieldDef] | None
    output_schema: Mapping[str, Any] | bool | None

    @classmethod
    def of(cls, top: Section) -> _Schemas:
        for key in ("input", "output"):
            if key in top.value and f"{key}Schema" in top.value:
                top.refuse(f"{key} and {key}Schema say the same in two ways; keep one", f"{key}Schema")
        allows = top.value.get("outputSchema")
        return cls(
            fields_of(top, "input"),
            top.mapping("inputSchema"),
            fields_of(top, "output"),
            allows if isinstance(allows, bool) else top.mapping("outputSchema"),
        )

    def tool(self, described: dict[str, Any]) -> ToolDef:
        """Return the tool. The short form of the arguments decides how they are judged."""
        if self.input_fields is not None:
            tool = ToolDef.from_fields(**described, input=self.input_fields)
        elif self.input_schema is not None:
            tool = ToolDef(**described, input_schema=self.input_schema)
        else:
            tool = ToolDef(**described)
        if self.output_fields is None:
            return attrs.evolve(tool, output_schema=self.output_schema)
        from heddle.tools.fields import schema_of

        return attrs.evolve(tool, output_schema=schema_of(self.output_fields), output_fields=self.output_fields)


def _name(top: Section, path: Path) -> str:
    stem = sidecar_stem(path.name) or path.stem
    name = top.text("name", stem)
    if not TOOL_NAME.fullmatch(name):
        rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        hint = "" if "name" in top.value else "; give it a name: in the sidecar"
        top.refuse(f'"{excerpt(name)}" cannot be a tool\'s name: {rule}{hint}', "name")
    return name


def fields_of(top: Section, key: str) -> Mapping[str, FieldDef] | None:
    """Return the fields under a key; None where there is none."""
    if key not in top.value:
        return None
    from heddle.tools.fields import fields_from_document

    fields: dict[str, FieldDef] = {}
    section = top.section(key)
    for name, declared in section.value.items():
        before = len(top.problems)
        for field in section.parts(name):
            _refuse_unknown_in(field)
        if len(top.problems) > before:
            continue
        try:
            fields.update(fields_from_document({name: declared}, where=key))
        except DefinitionError as error:
            section.refuse(str(error), name)
    return fields


def _refuse_unknown_in(field: Section) -> None:
    """Note the unknown keys of a field and of those inside it, each with its own line."""
    field.refuse_unknown(_FIELD_KEYS)
    for items in field.parts("items"):
        _refuse_unknown_in(items)
    for fields in field.parts("fields"):
        for nested in fields.parts(*fields.value):
            _refuse_unknown_in(nested)


def limits_of(top: Section) -> Limits | None:
    """Return the limits that a tool declares."""
    limits = top.section("limits")
    limits.refuse_unknown(("timeoutSeconds", "maxInputBytes", "maxResultBytes", "maxLogBytes"))
    if not limits.value:
        return None
    return Limits(
        wall_seconds=limits.seconds("timeoutSeconds"),
        stdin_bytes=limits.count("maxInputBytes"),
        stdout_bytes=limits.count("maxResultBytes"),
        stderr_bytes=limits.count("maxLogBytes"),
    )


def validation_of(top: Section) -> Validation:
    """Return how arguments are to be judged."""
    validate = top.section("validate")
    validate.refuse_unknown(("schema", "strict", "rules"))
    return Validation(
        schema=validate.flag("schema", default=True),
        strict=validate.flag("strict", default=False),
        rules=tuple(_rules(validate)),
    )


def _rules(validate: Section) -> Iterator[Rule]:
    for rule in validate.objects("rules"):
        rule.refuse_unknown(("name", "expr", "reason"))
        rule.require(("name", "expr"))
        name, text, reason = rule.full_text("name"), rule.full_text("expr"), rule.full_text("reason")
        if not text.strip():
            continue
        from heddle.expressions import Expression, predicate

        try:
            yield Rule(name, predicate(Expression.parse(text, names=("args",))), reason or name)
        except DefinitionError as error:
            rule.refuse(f"{rule.label('expr')}: {error}", "expr")


def _program(top: Section, path: Path, same_stem: Sequence[Path]) -> Program | None:
    process = top.section("process")
    process.refuse_unknown(("executable", "args", "inheritEnv"))
    inherit_env = names_of_variables(process, "inheritEnv")
    args = tuple(_argument(arg, path.parent) for arg in process.texts("args"))
    protocol: Literal["plain", "envelope"] = top.word("protocol", _PROTOCOLS, "plain")
    network = _network(top)
    executable = process.text("executable", None)
    if executable is None and "executable" in process.value:
        return None
    try:
        program = _same_stem(path, same_stem) if executable is None else _named(executable, path.parent)
    except DefinitionError as error:
        process.refuse(str(error), "executable")
        return None
    return None if process.problems else Program(program, args, protocol, inherit_env, network=network)


def names_of_variables(section: Section, key: str) -> tuple[str, ...]:
    """Return the names of environment variables in a list."""
    names = section.texts(key)
    for place, name in enumerate(names):
        if not ENVIRONMENT_NAME.fullmatch(name):
            section.refuse(f'"{excerpt(name)}" is not the name of an environment variable', key, place)
    return names


def _network(top: Section) -> Literal["host", "none"] | None:
    """Return what the tool asks for in a sandbox. Only less than the host's policy can be had by asking."""
    sandbox = top.section("sandbox")
    sandbox.refuse_unknown(("network",))
    if "network" not in sandbox.value:
        return None
    network: Literal["host", "none"] = sandbox.word("network", _NETWORKS, "host")
    return network


def _argument(arg: str, folder: Path) -> str:
    inside = not os.path.isabs(arg) and ".." not in Path(arg).parts
    return str(folder / arg) if inside and os.path.isfile(folder / arg) else arg


def _same_stem(path: Path, candidates: Sequence[Path]) -> Path:
    for candidate in candidates:
        if _fault(candidate) is None:
            return candidate
    for candidate in candidates:
        if os.path.isfile(candidate):
            raise DefinitionError(f"{shown(candidate.name)} beside it {_fault(candidate)}")
    stem = shown(sidecar_stem(path.name) or path.stem)
    raise DefinitionError(
        f'there is no executable beside it: neither "{stem}" nor "{stem}" with an ending; '
        "put it there, or name it in process.executable"
    )


def _named(executable: str, folder: Path) -> Path:
    beside = folder / executable
    is_command = os.path.basename(executable) == executable
    if executable and (not is_command or os.path.isfile(beside)):
        fault = _fault(beside)
        if fault is None:
            return beside
        raise DefinitionError(f"process.executable: {shown(beside)} {fault}")
    found = found_on_path(executable)
    if found is None:
        raise DefinitionError(f'process.executable: "{excerpt(executable)}" is neither beside the sidecar nor on PATH')
    return found


def found_on_path(command: str) -> Path | None:
    """Return the program that the host's ``PATH`` has under a name now."""
    found = shutil.which(command) if command and "\0" not in command else None
    return None if found is None else Path(found).absolute()


def _fault(program: Path) -> str | None:
    """Return what keeps a file from being started, as the end of a sentence."""
    try:
        mode = program.stat().st_mode
    except (OSError, ValueError) as error:
        return f"cannot be started: {reason_of(error)}"
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    if not mode & 0o111:
        return f"has no execute bit: chmod +x {shown(program.name)}"
    return None
