"""A program under asyncio: calls are awaited, an asynchronous tool is at home, and a timeout ends what it gives up.

python examples/hosts/asyncio_app.py
"""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path

import heddle

TOOLS = Path(__file__).parent.parent / "tools"
TOPICS = ("looms", "heddles", "shuttles")
NAP = heddle.ToolDef(
    name="nap", description="Sleep for a minute.", implementation=heddle.Program("/bin/sleep", ("60",))
)

who: contextvars.ContextVar[str] = contextvars.ContextVar("who")


async def main() -> None:
    notes: asyncio.Queue[str] = asyncio.Queue()

    @heddle.tool
    async def note(text: str) -> int:
        """Write something down, and say how much there is now."""
        await notes.put(f"{who.get()} noted: {text}")
        return notes.qsize()

    registry = heddle.discover_tools(TOOLS).with_tool(note).with_tool(NAP)
    async with heddle.aio.Runner(registry) as runner:
        found = await asyncio.gather(*(runner.call("python_search", {"query": topic}) for topic in TOPICS))
        for result in found:
            print(result.unwrap())

        who.set("the weaver")  # each request has its own, and the tool sees its caller's
        print((await runner.call("note", {"text": "the warp is tight"})).unwrap())
        print(await notes.get())

        try:
            async with asyncio.timeout(0.2):
                await runner.call("nap")
        except TimeoutError:
            print("Nobody waits for the nap any more, and it has ended.")


if __name__ == "__main__":
    asyncio.run(main())
