"""A program under trio: the runner works in the program's own loop, and a cancelled call has ended its tool.

python examples/hosts/trio_app.py
"""

from __future__ import annotations

from pathlib import Path

import trio

import heddle

TOOLS = Path(__file__).parent.parent / "tools"
TOPICS = ("looms", "heddles", "shuttles")
NAP = heddle.ToolDef(
    name="nap", description="Sleep for a minute.", implementation=heddle.Program("/bin/sleep", ("60",))
)


async def main() -> None:
    registry = heddle.discover_tools(TOOLS).with_tool(NAP)
    found: dict[str, heddle.ToolResult] = {}

    async with heddle.Runner(registry) as runner:

        async def search(topic: str) -> None:
            found[topic] = await runner.call("python_search", {"query": topic})

        async with trio.open_nursery() as nursery:
            for topic in TOPICS:
                nursery.start_soon(search, topic)
        for topic in TOPICS:
            print(found[topic].unwrap())

        with trio.move_on_after(0.2) as waiting:
            await runner.call("nap")
        if waiting.cancelled_caught:
            print("Nobody waits for the nap any more, and it has ended.")


if __name__ == "__main__":
    trio.run(main)
