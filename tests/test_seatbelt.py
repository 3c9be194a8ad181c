"""The profile for macOS: what it says, read as Seatbelt reads it. It is never run here."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heddle
from heddle.sandbox import choice, seatbelt, trials
from heddle.sandbox.policy import Grant, Network
from heddle.sandbox.seatbelt import GUARANTEES, NEVER_RUN, seatbelt_command, seatbelt_profile
from heddle.workspace.removal import remove_tree
from tests.support import Toolbox

Expression: TypeAlias = "str | list[Expression]"
Rule: TypeAlias = "tuple[str, list[str], list[list[Expression]]]"
# Whether the later rule wins in any case, or only among those that name the operation in the same words: what is told
# of Seatbelt differs, and a profile has to hold under both.
Reading: TypeAlias = Literal["the later", "the narrower, then the later"]
BOTH_READINGS: tuple[Reading, ...] = ("the later", "the narrower, then the later")

WORKSPACE = Path("/private/var/folders/x/heddle-1")
TOOLS = WORKSPACE / ".heddle/bin"
TEMPORARY = Path("/private/var/folders/x/heddle-tmp-1")
GRANTS = [Grant(WORKSPACE, "rw"), Grant(TOOLS, "ro")]

OPERATIONS = {
    *("default", "appleevent-send", "file-map-executable", "iokit-get-properties", "ipc-posix-sem", "lsopen"),
    *("mach-lookup", "nvram*", "process-exec*", "process-fork", "process-info*", "signal", "sysctl-read"),
    *("file-clone", "file-ioctl", "file-link", "file-read*", "file-read-metadata", "file-write*", "file-write-create"),
    *("file-write-data", "file-write-unlink", "system-fcntl", "system-socket"),
    *("network-bind", "network-inbound", "network-outbound"),
}
CONDITIONS = {
    *("fcntl-command", "global-name", "literal", "local", "remote", "socket-domain", "subpath", "sysctl-name"),
    *("sysctl-name-prefix", "target", "xpc-service-name-prefix"),
}
# What (deny default) does not deny, or may not.
LET_THROUGH = {"file-clone", "file-link", "file-map-executable", "iokit-get-properties", "process-info*"}


def expressions(text: str) -> list[Expression]:
    """Read s-expressions; parentheses that do not match are an error."""
    tokens = iter(re.findall(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+', text))
    assert re.sub(r'"(?:[^"\\]|\\.)*"|[()]|[^\s()"]+|\s+', "", text) == ""

    def read(*, is_inside: bool) -> list[Expression]:
        found: list[Expression] = []
        for token in tokens:
            if token == ")":
                assert is_inside, "a parenthesis is closed that was not opened"
                return found
            found.append(read(is_inside=True) if token == "(" else token)
        assert not is_inside, "a parenthesis is not closed"
        return found

    return read(is_inside=False)


def rules_of(profile: str) -> list[Rule]:
    """Return action, operations and conditions of each rule after the version."""
    rules: list[Rule] = []
    for expression in expressions(profile)[1:]:
        assert isinstance(expression, list)
        action, *rest = expression
        assert isinstance(action, str)
        operations = [part for part in rest if isinstance(part, str)]
        rules.append((action, operations, [part for part in rest if isinstance(part, list)]))
    return rules


def decision(
    profile: tuple[str, Mapping[str, str]], operation: str, path: str | Path, *, reading: Reading, via: str = ""
) -> str:
    """Do what Seatbelt does with a profile and one attempt.

    Args:
        profile: The text and its parameters.
        operation: What is attempted.
        path: On what.
        reading: Which rule wins.
        via: ``remote`` or ``local`` where the path is a socket's.
    """
    text, parameters = profile
    named = [operation, re.sub(r"-[a-z]+\*?$", "*", operation)]
    result = "allow" if operation in LET_THROUGH else "deny"
    found: dict[str, str] = {}
    for action, operations, conditions in rules_of(text):
        for name in named:
            if name in operations and (
                not conditions or any(_holds(c, parameters, str(path), via) for c in conditions)
            ):
                found[name] = action
                result = action
    if reading == "the later":
        return result
    return next((found[name] for name in named if name in found), result)


def _holds(condition: Sequence[Expression], parameters: Mapping[str, str], path: str, via: str) -> bool:
    match condition:
        case ["literal" | "path-literal" | "subpath" as how, value]:
            place = parameters[_text(value[1])] if isinstance(value, list) else _text(value)
            return path == place or (how == "subpath" and path.startswith(place.rstrip("/") + "/"))
        case ["remote" | "local" as side, "unix-socket", *rest]:
            return via == side and all(isinstance(part, list) and _holds(part, parameters, path, "") for part in rest)
    return False


def _text(expression: Expression) -> str:
    assert isinstance(expression, str)
    return expression.strip('"')


def both(profile: tuple[str, Mapping[str, str]], operation: str, path: str | Path, via: str = "") -> str:
    """Return what is decided, however Seatbelt chooses between rules."""
    decided = {decision(profile, operation, path, reading=reading, via=via) for reading in BOTH_READINGS}
    return decided.pop() if len(decided) == 1 else "it depends"


@pytest.mark.parametrize("network", ["host", "none"])
@pytest.mark.parametrize("grants", [[], GRANTS, [Grant(Path("/"), "ro")]], ids=["nothing", "a workspace", "all"])
def test_a_profile_is_well_formed_and_denies_first(grants: list[Grant], network: Network) -> None:
    profile, parameters = seatbelt_profile(grants, network)

    rules = rules_of(profile)

    assert profile.isascii()
    assert expressions(profile)[:2] == [["version", "1"], ["deny", "default"]]
    assert {action for action, _, _ in rules} == {"allow", "deny"}
    assert {operation for _, operations, _ in rules for operation in operations} <= OPERATIONS
    assert {condition[0] for _, _, conditions in rules for condition in conditions if condition} <= CONDITIONS
    assert set(re.findall(r'\(param "([^"]*)"\)', profile)) == set(parameters)


@pytest.mark.parametrize("network", ["host", "none"])
@pytest.mark.parametrize("grants", [[], GRANTS], ids=["nothing", "a workspace"])
def test_nothing_but_the_harmless_is_allowed_without_a_condition(grants: list[Grant], network: Network) -> None:
    """A list of paths that came out empty would be a rule for all files."""
    profile, _ = seatbelt_profile(grants, network)

    unconditional = {
        operation
        for action, operations, conditions in rules_of(profile)
        if action == "allow" and not conditions
        for operation in operations
    }

    assert unconditional - {"system-socket"} == {"process-fork", "ipc-posix-sem"}
    assert ("system-socket" in unconditional) == (network == "host")


def test_no_path_but_the_systems_is_in_the_text() -> None:
    profile, parameters = seatbelt_profile(GRANTS, "host")

    assert "heddle" not in profile
    assert parameters == {
        "GRANT_0": "/private/var/folders/x/heddle-1",
        "GRANT_1": "/private/var/folders/x/heddle-1/.heddle/bin",
        "WAY_0": "/private",
        "WAY_1": "/private/var",
        "WAY_2": "/private/var/folders",
        "WAY_3": "/private/var/folders/x",
        "WAY_4": "/private/var/folders/x/heddle-1/.heddle",
    }


@pytest.mark.parametrize(
    ("operation", "path", "expected"),
    [
        ("file-read-data", WORKSPACE / "a", "allow"),
        ("file-write-data", WORKSPACE / "a", "allow"),
        ("file-write-create", WORKSPACE / "a/b", "allow"),
        ("file-write-unlink", WORKSPACE / "a/b", "allow"),
        ("process-exec-interpreter", WORKSPACE / "a", "allow"),
        ("file-map-executable", WORKSPACE / "a.dylib", "allow"),
        ("file-read-data", TOOLS / "t", "allow"),
        ("process-exec-interpreter", TOOLS / "t", "allow"),
        ("file-write-data", TOOLS / "t", "deny"),
        ("file-write-create", TOOLS / "t", "deny"),
        ("file-write-unlink", TOOLS / "t", "deny"),
        ("file-write-mode", TOOLS, "deny"),
        ("file-read-data", f"{WORKSPACE}-2/a", "deny"),
        ("file-write-data", f"{WORKSPACE}-2/a", "deny"),
        ("file-map-executable", f"{WORKSPACE}-2/a.dylib", "deny"),
        ("file-read-data", "/Users/me/.ssh/id_rsa", "deny"),
        ("file-read-metadata", "/Users/me/.ssh", "deny"),
        ("process-exec-interpreter", "/Users/me/bin/x", "deny"),
        ("file-read-data", "/System/Volumes/Data/Users/me/.ssh/id_rsa", "deny"),
        ("file-read-data", "/opt/homebrew/var/postgresql/base", "deny"),
        ("file-read-data", "/private/etc/master.passwd", "deny"),
        ("file-read-data", "/private/etc/ssl/private/key.pem", "deny"),
        ("file-read-data", "/private/tmp/x", "deny"),
        ("file-write-create", "/private/tmp/x", "deny"),
        ("file-read-data", "/dev/tty", "deny"),
        ("file-read-data", "/usr/lib/dyld", "allow"),
        ("file-read-data", "/", "allow"),
        ("file-write-data", "/usr/lib/dyld", "deny"),
        ("file-write-data", "/dev/null", "allow"),
        ("file-link", WORKSPACE / "a", "deny"),
        ("file-clone", WORKSPACE / "a", "deny"),
    ],
)
def test_a_tool_may_do_what_is_granted_and_no_more(operation: str, path: str | Path, expected: str) -> None:
    profile = seatbelt_profile(GRANTS, "none")

    assert both(profile, operation, path) == expected


def test_a_writable_folder_inside_a_read_only_one_is_writable() -> None:
    profile = seatbelt_profile([Grant(Path("/Users/me/src"), "ro"), Grant(Path("/Users/me/src/out"), "rw")], "none")

    decided = {path: both(profile, "file-write-create", f"/Users/me/src/{path}") for path in ["a", "out/a", "out.txt"]}

    assert decided == {"a": "deny", "out/a": "allow", "out.txt": "deny"}


def test_a_grant_is_overruled_by_a_later_one_that_covers_it() -> None:
    inner, outer = Path("/Users/me/src/out"), Path("/Users/me/src")

    _, parameters = profile = seatbelt_profile([Grant(inner, "ro"), Grant(outer, "ro"), Grant(outer, "rw")], "none")

    assert list(parameters.values()) == ["/Users/me/src", "/Users", "/Users/me"]
    assert both(profile, "file-write-unlink", inner) == "allow"


@pytest.mark.parametrize("place", [WORKSPACE, WORKSPACE / ".heddle", TOOLS, WORKSPACE.parent])
def test_what_leads_to_a_grant_is_seen_but_cannot_be_moved_or_replaced(place: Path) -> None:
    """Seatbelt knows files by their paths: with its folder, a read-only one would move to where it may be written."""
    profile = seatbelt_profile(GRANTS, "none")

    decided = {
        operation: both(profile, operation, place)
        for operation in ["file-read-metadata", "file-write-unlink", "file-write-create"]
    }

    assert decided == {"file-read-metadata": "allow", "file-write-unlink": "deny", "file-write-create": "deny"}


def test_folders_on_the_way_to_a_grant_are_not_listed() -> None:
    profile = seatbelt_profile([Grant(Path("/Users/me/src"), "ro")], "none")

    assert [both(profile, "file-read-data", path) for path in ["/Users", "/Users/me"]] == ["deny", "deny"]


def test_whoever_may_read_everything_can_still_write_to_dev_null() -> None:
    profile = seatbelt_profile([Grant(Path("/"), "ro")], "none")

    assert both(profile, "file-write-data", "/dev/null") == "allow"
    assert both(profile, "file-write-data", "/Users/me/a") == "deny"


def test_without_a_network_no_rule_allows_any_of_it() -> None:
    profile, _ = seatbelt_profile(GRANTS, "none")

    allowed = {
        operation for action, operations, _ in rules_of(profile) if action == "allow" for operation in operations
    }

    assert not [operation for operation in allowed if operation.startswith("network")]
    assert "dnssd" not in profile
    assert "(allow system-socket (socket-domain AF_UNIX))" in profile


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/private/var/run/mDNSResponder", "allow"),
        ("/private/var/run/docker.sock", "deny"),
        ("/Users/me/.docker/run/docker.sock", "deny"),
        (WORKSPACE / "s", "allow"),
        (TOOLS / "s", "deny"),
    ],
)
def test_with_the_hosts_network_sockets_that_are_files_stay_out_of_reach(path: str | Path, expected: str) -> None:
    """Behind them are container daemons and agents with keys, and no rule for files holds for them."""
    profile = seatbelt_profile(GRANTS, "host")

    assert both(profile, "network-outbound", path, via="remote") == expected


def test_with_the_hosts_network_all_addresses_are_in_reach() -> None:
    profile, _ = seatbelt_profile(GRANTS, "host")

    assert ("allow", ["network-outbound"], [["remote", "ip", '"*:*"']]) in rules_of(profile)
    assert ("allow", ["network-bind", "network-inbound"], [["local", "ip", '"*:*"']]) in rules_of(profile)


def test_sockets_that_are_files_are_denied_before_the_exceptions() -> None:
    """Whatever an address is taken to be by the rules for the network."""
    profile, _ = seatbelt_profile([Grant(WORKSPACE, "rw")], "host")

    outbound = [
        (action, conditions)
        for action, operations, [*conditions] in rules_of(profile)
        if "network-outbound" in operations
    ]

    assert outbound == [
        ("allow", [["remote", "ip", '"*:*"']]),
        ("deny", [["remote", "unix-socket"]]),
        ("allow", [["remote", "unix-socket", ["path-literal", '"/private/var/run/mDNSResponder"']]]),
        ("allow", [["remote", "unix-socket", ["subpath", ["param", '"GRANT_0"']]]]),
    ]


@pytest.mark.parametrize("network", ["host", "none"])
def test_services_that_act_for_others_cannot_be_asked(network: Network) -> None:
    """Keychains, opening of files, preferences, starting of programs: each is another way out."""
    profile, _ = seatbelt_profile(GRANTS, network)

    services = set(re.findall(r'\(global-name "([^"]*)"\)', profile))

    assert len(services) == (9 if network == "host" else 5)
    assert not [name for name in services if re.search(r"(?i)secur|keychain|secd|launch|lsd|cfprefs|tcc|event", name)]


def test_arguments_and_environments_of_other_processes_are_not_told() -> None:
    told = (*seatbelt.SYSCTL_NAMES, *(prefix + "*" for prefix in seatbelt.SYSCTL_PREFIXES))

    assert "kern.sysv.semmni" in told
    assert not [name for name in told if name.startswith("kern.proc") or name in ("kern.*", "*")]


PLACES = [Path(path) for path in ("/w", "/w/a", "/w/a/b", "/w/a/b/c", "/w/d", "/x/y")]
FILES = [place / "file" for place in PLACES]


@given(grants=st.lists(st.builds(Grant, st.sampled_from(PLACES), st.sampled_from(["ro", "rw"])), max_size=6))
@settings(derandomize=True, deadline=None)
def test_the_last_grant_around_a_file_decides(grants: list[Grant]) -> None:
    def mode_of(file: Path) -> str | None:
        return next((grant.mode for grant in reversed(grants) if file.is_relative_to(grant.path)), None)

    profile = seatbelt_profile(grants, "none")

    decided = [(both(profile, "file-read-data", file), both(profile, "file-write-unlink", file)) for file in FILES]
    expected = {None: ("deny", "deny"), "ro": ("allow", "deny"), "rw": ("allow", "allow")}
    assert decided == [expected[mode_of(file)] for file in FILES]


def names() -> Iterator[str]:
    """Names that mean something in a profile or on a command line."""
    yield from ['")(allow default)("', "a\n(allow file-write*)", '(param "GRANT_0")', "\\", "a=b", "-D", ";", "#t", "*"]
    yield from ["\udcff\udcfe", "..a", " ", "é", "e\u0301"]


@given(name=st.text(st.characters(exclude_characters="/\0"), min_size=1) | st.sampled_from([*names()]))
@settings(derandomize=True, deadline=None)
def test_no_path_changes_the_text_of_a_profile(name: str) -> None:
    if name in (".", ".."):
        name = "..."

    plain, _ = seatbelt_profile([Grant(Path("/Users/me/plain"), "rw"), Grant(Path("/Users/me/plain/ro"), "ro")], "host")
    text, parameters = seatbelt_profile(
        [Grant(Path(f"/Users/me/{name}"), "rw"), Grant(Path(f"/Users/me/{name}/{name}"), "ro")], "host"
    )

    assert text == plain
    assert parameters == {
        "GRANT_0": f"/Users/me/{name}",
        "GRANT_1": f"/Users/me/{name}/{name}",
        "WAY_0": "/Users",
        "WAY_1": "/Users/me",
    }


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/Users/a\0b", "the path '/Users/a\\x00b' has a NUL in it, and would be cut off there"),
        ("relative", "the path 'relative' is not absolute and resolved: pass its real path"),
        ("/Users/../etc", "the path '/Users/../etc' is not absolute and resolved: pass its real path"),
        ("//Users/a", "the path '//Users/a' is not absolute and resolved: pass its real path"),
        (
            "/var/folders/x",
            "the path '/var/folders/x' goes by a link of macOS, so no rule would match it: "
            "pass '/private/var/folders/x'",
        ),
        ("/tmp", "the path '/tmp' goes by a link of macOS, so no rule would match it: pass '/private/tmp'"),
    ],
)
def test_a_path_that_a_profile_cannot_hold_to_is_refused(path: str, reason: str) -> None:
    for attempt in (
        lambda: seatbelt_profile([Grant(Path(path), "ro")], "none"),
        lambda: seatbelt_command([], "none", ["/bin/ls"], temporary=Path(path)),
    ):
        with pytest.raises(heddle.SandboxUnavailable) as caught:
            attempt()

        assert (caught.value.what, caught.value.reason) == ("seatbelt", reason)


def test_the_command_gives_paths_as_parameters_and_the_tools_words_untouched() -> None:
    grants = [Grant(Path("/Users/me/a=b"), "rw")]
    words = ["-p", "(version 1)(allow default)", "-D", "GRANT_0=/", "--"]

    command = seatbelt_command(grants, "none", words, temporary=Path("/Users/me/t"))

    text, parameters = seatbelt_profile([Grant(Path("/Users/me/t"), "rw"), *grants], "none")
    assert list(parameters.items()) == [
        *[("GRANT_0", "/Users/me/t"), ("GRANT_1", "/Users/me/a=b")],
        *[("WAY_0", "/Users"), ("WAY_1", "/Users/me")],
    ]
    assert command == (
        *("/usr/bin/sandbox-exec", "-p", text),
        *("-D", "GRANT_0=/Users/me/t", "-D", "GRANT_1=/Users/me/a=b", "-D", "WAY_0=/Users", "-D", "WAY_1=/Users/me"),
        *("--", "-p", "(version 1)(allow default)", "-D", "GRANT_0=/", "--"),
    )


def test_a_call_writes_its_own_folder_for_temporary_files_and_no_other() -> None:
    command = seatbelt_command(GRANTS, "none", ["/bin/ls"], temporary=TEMPORARY)

    text = command[2]
    profile = (text, dict(word.split("=", 1) for word in command[3:-2] if word != "-D"))

    decided = [both(profile, "file-write-create", folder / "x") for folder in (TEMPORARY, Path("/private/tmp"))]
    assert decided == ["allow", "deny"]


def test_a_folder_for_temporary_files_opens_nothing_that_is_read_only() -> None:
    """It may be the folder in which everything else is."""
    command = seatbelt_command(GRANTS, "none", ["/bin/ls"], temporary=WORKSPACE.parent)

    profile = (command[2], dict(word.split("=", 1) for word in command[3:-2] if word != "-D"))

    assert both(profile, "file-write-create", TOOLS / "x") == "deny"


def test_a_command_of_no_words_is_refused() -> None:
    with pytest.raises(ValueError, match="argv is empty"):
        seatbelt_command(GRANTS, "none", [], temporary=TEMPORARY)


def test_nothing_is_called_enforced_that_was_never_run() -> None:
    assert set(GUARANTEES.values()) == {"partial"}
    assert {"reads", "writes", "network", "processes"} <= set(GUARANTEES)
    assert "never run by heddle's makers" in NEVER_RUN


PROFILE = """\
(version 1)
(deny default)
(deny appleevent-send file-map-executable iokit-get-properties lsopen nvram* process-info*)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow ipc-posix-sem)
(allow system-socket (socket-domain AF_UNIX))
(allow sysctl-read
  (sysctl-name-prefix "hw.")
  (sysctl-name-prefix "machdep.cpu.")
  (sysctl-name "kern.argmax")
  (sysctl-name "kern.boottime")
  (sysctl-name "kern.hostname")
  (sysctl-name "kern.iossupportversion")
  (sysctl-name "kern.maxfilesperproc")
  (sysctl-name "kern.maxproc")
  (sysctl-name "kern.ngroups")
  (sysctl-name "kern.osproductversion")
  (sysctl-name "kern.osrelease")
  (sysctl-name "kern.ostype")
  (sysctl-name "kern.osvariant_status")
  (sysctl-name "kern.osversion")
  (sysctl-name "kern.secure_kernel")
  (sysctl-name "kern.usrstack64")
  (sysctl-name "kern.version")
  (sysctl-name "kern.sysv.semmni")
  (sysctl-name "kern.sysv.semmns")
  (sysctl-name "kern.sysv.semmsl")
  (sysctl-name "sysctl.name2oid")
  (sysctl-name "sysctl.proc_cputype")
  (sysctl-name "sysctl.proc_native")
  (sysctl-name "sysctl.proc_translated")
  (sysctl-name "vm.loadavg")
  (sysctl-name "vm.swapusage"))
