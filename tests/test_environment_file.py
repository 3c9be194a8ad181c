"""The environment file: what may stand in it, what it gives to whom, and that no failure gives a secret away."""

from __future__ import annotations

import json
import logging
import os
import pwd
import shlex
import tempfile
import threading
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle import Environment
from heddle.references import Fault, FaultCode, Source, Unresolved
from heddle.references.asking import Asked, ask_shell
from heddle.references.faults import LOOKUP_SECONDS, MAX_ENTRIES, MAX_FILE_BYTES, MAX_LINE_BYTES, MAX_OUTPUT_BYTES
from heddle.references.grammar import CommandOutput, Entry, ShellVariable, parse
from heddle.references.reading import Place, place_of, read
from tests.support import Toolbox, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

NOBODY = 65534
UNKNOWN = 54321  # no database of users has it
FILE = "~/.heddle/environment.env"
SECRET = "hunter2-SECRET-value"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
exhaustive = settings(derandomize=True, deadline=None, max_examples=200)


@attrs.frozen
class Home:
    """The home of a user with a login shell and an environment file."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / ".heddle" / "environment.env"

    def has(self, *lines: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text("".join(f"{line}\n" for line in lines))
        self.file.chmod(0o600)

    def begins_with(self, profile: str) -> None:
        """Have the login shell do something when it is started."""
        (self.path / ".bash_profile").write_text(profile)

    def count(self, name: str = "count") -> int:
        """Return how often something has appended a line to a file."""
        path = self.path / name
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    path = tmp_path / "home"
    path.mkdir()
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {"PATH": "/usr/bin:/bin", "HOME": str(path), "SHELL": "/bin/bash", "LAUNCHED": "yes"}.items():
        monkeypatch.setenv(name, value)
    return Home(path)


async def given_by(environment: Environment, *names: str, confined: bool = False) -> dict[str, str] | Unresolved:
    """Return what a tool that lists `names` gets beside what every tool gets."""
    resolved = await environment.resolve(names, confined=confined)
    if isinstance(resolved, Unresolved):
        return resolved
    return {name: resolved[name] for name in names if name in resolved}


def in_a_child(ask: Callable[[], Awaitable[object]], *, user: int | None = None) -> Any:
    """Return what `ask` returns in a forked child, which is another user if one is given."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if user is not None:
                os.setuid(user)
            told = trio.run(ask)
        except BaseException:  # noqa: BLE001 - whatever happens, it must not go on as a second test run
            told = traceback.format_exc()
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told)


def refused(code: FaultCode, line: int = 1, name: str = "KEY", *, file: str = FILE, seen: str = "") -> Unresolved:
    return Unresolved((Fault(code, file, line, name, seen),))


# What may stand in it


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("${OTHER}", ShellVariable("OTHER")),
        ("${_o7}", ShellVariable("_o7")),
        ("${OTHER} \t ", ShellVariable("OTHER")),
        ("$(printf '%s' hello)", CommandOutput("printf '%s' hello")),
        ("$( pass show key )", CommandOutput("pass show key")),
        ("$(echo ')' \")\" \\) `echo )`)", CommandOutput("echo ')' \")\" \\) `echo )`")),
        ("$(echo \"$(echo \")\")\" ${X:-)})", CommandOutput("echo \"$(echo \")\")\" ${X:-)}")),
        ("$(echo \"it's\" 'a \"b')", CommandOutput("echo \"it's\" 'a \"b'")),
        ("$(echo '\\')", CommandOutput("echo '\\'")),
        ("$(echo \"(\" $((1 + 2)))", CommandOutput("echo \"(\" $((1 + 2))")),
        ("$( (cd / && pwd) )", CommandOutput("(cd / && pwd)")),
        ("$(a # b)", CommandOutput("a # b")),
        ("$(echo `echo '`)", CommandOutput("echo `echo '`")),
        ("$(echo naïve ☃)", CommandOutput("echo naïve ☃")),
    ],
)  # fmt: skip
def test_a_value_is_one_reference(text: str, reference: ShellVariable | CommandOutput) -> None:
    assert parse(f"KEY={text}\n".encode(), FILE) == (Entry(1, "KEY", reference),)


