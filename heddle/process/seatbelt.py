"""Run programs to their end under macOS's Seatbelt. Each command is handed to ``sandbox-exec``, which becomes it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from heddle.process.direct import DirectLauncher
from heddle.sandbox.policy import Confinement
from heddle.sandbox.seatbelt import seatbelt_command
from heddle.sandbox.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from heddle.limits import Limits
    from heddle.process.values import Command, Exit
    from heddle.sandbox.policy import Grant

__all__ = ["SeatbeltLauncher", "SeatbeltSession"]


class SeatbeltLauncher(DirectLauncher):
    """Brings programs to their end with process groups, in a sandbox that macOS makes for each."""

    def __init__(self, tier: Tier) -> None:
        self.tier: str = tier.name
        self.guarantees: Mapping[str, str] = tier.guarantees
        self._tier = tier

    @asynccontextmanager
    async def session(self, confinement: Confinement) -> AsyncGenerator[SeatbeltSession, None]:
        """Open a session for the calls of one scope."""
        yield self.open(confinement)

    def open(self, confinement: Confinement) -> SeatbeltSession:
        """Return a session for the calls of one scope."""
        return SeatbeltSession(self._tier, confinement)


@attrs.frozen(eq=False)
class SeatbeltSession:
    """Runs the programs of one scope."""

    tier: Tier
    confinement: Confinement

    async def launch(self, command: Command, stdin: bytes, limits: Limits) -> Exit:
        """Run `command` to its end; see `heddle.process.LauncherSession`."""
        confinement = self.confinement
        grants: list[Grant] = [*self.tier.plan.grants, *confinement.of_workspace, *confinement.inside]
        network = "none" if command.network == "none" else self.tier.plan.network
        temporary = confinement.temporary or confinement.workspace
        argv = seatbelt_command(grants, network, command.argv, temporary=temporary)
        return await DirectLauncher().launch(attrs.evolve(command, argv=argv), stdin, limits)

    def close(self) -> None:
        """Close the session; there is nothing to it."""
