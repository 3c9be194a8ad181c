"""The addresses of routes: ``tool://search``, ``direct://ask``. They have no parameters."""

from __future__ import annotations

import re
from typing import Literal

import attrs

from heddle.errors import DefinitionError
from heddle.tools.definition import TOOL_NAME

__all__ = ["Address", "address_of"]

# A route is named as a tool is, so that one name can be given to either.
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_SHOWN_CHARS = 60


@attrs.frozen
class Address:
    """What a URI leads to."""

    scheme: Literal["tool", "direct"]
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.name}"


def address_of(uri: str) -> Address:
    """Return what a URI leads to.

    Raises:
        DefinitionError: It is none, or has what an address does not have.
    """
    found = _ADDRESS.fullmatch(uri)
    shown = repr(uri if len(uri) <= _SHOWN_CHARS else uri[:_SHOWN_CHARS] + "…")
    if found is None:
        raise DefinitionError(f"{shown} is no address: write tool://NAME or direct://NAME")
    scheme, rest = found["scheme"], found["rest"]
    if scheme not in {"tool", "direct"}:
        raise DefinitionError(f'{shown}: there is nothing under "{scheme}://"; write tool://NAME or direct://NAME')
    if "?" in rest or "#" in rest:
        raise DefinitionError(f"{shown}: {scheme}:// takes no parameters; what a tool is told stands in its arguments")
    if not rest:
        raise DefinitionError(f"{shown}: the name is missing")
    if not TOOL_NAME.fullmatch(rest):
        rule = "up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        raise DefinitionError(f"{shown}: that cannot be a name: {rule}")
    return Address("tool" if scheme == "tool" else "direct", rest)
