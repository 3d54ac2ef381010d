"""Digests of weights are remembered between loads, and only as long as they are true."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.engines.families import build
from tests.engines.function_ids import id_of, loaded

from kvbaton.engines.transformers import load
from kvbaton.engines.transformers.load import load_checkpoint


def test_a_remembered_digest_is_not_computed_again(
    checkpoint: Path, tmp_path: Path, hashed: list[int]
) -> None:
    """The second load of unchanged files hashes nothing and has the same id."""
    memory = tmp_path / "digests"
    first = loaded(checkpoint, digests=memory)
    assert hashed == [1]
    second = loaded(checkpoint, digests=memory)
    assert second.function == first.function == loaded(checkpoint).function
    assert hashed == [1, 1]
    assert memory.stat().st_mode & 0o077 == 0


def test_an_edit_in_place_is_noticed(checkpoint: Path, tmp_path: Path) -> None:
    """Weights edited in a file of the same name, size and modification time give another id."""
    memory, file = tmp_path / "digests", checkpoint / "model.safetensors"
    before, first = file.stat(), loaded(checkpoint, digests=memory)
    with file.open("r+b") as opened:
        opened.seek(-2, os.SEEK_END)
        byte = opened.read(1)
        opened.seek(-2, os.SEEK_END)
        opened.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = loaded(checkpoint, digests=memory)
    assert first.function.differing(second.function) == ("weights",)


def test_files_that_change_while_they_are_read_are_not_remembered(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest is remembered only for files that stood still from before to after the reading."""
    read = load._read

    def racing(*arguments: Any, **options: Any) -> Any:
        result = read(*arguments, **options)
        os.utime(checkpoint / "model.safetensors")
        return result

    monkeypatch.setattr(load, "_read", racing)
    memory = tmp_path / "digests"
    assert loaded(checkpoint, digests=memory).function.digest == id_of(build("llama"))
    assert not memory.exists()


@pytest.mark.parametrize("content", [b"", b"not a digest", b"\xff" * 64, b"F" * 64])
def test_a_damaged_memory_is_not_believed(
    checkpoint: Path, tmp_path: Path, hashed: list[int], content: bytes
) -> None:
    """What is not a digest in the remembered place is computed anew, and mended."""
    memory = tmp_path / "digests"
    first = loaded(checkpoint, digests=memory)
    (file,) = memory.iterdir()
    file.write_bytes(content)
    assert loaded(checkpoint, digests=memory).function == first.function
    assert hashed == [1, 1]
    assert file.read_text() == first.weights


def test_a_memory_that_cannot_be_written_costs_only_time(
    checkpoint: Path, tmp_path: Path, hashed: list[int]
) -> None:
    """Where the folder cannot be made, each load computes the digest."""
    (tmp_path / "digests").write_text("a file where the folder should be")
    engines = [loaded(checkpoint, digests=tmp_path / "digests") for _ in range(2)]
    assert engines[0].function == engines[1].function
    assert hashed == [1, 1]


def test_dtypes_are_remembered_apart(checkpoint: Path, tmp_path: Path, hashed: list[int]) -> None:
    """The digest of a checkpoint in one dtype is not taken for that in another."""
    memory = tmp_path / "digests"
    first = loaded(checkpoint, digests=memory)
    other = load_checkpoint(
        checkpoint, dtype="bfloat16", device="cpu", offline=True, digests=memory
    )
    assert {"dtype", "weights"} <= set(first.function.differing(other.function))
    assert hashed == [1, 1]
