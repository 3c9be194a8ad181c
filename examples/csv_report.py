"""Files in and out: one tool writes a CSV file, the next reads it, and its report comes back to a folder of ours.

python examples/csv_report.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import trio

import heddle

TOOLS = Path(__file__).parent / "csv_tools"
READINGS = b"north 4100\nsouth 3900\nattic 5200\n"


async def report(folder: Path) -> heddle.ScopeReport:
    """Have a report written into `folder`."""
    registry = heddle.discover_tools(TOOLS)
    async with heddle.Runner(registry) as runner:
        mounts = [
            heddle.Mount.from_files({"readings.txt": READINGS}, dest="input"),
            heddle.Mount(folder, "report", "rw"),
        ]
        async with runner.scope("report", mounts=mounts, report_changes=True) as scope:
            (await scope.call("collect")).unwrap()
            print((await scope.call("summarise")).unwrap())
    return scope.report


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        files = await report(folder)
        for path in files.copied_back:
            print(f"{path} came back:", (folder / path.removeprefix("report/")).read_text().strip())
        if files.changes is not None:
            print("created in the workspace:", ", ".join(state.path for state in files.changes.created))


if __name__ == "__main__":
    trio.run(main)
