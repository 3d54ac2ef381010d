"""What cannot be handed over faithfully is refused, with the reason that is the right one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.engines.chat_tokenizers import word_tokenizer
from tests.engines.families import FAMILIES, build
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvbaton.engines.transformers import compat, layout
from kvbaton.engines.transformers.load import load_checkpoint, parse_dtype, wrap_model
from kvbaton.errors import InputError, ModelUnavailable, UnsupportedLayout, UnsupportedModel

REFUSED = {
    "Mamba": "state-space",
    "Mamba2": "state-space",
    "Jamba": "state-space",
    "Bamba": "state-space",
    "FalconH1": "state-space",
    "RecurrentGemma": "state-space or recurrent",
    "DeepseekV2": "MLA",
    "DeepseekV3": "MLA",
    "DeepseekV32": "indexer",
    "GlmMoeDsa": "indexer",
    "Gemma3n": "share the keys and values",
    "Gemma3nText": "share the keys and values",
    "Qwen3Next": "linear-attention",
    "MiniMax": "linear-attention",
    "Qwen2VL": "M-RoPE",
    "Qwen2_5_VL": "M-RoPE",
    "T5": "cross-attention",
    "Bart": "cross-attention",
    "Whisper": "cross-attention",
    "Llama4": "chunked",
    "Llama4Text": "chunked",
    "GPT2": "learned positions",
    "OPT": "learned positions",
    "GPTNeo": "learned positions",
    "Bloom": "ALiBi",
    "Mpt": "ALiBi",
    "Gemma3": "more than text",
    "Phi": "not on the list of tested ones",
    "Mixtral": "not on the list of tested ones",
}
"""Configuration class without its suffix -> words of the reason."""
KNOWN = [name for name in REFUSED if hasattr(transformers, f"{name}Config")]
"""Those that the installed version has; the newest has them all."""


def config_of(name: str) -> Any:
    """The default configuration of a family."""
    return getattr(transformers, f"{name}Config")()


def test_the_newest_version_has_every_refused_family() -> None:
    """No family in the table above is there only by a slip of its name."""
    if compat.version().startswith("5.24"):
        assert set(REFUSED) == set(KNOWN)
    assert len(KNOWN) >= len(REFUSED) - 2


@pytest.mark.parametrize("name", KNOWN)
def test_the_reason_is_the_right_one(name: str) -> None:
    """A model of a family whose cache is something else is refused in words that fit it."""
    config = config_of(name)
    with pytest.raises(UnsupportedLayout, match=REFUSED[name]) as caught:
        layout.require_supported(config)
    assert str(config.model_type) in caught.value.sentence
    assert caught.value.at == "$.model_type"


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_families_are_not_refused(family: str) -> None:
    """The white list holds what is tested, and nothing speaks against those families."""
    assert layout.refusal(FAMILIES[family]()) is None


def test_every_listed_family_is_tested() -> None:
    """Each family on the white list has a tiny model that the tests hand over."""
    assert {FAMILIES[family]().model_type for family in FAMILIES} == set(layout.FAMILIES)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, "later tokens"),
        ("llama", {"is_causal": False}, "later tokens"),
        ("llama", {"add_cross_attention": True}, "cross-attention"),
        ("qwen2", {"layer_types": ["linear_attention"] * 4}, "neither full nor window"),
        ("qwen3", {"num_kv_shared_layers": 2}, "share the keys"),
        ("qwen2", {"rope_parameters": {"mrope_section": [2, 3, 3]}}, "M-RoPE"),
    ],
)
def test_a_listed_family_may_still_be_refused(
    family: str, changes: dict[str, Any], words: str
) -> None:
    """Settings that change what is cached are refused, whatever the family's name."""
    config = FAMILIES[family]()
    for name, value in changes.items():
        setattr(config, name, value)
    assert words in str(layout.refusal(config))


def test_a_window_of_one_is_refused() -> None:
    """A window that keeps no keys and values has nothing to hand over."""
    config = FAMILIES["mistral"]()
    config.sliding_window = 1
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedLayout, match="window of 1"):
        wrap_model(model, word_tokenizer())


def test_wrapping_an_unsupported_model() -> None:
    """A model that the user has loaded is refused like one that we load; no hook stays behind."""
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=320)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedLayout, match="learned positions"):
        wrap_model(model, word_tokenizer())
    assert not model.get_input_embeddings()._forward_hooks


def test_loading_an_unsupported_model_reads_no_weights(tmp_path: Path) -> None:
    """The configuration alone is enough to refuse: there are no weights in this folder."""
    transformers.MambaConfig().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedLayout, match="state-space"):
        load_checkpoint(tmp_path, offline=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_odd_dtypes_are_refused(dtype: torch.dtype) -> None:
    """A cache in a dtype that segments do not know is refused."""
    with pytest.raises(UnsupportedLayout, match="are not handed over"):
        layout.build_layout(build("llama"), dtype)
    with pytest.raises(UnsupportedModel, match="unknown dtype 'int8'"):
        parse_dtype("int8")


def test_quantized_checkpoints_are_refused(checkpoint: Path) -> None:
    """A configuration that says how the weights are quantized is refused before they are read."""
    config = FAMILIES["llama"]()
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    config.save_pretrained(checkpoint)
    with pytest.raises(UnsupportedModel, match="quantized"):
        load_checkpoint(checkpoint, offline=True)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("is_quantized", True), ("hf_quantizer", object()), ("quantization_config", {"bits": 4})],
)
def test_quantized_models_are_refused(attribute: str, value: Any) -> None:
    """A model that was quantized when it was loaded is refused."""
    model = build("llama")
    setattr(model, attribute, value)
    with pytest.raises(UnsupportedModel, match="quantized"):
        wrap_model(model, word_tokenizer())


