"""What is masked before it is recorded. Secrets are made up here, and put together so that no scanner minds them."""

from __future__ import annotations

import base64
import html
import itertools
import json
import random
import re
import shlex
import subprocess
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import quoteattr

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle.errors import DefinitionError
from heddle.redaction import REDACTED, Redactor, keys, plain, shapes
from heddle.redaction.sieve import Find, Search, Sieve, sifted
from heddle.tools.patterns import matching_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heddle.strictjson import JSON

PAGE = Path(__file__).parent.parent / "docs/explanation/redaction.md"
SECRET = "T4nk-w4ter/and+salt"


def base64_after(count: int) -> Callable[[str], str]:
    """Return what encodes a secret behind `count` other bytes, and before some."""
    return lambda secret: base64.b64encode(b"u" * count + secret.encode() + b"tt").decode()


def in_json(secret: str, *, is_ascii: bool = True, times: int = 1) -> str:
    for _ in range(times):
        secret = json.dumps({"k": secret}, ensure_ascii=is_ascii)
    return secret


ENCODINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": in_json,
    "JSON with all letters": lambda secret: in_json(secret, is_ascii=False),
    "JSON in JSON": lambda secret: in_json(secret, times=2),
    "JSON in JSON with all letters": lambda secret: in_json(secret, is_ascii=False, times=2),
    "URL": lambda secret: quote(secret, safe=""),
    "URL, slashes kept": quote,
    "URL, small digits": lambda secret: re.sub("%..", lambda match: match[0].lower(), quote(secret, safe="")),
    "form": quote_plus,
    "URL component of JavaScript": lambda secret: quote(secret, safe="!'()*"),
    "whole URL of JavaScript": lambda secret: quote(secret, safe="!'()*;/?:@&=+$,#"),
    "base64 after 0 bytes": base64_after(0),
    "base64 after 1 byte": base64_after(1),
    "base64 after 2 bytes": base64_after(2),
    "base64 after 3 bytes": base64_after(3),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(secret.encode()).decode(),
    "base64 in a URL": lambda secret: quote(base64.b64encode(secret.encode()).decode(), safe=""),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "hexadecimal, capitals": lambda secret: secret.encode().hex().upper(),
    "XML text": lambda secret: html.escape(secret, quote=False),
    "HTML": html.escape,
    "XML attribute": quoteattr,
    "shell": shlex.quote,
    "shell, other way": lambda secret: "'" + secret.replace("'", r"'\''") + "'",
    "shell, in quotation marks": lambda secret: '"' + re.sub(r'([\\"$`])', r"\\\1", secret) + '"',
    "Python": repr,
    "Python, JSON": lambda secret: repr(json.dumps({"k": secret, "quote": "'"})),
}
# What stands around a secret: the quotes and braces of the encoding, digits that its neighbours have a part in.
AROUND_IT = {"JSON": r"""[\\{}"k: ]*""", "base64": "[A-Za-z0-9]{0,6}(?:=|%3D){0,2}", "shell": "['\"]?", "XML": '"?',
             "Python, JSON": r"""[\\{}"'k: ,quote]*""", "Python": "'?"}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("secret", ["T4nk-w4ter/and+salt", 'say "it\'s" <50> & pay', "pässwörd-\U0001f511\n\\ok"])
def test_a_known_value_is_masked_in_every_encoding(name: str, secret: str) -> None:
    around = next((around for start, around in AROUND_IT.items() if name.startswith(start)), "")

    masked = Redactor([secret]).text("it said: " + ENCODINGS[name](secret) + " and ended")

    assert re.fullmatch(rf"it said: {around}\[REDACTED\]{around} and ended", masked)


SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=40).filter(
    lambda secret: secret not in REDACTED and len(secret.encode()) < 200
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("name", ENCODINGS)
@given(secret=SECRETS, before=TEXTS, after=TEXTS)
@example(secret="a'b\"c\\d$e`f", before="", after="")
@example(secret="line one\nand 2\n", before="x", after="y")
@example(secret='{"a": "b\\"c"}', before="'", after="'")
@settings(derandomize=True, deadline=None, max_examples=40)
def test_no_known_value_survives_anywhere_in_a_text(name: str, secret: str, before: str, after: str) -> None:
    written = ENCODINGS[name](secret)

    masked = Redactor([secret]).text(before + written + after)

    assert without_edges(name, secret, written) not in masked


def without_edges(name: str, secret: str, written: str) -> str:
    """Return what the secret alone decides, without what stands around it."""
    if name.startswith("base64 after"):
        before = int(name.split()[2])
        return written[-(-8 * before // 6) : 8 * (before + len(secret.encode())) // 6]
    if name.startswith("base64"):
        return re.sub("(=|%3D)*$", "", written)[:-3]
    return written.strip("\"'").removeprefix('{"k": "').removesuffix('"}')


PROGRAMS = {
    "bash's printf": ["bash", "-c", 'printf %q "$SECRET"'],
    "bash's trace": ["bash", "-c", 'set -x; : "$SECRET" 2>&1'],
    "base64": ["bash", "-c", 'printf "user:%s" "$SECRET" | base64 -w0'],
    "od": ["bash", "-c", "printf %s \"$SECRET\" | od -An -v -tx1 | tr -d ' \\n'"],
    "Python's print": ["python3", "-c", "import os; print([os.environ['SECRET']])"],
    "Python's JSON": ["python3", "-c", "import json, os; print(json.dumps([json.dumps(os.environ['SECRET'])]))"],
    "node's JSON": ["node", "-e", "console.log(JSON.stringify([JSON.stringify([process.env.SECRET])]))"],
    "node's URLs": ["node", "-e", "console.log(encodeURIComponent(process.env.SECRET))"],
    "node's forms": ["node", "-e", "console.log(String(new URLSearchParams({k: process.env.SECRET})))"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_real_programs_make_of_a_secret_is_masked(name: str) -> None:
    secret = 'it\'s 100% "salt" & pepper/+~é'
    done = subprocess.run(
        PROGRAMS[name], check=True, env={"SECRET": secret, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )

    masked = Redactor({"SECRET": secret}).text(done.stdout + done.stderr)

    assert REDACTED in masked
    assert not re.search("salt|pepper|73616c74|c2FsdC|zYWx0|NhbHQ", masked)


@pytest.mark.parametrize(
    ("values", "text", "expected"),
    [
        ({"AUTH": "1234567"}, "1234567", "1234567"),
        ({"AUTH": "12345678"}, "12345678", REDACTED),
        ({"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8 mine", "HOME": "/home/me"}, "/usr/bin:/bin C.UTF-8 mine /home/me",
         "/usr/bin:/bin C.UTF-8 mine /home/me"),
        ({"K": "first line\nsecond line\nshort"}, "second line", REDACTED),
        ({"K": "first line\nsecond line\nshort"}, "[first line\r\nsecond line\r\nshort]", f"[{REDACTED}]"),
        ({"K": "first line\nsecond line\nshort"}, "short", "short"),
        ({"K": "  padded-secret \n"}, "<padded-secret>", f"<{REDACTED}>"),
        ({"A": "secret-one", "B": "secret-one-two"}, "secret-one-two secret-one", f"{REDACTED} {REDACTED}"),
        ({"DB": "postgres://app:p%40ssw0rd99@db/x"}, "password p@ssw0rd99 refused", f"password {REDACTED} refused"),
        ({"DB": "Server=db;Password=tr0ub4dor;Encrypt=yes"}, "tr0ub4dor", REDACTED),
        ({"J": '{"user": "app", "api_key": "k-\\u00e9-123456"}'}, "k-é-123456", REDACTED),
        ({"K": "[REDACTED"}, "[REDACTED] is left alone", "[REDACTED] is left alone"),
        (["colour-code"], "\x1b[1mcolour\x1b[0m-\x1b[31mcode\x1b[0m", REDACTED),
        (["a\x1b[1mcolour\x1b[0m-inside"], "a\x1b[1mcolour\x1b[0m-inside", REDACTED),
        (["carriage-return"], "carriage\r-return", REDACTED),
        ({"J": '{"user": "app", "api_key": "no\\xjson"}'}, "no\\xjson", REDACTED),
        (["lone-\ud800-surrogate"], "a lone-\ud800-surrogate", f"a {REDACTED}"),
        (["b\udcffd-bytes"], "b\ufffdd-bytes b\udcffd-bytes", f"{REDACTED} {REDACTED}"),
        ((), "nothing is known", "nothing is known"),
    ],
)  # fmt: skip
def test_values_that_are_masked_and_values_that_are_not(
    values: dict[str, str] | list[str], text: str, expected: str
) -> None:
    assert Redactor(values).text(text) == expected


def test_a_redactor_shows_no_value() -> None:
    redactor = Redactor([SECRET])

    assert SECRET not in f"{redactor!r} {redactor._known!r} {redactor._known._groups!r}"


def test_one_text_in_place_of_several_values_is_refused() -> None:
    """Its letters would be values, and each of them too short."""
    with pytest.raises(DefinitionError) as caught:
        Redactor(SECRET)

    assert str(caught.value) == "Redactor(…) takes several values, not one text"


# Names and shapes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # JSON, and JSON in JSON: the value ends where its string ends.
        ('{"password": "ab\\"c, d", "n": 1}', '{"password": "[REDACTED]", "n": 1}'),
        ('{\\"apiKey\\": \\"ab\\\\\\"c\\", \\"n\\": 1}', '{\\"apiKey\\": \\"[REDACTED]\\", \\"n\\": 1}'),
        ('\\\\\\"secret\\\\\\":\\\\\\"abc\\\\\\"', '\\\\\\"secret\\\\\\":\\\\\\"[REDACTED]"'),
        ("{'client_secret': 'abc', 'x': 1}", "{'client_secret': '[REDACTED]', 'x': 1}"),
        # Assignments
        ("password=ab\"c'd<e, user=x", "password=[REDACTED], user=x"),
        ('"password=abc", "password=abc\\nnext"', '"password=[REDACTED]", "password=[REDACTED]\\nnext"'),
        ("password=abc, user=x", "password=[REDACTED], user=x"),
        ("login(password=b'abc', x=1)", "login(password=b'[REDACTED]', x=1)"),
        ("DB_PASS=abc;x", "DB_PASS=[REDACTED];x"),
        ("PASSWORD: hunter2", "PASSWORD: [REDACTED]"),
        ("passphrase := `abc`", "passphrase := `[REDACTED]`"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "AWS_SECRET_ACCESS_KEY=[REDACTED]"),
        ("token=abc&x=1", "token=[REDACTED]&x=1"),
        ("a token, the token: word, token=abc", "a token, the token: word, token=[REDACTED]"),
        ("token%3Dabc", "token%3D[REDACTED]"),
        ("x-api-key: abc", "x-api-key: [REDACTED]"),
        ("Pwd=abc;", "Pwd=[REDACTED];"),
        ("?sv=1&sig=abc%3D&X-Amz-Signature=0f&se=2", "?sv=1&sig=[REDACTED]&X-Amz-Signature=[REDACTED]&se=2"),
        ("password=[REDACTED]tail", "password=[REDACTED]"),
        ('KEY="x" SECRET="a b" y', 'KEY="x" SECRET="[REDACTED]" y'),
        ("İİ token=abc", "İİ token=[REDACTED]"),
        # Commands
        ("curl --password hunter2 --token=abc -v", "curl --password [REDACTED] --token=[REDACTED] -v"),
        ("['--api-key', 'abc', '-v']", "['--api-key', '[REDACTED]', '-v']"),
        ("--password --verbose", "--password --verbose"),
        # Headers
        ("Authorization: Bearer abc.def123", "Authorization: Bearer [REDACTED]"),
        ("authorization: basic dXNlcjpwYXNz\nHost: x", "authorization: basic [REDACTED]\nHost: x"),
        ("got Bearer dGhpcyBpcyBpdA", "got Bearer [REDACTED]"),
        ("Cookie: a=b; c=d\nHost: x", "Cookie: [REDACTED]\nHost: x"),
        ('Cookie: a="b"; c=d', "Cookie: [REDACTED]"),
        ('"Cookie: a=b", "x"', '"Cookie: [REDACTED]", "x"'),
        ("PRIVATE-TOKEN: abcd1234", "PRIVATE-TOKEN: [REDACTED]"),
        # URLs
        ("https://u:pw@h/x", "https://u:[REDACTED]@h/x"),
        ("git://x-access-token:abc@h", "git://x-access-token:[REDACTED]@h"),
        # Keys
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIE+/=\n-----END RSA PRIVATE KEY-----\nok",
            "-----BEGIN RSA PRIVATE KEY-----[REDACTED]-----END RSA PRIVATE KEY-----\nok",
        ),
        (
            '"private_key": "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----\\n"',
            '"private_key": "-----BEGIN PRIVATE KEY-----[REDACTED]-----END PRIVATE KEY-----\\n"',
        ),
    ],
)  # fmt: skip
def test_what_a_name_or_its_surroundings_call_secret_is_masked(text: str, expected: str) -> None:
    assert Redactor().text(text) == expected
    assert Redactor().text(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        # What parsers, tests and language models say of tokens
        "Unexpected token: '}'", "error: token: expected identifier", "token : unexpected", "max_tokens: 4096",
        "tokens=512 token_count=7", "token_type: bearer", "PASS: TestFoo1Bar", "token=<your token>",
        # Source code in tracebacks
        "self.token = self.lexer.next()", "token=self.lexer.next(1)", "if token == 'def1234567': pass",
        "self._token: trio.lowlevel.TrioToken | None = None", "input('Password: ', file)", 'print("token=" + text)',
        "password = None", "a basic MIMEImage, basic DTD-related", "pwd: expected bytes",
        # Other names
        "key: value", "monkey=banana", "primary_key=12345678", "public_key: abcd1234", "author: abcdefg1",
        "bypass: 1234abcd", "PWD=/root/x", "passwordless: 12345678", "secret_name: my-app", "cookie: chocolate",
        # Sentences
        "Bearer token is missing", "bearer of news", "Basic authentication failed", "the secret `foo` is missing",
        "password: must have 8 characters", "secret: not found", "no secret here",
        # Nothing at all, and what is no text
        "password: ", "password=", "password=''", "token: ''", '{"test/pass": [1, "x"], "auth": {"a": 1}}',
        '{"token": "", "token": null, "token": true, "token": 12}',
        # Shapes
        "http://localhost:8080/a@b", "postgres://db:5432/x", "eyJhIjoxfQ", "task-1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d",
        "sk-learn-is-a-name-with-many-hyphens-in-it", "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
    ],
)  # fmt: skip
def test_ordinary_words_stay(text: str) -> None:
    assert Redactor().text(text) == text


RANDOM = random.Random(20)
LETTERS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def some(count: int, letters: str = LETTERS) -> str:
    return "".join(RANDOM.choices(letters, k=count))


HEX, UPPER = "0123456789abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
TOKENS: dict[str, Callable[[], str]] = {
    "GitHub": lambda: RANDOM.choice(["ghp", "gho", "ghu", "ghs", "ghr"]) + "_" + some(36),
    "GitHub, fine-grained": lambda: "github_pat_" + some(22) + "_" + some(59),
    "GitLab": lambda: RANDOM.choice(["glpat", "gldt", "glrt", "glcbt", "gloas"]) + "-" + some(20),
    "Slack": lambda: f"xox{RANDOM.choice('abop')}-{some(11, '123456789')}-{some(11, '123456789')}-{some(24)}",
    "Slack, app": lambda: f"xapp-1-A{some(10, UPPER)}-{some(13, '123456789')}-{some(64, HEX)}",
    "OpenAI": lambda: "sk-proj-" + some(74) + "T3BlbkFJ" + some(74),
    "OpenAI, old": lambda: "sk-" + some(20) + "T3BlbkFJ" + some(20),
    "Anthropic": lambda: "sk-ant-api03-" + some(93) + "AA",
    "Stripe": lambda: RANDOM.choice(["sk", "rk"]) + "_live_" + some(24),
    "AWS": lambda: RANDOM.choice(["AKIA", "ASIA"]) + some(16, UPPER),
    "Google": lambda: "AIza" + some(35),
    "Google, OAuth": lambda: "ya29." + some(60),
    "npm": lambda: "npm_" + some(36),
    "PyPI": lambda: "pypi-AgEIcHlwaS5vcmc" + some(120),
    "Hugging Face": lambda: "hf_" + some(34),
    "SendGrid": lambda: f"SG.{some(22)}.{some(43)}",
    "Shopify": lambda: "shpat_" + some(32, HEX),
    "Vault": lambda: "hvs." + some(90),
    "Databricks": lambda: "dapi" + some(32, HEX),
    "JSON web token": lambda: ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "kid": some(20)}, {"sub": some(12)})
    ) + "." + some(43),
}  # fmt: skip
AROUND = [("", ""), ("key ", " was refused"), ("url?x=1%3D", "&y"), ('["', '"]'), ("(", ")"), ("a/", "\n")]


