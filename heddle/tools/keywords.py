"""JSON Schema keywords in our own words and within bounds, for jsonschema's validators.

They differ from jsonschema's own in three ways: a message never quotes a whole value, no step takes long in one piece,
and numbers are compared as they are written, so that 19.99 is a multiple of 0.01.
"""

from __future__ import annotations

import functools
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from jsonschema import validators

from heddle import strictjson
from heddle.tools import leftovers, wording
from heddle.tools.choices import any_of, one_of
from heddle.tools.faults import Faults, Keyword, fault, holds
from heddle.tools.jsontypes import is_array, is_object, key_of
from heddle.tools.patterns import safe_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["in_our_words"]


# What a draft means by a keyword that it shares with 2020-12 only by name.
_OTHERWISE: Mapping[Any, frozenset[str]] = {
    validators.Draft3Validator: frozenset({"type", "minimum", "maximum", "items", "properties"}),
    validators.Draft4Validator: frozenset({"minimum", "maximum", "items"}),
    validators.Draft6Validator: frozenset({"items", "contains"}),
    validators.Draft7Validator: frozenset({"items", "contains"}),
    validators.Draft201909Validator: frozenset({"items"}),
}


@functools.lru_cache(maxsize=64)
def in_our_words(base: Any, noun: str, longest_name: int) -> Any:
    """Return jsonschema's validator class `base` with these keywords.

    Args:
        base: The class of the draft.
        noun: What a property is called: ``argument``, ``field``.
        longest_name: No property name longer than this is tried on a pattern.
    """
    theirs: Mapping[str, Any] = base.VALIDATORS
    ours = {
        **_KEYWORDS,
        "additionalProperties": leftovers.additional_properties(noun),
        "unevaluatedProperties": leftovers.unevaluated_properties(
            theirs.get("unevaluatedProperties", _not), noun, longest_name
        ),
        "unevaluatedItems": leftovers.unevaluated_items(theirs.get("unevaluatedItems", _not)),
    }
    shared = ours.keys() & theirs.keys() - _OTHERWISE.get(base, frozenset())
    return cast("Any", validators).extend(base, {name: ours[name] for name in shared})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type(validator: Any, types: Any, instance: Any, _schema: Any) -> Faults:
    wanted = [types] if isinstance(types, str) else types
    if not any(validator.is_type(instance, each) for each in wanted):
        yield fault(wording.wrong_type(wanted, instance))


def _enum(_validator: Any, allowed: Any, instance: Any, _schema: Any) -> Faults:
    if not any(strictjson.same(each, instance) for each in allowed):
        yield fault(wording.not_one_of(allowed))


