"""What can be called: `ToolDef` and the values that it is made of. Frozen, and free of any machinery."""

from __future__ import annotations

import abc
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import attrs

from heddle.errors import DefinitionError
from heddle.limits import PROCESS_LIMITS, Limits
from heddle.results import Retry, SideEffects
from heddle.strictjson import JSON
from heddle.tools.inventory import Inventory

if TYPE_CHECKING:
    from typing import Self

    from heddle.expressions import Expression
    from heddle.results import Failed, ToolResult


__all__ = [
    "TOOL_NAME",
    "UNSET",
    "Composed",
    "FieldDef",
    "Function",
    "Implementation",
    "Notice",
    "Program",
    "Rule",
    "ToolContext",
    "ToolDef",
    "Validation",
    "Violation",
    "Visit",
    "refuse_process_limits",
]

T = TypeVar("T")

# 128 characters: what the Model Context Protocol lets a tool's name have.
TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Unset(enum.Enum):
    """The type of `UNSET`."""

    UNSET = enum.auto()

    def __repr__(self) -> str:
        return "UNSET"


# Says that a field has no default: None is one.
UNSET: Final = Unset.UNSET


@attrs.frozen
class Violation:
    """One way in which a value breaks its schema.

    Attributes:
        path: Where: ``address.city``, ``tags[2]``; empty for the value as a whole.
        rule: The schema keyword or the rule's name.
        message: What must hold and what was seen instead.
    """

    path: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def as_json(self) -> dict[str, JSON]:
        """Return it as it stands in ``details["violations"]``."""
        return {"path": self.path, "rule": self.rule, "message": self.message}


@attrs.frozen
class Notice:
    """Something that was left out or shadowed, and why.

    Attributes:
        path: The file or the name it is about.
        code: A word for programs: ``not_executable``, ``name_taken``, ``shadowed``.
        message: The reason, and what to do.
    """

    path: str
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@attrs.frozen
class FieldDef:
    """One field of an argument object, in the short form that a person writes.

    Attributes:
        type: ``string``, ``number``, ``integer``, ``boolean``, ``object`` or ``array``. Any other word (``date``,
            ``email``) lets every value pass and is published as a string's format where there is one.
        default: Filled in where the field is absent. `UNSET` means that there is none.
        enum: The values that may be given, compared as JSON.
        fields: What an ``object`` holds.
        items: What each element of an ``array`` is.
    """

    type: str
    description: str = ""
    required: bool = False
    default: JSON | Unset = attrs.field(default=UNSET, hash=False)
    enum: Sequence[JSON] | None = attrs.field(default=None, hash=False)
    fields: Mapping[str, FieldDef] | None = attrs.field(default=None, hash=False)
    items: FieldDef | None = None


@attrs.frozen
class Rule:
    """One rule over all arguments of a call, checked after the schema.

    Attributes:
        check: Gets the arguments; a false result or an exception is a violation. It is asked in a thread where it has
            ``waits = True``, and else must not wait for anything.
        reason: What the caller reads then.
    """

    name: str
    check: Callable[[Mapping[str, JSON]], object]
    reason: str


def _rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(rules)


@attrs.frozen(kw_only=True)
class Validation:
    """How arguments are judged.

    Attributes:
        schema: Whether arguments are checked against the input schema at all. Defaults are filled in either way.
        dialect: ``json-schema``, or ``fields`` for the lenient reading of `FieldDef`.
        strict: With ``fields``: a number with a fraction is no ``integer``.
        rules: Checked in order, after the schema, when it holds.
    """

    schema: bool = True
    dialect: Literal["json-schema", "fields"] = attrs.field(
        default="json-schema", validator=attrs.validators.in_(("json-schema", "fields"))
    )
    strict: bool = False
    rules: tuple[Rule, ...] = attrs.field(default=(), converter=_rules)


def _program_arguments(args: Sequence[str]) -> tuple[str, ...]:
    return tuple(args)


def _no_nul(_instance: object, attribute: attrs.Attribute[Any], value: Path | tuple[str, ...]) -> None:
    texts = (str(value),) if isinstance(value, Path) else value
    if any("\0" in text for text in texts):
        raise DefinitionError(f"a program's {attribute.name} cannot hold a NUL character: {value!r}")


def _variable_names(_instance: object, _attribute: attrs.Attribute[Any], value: tuple[str, ...]) -> None:
    for name in value:
        if not ENVIRONMENT_NAME.fullmatch(name):
            raise DefinitionError(f"{name!r} is not the name of an environment variable")


