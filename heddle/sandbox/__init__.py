"""What confines a tool: so far what the tiers of the sandbox are made of.

    seccomp     the filter of system calls that every tier puts on its tools
    landlock    what Landlock holds on this kernel, and policies for it

No tier uses them yet: `heddle.Runner` refuses a sandbox.
"""
