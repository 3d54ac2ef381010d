"""``bench seals``: what it costs that a baton can be trusted, part by part and in a whole take.

Sender and receiver are those of ``bench ttft``.  Per context the receiver takes the same baton
with and without signature, digests and the check of layer 0, from the same store, and once more
from an encrypted one; beside them the floor and the prefill of the same tokens.  Then a baton of
8,000 tokens is signed, verified, hashed and encrypted by itself.
``docs/guides/benchmarks.md`` says what each figure is.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import ClassVar

from kvbaton.bench.figures import PHASES, Target, checked, median_of
from kvbaton.bench.machine import SHARED_MEMORY, environment, fast_folder, load
from kvbaton.bench.ttft import ROOM_BYTES, Pair, Plan, Samples, Say, turned
from kvbaton.errors import InputError
from kvbaton.types import JSON

TOKENS = (2048, 4096)
DTYPES = ("bfloat16",)
REPEATS = 15
PREFILLS = 3
"""Repeats in which the prefill runs, too."""
SEALED_TOKENS = 8000
"""Tokens of the baton whose parts are measured by themselves."""

TAKES = {"with": "take", "without": "take_bare", "encrypted": "take_encrypted"}
"""How a baton is taken -> the receiver's command."""
_PARTS = ("sign", "sign_alone", "verify", "parse_envelope", "verify_alone", "parse_manifest")


def measure_seals(plan: Plan, say: Say, *, sealed_tokens: int = SEALED_TOKENS) -> JSON:
    """Run the plan, whose ``decode_tokens`` do not count; ``say`` is told what is being measured.

    Parameters
    ----------
    sealed_tokens
        Tokens of the baton that is signed, verified, hashed and encrypted by itself; as many as
        the model can attend to where that is less.

    Returns
    -------
    JSON
        ``{"model", "sign_ms", "verify_ms", "hash_gb_s", "blake3_gb_s", "encrypt_gb_s",
        "layer0_share_of_prefill", "over_floor_with", "over_floor_without", "rows", "seals",
        "summary", "environment", "settings"}``: medians; GB are 10^9 bytes.  Figures at the top
        are the worst of their rows.

    Raises
    ------
    InputError
        Fewer than 1 token to seal.
    WindowExceeded
        A context that the model cannot attend to.
    """
    if sealed_tokens < 1:
        raise InputError("a baton of no tokens cannot be measured")
    machine = environment()
    folder = fast_folder(2 * ROOM_BYTES)
    rows: list[JSON] = []
    seals: list[JSON] = []
    versions: JSON = {}
    with tempfile.TemporaryDirectory(prefix="kvbaton-bench-", dir=folder) as place:
        for dtype in plan.dtypes:
            with _SealPair(plan, dtype, Path(place), say) as pair:
                rows.extend(pair.rows())
                seals.append(pair.seals(sealed_tokens))
                versions = pair.versions
    return {
        "model": plan.model,
        **_worst(rows, seals),
        "rows": rows,
        "seals": seals,
        "summary": {"targets": checked(TARGETS, rows) + checked(SEAL_TARGETS, seals)},
        "environment": machine | {"load_after": load(), **versions},
        "settings": {
            "new_tokens": plan.new_tokens,
            "repeats": plan.repeats,
            "shared_memory": folder == SHARED_MEMORY,
        },
    }


class _SealPair(Pair):
    """Sender and receiver that can do without what they do for trust."""

    roles: ClassVar[tuple[str, str]] = ("sealing sender", "sealing receiver")

    def _row(self, tokens: int, *, decode: bool) -> JSON:
        what = f"{self._dtype}, {tokens} tokens"
        self._say(f"{what}: preparing")
        prepared = self.sender.do("prepare", tokens=tokens)
        sent = self.sender.do("hand_off", keep=False)
        batons = dict.fromkeys(TAKES, sent["baton"])
        batons["encrypted"] = self.sender.do("hand_off_encrypted")["baton"]
        prepared |= self.receiver.do(
            "prepare", baton=sent["baton"], new_tokens=self._plan.new_tokens
        )
        samples: Samples = {rival: [] for rival in _rivals(0)}
        for repeat in range(self._plan.repeats + 1):
            self._say(f"{what}: " + (f"repeat {repeat}" if repeat else "warming up"))
            for rival in turned(_rivals(repeat), repeat):
                named = {"baton": batons[rival]} if rival in TAKES else {}
                sample = self.receiver.do(TAKES.get(rival, rival), **named)
                if repeat:
                    samples[rival].append(sample)
        return row_of(self._dtype, prepared, samples)

    def seals(self, tokens: int) -> JSON:
        """The parts of a seal by themselves."""
        tokens = min(tokens, self.max_tokens - self._plan.new_tokens)
        what = f"{self._dtype}, {tokens} tokens"
        self._say(f"{what}: preparing what is signed and encrypted")
        self.sender.do("prepare", tokens=tokens)
        baton = self.sender.do("hand_off", keep=False)["baton"]
        parts, passes = [], []
        for repeat in range(self._plan.repeats + 1):
            self._say(f"{what}: sealing, " + (f"repeat {repeat}" if repeat else "warming up"))
            part = self.sender.do("seal_speed", baton=baton)
            of_bytes = self.sender.do("byte_speed", baton=baton, turn=repeat)
            if repeat:
                parts.append(part)
                passes.append(of_bytes)
        return seals_of(self._dtype, tokens, parts, passes)