@attrs.frozen
class Program:
    """A tool that is an executable file.

    Attributes:
        path: The file. It is started as it is, never through a shell.
        args: Fixed arguments; a call's arguments come on standard input.
        protocol: ``plain``: arguments in, one object out, where printing nothing is the empty object. ``envelope``: a
            request in, ``{"ok": …}`` out.
        inherit_env: Names of variables that the tool asks for; the host's `Environment` decides.
        tool_id: For the envelope; the tool's name where it is None.
        action: For the envelope; the tool's name where it is None.
        network: What it asks for in a sandbox: with ``none`` it has no network even where the host's policy has one.
            ``host`` says that it needs one; it is given none that the policy does not give.
        inventory: The files that belong to it. It is not started while one of them is not what it was when the
            inventory was taken.
    """

    path: Path = attrs.field(converter=Path, validator=_no_nul)
    args: tuple[str, ...] = attrs.field(default=(), converter=_program_arguments, validator=_no_nul)
    protocol: Literal["plain", "envelope"] = attrs.field(
        default="plain", validator=attrs.validators.in_(("plain", "envelope"))
    )
    inherit_env: tuple[str, ...] = attrs.field(default=(), converter=_program_arguments, validator=_variable_names)
    tool_id: str | None = None
    action: str | None = None
    network: Literal["host", "none"] | None = attrs.field(
        default=None, kw_only=True, validator=attrs.validators.in_((None, "host", "none"))
    )
    inventory: Inventory | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class Function:
    """A tool that is a Python function of the host.

    An ``async def`` is awaited where it is called; any other function runs in a thread.

    Attributes:
        function: Called with keyword arguments.
        prepare: Turns checked arguments into keyword arguments; they are passed as they are where it is None.
        finish: Turns the result into JSON values; `attrs` classes and dataclasses become objects where it is None.
        context: The parameter that takes the `ToolContext`, if any.
        wrap: Whether the result is put under ``result``. None: when it is no object.
    """

    function: Callable[..., Any]
    prepare: Callable[[dict[str, JSON]], dict[str, Any]] | None = None
    finish: Callable[[Any], object] | None = None
    context: str | None = None
    wrap: bool | None = None

    @property
    def is_async(self) -> bool:
        """Whether calling the function gives something to await."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


class Visit(Protocol):
    """What a call offers to a `Composed` implementation while it runs."""

    async def call(self, tool: str, arguments: Mapping[str, object], step: str) -> ToolResult:
        """Have a tool called as a part of this call, in the same scope, with the whole walk of a call of its own.

        Args:
            tool: Its name; any of the runner's.
            arguments: What it is given.
            step: Where in the implementation that is: the same place has the same operation when it is tried again.
        """
        ...

    def describe(self, tool: str) -> str:
        """Return what a tool is for; empty where there is none, or it does not say."""
        ...

    async def evaluate(self, expression: Expression, names: Mapping[str, JSON]) -> JSON:
        """Return what an expression comes to; it raises `heddle.expressions.ExpressionFailed`."""
        ...

    async def perform(self, function: Callable[[T], object], argument: T) -> object | Failed:
        """Return what a function of the host returns, or the failure of one that raises.

        If there is something to await, it is awaited where the host's functions are. The call has started then, as if a
        tool had.
        """
        ...


class Composed(abc.ABC):
    """A tool that starts nothing itself, and has other tools called: `heddle.Pipeline` is one."""

    @property
    @abc.abstractmethod
    def targets(self) -> frozenset[str]:
        """The names of the tools that it may have called."""

    @abc.abstractmethod
    async def run(self, tool: str, body: JSON, visit: Visit) -> JSON | Failed:
        """Return what it makes of its arguments, or why it could not.

        Args:
            tool: The name under which it was called.
            body: The arguments, its own to change.
            visit: What the call offers.
        """


Implementation: TypeAlias = Program | Function | Composed


@attrs.frozen
class ToolContext:
    """What a Python tool may know of its call. Annotate a parameter with it; it is not published.

    Attributes:
        operation_id: The intended effect; the same when the call is tried again. Use it to recognise a repeat.
        attempt_id: This try.
    """

    operation_id: str
    attempt_id: str
    _open_workspace: Callable[[], Path] = attrs.field(alias="open_workspace", repr=False)

    @property
    def workspace(self) -> Path:
        """The directory of the scope; made when it is first asked for."""
        return self._open_workspace()


def _tool_name(_instance: object, _attribute: attrs.Attribute[str], name: object) -> None:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r} cannot be a tool's name: up to 128 letters, digits, '_', '-' and '.', "
            "not starting with '-' or '.'"
        )


def _one_of(alias: object) -> Callable[[object, attrs.Attribute[Any], object], None]:
    allowed = get_args(alias)

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            words = " or ".join(repr(word) for word in allowed)
            raise DefinitionError(
                f'tool "{getattr(instance, "name", "")}": {attribute.name} must be {words}, not {value!r}'
            )

    return check


def _any_object() -> dict[str, JSON]:
    return {"type": "object"}


@attrs.frozen(kw_only=True)
class ToolDef:
    """A tool: what a caller sees of it, what judges a call, and what runs it.

    Attributes:
        name: `TOOL_NAME`; how the tool is called.
        input_schema: JSON Schema 2020-12 of the arguments, an object's. Checked when the tool is registered.
        output_schema: What a result's data must be; None lets everything pass.
        implementation: None: declared only; calling it is ``unsupported``.
        side_effects: ``read``, ``write`` or ``unknown``.
        retry: ``idempotent`` when a second run does what the first one did, else ``manual``.
        reconcile: The name of a tool that only reads and can tell what became of an operation of this one. A journal
            has it asked, with ``{"operationId": …}``; it answers ``{"outcome": "happened", "data": …}``, or
            ``did_not_happen``, or ``unknown``.
        limits: What the tool needs; cut by the runner's ceiling.
        annotations: Hints for clients, passed on as they are.
        revision: A label for exactly this behaviour.
        content_hash: Of the manifest and the files that it lists: ``sha256:…``; empty for a tool without a manifest.
        unsupported_reason: Why there is no implementation, for those who call it all the same.
        origin: Where the definition comes from: a file, a module.
        input_fields: The arguments in field form, for the ``fields`` dialect.
        output_fields: The result in field form.
    """

    name: str = attrs.field(validator=_tool_name)
    description: str = ""
    title: str | None = None
    input_schema: Mapping[str, Any] = attrs.field(factory=_any_object, hash=False)
    output_schema: Mapping[str, Any] | bool | None = attrs.field(default=None, hash=False)
    implementation: Implementation | None = attrs.field(default=None, hash=False)
    side_effects: SideEffects = attrs.field(default="unknown", validator=_one_of(SideEffects))
    retry: Retry = attrs.field(default="manual", validator=_one_of(Retry))
    reconcile: str | None = None
    limits: Limits | None = None
    validation: Validation = attrs.field(factory=Validation, hash=False)
    annotations: Mapping[str, Any] | None = attrs.field(default=None, hash=False)
    revision: str = "0"
    content_hash: str = ""
    unsupported_reason: str = ""
    origin: str = ""
    input_fields: Mapping[str, FieldDef] | None = attrs.field(default=None, hash=False)
    output_fields: Mapping[str, FieldDef] | None = attrs.field(default=None, hash=False)

    @classmethod
    def from_fields(
        cls,
        name: str,
        description: str = "",
        *,
        input: Mapping[str, FieldDef] | None = None,  # noqa: A002 - the word of the form itself
        output: Mapping[str, FieldDef] | None = None,
        validation: Validation | None = None,
        **rest: Any,
    ) -> Self:
        """Return a tool whose arguments are declared field by field; its schemas are derived from them.

        Args:
            name: The tool's name.
            description: What it is for.
            input: The arguments by name, in the order in which they are checked.
            output: What the result holds; None lets everything pass.
            validation: Its dialect is always ``fields``.
            rest: Any other attribute of `ToolDef`.

        Raises:
            DefinitionError: A field is not well formed; it is named.
        """
        from heddle.tools.fields import schema_of

        return cls(
            name=name,
            description=description,
            input_schema=schema_of(input or {}),
            output_schema=None if output is None else schema_of(output),
            validation=attrs.evolve(validation or Validation(), dialect="fields"),
            input_fields=dict(input or {}),
            output_fields=None if output is None else dict(output),
            **rest,
        )


def refuse_process_limits(tool: ToolDef) -> None:
    """Raise `DefinitionError` if what is no program is given a limit that only a process can be held to."""
    if tool.limits is None or not isinstance(tool.implementation, (Function, Composed)):
        return
    asked = [name for name in PROCESS_LIMITS if getattr(tool.limits, name) is not None]
    if asked:
        origin = f"the one from {tool.origin}" if tool.origin else "one without a stated origin"
        what = "a Python function" if isinstance(tool.implementation, Function) else "a pipeline"
        raise DefinitionError(
            f'tool "{tool.name}" ({origin}): {" and ".join(asked)} cannot be held for {what}, '
            "which shares the host's process; leave the limit out, or make the tool a program"
        )
