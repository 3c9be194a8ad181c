"""Files that people write: what is read, what is refused, and where the fault is said to be."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.errors import DefinitionError
from heddle.tools.documents import MAX_BYTES, load_document, parse_document, shown
from heddle.tools.yamltext import MAX_REPEATED, YamlError, parse

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.strictjson import JSON


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Some builds of PyYAML have no parser in C; both must refuse and read the same."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader")
    else:
        assert hasattr(yaml, "CSafeLoader")
    return str(request.param)


def read(folder: Path, text: str | bytes, name: str = "x.yaml") -> JSON:
    """Write `text` into a file and read it back as a document."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_document(path, what="sidecar").value


def refused(folder: Path, text: str | bytes, name: str = "x.yaml") -> str:
    """Return what the error says, without the folder."""
    with pytest.raises(DefinitionError) as caught:
        read(folder, text, name)
    return str(caught.value).replace(f"{folder}/", "")


@pytest.mark.usefixtures("parser")
class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("no", "no"),
            ("on", "on"),
            ("yes", "yes"),
            ("y", "y"),
            ("12:30:45", "12:30:45"),
            ("2024-01-02", "2024-01-02"),
            ("010", 10),
            ("0o10", 8),
            ("0x1F", 31),
            ("-12", -12),
            ("+3", 3),
            ("1_000", "1_000"),
            ("0b1", "0b1"),
            ("0o8", "0o8"),
            ("-0x1F", "-0x1F"),
            ("1.5", 1.5),
            ("1.", 1.0),
            (".5", 0.5),
            ("1e3", 1000.0),
            (".", "."),
            ("~", None),
            ("null", None),
            ("Null", None),
            ("", None),
            ("nULL", "nULL"),
            ("true", True),
            ("FALSE", False),
            ("tRUE", "tRUE"),
            ("=", "="),
            ("<<", "<<"),
            ("'5'", "5"),
            ('"true"', "true"),
            ("|-\n  5", "5"),
            ("9007199254740993", 9007199254740993),
            ("nan", "nan"),
            ("inf", "inf"),
        ],
    )
    def test_a_scalar_means_what_yaml_1_2_says(self, tmp_path: Path, text: str, value: JSON) -> None:
        """The core schema: `no` is a word, times and dates are text, octal is written 0o."""
        assert json.dumps(read(tmp_path, f"a: {text}\n")) == json.dumps({"a": value})

    def test_every_form_of_a_container_is_read(self, tmp_path: Path) -> None:
        assert read(tmp_path, "\ufeffa: {b: [1, 2], c: {}}\nd:\n- e\n- f: g\n") == {
            "a": {"b": [1, 2], "c": {}},
            "d": ["e", {"f": "g"}],
        }

    def test_the_merge_key_is_an_ordinary_key(self, tmp_path: Path) -> None:
        assert read(tmp_path, "a: &a {x: 1}\nb: {<<: *a}\n") == {"a": {"x": 1}, "b": {"<<": {"x": 1}}}

    def test_an_alias_repeats_its_value_even_as_a_key(self, tmp_path: Path) -> None:
        assert read(tmp_path, "a: &k word\nb: [*k, *k]\nc: {*k : 1}\n") == {
            "a": "word",
            "b": ["word", "word"],
            "c": {"word": 1},
        }

    def test_an_anchor_may_be_given_again(self, tmp_path: Path) -> None:
        """The latest one before the alias counts, as YAML 1.2.2 says in section 7.1."""
        assert read(tmp_path, "a: &k 1\nb: &k 2\nc: *k\nd: &k [&k 3, *k]\n") == {"a": 1, "b": 2, "c": 2, "d": [3, 3]}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("a: 1\nb: 2\na: 3\n", 'x.yaml, line 3, column 1: the key "a" again, first given in line 1'),
            ("a:\n  b: 1\n  'b': 2\n", 'x.yaml, line 3, column 3: the key "b" again, first given in line 2'),
            ("a: !!str 5\n", "x.yaml, line 1, column 4: the tag tag:yaml.org,2002:str; tags are not read"),
            ("a: ! 5\n", "x.yaml, line 1, column 4: the tag !; tags are not read"),
            ("- !!python/object:os.system [x]\n", "tags are not read"),
            ("a: !x {}\n", "x.yaml, line 1, column 4: the tag !x; tags are not read"),
            ("a: &a [1, *a]\n", "x.yaml, line 1, column 11: the alias *a inside what it repeats"),
            ("a: *b\n", "x.yaml, line 1, column 4: the alias *b, which nothing before it is named"),
            ("1: a\n", "x.yaml, line 1, column 1: a key that is no string (1); put it in quotes"),
            ("a: {null: 1}\n", "x.yaml, line 1, column 5: a key that is no string (None); put it in quotes"),
            ("true: 1\n", "x.yaml, line 1, column 1: a key that is no string (True); put it in quotes"),
            ("? [a]\n: 1\n", "a key that is no string (a mapping or a sequence); put it in quotes"),
            ("a: 1\n---\nb: 2\n", "x.yaml, line 2, column 1: a second document; a file holds one"),
            ("a: .inf\n", "x.yaml, line 1, column 4: .inf: inf, which is not JSON"),
            ("a: -.INF\n", "x.yaml, line 1, column 4: -.INF: -inf, which is not JSON"),
            ("a: .nan\n", "x.yaml, line 1, column 4: .nan: nan, which is not JSON"),
            ("a: 1e400\n", "x.yaml, line 1, column 4: 1e400: inf, which is not JSON"),
            (f"a: {'9' * 5000}\n", "x.yaml, line 1, column 4: an integer of more than 4,300 digits"),
            (f"a: 0x{'F' * 5000}\n", f"x.yaml, line 1, column 4: 0x{'F' * 38}…: an integer of more than 4,300 digits"),
            ("a: b: c\n", "x.yaml, line 1, column 5: text that is not YAML (mapping values are not allowed"),
            ("a: [1, 2\n", "text that is not YAML (while parsing a flow sequence"),
            ("a:\n\t- b\n", "x.yaml, line 2, column 1: text that is not YAML (while scanning for the next token"),
            (
                "%YAML 2.0\n---\na\n",
                "x.yaml, line 1, column 1: text that is not YAML (found incompatible YAML document",
            ),
            ('a: "\\UFFFFFFFF"\n', "text that is not YAML ("),
            ('a: "\\ud800"\n', "x.yaml, line 1, column"),
            ("a: b\nc: \x00\n", "x.yaml, line 2, column 4: the character U+0000, which YAML does not allow"),
            ("# nothing\n", "x.yaml: nothing but comments where a value should be"),
            (f"{'[' * 129}{']' * 129}", "x.yaml, line 1, column 129: nesting deeper than 128"),
            ("[" * 200_000, "x.yaml, line 1, column 1"),  # the parser in C looks ahead, and refuses it by itself
            ("- " * 200_000, "x.yaml, line 1, column 257: nesting deeper than 128"),
        ],
    )
    def test_what_is_not_read_is_refused_with_its_place(self, tmp_path: Path, text: str, problem: str) -> None:
        said = refused(tmp_path, text)

        assert problem in said
        assert said.startswith("x.yaml")
        assert len(said) < 300

    def test_nesting_as_deep_as_allowed_is_read(self, tmp_path: Path) -> None:
        assert read(tmp_path, f"{'[' * 128}{']' * 128}") == json.loads(f"{'[' * 128}{']' * 128}")

    def test_nesting_is_counted_through_aliases(self, tmp_path: Path) -> None:
        """Each line alone is shallow; unfolded it is 70 + 70 deep."""
        deep = f"a: &a {'[' * 70}{']' * 70}\nb: {'[' * 70}*a{']' * 70}\n"

        assert refused(tmp_path, deep) == "x.yaml, line 2, column 74: nesting deeper than 128"

    def test_aliases_that_unfold_to_a_flood_are_refused(self, tmp_path: Path) -> None:
        """Nine lines that would be a billion values."""
        lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

        assert refused(tmp_path, "\n".join(lines)) == (
            "x.yaml, line 4, column 45: aliases that repeat more than 10,000 values"
        )

    def test_a_long_text_counts_for_its_length_when_it_is_repeated(self, tmp_path: Path) -> None:
        text = f"a: &a {'x' * 500_000}\nb: [*a, *a, *a]\n"

        assert refused(tmp_path, text) == "x.yaml, line 2, column 9: aliases that repeat more than 10,000 values"

    def test_aliases_up_to_the_bound_are_read(self, tmp_path: Path) -> None:
        text = f"a: &a x\nb: [{', '.join(['*a'] * MAX_REPEATED)}]\n"

        assert read(tmp_path, text) == {"a": "x", "b": ["x"] * MAX_REPEATED}

    @settings(max_examples=300, deadline=None)
    @given(st.text(alphabet="ab01.-+:#'\"[]{},&*!|>%@`? \n\t\\~é<u\u2028"))
    def test_whatever_the_text_it_is_json_or_a_named_fault(self, text: str) -> None:
        try:
            value, _ = parse(text)
        except YamlError:
            return

        assert json.loads(json.dumps(value, allow_nan=False)) == value

    @settings(max_examples=200, deadline=None)
    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(categories=("L", "N", "P", "S")), max_size=40),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.text(st.characters(categories=("L", "N", "P", "S")), max_size=20), inner, max_size=4
                )
            ),
            max_leaves=12,
        )
    )
    def test_json_is_read_as_the_same_value(self, value: JSON) -> None:
        """JSON is YAML too: a file may change its ending."""
        assert parse(json.dumps(value, ensure_ascii=False))[0] == value


