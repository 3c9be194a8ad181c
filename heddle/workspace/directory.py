"""`Workspace`: a private directory, its reserved folder of tools, and the variables that say where it is."""

from __future__ import annotations

import os
import re
import shlex
import stat
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from heddle.errors import DefinitionError, RunnerClosed
from heddle.logs import logger
from heddle.threads import in_thread, unless_cancelled
from heddle.tools.definition import Program, ToolDef
from heddle.workspace.changes import Baseline, Changes, FileFault, baseline_of, changes_since, reason_of
from heddle.workspace.copyback import CopiedBack, copy_back
from heddle.workspace.filling import Origin, fill, make_place, replace_link, snapshot
from heddle.workspace.kept import new_kept, place_for_kept
from heddle.workspace.layout import AS_COPIES, Layout
from heddle.workspace.mounts import RESERVED, Mount, Mounts
from heddle.workspace.removal import remove_tree
from heddle.workspace.report import ScopeReport
from heddle.workspace.sources import Source, checked_for
from heddle.workspace.temporary import RunFolder
from heddle.workspace.trees import FOLDER, Cursor, Entered, File, go_on, readable, walk

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable


__all__ = ["Workspace", "label_from"]

# 40 characters: a label is for people who look for a directory, and paths have to stay short.
LABEL_CHARS = 40
# 30 links take about as long as starting a process.
FEW_TOOLS = 30


def label_from(text: str) -> str:
    """Return `text` as a label: ``[A-Za-z0-9._-]``, at most 40 characters, never empty, ``.`` or ``..``."""
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:LABEL_CHARS]
    return label if label.strip(".") else "scope"


def _as_tuple(tools: Iterable[ToolDef]) -> tuple[ToolDef, ...]:
    return tuple(tools)


def _one_at_a_time() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(1)


