"""Names that say that their value is a secret, in JSON, and in text that assigns: ``key=value``, ``key: value``."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import attrs

from heddle.redaction.sieve import Find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.redaction.sieve import Search

__all__ = ["folded", "is_secret_key", "key_searches"]

# What may precede ``key``: ``key`` alone names anything.
_KINDS_OF_KEY = ("api", "access", "account", "auth", "client", "encryption", "master", "private", "secret", "shared",
                 "signing", "ssh", "storage")  # fmt: skip
_ENDS_IN_KEY = "|".join(f"(?<={kind}key)|(?<={kind}[_. -]key)" for kind in _KINDS_OF_KEY)

# What ends a value without quotes.
_ENDS = r"""\s"'`,;&<>\\"""
# Of random letters and digits, one text in a thousand has no digit among its first forty.
_NO_WORD = re.compile(f"(?=[^{_ENDS}]{{8}})[^{_ENDS}]{{0,40}}[0-9]")
_PAIR = re.compile(r"[\w.-]{1,64}=")

# A quotation mark inside a word ends nothing.
_BARE = re.compile(rf"""(?:[^{_ENDS}]+|["'`<>][A-Za-z0-9])*""")
# Of a header with pairs; in a program's text a quotation mark ends it, unless it belongs to a value: a="b"; c=d
_LINE = re.compile(r"""(?:[^\n"'\\=]+|=[^\n'\\]|";)*""")
_IN_QUOTES = {
    '"': re.compile(r'(?:[^"\\\n]+|\\.)*'),
    "'": re.compile(r"(?:[^'\\\n]+|\\.)*"),
    "`": re.compile(r"[^`\n]*"),
    # JSON in a JSON string: a quotation mark of the value has three backslashes, the closing one has one.
    '\\"': re.compile(r'(?:[^"\\\n]+|\\\\(?:\\.|[^\\\n])|\\[^"\\\n])*'),
}
_IN_MANY_BACKSLASHES = re.compile(r"""[^"'`\n]*""")


@attrs.frozen
class _Stem:
    """What a family of secret-like names has in common.

    Attributes:
        word: Every name holds it.
        names: Matches the name from `word` on.
        looks: What a value looks like behind a colon where the name has no quotes: prose uses the word as well.
        rest: Matches a value without quotes.
        is_name: Members of JSON objects are called so too.
    """

    word: str
    names: str
    looks: re.Pattern[str] | None = None
    rest: re.Pattern[str] = _BARE
    is_name: bool = True


_STEMS = (
    _Stem("pass", r"pass(?:word|wd|phrase|code)s?"),
    _Stem("pass", r"pass(?<![a-z]pass)(?=[\"']?[ \t]?=|[\"']|\Z)"),  # PASS: is how tests report
    _Stem("pwd", r"pwd(?=[\"']?[ \t]?[=:][ \t]?[^ \t/~.])", looks=_NO_WORD, is_name=False),  # $PWD is a folder
    _Stem("secret", r"secrets?"),
    _Stem("key", rf"key(?:{_ENDS_IN_KEY})"),
    _Stem("credential", r"credentials?", looks=_NO_WORD),
    _Stem("token", r"token", looks=_NO_WORD),
    _Stem("auth", r"auth(?<![a-z]auth)(?:orization)?", looks=_NO_WORD),
    _Stem("cookie", r"cookie", looks=_PAIR, rest=_LINE),
    _Stem("sig", r"sig(?:nature)?(?:(?<=[?&]sig)|(?<=[?&-]signature))(?==)", is_name=False),  # in URLs of clouds
)
_SUFFIX = r"(?:[_.-]?(?:value|base64|b64|hash|string|text|[0-9]{1,3}))?"
_QUOTE = r"""\\{0,3}["'`]"""
_SCHEME = r"(?:(?:bearer|basic|token|digest|negotiate|apikey)[ \t]{1,4})?"
# An option and its value are words of a command, which may be shown as a list.
_BEFORE_VALUE = (
    rf"(?P<quoted>{_QUOTE})?(?:[ \t]{{0,8}}(?P<sign>=>|:=|[:=](?!=)|%3[ad])[ \t]{{0,8}}|,?[ \t]{{1,4}})"
    rf"(?:[bfru]{{0,2}}(?P<quote>{_QUOTE}))?{_SCHEME}(?=[^\n])(?!-----begin)"
)

# Not secret whatever the name: words that switch, words that go on in a sentence, small numbers, nothing at all.
_HARMLESS = re.compile(
    r"(?:true|false|null|none|nil|undefined|yes|no|on|off|must|is|has|was|may|not|cannot|should|required|expected|missing"
    rf"|invalid|wrong|[0-9.]{{1,7}})(?:[{_ENDS})}}\]]|\Z)|[{_ENDS})}}\]]"
)
# Source code in a traceback calls something: token = lexer.next(), or token=self.lexer.next().
_CALL = re.compile(r"(?:(?<=[ \t])|(?=\w{1,32}\.))[a-z_][\w.]{0,63}[(\[]")
# A text may end in the name, and what seems to open a string closes one: input("Password: ", file)
_AFTER_TEXT = re.compile(r"[\s,;+)}\]]")
_OPTION = re.compile(r"--(?:[a-z0-9][a-z0-9-]{0,40})?\Z")
_OPTION_CHARS = 45

_PATTERNS = tuple((stem, re.compile(stem.names + _SUFFIX + _BEFORE_VALUE)) for stem in _STEMS)
_NAME = re.compile(rf"(?:{'|'.join(stem.names for stem in _STEMS if stem.is_name)}){_SUFFIX}\Z")


def is_secret_key(name: str) -> bool:
    """Return whether a member of this name holds a secret: ``apiKey``, ``db_password``, ``Authorization``."""
    return _NAME.search(folded(name)) is not None


def folded(text: str) -> str:
    """Return `text` in small letters, each where it was."""
    # The only letter that becomes two.
    return text.lower() if text.isascii() else text.replace("\u0130", "i").lower()


def key_searches(small: str) -> Iterator[Search]:
    """Yield what may find something in a text in small letters."""
    for stem, pattern in _PATTERNS:
        if stem.word in small:
            yield partial(_assigned, stem, pattern, small)


def _assigned(stem: _Stem, pattern: re.Pattern[str], small: str, at: int) -> Find | None:
    while (match := pattern.search(small, at)) is not None:
        rest = _rest_of(stem, match)
        if rest is not None:
            return Find(match.start(), match.end(), match.end(), rest)
        at = match.start() + 1
    return None


def _rest_of(stem: _Stem, match: re.Match[str]) -> re.Pattern[str] | None:
    """Return what matches the value, or None where there is none to be masked."""
    small, start, value = match.string, match.start(), match.end()
    if match["sign"] is None and not _is_option(small, start, value):
        return None
    if (
        match["sign"] == ":"
        and match["quoted"] is None
        and stem.looks is not None
        and not stem.looks.match(small, value)
    ):
        return None
    if match["quote"] is not None:
        is_empty = small.startswith(match["quote"], value) or (
            match["quoted"] is None and _AFTER_TEXT.match(small, value)
        )
        return None if is_empty else _IN_QUOTES.get(match["quote"], _IN_MANY_BACKSLASHES)
    is_list = match["quoted"] is not None and small[value] in "[{("
    if is_list or _HARMLESS.match(small, value) or _CALL.match(small, value):
        return None
    return stem.rest


def _is_option(small: str, start: int, value: int) -> bool:
    is_option = _OPTION.search(small, max(0, start - _OPTION_CHARS), start) is not None
    return is_option and not small.startswith("-", value)
