"""Sidecars: what each key becomes, and what is said about one that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.errors import DefinitionError
from heddle.limits import Limits
from heddle.tools.definition import FieldDef, Program, ToolDef, Validation
from heddle.tools.sidecars import load_sidecar, sidecar_stem

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = "#!/bin/sh\necho '{}'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one executable, `x.py`."""
    script(tmp_path / "x.py")
    return tmp_path


def script(path: Path, mode: int = 0o755) -> Path:
    path.write_text(SCRIPT)
    path.chmod(mode)
    return path


def load(folder: Path, text: str, name: str = "x.tool.yaml", same_stem: Sequence[str] = ("x.py",)) -> ToolDef:
    """Read `text` as the sidecar of that name."""
    (folder / name).write_text(text)
    return load_sidecar(folder / name, [folder / each for each in same_stem])


def refused(folder: Path, text: str, name: str = "x.tool.yaml", same_stem: Sequence[str] = ("x.py",)) -> list[str]:
    """Return the lines of the error, without the folder."""
    with pytest.raises(DefinitionError) as caught:
        load(folder, text, name, same_stem)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_an_empty_object_describes_the_executable_of_the_same_stem(folder: Path) -> None:
    assert load(folder, "{}") == ToolDef(
        name="x", implementation=Program(folder / "x.py"), origin=str(folder / "x.tool.yaml")
    )


def test_every_key_finds_its_place(folder: Path) -> None:
    text = """
name: word_count
title: Count words
description: Count the words of a text
inputSchema: {type: object, properties: {text: {type: string}}, required: [text]}
outputSchema: {type: object}
protocol: envelope
process: {executable: ./x.py, args: [--fast, "8"], inheritEnv: [API_KEY]}
limits: {timeoutSeconds: 2.5, maxInputBytes: 65536, maxResultBytes: 65537, maxLogBytes: 4096}
sideEffects: read
retry: idempotent
validate: {schema: false, strict: true, rules: []}
annotations: {readOnlyHint: true}
revision: "1.0"
extensions: [anything, {goes: here}]
"""

    assert load(folder, text) == ToolDef(
        name="word_count",
        title="Count words",
        description="Count the words of a text",
        input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        output_schema={"type": "object"},
        implementation=Program(folder / "x.py", ("--fast", "8"), "envelope", ("API_KEY",)),
        limits=Limits(wall_seconds=2.5, stdin_bytes=65536, stdout_bytes=65537, stderr_bytes=4096),
        side_effects="read",
        retry="idempotent",
        validation=Validation(schema=False, strict=True),
        annotations={"readOnlyHint": True},
        revision="1.0",
        origin=str(folder / "x.tool.yaml"),
    )


def test_arguments_can_be_declared_in_the_short_form(folder: Path) -> None:
    text = """
input:
  amount: {type: number, required: true}
  note: {type: string, default: none, enum: [none, some]}
output:
  total: {type: integer, description: In cents}
validate: {strict: true}
"""

    assert load(folder, text) == ToolDef.from_fields(
        "x",
        input={
            "amount": FieldDef("number", required=True),
            "note": FieldDef("string", default="none", enum=["none", "some"]),
        },
        output={"total": FieldDef("integer", description="In cents")},
        validation=Validation(strict=True),
        implementation=Program(folder / "x.py"),
        origin=str(folder / "x.tool.yaml"),
    )


def test_the_two_forms_can_be_mixed(folder: Path) -> None:
    """The form of the arguments decides how they are judged."""
    fields_in = load(folder, "input: {n: {type: integer}}\noutputSchema: false")
    fields_out = load(folder, "inputSchema: {type: object}\noutput: {n: {type: integer}}")

    assert (fields_in.validation.dialect, fields_in.output_schema, fields_in.output_fields) == ("fields", False, None)
    assert fields_in.input_fields == {"n": FieldDef("integer")}
    assert (fields_out.validation.dialect, fields_out.input_schema) == ("json-schema", {"type": "object"})
    assert fields_out.output_fields == {"n": FieldDef("integer")}
    assert fields_out.output_schema == fields_in.input_schema


@pytest.mark.parametrize("name", ["x.tool.yaml", "x.tool.yml", "x.tool.json"])
def test_a_sidecar_may_be_yaml_or_json(folder: Path, name: str) -> None:
    tool = load(folder, '{"description": "Counts", "retry": "idempotent"}', name)

    assert (tool.name, tool.description, tool.retry, tool.origin) == ("x", "Counts", "idempotent", str(folder / name))


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("x.tool.yaml", "x"),
        ("a.b.tool.yml", "a.b"),
        ("x.tool.json", "x"),
        ("x.tool.toml", None),
        ("x.yaml", None),
        ("tool.yaml", None),
        ("x.tool.YAML", None),
        ("x.tool.yaml.sh", None),
    ],
)
def test_a_sidecar_is_known_by_its_ending(name: str, stem: str | None) -> None:
    assert sidecar_stem(name) == stem


