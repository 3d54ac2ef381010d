"""Files and standard input: what is text, what are messages, and where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli, Exported

from kvbaton.cli.inputs import read_messages, read_text
from kvbaton.errors import EmptyInput, InputError


def write(folder: Path, data: bytes) -> str:
    """A file with these bytes."""
    path = folder / "file"
    path.write_bytes(data)
    return str(path)


def test_text_is_read_as_it_is(tmp_path: Path) -> None:
    """Line ends and white space are kept, a byte order mark is not."""
    assert read_text(write(tmp_path, b"\xef\xbb\xbf a\r\nb\n"), what="context") == " a\r\nb\n"


@pytest.mark.parametrize(
    ("data", "offset"),
    [(b"caf\xe9", 3), (b"\xff\xfea\0", 0), (b"ok \xc3", 3), (b"\xed\xa0\x80", 0)],
)
def test_what_is_not_utf_8_is_named_by_its_byte(tmp_path: Path, data: bytes, offset: int) -> None:
    """The error has the value and the offset of the first wrong byte."""
    path = write(tmp_path, data)
    with pytest.raises(InputError) as caught:
        read_text(path, what="context")
    assert caught.value.sentence.endswith(f"byte 0x{data[offset]:02x} at offset {offset}")
    assert caught.value.at == f"{path}:{offset}"


@pytest.mark.parametrize("data", [b"", b" \n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_document_is_refused(tmp_path: Path, data: bytes) -> None:
    """Nothing, or nothing but white space, is `EmptyInput`."""
    with pytest.raises(EmptyInput, match="the context is empty"):
        read_text(write(tmp_path, data), what="context")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent files and folders are errors with their path."""
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError) as caught:
            read_text(str(path), what="context")
        assert caught.value.at == str(path)


def test_messages_are_a_list_of_objects_with_roles(tmp_path: Path) -> None:
    """What is read is what the file says."""
    messages = [{"role": "user", "content": "é", "n": 1.5}]
    path = write(tmp_path, json.dumps(messages).encode())
    assert read_messages(path) == messages


@pytest.mark.parametrize(
    ("data", "at"),
    [(b'[{"role": "user"', ""), (b'{"role": "user"}', "$"), (b'[{"content": "x"}]', "$[0]"),
     (b'[{"role": "user"}, 3]', "$[1]"), (b"[NaN]", ""), (b'[{"role": 3}]', "$[0]"),
     (b"[" * 100_000, "")],
)  # fmt: skip
def test_messages_that_are_none_are_refused_with_their_place(
    tmp_path: Path, data: bytes, at: str
) -> None:
    """Not JSON, not a list, or an entry without a role."""
    path = write(tmp_path, data)
    with pytest.raises(InputError) as caught:
        read_messages(path)
    assert caught.value.at == (at or path)


def test_no_messages_are_empty_input(tmp_path: Path) -> None:
    """An empty list is nothing to answer."""
    with pytest.raises(EmptyInput):
        read_messages(write(tmp_path, b"[]"))


def test_standard_input_is_a_dash(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """`-` reads the context from standard input."""
    arguments = ("export", "--model", tiny, "--context", "-", "--store", tmp_path / "s", "--json")
    done = cli(*arguments, "--dtype", "float32", stdin="Grüße".encode())
    assert done.code == 0
    text = cli("inspect", done.json["baton"], "--store", tmp_path / "s", "--text", "--json").json
    assert "Grüße" in text["text"]
    assert cli(*arguments, stdin=b"caf\xe9").json["error"]["at"] == "standard input:3"
    assert cli(*arguments, stdin=b"").json["error"]["code"] == "empty-input"


def test_standard_input_is_read_once(cli: Cli, tiny: Path, exported: Exported) -> None:
    """Two files cannot both be standard input."""
    done = cli(
        "take", "--model", tiny, "--baton", exported.baton, "--store", exported.store,
        "--messages", "-", "--context", "-",
    )  # fmt: skip
    assert done.code == 3
    assert "--messages and --context" in done.err
