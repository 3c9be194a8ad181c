"""Why bubblewrap does not work: what is known of a machine, and the hint for each text that bubblewrap is known for."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from heddle.sandbox import container, hints
from heddle.sandbox.hints import Facts, Hint, facts_of_this_machine, hint_for

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# What bubblewrap is asked for here: what every container of ours takes.
CONTAINED = ("--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc")

NO_PERMISSIONS = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
    "namespaces. See <https://deb.li/bubblewrap> or <file:///usr/share/doc/bubblewrap/README.Debian.gz>."
)
NO_PERMISSIONS_UPSTREAM = (
    "bwrap: No permissions to creating new namespace, likely because the kernel does not allow non-privileged user "
    "namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
)
NOT_SUPPORTED = (
    "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.  "
    "bwrap must be installed setuid on such systems."
)
TOO_MANY = "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
FAILED = "bwrap: Creating new namespace failed: Operation not permitted"
UID_MAP = "bwrap: setting up uid map: Permission denied"
LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
SLAVE = "bwrap: Failed to make / slave: Permission denied"
TMPFS = "bwrap: Failed to mount tmpfs: Permission denied"
PROC = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
INSIDE = "PermissionError: [Errno 1] unshare(pid): Operation not permitted"

PROFILE = (
    "write `abi <abi/4.0>, profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }` to /etc/apparmor.d/bwrap and "
    "run `apparmor_parser -r /etc/apparmor.d/bwrap`"
)
RESTRICTION = "kernel.apparmor_restrict_unprivileged_userns"
PROFILE_OF_CALLS = (
    "The profile has to allow clone, unshare, setns, mount, umount2, pivot_root, open_tree, move_mount, mount_setattr "
    "and sethostname; --privileged is not needed, and backend='landlock' works without any of it."
)
ONE_PER_CALL = "Leave it if bubblewrap works for single calls: heddle then starts one for each, which is slower."
BY_HAND = (
    "Run it by hand to see more: `bwrap --unshare-user --unshare-pid --unshare-net --ro-bind / / --proc /proc true`."
)
UPGRADE = "Upgrade it to 0.10 or later. Of Debian's, 0.8.0-2+deb12u1 does as well."
NOT_SETUID = Hint(
    "bubblewrap is installed setuid, and refuses what it is asked for then",
    "Take the bit away with `chmod u-s /usr/bin/bwrap`, or install the build that is not setuid.",
)
NO_CAPABILITIES = Hint(
    "bubblewrap starts with capabilities, and refuses to",
    "Start this program without ambient capabilities; if the file has some, take them away with "
    "`setcap -r /usr/bin/bwrap`.",
)
IN_A_CHROOT = Hint(
    "this process runs in a chroot, where the kernel makes no user namespaces",
    "Run it outside of the chroot, or in a container in place of it.",
)
TOO_DEEP = Hint(
    "as many namespaces as are allowed exist already, or they are nested too deep",
    "Raise the limits in /proc/sys/user, or start this program outside of the sandbox that it runs in.",
)
FILTERED = Hint(
    "a filter of system calls, put on by what started this process, denies namespaces",
    "Take it away there: in a systemd unit it is RestrictNamespaces= or SystemCallFilter=.",
)
ENCLOSED = Hint(
    "something around this process, such as a sandbox with Landlock, denies what takes a namespace into use",
    "Start this program outside of other sandboxes.",
)
COVERED = "parts of /proc are hidden from this {}, so the kernel lets nobody in it mount a whole one"
NO_CONTAINERS_INSIDE = Hint("what bubblewrap starts may make no containers of its own", ONE_PER_CALL)

DOCKER = Facts(container="docker", is_filtered=True)
UBUNTU = Facts(apparmor="unconfined", apparmor_restricts=True, userns_clone=True)

# Row by row: what bubblewrap says, where, and what is said about it.
ROWS: dict[str, tuple[str, Facts, Hint]] = {
    "docker, a plain user": (
        NO_PERMISSIONS,
        DOCKER,
        Hint(
            "this Docker container may make no namespaces: its seccomp profile denies it",
            f"Start the container with --security-opt seccomp=FILE. {PROFILE_OF_CALLS}",
        ),
    ),
    "docker, root, and what will be in the way next": (
        FAILED,
        attrs.evolve(DOCKER, apparmor="docker-default (enforce)", covered=("/proc/kcore",)),
        Hint(
            "this Docker container may make no namespaces: its seccomp profile denies it",
            "Start the container with --security-opt seccomp=FILE, --security-opt apparmor=unconfined and "
            f"--security-opt systempaths=unconfined. {PROFILE_OF_CALLS}",
        ),
    ),
    "docker, namespaces allowed and mounts not": (
        "bwrap: Failed to make / slave: Operation not permitted",
        DOCKER,
        Hint(
            "this Docker container may make no namespaces: its seccomp profile denies it",
            f"Start the container with --security-opt seccomp=FILE. {PROFILE_OF_CALLS}",
        ),
    ),
    "kubernetes": (
        NO_PERMISSIONS_UPSTREAM,
        Facts(container="kubernetes", is_filtered=True),
        Hint(
            "this Kubernetes pod may make no namespaces: its seccomp profile denies it",
            "Give the pod hostUsers: false (Kubernetes 1.33 or later) and a seccompProfile of type Localhost. "
            f"{PROFILE_OF_CALLS}",
        ),
    ),
    "another container": (
        NO_PERMISSIONS,
        Facts(container="other"),
        Hint(
            "this container may make no namespaces: its seccomp profile denies it",
            f"Have the container started with a seccomp profile of your own. {PROFILE_OF_CALLS}",
        ),
    ),
    "lxc": (
        PROC,
        Facts(container="lxc", covered=("/proc/cpuinfo",)),
        Hint(
            "this LXC container is not set up to have containers in it",
            "Allow nesting in its configuration: `security.nesting=true` for LXD and Incus, the feature `nesting=1` "
            "for Proxmox.",
        ),
    ),
    "docker masks /proc": (
        PROC,
        attrs.evolve(DOCKER, covered=("/proc/kcore",)),
        Hint(COVERED.format("Docker container"), "Start the container with --security-opt systempaths=unconfined."),
    ),
    "podman masks /proc": (
        PROC,
        Facts(container="podman", is_filtered=True, covered=("/proc/kcore",)),
        Hint(COVERED.format("Podman container"), "Start the container with --security-opt unmask=ALL."),
    ),
    "kubernetes masks /proc": (
        PROC,
        Facts(container="kubernetes", is_filtered=True),
        Hint(
            COVERED.format("Kubernetes pod"),
            "Give the pod procMount: Unmasked together with hostUsers: false (Kubernetes 1.33 or later).",
        ),
    ),
    "something masks /proc": (
        PROC,
        Facts(covered=("/proc/kcore", "/proc/timer_list")),
        Hint(
            "something is mounted over parts of /proc, so the kernel lets nobody here mount a whole one",
            "Unmount what lies over them: /proc/kcore, /proc/timer_list.",
        ),
    ),
    "/proc is restricted otherwise": (
        PROC,
        Facts(covered=()),
        Hint(
            "the /proc of this process is not a whole one, so the kernel lets it mount no other",
            "Start this program where /proc is mounted without restrictions.",
        ),
    ),
    "docker's AppArmor profile": (
        SLAVE,
        attrs.evolve(DOCKER, apparmor="docker-default (enforce)", covered=("/proc/kcore",)),
        Hint(
            'the AppArmor profile "docker-default (enforce)" of this Docker container denies it',
            "Start the container with --security-opt apparmor=unconfined and --security-opt systempaths=unconfined.",
        ),
    ),
    "kubernetes' AppArmor profile": (
        SLAVE,
        Facts(container="kubernetes", apparmor="cri-containerd.apparmor.d (enforce)"),
        Hint(
            'the AppArmor profile "cri-containerd.apparmor.d (enforce)" of this Kubernetes pod denies it',
            "Give the pod an appArmorProfile of type Unconfined.",
        ),
    ),
    "a container's AppArmor profile that cannot be seen": (
        SLAVE,
        DOCKER,
        Hint(
            "this Docker container may not mount, most likely by its AppArmor profile",
            "Start the container with --security-opt apparmor=unconfined.",
        ),
    ),
    "an AppArmor profile of this program": (
        SLAVE,
        Facts(apparmor="snap.agent.agent (enforce)"),
        Hint(
            'the AppArmor profile "snap.agent.agent (enforce)", under which this process runs, denies it',
            "Allow userns, mount, umount and pivot_root in that profile, or start this program without it.",
        ),
    ),
    "ubuntu, the map of users": (
        UID_MAP,
        UBUNTU,
        Hint(
            f"AppArmor leaves user namespaces without rights, as Ubuntu does since 23.10 ({RESTRICTION} is 1)",
            f"As root give bubblewrap a profile: {PROFILE}. `sysctl -w {RESTRICTION}=0` is the wider way: it is for "
            "all programs.",
        ),
    ),
    "ubuntu, the loopback device, in a container": (
        LOOPBACK,
        attrs.evolve(UBUNTU, container="docker"),
        Hint(
            f"AppArmor leaves user namespaces without rights, as Ubuntu does since 23.10 ({RESTRICTION} is 1)",
            f"As root, on the host of this container, give bubblewrap a profile: {PROFILE}. "
            f"`sysctl -w {RESTRICTION}=0` is the wider way: it is for all programs.",
        ),
    ),
    "github": (
        LOOPBACK,
        attrs.evolve(UBUNTU, is_github=True),
        Hint(
            "AppArmor leaves user namespaces without rights here, as Ubuntu does for GitHub's jobs "
            f"({RESTRICTION} is 1)",
            f"Run `sudo sysctl -w {RESTRICTION}=0` in a step before this one, or load a profile there: {PROFILE}.",
        ),
    ),
    "debian": (
        NO_PERMISSIONS,
        Facts(userns_clone=False),
        Hint(
            "plain users may make no namespaces: kernel.unprivileged_userns_clone is 0",
            "Run `sysctl -w kernel.unprivileged_userns_clone=1` as root and put it into /etc/sysctl.d to keep it.",
        ),
    ),
    "no user namespaces for anybody": (
        TOO_MANY,
        Facts(max_user_namespaces=0),
        Hint(
            "user namespaces are switched off: user.max_user_namespaces is 0",
            "Run `sysctl -w user.max_user_namespaces=10000` as root and put it into /etc/sysctl.d to keep it.",
        ),
    ),
    "no more user namespaces": (TOO_MANY, Facts(max_user_namespaces=96364), TOO_DEEP),
    "no more user namespaces, inside": (
        "OSError: [Errno 28] unshare(user): No space left on device",
        Facts(max_user_namespaces=96364),
        TOO_DEEP,
    ),
    "setuid": ("bwrap: The --size option is not permitted in setuid mode", Facts(), NOT_SETUID),
    "setuid, since 0.12": ("bwrap: setuid use of bubblewrap is not supported", Facts(), NOT_SETUID),
    "capabilities": (
        "bwrap: Unexpected capabilities but not setuid, old file caps config?",
        Facts(),
        NO_CAPABILITIES,
    ),
    "old, without handles": (
        "bwrap: Unknown option --bind-fd",
        Facts(),
        Hint("this bubblewrap is too old: it does not know --bind-fd", UPGRADE),
    ),
    "old, without sizes": (
        "bwrap: Unknown option --size",
        Facts(),
        Hint("this bubblewrap is too old: it does not know --size", UPGRADE),
    ),
    "very old": (
        "bwrap: Unknown option --args",
        Facts(),
        Hint("this bubblewrap is too old: it does not know --args", UPGRADE),
    ),
    "SELinux, in a container that sees no more than its label": (
        TMPFS,
        Facts(container="podman", selinux="system_u:system_r:container_t:s0:c1,c2", covered=("/proc/kcore",)),
        Hint(
            "SELinux denies mounts to this Podman container",
            "Start the container with --security-opt label=type:spc_t and --security-opt unmask=ALL.",
        ),
    ),
    "SELinux, in a container that sees nothing": (
        TMPFS,
        Facts(container="podman"),
        Hint(
            "this Podman container may not mount, most likely by SELinux",
            "Start the container with --security-opt label=type:spc_t.",
        ),
    ),
    "SELinux, for a user": (
        "bwrap: Creating new namespace failed: Permission denied",
        Facts(selinux="user_u:user_r:user_t:s0", selinux_enforces=True),
        Hint(
            "SELinux denies it to this process",
            "Look up what was denied with `ausearch -m avc -c bwrap`, and allow that in a policy module.",
        ),
    ),
    "gVisor": (
        "OSError: [Errno 38] open_tree(/work): Function not implemented",
        Facts(container="docker", kernel="4.19.0-gvisor", is_gvisor=True),
        Hint("gVisor lacks what this takes", ONE_PER_CALL),
    ),
    "WSL1": (
        NOT_SUPPORTED,
        Facts(kernel="4.4.0-19041-Microsoft", wsl=1),
        Hint(
            "WSL1 has no namespaces",
            "Turn this distribution into one of WSL2: `wsl --set-version NAME 2`, from Windows.",
        ),
    ),
    "a kernel without user namespaces": (
        NOT_SUPPORTED,
        Facts(),
        Hint("the kernel has no user namespaces", "Use a kernel that was built with CONFIG_USER_NS."),
    ),
    "chroot": (NO_PERMISSIONS, Facts(is_chroot=True), IN_A_CHROOT),
    "a filter": (NO_PERMISSIONS, Facts(is_filtered=True), FILTERED),
    "another sandbox": (UID_MAP, Facts(apparmor_restricts=False), ENCLOSED),
    "nothing is known": (
        NO_PERMISSIONS,
        Facts(),
        Hint(
            "this process may make no user namespaces",
            "Allow them for plain users, on some systems with `sysctl -w kernel.unprivileged_userns_clone=1`, and "
            "start this program outside of other sandboxes.",
        ),
    ),
    "inside, the kernel is old": (
        "OSError: [Errno 38] mount_setattr(/work): Function not implemented",
        Facts(kernel="5.10.0-28-amd64"),
        Hint(
            "the kernel is 5.10.0-28-amd64, and containers take mount_setattr, which came later",
            f"Use Linux 5.12 or later. {ONE_PER_CALL}",
        ),
    ),
    "inside, the kernel is hidden": (
        "OSError: [Errno 38] open_tree(/work): Function not implemented",
        Facts(kernel="5.12.0", container="docker", is_filtered=True),
        Hint(
            "a filter of system calls hides open_tree",
            f"Allow open_tree, move_mount, mount_setattr and openat2 in the seccomp profile. {ONE_PER_CALL}",
        ),
    ),
    "inside, ubuntu's profile for bubblewrap": (
        INSIDE,
        UBUNTU,
        Hint(
            "AppArmor most likely takes all rights from what bubblewrap starts, by Ubuntu's profile "
            "bwrap-userns-restrict",
            f"{ONE_PER_CALL} To have both, put a profile in place of that one: {PROFILE}.",
        ),
    ),
    "inside, no namespaces": (INSIDE, Facts(), NO_CONTAINERS_INSIDE),
    "inside, no /proc": ("mount(proc on /proc): Operation not permitted", Facts(), NO_CONTAINERS_INSIDE),
    "inside, no loopback": ("loopback device: Operation not permitted", Facts(), NO_CONTAINERS_INSIDE),
}


@pytest.mark.parametrize(("said", "facts", "expected"), ROWS.values(), ids=ROWS)
def test_what_bubblewrap_says_is_explained(said: str, facts: Facts, expected: Hint) -> None:
    assert hint_for(said, facts) == expected


def test_every_rule_is_the_answer_to_something() -> None:
    """A rule that an earlier one hides would be of no use, and nobody would see it."""
    reasons = [hint.reason for _, _, hint in ROWS.values()]
    patterns = {
        rule.reason: re.sub(r"\\\$\w+", ".+", re.escape(rule.reason)) for rule in (*hints._ANYWAY, *hints._RULES)
    }

    unused = [
        reason for reason, pattern in patterns.items() if not any(re.fullmatch(pattern, found) for found in reasons)
    ]

    assert unused == []


@pytest.mark.parametrize("hint", [hint for _, _, hint in ROWS.values()], ids=ROWS)
def test_a_reason_is_a_clause_and_a_fix_is_sentences(hint: Hint) -> None:
    """They are put together: ``reason. Fix``."""
    assert not hint.reason.endswith((".", ":", " "))
    assert hint.fix.endswith(".")
    assert hint.fix[0].isupper()
    assert "$" not in hint.reason + hint.fix


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("bwrap: execvp /bin/sh: No such file or directory", "execvp /bin/sh: No such file or directory"),
        ("a warning\n/usr/bin/bwrap: Can't chdir to /x: Not a directory\n\n", "Can't chdir to /x: Not a directory"),
    ],
)
def test_what_is_not_known_is_quoted(said: str, reason: str) -> None:
    assert hint_for(said, Facts()) == Hint(f"bubblewrap says: {reason}", BY_HAND)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "bubblewrap fails and does not say why"),
        (" \n", "bubblewrap fails and does not say why"),
        ("it did not end within 10 s", "trying it came to: it did not end within 10 s"),
        ("Traceback\nOSError: [Errno 22] capset: Invalid argument", "trying it came to: capset: Invalid argument"),
    ],
)
def test_what_bubblewrap_did_not_say_is_not_put_into_its_mouth(said: str, reason: str) -> None:
    assert hint_for(said, Facts()) == Hint(reason, BY_HAND)


@pytest.mark.parametrize(
    ("manager", "fix"),
    [
        ("apt-get", "Run `apt-get install bubblewrap` as root."),
        ("dnf", "Run `dnf install bubblewrap` as root."),
        ("apk", "Run `apk add bubblewrap` as root."),
        ("pacman", "Run `pacman -S bubblewrap` as root."),
        ("zypper", "Run `zypper install bubblewrap` as root."),
        ("nix", "Run `nix profile install nixpkgs#bubblewrap` as root."),
        (None, "Install the package bubblewrap of your system."),
    ],
)
def test_where_bubblewrap_is_missing_the_command_that_installs_it_is_named(manager: str | None, fix: str) -> None:
    hint = hint_for("", Facts(package_manager=manager), is_missing=True)

    assert hint == Hint("bubblewrap is not installed, or not on PATH", fix)


def test_nobody_is_told_to_install_what_cannot_work() -> None:
    assert hint_for("", Facts(wsl=1), is_missing=True).reason == "WSL1 has no namespaces"


# What is known of a machine


def machine(root: Path, files: dict[str, str]) -> Path:
    """Make a machine of files; one that begins with an arrow is a link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
    return root


