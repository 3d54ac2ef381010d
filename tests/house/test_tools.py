"""The project's own tools: targets, pins, fragments."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
KINDS = ("added", "changed", "removed", "fixed", "format")


def pins(name: str) -> dict[str, Version]:
    """Pinned releases of a constraints file by canonical name."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    split = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(distribution): Version(version) for distribution, version in split}


def needs(*extras: str) -> list[Requirement]:
    """Requirements of the package and of some of its extras, itself left out."""
    texts = PROJECT["dependencies"] + [text for extra in extras for text in EXTRAS[extra]]
    return [r for r in map(Requirement, texts) if r.name != "kvbaton"]


@pytest.mark.parametrize(
    ("file", "extras"),
    [("constraints.txt", ("test", "dev", "docs", "plot")), ("constraints-low.txt", ("test",))],
)
def test_every_requirement_is_pinned_within_its_range(file: str, extras: tuple[str, ...]) -> None:
    """Each direct requirement has one pin, and the pin is one that `pyproject.toml` allows."""
    pinned = pins(file)
    for requirement in needs(*extras):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_both_ends_of_the_transformers_range_are_tested() -> None:
    """The two constraints files pin the oldest and the newest supported minor release."""
    (requirement,) = [r for r in needs() if r.name == "transformers"]
    low, high = (pins(f)["transformers"] for f in ("constraints-low.txt", "constraints.txt"))
    bounds = {s.operator: Version(s.version) for s in requirement.specifier}
    assert (low.major, low.minor) == (bounds[">="].major, bounds[">="].minor)
    assert (high.major, high.minor + 1) == (bounds["<"].major, bounds["<"].minor)


def test_torch_is_pinned_without_a_local_tag() -> None:
    """A pin such as 2.13.0+cpu would exist on some indexes only."""
    assert pins("constraints.txt")["torch"].local is None
    assert pins("constraints.txt")["torch"] == pins("constraints-low.txt")["torch"]


@pytest.mark.parametrize(
    "target", ["relay", "test", "test-long", "lint", "bench", "docs", "wheel", "clean"]
)
def test_make_knows_its_targets_from_any_folder(target: str, tmp_path: Path) -> None:
    """`make -f .../Makefile TARGET` works from another folder, and says what it would run."""
    command = ["make", "-n", "-f", str(ROOT / "Makefile"), target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_make_help_lists_every_target() -> None:
    """Each target that a person may call has a line in `make help`."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert phony
    described = set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
    assert described == set(phony[1].split())


def test_ci_is_a_script_that_bash_can_read() -> None:
    """`.ci/run` is executable and has no syntax error."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_changelog_fragments_are_named_by_kind() -> None:
    """A fragment with a misspelt kind would be lost without a word."""
    for path in (ROOT / "changes").iterdir():
        if path.name != "README.md":
            assert re.fullmatch(rf"(\d+|\+[a-z-]+)\.({'|'.join(KINDS)})(\.\d+)?\.md", path.name)
            assert path.read_text(encoding="utf-8").strip()