@pytest.mark.parametrize("issuer", TOKENS)
def test_a_token_of_a_known_shape_is_masked_whole(issuer: str) -> None:
    for before, after in AROUND:
        token = TOKENS[issuer]()

        assert Redactor().text(before + token + after) == before + REDACTED + after


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from patterns_in(each)
    elif isinstance(value, dict):
        yield from patterns_in(list(value.values()))
    elif isinstance(value, (keys._Stem, shapes._Scheme)):
        yield from patterns_in(attrs.astuple(value, recurse=False))


def test_no_pattern_can_take_more_than_linear_time() -> None:
    """The same judgement as of patterns in schemas, where the cost of a search counts one degree more."""
    compiled = {
        pattern.pattern
        for module in (keys, shapes, plain)
        for value in vars(module).values()
        for pattern in patterns_in(value)
    }

    slow = {pattern for pattern in compiled if matching_cost(pattern) != 1}

    assert len(compiled) > 50
    # Its first part has at most 512 characters, and begins where no such character precedes it.
    assert {pattern[:3] for pattern in slow} == {"eyJ"}
    assert len(slow) == 1


# Streams

FRAGMENTS = st.one_of(
    st.sampled_from(
        [
            *("password", "token", "api_key", "auth", "cookie", "secret", "--", "bearer ", "basic ", "pass", "&sig"),
            *("=", ":", ": ", " = ", "%3D", '"', "'", '\\"', "\\", "`", "\n", " ", ", ", "&", "(", "@", "/", "."),
            *("\x1b[31m", "\x1b", "\x1b]8;;http://x\x07", "\x9b", "\r", "\r\n", "true", "12345", "a1b2c3d4e5", "x"),
            *("-----BEGIN PRIVATE KEY-----", "-----END", "-", "://", "://u:pw@h", "ghp_", "sk-", "eyJhbGciOi", ".eyJ"),
            *(SECRET, SECRET[:9], SECRET[9:], "one\ntwo-and-three", "é", "\ud800", "\ufffd", "İ"),
        ]
    ),
    st.builds(str.__mul__, st.sampled_from(["a", "a1", " ", "-", "ab\n", "\\"]), st.integers(0, 1500)),
)
LONG_TEXTS = st.lists(FRAGMENTS, max_size=40).map("".join)