@attrs.define(eq=False)
class Workspace:
    """The directory in which a scope's tools work: their cwd and ``HEDDLE_WORKSPACE``, readable by this user alone.

    It is made when `path` is first asked for. Tools reach each other by name in ``.heddle/bin``, which is reserved.
    Use `open` or `adopt` to have one that outlives a scope.

    Attributes:
        label: What it is called, for people.
        report: What became of its files; complete when it is closed.
    """

    label: str = attrs.field(converter=label_from)
    _tools: tuple[ToolDef, ...] = attrs.field(default=(), converter=_as_tuple, alias="tools", repr=False)
    _home: RunFolder = attrs.field(factory=RunFolder, alias="home", kw_only=True, repr=False)
    _sources: tuple[Source, ...] = attrs.field(default=(), alias="sources", kw_only=True, repr=False)
    _keep_in: Path | None = attrs.field(default=None, alias="keep_in", kw_only=True)
    _adopted: Path | None = attrs.field(default=None, alias="adopted", kw_only=True)
    _limiter: trio.CapacityLimiter = attrs.field(factory=_one_at_a_time, alias="limiter", kw_only=True, repr=False)
    _layout: Layout = attrs.field(default=AS_COPIES, alias="layout", kw_only=True, repr=False)
    report: ScopeReport = attrs.field(factory=ScopeReport, init=False)
    _made: _Made | None = attrs.field(default=None, init=False)
    _stays_at: Path | None = attrs.field(default=None, init=False)
    _is_over: bool = attrs.field(default=False, init=False)
    _users: list[Callable[[], bool]] = attrs.field(factory=list["Callable[[], bool]"], init=False, repr=False)
    _mutex: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        label: str = "scope",
        *,
        mounts: Iterable[Mount | str] = (),
        keep_in: str | Path | None = None,
        registry: Iterable[ToolDef] | None = None,
    ) -> AsyncGenerator[Workspace, None]:
        """Have a workspace for the time of the block; it is removed at its end, whatever tools have done to it.

        What tools have changed in mounts that are ``rw`` is copied back before that; see `report`.

        Args:
            label: What it is called.
            mounts: What it holds from the beginning.
            keep_in: A folder in which it stays, under its label or that and a number; None removes it.
            registry: The tools that are reachable by name in it.

        Raises:
            DefinitionError: A mount, or the folder to keep it in, cannot be used. Every fault is named.
            OSError: A mount cannot be copied.
        """
        kept = None if keep_in is None else place_for_kept(keep_in)
        group = Mounts.of(mounts, "Workspace.open(mounts=…)")
        sources = await in_thread(checked_for, group, kept, unless_cancelled()) if group else []
        with closing(RunFolder()) as home:
            workspace = cls(label, registry or (), home=home, sources=tuple(sources), keep_in=kept)
            try:
                if workspace.has_mounts:
                    await workspace.make()
                yield workspace
            finally:
                await workspace.close()

    @classmethod
    @asynccontextmanager
    async def adopt(
        cls,
        path: str | Path,
        *,
        label: str | None = None,
        registry: Iterable[ToolDef] | None = None,
        track_changes: bool = False,
    ) -> AsyncGenerator[Workspace, None]:
        """Let tools work in a folder that is there: nothing is copied, added or removed in it.

        The folder of tools lies elsewhere and is still last on ``PATH``.

        Args:
            path: The folder; a link to one is followed once, here.
            label: What it is called; by default its name.
            registry: The tools that are reachable by name.
            track_changes: Read every file now, so that `changes` can say what became of them.

        Raises:
            DefinitionError: There is no such folder, or it cannot be entered.
        """
        folder = _found(path)
        with closing(RunFolder()) as home:
            workspace = cls(label or folder.name, registry or (), home=home, adopted=folder)
            try:
                await workspace.make()
                if track_changes:
                    await workspace._track()
                yield workspace
            finally:
                await workspace.close()

    @property
    def path(self) -> Path:
        """The directory, absolute and free of links. Made when first asked for.

        Raises:
            RunnerClosed: It is gone.
        """
        return self._stays_at or self._now(go_on).path

    @property
    def bin(self) -> Path:
        """The folder in which every tool of the scope is reachable by its name."""
        return self._now(go_on).bin

    @property
    def exists(self) -> bool:
        """Whether it was made."""
        return self._made is not None

    @property
    def has_mounts(self) -> bool:
        """Whether something is put into it."""
        return bool(self._sources)

    @property
    def is_adopted(self) -> bool:
        """Whether it is a folder of the host's own."""
        return self._adopted is not None

    @property
    def places(self) -> dict[str, Path]:
        """The places in it that hold mounts which are ``ro``, and what is there: a copy in it, or one elsewhere."""
        made = self._now(go_on)
        if self._layout.read_only != "copied":
            return made.shown
        read_only = (source.mount for source in self._sources if source.mount.mode == "ro")
        return {place: made.path / place for mount in read_only for place in mount.places}

    @property
    def tools(self) -> Path:
        """The folder of tools, which nobody has to write."""
        return self._now(go_on).bin.parent

    @property
    def temporary(self) -> Path | None:
        """A folder for temporary files that its tools share, where they have none of their own."""
        return self._now(go_on).temporary

    def variables(self, search_path: str) -> dict[str, str]:
        """Return what tells a tool where it works. The tools' own folder comes last on ``PATH``: it shadows nothing."""
        return {
            "HEDDLE_WORKSPACE": str(self.path),
            "HEDDLE_WORKSPACE_BIN": str(self.bin),
            "PATH": f"{search_path}{os.pathsep}{self.bin}",
        }

    async def make(self) -> None:
        """Make the directory now, without holding the loop where it takes more than a moment.

        Calls that come at once make one between them.

        Raises:
            OSError: A mount cannot be copied, or there is no room. Nothing is left of the directory.
            RunnerClosed: It is gone.
        """
        if self._made is not None:
            return
        if self._sources or len(self._tools) > FEW_TOOLS:
            await in_thread(self._now, unless_cancelled(), limiter=self._limiter)
        else:
            self._now(go_on)

    async def changes(self) -> Changes:
        """Return how the files differ from those that were put there; ``.heddle`` does not count.

        Raises:
            DefinitionError: The folder was adopted and nobody has said ``track_changes=True``.
            RunnerClosed: The workspace is gone.
        """
        made = self._made
        if made is None and self._is_over:
            raise RunnerClosed(_OVER)
        if made is None:
            return Changes()
        return await in_thread(self._changes, made, unless_cancelled(), limiter=self._limiter)

    async def give_to(self, owner: tuple[int, int]) -> None:
        """Give all that is in it to a user and a group, who can reach it then. Nothing works in it yet.

        Raises:
            OSError: It cannot be given.
        """
        await self.make()
        self._home.admit(owner)
        await in_thread(_give, self._now(go_on).root, owner, limiter=self._limiter)

    def admit(self, owner: tuple[int, int]) -> None:
        """Let a user reach the folder of tools, where that does not lie in the workspace."""
        made = self._now(go_on)
        self._home.admit(owner)
        made.place.chmod(0o711)

    def refuse_untracked(self) -> None:
        """Refuse to say what changes where that will not be known.

        Raises:
            DefinitionError: The folder was adopted and nobody has said ``track_changes=True``.
        """
        if self._made is not None and self._made.baseline is None:
            raise DefinitionError("this folder was adopted without track_changes=True: what it held is not known")

    def note_user(self, is_running: Callable[[], bool]) -> None:
        """Note something that could not be ended and may work in it: while it does, the workspace is left as it is."""
        self._users.append(is_running)

    def note_survivors(self) -> None:
        """Note processes that could not be ended; nobody knows when they are gone."""
        self._users.append(_for_ever)

    async def close(self, *, report_changes: bool = False) -> None:
        """Settle and remove it, whatever happens. In a child of the process that has it there is nothing to do."""
        try:
            await self.settle(report_changes=report_changes)
        finally:
            await self.remove()

    async def settle(self, *, report_changes: bool = False) -> None:
        """Copy back what was changed, cancelled or not, and complete the report. Nothing works in it any more.

        Args:
            report_changes: Put into the report what has changed.
        """
        made = self._made
        if not self._home.is_ours:
            return
        if made is None:
            self.report = attrs.evolve(self.report, changes=Changes() if report_changes else None)
            return
        if made.origins or report_changes:
            with trio.CancelScope(shield=True):
                await in_thread(self._settle, made, report_changes, limiter=self._limiter)
        if self._keep_in is not None:
            with trio.CancelScope(shield=True):
                await in_thread(self._put_in_place_of_links, made, limiter=self._limiter)
            self.report = attrs.evolve(self.report, kept=made.path)

    async def remove(self) -> None:
        """Remove it and all that is in it, cancelled or not. What cannot be removed is logged and left.

        One that is kept, or in which something still works, is left as it is.
        """
        with self._mutex:
            made, self._made, self._is_over = self._made, None, True
        if made is None or not self._home.is_ours:
            return
        if self.is_adopted or self._keep_in is not None:
            self._stays_at = made.path
        try:
            await self._remove(made)
        finally:
            made.close()

    async def _remove(self, made: _Made) -> None:
        if self._is_in_use():
            logger.warning("a workspace is left, because something in it could not be ended: %s", made.place)
            return
        faults: tuple[str, ...] = ()
        with trio.CancelScope(shield=True):
            faults = await in_thread(self._give_back if self._keep_in is None else self._give_back_aside, made)
        for fault in faults:
            logger.warning("a workspace could not be removed entirely: %s: %s", made.place, fault)

    def _give_back(self, made: _Made) -> tuple[str, ...]:
        faults = remove_tree(made.place, made.held)
        if not faults:  # else it stays, and the run's folder with it
            self._home.give_back(made.place)
        return (*faults, *self._give_back_aside(made))

    def _give_back_aside(self, made: _Made) -> tuple[str, ...]:
        faults = remove_tree(made.aside) if made.aside is not None else ()
        if made.aside is not None and not faults:
            self._home.give_back(made.aside)
        return faults

    def _is_in_use(self) -> bool:
        return any(is_running() for is_running in self._users)

    def _now(self, pause: Callable[[], object]) -> _Made:
        """Return what was made, making it first if need be. Any thread may ask."""
        with self._mutex:
            if self._made is None:
                if self._is_over:
                    raise RunnerClosed(_OVER)
                self._made = self._make(pause)
            return self._made

    def _make(self, pause: Callable[[], object]) -> _Made:
        """Make it and fill it; on an error nothing is left of it."""
        kept = None if self._keep_in is None else new_kept(self._keep_in, self.label)
        place = kept or self._home.new(self.label)
        path, tools = (place, place / RESERVED) if self._adopted is None else (self._adopted, place)
        made: _Made | None = None
        aside: Path | None = None
        try:
            if self._adopted is None and self._needs_aside():
                aside = self._home.new(f"{self.label}.aside")
            if aside is not None and self._layout.read_only == "linked":
                (path / RESERVED).symlink_to(aside / RESERVED)
                tools = aside / RESERVED
            made = _opened(place, path, tools / "bin", aside)
            made.bin.mkdir(parents=True)
            for place_of_tools in (made.bin.parent, made.bin):
                place_of_tools.chmod(0o755)  # whatever the host's own files are like: tools may be somebody else
            for tool in self._tools:
                _make_reachable(tool, made.bin / tool.name)
            if self._adopted is None:
                self._fill(made, pause)
            self._give_away(made)
        except BaseException:
            if made is not None:
                made.close()
            for folder in (place, aside):
                if folder is not None:
                    remove_tree(folder)
                    self._home.give_back(folder)
            raise
        return made

    def _needs_aside(self) -> bool:
        """Return whether something of it lies beside it: what is read-only and has no copy yet, or must be linked."""
        if self._layout.read_only == "linked":
            return True
        return self._layout.read_only == "bound" and any(
            source.mount.mode == "ro" and source.copy is None for source in self._sources
        )

    def _fill(self, made: _Made, pause: Callable[[], object]) -> None:
        """Put the mounts into it: copies, or a place and what is to be there."""
        layout = self._layout
        copied = self._sources
        if layout.read_only != "copied":
            copied = tuple(source for source in self._sources if source.mount.mode == "rw")
            read_only = [source for source in self._sources if source.mount.mode == "ro"]
            for number, source in enumerate(read_only):
                if source.copy is None:
                    assert made.aside is not None  # noqa: S101 - that is what it is for
                    source = snapshot(source, made.aside / str(number), pause, layout.owner)  # noqa: PLW2901
                made.shown |= source.shown
        made.baseline = Baseline(fill(copied, made.root, pause, made.origins, layout.owner))
        for place, copy in made.shown.items():
            make_place(made.root, place, copy, link=layout.read_only == "linked", owner=layout.owner)

    def _give_away(self, made: _Made) -> None:
        """Give the folder in which tools work to whom they run as."""
        owner = self._layout.owner
        if made.aside is not None:
            made.aside.chmod(0o711)
        if made.temporary is not None:
            for folder in (made.temporary, made.temporary / "home"):
                folder.mkdir(0o700)
                if owner is not None:
                    os.chown(folder, *owner)
        if owner is not None and self._adopted is None:
            os.fchown(made.root, *owner)

    async def _track(self) -> None:
        """Read every file, to know later what became of it."""
        made = self._now(go_on)
        made.baseline = await in_thread(baseline_of, made.root, unless_cancelled(), limiter=self._limiter)

    def _changes(self, made: _Made, pause: Callable[[], object]) -> Changes:
        self.refuse_untracked()
        assert made.baseline is not None  # noqa: S101 - that was just asked
        if self.is_adopted:
            return changes_since(made.baseline, made.root, pause)
        os.fchmod(made.root, stat.S_IRWXU)  # a tool may have taken the right to look away
        return changes_since(made.baseline, made.root, pause, leaves_out=made.is_left_out, open_up=True)

    def _put_in_place_of_links(self, made: _Made) -> None:
        """Make one that stays complete: what its links lead to goes with the run."""
        if self._layout.read_only != "linked":
            return
        try:
            for place, copy in made.shown.items():
                replace_link(made.root, place, copy)
            if replace_link(made.root, RESERVED):
                tools = made.path / RESERVED / "bin"
                tools.mkdir(parents=True)
                for tool in self._tools:
                    _make_reachable(tool, tools / tool.name)
        except OSError as error:
            logger.warning("a workspace that is kept has links to what is gone: %s: %s", made.path, error)

    def _settle(self, made: _Made, report_changes: bool) -> None:
        done = CopiedBack()
        changes: Changes | None = None
        try:
            self._copy_back(made, done)
            changes = self._changes(made, go_on) if report_changes else None
        except OSError as error:
            done.failed.append(FileFault("", reason_of(error)))
        self.report = attrs.evolve(
            self.report,
            copied_back=tuple(sorted(done.copied)),
            overwritten=tuple(sorted(done.overwritten)),
            failed=tuple(sorted(done.failed, key=lambda fault: fault.path)),
            changes=changes,
        )
        for path in done.overwritten:
            logger.warning("a file was changed by others while it was mounted, and is overwritten: %s", readable(path))
        for fault in done.failed:
            logger.warning("copying back: %s", fault)

    def _copy_back(self, made: _Made, done: CopiedBack) -> None:
        if made.origins:
            os.fchmod(made.root, stat.S_IRWXU)
        while made.origins:
            origin = made.origins.pop(0)
            try:
                if self._is_in_use():
                    place = origin.source.mount.place
                    done.failed.append(FileFault(place, "something that could not be ended may still work in it"))
                else:
                    copy_back(origin, made.root, made.baseline or Baseline(), done)
            finally:
                origin.close()


