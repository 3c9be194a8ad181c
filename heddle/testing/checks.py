"""Find the promises that a runner of one's own does not keep, by running real programs through it.

    async def test_our_launcher_keeps_its_promises():
        await heddle.testing.check_launcher(OurLauncher())

What is declared is what is asked: of a launcher whose guarantees say ``partial`` of processes no daemon has to be
ended. A runner that keeps its promises is checked in a few seconds, most of which are the grace of its deadlines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.testing import backends, launchers
from heddle.testing.ground import Ground
from heddle.testing.promises import Broken, Conformance, ConformanceError, chosen, examine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heddle.process.ports import Backend, Launcher

__all__ = ["Broken", "Conformance", "ConformanceError", "check_backend", "check_launcher"]

# 2 s: what waits for something that never ends waits longer, and what is only slow because the machine is, does not.
PATIENCE_SECONDS = 2.0


async def check_launcher(
    launcher: Launcher, *, only: Iterable[str] | None = None, patience_seconds: float = PATIENCE_SECONDS
) -> Conformance:
    """Check that a launcher keeps the promises of `heddle.process.Launcher`; return what was checked.

    Args:
        launcher: One that is ready for use.
        only: The promises to check, by the names that an error has; None means all.
        patience_seconds: How much later than promised something may be, for a machine that is busy.

    Raises:
        ConformanceError: It does not keep them all. Its message says of each that is broken what was seen.
        SandboxUnavailable: It refuses to work here, as it may. Nothing was checked.
        ValueError: There is no promise of such a name.
    """
    promises = chosen(launchers.promises(), only)
    async with Ground.open() as ground, launcher.session(ground.confinement) as session:
        trial = launchers.LauncherTrial(launcher, ground, session, patience_seconds)
        return await examine(type(launcher).__name__, trial, promises, patience_seconds)


async def check_backend(
    backend: Backend, *, only: Iterable[str] | None = None, patience_seconds: float = PATIENCE_SECONDS
) -> Conformance:
    """Check that a backend keeps the promises of `heddle.process.Backend`; return what was checked.

    Its commands are run by a `heddle.Runner`, as they are when it is used.

    Args:
        backend: One that is ready for use.
        only: The promises to check, by the names that an error has; None means all.
        patience_seconds: How much later than promised something may be, for a machine that is busy.

    Raises:
        ConformanceError: It does not keep them all. Its message says of each that is broken what was seen.
        SandboxUnavailable: It refuses to work here, as it may. Nothing was checked.
        ValueError: There is no promise of such a name.
    """
    promises = chosen(backends.promises(), only)
    async with Ground.open() as ground, backends.BackendTrial.open(backend, ground, patience_seconds) as trial:
        return await examine(type(backend).__name__, trial, promises, patience_seconds)
