"""The gates of one model: what must be so for its cache to be handed over at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvbaton.doctor.facts import Facts
from kvbaton.types import JSON, KVLayout, RopeSpec


class Verdict(StrEnum):
    """From best to worst."""

    OK = "ok"
    LATER = "convertible later"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Gate:
    """One row: what was looked at, what the models have there, and what follows."""

    name: str
    verdict: Verdict
    sentence: str
    values: tuple[str, ...] = ()

    def to_json(self) -> JSON:
        """``{"gate", "verdict", "sentence", "values"}``."""
        return {
            "gate": self.name,
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "values": list(self.values),
        }


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several; ok where there are none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.OK)


def model_gates(facts: Facts) -> tuple[Gate, ...]:
    """All gates of one model, whatever the first ones say."""
    return tuple(
        gate(facts)
        for gate in (
            _family, _layers, _window, _rope, _heads, _head_dim, _dtype, _weights, _tokenizer,
            _template, _length,
        )
    )  # fmt: skip


def _gate(name: str, value: str, sentence: str = "") -> Gate:
    return Gate(name, Verdict.OK, sentence, (value,))


def _blocked(name: str, value: str, sentence: str) -> Gate:
    return Gate(name, Verdict.BLOCKED, sentence, (value,))


def _with_layout(
    name: str, facts: Facts, value: Callable[[KVLayout], str], sentence: str = ""
) -> Gate:
    """A gate that says something only where the layout is known."""
    if facts.layout is None:
        return _blocked(name, "unknown", "no layout can be stated for this model")
    return _gate(name, value(facts.layout), sentence)


def _family(facts: Facts) -> Gate:
    kind = str(facts.config.model_type)
    if facts.refusal:
        return _blocked("family", kind, facts.refusal)
    return _gate("family", kind, "on the list of families whose hand-off is tested bit for bit")


def _layers(facts: Facts) -> Gate:
    return _with_layout("layers", facts, layers_text)


def layers_text(layout: KVLayout) -> str:
    """``30 full`` or ``13 full, 13 window``."""
    counts = Counter(spec.kind.value for spec in layout.layers)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _window(facts: Facts) -> Gate:
    return _with_layout("attention window", facts, window_text)


def window_text(layout: KVLayout) -> str:
    """Windows of the window layers, in tokens."""
    windows = sorted({spec.window for spec in layout.layers if spec.window})
    return ", ".join(f"{window:,} tokens" for window in windows) or "none"


def _rope(facts: Facts) -> Gate:
    return _with_layout("rope", facts, lambda layout: "; ".join(map(rope_text, layout.ropes)))


def rope_text(rope: RopeSpec) -> str:
    """Kind, base, channels and, where there is one, the scaling."""
    scaling = ", ".join(f"{name} {value}" for name, value in rope.parameters)
    text = f"{rope.kind}, base {rope.base:,.0f}, {rope.rotary_dim} channels, {rope.pairing}"
    return f"{text}, {scaling}" if scaling else text


def _heads(facts: Facts) -> Gate:
    return _gate(
        "kv heads",
        str(facts.kv_heads),
        f"num_key_value_heads; its {facts.query_heads} query heads do not count",
    )


def _head_dim(facts: Facts) -> Gate:
    return _gate("head dim", str(facts.head_dim))


def _dtype(facts: Facts) -> Gate:
    return _with_layout(
        "dtype", facts, lambda layout: layout.dtype, f"the checkpoint has {facts.stored_dtype}"
    )


def _weights(facts: Facts) -> Gate:
    if facts.quantization:
        return _blocked(
            "weights",
            facts.quantization,
            "quantized models are not supported: their function cannot be identified yet",
        )
    files = facts.weight_files
    if facts.folder is not None and not files:
        return _blocked("weights", "none", "the folder holds no weights")
    size_bytes = sum(file.stat().st_size for file in files)
    value = f"{size_bytes / 1e6:,.0f} MB in {len(files)} files" if files else "not looked at"
    return _gate("weights", value, "not quantized")


def _tokenizer(facts: Facts) -> Gate:
    if facts.tokenizer_refusal:
        return _blocked("tokenizer", "unknown", facts.tokenizer_refusal)
    return _gate("tokenizer", f"{len(facts.tokenizer):,} tokens", "it says which text an id is")


def _template(facts: Facts) -> Gate:
    if facts.chat is None:
        return _blocked("template", "unknown", "there is no tokenizer to render with")
    if not facts.chat.has_template:
        return _gate("template", "none", "the plain format is used")
    said = "a system role" if facts.chat.has_system_role else "no system role"
    default = facts.chat.default_system_prompt
    return _gate("template", said, f"default system prompt: {default}" if default else "")


def _length(facts: Facts) -> Gate:
    longest = facts.number("max_position_embeddings")
    if longest < 1:
        return _blocked("context", "unknown", "the longest sequence is not stated")
    return _gate("context", f"{longest:,} tokens", "prompt and answer together")
