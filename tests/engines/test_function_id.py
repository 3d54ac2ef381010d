"""The function id is the same wherever the function is, and another one where it is not."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.engines.chat_tokenizers import CHATML, DEFAULT_SYSTEM, word_tokenizer
from tests.engines.families import FAMILIES, build, tiny
from tests.engines.function_ids import all_ids, id_of, loaded

from kvbaton.engines.transformers.load import wrap_model

ROOT = Path(__file__).parents[2]
GOLDEN = {
    "llama": "fa068df9405ba744",
    "llama-rope-llama3": "6a59009ba3f13d7e",
    "llama-rope-linear": "e38b058612a78653",
    "llama-rope-dynamic": "96982b35234d0743",
    "llama-rope-yarn": "82a15c055099e3eb",
    "smollm": "e9bf8da2703e6c48",
    "qwen2": "06cb58a1f0d44eb9",
    "qwen2-window": "069babcd9008678a",
    "qwen3": "09ef5ad4950b08f7",
    "mistral": "e878e87dc2d320e7",
    "gemma2": "fd29a671ebf6773b",
    "gemma3": "0910d681763c76c7",
    "phi3": "4016c44f9dbc514b",
    "phi3-window": "743af2cf69c12dce",
    "phi3-rope-longrope": "f92c2b0d8a97d7a7",
    "gpt_neox": "8eab4914a4ad9a29",
    "olmo2": "7339e6a717e0f729",
    "odd heads": "13b999e65d9260ab",
}
"""Of tiny models with counted weights; the same under every supported version of transformers."""
SMOLLM2 = {"f32": "0414e3381807f1b1", "bf16": "f7e805cfab81f21f"}
"""Of the built-in model, as it is converted from the pinned download."""


# -- the same everywhere --------------------------------------------------------------------------


def test_golden_ids() -> None:
    """Ids of all families are the written ones: under every version, on every machine."""
    assert all_ids() == GOLDEN


def test_another_process_has_the_same_ids() -> None:
    """Hash seed and vector instructions of a process have no part in the id."""
    settings = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.function_ids"],
        cwd=ROOT,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == GOLDEN


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_real_models_id(request: pytest.FixtureRequest, dtype: str) -> None:
    """The built-in SmolLM2 has the written id in each dtype."""
    engine = request.getfixturevalue(f"smollm2_{dtype}")
    assert engine.function.digest[:16] == SMOLLM2[dtype]


def test_loading_and_wrapping_give_the_same_id(checkpoint: Path) -> None:
    """How a model came into memory has no part in its id."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    wrapped = wrap_model(model, tokenizer, name="another name")
    assert wrapped.function == loaded(checkpoint).function
    assert wrapped.layout == loaded(checkpoint).layout
    assert wrapped.function.digest == id_of(build("llama"))


def test_every_family_has_another_id() -> None:
    """No two of the tiny models share an id."""
    assert len(set(GOLDEN.values())) == len(GOLDEN) == len(FAMILIES) + 1


# -- what changes it ------------------------------------------------------------------------------


def with_config(family: str = "llama", **changes: Any) -> Any:
    """A tiny model with a changed configuration and the weights of the unchanged one."""
    config = FAMILIES[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(build(family).state_dict())
    return model.eval()


def longrope(**changes: Any) -> Any:
    """A Phi-3 with another set of RoPE factors."""
    config = FAMILIES["phi3-rope-longrope"]()
    name = "rope_parameters" if hasattr(config, "rope_parameters") else "rope_scaling"
    setattr(config, name, getattr(config, name) | changes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(build("phi3-rope-longrope").state_dict())
    return model.eval()


def edited_table() -> Any:
    """A Llama whose RoPE table is no longer the one that its configuration says."""
    model = build("llama")
    for name, buffer in model.model.rotary_emb.named_buffers():
        assert name.endswith("inv_freq")
        buffer.mul_(0.5)
    return model


def another_base() -> Any:
    """A Llama with the weights of the tiny one and another RoPE base."""
    config = transformers.LlamaConfig(**{**FAMILIES["llama"]().to_dict(), **_base(20000.0)})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(build("llama").state_dict())
    return model.eval()


def _base(theta: float) -> dict[str, Any]:
    if hasattr(FAMILIES["llama"](), "rope_parameters"):
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    return {"rope_theta": theta}


PARTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "dtype": ("dtype", lambda: build("llama", torch.bfloat16)),
    "norm": ("config", lambda: with_config(rms_norm_eps=1e-5)),
    "activation": ("config", lambda: with_config(hidden_act="gelu")),
    "base": ("rope", another_base),
    "table": ("rope", edited_table),
}


@pytest.mark.parametrize("change", PARTS)
def test_what_changes_the_function_changes_the_id(change: str) -> None:
    """Each of these changes shows in the part that names it, and in the id."""
    part, make = PARTS[change]
    tokenizer = word_tokenizer()
    one, other = wrap_model(build("llama"), tokenizer), wrap_model(make(), tokenizer)
    assert part in one.function.differing(other.function)
    assert one.function.digest != other.function.digest


def test_factors_for_long_contexts_count() -> None:
    """Two models that differ only beyond a length have different ids: the table changes there."""
    plain = id_of(longrope())
    assert plain == id_of(longrope())
    assert id_of(longrope(long_factor=[9.0] * 8)) != plain


def test_one_added_token_changes_the_id() -> None:
    """A tokenizer with one token more gives other ids for some text."""
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["quick"])
    one, other = (wrap_model(build("llama"), t) for t in (word_tokenizer(), tokenizer))
    assert one.function.differing(other.function) == ("tokenizer",)