_OVER = "this workspace is gone: use it inside the block that opened it"


def _for_ever() -> bool:
    return True


@attrs.define(eq=False)
class _Made:
    """A workspace that was made.

    Attributes:
        place: What was made for it, and is removed.
        held: That folder, open.
        path: Where tools work: there, or in the folder that was adopted.
        bin: Its folder of tools.
        root: The directory `path`, opened before any tool ran.
        aside: What lies beside it, and is removed as well.
        baseline: What it held then; None for a folder that was adopted, unless somebody asked.
        origins: Where mounts are copied back to; open.
        shown: What lies elsewhere and belongs at a place in it.
    """

    place: Path
    held: int
    path: Path
    bin: Path
    root: int
    aside: Path | None = None
    baseline: Baseline | None = None
    origins: list[Origin] = attrs.field(factory=list["Origin"])
    shown: dict[str, Path] = attrs.field(factory=dict[str, Path])

    @property
    def temporary(self) -> Path | None:
        """A folder for temporary files; only where the tools' own folder lies beside the workspace."""
        if self.aside is None or not self.bin.is_relative_to(self.aside):
            return None
        return self.aside / "tmp"

    def is_left_out(self, path: str) -> bool:
        """Return whether a path is not of what tools have in it."""
        return path == RESERVED or path in self.shown

    def close(self) -> None:
        """Close what was held open."""
        for origin in self.origins:
            origin.close()
        self.origins.clear()
        os.close(self.held)
        os.close(self.root)


