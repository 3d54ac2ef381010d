"""What was measured of one model on one machine, from which times to the first token follow.

Every number here was measured on the machine that uses it.  What a phase of a take costs is a
straight line in tokens or bytes; only prefill bends, and is known at some lengths.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import geometric_mean
from typing import Any

from kvbaton.errors import Fault, InputError
from kvbaton.types import JSON
from kvbaton.wire.fields import check_hex64, read_int, read_list, read_name, read_object, refuse

MAX_KNOTS, MAX_NAMED, MAX_TOKENS = 64, 256, 1 << 40
EXACT_CODEC = "exact"
"""What the bytes of a cache that no codec has changed are called here."""

_MAX_SECONDS = 1e6
_MAX_BYTES = 1 << 50
_SCHEME_END = "://"


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a straight line: ``fixed_s`` and ``unit_s`` for each unit; neither is negative."""

    fixed_s: float = 0.0
    unit_s: float = 0.0

    def seconds(self, units: float) -> float:
        """Seconds for so many units."""
        return self.fixed_s + self.unit_s * units

    def times(self, factor: float) -> Line:
        """The same line, so many times as slow."""
        return Line(self.fixed_s * factor, self.unit_s * factor)

    def to_json(self) -> JSON:
        """``{"fixed_s", "unit_s"}``."""
        return {"fixed_s": self.fixed_s, "unit_s": self.unit_s}

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> Line:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        fields = read_object(value, at, {"fixed_s", "unit_s"})
        return cls(*(read_number(fields, name, at) for name in ("fixed_s", "unit_s")))


