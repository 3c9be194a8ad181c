"""The command lines of bubblewrap: one that a whole runner shares, and one for a single call. Nothing is started here.

What the caller names is bound by open handle, never by a path that could lead elsewhere by then; the whole list of
options goes through a file without a name, so that no other process sees the paths in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from heddle.sandbox.handles import open_path
from heddle.sandbox.policy import Grant, Network, mode_at, with_pins

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Bind", "Plan", "Started", "binds_for", "folders_of_python", "session_command", "single_command"]

# Where a supervisor inside expects its control socket and its handle on the host; what is bound comes after them.
FIRST_HANDLE = 3
PROGRAMS = "/.heddle"
# Of an empty folder that lies over another one.
COVER_BYTES = str(1 << 20)
# Programs and libraries. The four links are folders of /usr on most systems, and folders of their own on others.
SYSTEM = ("/usr", "/opt", "/nix/store")
LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What of /etc programs need to run: no keys, no passwords, nothing of the machine's services.
PUBLIC_ETC = (
    *(
        "alternatives",
        "ca-certificates",
        "ca-certificates.conf",
        "ssl/certs",
        "ssl/openssl.cnf",
        "pki/tls",
        "pki/ca-trust",
    ),
    *(
        "crypto-policies",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "hosts",
        "host.conf",
        "nsswitch.conf",
        "gai.conf",
    ),
    *("protocols", "services", "mime.types", "localtime", "timezone", "locale.alias", "locale.conf", "default/locale"),
    *("passwd", "group", "os-release", "fonts", "profile", "bash.bashrc", "inputrc", "terminfo", "java", "magic"),
)
RESOLVER = "/etc/resolv.conf"
# Inside: each call's own folder for temporary files, and a home that is thrown away.
TMP, SHM = "/tmp", "/dev/shm"  # noqa: S108 - inside the container
# What a supervisor inside needs, for its own namespaces and for nothing outside of them: mounts, other users and the
# ways to their files, the loopback device, and to give up the right to have any of it.
CAPABILITIES = ("SYS_ADMIN", "SETPCAP", "SETFCAP", "SETUID", "SETGID", "NET_ADMIN", "DAC_READ_SEARCH")
# The last steps before a tool of a single call: set the most processes, which has to be done inside of the new user
# namespace, where the kernel counts them apart (shells differ in the letter for it), and say that all is ready.
LAST_STEPS = (
    'test -z "$0" || ulimit -p "$0" 2>/dev/null || ulimit -u "$0" || exit 125; echo ready >&{info}; exec "$@" {info}>&-'
)


@attrs.frozen(kw_only=True)
class Plan:
    """What all containers of a runner have in common.

    Attributes:
        bwrap: The program.
        network: The policy's.
        grants: What every container sees, in order; a later one inside an earlier one wins. Free of links.
        inner: What only a session itself needs to see.
        roots: Folders that hold workspaces: of each, a container sees its own workspace alone.
        tmp_bytes: The size of ``/tmp`` and of ``/dev/shm``.
        handles: What of it was opened already, by path.
        is_root: Tools run as the host's root. Then of ``/etc`` they see what is public, and nothing else.
        joins_namespace: The host is root and its tools are somebody else: both are known inside.
    """

    bwrap: str
    network: Network
    grants: tuple[Grant, ...] = ()
    inner: tuple[Path, ...] = ()
    roots: tuple[Path, ...] = ()
    tmp_bytes: int
    handles: Mapping[Path, int] = attrs.field(factory=dict[Path, int], hash=False)
    is_root: bool = False
    joins_namespace: bool = False


@attrs.frozen
class Bind:
    """Something that a container sees at a place; without a source, an empty folder that covers what is there."""

    mode: Literal["r", "w"]
    source: str
    target: str


@attrs.define(eq=False)
class Started:
    """A command that is ready to be started, with what it is to hold open. Close it when it was sent off."""

    argv: tuple[str, ...]
    handles: list[int]

    def close(self) -> None:
        """Close what was opened for it."""
        while self.handles:
            os.close(self.handles.pop())


def session_command(plan: Plan, python: str, programs: Mapping[str, Path], words: Sequence[str]) -> Started:
    """Return the command of a supervisor for all containers, which expects its control socket as descriptor 3.

    Args:
        plan: What its containers have in common.
        python: The interpreter, which is the host's own.
        programs: The supervisor's folders, by the name that each has inside.
        words: What the supervisor is started with, its own path in it first.

    Raises:
        OSError: Something that is granted cannot be opened.
    """
    # After the control socket, the host's handle and the list of options.
    options = _Options(FIRST_HANDLE + 3, plan.handles)
    # A user 0 of this namespace alone may mount the terminals; every container maps it back to who it is.
    options.add("--uid", "0", "--gid", "0", "--as-pid-1")
    try:
        _machine(options, plan)
        for capability in CAPABILITIES:
            options.add("--cap-add", f"CAP_{capability}")
        for folder in plan.inner:
            options.bind("r", folder, str(folder))
        for name, path in programs.items():
            options.bind("r", path, f"{PROGRAMS}/{name}")
        # The outer first: one that is bound later lies over what it holds.
        for grant in with_pins([*(Grant(root, "rw") for root in plan.roots), *plan.grants], plan.roots):
            options.bind("r" if grant.mode == "ro" else "w", grant.path, str(grant.path))
        options.add("--remount-ro", "/", "--chdir", "/")
        if plan.joins_namespace:  # it comes as the last descriptor
            options.add("--userns", str(options.first + len(options.handles)))
        else:
            options.add("--unshare-user")
        options.add("--", python, "-I", "-S", *words)
        return options.command(plan.bwrap, at=FIRST_HANDLE + 2)
    except BaseException:
        options.close()
        raise


def single_command(
    plan: Plan,
    binds: Iterable[Bind],
    argv: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    seccomp: int,
    info: int,
    processes: int | None,
) -> Started:
    """Return the command of one call in a container of its own.

    Args:
        plan: As for a session.
        binds: What this call sees of its workspace.
        argv: The tool's own command.
        cwd: Where it is started.
        environment: All of its variables.
        seccomp: The filter, in an open file; it is opened again, to be read from its beginning.
        info: An open file, into which is written when the tool is about to be started.
        processes: How many it may have.

    Raises:
        OSError: Something that is granted cannot be opened.
    """
    options = _Options(FIRST_HANDLE + 1, plan.handles)
    options.add("--unshare-user", "--new-session")
    options.hold(os.dup(info))
    if plan.network == "none":
        options.add("--unshare-net")
    try:
        _machine(options, plan)
        options.add("--size", str(plan.tmp_bytes), "--perms", "1777", "--tmpfs", TMP)
        options.add("--perms", "0700", "--dir", f"{TMP}/home")
        covers = [bind.target for bind in binds if not bind.source]
        for bind in binds:
            if bind.source:
                options.bind(bind.mode, Path(bind.source), bind.target)
            else:
                options.add("--size", COVER_BYTES, "--perms", "0755", "--tmpfs", bind.target)
        for target in covers:
            options.add("--remount-ro", target)
        options.add("--remount-ro", "/", "--chdir", cwd, "--clearenv")
        for name, value in environment.items():
            options.add("--setenv", name, value)
        options.add("--seccomp", options.hold(os.open(f"/proc/self/fd/{seccomp}", os.O_RDONLY | os.O_CLOEXEC)))
        most = "" if processes is None else str(processes + 1)
        options.add("--", "/bin/sh", "-c", LAST_STEPS.format(info=FIRST_HANDLE + 1), most, *argv)
        return options.command(plan.bwrap, at=FIRST_HANDLE)
    except BaseException:
        options.close()
        raise


def binds_for(
    plan: Plan, workspace: Path, places: Mapping[str, Path], reserved: Path | None, *, everything: bool = False
) -> tuple[Bind, ...]:
    """Return what the containers of one scope see beside what all of them do, the outer first.

    Args:
        plan: Of the session.
        workspace: Where the calls work: in one of the plan's roots, or granted.
        places: What is read at a place in it, and is elsewhere.
        reserved: The folder of tools, read-only wherever it is.
        everything: What the plan grants as well.
    """
    covered = _covered(plan, of_session=not everything)
    # What is at a place, by the place; of two at one place the later counts.
    there: dict[Path, tuple[Literal["ro", "rw"], Path]] = {
        grant.path: (grant.mode, grant.path)
        for grant in plan.grants
        if everything or _is_hidden(grant.path, covered) or grant.path.is_relative_to(workspace)
    }
    there[workspace] = ("rw", workspace)
    if reserved is not None:
        there[reserved] = ("ro", reserved)
    there |= {workspace / place: ("ro", source) for place, source in places.items()}
    grants = with_pins((Grant(place, mode) for place, (mode, _) in there.items()), plan.roots)
    binds = [Bind("w", "", str(place)) for place in covered if place not in there]
    binds += [
        Bind("r" if grant.mode == "ro" else "w", str(there.get(grant.path, ("", grant.path))[1]), str(grant.path))
        for grant in grants
        # In an empty folder nothing has to be kept from being moved, and a bind would bring back what it hides.
        if grant.path in there or grant.path.is_relative_to(workspace) or not _is_in(grant.path, covered)
    ]
    # The outer first: what comes later lies over what it holds.
    return tuple(sorted(binds, key=lambda bind: bind.target.count("/")))


def _covered(plan: Plan, *, of_session: bool) -> list[Path]:
    """Return over what a container has an empty folder: where all workspaces are made, and what its session needs.

    What lies in a folder that every container has for itself is gone with that, unless a grant brings it back.
    """
    roots = [root for root in plan.roots if not _is_in_memory(root) or mode_at(root, plan.grants) is not None]
    own = (*plan.inner, Path(PROGRAMS)) if of_session else ()
    inner = [path for path in own if mode_at(path, plan.grants) is None]
    covered: list[Path] = []
    for path in sorted({*roots, *inner}, key=lambda each: len(each.parts)):
        if not _is_in(path, covered):  # else it is gone with the outer one
            covered.append(path)
    return covered


def is_in_sight(path: str, binds: Iterable[Bind]) -> bool:
    """Return whether a single call sees what is at a path of the host."""
    return any(
        Path(path).is_relative_to(place) for place in (*SYSTEM, *LINKS, "/etc", *(bind.target for bind in binds))
    )


def _is_hidden(path: Path, covered: Iterable[Path]) -> bool:
    """Return whether a container has something of its own over what the session has there."""
    return _is_in_memory(path) or _is_in(path, covered)


def _is_in_memory(path: Path) -> bool:
    return _is_in(path, map(Path, (TMP, SHM)))


def _is_in(path: Path, folders: Iterable[Path]) -> bool:
    return any(map(path.is_relative_to, folders))


def _machine(options: _Options, plan: Plan) -> None:
    """Namespaces, programs, devices: what every container of heddle has."""
    options.add("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    options.add("--die-with-parent", "--hostname", "heddle", "--cap-drop", "ALL")
    for path in SYSTEM:
        options.add("--ro-bind-try", path, path)
    for path in LINKS:
        if os.path.islink(path):
            options.add("--symlink", os.readlink(path), path)
        else:
            options.add("--ro-bind-try", path, path)
    for path in (f"/etc/{name}" for name in PUBLIC_ETC) if plan.is_root else ("/etc",):
        options.add("--ro-bind-try", path, path)
    if plan.network == "host":
        _bind_resolver(options, plan)
    options.add("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")
    options.add("--dev", "/dev", "--size", str(plan.tmp_bytes), "--perms", "1777", "--tmpfs", SHM)
    options.add("--remount-ro", "/dev", "--perms", "1777", "--dir", TMP)


def _bind_resolver(options: _Options, plan: Plan) -> None:
    """Put the file that says who resolves names where its link leads: often a place that is not in sight."""
    real = os.path.realpath(RESOLVER)
    if not os.path.exists(real):
        return
    if plan.is_root or not real.startswith("/etc/"):
        options.bind("r", Path(real), real)
    if plan.is_root and real != RESOLVER:
        options.add("--symlink", real, RESOLVER)


def folders_of_python(python: str) -> tuple[Path, ...]:
    """Return where the interpreter and its library are, as far as the system's own folders do not hold them."""
    found = [Path(os.path.realpath(path)) for path in (Path(python).parent, Path(sys.base_prefix))]
    system = (*SYSTEM, *LINKS)
    return tuple(dict.fromkeys(path for path in found if not any(path.is_relative_to(name) for name in system)))