def pieces_of(text: str, sizes: Sequence[int]) -> Iterator[str]:
    at = 0
    for size in itertools.cycle(sizes):
        if at >= len(text):
            return
        yield text[at : at + size]
        at += size


@given(text=LONG_TEXTS, sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5))
@example(text="password=" + "x" * 9000 + " end", sizes=[1000])
@example(text='password="' + "x\\" * 4501 + '"y', sizes=[999])
@example(text="x" * 2000 + SECRET, sizes=[2000 + 5, 3])
@settings(derandomize=True, deadline=None, max_examples=400)
def test_a_stream_gives_what_the_whole_text_gives(text: str, sizes: list[int]) -> None:
    redactor = Redactor([SECRET, "one\ntwo-and-three"])
    stream = redactor.stream()

    out = "".join([*(stream.feed(piece) for piece in pieces_of(text, sizes)), stream.finish()])

    assert out == redactor.text(text)


@pytest.mark.parametrize(
    "unit",
    [
        "x --my-own-db-password hunter2 ",
        "encryption_key=abc ",
        "a%3D" + "ghp_" + "a1" * 18 + " ",
        "a=1&X-Amz-Signature=0f0f0f0f ",
        f"[{SECRET}] ",
        "eyJ" + "a1" * 150 + ".eyJ" + "b2" * 30 + " ",
        "token = " + "a" * 60 + ".b(1) ",
        "https://" + "u" * 100 + ":" + "p" * 400 + "@h ",
        "\x1b]8;;http://x/" + "y" * 300 + "\x07link ",
    ],
)
def test_no_place_in_a_text_is_special(unit: str) -> None:
    """Wherever a piece ends and wherever it is decided, what stands before and behind is still seen."""
    redactor = Redactor([SECRET])
    text = unit * (12_000 // len(unit))
    expected = redactor.text(text)

    for size in range(700, 700 + min(len(unit), 40)):
        stream = redactor.stream()

        assert "".join([*(stream.feed(piece) for piece in pieces_of(text, [size])), stream.finish()]) == expected


class Toy:
    """Finds ``k=`` with all small letters behind it, and ``xyz``: few characters decide, so that borders matter."""

    reach = 3

    def searches(self, text: str) -> list[Search]:
        def assigned(at: int) -> Find | None:
            match = re.compile("(?<!-)k=(?=[a-z])").search(text, at)
            return (
                None
                if match is None
                else Find(match.start(), match.end(), match.end(), re.compile("(?:[a-z]|-[a-z])*"))
            )

        def literal(at: int) -> Find | None:
            start = text.find("xyz", at)
            return None if start < 0 else Find(start, start, start + 3)

        return [literal, assigned]


@given(text=st.text("k=xyz- ", max_size=60), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@settings(derandomize=True, deadline=None, max_examples=500)
def test_a_sieve_does_not_care_where_pieces_end(text: str, sizes: list[int]) -> None:
    sieve = Sieve(Toy())
    sieve._enough = 0  # look at every piece at once

    out = "".join([*(sieve.feed(piece) for piece in pieces_of(text, sizes)), sieve.finish()])

    assert out == sifted(text, Toy())


@given(text=LONG_TEXTS, size=st.integers(1, 50))
@settings(derandomize=True, deadline=None, max_examples=50)
def test_bytes_are_decoded_across_pieces(text: str, size: int) -> None:
    data = text.encode("utf-8", "surrogatepass") + b"\xf0\x9f"
    redactor = Redactor([SECRET])
    stream = redactor.stream()

    out = "".join([*(stream.feed(data[at : at + size]) for at in range(0, len(data), size)), stream.finish()])

    assert out == redactor.text(data.decode("utf-8", "replace"))


def test_a_stream_takes_text_after_bytes_and_another_text_after_its_end() -> None:
    stream = Redactor([SECRET]).stream()

    first = stream.feed(b"a\xc3") + stream.feed(f"b{SECRET[:5]}") + stream.feed(SECRET[5:]) + stream.finish()
    second = stream.feed(SECRET[:5]) + stream.finish()

    assert (first, second) == ("a\ufffdb[REDACTED]", SECRET[:5])


def test_a_stream_holds_back_little_whatever_comes() -> None:
    """Lines without an end, and secrets without one, must not collect in memory."""
    stream = Redactor([SECRET]).stream()
    piece = "x" * 65_536
    tracemalloc.start()
    try:
        out = stream.feed("password=")
        for _ in range(100):
            out += stream.feed(piece)
        secret_peak = tracemalloc.get_traced_memory()[1]
        out += stream.feed(" is over. ")
        plain_out = sum(len(stream.feed("-" * 65_536)) for _ in range(20))
    finally:
        tracemalloc.stop()

    assert out == "password=[REDACTED]"
    assert secret_peak < 20 * len(piece)
    assert 20 * 65_536 - plain_out < 8192


# Texts that were cut


@pytest.mark.parametrize("cut", range(4, len(SECRET)))
def test_what_is_left_of_a_secret_at_a_cut_is_masked(cut: int) -> None:
    redactor = Redactor([SECRET])

    start = redactor.text(SECRET[cut:] + " more", cut_before=True)
    end = redactor.text("more " + SECRET[:cut], cut_after=True)

    assert end == "more " + REDACTED
    assert start == (REDACTED + " more" if len(SECRET) - cut >= 4 else SECRET[cut:] + " more")


def test_a_piece_that_stands_in_a_secret_twice_is_found_where_it_fits() -> None:
    redactor = Redactor(["xkey1-key1-end", "beg-key1-key1x"])

    assert redactor.text("key1-end is it", cut_before=True) == f"{REDACTED} is it"
    assert redactor.text("it is beg-key1", cut_after=True) == f"it is {REDACTED}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f a1b2c3d4\nnext line\nlast", "next line\nlast"),
        ("only one line", "only one line"),
        ("only one line\n", "only one line\n"),
        ("x" * 5000 + "\nlast", "x" * 5000 + "\nlast"),
        ("", ""),
        ("of a key\n-ends-here\nlast", f"{REDACTED}\nlast"),
    ],
)
def test_the_first_line_of_what_was_cut_is_dropped(text: str, expected: str) -> None:
    """It may begin inside a secret that nothing shows to be one any more."""
    assert Redactor(["the middle of a key\n-ends-here"]).text(text, cut_before=True) == expected