def test_of_a_machine_that_cannot_be_read_nothing_is_known(tmp_path: Path) -> None:
    assert facts_of_this_machine(tmp_path / "nowhere", {}) == Facts()


def test_what_is_not_as_expected_is_not_known(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/sys/user/max_user_namespaces": "many\n",
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "",
            "proc/self/status": "Name:\tpython3\n",
            "proc/self/mountinfo": "",
            "proc/sys/kernel/osrelease/inner": "a folder",
        },
    )

    assert facts_of_this_machine(root, {}) == Facts()


def test_a_docker_container_is_known_by_what_docker_does(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            ".dockerenv": "",
            "proc/self/cgroup": "0::/\n",
            "proc/self/status": "Name:\tpython3\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n",
            "proc/self/attr/current": "docker-default (enforce)\n",
            "proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "proc/version": "Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP\n",
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
            "proc/sys/kernel/unprivileged_userns_clone": "1\n",
            "proc/sys/user/max_user_namespaces": "127235\n",
            "proc/self/mountinfo": (
                "612 507 0:59 / / rw,relatime - overlay overlay rw\n"
                "613 612 0:62 / /proc rw,nosuid - proc proc rw\n"
                "614 613 0:62 /sys /proc/sys ro,nosuid - proc proc rw\n"
                "615 613 0:63 / /proc/sys/fs/binfmt_misc rw - binfmt_misc binfmt_misc rw\n"
                "616 613 0:64 /null /proc/timer\\040list rw,nosuid - tmpfs tmpfs rw\n"
                "617 612 0:65 / /process rw - tmpfs tmpfs rw\n"
            ),
            "proc/self/ns/mnt": "-> mnt:[4026531841]",
            "proc/1/ns/mnt": "-> mnt:[4026531841]",
            "proc/1/root": "-> ../..",
            "usr/bin/dnf": "",
            "usr/bin/apt-get": "",
        },
    )

    facts = facts_of_this_machine(str(root), {"PATH": "/bin"})

    assert facts == Facts(
        container="docker",
        kernel="6.8.0-45-generic",
        is_chroot=False,
        is_filtered=True,
        apparmor="docker-default (enforce)",
        apparmor_restricts=True,
        userns_clone=True,
        max_user_namespaces=127235,
        covered=("/proc/sys", "/proc/timer list"),
        package_manager="apt-get",
    )
    assert facts.described == "Docker container"


