"""The command line, as it is typed: both streams, exit statuses, and real processes wherever those may differ.

An interpreter of its own takes a command longer than all that it does, so what is said of tools and results is read
from commands that run in this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.cli.calling import call
from heddle.cli.commands import Named, heddle
from heddle.workspace.mounts import MAX_BYTES, MAX_ENTRIES
from tests.support import Toolbox, wait_until

HEDDLE = [sys.executable, "-m", "heddle.cli"]


def heddle_cli(
    *arguments: str | Path, stdin: bytes = b"", environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*HEDDLE, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=os.environ | (environment or {}),
        cwd=cwd,
        timeout=30,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def typed(
    *arguments: str | Path, stdin: bytes = b"", environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Do the same in this process. What no command may let out, as an error that has no sentence, is raised here."""
    words = [*map(str, arguments)]
    with contextlib.chdir(cwd or Path.cwd()):
        done = CliRunner().invoke(
            heddle, words, input=stdin, env=environment, prog_name="heddle", catch_exceptions=False
        )
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


@pytest.fixture
def folder(toolbox: Toolbox) -> Path:
    toolbox.sh("echo.sh", "cat")
    toolbox.sh("fail", "echo why >&2; exit 3")
    toolbox.sh("wait", "echo $$ > {pid}; sleep {long}".replace("{pid}", str(toolbox.folder.parent / "pid")))
    (toolbox.folder / "echo.tool.json").write_text(
        json.dumps(
            {
                "title": "Echo",
                "description": "Say it again.\n\nAll of it.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string", "description": "What to say"},
                        "times": {"type": ["integer", "null"], "default": 1},
                        "mood": {"enum": ["loud", "soft"]},
                        "rest": True,
                    },
                    "required": ["text"],
                },
                "sideEffects": "read",
                "retry": "idempotent",
            }
        )
    )
    return toolbox.folder


def test_tools_are_listed_a_line_each(folder: Path) -> None:
    done = heddle_cli("tools", folder)

    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout == "echo\ttext, times?, mood?, rest?\tSay it again.\nfail\t(undeclared)\t\nwait\t(undeclared)\t\n"
    )


def test_tools_are_a_table_on_a_terminal(folder: Path) -> None:
    parent, child = pty.openpty()
    subprocess.run([*HEDDLE, "tools", str(folder)], stdout=child, stdin=child, timeout=30, check=True)
    os.close(child)
    text = os.read(parent, 10_000).decode()
    os.close(parent)

    assert "Tool" in text
    assert "Description" in text
    assert ["fail", "(undeclared)"] in [line.split() for line in text.splitlines()]


def test_tools_are_json_for_programs(folder: Path) -> None:
    done = typed("tools", folder, "--json")

    tools = json.loads(done.stdout)
    assert [tool["name"] for tool in tools] == ["echo", "fail", "wait"]
    assert tools[0]["inputSchema"]["required"] == ["text"]
    assert (tools[0]["sideEffects"], tools[0]["retry"], tools[0]["protocol"]) == ("read", "idempotent", "plain")


def test_what_was_left_out_is_said_beside_the_data(folder: Path, toolbox: Toolbox) -> None:
    toolbox.sh("echo.py", "cat")
    toolbox.add("forgotten", "#!/bin/sh\n", mode=0o644)

    done = typed("tools", folder, "--json")

    assert done.returncode == 0
    assert len(json.loads(done.stdout)) == 3
    assert "note: " in done.stderr
    assert "forgotten" in done.stderr


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    done = typed("tools", tmp_path)

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"no tools in {tmp_path}: put executables there (chmod +x)\n"


def test_a_tool_is_described_as_its_callers_see_it(folder: Path) -> None:
    done = typed("describe", folder, "echo")

    assert done.returncode == 0
    assert (
        done.stdout
        == f"""\
echo - Echo

Say it again.

All of it.

Arguments:
  text: string, required - What to say
  times: integer or null, optional, default 1
  mood: any value, optional, one of "loud", "soft"
  rest: any value

Program:      {folder}/echo.sh (plain protocol)
Side effects: read
Retry:        idempotent
"""
    )
    assert json.loads(typed("describe", folder, "echo", "--json").stdout)["title"] == "Echo"
    assert "(undeclared: any object)" in typed("describe", folder, "fail").stdout