# JSON


def test_strings_in_json_are_masked_and_the_rest_stays() -> None:
    value: JSON = {
        "note": f"use {SECRET} here\r\n",
        "calm": "nothing\r\nhere",
        SECRET: 1,
        "password": "short",
        "apiKey": {"value": "kept", "token": "t"},
        "secrets": ["a", 5, ["b"], {"c": "d"}],
        "token": 123456789,
        "auth": True,
        "credential": None,
        "passphrase": "",
        "key": "k",
        "list": ["Bearer abcdefgh1", 1.5],
    }

    masked = Redactor([SECRET]).json(value)

    assert masked == {
        "note": f"use {REDACTED} here\n",
        "calm": "nothing\r\nhere",
        SECRET: 1,
        "password": REDACTED,
        "apiKey": {"value": "kept", "token": REDACTED},
        "secrets": [REDACTED, 5, [REDACTED], {"c": REDACTED}],
        "token": 123456789,
        "auth": True,
        "credential": None,
        "passphrase": "",
        "key": "k",
        "list": ["Bearer [REDACTED]", 1.5],
    }


@pytest.mark.parametrize("name", ["password", "DB_PASS", "clientSecret", "x-api-key", "Authorization", "access.token",
                                  "PASSWORD_2", "secretKey", "set-cookie", "private_key_b64"])  # fmt: skip