@dataclass(frozen=True, slots=True)
class Knot:
    """Seconds of a prefill of so many tokens from nothing."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """A codec profile: encoding and decoding by token, and stored bytes per token."""

    encode: Line
    decode: Line
    token_bytes: float

    def to_json(self) -> JSON:
        """``{"encode", "decode", "token_bytes"}``."""
        return {
            "encode": self.encode.to_json(),
            "decode": self.decode.to_json(),
            "token_bytes": self.token_bytes,
        }

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> CodecSpeed:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        fields = read_object(value, at, {"encode", "decode", "token_bytes"})
        return cls(
            Line.from_json(fields["encode"], f"{at}.encode"),
            Line.from_json(fields["decode"], f"{at}.decode"),
            read_number(fields, "token_bytes", at, at_most=_MAX_BYTES, positive=True),
        )


@dataclass(frozen=True, slots=True)
class StoreSpeed:
    """A store: seconds to open an object and for each read, and bytes per second beyond that."""

    open_s: float
    read_s: float
    get_bytes_per_s: float
    put_bytes_per_s: float

    def get_s(self, size_bytes: float, *, objects: int, reads: int) -> float:
        """Seconds to read so many bytes."""
        return self.open_s * objects + self.read_s * reads + size_bytes / self.get_bytes_per_s

    def times(self, factor: float) -> StoreSpeed:
        """The same store, so many times as slow to read from."""
        return StoreSpeed(
            self.open_s * factor,
            self.read_s * factor,
            self.get_bytes_per_s / factor,
            self.put_bytes_per_s,
        )

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> StoreSpeed:
        """Read what ``to_json`` wrote; raises ``FormatError``."""
        fields = read_object(value, at, set(cls.__dataclass_fields__))
        rates = ("get_bytes_per_s", "put_bytes_per_s")
        return cls(
            *(read_number(fields, name, at) for name in ("open_s", "read_s")),
            *(read_number(fields, name, at, at_most=_MAX_BYTES, positive=True) for name in rates),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Between which multiples of its prediction a time lies, eight times of ten."""

    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of one function on one host.

    Parameters
    ----------
    host, function
        Id of the machine and digest of the model's function, both hexadecimal.
    created_s
        When they were measured, in seconds since the epoch.
    layers
        Of the model: a segment is read in so many pieces.
    token_bytes
        Of one token in the cache, before any codec.
    prefill
        Prefill from nothing at some lengths, ascending.
    past_s, pair_s
        What a pass over new tokens takes longer for each token that is cached before them, and
        for each pair of a new and a cached token.
    generate_s
        Seconds for each token of an answer.
    overhead
        By token of the prompt: whatever a take costs by any route, such as the manifest and the
        chat format.
    opening
        By segment: parsing and checking its header, without the store.
    verify
        By stored byte.
    probe, attach, align
        By token: holding layer 0 to the tokens, copying into the cache, turning keys.
    recompute
        By row that is computed again on top of a slice.
    codecs, stores
        By profile, and by the name that ``store_name`` gives a store.
    text_spread, cache_spread
        How far times lie from what is predicted.
    """

    host: str
    function: str
    model: str
    created_s: int
    layers: int
    token_bytes: float
    prefill: tuple[Knot, ...]
    past_s: float = 0.0
    pair_s: float = 0.0
    generate_s: float = 0.0
    overhead: Line = Line()
    opening: Line = Line()
    verify: Line = Line()
    probe: Line = Line()
    attach: Line = Line()
    align: Line = Line()
    recompute: Line = Line()
    codecs: Mapping[str, CodecSpeed] = field(default_factory=dict)
    stores: Mapping[str, StoreSpeed] = field(default_factory=dict)
    text_spread: Spread = Spread()
    cache_spread: Spread = Spread()

    def __post_init__(self) -> None:
        tokens = [knot.tokens for knot in self.prefill]
        if not tokens or tokens[0] < 1 or sorted(set(tokens)) != tokens:
            raise InputError("prefill is known at lengths that ascend from 1", at="$.prefill")
        seconds = [knot.seconds for knot in self.prefill]
        if not all(0 < one <= _MAX_SECONDS for one in seconds) or sorted(seconds) != seconds:
            raise InputError(
                "a prefill takes a positive time, and more tokens no less of it", at="$.prefill"
            )

    def prefill_s(self, tokens: float) -> float:
        """Seconds of a prefill from nothing; never less for more tokens.

        Between measured lengths the logarithm of the time is linear in that of the length.
        Beyond the longest it goes on as between the last two, below the shortest it stays.
        """
        return interpolated(self.prefill, tokens)

    def forward_s(self, tokens: float, cached: float) -> float:
        """Seconds of a pass over new tokens behind cached ones."""
        return self.prefill_s(tokens) + cached * (self.past_s + self.pair_s * tokens)

    def store(self, url: str) -> StoreSpeed | None:
        """Speeds of a store; of another one of its kind where it was not measured, and None
        where none of its kind was."""
        name = store_name(url)
        found = self.stores.get(name)
        if found is not None:
            return found
        kind = name.partition(_SCHEME_END)[0] + _SCHEME_END
        alike = [speed for other, speed in self.stores.items() if other.startswith(kind)]
        # the slowest: whoever expects too little of a cache loses less than who waits for it
        return min(alike, key=lambda speed: speed.get_bytes_per_s, default=None)

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            "host": self.host,
            "function": self.function,
            "model": self.model,
            "created_s": self.created_s,
            "layers": self.layers,
            "token_bytes": self.token_bytes,
            "prefill": [{"tokens": one.tokens, "seconds": one.seconds} for one in self.prefill],
            **{name: getattr(self, name) for name in _TIMES},
            **{name: getattr(self, name).to_json() for name in _LINES},
            "codecs": {name: one.to_json() for name, one in sorted(self.codecs.items())},
            "stores": {name: one.to_json() for name, one in sorted(self.stores.items())},
            **{
                name: {"low": getattr(self, name).low, "high": getattr(self, name).high}
                for name in _SPREADS
            },
        }

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> Speeds:
        """Read what ``to_json`` wrote; raises ``FormatError`` or ``InputError`` with the place."""
        fields = read_object(value, at, set(cls.__dataclass_fields__))
        parts: dict[str, Any] = {name: read_number(fields, name, at) for name in _TIMES}
        parts |= {name: Line.from_json(fields[name], f"{at}.{name}") for name in _LINES}
        parts |= {name: _spread(fields[name], f"{at}.{name}") for name in _SPREADS}
        codecs, stores = (_named(fields[name], f"{at}.{name}") for name in ("codecs", "stores"))
        return cls(
            host=check_hex64(fields["host"], f"{at}.host"),
            function=check_hex64(fields["function"], f"{at}.function"),
            model=read_name(fields, "model", at),
            created_s=read_int(fields, "created_s", at, 0, 1 << 40),
            layers=read_int(fields, "layers", at, 1, 1 << 20),
            token_bytes=read_number(fields, "token_bytes", at, at_most=_MAX_BYTES, positive=True),
            prefill=_knots(fields["prefill"], f"{at}.prefill"),
            codecs={n: CodecSpeed.from_json(v, f"{at}.codecs.{n}") for n, v in codecs.items()},
            stores={n: StoreSpeed.from_json(v, f"{at}.stores.{n}") for n, v in stores.items()},
            **parts,
        )


_TIMES = ("past_s", "pair_s", "generate_s")
_LINES = ("overhead", "opening", "verify", "probe", "attach", "align", "recompute")
_SPREADS = ("text_spread", "cache_spread")


def interpolated(knots: Sequence[Knot], tokens: float) -> float:
    """Seconds at a length by the knots around it; see ``Speeds.prefill_s``."""
    lengths = [knot.tokens for knot in knots]
    if tokens <= lengths[0]:
        return knots[0].seconds
    if len(knots) == 1:
        return knots[0].seconds * tokens / lengths[0]
    index = min(bisect_left(lengths, tokens), len(knots) - 1)
    below, above = knots[index - 1], knots[index]
    rise = math.log(above.seconds / below.seconds) / math.log(above.tokens / below.tokens)
    return below.seconds * float((tokens / below.tokens) ** rise)


def rising(knots: Sequence[Knot]) -> tuple[Knot, ...]:
    """Knots that never fall: neighbours that do are given their geometric mean."""
    pools: list[list[float]] = []
    for knot in knots:
        pools.append([knot.seconds])
        while len(pools) > 1 and geometric_mean(pools[-2]) > geometric_mean(pools[-1]):
            later = pools.pop()
            pools[-1] += later
    levels = [pool[0] if len(pool) == 1 else geometric_mean(pool) for pool in pools for _ in pool]
    # a mean may be off by the last digit
    return tuple(
        Knot(knot.tokens, level) for knot, level in zip(knots, accumulate(levels, max), strict=True)
    )


def store_name(url: str) -> str:
    """What the speeds of a store go by: its URL without its options and without a user's name.

    Memory is memory, whatever it is called.
    """
    scheme, found, rest = url.partition("?")[0].partition(_SCHEME_END)
    if found and scheme.lower() == "memory":
        return f"memory{_SCHEME_END}"
    if not found:
        return f"dir{_SCHEME_END}{scheme.rstrip('/')}"
    host, slash, path = rest.partition("/")
    place = f"{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    return f"{scheme.lower()}{_SCHEME_END}{place}"


# --- reading -----------------------------------------------------------------------------------


def read_number(
    inside: Any, key: str, at: str, *, at_most: float = _MAX_SECONDS, positive: bool = False
) -> float:
    """A finite number that is not negative; raises ``FormatError``."""
    value, place = inside[key], f"{at}.{key}"
    if type(value) not in {int, float}:
        raise refuse("not a number", Fault.WRONG_TYPE, place)
    if not 0 <= value <= at_most or (positive and value == 0):  # no NaN is, either
        low = "more than 0" if positive else "0"
        raise refuse(f"not {low} to {at_most:g}", Fault.OUT_OF_RANGE, place)
    return float(value)


def _named(value: Any, at: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise refuse("not an object", Fault.WRONG_TYPE, at)
    if len(value) > MAX_NAMED or any(not 0 < len(name) <= 4096 for name in value):
        raise refuse("too many names, or one that is too long", Fault.OUT_OF_RANGE, at)
    return value


def _knots(value: Any, at: str) -> tuple[Knot, ...]:
    found: list[Knot] = []
    for number, one in enumerate(read_list(value, at, at_least=1, at_most=MAX_KNOTS)):
        place = f"{at}[{number}]"
        fields = read_object(one, place, {"tokens", "seconds"})
        tokens = read_int(fields, "tokens", place, 1, MAX_TOKENS)
        if found and tokens <= found[-1].tokens:
            raise refuse("lengths do not ascend", Fault.OUT_OF_RANGE, place)
        found.append(Knot(tokens, read_number(fields, "seconds", place, positive=True)))
    return tuple(found)


def _spread(value: Any, at: str) -> Spread:
    fields = read_object(value, at, {"low", "high"})
    low, high = (read_number(fields, name, at, positive=True) for name in ("low", "high"))
    if not low <= 1 <= high:
        raise refuse("a prediction lies outside of its own interval", Fault.OUT_OF_RANGE, at)
    return Spread(low, high)
