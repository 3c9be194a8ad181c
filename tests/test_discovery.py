"""The tools of a folder: what is found, what is left out, and what the author is told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heddle.errors import DefinitionError
from heddle.tools.definition import Program, ToolDef
from heddle.tools.discovery import discover_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from heddle.tools.registry import Registry

SCRIPT = b"#!/bin/sh\necho '{}'\n"
NOBODY = 65534


def put(folder: Path, name: str, data: bytes = SCRIPT, mode: int = 0o755) -> Path:
    path = folder / name
    path.write_bytes(data)
    path.chmod(mode)
    return path


def plain(path: Path, name: str | None = None) -> ToolDef:
    """Return the tool that a file without a sidecar is."""
    return ToolDef(name=name or path.stem, implementation=Program(path), origin=str(path))


def told(registry: Registry, folder: Path) -> dict[str, str]:
    """Return the code of each notice by the name of its file."""
    assert len({notice.path for notice in registry.notices}) == len(registry.notices)
    return {notice.path.removeprefix(f"{folder}/"): notice.code for notice in registry.notices}


def sentences(registry: Registry, folder: Path) -> list[str]:
    return [str(notice).replace(f"{folder}/", "") for notice in registry.notices]


def refused(folder: Path, *, strict: bool = False) -> list[str]:
    """Return the lines of the error, without the folder."""
    with pytest.raises(DefinitionError) as caught:
        discover_tools(folder, strict=strict)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can enter; `tmp_path` is only for whoever runs the tests."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Be a user whom file modes hold: for root they hold nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_executables_are_tools_named_without_their_last_extension(tmp_path: Path) -> None:
    web_search, calculator = put(tmp_path, "web_search"), put(tmp_path, "calculator")
    fetch_api, archive = put(tmp_path, "fetch_api.py"), put(tmp_path, "my.tar.gz")
    dotted, cat = put(tmp_path, "dotted."), tmp_path / "cat"
    shutil.copy("/bin/cat", cat)

    registry = discover_tools(tmp_path)

    assert list(registry) == [
        plain(calculator),
        plain(cat),
        plain(dotted, "dotted"),
        plain(fetch_api),
        plain(archive, "my.tar"),
        plain(web_search),
    ]
    assert registry.notices == ()


def test_what_is_not_meant_to_be_a_tool_is_left_out_silently(tmp_path: Path) -> None:
    """And nothing is opened that could hold us: a fifo, a device, a socket."""
    put(tmp_path, ".hidden.sh")
    put(tmp_path, "notes for me.txt", b"#", 0o644)
    put(tmp_path, "empty.txt", b"", 0o644)
    (tmp_path / "folder.sh").mkdir()
    (tmp_path / "folder.tool.yaml").mkdir()
    (tmp_path / "link.sh").symlink_to("folder.sh")
    (tmp_path / "zero.sh").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.sh", 0o755)
    with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.sh")  # a socket's path is short, and a test's folder need not be

    registry = discover_tools(tmp_path, strict=True)

    assert list(registry) == []


def test_a_link_to_a_file_is_a_tool_under_the_links_name(tmp_path: Path) -> None:
    """Its path stays the link's, so that `$0` is what the author sees."""
    (tmp_path / "real").mkdir()
    put(tmp_path / "real", "original.py")
    (tmp_path / "tools").mkdir()
    link = tmp_path / "tools" / "link.sh"
    link.symlink_to("../real/original.py")
    (tmp_path / "linked").symlink_to("tools")

    registry = discover_tools(tmp_path / "linked", strict=True)

    assert list(registry) == [plain(tmp_path / "linked" / "link.sh")]


def test_a_relative_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools").mkdir()
    tool = put(tmp_path / "tools", "x.sh")
    monkeypatch.chdir(tmp_path)

    assert list(discover_tools("tools")) == [plain(tool)]
    assert list(discover_tools("./tools/")) == [plain(tool)]


def test_nothing_is_run(tmp_path: Path) -> None:
    put(tmp_path, "touch.sh", f"#!/bin/sh\ntouch {tmp_path}/touched\n".encode())

    discover_tools(tmp_path)

    assert not (tmp_path / "touched").exists()


def test_a_script_without_an_execute_bit_is_left_out_with_a_notice(tmp_path: Path) -> None:
    put(tmp_path, "search.sh", mode=0o644)

    registry = discover_tools(tmp_path)

    assert list(registry) == []
    assert told(registry, tmp_path) == {"search.sh": "not_executable"}
    assert sentences(registry, tmp_path) == ["search.sh: it is left out: it has no execute bit; chmod +x search.sh"]


