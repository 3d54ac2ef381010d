"""The sandbox: whatever the code does, we get an answer, and nothing of it stays."""

import os

import psutil
import pytest

from kvbaton.audit.scoring import sandbox
from kvbaton.audit.scoring.sandbox import Limits, Outcome, run_tests
from kvbaton.errors import InputError


def note(code: str, tests: str = "", **limits: float) -> str:
    """Why the code failed."""
    found = run_tests(code, tests, limits=Limits(**limits))
    assert not found.passed
    return found.note


def test_passes():
    """Tests that run to their end have passed."""
    assert run_tests("import math\nx = math.pi", "assert 3 < x < 4").passed


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os\nos._exit(0)", "ended the process before its tests (status 0)"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("raise SystemExit", "SystemExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("(" * 10_000, "SyntaxError"),
        ("x = [0] * 10**10", "MemoryError"),
        ("x = []\nwhile True: x.append('a' * 10**7)", "MemoryError"),
        ("raise ValueError('x' * 10**6)", "ValueError: xxx"),
        ("import kvbaton", "ModuleNotFoundError"),
        ("import torch", "ModuleNotFoundError"),
    ],
)
def test_fails(code, says):
    """What goes wrong is said in a line."""
    found = note(code, memory_bytes=200 << 20)
    assert says in found
    assert len(found) <= 200


def test_endless_work():
    """Time of the processor is limited."""
    assert "status" in note("while True: pass", cpu_s=1, wall_s=300)


def test_endless_wait():
    """Waiting is limited."""
    assert note("import time\ntime.sleep(600)", wall_s=0.3) == "stopped after 0.3 s"


def test_huge_output():
    """What the code prints is thrown away, whether to a stream or to a descriptor."""
    code = "import os, sys\nprint('x' * 10**8)\nos.write(2, b'x' * 10**7)\nsys.stdout.flush()"
    assert run_tests(code, "").passed


def test_own_channel():
    """Nonsense that the code writes to where we listen is no pass."""
    code = "import os\nfor number in range(3, 9):\n    try: os.write(number, b'x' * 4000)\n"
    code += "    except OSError: pass\n"
    assert "ended the process" in note(code)


@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.system('true')",
        "import os\nos.execv('/bin/true', ['true'])",
        "import subprocess\nsubprocess.run(['true'])",
        "import socket\nsocket.socket()",
        "import ctypes\nctypes.CDLL(None).getpid()",
        "open('here', 'w')",
        "import pathlib\npathlib.Path('here').touch()",
        "import os\nos.mkdir('here')",
        "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    ],
)
def test_refused(code):
    """Processes, sockets, C libraries, files to write and new limits are refused."""
    assert "PermissionError" in note(code)


