"""The pytest plugin as a newcomer meets it: real sessions in processes of their own; and its fixtures, used here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

import heddle
from heddle.testing import make_tool
from heddle.testing.fixtures import Calls, RunTool
from heddle.testing.tools import tool_at
from tests.support import children_of

HOW_TO = Path(__file__).parent.parent / "docs/how-to/test-a-tool.md"

WORD_COUNT = """
    #!/usr/bin/env python3
    import json, sys

    text = json.load(sys.stdin)["text"]
    print(f"counting {text!r}", file=sys.stderr)
    if text == "knot":
        sys.exit("cannot count a knot")
    print(json.dumps({"words": len(text.split())}))
"""


ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "heddle.testing.pytest_plugin"}


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as it is typed, with whatever plugins are installed, or with this one `ALONE`, which is quicker."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *arguments],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"))


# What a failing test shows


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each failing test of one session, by the name of the test."""
    folder = tmp_path_factory.mktemp("session")
    make_tool(folder / "tools", WORD_COUNT, name="word_count.py", sidecar={"input": {"text": {"type": "string"}}})
    make_tool(folder / "tools", "#!/bin/sh\nprintf 'plain\\033[31m\\n' >&2; echo '{}'", name="paint.sh")
    make_tool(
        folder / "tools",
        "#!/bin/sh\nseq 9 >&2; echo '{}'",
        name="empty.sh",
        sidecar={"outputSchema": {"required": ["words"]}},
    )
    make_tool(folder / "tools", "#!/bin/sh\nsleep 60", name="slow.sh", sidecar={"limits": {"timeoutSeconds": 0.1}})
    write(folder / "pytest.ini", "[pytest]\nheddle_tools = tools\n")
    write(
        folder / "tests/test_tools.py",
        """
        import heddle

        @heddle.tool
        def halve(number: int) -> int:
            if number % 2:
                raise ValueError("odd")
            return number // 2

        def test_passing(run_tool):
            assert run_tool("tools/word_count.py", {"text": "a b"}) == heddle.Returned({"words": 2})

        def test_other_data(run_tool):
            result = run_tool("tools/word_count.py", {"text": "a b"})
            assert result.unwrap() == {"words": 3}

        def test_equal(run_tool):
            assert run_tool("tools/word_count.py", {"text": "knot"}) == heddle.Returned({"words": 1})

        def test_equal_the_other_way_round(run_tool):
            assert heddle.Returned({"words": 1}) == run_tool("tools/word_count.py", {"text": "knot"})

        def test_unwrapped(run_tool):
            run_tool("tools/word_count.py", {"text": "knot"}).unwrap()

        def test_no_result(run_tool):
            assert run_tool("tools/word_count.py", {"text": "a b"}) == {"words": 2}

        def test_refused(run_tool):
            assert run_tool("tools/word_count.py", {"text": 1}) == {"words": 2}

        def test_function(run_tool):
            assert run_tool(halve, {"number": 3}) == heddle.Returned({"result": 1})

        def test_empty(run_tool):
            assert run_tool("tools/empty.sh") == heddle.Returned({})

        def test_slow(run_tool):
            assert run_tool("tools/slow.sh").ok

        def test_expected_to_fail(run_tool):
            assert run_tool("tools/word_count.py", {"text": "a b"}) == heddle.Failed("crashed", "")

        def test_missing(run_tool):
            run_tool("tools/nosuch.py")

        def test_colours(run_tool):
            assert not run_tool("tools/paint.sh").ok

        def test_runner(tool_runner):
            with tool_runner.scope() as scope:
                scope.call("paint")
                assert scope.call("word_count", {"text": "knot"}).ok
        """,
    )

    done = run_pytest(folder)

    assert (done.returncode, done.stderr) == (1, "")
    assert "13 failed, 1 passed" in done.stdout
    parts = re.split(r"^_{3,} (\w+) _{3,}$", re.split("\n=+ short test summary", done.stdout)[0], flags=re.MULTILINE)
    return {name: text.replace(str(folder), "FOLDER") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def explanation(report: str) -> list[str]:
    """Return what pytest says of the error, without its mark."""
    return [line.removeprefix("E").strip() for line in report.splitlines() if line.startswith("E ")]


def sections(report: str) -> list[str]:
    """Return what tools have written: the title of each section and its lines."""
    return re.sub(r"^-+ (.*?) -+$", r"\1", report[report.find("\n---") :].strip(), flags=re.MULTILINE).splitlines()


def test_a_test_that_fails_shows_what_its_tool_wrote(reports: dict[str, str]) -> None:
    assert explanation(reports["test_other_data"])[0] == "AssertionError: assert {'words': 2} == {'words': 3}"
    assert sections(reports["test_other_data"]) == ["tool stderr: word_count", "counting 'a b'"]


@pytest.mark.parametrize(
    ("test", "comparison"),
    [
        ("test_equal", "assert Failed(crashed) == Returned(data={'words': 1})"),
        ("test_equal_the_other_way_round", "assert Returned(data={'words': 1}) == Failed(crashed)"),
    ],
)
def test_a_failure_where_data_was_expected_explains_itself(reports: dict[str, str], test: str, comparison: str) -> None:
    assert explanation(reports[test]) == [
        comparison,
        'The call failed (crashed): tool "word_count" exited with status 1.',
        "Its standard error ends with:",
        "counting 'knot'",
        "cannot count a knot",
    ]


def test_a_failure_that_is_unwrapped_shows_kind_status_and_standard_error(reports: dict[str, str]) -> None:
    report = reports["test_unwrapped"]

    assert explanation(report)[0] == 'heddle.errors.ToolFailed: tool "word_count" exited with status 1.'
    assert sections(report) == [
        "tool stderr: word_count",
        'failed (crashed): tool "word_count" exited with status 1.',
        "counting 'knot'",
        "cannot count a knot",
    ]


def test_data_that_is_taken_for_a_result_is_told_from_one(reports: dict[str, str]) -> None:
    """The first mistake that everybody makes."""
    assert explanation(reports["test_no_result"]) == [
        "AssertionError: assert Returned(data={'words': 2}) == {'words': 2}",
        "A result is not the data in it: compare result.unwrap(), or compare with heddle.Returned(...).",
        "Its data: {'words': 2}",
    ]


def test_a_refused_call_says_why_and_speaks_of_no_standard_error(reports: dict[str, str]) -> None:
    said = 'tool "word_count" input validation failed: text: must be a string, not a number'

    assert explanation(reports["test_refused"])[1] == f"The call failed (invalid_input): {said}"
    assert sections(reports["test_refused"]) == ["tool stderr: word_count", f"failed (invalid_input): {said}"]


def test_what_the_message_does_not_say_is_added(reports: dict[str, str]) -> None:
    """pytest cuts an explanation after 8 lines; the section has all of it."""
    lines = explanation(reports["test_empty"])

    assert lines[1].startswith('The call failed (output_mismatch): tool "empty" returned what its output schema')
    assert lines[-6:] == ["Its exit status is 0.", "Its standard error ends with:", "6", "7", "8", "9"]
    assert sections(reports["test_empty"])[2:] == [str(number) for number in range(1, 10)]


def test_a_tool_that_wrote_nothing_is_said_to_have_written_nothing(reports: dict[str, str]) -> None:
    assert sections(reports["test_slow"])[2:] == ["(standard error is empty)"]


def test_a_call_that_was_to_fail_shows_what_it_returned(reports: dict[str, str]) -> None:
    assert explanation(reports["test_expected_to_fail"]) == [
        "AssertionError: assert Returned(data={'words': 2}) == Failed(crashed)",
        "The call returned {'words': 2}",
    ]


def test_a_function_that_raises_is_found(reports: dict[str, str]) -> None:
    assert explanation(reports["test_function"]) == [
        "assert Failed(crashed) == Returned(data={'result': 1})",
        'The call failed (crashed, ValueError): tool "halve" raised ValueError: odd',
        "It was raised at test_tools:6 in halve.",
    ]


def test_a_wrong_path_names_both_places_that_were_tried(reports: dict[str, str]) -> None:
    (line,) = explanation(reports["test_missing"])

    assert line == (
        "FileNotFoundError: there is no tool 'tools/nosuch.py': neither FOLDER/tests/tools/nosuch.py nor "
        "FOLDER/tools/nosuch.py is there. A relative path starts at the folder of the test file, then at "
        "pytest's rootdir"
    )
    assert "fixtures.py" not in reports["test_missing"]


def test_what_a_tool_writes_draws_nothing_on_the_terminal(reports: dict[str, str]) -> None:
    assert sections(reports["test_colours"]) == ["tool stderr: paint", "plain\\x1b[31m"]


def test_calls_of_a_runner_and_of_its_scopes_are_shown_in_their_order(reports: dict[str, str]) -> None:
    lines = sections(reports["test_runner"])

    assert [line for line in lines if line.startswith("tool stderr")] == [
        "tool stderr: paint",
        "tool stderr: word_count",
    ]
    assert lines[-1] == "cannot count a knot"


# What run_tool finds


def test_what_the_sidecar_says_holds(run_tool: RunTool, tmp_path: Path) -> None:
    sidecar = {
        "name": "echo",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "default": 3}}},
        "limits": {"timeoutSeconds": 0.2},
    }
    path = make_tool(tmp_path, "#!/bin/sh\ncat", name="tool.sh", sidecar=sidecar)
    slow = make_tool(tmp_path, "#!/bin/sh\nsleep 60", name="slow", sidecar=sidecar)

    given, refused, late = run_tool(path), run_tool(path, {"n": "x"}), run_tool(slow)

    assert (given, given.report.tool) == (heddle.Returned({"n": 3}), "echo")
    assert isinstance(refused, heddle.Failed)
    assert isinstance(late, heddle.Failed)
    assert (refused.kind, late.kind) == ("invalid_input", "timed_out")


