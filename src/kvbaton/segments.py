"""Opening segments: headers are held to address, manifest and tokens before a layer is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kvbaton import codecs
from kvbaton.arrows import Opened
from kvbaton.checking import require_stated_codecs
from kvbaton.errors import Fault, FormatError
from kvbaton.reasons import located
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import KVLayout, SegmentRef
from kvbaton.warming import warm_soon
from kvbaton.wire import segment
from kvbaton.wire.binding import check_segment, ref_digests
from kvbaton.wire.digests import DomainKeys


def open_segments(
    stack: ExitStack,
    store: Store,
    refs: Sequence[tuple[int, SegmentRef]],
    ids: Sequence[int],
    function: str,
    *,
    keys: DomainKeys,
    layout: KVLayout,
    plans: Callable[[str], codecs.CodecPlan | None],
) -> list[Opened]:
    """Open segments and check their headers against address, manifest and tokens.

    Parameters
    ----------
    stack
        Closes them.
    refs
        With their index in the manifest.
    ids
        Of the baton.
    function
        Digest of the receiver's function.
    keys, layout
        Of the trust domain, and of the receiver's cache.
    plans
        The plan that a calibration record has measured.

    Raises
    ------
    KvbatonError
        One is missing, damaged or another; ``at`` says which.
    """
    opened: list[Opened] = []
    digests = ref_digests(keys, function, ids, [ref for _, ref in refs])
    for (index, ref), (tokens, prefix_key) in zip(refs, digests, strict=True):
        with located(f"$.segments[{index}]"):
            reader = stack.enter_context(store.open(Key(Kind.SEGMENT, ref.address)))
            header = segment.read_header(
                reader.read, file_size=reader.size_bytes, address=ref.address, keys=keys,
                storage=codecs.storage, first_bytes=reader.head_bytes,
            )  # fmt: skip
            check_segment(
                header, ref, function=function, token_digest=tokens, prefix_key=prefix_key
            )
            if header.layout != layout:
                raise FormatError("the segment has another layout", fault=Fault.RANGES)
            chains = require_stated_codecs(header, plans)
        if header.fidelity.compressed:
            warm_soon(chains, header.layout.dtype)
        opened.append(Opened(index, reader, header, ref.shift or 0))
    return opened
