"""Why bubblewrap does not work here, and what to do: from what it said, and from what can be known of the machine.

Looking at the machine is cheap and changes nothing: small files are read, and what cannot be read is not known. One
text has many causes, as "Operation not permitted" shows below, so it takes both to name the right one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Literal, TypeAlias

import attrs

__all__ = ["Container", "Facts", "Hint", "facts_of_this_machine", "hint_for"]

Container: TypeAlias = Literal["docker", "podman", "kubernetes", "lxc", "other"]

# Every program that installs bubblewrap on some system, and how; where there are two, the first is the system's own.
INSTALLERS: Mapping[str, str] = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "apk": "apk add bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
    "nix": "nix profile install nixpkgs#bubblewrap",
}
PROGRAM_FOLDERS = (
    *("usr/bin", "bin", "usr/sbin", "sbin", "usr/local/bin"),
    *("run/current-system/sw/bin", "nix/var/nix/profiles/default/bin"),
)
# Folders of /proc that are made to be mounted on, and empty otherwise: what lies there hides nothing.
# Source: proc_create_mount_point and register_sysctl_mount_point in the kernel.
MADE_FOR_MOUNTS = ("/proc/sys/fs/binfmt_misc", "/proc/fs/nfsd", "/proc/openprom", "/proc/xen")
# 1 MiB: a list of some ten thousand mounts.
READ_BYTES = 1 << 20
# The kernel that had every call which containers are made with.
NEEDED_KERNEL = (5, 12)

NAMES: Mapping[Container, str] = {
    "docker": "Docker container",
    "podman": "Podman container",
    "kubernetes": "Kubernetes pod",
    "lxc": "LXC container",
    "other": "container",
}
IN_CGROUP: Sequence[tuple[str, Container]] = (
    (r"kubepods|/cri-containerd-|/crio-", "kubernetes"),
    (r"/docker[/-][0-9a-f]{12}|/docker/buildkit/", "docker"),
    (r"/libpod-[0-9a-f]{12}", "podman"),
    (r"/lxc/|/lxc\.payload", "lxc"),
)
# What a container is called by the one who made it: in its environment, or in a file of systemd's.
CALLED: Mapping[str, Container] = {
    "docker": "docker",
    "podman": "podman",
    "lxc": "lxc",
    "lxc-libvirt": "lxc",
    "oci": "other",
    "systemd-nspawn": "other",
}


@attrs.frozen
class Hint:
    """Why something fails, and what to do about it.

    Attributes:
        reason: A clause, without a full stop.
        fix: One or two sentences.
    """

    reason: str
    fix: str


@attrs.frozen(kw_only=True)
class Facts:
    """What is known of the machine that has to do with sandboxes. None is what could not be found out.

    Attributes:
        container: What kind of container this process is in; None where there is no sign of one.
        kernel: The kernel's release.
        wsl: Which version of the Windows Subsystem for Linux this is.
        is_gvisor: The kernel is gVisor's.
        is_chroot: The root of this process is not the root of its mounts. False is a guess, True is not.
        is_github: This is a job of GitHub Actions.
        is_filtered: A seccomp filter is on this process.
        apparmor: The profile that this process runs under, such as ``docker-default (enforce)``.
        selinux: The label that this process has, such as ``system_u:system_r:container_t:s0``.
        selinux_enforces: What it denies is denied, not just logged.
        apparmor_restricts: Ubuntu's ``kernel.apparmor_restrict_unprivileged_userns``.
        userns_clone: Debian's ``kernel.unprivileged_userns_clone``.
        max_user_namespaces: ``user.max_user_namespaces``.
        covered: What of ``/proc`` is hidden by another mount.
        package_manager: The program that installs packages.
    """

    container: Container | None = None
    kernel: str | None = None
    wsl: Literal[1, 2] | None = None
    is_gvisor: bool = False
    is_chroot: bool | None = None
    is_github: bool = False
    is_filtered: bool | None = None
    apparmor: str | None = None
    selinux: str | None = None
    selinux_enforces: bool | None = None
    apparmor_restricts: bool | None = None
    userns_clone: bool | None = None
    max_user_namespaces: int | None = None
    covered: tuple[str, ...] | None = None
    package_manager: str | None = None

    @property
    def is_wsl2(self) -> bool:
        """Whether Windows is at hand: its programs can be started from here, which no namespace holds."""
        return self.wsl == 2  # noqa: PLR2004 - the name says it

    @property
    def described(self) -> str:
        """Where this is, in a few words."""
        words = [
            NAMES[self.container] if self.container else "",
            f"WSL{self.wsl}" if self.wsl else "",
            "gVisor" if self.is_gvisor else "",
            "GitHub Actions" if self.is_github else "",
            "chroot" if self.is_chroot else "",
        ]
        return ", ".join(filter(None, words)) or "no container"

    @property
    def is_under_apparmor(self) -> bool:
        """Whether a profile of AppArmor holds this process back."""
        return self.apparmor not in (None, "unconfined") and not (self.apparmor or "").endswith("(complain)")

    @property
    def is_under_selinux(self) -> bool:
        """Whether SELinux holds this process back; a container has a label, and often cannot see more."""
        return self.selinux_enforces is True or (self.selinux_enforces is None and self.selinux is not None)

    @property
    def has_old_kernel(self) -> bool:
        """Whether the kernel is too old to make containers ahead."""
        version = re.match(r"(\d+)\.(\d+)", self.kernel or "")
        return version is not None and (int(version[1]), int(version[2])) < NEEDED_KERNEL


def facts_of_this_machine(root: str | Path = "/", environment: Mapping[str, str] | None = None) -> Facts:
    """Return what can be known of this machine without trying anything. Never raises.

    Args:
        root: Where its files are.
        environment: This process's environment; by default, what it has now.
    """
    look = _Look(Path(root), os.environ if environment is None else environment)
    mounts = look.mounts()
    restricts, clone, most = (
        look.number(f"proc/sys/{name}")
        for name in (
            "kernel/apparmor_restrict_unprivileged_userns",
            "kernel/unprivileged_userns_clone",
            "user/max_user_namespaces",
        )
    )
    enforces = look.number("sys/fs/selinux/enforce")
    kernel = look.text("proc/sys/kernel/osrelease")
    return Facts(
        container=look.container(),
        kernel=kernel,
        wsl=_wsl(kernel or ""),
        is_gvisor="gvisor" in (look.text("proc/version") or "").lower() or look.is_old_gvisor(),
        is_chroot=look.is_chroot(mounts),
        is_github=look.environment.get("GITHUB_ACTIONS") == "true",
        is_filtered=look.is_filtered(),
        apparmor=look.apparmor(),
        selinux=look.selinux(),
        selinux_enforces=None if enforces is None else enforces == 1,
        apparmor_restricts=None if restricts is None else restricts > 0,
        userns_clone=None if clone is None else clone > 0,
        max_user_namespaces=most,
        covered=None if mounts is None else _covered(mounts),
        package_manager=look.package_manager(),
    )


def hint_for(said: str, facts: Facts, *, is_missing: bool = False) -> Hint:
    """Return why bubblewrap does not work, and what to do about that.

    Args:
        said: Everything that was said when it was tried: by bubblewrap, or by heddle's own program in it.
        facts: What is known of the machine.
        is_missing: There is no bubblewrap.
    """
    for rule in (*_ANYWAY, _MISSING) if is_missing else (*_ANYWAY, *_RULES):
        found = rule.said.search(said)
        if found and rule.where(facts):
            words = {**_words(facts), **found.groupdict()}
            return Hint(Template(rule.reason).substitute(words), Template(rule.fix).substitute(words))
    return Hint(_quoted(said), _TRY_BY_HAND)


def _quoted(said: str) -> str:
    """Return the last thing that was said, as a clause."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if not lines:
        return "bubblewrap fails and does not say why"
    by_bubblewrap = re.fullmatch(r"(?:\S*/)?bwrap: (.+)", lines[-1])
    if by_bubblewrap:
        return f"bubblewrap says: {by_bubblewrap[1].rstrip('.')}"
    bare = re.sub(r"^(?:\w+: )?\[Errno \d+\] ", "", lines[-1])
    return f"trying it came to: {bare.rstrip('.')}"