@pytest.mark.parametrize(
    ("line", "name", "code"),
    [
        ("KEY", "", "missing_equals"),
        ("export KEY", "", "missing_equals"),
        ("=${X}", "", "empty_name"),
        ("export KEY=${X}", "", "invalid_name"),
        ("KEY =${X}", "", "invalid_name"),
        (" KEY=${X}", "", "invalid_name"),
        ("1KEY=${X}", "", "invalid_name"),
        ("MY-KEY=${X}", "", "invalid_name"),
        ("CLÉ=${X}", "", "invalid_name"),
        *((f"{name}=${{X}}", name, "reserved_name") for name in ("PATH", "HOME", "TMPDIR", "LANG", "TZ", "LC_ALL")),
        *((f"{name}=${{X}}", name, "unsafe_name") for name in ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "HEDDLE_TOOL")),
        *((f"{name}=${{X}}", name, "unsafe_name") for name in ("BASH_ENV", "ENV", "IFS", "SHELLOPTS", "PS4")),
        *((f"{name}=${{X}}", name, "unsafe_name") for name in ("PYTHONSTARTUP", "NODE_OPTIONS", "PERL5OPT", "RUBYOPT")),
        ("KEY=", "KEY", "empty_value"),
        ("KEY= ", "KEY", "empty_value"),
        ("KEY=hello", "KEY", "literal_value"),
        ("KEY=pa$$word", "KEY", "literal_value"),
        ("KEY=hello # there", "KEY", "literal_value"),
        ("KEY='${X}'", "KEY", "quoted_value"),
        ('KEY="$(echo)"', "KEY", "quoted_value"),
        ("KEY=a${X}", "KEY", "mixed_value"),
        ("KEY=${X}a", "KEY", "mixed_value"),
        ("KEY=${X}${Y}", "KEY", "mixed_value"),
        ("KEY=$(a) $(b)", "KEY", "mixed_value"),
        ("KEY=$(case x in x) echo;; esac)", "KEY", "mixed_value"),
        ("KEY= ${X}", "KEY", "mixed_value"),
        ("KEY= hello", "KEY", "literal_value"),
        ("KEY=${X}#a", "KEY", "mixed_value"),
        ("KEY=${X} # a", "KEY", "trailing_comment"),
        ("KEY=$(a)\t#", "KEY", "trailing_comment"),
        ("KEY=$X", "KEY", "bad_reference"),
        ("KEY=$", "KEY", "bad_reference"),
        ("KEY=${}", "KEY", "bad_reference"),
        ("KEY=${1X}", "KEY", "bad_reference"),
        ("KEY=${X:-d}", "KEY", "bad_reference"),
        ("KEY=${ X }", "KEY", "bad_reference"),
        ("KEY=`echo`", "KEY", "backticks"),
        ("KEY=$((1 + 2))", "KEY", "arithmetic"),
        ("KEY=$((a); (b))", "KEY", "arithmetic"),
        ("KEY=$()", "KEY", "empty_command"),
        ("KEY=$( )", "KEY", "empty_command"),
        ("KEY=${X", "KEY", "unterminated"),
        ("KEY=$(a", "KEY", "unterminated"),
        ("KEY=$(a (b)", "KEY", "unterminated"),
        ("KEY=$(echo ')", "KEY", "unterminated"),
        ('KEY=$(echo ")', "KEY", "unterminated"),
        ("KEY=$(echo \\)", "KEY", "unterminated"),
        ("KEY=" + "x" * MAX_LINE_BYTES, "", "line_too_long"),
        ("KEY=${X}\0", "", "nul_byte"),
        ("# a comment\0", "", "nul_byte"),
    ],
)
def test_what_is_no_entry_has_a_name_for_what_it_is(line: str, name: str, code: str) -> None:
    assert parse(f"# first\n{line}\n".encode(), FILE) == refused(FaultCode(code), 2, name)


def test_lines_may_be_blank_be_comments_and_end_as_on_any_system() -> None:
    data = b"\xef\xbb\xbf# from the password manager\r\n\r\n  \t\n\t # indented\r\nA=${X} \r\nB=$(b)"

    assert parse(data, FILE) == (Entry(5, "A", ShellVariable("X")), Entry(6, "B", CommandOutput("b")))
    assert parse(b"", FILE) == ()


def test_every_fault_of_a_file_is_told_at_once() -> None:
    data = b"A=${X}\nA=literal\nPATH=\nB\nfine=$(true)\n=\n\xff\nC=\xff\nD=`d`\n"

    assert parse(data, FILE) == Unresolved(
        (
            Fault(FaultCode.DUPLICATE_NAME, FILE, 2, "A"),
            Fault(FaultCode.LITERAL_VALUE, FILE, 2, "A"),
            Fault(FaultCode.RESERVED_NAME, FILE, 3, "PATH"),
            Fault(FaultCode.EMPTY_VALUE, FILE, 3, "PATH"),
            Fault(FaultCode.MISSING_EQUALS, FILE, 4),
            Fault(FaultCode.EMPTY_NAME, FILE, 6),
            Fault(FaultCode.EMPTY_VALUE, FILE, 6),
            Fault(FaultCode.NOT_UTF8, FILE, 7),  # once: the whole file is in another encoding
            Fault(FaultCode.BACKTICKS, FILE, 9, "D"),
        )
    )


def test_a_file_has_so_many_bytes_and_entries_and_no_more() -> None:
    entries = "".join(f"V{number}=${{X}}\n" for number in range(MAX_ENTRIES))
    comment = "#" * (MAX_LINE_BYTES - 1) + "\n"
    full = comment * (MAX_FILE_BYTES // len(comment))

    assert len(parse(f"{entries}# last\n\n".encode(), FILE)) == MAX_ENTRIES  # type: ignore[arg-type]
    assert parse(f"{entries}W=${{X}}\nZ=z\n".encode(), FILE) == refused(FaultCode.TOO_MANY_ENTRIES, MAX_ENTRIES + 1, "")
    assert parse(full.encode(), FILE) == ()
    assert parse(full.encode() + b"\n", FILE) == refused(FaultCode.FILE_TOO_LARGE, 0, "")


WORDS = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=40)
PIECES = ["KEY", "=", "${", "}", "$(", ")", "(", "'", '"', "\\", "`", "$", "#", " ", "\t", "\r", "\n", "\0", "X", "é"]
ON_A_LINE = [piece for piece in PIECES if piece != "\n"]


