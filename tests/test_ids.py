"""Names of operations and attempts."""

from __future__ import annotations

import re
import time

from heddle.ids import ID_CHARS, fresh_id


def test_an_id_is_one_that_people_and_other_programs_know_how_to_read() -> None:
    """A ULID: the time is in its first ten characters, and what people misread is in none."""
    before = time.time_ns() // 1_000_000
    made = fresh_id()
    after = time.time_ns() // 1_000_000

    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    when = sum(digits.index(digit) * 32**place for place, digit in enumerate(reversed(made[:10])))

    assert re.fullmatch(f"[{digits}]{{{ID_CHARS}}}", made)
    assert before <= when <= after


def test_no_two_are_alike_and_a_later_one_sorts_behind() -> None:
    made = [fresh_id() for _ in range(10_000)]
    time.sleep(0.002)
    later = fresh_id()

    assert len(set(made)) == len(made)
    assert [one[:10] for one in made] == sorted(one[:10] for one in made)
    assert later > max(made)