(allow mach-lookup
  (global-name "com.apple.logd")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership")
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.dnssd.service")
  (global-name "com.apple.trustd.agent"))
(allow file-read* file-map-executable process-exec*
  (subpath "/bin")
  (subpath "/sbin")
  (subpath "/usr")
  (subpath "/opt/homebrew")
  (subpath "/nix/store")
  (subpath "/System/Library")
  (subpath "/System/iOSSupport")
  (subpath "/System/Cryptexes")
  (subpath "/System/Volumes/Preboot/Cryptexes")
  (subpath "/Library/Apple")
  (subpath "/Library/Frameworks")
  (subpath "/Library/Java/JavaVirtualMachines")
  (subpath "/Library/Developer/CommandLineTools"))
(deny file-read* file-map-executable process-exec*
  (subpath "/opt/homebrew/var")
  (subpath "/usr/local/var"))
(allow file-read*
  (subpath "/private/var/db/dyld")
  (subpath "/private/var/db/timezone")
  (subpath "/private/var/db/xcode_select_link")
  (subpath "/private/var/select")
  (subpath "/private/etc/bashrc")
  (subpath "/private/etc/gitattributes")
  (subpath "/private/etc/gitconfig")
  (subpath "/private/etc/group")
  (subpath "/private/etc/hosts")
  (subpath "/private/etc/localtime")
  (subpath "/private/etc/manpaths")
  (subpath "/private/etc/passwd")
  (subpath "/private/etc/paths")
  (subpath "/private/etc/paths.d")
  (subpath "/private/etc/profile")
  (subpath "/private/etc/protocols")
  (subpath "/private/etc/services")
  (subpath "/private/etc/shells")
  (subpath "/private/etc/ssl/cert.pem")
  (subpath "/private/etc/ssl/certs")
  (subpath "/private/etc/ssl/openssl.cnf")
  (subpath "/private/etc/zprofile")
  (subpath "/private/etc/zshenv")
  (subpath "/private/etc/zshrc")
  (subpath "/private/etc/resolv.conf")
  (subpath "/private/var/run/resolv.conf"))