def test_without_pyyaml_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "heddle.tools.yamltext")
    monkeypatch.delattr("heddle.tools.yamltext")

    assert refused(tmp_path, "a: 1") == (
        "x.yaml: reading YAML needs PyYAML: pip install 'heddle[yaml]', or write it as JSON"
    )
    assert read(tmp_path, '{"a": 1}', "x.json") == {"a": 1}


def test_a_fault_inside_pyyaml_is_not_taken_for_its_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "attrs", None)
    monkeypatch.delitem(sys.modules, "heddle.tools.yamltext")
    monkeypatch.delattr("heddle.tools.yamltext")

    with pytest.raises(ModuleNotFoundError, match="attrs"):
        read(tmp_path, "a: 1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,\n "b" 2}', "x.json, line 2, column 6: text that is not JSON (expecting ':' delimiter)"),
        ('{"é": 1, \n "ü": x}', "x.json, line 2, column 7: text that is not JSON (expecting value)"),
        ('{"a": {"b": 1, "b": 2}}', 'x.json, $.a: duplicate key "b"'),
        ('{"a": NaN}', "x.json, $.a: NaN, which is not JSON"),
        ("{} {}", "x.json, line 1, column 4: more after the first value"),
        ("[" * 200_000, "x.json: nesting deeper than 128"),
        (b'{"a": "\n\xff"}', "x.json, line 2, column 1: bytes that are not UTF-8"),
        (b'\xef\xbb\xbf{"a":\n x}', "x.json, line 2, column 2: text that is not JSON (expecting value)"),
        ("", "x.json: this sidecar is empty"),
        (" \n\t\n", "x.json: this sidecar is empty"),
        (b"\xef\xbb\xbf", "x.json: this sidecar is empty"),
    ],
)
def test_json_that_is_not_strict_is_refused_with_its_place(tmp_path: Path, text: str | bytes, problem: str) -> None:
    assert refused(tmp_path, text, "x.json") == problem


