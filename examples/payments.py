"""A host is killed in the middle of a payment. The next one does not pay again, and asks.

python examples/payments.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import heddle

TOOLS = Path(__file__).parent / "payment_tools"


def pay(journal: heddle.Journal, order: str) -> heddle.ToolResult:
    with heddle.blocking.Runner(heddle.discover_tools(TOOLS), journal=journal) as runner:
        return runner.call("pay", {"amount": 5}, operation_id=order)


def main(folder: Path) -> None:
    book, file = folder / "book", folder / "journal.db"
    os.environ["BANK_BOOK"] = str(book)

    print("A host pays order-17, and is killed while the bank takes its time.")
    host = subprocess.Popen([sys.executable, __file__, file], env=os.environ | {"BANK_SECONDS": "60"})
    while not book.exists() or not book.read_text():
        time.sleep(0.01)
    host.kill()
    host.wait()

    with heddle.Journal.open(file) as journal:
        for operation in journal.recovered:
            print(f"The next host finds {operation.operation_id}: {operation.state}.")

        show(pay(journal, "order-17"))

        print("\nSomebody looks into the bank's book, and says what is in it.")
        if "order-17" in book.read_text():
            journal.resolve("order-17", "happened", data={"receipt": "R-order-17"}, note="it is in the book")
        else:
            journal.resolve("order-17", "did_not_happen", note="it is not in the book")
        show(pay(journal, "order-17"))

        print("\nAnother order is paid, and asked for twice.")
        show(pay(journal, "order-18"))
        show(pay(journal, "order-18"))

    print(f"\nThe bank's book: {', '.join(book.read_text().splitlines())}")


def show(result: heddle.ToolResult) -> None:
    match result:
        case heddle.Returned(data, report):
            print(f"  returned {data}{', from the journal' if report.replayed else ''}")
        case heddle.Failed(kind, retry=retry):
            print(f"  failed ({kind}), retry {retry}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with heddle.Journal.open(sys.argv[1]) as opened:
            pay(opened, "order-17")
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
