"""Tools that reach for what runs elsewhere: sockets of the host, the network, other calls, other calls' secrets.

And what a tool says that is not for the host's eyes as it stands: control characters, files with heddle's names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pty
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import heddle
from heddle.sandbox.landlock import SCOPES_SINCE
from heddle.sandbox.policy import Network
from heddle.sandbox.trials import probe
from tests.jail import APART, Jail, allowed, in_each_tier, is_denied, reported  # noqa: F401 - a fixture
from tests.support import until

NETWORKS: tuple[Network, ...] = ("none", "host")
# Of 45 families that the kernel knows, those that a tool may have: Unix, both of the internet, and the way to ask the
# kernel for addresses.
UNIX, INET, NETLINK, INET6 = 1, 2, 16, 10

CONNECT = """
    def connect(family, kind, address):
        with socket.socket(family, kind) as mine:
            mine.settimeout(1)
            mine.connect(address)
            return "connected"
    def send(family, address):
        with socket.socket(family, socket.SOCK_DGRAM) as mine:
            return mine.sendto(b"hello", address)
    """


# Sockets of the host


@pytest.fixture
def mailbox() -> Iterator[tuple[str, socket.socket]]:
    """An abstract socket of the host's that takes datagrams."""
    name = f"heddle-mailbox-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.setblocking(False)
        yield name, listener


@pytest.mark.parametrize("network", NETWORKS)
async def test_case_58_abstract_sockets_of_the_host_are_out_of_reach(
    jail: Jail, network: Network, mailbox: tuple[str, socket.socket]
) -> None:
    """They are part of the network, for the kernel, and of a desktop's session, for its user."""
    if network == "host" and probe().abi < SCOPES_SINCE:
        pytest.skip("case 58: with the host's network it takes Landlock 6 to hold them")
    name, listener = mailbox
    code = (
        CONNECT
        + """
    attempt("stream", connect, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + arguments["abstract"])
    attempt("datagram", send, socket.AF_UNIX, "\\0" + arguments["mailbox"])
    """
    )
    arguments = {"abstract": jail.host.abstract, "mailbox": name}

    report, result = await jail.attack(code, arguments, sandbox={"network": network})
    touched = jail.host.touched()
    with pytest.raises(BlockingIOError):
        listener.recv(100)
    unconfined, _ = await jail.control(code, arguments)

    assert set(report) == {"stream", "datagram"}, result
    assert allowed(report) == {}
    assert touched == []
    assert len(allowed(unconfined)) == 2
    assert jail.host.touched() == ["abstract"]
    assert listener.recv(100) == b"hello"


WELL_KNOWN = (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"),
    *("/run/crio/crio.sock", "/run/libvirt/libvirt-sock", "/run/dbus/system_bus_socket", "/run/systemd/private"),
    *("/run/systemd/notify", "/run/snapd.socket", "/tmp/.X11-unix/X0", "/dev/log", "/run/nscd/socket"),
    *(f"/run/user/{os.geteuid()}/{name}" for name in ("bus", "systemd/private", "gnupg/S.gpg-agent", "wayland-0")),
)
CONNECT_ALL = (
    CONNECT
    + """
    for path in arguments["paths"]:
        attempt(path, connect, socket.AF_UNIX, socket.SOCK_STREAM, path)
    """
)


@pytest.mark.parametrize("network", NETWORKS)
async def test_case_59_sockets_that_lie_in_folders_are_out_of_reach(jail: Jail, network: Network) -> None:
    """Whoever may talk to docker's is root. Known gap: with the host's network Landlock holds none of them."""
    ours = [str(path) for path in jail.host.sockets]
    # By the link that /var/run is as well.
    ours += [f"/var{path}" for path in ours if path.startswith("/run/") and os.path.islink("/var/run")]
    is_gap = jail.tier == "landlock" and network == "host"
    paths = ours if is_gap else [*ours, *WELL_KNOWN]

    report, result = await jail.attack(CONNECT_ALL, {"paths": paths}, sandbox={"network": network})
    touched = jail.host.touched()
    unconfined, _ = await jail.control(CONNECT_ALL, {"paths": ours})

    assert set(report) == set(paths), result
    if is_gap:
        assert set(allowed(report)) == set(ours)
        assert result.report.guarantees["network"] == "no"
    else:
        assert allowed(report) == {}
        assert touched == []
    assert set(allowed(unconfined)) == set(ours)
    assert len(jail.host.touched()) == len(jail.host.sockets)