# What is looked at


@attrs.frozen
class _Look:
    """The files of one machine. What cannot be read is None."""

    root: Path
    environment: Mapping[str, str]

    def text(self, path: str) -> str | None:
        try:
            with open(self.root / path, "rb") as file:
                return file.read(READ_BYTES).decode("utf-8", "replace").strip(" \n\0")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        return int(text) if text and text.isascii() and text.isdecimal() else None

    def has(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def container(self) -> Container | None:
        # Kubernetes first: it is held differently, whatever runs its containers.
        if "KUBERNETES_SERVICE_HOST" in self.environment or self.has("var/run/secrets/kubernetes.io"):
            return "kubernetes"
        cgroup = self.text("proc/self/cgroup") or ""
        by_cgroup: Container | None = next((kind for pattern, kind in IN_CGROUP if re.search(pattern, cgroup)), None)
        if by_cgroup == "kubernetes":
            return "kubernetes"
        if self.has("run/.containerenv"):
            return "podman"
        if self.has(".dockerenv"):
            return "docker"
        called = self.environment.get("container") or self.text("run/systemd/container") or ""
        return CALLED.get(called) or by_cgroup

    def is_old_gvisor(self) -> bool:
        """Whether the kernel has the version that gVisor claimed before it gave its name."""
        return "#1 SMP Sun Jan 10 15:06:54 PST 2016" in (self.text("proc/version") or "")

    def is_filtered(self) -> bool | None:
        mode = re.search(r"^Seccomp:\s*(\d)", self.text("proc/self/status") or "", re.MULTILINE)
        return mode and mode[1] == "2"

    def label(self) -> str | None:
        return self.text("proc/self/attr/current") or None

    def apparmor(self) -> str | None:
        label = self.text("proc/self/attr/apparmor/current") or self.label()
        return None if label is None or _is_of_selinux(label) else label

    def selinux(self) -> str | None:
        label = self.label()
        return label if label is not None and _is_of_selinux(label) else None

    def mounts(self) -> tuple[str, ...] | None:
        """Return where something is mounted, as this process sees it."""
        text = self.text("proc/self/mountinfo")
        return tuple(_mount_points(text)) if text else None

    def is_chroot(self, mounts: tuple[str, ...] | None) -> bool | None:
        if mounts is None:
            return None
        # A process sees the mounts below its own root alone. The root of all is one; a folder of it mostly is not.
        if "/" not in mounts:
            return True
        try:
            # Elsewhere, such as in a container that sees the host's processes, pid 1 has another root for good reason.
            if os.readlink(self.root / "proc/self/ns/mnt") != os.readlink(self.root / "proc/1/ns/mnt"):
                return None
            return not os.path.samestat(os.stat(self.root), os.stat(self.root / "proc/1/root"))
        except OSError:
            return None

    def package_manager(self) -> str | None:
        return next((name for name in INSTALLERS if any(self.has(f"{at}/{name}") for at in PROGRAM_FOLDERS)), None)


def _wsl(kernel: str) -> Literal[1, 2] | None:
    if kernel.endswith("-Microsoft"):
        return 1
    return 2 if re.search("microsoft|WSL2", kernel) else None


def _is_of_selinux(label: str) -> bool:
    """Whether a label is ``user:role:type:level`` rather than the name of a profile."""
    return re.fullmatch(r"\w+:\w+:\w+(?::\S+)?", label) is not None


def _mount_points(mountinfo: str) -> Iterator[str]:
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 4:  # noqa: PLR2004 - proc_pid_mountinfo(5): the fifth
            yield re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])


