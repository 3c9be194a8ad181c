"""Manifests: several tools in one file, the files that belong to them, and what is said about one that is wrong."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import yaml
from click.testing import CliRunner

import heddle
from heddle.cli.commands import heddle as command_line
from heddle.errors import DefinitionError
from heddle.limits import Limits
from heddle.results import Failed, FailureKind, Returned
from heddle.tools.definition import Program, ToolDef
from heddle.tools.discovery import described_tools, discover_tools
from heddle.tools.inventory import InventoriedFile, Inventory
from tests.support import Toolbox, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from heddle.strictjson import JSON
    from heddle.tools.registry import Registry

TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
# Each checks what it is asked, as a program for strangers has to, and tells one action from the other.
PYTHON = """\
import json, sys
request = json.load(sys.stdin)
assert set(request) == {"protocolVersion", "toolId", "toolRevision", "action", "input", "operationId", "attemptId"}
assert type(request["protocolVersion"]) is int and request["protocolVersion"] == 1
assert (request["toolId"], request["toolRevision"]) == ("my-tools.user.text", "1.0.3")
assert request["operationId"] != request["attemptId"]
text = request["input"]["text"]
match request["action"]:
    case "summarize":
        answer = {"ok": True, "data": {"characters": len(text), "operation": request["operationId"]}}
    case "send":
        answer = {"ok": False, "error": {"code": "no_post", "message": "Nobody takes letters."}}
