"""What is kept of a program's output while it is read: the head of one stream, the tail of the other."""

from __future__ import annotations

import attrs

__all__ = ["Head", "Tail"]


@attrs.define(eq=False)
class Head:
    """Keeps the first `most` bytes.

    Attributes:
        full: More than that came.
    """

    most: int
    kept: bytearray = attrs.field(factory=bytearray)
    full: bool = False

    def take(self, chunk: bytes) -> None:
        """Keep what fits of the next chunk."""
        room = self.most - len(self.kept)
        self.kept += chunk[:room] if len(chunk) > room else chunk
        self.full = self.full or len(chunk) > room


@attrs.define(eq=False)
class Tail:
    """Keeps the last `most` bytes.

    Attributes:
        full: More than that came.
    """

    most: int
    kept: bytearray = attrs.field(factory=bytearray)
    full: bool = False

    def take(self, chunk: bytes) -> None:
        """Keep the next chunk, and let as much of the oldest go."""
        self.kept += chunk[-self.most :]
        excess = len(self.kept) - self.most
        if excess > 0 or len(chunk) > self.most:
            self.full = True
            del self.kept[: max(0, excess)]
