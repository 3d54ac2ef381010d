"""`kvbaton diff`: the first position, layer and field that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.relay.conftest import make_engine

from kvbaton import defaults
from kvbaton.backing import Source
from kvbaton.cli.comparison import CacheDifference
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Store, open_store

IDS = tuple(range(20, 60))


class Workshop:
    """Hands contexts off as they are, or with K or V changed at one place."""

    def __init__(self, folder: Path, domain: TrustDomain, family: str) -> None:
        self.engine = make_engine(family)
        self.store: Store = open_store(folder)
        self.relay = Relay(self.engine, self.store, domain, segment_tokens=16)

    def baton(
        self,
        ids: tuple[int, ...] = IDS,
        *,
        pending: int = 0,
        spoil: tuple[int, int, str] | None = None,
        sender: str = "a",
    ) -> str:
        """A baton of some ids; ``spoil`` names position, layer and tensor to change."""
        cache = self.engine.new_cache(len(ids))
        self.engine.forward(cache, ids)
        export = self.engine.export

        def spoiled(cache: Any, spans: Any) -> Any:
            for part in export(cache, spans):
                if spoil is not None and part.layer == spoil[1]:
                    offset = spoil[0] - part.run.first
                    if 0 <= offset < part.run.count:
                        tensor = part.keys if spoil[2] == "k" else part.values
                        tensor[-1, offset, -1] += 1
                yield part

        self.engine.export = spoiled
        try:
            source = Source(cache, len(ids), ids + tuple(range(70, 70 + pending)))
            return self.relay.hand_off(source, sender=sender, text="").id
        finally:
            del self.engine.export


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """With a tiny Llama."""
    return Workshop(tmp_path / "store", defaults.default_domain(), "llama")


def diff(cli: Cli, workshop: Workshop, a: str, b: str) -> Any:
    """What `diff` prints as JSON."""
    return cli("diff", a, b, "--store", workshop.store.url, "--json").json


def test_a_baton_is_the_same_as_itself(cli: Cli, workshop: Workshop) -> None:
    """Nothing differs, and `--exit-code` gives 0."""
    one = workshop.baton()
    said = diff(cli, workshop, one, one)
    assert said["same"]
    assert said["first"] == {"position": None, "layer": None, "field": None}
    done = cli("diff", one, one, "--store", workshop.store.url, "--exit-code")
    assert (done.code, done.out) == (0, "the batons are the same\n")


def test_fields_of_the_manifest_are_named(cli: Cli, workshop: Workshop) -> None:
    """Only the sender and the time differ; no id and no byte does."""
    said = diff(cli, workshop, workshop.baton(sender="a"), workshop.baton(sender="b"))
    fields = {field["field"]: (field["a"], field["b"]) for field in said["fields"]}
    assert set(fields) <= {"sender", "created_ms"}
    assert fields["sender"] == ("a", "b")
    assert (said["ids"], said["cache"], said["note"]) == (None, None, "")
    assert said["first"]["field"] == "sender"


def test_the_first_id_that_differs_is_found(cli: Cli, workshop: Workshop) -> None:
    """At that position K of layer 0 differs, too, since it depends on token and position only."""
    other = (*IDS[:21], 99, *IDS[22:])
    said = diff(cli, workshop, workshop.baton(), workshop.baton(other))
    assert said["ids"] == {"position": 21}
    assert (said["first"]["position"], said["first"]["layer"]) == (21, 0)
    assert said["cache"]["tensor"] == "k"


@pytest.mark.parametrize(
    "spoil", [(0, 0, "k"), (5, 2, "v"), (15, 3, "k"), (16, 1, "v"), (39, 3, "v"), (33, 0, "k")]
)
def test_the_first_byte_that_differs_is_found(
    cli: Cli, workshop: Workshop, spoil: tuple[int, int, str]
) -> None:
    """With equal ids the position, layer and tensor of the changed element are named."""
    said = diff(cli, workshop, workshop.baton(), workshop.baton(spoil=spoil))
    position, layer, tensor = spoil
    assert said["ids"] is None
    assert said["cache"] == {
        "position": position, "layer": layer, "tensor": tensor, "exact_position": True,
    }  # fmt: skip
    assert (said["first"]["position"], said["first"]["layer"]) == (position, layer)
    assert any(f["field"].startswith(f"segments[{position // 16}]") for f in said["fields"])


def test_segments_that_are_cut_elsewhere_are_compared_where_they_overlap(
    cli: Cli, workshop: Workshop
) -> None:
    """A context that has grown has the same bytes where both have KV, in a longer last segment."""
    short, long = workshop.baton(IDS[:37]), workshop.baton()
    said = diff(cli, workshop, short, long)
    assert (said["ids"], said["cache"]) == ({"position": 37}, None)
    spoiled = workshop.baton(spoil=(35, 2, "k"))
    assert diff(cli, workshop, short, spoiled)["cache"]["position"] == 35
    assert diff(cli, workshop, spoiled, short)["cache"]["position"] == 35


def test_pending_tokens_have_no_bytes(cli: Cli, workshop: Workshop) -> None:
    """An id that differs among the pending ones is named without a layer."""
    said = diff(cli, workshop, workshop.baton(), workshop.baton(pending=1))
    assert said["first"]["position"] == len(IDS)
    assert said["first"]["layer"] is None


def test_window_layers_are_compared_by_their_state(cli: Cli, tmp_path: Path) -> None:
    """A change inside the window of a window layer is found at its position."""
    workshop = Workshop(tmp_path / "store", defaults.default_domain(), "gemma3")
    said = diff(cli, workshop, workshop.baton(), workshop.baton(spoil=(36, 1, "v")))
    assert said["cache"] == {
        "position": 36, "layer": 1, "tensor": "v", "exact_position": True,
    }  # fmt: skip


def test_models_with_other_layouts_are_not_compared_by_bytes(
    cli: Cli, workshop: Workshop, tmp_path: Path
) -> None:
    """Fields and ids are compared, and the note says why the caches are not."""
    other = Workshop(tmp_path / "store", defaults.default_domain(), "gpt_neox")
    said = diff(cli, workshop, workshop.baton(), other.baton())
    assert "layouts differ" in said["note"]
    assert not said["same"]
    assert any(f["field"] == "function.weights" for f in said["fields"])


def test_a_missing_segment_is_said(cli: Cli, workshop: Workshop) -> None:
    """Without its bytes a cache cannot be compared; the rest can."""
    one, two = workshop.baton(), workshop.baton(sender="b", pending=1)
    for path in Path(str(workshop.store.url).removeprefix("dir://"), "segments").rglob("*"):
        if path.is_file():
            path.unlink()
    said = diff(cli, workshop, one, two)
    assert "$.segments[0]" in said["note"]
    assert said["ids"] == {"position": len(IDS)}


def test_differences_are_shown_and_can_fail_a_script(cli: Cli, workshop: Workshop) -> None:
    """People see field, ids and cache; `--exit-code` gives 1."""
    one, two = workshop.baton(), workshop.baton(spoil=(5, 2, "v"), sender="b")
    done = cli("diff", one, two, "--store", workshop.store.url, "--exit-code")
    assert done.code == 1
    assert "sender" in done.out
    assert "v of layer 2 differs first, at position 5" in done.out


def test_differences_are_ordered_as_positions_are() -> None:
    """The order of differences is by position, then layer, then K before V."""
    first = CacheDifference(3, 1, "k")
    assert min([CacheDifference(3, 1, "v"), CacheDifference(3, 2, "k"), first]) is first
    assert replace(first, exact_position=False).to_json()["exact_position"] is False
