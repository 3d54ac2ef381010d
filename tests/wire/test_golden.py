"""The bytes and digests that ``docs/spec`` prints are the ones that the code writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.wire import samples
from tests.wire.golden_bytes import FOLDER, files
from tests.wire.samples import FUNCTION, IDS, KEYS
from tests.wire.test_manifest import ENVELOPE_CASES, MANIFEST_CASES
from tests.wire.test_segment_faults import CASES, read_all
from tests.wire.test_transcript import PREFIX_CASES, TRANSCRIPT_CASES

from kvbaton.errors import Fault
from kvbaton.wire import limits
from kvbaton.wire.digests import baton_id
from kvbaton.wire.manifest import parse_manifest, unwrap
from kvbaton.wire.prefix import parse_prefix
from kvbaton.wire.transcript import parse_transcript

SPEC = Path(__file__).parents[2] / "docs" / "spec"
SEGMENT_PAGE = (SPEC / "segment.md").read_text("utf-8")
BATON_PAGE = (SPEC / "baton.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(files()))
def test_the_code_still_writes_the_golden_bytes(name: str) -> None:
    """The same values give the same bytes as when format 1 was written down."""
    assert files()[name] == (FOLDER / name).read_bytes()


def test_the_golden_files_are_read_as_the_values_they_were_made_from() -> None:
    """Every golden file parses to the sample that it holds."""
    run, window = samples.run_segment(), samples.window_segment()
    read = {path.name: path.read_bytes() for path in FOLDER.iterdir()}
    assert read_all(read["run.safetensors"], address=run.address) == run.header
    assert read_all(read["window.safetensors"], address=window.address) == window.header
    assert unwrap(read["baton.dsse.json"]) == read["manifest.json"]
    assert parse_manifest(read["manifest.json"]) == samples.manifest()
    assert parse_transcript(read["transcript.json"]) == samples.TRANSCRIPT
    assert parse_prefix(read["prefix.json"]) == samples.prefix_record()


def test_the_segment_page_prints_the_digests() -> None:
    """Secret, addresses, token digest and prefix keys in the specification are right."""
    for value in (
        samples.SECRET.hex(),
        samples.run_segment().address,
        samples.window_segment().address,
        KEYS.token_digest(IDS[:5]),
        *KEYS.prefix_keys(FUNCTION, IDS, [0, 5]),
    ):
        assert value in SEGMENT_PAGE


def test_the_baton_page_prints_the_digests() -> None:
    """Id, transcript address and token digest in the specification are right."""
    manifest = samples.manifest()
    for value in (
        baton_id((FOLDER / "manifest.json").read_bytes()),
        manifest.transcript,
        manifest.token_digest,
    ):
        assert value in BATON_PAGE
    assert (FOLDER / "transcript.json").read_text("ascii") in BATON_PAGE


def faults_of(page: str, heading: str) -> set[str]:
    """The first column of the fault table below a heading."""
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))


TABLES = {
    "Ways a segment can be bad": (SEGMENT_PAGE, CASES),
    "Ways a manifest can be bad": (BATON_PAGE, MANIFEST_CASES),
    "Ways an envelope can be bad": (BATON_PAGE, ENVELOPE_CASES),
    "Ways a transcript can be bad": (BATON_PAGE, TRANSCRIPT_CASES),
    "Ways a prefix record can be bad": (BATON_PAGE, PREFIX_CASES),
}
ELSEWHERE = {
    Fault.BINDING: SPEC.parent / "guides" / "troubleshooting.md",
    Fault.NOT_COMPARABLE: SPEC.parent / "guides" / "troubleshooting.md",
    Fault.DECRYPTION: SPEC / "encryption.md",
}
"""Faults of other documents than those of this folder, which have tests of their own."""


@pytest.mark.parametrize("heading", TABLES)
def test_every_fault_on_the_page_has_a_test(heading: str) -> None:
    """The specification's table of faults and the tests' table name the same faults."""
    page, cases = TABLES[heading]
    assert faults_of(page, heading) == {str(case.fault) for case in cases}  # type: ignore[attr-defined]


def test_no_fault_is_left_out() -> None:
    """Each fault that there is stands in one of the tables."""
    found = {fault for heading, (page, _) in TABLES.items() for fault in faults_of(page, heading)}
    for fault, page in ELSEWHERE.items():
        assert f"`{fault}`" in page.read_text("utf-8")
    assert found | {str(fault) for fault in ELSEWHERE} == {str(fault) for fault in Fault}


def test_the_pages_state_the_limits() -> None:
    """Every limit that the code holds bytes to is printed in the specification by its value."""
    pages = "".join(page.read_text("utf-8") for page in sorted(SPEC.glob("*.md")))
    for name in dir(limits):
        if name.startswith("MAX_"):
            assert f"| `{name}` | {getattr(limits, name):,} |" in pages, name
