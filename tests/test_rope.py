"""Tables and rotations against the models' own: their keys before RoPE, rotated by their code."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.families import FAMILIES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvbaton import rope
from kvbaton.alignment.shift import Shifter, shift_keys
from kvbaton.engines.transformers import compat, layout
from kvbaton.errors import InputError, UnsupportedLayout
from kvbaton.types import Pairing, RopeSpec

KEY_TOLERANCE = 2e-5
"""float32, keys of size 10: two roundings of the model against two of ours."""
PLAIN = RopeSpec("default", "half", 8, 10000.0, 1.0, "")
FACTORS = {"factor": 4.0, "original_max_position_embeddings": 64}
SHORT, LONG = [1.0 + 0.1 * i for i in range(8)], [2.0 + 0.5 * i for i in range(8)]
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.0},
    "yarn": FACTORS,
    "yarn-betas": FACTORS | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": FACTORS | {"mscale": 0.8, "mscale_all_dim": 1.2},
    "yarn-no-ramp": FACTORS | {"beta_fast": 4.0, "beta_slow": 4.0, "truncate": False},
    "longrope": {"short_factor": SHORT, "long_factor": LONG} | FACTORS,
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0} | FACTORS,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, and leave the number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(name: str, base: float = 50000.0) -> Any:
    """A Llama configuration with RoPE of one kind."""
    scaling = {"rope_type": name.partition("-")[0], **SCALINGS[name]}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=128,
        rope_theta=base, rope_scaling=scaling,
    )  # fmt: skip
    config.original_max_position_embeddings = scaling.get("original_max_position_embeddings", 128)
    return config


def spec_of(config: Any) -> tuple[RopeSpec, torch.Tensor]:
    """The spec that an engine would have, and the model's own table."""
    module = torch.nn.ModuleDict({"rotary_emb": LlamaRotaryEmbedding(config)})
    (table,) = compat.rope_tables(module, config)
    return layout._rope_spec(table, "half"), table.inv_freq


# -- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCALINGS)
def test_a_table_is_the_library_s(name: str) -> None:
    """From a spec's own parameters comes the library's table, bit for bit."""
    spec, wanted = spec_of(config_of(name))
    assert rope.is_stated(spec)
    assert torch.equal(rope.inverse_frequencies(spec), wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_s_tables(tiny_engine: Callable[..., Any], family: str) -> None:
    """Every supported family's tables follow from its specs, bit for bit."""
    engine = tiny_engine(family)
    tables = compat.rope_tables(engine.model, engine.model.config)
    for spec, table in zip(engine.layout.ropes, tables, strict=True):
        assert torch.equal(rope.inverse_frequencies(spec), table.inv_freq)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
@pytest.mark.parametrize("length", [50, 129, 300])
def test_a_table_that_depends_on_the_length(name: str, length: int) -> None:
    """Beyond the original length the table is the library's for that length."""
    config = config_of(name)
    spec, _ = spec_of(config)
    wanted, _ = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"), seq_len=length)
    got = rope.inverse_frequencies(spec, length=length, original=128)
    assert torch.equal(got, wanted)


def test_a_proportional_table() -> None:
    """The first quarter of the pairs turns as in a whole head, the others stand still."""
    spec = replace(PLAIN, kind="proportional", parameters=(("partial_rotary_factor", 0.25),))
    assert rope.inverse_frequencies(spec).tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["axial", "linear", "yarn", "llama3", "longrope"])
def test_a_table_that_is_not_stated(kind: str) -> None:
    """An unknown kind, or one without its parameters, is refused by name."""
    with pytest.raises(UnsupportedLayout, match=kind):
        rope.inverse_frequencies(replace(PLAIN, kind=kind))


def test_longrope_with_too_few_factors() -> None:
    """A factor is needed for every pair of channels."""
    spec = replace(PLAIN, kind="longrope", parameters=(("short_factor", (1.0, 2.0)),))
    with pytest.raises(UnsupportedLayout, match="2 factors for 4 pairs"):
        rope.inverse_frequencies(spec)


