"""Route documents: ``tools:``, ``workflows:`` and ``agents:`` of one file. All that is wrong in one is said at once.

Reading one runs nothing and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from heddle.errors import DefinitionError
from heddle.expressions import Expression, ExpressionError
from heddle.pipelines.pipeline import Pipeline
from heddle.pipelines.running import HEADERS, Headers
from heddle.pipelines.steps import Choice, Script, SetBody, SetHeader, Step, Target, Transform, When
from heddle.pipelines.uris import Address, address_of
from heddle.tools.checking import compile_tool
from heddle.tools.definition import TOOL_NAME, ToolDef
from heddle.tools.documents import excerpt, load_document, shown
from heddle.tools.fields import field_notices
from heddle.tools.registry import Registry
from heddle.tools.sections import Section
from heddle.tools.sidecars import RETRIES, SIDE_EFFECTS, fields_of, limits_of, validation_of

if TYPE_CHECKING:
    import os

    from heddle.pipelines.exchange import Exchange
    from heddle.strictjson import JSON

__all__ = ["AgentDef", "RouteDocument", "load_routes", "load_tools"]

_TOOL_KEYS = ("id", "title", "description", "input", "output", "validate", "steps", "sideEffects", "retry", "limits")
_WORKFLOW_KEYS = ("id", "description", "trigger", "from", "steps")
_AGENT_KEYS = ("id", "type", "description", "tools")
_STEPS = ("set-body", "set-header", "transform", "target", "to", "choice")
_TEXTS = ("starlang", "starlark")

Handler = Callable[["Exchange"], object]


@attrs.frozen
class AgentDef:
    """What a document says of an agent.

    Attributes:
        tools: The names of the tools that it may call; None: all that are registered.
    """

    id: str
    type: str
    description: str
    tools: tuple[str, ...] | None


@attrs.frozen
class RouteDocument:
    """What one document describes.

    Attributes:
        tools: Those of the document, and those that it was given.
        routes: The steps of each ``direct://`` route, by name.
        agents: In their order.
        missing: The routes that are led to and for a host to give.
    """

    tools: Registry
    routes: Mapping[str, tuple[Step, ...]]
    agents: tuple[AgentDef, ...]
    missing: tuple[str, ...] = ()


def load_tools(
    path: str | os.PathLike[str],
    *,
    tools: Registry | None = None,
    handlers: Mapping[str, Handler] | None = None,
) -> Registry:
    """Return the tools of a route document, and with them those that it was given.

    Args:
        path: A ``.yaml``, ``.yml`` or ``.json`` file.
        tools: What its steps may call beside its own tools, which win where both have a name.
        handlers: Python functions that are routes, by name: where ``direct://NAME`` leads. Each is called with the
            `Exchange`; see `heddle.pipelines.Script`.

    Raises:
        BrokenDocument: Everything that is wrong with it, each with its line and column.
    """
    return load_routes(path, tools=tools, handlers=handlers).tools


def load_routes(
    path: str | os.PathLike[str],
    *,
    tools: Registry | None = None,
    handlers: Mapping[str, Handler] | None = None,
    headers: Headers = HEADERS,
    lets_routes_be: bool = False,
) -> RouteDocument:
    """Return what a route document describes; see `load_tools`.

    Args:
        path: The file.
        tools: What its steps may call beside its own tools.
        handlers: Python functions that are routes.
        headers: How the headers are called that say which tool was called.
        lets_routes_be: A ``direct://`` that leads nowhere is for a host to give, and only noted.
    """
    document = load_document(Path(path), what="route document")
    top = Section.of(document, shows_columns=True)
    top.refuse_unknown(("tools", "workflows", "agents"))
    reader = _Reader(top, tools or Registry(), headers, lets_routes_be=lets_routes_be)
    reader.routes.update({name: (Script(handler),) for name, handler in (handlers or {}).items()})
    return reader.read()


@attrs.frozen(eq=False)
class _Reader:
    """Reads a document; what it finds out on the way is needed to judge the rest."""

    top: Section
    given: Registry
    headers: Headers
    lets_routes_be: bool
    tools: dict[str, ToolDef] = attrs.field(factory=dict[str, ToolDef])
    missing: list[str] = attrs.field(factory=list[str])
    taken: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    pipelines: dict[str, tuple[Step, ...]] = attrs.field(factory=dict[str, "tuple[Step, ...]"])
    routes: dict[str, tuple[Step, ...]] = attrs.field(factory=dict[str, "tuple[Step, ...]"])
    # Each use of an address, to be judged when all are known.
    uses: list[tuple[Section, tuple[str | int, ...], Address]] = attrs.field(
        factory=list["tuple[Section, tuple[str | int, ...], Address]"]
    )

    def read(self) -> RouteDocument:
        for section in self.top.objects("tools"):
            self._tool(section)
        for section in self.top.objects("workflows"):
            self._workflow(section)
        agents = [self._agent(section) for section in self.top.objects("agents")]
        for section, steps, address in self.uses:
            self._refuse_unknown_target(section, steps, address)
        self.top.raise_problems()
        notices = [notice for tool in self.tools.values() for notice in field_notices(tool)]
        own = Registry((self._complete(tool) for tool in self.tools.values()), notices=notices)
        missing = tuple(dict.fromkeys(self.missing))
        return RouteDocument(Registry.compose(self.given, own), dict(self.routes), tuple(agents), missing)

    def _complete(self, tool: ToolDef) -> ToolDef:
        steps = self.pipelines.get(tool.name)
        return tool if steps is None else attrs.evolve(tool, implementation=Pipeline(steps, self.routes, self.headers))

    # Tools

    def _tool(self, section: Section) -> None:
        section.refuse_unknown((*_TOOL_KEYS, "revision", "annotations"))
        section.require(("id",))
        name = self._name(section, "a tool")
        described: dict[str, Any] = {
            "title": section.text("title", None),
            "description": section.text("description", ""),
            "side_effects": section.word("sideEffects", SIDE_EFFECTS, "unknown"),
            "retry": section.word("retry", RETRIES, "manual"),
            "revision": section.text("revision", "0"),
            "annotations": section.mapping("annotations"),
            "limits": limits_of(section),
            "validation": validation_of(section),
            "origin": f"{shown(section.document.path)}:{section.document.line_of(*section.steps)}",
        }
        before = len(section.problems)
        fields = {key: fields_of(section, key) for key in ("input", "output")}
        if "steps" in section.value:
            steps = self._steps(section, "steps")
            if name:
                self.pipelines[name] = steps
        if not name or len(section.problems) > before:
            return
        try:
            tool = ToolDef.from_fields(name, input=fields["input"] or {}, output=fields["output"], **described)
            compile_tool(tool)
        except DefinitionError as error:
            section.refuse(str(error), "input")
        else:
            self.tools[name] = tool

    def _name(self, section: Section, what: str) -> str:
        """Return the id of a section; an empty one when it has none that can be used."""
        name = section.text("id", "")
        if not isinstance(section.value.get("id"), str):
            return ""
        if not TOOL_NAME.fullmatch(name):
            rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
            section.refuse(f'"{excerpt(name)}" cannot be a name: {rule}', "id")
            return ""
        taken = self.taken.setdefault(what, set())
        if name in taken:
            section.refuse(f'there is {what} "{name}" already; each needs an id of its own', "id")
            return ""
        taken.add(name)
        return name

    # Workflows

    def _workflow(self, section: Section) -> None:
        section.refuse_unknown(_WORKFLOW_KEYS)
        section.require(("steps",))
        if "id" in section.value:
            self._name(section, "a workflow")
        steps = self._steps(section, "steps")
        trigger = section.section("trigger")
        trigger.refuse_unknown(("uri",))
        if "from" in section.value and "trigger" in section.value:
            section.refuse("from and trigger.uri say the same in two ways; keep one", "from")
        where, key = (section, "from") if "from" in section.value else (trigger, "uri")
        if key not in where.value:
            section.refuse("nothing leads here: give it trigger: {uri: direct://NAME}, or from:", "trigger")
            return
        address = self._address(where, key)
        if address is None:
            return
        taken = self.routes if address.scheme == "direct" else self.pipelines
        if address.scheme == "tool" and address.name not in self.taken.get("a tool", ()):
            where.refuse(f'there is no tool "{address.name}" in tools: to be made of these steps', key)
        elif address.name in taken:
            where.refuse(f"{address} has its steps already; one of them has to go", key)
        else:
            taken[address.name] = steps

    # Steps

    def _steps(self, section: Section, key: str) -> tuple[Step, ...]:
        steps = [self._step(step) for step in section.objects(key)]
        return tuple(step for step in steps if step is not None)

    def _step(self, step: Section) -> Step | None:
        names = list(step.value)
        if len(names) != 1:
            step.refuse(f"a step has one key, which says what it does: {', '.join(_STEPS)}")
            return None
        step.refuse_unknown(_STEPS)
        (name,) = names
        match name:
            case "set-body":
                body = step.section(name)
                body.refuse_unknown(("value", *_TEXTS))
                return SetBody(self._value(body))
            case "set-header":
                header = step.section(name)
                header.refuse_unknown(("name", "value", *_TEXTS))
                header.require(("name",))
                return SetHeader(header.full_text("name"), self._value(header))
            case "transform":
                transform = step.section(name)
                transform.refuse_unknown(_TEXTS)
                expression = self._expression(transform)
                return None if expression is None else Transform(expression)
            case "target" | "to":
                address = self._address(step, name)
                return None if address is None else self._target(step, name, address)
            case "choice":
                return self._choice(step.section(name))
            case _:
                return None

    def _target(self, step: Section, key: str, address: Address) -> Target:
        self.uses.append((step, (key,), address))
        return Target(address)

    def _choice(self, choice: Section) -> Choice:
        choice.refuse_unknown(("when", "otherwise"))
        choice.require(("when",))
        ways: list[When] = []
        for way in choice.objects("when"):
            way.refuse_unknown((*_TEXTS, "steps"))
            way.require(("steps",))
            condition, steps = self._expression(way), self._steps(way, "steps")
            if condition is not None:
                ways.append(When(condition, steps))
        return Choice(ways, self._steps(choice, "otherwise"))

    def _value(self, section: Section) -> JSON | Expression:
        """Return a value that is given, or is to be worked out."""
        if "value" in section.value:
            for key in _TEXTS:
                if key in section.value:
                    section.refuse(f"value and {key} say the same in two ways; keep one", key)
            return section.value["value"]
        return self._expression(section)

    def _expression(self, section: Section) -> Expression | None:
        present = [key for key in _TEXTS if key in section.value]
        if len(present) != 1:
            section.refuse("give it one text, under starlang:")
            return None
        (key,) = present
        text = section.full_text(key)
        if not text.strip():
            return None
        try:
            return Expression.parse(text)
        except ExpressionError as error:
            section.refuse(f"{section.label(key)}: {error}", key)
        except DefinitionError as error:  # the extra is not there
            section.refuse(str(error), key)
        return None

    def _address(self, section: Section, key: str) -> Address | None:
        text = section.text(key, None)
        if text is None:
            return None
        try:
            return address_of(text)
        except DefinitionError as error:
            section.refuse(f"{section.label(key)}: {error}", key)
            return None

    def _refuse_unknown_target(self, section: Section, steps: tuple[str | int, ...], address: Address) -> None:
        where = section.label(*steps)
        if address.scheme == "tool":
            known = {*self.taken.get("a tool", ()), *(tool.name for tool in self.given)}
            if address.name not in known:
                there = ", ".join(sorted(known)) or "none"
                section.refuse(f"{where}: there is no tool {address.name}; there are {there}", *steps)
        elif address.name in self.routes:
            return
        elif self.lets_routes_be:
            self.missing.append(address.name)
        else:
            there = ", ".join(sorted(self.routes)) or "none"
            hint = "give it a workflow, or a handler"
            section.refuse(f"{where}: there is no route {address}; there are {there}; {hint}", *steps)

    # Agents

    def _agent(self, section: Section) -> AgentDef:
        section.refuse_unknown(_AGENT_KEYS)
        section.require(("id", "type"))
        kind = section.word("type", ("react",), "react")
        name = self._name(section, "an agent")
        tools: tuple[str, ...] | None = None
        if "tools" in section.value:
            found: list[str] = []
            for place, uri in enumerate(section.texts("tools")):
                try:
                    address = address_of(uri)
                except DefinitionError as error:
                    section.refuse(f"{section.label('tools', place)}: {error}", "tools", place)
                    continue
                if address.scheme != "tool":
                    section.refuse(f"{section.label('tools', place)}: an agent calls tool://NAME", "tools", place)
                    continue
                self.uses.append((section, ("tools", place), address))
                found.append(address.name)
            tools = tuple(found)
        return AgentDef(name, kind, section.text("description", ""), tools)
