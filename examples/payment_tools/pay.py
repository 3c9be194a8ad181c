#!/usr/bin/env python3
"""Pay: book an amount in the bank's book, under the id of the operation that it belongs to."""

import json
import os
import sys
import time

request = json.load(sys.stdin)
operation, amount = request["operationId"], request["input"]["amount"]

with open(os.environ["BANK_BOOK"], "a", encoding="utf-8") as book:
    book.write(f"{operation} {amount}\n")

# The bank has booked it, and takes its time to say so.
time.sleep(float(os.environ.get("BANK_SECONDS", "0")))
print(json.dumps({"ok": True, "data": {"receipt": f"R-{operation}"}}))