@pytest.mark.parametrize("jail", APART, indirect=True)
async def test_case_59_a_socket_in_a_folder_that_is_granted_is_granted_with_it(jail: Jail) -> None:
    """Known gap, and the control: talking to it is no writing to the folder, so that ``read`` is enough."""
    path = str(jail.host.sockets[-1])

    report, result = await jail.attack(CONNECT_ALL, {"paths": [path]}, sandbox={"read": [jail.host.folder]})

    assert report == {path: "allowed:'connected'"}, result
    assert jail.host.touched() == [f"unix in {jail.host.folder.name}"]


AGENTS = {
    "DBUS_SESSION_BUS_ADDRESS": "unix:path={}",
    "DBUS_SYSTEM_BUS_ADDRESS": "unix:path={}",
    "SSH_AUTH_SOCK": "{}",
    "GPG_AGENT_INFO": "{}:1:1",
    "WAYLAND_DISPLAY": "{}",
    "DISPLAY": "unix{}:0",
    "XDG_RUNTIME_DIR": "/run/user/0",
    "XAUTHORITY": "{}",
    "DOCKER_HOST": "unix://{}",
    "NOTIFY_SOCKET": "{}",
}


async def test_case_60_agents_and_displays_are_neither_named_nor_reached(
    jail: Jail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second holds where the host has let the names through."""
    path = str(jail.host.sockets[-1])
    for name, value in AGENTS.items():
        monkeypatch.setenv(name, value.format(path))
    code = (
        CONNECT
        + """
    report["named"] = sorted(name for name, value in os.environ.items() if arguments["path"] in value)
    if "SSH_AUTH_SOCK" in os.environ:
        attempt("reached", connect, socket.AF_UNIX, socket.SOCK_STREAM, os.environ["SSH_AUTH_SOCK"])
    """
    )
    named = sorted(name for name, value in AGENTS.items() if "{}" in value)
    everything = heddle.Environment(allow=["*"])

    report, result = await jail.attack(code, {"path": path})
    let_through, _ = await jail.attack(code, {"path": path}, environment=everything)
    touched = jail.host.touched()
    unconfined, _ = await jail.control(code, {"path": path}, environment=everything)

    assert report == {"named": []}, result
    assert let_through["named"] == named
    assert is_denied(let_through["reached"])
    assert touched == []
    assert unconfined == {"named": named, "reached": "allowed:'connected'"}
    assert jail.host.touched() == [f"unix in {jail.host.folder.name}"]


async def test_beside_case_59_nobody_hears_what_happens_in_the_hosts_folders(jail: Jail) -> None:
    """A watch of a folder tells the names of what is made in it, which listing it would, and that is denied."""
    code = """
        watch = checked(libc.inotify_init())
        attempt("watch", lambda: checked(libc.inotify_add_watch(watch, os.fsencode(arguments["folder"]), 0xFFF)))
        attempt("list", os.listdir, arguments["folder"])
        """
    arguments = {"folder": str(jail.host.folder)}

    report, result = await jail.attack(code, arguments)
    unconfined, _ = await jail.control(code, arguments)

    assert set(report) == {"watch", "list"}, result
    assert allowed(report) == {}
    assert len(allowed(unconfined)) == 2


# The network


async def test_case_61_the_hosts_own_services_are_out_of_reach_without_a_network(jail: Jail) -> None:
    """What listens on the loopback device often trusts whoever comes. The control is the network itself."""
    code = (
        CONNECT
        + """
    for place in ("127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433"):
        attempt(place, connect, socket.AF_INET, socket.SOCK_STREAM, (place, arguments["port"]))
    def listen():
        with socket.create_server(("127.0.0.1", arguments["port"])):
            return "listening"
    attempt("listen", listen)
    """
    )
    arguments = {"port": jail.host.tcp}

    report, result = await jail.attack(code, arguments)
    touched = jail.host.touched()
    with_network, _ = await jail.attack(code, arguments, sandbox={"network": "host"})

    own = report.pop("listen", "")
    assert len(report) == 5, result
    assert allowed(report) == {}
    assert touched == []
    # A network of its own, in which the port is free.
    assert own == ("allowed:'listening'" if jail.is_apart else "denied:EAFNOSUPPORT")
    assert with_network.pop("listen") == "denied:EADDRINUSE"
    assert len(allowed(with_network)) == 5
    assert jail.host.touched() == ["tcp"]


async def test_case_62_nor_by_the_other_internet_protocol(jail: Jail) -> None:
    """By ::1, and by the other protocol's address in this one's clothes."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("case 62: this machine has no IPv6")
    code = (
        CONNECT
        + """
    attempt("loopback", connect, socket.AF_INET6, socket.SOCK_STREAM, ("::1", arguments["six"]))
    attempt("mapped", connect, socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:127.0.0.1", arguments["four"]))
    attempt("any", connect, socket.AF_INET6, socket.SOCK_STREAM, ("::", arguments["six"]))
    """
    )
    with listener:
        listener.setblocking(False)
        arguments = {"six": listener.getsockname()[1], "four": jail.host.tcp}

        report, result = await jail.attack(code, arguments)
        with pytest.raises(BlockingIOError):
            listener.accept()
        touched = jail.host.touched()
        with_network, _ = await jail.attack(code, arguments, sandbox={"network": "host"})
        listener.accept()[0].close()

    assert len(report) == 3, result
    assert allowed(report) == {}
    assert touched == []
    assert len(allowed(with_network)) == 3
    assert jail.host.touched() == ["tcp"]


async def test_case_63_no_datagram_leaves(jail: Jail) -> None:
    """A question about a name carries as much as its name. Nothing is sent in this test but to the host itself."""
    servers = [
        line.split()[1] for line in Path("/etc/resolv.conf").read_text().splitlines() if line.startswith("names")
    ]
    code = (
        CONNECT
        + """
    report["sent"] = attempt("send", send, socket.AF_INET, ("127.0.0.1", arguments["port"]))
    for server in arguments["servers"]:
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        attempt(server, connect, family, socket.SOCK_DGRAM, (server, 53))
    """
    )
    # A connection of datagrams is a look at the routes. 192.0.2.0/24 and 2001:db8::/32 are nobody's.
    far = ["192.0.2.1", "2001:db8::1", *(server for server in servers if not server.startswith("127."))]
    arguments = {"port": jail.host.udp, "servers": far}

    report, result = await jail.attack(code, arguments)
    touched = jail.host.touched()
    with_network, _ = await jail.attack(code, arguments, sandbox={"network": "host"})

    # In a network of its own it goes to a port that nobody has.
    assert report.pop("sent") is jail.is_apart, result
    report.pop("send")
    assert set(report) == set(far)
    assert allowed(report) == {}
    assert touched == []
    assert with_network["send"] == "allowed:5"
    assert jail.host.touched() == ["udp"]


RAW = """
    kinds = {
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
        "raw tcp": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
        "icmp": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw 6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW),
        "icmp 6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
        "packets": (socket.AF_PACKET, socket.SOCK_RAW, 0),
        "cooked packets": (socket.AF_PACKET, socket.SOCK_DGRAM, 0),
    }
    for name, kind in kinds.items():
        attempt(name, lambda: socket.socket(*kind).close())
    """


@pytest.mark.parametrize("network", NETWORKS)
async def test_case_64_no_packet_is_made_by_hand_or_listened_to(jail: Jail, network: Network) -> None:
    """Whoever may has the right to: the control shows it where the host has that itself."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW).close()
        most = 7
    except PermissionError:
        most = 0

    report, result = await jail.attack(RAW, sandbox={"network": network})
    unconfined, _ = await jail.control(RAW)

    assert len(report) == 7, result
    assert allowed(report) == {}
    assert bool(allowed(unconfined)) is bool(most)


EVERY_FAMILY = """
    made = set()
    for family in range(46):
        for kind in range(1, 7):
            for protocol in range(23) if family == 16 else range(3):
                try:
                    socket.socket(family, kind, protocol).close()
                    made.add((family, protocol if family == 16 else 0))
                except OSError as error:
                    report.setdefault("errors", {})[f"{family} {kind}"] = errno.errorcode.get(error.errno)
    # The kernel takes the lower half of what is a whole word to a filter.
    for family in (16, 17, 38, 40):
        attempt(f"{family} in half a word", call, "socket", family | 1 << 32, 3, 0)
    report["made"] = sorted(made)
    """


@pytest.mark.parametrize("network", NETWORKS)
async def test_case_65_sockets_are_of_the_families_that_tools_need(jail: Jail, network: Network) -> None:
    """Netlink's, virtual machines', the kernel's ciphers': all but four of forty-five."""
    expected = [[UNIX, 0], [INET, 0], [INET6, 0], [NETLINK, 0]]
    if network == "none":
        expected = [[UNIX, 0], [INET, 0], [INET6, 0]] if jail.is_apart else []

    report, result = await jail.attack(EVERY_FAMILY, sandbox={"network": network})
    unconfined, _ = await jail.control(EVERY_FAMILY)

    halves = {label: said for label, said in report.items() if label.endswith("half a word")}
    assert [family for family in report["made"] if family in expected] == report["made"], result
    assert [UNIX, 0] in report["made"] or not expected
    refused = {said for label, said in report["errors"].items() if int(label.split()[0]) not in (1, 2, 10, 16)}
    assert refused == {"EAFNOSUPPORT"}
    assert len(halves) == 4
    assert not any(said.startswith("allowed:") for label, said in halves.items() if not label.startswith("16 ")), halves
    # Netlink's with protocol 0 is one of the four.
    assert is_denied(halves["16 in half a word"]) or network == "host"
    assert [NETLINK, 15] in unconfined["made"]  # what the kernel says of devices


PAIRS = """
    for family in range(46):
        for kind in (1, 2, 3, 5):
            try:
                for end in socket.socketpair(family, kind):
                    end.close()
                report[f"{family} {kind}"] = "made"
            except OSError as error:
                report[f"{family} {kind}"] = errno.errorcode.get(error.errno)
    """


async def test_case_65_pairs_of_sockets_are_of_unix_alone(jail: Jail) -> None:
    """Asked for a pair the kernel makes two of the family first, loading what it needs for that, and then sees."""
    report, result = await jail.attack(PAIRS)
    unconfined, _ = await jail.control(PAIRS)

    made = {label for label, said in report.items() if said == "made"}
    assert made == {"1 1", "1 2", "1 3", "1 5"}, result
    others = {said for label, said in report.items() if not label.startswith("1 ")}
    assert others == {"EAFNOSUPPORT"}
    assert {said for label, said in unconfined.items() if not label.startswith("1 ")} > {"EAFNOSUPPORT"}


@pytest.mark.parametrize(
    "hosts",
    [
        ["example.com"],
        ["169.254.169.254", "10.0.0.0/8"],
        ("0x7f.1", "2130706433", "[::ffff:127.0.0.1]"),
        {"example.com."},
        frozenset({"user@example.com:22"}),
        [],
    ],
    ids=str,
)
def test_cases_66_and_67_a_list_of_hosts_is_refused_rather_than_half_held(hosts: Any) -> None:
    """No proxy is there that could hold it, so that nothing is run that seems to be held."""
    with pytest.raises(heddle.SandboxUnavailable) as refused:
        heddle.Sandbox(network=hosts)

    assert str(refused.value) == (
        "network: this version cannot hold tools to a list of host names; say network='none', or 'host' for all"
    )


@pytest.mark.parametrize("network", ["example.com", "NONE", "", None, True, {"allow": []}, 0], ids=repr)
def test_cases_66_and_67_another_word_for_the_network_is_no_network_that_is_known(network: Any) -> None:
    with pytest.raises(heddle.DefinitionError, match="takes 'host' or 'none', not"):
        heddle.Sandbox(network=network)


# Other calls

SERVE = """
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place.bind("meeting")
    place.listen()
    """
MEET = """
    def fetch():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
            mine.settimeout(5)
            mine.connect("meeting")
            _, fds, _, _ = socket.recv_fds(mine, 100, 10)
            return [os.read(fd, 100).decode() for fd in fds]
    attempt("fetch", fetch)
    """


async def test_case_68_what_a_call_listens_on_is_dead_with_the_call(jail: Jail) -> None:
    """A daemon that goes on behind it would hand descriptors to the next; the socket in the workspace stays."""
    jail.add("serve", textwrap.dedent(SERVE) + "\nleave_behind()\n")
    jail.add("meet", MEET)

    async with jail.runner(sandbox={"network": "none"}) as runner, runner.scope() as scope:
        served = await scope.call("serve")
        met = reported(await scope.call("meet"))
        strays = jail.strays()

    # Without a network Landlock leaves no sockets with names.
    assert served.ok is jail.is_apart
    assert met == {"fetch": "denied:ECONNREFUSED" if jail.is_apart else "denied:EAFNOSUPPORT"}
    assert strays == []


async def test_case_68_descriptors_go_from_call_to_call_in_one_scope_and_are_the_calls_own(jail: Jail) -> None:
    """Two that run at once may meet in what they share, and nowhere else: a third, of another scope, meets nobody."""
    jail.add(
        "serve",
        textwrap.dedent(SERVE)
        + textwrap.dedent(
            """
        with open("/tmp/mine" if arguments["apart"] else "mine", "w+") as mine:
            mine.write("passed on")
            mine.flush()
            mine.seek(0)
            place.settimeout(5)
            with place.accept()[0] as guest:
                socket.send_fds(guest, [b"here"], [mine.fileno()])
                guest.recv(1)
        report["open"] = sorted(map(int, os.listdir("/proc/self/fd"))) if arguments["apart"] else []
        """
        ),
    )
    jail.add("meet", MEET)
    results: dict[str, heddle.ToolResult] = {}

    # Where the network is the host's, Landlock leaves sockets with names.
    async with jail.runner(sandbox={"network": "host"}) as runner:
        async with runner.scope() as scope, runner.scope() as other, trio.open_nursery() as nursery:

            async def serve() -> None:
                results["serve"] = await scope.call("serve", {"apart": jail.is_apart})

            nursery.start_soon(serve)
            assert await until((scope.workspace.path / "meeting").exists, 5)
            results["other"] = await other.call("meet")
            results["meet"] = await scope.call("meet")

    assert reported(results["other"]) == {"fetch": "denied:ENOENT"}
    assert reported(results["meet"]) == {"fetch": "allowed:['passed on']"}
    # Its input and outputs, the socket, and the listing itself: nothing of the host's that it could pass on.
    assert len(reported(results["serve"])["open"]) <= 5


async def test_case_69_temporary_files_of_one_call_are_not_another_ones(jail: Jail) -> None:
    """Known gap: under Landlock calls of one scope share a folder for them; no other scope's."""
    jail.add(
        "leave",
        """
        places = [os.environ["TMPDIR"], os.environ["HOME"], "/tmp", "/dev/shm", "/var/tmp", "/run"]
        for place in places:
            attempt(place, write, f"{place}/{MARK}")
        report["places"] = sorted({place for place in places if os.path.exists(f"{place}/{MARK}")})
        """,
    )
    look = """
        report["seen"] = []
        for place in arguments["places"]:
            try:
                read(f"{place}/{MARK}")
                report["seen"].append(place)
            except OSError:
                pass
        """
    jail.add("look", look)

    async with jail.runner() as runner, runner.scope() as scope, runner.scope() as other:
        left = reported(await scope.call("leave"))["places"]
        same = reported(await scope.call("look", {"places": left}))
        another = reported(await other.call("look", {"places": left}))
        on_the_host = [place for place in ("/tmp", "/dev/shm", "/var/tmp", "/run") if Path(place, jail.mark).exists()]

    assert len(left) >= 2
    assert same == {"seen": [] if jail.is_apart else left}
    assert another == {"seen": []}
    assert on_the_host == []


async def test_case_70_a_call_neither_sees_nor_ends_one_that_runs_beside_it(jail: Jail) -> None:
    """By number, by all numbers, and by looking through /proc. Both run in one scope, and both as one user."""
    jail.add("victim", "time.sleep(1.2); report['lived'] = True")
    jail.add("marked", "os.execv('/bin/sh', ['sh', '-c', 'sleep 1.2; echo {}', MARK])")
    attack = """
        for pid in arguments["pids"]:
            attempt(f"see {pid}", read, f"/proc/{pid}/cmdline")
            attempt(f"ask {pid}", os.kill, pid, 0)
            attempt(f"end {pid}", os.kill, pid, signal.SIGKILL)
            attempt(f"stop {pid}", os.kill, pid, signal.SIGSTOP)
            attempt(f"slow {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
            # A signal that the kernel sends for somebody: that there is something to be read.
            mine, other = socket.socketpair()
            try:
                fcntl.fcntl(mine, fcntl.F_SETOWN, pid)
                fcntl.fcntl(mine, 10, signal.SIGKILL)  # F_SETSIG
                fcntl.fcntl(mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
                other.send(b"x")
            except OSError:
                pass
        try:
            numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        except PermissionError:
            numbers = []
        report["seen"] = [pid for pid in numbers if pid != os.getpid() and MARK in read(f"/proc/{pid}/cmdline")]
        """
    jail.add("attack", attack)
    jail.add("everybody", "os.kill(-1, signal.SIGKILL)")
    results: dict[str, heddle.ToolResult] = {}

    async with jail.runner() as runner, runner.scope() as scope, trio.open_nursery() as nursery:

        async def call(name: str) -> None:
            results[name] = await scope.call(name)

        await scope.call("attack", {"pids": []})
        for name in ("victim", "marked"):
            nursery.start_soon(call, name)
        assert await until(lambda: len(jail.strays()) >= 1, 5)
        pids = jail.strays()
        report = reported(await scope.call("attack", {"pids": pids}))
        await call("everybody")

    assert report.pop("seen") == []
    assert len(report) == 5 * len(pids) >= 5
    if jail.is_apart or probe().abi >= SCOPES_SINCE:
        assert allowed(report) == {}
    assert reported(results["victim"]) == {"lived": True}
    assert results["marked"] == heddle.Returned({})


# Secrets


class Readable:
    """What of the machine's processes can be read by whoever this is, and holds a text."""

    def __init__(self, text: str) -> None:
        self.environments: set[int] = set()
        self.arguments: set[int] = set()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                for what, found in (("environ", self.environments), ("cmdline", self.arguments)):
                    with contextlib.suppress(OSError):
                        if text.encode() in Path(f"/proc/{name}/{what}").read_bytes():
                            found.add(int(name))


async def test_secrets_are_in_the_environment_of_the_tool_and_of_nothing_else(jail: Jail) -> None:
    """Not in the arguments of what confines it, which everybody reads, nor in the environment of that.

    The tool of another runner, in whose environment the secret is not, finds it nowhere; a second call of the same
    scope, where it has processes of its own, finds it in none but its own.
    """
    secret = secrets.token_hex(16)
    jail.add("hold", "os.execv('/bin/sleep', ['sleep', MARK])")
    spy = """
        report["found"] = []
        try:
            numbers = os.listdir("/proc")
        except PermissionError:
            numbers = map(str, arguments["pids"])
        for name in numbers:
            for what in ("environ", "cmdline"):
                try:
                    if name.isdigit() and int(name) != os.getpid() and arguments["half"].encode() in read(
                        f"/proc/{name}/{what}", "rb"
                    ):
                        report["found"].append([name, what])
                except OSError:
                    pass
        """
    jail.add("spy", spy)
    holder = jail.runner(environment=heddle.Environment(values={"API_KEY": secret}))
    stranger = jail.runner()
    reports: dict[str, Any] = {}

    async with holder as runner, stranger as other, runner.scope() as scope:
        # The second call's container is made ahead while the first runs: it must hold nothing either.
        await scope.call("spy", {"half": secret[:16], "pids": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scope.call, "hold")
            assert await until(lambda: bool(_sleepers(jail)), 5)
            found = Readable(secret)
            tools = set(_sleepers(jail))
            others = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in found.environments - tools}
            arguments = {"half": secret[:16], "pids": [*found.environments]}
            reports["stranger"] = reported(await other.call("spy", arguments))
            reports["same scope"] = reported(await scope.call("spy", arguments))
            nursery.cancel_scope.cancel()

    assert found.arguments == set()
    assert tools <= found.environments
    assert reports == {"stranger": {"found": []}, "same scope": {"found": []}}
    assert others == {}


async def test_a_secret_is_found_where_it_is_not_kept_from_others(jail: Jail) -> None:
    """The control of the test above: a program that carries one in its environment, and one in its arguments."""
    secret = secrets.token_hex(16)

    with subprocess.Popen(["/bin/sleep", "20"], env={"API_KEY": secret}) as child:
        with subprocess.Popen(["/bin/sh", "-c", "sleep 20; :", secret]) as shown:
            assert await until(lambda: bool(Readable(secret).environments and Readable(secret).arguments), 5)
            found = Readable(secret)
            for process in (child, shown):
                process.send_signal(signal.SIGKILL)

    assert found.environments == {child.pid}
    assert found.arguments == {shown.pid}


def _sleepers(jail: Jail) -> list[int]:
    """Return the processes that have become the tool itself, which is ``sleep`` by then."""
    found = []
    for pid in jail.strays():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep":
                found.append(pid)
    return found


# What a tool says

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[1;1Hfake\rline\x9b31m\u202e"


async def test_case_92_a_tool_writes_no_control_characters_into_the_log(
    jail: Jail, caplog: pytest.LogCaptureFixture
) -> None:
    """By what it prints, by the names of what it leaves, and by its own name's file."""
    caplog.set_level(logging.DEBUG)
    code = f"""
        hostile = {HOSTILE!r}
        sys.stderr.reconfigure(errors="surrogateescape")
        print(hostile, file=sys.stderr)
        os.symlink("/etc/passwd", "data/" + hostile)
        os.mkfifo("data/pipe" + hostile)
        leave_behind()
        os._exit(3)
        """
    jail.add("attack", code)
    data = jail.tools / "data"
    data.mkdir()

    async with jail.runner() as runner:
        async with runner.scope(mounts=[f"{data}:data:rw"], report_changes=True) as scope:
            result = await scope.call("attack")

    said = [record.getMessage() for record in caplog.records]
    assert isinstance(result, heddle.Failed)
    assert result.report.stderr_tail == HOSTILE + "\n"
    assert len(scope.report.failed) == 2
    assert [text for text in said if not text.replace("\n", "").isprintable()] == []
    assert said


async def test_case_92_files_with_names_of_heddles_mean_nothing(jail: Jail) -> None:
    """The result is what the tool prints and how it ends, and no file."""
    code = """
        for name in ("HEDDLE_RESULT", "HEDDLE_OUTPUT", "result.json", ".heddle-result", "HEDDLE_EXIT_STATUS"):
            write(name, '{"faked": true}')
            os.environ[name] = '{"faked": true}'
        attempt("its own folder", write, ".heddle/bin/attack")
        print(json.dumps({"real": report["its own folder"][:6]}), flush=True)
        os._exit(int(arguments["status"]))
        """
    jail.add("attack", code)

    async with jail.runner() as runner, runner.scope() as scope:
        good = await scope.call("attack", {"status": 0})
        bad = await scope.call("attack", {"status": 4})
        again = await scope.call("attack", {"status": 0})

    assert good == again == heddle.Returned({"real": "denied"})
    assert isinstance(bad, heddle.Failed)
    assert (bad.kind, bad.details) == ("crashed", {"exit_status": 4})


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_case_92_a_tool_draws_nothing_on_the_terminal_of_whoever_calls_it(tmp_path: Path, stream: str) -> None:
    """A title, a cleared screen, a line that hides the one before: no terminal obeys what is escaped."""
    tool = tmp_path / "attack"
    ending = "print(hostile, file=sys.stderr); sys.exit(3)" if stream == "stderr" else ""
    lines = ["import json, sys", f"hostile = {HOSTILE!r}", "print(json.dumps({'said': hostile}))", ending]
    tool.write_text("\n".join(["#!/usr/bin/python3 -IS", *lines]))
    tool.chmod(0o755)
    near, far = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "heddle.cli", "call", str(tmp_path), "attack"],
            stdin=subprocess.DEVNULL,
            stdout=far,
            stderr=far,
            timeout=30,
            check=False,
        )
        os.set_blocking(near, False)
        seen = os.read(near, 65536).decode()
    finally:
        os.close(near)
        os.close(far)

    assert done.returncode == (1 if stream == "stderr" else 0)
    assert "title" in seen
    drawn = [character for character in seen.replace("\r\n", "\n") if not character.isprintable() and character != "\n"]
    assert drawn == []
