"""The guide "Add a codec" shows the example as it is."""

from pathlib import Path

import pytest

from kvbaton.codecs import BytesToBytes, TensorToBytes, TensorToTensor

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "add-a-codec.md"
EXAMPLE = ROOT / "examples" / "thirdparty_codec"


def test_the_code_of_the_guide_is_the_example():
    """The codec on the page is the file that is tested, word for word."""
    code = (EXAMPLE / "kvbaton_mulaw_codec.py").read_text()
    assert f"```python\n{code}```" in GUIDE.read_text()


def test_the_entry_point_of_the_guide_is_the_example():
    """So is the entry point."""
    block = GUIDE.read_text().partition("```toml\n")[2].partition("```")[0]
    assert block in (EXAMPLE / "pyproject.toml").read_text()


def test_the_test_of_the_guide_is_the_example():
    """So is the test class."""
    block = GUIDE.read_text().partition("import CodecTests\n\n\n")[2].partition("```")[0]
    assert block in (EXAMPLE / "tests" / "test_mulaw_codec.py").read_text()


def test_the_example_uses_public_names_only():
    """Everything is imported from public modules."""
    public = {"kvbaton.codecs", "kvbaton.errors", "kvbaton.types", "kvbaton.testing"}
    for path in EXAMPLE.rglob("*.py"):
        imports = [
            line.split()[1]
            for line in path.read_text().splitlines()
            if line.startswith(("from kvbaton", "import kvbaton"))
        ]
        assert imports
        assert set(imports) <= public | {"kvbaton_mulaw_codec"}


@pytest.mark.parametrize("base", [TensorToTensor, TensorToBytes, BytesToBytes])
def test_the_table_names_what_must_be_written(base):
    """Every abstract method is in the guide's table."""
    table = GUIDE.read_text().partition("| class |")[2].partition("\n\n")[0]
    for name in base.__abstractmethods__:
        assert f"{name}(" in table
