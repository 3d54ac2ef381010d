"""A GGUF file becomes a checkpoint that says the same."""

import dataclasses
import json
import sys
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from kvbaton.errors import UnsupportedModel
from kvbaton.models import BuiltinModel, builtin, convert, install
from kvbaton.models.progress import silent

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(ByteLevel.alphabet())
MERGES = ["1 2", "Ġ 1", "a b"]
VOCABULARY = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TENSORS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a head from half-split to pairs, as GGUF files of Llama models do."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    """Return a tiny random Llama with grouped heads and tied embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(torch.bfloat16).to(torch.float32).eval()


@pytest.fixture(scope="module")
def gguf_file(network: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the network as a GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    config, weights = network.config, network.state_dict()
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCABULARY) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for short, long in TENSORS.items():
            weight = weights[f"model.layers.{layer}.{long}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = interleave(weight, 4 if short == "attn_q" else 2)
            writer.add_tensor(f"blk.{layer}.{short}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ids_of(text: str) -> tuple[int, ...]:
    """Ids of single-character tokens, looked up by hand."""
    return tuple(VOCABULARY.index("Ġ" if c == " " else c) for c in text)


@pytest.fixture(scope="module")
def model(network: LlamaForCausalLM) -> BuiltinModel:
    """Return the catalogue entry that the file fulfils: "a 12" keeps its digits apart."""
    prompt = torch.tensor([ids_of("x1")])
    best = int(network(input_ids=prompt).logits[0, -1].argmax())
    said = VOCABULARY[best] if best < len(SPECIAL) else bytes_of(VOCABULARY[best])
    return dataclasses.replace(
        builtin("smollm2-135m"),
        context_tokens=128,
        reference="a 12",
        reference_ids=ids_of("a 12"),
        prompt="x1",
        next=said,
    )


def bytes_of(token: str) -> str:
    """Text of a byte-level token."""
    from tokenizers.decoders import ByteLevel as Decoder

    return Decoder().decode([token])


def test_the_weights_come_back(
    network: LlamaForCausalLM, gguf_file: Path, model: BuiltinModel, tmp_path: Path
) -> None:
    """Converted weights, permuted rows of q and k included, equal the ones the file was made of."""
    convert.convert(model, gguf_file, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = network.state_dict()
    assert loaded.state_dict().keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in loaded.state_dict().items())


def test_config_serves_old_and_new_readers(
    gguf_file: Path, model: BuiltinModel, tmp_path: Path
) -> None:
    """RoPE base and dtype are written under the names of both generations; stop ids are there."""
    convert.convert(model, gguf_file, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert config["architectures"] == ["LlamaForCausalLM"]
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 2}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"next": "something else"}, "goes on from"),
        ({"reference_ids": (1, 2)}, "tokenizes its reference text"),
    ],
)
def test_a_model_that_says_something_else_is_refused(
    gguf_file: Path, model: BuiltinModel, tmp_path: Path, wrong: dict, sentence: str
) -> None:
    """A conversion that does not reproduce the pinned answers is an error, not a model."""
    with pytest.raises(UnsupportedModel, match=sentence):
        convert.convert(dataclasses.replace(model, **wrong), gguf_file, tmp_path)


def test_an_unknown_pre_tokenizer_is_refused() -> None:
    """How text is split is never guessed."""
    fields = {
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": [1] * len(VOCABULARY),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.pre": "other",
    }
    with pytest.raises(UnsupportedModel, match="'other' is unknown"):
        convert._build_tokenizer(fields)


def test_qwen_text_is_normalized_and_digits_stand_alone() -> None:
    """The qwen2 pre-tokenizer composes accents (NFC) and splits digits, but keeps words whole."""
    fields = {
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(VOCABULARY) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.pre": "qwen2",
    }
    tokenizer = convert._build_tokenizer(fields)
    assert tokenizer.encode("ab12 1").tokens == ["ab", "1", "2", "Ġ", "1"]
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


def test_the_child_process_reports_why_it_failed(tmp_path: Path) -> None:
    """A converter that cannot read its file is an `UnsupportedModel` with its last words."""
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(UnsupportedModel, match="could not be converted") as caught:
        install._convert(builtin("smollm2-135m"), tmp_path / "model.gguf", tmp_path, silent)
    assert caught.value.hint
    assert sys.executable not in caught.value.hint
