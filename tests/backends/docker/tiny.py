"""A tiny image of the host's own Python: what tests of containers as such need, made in a second, without a network.

``/usr/bin/python3`` is the host's system Python, with its standard library; beside it only ``true``.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

from docker import APIClient
from docker.errors import ImageNotFound

IMAGE = "cellbox-tests-tiny:2"
_PROGRAMS = ("/usr/bin/python3", "/usr/bin/true")
_PLACES = ("opt/workspace", "opt/user", "run/cellbox", "proc", "sys", "dev", "etc")
_MODES = {"tmp": 0o1777, "run/kernels": 0o700}  # older engines give a tmpfs the mode of the place that it covers
_WITHOUT = re.compile(r"/(dist-packages|test|tests|idlelib|lib2to3|tkinter|ensurepip|__pycache__|config-3[^/]*)(/|$)")


def make(address: str) -> str:
    """Return the name of the image, made at need in the engine at ``address``."""
    api = APIClient(address, version="auto")
    try:
        api.inspect_image(IMAGE)
    except ImageNotFound:
        name, _, tag = IMAGE.partition(":")
        api.import_image_from_data(_tar(), repository=name, tag=tag)
    finally:
        api.close()
    return IMAGE


def _tar() -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for place, mode in {**dict.fromkeys(_PLACES, 0o755), **_MODES}.items():
            entry = tarfile.TarInfo(place)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for program in _PROGRAMS:
            tar.add(Path(program).resolve(), program.lstrip("/"))
        python = Path("/usr/bin/python3").resolve()
        tar.add(python, str(python).lstrip("/"))
        library = Path("/usr/lib") / python.name
        tar.add(library, str(library).lstrip("/"), filter=_wanted)
        for file in sorted(_libraries([*_PROGRAMS, *map(str, library.glob("lib-dynload/*.so"))])):
            tar.add(os.path.realpath(file), file.lstrip("/"))
    return into.getvalue()


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if _WITHOUT.search("/" + entry.name) else entry


def _libraries(programs: list[str]) -> set[str]:
    """The shared libraries of ``programs``, where the loader looks for them."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?:=> |^\s+)(/\S+) \(", said, re.MULTILINE))
