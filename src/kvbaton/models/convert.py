"""GGUF file -> checkpoint folder: the child process of a pull.

The tokenizer is built here from the file's own tables, with the pre-tokenizer that the file names:
a generic reader falls back to another one, and then text splits into other tokens than the model
was trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbaton.errors import KvbatonError, UnsupportedModel
from kvbaton.models.catalog import BuiltinModel, builtin
from kvbaton.models.progress import Stage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # token types of the GGUF specification

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def convert(model: BuiltinModel, gguf: Path, out: Path) -> None:
    """Write config, bf16 weights, tokenizer, chat template and generation config to ``out``.

    Raises
    ------
    UnsupportedModel
        The converted model does not say what the catalogue pins.
    """
    fields = _read_fields(gguf)
    _report(Stage.CONVERTING, "tokenizer")
    tokenizer = _build_tokenizer(fields)
    _write_tokenizer(model, fields, tokenizer, out)
    _report(Stage.CONVERTING, "weights")
    _write_weights(model, gguf, tokenizer, out)
    _write_configs(model, tokenizer, out)
    _report(Stage.CHECKING, "tokenizer")
    _check_tokenizer(model, out)


def _report(stage: Stage, note: str) -> None:
    sys.stdout.write(json.dumps({"stage": stage.value, "note": note}) + "\n")
    sys.stdout.flush()


def _read_fields(gguf: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    wanted = ("tokenizer.",)
    reader = GGUFReader(gguf)
    return {k: f.contents() for k, f in reader.fields.items() if k.startswith(wanted)}


def _build_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    texts = fields["tokenizer.ggml.tokens"]
    kinds = fields["tokenizer.ggml.token_type"]
    kept = (_NORMAL, _CONTROL, _USER_DEFINED)
    vocabulary = {
        t: i for i, (t, kind) in enumerate(zip(texts, kinds, strict=True)) if kind in kept
    }
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    _set_pre_tokenizer(tokenizer, fields["tokenizer.ggml.pre"])
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [t for t, k in zip(texts, kinds, strict=True) if k == kind]
        tokenizer.add_tokens([AddedToken(t, normalized=False, special=special) for t in added])
    return tokenizer


def _set_pre_tokenizer(tokenizer: Tokenizer, name: str) -> None:
    from tokenizers import Regex, normalizers, pre_tokenizers

    if name == "smollm":
        first: Any = pre_tokenizers.Digits(individual_digits=True)
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif name == "qwen2":
        first = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated")
        second = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.normalizer = normalizers.NFC()
    else:
        raise UnsupportedModel(f"the pre-tokenizer {name!r} is unknown", at="tokenizer.ggml.pre")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, second])


def _write_tokenizer(
    model: BuiltinModel, fields: dict[str, Any], tokenizer: Tokenizer, out: Path
) -> None:
    tokenizer.save(str(out / "tokenizer.json"))
    template = fields["tokenizer.chat_template"]
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(
        out / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": model.bos,
            "clean_up_tokenization_spaces": False,
            "eos_token": model.eos[0],
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": model.context_tokens,
            "pad_token": model.pad,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def _write_weights(model: BuiltinModel, gguf: Path, tokenizer: Tokenizer, out: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    _report(Stage.CHECKING, "weights")
    ids = torch.tensor([tokenizer.encode(model.prompt, add_special_tokens=False).ids])
    with torch.inference_mode():
        best = int(network(input_ids=ids).logits[0, -1].argmax())
    said = tokenizer.decode([best])
    if said != model.next:
        raise UnsupportedModel(
            f"the converted {model.name} goes on from {model.prompt!r} with {said!r}, "
            f"not with {model.next!r}"
        )
    _report(Stage.CONVERTING, "writing")
    tied = {"lm_head.weight"} if network.config.tie_word_embeddings else set()
    weights = {
        name: tensor.to(torch.bfloat16)
        for name, tensor in network.state_dict().items()
        if name not in tied
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(str(out))


def _write_configs(model: BuiltinModel, tokenizer: Tokenizer, out: Path) -> None:
    """Write configs that every supported transformers release reads alike."""
    eos = [tokenizer.token_to_id(text) for text in model.eos]
    special = {
        "bos_token_id": tokenizer.token_to_id(model.bos),
        "eos_token_id": eos,
        "pad_token_id": tokenizer.token_to_id(model.pad),
    }
    _write_json(out / "generation_config.json", special)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    for gone in (
        "_model_name_or_path",
        "quantization_config",
        "transformers_version",
        "unk_token_id",
    ):
        config.pop(gone, None)
    # Releases before 5 read `rope_theta` and `torch_dtype`, later ones `rope_parameters`, `dtype`.
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    config |= special | {
        "dtype": "bfloat16",
        "eos_token_id": eos[0],
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "torch_dtype": "bfloat16",
    }
    _write_json(out / "config.json", dict(sorted(config.items())))


def _check_tokenizer(model: BuiltinModel, out: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(out), local_files_only=True)
    ids = tuple(tokenizer.encode(model.reference, add_special_tokens=False))
    if ids != model.reference_ids:
        raise UnsupportedModel(f"{model.name} tokenizes its reference text as {list(ids)}")
    if tokenizer.decode(ids) != model.reference:
        raise UnsupportedModel(f"{model.name} does not give its reference text back")
    turn = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    if not text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"):
        raise UnsupportedModel(f"the chat template of {model.name} renders {text!r}")
    if tokenizer.convert_tokens_to_ids("<|im_end|>") != tokenizer.eos_token_id:
        raise UnsupportedModel(f"<|im_end|> does not end a turn of {model.name}")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Convert, reporting stages as JSON lines; a failure is a JSON line too."""
    parser = argparse.ArgumentParser(prog="python -m kvbaton.models.convert")
    parser.add_argument("name")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    try:
        convert(builtin(arguments.name), arguments.gguf, arguments.out)
    except KvbatonError as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
