"""The rooms: who may import whom, what importing costs, what the front door offers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import heddle

PACKAGE = Path(heddle.__file__).parent
# A room may import those before it, and itself.
ORDER = [
    ["errors", "logs", "ids"],
    ["strictjson", "limits"],
    ["results"],
    ["redaction"],
    ["threads"],
    ["expressions"],
    ["references"],
    ["sandbox"],
    ["process"],
    ["environment"],
    ["tools"],
    ["protocol"],
    ["workspace"],
    ["events"],
    ["listening"],
    ["loops"],
    ["walk"],
    ["operations"],
    ["places"],
    ["runner"],
    ["pipelines"],
    ["portal"],
    ["hostloop"],
    ["twins"],
    ["blocking", "aio"],
    ["callers", "otel"],
    ["testing"],
    ["cli"],
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """Return the rooms that a module imports, and whether only for types."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {(name.split(".")[1], id(node) in for_types) for name in names if name.startswith("heddle.")}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in PACKAGE.rglob("*.py")
        if room_of(path) != "__init__"
        for room, for_types in imports_of(path)
        if LEVEL[room] > LEVEL[room_of(path)]
        # `ToolFailed` carries a result, and a result raises it.
        and not (for_types and (room_of(path), room) in {("errors", "results"), ("errors", "strictjson")})
    ]

    assert wrong == []
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"} == set(LEVEL)


def test_the_core_imports_only_what_it_depends_on() -> None:
    """Extras, and what is slow to import, come in where they are used."""
    allowed = {"attrs", "cattrs", "jsonschema", "jsonschema_specifications", "referencing", "trio", "typing_extensions"}
    extras = {"tools/yamltext.py": {"yaml"}, "cli/commands.py": {"click"}, "cli/views.py": {"click", "rich"}}
    extras |= {"cli/confining.py": {"click"}, "cli/doctor.py": {"click"}, "otel.py": {"opentelemetry"}}
    extras |= {"cli/new.py": {"click"}, "cli/completion.py": {"click"}, "testing/pytest_plugin.py": {"pytest"}}
    extras |= {"testing/fixtures.py": {"pytest"}, "cli/operations.py": {"click"}, "cli/validate.py": {"click"}}
    extras |= {"cli/send.py": {"click"}, "expressions/worker.py": {"starlark"}, "cli/exports.py": {"click"}}
    extras |= {f"cli/{name}.py": {"click"} for name in ("calling", "listing", "reading", "stopping")}
    found = {}
    for path in PACKAGE.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
        name = str(path.relative_to(PACKAGE))
        found[name] = names - sys.stdlib_module_names - {"heddle"} - allowed - extras.get(name, set())

    assert {name: foreign for name, foreign in found.items() if foreign} == {}


def test_importing_heddle_loads_nothing_heavy() -> None:
    source = """
import sys
before = set(sys.modules)
import heddle
heavy = {"attrs", "attr", "cattrs", "jsonschema", "referencing", "trio", "yaml", "click", "rich", "asyncio"}
print(sorted(heavy & (set(sys.modules) - before)))
from heddle import ToolDef, Limits
print(sorted(heavy & (set(sys.modules) - before)))
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n['attr', 'attrs']\n"


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    missing = [name for name in heddle.__all__ if not hasattr(heddle, name)]
    unsaid = [
        name
        for name in heddle.__all__
        if (inspect.isclass(getattr(heddle, name)) or inspect.isfunction(getattr(heddle, name)))
        and not inspect.getdoc(getattr(heddle, name))
    ]

    assert (missing, unsaid) == ([], [])
    assert set(heddle.__all__) <= set(dir(heddle))
    assert not hasattr(heddle, "nosuch")


@pytest.mark.parametrize("program", ["process/supervisor.py", "sandbox/container.py"])
def test_what_runs_outside_of_the_host_uses_the_standard_library_alone(program: str) -> None:
    tree = ast.parse((PACKAGE / program).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    at_run_time = [
        node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    modules = {inner.module for node in at_run_time for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom)}

    assert names <= sys.stdlib_module_names
    assert modules == {"__future__"}