def test_a_table_of_a_model_s_own() -> None:
    """A table that is not the configured one is not computed in its place."""
    config = config_of("default")
    module = torch.nn.ModuleDict({"rotary_emb": LlamaRotaryEmbedding(config)})
    module["rotary_emb"].inv_freq.mul_(0.5)
    module["rotary_emb"].original_inv_freq.mul_(0.5)
    spec = layout._rope_spec(compat.rope_tables(module, config)[0], "half")
    assert not rope.is_stated(spec)
    with pytest.raises(UnsupportedLayout, match="not the one that its configuration gives"):
        shift_keys(torch.zeros(1, 2, 16), spec_from=spec, spec_to=spec, old_first=0, new_first=1)


@pytest.mark.parametrize(
    ("name", "stop", "known"),
    [("default", 9999, True), ("yarn", 9999, True), ("longrope", 64, True),
     ("longrope", 65, False), ("dynamic", 128, True), ("dynamic", 129, False)],
)  # fmt: skip
def test_whether_a_table_is_known(name: str, stop: int, known: bool) -> None:
    """Only the keys of sequences up to the original length have a table that is known."""
    spec, _ = spec_of(config_of(name))
    assert rope.table_known(spec, stop, original=128) is known


def test_without_an_original_length_nothing_is_known() -> None:
    """A dynamic table whose original length nobody states is not guessed."""
    assert not rope.table_known(replace(PLAIN, kind="dynamic"), 1)


# -- rotations: by hand and by law --------------------------------------------------------------


def test_one_pair_by_hand() -> None:
    """A quarter turn leads from (1, 2) to (-2, 1), in either pairing."""
    quarter = torch.tensor([[math.pi / 2, 0.0]])
    half = rope.rotate(
        torch.tensor([[[1.0, 5.0, 2.0, 6.0, 9.0]]]), quarter, pairing="half", rotary_dim=4
    )
    paired = rope.rotate(
        torch.tensor([[[1.0, 2.0, 5.0, 6.0, 9.0]]]), quarter, pairing="interleaved", rotary_dim=4
    )
    torch.testing.assert_close(half, torch.tensor([[[-2.0, 5.0, 1.0, 6.0, 9.0]]]))
    torch.testing.assert_close(paired, torch.tensor([[[-2.0, 1.0, 5.0, 6.0, 9.0]]]))