def test_what_is_wrong_with_other_tools_of_the_folder_does_not_matter(run_tool: RunTool, tmp_path: Path) -> None:
    (tmp_path / "broken.tool.json").write_text("{")
    (tmp_path / "lost.tool.json").write_text("{}")
    path = make_tool(tmp_path, "#!/bin/sh\necho '{}'")

    assert run_tool(path) == heddle.Returned({})


def test_a_file_that_another_sidecar_starts_is_the_tool_of_that_sidecar(tmp_path: Path) -> None:
    (tmp_path / "broken.tool.json").write_text("{")
    (tmp_path / "main.sh").write_text("cat")
    (tmp_path / "echo.tool.json").write_text(json.dumps({"process": {"executable": "sh", "args": ["main.sh"]}}))

    by_file, by_sidecar = tool_at(tmp_path / "main.sh"), tool_at(tmp_path / "echo.tool.json")

    assert by_file == by_sidecar == heddle.discover_tools(without(tmp_path, "broken.tool.json"))["echo"]


def without(folder: Path, name: str) -> Path:
    (folder / name).unlink()
    return folder


@pytest.mark.parametrize(
    ("name", "mode", "fault"),
    [
        ("tool", 0o644, "tool has no execute bit: chmod +x tool"),
        ("-tool", 0o755, '"-tool" cannot be a tool\'s name'),
    ],
)
def test_a_file_that_is_no_tool_is_refused_with_the_reason(
    run_tool: RunTool, tmp_path: Path, name: str, mode: int, fault: str
) -> None:
    make_tool(tmp_path, "#!/bin/sh\ncat", name=name).chmod(mode)

    with pytest.raises(heddle.DefinitionError, match=re.escape(fault)):
        run_tool(tmp_path / name)


