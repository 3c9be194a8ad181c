"""A tool made ready to be called: its schemas compiled, its arguments and its output judged. Any thread will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import Rule, ToolDef, Violation
from heddle.tools.jsontypes import copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heddle.strictjson import JSON
    from heddle.tools.definition import FieldDef

__all__ = ["Checker", "CompiledTool", "compile_tool", "failure_text"]


class Checker(Protocol):
    """What judges a value: a `SchemaChecker` or a `FieldChecker`."""

    @property
    def is_slow(self) -> bool:
        """Whether even a short text may take milliseconds, because a pattern is tried on it."""
        ...

    def filled(self, value: JSON) -> JSON:
        """Return `value` with its defaults filled in."""
        ...

    def violations(self, value: JSON) -> tuple[Violation, ...]:
        """Return what is wrong with `value` as it is."""
        ...


@attrs.frozen(eq=False)
class CompiledTool:
    """A tool whose schemas are known to be right.

    Attributes:
        tool: The definition.
        arguments: Judges the arguments.
        output: Judges the output; None lets everything pass.
    """

    tool: ToolDef
    arguments: Checker
    output: Checker | None

    @property
    def is_slow(self) -> bool:
        """Whether judging a few hundred characters may take milliseconds."""
        return self.arguments.is_slow or (self.output is not None and self.output.is_slow)

    @property
    def waits(self) -> bool:
        """Whether judging arguments may wait for something: for a rule that another process works out."""
        return any(getattr(rule.check, "waits", False) for rule in self.tool.validation.rules)

    def check_arguments(self, arguments: dict[str, JSON]) -> dict[str, JSON] | tuple[Violation, ...]:
        """Return the arguments with their defaults, or all that is wrong with them. `arguments` stay as they were.

        Rules are asked when the schema holds. A long string under a pattern and large arguments take time; no single
        step of it holds the interpreter for long, so a thread is the place for them.
        """
        filled = cast("dict[str, JSON]", self.arguments.filled(arguments))
        violations = self.arguments.violations(filled) if self.tool.validation.schema else ()
        return violations or tuple(_broken(self.tool.validation.rules, filled)) or filled

    def check_output(self, data: JSON) -> tuple[Violation, ...]:
        """Return all that is wrong with what the tool gave back; no default is filled in."""
        return () if self.output is None else self.output.violations(data)


def compile_tool(tool: ToolDef) -> CompiledTool:
    """Return `tool` ready to be called.

    Raises:
        DefinitionError: A schema or a field is wrong; the tool and the place are named.
    """
    try:
        return CompiledTool(tool, _input_checker(tool), _output_checker(tool))
    except DefinitionError as error:
        raise DefinitionError(f'tool "{tool.name}": {error}') from None


def failure_text(name: str, violations: Sequence[Violation]) -> str:
    """Return the message of a call whose arguments were refused: the first violation, and how many more there are."""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f'tool "{name}" input validation failed: {violations[0]}{more}'


def _input_checker(tool: ToolDef) -> Checker:
    if tool.validation.dialect == "fields":
        if tool.input_fields is None:
            raise DefinitionError('the dialect "fields" needs input_fields: use ToolDef.from_fields')
        return _of_fields(tool.input_fields, "input", strict=tool.validation.strict)
    return _of_schema(tool.input_schema, "input schema", "object")


def _output_checker(tool: ToolDef) -> Checker | None:
    if tool.validation.dialect == "fields" and tool.output_fields is not None:
        return _of_fields(tool.output_fields, "output", strict=tool.validation.strict)
    return None if tool.output_schema is None else _of_schema(tool.output_schema, "output schema", "any")


def _of_fields(fields: Mapping[str, FieldDef], what: str, *, strict: bool) -> Checker:
    from heddle.tools.fields import FieldChecker

    try:
        return FieldChecker(fields, strict=strict)
    except DefinitionError as error:
        raise DefinitionError(f"{what} {error}") from None


def _of_schema(schema: Mapping[str, Any] | bool, what: str, root: Literal["object", "any"]) -> Checker:
    # jsonschema takes its time to import; a catalogue of fields does without it.
    from heddle.tools.schemas import SchemaChecker

    return SchemaChecker(schema, what=what, root=root)


def _broken(rules: Sequence[Rule], arguments: dict[str, JSON]) -> Iterator[Violation]:
    for rule in rules:
        try:
            # Each rule gets a copy of its own: what it does to that changes neither the call nor the next rule.
            holds = bool(rule.check(cast("Mapping[str, JSON]", copied(arguments))))
        except Exception:  # noqa: BLE001 - a rule may be any code, and one that raises does not hold
            holds = False
        if not holds:
            yield Violation("", rule.name, rule.reason)