@exhaustive
@given(WORDS)
def test_whatever_a_shell_quotes_may_stand_in_a_command(text: str) -> None:
    command = f"printf %s {shlex.quote(text)}"

    assert parse(f"KEY=$({command})".encode(), FILE) == (Entry(1, "KEY", CommandOutput(command)),)


@exhaustive
@given(st.lists(st.sampled_from(PIECES)).map("".join).map(str.encode) | st.binary(max_size=200))
def test_any_bytes_give_entries_or_faults(data: bytes) -> None:
    found = parse(data, FILE)

    lines = data.count(b"\n") + 1
    if isinstance(found, Unresolved):
        assert found.faults
        assert all(1 <= fault.line <= lines for fault in found.faults)
    else:
        assert len({entry.name for entry in found}) == len(found)
        assert all(1 <= entry.line <= lines for entry in found)


@exhaustive
@given(st.lists(st.sampled_from([*PIECES, SECRET, f"KEY={SECRET}", f"${{{SECRET}}}"])).map("".join))
def test_a_secret_is_never_told_wherever_it_stands(text: str) -> None:
    assert SECRET not in shown(parse(text.encode(), FILE))


@exhaustive
@given(
    st.sampled_from(["KEY=", "export KEY=", "KEY =", "PATH=", "LD_PRELOAD=", "1=", "=", "KEY=${X}\nKEY="]),
    st.lists(st.sampled_from(ON_A_LINE), max_size=6).map("".join),
    st.lists(st.sampled_from(ON_A_LINE), max_size=6).map("".join),
)
def test_a_secret_that_could_be_a_name_is_not_told_as_a_value(left: str, before: str, after: str) -> None:
    secret = SECRET.replace("-", "_")

    assert secret not in shown(parse(f"{left}{before}{secret}{after}\n".encode(), FILE))


def test_what_an_entry_refers_to_is_not_told() -> None:
    entries = parse(f"KEY=$(echo {SECRET})\nOTHER=${{OTHER_SECRET}}".encode(), FILE)

    assert len(entries) == 2  # type: ignore[arg-type]
    assert "SECRET" not in shown(entries)


def shown(found: tuple[Entry, ...] | Unresolved) -> str:
    """Return all that what was found says of itself."""
    told = json.dumps(found.as_json()) if isinstance(found, Unresolved) else ""
    return f"{found} {found!r} {told}"


# What a file must be


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
async def test_a_file_that_others_may_write_runs_no_command(home: Home, mode: int) -> None:
    home.has("KEY=$(touch ran)", "BAD=literal")
    home.file.chmod(mode)

    assert await given_by(Environment(), "KEY") == Unresolved(
        (Fault(FaultCode.INSECURE_PERMISSIONS, FILE), Fault(FaultCode.LITERAL_VALUE, FILE, 2, "BAD"))
    )
    assert not (home.path / "ran").exists()


async def test_a_file_that_others_may_read_is_fine(home: Home) -> None:
    home.has("KEY=$(echo value)")
    home.file.chmod(0o444)

    assert await given_by(Environment(), "KEY") == {"KEY": "value"}


@needs_root
async def test_root_takes_no_orders_from_the_file_of_another_user(home: Home) -> None:
    home.has("KEY=$(touch ran)")
    os.chown(home.file, NOBODY, NOBODY)

    assert await given_by(Environment(), "KEY") == refused(FaultCode.INSECURE_PERMISSIONS, 0, "")
    assert not (home.path / "ran").exists()


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Path:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    return folder


@needs_root
def test_a_plain_user_takes_its_own_file_and_that_of_root_and_no_other(public: Path) -> None:
    owners = {"root": 0, "own": NOBODY, "other": NOBODY - 1, "closed": 0}
    for name, owner in owners.items():
        (public / name).write_text("# text\n")
        (public / name).chmod(0o600 if name == "closed" else 0o644)
        os.chown(public / name, owner, owner)

    with as_nobody():
        seen = {name: read(Place(public / name, FILE)) for name in owners}

    assert seen == {
        "root": (b"# text\n", None),
        "own": (b"# text\n", None),
        "other": (b"# text\n", FaultCode.INSECURE_PERMISSIONS),
        "closed": (b"", FaultCode.UNREADABLE),
    }


async def test_what_is_no_file_is_not_waited_for(home: Home) -> None:
    home.file.parent.mkdir()
    os.mkfifo(home.file, 0o600)

    assert await given_by(Environment(), "KEY") == refused(FaultCode.UNREADABLE, 0, "")