def test_a_container_under_selinux_is_known_by_its_label(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "run/.containerenv": "",
            "proc/self/attr/current": "system_u:system_r:container_t:s0:c185,c932\0",
            "proc/self/status": "Seccomp:\t0\n",
        },
    )

    facts = facts_of_this_machine(root, {"container": "oci"})

    label = "system_u:system_r:container_t:s0:c185,c932"
    assert facts == Facts(container="podman", is_filtered=False, selinux=label)
    assert (facts.is_under_selinux, facts.is_under_apparmor) == (True, False)


@pytest.mark.parametrize(
    ("files", "selinux", "apparmor"),
    [
        ({"proc/self/attr/current": "unconfined\n"}, False, False),
        ({"proc/self/attr/current": "snap.agent (complain)\n"}, False, False),
        ({"proc/self/attr/current": "snap.agent (enforce)\n"}, False, True),
        ({"proc/self/attr/current": "user_u:user_r:user_t\0", "sys/fs/selinux/enforce": "1"}, True, False),
        ({"proc/self/attr/current": "user_u:user_r:user_t\0", "sys/fs/selinux/enforce": "0"}, False, False),
        (
            {
                "proc/self/attr/current": "user_u:user_r:user_t\0",
                "proc/self/attr/apparmor/current": "snap.a (enforce)\n",
            },
            True,
            True,
        ),
    ],
)
def test_a_label_holds_back_where_it_is_enforced(
    tmp_path: Path, files: dict[str, str], selinux: bool, apparmor: bool
) -> None:
    facts = facts_of_this_machine(machine(tmp_path, files), {})

    assert (facts.is_under_selinux, facts.is_under_apparmor) == (selinux, apparmor)


