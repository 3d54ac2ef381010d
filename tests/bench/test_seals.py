"""`bench seals`: the shape of its result, and that each take does, or leaves out, what it says."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.test_ttft import PeerHere
from tests.bench.tiny import checkpoint

from kvbaton.bench import seals, ttft
from kvbaton.bench.figures import PHASES, checked
from kvbaton.bench.seal_peers import RUNS, SealingReceiver, SealingSender
from kvbaton.bench.seals import PREFILLS, SEAL_TARGETS, TAKES, TARGETS, measure_seals
from kvbaton.bench.seals_report import seal_tables
from kvbaton.bench.ttft import Plan
from kvbaton.engines.transformers.load import load_checkpoint
from kvbaton.errors import BatonRefused, InputError, NotTrusted, TrustFault
from kvbaton.relay import Relay
from kvbaton.seals import local_domain
from kvbaton.stores import Key, Kind, open_store
from kvbaton.types import ReasonCode

TOKENS, NEW, REPEATS = 96, 40, PREFILLS + 1
PROMISED = (
    "sign_ms", "verify_ms", "hash_gb_s", "blake3_gb_s", "encrypt_gb_s",
    "layer0_share_of_prefill", "over_floor_with", "over_floor_without",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """One thread, as tiny models gain nothing from more, and little to look at for gc."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    return checkpoint(tmp_path_factory.mktemp("model"))