async def test_a_folder_is_no_file(home: Home) -> None:
    home.file.mkdir(parents=True)

    assert await given_by(Environment(), "KEY") == refused(FaultCode.UNREADABLE, 0, "")


# Where it is


async def test_without_a_file_a_tool_gets_what_the_host_has(home: Home) -> None:
    assert await given_by(Environment(), "LAUNCHED", "KEY") == {"LAUNCHED": "yes"}


async def test_the_host_says_which_file_and_its_variables_do_else_and_its_home_at_last(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("given.env", "named.env"):
        (tmp_path / name).write_text(f"KEY=$(echo {name})\n")
        (tmp_path / name).chmod(0o600)
    home.has("KEY=$(echo home)")
    monkeypatch.chdir(tmp_path)
    given = Environment(file="given.env")  # relative to where the host is now
    monkeypatch.chdir("/")
    seen = [await given_by(Environment(), "KEY")]

    monkeypatch.setenv("HEDDLE_ENVIRONMENT_FILE", str(tmp_path / "named.env"))
    seen += [await given_by(Environment(), "KEY"), await given_by(given, "KEY")]
    seen += [await given_by(Environment(file=False), "KEY")]
    monkeypatch.setenv("HEDDLE_ENVIRONMENT_FILE", "")
    seen += [await given_by(Environment(), "KEY")]

    assert given.file == tmp_path / "given.env"
    assert seen == [{"KEY": "home"}, {"KEY": "named.env"}, {"KEY": "given.env"}, {}, {}]


@pytest.mark.parametrize(
    ("named", "code"), [("/nowhere/my.env", FaultCode.FILE_MISSING), ("my.env", FaultCode.RELATIVE_PATH)]
)
async def test_a_file_that_is_named_must_be_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, named: str, code: FaultCode
) -> None:
    monkeypatch.setenv("HEDDLE_ENVIRONMENT_FILE", named)

    resolved = await given_by(Environment(), "KEY")

    assert resolved == refused(code, 0, "", file="my.env (HEDDLE_ENVIRONMENT_FILE)")
    assert "nowhere" not in str(resolved)


