"""``heddle doctor``: what it says, what it exits with, and that its attacks find a hole where there is one."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

import heddle
from heddle.cli import attacks, siege
from heddle.cli.doctor import Found, Report, look
from heddle.cli.siege import attack
from heddle.sandbox.hints import Facts
from heddle.sandbox.trials import Findings, Trial
from tests.support import Toolbox, processes_with, wait_until

WORKS = Trial(works=True)
NO_BUBBLEWRAP = Trial(
    works=False, reason="bubblewrap is not installed", fix="Run `apt-get install bubblewrap` as root."
)
NO_LANDLOCK = Trial(works=False, reason="this kernel has none", fix="use a newer one")
NO_SEATBELT = Trial(works=False, reason="this is not macOS")
# A machine on which everything works, for a plain user.
FINDINGS = Findings(
    bwrap="/usr/bin/bwrap", containers=WORKS, single=WORKS, landlock=WORKS, seatbelt=NO_SEATBELT, abi=7, lacks=()
)
FOUND = Found(
    system="Linux",
    machine="x86_64",
    facts=Facts(kernel="6.12.0"),
    findings=FINDINGS,
    bwrap_version="0.11.0",
    uid=1000,
    temporary=Path("/var/tmp"),
    free_bytes=10 * 2**30,
)
WITHOUT_BUBBLEWRAP = attrs.evolve(FINDINGS, bwrap=None, containers=NO_BUBBLEWRAP, single=NO_BUBBLEWRAP)
WITH_NOTHING = attrs.evolve(WITHOUT_BUBBLEWRAP, landlock=NO_LANDLOCK, abi=0)


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "heddle.cli", "doctor", *arguments, **environment)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def found() -> Found:
    """What is found here, where everything has to work."""
    found = look()
    if not (found.findings.containers.works and found.findings.landlock.works):
        pytest.skip("this needs bubblewrap and Landlock")
    return found


def titles(attempts: Iterable[Any]) -> set[str]:
    return {attempt.attack for attempt in attempts if not attempt.contained}


# What is said


def test_the_answer_comes_first(found: Found) -> None:
    done = doctor()

    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == "tools are confined by bubblewrap, a container for each call"
    assert f"  bubblewrap     {found.findings.bwrap}, version {found.bwrap_version}, not setuid" in lines
    assert max(map(len, lines)) <= 100


def test_programs_get_every_key_that_is_documented(found: Found) -> None:
    done = doctor("--json")

    report = json.loads(done.stdout)
    documented = [line.split("``")[1] for line in str(Report.as_json.__doc__).splitlines() if "``  " in line]
    assert (done.returncode, done.stderr) == (0, "")
    assert [*report] == documented
    assert (report["ok"], report["backend"], report["way"], report["attacks"]) == (True, "auto", "containers", None)
    assert report["bubblewrap"] == {"path": "/usr/bin/bwrap", "version": found.bwrap_version, "setuid": False}
    assert report["landlock"] == {"version": found.findings.abi, "lacks": [*found.findings.lacks]}
    assert report["ways"]["containers"] == {"works": True, "reason": "", "fix": "", "said": ""}
    assert report["filter"] == {"known": True, "reason": ""}


async def test_what_is_said_to_hold_is_what_a_run_reports(found: Found, toolbox: Toolbox) -> None:
    toolbox.sh("quick", "echo '{}'")
    said = Report(found=found).guarantees

    results = {
        backend: await toolbox.call("quick", sandbox=heddle.Sandbox(network="none", backend=backend))
        for backend in ("bubblewrap", "landlock")
    }

    held = {backend: {**result.report.guarantees} for backend, result in results.items()}
    assert held["bubblewrap"].items() >= said["containers"].items()
    # As root it depends on the folders that lead to the tool.
    assert {**held["landlock"], "process_limit": ""}.items() >= {**said["landlock"], "process_limit": ""}.items()


def test_landlock_takes_over_where_bubblewrap_is_not_on_path(found: Found, tmp_path: Path) -> None:
    done = doctor(PATH=str(tmp_path))

    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == "tools are confined by Landlock and a filter of system calls, without namespaces"
    missing = next(number for number, line in enumerate(lines) if line.startswith("  bubblewrap "))
    assert "not on PATH" in lines[missing]
    assert "fix: " in lines[missing + 1]


def test_one_backend_can_be_judged_alone(found: Found, tmp_path: Path) -> None:
    done = doctor("--sandbox", "bubblewrap", "--json", PATH=str(tmp_path))
    other = doctor("--sandbox", "landlock", "--json", PATH=str(tmp_path))

    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], report["way"], report["bubblewrap"]) == (1, False, None, None)
    assert report["verdict"] == ("bubblewrap cannot confine tools here: --safe and sandbox=… refuse to run any with it")
    assert (other.returncode, json.loads(other.stdout)["way"]) == (0, "landlock")


def test_without_anything_tools_are_refused_and_each_line_says_what_to_do() -> None:
    report = Report(found=attrs.evolve(FOUND, findings=WITH_NOTHING))

    lines = report.as_text().splitlines()
    begin = lines.index("What can confine tools; the first that works is taken")
    assert (report.way, report.guarantees, report.backends) == (None, {}, [])
    assert lines[0] == "nothing here can confine tools: --safe and sandbox=… refuse to run any"
    assert lines[begin + 1 : begin + 6] == [
        "  bubblewrap     there is none that can be used: bubblewrap is not installed",
        "                 fix: Run `apt-get install bubblewrap` as root.",
        "  landlock       does not work: this kernel has none",
        "                 fix: Use a newer one.",
        "  filter         of system calls: known for x86_64",
    ]
    assert "What holds" not in report.as_text()


def test_where_bubblewrap_makes_no_containers_it_is_started_for_each_call() -> None:
    refused = Trial(works=False, reason="the kernel is old", fix="Leave it.")

    report = Report(found=attrs.evolve(FOUND, findings=attrs.evolve(FINDINGS, containers=refused)))

    assert report.way == "single"
    assert report.verdict == "tools are confined by bubblewrap, started anew for each call, which is slower"
    assert "  containers     does not work: the kernel is old\n                 fix: Leave it.\n" in report.as_text()
    assert [*report.guarantees] == ["single", "landlock"]


def test_a_machine_without_a_filter_confines_nothing() -> None:
    """A container whose system calls cannot be filtered would not hold what it should."""
    report = Report(found=attrs.evolve(FOUND, machine="m68k"))

    assert report.way is None
    assert report.as_json()["filter"] == {
        "known": False,
        "reason": "no filter is known for m68k, only for x86_64, aarch64, riscv64",
    }


def test_an_old_landlock_says_what_it_lacks() -> None:
    findings = attrs.evolve(WITHOUT_BUBBLEWRAP, abi=2, lacks=("this", "that"))

    report = Report(found=attrs.evolve(FOUND, findings=findings))

    assert report.guarantees["landlock"]["signals"] == "no"
    assert report.guarantees["landlock"]["writes"] == "partial"
    assert (
        "                 version 2, which lacks something:\n"
        "                 - this\n"
        "                 - that\n"
        "                 fix: Use Linux 6.12 or later, which has version 6.\n"
    ) in report.as_text()


def test_as_root_it_says_who_tools_are_and_what_is_void() -> None:
    nobody = Report(found=attrs.evolve(FOUND, uid=0))
    root = Report(found=attrs.evolve(FOUND, uid=0, lets_pass=False, findings=WITHOUT_BUBBLEWRAP))

    assert nobody.as_json()["users"] == {"containers": 65534, "single": 65534, "landlock": 65534}
    assert "  user           65534, who owns nothing" in nobody.as_text()
    assert root.as_json()["users"] == {"landlock": 0}
    assert root.guarantees["landlock"]["process_limit"] == "no"
    assert "root, because user 65534 may not pass through /var/tmp" in root.as_text()
    assert "- processes: the kernel does not count root's" in root.as_text()
    assert "- processes: 64" not in root.as_text()


def test_what_does_not_hold_yet_is_said() -> None:
    text = Report(found=FOUND).as_text()

    assert "cgroups, which are not used" in text
    assert "there is no quota" in text


def test_a_full_disk_and_a_setuid_bubblewrap_are_named() -> None:
    text = Report(found=attrs.evolve(FOUND, free_bytes=2**20, bwrap_is_setuid=True, bwrap_version="")).as_text()

    assert "  folder         /var/tmp, 1 MiB free\n                 fix: Make room there" in text
    assert "/usr/bin/bwrap, of an unknown version, setuid" in text


def test_only_what_killed_runs_have_left_is_left_over(tmp_path: Path) -> None:
    killed = run(
        "-c",
        "import os, sys; from heddle.workspace.temporary import RunFolder; folder = RunFolder();"
        "print(folder.path, flush=True); os.kill(os.getpid(), 9)",
        TMPDIR=str(tmp_path),
    )
    (tmp_path / "heddle-run-notours1").mkdir()

    alive = run(
        "-c",
        "import sys; from heddle.workspace.temporary import RunFolder; folder = RunFolder(); folder.path;"
        "import subprocess; subprocess.run([sys.executable, '-m', 'heddle.cli', 'doctor', '--json']); folder.close()",
        TMPDIR=str(tmp_path),
    )

    report = json.loads(alive.stdout)
    assert killed.returncode == -9
    assert report["temporary"]["leftovers"] == [killed.stdout.strip()]
    assert report["temporary"]["folder"] == str(tmp_path.resolve())


def test_an_unknown_backend_is_a_matter_of_usage() -> None:
    done = doctor("--sandbox", "nosuch")

    assert (done.returncode, done.stdout) == (2, "")
    assert "'auto', 'bubblewrap', 'landlock', 'seatbelt'" in done.stderr


# Attacks


def tools_stay_root() -> bool:
    """Whether the interpreter is where nobody else may use it, so that tools under Landlock run as root."""
    folders = Path(os.path.realpath(sys.executable)).parents
    return os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in folders)


def test_every_attack_is_contained_in_all_that_works(found: Found, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    done = doctor("--attack", "--json", HOME=str(home))

    tried = json.loads(done.stdout)["attacks"]
    expected = {("landlock", "fork_bomb")} if tools_stay_root() else set()
    assert [(each["tier"], each["attack"]) for each in tried] == [
        (tier, name) for tier in ("bubblewrap", "landlock") for name in attacks.ATTACKS
    ]
    assert {(each["tier"], each["attack"]) for each in tried if not each["contained"]} == expected
    assert done.returncode == (1 if expected else 0)
    assert [*home.iterdir()] == []


async def test_without_a_sandbox_the_same_attacks_reach_the_host() -> None:
    """Else it would say nothing that they are contained. What is left behind is ended in any case."""
    attempts = await attack(None)

    # The kernel's settings may deny these to a plain user anywhere.
    assert titles(attempts) | {"trace", "mount"} == set(attacks.ATTACKS) - {"daemon"}
    assert [attempt.attack for attempt in attempts] == [*siege.GOALS]


HOLES = {
    "the home folder is granted": ("read=[HOME]", "read a file in the home folder: it was read"),
    "the network is granted": ("network='host'", "connect to a port of the host: it was connected"),
}


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
@pytest.mark.parametrize(("hole", "said"), HOLES.values(), ids=HOLES)
def test_a_hole_is_found_and_told_to_the_shell(
    found: Found, tmp_path: Path, backend: str, hole: str, said: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    source = f"""
