"""`Redactor`: masks secrets in texts, in JSON and in streams."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from heddle.errors import DefinitionError
from heddle.redaction.keys import folded, is_secret_key, key_searches
from heddle.redaction.marked import Marks
from heddle.redaction.plain import Plain, plain
from heddle.redaction.shapes import shape_searches
from heddle.redaction.sieve import REDACTED, Sieve, hidden_in, sifted
from heddle.redaction.values import KnownValues

if TYPE_CHECKING:
    from heddle.redaction.sieve import Search
    from heddle.strictjson import JSON

__all__ = ["RedactedStream", "Redactor"]

# Every tool gets these, and none is a secret; masking them would blank paths and languages everywhere.
_NEVER = frozenset({"PATH", "HOME", "TMPDIR", "LANG", "TZ"})
# The first line of a text that was cut is dropped, unless it is so long that it may be all there is.
_LONGEST_LINE = 4096


class Redactor:
    """Masks secrets with ``[REDACTED]``, best effort. It is never changed, and may be used by any number of threads.

    Masked are the values that it is given, of eight characters and more, in every form in which common programs write
    them; what stands under a secret-like key; and what has the shape of a token.

    Args:
        values: The variables that tools were given by name, or values alone. ``PATH``, ``HOME``, ``TMPDIR``, ``LANG``,
            ``LC_*`` and ``TZ`` are left out.

    Raises:
        DefinitionError: `values` is one text.
    """

    def __init__(self, values: Mapping[str, str] | Iterable[str] = ()) -> None:
        self._known = KnownValues(_secret(values), _inside)

    def text(self, text: str, *, cut_before: bool = False, cut_after: bool = False) -> str:
        """Return `text` with what is secret in it masked, and without carriage returns and terminal sequences.

        Redact first and shorten then: what is left of a secret that was cut is not recognised.

        Args:
            text: Any text.
            cut_before: The text was shortened at its start: its first line is dropped where it is not all there is,
                and the end of a known value that it may begin with is masked.
            cut_after: The text was shortened at its end: the start of a known value there is masked.
        """
        text = plain(text)
        if cut_before:
            text = _without_broken_line(text)
        if cut_before or cut_after:
            text = self._known.without_pieces(text, at_start=cut_before, at_end=cut_after)
        return sifted(sifted(text, self._known), _UNKNOWN)

    def kept(self, text: str, *, cut_before: bool = False, cut_after: bool = False) -> str:
        """Return what `text` returns, but as it was, terminal sequences and all, where nothing in it is secret."""
        masked = self.text(text, cut_before=cut_before, cut_after=cut_after)
        whole = _without_broken_line(text) if cut_before else text
        return whole if masked == plain(whole) else masked

    def json(self, value: JSON) -> JSON:
        """Return `value` with its strings redacted, and those under secret-like keys masked whole.

        Keys, numbers and booleans stay. A string in which nothing is secret stays as it is.
        """
        return self._json(value, Marks({}, ()), is_secret=False)

    def arguments(self, arguments: JSON, schema: Mapping[str, object]) -> JSON:
        """Return `arguments` like `json` does, and mask the strings that `schema` marks.

        Marked is what is ``writeOnly: true`` or ``format: password``, and all strings in it. References are followed
        inside the schema; what is marked in any branch counts.
        """
        root = dict(schema)
        return self._json(arguments, Marks(root, [root]), is_secret=False)

    def stream(self) -> RedactedStream:
        """Return what redacts a text that comes in pieces."""
        return RedactedStream(self._known)

    def _json(self, value: JSON, marks: Marks, *, is_secret: bool) -> JSON:
        is_secret = is_secret or marks.is_marked
        if isinstance(value, str):
            return (REDACTED if value else value) if is_secret else self.kept(value)
        if isinstance(value, list):
            return [self._json(item, marks.item(index), is_secret=is_secret) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {
                name: self._json(item, marks.member(name), is_secret=is_secret or _is_secret_member(name, item))
                for name, item in value.items()
            }
        return value


class RedactedStream:
    """Redacts a text that comes in pieces: what it returns, put together, is `Redactor.text` of all of them.

    It holds back twice the longest form of a known value, and some thousand characters.
    """

    def __init__(self, known: KnownValues) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._plain = Plain()
        self._known = Sieve(known)
        self._unknown = Sieve(_UNKNOWN)

    def feed(self, data: bytes | str) -> str:
        """Take the next piece; return what is certain. Bytes that are not UTF-8 are replaced."""
        text = self._decoder.decode(data) if isinstance(data, bytes) else self._decoder.decode(b"", final=True) + data
        return self._unknown.feed(self._known.feed(self._plain.feed(text)))

    def finish(self) -> str:
        """Return what was held back. The stream is ready for another text then."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        text = self._plain.feed(text) + self._plain.finish()
        return self._unknown.finish(self._known.finish(text))


class _Unknown:
    """Finds what looks like a secret by its name or its shape."""

    # Longer than a JSON web token's first part and a URL's name and password; see heddle/redaction/shapes.py.
    reach = 1024

    def searches(self, text: str) -> Sequence[Search]:
        """Return what may find something in `text`."""
        small = folded(text)
        return [*key_searches(small), *shape_searches(text, small)]


_UNKNOWN = _Unknown()


def _without_broken_line(text: str) -> str:
    """Return a text that was shortened at its start without the first line, where that is not all there is."""
    return text[text.find("\n", 0, _LONGEST_LINE) + 1 :] or text


def _secret(values: Mapping[str, str] | Iterable[str]) -> Iterable[str]:
    if isinstance(values, str):
        raise DefinitionError("Redactor(…) takes several values, not one text")
    if not isinstance(values, Mapping):
        return values
    variables = cast("Mapping[str, str]", values)
    return [value for name, value in variables.items() if name not in _NEVER and not name.startswith("LC_")]


def _inside(value: str) -> list[str]:
    """Return the secrets in a value that is more than a secret: a URL, a connection string, a JSON document."""
    return hidden_in(value, _UNKNOWN)


def _is_secret_member(name: str, value: object) -> bool:
    """Return whether the strings under a key are secret: one, or a list of some."""
    return not isinstance(value, dict) and is_secret_key(name)