(allow file-read*
  (literal "/"))
(allow file-read-metadata
  (literal "/")
  (literal "/Library")
  (literal "/Library/Developer")
  (literal "/Library/Java")
  (literal "/System")
  (literal "/System/Volumes")
  (literal "/System/Volumes/Data")
  (literal "/System/Volumes/Data/private")
  (literal "/System/Volumes/Preboot")
  (literal "/dev")
  (literal "/etc")
  (literal "/nix")
  (literal "/opt")
  (literal "/private")
  (literal "/private/etc")
  (literal "/private/etc/ssl")
  (literal "/private/var")
  (literal "/private/var/db")
  (literal "/private/var/run")
  (literal "/tmp")
  (literal "/var"))
(allow file-read* file-map-executable process-exec*
  (subpath (param "GRANT_0")))
(allow file-write*
  (subpath (param "GRANT_0")))
(allow file-read* file-map-executable process-exec*
  (subpath (param "GRANT_1")))
(deny file-write*
  (subpath (param "GRANT_1")))
(allow file-read-metadata
  (literal (param "GRANT_0"))
  (literal (param "GRANT_1"))
  (literal (param "WAY_0"))
  (literal (param "WAY_1"))
  (literal (param "WAY_2"))
  (literal (param "WAY_3"))
  (literal (param "WAY_4")))
