"""`bench ttft`: the shape of its result, and that its rivals do the same work."""

import gc
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.tiny import checkpoint

from kvbaton.bench import rivals, ttft
from kvbaton.bench.figures import PHASES, TARGETS
from kvbaton.bench.peers import Peer
from kvbaton.bench.plot import plot_ttft
from kvbaton.bench.receiver import Receiver
from kvbaton.bench.report import environment_line, ttft_tables
from kvbaton.bench.sender import Sender
from kvbaton.bench.ttft import RIVALS, Plan, measure
from kvbaton.bench.worker import load
from kvbaton.engines.transformers.load import load_checkpoint
from kvbaton.errors import InputError, UnsupportedModel, WindowExceeded
from kvbaton.relay import Relay
from kvbaton.seals import local_domain
from kvbaton.stores import MemoryStore

TOKENS, NEW = 96, 40
FIELDS = {
    "tokens", "new_tokens", "dtype", "kv_bytes", "text_s", "handmade_s", "prefix_cache_s",
    "baton_s", "handoff_s", "floor_s", "speedup", "over_floor", "peak_extra_bytes",
}  # fmt: skip


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


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole run between two processes."""
    plan = Plan(
        model="tiny",
        source=str(model),
        digests=tmp_path_factory.mktemp("digests"),
        tokens=(64, TOKENS),
        new_tokens=NEW,
        dtypes=("float32",),
        repeats=2,
        decode_tokens=8,
        device="cpu",
        threads=1,
        offline=True,
    )
    said: list[str] = []
    found = measure(plan, said.append)
    assert said[0] == "float32: loading tiny in two processes"
    return found


class Pair:
    """Sender and receiver in one process, with the same prepared context."""

    def __init__(self, model: Path, folder: Path) -> None:
        engine = load_checkpoint(model, dtype="float32", device="cpu", offline=True)
        relay = Relay(engine, MemoryStore(), local_domain(folder), segment_tokens=32)
        self.sender, self.receiver = Sender(engine, relay), Receiver(engine, relay)
        self.sender.prepare(TOKENS)
        self.baton = self.sender.hand_off(keep=False)["baton"]
        self.receiver.prepare(self.baton, NEW)
        self.file = folder / "handmade.pt"
        self.sender.save(str(self.file))

    def tokens(self) -> dict[str, int]:
        """First token by every rival."""
        receiver = self.receiver
        done = {
            "text_loop": receiver.text_loop(),
            "text_generate": receiver.text_generate(),
            "handmade": receiver.handmade(str(self.file), mapped=False),
            "handmade_mapped": receiver.handmade(str(self.file), mapped=True),
            "prefix_cache": receiver.prefix_cache(),
            "floor": receiver.floor(),
            "baton": receiver.take(self.baton),
        }
        return {rival: one["token"] for rival, one in done.items()}


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both sides in this process."""
    return Pair(model, tmp_path_factory.mktemp("pair"))


def test_the_result_has_the_promised_shape(result: Any) -> None:
    """One row per context with all promised fields, and JSON can carry it."""
    assert [row["tokens"] for row in result["rows"]] == [64, TOKENS]
    assert result["model"] == "tiny"
    for row in result["rows"]:
        assert row.keys() >= FIELDS
        assert (row["new_tokens"], row["computed_tokens"], row["dtype"]) == (NEW, NEW, "float32")
    assert json.loads(json.dumps(result)) == result


def test_kv_bytes_are_those_of_the_cache(result: Any) -> None:
    """4 layers, 2 heads of 16 channels, K and V, 4 bytes each."""
    assert [row["kv_bytes"] for row in result["rows"]] == [64 * 1024, TOKENS * 1024]


def test_every_rival_ran_in_every_repeat(result: Any) -> None:
    """Each rival has as many samples as there are repeats: none is left out, none runs twice."""
    for row in result["rows"]:
        assert {rival: len(s) for rival, s in row["samples"].items()} == dict.fromkeys(RIVALS, 2)