class TestProgram:
    @pytest.mark.parametrize("executable", ["./x.py", "x.py", "sub/../x.py", "../tools/x.py"])
    def test_a_path_starts_at_the_sidecars_folder(
        self, tmp_path: Path, executable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "tools"
        (folder / "sub").mkdir(parents=True)
        script(folder / "x.py")
        monkeypatch.chdir("/")

        tool = load(folder, f"process: {{executable: {executable}}}", same_stem=())

        assert isinstance(tool.implementation, Program)
        assert tool.implementation.path.is_absolute()
        assert tool.implementation.path.samefile(folder / "x.py")

    def test_a_path_may_be_absolute(self, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        elsewhere = script(tmp_path_factory.mktemp("elsewhere") / "run")

        assert load(folder, f"process: {{executable: {elsewhere}}}").implementation == Program(elsewhere)

    def test_a_command_is_found_on_the_path(
        self, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And its script is found beside the sidecar, wherever the tool will run."""
        bin_folder = tmp_path_factory.mktemp("bin")
        script(bin_folder / "node")
        (folder / "main.mjs").write_text("")
        (folder / "lib").mkdir()
        (folder / "lib" / "more.mjs").write_text("")
        monkeypatch.setenv("PATH", str(bin_folder))

        tool = load(
            folder, "process: {executable: node, args: [--quiet, ./main.mjs, main.mjs, lib/more.mjs, lib, ., '']}"
        )

        main = str(folder / "main.mjs")
        assert tool.implementation == Program(
            bin_folder / "node", ("--quiet", main, main, str(folder / "lib" / "more.mjs"), "lib", ".", "")
        )

    def test_a_command_found_through_a_relative_path_is_made_absolute(
        self, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path_factory.mktemp("here")
        script(here / "node")
        monkeypatch.chdir(here)
        monkeypatch.setenv("PATH", ".")

        assert load(folder, "process: {executable: node}").implementation == Program(here / "node")

    def test_a_file_beside_the_sidecar_comes_before_a_command(self, folder: Path) -> None:
        script(folder / "sh")

        assert load(folder, "process: {executable: sh}").implementation == Program(folder / "sh")

    def test_a_folder_beside_the_sidecar_does_not_hide_a_command(self, folder: Path) -> None:
        (folder / "sh").mkdir()

        tool = load(folder, "process: {executable: sh}")

        assert tool.implementation == Program(Path(shutil.which("sh") or ""))

    def test_an_argument_outside_the_folder_is_passed_as_it_is(self, folder: Path) -> None:
        args = [f"../{folder.name}/x.py", "/etc/passwd", "x", f"{'x' * 300}"]

        tool = load(folder, json.dumps({"process": {"args": args}}), "x.tool.json")

        assert tool.implementation == Program(folder / "x.py", args)

    def test_the_first_executable_of_the_stem_is_taken(self, folder: Path) -> None:
        script(folder / "x.a", 0o644)
        (folder / "x.b").mkdir()
        script(folder / "x.c")

        tool = load(folder, "{}", same_stem=["x.a", "x.b", "x.c", "x.py"])

        assert tool.implementation == Program(folder / "x.c")

    @pytest.mark.parametrize(
        ("executable", "problem"),
        [
            ("./missing", "FOLDER/missing cannot be started: No such file or directory"),
            ("./plain", "FOLDER/plain has no execute bit: chmod +x plain"),
            ("plain", "FOLDER/plain has no execute bit: chmod +x plain"),
            ("./sub", "FOLDER/sub is not a regular file"),
            ("./sub/", "FOLDER/sub is not a regular file"),
            ("sub/", "FOLDER/sub is not a regular file"),
            ("/", "/ is not a regular file"),
            ("no-such-command", '"no-such-command" is neither beside the sidecar nor on PATH'),
            ("", '"" is neither beside the sidecar nor on PATH'),
            ("a\0b", r'"a\x00b" is neither beside the sidecar nor on PATH'),
            ("./a\0b", r"FOLDER/a\x00b cannot be started: embedded null byte"),
        ],
    )
    def test_a_program_that_cannot_be_started_is_refused(self, folder: Path, executable: str, problem: str) -> None:
        script(folder / "plain", 0o644)
        (folder / "sub").mkdir()

        said = refused(folder, json.dumps({"process": {"executable": executable}}), "x.tool.json")

        problem = problem.replace("FOLDER/", "")
        assert said == [f"x.tool.json, line 1: process.executable: {problem}"]

    def test_a_missing_program_is_refused(self, folder: Path) -> None:
        (folder / "x.lost").symlink_to("missing")

        assert refused(folder, "{}", same_stem=["x.lost"]) == [
            (
                'x.tool.yaml, line 1: there is no executable beside it: neither "x" nor "x" with an ending; '
                "put it there, or name it in process.executable"
            )
        ]

    def test_a_program_without_an_execute_bit_is_refused(self, folder: Path) -> None:
        script(folder / "x.sh", 0o644)

        assert refused(folder, "process:\n  args: []", same_stem=["x.sh"]) == [
            "x.tool.yaml, line 1: x.sh beside it has no execute bit: chmod +x x.sh"
        ]


class TestRefused:
    def test_every_problem_is_reported_at_once_with_its_line(self, folder: Path) -> None:
        text = """\
descripton: Counts
retry: never
process:
  executable: ./missing
  arg: []
limits: {timeoutSeconds: 0}
title: 5
"""

        assert refused(folder, text) == [
            'x.tool.yaml, line 1: unknown key "descripton"; did you mean "description"?',
            'x.tool.yaml, line 2: retry must be idempotent or manual, not "never"',
            "x.tool.yaml, line 4: process.executable: missing cannot be started: No such file or directory",
            'x.tool.yaml, line 5: unknown key "arg" in process; did you mean "args"?',
            "x.tool.yaml, line 6: limits.timeoutSeconds must be a number greater than 0, not 0",
            "x.tool.yaml, line 7: title must be text, not 5; put it in quotes",
        ]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("input_schema: {}", 'unknown key "input_schema"; did you mean "inputSchema"?'),
            ("limits: {timeout: 1}", 'unknown key "timeout" in limits; did you mean "timeoutSeconds"?'),
            ("process: {inherit_env: []}", 'unknown key "inherit_env" in process; did you mean "inheritEnv"?'),
            ("validate: {rule: []}", 'unknown key "rule" in validate; did you mean "rules"?'),
            ("validate: {zzz: 1}", 'unknown key "zzz" in validate; there may be schema, strict, rules'),
            ('"a\\nb": 1', r'unknown key "a\nb"; there may be name, title, '),
            ("name: 5", "name must be text, not 5; put it in quotes"),
            ("name: my tool", "\"my tool\" cannot be a tool's name: up to 128 letters, digits, '_', '-' and '.', "),
            ("title: true", "title must be text, not true; put it in quotes"),
            ("description:", "description must be text, not null"),
            ("description: [a]", "description must be text, not a list"),
            ("revision: 1.0", "revision must be text, not 1.0; put it in quotes"),
            ("inputSchema: true", "inputSchema must be an object, not true"),
            ("outputSchema: [1]", "outputSchema must be an object, not a list"),
            ("outputSchema: null", "outputSchema must be an object, not null"),
            ("input: [a]", "input must be an object, not a list"),
            ("protocol: mcp", 'protocol must be plain or envelope, not "mcp"'),
            ("sideEffects: none", 'sideEffects must be read or write or unknown, not "none"'),
            ("retry: null", "retry must be idempotent or manual, not null"),
            ("retry: {}", "retry must be idempotent or manual, not an object"),
            ("annotations: x", 'annotations must be an object, not "x"'),
            ("process: ./x.py", 'process must be an object, not "./x.py"'),
            ("process: {executable: [node, x]}", "process.executable must be text, not a list"),
            ("process: {args: -v}", 'process.args must be a list of texts, not "-v"'),
            ("process: {args: [a, 8080]}", "process.args[1] must be text, not 8080; put it in quotes"),
            ('process: {args: ["a\\0b"]}', "process.args[0] holds a NUL character"),
            ("process: {inheritEnv: [A-B]}", '"A-B" is not the name of an environment variable'),
            ("limits: {timeoutSeconds: soon}", 'limits.timeoutSeconds must be a number greater than 0, not "soon"'),
            ("limits: {timeoutSeconds: true}", "limits.timeoutSeconds must be a number greater than 0, not true"),
            ("limits: {timeoutSeconds: null}", "limits.timeoutSeconds must be a number greater than 0, not null"),
            ("limits: {maxInputBytes: 1.5}", "limits.maxInputBytes must be a whole number greater than 0, not 1.5"),
            ("limits: {maxResultBytes: -1}", "limits.maxResultBytes must be a whole number greater than 0, not -1"),
            ("limits: {maxLogBytes: true}", "limits.maxLogBytes must be a whole number greater than 0, not true"),
            ("validate: {schema: 'no'}", 'validate.schema must be true or false, not "no"'),
            ("validate: {strict: 1}", "validate.strict must be true or false, not 1"),
            ("validate: {rules: x}", 'validate.rules must be a list of objects, not "x"'),
            ("validate: {rules: [x]}", 'validate.rules[0] must be an object, not "x"'),
            ("sandbox: {network: open}", 'sandbox.network must be host or none, not "open"'),
            ("sandbox: {write: [/]}", 'unknown key "write" in sandbox; there may be network'),
            ("reconcile: {}", "reconcile must be text, not an object"),
        ],
    )
    def test_a_wrong_key_is_named_with_what_is_wanted(self, folder: Path, text: str, problem: str) -> None:
        said = refused(folder, f"# first line\n{text}\n")

        assert len(said) == 1
        assert said[0].startswith(f"x.tool.yaml, line 2: {problem}")

    def test_the_line_of_a_json_key_is_known_as_well(self, folder: Path) -> None:
        assert refused(folder, '{"title": "a",\n\n "titel": "b"}', "x.tool.json") == [
            'x.tool.json, line 3: unknown key "titel"; did you mean "title"?'
        ]

    @pytest.mark.parametrize("way", ["input", "output"])
    def test_the_same_thing_in_two_forms_is_refused(self, folder: Path, way: str) -> None:
        assert refused(folder, f"{way}: {{}}\n{way}Schema: {{}}\n") == [
            f"x.tool.yaml, line 2: {way} and {way}Schema say the same in two ways; keep one"
        ]

    def test_a_stem_that_cannot_be_a_name_needs_one(self, folder: Path) -> None:
        assert refused(folder, "title: X", "my tool.tool.yaml") == [
            (
                'my tool.tool.yaml, line 1: "my tool" cannot be a tool\'s name: up to 128 letters, digits, '
                "'_', '-' and '.', not starting with '-' or '.'; give it a name: in the sidecar"
            )
        ]
        assert load(folder, "name: my_tool", "my tool.tool.yaml").name == "my_tool"

    def test_a_rule_that_cannot_be_read_is_refused_with_its_line(self, folder: Path) -> None:
        """It would be unsafe to leave out what the author wants checked."""
        text = """\
validate:
  rules:
    - {name: short, expr: 'len(args["text"] < 1000', reason: too long}
    - {expr: 'True'}
    - {name: other, expr: 'arg["text"]', raeson: no}
"""

        said = refused(folder, text)

        assert [line.split(": ", 1)[0] for line in said] == [
            "x.tool.yaml, line 3",
            "x.tool.yaml, line 4",
            "x.tool.yaml, line 5",
            "x.tool.yaml, line 5",
        ]
        assert "validate.rules[0].expr: line 1, column " in said[0]
        assert "validate.rules[1].name is missing" in said[1]
        assert any('did you mean "reason"?' in line for line in said)
        assert any("arg" in line and "args" in line for line in said)

    def test_a_rule_is_asked_about_the_arguments(self, folder: Path) -> None:
        text = """\
validate:
  rules:
    - {name: short, expr: 'len(args["text"]) < 5', reason: too long}
"""
        tool = load(folder, text)

        (rule,) = tool.validation.rules

        assert (rule.name, rule.reason) == ("short", "too long")
        assert [rule.check({"text": each}) for each in ("abc", "abcdef", 5)] == [True, False, False]

    def test_a_file_of_several_tools_is_no_sidecar(self, folder: Path) -> None:
        """Who asks for the one tool of a file is told where several are found."""
        assert refused(folder, "schemaVersion: 1\nid: a.b\nactions: []\n") == [
            "x.tool.yaml, line 3: it describes a tool for each of its actions: read its folder with discover_tools"
        ]

    @pytest.mark.parametrize(("text", "seen"), [("[1]", "a list"), ("null", "null"), ("word", '"word"'), ("5", "5")])
    def test_a_sidecar_is_an_object(self, folder: Path, text: str, seen: str) -> None:
        assert refused(folder, text) == [f"x.tool.yaml, line 1: there must be an object here, not {seen}"]

    def test_what_the_file_is_not_comes_from_the_reader(self, folder: Path) -> None:
        assert refused(folder, "a: 1\na: 2") == [
            'x.tool.yaml, line 2, column 1: the key "a" again, first given in line 1'
        ]

    @pytest.mark.parametrize("way", ["input", "output"])
    def test_every_wrong_field_is_named_with_its_line(self, folder: Path, way: str) -> None:
        text = f"""\
{way}:
  good: {{type: string}}
  typo: {{type: string, requird: true}}
  deep:
    type: object
    fields:
      inner: {{type: string, enumm: [a]}}
  list:
    type: array
    items:
      typ: string
  wrong: {{type: 5}}
"""

        said = refused(folder, text)

        assert [line.partition(":")[0] for line in said] == [f"x.tool.yaml, line {n}" for n in (3, 7, 11, 12)]
        near: list[tuple[str, Any]] = [("requird", "required"), ("enumm", "enum"), ("typ", "type")]
        for line, (key, known) in zip(said, near, strict=False):
            assert f'"{key}"' in line
            assert f'did you mean "{known}"?' in line
        assert "wrong" in said[-1]