def test_a_model_on_two_devices_is_refused() -> None:
    """A model that accelerate has spread is refused; one that it has placed whole is not."""
    model = build("llama")
    model.hf_device_map = {"model": 0, "lm_head": "cpu"}
    with pytest.raises(UnsupportedModel, match="spread over 2 devices"):
        wrap_model(model, word_tokenizer())
    model.hf_device_map = {"": "cpu"}
    wrap_model(model, word_tokenizer()).close()


class _Lora(torch.nn.Linear):
    """Stands for a layer that PEFT has put into a model."""

    __module__ = "peft.tuners.lora.layer"


def _declared(model: Any) -> None:
    model.peft_config = {"default": object()}


def _loaded(model: Any) -> None:
    model._hf_peft_config_loaded = True


def _injected(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj = _Lora(64, 64, bias=False)


@pytest.mark.parametrize("put", [_declared, _loaded, _injected])
def test_adapters_are_refused(put: Callable[[Any], None]) -> None:
    """An adapter that is not merged is refused, in whichever way PEFT has put it there."""
    model = build("llama")
    put(model)
    with pytest.raises(UnsupportedModel, match="adapter") as caught:
        wrap_model(model, word_tokenizer())
    assert "merge" in caught.value.hint


def test_an_adapter_that_comes_later_is_refused() -> None:
    """A model that gets its adapter while it is in use has no function id any more."""
    model = build("llama")
    engine = wrap_model(model, word_tokenizer())
    assert engine.function.digest
    _injected(model)
    with pytest.raises(UnsupportedModel, match="adapter"):
        _ = engine.function


def ignoring(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
    """An attention kernel that forgets the mask."""
    return sdpa_attention_forward(module, query, key, value, None, **kwargs)


@pytest.fixture
def maskless() -> str:
    """The name under which that kernel is registered."""
    AttentionInterface.register("maskless", ignoring)
    AttentionMaskInterface.register("maskless", sdpa_mask)
    return "maskless"


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_kernel_that_ignores_masks_is_refused(maskless: str, family: str) -> None:
    """Wrapping a model proves on three tokens that its kernel honours a mask."""
    model = build(family, attention=maskless)
    with pytest.raises(UnsupportedModel, match="'maskless' does not honour a mask"):
        wrap_model(model, word_tokenizer())
    assert not model.get_input_embeddings()._forward_hooks


def test_loading_with_a_kernel_that_ignores_masks(maskless: str, checkpoint: Path) -> None:
    """Loading proves it as well, and says what to do."""
    with pytest.raises(UnsupportedModel) as caught:
        load_checkpoint(checkpoint, attention=maskless, dtype="float32", offline=True)
    assert "sdpa" in caught.value.hint
    load_checkpoint(checkpoint, attention="eager", dtype="float32", offline=True).close()


def test_a_model_that_looks_at_nothing_is_refused() -> None:
    """If no token influences another, the proof of the mask proves nothing: refused."""
    model = build("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    with pytest.raises(UnsupportedModel, match="0 without"):
        wrap_model(model, word_tokenizer())


@pytest.mark.parametrize("version", ["4.56.2", "5.25.0", "6.0.0"])
def test_versions_outside_the_range_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Another version of transformers than the tested ones is refused with the command to run."""
    monkeypatch.setattr(compat, "version", lambda: version)
    with pytest.raises(UnsupportedModel, match=version) as caught:
        wrap_model(build("llama"), word_tokenizer())
    assert "pip install" in caught.value.hint


def test_a_checkpoint_that_lacks_weights_is_refused(checkpoint: Path) -> None:
    """Weights that are not in the files are not made up: the first is named."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match=r"lack 1 weights, such as model\.layers\.1.*k_proj"):
        load_checkpoint(checkpoint, offline=True)


@pytest.mark.parametrize("kept_bytes", [0, 4, 5_000])
def test_a_truncated_checkpoint_is_refused(checkpoint: Path, kept_bytes: int) -> None:
    """A weight file that ends too early is our own error, not the library's."""
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    with pytest.raises(ModelUnavailable, match="cannot load"):
        load_checkpoint(checkpoint, offline=True)


def test_a_checkpoint_of_another_shape_is_refused(checkpoint: Path) -> None:
    """Weights that do not fit the configuration are our own error, not the library's."""
    config = FAMILIES["llama"]()
    config.hidden_size = 128
    config.save_pretrained(checkpoint)
    with pytest.raises(ModelUnavailable, match="cannot load"):
        load_checkpoint(checkpoint, offline=True)


def test_a_checkpoint_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Weights alone are not enough: ids mean nothing without their tokenizer."""
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailable, match="cannot load"):
        load_checkpoint(tmp_path, offline=True)


@pytest.mark.parametrize("device", ["nonsense", "cpu:x"])
def test_a_device_that_does_not_exist_is_refused(checkpoint: Path, device: str) -> None:
    """A device that torch does not know is the caller's error."""
    with pytest.raises(InputError, match="cannot use device"):
        load_checkpoint(checkpoint, device=device, offline=True)