def test_a_secret_like_key_hides_its_string(name: str) -> None:
    assert Redactor().json({name: "x"}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["key", "tokens", "token_type", "author", "bypass", "monkey", "secret_name", "pwd",
                                  "publicKey", "signature", "password_policy"])  # fmt: skip
def test_another_key_does_not(name: str) -> None:
    assert Redactor().json({name: "x"}) == {name: "x"}


SCHEMA: dict[str, object] = {
    "$defs": {
        "pin": {"type": "string", "writeOnly": True},
        "tree": {"properties": {"leaf": {"$ref": "#/$defs/pin"}, "next": {"$ref": "#/$defs/tree"}}},
        "named": {"$anchor": "named", "format": "password"},
        "a/b": {"writeOnly": True},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "type": "object",
    "properties": {
        "plain": {"type": "string", "writeOnly": "no", "format": "email"},
        "pin": {"$ref": "#/$defs/pin"},
        "tree": {"$ref": "#/$defs/tree"},
        "named": {"$ref": "#named"},
        "escaped": {"$ref": "#/$defs/a~1b"},
        "lost": {"$ref": "#/$defs/none/0"},
        "far": {"$ref": "https://example.com/schema"},
        "nameless": {"$ref": "#nowhere", "items": 5},
        "loop": {"$ref": "#/$defs/loop"},
        "listed": {"items": {"format": "password"}},
        "pair": {"prefixItems": [{}, {"writeOnly": True}], "items": {"type": "string"}},
        "first": {"items": [{"writeOnly": True}], "additionalItems": {}},
        "by_index": {"$ref": "#/properties/pair/prefixItems/1"},
        "choice": {"anyOf": [{"type": "integer"}, {"allOf": [{"writeOnly": True}]}]},
        "if": {"if": {}, "then": {"properties": {"x": {"writeOnly": True}}}},
        "whole": {"writeOnly": True, "type": "object"},
        "bool": True,
    },
    "patternProperties": {"^x-": {"format": "password"}},
    "additionalProperties": {"type": "string"},
}


def test_what_a_schema_marks_is_masked() -> None:
    """JSON Schema 2020-12: writeOnly is an annotation, so any schema that judges the value may carry it."""
    arguments: JSON = {
        "plain": "a", "pin": "b", "tree": {"leaf": "c", "next": {"next": {"leaf": "d", "other": "e"}}}, "named": "f",
        "escaped": "g", "lost": "h", "far": "i", "loop": "j", "listed": ["k", 1], "pair": ["l", "m", "n"],
        "nameless": "z", "first": ["o", "p"], "by_index": "q", "choice": "r", "if": {"x": "s", "y": "t"},
        "whole": {"u": ["v", 7, {"w": "x"}], "empty": ""}, "bool": "y",
    }  # fmt: skip

    masked = Redactor().arguments(arguments, {**SCHEMA, "patternProperties": {}})

    assert masked == {
        "plain": "a", "pin": REDACTED, "tree": {"leaf": REDACTED, "next": {"next": {"leaf": REDACTED, "other": "e"}}},
        "named": REDACTED, "escaped": REDACTED, "lost": "h", "far": "i", "loop": "j", "listed": [REDACTED, 1],
        "pair": ["l", REDACTED, "n"], "first": [REDACTED, "p"], "by_index": REDACTED, "choice": REDACTED,
        "nameless": "z", "if": {"x": REDACTED, "y": "t"}, "bool": "y",
        "whole": {"u": [REDACTED, 7, {"w": REDACTED}], "empty": ""},
    }  # fmt: skip


def test_patterns_of_names_are_not_tried() -> None:
    """One may take for ever; what any of them marks is masked."""
    schema = {"patternProperties": {"^(x+x+)+y$": {"writeOnly": True}}, "additionalProperties": {"format": "password"}}

    assert Redactor().arguments({"x" * 64: "a"}, schema) == {"x" * 64: REDACTED}
    assert Redactor().arguments({"a": ["b"]}, {"additionalProperties": {"writeOnly": True}}) == {"a": [REDACTED]}


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "x-y", "token"]), inner),
    max_leaves=12,
)