print(json.dumps(answer))
"""
NODE = """\
import { readFileSync } from "node:fs";
const request = JSON.parse(readFileSync(0, "utf8"));
const keys = Object.keys(request).sort().join();
if (keys !== "action,attemptId,input,operationId,protocolVersion,toolId,toolRevision") process.exit(3);
if (request.protocolVersion !== 1 || request.toolId !== "my-tools.user.text") process.exit(4);
if (request.toolRevision !== "1.0.3" || request.operationId === request.attemptId) process.exit(5);
const answers = {
  summarize: (text) => ({ ok: true, data: { characters: text.length, operation: request.operationId } }),
  send: () => ({ ok: false, error: { code: "no_post", message: "Nobody takes letters." } }),
};
console.log(JSON.stringify(answers[request.action](request.input.text)));
"""
BASH = r"""#!/bin/bash
set -eu
request=$(cat)
field() { [[ $request =~ \"$1\":\"([^\"]*)\" ]] && echo "${BASH_REMATCH[1]}"; }
[[ $request == '{"protocolVersion":1,'* ]]
[[ $(field toolId) == my-tools.user.text && $(field toolRevision) == 1.0.3 ]]
[[ $(field operationId) != "$(field attemptId)" ]]
text=$(field text)
case $(field action) in
  summarize) printf '{"ok":true,"data":{"characters":%d,"operation":"%s"}}' "${#text}" "$(field operationId)" ;;
  send) echo '{"ok":false,"error":{"code":"no_post","message":"Nobody takes letters."}}' ;;
esac
"""
ECHO = """\
import json, sys
print(json.dumps({"ok": True, "data": {"args": sys.argv[1:], "input": json.load(sys.stdin)["input"]}}))
"""


def described(**changes: Any) -> dict[str, Any]:
    """Return a manifest of two actions."""
    action = {"inputSchema": copy.deepcopy(TEXT), "outputSchema": True, "execution": "supported"}
    return {
        "schemaVersion": 1,
        "id": "my-tools.user.text",
        "revision": "1.0.3",
        "name": "Text",
        "description": "Works on a text.",
        "files": [{"path": "main.py"}],
        "process": {"executable": "python3", "args": ["main.py"], "inheritEnv": []},
        "limits": {"timeoutSeconds": 10, "maxInputBytes": 65536, "maxResultBytes": 4096, "maxLogBytes": 2048},
        "actions": [
            {
                "id": "summarize",
                "path": ["text", "summarize"],
                "name": "Summarize",
                "description": "Count the characters of a text.",
                "sideEffects": "read",
                "retry": "idempotent",
                **action,
            },
            {
                "id": "send",
                "path": ["text", "send"],
                "name": "Send",
                "description": "Send a text to somebody.",
                "sideEffects": "write",
                "retry": "manual",
                **copy.deepcopy(action),
            },
        ],
    } | changes


def write(folder: Path, manifest: dict[str, Any], name: str = "text.tool.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(manifest) if path.suffix == ".json" else yaml.safe_dump(manifest, sort_keys=False))
    return path


def script(path: Path, source: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    path.chmod(mode)
    return path


def refused(folder: Path, manifest: dict[str, Any] | str, name: str = "text.tool.json") -> list[str]:
    """Return the lines of the error, without the folder."""
    if isinstance(manifest, str):
        (folder / name).write_text(manifest)
    else:
        write(folder, manifest, name)
    with pytest.raises(DefinitionError) as caught:
        discover_tools(folder)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def told(registry: Registry, folder: Path) -> list[tuple[str, str, str]]:
    return [(each.path.replace(f"{folder}/", ""), each.code, each.message) for each in registry.notices]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the program of the manifest, and not the manifest."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "main.py").write_text(PYTHON)
    return folder


class TestTools:
    def test_each_action_is_a_tool_with_all_that_it_shares(self, folder: Path) -> None:
        path = write(folder, described())

        registry = discover_tools(folder, strict=True)

        summarize, send = registry
        assert isinstance(summarize.implementation, Program)
        inventory = summarize.implementation.inventory
        assert inventory is not None
        assert inventory.paths == (folder / "main.py",)
        assert summarize == ToolDef(
            name="my-tools.user.text.summarize",
            title="Summarize",
            description="Count the characters of a text.",
            input_schema=TEXT,
            output_schema=True,
            implementation=Program(
                Path(shutil.which("python3") or ""),
                (str(folder / "main.py"),),
                "envelope",
                tool_id="my-tools.user.text",
                action="summarize",
                inventory=inventory,
            ),
            side_effects="read",
            retry="idempotent",
            limits=Limits(wall_seconds=10, stdin_bytes=65536, stdout_bytes=4096, stderr_bytes=2048),
            revision="1.0.3",
            content_hash=summarize.content_hash,
            origin=str(path),
        )
        assert (send.name, send.side_effects, send.retry) == ("my-tools.user.text.send", "write", "manual")
        assert isinstance(send.implementation, Program)
        assert (send.implementation.action, send.implementation.inventory) == ("send", inventory)
        assert (send.content_hash, send.limits) == (summarize.content_hash, summarize.limits)

    @pytest.mark.parametrize(
        ("name", "source", "process"),
        [
            ("main.py", PYTHON, {"executable": "python3", "args": ["main.py"]}),
            ("main.sh", BASH, {"executable": "./main.sh", "args": []}),
            ("main.mjs", NODE, {"executable": "node", "args": ["main.mjs"], "inheritEnv": ["NOBODY_SETS_THIS"]}),
        ],
    )
    async def test_a_program_is_told_which_action_of_which_operation_is_wanted(
        self, folder: Path, name: str, source: str, process: dict[str, Any]
    ) -> None:
        if name == "main.mjs" and shutil.which("node") is None:
            pytest.skip("needs Node")
        script(folder / name, source)
        files = [{"path": name, "executable": name == "main.sh"}]
        write(folder, described(files=files, process=process))

        async with heddle.Runner(discover_tools(folder)) as runner:
            counted = await runner.call("my-tools.user.text.summarize", {"text": "warp"}, operation_id="order-17")
            sent = await runner.call("my-tools.user.text.send", {"text": "warp"})
            wrong = await runner.call("my-tools.user.text.send", {"txt": "warp"})

        assert counted == Returned({"characters": 4, "operation": "order-17"})
        assert sent == Failed(
            FailureKind.TOOL_ERROR,
            'tool "my-tools.user.text.send" reports no_post: Nobody takes letters.',
            code="no_post",
            started=True,
            retry="blocked",
        )
        assert isinstance(wrong, Failed)
        assert (wrong.kind, wrong.started, wrong.retry) == ("invalid_input", False, "allowed")

    async def test_an_action_that_is_unsupported_says_why_and_starts_nothing(self, folder: Path) -> None:
        manifest = described()
        manifest["actions"][1] |= {"execution": "unsupported", "unsupportedReason": "There is no post office here."}
        write(folder, manifest)

        async with heddle.Runner(discover_tools(folder, strict=True)) as runner:
            result = await runner.call("my-tools.user.text.send", {"text": "warp"})

        assert result == Failed(
            FailureKind.UNSUPPORTED,
            'tool "my-tools.user.text.send" is declared as unsupported: There is no post office here.',
        )
        assert runner.registry["my-tools.user.text.send"].implementation is None

    async def test_the_limits_of_the_manifest_hold_and_the_hosts_ceiling_cuts_them(self, folder: Path) -> None:
        (folder / "main.py").write_text(ECHO)
        manifest = described()
        manifest["limits"] |= {"maxInputBytes": 300, "maxResultBytes": 100}
        write(folder, manifest)
        name = "my-tools.user.text.summarize"

        async with heddle.Runner(discover_tools(folder)) as runner:
            long_input = await runner.call(name, {"text": "x" * 300})
            long_output = await runner.call(name, {"text": "x" * 80})
            fine = await runner.call(name, {"text": "x" * 20})
        async with heddle.Runner(discover_tools(folder), ceiling=Limits(stdout_bytes=50)) as runner:
            cut = await runner.call(name, {"text": "x" * 20})

        assert [each.kind for each in (long_input, long_output, cut) if isinstance(each, Failed)] == ["too_large"] * 3
        assert fine == Returned({"args": [], "input": {"text": "x" * 20}})

    async def test_arguments_are_never_read_by_a_shell_and_listed_files_are_found_from_anywhere(
        self, folder: Path
    ) -> None:
        (folder / "main.py").write_text(ECHO)
        script(folder / "lib" / "words.txt", "warp", 0o644)
        script(folder / "unlisted.txt", "", 0o644)
        args = ["main.py", "lib/words.txt", "./lib/words.txt", "unlisted.txt", "$(touch x)", "; touch x", "*", ""]
        write(
            folder,
            described(
                files=[{"path": "./main.py"}, {"path": "lib/words.txt"}],
                process={"executable": "python3", "args": args},
            ),
        )

        async with heddle.Runner(discover_tools(folder)) as runner:
            result = await runner.call("my-tools.user.text.summarize", {"text": ""})

        words = str(folder / "lib" / "words.txt")
        said: list[JSON] = [words, words, "unlisted.txt", "$(touch x)", "; touch x", "*", ""]
        assert result == Returned({"args": said, "input": {"text": ""}})

    def test_a_command_may_be_called_like_a_file_that_is_listed(self, folder: Path) -> None:
        """The file is taken: what is listed is what was vouched for."""
        script(folder / "python3")
        write(
            folder,
            described(
                files=[{"path": "python3", "executable": True}, {"path": "main.py"}],
                process={"executable": "python3", "args": []},
            ),
        )

        (tool, _) = discover_tools(folder)

        assert isinstance(tool.implementation, Program)
        assert tool.implementation.path == folder / "python3"

    @pytest.mark.parametrize("name", ["text.tool.yaml", "text.tool.yml", "text.tool.json"])
    def test_it_may_be_yaml_or_json(self, folder: Path, name: str) -> None:
        path = write(folder, described(icon="cube"), name)

        assert [tool.origin for tool in discover_tools(folder, strict=True)] == [str(path), str(path)]

    def test_it_may_be_read_alone_whatever_its_name(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(folder, described(), "manifest.json")
        monkeypatch.chdir(folder)

        registry = described_tools(Path("manifest.json"))

        assert [tool.name for tool in registry] == ["my-tools.user.text.summarize", "my-tools.user.text.send"]
        assert list(discover_tools(folder)) == []


class TestDiscovery:
    def test_a_listed_file_is_no_tool_of_its_own(self, folder: Path) -> None:
        """Else its checks, its limits and its hash could be gone round under another name."""
        script(folder / "helper.sh")
        script(folder / "asset", "#!/bin/sh\n", 0o644)
        script(folder / "other.sh")
        listed = [{"path": "main.py"}, {"path": "helper.sh"}, {"path": "asset"}]
        write(folder, described(files=listed))

        registry = discover_tools(folder, strict=True)

        names = [tool.name for tool in registry]
        assert names == ["other", "my-tools.user.text.summarize", "my-tools.user.text.send"]

    def test_an_executable_that_is_called_like_the_manifest_is_left_out(self, folder: Path) -> None:
        script(folder / "text.sh")
        script(folder / "text.txt", "no tool", 0o644)
        write(folder, described())

        registry = discover_tools(folder)

        assert [tool.name for tool in registry] == ["my-tools.user.text.summarize", "my-tools.user.text.send"]
        said = "it is left out: text.tool.json is called the same and does not list it; list it there, or rename it"
        assert told(registry, folder) == [("text.sh", "name_taken", said)]

    @pytest.mark.parametrize("stem", ["text", "zzz"])
    def test_a_tool_of_a_manifest_comes_before_any_other_of_its_name(self, folder: Path, stem: str) -> None:
        name = "my-tools.user.text.send"
        script(folder / f"{name}.sh")
        script(folder / "a.sh")
        (folder / "a.tool.json").write_text(json.dumps({"name": "my-tools.user.text.summarize"}))
        manifest = f"{stem}.tool.json"
        write(folder, described(), manifest)

        registry = discover_tools(folder)

        assert [tool.origin for tool in registry] == [str(folder / manifest)] * 2
        assert [(path, code) for path, code, _ in told(registry, folder)] == [
            ("a.tool.json", "name_taken"),
            (f"{name}.sh", "name_taken"),
        ]

    def test_two_manifests_of_one_id_are_refused_with_both_names(self, folder: Path) -> None:
        write(folder, described(), "a.tool.json")

        assert refused(folder, "\n" + json.dumps(described(actions=[described()["actions"][0]])), "b.tool.json") == [
            'b.tool.json, line 2: id "my-tools.user.text" is that of a.tool.json as well; each manifest needs its own'
        ]

    def test_the_faults_of_all_files_are_reported_at_once(self, folder: Path) -> None:
        """Those of schemas too, which are otherwise found when the tools are registered."""
        write(folder, described(id="Upper"), "a.tool.json")
        script(folder / "b.sh")
        (folder / "b.tool.json").write_text('{"inputSchema": {"type": "array"}}')

        assert refused(folder, described(id="x.y", limits=5), "c.tool.json") == [
            (
                "a.tool.json, line 1: id cannot be \"Upper\": lower-case letters and digits in parts joined by '.' and "
                "'-', like my-tools.user.text"
            ),
            'b.tool.json, line 1: inputSchema.type: must be "object", because arguments are one, not "array"',
            "c.tool.json, line 1: limits must be an object, not 5",
        ]

    def test_a_promise_that_counts_for_nothing_is_noticed(self, folder: Path) -> None:
        manifest = described()
        manifest["actions"][0]["sideEffects"] = "unknown"
        path = write(folder, manifest, "text.tool.yaml")
        line = path.read_text().splitlines().index("  retry: idempotent") + 1

        registry = discover_tools(folder)

        said = (
            f"line {line}: actions[0].retry: idempotent has no effect while sideEffects is unknown: a call that has "
            "failed may not simply be made again; declare sideEffects as read or write"
        )
        assert told(registry, folder) == [("text.tool.yaml", "guarded", said)]
        assert len(registry) == 2

    def test_an_old_working_directory_is_ignored_and_noticed(self, folder: Path) -> None:
        write(folder, described(process={"executable": "python3", "args": ["main.py"], "cwd": "/"}))

        registry = discover_tools(folder)

        said = "process.cwd is ignored: a tool works in its call's workspace"
        assert told(registry, folder) == [("text.tool.json", "ignored", said)]


class TestRefused:
    def test_every_problem_is_reported_at_once_with_its_line(self, folder: Path) -> None:
        text = """\
schemaVersion: 2
id: my-tools.user.text
revison: "1"
description: ""
files:
  - path: main.py
    executable: true
  - path: ../main.py
process:
  executable: ./main.sh
  args: [8080]
limits: {timeoutSeconds: 1.5, maxInputBytes: 1, maxLogBytes: 0}
actions:
  - id: send
    path: []
    name: Send
    description: Send it
    inputSchema:
      type: object
      properties:
        text: {type: string, nullable: true}
    outputSchema: 5
    execution: unsupported
    sideEffects: none
    retry: idempotent
  - id: send
    inputSchema:
      type: object
      properties:
        text: {minLength: -1}
"""

        said = refused(folder, text, "text.tool.yaml")

        assert [line.removeprefix("text.tool.yaml, line ") for line in said] == [
            "1: revision is missing; it has no default",
            "1: name is missing; it has no default",
            "1: schemaVersion must be 1, the only one there is",
            '3: unknown key "revison"; did you mean "revision"?',
            "4: description must not be empty",
            '6: files[0].path: "main.py" has no execute bit: chmod +x main.py',
            '8: files[1].path cannot be "../main.py": it leaves the manifest\'s folder',
            (
                '10: process.executable: "./main.sh" is not listed in files; put it into files, with executable: true; '
                "or give the bare name of a command that is on PATH"
            ),
            "11: process.args[0] must be text, not 8080; put it in quotes",
            "12: limits.maxResultBytes is missing; it has no default",
            "12: limits.timeoutSeconds must be a whole number greater than 0, not 1.5",
            "12: limits.maxLogBytes must be a whole number greater than 0, not 0",
            "14: actions[0].unsupportedReason is missing: say why execution is unsupported",
            "15: actions[0].path must not be empty: give at least one word",
            (
                "21: actions[0].inputSchema.properties.text.nullable: not read in the schemas of a manifest; write "
                '"null" among the types: {"type": ["string", "null"]}'
            ),
            "22: actions[0].outputSchema must be a schema, true or false",
            '24: actions[0].sideEffects must be read or write or unknown, not "none"',
            "26: actions[1].id is the same as that of actions[0]; each needs its own",
            *(
                f"26: actions[1].{key} is missing; it has no default"
                for key in ("path", "name", "description", "outputSchema", "execution", "sideEffects", "retry")
            ),
            "30: actions[1].inputSchema.properties.text.minLength: cannot be -1 (minimum of the draft's own schema)",
        ]

    @pytest.mark.parametrize("key", sorted(described().keys() - {"actions", "schemaVersion"}))
    def test_no_key_has_a_default(self, folder: Path, key: str) -> None:
        manifest = described()
        del manifest[key]

        assert f"text.tool.json, line 1: {key} is missing; it has no default" in refused(folder, manifest)

    @pytest.mark.parametrize("key", sorted(described()["actions"][0]))
    def test_no_key_of_an_action_has_a_default(self, folder: Path, key: str) -> None:
        manifest = described()
        del manifest["actions"][1][key]

        assert refused(folder, manifest) == [f"text.tool.json, line 1: actions[1].{key} is missing; it has no default"]

    @pytest.mark.parametrize(("key", "other"), [("actions", "schemaVersion"), ("schemaVersion", "actions")])
    def test_it_is_known_by_either_of_two_keys(self, folder: Path, key: str, other: str) -> None:
        manifest = described()
        del manifest[key]

        assert other in manifest
        assert refused(folder, manifest) == [f"text.tool.json, line 1: {key} is missing; it has no default"]

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"schemaVersion": True}, "schemaVersion must be a whole number greater than 0, not true"),
            ({"id": "My.text"}, 'id cannot be "My.text": lower-case letters and digits'),
            ({"id": "my--text"}, 'id cannot be "my--text": lower-case letters and digits'),
            ({"id": "a." + "b" * 65}, "id has a part of more than 64 characters between its dots"),
            ({"id": "text\n"}, r'id cannot be "text\n": lower-case letters and digits'),
            ({"revision": ".1"}, 'revision cannot be ".1": up to 64 letters'),
            ({"revision": "1" * 65}, 'revision cannot be "1111'),
            ({"revision": 1.0}, "revision must be text, not 1.0; put it in quotes"),
            ({"name": "  "}, "name must not be empty"),
            ({"icon": 5}, "icon must be text, not 5; put it in quotes"),
            ({"titel": "x"}, 'unknown key "titel"; there may be schemaVersion, id, revision, name'),
            ({"extensions": {}}, 'unknown key "extensions"; there may be schemaVersion, id, revision'),
            ({"files": {}}, "files must be a list of objects, not an object"),
            ({"files": ["main.py"]}, 'files[0] must be an object, not "main.py"'),
            ({"files": [{"path": 5}]}, "files[0].path must be text, not 5; put it in quotes"),
            ({"files": [{"path": "main.py", "executable": 1}]}, "files[0].executable must be true or false, not 1"),
            (
                {"files": [{"path": "main.py", "mode": 5}]},
                'unknown key "mode" in files[0]; there may be path, executable',
            ),
            ({"files": [{"path": f"f{n}"} for n in range(257)]}, "files has 257 entries; there may be 256"),
            ({"process": {"executable": "python3"}}, "process.args is missing; it has no default"),
            ({"process": {"args": []}}, "process.executable is missing; it has no default"),
            ({"process": {"executable": "", "args": []}}, "process.executable must not be empty"),
            (
                {"process": {"executable": "no-such-command", "args": []}},
                (
                    'process.executable: "no-such-command" is neither listed in files nor a command on PATH; '
                    "install it, or list it"
                ),
            ),
            (
                {"process": {"executable": "/bin/sh", "args": []}},
                'process.executable: "/bin/sh" is not listed in files; put it into files',
            ),
            (
                {"process": {"executable": "main.py", "args": []}},
                'process.executable: "main.py" is listed in files without executable: true',
            ),
            (
                {"process": {"executable": "python3", "args": [], "inheritEnv": [f"A{n}" for n in range(65)]}},
                "process.inheritEnv has 65 entries; there may be 64",
            ),
            (
                {"process": {"executable": "python3", "args": ["x"] * 65}},
                "process.args has 65 entries; there may be 64",
            ),
            (
                {"process": {"executable": "python3", "args": ["é" * 2049]}},
                "process.args[0] is longer than 4,096 bytes",
            ),
            (
                {"process": {"executable": "python3", "args": [], "inheritenv": []}},
                'unknown key "inheritenv" in process; did you mean "inheritEnv"?',
            ),
            ({"limits": {"timeoutSeconds": 1}}, "limits.maxInputBytes is missing; it has no default"),
            ({"actions": []}, "actions must not be empty: each is a tool"),
            ({"actions": {}}, "actions must be a list of objects, not an object"),
            ({"actions": [{}] * 257}, "actions has 257 entries; there may be 256"),
        ],
    )
    def test_a_wrong_key_is_named_with_what_is_wanted(self, folder: Path, change: dict[str, Any], problem: str) -> None:
        assert any(
            line.startswith(f"text.tool.json, line 1: {problem}") for line in refused(folder, described(**change))
        )

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"id": "Send"}, "id cannot be \"Send\": lower-case letters and digits in parts joined by '-'"),
            ({"id": "a.b"}, 'id cannot be "a.b": lower-case letters'),
            ({"id": "a" * 65}, "id has more than 64 characters"),
            ({"path": "text send"}, 'path must be a list of texts, not "text send"'),
            ({"path": ["text", " "]}, "path[1] must not be empty"),
            ({"path": ["text", "summarize"]}, "path is the same as that of actions[0]; each needs its own"),
            ({"inputSchema": True}, "inputSchema must be a schema"),
            ({"outputSchema": None}, "outputSchema must be a schema, true or false"),
            ({"execution": "maybe"}, 'execution must be supported or unsupported, not "maybe"'),
            ({"unsupportedReason": "x"}, "unsupportedReason is for execution: unsupported; remove it, or say that"),
            ({"execution": "unsupported", "unsupportedReason": ""}, "unsupportedReason must not be empty"),
            ({"retry": "never"}, 'retry must be idempotent or manual, not "never"'),
            ({"description": " "}, "description must not be empty"),
        ],
    )
    def test_a_wrong_key_of_an_action_is_named_with_its_place(
        self, folder: Path, change: dict[str, Any], problem: str
    ) -> None:
        manifest = described()
        manifest["actions"][1] |= change

        said = refused(folder, manifest)

        assert len(said) == 1
        assert said[0].startswith(f"text.tool.json, line 1: actions[1].{problem}")

    def test_an_unknown_key_of_an_action_is_named_with_the_nearest(self, folder: Path) -> None:
        manifest = described()
        manifest["actions"][1]["sideEffect"] = "read"

        assert refused(folder, manifest) == [
            'text.tool.json, line 1: unknown key "sideEffect" in actions[1]; did you mean "sideEffects"?'
        ]

    def test_a_name_that_no_tool_can_have_is_refused(self, folder: Path) -> None:
        manifest = described(id=".".join(["a" * 60, "b" * 60]))
        manifest["actions"][0]["id"] = "c" * 6
        manifest["actions"][1]["id"] = "c" * 7

        said = refused(folder, manifest)

        assert len(said) == 1
        assert said[0].startswith('text.tool.json, line 1: actions[1].id: "aaa')
        assert said[0].endswith("is too long for a tool: 128 characters")


class TestFiles:
    @pytest.mark.parametrize(
        ("path", "problem"),
        [
            ("", 'cannot be "": it is empty'),
            ("/etc/passwd", 'cannot be "/etc/passwd": files are named from the manifest\'s folder, not from the root'),
            ("../x.py", 'cannot be "../x.py": it leaves the manifest\'s folder'),
            ("lib/../main.py", 'cannot be "lib/../main.py": it leaves the manifest\'s folder'),
            ("lib//x.py", 'cannot be "lib//x.py": write "lib/x.py"'),
            ("main.py/", 'cannot be "main.py/": write "main.py"'),
            ("a\0b", r'cannot be "a\x00b": it holds a NUL character'),
            ("other.tool.json", 'cannot be "other.tool.json": a manifest or a sidecar is no file of a tool'),
            ("lib/x.tool.yaml", 'cannot be "lib/x.tool.yaml": a manifest or a sidecar is no file of a tool'),
            (".", ': "." is not a regular file'),
            ("lib", ': "lib" is not a regular file'),
            ("fifo", ': "fifo" is not a regular file'),
            ("missing.py", ': "missing.py" cannot be read: No such file or directory'),
            ("link.py", ': "link.py" is a link'),
            ("around/x.py", ': "around/x.py" is reached through a link, around'),
            ("main.py/x", ': "main.py/x" cannot be read: Not a directory'),
            ("n" * 300, f': "{"n" * 40}…" cannot be read: File name too long'),
        ],
    )
    def test_what_cannot_be_listed_is_refused(self, folder: Path, path: str, problem: str) -> None:
        script(folder / "lib" / "x.py")
        (folder / "around").symlink_to("lib")
        (folder / "link.py").symlink_to("main.py")
        os.mkfifo(folder / "fifo")

        said = refused(folder, described(files=[{"path": "main.py"}, {"path": path}]))

        gap = "" if problem.startswith(":") else " "
        assert said == [f"text.tool.json, line 1: files[1].path{gap}{problem}"]

    def test_what_is_to_be_started_needs_its_execute_bit(self, folder: Path) -> None:
        files = [{"path": "main.py", "executable": True}, {"path": "main.py"}]

        assert refused(folder, described(files=files)) == [
            'text.tool.json, line 1: files[1].path: "main.py" is listed already',
            'text.tool.json, line 1: files[0].path: "main.py" has no execute bit: chmod +x main.py',
        ]

    def test_a_folder_may_be_reached_through_a_link(self, folder: Path) -> None:
        """It is the operator's to say where the tools are; what is in them is not to lead elsewhere."""
        write(folder, described())
        link = folder.with_name("link")
        link.symlink_to(folder)

        (tool, _) = discover_tools(link, strict=True)

        assert isinstance(tool.implementation, Program)
        assert tool.implementation.args == (str(link / "main.py"),)


class TestSchemas:
    @pytest.mark.parametrize(
        ("schema", "problem"),
        [
            (
                {"$ref": "https://example.com/x"},
                '$ref: "https://example.com/x" leads out of the schema; refer to a part',
            ),
            ({"$ref": "other.json#/$defs/a"}, '$ref: "other.json#/$defs/a" leads out of the schema; refer to a part'),
            (
                {"$ref": "#name"},
                '$ref: "#name" leads out of the schema; refer to a part of this schema by a JSON pointer',
            ),
            ({"$ref": "#/$defs/none"}, '$ref: "#/$defs/none" leads to no schema in this one; put what it means under'),
            ({"$ref": "#/properties/x/default"}, '$ref: "#/properties/x/default" leads to no schema in this one'),
            (
                {"$id": "https://example.com/inner"},
                "$id: not read in the schemas of a manifest; only the root may have",
            ),
            ({"$schema": "https://example.com"}, "$schema: not read in the schemas of a manifest; only the root may"),
            (
                {"$anchor": "a"},
                "$anchor: not read in the schemas of a manifest; refer to a part of this schema by a JSON",
            ),
            ({"$dynamicAnchor": "a"}, "$dynamicAnchor: not read in the schemas of a manifest; refer to a part"),
            ({"$dynamicRef": "#a"}, "$dynamicRef: not read in the schemas of a manifest; refer to a part"),
            ({"$vocabulary": {}}, "$vocabulary: not read in the schemas of a manifest; leave it out"),
            ({"definitions": {}}, "definitions: not read in the schemas of a manifest; write $defs"),
            ({"nullable": True}, 'nullable: not read in the schemas of a manifest; write "null" among the types'),
            (
                {"x-order": 1},
                'x-order: unknown keyword "x-order"; keywords of your own are not read; say it in $comment',
            ),
            ({"minlength": 1}, 'minlength: unknown keyword "minlength"; did you mean "minLength"?'),
        ],
    )
    @pytest.mark.parametrize("key", ["inputSchema", "outputSchema"])
    def test_what_another_reader_may_not_know_is_refused(
        self, folder: Path, key: str, schema: dict[str, Any], problem: str
    ) -> None:
        manifest = described()
        manifest["actions"][0][key] = {"type": "object", "properties": {"x": {"default": 1}, "y": {"items": schema}}}

        said = refused(folder, manifest)

        assert len(said) == 1
        assert said[0].startswith(f"text.tool.json, line 1: actions[0].{key}.properties.y.items.{problem}")

    @pytest.mark.parametrize(
        "place",
        [
            *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames"),
            *("then", "unevaluatedItems", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "prefixItems"),
            *("$defs", "dependentSchemas", "patternProperties", "properties"),
        ],
    )
    def test_no_place_for_a_schema_is_overlooked(self, folder: Path, place: str) -> None:
        """Every keyword of 2020-12 under which a schema stands."""
        inner: Any = {"nullable": True}
        in_list = place in {"allOf", "anyOf", "oneOf", "prefixItems"}
        in_names = place in {"$defs", "dependentSchemas", "patternProperties", "properties"}
        value = [True, inner] if in_list else {"a": inner} if in_names else inner
        manifest = described()
        manifest["actions"][0]["outputSchema"] = {place: value}

        said = refused(folder, manifest)

        way = f"{place}[1]" if in_list else f"{place}.a" if in_names else place
        assert [line.partition(": not read")[0] for line in said] == [
            f"text.tool.json, line 1: actions[0].outputSchema.{way}.nullable"
        ]

    def test_another_draft_is_refused(self, folder: Path) -> None:
        manifest = described()
        manifest["actions"][0]["inputSchema"]["$schema"] = "http://json-schema.org/draft-07/schema#"

        assert refused(folder, manifest) == [
            "text.tool.json, line 1: actions[0].inputSchema.$schema: there may be "
            '"https://json-schema.org/draft/2020-12/schema", or nothing'
        ]

    def test_names_and_values_are_not_taken_for_keywords(self, folder: Path) -> None:
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/outer",
            "type": "object",
            "properties": {
                "nullable": {"const": {"$ref": "x", "nullable": True}},
                "$ref": {"enum": [{"$anchor": 1}], "default": {"x-y": 1}, "examples": [{"$id": 5}]},
                "a/b~c": {"type": ["string", "null"], "writeOnly": True, "format": "password"},
                "again": {"$ref": "#/properties/a~1b~0c"},
                "escaped": {"$ref": "#/properties/a~1b~0c"},
                "percent": {"$ref": "#/%24defs/any"},
                "whole": {"$ref": "#"},
                "second": {"$ref": "#/$defs/pair/prefixItems/1"},
            },
            "$defs": {"any": True, "pair": {"prefixItems": [True, {"type": "integer"}]}},
        }
        manifest = described()
        manifest["actions"][0] |= {"inputSchema": schema, "outputSchema": False}
        write(folder, manifest)

        tool = discover_tools(folder, strict=True)["my-tools.user.text.summarize"]

        assert (tool.input_schema, tool.output_schema) == (schema, False)

    def test_what_is_wrong_inside_the_subset_has_its_line_as_well(self, folder: Path) -> None:
        text = write(folder, described(), "text.tool.yaml").read_text()
        text = text.replace("type: string", "pattern: '(a'", 1)
        line = text.splitlines().index("        pattern: '(a'") + 1

        said = refused(folder, text, "text.tool.yaml")

        assert len(said) == 1
        assert said[0].startswith(
            f'text.tool.yaml, line {line}: actions[0].inputSchema.properties.text.pattern: the pattern "(a" is not one'
        )