def test_another_template_changes_the_id() -> None:
    """The template decides which ids a conversation has."""
    one, other = tiny("llama", template=CHATML), tiny("llama", template=DEFAULT_SYSTEM)
    assert one.function.differing(other.function) == ("template",)


def _added(model: Any) -> None:
    model.model.layers[2].mlp.up_proj.weight.add_(1e-3)


def _one_element(model: Any) -> None:
    model.model.layers[0].self_attn.k_proj.weight[3, 5] += 1e-3


def _scaled_data(model: Any) -> None:
    model.lm_head.weight.data.mul_(1.001)


def _merged_data(model: Any) -> None:
    weight = model.model.layers[3].self_attn.q_proj.weight
    weight.data += torch.full((64, 1), 1e-3) @ torch.ones(1, 64)


def _replaced_data(model: Any) -> None:
    model.model.norm.weight.data = torch.full((64,), 1.5)


def _replaced_parameter(model: Any) -> None:
    model.model.norm.weight = torch.nn.Parameter(torch.full((64,), 1.5))


def _swapped(model: Any) -> None:
    first, second = (model.model.layers[i].mlp.up_proj.weight for i in (0, 1))
    first.data, second.data = second.data, first.data


def _loaded_state(model: Any) -> None:
    model.load_state_dict({k: v * 1.001 for k, v in model.state_dict().items()})


def _trained(model: Any) -> None:
    with torch.enable_grad():
        model(input_ids=torch.tensor([[3, 4]])).logits.sum().backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()


def _replaced_module(model: Any) -> None:
    model.model.layers[1].mlp = copy.deepcopy(model.model.layers[0].mlp)


def _replaced_layer(model: Any) -> None:
    layers = model.model.layers
    layers[2] = copy.deepcopy(layers[3])
    layers[2].self_attn.layer_idx = 2


EDITS = (
    _added, _one_element, _scaled_data, _merged_data, _replaced_data, _replaced_parameter,
    _swapped, _loaded_state, _trained, _replaced_module, _replaced_layer,
)  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_weights_edited_in_memory_are_noticed(edit: Callable[[Any], None]) -> None:
    """An engine in use has another id after its weights were edited, also through `.data`."""
    engine = tiny("llama")
    before = engine.function
    with torch.no_grad():
        edit(engine.model)
    assert before.differing(engine.function) == ("weights",)
    assert engine.function == engine.function


def test_an_edit_that_is_undone_gives_the_first_id_again() -> None:
    """The id is that of the weights, not of their history."""
    engine = tiny("llama")
    before = engine.function
    weight = engine.model.model.norm.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(2)
        assert engine.function != before
        weight.copy_(kept)
    assert engine.function == before


def test_an_unchanged_model_is_hashed_once(hashed: list[int]) -> None:
    """Asking again costs no second pass over the weights."""
    engine = tiny("llama")
    engine.forward(engine.new_cache(4), [3, 4])
    assert len({engine.function for _ in range(5)}) == 1
    assert hashed == [1]


def test_a_tokenizer_that_grows_while_in_use_is_noticed(hashed: list[int]) -> None:
    """Added tokens and a replaced template give another id without hashing the weights again."""
    engine = tiny("llama")
    before = engine.function
    engine.tokenizer.add_tokens(["quick"])
    assert before.differing(engine.function) == ("tokenizer",)
    engine.tokenizer.chat_template = DEFAULT_SYSTEM
    assert before.differing(engine.function) == ("template", "tokenizer")
    assert hashed == [1]


# -- what does not change it ----------------------------------------------------------------------


def _truncate(engine: Any) -> None:
    engine.tokenizer("Hello there", truncation=True, max_length=2)


def _pad(engine: Any) -> None:
    engine.tokenizer(["Hello", "Hello there"], padding=True, return_tensors="pt")


def _no_cache(engine: Any) -> None:
    engine.model.config.use_cache = False


def _other_padding_token(engine: Any) -> None:
    engine.model.config.pad_token_id = 2


def _warm_generation(engine: Any) -> None:
    engine.model.generation_config.temperature = 0.7


def _run(engine: Any) -> None:
    engine.forward(engine.new_cache(4), [3, 4, 5])


@pytest.mark.parametrize(
    "use", [_truncate, _pad, _no_cache, _other_padding_token, _warm_generation, _run]
)
def test_use_does_not_change_the_id(use: Callable[[Any], None]) -> None:
    """Calls of the tokenizer, generation settings and forward passes leave the id alone."""
    engine = tiny("llama")
    before = engine.function
    use(engine)
    assert engine.function == before
    assert id_of(engine.model, engine.tokenizer) == before.digest


@pytest.mark.parametrize(
    "options",
    [{"attention": "eager"}, {"deterministic": True}, {"deterministic": True, "threads": 2}],
)
def test_how_it_is_computed_does_not_change_the_id(options: dict[str, Any]) -> None:
    """Kernel, chunks and threads are recorded by the producer and not compared."""
    plain, other = tiny("llama"), tiny("llama", **options)
    assert other.function == plain.function
    assert other.producer != plain.producer


def test_the_producer_says_how_it_is_computed() -> None:
    """Engine, versions, kernel, chunks and threads stand in the record, sorted by name."""
    record = dict(tiny("llama", deterministic=True, threads=3).producer)
    assert record["engine"] == "transformers"
    assert record["transformers"] == transformers.__version__
    assert (record["kernel"], record["device"]) == ("sdpa", "cpu")
    assert (record["deterministic"], record["chunk"], record["threads"]) == ("1", "256", "3")
    plain = dict(tiny("llama").producer)
    assert (plain["deterministic"], plain["chunk"], plain["threads"]) == ("0", "0", "1")
    assert list(plain) == sorted(plain)
