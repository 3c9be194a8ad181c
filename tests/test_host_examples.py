"""Every program in examples/hosts runs, and prints what it is there to show. The web application is in test_web.py."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.hosting import ROOT, run_cells

HOSTS = ROOT / "examples/hosts"

FOUND = "".join(f"{{'result': 'You searched for: {topic}'}}\n" for topic in ("looms", "heddles", "shuttles"))
ENDED = "Nobody waits for the nap any more, and it has ended.\n"
PRINTED = {
    "script.py": FOUND,
    "asyncio_app.py": FOUND + "{'result': 1}\nthe weaver noted: the warp is tight\n" + ENDED,
    "trio_app.py": FOUND + ENDED,
    "notebook.py": FOUND,
}


def test_there_is_no_other_example() -> None:
    assert {path.name for path in HOSTS.glob("*.py")} == {*PRINTED, "web_app.py"}


def test_the_page_on_hosts_leads_to_every_example() -> None:
    linked = re.findall(r"\(\.\./\.\./examples/hosts/(\w+\.py)\)", (ROOT / "docs/explanation/hosts.md").read_text())

    assert {*linked} == {path.name for path in HOSTS.glob("*.py")}


@pytest.mark.parametrize(("name", "printed"), PRINTED.items(), ids=PRINTED)
def test_an_example_prints_what_it_shows(name: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HOSTS / name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_notebook_runs_cell_by_cell_where_a_loop_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)

    run_cells((HOSTS / "notebook.py").read_text())

    assert capsys.readouterr().out == FOUND
