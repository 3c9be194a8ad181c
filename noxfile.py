"""The project's checks. ``nox -l`` lists them; ``nox`` alone runs tests, lint and typing."""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["tests", "lint", "typing"]

PROJECT = nox.project.load_toml("pyproject.toml")
TEST = nox.project.dependency_groups(PROJECT, "test")
LINT = nox.project.dependency_groups(PROJECT, "lint")
TYPING = nox.project.dependency_groups(PROJECT, "typing")
DOCS = nox.project.dependency_groups(PROJECT, "docs")
# Tests start hundreds of interpreters, and each would compile all of heddle where bytecode is not to be written.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
SOURCES = ["heddle", "tests", "examples", "docs/site", "noxfile.py"]


def install(session: nox.Session, *packages: str) -> None:
    """Install without a word, unless it fails."""
    session.install("-q", *packages, silent=True)


@nox.session
def demo(session: nox.Session) -> None:
    """Run the main job: tools in three languages and a Python function."""
    install(session, "-e", ".[cli]")
    session.run("python", "examples/demo.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after -- go to pytest."""
    install(session, "-e", ".[cli]", *TEST)
    session.run("python", "-m", "pytest", *session.posargs, env=COMPILED)


@nox.session
def crashes(session: nox.Session) -> None:
    """Kill hosts in the middle of journaled calls, two hundred times; arguments after -- go to pytest."""
    install(session, "-e", ".[cli]", *TEST)
    session.run(
        "python", "-m", "pytest", "tests/test_crashes.py", *session.posargs, env=COMPILED | {"HEDDLE_CRASHES": "200"}
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check the style."""
    install(session, *LINT)
    session.run("ruff", "format", "--check", "-q", *SOURCES)
    session.run("ruff", "check", "-q", *SOURCES)


@nox.session
def typing(session: nox.Session) -> None:
    """Check the types, that the public API is completely typed, and what checkers say to users."""
    install(session, "-e", ".[cli]", *TYPING)
    session.run("mypy", "--no-error-summary")
    session.run("pyright", "--warnings")
    # Read from an installed copy: an editable one is a path to look along, and what is verified is what users get.
    install(session, "--no-deps", "--force-reinstall", ".")
    session.run("pyright", "--verifytypes", "heddle", "--ignoreexternal")
    session.run("python", "-m", "pytest", "-m", "typing", "tests/test_typing.py")


@nox.session
def examples(session: nox.Session) -> None:
    """Run every example, and the README's."""
    install(session, "-e", ".[cli]", *TEST)
    session.run(
        "python",
        "-m",
        "pytest",
        "tests/test_readme.py",
        "tests/test_howto.py",
        "tests/test_examples.py",
        "tests/test_runner_examples.py",
        "tests/test_host_examples.py",
        *session.posargs,
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, with warnings as errors, and follow every link on it; say where it is."""
    install(session, "-e", ".[cli]", *DOCS, *LINT)  # ruff lays out signatures
    folder = Path(session.create_tmp()).resolve()
    session.run("python", "-c", GATHER, str(folder), silent=True)
    with session.chdir(folder):
        session.run("zensical", "build", "--strict", silent=True)
    session.run("python", "tests/site.py", str(folder / "site"))


# The builder wants what it reads beside its configuration. Pages that lead to an example find it on the site.
GATHER = """
import shutil, sys
from pathlib import Path
folder = Path(sys.argv[1])
shutil.rmtree(folder)
shutil.copytree("docs/site", folder)
shutil.copytree("docs", folder / "docs", ignore=shutil.ignore_patterns("site", "__pycache__"))
shutil.copytree("examples", folder / "docs/examples", ignore=shutil.ignore_patterns("__pycache__"))
shutil.copytree("heddle", folder / "heddle", ignore=shutil.ignore_patterns("__pycache__"))
for page in (folder / "docs").glob("*/*.md"):
    page.write_text(page.read_text().replace("](../../examples/", "](../examples/"))
"""


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel, and test it instead of the checkout."""
    install(session, "build")
    folder = Path(session.create_tmp()).resolve()
    for old in folder.glob("*.whl"):
        old.unlink()
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder), silent=True)
    (wheel,) = folder.glob("*.whl")
    install(session, "--force-reinstall", f"{wheel}[cli]", *TEST)
    # A copy without the package: what is imported can only be the wheel.
    copy = folder / "checkout"
    session.run("python", "-c", COPY, str(copy), silent=True)
    session.chdir(copy)
    session.run("python", "-P", "-m", "pytest", *(session.posargs or ["tests"]))


COPY = """
import shutil, sys
shutil.rmtree(sys.argv[1], ignore_errors=True)
for name in ("tests", "examples", "docs"):
    shutil.copytree(name, f"{sys.argv[1]}/{name}")
for name in ("README.md", "pyproject.toml", "noxfile.py"):
    shutil.copy(name, sys.argv[1])
shutil.copytree(".ci", f"{sys.argv[1]}/.ci")
"""


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the tests with the oldest versions that pyproject.toml allows; arguments after -- go to pytest."""
    install(session, "uv")
    oldest = ["--resolution", "lowest-direct", "--upgrade"]
    session.run("uv", "pip", "install", "-q", *oldest, "-e", ".[cli]", *TEST, silent=True)
    session.run("python", "-m", "pytest", *session.posargs, env=COMPILED)


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the tests and report the branches that none of them takes."""
    install(session, "-e", ".[cli]", *TEST)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "-q", success_codes=[0, 1])
    session.run("coverage", "report")


@nox.session(venv_backend="virtualenv")  # pip compiles what it installs, as users have it
def bench(session: nox.Session) -> None:
    """Measure, print the table, and write it to bench.json."""
    install(session, "--force-reinstall", "--no-deps", ".")
    install(session, ".[starlark]")
    # Compiled bytecode is what users have; a variable of this shell may say otherwise.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    session.run("python", "-P", "tests/bench.py", *session.posargs, env=env, include_outer_env=False)
