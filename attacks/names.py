"""A10, names that act: paths, symbolic links, SQL, HTML and terminal codes in what is signed.

Attacked: the store's folders, and whoever reads a command's output.  The attacker chooses ids, is a
trusted sender with an odd name and odd words, and can plant links in the store.  Names are shown as
they are, never followed, never interpreted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attacks.scene import DOMAIN, SECRET, Finding, Scene, main, raised
from kvbaton.errors import KvbatonError
from kvbaton.seals import Grant
from kvbaton.seals.private_files import make_folder, write_once
from kvbaton.stores import Key, Kind
from kvbaton.types import Terms

SQL, HTML, MARKUP = "'; DROP TABLE batons; --", "<script>alert(1)</script>", "[red]x[/red]"
ESCAPE, TURN = "\x1b[2J\x1b]0;owned\x07", "\u202e"
SENDER = f"{HTML}{SQL}{MARKUP}"
PATHS = (
    "../../etc/passwd", "/etc/passwd", "..", "a/b", f"{'0' * 63}/", f"{'0' * 64}\n", "\0" * 64,
    "0" * 63 + "\N{FULLWIDTH DIGIT ZERO}", "A" * 64, f"batons/{'0' * 57}",
)  # fmt: skip


def attack(folder: Path) -> Sequence[Finding]:
    """Ids that are paths, links in the store, words that act on a terminal or a page."""
    home = folder / "data"
    make_folder(home / "domains")
    write_once(home / "domains" / f"{DOMAIN}.key", SECRET)
    scene = Scene(home)  # key files and store where the commands look for them
    scene.ring.generate([Grant(SENDER, DOMAIN)])
    findings = [
        Finding(f"the id {path[:20]!r}", "input-error", raised(scene.agent("coder"), path))
        for path in PATHS
    ]
    return [*findings, *links(scene), *odd_names(scene), *shown(scene, home)]


def links(scene: Scene) -> list[Finding]:
    """Links in the place of an object and of a folder are refused, and nothing is written there."""
    baton = scene.baton()
    store, outside = scene.folder / "store", scene.folder / "outside"
    outside.mkdir()
    path = store / "batons" / baton.id[:2] / baton.id
    (outside / baton.id).write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside / baton.id)
    file = raised(scene.agent("coder"), baton.id)
    path.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(outside)
    way = raised(scene.agent("coder"), baton.id)
    wrote = tried_put(scene, Key(Kind.BATON, baton.id[:2] + "0" * 62))
    path.parent.unlink()
    left = sorted(path.name for path in outside.iterdir())
    return [
        Finding("a link in an object's place", "baton-unavailable", file),
        Finding("a link in a folder's place", "baton-unavailable", way),
        Finding("a put through that link", "store-error", wrote),
        Finding("what lies behind it now", baton.id, " ".join(left)),
    ]


def tried_put(scene: Scene, key: Key) -> str:
    """What a put says."""
    try:
        scene.store.put(key, [b"x"])
    except KvbatonError as error:
        return error.code
    return "written"


def odd_names(scene: Scene) -> list[Finding]:
    """Control characters have no place in a name: nobody can sign one."""
    findings = []
    for tried, name in (("terminal codes", ESCAPE), ("a line end", "a\nb"), ("nothing", "")):
        sender = scene.agent("planner")
        turn = sender.run("Hello there", max_new_tokens=2)
        sender.name = name
        try:
            sender.hand_off(turn)
        except KvbatonError as error:
            said = error.code
        else:
            said = "handed off"
        findings.append(Finding(f"a sender called {tried}", "input-error", said))
    return findings


def shown(scene: Scene, home: Path) -> list[Finding]:
    """A signed baton full of such words: what the commands print of it."""
    honest = scene.baton()
    words = f"{ESCAPE}{TURN}{HTML}{SQL}{MARKUP}"
    terms = Terms(instruction=words, goal=words, receiver=f"{HTML}{TURN}")
    odd = replace(honest.manifest, sender=SENDER, terms=terms, ref=f"{MARKUP}{TURN}")
    name = scene.forge(odd, scene.ring.signer(SENDER, DOMAIN))
    findings = []
    for command in (
        ("inspect", name), ("inspect", name, "--text"), ("list",), ("verify", name),
        ("inspect", name, "--json"), ("list", "--json"),
    ):  # fmt: skip
        out = said_by(home, *command)
        findings.append(
            Finding(f"kvbaton {command[0]} {' '.join(command[2:])}", "inert", inert(out))
        )
    told = json.loads(said_by(home, "inspect", name, "--json"))
    exact = "yes" if told["sender"] == SENDER and told["terms"]["goal"] == words else "no"
    findings.append(Finding("programs get the words as they are", "yes", exact))
    literal = "yes" if SENDER in said_by(home, "inspect", name) else "no"
    findings.append(Finding("people see markup as it is spelled", "yes", literal))
    return findings


def said_by(home: Path, *command: str) -> str:
    """Standard output and error of a command."""
    done = subprocess.run(
        ["env", f"KVBATON_DATA_DIR={home}", sys.executable, "-m", "kvbaton.cli", *command,
         "--store", f"dir://{home}/store"],
        capture_output=True, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).decode("utf-8", "surrogateescape")


def inert(out: str) -> str:
    """Whether a text acts on a terminal, and whether it says anything."""
    acting = [c for c in out if (ord(c) < 0x20 and c not in "\n\t") or c in TURN + "\x7f"]
    if "Traceback" in out or not out.strip():
        return "failed"
    return f"acts with {acting[0]!r}" if acting else "inert"


if __name__ == "__main__":
    raise SystemExit(main(attack, __doc__))