async def test_a_file_that_is_gone_by_then_is_told_when_it_is_needed(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "my\n.env"
    path.write_text("")
    environment = Environment(file=path)
    path.unlink()

    assert await given_by(environment, "KEY") == refused(FaultCode.FILE_MISSING, 0, "", file="my?.env")


@pytest.mark.parametrize("file", ["/nowhere/my.env", "/", "a\0b", True, 7])
def test_what_is_no_file_is_refused_at_once(file: object) -> None:
    with pytest.raises(heddle.DefinitionError, match=r"Environment\(file=…\)"):
        Environment(file=file)  # type: ignore[arg-type]


def test_without_a_home_in_the_environment_it_is_that_of_the_user_database() -> None:
    folder = pwd.getpwuid(os.getuid()).pw_dir

    assert place_of(None, {}) == Place(Path(folder, ".heddle", "environment.env"), FILE, must_exist=False)
    assert place_of(None, {"HOME": "relative"}) is None


@needs_root
def test_a_user_that_no_database_knows_has_no_file_and_may_be_given_one(
    home: Home, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = public / "given.env"
    path.write_text("KEY=$(pwd)\nOTHER=${LAUNCHED}\n")
    path.chmod(0o644)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("SHELL")

    async def ask() -> object:
        return [await given_by(Environment(file=file), "KEY", "OTHER") for file in (None, path)]

    assert in_a_child(ask, user=UNKNOWN) == [{}, {"KEY": "/", "OTHER": "yes"}]


@needs_root
async def test_a_home_that_its_user_may_not_enter_is_told(home: Home) -> None:
    home.has("KEY=$(true)", "OTHER=${OTHER}")
    home.path.chmod(0o700)
    source = Source(Place(home.file, FILE))
    await source.find(["UNHEARD_OF"])  # it is read while that is allowed

    with as_nobody():
        resolved = await source.find(["KEY", "OTHER"])

    assert resolved == Unresolved(
        (
            Fault(FaultCode.COMMAND_FAILED, FILE, 1, "KEY", "starting it gives Permission denied"),
            Fault(FaultCode.SHELL_FAILED, FILE, 2, "OTHER", "starting it gives Permission denied"),
        )
    )


# What it gives


async def test_a_variable_comes_from_the_login_shell_whatever_its_startup_files_print(home: Home) -> None:
    home.begins_with(
        "echo Welcome; printf 'KEY=not this\\0A=nor this\\0'; echo warning >&2\n"
        "export KEY='from the shell'\nA=unexported\nexport LINES_='a=b\nB=c\n'\nexport EMPTY=\nexport BYTES=$'\\xff'\n"
        "export BACKGROUND=yes; sleep 60 &\n"
    )
    home.has(*(f"{name}=${{{name}}}" for name in ("A", "LINES_", "EMPTY", "BYTES", "BACKGROUND")), "OTHER=${KEY}")

    assert await given_by(Environment(), "OTHER", "A", "LINES_", "EMPTY", "BYTES", "KEY") == {
        "OTHER": "from the shell",
        "A": "unexported",
        "LINES_": "a=b\nB=c\n",
        "EMPTY": "",
        "BYTES": "\udcff",
    }


def test_of_the_login_shell_only_what_was_asked_for_is_kept(home: Home) -> None:
    assert ask_shell(["LAUNCHED", "NOSUCH"], Asked(LOOKUP_SECONDS, lambda: None)) == {"LAUNCHED": "yes"}


async def test_a_reference_never_means_another_entry(home: Home) -> None:
    home.begins_with("export A=shell\n")
    home.has("A=$(echo entry)", "B=${A}", "C=${C}")

    assert await given_by(Environment(), "A", "B") == {"A": "entry", "B": "shell"}
    assert await given_by(Environment(), "C") == refused(FaultCode.VARIABLE_UNSET, 3, "C")


async def test_a_command_gives_what_it_prints_without_the_line_ends_at_its_end(home: Home) -> None:
    home.has(
        "A=$(printf 'a\\n\\nb \\n\\n'; echo secret >&2)",
        "B=$(true)",
        "C=$(cat; echo \"$LAUNCHED in $PWD\")",
        "D=$(printf ü)",
        f"E=$(yes | head -c {MAX_OUTPUT_BYTES})",
        "F=$(sleep 60 & echo at once)",
    )  # fmt: skip

    assert await given_by(Environment(), *"ABCDEF") == {
        "A": "a\n\nb ",
        "B": "",
        "C": f"yes in {home.path}",
        "D": "ü",
        "E": ("y\n" * (MAX_OUTPUT_BYTES // 2)).rstrip("\n"),
        "F": "at once",
    }


async def test_what_is_asked_cannot_take_the_hosts_terminal(home: Home) -> None:
    """A session of its own has no terminal to read from or to take."""
    session = "cut -d' ' -f6 /proc/self/stat"
    home.begins_with(f"export SHELL_SESSION=$({session})\n")
    home.has("A=${SHELL_SESSION}", f"B=$({session}; (: </dev/tty) || echo none)")

    seen = await given_by(Environment(), "A", "B")

    assert isinstance(seen, dict)
    command_session, terminal = seen["B"].split("\n")
    assert terminal == "none"
    assert len({seen["A"], command_session, str(os.getsid(0))}) == 3


async def test_a_variable_of_the_host_wins_even_when_it_is_empty(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.has("LAUNCHED=$(touch ran)", "EMPTY=$(touch ran)", "SET=$(touch ran)", "BAD=literal")
    monkeypatch.setenv("EMPTY", "")
    environment = Environment(values={"SET": "by the host"})

    seen = await given_by(environment, "LAUNCHED", "EMPTY", "SET", "PATH", "LC_ALL")

    assert seen == {"LAUNCHED": "yes", "EMPTY": "", "SET": "by the host", "PATH": "/usr/bin:/bin"}
    assert not (home.path / "ran").exists()


async def test_a_tool_gets_what_it_lists_and_the_host_allows(home: Home) -> None:
    home.has("KEY=$(echo value)", "OTHER=$(echo other; touch ran)")
    cases = {
        "none": (None, (), False),
        "lists": (None, ("KEY",), False),
        "confined": (None, ("KEY",), True),
        "allowed": (("KEY",), ("KEY", "OTHER"), True),
        "allowed, not listed": (("KEY",), (), False),
        "not allowed": ((), ("KEY",), False),
        "all": (("*",), ("KEY",), True),
    }

    seen = {}
    for case, (allow, names, confined) in cases.items():
        resolved = await Environment(allow=allow).resolve(names, confined=confined)
        assert isinstance(resolved, dict)
        seen[case] = {name: value for name, value in resolved.items() if name in {"KEY", "OTHER"}}

    assert seen == {case: {"KEY": "value"} if case in {"lists", "allowed", "all"} else {} for case in cases}
    assert not (home.path / "ran").exists()


# Once


async def test_the_login_shell_is_started_once_and_only_when_it_is_needed(home: Home) -> None:
    home.begins_with("echo >>count; export A=a B=b\n")
    home.has("A=${A}", "B=${B}", "C=$(echo c)", "D=${D}")
    environment = Environment()

    await given_by(environment, "C")
    before = home.count()
    async with trio.open_nursery() as nursery:
        for names in ("A", "B", "AB", "D") * 5:
            nursery.start_soon(given_by, environment, *names)

    assert before == 0
    assert home.count() == 1
    assert await given_by(Environment(), *"ABC") == {"A": "a", "B": "b", "C": "c"}


def test_threads_that_ask_at_once_look_once_between_them(home: Home) -> None:
    home.begins_with("echo >>shells; export A=a\n")
    home.has("A=${A}", "B=$(echo >>commands; sleep 0.1; echo b)", "C=$(echo >>failures; sleep 0.1; exit 1)")
    seen: list[object] = []
    together = threading.Barrier(4)

    async def ask() -> None:
        async def one(*names: str) -> None:
            seen.append(await given_by(Environment(), *names))

        async with trio.open_nursery() as nursery:
            for names in ("AB", "C") * 5:
                nursery.start_soon(one, *names)

    def host() -> None:
        together.wait()
        trio.run(ask)

    threads = [threading.Thread(target=host) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    failed = refused(FaultCode.COMMAND_FAILED, 3, "C", seen="exit status 1")
    assert (seen.count({"A": "a", "B": "b"}), seen.count(failed)) == (20, 20)
    assert (home.count("shells"), home.count("commands"), home.count("failures")) == (1, 1, 1)


async def test_a_change_of_the_file_counts_for_the_next_process(home: Home) -> None:
    home.has("KEY=$(echo old)")
    first = await given_by(Environment(), "KEY")

    home.has("KEY=$(echo new)", "MORE=$(echo more)")

    assert first == {"KEY": "old"}
    assert await given_by(Environment(), "KEY", "MORE") == {"KEY": "old"}


def test_a_forked_child_looks_for_itself(home: Home) -> None:
    """It is a process of its own, and a lock that a thread of its parent held would never be released in it."""
    home.has("KEY=$(echo >>count; cat word)")
    (home.path / "word").write_text("parent")
    before = trio.run(given_by, Environment(), "KEY")
    (home.path / "word").write_text("child")

    said = in_a_child(partial(given_by, Environment(), "KEY"))

    assert (before, said) == ({"KEY": "parent"}, {"KEY": "child"})
    assert trio.run(given_by, Environment(), "KEY") == {"KEY": "parent"}
    assert home.count() == 2


async def test_the_loop_goes_on_while_a_command_runs(home: Home) -> None:
    """The command ends only when something else in the loop lets it."""
    home.has("KEY=$(touch waits; while [ ! -e go ]; do sleep 0.01; done; echo went)")
    seen = []

    async def ask() -> None:
        seen.append(await given_by(Environment(), "KEY"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        assert await until((home.path / "waits").exists, LOOKUP_SECONDS)
        (home.path / "go").touch()

    assert seen == [{"KEY": "went"}]


async def test_many_that_wait_for_one_name_take_one_thread(home: Home) -> None:
    home.has("KEY=$(touch waits; while [ ! -e go ]; do sleep 0.01; done; echo went)")
    before = threading.active_count()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(given_by, Environment(), "KEY")
        assert await until((home.path / "waits").exists, LOOKUP_SECONDS)
        meanwhile = threading.active_count()
        (home.path / "go").touch()

    assert meanwhile <= before + 1


async def test_who_is_cancelled_ends_what_it_has_started_and_the_next_one_looks_again(
    home: Home, toolbox: Toolbox
) -> None:
    home.has(f"KEY=$(if [ -e begun ]; then echo value; else touch begun; sleep {toolbox.long}; fi)")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(given_by, Environment(), "KEY")
        assert await until(toolbox.strays, LOOKUP_SECONDS)
        nursery.cancel_scope.cancel()

    assert await until(lambda: not toolbox.strays(), LOOKUP_SECONDS)
    assert await given_by(Environment(), "KEY") == {"KEY": "value"}


async def test_who_waits_for_another_can_be_cancelled(home: Home) -> None:
    home.has("KEY=$(touch waits; while [ ! -e go ]; do sleep 0.01; done; echo went)")
    seen = []

    async def ask() -> None:
        seen.append(await given_by(Environment(), "KEY"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        assert await until((home.path / "waits").exists, LOOKUP_SECONDS)
        elsewhere = threading.Thread(target=trio.run, args=(_give_up_soon,))
        elsewhere.start()
        with trio.move_on_after(0.05) as here:
            await given_by(Environment(), "KEY")
        await trio.to_thread.run_sync(elsewhere.join)
        alone = list(seen)
        (home.path / "go").touch()

    assert here.cancelled_caught
    assert (alone, seen) == ([], [{"KEY": "went"}])


async def _give_up_soon() -> None:
    with trio.move_on_after(0.05) as scope:
        await given_by(Environment(), "KEY")
    assert scope.cancelled_caught


# What can fail


async def test_a_failure_stops_only_who_lists_the_name(home: Home) -> None:
    home.has("KEY=$(exit 3)", "OTHER=$(echo other)", "MISSING=${NOSUCH}")
    environment = Environment()

    seen = [await given_by(environment, *names) for names in (["OTHER"], ["LAUNCHED"], ["MISSING", "OTHER", "KEY"])]

    assert seen == [
        {"OTHER": "other"},
        {"LAUNCHED": "yes"},
        Unresolved(
            (
                Fault(FaultCode.COMMAND_FAILED, FILE, 1, "KEY", "exit status 3"),
                Fault(FaultCode.VARIABLE_UNSET, FILE, 3, "MISSING"),
            )
        ),
    ]


async def test_a_file_with_a_fault_stops_whoever_needs_it(home: Home) -> None:
    home.has("KEY=$(touch ran)", "BAD=literal")
    environment = Environment()

    seen = [await given_by(environment, *names) for names in (["KEY"], ["UNHEARD_OF"], ["LAUNCHED"], [])]

    fault = refused(FaultCode.LITERAL_VALUE, 2, "BAD")
    assert seen == [fault, fault, {"LAUNCHED": "yes"}, {}]
    assert not (home.path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "code", "seen"),
    [
        (f"echo {SECRET}; exit 3", FaultCode.COMMAND_FAILED, "exit status 3"),
        (f"echo {SECRET} >&2; nosuchprogram", FaultCode.COMMAND_FAILED, "exit status 127"),
        (f"echo {SECRET}; kill -KILL $$", FaultCode.COMMAND_FAILED, "SIGKILL"),
        (f"echo {SECRET}; kill -35 $$", FaultCode.COMMAND_FAILED, "signal 35"),
        (f"printf '{SECRET}\\0'", FaultCode.COMMAND_OUTPUT_NUL, ""),
        (f"printf '{SECRET}\\377'", FaultCode.COMMAND_NOT_UTF8, ""),
        (f"yes {SECRET}", FaultCode.COMMAND_OUTPUT_TOO_LARGE, ""),
        (f"yes {SECRET} | head -c {MAX_OUTPUT_BYTES + 1}", FaultCode.COMMAND_OUTPUT_TOO_LARGE, ""),
    ],
)
async def test_a_command_that_gives_no_value_says_why_and_not_what(
    home: Home, caplog: pytest.LogCaptureFixture, command: str, code: FaultCode, seen: str
) -> None:
    home.has("# first", f"KEY=$({command})")

    with caplog.at_level(logging.DEBUG):
        resolved = await given_by(Environment(), "KEY")

    assert resolved == refused(code, 2, seen=seen)
    assert str(home.file) in caplog.text
    assert SECRET not in f"{resolved} {resolved!r} {caplog.text}"


@pytest.mark.parametrize(
    ("profile", "code", "seen"),
    [
        ("exit 1", FaultCode.SHELL_FAILED, "exit status 1"),
        ("exit 0", FaultCode.SHELL_FAILED, "exit status 0"),
        ("kill -KILL $$", FaultCode.SHELL_FAILED, "SIGKILL"),
        ("exec sleep 0", FaultCode.SHELL_FAILED, "exit status 0"),
        (f"yes {SECRET}", FaultCode.SHELL_FAILED, "it printed too much"),
        ("unset KEY", FaultCode.VARIABLE_UNSET, ""),
    ],
)
async def test_a_login_shell_that_gives_no_answer_says_why_and_not_what(
    home: Home, caplog: pytest.LogCaptureFixture, profile: str, code: FaultCode, seen: str
) -> None:
    home.begins_with(f"export KEY={SECRET}; echo {SECRET}; echo {SECRET} >&2\n{profile}\n")
    home.has("KEY=${KEY}")

    with caplog.at_level(logging.DEBUG):
        resolved = await given_by(Environment(), "KEY")

    assert resolved == refused(code, seen=seen)
    assert SECRET not in f"{resolved} {resolved!r} {caplog.text}"


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("#!/bin/sh\nexit 5\n", "exit status 5"),
        ('#!/bin/sh\n/bin/sh -c "$4"; exit 6\n', "exit status 6"),
        ("#!/nosuch/interpreter\n", "starting it gives No such file or directory"),
    ],
)
async def test_a_login_shell_that_is_none_gives_no_answer(
    home: Home, monkeypatch: pytest.MonkeyPatch, source: str, seen: str
) -> None:
    shell = home.path / "shell"
    shell.write_text(source)
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    home.has("KEY=${KEY}")

    assert await given_by(Environment(), "KEY") == refused(FaultCode.SHELL_FAILED, seen=seen)


@pytest.mark.skipif(
    Path(pwd.getpwuid(os.getuid()).pw_shell).name not in {"sh", "bash", "dash"}, reason="their shell reads other files"
)
@pytest.mark.parametrize("shell", ["", "bash", "/nosuch/shell"])
async def test_without_a_shell_of_its_own_the_user_database_says_which(
    home: Home, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    (home.path / ".profile").write_text("export KEY=value\n")
    monkeypatch.setenv("SHELL", shell)
    home.has("KEY=${KEY}")

    assert await given_by(Environment(), "KEY") == {"KEY": "value"}


async def test_a_login_shell_that_hangs_is_stopped_with_all_that_it_has_started(home: Home, toolbox: Toolbox) -> None:
    home.begins_with(f"trap '' TERM INT HUP\nsleep {toolbox.long} &\nsleep {toolbox.long}\n")
    home.has("KEY=${KEY}")
    source = Source(Place(home.file, FILE), seconds=0.5)

    resolved = await source.find(["KEY"])

    assert resolved == refused(FaultCode.SHELL_TIMEOUT, seen="0.5 s")
    assert await until(lambda: not toolbox.strays(), LOOKUP_SECONDS)


@pytest.mark.parametrize("closes", ["", "exec >&-; "])
async def test_a_command_that_hangs_is_stopped_with_all_that_it_has_started(
    home: Home, toolbox: Toolbox, closes: str
) -> None:
    home.has(f"KEY=$({closes}sleep {toolbox.long} & sleep {toolbox.long}; echo late)", "NEXT=$(echo next)")
    source = Source(Place(home.file, FILE), seconds=0.5)

    resolved = await source.find(["KEY"])

    assert resolved == refused(FaultCode.COMMAND_TIMEOUT, seen="0.5 s")
    assert await source.find(["NEXT"]) == {"NEXT": "next"}
    assert await until(lambda: not toolbox.strays(), LOOKUP_SECONDS)


async def test_what_goes_on_in_the_background_ends_with_the_command(home: Home, toolbox: Toolbox) -> None:
    home.has(f"KEY=$(sleep {toolbox.long} & echo value)")

    assert await given_by(Environment(), "KEY") == {"KEY": "value"}
    assert await until(lambda: not toolbox.strays(), LOOKUP_SECONDS)


# Tools


TELLS = """#!/usr/bin/python3
import json, os, pathlib
pathlib.Path(os.environ["HOME"], "ran").touch()
print(json.dumps({name: os.environ.get(name) for name in ("KEY", "OTHER")}))
"""


def tool(toolbox: Toolbox, name: str, *names: str) -> None:
    """Add a tool that tells what it finds in its environment, and lists the names of what it needs."""
    toolbox.add(f"{name}.py", TELLS)
    toolbox.add(f"{name}.tool.json", json.dumps({"process": {"inheritEnv": names}, "sideEffects": "write"}), mode=0o644)


async def test_a_tool_is_started_with_what_the_file_gives(home: Home, toolbox: Toolbox) -> None:
    home.begins_with("export TOKEN=token\n")
    home.has("KEY=${TOKEN}", "OTHER=$(echo >>count; echo other)")
    tool(toolbox, "both", "KEY", "OTHER")
    tool(toolbox, "one", "KEY")
    tool(toolbox, "none")

    async with heddle.Runner(toolbox.registry()) as runner:
        seen = {name: (await runner.call(name)).unwrap() for name in ("both", "one", "none")}
    async with heddle.Runner(toolbox.registry(), environment=Environment(file=False)) as runner:
        without = (await runner.call("both")).unwrap()

    assert seen == {
        "both": {"KEY": "token", "OTHER": "other"},
        "one": {"KEY": "token", "OTHER": None},
        "none": {"KEY": None, "OTHER": None},
    }
    assert without == {"KEY": None, "OTHER": None}
    assert home.count() == 1


async def test_a_tool_that_cannot_be_given_its_variables_is_not_started(home: Home, toolbox: Toolbox) -> None:
    home.has("# keys", f"KEY=$(echo {SECRET}; exit 3)", "OTHER=$(echo other)")
    tool(toolbox, "needs", "KEY", "OTHER")
    tool(toolbox, "other", "OTHER")

    async with heddle.Runner(toolbox.registry()) as runner:
        failed = await runner.call("needs")
        ran = (home.path / "ran").exists()
        result = await runner.call("other")

    assert failed == heddle.Failed(
        heddle.FailureKind.CANNOT_START,
        'tool "needs" was not started: the host cannot give it variables that it asks for. '
        "~/.heddle/environment.env, line 2, KEY: the command failed (exit status 3); "
        "run it by hand, without a terminal [command_failed]. Mend it and restart the host, which looks once.",
        code="command_failed",
        details={
            "faults": [
                {
                    "file": FILE,
                    "line": 2,
                    "name": "KEY",
                    "code": "command_failed",
                    "message": "the command failed (exit status 3); run it by hand, without a terminal",
                }
            ]
        },
        started=False,
        retry="allowed",
    )
    assert (ran, failed.report.tier) == (False, None)
    assert result.unwrap() == {"KEY": None, "OTHER": "other"}


async def test_a_model_hears_of_ten_faults_and_how_many_more_there_are(home: Home, toolbox: Toolbox) -> None:
    home.has(*(f"K{number}={SECRET}" for number in range(25)))
    tool(toolbox, "needs", "KEY")

    async with heddle.Runner(toolbox.registry()) as runner:
        failed = await runner.call("needs")

    assert isinstance(failed, heddle.Failed)
    assert (failed.code, failed.retry, failed.message.count("[literal_value]")) == ("literal_value", "allowed", 10)
    assert ". And 15 more. Mend it" in failed.message
    assert len(failed.details["faults"]) == 25  # type: ignore[arg-type]
    assert SECRET not in f"{failed!r} {json.dumps(failed.as_json())} {failed.for_model()}"


# Words


@pytest.mark.parametrize("code", FaultCode)
def test_each_fault_says_what_was_seen_and_what_to_do(code: FaultCode) -> None:
    what, _, remedy = Fault(code, FILE, seen="so").why.partition(" (so); ")

    assert what
    assert remedy


@pytest.mark.parametrize("code", FaultCode)
def test_each_fault_stands_on_the_page_of_the_file(code: FaultCode) -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "environment-env.md"

    assert f"| `{code}` |" in page.read_text()