def test_an_unknown_tool_is_a_failed_call(folder: Path) -> None:
    described = typed("describe", folder, "ecko")
    called = typed("call", folder, "ecko")

    assert (described.returncode, described.stderr) == (1, 'there is no tool "ecko". Did you mean echo?\n')
    assert (called.returncode, called.stderr) == (
        1,
        'failed (unknown_tool): there is no tool "ecko". Did you mean echo?\n',
    )


@pytest.mark.parametrize("way", ["text", "file", "stdin"])
def test_arguments_come_as_text_from_a_file_or_from_standard_input(folder: Path, tmp_path: Path, way: str) -> None:
    text = '{"text": "ünï"}'
    (tmp_path / "arguments.json").write_text(text)
    argument = {"text": text, "file": f"@{tmp_path}/arguments.json", "stdin": "-"}[way]

    done = heddle_cli("call", folder, "echo", argument, stdin=text.encode(), environment={"LC_ALL": "C"})

    assert (done.returncode, done.stdout, done.stderr) == (0, '{"text": "ünï", "times": 1}\n', "")


def test_no_arguments_are_the_empty_object(folder: Path, toolbox: Toolbox) -> None:
    toolbox.sh("any", "cat")

    assert typed("call", folder, "any").stdout == "{}\n"
    assert typed("call", folder, "any", "-").stdout == "{}\n"


def test_a_failed_call_exits_with_1_and_explains_itself(folder: Path) -> None:
    failed = heddle_cli("call", folder, "fail")
    invalid = typed("call", folder, "echo", '{"times": "x", "mood": 1}')
    not_an_object = typed("call", folder, "echo", "[1]")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == (
        'failed (crashed): tool "fail" exited with status 3.\nIts standard error ends with:\nwhy\n'
        "It is not declared safe to repeat: check what happened before you call it again.\n"
    )
    assert invalid.returncode == 1
    assert "(and 2 more)\n" in invalid.stderr
    assert {line.partition(":")[0] for line in invalid.stderr.splitlines()[1:]} == {"- text", "- times", "- mood"}
    assert (not_an_object.returncode, not_an_object.stderr) == (
        1,
        'failed (invalid_input): the arguments of tool "echo" must be an object, not an array.\n',
    )


def test_the_whole_result_is_json_on_request(folder: Path) -> None:
    good = json.loads(typed("call", folder, "echo", '{"text": "a"}', "--json").stdout)
    done = typed("call", folder, "fail", "--json")
    bad = json.loads(done.stdout)

    assert (good["ok"], good["data"]) == (True, {"text": "a", "times": 1})
    assert good["report"]["tier"] == "none"
    assert good["report"]["started_at"].endswith("+00:00")
    assert good["report"]["survivors"] == good["report"]["truncated"] == []
    assert done.returncode == 1
    assert {key: bad[key] for key in ("ok", "kind", "code", "details", "started", "retry")} == {
        "ok": False,
        "kind": "crashed",
        "code": None,
        "details": {"exit_status": 3},
        "started": True,
        "retry": "blocked",
    }
    assert bad["report"]["stderr_tail"] == "why\n"


USAGE = {
    "malformed JSON": (["call", "{folder}", "echo", "{"], "the arguments are not strict JSON"),
    "duplicate keys": (["call", "{folder}", "echo", '{"a":1,"a":2}'], 'duplicate key "a"'),
    "a missing file": (["call", "{folder}", "echo", "@/nosuch"], "/nosuch: No such file or directory"),
    "a missing folder": (["tools", "/nosuch"], "/nosuch"),
    "a file for a folder": (["tools", "/etc/passwd"], "/etc/passwd"),
    "a negative timeout": (["call", "{folder}", "echo", "{}", "--timeout", "-1"], "must be greater than 0"),
    "no name": (["call", "{folder}"], "Missing argument 'NAME'"),
    "an unknown option": (["tools", "{folder}", "--nosuch"], "No such option"),
}


