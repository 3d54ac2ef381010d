"""The run folder: plan, tasks, and one line of JSON per trial, kept as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvbaton.audit.plan import Plan, read_plan
from kvbaton.audit.tasks.files import read_task_set, write_task_set
from kvbaton.audit.tasks.schema import TaskSet
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON

FORMAT = "kvbaton audit trials 1"
PLAN, TASKS, TRIALS = "plan.json", "tasks.jsonl", "trials.jsonl"

Key = tuple[str, ...]


_SAME = {
    "function": "another model, dtype or version",
    "tasks.digest": "other tasks",
    "environment.cpu": "another machine",
    "environment.cores": "another machine",
    "environment.device": "another device",
    "environment.threads": "another number of threads",
}
"""What must not change between the sessions of one run."""


def _at(header: Mapping[str, Any], path: str) -> Any:
    value: Any = header
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def key_of(record: Mapping[str, Any]) -> Key:
    """What a record is about; no two records of a run have the same."""
    return tuple(
        str(record.get(name, ""))
        for name in ("kind", "unit", "treatment", "repeat", "tokens", "what")
    )


class Journal:
    """The records of one run.

    A run that was interrupted goes on where it was: what the folder holds is not done again.

    Parameters
    ----------
    folder
        Made, readable by its owner only, where there is none.
    plan
        What the run is to do; a folder of another plan is refused.

    Raises
    ------
    InputError
        The folder cannot be used, or belongs to another plan.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.header: JSON = {}
        self._by_key: dict[Key, JSON] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the run folder cannot be made: {error.strerror or error}", at=str(folder)
            ) from error
        if (folder / PLAN).exists():
            if read_plan(folder / PLAN).digest != plan.digest:
                raise InputError(
                    "the folder holds an audit of another plan",
                    at=str(folder / PLAN),
                    hint="name another folder with --out, or run its own plan again",
                )
        else:
            self._write(PLAN, json.dumps(plan.to_json(), indent=1) + "\n")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else runs this audit meanwhile.

        Raises
        ------
        InputError
            Somebody does.
        """
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise InputError("this audit is already running", at=str(self.folder)) from error
        try:
            yield
        finally:
            lock.release()

    @property
    def records(self) -> list[JSON]:
        """All records, in the order in which they were kept."""
        return list(self._by_key.values())

    def tasks(self, make: Callable[[], TaskSet]) -> TaskSet:
        """The task set that lies in the folder; made, and kept there, on the first run.

        Raises
        ------
        InputError
            It has fewer units than the plan wants.
        """
        path = self.folder / TASKS
        found = read_task_set(path) if path.exists() else write_task_set(make(), path)
        if len(found.units) < self.plan.units:
            raise InputError(
                f"the task set has {len(found.units)} units, the plan wants {self.plan.units}",
                at=str(path),
            )
        return found

    def begin(self, header: JSON) -> None:
        """Read what is there, or write the first line.

        Parameters
        ----------
        header
            Facts about the run: ``function``, ``model``, ``environment`` and so on.

        Raises
        ------
        InputError
            The records are those of another function.
        FormatError
            They are damaged; the line is named.
        """
        path = self.folder / TRIALS
        if not path.exists():
            self.header = {"format": FORMAT} | header
            self._write(TRIALS, json.dumps(self.header) + "\n")
            return
        first, records = read_trials(path)
        records = [record for record in records if record.get("kind") != "failed"]  # tried again
        self._by_key = {key_of(record): record for record in records}
        self.header = first
        for name, sentence in _SAME.items():
            if _at(first, name) != _at(header, name):
                raise InputError(
                    f"the folder holds trials of {sentence}",
                    at=str(path),
                    hint="name another folder with --out",
                )
        lines = [json.dumps(line) for line in (first, *records)]
        self._write(TRIALS, "\n".join(lines) + "\n")  # without a line that was cut off

    def find(self, **wanted: object) -> JSON | None:
        """The record of a kind, unit ..., or None."""
        return self._by_key.get(key_of(wanted))

    def knows(self, record: JSON) -> bool:
        """Whether there is a record about the same."""
        return key_of(record) in self._by_key

    def keep(self, record: JSON) -> None:
        """Enter a record.

        Raises
        ------
        InputError
            It cannot be written.
        """
        line = json.dumps(record, allow_nan=False) + "\n"
        try:
            with (self.folder / TRIALS).open("a", encoding="ascii") as file:
                file.write(line)
        except OSError as error:
            raise InputError(
                f"the trial cannot be kept: {error.strerror or error}", at=str(self.folder)
            ) from error
        self._by_key[key_of(record)] = record

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        partial = path.with_name(f".{name}.{os.getpid()}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            partial.replace(path)
        except OSError as error:
            raise InputError(
                f"{name} cannot be written: {error.strerror or error}", at=str(path)
            ) from error


def read_trials(path: Path) -> tuple[JSON, list[JSON]]:
    """The header and the records of a file; a last line that was cut off is left out.

    Raises
    ------
    InputError
        It cannot be read.
    FormatError
        A line is no record, or two are about the same; the line is named.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the trials cannot be read: {error}", at=str(path)) from error
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    found = [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    if not found or found[0].get("format") != FORMAT:
        raise FormatError(
            "this is no record of an audit's trials", fault=Fault.UNKNOWN_FORMAT, at=str(path)
        )
    seen: set[Key] = set()
    for number, record in enumerate(found[1:], start=2):
        if key_of(record) in seen:
            raise FormatError(
                "a trial is recorded twice", fault=Fault.DUPLICATE_KEY, at=f"{path}:{number}"
            )
        seen.add(key_of(record))
    return found[0], found[1:]


def _parsed(line: str, at: str) -> JSON:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise FormatError("a line is not JSON", fault=Fault.NOT_JSON, at=at) from error
    if not isinstance(value, dict):
        raise FormatError("a line is no JSON object", fault=Fault.WRONG_TYPE, at=at)
    return value
