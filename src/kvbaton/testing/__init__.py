"""For the tests of those who use or extend kvbaton: conformance suites and doubles.

The suites need ``pytest`` and ``hypothesis``, the doubles need neither; each is imported when it
is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvbaton.testing.codecs import CodecTests
    from kvbaton.testing.engines import EngineTests
    from kvbaton.testing.faults import (
        Corrupt,
        Do,
        Fail,
        FaultyStore,
        Shorten,
        Stall,
        StoreCall,
        StoreFault,
    )
    from kvbaton.testing.policies import PolicyTests
    from kvbaton.testing.questions import plain_question
    from kvbaton.testing.seals import SealTests
    from kvbaton.testing.stores import StoreTests

__all__ = [
    "CodecTests",
    "Corrupt",
    "Do",
    "EngineTests",
    "Fail",
    "FaultyStore",
    "PolicyTests",
    "SealTests",
    "Shorten",
    "Stall",
    "StoreCall",
    "StoreFault",
    "StoreTests",
    "plain_question",
]

_LAZY = {
    "CodecTests": "codecs",
    "Corrupt": "faults",
    "Do": "faults",
    "EngineTests": "engines",
    "Fail": "faults",
    "FaultyStore": "faults",
    "PolicyTests": "policies",
    "SealTests": "seals",
    "Shorten": "faults",
    "Stall": "faults",
    "StoreCall": "faults",
    "StoreFault": "faults",
    "StoreTests": "stores",
    "plain_question": "questions",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"kvbaton.testing.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
