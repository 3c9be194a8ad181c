"""What confines a tool: so far the filter of system calls that every tier of the sandbox puts on its tools.

No tier uses it yet: `heddle.Runner` refuses a sandbox.
"""
