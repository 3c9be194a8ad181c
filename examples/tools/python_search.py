#!/usr/bin/env python3
import json
import sys

args = json.load(sys.stdin)
query = args.get("query", "")

results = {"result": f"You searched for: {query}"}
json.dump(results, sys.stdout)
