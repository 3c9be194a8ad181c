"""``heddle doctor``: whether tools can be confined here, by what, and if not, what to do.

`look` tries and reads, a `Report` follows from what it has found and from nothing else, and `attack` does not take its
word for it: a hostile tool is run, and the host looks at what became of what it was to reach.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import attrs
import click
import trio

from heddle.cli.siege import Attempt, attack
from heddle.errors import HeddleError, SandboxUnavailable
from heddle.sandbox.choice import WAYS, guarantees_of
from heddle.sandbox.hints import Facts, facts_of_this_machine
from heddle.sandbox.landlock import SCOPES_SINCE
from heddle.sandbox.policy import CONFINED_LIMITS, GIB, MIB, NOBODY, TMP_BYTES, BackendName, Sandbox
from heddle.sandbox.seccomp import seccomp_program
from heddle.sandbox.trials import Findings, Trial, Way, probe, ways_of
from heddle.workspace.temporary import OWNER, PREFIX
from heddle.workspace.trees import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from heddle.strictjson import JSON

__all__ = ["Found", "Report", "diagnose", "doctor", "look"]

WIDTH, LABEL = 100, 15
# 256 MiB: a few workspaces with a data set in each.
LOW_BYTES = 256 * MIB
VERSION_SECONDS = 5.0
# What is judged: what holds where tools may reach nothing. It takes all that any policy takes.
POLICY = Sandbox(network="none")

HOW: Mapping[Way, str] = {
    "containers": "bubblewrap, a container for each call",
    "single": "bubblewrap, started anew for each call, which is slower",
    "landlock": "Landlock and a filter of system calls, without namespaces",
    "seatbelt": "Seatbelt, whose profile was never run by heddle's makers",
}
NAMES: Mapping[BackendName, str] = {"bubblewrap": "bubblewrap", "landlock": "Landlock", "seatbelt": "Seatbelt"}
# Of the words that a report has, what each is about.
MEANING: Mapping[str, str] = {
    "reads": "only what is granted can be read",
    "writes": "only what is granted can be changed",
    "network": "nothing can be reached, nor the host",
    "signals": "no process outside can be signalled",
    "other_calls": "calls do not meet each other",
    "process_limit": "a call has so many processes at most",
    "memory_limit": "a process has so much memory at most",
    "temporary_files_limit": "a call's /tmp has a size",
    "processes": "nothing of a call outlives it",
}
IN_PART: Mapping[str, str] = {
    "other_calls": "calls of one scope share the folder for temporary files",
    "process_limit": "the kernel counts every process that the user has",
    "temporary_files_limit": "their size is limited, and not how many there are",
    "memory_limit": "what processes share is not counted, and each is counted alone",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--attack", "with_attacks", is_flag=True, help="Run hostile tools, and see whether the host is reached.")
@click.option(
    "--sandbox",
    "backend",
    type=click.Choice(get_args(BackendName)),
    default="auto",
    show_default=True,
    help="Judge this one alone.",
)
def doctor(*, as_json: bool, with_attacks: bool, backend: BackendName) -> None:
    """Say what confines tools here.

    Where nothing does it says why, and what to do about it. The exit status is 1 then, and where an attack was not
    contained.
    """
    sys.exit(diagnose(backend, as_json=as_json, with_attacks=with_attacks))


def diagnose(
    backend: BackendName = "auto", *, as_json: bool = False, with_attacks: bool = False, policy: Sandbox = POLICY
) -> int:
    """Print what is found, and return the exit status.

    Args:
        backend: What is judged.
        as_json: Print one JSON object, and that alone.
        with_attacks: Run attacks in all that was judged and works.
        policy: What the attacks are confined to; a weaker one shows that they find a hole where there is one.
    """
    report = Report(found=look(), backend=backend)
    attempts: list[Attempt] = []
    if not as_json:
        click.echo(report.as_text())
    for name in report.backends if with_attacks else ():
        try:
            tried = trio.run(attack, attrs.evolve(policy, backend=name))
        except HeddleError as error:
            click.echo(f"heddle: {error}", err=True)
            return 1
        attempts += tried
        if not as_json:
            click.echo("\n".join(_about_attacks(tried)))
    if as_json:
        click.echo(json.dumps(report.as_json(attempts if with_attacks else None)))
    elif attempts:
        click.echo("\n" + _summary(attempts))
    return 0 if report.way is not None and all(attempt.contained for attempt in attempts) else 1


@attrs.frozen(kw_only=True)
class Found:
    """What was found on a machine, for one user.

    Attributes:
        system: The kernel's name: ``Linux``.
        machine: The kind of processor, as the kernel calls it.
        facts: What has to do with sandboxes.
        findings: What can confine calls.
        bwrap_version: What bubblewrap says of itself; empty where it says nothing.
        bwrap_is_setuid: It runs as root, whoever starts it.
        uid: Who runs heddle.
        lets_pass: Everybody may pass through the folder for temporary files.
        temporary: The folder for temporary files.
        free_bytes: What is free there.
        leftovers: Folders of runs that were killed.
    """

    system: str
    machine: str
    facts: Facts
    findings: Findings
    bwrap_version: str = ""
    bwrap_is_setuid: bool = False
    uid: int
    lets_pass: bool = True
    temporary: Path
    free_bytes: int
    leftovers: tuple[Path, ...] = ()


def look() -> Found:
    """Return what is found here. Tries what can confine calls, and blocks for some 0.2 s."""
    findings = probe() if sys.platform == "linux" else _nothing_to_try()
    temporary = Path(tempfile.gettempdir()).resolve()
    return Found(
        system=platform.system(),
        machine=platform.machine(),
        facts=facts_of_this_machine(),
        findings=findings,
        bwrap_version="" if findings.bwrap is None else _version_of(findings.bwrap),
        bwrap_is_setuid=findings.bwrap is not None and bool(os.stat(findings.bwrap).st_mode & stat.S_ISUID),
        uid=os.geteuid(),
        lets_pass=all(folder.stat().st_mode & stat.S_IXOTH for folder in (temporary, *temporary.parents)),
        temporary=temporary,
        free_bytes=shutil.disk_usage(temporary).free,
        leftovers=tuple(_leftovers(temporary)),
    )


def _nothing_to_try() -> Findings:
    elsewhere = Trial(
        works=False, reason="this is not Linux", fix="Run heddle on Linux, in a virtual machine if need be"
    )
    unready = Trial(works=False, reason="heddle cannot run tools in it yet", fix=elsewhere.fix)
    return Findings(
        bwrap=None, containers=elsewhere, single=elsewhere, landlock=elsewhere, seatbelt=unready, abi=0, lacks=()
    )


def _version_of(bwrap: str) -> str:
    try:
        done = subprocess.run(
            [bwrap, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().rpartition(" ")[2]


def _leftovers(place: Path) -> Iterator[Path]:
    """Yield the folders of this user's runs that are not held by one that is alive."""
    for folder in sorted(place.glob(f"{PREFIX}*")):
        try:
            owner = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # somebody else's, or just being made
        try:
            if os.fstat(owner).st_uid == os.geteuid():
                fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
                yield folder
        except OSError:
            continue  # its run is alive
        finally:
            os.close(owner)


