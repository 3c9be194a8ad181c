"""Gives attrs classes the signature that they have at run time. The builder reads sources, and there it is not."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import attrs
import griffe

DECORATORS = {"attrs.frozen", "attrs.define"}


class AttrsSignatures(griffe.Extension):
    """Adds the constructor that attrs writes to every class that has none of its own."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give `cls` its constructor; annotations stay those of the source, so that they are links."""
        if "__init__" in cls.members or not any(each.callable_path in DECORATORS for each in cls.decorators):
            return
        signature = inspect.signature(getattr(importlib.import_module(cls.module.path), cls.name))
        parameters = griffe.Parameters(griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword))
        for parameter in signature.parameters.values():
            parameters.add(
                griffe.Parameter(
                    parameter.name,
                    annotation=_annotation(cls, parameter.name),
                    kind=griffe.ParameterKind(parameter.kind.description),
                    default=_shown(parameter.default),
                )
            )
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, parent=cls))


def _annotation(cls: griffe.Class, name: str) -> str | griffe.Expr | None:
    field = cls.members.get(name) or cls.members.get(f"_{name}")
    return field.annotation if isinstance(field, griffe.Attribute) else None


def _shown(default: object) -> str | None:
    """Return a default as a reader would write it; what is made anew each time, or is long, is left open."""
    if default is inspect.Parameter.empty:
        return None
    if default is attrs.NOTHING or attrs.has(type(default)):
        return "..."
    return str(default) if repr(default).startswith("<") else repr(default)  # a member of an enum