class TestContentHash:
    def hash_of(self, folder: Path, manifest: dict[str, Any], name: str = "text.tool.json") -> str:
        path = write(folder, manifest, name)
        (found,) = {tool.content_hash for tool in described_tools(path)}
        path.unlink()
        return found

    def test_it_is_the_same_in_every_format_and_order(self, folder: Path) -> None:
        script(folder / "lib.py")
        files = [{"path": "main.py"}, {"path": "lib.py", "executable": False}]
        manifest = described(
            files=files, process={"executable": "python3", "args": ["main.py"], "inheritEnv": ["A", "B"]}
        )
        turned = dict(reversed(described(files=[{"path": "./lib.py"}, files[0]]).items()))
        turned["process"] = {"inheritEnv": ["B", "A", "B"], "args": ["main.py"], "executable": "python3", "cwd": "."}
        turned["actions"].reverse()
        turned["limits"]["timeoutSeconds"] = 10
        elsewhere = folder.with_name("elsewhere")
        shutil.copytree(folder, elsewhere)

        found = {
            self.hash_of(folder, manifest),
            self.hash_of(folder, manifest, "text.tool.yaml"),
            self.hash_of(folder, turned),
            self.hash_of(elsewhere, turned, "other.tool.yml"),
        }

        (only,) = found
        assert only.startswith("sha256:")
        assert len(only) == len("sha256:") + 64

    def test_it_differs_with_everything_that_is_said_and_with_every_byte(self, folder: Path) -> None:
        script(folder / "lib.py")
        plain = described()
        action = plain["actions"][0]
        changes: list[dict[str, Any]] = [
            {"id": "my-tools.user.words"},
            {"revision": "1.0.4"},
            {"name": "Words"},
            {"description": "Works."},
            {"icon": "cube"},
            {"files": [*plain["files"], {"path": "lib.py"}]},
            {"files": [*plain["files"], {"path": "lib.py", "executable": True}]},
            {"process": {"executable": "python3", "args": ["-I", "main.py"]}},
            {"process": {"executable": "python3", "args": ["main.py", "-I"]}},
            {"process": {"executable": "python3", "args": ["main.py"], "inheritEnv": ["A"]}},
            {"limits": plain["limits"] | {"maxLogBytes": 1}},
            {"actions": [action]},
            {"actions": [action | {"retry": "manual"}]},
            {"actions": [action | {"outputSchema": {"type": "object"}}]},
        ]

        found = {self.hash_of(folder, described(**change)) for change in [{}, *changes]}
        (folder / "main.py").write_text(PYTHON + "\n")
        found.add(self.hash_of(folder, plain))

        assert len(found) == len(changes) + 2

    def test_it_is_the_same_on_every_machine(self, folder: Path) -> None:
        """Pinned, because other people keep it: it may only change together with what it stands for."""
        (folder / "main.py").write_text("print()\n")

        found = self.hash_of(folder, described())

        assert found == "sha256:c8aaaf79ccd73f8922e2ba642ac8276c92131b4561016368ec64bbc44b0a9f99"