@pytest.mark.parametrize(
    ("files", "environment", "expected", "described"),
    [
        ({}, {}, None, "no container"),
        ({"proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, None, "no container"),
        ({"proc/self/cgroup": f"0::/system.slice/docker-{'0f' * 32}.scope\n"}, {}, "docker", "Docker container"),
        ({"proc/self/cgroup": f"4:memory:/docker/{'0f' * 32}\n"}, {}, "docker", "Docker container"),
        ({"proc/self/cgroup": f"0::/machine.slice/libpod-{'0f' * 32}.scope\n"}, {}, "podman", "Podman container"),
        ({"run/.containerenv": "", ".dockerenv": ""}, {}, "podman", "Podman container"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes", "Kubernetes pod"),
        ({"var/run/secrets/kubernetes.io/token": ""}, {}, "kubernetes", "Kubernetes pod"),
        ({".dockerenv": "", "proc/self/cgroup": "0::/kubepods/besteffort/pod1\n"}, {}, "kubernetes", "Kubernetes pod"),
        ({"proc/self/cgroup": "0::/lxc.payload.box/init.scope\n"}, {}, "lxc", "LXC container"),
        ({"run/systemd/container": "lxc"}, {}, "lxc", "LXC container"),
        ({}, {"container": "systemd-nspawn"}, "other", "container"),
    ],
)
def test_each_kind_of_container_is_told_apart(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: str | None, described: str
) -> None:
    facts = facts_of_this_machine(machine(tmp_path, files), environment)

    assert (facts.container, facts.described) == (expected, described)


@pytest.mark.parametrize(
    ("release", "version", "is_wsl2", "described"),
    [
        ("4.4.0-19041-Microsoft", "Linux version 4.4.0-19041-Microsoft", False, "WSL1"),
        ("5.15.90.1-microsoft-standard-WSL2", "Linux version 5.15.90.1", True, "WSL2"),
        ("6.6.87-custom-WSL2", "Linux version 6.6.87", True, "WSL2"),
        ("4.19.0-gvisor", "Linux version 4.19.0-gvisor #1 SMP Sun Jan 10 15:06:54 PST 2016", False, "gVisor"),
        ("4.4.0", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", False, "gVisor"),
        ("6.1.0-25-amd64", "Linux version 6.1.0-25-amd64 (debian-kernel)", False, "no container"),
    ],
)
def test_a_kernel_that_is_not_linux_itself_is_known_by_its_name(
    tmp_path: Path, release: str, version: str, is_wsl2: bool, described: str
) -> None:
    root = machine(tmp_path, {"proc/sys/kernel/osrelease": f"{release}\n", "proc/version": f"{version}\n"})

    facts = facts_of_this_machine(root, {})

    assert (facts.kernel, facts.is_wsl2, facts.described) == (release, is_wsl2, described)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/mountinfo": "64 63 254:0 /usr /usr rw - ext4 /dev/vda rw\n"}, True),
        ({"proc/self/mountinfo": "64 63 254:0 / / rw - ext4 /dev/vda rw\n"}, None),
        (
            {
                "proc/self/mountinfo": "64 63 254:0 / / rw - ext4 /dev/vda rw\n",
                "proc/self/ns/mnt": "-> mnt:[1]",
                "proc/1/ns/mnt": "-> mnt:[1]",
                "proc/1/root": "-> ..",
            },
            True,
        ),
        (
            {
                "proc/self/mountinfo": "64 63 254:0 / / rw - ext4 /dev/vda rw\n",
                "proc/self/ns/mnt": "-> mnt:[1]",
                "proc/1/ns/mnt": "-> mnt:[2]",
                "proc/1/root": "-> ..",
            },
            None,
        ),
    ],
    ids=["no mount is its root", "a mount is", "another root than the first process", "other mounts than it"],
)
def test_a_chroot_is_known_by_its_root(tmp_path: Path, files: dict[str, str], expected: bool | None) -> None:
    assert facts_of_this_machine(machine(tmp_path, files), {}).is_chroot is expected


def test_a_place_may_be_several_things(tmp_path: Path) -> None:
    root = machine(tmp_path, {".dockerenv": "", "proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2"})

    facts = facts_of_this_machine(root, {"GITHUB_ACTIONS": "true"})

    assert facts.described == "Docker container, WSL2, GitHub Actions"


@pytest.mark.skipif(sys.platform != "linux", reason="these are files of Linux")
def test_of_this_machine_what_every_linux_says_is_known() -> None:
    facts = facts_of_this_machine()

    assert facts.kernel == os.uname().release
    assert facts.is_filtered is not None
    assert facts.covered is not None


# The real thing: bubblewrap where it cannot work


needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may set this up")


@functools.cache
def works_here() -> bool:
    """Whether bubblewrap works as long as nothing is in its way; else what is, is somebody else's."""
    return subprocess.run(["bwrap", *CONTAINED, "true"], capture_output=True, check=False).returncode == 0


def said_by(*command: str | Path) -> str:
    """Run a command that has to fail, and return what it says; skip where bubblewrap never works."""
    if not works_here():
        pytest.skip("bubblewrap does not work here at all")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    return done.stderr


def in_a_mount_namespace(script: str, *arguments: str | Path) -> str:
    """As `said_by`, with mounts of its own that are gone afterwards."""
    return said_by("unshare", "--mount", "sh", "-ec", script, "sh", *arguments)


def after_steps(steps: str, tmp_path: Path) -> str:
    """As `said_by`, for bubblewrap started by a program that takes steps first, which stay with it."""
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys\n{steps}\nos.execvp('bwrap', ['bwrap', *sys.argv[1:], 'true'])\n")
    return said_by(sys.executable, program, *CONTAINED)


@needs_bubblewrap
def test_a_real_bubblewrap_that_is_too_old_is_recognised() -> None:
    said = said_by("bwrap", "--of-tomorrow", "true")

    assert hint_for(said, Facts()) == Hint("this bubblewrap is too old: it does not know --of-tomorrow", UPGRADE)


@needs_bubblewrap
@needs_root
@pytest.mark.parametrize("user", [(), NOBODY], ids=["root", "nobody"])
def test_a_real_cover_on_proc_is_recognised(user: tuple[str, ...]) -> None:
    script = 'mount --bind /dev/null /proc/version; exec "$@"'
    seen = "import heddle.sandbox.hints as h; print(h.facts_of_this_machine(environment={}).covered)"

    said = in_a_mount_namespace(script, *user, "bwrap", *CONTAINED, "true")
    covered = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", seen],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "/proc/version" in covered.stdout
    assert hint_for(said, Facts(covered=("/proc/version",))).fix == "Unmount what lies over them: /proc/version."


@needs_bubblewrap
@needs_root
@pytest.mark.parametrize("user", [(), NOBODY], ids=["root", "nobody"])
def test_a_real_chroot_is_recognised(user: tuple[str, ...], tmp_path: Path) -> None:
    script = """
        mount -t tmpfs none /mnt
        for name in usr bin lib lib64 proc dev; do
            [ -d "/$name" ] || continue
            mkdir -p "/mnt/root/$name"
            mount --rbind "/$name" "/mnt/root/$name"
        done
        exec chroot /mnt/root "$@"
    """

    said = in_a_mount_namespace(script, *user, "bwrap", "--unshare-user", "--ro-bind", "/usr", "/usr", "true")
    mounts = in_a_mount_namespace(script, "sh", "-c", "cat /proc/self/mountinfo >&2; exit 1")

    assert facts_of_this_machine(machine(tmp_path, {"proc/self/mountinfo": mounts}), {}).is_chroot is True
    assert hint_for(said, Facts(is_chroot=True)) == IN_A_CHROOT


@needs_bubblewrap
def test_a_real_lack_of_namespaces_is_recognised() -> None:
    """A bubblewrap that allows no more of them stands for a machine that does not."""
    said = said_by("bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "bwrap", *CONTAINED, "true")

    assert hint_for(said, Facts(max_user_namespaces=96364)) == TOO_DEEP
    assert hint_for(said, Facts(max_user_namespaces=0)).reason.endswith("user.max_user_namespaces is 0")


@needs_bubblewrap
@needs_root
@pytest.mark.parametrize("option", [("--size", "4096", "--tmpfs", "/tmp"), ("--cap-add", "CAP_SYS_ADMIN")])
def test_a_real_setuid_bubblewrap_is_recognised(option: tuple[str, ...]) -> None:
    """It lies on a mount that nobody else sees, and that is gone with the command."""
    script = 'mount -t tmpfs none /mnt; cp "$1" /mnt/bwrap; chmod 4755 /mnt/bwrap; shift; exec "$@"'

    said = in_a_mount_namespace(
        script, shutil.which("bwrap") or "", *NOBODY, "/mnt/bwrap", "--ro-bind", "/", "/", *option, "true"
    )

    assert hint_for(said, Facts()) == NOT_SETUID


@needs_bubblewrap
@needs_root
def test_a_real_bubblewrap_with_capabilities_is_recognised() -> None:
    said = said_by(*NOBODY, "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin", "bwrap", *CONTAINED, "true")

    assert hint_for(said, Facts()) == NO_CAPABILITIES


@needs_bubblewrap
def test_a_real_filter_of_system_calls_is_recognised(tmp_path: Path) -> None:
    """Our own filter stands for Docker's: both answer a new user namespace with EPERM."""
    steps = """
import platform
from heddle.sandbox import container
from heddle.sandbox.seccomp import NETWORK_OF_THE_HOST, seccomp_program
from heddle.sandbox.hints import facts_of_this_machine
container.libc.prctl(container.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
container.filter_calls(seccomp_program(platform.machine(), NETWORK_OF_THE_HOST))
print("filtered:", facts_of_this_machine().is_filtered, file=sys.stderr, flush=True)
"""

    said = after_steps(steps, tmp_path)

    assert "filtered: True\n" in said
    assert hint_for(said, Facts(is_filtered=True)) == FILTERED
    assert hint_for(said, DOCKER) == ROWS["docker, a plain user"][2]


@needs_bubblewrap
def test_a_real_landlock_around_it_is_recognised(tmp_path: Path) -> None:
    steps = """
from pathlib import Path
from heddle.sandbox import container, landlock
from heddle.sandbox.policy import Grant
try:
    ruleset = landlock.new_ruleset(landlock.landlock_abi(), [Grant(Path("/"), "rw")])
except Exception as error:
    sys.exit(f"no Landlock: {error}")
container.libc.prctl(container.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
container.check(container.libc.syscall(container.RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
"""

    said = after_steps(steps, tmp_path)

    if said.startswith("no Landlock"):
        pytest.skip(said)
    assert hint_for(said, Facts(apparmor_restricts=False)) == ENCLOSED


@needs_bubblewrap
@pytest.mark.parametrize(
    "rights",
    [(), ("--cap-add", "CAP_SYS_ADMIN")],
    ids=["none", "to namespaces, and not to files' capabilities"],
)
def test_a_real_container_that_may_make_no_other_is_recognised(rights: tuple[str, ...]) -> None:
    """What Ubuntu's bwrap-userns-restrict does to all that bubblewrap starts, done by bubblewrap's own options."""
    program = container.__file__
    options = ("--unshare-user", "--unshare-pid", "--as-pid-1", "--cap-drop", "ALL", *rights, "--dev-bind", "/", "/")

    said = said_by("bwrap", *options, sys.executable, "-I", "-S", program, "1", "/bin/true")

    assert hint_for(said, Facts()) == NO_CONTAINERS_INSIDE
    assert hint_for(said, UBUNTU).fix.startswith(ONE_PER_CALL)
