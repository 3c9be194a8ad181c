"""A quick way to see that a value is surely valid. It answers for the keywords that most schemas are made of.

A schema that uses any other keyword, or a value that it does not accept, is left to the full check: "no" means only
that nothing is known. Each test here is as strict as the keyword that it stands for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sized
from typing import TYPE_CHECKING, Any, TypeAlias

from jsonschema import validators

from heddle import strictjson
from heddle.tools.jsontypes import is_array, is_object
from heddle.tools.patterns import safe_pattern

if TYPE_CHECKING:
    from heddle.tools.subschemas import Outline

__all__ = ["quick_check"]

Test: TypeAlias = Callable[[Any], bool]

_JUDGING = validators.Draft202012Validator.VALIDATORS.keys() - {"format"}
_OF_OBJECTS = frozenset({"properties", "required", "additionalProperties"})

_TYPES: Mapping[str, Test] = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) is int or type(value) is float,
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "object": lambda value: type(value) is dict,
    "array": lambda value: type(value) is list,
}


class _UnknownKeywordError(Exception):
    """A schema has a keyword that is not known here."""


def quick_check(root: dict[str, Any], outline: Outline) -> Test | None:
    """Return a test that is true only for valid values; None where the schema is beyond it."""
    try:
        return _Tests(outline).of(root)
    except _UnknownKeywordError:
        return None


class _Tests:
    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._made: dict[int, list[Test]] = {}

    def of(self, schema: Any) -> Test:
        """Return the test of `schema`."""
        if isinstance(schema, bool):
            return lambda _: schema
        if id(schema) in self._made:  # in the making, where the schema is recursive: look when it is called
            made = self._made[id(schema)]
            return lambda value: _all(made, value)
        tests = self._made[id(schema)] = []
        for keyword, setting in schema.items():
            if keyword == "$ref":
                tests.append(self.of(self._outline[id(schema)].targets["$ref"]))
            elif keyword in _MAKERS:
                tests.append(_MAKERS[keyword](setting))
            elif keyword in _JUDGING and keyword not in _OF_OBJECTS:
                tests.append(self._of_parts(keyword, setting))
        if schema.keys() & _OF_OBJECTS:
            tests.append(self._object(schema))
        if len(tests) == 1:
            return tests[0]
        return lambda value: _all(tests, value)

    def _of_parts(self, keyword: str, setting: Any) -> Test:
        if keyword == "items":
            item = self.of(setting)
            return lambda value: not is_array(value) or all(map(item, value))
        if keyword in ("anyOf", "allOf"):
            parts = [self.of(each) for each in setting]
            if keyword == "allOf":
                return lambda value: _all(parts, value)
            return lambda value: any(test(value) for test in parts)
        raise _UnknownKeywordError

    def _object(self, schema: Mapping[str, Any]) -> Test:
        if "patternProperties" in schema:
            raise _UnknownKeywordError
        known: dict[str, Test] = {name: self.of(each) for name, each in schema.get("properties", {}).items()}
        required = frozenset(schema.get("required", ()))
        others = self.of(schema.get("additionalProperties", True))

        def test(value: Any) -> bool:
            if not is_object(value):
                return True
            if not value.keys() >= required:
                return False
            for name, item in value.items():  # noqa: SIM110 - twice as fast as all()
                if not known.get(name, others)(item):
                    return False
            return True

        return test


def _all(tests: list[Test], value: Any) -> bool:
    for test in tests:  # noqa: SIM110 - twice as fast as all()
        if not test(value):
            return False
    return True


def _type(types: Any) -> Test:
    tests = [_TYPES[name] for name in ([types] if isinstance(types, str) else types)]
    return tests[0] if len(tests) == 1 else lambda value: any(test(value) for test in tests)


def _enum(allowed: Any) -> Test:
    if all(isinstance(each, str) for each in allowed):
        texts = frozenset(allowed)
        return lambda value: type(value) is str and value in texts
    return lambda value: any(strictjson.same(each, value) for each in allowed)


def _sized(kind: type[Sized], fits: Callable[[int, float], bool]) -> Callable[[Any], Test]:
    return lambda wanted: lambda value: not isinstance(value, kind) or fits(len(value), wanted)


def _bounded(fits: Callable[[Any, Any], bool]) -> Callable[[Any], Test]:
    return lambda bound: lambda value: type(value) not in (int, float) or fits(value, bound)


def _pattern(text: Any) -> Test:
    pattern = safe_pattern(text)
    return lambda value: type(value) is not str or (len(value) <= pattern.longest and pattern.search(value) is not None)


def _unique_texts(wanted: Any) -> Test:
    """Be sure of strings only: other values can be equal in more ways."""
    return lambda value: (
        not wanted
        or not is_array(value)
        or (all(type(item) is str for item in value) and len(set(value)) == len(value))
    )


_MAKERS: Mapping[str, Callable[[Any], Test]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda wanted: lambda value: strictjson.same(wanted, value),
    "minLength": _sized(str, operator.ge),
    "maxLength": _sized(str, operator.le),
    "minItems": _sized(list, operator.ge),
    "maxItems": _sized(list, operator.le),
    "minimum": _bounded(operator.ge),
    "maximum": _bounded(operator.le),
    "exclusiveMinimum": _bounded(operator.gt),
    "exclusiveMaximum": _bounded(operator.lt),
    "pattern": _pattern,
    "uniqueItems": _unique_texts,
}