@given(value=JSONS)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_json_keeps_its_form(value: JSON) -> None:
    def outline(value: JSON) -> object:
        if isinstance(value, dict):
            return {name: outline(item) for name, item in value.items()}
        if isinstance(value, list):
            return [outline(item) for item in value]
        return str if isinstance(value, str) else value

    assert outline(Redactor().json(value)) == outline(value)
    assert outline(Redactor().arguments(value, SCHEMA)) == outline(value)


# Whatever comes


@given(text=st.text(st.characters()), secret=st.text(st.characters(), min_size=8))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_no_text_makes_it_raise(text: str, secret: str) -> None:
    redactor = Redactor({"NAME": secret})
    stream = redactor.stream()

    whole = redactor.text(text + secret + text)

    assert secret not in whole or secret in REDACTED
    assert stream.feed(text) + stream.feed(secret + text) + stream.finish() == whole
    redactor.text(text, cut_before=True, cut_after=True)
    assert redactor.json([text, {text: secret}]) is not None


# What the page says


def lines_of(make: Callable[[random.Random], str]) -> list[str]:
    source = random.Random(7)
    return [make(source) for _ in range(1000)]


def sentence(source: random.Random) -> str:
    words = [
        "the",
        "token",
        "key",
        "of",
        "pass",
        "author",
        "secret",
        "agent",
        "reads",
        "a",
        "cookie",
        "is",
        "basic",
        "auth",
    ]
    return " ".join(source.choices(words, k=12)) + "."


def words_of(source: random.Random, count: int, letters: str = HEX) -> str:
    return "".join(source.choices(letters, k=count))


