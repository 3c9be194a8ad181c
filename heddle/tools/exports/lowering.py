"""OpenAI's strict mode: schemas in the subset that it takes, and arguments back from what a model says in it.

In strict mode a model gives every property and no other, so an optional one is told to be null where it is absent. What
a schema demands is kept or refused, never left out; what only describes (a default, examples) is left out where it must
be. The arguments are judged by the schema of the tool all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import attrs

from heddle import strictjson
from heddle.tools import wording
from heddle.tools.exports.nulls import Nulls, Variant
from heddle.tools.jsontypes import copied, is_array, is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["Fault", "Lowered", "lowered", "takes_null"]

# Source for these: OpenAI's guide to structured outputs, "Supported schemas". The lengths of strings are not listed
# there, but taken.
_KEPT = ("title", "description", "type", "enum", "const", "minLength", "maxLength", "pattern", "minimum", "maximum",
         "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems")  # fmt: skip
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_REFUSED = ("$dynamicRef", "$recursiveRef", "additionalItems", "contains", "dependencies", "dependentRequired",
            "dependentSchemas", "disallow", "divisibleBy", "else", "extends", "if", "maxContains", "maxProperties",
            "minContains", "minProperties", "not", "patternProperties", "prefixItems", "propertyNames", "then",
            "unevaluatedItems", "unevaluatedProperties", "uniqueItems")  # fmt: skip
# Source: the message with which OpenAI's API refuses them, strict or not.
_NOT_AT_THE_ROOT = ("$ref", "allOf", "anyOf", "const", "enum", "not", "oneOf")
_NOT_BESIDE = (*_KEPT[2:], "additionalProperties", "items", "properties", "required")
_JSON_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
               dict: "object"}  # fmt: skip


@attrs.frozen
class Fault:
    """Something that strict mode does not take.

    Attributes:
        path: Where in the schema.
        code: A word for programs.
        message: What was seen, and what to do where that is not plain.
    """

    path: wording.Path
    code: str
    message: str

    def __str__(self) -> str:
        place = wording.in_schema(self.path)
        return f"at {place}: {self.message}" if place else self.message


@attrs.frozen(eq=False)
class Lowered:
    """A schema in strict mode.

    Attributes:
        schema: Not to be used where there are faults.
        nulls: The way back.
        faults: Everything that strict mode does not take.
    """

    schema: dict[str, Any]
    nulls: Nulls
    faults: tuple[Fault, ...]


def lowered(root: Mapping[str, Any]) -> Lowered:
    """Return the schema of an object, which names ``type`` and ``properties``, in strict mode."""
    lowering = _Lowering(root)
    return Lowered(lowering.root(), lowering.nulls, tuple(lowering.faults))


class _Lowering:
    """Lowers a schema and the definitions that it refers to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.nulls = Nulls()
        self.faults: list[Fault] = []
        self._root = root
        self._kind = "$defs" if "$defs" in root else "definitions"
        self._given: Mapping[str, Any] = root.get(self._kind, {})
        self._definitions: dict[str, Any] = {}
        self._nulls_of: dict[str, Nulls] = {}
        self._waiting: list[str] = []
        # What refers to the whole refers to a copy of it in strict mode, so that each part can be judged alone.
        self._copy = "root"
        while self._copy in self._given:
            self._copy += "_"

    def root(self) -> dict[str, Any]:
        """Return the whole."""
        for keyword in _NOT_AT_THE_ROOT:
            if keyword in self._root:
                self._refuse((keyword,), "root", f"strict mode takes no {keyword} at the root of a schema")
        if self.faults:
            return {}
        schema = self.schema(self._root, (), self.nulls)
        while self._waiting:  # a definition may refer to more
            name = self._waiting.pop()
            self._definitions[name] = self.schema(self._given[name], (self._kind, name), self._nulls_of[name])
        if self._copy in self._nulls_of:
            self._definitions[self._copy] = {**schema}
        if self._definitions:
            schema["$defs"] = self._definitions
        return schema

    def schema(self, schema: Any, path: wording.Path, nulls: Nulls) -> dict[str, Any]:
        """Return one schema in strict mode; note what it does not take, and in `nulls` the way back."""
        if not is_object(schema):
            self._refuse(path, "untyped", "it lets everything pass or nothing, and strict mode wants a type")
            return {}
        for keyword in _REFUSED:
            if keyword in schema:
                self._refuse((*path, keyword), "keyword", f"strict mode does not take {keyword}")
        whole: dict[str, Any] = {keyword: copied(schema[keyword]) for keyword in _KEPT if keyword in schema}
        if schema.get("format") in _FORMATS:
            whole["format"] = schema["format"]
        if self._alternatives(schema, path, nulls, whole):
            return whole
        types = _types(schema)
        if not types:
            self._refuse(path, "untyped", "it says no type, and strict mode wants one")
        whole.setdefault("type", types[0] if len(types) == 1 else types)
        if "object" in types:
            self._object(schema, path, nulls, whole)
        if "array" in types:
            self._array(schema, path, nulls, whole)
        return whole

    def _alternatives(self, schema: dict[str, Any], path: wording.Path, nulls: Nulls, whole: dict[str, Any]) -> bool:
        """Put what the value must fit besides into `whole`, and return whether there is any such thing."""
        found = [keyword for keyword in ("$ref", "anyOf", "oneOf", "allOf") if keyword in schema]
        if not found:
            return False
        keyword = found[0]
        if keyword == "allOf" and len(schema["allOf"]) > 1:
            self._refuse(
                (*path, "allOf"), "keyword", "strict mode takes no allOf of several schemas; write them as one"
            )
        beside = [each for each in (*found[1:], *_NOT_BESIDE) if each in schema]
        if beside:
            said = f"strict mode takes no {beside[0]} beside {keyword}; write it into what that holds"
            self._refuse((*path, beside[0]), "keyword", said)
        if keyword == "$ref":
            reference = self._reference(schema["$ref"], path, nulls)
            # A reference stands alone there; anyOf may be described.
            whole.update({"anyOf": [reference]} if whole else reference)
            return True
        variants = [self._variant(inner, (*path, keyword, place)) for place, inner in enumerate(schema[keyword])]
        whole["anyOf"] = [variant.schema for variant in variants]
        nulls.variants += [variant for variant in variants if variant.schema.get("type") != "null"]
        return True

    def _variant(self, schema: Any, path: wording.Path) -> Variant:
        nulls = Nulls()
        return Variant(self.schema(schema, path, nulls), self._definitions, nulls)

    def _reference(self, reference: str, path: wording.Path, nulls: Nulls) -> dict[str, Any]:
        name = self._named(reference)
        if name is None:
            said = f"{wording.shown(reference)} leads into another part of the schema; put what it means under $defs"
            self._refuse((*path, "$ref"), "reference", said)
            return {}
        if name not in self._nulls_of:
            self._nulls_of[name] = self.nulls if reference == "#" else Nulls()
            if reference != "#":
                self._waiting.append(name)
        escaped = self._copy if reference == "#" else reference.rpartition("/")[2]
        lowered = {"$ref": f"#/$defs/{escaped}"}
        nulls.variants.append(Variant(lowered, self._definitions, self._nulls_of[name]))
        return lowered

    def _named(self, reference: str) -> str | None:
        """Return the name of the definition that a reference leads to; None where it leads to something else."""
        if reference == "#":
            return self._copy
        escaped = reference.removeprefix(f"#/{self._kind}/")
        name = unquote(escaped).replace("~1", "/").replace("~0", "~")
        return name if escaped != reference and "/" not in escaped and name in self._given else None

    def _object(self, schema: dict[str, Any], path: wording.Path, nulls: Nulls, whole: dict[str, Any]) -> None:
        properties: dict[str, Any] = schema.get("properties", {})
        is_open = schema["additionalProperties"] is not False if "additionalProperties" in schema else not properties
        if is_open:
            said = "it takes properties of any name, and strict mode wants each one named"
            self._refuse(path, "open", f"{said}; name them, and add additionalProperties: false where there are none")
        required: list[str] = schema["required"] if is_array(schema.get("required")) else []
        for name in required:
            if name not in properties:
                self._refuse((*path, "required"), "required", f"{wording.shown(name)} is no property")
        whole["properties"] = {}
        for name, inner in properties.items():
            its_nulls = nulls.properties[name] = Nulls()
            its_schema = self.schema(inner, (*path, "properties", name), its_nulls)
            if name not in required and not takes_null(inner, self._target):
                nulls.names.add(name)
                its_schema = _or_null(its_schema)
            whole["properties"][name] = its_schema
        whole["required"] = [*properties]
        whole["additionalProperties"] = False

    def _array(self, schema: dict[str, Any], path: wording.Path, nulls: Nulls, whole: dict[str, Any]) -> None:
        if "items" not in schema:
            self._refuse(path, "untyped", "it does not say what its items are, and strict mode wants to know")
            return
        nulls.items = Nulls()
        whole["items"] = self.schema(schema["items"], (*path, "items"), nulls.items)

    def _target(self, reference: str) -> Any:
        """Return the definition that a reference leads to; one that nothing fits where it leads to something else."""
        name = self._named(reference)
        return self._root if reference == "#" else self._given.get(name or "", False)

    def _refuse(self, path: wording.Path, code: str, message: str) -> None:
        self.faults.append(Fault(path, code, message))


