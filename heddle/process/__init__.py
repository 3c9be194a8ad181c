"""Run one program to its end. When a function here returns or raises, everything that the program started is gone.

The room does not know what a tool is: a `Command` goes in, an `Exit` comes out. Custom runners implement `Launcher`
or `Backend`.
"""

from heddle.process.default import default_launcher
from heddle.process.ports import Backend, BackendSession, Launcher, LauncherSession
from heddle.process.values import Command, Ending, Exit
from heddle.sandbox.policy import Confinement, Grant

__all__ = [
    "Backend",
    "BackendSession",
    "Command",
    "Confinement",
    "Ending",
    "Exit",
    "Grant",
    "Launcher",
    "LauncherSession",
    "default_launcher",
]