def test_a_bad_name_is_left_out_with_a_notice_that_shows_it(tmp_path: Path) -> None:
    """A newline or a byte that is no text must not reach a terminal as it is."""
    names = ["my tool.sh", "a\nb", "-rf", "\udcff.sh", "é.py", f"{'x' * 129}.sh"]
    for name in names:
        put(tmp_path, name)
    put(tmp_path, f"{'y' * 128}.sh")

    registry = discover_tools(tmp_path)

    assert [tool.name for tool in registry] == ["y" * 128]
    assert told(registry, tmp_path) == dict.fromkeys(
        ["-rf", r"\xff.sh", r"a\nb", "my tool.sh", f"{'x' * 129}.sh", "é.py"], "bad_name"
    )
    assert all(str(notice).isprintable() for notice in registry.notices)
    assert sentences(registry, tmp_path)[2] == (
        r'a\nb: it is left out: "a\nb" cannot be a tool'
        "'s name (up to 128 letters, digits, '_', '-' and '.', not starting with '-' or '.'); rename the file"
    )


def test_of_two_files_with_one_name_the_first_in_sorted_order_is_taken(tmp_path: Path) -> None:
    put(tmp_path, "search.sh")
    taken = put(tmp_path, "search.py")
    put(tmp_path, "search.rb", b"")

    registry = discover_tools(tmp_path)

    assert list(registry) == [plain(taken)]
    assert told(registry, tmp_path) == {"search.rb": "name_taken", "search.sh": "name_taken"}
    assert sentences(registry, tmp_path)[1] == (
        'search.sh: search.sh is left out: the name "search" is taken by search.py, which comes first; rename one'
    )


def test_a_dangling_link_is_left_out_with_a_notice(tmp_path: Path) -> None:
    (tmp_path / "lost.sh").symlink_to("missing")
    (tmp_path / "loop.sh").symlink_to("loop.sh")
    put(tmp_path, "x.sh")
    (tmp_path / "through.sh").symlink_to("x.sh/y")

    registry = discover_tools(tmp_path)

    assert [tool.name for tool in registry] == ["x"]
    assert told(registry, tmp_path) == dict.fromkeys(["lost.sh", "loop.sh", "through.sh"], "dangling_link")
    assert sentences(registry, tmp_path)[1] == "lost.sh: it is left out: it is a link to a file that is not there"


def test_a_file_that_will_not_start_is_registered_with_a_notice(tmp_path: Path) -> None:
    """The caller then learns from the call, and the author from the notice."""
    put(tmp_path, "plain.sh", b"echo '{}'\n")
    put(tmp_path, "marked.sh", b"\xef\xbb\xbf#!/bin/sh\n")
    put(tmp_path, "nothing.sh", b"")
    put(tmp_path, "windows.py", b"#!/usr/bin/env python3\r\nprint('{}')\r\n")
    put(tmp_path, "windows2.py", b"#!/bin/sh\r")
    put(tmp_path, "fine.py", b"#!/bin/sh\n\r\n")
    put(tmp_path, "elf", b"\x7fELF\x02\x01\x01")
    for number, magic in enumerate(["feedface", "feedfacf", "cefaedfe", "cffaedfe", "cafebabe"]):
        put(tmp_path, f"mac{number}", bytes.fromhex(magic))

    registry = discover_tools(tmp_path)

    assert len(registry) == 12
    assert sentences(registry, tmp_path) == [
        (
            "marked.sh: its first line names no interpreter (a byte-order mark hides it), so it will not start; "
            "begin the file with one, such as #!/usr/bin/env python3"
        ),
        "nothing.sh: it is empty, so it will not start",
        (
            "plain.sh: its first line names no interpreter, so it will not start; "
            "begin the file with one, such as #!/usr/bin/env python3"
        ),
        (
            "windows.py: its first line ends in a carriage return (Windows line ends), so its interpreter will not be "
            r"found; sed -i 's/\r$//' windows.py"
        ),
        (
            "windows2.py: its first line ends in a carriage return (Windows line ends), so its interpreter will not be "
            r"found; sed -i 's/\r$//' windows2.py"
        ),
    ]
    assert set(told(registry, tmp_path).values()) == {"no_interpreter", "empty", "carriage_return"}


def test_the_fix_for_windows_line_ends_works(tmp_path: Path) -> None:
    put(tmp_path, "windows.sh", b"#!/bin/sh\r\necho '{}'\r\n")
    (notice,) = discover_tools(tmp_path).notices

    status = os.system(f"cd '{tmp_path}' && {notice.message.rpartition('; ')[2]}")

    assert status == 0
    assert (tmp_path / "windows.sh").read_bytes() == SCRIPT
    assert discover_tools(tmp_path).notices == ()