HARMLESS: dict[str, Callable[[random.Random], str]] = {
    "sentences with words like token, key, secret": sentence,
    "git commits and SHA-256 sums": lambda source: f"{words_of(source, 40)} sha256:{words_of(source, 64)}",
    "UUIDs": lambda source: str(uuid.UUID(int=source.getrandbits(128))),
    "ULIDs": lambda source: words_of(source, 26, "0123456789ABCDEFGHJKMNPQRSTVWXYZ"),
    "paths": lambda source: "/".join(["", "home", *(words_of(source, 8, LETTERS) for _ in range(6))]) + "/token.py:12",
    "URLs without a password": lambda source: f"https://example.com:8443/{words_of(source, 12)}?page={source.random()}",
    "pictures in base64": lambda source: base64.b64encode(source.randbytes(3000)).decode(),
    "web log lines": lambda source: (
        f'10.0.0.{source.randrange(255)} - - [01/Jan/2025:12:00:00 +0000] "GET /{words_of(source, 8)} HTTP/1.1" 200 '
        f'{source.randrange(9999)} "-" "Mozilla/5.0"'
    ),
    "tracebacks of parsers": lambda source: (
        f'File "/usr/lib/x.py", line {source.randrange(999)}, in parse\n'
        f"    token = self.lexer.next(position={source.random()})\n"
        f"SyntaxError: unexpected token: {source.choice(['identifier', 'number', 'end of file'])}"
    ),
    "counts of tokens": lambda source: (
        f'{{"max_tokens": {source.randrange(99999)}, "usage": {{"total_tokens": {source.randrange(99999)}}}}}'
    ),
    "settings named after secrets: `auth=basic`": lambda source: (
        f"{source.choice(['auth', 'token', 'secret'])}={source.choice(['basic', 'ldap', 'csrf', 'file'])}"
    ),
    "certificates": lambda source: (
        f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(source.randbytes(600)).decode()}-----END CERTIFICATE-----"
    ),
}


PRINTABLE = "".join(chr(code) for code in range(33, 127))
# What stands before a secret, the secret as it is written, what stands behind.
UNSHAPED: dict[str, Callable[[random.Random], tuple[str, str, str]]] = {
    "`password=…`, letters and digits": lambda source: ("password=", words_of(source, 16, LETTERS), " x"),
    "`password=…`, any character without a space": lambda source: ("password=", words_of(source, 16, PRINTABLE), " x"),
    '`{"password": "…"}`, any character': lambda source: (
        *('{"password": "', json.dumps(words_of(source, 16, PRINTABLE))[1:-1], '"}'),
    ),
    "`--password …`, letters and digits": lambda source: ("login --password ", words_of(source, 16, LETTERS), " -v"),
    "`token: …`, letters and digits": lambda source: ("token: ", words_of(source, 24, LETTERS), "\n"),
    "`Authorization: Bearer …`, letters and digits": lambda source: (
        *("Authorization: Bearer ", words_of(source, 24, LETTERS), "\n"),
    ),
    "`Authorization: Basic …`": lambda source: (
        *("Authorization: Basic ", base64.b64encode(source.randbytes(24)).decode(), "\n"),
    ),
    "`https://name:…@host/`, letters and digits": lambda source: ("https://n:", words_of(source, 16, LETTERS), "@h/"),
    "`the password is …`": lambda source: ("the password is ", words_of(source, 16, LETTERS), "."),
    "64 hexadecimal digits alone": lambda source: ("", words_of(source, 64), ""),
}


def rows(text: str, head: str) -> dict[str, str]:
    """Return the first two columns of the table on the page that has this head."""
    table = text.partition(f"| {head} |")[2].split("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    return {cell[0].strip(): cell[1].strip() for cell in cells}


def test_the_page_tells_how_much_harmless_text_stays() -> None:
    redactor = Redactor([SECRET])
    measured = {
        kind: f"{sum(redactor.text(line) == line for line in lines_of(make)) / 10:.1f} %"
        for kind, make in HARMLESS.items()
    }

    assert rows(PAGE.read_text(), "1,000 harmless texts") == measured


def test_the_page_tells_how_much_is_found_without_being_known() -> None:
    measured = {}
    for issuer, make in TOKENS.items():
        tokens = [make() for _ in range(1000)]
        measured[issuer] = f"{sum(REDACTED in Redactor().text(f'got {token}!') for token in tokens) / 10:.1f} %"

    assert rows(PAGE.read_text(), "1,000 tokens") == measured


def test_the_page_tells_how_much_is_found_by_its_surroundings() -> None:
    redactor = Redactor()
    source = random.Random(7)
    measured = {}
    for kind, make in UNSHAPED.items():
        parts = [make(source) for _ in range(1000)]
        found = sum(redactor.text(before + it + after) == before + REDACTED + after for before, it, after in parts)
        measured[kind] = f"{found / 10:.1f} %"

    assert rows(PAGE.read_text(), "1,000 secrets by what stands around them") == measured
