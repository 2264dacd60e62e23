"""Importing ``kernel.py`` leaves a process that may fork: kernels and stateless runs come out of it."""

import subprocess

from tests.kernels.conftest import PYTHON, REPOSITORY

CHECK = """
import sys
before = set(sys.path)
sys.path.insert(0, sys.argv[1])
import kernel
sys.path.pop(0)
import asyncio, os, threading
import zmq
from IPython.core.interactiveshell import InteractiveShell
assert set(sys.path) == before
assert os.listdir("/proc/self/task") == [str(os.getpid())], "one thread"
assert threading.active_count() == 1
assert zmq.Context._instance is None
assert not InteractiveShell.initialized()
assert asyncio.get_event_loop_policy()._local._loop is None
for name in ("matplotlib.pyplot", "matplotlib_inline.backend_inline", "pandas", "jedi"):
    assert name not in sys.modules, name
assert sys.modules["debugpy"] is None
"""


def test_nothing_is_started_by_the_import():
    done = subprocess.run(
        [PYTHON, "-c", CHECK, REPOSITORY / "kernels/python"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_modules_of_the_workspace_are_found(sandbox):
    (sandbox.workspace / "mine.py").write_text("x = 5")
    assert await sandbox.value("import mine; mine.x") == "5"


async def test_what_pip_puts_into_the_users_folder_is_found_at_once(sandbox):
    await sandbox.run("import site, os\nos.makedirs(site.getusersitepackages())")
    await sandbox.run("open(site.getusersitepackages() + '/fresh.py', 'w').write('x = 6')")
    assert await sandbox.value("import fresh; fresh.x") == "6"