def _rivals(repeat: int) -> tuple[str, ...]:
    """Who runs in a repeat: the prefill, which takes longer than all others, only in a few."""
    return (*TAKES, "floor", "prefill") if repeat <= PREFILLS else (*TAKES, "floor")


def row_of(dtype: str, prepared: JSON, samples: Mapping[str, Sequence[JSON]]) -> JSON:
    """One context; every ``_s`` is a median of seconds."""
    seconds = {f"{rival}_s": median_of(samples[rival], "seconds") for rival in _rivals(0)}
    phases = {
        take: {p: statistics.median(s["phases"].get(p, 0.0) for s in samples[take]) for p in PHASES}
        for take in TAKES
    }
    over = {f"over_floor_{take}": seconds[f"{take}_s"] / seconds["floor_s"] for take in TAKES}
    return {
        "tokens": prepared["tokens"],
        "new_tokens": prepared["new_tokens"],
        "dtype": dtype,
        "kv_bytes": prepared["kv_bytes"],
        **seconds,
        "memcpy_s": median_of(samples["floor"], "memcpy_s"),
        "forward_s": median_of(samples["floor"], "forward_s"),
        **over,
        "with_over_without": seconds["with_s"] / seconds["without_s"],
        "encrypted_over_with": seconds["encrypted_s"] / seconds["with_s"],
        "layer0_s": phases["with"]["probe"],
        "layer0_share_of_prefill": phases["with"]["probe"] / seconds["prefill_s"],
        "phases": phases,
        "same_first_token": len({s["token"] for t in TAKES for s in samples[t]}) == 1,
        "samples": {rival: [s["seconds"] for s in several] for rival, several in samples.items()},
    }


def seals_of(dtype: str, tokens: int, parts: Sequence[JSON], passes: Sequence[JSON]) -> JSON:
    """The parts of a seal: milliseconds of a signature, GB/s of digests and ciphers; medians."""
    first, size_bytes = parts[0], passes[0]["size_bytes"]
    samples = {name: [s for part in parts for s in part["seconds"][name]] for name in _PARTS}
    speeds = {
        name: [size_bytes / one["seconds"][name] / 1e9 for one in passes]
        for name in ("digest", "blake3", "encrypt", "decrypt")
    }
    hashed = [one["seconds"]["blake3"] / one["seconds"]["digest"] for one in passes]
    return {
        "tokens": tokens,
        "dtype": dtype,
        "segments": first["segments"],
        "manifest_bytes": first["manifest_bytes"],
        "envelope_bytes": first["envelope_bytes"],
        **{f"{name}_ms": 1e3 * statistics.median(samples[name]) for name in _PARTS},
        "kv_bytes": size_bytes,
        "range_bytes": passes[0]["range_bytes"],
        "hash_gb_s": statistics.median(speeds["digest"]),
        "blake3_gb_s": statistics.median(speeds["blake3"]),
        "hash_over_blake3": statistics.median(hashed),
        "encrypt_gb_s": statistics.median(speeds["encrypt"]),
        "decrypt_gb_s": statistics.median(speeds["decrypt"]),
        "samples": speeds,
    }


def _worst(rows: Sequence[JSON], seals: Sequence[JSON]) -> JSON:
    """The figures of the worst rows."""
    row = max(rows, key=itemgetter("with_over_without"))
    hashed = min(seals, key=itemgetter("hash_over_blake3"))
    return {
        "sign_ms": max(one["sign_ms"] for one in seals),
        "verify_ms": max(one["verify_ms"] for one in seals),
        "hash_gb_s": hashed["hash_gb_s"],
        "blake3_gb_s": hashed["blake3_gb_s"],
        "encrypt_gb_s": min(one["encrypt_gb_s"] for one in seals),
        "layer0_share_of_prefill": max(one["layer0_share_of_prefill"] for one in rows),
        "over_floor_with": row["over_floor_with"],
        "over_floor_without": row["over_floor_without"],
    }


def _layer0_percent(row: JSON) -> float:
    return 100 * float(row["layer0_share_of_prefill"])


_RATIO = itemgetter("with_over_without")
TARGETS = (
    Target("baton / floor, with over without", _RATIO, 1.2, tokens=2048),
    Target("baton / floor, with over without", _RATIO, 1.2, tokens=4096),
    Target("layer 0 / prefill, percent", _layer0_percent, 1),
)
"""What the project promises of a take, on the built-in SmolLM2-135M."""
SEAL_TARGETS = (
    Target("sign, milliseconds", itemgetter("sign_ms"), 1, tokens=SEALED_TOKENS),
    Target("verify, milliseconds", itemgetter("verify_ms"), 1, tokens=SEALED_TOKENS),
    Target("digest / BLAKE3", itemgetter("hash_over_blake3"), 0.9, at_least=True),
    Target("encrypt, GB/s", itemgetter("encrypt_gb_s"), 1, at_least=True),
    Target("decrypt, GB/s", itemgetter("decrypt_gb_s"), 1, at_least=True),
)
"""What it promises of the parts of a seal."""