def test_ratios_are_those_of_the_medians(result: Any) -> None:
    """The better text route counts, and ratios are quotients of what is shown."""
    for row in result["rows"]:
        text_s = min(row["text_loop_s"], row["text_generate_s"])
        assert row["text_s"] == text_s
        assert row["speedup"] == pytest.approx(text_s / row["baton_s"])
        assert row["over_floor"] == pytest.approx(row["baton_s"] / row["floor_s"])
        assert set(row["phases"]) == set(PHASES)


def test_processes_agree_on_the_first_token(result: Any) -> None:
    """In float32 every rival in both processes answers with the same token."""
    assert [row["same_first_token"] for row in result["rows"]] == [True, True]


def test_a_second_hand_off_writes_no_segment_and_growth_only_what_is_new(result: Any) -> None:
    """The second hand-off writes 0 segment bytes; 256 more tokens cost at most those and a
    segment."""
    for row in result["rows"]:
        assert row["second_handoff_bytes"] == 0
        assert row["grown"]["tokens"] == 256
        assert row["grown"]["bytes_written"] == row["grown"]["stored_bytes"] > 256 * 1024


def test_peak_memory_is_measured_or_said_to_be_unknown(result: Any) -> None:
    """The peak is a number of bytes where the system tells, else null."""
    for row in result["rows"]:
        peak = row["peak_extra_bytes"]
        assert peak is None or peak >= 0
        assert (peak is None) == (row["peak_over_kv"] is None)


def test_targets_that_were_not_measured_are_not_called_met(result: Any) -> None:
    """A target about 2,048 tokens says nothing about this run."""
    checked = result["summary"]["targets"]
    assert len(checked) == len(TARGETS)
    for one in checked:
        assert (one["met"] is None) == (one["value"] is None)
        if one["tokens"] is not None:
            assert one["met"] is None


def test_tables_have_a_cell_for_every_heading(result: Any) -> None:
    """Each table has one row per measured context, and Markdown keeps its columns."""
    for table in ttft_tables(result):
        assert all(len(row) == len(table.headings) for row in table.rows)
        lines = table.markdown().splitlines()[2:]
        assert len({line.count(" | ") for line in lines}) == 1
    assert "cores" in environment_line(result)


def test_the_plot_is_a_png_or_an_error_that_says_what_is_missing(
    result: Any, tmp_path: Path
) -> None:
    """The picture is written as PNG; without matplotlib nothing is."""
    file = tmp_path / "out.png"
    if find_spec("matplotlib") is None:
        with pytest.raises(InputError, match="matplotlib"):
            plot_ttft(result, file)
        assert not file.exists()
    else:
        plot_ttft(result, file)
        assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_all_rivals_find_the_same_token(pair: Pair) -> None:
    """In float32 text, hand-made file, prefix cache, floor and baton give the same first token."""
    tokens = pair.tokens()
    assert len(set(tokens.values())) == 1, tokens


def test_no_rival_computes_logits_that_nobody_needs(pair: Pair) -> None:
    """The output layer sees one position per forward pass, whoever calls it."""
    seen: list[int] = []
    model = pair.receiver.engine.model
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].shape[1])
    )
    pair.tokens()
    hook.remove()
    assert seen == [1] * 7


def test_rivals_feed_what_they_say(pair: Pair) -> None:
    """Text feeds the whole prompt, everything else only the new tokens.

    Seen at the last layer: the check of layer 0 does not go beyond the first.
    """
    fed: list[int] = []
    hook = pair.receiver.engine.model.model.layers[-1].register_forward_pre_hook(
        lambda module, inputs: fed.append(inputs[0].shape[1])
    )
    pair.tokens()
    hook.remove()
    assert fed == [TOKENS + NEW] * 2 + [NEW] * 5


def test_rivals_keep_no_gradients(pair: Pair) -> None:
    """Every rival runs in inference mode: the kept cache stays without a graph."""
    pair.receiver.prefix_cache()
    assert all(layer.keys.grad_fn is None for layer in pair.receiver.work.kept.layers)


