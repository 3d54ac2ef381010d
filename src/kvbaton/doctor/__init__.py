"""``kvbaton doctor``: whether a model's cache can be handed over, and whether another can take it.

Every gate is asked, not only the first that refuses, so that one look shows the whole chain.
Configurations and tokenizers are enough for that; weights are read only where everything else
agrees, and loaded only to measure the noise floor.
"""

from __future__ import annotations

from kvbaton.doctor.facts import Facts, describe
from kvbaton.doctor.gates import Gate, Verdict, model_gates
from kvbaton.doctor.noise import (
    NoiseFloor,
    noise_floor,
    store_noise_floor,
    stored_noise_floor,
)
from kvbaton.doctor.pair import mode_gates, pair_gates

__all__ = [
    "Facts",
    "Gate",
    "NoiseFloor",
    "Verdict",
    "describe",
    "mode_gates",
    "model_gates",
    "noise_floor",
    "pair_gates",
    "store_noise_floor",
    "stored_noise_floor",
]
