"""Says of a schema in a document what its registration would refuse, with the line of the part that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from heddle.errors import DefinitionError
from heddle.tools import wording

if TYPE_CHECKING:
    from heddle.tools.documents import Place, Step
    from heddle.tools.sections import Section

__all__ = ["refuse_uncompilable"]


def refuse_uncompilable(section: Section, key: str, root: Literal["object", "any"]) -> None:
    """Note why the schema under `key` cannot be compiled, if it is one and cannot.

    Compiling takes its time, and so does importing what compiles: this is for documents in which something is wrong.
    """
    from heddle.tools.schemas import SchemaChecker

    schema = section.value.get(key)
    if not isinstance(schema, dict):
        return
    try:
        SchemaChecker(schema, what=key, root=root)
    except DefinitionError as error:
        said = str(error).removeprefix(key).lstrip(":, ")
        way = _way_named(section.document.place_of(*section.steps, key), said)
        rest = said.removeprefix(_start(way)) if way else said
        section.refuse(f"{section.label(key, *way)}: {rest}", key, *way)


def _way_named(schema: Place, said: str) -> tuple[Step, ...]:
    """Return the way to the part of a schema that an error begins with: ``at properties.n.type: …``."""
    longest: tuple[Step, ...] = ()
    waiting: list[tuple[tuple[Step, ...], Place]] = [((), schema)]
    while waiting:
        way, place = waiting.pop()
        if len(way) > len(longest) and said.startswith(_start(way)):
            longest = way
        waiting.extend(((*way, step), inner) for step, inner in place.parts.items())
    return longest


def _start(way: tuple[Step, ...]) -> str:
    return f"at {wording.in_schema(way)}: "