import os, sys
from heddle import Sandbox
from heddle.cli.doctor import diagnose
HOME = os.environ["HOME"]
policy = Sandbox(**{{"network": "none"}} | dict({hole}))
sys.exit(diagnose({backend!r}, with_attacks=True, policy=policy))
"""

    done = run("-c", source, HOME=str(home))

    attacked = done.stdout[done.stdout.index(f"Attacks on {backend}\n") :].splitlines()
    assert done.returncode == 1
    assert f"  NOT CONTAINED  {said}" in attacked
    assert "  contained      mount a file system: Operation not permitted" in attacked
    assert attacked[-1].endswith("of 11 attacks were NOT CONTAINED: run no tools here that you do not trust")


async def test_an_attack_that_cannot_be_tried_is_not_said_to_be_contained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "attacks.py"
    broken.write_text("raise SystemExit(3)")
    monkeypatch.setattr(attacks, "__file__", str(broken))

    attempts = await attack(None)

    assert titles(attempts) == set(attacks.ATTACKS)
    assert {attempt.how for attempt in attempts} == {'it could not be tried: tool "attack" exited with status 3.'}


def test_what_an_attack_leaves_is_found_and_ended() -> None:
    mark = secrets.token_hex(16)
    with subprocess.Popen(["/bin/sh", "-c", "read forever", mark], stdin=subprocess.PIPE) as process:
        assert wait_until(lambda: processes_with(mark), 5)

        found = siege._ended(mark)
        process.wait(5)

    assert (found, process.returncode) == (1, -9)


def test_a_policy_that_cannot_be_held_is_one_sentence(found: Found) -> None:
    source = """
import sys
from heddle import Sandbox
from heddle.cli.doctor import diagnose
sys.exit(diagnose(with_attacks=True, policy=Sandbox(network="none", read=["/nosuch"])))
"""

    done = run("-c", source)

    assert (done.returncode, done.stderr) == (1, "heddle: the sandbox names what is not there: /nosuch\n")


def test_where_nothing_works_nothing_is_attacked() -> None:
    done = doctor("--sandbox", "seatbelt", "--attack", "--json")

    assert (done.returncode, json.loads(done.stdout)["attacks"]) == (1, [])
