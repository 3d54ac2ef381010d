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
        child = sandbox._CHILD.read_text(encoding="utf-8")
        alone = child.replace("missing = _apart()", 'missing = ["network", "grandchildren"]')
        assert alone != child
        (tmp_path / "child.py").write_text(alone, encoding="utf-8")
        monkeypatch.setattr(sandbox, "_CHILD", tmp_path / "child.py")
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