class TestDrift:
    NAME = "my-tools.user.text.summarize"

    def change_contents(self, main: Path) -> None:
        main.write_text(main.read_text() + "\n")

    def change_a_byte_and_hide_it(self, main: Path) -> None:
        before = main.stat()
        main.write_text(main.read_text().replace("characters", "CHARACTERS"))
        os.utime(main, ns=(before.st_atime_ns, before.st_mtime_ns))

    def replace_by_another(self, main: Path) -> None:
        other = main.with_name("new")
        other.write_text("print()")
        other.replace(main)

    def remove(self, main: Path) -> None:
        main.unlink()

    def replace_by_a_link(self, main: Path) -> None:
        main.rename(main.with_name("real.py"))
        main.symlink_to("real.py")

    def replace_by_a_folder(self, main: Path) -> None:
        main.unlink()
        main.mkdir()

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (change_contents, "has other contents"),
            (change_a_byte_and_hide_it, "has other contents"),
            (replace_by_another, "has other contents"),
            (remove, "is gone"),
            (replace_by_a_link, "is a link"),
            (replace_by_a_folder, "is not a regular file"),
        ],
    )
    async def test_a_file_that_is_not_what_it_was_is_named_and_nothing_is_started(
        self, folder: Path, change: Callable[[TestDrift, Path], None], what: str
    ) -> None:
        mark = folder / "started"
        (folder / "main.py").write_text(f"open({str(mark)!r}, 'w')\n" + PYTHON)
        write(folder, described())

        async with heddle.Runner(discover_tools(folder)) as runner:
            before = await runner.call(self.NAME, {"text": "warp"}, operation_id="o")
            mark.unlink()
            change(self, folder / "main.py")
            result = await runner.call(self.NAME, {"text": "warp"})

        assert before == Returned({"characters": 4, "operation": "o"})
        assert result == Failed(
            FailureKind.CANNOT_START,
            f'tool "{self.NAME}" was not started: main.py {what}. Its manifest vouches for what was there when it was '
            "read: the host has to put that back, or read the manifest again.",
            code="content_drift",
            details={"files": {"main.py": what}},
        )
        assert (result.report.started_at, result.report.tier) == (None, None)
        assert not mark.exists()

    async def test_every_file_that_differs_is_in_the_details(self, folder: Path) -> None:
        script(folder / "lib" / "a.py")
        script(folder / "run.sh", BASH)
        files = [{"path": "main.py"}, {"path": "lib/a.py"}, {"path": "run.sh", "executable": True}]
        write(folder, described(files=files))

        async with heddle.Runner(discover_tools(folder)) as runner:
            (folder / "lib" / "a.py").write_text("other")
            (folder / "run.sh").chmod(0o644)
            (folder / "main.py").unlink()
            result = await runner.call(self.NAME, {"text": "warp"})

        assert isinstance(result, Failed)
        assert "lib/a.py has other contents, and 2 more of its files are not what they were" in result.message
        assert result.details == {
            "files": {
                "lib/a.py": "has other contents",
                "main.py": "is gone",
                "run.sh": "has no execute bit: chmod +x run.sh",
            }
        }

    async def test_what_is_put_back_can_be_started_again(self, folder: Path) -> None:
        """The same bytes are the same file, whoever wrote them."""
        write(folder, described())

        async with heddle.Runner(discover_tools(folder)) as runner:
            (folder / "main.py").write_text("other")
            changed = await runner.call(self.NAME, {"text": "warp"})
            (folder / "main.py").unlink()
            (folder / "main.py").write_text(PYTHON)
            put_back = await runner.call(self.NAME, {"text": "warp"}, operation_id="o")

        assert not changed.ok
        assert put_back == Returned({"characters": 4, "operation": "o"})

    async def test_files_are_compared_when_the_call_has_its_turn(self, folder: Path, toolbox: Toolbox) -> None:
        """A call may wait for minutes, and what counts is what is started then."""
        held, go = folder / "held", folder / "go"
        write(folder, described())
        toolbox.sh("hold", f"touch {held}; while [ ! -e {go} ]; do sleep 0.01; done")
        registry = heddle.Registry.compose(discover_tools(folder), toolbox.registry())
        results: dict[str, heddle.ToolResult] = {}

        async def call(name: str, arguments: dict[str, Any]) -> None:
            results[name] = await runner.call(name, arguments)

        with trio.fail_after(20):
            async with heddle.Runner(registry, max_concurrent=1) as runner, trio.open_nursery() as nursery:
                nursery.start_soon(call, "hold", {})
                assert await until(held.exists, 10)
                nursery.start_soon(call, self.NAME, {"text": "warp"})
                await trio.sleep(0.1)  # it waits for its turn now, or will wait for it: it has none before `go`
                (folder / "main.py").write_text("other")
                go.touch()

        waited = results.pop(self.NAME)
        assert results == {"hold": Returned({})}
        assert isinstance(waited, Failed)
        assert waited.code == "content_drift"

    def test_bytes_are_read_again_only_when_they_may_have_changed_and_never_in_the_loop(self, folder: Path) -> None:
        """Counted by the interpreter itself, in a process of its own: such a hook stays for good."""
        write(folder, described())
        source = """
import os, sys, threading, trio, heddle
from pathlib import Path
from heddle.tools.inventory import Inventory
folder = Path(os.__file__).parent
opened = []
def note(event, args):
    if event == "open" and str(args[0]).endswith(("main.py", "/os.py")):
        opened.append(threading.current_thread() is threading.main_thread())
registry = heddle.discover_tools(sys.argv[1])
sys.addaudithook(note)
taken, faults = Inventory.take(folder, {"os.py": False})
known = Inventory(folder, taken.files)
reads = [(inventory.drift(), len(opened)) for inventory in (taken, taken, known, known)]
opened.clear()
async def main():
    async with heddle.Runner(registry) as runner:
        for _ in range(2):
            (await runner.call("my-tools.user.text.summarize", {"text": "x"})).unwrap()
trio.run(main)
print(reads, faults, opened)
"""

        done = subprocess.run(
            [sys.executable, "-c", source, str(folder)], capture_output=True, text=True, check=True, timeout=30
        )

        # The second one was not there when the file was read first. A file that is new is read for each of two calls,
        # because its times cannot vouch for it yet.
        assert done.stdout == "[({}, 1), ({}, 1), ({}, 2), ({}, 2)] {} [False, False]\n"

    def test_a_file_that_differs_does_not_pass_the_second_time(self) -> None:
        """What the system says of it has not changed, and that must not be taken for its bytes."""
        inventory = Inventory(Path(os.__file__).parent, (InventoriedFile("os.py", "0" * 64),))

        assert [inventory.drift(), inventory.drift()] == [{"os.py": "has other contents"}] * 2


