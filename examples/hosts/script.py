"""A program without an event loop: its threads share one runner, and each waits for its own call.

python examples/hosts/script.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import heddle

TOOLS = Path(__file__).parent.parent / "tools"
TOPICS = ("looms", "heddles", "shuttles")


def main() -> None:
    with heddle.blocking.Runner(heddle.discover_tools(TOOLS)) as runner:

        def search(topic: str) -> str:
            match runner.call("python_search", {"query": topic}):
                case heddle.Returned(data):
                    return str(data)
                case heddle.Failed() as failed:
                    return failed.for_model()

        with ThreadPoolExecutor() as pool:
            for line in pool.map(search, TOPICS):
                print(line)


if __name__ == "__main__":
    main()
