"""Where a gain comes from: seconds per phase of the receipts, and of the senders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvbaton.audit.analysis.blocks import Block, mean_or_none, number_in
from kvbaton.audit.analysis.result import Attribution, ProfileRow
from kvbaton.audit.analysis.runs import Compared, Run
from kvbaton.types import JSON

ZERO_DECODE = "Z"
TEXT_ONLY = "T0"
LEAST_SHARE = 0.05
"""Of the reference's time: of a smaller saving no shares are told."""
_PREFILL = ("first_forward", "own_prefill", "repair")
_TRANSPORT = ("get", "verify", "decode", "align", "attach")
_ALLOCATION = "allocation"


def attribution_of(
    blocks: Sequence[Block], treatment: Compared, profiles: Mapping[str, JSON]
) -> Attribution:
    """Seconds that a treatment saves per trial from the sender's start to a fixed answer.

    It is compared with its reference; zero-decode with text only, whose sender says a message.
    What is saved is positive; what it costs, such as transport, is negative.

    Parameters
    ----------
    profiles
        Treatment -> its ``profile`` record, for memory allocation; it is taken out of prefill.
    """
    name = treatment.name
    base = TEXT_ONLY if name == ZERO_DECODE else treatment.reference
    both = [b for b in blocks if b.timed.get(name) and b.timed.get(base)]

    def saved(of_trial: Callable[[JSON], float | None]) -> float | None:
        return mean_or_none(
            _difference(_block_mean(b, base, of_trial), _block_mean(b, name, of_trial))
            for b in both
        )

    total = saved(lambda trial: number_in(trial.get("e2e_s")))
    prefill = saved(lambda trial: _phases(trial, _PREFILL))
    moved = saved(lambda trial: _phases(trial, _TRANSPORT))
    sent = mean_or_none(_hand_off_s(b, name) for b in both)
    allocation = _allocation(both, name, base, profiles)
    if prefill is not None and allocation is not None:
        prefill -= allocation
    decode = mean_or_none(_sender(b, "decode_s") for b in both) if name == ZERO_DECODE else 0.0
    parts = {
        "receiver_prefill_s": prefill,
        "sender_decode_s": decode if both else None,
        "allocation_s": allocation,
        "tokenization_s": mean_or_none(_sender(b, "tokenize_s") for b in both),
        "transport_s": None if moved is None else moved - (sent or 0.0),
    }
    known = sum(part for part in parts.values() if part is not None)
    other = None if total is None else total - known
    shares = {}
    before = mean_or_none(
        _block_mean(b, base, lambda trial: number_in(trial.get("e2e_s"))) for b in both
    )
    if total is not None and before and total > LEAST_SHARE * before:
        shares = {key: part / total for key, part in parts.items() if part is not None}
        shares["other_s"] = (total - known) / total
    return Attribution(
        receiver_prefill_s=parts["receiver_prefill_s"],
        sender_decode_s=parts["sender_decode_s"],
        allocation_s=allocation,
        tokenization_s=parts["tokenization_s"],
        transport_s=parts["transport_s"],
        other_s=other,
        total_s=total,
        shares=shares,
    )


def profiles_of(runs: Sequence[Run]) -> dict[str, JSON]:
    """Treatment -> its profiled trial; of the first run that has one."""
    found: dict[str, JSON] = {}
    for run in sorted(runs, key=lambda run: run.pair):
        for record in run.of_kind("profile"):
            found.setdefault(str(record["treatment"]), record)
    return found


def profile_rows(record: JSON) -> list[ProfileRow]:
    """Groups of operators of a profiled trial, the longest first."""
    wall_s = number_in(record.get("wall_s")) or 0.0
    groups = {str(k): number_in(v) or 0.0 for k, v in (record.get("groups") or {}).items()}
    whole = max(wall_s, sum(groups.values()))
    rows = [
        ProfileRow(name=name, share=seconds / whole if whole else 0.0, seconds=seconds)
        for name, seconds in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row["seconds"], row["name"]))


def _allocation(
    blocks: Sequence[Block], name: str, base: str, profiles: Mapping[str, JSON]
) -> float | None:
    """Allocation that is saved: its share of a profiled trial, of the mean time."""
    seconds = []
    for one in (base, name):
        shares = {row["name"]: row["share"] for row in profile_rows(profiles.get(one) or {})}
        mean = mean_or_none(
            _block_mean(b, one, lambda trial: number_in(trial.get("ttft_s"))) for b in blocks
        )
        if _ALLOCATION not in shares or mean is None:
            return None
        seconds.append(shares[_ALLOCATION] * mean)
    return seconds[0] - seconds[1]


def _block_mean(
    block: Block, treatment: str, of_trial: Callable[[JSON], float | None]
) -> float | None:
    return mean_or_none(of_trial(trial) for trial in block.timed.get(treatment, ()))


def _difference(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else one - two


def _phases(trial: JSON, names: Sequence[str]) -> float | None:
    seconds = (trial.get("receipt") or {}).get("seconds")
    if not seconds:
        return None
    return sum(number_in(seconds.get(name)) or 0.0 for name in names)


def _sender(block: Block, name: str) -> float | None:
    return number_in((block.about.get("sender") or {}).get(name))


def _hand_off_s(block: Block, treatment: str) -> float | None:
    seconds = ((block.about.get("hand_off") or {}).get(treatment) or {}).get("seconds")
    if isinstance(seconds, Mapping):
        return sum(number_in(part) or 0.0 for part in seconds.values())
    return number_in(seconds)
