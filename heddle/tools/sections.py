"""Reads the objects of a document key by key. What is wrong is collected with its line, and raised all at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import attrs

from heddle.strictjson import JSON
from heddle.tools.documents import BrokenDocument, Document, Problem, Step, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


__all__ = ["Section"]

Wanted = TypeVar("Wanted")
Default = TypeVar("Default")
Word = TypeVar("Word", bound=str)

_EMPTY: tuple[JSON, ...] = ()


@attrs.frozen(eq=False)
class Section:
    """One object of a document, and what was found wrong in the document so far.

    A method that reads a key gives back its value, or the default where the key is absent or its value is of another
    type. The latter is a problem: nothing that was read may be used before `raise_problems` has returned.

    Attributes:
        steps: The way from the document's value to this object.
        problems: Shared by all sections of one document.
        shows_columns: Whether a problem says the column too, as in documents that are more than a list of keys.
    """

    document: Document
    value: Mapping[str, JSON]
    steps: tuple[Step, ...] = ()
    problems: list[Problem] = attrs.field(factory=list[Problem])
    shows_columns: bool = False

    @classmethod
    def of(cls, document: Document, *, shows_columns: bool = False) -> Section:
        """Return the section of all that a document says.

        Raises:
            DefinitionError: It is no object.
        """
        if not isinstance(document.value, dict):
            said = f"there must be an object here, not {_seen(document.value)}"
            raise BrokenDocument([Problem(path=document.path, message=said, line=document.line_of())])
        return cls(document, document.value, shows_columns=shows_columns)

    def label(self, *steps: Step) -> str:
        """Return what errors call the part that `steps` lead to from here: ``process.args[1]``."""
        parts = [f"[{step}]" if isinstance(step, int) else f".{excerpt(step)}" for step in (*self.steps, *steps)]
        return "".join(parts).removeprefix(".")

    def refuse(self, problem: str, *steps: Step) -> None:
        """Note a problem with the part that `steps` lead to from here."""
        place = self.document.place_of(*self.steps, *steps)
        column = place.column if self.shows_columns else 0
        key = self.label(*steps)
        self.problems.append(Problem(path=self.document.path, message=problem, line=place.line, column=column, key=key))

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Note each key that is not among `known`, with the nearest one that is."""
        for key in self.value:
            if key in known:
                continue
            near = difflib.get_close_matches(key[:100], known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"there may be {', '.join(known)}"
            inside = f" in {self.label()}" if self.steps else ""
            self.refuse(f'unknown key "{excerpt(key)}"{inside}; {hint}', key)

    def require(self, keys: Collection[str]) -> None:
        """Note each of `keys` that is absent."""
        for key in keys:
            if key not in self.value:
                self.refuse(f"{self.label(key)} is missing; it has no default", key)

    def raise_problems(self) -> None:
        """Return when nothing is wrong.

        Raises:
            BrokenDocument: Every problem, in the order of their lines.
        """
        if self.problems:
            raise BrokenDocument(sorted(self.problems, key=lambda problem: problem.line))

    def text(self, key: str, default: Default) -> str | Default:
        """Return a string."""
        return self._read(key, default, _is_text, "text")

    def full_text(self, key: str) -> str:
        """Return text that is not blank; an empty one when the key is absent."""
        text = self.text(key, "")
        if key in self.value and isinstance(self.value[key], str) and not text.strip():
            self.refuse(f"{self.label(key)} must not be empty", key)
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the strings of a list, none of which holds a NUL character."""
        items = self._read(key, _EMPTY, _is_list, "a list of texts")
        for place, item in enumerate(items):
            if not _is_text(item):
                self._refuse_value(item, "text", key, place)
            elif "\0" in item:
                self.refuse(f"{self.label(key, place)} holds a NUL character", key, place)
        return tuple(filter(_is_text, items))

    def word(self, key: str, words: Collection[Word], default: Word) -> Word:
        """Return one of `words`."""
        value = self.value.get(key, default)
        for word in words:
            if value == word:
                return word
        self._refuse_value(value, " or ".join(words), key)
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        return self._read(key, default, _is_flag, "true or false")

    def seconds(self, key: str) -> float | None:
        """Return a number greater than 0."""
        return self._read(key, None, _is_positive, "a number greater than 0")

    def count(self, key: str) -> int | None:
        """Return a whole number greater than 0."""
        return self._read(key, None, _is_positive_whole, "a whole number greater than 0")

    def objects(self, key: str) -> list[Section]:
        """Return the objects of a list."""
        found: list[Section] = []
        for place, item in enumerate(self._read(key, _EMPTY, _is_list, "a list of objects")):
            if _is_object(item):
                found.append(attrs.evolve(self, value=item, steps=(*self.steps, key, place)))
            else:
                self._refuse_value(item, "an object", key, place)
        return found

    def parts(self, *keys: str) -> Iterator[Section]:
        """Yield those of `keys` whose values are objects; what the others are is for somebody else to judge."""
        for key in keys:
            value = self.value.get(key)
            if _is_object(value):
                yield attrs.evolve(self, value=value, steps=(*self.steps, key))

    def mapping(self, key: str) -> dict[str, JSON] | None:
        """Return an object as it is."""
        return self._read(key, None, _is_object, "an object")

    def section(self, key: str) -> Section:
        """Return an object to read from; an empty one when the key is absent."""
        return attrs.evolve(self, value=self.mapping(key) or {}, steps=(*self.steps, key))

    def _read(
        self, key: str, default: Default, fits: Callable[[object], TypeGuard[Wanted]], wanted: str
    ) -> Wanted | Default:
        if key not in self.value:
            return default
        value = self.value[key]
        if fits(value):
            return value
        self._refuse_value(value, wanted, key)
        return default

    def _refuse_value(self, value: JSON, wanted: str, *steps: Step) -> None:
        # 1.0 or yes: what a person took for text, and YAML does not.
        hint = "; put it in quotes" if wanted == "text" and isinstance(value, (bool, int, float)) else ""
        self.refuse(f"{self.label(*steps)} must be {wanted}, not {_seen(value)}{hint}", *steps)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_flag(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[list[JSON]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[dict[str, JSON]]:
    return isinstance(value, dict)


def _is_positive(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_positive_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and _is_positive(value)


def _seen(value: JSON) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return f'"{excerpt(value)}"'
        case _:
            return excerpt(json.dumps(value))
