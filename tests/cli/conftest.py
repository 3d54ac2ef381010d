"""A tiny checkpoint on disk, a home of its own, and the command line run inside this process."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.engines.chat_tokenizers import CHATML, word_tokenizer
from tests.engines.families import build

from kvbaton import api
from kvbaton.cli.main import run

DOCUMENT = "".join(f"Room {n} holds the key of door {n + 7}.\n" for n in range(10, 20))
"""330 bytes: with the byte-level tokenizer two segments, one of them full."""


@dataclass(frozen=True)
class Result:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON object that it must be."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of a tiny random Llama with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    build("smollm").save_pretrained(folder)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def home_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and cache of all tests here: one trust domain, one key."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def remembered() -> Callable[..., Any]:
    """`kvbaton.load` that loads each model once in a session."""
    return cache(api.load)


@pytest.fixture(autouse=True)
def home(
    home_folder: Path, remembered: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Settings that point to a folder of their own."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(home_folder / "data"))
    monkeypatch.setenv("KVBATON_CACHE_DIR", str(home_folder / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(api, "load", remembered)
    return home_folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line in this process; `stdin` is what it reads."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    return call


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A file with the document."""
    path = tmp_path / "document.txt"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Exported:
    """A store of its own with one baton in it."""

    store: Path
    baton: str
    said: Any

    def files(self, kind: str) -> list[Path]:
        """Files of one kind, the largest first."""
        found = (self.store / kind).rglob("*")
        return sorted((p for p in found if p.is_file()), key=lambda p: -p.stat().st_size)


@pytest.fixture(scope="session")
def master(
    tiny: Path,
    home_folder: Path,
    remembered: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Exported:
    """The store that `exported` copies: the document, answered with five tokens."""
    folder = tmp_path_factory.mktemp("master")
    (folder / "document.txt").write_text(DOCUMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVBATON_DATA_DIR", str(home_folder / "data"))
        patch.setenv("KVBATON_CACHE_DIR", str(home_folder / "cache"))
        patch.setattr(api, "load", remembered)
        out = io.StringIO()
        patch.setattr(sys, "stdout", out)
        code = run(
            [
                "export", "--model", str(tiny), "--context", str(folder / "document.txt"),
                "--store", str(folder / "store"), "--max-new-tokens", "5", "--dtype", "float32",
                "--name", "planner", "--instruction", "Name the door.", "--json",
            ]
        )  # fmt: skip
    assert code == 0, out.getvalue()
    said = json.loads(out.getvalue())
    return Exported(folder / "store", said["baton"], said)


@pytest.fixture
def exported(master: Exported, tmp_path: Path) -> Exported:
    """A store of the test's own with the document's baton."""
    shutil.copytree(master.store, tmp_path / "store")
    return Exported(tmp_path / "store", master.baton, master.said)


@pytest.fixture
def measured(tiny: Path, remembered: Callable[..., Any], home: Path) -> Callable[..., Any]:
    """Measures a profile on the tiny model, so that it may be used there."""

    def measure(profile: str, *, dtype: str = "float32") -> Any:
        from kvbaton.bench.texts import Text
        from kvbaton.codecs.calibration import store_calibration
        from kvbaton.codecs.profiles import profile as named
        from kvbaton.tuning.measure import measured_record

        engine = remembered(str(tiny), dtype=dtype)
        texts = [Text("words", "Every door has a key. " * 40)]
        plan = named(profile).plan(engine.layout)
        record = measured_record(engine, profile, plan, texts, tokens=48, positions=16)
        store_calibration(record, home / "data")
        return record

    return measure
