"""What a docstring says of a function and its parameters, in Google's form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

import attrs

__all__ = ["Docstring", "parse_docstring"]

_SECTIONS = (
    "Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Other Parameters|Returns?|Yields?|Raises|Warns|"
    "Examples?|Notes?|Warnings?|See Also|References|Attributes|Methods|Todo"
)
# Indented text must follow: a sentence may well end in "note:".
_SECTION = re.compile(rf"^({_SECTIONS}):[ \t]*\n(?=\s*\n?[ \t]+\S)", re.MULTILINE)
_PARAMETER_SECTIONS = {
    "Args",
    "Arguments",
    "Parameters",
    "Params",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
}
_ENTRY = re.compile(r"\*{0,2}(\w+)[ \t]*(?:\(.*?\))?[ \t]*:(?:[ \t]+|$)(.*)")


@attrs.frozen
class Docstring:
    """A docstring, taken apart.

    Attributes:
        description: Everything before the first section.
        parameters: Each parameter's text, in one line.
    """

    description: str = ""
    parameters: Mapping[str, str] = attrs.field(factory=dict[str, str])


def parse_docstring(text: str | None) -> Docstring:
    """Return what `text` says; what it does not say is empty."""
    before, *sections = _SECTION.split(inspect.cleandoc(text or ""))
    parameters: dict[str, str] = {}
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        if name in _PARAMETER_SECTIONS:
            parameters |= _entries(body)
    return Docstring(before.strip(), parameters)


def _entries(body: str) -> dict[str, str]:
    """Return ``name: text`` by name. What stands deeper than the names goes on with the text above it."""
    entries: dict[str, list[str]] = {}
    lines: list[str] = []
    margin: int | None = None
    for line in body.splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and not indent:
            break  # prose after the section
        margin = indent if margin is None and text else margin
        entry = _ENTRY.fullmatch(text) if indent == margin else None
        if entry:
            lines = entries[entry[1]] = []
            text = entry[2]
        lines += text.split()
    return {name: " ".join(words) for name, words in entries.items()}
