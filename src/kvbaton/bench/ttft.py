"""``bench ttft``: time to the first token by baton, between two processes, against its rivals.

Sender and receiver each have the model loaded.  Per context all rivals are warmed up once; then
every repeat runs each of them once, in an order that changes, so that whatever else the machine
does hits all of them alike.  ``docs/guides/benchmarks.md`` says what each figure is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from kvbaton.bench.figures import row_of, summary_of
from kvbaton.bench.machine import SHARED_MEMORY, environment, fast_folder, load
from kvbaton.bench.peers import Peer
from kvbaton.bench.startup import import_seconds
from kvbaton.errors import InputError, WindowExceeded
from kvbaton.types import JSON

TOKENS = (512, 1024, 2048, 4096, 7000)
DTYPES = ("bfloat16", "float32")
NEW_TOKENS, REPEATS, DECODE_TOKENS, GROWN_TOKENS = 24, 5, 256, 256
ROOM_BYTES = 4 << 30
"""Free shared memory that the store and the hand-made file are given, or else they go to disk."""

RIVALS = (
    "text_loop",
    "text_generate",
    "handmade",
    "handmade_mapped",
    "prefix_cache",
    "floor",
    "baton",
    "handoff",
    "handoff_again",
    "hash_speed",
)
_FILE_OF_HAND = ("handmade", "handmade_mapped", "prefix_cache")
"""Rivals that a model with window layers does not have: the library's cache cannot be rebuilt."""

