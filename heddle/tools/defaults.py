"""Fills in the defaults that a schema declares. A value without gaps comes back as it is, never as a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from heddle.errors import DefinitionError
from heddle.strictjson import JSON
from heddle.tools import wording
from heddle.tools.definition import UNSET, Unset
from heddle.tools.jsontypes import copied, is_array, is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heddle.tools.subschemas import Outline

__all__ = ["Defaults"]


@attrs.define(eq=False)
class _Plan:
    """What to fill in a value that several schemas judge at once.

    Attributes:
        properties: The plan for each property's value.
        defaults: What an absent optional property becomes, with its own defaults filled in.
        first: The plans for the first items of an array, one each.
        rest: The plan for all further items.
        fills: Whether there is anything to fill, here or further in.
    """

    properties: dict[str, _Plan] = attrs.field(factory=dict[str, "_Plan"])
    defaults: dict[str, JSON] = attrs.field(factory=dict[str, Any])
    first: list[_Plan] = attrs.field(factory=list["_Plan"])
    rest: _Plan | None = None
    fills: bool = False

    def parts(self) -> Iterable[_Plan]:
        yield from self.properties.values()
        yield from self.first
        if self.rest is not None:
            yield self.rest


class Defaults:
    """The defaults of one schema, ready to be filled in.

    Raises:
        DefinitionError: A default has gaps that are filled with itself, without an end.
    """

    def __init__(self, root: dict[str, Any], outline: Outline) -> None:
        self._outline = outline
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._raw: list[tuple[_Plan, str, JSON]] = []
        self._root = self._plan([root])
        self._mark()
        if self._root.fills:
            _Completion(self._raw).run()

    def filled(self, value: JSON) -> JSON:
        """Return `value` with the defaults of absent optional properties, at every depth; `value` stays as it was."""
        return _filled(self._root, value) if self._root.fills else value

    def _plan(self, schemas: Sequence[Any]) -> _Plan:
        together = self._together(schemas)
        key = tuple(sorted(map(id, together)))
        if key in self._plans:
            return self._plans[key]
        plan = self._plans[key] = _Plan()
        required = {name for each in together for name in _list(each.get("required"))}
        for name, inner in _grouped(each.get("properties") for each in together).items():
            plan.properties[name] = self._plan(inner)
            default = self._default(inner)
            # In draft 3 a property says itself that it is required.
            itself = any(each.get("required") is True for each in self._together(inner))
            if name not in required and not itself and not isinstance(default, Unset):
                self._raw.append((plan, name, default))
        places: list[list[Any]] = []
        rest: list[Any] = []
        for each in together:
            items = each.get("items")
            first = _list(each.get("prefixItems")) or _list(items)
            places += [[] for _ in range(len(first) - len(places))]
            for place, inner in enumerate(first):
                places[place].append(inner)
            if is_object(items):
                rest.append((len(first), items))
        # An item behind one schema's first items may still be among another's.
        plan.first = [
            self._plan([*inner, *(items for before, items in rest if place >= before)])
            for place, inner in enumerate(places)
        ]
        plan.rest = self._plan([items for _, items in rest]) if rest else None
        return plan

    def _together(self, schemas: Iterable[Any]) -> list[dict[str, Any]]:
        """Return `schemas` and those that judge the same value with them, whatever it is."""
        together: list[dict[str, Any]] = []
        waiting = [schema for schema in schemas if is_object(schema)][::-1]
        while waiting:
            schema = waiting.pop()
            if any(schema is other for other in together):
                continue
            together.append(schema)
            found = self._outline[id(schema)]
            waiting += [inner for keyword, inner in reversed(found.inner) if keyword == "allOf"]
            waiting += [target for target in found.targets.values() if is_object(target)]
        return together

    def _default(self, schemas: Iterable[Any]) -> JSON | Unset:
        for schema in self._together(schemas):
            if "default" in schema:
                default: JSON = schema["default"]
                return default
        return UNSET

    def _mark(self) -> None:
        """Mark the plans that lead to something to fill."""
        above: dict[int, list[_Plan]] = {}
        for plan in self._plans.values():
            for part in plan.parts():
                above.setdefault(id(part), []).append(plan)
        waiting = [plan for plan, _, _ in self._raw]
        while waiting:
            plan = waiting.pop()
            if not plan.fills:
                plan.fills = True
                waiting += above.get(id(plan), [])


class _Completion:
    """Fills the gaps of the defaults themselves, each default after those that it needs."""

    def __init__(self, raw: Iterable[tuple[_Plan, str, JSON]]) -> None:
        self.raw = {(id(plan), name): (plan, name, default) for plan, name, default in raw}
        self.names: dict[int, list[str]] = {}
        for plan, name, _ in raw:
            self.names.setdefault(id(plan), []).append(name)
        self.begun: set[tuple[int, str]] = set()

    def run(self) -> None:
        for key in self.raw:
            self._complete(key)

    def _complete(self, key: tuple[int, str]) -> None:
        plan, name, default = self.raw[key]
        if name in plan.defaults:
            return
        if key in self.begun:
            raise DefinitionError(
                f"the default of {wording.shown(name)} never ends: its own gaps are filled with it again. "
                "Leave the default out, or give one without gaps"
            )
        self.begun.add(key)
        self._complete_gaps(plan.properties[name], default)
        plan.defaults[name] = _filled(plan.properties[name], default)

    def _complete_gaps(self, plan: _Plan, value: JSON) -> None:
        """Complete the defaults that `value` will be filled with."""
        if not plan.fills:
            return
        if isinstance(value, dict):
            for name in self.names.get(id(plan), ()):
                if name not in value:
                    self._complete((id(plan), name))
            for name, item in value.items():
                if name in plan.properties:
                    self._complete_gaps(plan.properties[name], item)
        elif isinstance(value, list):
            for inner, item in zip(_item_plans(plan, len(value)), value, strict=False):
                if inner is not None:
                    self._complete_gaps(inner, item)


def _filled(plan: _Plan, value: JSON) -> JSON:
    if isinstance(value, dict):
        return _filled_object(plan, value)
    if isinstance(value, list) and (plan.first or plan.rest):
        return _filled_array(plan, value)
    return value


def _filled_object(plan: _Plan, value: dict[str, JSON]) -> JSON:
    changed: dict[str, JSON] = {}
    for name, inner in plan.properties.items():
        if name not in value:
            if name in plan.defaults:
                changed[name] = copied(plan.defaults[name])
        elif inner.fills:
            item = value[name]
            new = _filled(inner, item)
            if new is not item:
                changed[name] = new
    return {**value, **changed} if changed else value


def _filled_array(plan: _Plan, value: list[JSON]) -> JSON:
    items = [
        _filled(inner, item) if inner is not None and inner.fills else item
        for inner, item in zip(_item_plans(plan, len(value)), value, strict=False)
    ]
    return items if any(new is not old for new, old in zip(items, value, strict=True)) else value


def _item_plans(plan: _Plan, length: int) -> list[_Plan | None]:
    return [*plan.first, *([plan.rest] * (length - len(plan.first)))]


def _list(value: object) -> list[Any]:
    return value if is_array(value) else []


def _grouped(named: Iterable[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """Return the schemas of each name."""
    grouped: dict[str, list[Any]] = {}
    for each in named:
        for name, schema in (each or {}).items():
            grouped.setdefault(name, []).append(schema)
    return grouped