@attrs.frozen(kw_only=True)
class Report:
    """What follows from what was found.

    Attributes:
        found: All that is known.
        backend: What is judged; ``auto`` is whatever works.
    """

    found: Found
    backend: BackendName = "auto"

    @property
    def ways(self) -> Mapping[Way, Trial]:
        """Every way of confining calls, the strongest first, with what became of it."""
        no_filter = self._no_filter
        unheld = Trial(works=False, reason=no_filter, fix="Run heddle on one of those.")
        # Without a filter no way holds what it should.
        trials = ways_of(self.found.findings)
        return {way: unheld if no_filter and trial.works else trial for way, trial in trials}

    @property
    def way(self) -> Way | None:
        """The one that is taken; None where there is none."""
        ways = self.ways
        return next((way for way in WAYS[self.backend] if ways[way].works), None)

    @property
    def verdict(self) -> str:
        """The answer, in a sentence."""
        if self.way is not None:
            return f"tools are confined by {HOW[self.way]}"
        if self.backend == "auto":
            return "nothing here can confine tools: --safe and sandbox=… refuse to run any"
        return f"{NAMES[self.backend]} cannot confine tools here: --safe and sandbox=… refuse to run any with it"

    @property
    def guarantees(self) -> Mapping[Way, Mapping[str, str]]:
        """What holds in each way that works, word by word, where tools may reach nothing."""
        abi, ways = self.found.findings.abi, self.ways
        return {
            kind: guarantees_of(kind, POLICY, abi, self.user_in(kind))
            for kind in WAYS[self.backend]
            if ways[kind].works
        }

    def user_in(self, way: Way) -> int:
        """Return who tools run as, where nothing that they are granted stands in the way."""
        if self.found.uid != 0:
            return self.found.uid
        return NOBODY if way == "containers" or self.found.lets_pass else 0

    @property
    def backends(self) -> Sequence[BackendName]:
        """What can be asked for and works."""
        names: Sequence[BackendName] = ("bubblewrap", "landlock") if self.backend == "auto" else (self.backend,)
        return [name for name in names if attrs.evolve(self, backend=name).way is not None]

    @property
    def _no_filter(self) -> str:
        """Why there is no filter of system calls; empty where there is one."""
        try:
            seccomp_program(self.found.machine, ())
        except SandboxUnavailable as error:
            return error.reason
        return ""

    def as_json(self, attempts: Sequence[Attempt] | None = None) -> dict[str, JSON]:
        """Return the report as JSON; keys may be added to it, none is renamed.

        ``ok``            tools can be confined
        ``verdict``       the same in a sentence
        ``backend``       what was judged, as it was asked for
        ``way``           what is taken: ``containers``, ``single`` or ``landlock``; null
        ``machine``       ``system``, ``kernel``, ``processor``, ``container``, ``wsl``, ``described``, ``python``,
                          ``heddle``, ``uid``
        ``bubblewrap``    ``path``, ``version``, ``setuid``; null where there is none
        ``landlock``      ``version``, 0 where there is none, and what it ``lacks``
        ``filter``        ``known``: system calls can be filtered; ``reason`` why not
        ``ways``          by name: ``works``, and else the ``reason``, a ``fix``, and what the program ``said``
        ``users``         by way that works: the number of the user that tools run as
        ``guarantees``    by way that works, by word: ``enforced``, ``partial`` or ``no``, with ``network='none'``
        ``limits``        what is ``held`` and what is ``not_held``, a sentence each
        ``temporary``     ``folder``, ``free_bytes``, and the ``leftovers`` of runs that were killed
        ``attacks``       null, or of each: ``tier``, ``attack``, ``title``, ``contained``, ``how``
        """
        found, facts, findings = self.found, self.found.facts, self.found.findings
        return {
            "ok": self.way is not None,
            "verdict": self.verdict,
            "backend": self.backend,
            "way": self.way,
            "machine": {
                "system": found.system,
                "kernel": facts.kernel,
                "processor": found.machine,
                "container": facts.container,
                "wsl": facts.wsl,
                "described": facts.described,
                "python": platform.python_version(),
                "heddle": _heddle_version(),
                "uid": found.uid,
            },
            "bubblewrap": None
            if findings.bwrap is None
            else {"path": findings.bwrap, "version": found.bwrap_version, "setuid": found.bwrap_is_setuid},
            "landlock": {"version": findings.abi, "lacks": [*findings.lacks]},
            "filter": {"known": not self._no_filter, "reason": self._no_filter},
            "ways": {way: attrs.asdict(trial) for way, trial in self.ways.items()},
            "users": {way: self.user_in(way) for way in self.guarantees},
            "guarantees": {way: {**words} for way, words in self.guarantees.items()},
            "limits": {"held": [*self._limits_held], "not_held": [*self._limits_not_held]},
            "temporary": {
                "folder": str(found.temporary),
                "free_bytes": found.free_bytes,
                "leftovers": [str(path) for path in found.leftovers],
            },
            "attacks": None if attempts is None else [attrs.asdict(attempt) for attempt in attempts],
        }

    def as_text(self) -> str:
        """Return the report for a person: the verdict first, and below whatever does not work what to do about it."""
        lines = [
            *textwrap.wrap(self.verdict, WIDTH),
            "",
            "This machine",
            *self._about_machine(),
            "",
            "What can confine tools; the first that works is taken",
            *self._about_ways(),
        ]
        if self.way is not None:
            lines += ["", "Who tools run as", *self._about_users(), "", *self._about_guarantees()]
            lines += ["", "Limits of a call", *_bullets("held", self._limits_held)]
            lines += _bullets("not held yet", self._limits_not_held)
        return "\n".join([*lines, "", "Temporary files", *self._about_files()])

    def _about_machine(self) -> Iterator[str]:
        facts = self.found.facts
        yield from _item("system", f"{self.found.system} {facts.kernel or 'unknown'}, {self.found.machine}")
        yield from _item("surroundings", facts.described)
        yield from _item("heddle", f"{_heddle_version()} with Python {platform.python_version()}")
        yield from _item("user", "root" if self.found.uid == 0 else str(self.found.uid))
        if facts.is_wsl2:
            yield from _item("", "note: whether tools can start programs of Windows was never tried by heddle's makers")

    def _about_ways(self) -> Iterator[str]:
        findings, ways = self.found.findings, self.ways
        judged: Sequence[Way] = WAYS[self.backend] or ("seatbelt",)
        if {"containers", "single"} & {*judged}:
            if findings.bwrap is None:
                yield from _failed("bubblewrap", "there is none that can be used", findings.single)
                judged = [way for way in judged if way not in {"containers", "single"}]
            else:
                version = f"version {self.found.bwrap_version}" if self.found.bwrap_version else "of an unknown version"
                kind = "setuid" if self.found.bwrap_is_setuid else "not setuid"
                yield from _item("bubblewrap", f"{readable(findings.bwrap)}, {version}, {kind}")
        for way in judged:
            if not ways[way].works:
                yield from _failed(way, "does not work", ways[way])
            elif way == "landlock":
                yield from _item(way, f"works: {HOW[way]}")
                yield from self._about_landlock()
            else:
                yield from _item(way, f"works: {HOW[way]}")
        yield from _item("filter", f"of system calls: {self._no_filter or f'known for {self.found.machine}'}")

    def _about_landlock(self) -> Iterator[str]:
        findings = self.found.findings
        if not findings.lacks:
            yield from _item("", f"version {findings.abi}, which has all that heddle uses")
            return
        yield from _item("", f"version {findings.abi}, which lacks something:")
        yield from _bullets("", findings.lacks)
        yield from _item("", f"fix: Use Linux 6.12 or later, which has version {SCOPES_SINCE}.")

    def _about_users(self) -> Iterator[str]:
        if self.found.uid != 0:
            yield from _item("user", f"{self.found.uid}, who runs heddle as well")
            return
        users = {way: self.user_in(way) for way in self.guarantees}
        for user in dict.fromkeys(users.values()):
            ways = [way for way, uid in users.items() if uid == user]
            yield from _item("user" if len(ways) == len(users) else ", ".join(ways), self._about_user(user))
        yield from _item("", "fix: Run heddle as a plain user; or see to it that everybody may use what you grant.")

    def _about_user(self, uid: int) -> str:
        if uid == 0:
            folder = readable(str(self.found.temporary))
            return f"root, because user {NOBODY} may not pass through {folder}: no limit of processes holds"
        return (
            f"{uid}, who owns nothing; but root where that user may not use what you grant, and then no limit of "
            "processes holds"
        )

    def _about_guarantees(self) -> Iterator[str]:
        table = self.guarantees
        yield f"{'What holds':<24}" + "".join(f"{way:<12}" for way in table) + f"with network={POLICY.network!r}"
        for word in dict.fromkeys(word for column in table.values() for word in column):
            held = "".join(f"{column.get(word, ''):<12}" for column in table.values())
            yield f"  {word:<22}{held}{MEANING.get(word, '')}".rstrip()
        for word, how in IN_PART.items():
            if "partial" in {column.get(word) for column in table.values()}:
                yield from _item("", f"{word} in part: {how}")

    @property
    def _limits_held(self) -> Sequence[str]:
        usual = CONFINED_LIMITS
        processes = f"processes: {usual.processes} unless you say otherwise"
        is_root = self.way is not None and self.user_in(self.way) == 0
        return [
            "time from start to end, input, output and standard error",
            *([] if is_root else [processes]),
            f"memory of each process: {(usual.memory_bytes or 0) // MIB:,} MiB unless you say otherwise",
            "where you ask for them: processor time, open files, the size of a file",
            *([] if self.way == "landlock" else [f"the size of a call's /tmp: {TMP_BYTES // MIB} MiB"]),
        ]

    @property
    def _limits_not_held(self) -> Sequence[str]:
        is_root = self.way is not None and self.user_in(self.way) == 0
        return [
            "memory and processor time of all processes of a call together: that takes cgroups, which are not used",
            "the size of a workspace: there is no quota, so a tool can fill its disk",
            *(["processes: the kernel does not count root's"] if is_root else []),
            *(["the size of temporary files: they are on the host's disk"] if self.way == "landlock" else []),
        ]

    def _about_files(self) -> Iterator[str]:
        found = self.found
        yield from _item("folder", f"{readable(str(found.temporary))}, {_size(found.free_bytes)} free")
        if found.free_bytes < LOW_BYTES:
            yield from _item(
                "", "fix: Make room there, or set TMPDIR to a folder that has some: workspaces are made there."
            )
        if not found.leftovers:
            yield from _item("left over", "nothing of runs that were killed")
            return
        yield from _item("left over", f"{len(found.leftovers)} of runs that were killed:")
        yield from _bullets("", [readable(str(path)) for path in found.leftovers])
        yield from _item("", "fix: Nothing to do: the next run removes those in which nothing works any more.")