def plan_of(model: Path, digests: Path) -> Plan:
    """Two contexts of a tiny model."""
    return Plan(
        model="tiny", source=str(model), digests=digests, tokens=(64, TOKENS), new_tokens=NEW,
        dtypes=("float32",), repeats=REPEATS, decode_tokens=0, device="cpu", threads=1,
        offline=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole run between two processes; fewer tokens than asked for are sealed."""
    plan = plan_of(model, tmp_path_factory.mktemp("digests"))
    return measure_seals(plan, lambda said: None)


class Pair:
    """Sender and receiver in one process, with the same prepared context."""

    def __init__(self, model: Path, folder: Path) -> None:
        engine = load_checkpoint(model, dtype="float32", device="cpu", offline=True)
        store, self.domain = open_store(f"dir://{folder}/store"), local_domain(folder / "domain")
        relay = Relay(engine, store, self.domain, segment_tokens=32)
        self.store = store
        self.sender, self.receiver = SealingSender(engine, relay), SealingReceiver(engine, relay)
        self.sender.prepare(TOKENS)
        self.baton: str = self.sender.hand_off(keep=False)["baton"]
        self.encrypted: str = self.sender.hand_off_encrypted()["baton"]
        self.receiver.prepare(self.baton, NEW)

    def overwrite(self, key: Key, data: bytes) -> None:
        """Put other bytes in an object's place."""
        self.store.delete(key)
        self.store.put(key, [data])


@pytest.fixture
def pair(model: Path, tmp_path: Path) -> Pair:
    """Both sides in this process, and a store that a test may damage."""
    return Pair(model, tmp_path)


def test_the_result_has_the_promised_fields(result: Any) -> None:
    """All promised figures are positive numbers, and JSON can carry the result."""
    assert [result[name] > 0 for name in PROMISED] == [True] * len(PROMISED)
    assert [row["tokens"] for row in result["rows"]] == [64, TOKENS]
    assert json.loads(json.dumps(result)) == result


def test_every_take_ran_in_every_repeat(result: Any) -> None:
    """Takes and floor have as many samples as there are repeats; the prefill runs in a few."""
    for row in result["rows"]:
        counts = {name: len(several) for name, several in row["samples"].items()}
        assert counts == dict.fromkeys((*TAKES, "floor"), REPEATS) | {"prefill": PREFILLS}


def test_ratios_are_those_of_the_medians(result: Any) -> None:
    """Ratios are quotients of what is shown, and the worst row stands at the top."""
    for row in result["rows"]:
        for take in TAKES:
            over = row[f"over_floor_{take}"]
            assert over == pytest.approx(row[f"{take}_s"] / row["floor_s"])
            assert set(row["phases"][take]) == set(PHASES)
        share = row["phases"]["with"]["probe"] / row["prefill_s"]
        assert row["layer0_share_of_prefill"] == pytest.approx(share)
    worst = max(result["rows"], key=lambda row: row["with_over_without"])
    for name in ("over_floor_with", "over_floor_without"):
        assert result[name] == worst[name]


def test_takes_with_and_without_say_the_same(result: Any) -> None:
    """What is left out changes nothing in the answer."""
    assert [row["same_first_token"] for row in result["rows"]] == [True, True]


def test_phases_show_what_was_left_out(result: Any) -> None:
    """Layers are hashed and layer 0 is checked in all takes but the bare one."""
    for row in result["rows"]:
        for phase in ("verify", "probe"):
            spent = {take: row["phases"][take][phase] > 0 for take in TAKES}
            assert spent == {"with": True, "without": False, "encrypted": True}


def test_as_many_tokens_are_sealed_as_fit(result: Any) -> None:
    """8,000 tokens do not fit a window of 512: what fits is measured, and no target is met."""
    (one,) = result["seals"]
    assert (one["tokens"], one["segments"]) == (512 - NEW, 2)
    assert one["kv_bytes"] >= one["tokens"] * 1024
    about = {c["target"]: c["met"] for c in result["summary"]["targets"] if c["tokens"] == 8000}
    assert about == {"sign, milliseconds": None, "verify, milliseconds": None}


def test_targets_that_were_not_measured_are_not_called_met(result: Any) -> None:
    """Every target is listed; one without a value is neither met nor missed."""
    targets = result["summary"]["targets"]
    assert len(targets) == len(TARGETS) + len(SEAL_TARGETS)
    assert all((one["met"] is None) == (one["value"] is None) for one in targets)


@pytest.mark.parametrize(("ratio", "met"), [(1.2, True), (1.21, False)])
def test_the_limit_of_a_whole_take(ratio: float, met: bool) -> None:
    """1.2 is within the limit, more is not, and the worst row counts."""
    row = {"dtype": "bfloat16", "layer0_share_of_prefill": 0.0}
    rows = [row | {"tokens": 2048, "with_over_without": one} for one in (1.0, ratio, 1.1)]
    first, second, *_ = checked(TARGETS, rows)
    assert (first["value"], first["met"], second["met"]) == (ratio, met, None)


def test_tables_have_a_cell_for_every_heading(result: Any) -> None:
    """One row per take and context, and Markdown keeps its columns."""
    for table in seal_tables(result):
        assert table.rows
        assert all(len(row) == len(table.headings) for row in table.rows)
        assert len({line.count(" | ") for line in table.markdown().splitlines()[2:]}) == 1


def test_a_bare_take_sees_no_forged_signature(pair: Pair) -> None:
    """The benchmark's own relay believes a baton of another domain's key; the real one does not."""
    other = local_domain(Path(pair.store.url.removeprefix("dir://")).parent / "other")
    forged = Relay(pair.sender.engine, pair.store, pair.domain, segment_tokens=32)
    forged.publisher.domain = type(pair.domain)(
        pair.domain.name, pair.domain.keys, signers=other.signers, trust=other.trust
    )
    pair.sender.agent.relay = forged
    baton = pair.sender.hand_off(keep=True)["baton"]
    assert pair.receiver.take_bare(baton)["computed_tokens"] == NEW
    with pytest.raises(NotTrusted) as caught:
        pair.receiver.take(baton)
    assert caught.value.fault is TrustFault.UNKNOWN_KEY


def test_a_bare_take_sees_no_changed_layer(pair: Pair) -> None:
    """A flipped bit of a layer passes the benchmark's relay, and is what the real one refuses."""
    first = next(iter(pair.store.list(Kind.SEGMENT))).key
    data = bytearray(pair.store.get(first, limit_bytes=1 << 24))
    data[-1] ^= 1
    pair.overwrite(first, bytes(data))
    assert pair.receiver.take_bare(pair.baton)["computed_tokens"] == NEW
    with pytest.raises(BatonRefused) as caught:
        pair.receiver.take(pair.baton)
    assert caught.value.reason_code == ReasonCode.SEGMENT_CORRUPT


def test_the_encrypted_take_reads_the_encrypted_store(pair: Pair) -> None:
    """Nothing in the plain store is needed, and nothing in the other one is readable."""
    for kind in (Kind.SEGMENT, Kind.BATON, Kind.TRANSCRIPT):
        for entry in list(pair.store.list(kind)):
            pair.store.delete(entry.key)
    assert pair.receiver.take_encrypted(pair.encrypted)["computed_tokens"] == NEW
    under = open_store(f"{pair.store.url}-encrypted")
    raw = under.get(Key(Kind.BATON, pair.encrypted), limit_bytes=1 << 24)
    assert b"payload" not in raw


def test_parts_of_a_seal_are_timed_as_often_as_said(pair: Pair) -> None:
    """Every part has as many samples; the manifest lists the segments of the context."""
    found = pair.sender.seal_speed(pair.baton)
    assert {name: len(several) for name, several in found["seconds"].items()} == dict.fromkeys(
        seals._PARTS, RUNS
    )
    assert found["segments"] == TOKENS // 32
    assert found["manifest_bytes"] < found["envelope_bytes"]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_all_bytes_of_the_cache_are_hashed_and_encrypted(pair: Pair, turn: int) -> None:
    """Whoever begins, all layers of all segments pass: 4 of 8 kB in each of 3 segments."""
    found = pair.sender.byte_speed(pair.baton, turn=turn)
    assert (found["size_bytes"], found["range_bytes"]) == (TOKENS * 1024, 8192)
    assert all(seconds > 0 for seconds in found["seconds"].values())


def test_a_seal_of_no_tokens_is_refused_unmeasured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is loaded for a number that makes no sense."""
    monkeypatch.setattr(ttft, "Peer", PeerHere)
    said: list[str] = []
    with pytest.raises(InputError):
        measure_seals(plan_of(model, tmp_path), said.append, sealed_tokens=0)
    assert said == []
