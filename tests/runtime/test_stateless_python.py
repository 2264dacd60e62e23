"""A stateless Python run against ``python -``: the same standard output, standard error and exit code, byte for byte."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.box import PYTHON, Box, box

SNIPPETS = {
    "nothing": "",
    "comment": "# nothing",
    "print": "print('hällo', 1, sep='|')",
    "no newline at the end": "print(1, end='')",
    "two streams": "import sys\nprint('o')\nprint('e', file=sys.stderr)",
    "main": "print(sorted(vars()))\nprint(__name__, __doc__, __package__, __spec__, __loader__, __file__, __cached__)",
    "main module": (
        "import sys\nm = sys.modules['__main__']\nprint(vars(m) is globals(), m, __builtins__, __annotations__)"
    ),
    "order of names": "print(list(globals()))",
    "argv": "import sys\nprint(sys.argv, sys.orig_argv[1:], sys.executable, sys.prefix, sys.base_prefix)",
    "path": "import sys\nprint(sys.path)",
    "flags": "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)",
    "import hooks": "import sys\nprint(sys.path_hooks, [h for h in sys.meta_path if isinstance(h, type)])",
    "hooks": "import sys\nprint(sys.excepthook, sys.displayhook, sys.breakpointhook, sys.unraisablehook)",
    "last": "import sys\nprint([n for n in dir(sys) if n.startswith('last') or n.startswith('ps')])",
    "streams": (
        "import sys\nfor s in sys.stdin, sys.stdout, sys.stderr:\n"
        "    print(repr(s), s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.fileno(), s.isatty())\n"
        "    print(type(s.buffer), repr(s.buffer.raw), s.buffer.raw.closefd, s.name, s.mode)\n"
        "print(sys.__stdout__ is sys.stdout, sys.__stdin__ is sys.stdin, sys.__stderr__ is sys.stderr)"
    ),
    "environment": "import os\nprint(sorted((k, v) for k, v in os.environ.items() if k != 'LC_CTYPE'))",
    "environment in C": (
        "import subprocess\nprint(subprocess.run(['sh', '-c', 'echo $HOME $TZ'], capture_output=True).stdout)"
    ),
    "cwd": "import os\nprint(os.getcwd(), os.listdir('.'))",
    "import from cwd": "open('mod_here.py', 'w').write('x = 7')\nimport mod_here\nprint(mod_here.x, mod_here.__file__)",
    "error": "1/0",
    "error in a function": "def f():\n    return g()\ndef g():\n    raise ValueError('no', 3)\nf()",
    "error with a cause": "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "error in a context": "try:\n    1/0\nexcept Exception:\n    undefined",
    "error group": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [KeyError(2)])])",
    "error with a note": "e = ValueError('v')\ne.add_note('note')\nraise e",
    "error whose text fails": "class E(Exception):\n    def __str__(self): raise TypeError\nraise E",
    "error in the standard library": "import json\njson.loads('{')",
    "error in an import": "import nothing_like_this",
    "error after output": "print('before')\nraise RuntimeError",
    "surrogate in an error": "raise ValueError('\\ud800')",
    "surrogate in print": "print('\\udcff')",
    "syntax error": "x = = 1",
    "syntax error later": "print('never')\ndef f(:\n    pass",
    "indentation error": "if 1:\nprint(2)",
    "tab error": "if 1:\n\tx = 1\n        y = 2",
    "unclosed": "print((1, 2",
    "return outside": "return 1",
    "await outside": "await f()",
    "null bytes in a literal": "print(repr('a\\0b'))",
    "crlf": "x = 1\r\nif x:\r\n    print('crlf')\r\n",
    "future import": "from __future__ import annotations\ndef f(x: undefined): pass\nprint(f.__annotations__)",
    "annotations": "x: int = 3\nprint(__annotations__)",
    "exit 0": "import sys\nsys.exit()",
    "exit 3": "import sys\nprint('x')\nsys.exit(3)",
    "exit 256": "raise SystemExit(256)",
    "exit -1": "raise SystemExit(-1)",
    "exit huge": "raise SystemExit(2**40)",
    "exit true": "raise SystemExit(True)",
    "exit text": "import sys\nsys.exit('a message')",
    "exit text that fails": "class E:\n    def __str__(self): 1/0\nraise SystemExit(E())",
    "exit tuple": "raise SystemExit(1, 2)",
    "exit by name": "exit(4)",
    "quit": "quit()",
    "os._exit": "import os\nprint('lost')\nos._exit(5)",
    "abort": "import os\nos.abort()",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal\nprint('lost')\nos.kill(os.getpid(), signal.SIGTERM)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)",
    "interrupt caught": (
        "import os, signal\ntry:\n    os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt:\n    print('caught')"
    ),
    "subclass of interrupt": "class K(KeyboardInterrupt): pass\nraise K",
    "signals": (
        "import signal\n"
        "print([(s.name, signal.getsignal(s)) for s in sorted(signal.valid_signals()) if hasattr(s, "
        "'name')])"
    ),
    "blocked signals": "import signal\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))",
    "sigpipe": "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')",
    "excepthook": "import sys\nsys.excepthook = lambda k, v, t: print('hook', k, v, t.tb_lineno, t.tb_next)\n1/0",
    "excepthook fails": "import sys\ndef hook(k, v, t): undefined\nsys.excepthook = hook\n1/0",
    "excepthook exits": "import sys\ndef hook(k, v, t): sys.exit(9)\nsys.excepthook = hook\n1/0",
    "no excepthook": "import sys\ndel sys.excepthook\n1/0",
    "exc_info in the hook": "import sys\nsys.excepthook = lambda k, v, t: print(sys.exc_info(), sys.last_type)\n1/0",
    "atexit": "import atexit\natexit.register(print, 'a')\natexit.register(print, 'b')\nprint('c')",
    "atexit fails": "import atexit\n@atexit.register\ndef f(): 1/0\nprint('x')",
    "atexit after an error": "import atexit\natexit.register(print, 'done')\n1/0",
    "atexit after exit": "import atexit, sys\natexit.register(print, 'done')\nsys.exit(6)",
    "del": "class D:\n    def __del__(self): print('del')\nd = D()\nprint('end')",
    "del after an error": "class D:\n    def __del__(self): print('del')\nd = D()\n1/0",
    "del in a frame": "class D:\n    def __del__(self): print('del')\ndef f():\n    d = D()\n    1/0\nf()",
    "del in a cycle": "class D:\n    def __del__(self): print('del', __name__)\na = D()\na.me = a",
    "del fails": "class D:\n    def __del__(self): 1/0\nd = D()",
    "weakref.finalize": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')",
    "unflushed file": "f = open('out.txt', 'w')\nf.write('kept')",
    "read it": "open('a', 'w').write('kept')\nprint(open('a').read())",
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.1), print('late'))).start()\n"
        "print('main')"
    ),
    "daemon thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nprint('main')"
    ),
    "error in a thread": (
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='T')\nt.start(); t.join()\nprint('on')"
    ),
    "main thread": (
        "import threading, os\n"
        "t = threading.main_thread()\n"
        "print(t.name, t.native_id == os.getpid(), threading.active_count())"
    ),
    "fork": "import os\nif os.fork():\n    os.wait(); print('parent')\nelse:\n    print('child')",
    "fork and error": "import os, sys\nif os.fork() == 0:\n    1/0\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
    "multiprocessing fork": (
        "import multiprocessing as m\ndef f(x): return x * x\n"
        "if __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))"
    ),
    "multiprocessing spawn": (
        "import multiprocessing as m\nimport math\nif __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=print, args=('x',))\n    p.start(); p.join(); print(p.exitcode)"
    ),
    "process pool": (
        "from concurrent.futures import ProcessPoolExecutor\nimport math\n"
        "with ProcessPoolExecutor(2) as p: print(list(p.map(math.sqrt, [1, 4])))"
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "p = ThreadPoolExecutor(2)\n"
        "print(p.submit(pow, 2, 5).result())"
    ),
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nprint(asyncio.run(f()))",
    "asyncio state": "import asyncio\nprint(asyncio._get_running_loop())\nasyncio.get_event_loop()",
    "asyncio subprocess": (
        "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n"
        "    return await p.communicate()\nprint(asyncio.run(f()))"
    ),
    "subprocess": (
        "import subprocess\nprint('a', flush=True)\nsubprocess.run('echo b; echo c >&2', shell=True)\nprint('d')"
    ),
    "order without flush": "import os\nprint('python')\nos.system('echo child')",
    "stdin": "import sys\nprint(repr(sys.stdin.read()))",
    "input": "input('prompt> ')",
    "breakpoint": "breakpoint()",
    "warn": "import warnings\nwarnings.warn('careful')\nwarnings.warn('deep', stacklevel=2)",
    "warn from a function": "import warnings\ndef f(): warnings.warn('f', DeprecationWarning, stacklevel=2)\nf()",
    "warning filters": "import warnings\nprint(warnings.filters)",
    "syntax warning": "x = 1\nx is 2",
    "resource warning": "import warnings\nwarnings.simplefilter('always')\nopen('f', 'w')",
    "logging": "import logging\nlogging.warning('w')\nlogging.getLogger('a').error('e')\nprint(logging.root.handlers)",
    "logging config": (
        "import logging\n"
        "logging.basicConfig(level=10, format='%(levelname)s %(name)s %(funcName)s')\n"
        "logging.debug('d')"
    ),
    "traceback of a stack of functions": "import traceback\ndef f(): traceback.print_stack(limit=1)\nf()",
    "closed stdout": "import sys\nsys.stdout.close()",
    "closed descriptor": "import os\nprint('x')\nos.close(1)",
    "closed stderr": "import os\nos.close(2)\n1/0",
    "no stdout": "import sys\nsys.stdout = None\nprint('x')\n1/0",
    "replaced stdout": "import sys, io\nsys.stdout = io.StringIO()\nprint('x')",
    "stdout to a file": "import sys\nsys.stdout = open('o', 'w')\nprint('x')",
    "binary": "import sys\nsys.stdout.buffer.write(bytes(range(128)))",
    "c output": "import ctypes\nctypes.CDLL(None).puts(b'from C')\nprint('from Python')",
    "big output": "print('x' * 300_000)",
    "descriptors": "import os\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:3], os.dup(0))",
    "third-party module is not there": (
        "import sys\n"
        "print([n for n in ('zmq', 'IPython', 'tornado', 'msgspec', 'sandboxd', 'ipykernel', 'debugpy') "
        "if n in sys.modules])"
    ),
    "third-party import": (
        "import tornado.ioloop, zmq, msgspec\nprint(zmq.__file__, tornado.ioloop.__spec__.name, zmq.Context)"
    ),
    "third-party submodule": (
        "import sys, zmq.asyncio\nprint(zmq.__spec__.loader, zmq.asyncio.__spec__.origin, sys.modules['zmq'] is zmq)"
    ),
    "import twice": (
        "import sys\n"
        "import traitlets\n"
        "a = traitlets\n"
        "del sys.modules['traitlets']\n"
        "import traitlets\n"
        "print(a is traitlets)"
    ),
    "reload": "import importlib, traitlets\nprint(importlib.reload(traitlets) is traitlets)",
    "ours is not to be found": "import sandboxd",
    "numpy": "import numpy\nprint(numpy.arange(3) * 2)",
    "requests": "import requests\nprint(requests.get)",
    "pickle of main": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nprint(P(1))",
    "enum": "import enum\nclass E(enum.Enum):\n    A = 1\nprint(E.A, E.__module__)",
    "namedtuple": "from collections import namedtuple\nprint(namedtuple('T', 'a b').__module__)",
    "inspect source": "import inspect\ndef f(): pass\nprint(inspect.getmodule(f))\ninspect.getsource(f)",
    "recursion": (
        "def r(n):\n"
        "    try: return r(n + 1)\n"
        "    except RecursionError: return n\n"
        "print(r(0) > 900)\n"
        "import sys\n"
        "print(sys.getrecursionlimit())"
    ),
    "locale": (
        "import locale, sys\nprint(locale.getpreferredencoding(), locale.setlocale(0), sys.getfilesystemencoding())"
    ),
    "time zone": "import time\nprint(time.tzname, time.localtime(0).tm_hour)",
    "help text": "print(help, exit, copyright)",
    "gc": "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage)",
    "switch interval": "import sys\nprint(sys.getswitchinterval(), sys.gettrace(), sys.getprofile())",
    "umask and limits": "import os, resource\nprint(os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE))",
    "session": "import os\nprint(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())",
    "user packages": "import site, sys\nprint(site.USER_BASE, site.USER_SITE)",
    "runpy": "import runpy\nopen('m.py', 'w').write('print(__name__)')\nrunpy.run_path('m.py', run_name='__main__')",
    "ignore child signals": (
        "import signal, subprocess\n"
        "print(subprocess.run(['python', '-c', 'import signal; print(signal.getsignal(2), "
        "signal.getsignal(13))'], capture_output=True).stdout)"
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with box(tmp_path_factory.mktemp("box")) as opened:
        yield opened


@pytest.fixture(scope="module")
def unbuffered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with box(tmp_path_factory.mktemp("unbuffered"), {"PYTHONUNBUFFERED": "1"}) as opened:
        yield opened


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_run_is_as_python_reading_standard_input(sandbox: Box, name: str) -> None:
    _compare(sandbox, SNIPPETS[name])


@pytest.mark.parametrize(
    "name", ["streams", "print", "two streams", "os._exit", "killed", "fork", "surrogate in print"]
)
def test_a_run_is_as_python_without_buffers(unbuffered: Box, name: str) -> None:
    _compare(unbuffered, SNIPPETS[name])


def test_what_was_printed_before_a_timeout_is_there(unbuffered: Box) -> None:
    code = "print('so far')\nimport time\ntime.sleep(60)"
    assert unbuffered.run(code, timeout_s=1.0).outcome.stdout == "so far\n"


def _compare(sandbox: Box, code: str) -> None:
    here = sandbox.run(code).outcome
    _empty(sandbox.workspace)
    real = subprocess.run(
        [PYTHON, "-"],
        input=code.encode(),
        env=sandbox.environment,
        cwd=sandbox.workspace,
        capture_output=True,
        check=False,
        start_new_session=True,
    )
    _empty(sandbox.workspace)
    exit_code = 128 - real.returncode if real.returncode < 0 else real.returncode
    assert _comparable(here.stdout) == _comparable(real.stdout.decode(errors="replace"))
    assert _comparable(here.stderr) == _comparable(real.stderr.decode(errors="replace"))
    assert here.exit_code == exit_code
    assert here.status == ("error" if exit_code else "ok")


def _comparable(text: str) -> str:
    """Addresses differ between any two processes."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()
