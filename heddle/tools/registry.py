"""The catalogue: `Registry`, an immutable set of tools by name. Composing and restricting give a new one."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

import attrs

from heddle.errors import DefinitionError
from heddle.tools.checking import CompiledTool
from heddle.tools.definition import Notice, ToolDef, refuse_process_limits
from heddle.tools.documents import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

    from heddle.tools.exports.export import Export
    from heddle.tools.exports.formats import OpenAIApi, Strict
    from heddle.tools.exports.lint import LintFinding, Provider


__all__ = ["Registry"]

# Longer names cannot come near one of 128 characters: two texts are close when 0.6 of both together is shared.
_LONGEST_NEAR = 300
# A repr is read in a traceback: enough names to see which catalogue it is.
_NAMES_IN_REPR = 8


@attrs.frozen
class _Entry:
    """A tool that is fit to be called, with its compiled schemas."""

    tool: ToolDef
    compiled: CompiledTool


class Registry:
    """An immutable catalogue of tools, in the order in which they were registered.

    Every tool in it can be called as it is declared: its schemas were compiled when it was registered, and are shared
    by every registry that is derived from this one.

    Attributes:
        notices: What was left out or shadowed, and why.
    """

    __slots__ = ("_entries", "_notices")
    _entries: Mapping[str, _Entry]
    _notices: tuple[Notice, ...]

    def __init__(self, tools: Iterable[ToolDef] = (), *, notices: Iterable[Notice] = ()) -> None:
        """Register `tools`.

        Raises:
            DefinitionError: Two have one name, a schema is wrong, or a tool asks for what cannot be had.
        """
        if isinstance(tools, (str, os.PathLike)):
            raise DefinitionError(f"a registry takes tools: read a folder with discover_tools({str(tools)!r:.200})")
        entries: dict[str, _Entry] = {}
        for tool in tools:
            _register(tool, entries)
        self._entries = entries
        self._notices = tuple(notices)

    @classmethod
    def compose(cls, *registries: Registry) -> Self:
        """Return one registry of several, given from the weakest to the strongest.

        Where two hold different tools under one name, the stronger one's takes the place of the other, and a notice
        says so. The notices of all are kept.
        """
        entries: dict[str, _Entry] = {}
        notices: list[Notice] = []
        for registry in registries:
            notices += registry.notices
            for name, entry in registry._entries.items():  # noqa: SLF001 - one of us
                if name in entries and entries[name].tool != entry.tool:
                    notices.append(_shadowed(entries[name].tool, entry.tool))
                entries[name] = entry
        return cls._of(entries, dict.fromkeys(notices))

    @classmethod
    def _of(cls, entries: Mapping[str, _Entry], notices: Iterable[Notice]) -> Self:
        registry = cls(notices=notices)
        registry._entries = entries
        return registry

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was left out or shadowed, and why."""
        return self._notices

    def __getitem__(self, name: str) -> ToolDef:
        return self._entries[name].tool

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[ToolDef]:
        return (entry.tool for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        names = ", ".join([*self._entries][:_NAMES_IN_REPR])
        more = f" and {len(self) - _NAMES_IN_REPR} more" if len(self) > _NAMES_IN_REPR else ""
        notices = f"; notices: {len(self._notices)}" if self._notices else ""
        return f"Registry({names}{more}{notices})"

    def with_tool(self, tool: ToolDef) -> Self:
        """Return a registry that has `tool` as well.

        Raises:
            DefinitionError: Its name is taken, or the tool is wrong.
        """
        entries = dict(self._entries)
        _register(tool, entries)
        return self._of(entries, self._notices)

    def restrict(self, names: Iterable[str]) -> Self:
        """Return a registry of the tools named, in the order in which they are registered here.

        Raises:
            DefinitionError: There is no tool of that name; close ones are named. It is no KeyError, because the names
                come from whoever configures the host, and a misspelt one would silently take a tool away.
        """
        if isinstance(names, str):
            raise DefinitionError(f"names of tools are a list, not the one text {names!r:.60}")
        wanted = dict.fromkeys(names)
        for name in wanted:
            if name not in self._entries:
                near = " or ".join(f'"{close}"' for close in self.near(name))
                raise DefinitionError(f'there is no tool "{excerpt(name)}"{f"; did you mean {near}?" if near else ""}')
        return self._of({name: entry for name, entry in self._entries.items() if name in wanted}, self._notices)

    def near(self, name: str) -> tuple[str, ...]:
        """Return up to three names that `name` may have been meant to be, the closest first."""
        if len(name) > _LONGEST_NEAR:
            return ()
        return tuple(difflib.get_close_matches(name, self._entries))

    def compiled(self, name: str) -> CompiledTool:
        """Return what judges a tool's arguments and data.

        Raises:
            KeyError: There is no tool of that name.
        """
        return self._entries[name].compiled

    def to_openai(self, api: OpenAIApi = "chat", *, strict: Strict = False, inline: bool = False) -> Export:
        """Return the tools as OpenAI's API takes them.

        Names get ``_`` for dots, and long ones are shortened; the export leads back.

        Args:
            api: ``chat`` for chat completions, ``responses`` for responses.
            strict: Have the model keep to the schema to the letter, for which optional properties become ones that may
                be null. ``if_possible`` leaves tools as they are that cannot be; the export's notices name them.
            inline: Put what references lead to in their places, for models behind such an API that take none.

        Raises:
            DefinitionError: Two names become one, a tool cannot be strict, or a schema that is to be inlined holds
                itself.
        """
        from heddle.tools.exports.formats import to_openai

        return to_openai(self, api=api, strict=strict, inline=inline)

    def to_anthropic(self, *, inline: bool = False) -> Export:
        """Return the tools as Anthropic's API takes them; names as for `to_openai`.

        Args:
            inline: Put what references lead to in their places, for models behind such an API that take none.

        Raises:
            DefinitionError: Two names become one, or a schema that is to be inlined holds itself.
        """
        from heddle.tools.exports.formats import to_anthropic

        return to_anthropic(self, inline=inline)

    def to_mcp(self, *, inline: bool = False) -> Export:
        """Return the tools as a server of the Model Context Protocol lists them, under their own names.

        Args:
            inline: Put what references lead to in their places, for clients whose models take none.

        Raises:
            DefinitionError: A schema that is to be inlined holds itself.
        """
        from heddle.tools.exports.formats import to_mcp

        return to_mcp(self, inline=inline)

    def to_agentspec(self) -> Export:
        """Return the tools as components of Agent Spec, a ``ServerTool`` each, under their own names.

        Raises:
            DefinitionError: A property's name cannot be a title there, or a schema holds itself.
        """
        from heddle.tools.exports.agentspec import to_agentspec

        return to_agentspec(self)

    def lint(self, provider: Provider | None = None, *, strict: bool = False) -> tuple[LintFinding, ...]:
        """Return what a provider would refuse of the tools, sorted by tool, provider and place.

        Args:
            provider: ``openai``, ``anthropic``, ``mcp`` or ``agentspec``; None: all of them.
            strict: Whether OpenAI's strict mode is asked for.

        Raises:
            DefinitionError: There is no such provider.
        """
        from heddle.tools.exports.lint import lint

        return lint(self, provider, strict=strict)


def _register(tool: ToolDef, entries: dict[str, _Entry]) -> None:
    from heddle.tools.checking import compile_tool

    if not isinstance(tool, ToolDef):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{excerpt(repr(tool))} is no ToolDef; a Python function becomes one with @tool")
    if tool.name in entries:
        raise DefinitionError(
            f'two tools are named "{tool.name}": {_origin(entries[tool.name].tool)} and {_origin(tool)}; rename one'
        )
    refuse_process_limits(tool)
    try:
        entries[tool.name] = _Entry(tool, compile_tool(tool))
    except DefinitionError as error:
        raise DefinitionError(f"{tool.origin}: {error}" if tool.origin else str(error)) from None


def _shadowed(weaker: ToolDef, stronger: ToolDef) -> Notice:
    return Notice(
        path=weaker.origin or weaker.name,
        code="shadowed",
        message=f'tool "{weaker.name}": {_origin(stronger)} takes the place of {_origin(weaker)}',
    )


def _origin(tool: ToolDef) -> str:
    return f"the one from {tool.origin}" if tool.origin else "one without a stated origin"
