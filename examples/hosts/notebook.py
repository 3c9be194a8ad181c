"""A notebook: a runner is opened in one cell, used in any, and closed in the last. Ctrl-C ends a call, not the runner.

Each ``# %%`` begins a cell. It runs as a program too, from the root of a checkout: python examples/hosts/notebook.py
"""

# %%
import heddle

runner = heddle.blocking.Runner(heddle.discover_tools("examples/tools")).open()

# %%
found = runner.call("python_search", {"query": "looms"})
print(found.unwrap())

# %% Several calls in one workspace: the block is in one cell.
with runner.scope("notebook") as scope:
    for topic in ("heddles", "shuttles"):
        print(scope.call("python_search", {"query": topic}).unwrap())

# %% A notebook that is simply shut down closes it as well.
runner.close()
