"""The main job in one run: a folder of executables and a Python function become a catalogue, and calls to it are made.

python examples/demo.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trio

import heddle

TOOLS = Path(__file__).parent / "tools"
PROGRAMS = {"bash_search": "bash", "python_search": "python3", "node_search": "node"}


@heddle.tool(side_effects="read", retry="idempotent")
async def word_count(text: str, longest: int = 0) -> dict[str, int]:
    """Count the words of a text.

    Args:
        text: What to count in.
        longest: Count only words of at most this many letters; 0 means all.
    """
    words = [word for word in text.split() if not longest or len(word) <= longest]
    return {"words": len(words), "characters": len(text)}


async def main() -> None:
    registry = heddle.discover_tools(TOOLS).with_tool(word_count)

    print(f"The catalogue, read from {TOOLS.name}/ and from this program:\n")
    for tool in registry:
        print(f"  {tool.name:<14} {tool.description.splitlines()[0]}")

    print("\nCalls, all in one workspace:\n")
    async with heddle.Runner(registry) as runner, runner.scope("demo") as scope:
        for name, language in PROGRAMS.items():
            if shutil.which(language) is None:
                print(f"  {name:<14} skipped: {language} is not on this machine")
                continue
            show(name, await scope.call(name, {"query": "looms"}))
        show("word_count", await scope.call("word_count", {"text": "warp and weft"}))

        print("\nA model that sends the wrong arguments reads what to correct:\n")
        show("word_count", await scope.call("word_count", {"txt": "warp and weft"}))

        print("\nAnd a tool with a fault explains itself. This one builds its JSON with echo:\n")
        show("bash_search", await scope.call("bash_search", {"query": 'the word "heddle"'}))


def show(name: str, result: heddle.ToolResult) -> None:
    """Print one result, and what it took."""
    took = f"{result.report.duration_s * 1000:.1f} ms"
    match result:
        case heddle.Returned(data):
            print(f"  {name:<14} {data}   {took}, {result.report.tier}")
        case heddle.Failed(kind, message) as failed:
            print(f"  {name:<14} failed ({kind}), {took}")
            for line in [*message.splitlines(), *failed.advice()]:
                print(f"    {line}")


if __name__ == "__main__":
    trio.run(main)
