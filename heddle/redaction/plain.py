"""Text as it would be read: without carriage returns and without what only steers a terminal."""

from __future__ import annotations

import re

__all__ = ["Plain", "plain"]

# No sequence holds the beginning of another, so a text may be cut in front of any. What has no end is taken as well.
# Source: ECMA-48, sections 5.3 to 5.6 and 8.3.89 (OSC); xterm ends an OSC with BEL too.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,60}[ -/]{0,4}[@-~]?"  # colours, moving about
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9b\x9d\n]{0,500}\x07?"  # titles and links
    r"|\x1b(?:[ -/]{0,4}[0-~])?"
)
_SIGNS = ("\x1b", "\x9b", "\x9d")
_BEGINNING = re.compile(f"[{''.join(_SIGNS)}]")
_LONGEST = 504


def plain(text: str) -> str:
    """Return `text` without carriage returns and terminal sequences."""
    text = text.replace("\r", "")
    return _SEQUENCE.sub("", text) if any(sign in text for sign in _SIGNS) else text


class Plain:
    """Does what `plain` does to a text that comes in pieces. Holds back only a sequence that has not ended."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain."""
        text = self._held + text.replace("\r", "")
        open_ = _BEGINNING.search(text, max(0, len(text) - _LONGEST))
        end = len(text) if open_ is None else open_.start()
        self._held = text[end:]
        return plain(text[:end])

    def finish(self) -> str:
        """Return what was held back."""
        text, self._held = plain(self._held), ""
        return text