def takes_null(schema: Any, target: Callable[[str], Any] = str) -> bool:
    """Return whether null fits a schema.

    Args:
        schema: Any keyword but these is taken not to concern null.
        target: Returns what a reference leads to; not needed where there is none.
    """
    if not is_object(schema):
        return schema is not False
    return (
        ("type" not in schema or "null" in _types(schema))
        and ("enum" not in schema or None in schema["enum"])
        and schema.get("const") is None
        and ("$ref" not in schema or takes_null(target(schema["$ref"]), target))
        and all(takes_null(inner, target) for inner in schema.get("allOf", ()))
        and all(any(takes_null(each, target) for each in schema[word]) for word in ("anyOf", "oneOf") if word in schema)
    )


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema says, or that follow from the values or the keywords it has."""
    said: Any = schema.get("type")
    if said is not None:
        return [said] if isinstance(said, str) else [*said]
    if "properties" in schema:
        return ["object"]
    if "items" in schema:
        return ["array"]
    values: list[Any] = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [*dict.fromkeys(_JSON_TYPES[type(value)] for value in values)]


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in strict mode that null fits as well."""
    types = schema.get("type")
    if types is None or "object" in types or "array" in types:
        return _alternative_null(schema)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
        del schema["const"]
    whole = {**schema, "type": [*dict.fromkeys([*([types] if isinstance(types, str) else types), "null"])]}
    if "enum" in whole and not any(strictjson.same(each, None) for each in whole["enum"]):
        whole["enum"] = [*whole["enum"], None]
    return whole


def _alternative_null(schema: dict[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], null]}
    return {"anyOf": [schema, null]}