def test_a_folder_and_two_sidecars_are_refused(run_tool: RunTool, tmp_path: Path) -> None:
    path = make_tool(tmp_path, "#!/bin/sh\ncat", sidecar={})
    (tmp_path / "tool.tool.yaml").write_text("{}")

    with pytest.raises(heddle.DefinitionError, match="two sidecars"):
        run_tool(path)
    with pytest.raises(heddle.DefinitionError, match="not a regular file"):
        run_tool(tmp_path)


def test_a_function_that_is_no_tool_is_refused_with_the_way_to_make_it_one(run_tool: RunTool) -> None:
    with pytest.raises(TypeError, match=re.escape("decorated with @heddle.tool")):
        run_tool(len)  # type: ignore[arg-type]


def test_definitions_and_async_functions_are_run(run_tool: RunTool, tmp_path: Path) -> None:
    @heddle.tool
    async def double(number: int) -> int:
        return 2 * number

    path = make_tool(tmp_path, "#!/bin/sh\ncat")
    definition = heddle.ToolDef(name="echo", implementation=heddle.Program(path))

    assert run_tool(double, {"number": 2}) == heddle.Returned({"result": 4})
    assert run_tool(definition, '{"a": 1}') == heddle.Returned({"a": 1})


# Where a tool is run


def test_all_calls_of_a_test_share_a_folder_that_the_test_sees(run_tool: RunTool, tmp_path: Path) -> None:
    copy = make_tool(tmp_path, "#!/bin/sh\ncp in.txt out.txt\necho '{}'", name="copy")
    show = make_tool(tmp_path, """#!/bin/sh\nprintf '{"text": "%s"}' "$(cat ../out.txt)\"""", name="show")
    (run_tool.workspace / "in.txt").write_text("over")
    (run_tool.workspace / "inner").mkdir()

    copied, shown = run_tool(copy), run_tool(show, cwd="inner")

    assert (copied, shown) == (heddle.Returned({}), heddle.Returned({"text": "over"}))
    assert sorted(path.name for path in run_tool.workspace.iterdir()) == ["in.txt", "inner", "out.txt"]


