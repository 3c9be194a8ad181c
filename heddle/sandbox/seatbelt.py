"""Seatbelt, macOS's own sandbox: the command line that confines one call. Pure text, nothing is started here.

Everything is denied that a rule does not name. Of two rules that match, the later one wins, so they stand in the order
of the grants; where one operation is a part of another (``file-write-unlink`` of ``file-write*``), the narrower one can
win whatever the order, so what takes back a right names it in the words that gave it. Paths reach a profile as
parameters alone, and no path can change its text.

macOS cannot be run by heddle's makers: see `NEVER_RUN`.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from heddle.errors import SandboxUnavailable
from heddle.sandbox.policy import Grant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from heddle.sandbox.policy import Network

__all__ = ["GUARANTEES", "NEVER_RUN", "SANDBOX_EXEC", "seatbelt_command", "seatbelt_profile"]

# The system's own and no other: one that a tool put on PATH would confine nothing.
SANDBOX_EXEC = "/usr/bin/sandbox-exec"

NEVER_RUN = (
    "The Seatbelt profile was never run by heddle's makers: it is made from what is known of macOS, and its text alone "
    "is tested. Try it with your tools, and with what they must not do, before you rely on it."
)

# No word is stronger than what was seen to hold. And there are no namespaces: a process can leave its group and outlive
# the call, and the names of semaphores are the whole machine's.
GUARANTEES: Mapping[str, str] = MappingProxyType(
    {"reads": "partial", "writes": "partial", "network": "partial", "processes": "partial"}
)

# Given and taken back together, in the same words: what may be read may be executed.
READING = "file-read* file-map-executable process-exec*"
WRITING = "file-write*"
# Moving something away, or putting something else where it is. Narrower than WRITING, and so stronger.
REPLACING = "file-write-create file-write-unlink"

# Programs and libraries. Not all of /System: /System/Volumes/Data has everybody's files under another name.
PROGRAMS = (
    *("/bin", "/sbin", "/usr", "/opt/homebrew", "/nix/store"),
    *("/System/Library", "/System/iOSSupport", "/System/Cryptexes", "/System/Volumes/Preboot/Cryptexes"),
    *("/Library/Apple", "/Library/Frameworks", "/Library/Java/JavaVirtualMachines"),
    "/Library/Developer/CommandLineTools",
)
# What the services of Homebrew keep belongs to its user: databases, logs.
KEPT_BY_SERVICES = ("/opt/homebrew/var", "/usr/local/var")
# No keys and no passwords. What does not exist is named as well where programs give up at "not permitted" and go on at
# "not found", as git does.
PUBLIC_ETC = (
    *("bashrc", "gitattributes", "gitconfig", "group", "hosts", "localtime", "manpaths", "passwd", "paths", "paths.d"),
    *("profile", "protocols", "services", "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf"),
    *("zprofile", "zshenv", "zshrc"),
)
# Libraries of older systems, time zones, which shell /bin/sh is and where the developer's tools are.
SYSTEM_DATA = tuple(f"/private/var/{name}" for name in ("db/dyld", "db/timezone", "db/xcode_select_link", "select"))
RESOLVER = ("/private/etc/resolv.conf", "/private/var/run/resolv.conf")
# Links at the root, to be followed, and the names that the system has for the folder they lead to.
LINKS = ("/etc", "/tmp", "/var")  # noqa: S108 - never opened
FIRMLINKS = ("/System/Volumes/Data", "/System/Volumes/Data/private")

# No terminal: whoever opens one can type into it.
READ_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr")
# Every process opens dtracehelper when it begins.
WRITE_DEVICES = ("/dev/null", "/dev/zero", "/dev/stdout", "/dev/stderr", "/dev/dtracehelper")

# A process could ask any service for what it may not do itself. These look up users and take what is logged; none opens
# files, starts programs or knows passwords.
SERVICES = (
    "com.apple.logd",
    "com.apple.system.logger",
    "com.apple.system.notification_center",
    "com.apple.system.opendirectoryd.libinfo",
    "com.apple.system.opendirectoryd.membership",
)
# These resolve names and judge certificates, and so talk to the network on a tool's behalf.
NETWORK_SERVICES = (
    "com.apple.SystemConfiguration.DNSConfiguration",
    "com.apple.SystemConfiguration.configd",
    "com.apple.dnssd.service",
    "com.apple.trustd.agent",
)
RESOLVER_SOCKET = "/private/var/run/mDNSResponder"

# About the machine. Nothing of kern.proc and kern.procargs, which tell arguments and environments of other processes.
SYSCTL_PREFIXES = ("hw.", "machdep.cpu.")
SYSCTL_NAMES = (
    *("kern.argmax", "kern.boottime", "kern.hostname", "kern.iossupportversion", "kern.maxfilesperproc"),
    *("kern.maxproc", "kern.ngroups", "kern.osproductversion", "kern.osrelease", "kern.ostype"),
    *("kern.osvariant_status", "kern.osversion", "kern.secure_kernel", "kern.usrstack64", "kern.version"),
    # Without the number of semaphores Python has no pools of processes.
    *("kern.sysv.semmni", "kern.sysv.semmns", "kern.sysv.semmsl"),
    *("sysctl.name2oid", "sysctl.proc_cputype", "sysctl.proc_native", "sysctl.proc_translated"),
    *("vm.loadavg", "vm.swapusage"),
)

# The first denial names what Seatbelt lets through although the default is to deny. A pair of sockets for a program's
# own threads needs AF_UNIX; to bind or to connect one is another right.
BEGINNING = """\
(version 1)
(deny default)
(deny appleevent-send file-map-executable iokit-get-properties lsopen nvram* process-info*)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow ipc-posix-sem)
(allow system-socket (socket-domain AF_UNIX))"""
# A second name for a file would be judged by where that name is. The two fcntls (80 compresses a file, 110 moves its
# blocks) write through a handle that was opened for reading. Services inside of bundles are no services of the system.
ENDING = """\
(deny file-clone file-link)
(deny system-fcntl (fcntl-command 80 110))
(deny mach-lookup (xpc-service-name-prefix ""))"""
# All of the network's addresses, and no socket that is a file: behind those are containers, agents and desktops.
HOST_NETWORK = f"""\
(allow system-socket)
(allow sysctl-read (sysctl-name-prefix "net.routetable."))
(allow network-outbound (remote ip "*:*"))
(allow network-bind network-inbound (local ip "*:*"))
(deny network-outbound (remote unix-socket))
(allow network-outbound (remote unix-socket (path-literal "{RESOLVER_SOCKET}")))"""


def seatbelt_command(
    grants: Sequence[Grant], network: Network, argv: Sequence[str], *, temporary: Path
) -> tuple[str, ...]:
    """Return the command that runs `argv` with nothing but what is granted.

    It becomes `argv` in the same process: the process id, the exit status and the streams are the tool's own.

    Args:
        grants: As `seatbelt_profile` takes them. An interpreter outside of the system's folders has to be among them.
        network: ``none`` is not even a socket that is a file.
        argv: The tool's command.
        temporary: A folder of the call's own, which it may write; the grants win over it. The caller puts it into
            ``TMPDIR``: nobody may use the ``/tmp`` that all share.

    Raises:
        SandboxUnavailable: A path is not what a profile can hold to; which one, and why, is said.
        ValueError: There is no command.
    """
    if not argv:
        raise ValueError("argv is empty: seatbelt_command needs the command that it is to confine")
    profile, parameters = seatbelt_profile((Grant(temporary, "rw"), *grants), network)
    defined = (word for name, path in parameters.items() for word in ("-D", f"{name}={path}"))
    return (SANDBOX_EXEC, "-p", profile, *defined, "--", *argv)


def seatbelt_profile(grants: Sequence[Grant], network: Network) -> tuple[str, dict[str, str]]:
    """Return the text of a profile, and the parameters that stand for the paths in it.

    Args:
        grants: In order; a later grant inside an earlier one wins. Seatbelt compares with what a path really is, so
            each must be written as it is on disk, upper and lower case too, with all links resolved:
            ``/private/var/…``, not ``/var/…``. What is granted cannot be removed or replaced by tools, and neither can
            the folders that lead to it.
        network: What tools may reach. Sockets that are files may be used in what is granted for writing, with ``host``.

    Raises:
        SandboxUnavailable: A path is not what a profile can hold to; which one, and why, is said.
    """
    for grant in grants:
        _check(grant.path)
    held = _not_overruled(grants)
    names = {grant.path: f"GRANT_{number}" for number, grant in enumerate(held)}
    leading = dict.fromkeys(folder for grant in held for folder in reversed(grant.path.parents[:-1]))
    names |= {folder: f"WAY_{number}" for number, folder in enumerate(way for way in leading if way not in names)}
    parts = [
        BEGINNING,
        *_services(network),
        *_system(network),
        *(rule for grant in held for rule in _files(grant.mode, f'(param "{names[grant.path]}")')),
        *_ways(names.values()),
        *_devices(),
        ENDING,
    ]
    if network == "host":
        parts += [HOST_NETWORK, *(_sockets(grant.mode, f'(param "{names[grant.path]}")') for grant in held)]
    return "\n".join(parts) + "\n", {name: str(path) for path, name in names.items()}


def _check(path: Path) -> None:
    """Refuse what would make a profile say something else than was meant."""
    text = str(path)
    if "\0" in text:
        raise SandboxUnavailable("seatbelt", f"the path {text!r} has a NUL in it, and would be cut off there")
    if path.anchor != "/" or ".." in path.parts:
        raise SandboxUnavailable("seatbelt", f"the path {text!r} is not absolute and resolved: pass its real path")
    if path != Path("/") and f"/{path.parts[1]}" in LINKS:
        raise SandboxUnavailable(
            "seatbelt", f"the path {text!r} goes by a link of macOS, so no rule would match it: pass '/private{text}'"
        )


def _not_overruled(grants: Sequence[Grant]) -> list[Grant]:
    """Leave out what a later grant covers as a whole: then none is named twice, and all that is named holds."""
    return [
        grant
        for number, grant in enumerate(grants, start=1)
        if not any(grant.path.is_relative_to(later.path) for later in grants[number:])
    ]


def _services(network: Network) -> tuple[str, str]:
    services = (*SERVICES, *NETWORK_SERVICES) if network == "host" else SERVICES
    told = [f'(sysctl-name-prefix "{prefix}")' for prefix in SYSCTL_PREFIXES]
    told += [f'(sysctl-name "{name}")' for name in SYSCTL_NAMES]
    return (
        _rule("allow", "sysctl-read", told),
        _rule("allow", "mach-lookup", [f'(global-name "{service}")' for service in services]),
    )


def _system(network: Network) -> list[str]:
    """Let programs read what all of them need to begin, and what is public."""
    data = (*SYSTEM_DATA, *(f"/private/etc/{name}" for name in PUBLIC_ETC), *(RESOLVER if network == "host" else ()))
    above = {str(folder) for path in (*PROGRAMS, *data, "/dev/null") for folder in Path(path).parents}
    seen = sorted(above | {*LINKS, *FIRMLINKS})
    return [
        _rule("allow", READING, _each("subpath", PROGRAMS)),
        _rule("deny", READING, _each("subpath", KEPT_BY_SERVICES)),
        _rule("allow", "file-read*", _each("subpath", data)),
        # The folder itself and not what is below: every program opens it before its first line runs.
        _rule("allow", "file-read*", _each("literal", ["/"])),
        _rule("allow", "file-read-metadata", _each("literal", seen)),
    ]


def _files(mode: Literal["ro", "rw"], path: str) -> tuple[str, str]:
    """Say all that there is to say of what a grant holds, so that the last one around a file decides alone."""
    return (
        _rule("allow", READING, [f"(subpath {path})"]),
        _rule("allow" if mode == "rw" else "deny", WRITING, [f"(subpath {path})"]),
    )


def _ways(names: Iterable[str]) -> Iterable[str]:
    """Let the folders that lead to a grant be seen, and keep them and the grant where they are.

    Seatbelt knows files by where they are. What is moved away with its folder would be out of reach of its rule, and
    something else could be put in its place for the next call.
    """
    places = [f'(literal (param "{name}"))' for name in names]
    if places:  # a rule without a condition would be for every file there is
        yield _rule("allow", "file-read-metadata", places)
        yield _rule("deny", REPLACING, places)


def _devices() -> tuple[str, str]:
    """Let programs use what keeps nothing. After the grants: whoever may read everything still needs ``/dev/null``."""
    own = '(subpath "/dev/fd")'
    return (
        _rule("allow", "file-read*", [*_each("literal", READ_DEVICES), own]),
        _rule("allow", "file-read* file-write-data file-ioctl", [*_each("literal", WRITE_DEVICES), own]),
    )


def _sockets(mode: Literal["ro", "rw"], path: str) -> str:
    action = "allow" if mode == "rw" else "deny"
    return (
        f"({action} network-outbound (remote unix-socket (subpath {path})))\n"
        f"({action} network-bind network-inbound (local unix-socket (subpath {path})))"
    )


def _each(condition: str, paths: Iterable[str]) -> list[str]:
    return [f'({condition} "{path}")' for path in paths]


def _rule(action: Literal["allow", "deny"], operations: str, conditions: Sequence[str]) -> str:
    """Return a rule that matches where any of its conditions does."""
    return "\n  ".join([f"({action} {operations}", *conditions]) + ")"
