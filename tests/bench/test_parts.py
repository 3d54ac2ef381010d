"""The parts of the benchmarks: texts, memory, stores, targets, processes, picture."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbaton.bench import plot
from kvbaton.bench.figures import Target, median_of, summary_of
from kvbaton.bench.machine import environment, fast_folder
from kvbaton.bench.memory import peak_extra_bytes
from kvbaton.bench.peers import Peer
from kvbaton.bench.report import store_table
from kvbaton.bench.stores import StorePlan, default_stores, label_of, measure_stores
from kvbaton.bench.texts import fitted, real_texts
from kvbaton.bench.ttft import RIVALS, turned
from kvbaton.errors import InputError, KvbatonError, UnknownScheme


def test_texts_are_of_several_kinds_and_long_enough() -> None:
    """At least three texts of 12,000 characters, each with a name of its own."""
    texts = real_texts()
    assert len({text.name for text in texts}) == len(texts) >= 3
    assert all(len(text.text) > 12_000 for text in texts)


@pytest.mark.parametrize("wanted", [1, 2, 7, 100, 1001])
def test_a_text_is_cut_to_exactly_the_wanted_count(wanted: int) -> None:
    """Whatever counts, here words and one more, the beginning has exactly that many."""
    text = fitted(real_texts()[0].text, wanted, lambda part: 1 + len(part.split()) - 1)
    assert len(text.split()) == wanted


def test_a_count_that_no_text_has_is_said() -> None:
    """A prompt that is longer than wanted before it holds any text cannot be fitted."""
    with pytest.raises(InputError, match=r"exactly 5 .*shortest prompt .* 9"):
        fitted("some text", 5, lambda part: 8 + len(part.split()))


def test_peak_memory_counts_what_is_freed_again() -> None:
    """64 MB that are held only during the work show up, give or take a quarter."""

    def work() -> None:
        held = bytearray(64_000_000)
        held[::4096] = b"x" * len(held[::4096])

    peak = peak_extra_bytes(work, torch.device("cpu"))
    assert peak is None or 48_000_000 < peak < 80_000_000


def test_peak_memory_sees_memory_that_is_used_again() -> None:
    """A second, equal piece of work has a peak like the first: free memory was given back."""

    def work() -> None:
        parts = [bytearray(b"x" * 100_000) for _ in range(400)]
        del parts

    first, second = (peak_extra_bytes(work, torch.device("cpu")) for _ in range(2))
    assert first is None or second is None or second > first / 2


def test_each_rival_runs_once_per_repeat_in_a_changing_order() -> None:
    """Orders are permutations, and no two of the first five begin with the same rival."""
    orders = [turned(RIVALS, repeat) for repeat in range(5)]
    assert all(sorted(order) == sorted(RIVALS) for order in orders)
    assert len({order[0] for order in orders}) == 5


def test_targets_take_the_worst_row() -> None:
    """An upper limit is held against the largest value, a lower one against the smallest."""
    low = Target("a", lambda row: row["a"], 2, at_least=True)
    assert low.is_met(2) and not low.is_met(1.9)
    high = Target("a", lambda row: row["a"], 2)
    assert high.is_met(2) and not high.is_met(2.1)
    row: dict[str, Any] = {
        "tokens": 2048, "dtype": "bfloat16", "speedup": 16.0, "over_floor": 1.3,
        "moved_over_memcpy": 2.0, "baton_s": 1.0, "handmade_s": 2.0, "handoff_s": 1.5,
        "handmade_handoff_s": 3.0, "decode_ratio": 0.9,
        "peak_over_kv": 1.2, "second_handoff_bytes": 0, "grown": None,
    }  # fmt: skip
    rows = [row, row | {"over_floor": 1.1, "dtype": "float32", "moved_over_memcpy": 4.0}]
    checked = {(c["target"], c["tokens"]): c for c in summary_of(rows)["targets"]}
    assert checked["text / baton", 2048]["met"] is True
    assert checked["text / baton", 4096]["met"] is None
    assert (checked["baton / floor", 2048]["value"], checked["baton / floor", 2048]["met"]) == (
        1.3,
        False,
    )
    assert checked["(get + verify + attach - hashing) / memcpy", 2048]["value"] == 4.0


def test_the_median_of_nothing_is_nothing() -> None:
    """A rival that a model does not have has no seconds."""
    assert median_of([], "seconds") is None
    assert median_of([{"seconds": 1}, {"seconds": 5}, {"seconds": 2}], "seconds") == 2


def test_the_machine_is_described() -> None:
    """Processor, cores and memory are known."""
    machine = environment()
    assert machine["cpu"] and machine["cores"] >= 1 and machine["memory_bytes"] > 0


def test_no_room_in_shared_memory_means_the_disk() -> None:
    """More than any memory has is not looked for in shared memory."""
    assert str(fast_folder(1 << 60)) != "/dev/shm"


def test_a_process_that_dies_says_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that ends without an answer gives its code and its last line."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho first >&2\necho out of luck >&2\nexit 7\n")
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))
    with Peer("sender") as peer, pytest.raises(KvbatonError, match=r"code 7 .*out of luck"):
        peer.do("load")


def test_a_process_refuses_what_it_cannot_do_and_goes_on() -> None:
    """A command before a model is loaded is an input error, and the process still answers."""
    with Peer("receiver") as peer:
        for _ in range(2):
            with pytest.raises(InputError, match="text_loop"):
                peer.do("text_loop")


def test_stores_are_measured_against_one_copy(tmp_path: Path) -> None:
    """Every store has a speed for putting, getting and ranges, and is empty afterwards."""
    urls = (f"dir://{tmp_path}/s", "memory://bench-test", f"fsspec+file://{tmp_path}/f")
    said: list[str] = []
    result = measure_stores(StorePlan(urls, 300_001, 65_536, repeats=2), said.append)
    assert said == ["warming up", "repeat 1", "repeat 2"]
    assert [row["store"] for row in result["stores"]] == list(urls)
    for row in result["stores"]:
        for what in ("put", "get", "ranges"):
            ratio = row[f"{what}_gb_s"] * row[f"{what}_over_memcpy"]
            assert ratio == pytest.approx(result["memcpy_gb_s"])
    assert not [p for p in tmp_path.rglob("segments/*/*") if p.is_file()]
    table = store_table(result)
    assert len(table.rows) == 3 + 3
    assert all(len(row) == len(table.headings) for row in table.rows)


def test_default_stores_are_new_and_vanish() -> None:
    """One store of every built-in kind, in folders that are gone afterwards."""
    with default_stores(1000) as urls:
        labels = [label_of(url) for url in urls]
        folders = [Path(url.split("://")[1]).parent for url in urls if "/" in url.split("://")[1]]
        assert labels[0] == "memory" and "fsspec+file on disk" in labels
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_a_store_that_gives_back_other_bytes_is_found_out(tmp_path: Path, monkeypatch: Any) -> None:
    """Wrong bytes end the measurement: a fast store that lies has no speed."""
    from kvbaton.stores import MemoryStore

    monkeypatch.setattr(
        MemoryStore, "put", lambda self, key, parts: _put(self, key, [b"\0" * len(parts[0])])
    )
    with pytest.raises(InputError, match="other bytes"):
        measure_stores(StorePlan(("memory://liar",), 1000, 100, repeats=1), lambda said: None)


def _put(store: Any, key: Any, parts: list[bytes]) -> int:
    with store._shelf.lock:
        store._shelf.objects[key] = (parts[0], 0.0)
    return len(parts[0])


@pytest.mark.parametrize(
    "wrong", [{"urls": ()}, {"size_bytes": 0}, {"range_bytes": 0}, {"repeats": 0}]
)
def test_store_plans_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Empty lists and sizes below one are input errors."""
    with pytest.raises(InputError):
        StorePlan(**({"urls": ("memory://x",)} | wrong))


def test_an_unknown_store_is_refused() -> None:
    """The registry's own error comes through."""
    with pytest.raises(UnknownScheme):
        measure_stores(StorePlan(("nope://x",)), lambda said: None)


def test_a_plot_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint names the optional extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"kvbaton\[plot\]"):
        plot.require_matplotlib()