Say = Callable[[str], None]
Samples = dict[str, list[JSON]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Parameters
    ----------
    model, source
        How the model is called, and the folder or id that it is loaded from.
    digests
        Folder in which digests of weights are remembered.
    tokens, new_tokens
        Cached tokens of each context, and tokens that the receiver computes before its first
        own token: the pending one, the chat format's and the instruction's.
    repeats
        Timed runs of each rival; medians are reported.
    decode_tokens
        Tokens to decode after the attach, against ``generate``; 0 leaves that out.
    threads
        Threads of both processes, for every rival alike; 0 leaves that to torch.

    Raises
    ------
    InputError
        A number that makes no sense.
    """

    model: str
    source: str
    digests: Path
    tokens: tuple[int, ...] = TOKENS
    new_tokens: int = NEW_TOKENS
    dtypes: tuple[str, ...] = DTYPES
    repeats: int = REPEATS
    decode_tokens: int = DECODE_TOKENS
    device: str = "auto"
    attention: str | None = None
    threads: int = 0
    offline: bool = False

    def __post_init__(self) -> None:
        if not self.tokens or not self.dtypes:
            raise InputError("there is nothing to measure: give context sizes and dtypes")
        if min(self.tokens) < 1 or self.new_tokens < 1 or self.repeats < 1:
            raise InputError("tokens, new tokens and repeats must be at least 1")
        if self.decode_tokens < 0 or self.threads < 0:
            raise InputError("tokens to decode and threads cannot be negative")


def measure(plan: Plan, say: Say) -> JSON:
    """Run the plan; ``say`` is told what is being measured.

    Returns
    -------
    JSON
        ``{"model", "rows", "summary", "environment", "settings"}``; seconds are medians.

    Raises
    ------
    WindowExceeded
        A context that the model cannot attend to.
    """
    machine = environment()
    folder = fast_folder(ROOM_BYTES)
    rows: list[JSON] = []
    versions: JSON = {}
    with tempfile.TemporaryDirectory(prefix="kvbaton-bench-", dir=folder) as place:
        for dtype in plan.dtypes:
            with Pair(plan, dtype, Path(place), say) as pair:
                rows.extend(pair.rows())
                versions = pair.versions
    say("starting Python with and without kvbaton")
    return {
        "model": plan.model,
        "rows": rows,
        "summary": summary_of(rows) | {"import_s": import_seconds(plan.repeats)},
        "environment": machine | {"load_after": load(), **versions},
        "settings": {
            "new_tokens": plan.new_tokens,
            "repeats": plan.repeats,
            "shared_memory": folder == SHARED_MEMORY,
        },
    }


class Pair:
    """Sender and receiver with the model loaded in one dtype."""

    roles: ClassVar[tuple[str, str]] = ("sender", "receiver")

    def __init__(self, plan: Plan, dtype: str, place: Path, say: Say) -> None:
        self._plan, self._dtype, self._say = plan, dtype, say
        self._place = place / dtype
        self._file = str(self._place / "handmade.pt")
        self._baton = ""
        self._stack = ExitStack()
        self.versions: JSON = {}
        self.max_tokens = 0

    def __enter__(self) -> Self:
        self._place.mkdir(mode=0o700)
        with ExitStack() as stack:
            self._say(f"{self._dtype}: loading {self._plan.model} in two processes")
            self.sender, self.receiver = [stack.enter_context(Peer(role)) for role in self.roles]
            for peer in (self.sender, self.receiver):
                peer.send("load", **self._loading(peer.role))
            self.sender.answer()
            said = self.receiver.answer()
            self._stack = stack.pop_all()
        self.max_tokens = said["max_tokens"]
        self.versions = {"producer": said["producer"], "versions": said["versions"]}
        self.rivals = tuple(r for r in RIVALS if not (said["windows"] and r in _FILE_OF_HAND))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _loading(self, role: str) -> JSON:
        plan = self._plan
        return {
            "role": role,
            "source": plan.source,
            "name": plan.model,
            "dtype": self._dtype,
            "device": plan.device,
            "attention": plan.attention,
            "threads": plan.threads,
            "store": f"dir://{self._place / 'store'}",
            "domain": str(self._place / "domain"),
            "digests": str(plan.digests),
            "offline": plan.offline,
        }

    def rows(self) -> list[JSON]:
        """One row per context size."""
        for tokens in self._plan.tokens:
            self.require_window(tokens)
        decoded = _nearest(self._plan.tokens, 2048)
        return [self._row(tokens, decode=tokens == decoded) for tokens in self._plan.tokens]

    def require_window(self, tokens: int) -> None:
        """Refuse a context that the model cannot attend to, with the new tokens behind it."""
        needed = tokens + self._plan.new_tokens
        if needed > self.max_tokens:
            raise WindowExceeded(
                f"a context of {tokens} and {self._plan.new_tokens} new tokens do not fit the "
                f"model's window of {self.max_tokens}",
                hint="measure shorter contexts: --tokens 512,1024",
            )

    def _row(self, tokens: int, *, decode: bool) -> JSON:
        what = f"{self._dtype}, {tokens} tokens"
        self._say(f"{what}: preparing")
        prepared = self.sender.do("prepare", tokens=tokens)
        self._baton = self.sender.do("hand_off", keep=False)["baton"]
        prepared |= self.receiver.do("prepare", baton=self._baton, new_tokens=self._plan.new_tokens)
        samples: Samples = {rival: [] for rival in self.rivals}
        for repeat in range(self._plan.repeats + 1):
            self._say(f"{what}: " + (f"repeat {repeat}" if repeat else "warming up"))
            for rival in turned(self.rivals, repeat):
                sample = self._run(rival)
                if repeat:
                    samples[rival].append(sample)
        extras = self._extras(what, tokens, decode=decode)
        return row_of(self._dtype, prepared, samples, extras)

    def _run(self, rival: str) -> JSON:
        """One run of one rival: seconds, first token, and what else it tells."""
        if rival == "handmade":
            saved = self.sender.do("save", path=self._file)
            done = self.receiver.do("handmade", path=self._file, mapped=False)
            return done | {"handoff_s": done["ended_s"] - saved["started_s"]}
        if rival == "handmade_mapped":
            self.sender.do("save", path=self._file)
            return self.receiver.do("handmade", path=self._file, mapped=True)
        if rival in ("handoff", "handoff_again"):
            return self._hand_over(keep=rival == "handoff_again")
        if rival == "baton":
            return self.receiver.do("take", baton=self._baton)
        return self.receiver.do(rival)

    def _hand_over(self, *, keep: bool) -> JSON:
        """From the sender's decision to the receiver's first token."""
        sent = self.sender.do("hand_off", keep=keep)
        self._baton = sent["baton"]
        done = self.receiver.do("take", baton=self._baton)
        return done | {"seconds": done["ended_s"] - sent["started_s"], "sent": sent}

    def _extras(self, what: str, tokens: int, *, decode: bool) -> JSON:
        """What is measured once per context: memory, bytes written, decoding."""
        self._say(f"{what}: memory and bytes")
        again = self.sender.do("hand_off", keep=True)
        self._baton = again["baton"]
        extras: JSON = {
            "peak_extra_bytes": self.receiver.do("memory", baton=self._baton)["peak_extra_bytes"],
            "second_handoff_bytes": again["bytes_written"],
            "grown": None,
            "decoded": [],
        }
        wanted = self._plan.decode_tokens
        if decode and wanted and tokens + self._plan.new_tokens + wanted < self.max_tokens:
            for repeat in range(self._plan.repeats):
                self._say(f"{what}: decoding {wanted} tokens, repeat {repeat + 1}")
                extras["decoded"].append(self.receiver.do("decode", tokens=wanted))
        if tokens + GROWN_TOKENS < self.max_tokens:
            extras["grown"] = self.sender.do("grow", tokens=GROWN_TOKENS)
        return extras


def turned(rivals: Sequence[T], repeat: int) -> list[T]:
    """The rivals beginning with the next one in every repeat, in every other backwards from it."""
    shift = repeat % len(rivals)
    order = [*rivals[shift:], *rivals[:shift]]
    return [order[0], *order[:0:-1]] if repeat % 2 else order


def _nearest(tokens: Sequence[int], wanted: int) -> int:
    return min(tokens, key=lambda one: abs(one - wanted))
