"""Runs each operation in a process of its own, which kills itself at a given step.

Steps are the system calls of the store and the statements and commits of the ledger.  One request
and one answer a line, in JSON; a holder of a lease is a process that stays until it is told to go.
The server itself has one thread and holds neither store nor ledger, so it can fork.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Engine, event
from tests.wire import samples

from kvbaton.backing import Shipment
from kvbaton.clock import Clock
from kvbaton.collecting import collect
from kvbaton.leasing import handing_off
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import Entry, EventKind, Node, NodeKind
from kvbaton.opening import now_ms
from kvbaton.pedigree import Pedigree
from kvbaton.publishing import Publisher
from kvbaton.seals import TrustDomain
from kvbaton.stores import (
    DirectoryStore,
    Key,
    Kind,
    directory,
    directory_account,
    directory_files,
    lease_files,
)
from kvbaton.stores.lease_clock import SteadyClock
from kvbaton.wire.digests import DomainKeys

DOMAIN = TrustDomain("local", DomainKeys(samples.SECRET))
Request = dict[str, Any]
_CALLS = frozenset(
    {"chmod", "fchmod", "fsync", "mkdir", "open", "pwrite", "rename", "unlink", "utime", "writev"}
    | {"flock", "close", "ftruncate"}
)


# --- dying at a step ------------------------------------------------------------------------------


class Steps:
    """Counts the steps of this process, and ends it by SIGKILL before one of them."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self) -> None:
        """One more."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Count from now on."""
        for module in (directory, directory_account, directory_files, lease_files):
            module.os = _Watched(os, self)  # type: ignore[attr-defined]
            if hasattr(module, "fcntl"):
                module.fcntl = _Watched(fcntl, self)
        for name in ("before_cursor_execute", "commit"):
            event.listen(Engine, name, lambda *_: self.step())


class _Watched:
    """A module whose calls are steps."""

    def __init__(self, module: Any, steps: Steps) -> None:
        self._module, self._steps = module, steps

    def __getattr__(self, name: str) -> Any:
        if name in _CALLS:
            self._steps.step()
        return getattr(self._module, name)


# --- operations -----------------------------------------------------------------------------------


def steady(request: Request) -> SteadyClock:
    """The clock of the model: it stands while an operation runs."""
    return SteadyClock("model", lambda: request["now_s"])


def store_of(request: Request) -> DirectoryStore:
    """The store, by the model's clock."""
    return DirectoryStore(request["root"], clock=steady(request))


def segment(number: int) -> tuple[Key, bytes]:
    """A segment by its number: its name names its content."""
    return Key(Kind.SEGMENT, f"{number:064x}"), bytes([number]) * (100 + number)


def commit(request: Request) -> Any:
    """Hand off: segments, transcript, manifest under one loan; then the ledger, a ref perhaps."""
    store, pedigree = store_of(request), Pedigree(DOMAIN)
    parents = tuple(request["parents"])
    kin = pedigree.parents(parents, store)
    sample = samples.manifest()
    publisher = Publisher(
        SimpleNamespace(),
        store,
        DOMAIN,
        pedigree,
        lambda event, facts: None,  # type: ignore[arg-type]
    )
    with handing_off("planner") as loan:
        refs, written = [], 0
        for ref, number in zip(sample.segments, request["segments"], strict=True):
            key, data = segment(number)
            loan.lease(store, [key])
            written += store.put(key, [data])
            refs.append(replace(ref, address=key.name))
        listing = replace(
            sample, segments=tuple(refs), parents=parents, created_ms=now_ms(),
            terms=replace(sample.terms, goal=request["name"]),
        )  # fmt: skip
        words = replace(samples.TRANSCRIPT, text=request["name"])
        shipment = Shipment(listing.segments, written, 0)
        baton = publisher.publish(Clock(), listing, words, shipment, kin, loan)
    node = Node(baton.id, NodeKind.BATON, parents=parents, label=request["name"])
    with Ledger(request["url"], "local") as ledger:
        if request["ref"]:
            ledger.move(request["ref"], node, expected=request["expected"])
        else:
            ledger.record([Entry(node)])
    return baton.id


def withdraw(request: Request) -> Any:
    """Withdraw a baton: what was built on it."""
    with Ledger(request["url"], "local") as ledger:
        return [node.id for node in ledger.withdraw(request["baton"], why="test").affected]


def gc(request: Request) -> Any:
    """Collect, by what the ledger says was withdrawn."""
    with Ledger(request["url"], "local") as ledger:
        log = ledger.log(limit=10**6)
    gone = {one.node for one in log if one.kind is EventKind.WITHDRAWN}
    found = collect(
        store_of(request), DOMAIN, grace_s=request["grace_s"], withdrawn=gone,
        clock=steady(request),
    )  # fmt: skip
    return found.to_json()


OPERATIONS: dict[str, Callable[[Request], Any]] = {"commit": commit, "withdraw": withdraw, "gc": gc}


# --- processes ------------------------------------------------------------------------------------


def run(request: Request) -> Any:
    """One operation in a child: its result, or None where it was killed."""
    begin, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin)
        _in_child(end, lambda: OPERATIONS[request["op"]](request), request.get("kill") or 0)
    os.close(end)
    with open(begin, "rb") as pipe:  # noqa: PTH123 - a descriptor
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    return json.loads(said)


def _in_child(end: int, work: Callable[[], Any], kill: int) -> None:
    """Work, tell, and leave without anything of the parent's."""
    code = 1
    try:
        Steps(kill).watch() if kill else None
        said = json.dumps(work()).encode()
        os.write(end, said)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent reads it
        os.write(end, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        code = 0
    finally:
        os._exit(code)


class Holder:
    """A process that leases a baton's objects and beats when it is told to."""

    def __init__(self, request: Request) -> None:
        self._told, tell = os.pipe()
        hear, self._say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._told)
            os.close(self._say)
            self._hold(request, hear, tell)
        os.close(hear)
        os.close(tell)
        os.read(self._told, 1)

    @staticmethod
    def _hold(request: Request, hear: int, tell: int) -> None:
        try:
            keys = [Key(Kind(kind), name) for kind, name in request["keys"]]
            lease = store_of(request).lease(
                keys, owner="holder", ttl_s=request["ttl_s"], beats=False
            )
            os.write(tell, b"!")
            while line := os.read(hear, 4096):
                asked = json.loads(line)
                request["now_s"] = asked["now_s"]
                if asked["do"] == "beat":
                    os.write(tell, b"1" if lease.heartbeat() else b"0")
                else:
                    lease.release(after_s=asked["after_s"])
                    os.write(tell, b"1")
                    break
        finally:
            os._exit(0)

    def tell(self, asked: Request) -> bool:
        """Let it beat or release; whether it still had the lease."""
        os.write(self._say, json.dumps(asked).encode())
        answer = os.read(self._told, 1) == b"1"
        if asked["do"] == "release":
            self._bury()
        return answer

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self._bury()

    def _bury(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self._say)
        os.close(self._told)


def serve() -> None:
    """Answer requests until there are no more."""
    holders: dict[int, Holder] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hold":
            holders[request["which"]] = Holder(request)
            answer: Any = True
        elif request["op"] == "tell":
            answer = holders[request["which"]].tell(request)
        elif request["op"] == "kill":
            holders[request["which"]].kill()
            answer = True
        else:
            answer = run(request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
