"""Run the attacks, all or those that are named: ``python -m attacks [NAME ...]``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attacks
from attacks.scene import report, say

NOT_ATTACKS = frozenset({"__main__", "child", "scene"})


def names() -> list[str]:
    """Names of all attacks, sorted."""
    found = {module.name for module in pkgutil.iter_modules(attacks.__path__)}
    return sorted(found - NOT_ATTACKS)


def run(wanted: Sequence[str]) -> Iterator[bool]:
    """Whether each attack was fended off, as it comes to its end."""
    for name in wanted:
        module = importlib.import_module(f"attacks.{name}")
        with tempfile.TemporaryDirectory() as folder:
            title = module.__doc__.splitlines()[0]
            yield report(f"{name}: {title}", module.attack(Path(folder)))


def main(wanted: Sequence[str]) -> int:
    """The exit status: 1 where an attack succeeded."""
    held = list(run(wanted or names()))
    say(f"{sum(held)} of {len(held)} attacks fended off")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