# How lines look


def _item(label: str, text: str) -> Iterator[str]:
    """Yield what is said of one thing: its name, and beside it the text, as wide as a line may be."""
    beginning = f"  {label:<{LABEL}}" if len(label) < LABEL else f"  {label}  "
    lines = textwrap.wrap(text, WIDTH - len(beginning), break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        yield (beginning if number == 0 else " " * len(beginning)) + line


def _failed(label: str, what: str, trial: Trial) -> Iterator[str]:
    yield from _item(label, f"{what}: {trial.reason}")
    if trial.fix:
        yield from _item("", f"fix: {trial.fix[:1].upper()}{trial.fix[1:].rstrip('.')}.")


def _bullets(label: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield from _item(label if number == 0 else "", f"- {text}")


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def _heddle_version() -> str:
    try:
        return metadata.version("heddle")
    except metadata.PackageNotFoundError:
        return "of a checkout"


def _about_attacks(attempts: Sequence[Attempt]) -> Iterator[str]:
    yield ""
    yield f"Attacks on {attempts[0].tier}"
    for attempt in attempts:
        yield from _item("contained" if attempt.contained else "NOT CONTAINED", f"{attempt.title}: {attempt.how}")


def _summary(attempts: Sequence[Attempt]) -> str:
    escaped = sum(not attempt.contained for attempt in attempts)
    if not escaped:
        return f"all {len(attempts)} attacks were contained"
    return f"{escaped} of {len(attempts)} attacks were NOT CONTAINED: run no tools here that you do not trust"