def some_keys(seed: int, channels: int = 10, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Keys of two heads and seven positions."""
    return (4 * torch.randn(2, 7, channels, generator=torch.Generator().manual_seed(seed))).to(
        dtype
    )


positions = st.integers(0, 100_000)
pairings = st.sampled_from(["half", "interleaved"])


def stated(pairing: Pairing, base: float = 10000.0) -> RopeSpec:
    """A spec of eight rotated channels."""
    return replace(
        PLAIN, pairing=pairing, base=base, table=rope.table_digest("default", base, 4, ())
    )


def moved(keys: torch.Tensor, old: int, new: int, spec: RopeSpec) -> torch.Tensor:
    """Keys moved from one first position to another."""
    return shift_keys(keys, spec_from=spec, spec_to=spec, old_first=old, new_first=new)


@given(a=positions, b=positions, c=positions, pairing=pairings)
def test_two_shifts_are_one(a: int, b: int, c: int, pairing: Pairing) -> None:
    """From a to b and on to c is from a to c, within float32's rounding."""
    keys, spec = some_keys(a), stated(pairing)
    twice = moved(moved(keys, a, b, spec), b, c, spec)
    torch.testing.assert_close(twice, moved(keys, a, c, spec), atol=1e-5, rtol=0)


@given(a=positions, b=positions, pairing=pairings)
def test_a_shift_can_be_undone(a: int, b: int, pairing: Pairing) -> None:
    """There and back again are the same keys, within float32's rounding."""
    keys, spec = some_keys(b), stated(pairing)
    back = moved(moved(keys, a, b, spec), b, a, spec)
    torch.testing.assert_close(back, keys, atol=1e-5, rtol=0)


@given(a=positions, b=positions, pairing=pairings)
def test_a_shift_keeps_norms_and_other_channels(a: int, b: int, pairing: Pairing) -> None:
    """Pairs keep their norm; channels beyond the rotated ones are not touched."""
    keys, spec = some_keys(a), stated(pairing)
    got = moved(keys, a, b, spec)
    assert torch.equal(got[..., 8:], keys[..., 8:])
    torch.testing.assert_close(got.norm(dim=2), keys.norm(dim=2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_no_distance_is_the_identity(dtype: torch.dtype) -> None:
    """A shift by nothing returns the keys themselves."""
    keys = some_keys(3, dtype=dtype)
    assert moved(keys, 5, 5, stated("half")) is keys


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_narrow_keys_are_rounded_once(dtype: torch.dtype, pairing: Pairing) -> None:
    """Narrow keys are what the float32 rotation of the same numbers rounds to."""
    keys, spec = some_keys(1, dtype=dtype), stated(pairing)
    got = moved(keys, 3, 4711, spec)
    assert got.dtype == dtype
    assert torch.equal(got, moved(keys.float(), 3, 4711, spec).to(dtype))


def test_the_keys_are_left_alone() -> None:
    """What is moved is a copy: the sender's keys stay as they were."""
    keys = some_keys(2)
    before = keys.clone()
    moved(keys, 0, 9, stated("half"))
    assert torch.equal(keys, before)


@pytest.mark.parametrize(
    "shape", [(2, 7, 6), (2, 6, 10), (7, 10)], ids=["channels", "positions", "dimensions"]
)
def test_keys_of_another_shape(shape: tuple[int, ...]) -> None:
    """Keys that do not fit the angles are an input error that states the shape."""
    turns = torch.zeros(7, 4)
    with pytest.raises(InputError, match="shape"):
        rope.rotate(torch.zeros(shape), turns, pairing="half", rotary_dim=8)


def test_angles_for_other_channels() -> None:
    """The number of angles must be that of the pairs."""
    with pytest.raises(InputError, match="4 angles for 6"):
        rope.rotate(torch.zeros(1, 7, 8), torch.zeros(7, 4), pairing="half", rotary_dim=6)


def test_a_negative_position() -> None:
    """There are no negative positions."""
    with pytest.raises(InputError, match="no position -1"):
        moved(some_keys(0), 0, -1, stated("half"))


def test_another_pairing_is_refused() -> None:
    """Keys of one pairing cannot become keys of the other."""
    with pytest.raises(UnsupportedLayout, match="pairing"):
        shift_keys(
            some_keys(0), spec_from=stated("half"), spec_to=stated("interleaved"),
            old_first=0, new_first=1,
        )  # fmt: skip


# -- the models' own code ------------------------------------------------------------------------

INTERLEAVED = ["cohere", "glm", "gptj"]


def library_rotation(family: str, keys: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Keys ``[heads, n, dim]`` rotated by a family's own function."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    batch = keys[None]
    if family == "gptj":  # [batch, n, heads, dim], one column per pair
        rotated = module.apply_rotary_pos_emb(
            batch.transpose(1, 2), turns.sin()[None], turns.cos()[None]
        )
        return rotated.transpose(1, 2)[0]
    wide = turns.repeat_interleave(2, -1) if family == "cohere" else torch.cat([turns, turns], -1)
    return module.apply_rotary_pos_emb(batch, batch, wide.cos()[None], wide.sin()[None])[1][0]


@pytest.mark.parametrize("family", INTERLEAVED)
def test_interleaved_pairs(family: str) -> None:
    """Interleaved pairs are rotated and shifted as the library's families do."""
    keys, table = some_keys(4, channels=8), rope.inverse_frequencies(PLAIN)
    old, new = (rope.angles(table, torch.arange(f, f + 7)) for f in (20, 333))
    at_old = rope.rotate(keys, old, pairing="interleaved", rotary_dim=8)
    torch.testing.assert_close(at_old, library_rotation(family, keys, old), atol=1e-5, rtol=0)
    got = moved(at_old, 20, 333, stated("interleaved"))
    torch.testing.assert_close(got, library_rotation(family, keys, new), atol=1e-5, rtol=0)


class Spy:
    """Sees what a model passes to its own rotation, layer by layer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
        self.module = importlib.import_module(type(model).__module__)
        self.model, self.original = model, self.module.apply_rotary_pos_emb
        self.calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        monkeypatch.setattr(self.module, "apply_rotary_pos_emb", self)

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        """Rotate as the model does, and remember what was rotated and by what."""
        rotated = self.original(q, k, cos, sin, *args, **kwargs)
        self.calls.append((k.clone(), rotated[1].clone(), cos.clone(), sin.clone()))
        return rotated

    @torch.inference_mode()
    def run(self, ids: list[int], first: int) -> list[Any]:
        """Keys before and after RoPE ``[1, kv_heads, n, dim]``, cos and sin, by layer."""
        self.calls = []
        places = torch.arange(first, first + len(ids))[None]
        self.model(input_ids=torch.tensor([ids]), position_ids=places, use_cache=False)
        return self.calls

    def reference(self, keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Keys before RoPE, rotated by the model's own function."""
        return self.original(keys, keys, cos, sin)[1][0]


IDS = [3 + 7 * i for i in range(12)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_moved_keys_are_the_model_s(
    tiny_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    dtype: torch.dtype,
) -> None:
    """Keys moved both ways are the model's keys before RoPE, rotated there by its own code."""
    engine = tiny_engine(family, dtype=dtype)
    spy = Spy(monkeypatch, engine.model)
    near, far = 3, 19 if family == "phi3-rope-longrope" else 480
    at_near, at_far = spy.run(IDS, near), spy.run(IDS, far)
    tables = engine.frequencies
    shifter = Shifter(engine.layout, engine.layout, tables_from=tables, tables_to=tables)
    for old, new, here, there in ((near, far, at_near, at_far), (far, near, at_far, at_near)):
        for layer, ((before, after, _, _), (_, _, cos, sin)) in enumerate(
            zip(here, there, strict=True)
        ):
            wanted = spy.reference(before, cos, sin)
            got = shifter.moved(after[0], layer=layer, old_first=old, new_first=new)
            if dtype is torch.float32:
                torch.testing.assert_close(got, wanted, atol=KEY_TOLERANCE, rtol=0)
            else:  # three roundings to eight bits: the model's, twice, and ours
                off = (got.float() - wanted.float()).norm() / wanted.float().norm()
                assert float(off) < 2**-7


def test_beyond_the_original_length(
    tiny_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys with LongRoPE's short table are moved to a sequence that has the long one."""
    engine = tiny_engine("phi3-rope-longrope")
    spy, (spec,) = Spy(monkeypatch, engine.model), engine.layout.ropes
    here, there = spy.run(IDS, 2), spy.run(IDS, 100)
    long_table = rope.inverse_frequencies(spec, length=112)
    shifter = Shifter(engine.layout, engine.layout, tables_to=[long_table])
    for layer, ((before, after, _, _), (_, _, cos, sin)) in enumerate(
        zip(here, there, strict=True)
    ):
        got = shifter.moved(after[0], layer=layer, old_first=2, new_first=100)
        wanted = spy.reference(before, cos, sin)
        torch.testing.assert_close(got, wanted, atol=KEY_TOLERANCE, rtol=0)


def test_another_base_and_factor() -> None:
    """Keys of a model are moved to the base, table and factor of another one."""
    sender, receiver = config_of("default", base=10000.0), config_of("yarn", base=500000.0)
    (spec_from, _), (spec_to, _) = spec_of(sender), spec_of(receiver)
    keys = some_keys(6, channels=16)
    at_old = library_keys(sender, keys, 11)
    got = shift_keys(at_old, spec_from=spec_from, spec_to=spec_to, old_first=11, new_first=90)
    assert spec_to.attention_factor > 1.1
    torch.testing.assert_close(got, library_keys(receiver, keys, 90), atol=1e-5, rtol=0)


def library_keys(config: Any, keys: torch.Tensor, first: int) -> torch.Tensor:
    """Keys before RoPE ``[heads, n, dim]``, rotated as a Llama of that configuration does."""
    places = torch.arange(first, first + keys.shape[1])[None]
    cos, sin = LlamaRotaryEmbedding(config)(keys, places)
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    return module.apply_rotary_pos_emb(keys[None], keys[None], cos, sin)[1][0]
