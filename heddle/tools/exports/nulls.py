"""Where null in what a model says means that a property is absent, and the same without those."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import attrs

from heddle.tools.schemas import SchemaChecker

if TYPE_CHECKING:
    from heddle.strictjson import JSON

__all__ = ["Nulls", "Variant"]


@attrs.define(eq=False)
class Nulls:
    """Where in a value null says that a property is absent.

    Attributes:
        names: Of the properties of this object. One that may be null itself is not among them.
        properties: The same for the value of each property.
        items: The same for each item.
        variants: The same for each schema that the value may fit.
    """

    names: set[str] = attrs.field(factory=set[str])
    properties: dict[str, Nulls] = attrs.field(factory=dict[str, "Nulls"])
    items: Nulls | None = None
    variants: list[Variant] = attrs.field(factory=list["Variant"])

    def dropped(self, value: JSON) -> JSON:
        """Return `value` without the properties that are absent; `value` stays as it was."""
        for variant in self.variants:
            if len(self.variants) == 1 or variant.fits(value):
                return variant.nulls.dropped(value)
        if isinstance(value, dict):
            return {
                name: self.properties[name].dropped(item) if name in self.properties else item
                for name, item in value.items()
                if item is not None or name not in self.names
            }
        if isinstance(value, list) and self.items is not None:
            return [self.items.dropped(item) for item in value]
        return value


@attrs.define(eq=False, slots=False)
class Variant:
    """One of several schemas that a value may fit."""

    schema: dict[str, Any]
    definitions: dict[str, Any]
    nulls: Nulls

    def fits(self, value: JSON) -> bool:
        """Return whether the value was said in this schema."""
        return not self._checker.violations(value)

    @functools.cached_property
    def _checker(self) -> SchemaChecker:
        return SchemaChecker({**self.schema, "$defs": self.definitions}, what="a variant in strict mode", root="any")
