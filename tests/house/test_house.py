"""The rules of the house: what is imported, drawn, listed and promised is so."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvbaton
from kvbaton import errors
from kvbaton.types import ReasonCode

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "tokenizers", "accelerate", "numpy", "safetensors"}
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".sh", ".cfg", ""}


def modules_after(code: str) -> set[str]:
    """Top-level modules that a new interpreter has loaded after running ``code``."""
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def tracked_files() -> list[Path]:
    """Files of the project: those that git tracks, or all of a source distribution."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts[1]]


@pytest.mark.parametrize("name", kvbaton.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    """Each name in `kvbaton.__all__` is there when it is asked for."""
    assert getattr(kvbaton, name) is not None


def test_public_names_are_sorted_unique_and_listed() -> None:
    """`__all__` is sorted, has no name twice, and `dir` shows all of it."""
    assert list(kvbaton.__all__) == sorted(set(kvbaton.__all__))
    assert set(kvbaton.__all__) <= set(dir(kvbaton))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """Lazy names do not make other names exist."""
    with pytest.raises(AttributeError):
        kvbaton.no_such_name  # noqa: B018 - the access is what is tested


def test_importing_kvbaton_loads_nothing_heavy() -> None:
    """`import kvbaton` loads neither torch nor transformers nor numpy."""
    assert not modules_after("import kvbaton") & HEAVY


@pytest.mark.parametrize(
    "module",
    ["errors", "types", "registry", "wire", "stores", "seals", "policy", "settings", "models"],
)
def test_what_inspects_and_stores_needs_no_torch(module: str) -> None:
    """Importing a package that does not compute loads no torch."""
    assert not modules_after(f"import kvbaton.{module}") & {"torch", "transformers", "tokenizers"}


def test_the_command_line_starts_without_torch() -> None:
    """`kvbaton --help` and the like do not pay for torch."""
    assert not modules_after("import kvbaton.cli.main") & {"torch", "transformers", "tokenizers"}


def test_every_module_can_be_imported() -> None:
    """No module is broken, or needs another to have been imported before it."""
    for module in pkgutil.walk_packages(kvbaton.__path__, "kvbaton."):
        if not module.name.endswith(("__main__", "migrations.env")):  # alembic runs that one
            importlib.import_module(module.name)


def error_tree(root: type[BaseException], depth: int = 0) -> list[tuple[int, str]]:
    """Depth and name of a class and of all its subclasses in kvbaton, in order of definition."""
    below = [c for c in root.__subclasses__() if c.__module__ == "kvbaton.errors"]
    return [(depth, root.__name__)] + [entry for c in below for entry in error_tree(c, depth + 1)]


def test_the_drawn_error_tree_is_the_real_one() -> None:
    """The tree in the docstring of `kvbaton.errors` shows every class under its base."""
    lines = re.findall(r"^    ([│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    drawn = [(len(branch) // 4, name) for branch, name in lines]
    assert drawn == error_tree(errors.KvbatonError)


def test_the_drawn_exit_codes_are_the_real_ones() -> None:
    """Each exit code in the drawing is the one of its class."""
    found = re.findall(r"([A-Z]\w+) +(\d+)\b", errors.__doc__ or "")
    assert len(found) == 13
    assert all(getattr(errors, name).exit_code == int(code) for name, code in found)


def test_the_readme_is_short() -> None:
    """The README has fewer than 150 lines and begins with the two commands."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150
    text = "\n".join(lines)
    assert 0 < text.index("make relay") < text.index("make test") < text.index("## ")


def test_the_layout_draws_every_module() -> None:
    """Each package and module at the top of `kvbaton` has its line in the tree of the layout, and
    each package in the README's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "kvbaton"
    names = [p.name + "/" for p in package.iterdir() if (p / "__init__.py").exists()]
    names += [p.name for p in package.glob("*.py") if p.name != "__main__.py"]
    missing = [name for name in names if not re.search(rf"^\s+{re.escape(name)}\s", text, re.M)]
    assert missing == []
    packages = [name for name in names if name.endswith("/")]
    assert [n for n in packages if not re.search(rf"^\s+{re.escape(n)}\s", readme, re.M)] == []


def test_every_requirement_is_listed_once_with_its_place() -> None:
    """`docs/requirements.md` has each id exactly once, and no row without a place."""
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in text.splitlines()
        if re.match(r"\| S\d-\d", line)
    ]
    ids = [one for row in rows for one in row[0].split(" / ")]
    assert len(ids) == len(set(ids))
    counts = {name: sum(i.startswith(f"{name}-") for i in ids) for name in ("S0", "S1", "S2")}
    assert counts == {"S0": 51, "S1": 45, "S2": 43}
    assert (len(rows), len(ids)) == (207, 221)
    assert all(len(row) == 5 and row[4] for row in rows)


def test_places_that_requirements_name_exist() -> None:
    """Each module and test folder that `docs/requirements.md` names is there."""
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    met = [line.strip(" |").rsplit(" | ", 1)[1] for line in text.splitlines() if "| S" in line[:3]]
    named = {p for cell in met for p in re.findall(r"`((?:[a-z_]+/?)+(?:\.py|/)|tests/\w+)`", cell)}
    assert len(named) > 10
    places = (ROOT / "src" / "kvbaton", ROOT)
    assert [n for n in sorted(named) if not any((p / n).exists() for p in places)] == []


@pytest.mark.parametrize("folder", ["/wo" + "rk/", "/ro" + "ot/"])
def test_no_file_names_a_folder_of_one_machine(folder: str) -> None:
    """Tracked text files mention no path that exists on one machine only."""
    naming = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix in TEXT
        and path.exists()
        and re.search(rf"(?<![\w.:/]){folder}", path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert naming == []


def test_files_are_of_a_size_that_can_be_read() -> None:
    """Nine of ten source files have at most 400 lines, and none has more than 650."""
    files = (ROOT / "src").rglob("*.py")
    counts = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert counts[len(counts) * 9 // 10] <= 400
    assert counts[-1] <= 650


def test_troubleshooting_explains_every_reason_once() -> None:
    """Each reason code has its place in the table of reasons, and no other code is there."""
    text = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    table = text.partition("## By reason")[2].partition("With `strict")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    codes = [code for row in rows for code in re.findall(r"`([a-z-]+)`", row)]
    assert sorted(codes) == sorted(code.value for code in ReasonCode)
