"""The reference of the command line, made from the app itself.

``python -m kvbaton.cli.reference > docs/guides/cli.md`` writes the page; a test holds the page to
what this makes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

from kvbaton import errors
from kvbaton.cli.main import BROKEN_PIPE, INTERRUPTED, UNEXPECTED, USAGE, build_app

_HEAD = """# Command line

<!-- Made by `python -m kvbaton.cli.reference > docs/guides/cli.md`; do not edit by hand. -->

Results go to standard output, everything else to standard error: progress of whatever takes over a
second, receipts, warnings, errors. With `--json`, which every command has, standard output carries
exactly one JSON object (`ledger watch`: one per event), also when the command fails:

```json
{"error": {"code": "unknown-model", "sentence": "...", "at": "", "hint": "...", "exit_code": 3}}
```

Where a command takes a `FILE`, `-` is standard input; text is UTF-8. Where none is named, the store
is the one of the [settings](settings.md). `memory://` stores end with their process, so these
commands refuse them. Options before the command: `--debug` shows the trace of an error, `--version`
the version. `list`, `ps`, `inspect`, `verify`, `diff`, `rm` and `ledger` need neither a model nor
torch.

```console
$ ID=$(kvbaton export --model smollm2-135m --context report.txt --store dir:///dev/shm/batons)
$ kvbaton take --model smollm2-135m --baton $ID --store dir:///dev/shm/batons \\
    --instruction "List the open questions."
```
"""

_OWN_CODES = (
    (0, "success", "A fallback to text is a success, too: the receipt has the reason."),
    (UNEXPECTED, "unexpected", "An error that nobody foresaw, or `diff --exit-code`."),
    (USAGE, "usage", "A command line that makes no sense."),
)
_SIGNAL_CODES = (
    (INTERRUPTED, "interrupted", "Ctrl-C; no partial object is left in the store."),
    (BROKEN_PIPE, "", "Whoever read standard output went away."),
)


def reference() -> str:
    """The whole page, in Markdown."""
    blocks = [_HEAD, *_commands(typer.main.get_command(build_app()), "kvbaton"), _exit_codes()]
    return "\n".join(blocks)


def _commands(command: Any, path: str) -> Iterator[str]:
    """A block per command, groups entered."""
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from _commands(child, f"{path} {name}")
        else:
            yield _command(child, f"{path} {name}")


def _command(command: Any, path: str) -> str:
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    words = [_synopsis(parameter) for parameter in shown]
    text = inspect.cleandoc(command.help or "")
    lines = [f"## `{path}`", "", text, "", "```text", *_wrapped(path, words), "```", ""]
    lines += ["| | | default |", "|---|---|---|", *map(_row, shown), ""]
    shape = _shape(command)
    if shape:
        lines += [
            "`--json` (a `?` marks what is not always there):",
            "",
            "```text",
            shape,
            "```",
            "",
        ]
    return "\n".join(lines)


def _shape(command: Any) -> str:
    """What the command's module says that ``--json`` prints."""
    module = importlib.import_module(command.callback.__module__)
    return str(getattr(module, "SHAPES", {}).get(command.name, ""))


def _wrapped(path: str, words: list[str]) -> Iterator[str]:
    """The synopsis in lines of at most 96 characters."""
    line = path
    for word in words:
        if len(line) + len(word) > 95:
            yield line
            line = "   "
        line += f" {word}"
    yield line


def _spelling(parameter: Any) -> str:
    """``--store URL``, ``--json``, ``ID``."""
    if not _is_option(parameter):
        return str(parameter.metavar or parameter.name.upper()).strip("[]")
    name = max(parameter.opts, key=len)
    return str(name) if parameter.is_flag else f"{name} {parameter.metavar or 'VALUE'}"


def _is_option(parameter: Any) -> bool:
    return any(name.startswith("-") for name in parameter.opts)


def _synopsis(parameter: Any) -> str:
    spelled = _spelling(parameter)
    return spelled if parameter.required else f"[{spelled}]"


def _row(parameter: Any) -> str:
    default = parameter.default
    known = default is not None and default != "" and default is not False
    shown = f"`{getattr(default, 'value', default)}`" if known and not callable(default) else ""
    needed = "needed" if parameter.required else shown
    said = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| `{_spelling(parameter)}` | {said} | {needed} |"


def _exit_codes() -> str:
    lines = ["## Exit codes", "", "| code | `error.code` | meaning |", "|---|---|---|"]
    rows = [(str(code), name, said) for code, name, said in _OWN_CODES]
    rows += [
        (str(kind.exit_code), ", ".join(_codes(kind)), (kind.__doc__ or "").splitlines()[0])
        for kind in errors.KvbatonError.__subclasses__()
        if kind.__module__ == errors.__name__
    ]
    rows += [(str(code), name, said) for code, name, said in _SIGNAL_CODES]
    for code, names, said in rows:
        spelled = ", ".join(f"`{name}`" for name in names.split(", ") if name)
        lines.append(f"| {code} | {spelled} | {said} |")
    return "\n".join(lines)


def _codes(kind: type[errors.KvbatonError]) -> Iterator[str]:
    """Codes of an error class and of those below it."""
    yield kind.__new__(kind).code  # it depends on the class only
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _codes(below)


if __name__ == "__main__":
    sys.stdout.write(reference() + "\n")
