"""``kvbaton bench codecs``: what is measured, and how it is stated."""

from __future__ import annotations

import pytest

from kvbaton.bench import codecs
from kvbaton.bench.codecs import CodecBench, measure_codecs
from kvbaton.bench.codecs_report import codec_tables
from kvbaton.errors import InputError


@pytest.fixture(scope="module")
def result():
    """One quick run over little memory."""
    patch = pytest.MonkeyPatch()
    patch.setattr(codecs, "WORKING_SET_BYTES", 200_000)
    try:
        yield measure_codecs(CodecBench(("bfloat16",), ("smollm2-135m",), 1), lambda said: None)
    finally:
        patch.undo()


def test_rows_have_speeds_bits_and_errors(result):
    """Every row states what the requirement asks for, against one memcpy."""
    for row in result["rows"]:
        assert row["memcpy_gb_s"] == result["memcpy_gb_s"]
        for way in ("encode", "decode"):
            ratio = row[f"{way}_gb_s"] / row["memcpy_gb_s"]
            assert row[f"{way}_over_memcpy"] == pytest.approx(ratio)


def test_sizes_are_those_of_the_definitions(result):
    """int8 keys: 32 bits for 128 tokens; values: 16 for 64 channels, and a float32 per head."""
    rows = {row["codec"]: row for row in result["rows"]}
    assert rows["raw"]["bits_per_element"] == 16.0
    assert rows["raw"]["max_abs_error"] == 0.0
    keys, values = 8 + 32 / 128, 8 + 16 / 64 + 3 * 32 / (3 * 256 * 64)
    assert rows["int8"]["bits_per_element"] == pytest.approx((keys + values) / 2, abs=2e-3)
    assert 0.0 < rows["int8"]["max_abs_error"] < 0.1


def test_every_profile_and_rival_is_there_or_named(result):
    """Profiles, torch.save, and each back end of QuantizedCache or the reason why not."""
    names = [row["codec"] for row in result["rows"]]
    assert {"profile exact", "profile compact", "torch.save"} <= set(names)
    for rival in ("quanto", "hqq"):
        assert (rival in result["skipped"]) != any(rival in name for name in names)


def test_the_table_shows_every_row(result):
    """One line per codec."""
    (table,) = codec_tables(result)
    assert [row[0] for row in table.rows] == [row["codec"] for row in result["rows"]]


@pytest.mark.parametrize("wrong", [{"dtypes": ("int3",)}, {"shapes": ("moon",)}, {"repeats": 0}])
def test_what_cannot_be_measured_is_an_input_error(wrong):
    """Unknown dtypes and shapes are named."""
    with pytest.raises(InputError):
        CodecBench(**wrong)