@pytest.mark.parametrize(("arguments", "said"), USAGE.values(), ids=USAGE)
def test_what_the_user_can_mend_exits_with_2(folder: Path, arguments: list[str], said: str) -> None:
    done = typed(*(argument.replace("{folder}", str(folder)) for argument in arguments))

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_sidecar_exits_with_2_and_names_the_line(folder: Path) -> None:
    (folder / "echo.tool.json").write_text('{\n  "descripton": "typo"\n}')

    done = heddle_cli("tools", folder)

    assert done.returncode == 2
    assert "echo.tool.json, line 2" in done.stderr
    assert 'did you mean "description"?' in done.stderr


def test_a_timeout_can_be_tightened(folder: Path, toolbox: Toolbox) -> None:
    done = typed("call", folder, "wait", "--timeout", "0.3")

    assert done.returncode == 1
    assert done.stderr.startswith('failed (timed_out): tool "wait" did not finish within 0.3 s')
    assert toolbox.strays() == []


def test_variables_reach_tools_only_when_they_are_allowed(folder: Path, toolbox: Toolbox) -> None:
    toolbox.sh("key", 'echo "{\\"key\\": \\"$API_KEY\\"}"')
    environment = {"API_KEY": "secret"}

    hidden = heddle_cli("call", folder, "key", environment=environment)
    allowed = heddle_cli("call", folder, "key", "--allow-env", "API_KEY", "--allow-env", "B", environment=environment)

    assert hidden.stdout == '{"key": ""}\n'
    assert allowed.stdout == '{"key": "secret"}\n'


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_tool_and_is_told_to_the_shell(
    folder: Path, toolbox: Toolbox, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        [*HEDDLE, "call", str(folder), "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(toolbox.strays, 10)

    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=10)

    assert (process.returncode, stdout) == (status, "")
    assert stderr == f"stopped by {number.name}; the tool was ended\n"
    assert toolbox.strays() == []


def test_ctrl_c_at_a_terminal_reaches_the_tool_only_through_heddle(folder: Path, toolbox: Toolbox) -> None:
    """The tool leads a session of its own, so the terminal does not interrupt it beside heddle."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*HEDDLE, "call", str(folder), "wait"],
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(child)
    assert wait_until(toolbox.strays, 10)

    os.write(parent, b"\x03")
    process.wait(10)
    output = os.read(parent, 10_000).decode()
    os.close(parent)

    assert process.returncode == 130
    assert "stopped by SIGINT; the tool was ended" in output
    assert toolbox.strays() == []


def test_an_impatient_ctrl_c_changes_nothing(folder: Path, toolbox: Toolbox) -> None:
    toolbox.sh("deaf", "trap '' TERM; while :; do sleep {long}; done")
    process = subprocess.Popen(
        [*HEDDLE, "call", str(folder), "deaf"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(toolbox.strays, 10)

    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    stdout, stderr = process.communicate(timeout=10)

    assert (process.returncode, stdout, stderr) == (
        130,
        "",
        "stopping: the tool is ended, and what it changed is copied back\nstopped by SIGINT; the tool was ended\n",
    )
    assert toolbox.strays() == []


def test_notes_about_other_tools_stay_out_of_a_call(folder: Path, toolbox: Toolbox) -> None:
    toolbox.add("forgotten.sh", "#!/bin/sh\n", mode=0o644)

    called = typed("call", folder, "echo", '{"text": "a"}')
    missing = typed("call", folder, "forgotten")

    assert called.stderr == ""
    assert missing.stderr.startswith("note: ")
    assert "chmod +x" in missing.stderr


def test_version_and_help_are_there() -> None:
    assert heddle_cli("--version").stdout.startswith("heddle ")
    assert "Call the tool NAME of DIR" in heddle_cli("call", "-h").stdout


# What a call takes, and nothing else does.
HEAVY = ("trio", "sqlite3", "heddle.runner", "heddle.workspace", "heddle.operations", "rich")
IMPORTS = f"""
import atexit, sys
atexit.register(lambda: sys.stderr.write(repr([name for name in {HEAVY} if name in sys.modules])))
from heddle.cli import main
sys.argv[0] = "heddle"
main()
"""


@pytest.mark.parametrize(
    ("words", "typed_before"),
    [
        (["--help"], ""),
        (["tools", "{folder}"], ""),
        (["describe", "{folder}", "echo"], ""),
        (["validate", "{folder}"], ""),
        (["call", "--help"], ""),
        ([], "heddle c"),
        ([], "heddle call {folder} ec"),
    ],
    ids=["help", "tools", "describe", "validate", "help of call", "a command completed", "a tool completed"],
)
def test_help_and_the_tab_key_wait_for_nothing_that_only_a_call_takes(
    folder: Path, words: list[str], typed_before: str
) -> None:
    before = typed_before.replace("{folder}", str(folder))
    completing = {"_HEDDLE_COMPLETE": "bash_complete", "COMP_WORDS": before, "COMP_CWORD": str(before.count(" "))}

    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *(word.replace("{folder}", str(folder)) for word in words)],
        env=os.environ | (completing if before else {}),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert done.stdout
    assert done.stderr == "[]"


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    listed = {name: command.get_short_help_str() for name, command in heddle.commands.items()}
    themselves = {
        name: command.itself().get_short_help_str()
        for name, command in heddle.commands.items()
        if isinstance(command, Named)
    }

    assert listed == themselves


def test_mounts_may_hold_what_they_may_hold_elsewhere() -> None:
    defaults = {option.name: option.default for option in call.params}

    assert (defaults["mount_max_bytes"], defaults["mount_max_entries"]) == (MAX_BYTES, MAX_ENTRIES)


def test_without_its_extra_the_command_says_which_one_it_needs(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('No module named click', name='click')")

    done = heddle_cli("tools", tmp_path, environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})

    assert (done.returncode, done.stderr) == (
        2,
        "heddle: the command line needs an extra: pip install 'heddle[cli]'\n",
    )


def test_a_reader_that_goes_away_is_no_traceback(folder: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m heddle.cli tools {folder} | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert "Traceback" not in done.stderr


# Files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.csv").write_text("1\n")
    return folder


def test_files_are_mounted_and_brought_back(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "cat in/a.csv more.csv >&2; echo 2 > in/a.csv; echo x > out.txt; rm more.csv; echo '{}'")

    done = heddle_cli(
        *("call", toolbox.folder, "edit", "--changes"),
        *("--mount", f"{data}:in:rw", "--mount", f"{data}/a.csv:more.csv"),
    )

    assert (done.returncode, done.stdout) == (0, "{}\n")
    assert done.stderr == (
        "created: out.txt (2 bytes)\nmodified: in/a.csv (2 bytes)\ndeleted: more.csv (2 bytes)\ncopied back: in/a.csv\n"
    )
    assert (data / "a.csv").read_text() == "2\n"


def test_a_workspace_is_kept_and_said_where(toolbox: Toolbox, data: Path, tmp_path: Path) -> None:
    toolbox.sh("write", "echo x > 'out\n\033[1m.txt'; ln -s / l; echo '{}'")
    options: list[str | Path] = ["--mount", str(data), "--workspace", str(tmp_path / "out")]

    first = typed("call", toolbox.folder, "write", *options)
    second = typed("call", toolbox.folder, "write", *options, "--changes")
    third = typed("call", toolbox.folder, "write", *options, "--json")

    kept = tmp_path.resolve() / "out"
    assert first.stderr == f"the workspace is kept: {kept}/write\n"
    assert second.stderr == (
        f"created: out\\n\\x1b[1m.txt (2 bytes)\nno file: l\nthe workspace is kept: {kept}/write-2\n"
    )
    assert json.loads(third.stdout)["files"] == {
        "copied_back": [],
        "overwritten": [],
        "failed": [],
        "changes": None,
        "kept": f"{kept}/write-3",
    }
    assert (kept / "write" / "data" / "a.csv").read_text() == "1\n"


def test_what_is_not_copied_back_is_said(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("edit", "rm data/a.csv; mkdir data/a.csv; echo 2 > data/a.csv/b; echo '{}'")

    done = typed("call", toolbox.folder, "edit", "--mount", f"{data}:data:rw", "--json")

    files = json.loads(done.stdout)["files"]
    assert done.returncode == 0
    assert files["failed"] == [{"path": "data/a.csv/b", "reason": "there is a file where it needs the folder 'a.csv'"}]
    assert "copying back: data/a.csv/b: there is a file" in done.stderr
    assert (data / "a.csv").read_text() == "1\n"


def test_every_fault_of_every_mount_is_named(folder: Path, data: Path) -> None:
    (data / "link").symlink_to("/etc/passwd")

    done = typed(
        *("call", folder, "echo", '{"text": "x"}', "--mount", "nosuch", "--mount", f"{data}"),
        *("--mount", f"{data}/a.csv:../x", "--mount", "a:b:c:d"),
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "heddle: 4 faults in mounts:\n"
        "  --mount nosuch: there is no such file or folder\n"
        f"  --mount {data}: it holds what cannot be copied: 'link' is a link. Only files and folders that can be read "
        "are mounted; take the others away, or mount another folder\n"
        f"  --mount {data}/a.csv:../x: the dest '../x' leaves the workspace: it may not climb\n"
        "  --mount a:b:c:d: 'a:b:c:d' has 4 parts, where a mount is source[:dest][:ro|:rw]; "
        "write \\: for a colon in a name\n"
    )


def test_the_budget_of_mounts_is_raised_by_options(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("count", "ls data | wc -l >&2; echo '{}'")
    (data / "b.csv").write_text("2\n")
    options: list[str | Path] = ["call", toolbox.folder, "count", "--mount", str(data)]

    refused = typed(*options, "--mount-max-entries", "1", "--mount-max-bytes", "3")
    passed = typed(*options, "--mount-max-entries", "2", "--mount-max-bytes", "4")

    assert refused.returncode == 2
    assert refused.stderr == (
        f"heddle: a mount cannot be used:\n  --mount {data}: it holds 4 bytes, and a mount may hold 3 (raise it with "
        "--mount-max-bytes); it holds 2 files and folders, and a mount may hold 1 (raise it with --mount-max-entries)\n"
    )
    assert passed.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_is_stopped_brings_its_files_back_and_leaves_nothing(
    toolbox: Toolbox, data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    toolbox.sh("edit", f"echo 2 > data/a.csv; echo $$ > {tmp_path}/pid; sleep {toolbox.long}")
    (tmp_path / "private").mkdir()
    process = subprocess.Popen(
        [*HEDDLE, "call", str(toolbox.folder), "edit", "--mount", f"{data}:data:rw"],
        env=os.environ | {"TMPDIR": str(tmp_path / "private")},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until((tmp_path / "pid").exists, 10)

    process.send_signal(number)
    _, said = process.communicate(timeout=10)

    assert process.returncode == 128 + number
    assert said == f"copied back: data/a.csv\nstopped by {number.name}; the tool was ended\n"
    assert (data / "a.csv").read_text() == "2\n"
    assert list((tmp_path / "private").iterdir()) == []
    assert toolbox.strays() == []


def test_a_tool_is_started_in_a_folder_of_its_workspace(toolbox: Toolbox, data: Path) -> None:
    toolbox.sh("here", "ls >&2; echo '{}'")

    inside = typed("call", toolbox.folder, "here", "--mount", str(data), "--cwd", "data", "--json")
    outside = typed("call", toolbox.folder, "here", "--mount", str(data), "--cwd", "data/../..")

    assert json.loads(inside.stdout)["report"]["stderr_tail"] == "a.csv\n"
    assert outside.returncode == 1
    assert outside.stderr == (
        "failed (denied): tool \"here\" was not started in 'data/../..': that leaves the workspace.\n"
    )


# In a sandbox


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of tools that everybody may read: as root, confined tools run as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="tools-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def add(folder: Path, name: str, source: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{source}\n")
    path.chmod(0o755)


def test_a_tool_that_is_run_safely_reads_what_is_allowed_and_no_more(open_folder: Path, tmp_path: Path) -> None:
    for name in ("readable", "writable", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
    source = (
        f"cd {tmp_path}; cat readable/file secret/file >&2; echo x > writable/new; echo x > readable/new; echo '{{}}'"
    )
    add(open_folder, "look", source)

    allowed = ["--allow-read", str(tmp_path / "readable"), "--allow-write", str(tmp_path / "writable")]
    done = heddle_cli("call", open_folder, "look", "--safe", "--deny-net", *allowed, "--json")

    report = json.loads(done.stdout)["report"]
    assert done.returncode == 0
    assert report["tier"] in {"bubblewrap", "landlock"}
    assert report["guarantees"]["network"] == "enforced"
    assert report["stderr_tail"].startswith("readable")
    assert "secretsecret" not in report["stderr_tail"].replace("\n", "")
    assert "cannot create readable/new" in report["stderr_tail"]
    assert sorted(os.listdir(tmp_path / "writable")) == ["file", "new"]
    assert os.listdir(tmp_path / "readable") == ["file"]


def test_options_that_confine_nothing_without_safe_are_refused_all_at_once(folder: Path) -> None:
    done = typed(
        "call",
        folder,
        "echo",
        '{"text": "x"}',
        "--sandbox",
        "auto",
        "--allow-read",
        "/etc",
        "--allow-write",
        "/x",
        "--deny-net",
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "heddle: --sandbox, --allow-read, --allow-write, --deny-net confine nothing without --safe: "
        "add it, or leave them out\n"
    )


def test_an_environment_can_be_allowed_without_a_sandbox(folder: Path) -> None:
    done = typed("call", folder, "echo", '{"text": "x"}', "--allow-env", "HOME")

    assert done.returncode == 0


def test_paths_that_are_not_there_are_named_all_at_once(folder: Path, tmp_path: Path) -> None:
    missing = [tmp_path / "one", tmp_path / "two"]

    done = typed(
        "call",
        folder,
        "echo",
        "--safe",
        "--allow-read",
        missing[0],
        "--allow-read",
        "/etc",
        "--allow-write",
        missing[1],
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"heddle: not there: --allow-read {missing[0]}, --allow-write {missing[1]}\n"


@pytest.mark.parametrize("place", ["/", "home"])
def test_a_folder_that_holds_everything_is_not_readable_for_having_started_there(
    open_folder: Path, tmp_path: Path, place: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("secret")
    add(open_folder, "look", f"ls {home} >&2; echo '{{}}'")
    start = Path("/") if place == "/" else home

    done = typed("call", open_folder, "look", "--safe", "--json", environment={"HOME": str(home)}, cwd=start)

    assert done.returncode == 0, done.stderr
    assert done.stderr == f"note: tools may not read {start}, where heddle was started: that is too much\n"
    assert "key" not in json.loads(done.stdout)["report"]["stderr_tail"]


def test_the_folder_that_heddle_was_started_in_is_readable_and_nothing_more(open_folder: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "file").write_text("found")
    add(open_folder, "look", f"cat {tmp_path}/file >&2; echo x > {tmp_path}/new; echo '{{}}'")

    done = typed("call", open_folder, "look", "--safe", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"]["stderr_tail"].startswith("found")
    assert os.listdir(tmp_path) == ["file"]


def test_a_backend_that_is_named_is_taken_or_nothing_is(open_folder: Path) -> None:
    add(open_folder, "tool", "echo '{}'")

    landlock = typed("call", open_folder, "tool", "--safe", "--sandbox", "landlock", "--json")
    seatbelt = typed("call", open_folder, "tool", "--safe", "--sandbox", "seatbelt")

    assert json.loads(landlock.stdout)["report"]["tier"] == "landlock"
    assert (seatbelt.returncode, seatbelt.stdout) == (2, "")
    assert "nothing here can confine tools, so none is run" in seatbelt.stderr


def test_what_the_library_warns_of_is_said_once_and_the_library_says_nothing(open_folder: Path, tmp_path: Path) -> None:
    """A library that nobody has configured is silent; the command line is its host."""
    add(open_folder, "tool", "echo '{}'")
    folders = tmp_path / "bin"  # no bubblewrap in it
    folders.mkdir()
    for name in ("sh", "env", "cat"):
        (folders / name).symlink_to(f"/bin/{name}")
    script = f"""
import heddle, trio
async def main():
    sandbox = heddle.Sandbox(network="none")
    async with heddle.Runner(heddle.discover_tools({str(open_folder)!r}), sandbox=sandbox) as runner:
        print(await runner.call("tool"))
trio.run(main)
"""
    environment = os.environ | {"PATH": str(folders)}

    by_hand = heddle_cli("call", open_folder, "tool", "--safe", "--deny-net", environment=environment, cwd=open_folder)
    imported = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, cwd=open_folder
    )

    assert by_hand.stderr.startswith("warning: calls are confined by Landlock, not by namespaces. bubblewrap")
    assert by_hand.stderr.count("\n") == 1
    assert (by_hand.returncode, by_hand.stdout) == (0, "{}\n")
    assert (imported.stdout, imported.stderr) == ("Returned(data={})\n", "")