def _const(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Faults:
    if not strictjson.same(wanted, instance):
        yield fault(f"must be {wording.shown(wanted)}")


def _required(_validator: Any, names: Any, instance: Any, _schema: Any) -> Faults:
    if is_object(instance) and is_array(names):
        for name in names:
            if name not in instance:
                yield fault(wording.REQUIRED, name)


def _dependent_required(_validator: Any, dependencies: Any, instance: Any, _schema: Any) -> Faults:
    if is_object(instance):
        for name, needed in dependencies.items():
            for other in needed if name in instance else ():
                if other not in instance:
                    yield fault(f"{wording.REQUIRED} where {wording.shown(name)} is given", other)


def _counted(kind: type, word: str, thing: str) -> Keyword:
    def keyword(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Faults:
        if isinstance(instance, kind):
            length = len(instance)  # type: ignore[arg-type]
            if length < wanted if word == "least" else length > wanted:
                yield fault(wording.count_of(word, wanted, thing, length))

    return keyword


def _bounded(words: str, breaks: Callable[[Any, Any], bool]) -> Keyword:
    def keyword(_validator: Any, bound: Any, instance: Any, _schema: Any) -> Faults:
        if _is_number(instance) and breaks(instance, bound):
            yield fault(f"must be {words} {wording.shown(bound)}, not {wording.shown(instance)}")

    return keyword


def _multiple_of(_validator: Any, step: Any, instance: Any, _schema: Any) -> Faults:
    if _is_number(instance) and (_exact(instance) / _exact(step)).denominator != 1:
        yield fault(f"must be a multiple of {wording.shown(step)}, not {wording.shown(instance)}")


def _exact(number: float) -> Fraction:
    """Return the number as it is written, not as it is stored."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def _pattern(_validator: Any, text: Any, instance: Any, _schema: Any) -> Faults:
    if not isinstance(instance, str):
        return
    pattern = safe_pattern(text)
    if len(instance) > pattern.longest:
        yield fault(wording.too_long(len(instance), pattern))
    elif not pattern.search(instance):
        yield fault(f"must match the pattern {wording.shown(text)}, unlike {wording.shown(instance)}")


def _properties(validator: Any, subschemas: Any, instance: Any, _schema: Any) -> Faults:
    for name, subschema in subschemas.items() if is_object(instance) else ():
        if name in instance:
            # jsonschema's own errors under `false` do not say where.
            if subschema is False:
                yield fault(wording.REFUSED, name)
            else:
                yield from validator.descend(instance[name], subschema, path=name, schema_path=name)


def _prefix_items(validator: Any, subschemas: Any, instance: Any, _schema: Any) -> Faults:
    for place, subschema in enumerate(subschemas[: len(instance)] if is_array(instance) else ()):
        if subschema is False:
            yield fault(wording.REFUSED, place)
        else:
            yield from validator.descend(instance[place], subschema, path=place, schema_path=place)


def _items(validator: Any, subschema: Any, instance: Any, schema: Any) -> Faults:
    if not is_array(instance):
        return
    before = len(schema.get("prefixItems", ()))
    if subschema is False:
        if len(instance) > before:
            yield fault(wording.count_of("most", before, "item", len(instance)))
        return
    for place in range(before, len(instance)):
        yield from validator.descend(instance[place], subschema, path=place)


def _unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Faults:
    if not wanted or not is_array(instance):
        return
    seen: dict[object, int] = {}
    for place, item in enumerate(instance):
        first = seen.setdefault(key_of(item), place)
        if first != place:
            yield fault(f"must not hold an item twice: [{first}] and [{place}] are both {wording.shown(item)}")
            return


def _contains(validator: Any, subschema: Any, instance: Any, schema: Any) -> Faults:
    if not is_array(instance):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    fitting = sum(holds(validator, item, subschema) for item in instance)
    if fitting < least:
        rule = "minContains" if "minContains" in schema else None
        yield fault(wording.count_of("least", least, "item", fitting, "of a certain kind"), rule=rule)
    elif most is not None and fitting > most:
        yield fault(wording.count_of("most", most, "item", fitting, "of a certain kind"), rule="maxContains")


def _not(validator: Any, subschema: Any, instance: Any, _schema: Any) -> Faults:
    if holds(validator, instance, subschema):
        yield fault("is what the schema rules out")


_KEYWORDS: Mapping[str, Keyword] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "dependentRequired": _dependent_required,
    "minLength": _counted(str, "least", "character"),
    "maxLength": _counted(str, "most", "character"),
    "minItems": _counted(list, "least", "item"),
    "maxItems": _counted(list, "most", "item"),
    "minProperties": _counted(dict, "least", "property"),
    "maxProperties": _counted(dict, "most", "property"),
    "minimum": _bounded("at least", operator.lt),
    "maximum": _bounded("at most", operator.gt),
    "exclusiveMinimum": _bounded("greater than", operator.le),
    "exclusiveMaximum": _bounded("less than", operator.ge),
    "multipleOf": _multiple_of,
    "divisibleBy": _multiple_of,
    "pattern": _pattern,
    "patternProperties": leftovers.pattern_properties,
    "properties": _properties,
    "prefixItems": _prefix_items,
    "items": _items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "propertyNames": leftovers.property_names,
    "not": _not,
    "anyOf": any_of,
    "oneOf": one_of,
}