def test_a_file_that_cannot_be_read_is_registered_with_a_notice(public_folder: Path) -> None:
    """A binary starts without being readable; a script does not."""
    tool = put(public_folder, "secret.sh", mode=0o111)
    put(public_folder, "data.sh", mode=0o000)
    (public_folder / "closed").mkdir()
    put(public_folder / "closed", "x.sh")
    (public_folder / "link.sh").symlink_to("closed/x.sh")
    (public_folder / "closed").chmod(0o000)
    discover_tools(public_folder)  # everything is imported, which an unprivileged user may not be able to do

    with unprivileged():
        registry = discover_tools(public_folder)

    (public_folder / "closed").chmod(0o755)
    assert list(registry) == [plain(tool)]
    assert sentences(registry, public_folder) == [
        "link.sh: it is left out: it cannot be looked at (Permission denied)",
        "secret.sh: it cannot be read, so a script will not start: chmod +r secret.sh",
    ]
    assert set(told(registry, public_folder).values()) == {"unreadable"}


def test_strict_raises_with_every_notice(tmp_path: Path) -> None:
    put(tmp_path, "my tool.sh")
    put(tmp_path, "search.py")
    put(tmp_path, "search.sh")
    put(tmp_path, "zero", b"")

    assert refused(tmp_path, strict=True) == sentences(discover_tools(tmp_path), tmp_path)
    assert len(refused(tmp_path, strict=True)) == 3


class TestFolder:
    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DefinitionError) as caught:
            discover_tools(tmp_path / "missing")

        assert str(caught.value) == (f"the tools folder {tmp_path}/missing cannot be read: No such file or directory")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        put(tmp_path, "x.sh")

        with pytest.raises(DefinitionError, match=r"x\.sh cannot be read: Not a directory"):
            discover_tools(tmp_path / "x.sh")

    def test_a_name_that_no_folder_can_have_is_refused(self) -> None:
        with pytest.raises(DefinitionError, match=r"a\\x00b cannot be read: embedded null byte"):
            discover_tools("a\0b")

    def test_a_folder_that_may_not_be_read_is_refused(self, public_folder: Path) -> None:
        public_folder.chmod(0o000)

        try:
            with unprivileged(), pytest.raises(DefinitionError, match="cannot be read: Permission denied"):
                discover_tools(public_folder)
        finally:
            public_folder.chmod(0o755)

    def test_a_removed_working_directory_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

        with pytest.raises(DefinitionError, match="tools folder tools cannot be read: No such file or directory"):
            discover_tools("tools")