@attrs.define(eq=False)
class _Options:
    """A list of options on its way, and the handles that it speaks of."""

    first: int
    known: Mapping[Path, int]
    words: list[str] = attrs.field(factory=list[str])
    handles: list[int] = attrs.field(factory=list[int])
    # Folders that are there, or were bound with all that is in them.
    made: set[str] = attrs.field(factory=lambda: {*SYSTEM, *LINKS, "/etc", "/dev", "/proc", TMP})

    def add(self, *words: str) -> None:
        self.words += words

    def hold(self, fd: int) -> str:
        """Keep a descriptor, and return the number that it will have in the program."""
        self.handles.append(fd)
        return str(self.first + len(self.handles) - 1)

    def bind(self, mode: Literal["r", "w"], path: Path, target: str) -> None:
        known = self.known.get(path)
        fd = open_path(path) if known is None else os.dup(known)
        if not os.fstat(fd).st_nlink:  # it was removed meanwhile: what needs it says so, and nothing else has to fail
            os.close(fd)
            return
        number = self.hold(fd)
        # Made here and not by the way: then for nobody but root, as bubblewrap does for a handle.
        for folder in reversed(Path(target).parents[:-1]):
            if str(folder) not in self.made:
                self.made.add(str(folder))
                self.add("--perms", "0755", "--dir", str(folder))
        self.add("--ro-bind-fd" if mode == "r" else "--bind-fd", number, target)

    def command(self, bwrap: str, *, at: int) -> Started:
        """Return the command; what comes before ``--`` goes through a file."""
        end = self.words.index("--")
        options = os.memfd_create("heddle-options", os.MFD_CLOEXEC)
        try:
            with open(options, "wb", closefd=False) as file:
                file.write(b"".join(os.fsencode(word) + b"\0" for word in self.words[:end]))
            os.lseek(options, 0, os.SEEK_SET)
        except BaseException:
            os.close(options)
            raise
        return Started((bwrap, "--args", str(at), *self.words[end:]), [options, *self.handles])

    def close(self) -> None:
        for fd in self.handles:
            os.close(fd)
