"""The forms in which a value may stand in a text: as itself, and as common programs encode it."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import quote

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SHORTEST", "Forms", "encoded_forms", "written_forms"]

# 8: a shorter value is part of too many ordinary words. GitLab masks none that is shorter.
SHORTEST = 8

# What no encoder of text changes; letters and digits are what base64 keeps the same in both of its alphabets.
_KEPT = re.compile(r"[A-Za-z0-9_.-]+")
_KEPT_IN_BASE64 = re.compile(r"[A-Za-z0-9]+")
# What encoders leave alone beside letters, digits and ``_.-~``: most of them nothing; Python's urllib a slash; what
# JavaScript calls encodeURIComponent and encodeURI. Source: RFC 3986, section 2; ECMA-262, section 19.2.6.
_LEFT_ALONE = ("", "/", "!'()*", "!'()*;/?:@&=+$,#")
_HEX = re.compile("%[0-9A-F]{2}")
_NOT_ASCII = 0x80
_REFERENCES = {'"': ("&quot;", "&#34;"), "'": ("&apos;", "&#x27;", "&#39;")}
_LINE_ENDS = str.maketrans({"\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})


@attrs.frozen
class Forms:
    """Forms that have something in common.

    Attributes:
        needle: Stands in each of them: where it is not, they need not be looked for. May be empty.
        forms: All different, none empty.
    """

    needle: str
    forms: tuple[str, ...] = attrs.field(repr=False)


def written_forms(value: str) -> Forms:
    """Return how a value is written in JSON, in JSON inside JSON, URLs, XML, shells and Python."""
    forms = {value, value.replace("\r", ""), *_jsons(value), *_percents(value), *_xmls(value), *_shells(value)}
    return Forms(_longest(_KEPT, value), _worth(forms))


def encoded_forms(value: str) -> Iterator[Forms]:
    """Yield how a value stands in base64, wherever in a longer text it began, and in hexadecimal digits."""
    data = as_bytes(value)
    for before in range(3):
        standard = _base64(data, before)
        url = standard.translate(str.maketrans("+/", "-_"))
        forms = {standard, url, *_percents(standard), standard.replace("/", r"\/")}
        yield Forms(_longest(_KEPT_IN_BASE64, standard), _worth(forms))
    for digits in (data.hex(), data.hex().upper()):
        yield Forms(digits, (digits,))


def as_bytes(value: str) -> bytes:
    """Return the bytes of a variable's value; Python keeps those that are not UTF-8 as lone surrogates."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")


def _longest(kept: re.Pattern[str], text: str) -> str:
    return max(kept.findall(text), key=len, default="")


def _worth(forms: set[str]) -> tuple[str, ...]:
    return tuple(sorted(form for form in forms if len(form) >= SHORTEST))


def _jsons(value: str) -> Iterator[str]:
    """Yield what stands between the quotes of JSON, and of JSON in a JSON string; both also as Python's repr."""
    for is_ascii in (True, False):
        once = json.dumps(value, ensure_ascii=is_ascii)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=is_ascii)[1:-1]
        yield once.replace("/", r"\/")  # PHP
        yield re.sub("[<>&]", lambda match: rf"\u{ord(match[0]):04x}", once)  # Go
        yield from _reprs(once)
    yield from _reprs(value)


def _reprs(value: str) -> Iterator[str]:
    """Yield Python's repr, also as it is where the text around it has both kinds of quotes."""
    yield repr(value)[1:-1]
    yield repr("'\"" + value)[4:-1]


def _percents(value: str) -> Iterator[str]:
    """Yield percent-encoded forms: by what is left alone, with either digits, with either space."""
    data = as_bytes(value)
    for left_alone in _LEFT_ALONE:
        upper = quote(data, safe=left_alone)
        for form in (upper, _HEX.sub(lambda match: match[0].lower(), upper)):
            yield form
            yield form.replace("%20", "+")
            yield form.replace("%20", "+").replace("~", "%7E")  # HTML forms


def _xmls(value: str) -> Iterator[str]:
    """Yield XML and HTML: what is written as a reference in text, and what else may be in attributes."""
    forms = [html.escape(value, quote=False)]
    for character, references in _REFERENCES.items():
        if character in value:
            forms += [form.replace(character, reference) for form in forms for reference in references]
    yield from forms
    yield from (form.translate(_LINE_ENDS) for form in forms)


def _shells(value: str) -> Iterator[str]:
    """Yield what stands between the quotes of a shell, and the two forms that ``printf %q`` makes."""
    yield shlex.quote(value)[1:-1] if "'" in value else value
    yield value.replace("'", r"'\''")
    yield re.sub(r'([\\"$`])', r"\\\1", value)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII)
    quoted = (
        value.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n").replace("\t", r"\t").replace("\r", r"\r")
    )
    yield quoted
    yield "".join(chr(byte) if byte < _NOT_ASCII else rf"\{byte:o}" for byte in as_bytes(quoted))


def _base64(data: bytes, before: int) -> str:
    """Return the digits that `data` alone decides where `before` bytes of others stand in its first group."""
    text = base64.b64encode(b"\0" * before + data).decode("ascii")
    # A digit has six bits: the first that has none of what stands before, the last that has none of what follows.
    return text[-(-8 * before // 6) : 8 * (before + len(data)) // 6]