def test_the_prefix_cache_is_copied_not_used_up(pair: Pair) -> None:
    """After the rival ran, the kept cache still has the context's tokens."""
    pair.receiver.prefix_cache()
    assert pair.receiver.work.kept.get_seq_length() == TOKENS


def test_both_decode_loops_make_as_many_tokens(pair: Pair, monkeypatch: Any) -> None:
    """Neither loop stops at an end token, so they are timed over the same number of tokens."""
    made: list[int] = []
    original = rivals.decode_by_generate

    def counting(*arguments: Any) -> tuple[float, int]:
        seconds, count = original(*arguments)
        made.append(count)
        return seconds, count

    monkeypatch.setattr(rivals, "decode_by_generate", counting)
    done = pair.receiver.decode(tokens=12)
    assert (made, done["tokens"]) == ([12], 12)


def test_what_was_saved_by_hand_is_the_cache(pair: Pair) -> None:
    """The hand-made file holds K and V of every layer, of every cached token and no more."""
    loaded = torch.load(pair.file)
    assert [tuple(k.shape) for k, _ in loaded["kv"]] == [(1, 2, TOKENS, 16)] * 4
    assert len(loaded["ids"]) == TOKENS + 1


@pytest.mark.parametrize(
    "wrong", [{"tokens": ()}, {"tokens": (0,)}, {"repeats": 0}, {"new_tokens": 0}]
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Numbers below one and empty lists are input errors."""
    with pytest.raises(InputError):
        Plan(model="m", source="m", digests=Path("d"), **wrong)


class PeerHere:
    """What a process would do, done in this one."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._peer: Any = None
        self._answer: Any = None

    def __enter__(self) -> "PeerHere":
        return self

    def __exit__(self, *error: Any) -> None:
        """Nothing to end."""

    def send(self, command: str, **arguments: Any) -> None:
        """Do it at once."""
        if command == "load":
            self._peer, self._answer = load(**arguments)
        else:
            self._answer = getattr(self._peer, command)(**arguments)

    def answer(self) -> Any:
        """What came of the last command."""
        return self._answer

    def do(self, command: str, **arguments: Any) -> Any:
        """Both."""
        self.send(command, **arguments)
        return self._answer


def test_a_context_beyond_the_window_is_refused_unmeasured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names the context and the window; nothing was prepared before."""
    monkeypatch.setattr(ttft, "Peer", PeerHere)
    plan = Plan(
        model="tiny", source=str(model), digests=tmp_path, tokens=(64, 500), dtypes=("float32",),
        new_tokens=NEW, repeats=1, device="cpu", offline=True,
    )  # fmt: skip
    said: list[str] = []
    with pytest.raises(WindowExceeded, match=r"500 .* 512"):
        measure(plan, said.append)
    assert len(said) == 1


def test_window_models_are_measured_without_the_rivals_they_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with window layers has no hand-made rival, and says so by null."""
    monkeypatch.setattr(ttft, "Peer", PeerHere)
    folder = checkpoint(tmp_path / "model", "mistral")
    plan = Plan(
        model="tiny", source=str(folder), digests=tmp_path, tokens=(64,), dtypes=("float32",),
        new_tokens=NEW, repeats=1, decode_tokens=0, device="cpu", offline=True,
    )  # fmt: skip
    (row,) = measure(plan, lambda said: None)["rows"]
    assert (row["handmade_s"], row["prefix_cache_s"], row["decode_ratio"]) == (None, None, None)
    assert row["same_first_token"] is True
    assert row["baton_s"] > 0


def test_an_error_in_the_other_process_keeps_its_class(model: Path, tmp_path: Path) -> None:
    """An unknown dtype is refused by the process that loads, as the same error here."""
    with Peer("sender") as peer, pytest.raises(UnsupportedModel, match="float17"):
        peer.do(
            "load", role="sender", source=str(model), name="tiny", dtype="float17", device="cpu",
            attention=None, threads=1, store=f"dir://{tmp_path}/store", domain=str(tmp_path),
            digests=str(tmp_path), offline=True,
        )  # fmt: skip
