"""Sandboxes of gVisor: each language, and what its kernel does in another way than the host's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import engines
from tests.attempts import in_time
from tests.e2e.conftest import GVISOR, Cellbox

RUNTIMES = [GVISOR]

LANGUAGES = {
    "python": ("x = 20", "print(x + 22)"),
    "node": ("let x = 20", "console.log(x + 22)"),
    "bash": ("x=20", "echo $((x + 22))"),
}
LEAVES_A_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open("daemon", "w").write(str(os.getpid()))
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    time.sleep(600)
while not os.path.exists("daemon") or not os.stat("daemon").st_size:
    time.sleep(0.01)
"""
LOOKS_FOR_IT = "import os\nprint(os.path.exists('/proc/' + open('daemon').read()))"


def test_it_is_gvisor(cellbox: Cellbox, scope: str) -> None:
    """A kernel of its own, and not the host's."""
    assert cellbox.exec("uname -r", language="bash", scope=scope)["stdout"].strip() not in ("", os.uname().release)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_keeps_its_state_and_runs_without_one(cellbox: Cellbox, scope: str, language: str) -> None:
    begin, end = LANGUAGES[language]
    cellbox.cell(begin, language=language, scope=scope, session="s")
    assert cellbox.cell(end, language=language, scope=scope, session="s")["stdout"] == "42\n"
    assert cellbox.exec(f"{begin}\n{end}", language=language, scope=scope, session="s")["stdout"] == "42\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import time\nwhile True: time.sleep(1)"),
        ("node", "await new Promise((done) => setTimeout(done, 60_000))"),
        ("bash", "sleep 60"),
    ],
)
def test_a_timeout_interrupts_and_keeps_the_state(cellbox: Cellbox, scope: str, language: str, code: str) -> None:
    begin, end = LANGUAGES[language]
    cellbox.cell(begin, language=language, scope=scope, session="s")
    answer = cellbox.cell(code, language=language, scope=scope, session="s", timeout=1)
    assert (answer["status"], answer["state"]) == ("timeout", "kept")
    assert cellbox.cell(end, language=language, scope=scope, session="s")["stdout"] == "42\n"


def test_a_kernel_that_ends_is_told_and_made_anew(cellbox: Cellbox, scope: str) -> None:
    """Node's end is seen without pidfds, which gVisor may lack."""
    cellbox.cell("let x = 1", language="node", scope=scope, session="s")
    answer = cellbox.cell("process.kill(process.pid, 'SIGKILL')", language="node", scope=scope, session="s")
    assert (answer["status"], answer["state"]) == ("died", "lost")
    assert cellbox.cell("typeof x", language="node", scope=scope, session="s")["generation"] == 2


def test_a_daemon_does_not_survive_its_run(cellbox: Cellbox, scope: str) -> None:
    """There may be no child subreaper: what it leaves behind belongs to the first process."""
    assert cellbox.exec(LEAVES_A_DAEMON, scope=scope, session="s")["status"] == "ok"
    assert cellbox.exec(LOOKS_FOR_IT, scope=scope, session="s")["stdout"] == "False\n"


def test_a_daemon_of_a_kernel_outlives_runs_and_not_the_kernel(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell(LEAVES_A_DAEMON, scope=scope, session="s")
    cellbox.exec("print(1)", scope=scope, session="s")
    assert cellbox.cell(LOOKS_FOR_IT, scope=scope, session="s")["stdout"] == "True\n"
    cellbox.cell("import os; os.kill(os.getpid(), 9)", scope=scope, session="s")
    assert cellbox.exec(LOOKS_FOR_IT, scope=scope, session="s")["stdout"] == "False\n"


def test_ours_keep_their_memory_to_themselves(cellbox: Cellbox, scope: str) -> None:
    """S3, as far as gVisor goes: see SECURITY.md."""
    code = """
for pid in (1, 2):
    try: open(f"/proc/{pid}/mem", "rb").read(1); print("read")
    except OSError as error: print(type(error).__name__)
"""
    assert cellbox.exec(code, scope=scope, session="s")["stdout"] == "PermissionError\n" * 2


@pytest.mark.alone
def test_killing_the_first_process_costs_that_sandbox_only(cellbox: Cellbox, scope: str) -> None:
    """S12. gVisor does not protect it as the kernel of a host does."""
    cellbox.cell("y = 1", scope=f"{scope}n", session="s")
    began = time.monotonic()
    assert cellbox.exec("kill -9 1; sleep 60", language="bash", scope=scope, session="s")["status"] == "died"
    in_time(time.monotonic() - began, 15)
    assert cellbox.exec("print(42)", scope=scope, session="s")["stdout"] == "42\n"
    assert cellbox.cell("y", scope=f"{scope}n", session="s")["state"] == "kept"


def test_the_limit_of_processes_holds_inside(serve: Callable[..., Cellbox], scope: str) -> None:
    """S16. Below that of the cgroup, at which gVisor's kernel would crash."""
    code = """
import subprocess
children = []
try:
    while len(children) < 64: children.append(subprocess.Popen(["sleep", "60"]))
except OSError as error: print(error.strerror)
for child in children: child.kill()
print(len(children) < 64)
"""
    service = serve(pids_limit="16")
    service.cell("x = 1", scope=scope, session="s")
    found = service.exec(code, scope=scope, session="s")
    assert found["stdout"] == "Resource temporarily unavailable\nTrue\n"
    assert service.cell("x", scope=scope, session="s")["state"] == "kept"


@pytest.mark.alone
@pytest.mark.parametrize(
    ("bomb", "ends"),
    [
        ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", ("timeout", "died")),
        ("x = []\nwhile True: x.append(bytearray(2**24))", ("died",)),
    ],
    ids=["fork", "memory"],
)
def test_a_bomb_ends_and_the_next_call_works(cellbox: Cellbox, scope: str, bomb: str, ends: tuple[str, ...]) -> None:
    cellbox.exec("1", scope=scope, session="s")
    assert cellbox.exec(bomb, scope=scope, session="s", timeout=4)["status"] in ends
    assert cellbox.exec("print(42)", scope=scope, session="s")["stdout"] == "42\n"


def test_a_running_cell_outlives_a_killed_service(serve: Callable[..., Cellbox], scope: str) -> None:
    service = serve()
    service.cell("x = 41", scope=scope, session="s")
    began = service.root / scope / "sessions" / "s" / "began"
    code = (
        "open('began', 'w').close()\nimport time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)\nx + 1"
    )
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(
            service.post, code=code, scope=scope, session="s", language="python", stateful=True, execution_id="e1"
        )
        service.wait_for(began.exists, within_s=20)
        service.end(signal.SIGKILL)
        assert lost.exception() is not None
    service.start()
    began.with_name("go").touch()
    answer = service.cell(code, scope=scope, session="s", execution_id="e1")
    assert (answer["results"][0]["data"]["text/plain"], answer["state"], answer["generation"]) == ("42", "kept", 1)


def test_a_sandbox_that_nobody_uses_is_ended(serve: Callable[..., Cellbox], scope: str) -> None:
    service = serve(idle_ttl="1")
    service.cell("x = 1", scope=scope, session="s")
    uid = (service.root / scope / "workspace").stat().st_uid
    assert len(engines.containers(range(uid, uid + 1))) == 1
    service.wait_for(lambda: not engines.containers(range(uid, uid + 1)), within_s=20)
    assert service.cell("'x' in globals()", scope=scope, session="s")["results"][0]["data"]["text/plain"] == "False"
