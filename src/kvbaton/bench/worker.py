"""``python -m kvbaton.bench.worker``: one of the two processes of ``bench ttft`` and ``seals``.

Commands come as JSON lines on standard input, answers go as JSON lines to standard output; the
first command loads the model.  The process ends when its input does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import IO, Any

from kvbaton.errors import InputError, KvbatonError
from kvbaton.types import JSON

_PEERS = {
    "sender": ("kvbaton.bench.sender", "Sender"),
    "receiver": ("kvbaton.bench.receiver", "Receiver"),
    "sealing sender": ("kvbaton.bench.seal_peers", "SealingSender"),
    "sealing receiver": ("kvbaton.bench.seal_peers", "SealingReceiver"),
}
"""Role -> who plays it; imported where it is played, since all of them need torch."""


def load(*, role: str, threads: int, store: str, domain: str, **engine: Any) -> tuple[Any, JSON]:
    """The peer of a role with its model loaded, and what it says of itself.

    ``engine`` are the arguments of ``load_checkpoint``, all of them JSON.
    """
    import torch
    from transformers.utils import logging

    from kvbaton.bench.machine import library_versions
    from kvbaton.engines.transformers.load import load_checkpoint
    from kvbaton.relay import Relay
    from kvbaton.seals import local_domain
    from kvbaton.stores import open_store

    logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    digests = Path(engine.pop("digests"))
    loaded = load_checkpoint(engine.pop("source"), digests=digests, **engine)
    gc.freeze()  # what is loaded now stays: a collection before each timing need not look at it
    relay = Relay(loaded, open_store(store), local_domain(Path(domain)))
    said = {
        "max_tokens": loaded.max_tokens,
        "windows": bool(loaded.layout.window_layers),
        "producer": dict(loaded.producer),
        "versions": library_versions(),
    }
    module, name = _PEERS[role]
    peer = getattr(importlib.import_module(module), name)
    return peer(loaded, relay), said


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Answer commands until there are no more."""
    peer: Any = None
    for line in commands:
        asked = json.loads(line)
        try:
            if asked["do"] == "load":
                peer, answer = load(**asked["with"])
            elif peer is None or asked["do"].startswith("_"):
                raise InputError(f"cannot do {asked['do']!r} now")
            else:
                answer = getattr(peer, asked["do"])(**asked["with"])
            said: JSON = {"ok": answer}
        except KvbatonError as error:
            said = {"error": [error.code, error.sentence, error.at, error.hint]}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def main() -> None:
    """Serve standard input; whatever a library prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
