"""What looks like a secret without a name: tokens with a known prefix, private keys, passwords in URLs, Bearer."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import attrs

from heddle.redaction.sieve import Find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.redaction.sieve import Search

__all__ = ["shape_searches"]

# The first part of a token decides; what follows it in the same characters is masked with it. Lengths are those that
# the issuers name, or a little less, because they have grown before. No pattern may take more than a few hundred steps.
# Sources: the issuers' own pages as named; "rules": config/gitleaks.toml of github.com/gitleaks/gitleaks.
_TOKENS = (
    ("gh", r"[opsur]_[A-Za-z0-9]{36}"),  # GitHub: github.blog/changelog/2021-03-31-authentication-token-format-updates…
    ("github_pat_", r"[A-Za-z0-9]{22}_"),  # GitHub, fine-grained: rules
    ("gl", r"(?:pat|oas|dt|rtr?|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[\w.-]{20}"),  # docs.gitlab.com: token overview
    ("xox", r"[abceoprs](?:\.xox[bp])?-[\w-]{10}"),  # docs.slack.dev: tokens, token rotation
    ("xapp-", r"[0-9]-[A-Z0-9]{6}"),  # Slack, app-level: rules
    ("sk-ant-", r"[a-z0-9]{3,10}-[\w-]{20}"),  # Anthropic: rules
    ("sk-", r"(?:proj|svcacct|admin)-[\w-]{20}"),  # OpenAI: rules
    ("sk-", r"(?=[\w-]{0,31}[0-9])[\w-]{32}"),  # OpenAI of old, and who followed; hyphened words have no digits
    ("sk_", r"(?:live|test|prod)_[A-Za-z0-9]{10}"),  # Stripe: docs.stripe.com/keys
    ("rk_", r"(?:live|test|prod)_[A-Za-z0-9]{10}"),
    ("whsec_", r"[A-Za-z0-9+/]{24}"),
    ("A", r"(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}"),  # AWS: IAM user guide, unique identifiers
    ("AIza", r"[\w-]{35}"),  # Google, API keys: rules
    ("ya29.", r"[\w-]{20}"),  # Google, OAuth
    ("GOCSPX-", r"[\w-]{20}"),
    ("npm_", r"[A-Za-z0-9]{36}"),  # npm: rules
    ("pypi-", r"[\w-]{60}"),  # PyPI: its API for reporting secrets names 85
    ("hf_", r"[A-Za-z0-9]{30}"),  # Hugging Face
    ("do", r"[opr]_v1_[a-f0-9]{40}"),  # DigitalOcean
    ("SG.", r"[\w-]{16,32}\.[\w-]{16}"),  # SendGrid: rules
    ("dapi", r"[0-9a-f]{32}"),  # Databricks
    ("shp", r"(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),  # Shopify: rules
    ("hv", r"[bs]\.[\w-]{24}"),  # HashiCorp Vault: rules
    ("glsa_", r"[A-Za-z0-9]{32}_"),  # Grafana, service accounts
    ("gsk_", r"[A-Za-z0-9]{40}"),  # Groq
    ("pplx-", r"[A-Za-z0-9]{40}"),  # Perplexity: rules
    ("ntn_", r"[A-Za-z0-9]{40}"),  # Notion: rules
    ("pscale_", r"(?:tkn|oauth|pw)_[\w=.-]{32}"),  # PlanetScale: rules
    ("ATATT3", r"[\w-]{40}"),  # Atlassian: rules
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{40}"),  # age: rules
    ("sntry", r"[su]_[\w+/=-]{20}"),  # Sentry: rules
    ("eyJ", r"[\w-]{8,512}\.eyJ[\w-]{8}"),  # JSON web tokens: RFC 7519; {" in base64, twice
)


def _token(start: str, rest: str) -> re.Pattern[str]:
    """Return what matches a token that stands alone, or behind a character that a URL had to encode."""
    # The start comes first: a search for some letters is quick.
    begin = re.escape(start)
    return re.compile(rf"{begin}(?:(?<![\w-]{begin})|(?<=%[0-9A-Fa-f]{{2}}{begin})){rest}", re.ASCII)


_TOKEN_PATTERNS = tuple(_token(start, rest) for start, rest in _TOKENS)
_TOKEN_REST = re.compile(r"(?:[\w-]+|[.=~+/][\w-])*", re.ASCII)

# Source: RFC 7468, RFC 4880 section 6.2. The end of such a key is two hyphens; its headers hold single ones.
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?=[\s\\])")
_PRIVATE_KEY_REST = re.compile(r"(?:[A-Za-z0-9+/=\s\\:,.]+|-[A-Za-z0-9])*")

_URL = re.compile(r"""://[^\s/:@"'<>]{0,128}:(?=[^\s/@"'<>]{1,512}@)""")
_URL_REST = re.compile(r"""[^\s/@"'<>]*""")


@attrs.frozen
class _Scheme:
    """How a header says who asks.

    Attributes:
        word: In small letters.
        looks: What follows is no word of prose: it has a digit, a sign of base64, or a capital inside.
        group: Its characters come in groups of so many.
    """

    word: str
    looks: re.Pattern[str]
    group: int = 1


# Source: RFC 6750 and RFC 7617.
_SCHEMES = (
    _Scheme("bearer", re.compile(r"(?=[\w.~+/=-]{8})(?:[\w.~+/=-]{0,40}[0-9+/=]|[\w.~+/=-]{1,40}[A-Z])", re.ASCII)),
    _Scheme(
        "basic",
        re.compile(
            r"(?=[A-Za-z0-9+/]{0,40}[0-9+/=]|[A-Za-z0-9+/]{1,40}[A-Z])"
            r"(?:[A-Za-z0-9+/]{60}|[A-Za-z0-9+/]{6,59}={0,2}(?![\w+/=-]))"
        ),
        group=4,
    ),
)
_AFTER_SCHEME = re.compile(r"(?:[ \t+]{1,4}|%20)")
_SCHEME_REST = re.compile(r"[\w.~+/=-]*", re.ASCII)


def shape_searches(text: str, folded: str) -> Iterator[Search]:
    """Yield what may find something in `text`; `folded` is it in small letters."""
    for pattern in _TOKEN_PATTERNS:
        yield partial(_hidden_whole, pattern, _TOKEN_REST, text)
    if "PRIVATE KEY" in text:
        yield partial(_hidden_behind, _PRIVATE_KEY, _PRIVATE_KEY_REST, text)
    if "://" in text and "@" in text:
        yield partial(_hidden_behind, _URL, _URL_REST, text)
    for scheme in _SCHEMES:
        if scheme.word in folded:
            yield partial(_behind_scheme, scheme, text, folded)


def _hidden_whole(pattern: re.Pattern[str], rest: re.Pattern[str], text: str, at: int) -> Find | None:
    match = pattern.search(text, at)
    return None if match is None else Find(match.start(), match.start(), match.end(), rest)


def _hidden_behind(pattern: re.Pattern[str], rest: re.Pattern[str], text: str, at: int) -> Find | None:
    match = pattern.search(text, at)
    return None if match is None else Find(match.start(), match.end(), match.end(), rest)


def _behind_scheme(scheme: _Scheme, text: str, folded: str, at: int) -> Find | None:
    while (start := folded.find(scheme.word, at)) >= 0:
        at = start + len(scheme.word)
        space = _AFTER_SCHEME.match(text, at)
        found = None if space is None else scheme.looks.match(text, space.end())
        if space is not None and found is not None and len(found[0]) % scheme.group == 0:
            return Find(start, space.end(), space.end(), _SCHEME_REST)
    return None