class TestSidecars:
    def test_a_sidecar_describes_the_file_of_its_stem(self, tmp_path: Path) -> None:
        program = put(tmp_path, "word_count.py")
        sidecar = put(tmp_path, "word_count.tool.yaml", b"description: Count words\nretry: idempotent\n")

        registry = discover_tools(tmp_path, strict=True)

        assert list(registry) == [
            ToolDef(
                name="word_count",
                description="Count words",
                retry="idempotent",
                implementation=Program(program),
                origin=str(sidecar),
            )
        ]

    def test_what_a_sidecar_starts_is_no_tool_of_its_own(self, tmp_path: Path) -> None:
        """Else its checks and limits could be gone round under another name."""
        put(tmp_path, "impl.py")
        put(tmp_path, "main.mjs")
        put(tmp_path, "other.mjs", mode=0o644)
        put(tmp_path, "a.tool.yaml", b"process: {executable: ./impl.py, args: [main.mjs, other.mjs]}")
        put(tmp_path, "b.tool.yaml", b"process: {executable: impl.py}")

        registry = discover_tools(tmp_path, strict=True)

        assert [tool.name for tool in registry] == ["a", "b"]

    def test_a_sidecars_name_replaces_the_stem(self, tmp_path: Path) -> None:
        put(tmp_path, "x.py")
        put(tmp_path, "x.tool.json", b'{"name": "word_count"}', 0o755)

        assert [tool.name for tool in discover_tools(tmp_path, strict=True)] == ["word_count"]

    def test_a_described_tool_stands_before_other_files_of_its_stem(self, tmp_path: Path) -> None:
        put(tmp_path, "x.py")
        put(tmp_path, "x.sh")
        put(tmp_path, "x.tool.yaml", b"process: {executable: ./x.sh}")
        put(tmp_path, "y")
        put(tmp_path, "y.sh")
        put(tmp_path, "y.tool.yaml", b"process: {executable: ./y.sh}")

        registry = discover_tools(tmp_path)

        assert [tool.origin for tool in registry] == [f"{tmp_path}/x.tool.yaml", f"{tmp_path}/y.tool.yaml"]
        assert sentences(registry, tmp_path) == [
            'x.py: x.py is left out: the name "x" is taken by x.tool.yaml, which comes first; rename one',
            'y: y is left out: the name "y" is taken by y.tool.yaml, which comes first; rename one',
        ]

    def test_a_name_from_a_sidecar_can_be_taken(self, tmp_path: Path) -> None:
        put(tmp_path, "a.py")
        put(tmp_path, "b.py", b"")
        put(tmp_path, "b.tool.yaml", b"name: a")
        put(tmp_path, "c.py")
        put(tmp_path, "c.tool.yaml", b"name: d")
        put(tmp_path, "d.py")

        registry = discover_tools(tmp_path)

        assert [tool.origin for tool in registry] == [f"{tmp_path}/a.py", f"{tmp_path}/c.tool.yaml"]
        assert sentences(registry, tmp_path) == [
            'b.tool.yaml: b.tool.yaml is left out: the name "a" is taken by a.py, which comes first; rename one',
            'd.py: d.py is left out: the name "d" is taken by c.tool.yaml, which comes first; rename one',
        ]

    def test_a_described_program_that_will_not_start_gets_a_notice(self, tmp_path: Path) -> None:
        put(tmp_path, "x.py", b"print('{}')")
        put(tmp_path, "data.txt", b"no program")
        put(tmp_path, "x.tool.yaml", b"process: {args: [data.txt]}")

        registry = discover_tools(tmp_path)

        assert [tool.name for tool in registry] == ["x"]
        assert told(registry, tmp_path) == {"x.py": "no_interpreter"}

    def test_two_sidecars_of_one_stem_are_refused_with_both_names(self, tmp_path: Path) -> None:
        put(tmp_path, "x.py")
        put(tmp_path, "x.tool.yaml", b"{}")
        put(tmp_path, "x.tool.json", b"{}")

        assert refused(tmp_path) == ['x.tool.yaml: x.tool.json describes "x" as well; keep one']

    def test_the_faults_of_all_sidecars_are_reported_at_once(self, tmp_path: Path) -> None:
        put(tmp_path, "a.py")
        put(tmp_path, "a.tool.yaml", b"titel: A\nretry: never")
        put(tmp_path, "b.tool.json", b"{}")
        (tmp_path / "c.tool.yml").symlink_to("missing")

        assert refused(tmp_path) == [
            'a.tool.yaml, line 1: unknown key "titel"; did you mean "title"?',
            'a.tool.yaml, line 2: retry must be idempotent or manual, not "never"',
            (
                'b.tool.json, line 1: there is no executable beside it: neither "b" nor "b" with an ending; '
                "put it there, or name it in process.executable"
            ),
            "c.tool.yml: this sidecar cannot be read: No such file or directory",
        ]

    def test_every_bad_schema_is_refused_with_the_line_of_its_fault(self, tmp_path: Path) -> None:
        put(tmp_path, "x.py")
        put(tmp_path, "x.tool.yaml", b"inputSchema:\n  type: object\n  properties:\n    n: {minLength: -1}\n")
        put(tmp_path, "y.py")
        put(tmp_path, "y.tool.yaml", b"inputSchema: {type: array}\noutputSchema:\n  $ref: '#/$defs/none'\n")

        assert refused(tmp_path) == [
            "x.tool.yaml, line 4: inputSchema.properties.n.minLength: cannot be -1 (minimum of the draft's own schema)",
            'y.tool.yaml, line 1: inputSchema.type: must be "object", because arguments are one, not "array"',
            'y.tool.yaml, line 3: outputSchema.$ref: "#/$defs/none" leads to nothing inside the schema, and nothing is '
            "ever fetched. Put what it means under $defs",
        ]


def test_a_thousand_tools_are_found_quickly(tmp_path: Path) -> None:
    """Measured: 0.2 s; the bound is what nobody waits for."""
    for number in range(1000):
        put(tmp_path, f"tool{number:04}.sh")
    discover_tools(tmp_path)
    started = time.perf_counter()

    registry = discover_tools(tmp_path)

    assert time.perf_counter() - started < 1.0
    assert len(registry) == 1000


def test_a_type_that_looks_like_a_slip_of_the_pen_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    fields = {"a": {"type": "str"}, "b": {"type": "array", "items": {"type": "interger"}}, "c": {"type": "date"}}
    (tmp_path / "tool.tool.json").write_text(json.dumps({"input": {**fields, "d": {"type": "colour"}}}))

    notices = discover_tools(tmp_path).notices

    assert [(notice.code, notice.message) for notice in notices] == [
        ("unknown_type", 'a: type "str" checks nothing; did you mean "string"?'),
        ("unknown_type", 'b.items: type "interger" checks nothing; did you mean "integer"?'),
    ]
