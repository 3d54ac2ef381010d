"""Every limit that bytes from elsewhere are held to, before anything is allocated for them."""

from __future__ import annotations

FORMAT = 1
"""Version of all formats of this package."""

ALIGNMENT = 64
"""Segment bodies, layer ranges and tensors start at a multiple of this many bytes."""

LENGTH_FIELD_BYTES = 8
"""A segment begins with the length of its JSON header, little-endian."""

MAX_HEADER_BYTES = 4 << 20
"""Segment header: length field, JSON and padding."""

MAX_SEGMENT_BYTES = 1 << 40
MAX_LAYERS = 4096
MAX_ROPES = 64
MAX_CODECS = 256
MAX_CODEC_STEPS = 16
MAX_HEADS = 1 << 16
MAX_DIM = 1 << 20
MAX_TENSOR_AXES = 8
MAX_POSITION = (1 << 31) - 1
"""One past the last position of any sequence, at most."""

MAX_MANIFEST_BYTES = 4 << 20
MAX_ENVELOPE_BYTES = 6 << 20
MAX_TRANSCRIPT_BYTES = 32 << 20
MAX_PREFIX_RECORD_BYTES = 16 << 20
MAX_SEGMENTS = 16_384
MAX_SPANS = 16_384
MAX_PARENTS = 256
MAX_HOPS = 1_000_000
MAX_MESSAGES = 65_536
MAX_SIGNATURES = 1
MAX_SIGNERS = 1024
MAX_TICKET_BYTES = 16 << 10
MAX_USES = 1024
MAX_NOISE = 0.1
"""Of noise on K and V: with more, the values of layer 0 would hardly tell tokens apart."""

MAX_NAME_CHARS = 256
"""Senders, receivers, domains, refs, codec names: shown on one line, never interpreted."""

MAX_VALUE_CHARS = 4096
"""Values of function parts and producer records."""

MAX_ENTRIES = 256
"""Entries of a name -> value table."""

MAX_TERM_CHARS = 1 << 18
"""Instruction, summary and goal, each."""

MAX_TOKEN_ID = (1 << 32) - 1
MAX_DEPTH = 64
"""Nesting of lists and objects in any document."""