def _give(root: int, owner: tuple[int, int]) -> None:
    with Cursor.at(root) as cursor:
        os.fchown(cursor.fd, *owner)
        for event in walk(cursor, leaves_out=_is_reserved):
            match event:
                case Entered():
                    os.fchown(cursor.fd, *owner)
                case File(_, name, _):
                    os.chown(name, *owner, dir_fd=cursor.fd, follow_symlinks=False)
                case _:
                    pass


def _is_reserved(path: str) -> bool:
    return path == RESERVED


def _opened(place: Path, path: Path, tools: Path, aside: Path | None) -> _Made:
    held = os.open(place, FOLDER)
    try:
        return _Made(place, held, path, tools, os.open(path, FOLDER), aside)
    except BaseException:
        os.close(held)
        raise


def _found(path: str | Path) -> Path:
    """Return the folder that is to be adopted, absolute and free of links."""
    try:
        folder = Path(path).resolve(strict=True)
        os.close(os.open(folder, FOLDER))
    except (OSError, RuntimeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise DefinitionError(f"{str(path)!r} cannot be adopted as a workspace: {said}") from None
    return folder


def _make_reachable(tool: ToolDef, place: Path) -> None:
    """Put a link where the program can be started as it is, else a small script."""
    program = tool.implementation
    if isinstance(program, Program) and not program.args:
        place.symlink_to(os.path.realpath(program.path))  # a sandbox may not show the links on the way
        return
    if isinstance(program, Program):
        words = shlex.join([os.path.realpath(program.path), *program.args])
        script = f'#!/bin/sh\nexec {words} "$@"\n'
    else:
        said = f'heddle: "{tool.name}" is no program and cannot be started from here: call it through heddle'
        script = f"#!/bin/sh\necho {shlex.quote(said)} >&2\nexit 1\n"
    place.write_text(script, encoding="utf-8", errors="surrogateescape")
    place.chmod(0o755)
