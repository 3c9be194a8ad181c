"""The documentation: what the tutorial shows runs, the reference has every public name, maps show what is there.

python -m tests.test_docs    writes what ``--help`` prints into the page on the command line
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import heddle
from heddle.cli.commands import heddle as command_line
from heddle.results import FailureKind
from tests.site import faults
from tests.test_rooms import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
COMMAND_LINE = "reference/command-line.md"
PACKAGE = Path(heddle.__file__).parent
# Who writes a host, a tool, a test or a runner needs these, and no other.
PUBLIC = [
    "heddle",
    "heddle.aio",
    "heddle.blocking",
    "heddle.callers",
    "heddle.events",
    "heddle.expressions",
    "heddle.operations",
    "heddle.otel",
    "heddle.pipelines",
    "heddle.process",
    "heddle.sandbox",
    "heddle.testing",
    "heddle.tools.exports",
    "heddle.workspace",
]
# What no module lists, because pytest is who asks for it.
FIXTURES = {
    "heddle.testing.pytest_plugin.run_tool",
    "heddle.testing.pytest_plugin.tool_runner",
    "heddle.testing.fixtures.RunTool",
}
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    return (DOCS / name).read_text()


def table(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text, without their heads."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    heads = {number for number, row in enumerate(rows) if set(row[0]) <= {"-", "|"}}
    return [row for number, row in enumerate(rows) if number not in heads and number + 1 not in heads]


# The tutorial


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    """Files are written, commands run in one folder from top to bottom, and what is shown below each is compared."""
    said = ""
    shown, seen = [], []
    for language, title, text in BLOCK.findall(page("tutorial/first-tool.md")):
        if title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(text)
        elif language == "sh":
            said = run(["sh", "-c", text], tmp_path)
        elif language == "text":
            shown.append(without_seconds(text))
            seen.append(without_seconds(said))

    assert shown
    assert seen == shown


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout if done.stdout.endswith("\n") else done.stdout + "\n"


def without_seconds(text: str) -> str:
    return re.sub(r"in \d+\.\d+s", "in some seconds", text)


def test_the_first_page_shows_what_a_call_gives() -> None:
    (_, _, source), (_, _, shown) = BLOCK.findall(page("index.md"))

    assert run([sys.executable, "-c", source], ROOT) == shown


# The reference


def documented() -> Iterator[str]:
    for path in sorted((DOCS / "reference").glob("*.md")):
        yield from re.findall(r"^::: (\S+)$", path.read_text(), re.MULTILINE)


def identity(name: str) -> tuple[str, int]:
    """Return what is the same for one thing that can be reached by two names."""
    room, _, own = name.rpartition(".")
    return own, id(getattr(importlib.import_module(room), own))


def test_every_public_name_has_one_place_in_the_reference() -> None:
    public = {
        identity(f"{room}.{name}"): f"{room}.{name}"
        for room in reversed(PUBLIC)
        for name in importlib.import_module(room).__all__
    } | {identity(name): name for name in FIXTURES}
    places = Counter(identity(name) for name in documented())

    missing = [name for each, name in public.items() if not places[each]]
    twice = [own for (own, _), count in places.items() if count > 1]
    unknown = [name for name in documented() if identity(name) not in public]
    assert (missing, twice, unknown) == ([], [], [])


def test_the_page_on_the_command_line_has_what_help_prints() -> None:
    """In a process of its own: a command keeps the help option that whoever used it first has made."""
    source = "import sys; from tests.test_docs import *; sys.stdout.write(with_help(page(COMMAND_LINE)))"

    assert run([sys.executable, "-c", source], ROOT) == page(COMMAND_LINE)


def with_help(text: str) -> str:
    """Return the page with what ``--help`` of each command prints on a terminal of 80 columns."""
    before, _, rest = text.partition("## `heddle`")
    after = rest.partition("## Exit status")[2]
    helps = ""
    for name in ["", *command_line.commands]:
        result = CliRunner().invoke(command_line, [*name.split(), "--help"], prog_name="heddle", terminal_width=80)
        helps += f"## `{f'heddle {name}'.strip()}`\n\n```text\n{result.output}```\n\n"
    return f"{before}{helps}## Exit status{after}"


@pytest.mark.parametrize("kind", FailureKind)
def test_each_kind_of_failure_stands_on_the_page_of_them(kind: FailureKind) -> None:
    assert f"`{kind}`" in page("reference/failures.md")


# Maps


def test_the_map_of_the_rooms_is_the_order_in_which_they_may_import_each_other() -> None:
    """A room may import those before it: see tests/test_rooms.py."""
    text = page("explanation/walk.md").partition("## The map")[2].partition("\n## ")[0]

    assert [re.findall(r"`(\w+)`", row[0]) for row in table(text)] == ORDER


def test_the_walk_names_kinds_of_failure_that_there_are() -> None:
    steps = table(page("explanation/walk.md").partition("## The map")[0])
    named = {kind for row in steps for kind in re.findall(r"`(\w+)`", row[2])}

    assert named == {"Exit"} | {*FailureKind} - {
        *("unknown_tool", "unsupported"),  # told elsewhere on the page
        *("needs_attention", "conflict", "in_progress"),  # the journal's
    }


@pytest.mark.parametrize("name", ["explanation/walk.md", "contributing.md"])
def test_files_that_a_page_names_are_there(name: str) -> None:
    named = re.findall(r"`((?:heddle|tests|examples|docs)/[\w./]*)`", page(name))

    assert named
    assert [path for path in named if not _is_there(path)] == []


def _is_there(path: str) -> bool:
    return (PACKAGE.parent / path if path.startswith("heddle/") else ROOT / path).exists()


def test_the_page_for_contributors_lists_the_sessions() -> None:
    source = (ROOT / "noxfile.py").read_text()
    sessions = re.findall(r"^@nox\.session.*\ndef (\w+)\(", source, re.MULTILINE)

    listed = [row[0].strip("`") for row in table(page("contributing.md"))]

    assert sorted(listed) == sorted(sessions)


# The site


def navigation(entries: list[object]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for inner in entry.values():
                yield from navigation(inner)


def test_every_page_stands_once_in_the_navigation() -> None:
    site = tomllib.loads(page("site/zensical.toml"))["project"]

    assert sorted(navigation(site["nav"])) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="nosuch.html">x</a>', "a/page.html: nosuch.html leads nowhere"),
        ('<a href="../index.html#nosuch">x</a>', "a/page.html: ../index.html#nosuch leads nowhere"),
        ('<a href="#nosuch">x</a>', "a/page.html: #nosuch leads nowhere"),
        ('<a href="../../outside.py">x</a>', "a/page.html: ../../outside.py leads nowhere"),
        ('<img src="nosuch.png">', "a/page.html: nosuch.png leads nowhere"),
        (
            '<script src="https://example.com/x.js"></script>',
            "a/page.html: https://example.com/x.js comes from the network",
        ),
        ('<link rel="preconnect" href="//example.com">', "a/page.html: //example.com comes from the network"),
    ],
)
def test_a_fault_of_the_site_is_found(tmp_path: Path, html: str, fault: str) -> None:
    folder = site(tmp_path, html)

    assert faults(folder) == [fault]


def test_a_style_that_loads_from_the_network_is_found(tmp_path: Path) -> None:
    folder = site(tmp_path, "")
    (folder / "style.css").write_text("@font-face { src: url('https://example.com/font.woff2') }")

    assert faults(folder) == ["style.css: https://example.com/font.woff2 comes from the network"]


def test_a_site_without_faults_has_none(tmp_path: Path) -> None:
    folder = site(
        tmp_path,
        '<p id="here"><a href="#here">x</a> <a href="..">x</a> <a href="../index.html#top">x</a>'
        '<a href="/tool.py">x</a> <a href="https://example.com">x</a> <a href="../a%20b.html#">x</a></p>',
    )

    assert faults(folder) == []


def site(place: Path, html: str) -> Path:
    """Make a site of a few files, one page of which holds `html`, and a file beside it."""
    (place / "outside.py").write_text("x = 1\n")
    folder = place / "site"
    (folder / "a").mkdir(parents=True)
    (folder / "a/page.html").write_text(html)
    (folder / "index.html").write_text('<h1 id="top">x</h1>')
    (folder / "a b.html").write_text("<p>x</p>")
    (folder / "tool.py").write_text("x = 1\n")
    return folder


if __name__ == "__main__":
    (DOCS / COMMAND_LINE).write_text(with_help(page(COMMAND_LINE)))
