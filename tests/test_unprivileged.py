"""What holds for root holds for a plain user: the suites that meet the operating system run again as one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import heddle

ROOT = Path(__file__).parent.parent
# Nobody's number but theirs: what a hostile tool does to all processes of its user, it does to no other run's.
PLAIN_USER = 65530
PYTHON = "/usr/bin/python3"
SUITES = [
    "test_confined.py",
    "test_copyback.py",
    "test_ending.py",
    "test_jail_files.py",
    "test_jail_limits.py",
    "test_jail_network.py",
    "test_jail_processes.py",
    "test_jail_scopes.py",
    "test_jail_tiers.py",
    "test_jail_workspaces.py",
    "test_landlock.py",
    "test_mounts.py",
    "test_seccomp.py",
    "test_workspace.py",
]


@pytest.mark.skipif(os.geteuid() != 0, reason="it runs as a plain user anyway")
def test_the_suites_that_meet_the_operating_system_pass_as_a_plain_user() -> None:
    version = "import sys; print(sys.version_info[:2])"
    found = subprocess.run([PYTHON, "-c", version], capture_output=True, text=True, check=False).stdout.strip()
    if found != str(sys.version_info[:2]):
        pytest.skip(f"{PYTHON} is {found or 'not there'}; the packages of these tests are built for another version")
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
        done = subprocess.run(
            [PYTHON, "-m", "pytest", *options, *(str(tests / suite) for suite in SUITES)],
            cwd=folder,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(mine),
                "TMPDIR": str(mine),
                "PYTHONPATH": f"{package.parent}:{tests.parent}:{packages}",
                "PYTHONPYCACHEPREFIX": str(mine / "compiled"),
            },
            user=PLAIN_USER,
            group=PLAIN_USER,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    finally:
        shutil.rmtree(folder)

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


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
