"""Real process boundaries: batons between processes, interrupts, pipes, and start-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import DOCUMENT, Exported

from kvbaton.settings import Settings, from_environment

MODEL = "smollm2-135m"


def environment(home: Path) -> dict[str, str]:
    """The environment of a child, with the trust domain of these tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVBATON_")}
    data, cache = str(home / "data"), str(home / "cache")
    return kept | {"KVBATON_DATA_DIR": data, "KVBATON_CACHE_DIR": cache, "HF_HUB_OFFLINE": "1"}


def child(home: Path, *arguments: object, code: str = "") -> subprocess.Popen[bytes]:
    """`kvbaton` in a process of its own, after some code.

    Ctrl-C reaches it as at a terminal, also where whoever started the tests ignores it: a shell
    lets its background jobs, and all that they start, ignore interrupts.
    """
    terminal = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{terminal}\n{code}\nfrom kvbaton.cli.main import main\nsys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    out, err = process.communicate()
    return process.returncode, out.decode(), err.decode()


_HEAVY = "torch transformers tokenizers accelerate safetensors.torch"
_SPY = f"""
import atexit
def tell():
    print('heavy:', *(m for m in {_HEAVY.split()!r} if m in sys.modules), file=sys.stderr)
atexit.register(tell)
"""


@pytest.mark.parametrize(
    "command",
    [["--help"], ["--version"], ["models", "list"], ["list"], ["inspect", "ID", "--text"],
     ["verify", "ID"], ["verify", "--all"], ["diff", "ID", "ID"], ["ps"], ["rm", "ID"],
     ["take", "--model", "no-such", "--baton", "ID"], ["take", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_what_needs_no_model_needs_no_torch(
    home: Path, exported: Exported, command: list[str]
) -> None:
    """Help, and every command that does not compute, run without torch and transformers."""
    arguments = [exported.baton if word == "ID" else word for word in command]
    if command[0] in ("list", "inspect", "verify", "diff", "ps", "rm") or "--baton" in command:
        arguments += ["--store", str(exported.store)]
    code, _, err = finish(child(home, *arguments, code=_SPY))
    assert code == (3 if "no-such" in command else 0), err
    assert err.splitlines()[-1].strip() == "heavy:"


_HOOK = """
from kvbaton import api
load, fed = api.load, []
def watched(*arguments, **options):
    engine = load(*arguments, **options)
    last = engine.model.model.norm
    last.register_forward_pre_hook(lambda module, given: fed.append(given[0].shape[1]))
    return engine
api.load = watched
import atexit
atexit.register(lambda: print('fed:', sum(fed), file=sys.stderr))
"""


def test_a_baton_crosses_from_one_process_to_another(tmp_path: Path) -> None:
    """On SmolLM2 the receiver's model is fed the pending token and the new ones, and no more."""
    context, store = tmp_path / "context.txt", tmp_path / "store"
    context.write_text(DOCUMENT * 3, encoding="utf-8")
    place = ("--model", MODEL, "--store", store, "--json")
    home = own_home(tmp_path, from_environment({}))
    sender = child(home, "export", "--context", context, "--max-new-tokens", "4", *place)
    code, out, err = finish(sender)
    assert code == 0, err
    made = json.loads(out)
    receiver = child(
        home, "take", "--baton", made["baton"], *place, "--max-new-tokens", "1",
        "--instruction", "Which door does the key in room 12 open?", code=_HOOK,
    )  # fmt: skip
    code, out, err = finish(receiver)
    assert code == 0, err
    receipt = json.loads(out)["receipt"]
    assert (receipt["route"], receipt["outcome"]) == ("baton", "used")
    assert receipt["pending_tokens"] == 1
    new = receipt["context_tokens"] - made["tokens"]
    assert receipt["computed_tokens"] == receipt["pending_tokens"] + new
    assert err.splitlines()[-1] == f"fed: {receipt['computed_tokens']}"


def own_home(folder: Path, machine: Settings) -> Path:
    """A home with this machine's models and digests, and a trust domain of its own."""
    home = folder / "home"
    (home / "data").mkdir(parents=True)
    (home / "data" / "models").symlink_to(machine.data_dir / "models")
    (home / "cache").symlink_to(machine.cache_dir)
    return home


_STOPS = {
    "writing a segment": """
import signal
from kvbaton.stores import directory
def half(descriptor, parts):
    import os
    os.write(descriptor, parts[0][: len(parts[0]) // 2])
    print('stopped', file=sys.stderr, flush=True)
    signal.pause()
directory.write_all = half
""",
    "publishing the baton": """
import signal
from kvbaton.stores import base, directory
publish = directory.DirectoryStore._publish
def before(self, key, temporary):
    if key.kind is base.Kind.BATON:
        print('stopped', file=sys.stderr, flush=True)
        signal.pause()
    return publish(self, key, temporary)
directory.DirectoryStore._publish = before
""",
}


@pytest.mark.parametrize("where", _STOPS)
def test_an_interrupt_leaves_no_partial_state(
    home: Path, tiny: Path, document: Path, where: str
) -> None:
    """SIGINT in the middle of a write: exit 130, no baton, no temporary file, no damage."""
    store = document.with_name("store")
    arguments = ("export", "--model", tiny, "--context", document, "--store", store)
    process = child(home, *arguments, code=_STOPS[where])
    assert process.stderr is not None
    for line in process.stderr:
        if line.strip() == b"stopped":
            break
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err
    left = {path.parent.parent.name for path in store.rglob("*") if path.is_file()}
    assert "batons" not in left
    assert list((store / "tmp").iterdir()) == []
    code, out, _ = finish(child(home, "verify", "--all", "--store", store, "--json"))
    assert (code, json.loads(out)["ok"]) == (0, True)


def test_a_reader_that_goes_away_is_no_error(home: Path, exported: Exported) -> None:
    """`kvbaton list | head -0`: no traceback, and the exit code of SIGPIPE."""
    read, write = os.pipe()
    os.close(read)
    script = "import sys\nfrom kvbaton.cli.main import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "list", "--store", str(exported.store)],
        env=environment(home),
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_module_runs_as_a_program(home: Path) -> None:
    """`python -m kvbaton.cli` is the same as `kvbaton`."""
    command: list[Any] = [sys.executable, "-m", "kvbaton.cli", "models", "list", "--json"]
    done = subprocess.run(command, env=environment(home), capture_output=True, check=True)
    assert json.loads(done.stdout)["models"][0]["name"] == MODEL


_TWO_AGENTS = """
name = "two"
dtype = "float32"
agents = [
  { name = "reader", task = "Hi there", max_new_tokens = 6 },
  { name = "writer", task = "Go on", max_new_tokens = 5 },
]
edges = [{ from = "reader", to = "writer" }]
"""
_ASKED_TO_END = """
import os, signal
from kvbaton.cli import relay_command
class Asking(relay_command._Story):
    def __call__(self, event, facts):
        super().__call__(event, facts)
        if event == "turn-started":
            os.kill(os.getpid(), signal.SIGTERM)
relay_command._Story = Asking
"""


def test_sigterm_lets_the_answering_agent_finish(home: Path, tiny: Path, tmp_path: Path) -> None:
    """What is under way is answered and handed off; the rest is not run; the exit code is 0."""
    pipeline = tmp_path / "two.toml"
    pipeline.write_text(_TWO_AGENTS, encoding="utf-8")
    store = f"dir://{tmp_path / 'store'}"
    asked = ["relay", pipeline, "--model", tiny, "--store", store, "--json"]
    code, out, err = finish(child(home, *asked, code=_ASKED_TO_END))
    assert code == 0, err
    result = json.loads(out)
    assert [turn["agent"] for turn in result["turns"]] == ["reader"]
    assert result["turns"][0]["output"]
    assert result["not_run"] == ["writer"]
    assert "asked to end: finishing the agent that is answering" in err
    listed = json.loads(finish(child(home, "list", "--store", store, "--json"))[1])
    assert len(listed["batons"]) == 1
    left = [list((tmp_path / "store" / folder).iterdir()) for folder in ("tmp", "leases")]
    assert left == [[], []]
