"""The suites that meet the operating system, run again as a plain user: beside the others, because they mostly wait."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import heddle

ROOT = Path(__file__).parent.parent
# Not 65534, as whom tools run in root's own tests: limits of processes are counted by user.
PLAIN_USER = 65533
PYTHON = "/usr/bin/python3"
SUITES = [
    "test_confined.py",
    "test_copyback.py",
    "test_ending.py",
    "test_hosts.py",
    "test_jail_files.py",
    "test_jail_limits.py",
    "test_jail_network.py",
    "test_jail_processes.py",
    "test_jail_scopes.py",
    "test_jail_tiers.py",
    "test_jail_workspaces.py",
    "test_landlock.py",
    "test_leaks.py",
    "test_mounts.py",
    "test_seccomp.py",
    "test_workspace.py",
]


def why_not() -> str:
    """Return why they cannot be run as a plain user here; empty when they can."""
    if os.geteuid() != 0:
        return "it runs as a plain user anyway"
    version = "import sys; print(sys.version_info[:2])"
    found = subprocess.run([PYTHON, "-c", version], capture_output=True, text=True, check=False).stdout.strip()
    if found != str(sys.version_info[:2]):
        return f"{PYTHON} is {found or 'not there'}; the packages of these tests are built for another version"
    return ""


@contextmanager
def run_as_plain_user() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Begin the run; give its process, and the file that it writes into."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        mine = folder / "mine"
        mine.mkdir()
        os.chown(mine, PLAIN_USER, PLAIN_USER)
        packages = reachable(Path(sysconfig.get_path("purelib")), folder / "packages")
        package = reachable(Path(heddle.__file__).parent, folder / "package" / "heddle")
        tests = reachable(ROOT / "tests", folder / "checkout" / "tests")
        options = ["-p", "no:cacheprovider", "-c", str(configuration(folder)), "--basetemp", "mine/base"]
        with (folder / "output").open("w+") as output:
            run = subprocess.Popen(
                [PYTHON, "-m", "pytest", *options, *(str(tests / suite) for suite in SUITES)],
                cwd=folder,
                env={
                    "PATH": "/usr/local/bin:/usr/bin:/bin",
                    "HOME": str(mine),
                    "TMPDIR": str(mine),
                    "PYTHONPATH": f"{package.parent}:{tests.parent}:{packages}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                user=PLAIN_USER,
                group=PLAIN_USER,
                extra_groups=[],
                stdout=output,
                stderr=output,
                text=True,
            )
            try:
                yield run, folder / "output"
            finally:
                run.kill()
                run.wait()
    finally:
        shutil.rmtree(folder)


def reachable(path: Path, copy: Path) -> Path:
    """Return a path that everybody may read: itself, or a copy where a folder above it is private."""
    if all(parent.stat().st_mode & 0o005 == 0o005 for parent in [path, *path.parents]):
        return path
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def configuration(folder: Path) -> Path:
    """Return a copy of the project's settings: pytest takes the folder of its file for the root."""
    copy = folder / "pyproject.toml"
    shutil.copy(ROOT / "pyproject.toml", copy)
    copy.chmod(0o644)
    return copy