(deny file-write-create file-write-unlink
  (literal (param "GRANT_0"))
  (literal (param "GRANT_1"))
  (literal (param "WAY_0"))
  (literal (param "WAY_1"))
  (literal (param "WAY_2"))
  (literal (param "WAY_3"))
  (literal (param "WAY_4")))
(allow file-read*
  (literal "/dev/null")
  (literal "/dev/random")
  (literal "/dev/urandom")
  (literal "/dev/zero")
  (literal "/dev/stdin")
  (literal "/dev/stdout")
  (literal "/dev/stderr")
  (subpath "/dev/fd"))
(allow file-read* file-write-data file-ioctl
  (literal "/dev/null")
  (literal "/dev/zero")
  (literal "/dev/stdout")
  (literal "/dev/stderr")
  (literal "/dev/dtracehelper")
  (subpath "/dev/fd"))
(deny file-clone file-link)
(deny system-fcntl (fcntl-command 80 110))
(deny mach-lookup (xpc-service-name-prefix ""))
(allow system-socket)
(allow sysctl-read (sysctl-name-prefix "net.routetable."))
(allow network-outbound (remote ip "*:*"))
(allow network-bind network-inbound (local ip "*:*"))
(deny network-outbound (remote unix-socket))
(allow network-outbound (remote unix-socket (path-literal "/private/var/run/mDNSResponder")))
(allow network-outbound (remote unix-socket (subpath (param "GRANT_0"))))
(allow network-bind network-inbound (local unix-socket (subpath (param "GRANT_0"))))
(deny network-outbound (remote unix-socket (subpath (param "GRANT_1"))))
(deny network-bind network-inbound (local unix-socket (subpath (param "GRANT_1"))))
"""


def test_a_whole_profile_reads_as_it_was_reviewed() -> None:
    """Nobody here can try it, so no word of it changes unseen."""
    profile, _ = seatbelt_profile(GRANTS, "host")

    assert profile == PROFILE


# The whole way of a call, with a program in the place of macOS's own


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sandbox-exec that notes what it was given, confines nothing, and becomes the command."""
    given = tmp_path / "given"
    program = tmp_path / "sandbox-exec"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {given}\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(seatbelt, "SANDBOX_EXEC", str(program))
    monkeypatch.setattr(trials, "try_seatbelt", lambda: trials.Trial(works=True, said=NEVER_RUN))
    monkeypatch.setattr(choice, "_said", set())
    return given