def _covered(mounts: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({at for at in mounts if at.startswith("/proc/") and at not in MADE_FOR_MOUNTS}))


# How each kind of container is told to hold less back


@attrs.frozen(kw_only=True)
class _Manner:
    """What whoever starts a container has to write, in the order in which bubblewrap comes upon what is in its way."""

    order: str
    seccomp: str
    apparmor: str
    selinux: str
    proc: str


_DOCKER = _Manner(
    order="Start the container with ",
    seccomp="--security-opt seccomp=FILE",
    apparmor="--security-opt apparmor=unconfined",
    selinux="--security-opt label=type:spc_t",
    proc="--security-opt systempaths=unconfined",
)
_MANNERS: Mapping[Container, _Manner] = {
    "docker": _DOCKER,
    "podman": attrs.evolve(_DOCKER, proc="--security-opt unmask=ALL"),
    "kubernetes": _Manner(
        order="Give the pod ",
        seccomp="hostUsers: false (Kubernetes 1.33 or later) and a seccompProfile of type Localhost",
        apparmor="an appArmorProfile of type Unconfined",
        selinux="seLinuxOptions with type: spc_t",
        proc="procMount: Unmasked together with hostUsers: false (Kubernetes 1.33 or later)",
    ),
    "other": _Manner(
        order="Have the container started with ",
        seccomp="a seccomp profile of your own",
        apparmor="no AppArmor profile, or one that allows mounts",
        selinux="an SELinux type that may mount, such as spc_t",
        proc="nothing mounted over parts of /proc",
    ),
}


