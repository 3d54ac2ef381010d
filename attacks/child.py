"""What the attacks run in processes of their own: ``python -m attacks.child open|take ...``.

``open FOLDER BATON NAME TICKET`` opens a baton once a line comes in on standard input, without a
model, so that many processes can try at the same moment; ``take`` answers from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvbaton.errors import KvbatonError
from kvbaton.opening import Bearer, Opening
from kvbaton.seals import TrustDomain, local_keys
from kvbaton.stores import open_store
from kvbaton.wire.digests import DomainKeys

SECRET = bytes(range(32))


def opened(folder: str, baton: str, name: str, ticket: str) -> str:
    """Wait for a line, open the baton, and say how that went."""
    path = Path(folder)
    ring = local_keys(path / "domains")
    domain = TrustDomain("local", DomainKeys(SECRET), signers=ring, trust=ring.trust)
    opening = Opening(open_store(f"dir://{path}/store"), domain)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    try:
        opening.open(baton, deadline_s=60, bearer=Bearer(name, ticket or None))
    except KvbatonError as error:
        return str(getattr(error, "fault", error.code))
    return "opened"


def taken(folder: str, baton: str, name: str, ticket: str) -> str:
    """Answer from the baton, and say how that went."""
    from attacks.scene import Scene, outcome

    agent = Scene(Path(folder)).agent(name)
    return outcome(agent, baton, ticket=ticket or None)


def main(what: str, *arguments: str) -> None:
    """Print one JSON text."""
    found = {"open": opened, "take": taken}[what](*arguments)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