async def test_a_call_goes_through_sandbox_exec_and_says_that_it_was_never_tried(
    stand_in: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))  # by none of the links that macOS has
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    toolbox = Toolbox(place / "tools")
    toolbox.sh("tool", "echo $TMPDIR >&2; echo '{}'")
    sandbox = heddle.Sandbox(network="none", backend="seatbelt")

    async with heddle.Runner(toolbox.registry(), sandbox=sandbox) as runner:
        result = await runner.call("tool")
    remove_tree(place)

    words = stand_in.read_text()
    assert result == heddle.Returned({})
    assert result.report.tier == "seatbelt"
    assert result.report.guarantees == {**GUARANTEES, "tried_by_its_makers": "no"}
    assert NEVER_RUN in caplog.text
    assert "(deny default)" in words
    assert f"={toolbox.folder}" in words
    assert result.report.stderr_tail.strip() in words


async def test_what_needs_namespaces_is_refused_under_seatbelt(toolbox: Toolbox, stand_in: Path) -> None:
    sandbox = heddle.Sandbox(network="none", backend="seatbelt", require="namespaces")

    with pytest.raises(heddle.SandboxUnavailable, match="Seatbelt has no namespaces"):
        async with heddle.Runner(toolbox.registry(), sandbox=sandbox):
            pass

    assert not stand_in.exists()