def test_a_variable_that_is_set_between_two_calls_counts(
    run_tool: RunTool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_tool(
        tmp_path, """#!/bin/sh\nprintf '{"key": "%s"}' "$KEY\"""", sidecar={"process": {"inheritEnv": ["KEY"]}}
    )

    monkeypatch.setenv("KEY", "one")
    first = run_tool(path)
    monkeypatch.setenv("KEY", "two")
    second = run_tool(path)
    third = run_tool(path, environment=heddle.Environment(values={"KEY": "three"}))

    assert [result.unwrap() for result in (first, second, third)] == [{"key": "one"}, {"key": "two"}, {"key": "three"}]


def test_a_tool_that_is_rewritten_is_run_as_it_is_now(run_tool: RunTool, tmp_path: Path) -> None:
    before = run_tool(
        make_tool(tmp_path, "#!/bin/sh\ncat", sidecar={"input": {"n": {"type": "integer", "default": 1}}})
    )
    after = run_tool(make_tool(tmp_path, "#!/bin/sh\ncat", sidecar={"input": {"n": {"type": "integer", "default": 2}}}))

    assert (before, after) == (heddle.Returned({"n": 1}), heddle.Returned({"n": 2}))


async def test_a_test_under_an_event_loop_may_use_it_too(run_tool: RunTool, tmp_path: Path) -> None:
    assert run_tool(make_tool(tmp_path, "#!/bin/sh\ncat"), {"a": 1}) == heddle.Returned({"a": 1})


def test_nothing_runs_after_the_test_not_even_in_a_child(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A child is what pytest-forked runs a test in. It must neither hang nor take its parent's runner away."""
    path = make_tool(tmp_path, "#!/bin/sh\ncat")
    before = children_of(os.getpid())

    with RunTool([tmp_path], tmp_path_factory, Calls()) as run_tool:
        run_tool(path)
        child = os.fork()
        if child == 0:
            run_tool.__exit__()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        again = run_tool(path)

    assert os.waitstatus_to_exitcode(status) == 7
    assert again == heddle.Returned({})
    assert children_of(os.getpid()) == before


# The plugin itself


def test_pytest_loads_the_plugin_wherever_heddle_is_installed() -> None:
    (found,) = [each for each in metadata.entry_points(group="pytest11") if each.dist and each.dist.name == "heddle"]

    assert (found.name, found.value) == ("heddle", "heddle.testing.pytest_plugin")


def test_a_session_that_runs_no_tool_loads_nothing_heavy(tmp_path: Path) -> None:
    write(
        tmp_path / "test_nothing.py",
        """
        import sys

        def test_nothing():
            loaded = sorted(name for name in sys.modules if name.startswith("heddle"))
            assert loaded == ["heddle", "heddle.testing", "heddle.testing.pytest_plugin"]
            assert not {"trio", "attr", "attrs", "cattrs", "jsonschema", "asyncio"} & set(sys.modules)
            assert [1] == [1]
        """,
    )

    done = run_pytest(tmp_path, **ALONE)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ("", "Write into FOLDER/pytest.ini, under [pytest]:\n\nheddle_tools = tools\n"),
        (
            "[tool.pytest.ini_options]\n",
            "Write into FOLDER/pyproject.toml, under [tool.pytest.ini_options], or [tool.pytest] where you have that:"
            '\n\nheddle_tools = "tools"\n',
        ),
        ('[tool.pytest.ini_options]\nheddle_tools = "nosuch"\n', "heddle_tools = nosuch: the tools folder "),
    ],
)
def test_a_runner_without_its_folder_says_what_to_write_and_where(tmp_path: Path, config: str, where: str) -> None:
    write(tmp_path / "test_it.py", "def test_it(tool_runner): pass\n")
    if config:
        write(tmp_path / "pyproject.toml", config)

    done = run_pytest(tmp_path, **ALONE)

    assert done.returncode == 1
    assert where in done.stdout.replace(str(tmp_path), "FOLDER")
    assert "Traceback" not in done.stdout
    assert "fixtures.py" not in done.stdout