@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_the_line_of_every_key_is_known(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"a": 1,\n "b": {"c": [true,\n   {"d,{": "e\\"[", \n"f": []}]},\n\n  "g": "h"}\n')

    document = load_document(path, what="sidecar")

    lines = {
        steps: document.line_of(*steps)
        for steps in [("a",), ("b",), ("b", "c"), ("b", "c", 1), ("b", "c", 1, "d,{"), ("b", "c", 1, "f"), ("g",)]
    }
    assert lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 2,
        ("b", "c", 1): 3,
        ("b", "c", 1, "d,{"): 3,
        ("b", "c", 1, "f"): 4,
        ("g",): 6,
    }
    assert document.line_of("b", "c", 1, "missing", "deeper") == 3
    assert document.where("g") == f"{path}, line 6"
    column = document.place.parts["b"].parts["c"].parts[1].parts["d,{"].column
    assert (document.place.parts["g"].column, column) == (3, 5)


def test_a_json_document_may_be_a_single_word(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("\n  null")

    document = load_document(path, what="sidecar")

    assert (document.value, document.line_of("a")) == (None, 2)


def test_a_file_with_another_ending_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, "a: 1", "x.toml") == "x.toml: a sidecar ends in .json, .yaml or .yml"


def test_a_file_is_read_up_to_one_mebibyte(tmp_path: Path) -> None:
    text = f'"{"x" * (MAX_BYTES - 2)}"'

    assert read(tmp_path, text, "x.json") == "x" * (MAX_BYTES - 2)
    assert refused(tmp_path, f"{text} ", "x.json") == "x.json: this sidecar is larger than 1,048,576 bytes"


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening a fifo that nobody writes to would wait for ever."""
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "bytes\udcff.yaml").symlink_to("missing")
    with contextlib.chdir(tmp_path), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.yaml")  # a socket's path is short, and a test's folder need not be
    names = ["fifo", "folder", "device", "loop", "socket", "missing", "nul\0", "bytes\udcff", "wide\ud800"]

    said: dict[str, str] = {}
    for name in names:
        with pytest.raises(DefinitionError) as caught:
            load_document(tmp_path / f"{name}.yaml", what="sidecar")
        said[name] = str(caught.value).replace(f"{tmp_path}/", "")

    start = "this sidecar cannot be read: "
    assert said.pop("wide\ud800").startswith(rf"wide\ud800.yaml: {start}")
    assert said == {
        "fifo": f"fifo.yaml: {start}it is not a regular file",
        "folder": f"folder.yaml: {start}it is a folder",
        "device": f"device.yaml: {start}it is not a regular file",
        "loop": f"loop.yaml: {start}Too many levels of symbolic links",
        "socket": f"socket.yaml: {start}it is not a regular file",
        "missing": f"missing.yaml: {start}No such file or directory",
        "nul\0": rf"nul\x00.yaml: {start}embedded null byte",
        "bytes\udcff": rf"bytes\xff.yaml: {start}No such file or directory",
    }


def test_a_link_to_a_document_is_followed(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    (tmp_path / "y.yaml").symlink_to("x.json")

    assert load_document(tmp_path / "y.yaml", what="sidecar").value == [1]


def test_data_can_be_read_without_a_file(tmp_path: Path) -> None:
    document = parse_document(b"a: no", tmp_path / "x.yml", what="flow")

    assert document.value == {"a": "no"}
    with pytest.raises(DefinitionError, match=re.escape("x.yml: this flow is empty")):
        parse_document(b"", tmp_path / "x.yml", what="flow")


def test_a_name_is_shown_as_one_line_of_visible_characters() -> None:
    assert shown("a b\n\x1b[31m\udcffé\u202e") == r"a b\n\x1b[31m\xffé\u202e"
