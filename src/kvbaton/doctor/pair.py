"""The gates between two models: whether the second may take the first one's cache.

``ok`` means that nothing has to be done; ``convertible later`` that a conversion is known and
planned, and text is used until then; ``blocked`` that there is none.  A cache is used only where
the function ids are equal, so every gate must be ok.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvbaton.doctor.facts import Facts
from kvbaton.doctor.gates import Gate, Verdict, rope_text, worst
from kvbaton.types import LayerKind, Mode


@dataclass(frozen=True, slots=True)
class _Question:
    """Something that must be equal; ``show`` is what is shown, ``key`` what is compared."""

    name: str
    show: Callable[[Facts], str]
    verdict: Verdict
    sentence: str
    key: Callable[[Facts], object] | None = None

    def ask(self, sender: Facts, receiver: Facts) -> Gate:
        key = self.key or self.show
        values = self.show(sender), self.show(receiver)
        if key(sender) == key(receiver):
            return Gate(self.name, Verdict.OK, "the same", values)
        return Gate(self.name, self.verdict, self.sentence, values)


def _layers(facts: Facts) -> str:
    return str(facts.number("num_hidden_layers"))


def _ropes(facts: Facts) -> str:
    if facts.layout is None:
        return "unknown"
    return "; ".join(rope_text(rope) for rope in facts.layout.ropes)


def _rope_digest(facts: Facts) -> object:
    from kvbaton.engines.transformers import identity

    return None if facts.layout is None else identity.rope_digest(facts.layout.ropes)


def _tokenizer_digest(facts: Facts) -> object:
    from kvbaton.engines.transformers import identity

    return None if facts.tokenizer is None else identity.tokenizer_digest(facts.tokenizer)


def _tokenizer(facts: Facts) -> str:
    return "unknown" if facts.tokenizer is None else f"{len(facts.tokenizer):,} tokens"


def _template_digest(facts: Facts) -> object:
    from kvbaton.engines.transformers import identity

    return None if facts.tokenizer is None else identity.template_digest(facts.tokenizer)


def _template(facts: Facts) -> str:
    if facts.chat is None:
        return "unknown"
    return "its own" if facts.chat.has_template else "none"


_QUESTIONS = (
    _Question(
        "family",
        lambda facts: str(facts.config.model_type),
        Verdict.LATER,
        "another architecture computes other keys and values; only a trained fuser connects them",
    ),
    _Question(
        "layers", _layers, Verdict.LATER, "layers must be mapped before caches can be compared"
    ),
    _Question(
        "kv heads",
        lambda facts: str(facts.kv_heads),
        Verdict.LATER,
        "heads must be mapped (num_key_value_heads is what counts)",
    ),
    _Question(
        "head dim",
        lambda facts: str(facts.head_dim),
        Verdict.LATER,
        "channels must be mapped",
    ),
    _Question(
        "hidden size",
        lambda facts: f"{facts.number('hidden_size'):,}",
        Verdict.LATER,
        "another size of the same base: its keys and values mean something else",
    ),
    _Question(
        "rope",
        _ropes,
        Verdict.LATER,
        "keys must be un-rotated with the sender's RoPE and rotated with the receiver's",
        _rope_digest,
    ),
    _Question(
        "tokenizer",
        _tokenizer,
        Verdict.BLOCKED,
        "the same ids stand for other texts: use text",
        _tokenizer_digest,
    ),
    _Question(
        "template",
        _template,
        Verdict.LATER,
        "turns are laid out in another way than the receiver was taught",
        _template_digest,
    ),
)


def pair_gates(sender: Facts, receiver: Facts) -> tuple[Gate, ...]:
    """All gates between two models, whatever the first ones say."""
    asked = [question.ask(sender, receiver) for question in _QUESTIONS]
    gates = [_supported(sender, receiver), *asked, _kinds(sender, receiver)]
    gates += [_vocabulary(sender, receiver), _configuration(sender, receiver)]
    gates.append(_dtype(sender, receiver))
    gates.append(_weights(sender, receiver, alike=worst(g.verdict for g in gates) is Verdict.OK))
    return (*gates, _context(sender, receiver))


def _supported(sender: Facts, receiver: Facts) -> Gate:
    refused = [facts for facts in (sender, receiver) if facts.refusal or facts.tokenizer_refusal]
    values = tuple("no" if facts in refused else "yes" for facts in (sender, receiver))
    if not refused:
        return Gate("supported", Verdict.OK, "both can hand their cache over", values)
    reasons = "; ".join(f"{f.name}: {f.refusal or f.tokenizer_refusal}" for f in refused)
    return Gate("supported", Verdict.BLOCKED, reasons, values)


def _kinds(sender: Facts, receiver: Facts) -> Gate:
    """Kinds and windows must be the same and, with as many layers, in the same order."""
    layouts = sender.layout, receiver.layout
    mine, theirs = ([] if x is None else [(s.kind, s.window) for s in x.layers] for x in layouts)
    values = tuple(_kinds_text(layer) for layer in (mine, theirs))
    if set(mine) == set(theirs) and (len(mine) != len(theirs) or mine == theirs):
        return Gate("layer kinds", Verdict.OK, "the same", values)
    return Gate(
        "layer kinds", Verdict.LATER, "window layers keep less than full layers need", values
    )


def _kinds_text(layers: list[tuple[LayerKind, int]]) -> str:
    kinds = sorted(set(layers))
    said = [f"window of {window:,}" if window else kind.value for kind, window in kinds]
    return ", ".join(said) or "unknown"


def _vocabulary(sender: Facts, receiver: Facts) -> Gate:
    """A larger embedding is padding, as long as the tokenizer is the same."""
    values = tuple(f"{facts.number('vocab_size'):,}" for facts in (sender, receiver))
    if values[0] == values[1]:
        return Gate("vocabulary", Verdict.OK, "the same", values)
    if _tokenizer_digest(sender) == _tokenizer_digest(receiver):
        return Gate("vocabulary", Verdict.LATER, "padded differently, with the same tokens", values)
    return Gate("vocabulary", Verdict.BLOCKED, "other tokens: use text", values)


def _configuration(sender: Facts, receiver: Facts) -> Gate:
    """Everything else that the configuration says of the function."""
    from kvbaton.engines.transformers import identity

    mine, theirs = (identity.config_facts(facts.config) for facts in (sender, receiver))
    differing = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
    if not differing:
        return Gate("configuration", Verdict.OK, "the same")
    shown = ", ".join(differing[:6]) + (", ..." if len(differing) > 6 else "")
    return Gate("configuration", Verdict.LATER, f"differs in {shown}")


def _dtype(sender: Facts, receiver: Facts) -> Gate:
    values = tuple(facts.stored_dtype for facts in (sender, receiver))
    return Gate("dtype", Verdict.OK, "load both in the same one (--dtype)", values)


def _weights(sender: Facts, receiver: Facts, *, alike: bool) -> Gate:
    """Weights are read only where everything else is the same."""
    if not alike:
        return Gate("weights", Verdict.LATER, "other weights: other models")
    if sender.folder is not None and sender.folder == receiver.folder:
        return Gate("weights", Verdict.OK, "the same files")
    digests = sender.weights_digest(), receiver.weights_digest()
    values = tuple(digest[:12] or "not here" for digest in digests)
    if "" in digests:
        return Gate(
            "weights", Verdict.LATER, "not compared: only weights in a folder can be", values
        )
    if digests[0] == digests[1]:
        return Gate("weights", Verdict.OK, "the same bytes", values)
    return Gate("weights", Verdict.LATER, "a fine-tune, or other weights of the same shape", values)


def _context(sender: Facts, receiver: Facts) -> Gate:
    lengths = tuple(f.number("max_position_embeddings") for f in (sender, receiver))
    values = tuple(f"{length:,} tokens" for length in lengths)
    if lengths[1] >= lengths[0]:
        return Gate("context", Verdict.OK, "whatever the sender holds fits the receiver", values)
    return Gate("context", Verdict.OK, "longer contexts fall back when they are taken", values)


_MODES = {
    Mode.CONTINUE: "the receiver goes on in the sender's conversation",
    Mode.SHARED_PREFIX: "the common preamble is computed once",
    Mode.SLICE: "spans of the sender's cache behind the receiver's own prefix",
}


def mode_gates(gates: tuple[Gate, ...]) -> tuple[Gate, ...]:
    """What the gates between two models mean for each mode, and that text always works."""
    verdict = worst(gate.verdict for gate in gates)
    against = [gate.name for gate in gates if gate.verdict is not Verdict.OK]
    why = f"because of {', '.join(against)}" if against else "the function is the same"
    found = []
    for mode, meaning in _MODES.items():
        reached = worst([verdict, Verdict.LATER]) if mode is Mode.SLICE else verdict
        said = "slices are not supported yet" if reached is not verdict else why
        found.append(Gate(mode.value, reached, f"{meaning}: {said}"))
    return (*found, Gate("text", Verdict.OK, "the receiver prefills the text itself"))