# make_tool


def test_a_tool_is_written_with_its_sidecar(tmp_path: Path) -> None:
    path = make_tool(tmp_path / "new", "\n    #!/bin/sh\n    cat\n", name="echo.sh", sidecar={"description": "Ünï"})

    assert (path, path.read_text(), path.stat().st_mode & 0o777) == (
        tmp_path / "new/echo.sh",
        "#!/bin/sh\ncat\n",
        0o755,
    )
    assert heddle.discover_tools(tmp_path / "new")["echo"].description == "Ünï"


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("import json", "tool", r"begins with a line that names its interpreter.*this one begins with 'import json'"),
        ("\n  # text\n  #!/bin/sh\n", "tool", "'# text'"),
        ("#!/bin/sh", "a/b", "the name of its file in the folder, not 'a/b'"),
        ("#!/bin/sh", "..", "not '..'"),
    ],
)
def test_a_tool_that_could_not_start_is_not_written(tmp_path: Path, source: str, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_tool(tmp_path, source, name=name)

    assert list(tmp_path.iterdir()) == []


# The page


def test_what_the_page_shows_is_what_happens(tmp_path: Path) -> None:
    """Every command is typed and every piece of Python run; the one failure looks as it is shown."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    pieces = [text for language, text in blocks if language == "python"]
    (commands,) = [text for language, text in blocks if language == "sh"]
    (ini,) = [text for language, text in blocks if language == "ini"]
    (failure,) = [text for language, text in blocks if language == "text"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    typed = subprocess.run(
        ["/bin/sh", "-ec", commands],
        cwd=tmp_path,
        env=os.environ | ALONE | {"PATH": path, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    write(tmp_path / "pytest.ini", ini)
    for number, piece in enumerate(pieces):
        write(tmp_path / f"tests/test_page_{number}.py", piece)
    done = run_pytest(tmp_path, **ALONE)

    assert (typed.returncode, typed.stderr) == (0, "")
    assert '{"text": "1:02:05"}\n' in typed.stdout
    assert "3 passed" in typed.stdout
    assert failure in done.stdout
    tests = sum(piece.count("def test_") for piece in pieces)
    assert f" 1 failed, {tests - 1 + 3} passed" in done.stdout