def _words(facts: Facts) -> dict[str, str]:
    """Return what the texts below leave open."""
    install = INSTALLERS.get(facts.package_manager or "")
    return {
        "install": f"Run `{install}` as root." if install else "Install the package bubblewrap of your system.",
        "kernel": facts.kernel or "unknown",
        "profile": facts.apparmor or "",
        "covered": ", ".join(facts.covered or ()),
        "on_the_host": ", on the host of this container," if facts.container else "",
        "called": NAMES[facts.container] if facts.container else "",
        **{f"loosen_{what}": _loosened(what, facts) for what in ("seccomp", "apparmor", "selinux", "proc")},
    }


def _loosened(what: str, facts: Facts) -> str:
    """Return how to get past one thing that a container denies, and past what will be in the way after that."""
    manner = _MANNERS.get(facts.container or "other", _MANNERS["other"])
    later = {
        "seccomp": False,
        "apparmor": facts.is_under_apparmor,
        "selinux": facts.is_under_selinux,
        "proc": bool(facts.covered),
    }
    after = list(later)[list(later).index(what) + 1 :]
    *most, last = (str(getattr(manner, name)) for name in (what, *filter(later.get, after)))
    return f"{manner.order}{', '.join(most)}{' and ' if most else ''}{last}"


# What bubblewrap says, and what it means


def _anywhere(_facts: Facts) -> bool:
    return True


def _in_container(facts: Facts) -> bool:
    return facts.container is not None


def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text, re.MULTILINE)


@attrs.frozen
class _Rule:
    """One cause: by what is said, and where.

    Attributes:
        said: Found in what bubblewrap says. Its named groups are words of the two texts.
        reason: As in `Hint`, with words to fill in.
        fix: As in `Hint`, with words to fill in.
        where: Whether it can be the cause on such a machine.
    """

    said: re.Pattern[str] = attrs.field(converter=_compiled)
    reason: str
    fix: str
    where: Callable[[Facts], bool] = _anywhere


_DENIED = "(?:Operation not permitted|Permission denied)"
# Upstream says "creating", distributions "create"; for root it ends before the errno is looked at.
_NO_NAMESPACE = rf"No permissions to creat\w+ (?:a )?new namespace|Creating new namespace failed: {_DENIED}"
_NO_MOUNT = r"(?:Failed to make / slave|Failed to mount tmpfs|pivot_root): Operation not permitted"
_MOUNT_REFUSED = r"(?:Failed to make / slave|Failed to mount tmpfs|Can't mount \w+ on \S+): Permission denied"
_NO_RIGHTS = rf"setting up [ug]id map: {_DENIED}|loopback: Failed RTM_NEW(?:ADDR|LINK): {_DENIED}"
_PROC_REFUSED = r"Can't mount proc on \S+: Operation not permitted"
_TOO_MANY = r"exceeded \(ENOSPC\)|unshare(?:\(\w+\))?: No space left on device"
# What heddle/sandbox/container.py says, inside of bubblewrap.
_INSIDE_REFUSED = (
    rf"\b(?:unshare|setns|mount|open_tree|move_mount|mount_setattr)(?:\(.*\))?: {_DENIED}"
    r"|^loopback device: Operation not permitted"
)
_INSIDE_MISSING = r"\b(?P<call>open_tree|move_mount|mount_setattr|open)\(.*\): Function not implemented"

_PROFILE = "abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"
_LOAD_PROFILE = f"write `{_PROFILE}` to /etc/apparmor.d/bwrap and run `apparmor_parser -r /etc/apparmor.d/bwrap`"
_RESTRICTION = "kernel.apparmor_restrict_unprivileged_userns"
_CALLS = "clone, unshare, setns, mount, umount2, pivot_root, open_tree, move_mount, mount_setattr and sethostname"
_PROFILE_OF_CALLS = (
    f"The profile has to allow {_CALLS}; --privileged is not needed, and backend='landlock' works without any of it."
)
_ALLOW_PLAIN_USERS = "`sysctl -w kernel.unprivileged_userns_clone=1`"
_ONE_PER_CALL = "Leave it if bubblewrap works for single calls: heddle then starts one for each, which is slower."
_TRY_BY_HAND = (
    "Run it by hand to see more: `bwrap --unshare-user --unshare-pid --unshare-net --ro-bind / / --proc /proc true`."
)