class TestCommandLine:
    def run(self, *arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(command_line, arguments, prog_name="heddle")
        return result.exit_code, result.stdout, result.stderr

    def test_a_tool_is_described_as_its_users_see_it(self, folder: Path) -> None:
        write(folder, described())
        content_hash = discover_tools(folder)["my-tools.user.text.send"].content_hash

        status, said, _ = self.run("describe", str(folder), "my-tools.user.text.send")

        assert (status, said) == (
            0,
            f"""\
my-tools.user.text.send - Send

Send a text to somebody.

Arguments:
  text: string, required

Program:      {shutil.which("python3")} (envelope protocol)
Limits:       wall_seconds 10, stdin_bytes 65536, stdout_bytes 4096, stderr_bytes 2048
Side effects: write
Retry:        manual
Revision:     1.0.3, {content_hash}
""",
        )

    def test_what_is_unsupported_and_takes_nothing_says_so(self, folder: Path) -> None:
        manifest = described()
        closed = {"type": "object", "additionalProperties": False}
        manifest["actions"][1] |= {
            "execution": "unsupported",
            "unsupportedReason": "No post office.",
            "inputSchema": closed,
            "sideEffects": "unknown",
        }
        manifest["actions"][0] |= {"sideEffects": "unknown"}
        write(folder, manifest)

        status, said, notes = self.run("describe", str(folder), "my-tools.user.text.send")

        assert status == 0
        assert said.partition("Limits:")[0] == (
            "my-tools.user.text.send - Send\n\nSend a text to somebody.\n\nArguments:\n  (none)\n\n"
            "Unsupported:  No post office.\n"
        )
        assert notes.count("note: ") == 1
        assert "actions[0].retry" in notes
        assert self.run("tools", str(folder))[1].splitlines()[1] == (
            "my-tools.user.text.send\t(none)\tSend a text to somebody."
        )

    def test_the_hash_and_the_reason_are_in_the_json(self, folder: Path) -> None:
        manifest = described()
        manifest["actions"][1] |= {"execution": "unsupported", "unsupportedReason": "No post office."}
        write(folder, manifest)
        script(folder / "plain.sh")

        tools = {tool["name"]: tool for tool in json.loads(self.run("tools", str(folder), "--json")[1])}

        assert {
            name.rpartition(".")[2]: (tool["contentHash"], tool["unsupportedReason"], tool["protocol"])
            for name, tool in tools.items()
        } == {
            "plain": (None, None, "plain"),
            "summarize": (discover_tools(folder)["my-tools.user.text.summarize"].content_hash, None, "envelope"),
            "send": (tools["my-tools.user.text.summarize"]["contentHash"], "No post office.", None),
        }

    def test_it_can_be_called(self, folder: Path) -> None:
        (folder / "main.py").write_text(ECHO)
        write(folder, described())

        status, said, _ = self.run("call", str(folder), "my-tools.user.text.summarize", '{"text": "warp"}')

        assert (status, json.loads(said)) == (0, {"args": [], "input": {"text": "warp"}})