LOOK = """
import os, sys
frames, seen, found = [sys._getframe()], [], []
try: open('x', 'w')
except OSError as error: trace = error.__traceback__
while trace: frames.append(trace.tb_frame); trace = trace.tb_next
def look(thing, depth):
    if depth == 0 or any(thing is one for one in seen): return
    seen.append(thing)
    if isinstance(thing, (str, bytes)): found.append(thing); return
    inside = vars(thing).values() if hasattr(thing, '__dict__') else ()
    if isinstance(thing, dict): inside = thing.values()
    if isinstance(thing, (list, tuple, set)): inside = thing
    for one in list(inside): look(one, depth - 1)
    for name in ('__closure__', '__defaults__', '__kwdefaults__', '__code__', 'cell_contents'):
        try: look(getattr(thing, name, None), depth - 1)
        except Exception: pass
while frames:
    frame = frames.pop()
    if frame.f_back: frames.append(frame.f_back)
    look(dict(frame.f_locals), 6)
    look(frame.f_globals, 6)
    look(list(frame.f_code.co_consts), 3)
words, digits = set(), set(b'0123456789abcdef')
for one in found:
    text = one.encode() if isinstance(one, str) else one
    for start in range(len(text) - 31) if len(text) < 5000 else ():
        if 2 < len(set(text[start:start + 32])) and set(text[start:start + 32]) <= digits:
            words.add(text[start:start + 32])
"""
FORGE = """
word = words.pop() if words else b'a guess'
for number in range(3, 9):
    try: os.write(number, word)
    except OSError: pass
os._exit(0)
"""
ENDS = {
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "exit in the tests": "import os\ndef f(): os._exit(0)",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "excepthook": "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\n1 / 0",
    "an error that ends": (
        "import os\nclass E(Exception):\n  def __str__(self): os._exit(0)\nraise E"
    ),
    "a signal": (
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\nwhile True: pass"
    ),
    "frames": LOOK + FORGE,
    "the run again": "import __main__\n__main__.main()",
    "another writer": "import os\nos.write = lambda *_: 32\nos._exit(0)",
    "another exec": "import builtins\nbuiltins.exec = lambda *_: None",
    "another error": "__builtins__['AssertionError'] = type('E', (BaseException,), {})",
    "another raise": "import builtins\nbuiltins.AssertionError = None",
    "builtins of its own": "globals()['__builtins__'] = {'abs': lambda _: 3}",
    "another abs": "import builtins\nbuiltins.abs = lambda _: 3",
    "another compile": "import __main__\n__main__._steps = lambda *_: iter(())",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_no_pass_is_forged(code):
    """Whatever ends the process or is replaced, tests that did not hold have not passed."""
    assert note(code, "if 'f' in globals(): f()\nassert abs(-2) == 3")


def test_nothing_to_find():
    """The search above meets many texts; none has a part with the form of the word of a pass."""
    assert run_tests(LOOK, "assert len(found) > 100 and not words, words").passed


TAKEN = {
    "names": (
        "import __main__\nfor name in list(vars(__main__)):\n"
        "    if name.startswith('_') and name[1:2] != '_': setattr(__main__, name, ())\n"
    ),
    "builtins": (
        "import builtins\nfor name in ('isinstance', 'type', 'str', 'int'):\n"
        "    setattr(builtins, name, lambda *_: False)\n"
        "builtins.PermissionError = lambda *_: None\n"
    ),
    "os": (
        "import os\nos.devnull = 'here'\nos.O_WRONLY = os.O_RDWR = os.O_CREAT = 0\n"
        "os.stat = lambda *_: None\n"
    ),
    "the hook's frame": (
        "try: open('x', 'w')\nexcept OSError as error: trace = error.__traceback__\n"
        "while trace:\n    frame, trace = trace.tb_frame, trace.tb_next\n"
        "    for name in list(frame.f_locals):\n        frame.f_locals[name] = ()\n"
    ),
}
DEEDS = {
    "file": "__import__('_io').open('here', 'w')",
    "socket": "import _socket\n_socket.socket()",
    "process": "__import__('os').system('true')",
    "C library": "import _ctypes\nbroken = _ctypes.FUNCFLAG_CDECL",
    "memory": "__import__('_io').open('/proc/self/mem', 'rb')",
    "objects": "import gc\ngc.get_objects()",
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
def test_the_hook_stays(taken, deed):
    """No module's names, no builtins and no frame turn refusals off."""
    guarded = f"{taken}try:\n" + "".join(f"    {line}\n" for line in deed.split("\n"))
    code = f"done = True\n{guarded}except Exception: done = False\n"
    assert run_tests(code, "assert done is False").passed


@pytest.mark.parametrize(
    "code",
    [
        "import gc\ngc.get_referrers([])",
        "import gc\ngc.get_referents([])",
        "import sys\nsys.settrace(print)",
        "import sys\nsys.setprofile(print)",
        "import sys\nsys._current_frames()",
        "(lambda: 0).__code__.replace(co_code=b'')",
        "import importlib.util as u, sys\n"
        "spec = u.find_spec('_ctypes')\nspec.name = 'a._ctypes'\nu.module_from_spec(spec)",
        "import os\nclass P(str):\n  def __ne__(self, other): return False\n"
        "os.open(P('here'), os.O_CREAT | os.O_WRONLY)",
        "import os\nos.chdir('/proc/self')",
        "import os\nos.open('/proc/self', os.O_RDONLY)",
        "open('/dev/../proc/self/maps')",
    ],
)
def test_no_search(code):
    """What finds objects, frames, memory or code of ours is refused."""
    assert "PermissionError" in note(code)


def test_no_second_hook():
    """A hook of the code's, which would see the tests run, is never called."""
    code = "import sys\nseen = []\nsys.addaudithook(lambda *details: seen.append(details))"
    assert run_tests(code, "import json.tool\nassert seen == []").passed


def test_usual_modules():
    """Modules that look at frames, and files that are only read, work as everywhere."""
    code = (
        "from __future__ import annotations\nimport inspect, random\n"
        "import collections, dataclasses, enum, typing, json, re, decimal\n"
        "P = collections.namedtuple('P', 'x')\nE = enum.Enum('E', 'A B')\n"
        "T = typing.TypeVar('T')\n@dataclasses.dataclass\nclass D:\n    x: int = 1\n"
        "with open(json.__file__) as file: source = file.read()\n"
    )
    assert run_tests(code, "assert P(1).x == D().x == E.A.value and 'loads' in source").passed


def test_equal_to_everything():
    """What no harness in the same interpreter can tell: a result made for the tests."""
    code = "class A:\n  def __eq__(self, other): return True\ndef f(): return A()"
    assert run_tests(code, "assert f() == 2").passed
    assert note(code, "assert type(f()) is int and f() == 2")


def test_files_stay(tmp_path):
    """Files of ours can be neither removed nor changed nor renamed."""
    file = tmp_path / "ours"
    file.write_text("ours")
    tmp_path.chmod(0o777)
    file.chmod(0o666)
    for deed in (
        f"import os\nos.remove({str(file)!r})",
        f"import os\nos.rename({str(file)!r}, {str(file)!r} + '2')",
        f"import os\nos.truncate({str(file)!r}, 0)",
        f"import shutil\nshutil.rmtree({str(tmp_path)!r})",
        f"open({str(file)!r}, 'a').write('x')",
        f"import os\nos.open({str(file)!r}, os.O_RDWR)",
    ):
        assert "PermissionError" in note(deed)
    assert file.read_text() == "ours"


def test_no_file_grows(tmp_path, monkeypatch):
    """A file that is opened past the interpreter's hook cannot be written either."""
    monkeypatch.chdir(tmp_path)
    code = "import mmap, sqlite3\nsqlite3.connect('base').execute('create table t (a)')"
    assert note(code)


STRAY = (
    "import time\nfrom multiprocessing import util\n"
    "script = 'setsid sleep 417263 & sleep 417263'\n"
    "util.spawnv_passfds(b'/bin/sh', ['sh', '-c', script], ())\n"
)


@pytest.mark.parametrize("end", ["", "time.sleep(600)"], ids=["at the end", "when killed"])
@pytest.mark.parametrize("namespaces", [True, False], ids=["namespaces", "none"])
def test_grandchildren(tmp_path, monkeypatch, namespaces, end):
    """A process that is started past the hook, in a session of its own, does not live on."""
    if not namespaces:
        guard = sandbox._GUARD.read_text(encoding="utf-8")
        alone = guard.replace("missing = _apart()", 'missing = ["network", "grandchildren"]')
        assert alone != guard
        (tmp_path / "guard.py").write_text(alone, encoding="utf-8")
        monkeypatch.setattr(sandbox, "_GUARD", tmp_path / "guard.py")
    run_tests(STRAY + end, "", limits=Limits(wall_s=1.0))
    strays = [one for one in psutil.process_iter(["cmdline"]) if is_stray(one.info["cmdline"])]
    assert psutil.wait_procs(strays, timeout=60)[1] == []


def is_stray(words: list[str] | None) -> bool:
    """Whether a command line is that of the processes above."""
    return bool(words) and words[0] in ("sh", "sleep", "setsid") and "417263" in words[-1]


def test_nothing_inherited(monkeypatch):
    """Neither our environment nor our open files reach the code."""
    monkeypatch.setenv("KVBATON_SECRET", "s3cret")
    inside, outside = os.pipe()
    os.set_inheritable(outside, True)
    try:
        code = (
            "import os\nassert set(os.environ) == {'PATH', 'LC_ALL'}, set(os.environ)\n"
            f"try: os.fstat({outside + 40})\nexcept OSError: pass\n"
            "assert os.listdir('.') == []\nassert os.getcwd() != '/'\n"
            "assert len(os.listdir('/dev/fd')) <= 5\n"
        )
        assert run_tests(code, "") == Outcome(True, missing=run_tests("", "").missing)
    finally:
        os.close(inside)
        os.close(outside)


def test_no_processes_left(monkeypatch):
    """A system on which no process can be started, or none limited, is an error."""
    monkeypatch.setattr(sandbox.sys, "executable", "/no/such/python")
    with pytest.raises(InputError, match="no process"):
        run_tests("", "")
    monkeypatch.setattr(sandbox.os, "name", "nt")
    with pytest.raises(InputError, match="Linux or macOS"):
        run_tests("", "")