# These hold whatever is said, and whether bubblewrap is there or not.
_ANYWAY = (
    _Rule(
        "",
        "WSL1 has no namespaces",
        "Turn this distribution into one of WSL2: `wsl --set-version NAME 2`, from Windows.",
        lambda facts: facts.wsl == 1,
    ),
)
_MISSING = _Rule("", "bubblewrap is not installed, or not on PATH", "$install")

# The first that fits is the one: what is said by one cause alone, then what is known of the machine, then guesses.
_RULES = (
    _Rule(
        r"setuid use of bubblewrap|setuid mode",
        "bubblewrap is installed setuid, and refuses what it is asked for then",
        "Take the bit away with `chmod u-s /usr/bin/bwrap`, or install the build that is not setuid.",
    ),
    _Rule(
        r"Unexpected capabilities but not setuid",
        "bubblewrap starts with capabilities, and refuses to",
        "Start this program without ambient capabilities; if the file has some, take them away with "
        "`setcap -r /usr/bin/bwrap`.",
    ),
    _Rule(
        r"Unknown option (?P<option>--\S+)",
        "this bubblewrap is too old: it does not know $option",
        "Upgrade it to 0.10 or later. Of Debian's, 0.8.0-2+deb12u1 does as well.",
    ),
    _Rule(
        r"Function not implemented|max_user_namespaces: No such file|not disabled as requested",
        "gVisor lacks what this takes",
        _ONE_PER_CALL,
        lambda facts: facts.is_gvisor,
    ),
    _Rule(
        _INSIDE_MISSING,
        "the kernel is $kernel, and containers take $call, which came later",
        f"Use Linux 5.12 or later. {_ONE_PER_CALL}",
        lambda facts: facts.has_old_kernel,
    ),
    _Rule(
        _INSIDE_MISSING,
        "a filter of system calls hides $call",
        f"Allow open_tree, move_mount, mount_setattr and openat2 in the seccomp profile. {_ONE_PER_CALL}",
    ),
    _Rule(
        r"kernel does not support user namespaces",
        "the kernel has no user namespaces",
        "Use a kernel that was built with CONFIG_USER_NS.",
    ),
    _Rule(
        _TOO_MANY,
        "user namespaces are switched off: user.max_user_namespaces is 0",
        "Run `sysctl -w user.max_user_namespaces=10000` as root$on_the_host and put it into /etc/sysctl.d to keep it.",
        lambda facts: facts.max_user_namespaces == 0,
    ),
    _Rule(
        _TOO_MANY,
        "as many namespaces as are allowed exist already, or they are nested too deep",
        "Raise the limits in /proc/sys/user, or start this program outside of the sandbox that it runs in.",
    ),
    _Rule(
        _NO_NAMESPACE,
        "this process runs in a chroot, where the kernel makes no user namespaces",
        "Run it outside of the chroot, or in a container in place of it.",
        lambda facts: facts.is_chroot is True,
    ),
    _Rule(
        _NO_NAMESPACE,
        "plain users may make no namespaces: kernel.unprivileged_userns_clone is 0",
        f"Run {_ALLOW_PLAIN_USERS} as root$on_the_host and put it into /etc/sysctl.d to keep it.",
        lambda facts: facts.userns_clone is False,
    ),
    _Rule(
        f"{_NO_NAMESPACE}|{_NO_MOUNT}|{_MOUNT_REFUSED}|{_PROC_REFUSED}",
        "this LXC container is not set up to have containers in it",
        "Allow nesting in its configuration: `security.nesting=true` for LXD and Incus, the feature `nesting=1` for "
        "Proxmox.",
        lambda facts: facts.container == "lxc",
    ),
    _Rule(
        f"{_NO_NAMESPACE}|{_NO_MOUNT}",
        "this $called may make no namespaces: its seccomp profile denies it",
        f"$loosen_seccomp. {_PROFILE_OF_CALLS}",
        lambda facts: facts.container is not None and facts.is_filtered is not False,
    ),
    _Rule(
        f"{_NO_RIGHTS}|{_NO_NAMESPACE}",
        f"AppArmor leaves user namespaces without rights here, as Ubuntu does for GitHub's jobs ({_RESTRICTION} is 1)",
        f"Run `sudo sysctl -w {_RESTRICTION}=0` in a step before this one, or load a profile there: {_LOAD_PROFILE}.",
        lambda facts: facts.apparmor_restricts is True and facts.is_github,
    ),
    _Rule(
        f"{_NO_RIGHTS}|{_NO_NAMESPACE}",
        f"AppArmor leaves user namespaces without rights, as Ubuntu does since 23.10 ({_RESTRICTION} is 1)",
        f"As root$on_the_host give bubblewrap a profile: {_LOAD_PROFILE}. "
        f"`sysctl -w {_RESTRICTION}=0` is the wider way: it is for all programs.",
        lambda facts: facts.apparmor_restricts is True,
    ),
    _Rule(
        _MOUNT_REFUSED,
        "SELinux denies mounts to this $called",
        "$loosen_selinux.",
        lambda facts: _in_container(facts) and facts.is_under_selinux,
    ),
    _Rule(
        f"{_MOUNT_REFUSED}|Creating new namespace failed: Permission denied",
        "SELinux denies it to this process",
        "Look up what was denied with `ausearch -m avc -c bwrap`, and allow that in a policy module.",
        lambda facts: facts.is_under_selinux,
    ),
    _Rule(
        rf"{_MOUNT_REFUSED}|{_NO_RIGHTS}",
        'the AppArmor profile "$profile" of this $called denies it',
        "$loosen_apparmor.",
        lambda facts: _in_container(facts) and facts.is_under_apparmor,
    ),
    _Rule(
        rf"{_MOUNT_REFUSED}|{_NO_RIGHTS}|{_NO_NAMESPACE}",
        'the AppArmor profile "$profile", under which this process runs, denies it',
        "Allow userns, mount, umount and pivot_root in that profile, or start this program without it.",
        lambda facts: facts.is_under_apparmor,
    ),
    _Rule(
        r"Failed to mount tmpfs: Permission denied",
        "this $called may not mount, most likely by SELinux",
        "$loosen_selinux.",
        _in_container,
    ),
    _Rule(
        _MOUNT_REFUSED,
        "this $called may not mount, most likely by its AppArmor profile",
        "$loosen_apparmor.",
        _in_container,
    ),
    _Rule(
        _PROC_REFUSED,
        "parts of /proc are hidden from this $called, so the kernel lets nobody in it mount a whole one",
        "$loosen_proc.",
        _in_container,
    ),
    _Rule(
        _PROC_REFUSED,
        "something is mounted over parts of /proc, so the kernel lets nobody here mount a whole one",
        "Unmount what lies over them: $covered.",
        lambda facts: bool(facts.covered),
    ),
    _Rule(
        _PROC_REFUSED,
        "the /proc of this process is not a whole one, so the kernel lets it mount no other",
        "Start this program where /proc is mounted without restrictions.",
    ),
    _Rule(
        f"{_NO_NAMESPACE}|{_NO_MOUNT}",
        "a filter of system calls, put on by what started this process, denies namespaces",
        "Take it away there: in a systemd unit it is RestrictNamespaces= or SystemCallFilter=.",
        lambda facts: facts.is_filtered is True,
    ),
    _Rule(
        rf"{_NO_RIGHTS}|{_NO_MOUNT}",
        "something around this process, such as a sandbox with Landlock, denies what takes a namespace into use",
        "Start this program outside of other sandboxes.",
    ),
    _Rule(
        _NO_NAMESPACE,
        "this process may make no user namespaces",
        f"Allow them for plain users, on some systems with {_ALLOW_PLAIN_USERS}, and start this program outside of "
        "other sandboxes.",
    ),
    _Rule(
        _INSIDE_REFUSED,
        "AppArmor most likely takes all rights from what bubblewrap starts, by Ubuntu's profile bwrap-userns-restrict",
        f"{_ONE_PER_CALL} To have both, put a profile in place of that one: {_LOAD_PROFILE}.",
        lambda facts: facts.apparmor is not None or facts.apparmor_restricts is not None,
    ),
    _Rule(
        _INSIDE_REFUSED,
        "what bubblewrap starts may make no containers of its own",
        _ONE_PER_CALL,
    ),
)
