"""Documents of routes: what each key means, that all faults are said at once with their places, and the examples."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle import Exchange, Router
from heddle.pipelines.documents import AgentDef, load_routes
from heddle.tools.documents import BrokenDocument
from tests.hosting import ROOT
from tests.support import Toolbox
from tests.test_cli import heddle_cli

EXAMPLES = ROOT / "examples/routes"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "routes.yaml"


def write(file: Path, text: str) -> Path:
    file.write_text(textwrap.dedent(text))
    return file


def problems_of(file: Path, text: str, **given: Any) -> list[tuple[int, int, str]]:
    with pytest.raises(BrokenDocument) as refused:
        load_routes(write(file, text), **given)
    return [(problem.line, problem.column, problem.message) for problem in refused.value.problems]


# What a document says


async def test_a_document_gives_tools_routes_and_agents(file: Path) -> None:
    write(
        file,
        """\
        tools:
          - id: greet
            title: Greeting
            description: Say hello
            input:
              who: {type: string, required: true}
            output:
              text: {type: string}
            sideEffects: read
            retry: idempotent
            revision: "3"
            limits: {timeoutSeconds: 5}
            annotations: {readOnlyHint: true}
            steps:
              - set-header: {name: lang, value: en}
              - set-body: {starlang: '{"text": "hello " + payload["who"] + ", " + headers["lang"]}'}
        workflows:
          - id: w
            description: For everybody
            trigger: {uri: direct://start}
            steps:
              - set-body: {value: {who: ann}}
              - to: tool://greet
        agents:
          - {id: one, type: react}
          - {id: none, type: react, tools: []}
          - {id: some, type: react, description: d, tools: [tool://greet]}
        """,
    )

    found = load_routes(file)

    tool = found.tools["greet"]
    assert (tool.title, tool.description, tool.side_effects, tool.retry, tool.revision) == (
        "Greeting",
        "Say hello",
        "read",
        "idempotent",
        "3",
    )
    assert (tool.limits, tool.annotations) == (heddle.Limits(wall_seconds=5), {"readOnlyHint": True})
    assert tool.input_schema["required"] == ["who"]
    assert tool.output_schema == {"type": "object", "properties": {"text": {"type": "string"}}}
    assert found.agents == (
        AgentDef("one", "react", "", None),
        AgentDef("none", "react", "", ()),
        AgentDef("some", "react", "d", ("greet",)),
    )
    async with Router(found.tools, found.routes) as routes:
        assert (await routes.send("direct://start")).body == {"text": "hello ann, en"}


def test_the_same_document_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    path.write_text(json.dumps({"tools": [{"id": "t", "steps": [{"set-body": {"value": 1}}]}]}))

    assert [tool.name for tool in heddle.load_tools(path)] == ["t"]


@pytest.mark.parametrize("key", ["starlang", "starlark"])
async def test_expressions_stand_under_either_name(file: Path, key: str) -> None:
    write(file, f"tools: [{{id: t, steps: [{{transform: {{{key}: '1 + 1'}}}}]}}]")

    async with Router.load(file) as routes:
        assert (await routes.send("tool://t")).body == 2


async def test_a_choice_is_read(file: Path) -> None:
    write(
        file,
        """\
        workflows:
          - id: w
            from: direct://w
            steps:
              - choice:
                  when:
                    - starlang: payload > 10
                      steps: [{set-body: {value: large}}]
                  otherwise:
                    - set-body: {value: small}
        """,
    )

    async with Router.load(file) as routes:
        assert [(await routes.send("direct://w", n)).body for n in (5, 50)] == ["small", "large"]


@pytest.mark.parametrize("consumer", ["from: tool://t", "trigger: {uri: tool://t}"])
async def test_a_workflow_from_a_tool_is_its_pipeline(file: Path, consumer: str) -> None:
    write(
        file,
        f"""\
        tools: [{{id: t, input: {{n: {{type: integer, required: true}}}}}}]
        workflows:
          - id: w
            {consumer}
            steps: [{{set-body: {{starlang: 'payload["n"] + 1'}}}}]
        """,
    )

    async with Router.load(file) as routes:
        assert (await routes.send("tool://t", {"n": 1})).body == 2
        with pytest.raises(heddle.RouteError, match=r'^tool "t" input validation failed: n: '):
            await routes.send("tool://t", {})


async def test_a_tool_without_steps_is_declared_and_unsupported(file: Path) -> None:
    tools = heddle.load_tools(write(file, "tools: [{id: t}]"))

    async with heddle.Runner(tools) as runner:
        result = await runner.call("t")

    assert isinstance(result, heddle.Failed)
    assert result.kind == "unsupported"


async def test_steps_may_call_tools_that_the_document_was_given(file: Path) -> None:
    @heddle.tool(name="double")
    async def double(n: int) -> dict[str, int]:
        return {"n": 2 * n}

    tools = heddle.load_tools(
        write(file, "tools: [{id: t, steps: [{target: tool://double}]}]"), tools=heddle.Registry([double])
    )

    async with heddle.Runner(tools) as runner:
        assert await runner.call("t", {"n": 4}) == heddle.Returned({"n": 8})


async def test_a_handler_of_the_host_is_a_route(file: Path) -> None:
    async def pay(exchange: Exchange) -> dict[str, Any]:
        return {"paid": exchange.body}

    tools = heddle.load_tools(write(file, "tools: [{id: t, steps: [{target: direct://bank}]}]"), handlers={"bank": pay})

    async with heddle.Runner(tools) as runner:
        assert await runner.call("t", {"n": 4}) == heddle.Returned({"paid": {"n": 4}})


async def test_rules_see_the_arguments_and_fail_closed(file: Path) -> None:
    write(
        file,
        """\
        tools:
          - id: pay
            input:
              amount: {type: number, required: true}
              limit: {type: number}
            validate:
              rules:
                - {name: positive, expr: 'args["amount"] > 0', reason: amount must be positive}
                - {name: below, expr: 'args["amount"] < args["limit"]', reason: amount must be below the limit}
                - {name: number, expr: '1', reason: this rule says nothing}
            steps: []
        """,
    )

    async with Router.load(file) as routes:
        with pytest.raises(heddle.RouteError) as refused:
            await routes.send("tool://pay", {"amount": -5})

    violations = refused.value.failed.details["violations"]
    assert str(refused.value).startswith('tool "pay" input validation failed: amount must be positive')
    assert [(each["rule"], each["message"]) for each in violations] == [  # type: ignore[union-attr, index, call-overload]
        ("positive", "amount must be positive"),
        ("below", "amount must be below the limit"),
        ("number", "this rule says nothing"),
    ]


async def test_rules_run_though_the_schema_is_not_checked(file: Path) -> None:
    write(
        file,
        """\
        tools:
          - id: t
            input: {n: {type: integer, required: true}}
            validate: {schema: false, rules: [{name: r, expr: 'args.get("n") != 5', reason: not five}]}
            steps: []
        """,
    )

    async with Router.load(file) as routes:
        assert (await routes.send("tool://t", {"n": "text"})).body == {"n": "text"}
        with pytest.raises(heddle.RouteError, match="not five"):
            await routes.send("tool://t", {"n": 5})


# What is wrong with one


def test_everything_that_is_wrong_is_said_at_once_with_its_place(file: Path) -> None:
    text = """\
    tools:
      - id: a
        discription: misspelt
        steps:
          - target: tool://missing
          - transform: {starlang: 'payload +'}
      - id: a
      - id: b
        validate: {rules: [{name: r, expr: 'args[', reason: no}]}
        steps:
          - target: direct://nowhere
          - target: tool://a?x=1
          - sett-body: {value: 1}
    workflows:
      - id: w
        from: tool://b
        steps: []
    """

    found = problems_of(file, text)

    assert [(line, column) for line, column, _ in found] == [
        (3, 5),
        (5, 9),
        (6, 21),
        (7, 5),
        (9, 34),
        (11, 9),
        (12, 9),
        (13, 9),
        (16, 5),
    ]
    assert [message for _, _, message in found] == [
        'unknown key "discription" in tools[0]; did you mean "description"?',
        "tools[0].steps[0].target: there is no tool missing; there are a, b",
        found[2][2],
        'there is a tool "a" already; each needs an id of its own',
        found[4][2],
        "tools[2].steps[0].target: there is no route direct://nowhere; there are none; "
        "give it a workflow, or a handler",
        "tools[2].steps[1].target: 'tool://a?x=1': tool:// takes no parameters; what a tool is told stands in its "
        "arguments",
        'unknown key "sett-body" in tools[2].steps[2]; did you mean "set-body"?',
        "tool://b has its steps already; one of them has to go",
    ]
    assert found[2][2].startswith("tools[0].steps[1].transform.starlang: line 1, column ")
    assert "rules[0]" in found[4][2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tolls: []", 'unknown key "tolls"; did you mean "tools"?'),
        ("tools: {}", "tools must be a list of objects, not an object"),
        ("tools: [{id: 'a b'}]", '"a b" cannot be a name'),
        ("tools: [{description: d}]", "tools[0].id is missing"),
        ("tools: [{id: t, input: {n: {type: integer, default: x}}}]", "default"),
        ("tools: [{id: t, steps: [{}]}]", "a step has one key"),
        ("tools: [{id: t, steps: [{set-body: {value: 1}, transform: {starlang: '1'}}]}]", "a step has one key"),
        ("tools: [{id: t, steps: [{set-body: {}}]}]", "give it one text, under starlang:"),
        ("tools: [{id: t, steps: [{set-body: {value: 1, starlang: '1'}}]}]", "say the same in two ways"),
        ("tools: [{id: t, steps: [{set-header: {value: 1}}]}]", "steps[0].set-header.name is missing"),
        ("tools: [{id: t, steps: [{choice: {}}]}]", "steps[0].choice.when is missing"),
        ("tools: [{id: t, steps: [{transform: {starlang: '%sl 3.0\\n---\\n1'}}]}]", "3.0"),
        ("workflows: [{id: w, steps: []}]", "nothing leads here"),
        (
            "workflows: [{id: w, from: direct://a, steps: []}, {id: w, from: direct://b, steps: []}]",
            'there is a workflow "w" already',
        ),
        ("workflows: [{id: 5, from: direct://a, steps: []}]", "workflows[0].id must be text"),
        (
            "workflows: [{from: direct://a, steps: [{choice: {when: [{starlang: 'True'}]}}]}]",
            "when[0].steps is missing",
        ),
        ("workflows: [{id: w, from: direct://a, trigger: {uri: direct://a}, steps: []}]", "in two ways"),
        ("workflows: [{id: w, from: tool://t, steps: []}]", 'there is no tool "t" in tools:'),
        (
            "workflows: [{id: v, from: direct://a, steps: []}, {id: w, from: direct://a, steps: []}]",
            "direct://a has its steps already",
        ),
        ("agents: [{id: a}]", "agents[0].type is missing"),
        ("agents: [{id: a, type: plan}]", "agents[0].type must be react"),
        ("agents: [{id: a, type: react, tools: [direct://x]}]", "an agent calls tool://NAME"),
        ("agents: [{id: a, type: react, tools: [tool://x]}]", "agents[0].tools[0]: there is no tool x"),
        ("agents: [{id: a, type: react}, {id: a, type: react}]", 'there is an agent "a" already'),
        ("[]", "there must be an object here"),
    ],
)
def test_what_is_wrong_is_said(file: Path, text: str, said: str) -> None:
    messages = [message for _, _, message in problems_of(file, text)]

    assert any(said in message for message in messages), messages


def test_a_default_that_is_never_used_is_noticed(file: Path) -> None:
    write(file, "tools: [{id: t, input: {n: {type: integer, required: true, default: 5}, m: {type: int}}, steps: []}]")

    notices = [(notice.code, notice.message) for notice in heddle.load_tools(file).notices]

    assert notices == [
        ("unknown_type", 'm: type "int" checks nothing; did you mean "integer"?'),
        ("idle_default", "n: it is required, so that its default is never used; remove one of them"),
    ]


# At the command line


def test_a_body_is_sent_from_the_command_line() -> None:
    search = EXAMPLES / "search.yaml"

    along = heddle_cli("send", search, "direct://ask", "what is a heddle?")
    whole = heddle_cli("send", search, "tool://search", '{"query": "a"}', "--json")
    wrong = heddle_cli("send", search, "tool://search", "what is a heddle?")
    nowhere = heddle_cli("send", search, "tool://search?x=1")

    assert (along.returncode, along.stdout, along.stderr) == (0, '{"results": [], "total": 0}\n', "")
    assert json.loads(whole.stdout) == {
        "body": {"results": [], "total": 0},
        "headers": {"HelixToolID": "search", "HelixToolDescription": "Search the knowledge base"},
    }
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith('failed (invalid_input): tool "search" input validation failed: query: is required')
    assert (nowhere.returncode, "takes no parameters" in nowhere.stderr) == (2, True)


def test_a_route_is_given_json_or_a_text(file: Path, tmp_path: Path) -> None:
    write(file, "workflows: [{id: w, from: direct://w, steps: [{set-body: {starlang: 'type(payload)'}}]}]")
    (tmp_path / "body").write_text("[1]")

    kinds = [
        json.loads(heddle_cli("send", file, "direct://w", *body).stdout)
        for body in (["text"], ['{"a": 1}'], ["5"], [f"@{tmp_path / 'body'}"], [])
    ]

    assert kinds == ["string", "dict", "int", "list", "NoneType"]


def test_steps_may_call_the_tools_of_a_folder(file: Path, toolbox: Toolbox) -> None:
    toolbox.sh("double", "read x; echo '{\"n\": 8}'")
    write(file, "workflows: [{id: w, from: direct://w, steps: [{target: tool://double}]}]")

    without = heddle_cli("send", file, "direct://w", "{}")
    done = heddle_cli("send", file, "direct://w", "{}", "--tools-dir", toolbox.folder)
    sound = heddle_cli("validate", file, "--tools-dir", toolbox.folder)

    assert (without.returncode, "there is no tool double" in without.stderr) == (2, True)
    assert (done.returncode, done.stdout) == (0, '{"n": 8}\n')
    assert (sound.returncode, sound.stdout) == (0, "sound: 1 route: direct://w\n")


def test_validate_says_what_is_wrong_with_a_document(file: Path) -> None:
    write(
        file, "tools:\n  - id: t\n    stepps: []\nworkflows:\n  - {id: w, from: direct://w, steps: [{to: tool://x}]}\n"
    )

    done = heddle_cli("validate", file)

    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f'{file}:3:5: tools[0].stepps: unknown key "stepps" in tools[0]; did you mean "steps"?',
        f"{file}:5:40: workflows[0].steps[0].to: there is no tool x; there are t",
    ]


def test_a_handler_that_the_host_has_to_give_is_noted() -> None:
    done = heddle_cli("validate", EXAMPLES / "pay.yaml")

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            f"{EXAMPLES / 'pay.yaml'}: note: direct://payments-handler: no workflow is there; the host has to give a "
            "handler",
            "sound: 1 route: tool://pay",
        ],
    )


# Examples


def test_the_tutorial_shows_what_is_to_be_seen(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```(\w+)[^\n]*\n(.*?)^```", (ROOT / "docs/tutorial/routes.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "weaving.yaml").write_text("".join(text for language, text in blocks if language == "yaml"))
    said = [text for language, text in blocks if language == "text"]
    seen = []

    for language, text in blocks:
        if language in {"shell", "python"}:
            command = [sys.executable, "-c", text]
            if language == "shell":
                command = [sys.executable, "-m", "heddle.cli", *shlex.split(text)[1:]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
            seen.append(done.stdout or done.stderr)

    assert [text.splitlines()[0] for text in seen] == [text.splitlines()[0] for text in said]


def test_the_examples_print_what_they_do() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "main.py"], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        [
            "asked: {'results': [], 'total': 0}",
            "by way of: {'HelixToolID': 'search', 'HelixToolDescription': 'Search the knowledge base'}",
            "paid: {'receipt': '5 EUR'}",
            'refused: tool "pay" input validation failed: currency: must be one of "USD", "EUR"',
            'refused: tool "pay" input validation failed: amount must be positive',
            "helper may call: search, translate",
            "translated: {'text': 'Faden'}",
        ],
    )


@pytest.mark.parametrize("name", ["search", "helper", "pay"])
def test_an_example_is_sound(name: str) -> None:
    handlers: dict[str, Any] = dict.fromkeys(("payments-handler", "find", "dictionary"), lambda _: None)

    assert len(load_routes(EXAMPLES / f"{name}.yaml", handlers=handlers).tools) >= 1
