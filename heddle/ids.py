"""Names for operations and attempts that are new: unlike any other, and in the order in which they were made.

They are ULIDs: 48 bits of time in milliseconds and 80 of chance, in the 26 characters of Crockford's base 32.
Source: the ULID specification, canonical string representation.
"""

from __future__ import annotations

import hashlib
import os
import time

__all__ = ["ID_CHARS", "MOST_ID_CHARS", "fresh_id", "part_of"]

ID_CHARS = 26
# Longer than any id in use; it has to fit an environment variable and a request.
MOST_ID_CHARS = 255
# No I, L, O and U, which people misread or would rather not read.
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)
_CHANCE_BYTES = 10


def part_of(operation_id: str, step: str) -> str:
    """Return the id of a part of an operation: the same each time that the operation is tried."""
    name = f"{operation_id}/{step}"
    if len(name) <= MOST_ID_CHARS:
        return name
    return hashlib.sha256(name.encode()).hexdigest()


def fresh_id() -> str:
    """Return an id that was never given before; a later one sorts behind it, unless both are of one millisecond."""
    number = time.time_ns() // 1_000_000 << 8 * _CHANCE_BYTES | int.from_bytes(os.urandom(_CHANCE_BYTES))
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])
