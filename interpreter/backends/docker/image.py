"""The image of the sandboxes: what it is made from, making it at need, and carrying it to where no registry is.

Promises: an image whose label names the same inputs is not made again; the addresses of package indexes are in no layer and
no history of it.
Leaves to runtime/Dockerfile: what is in it. Every call blocks, for minutes where something is made.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, ImageNotFound

import interpreter
from interpreter.backends import environment
from interpreter.backends.docker.engine import host, knock

INPUTS = "org.cellbox.inputs"
HEALTH = "org.cellbox.health"
VERSION = "org.opencontainers.image.version"

DOCKERFILE = "runtime/Dockerfile"
_FILES = ("Dockerfile", "requirements.txt", "requirements-image.txt", "health.py")
_FOLDERS = ("sandboxd", "sandbox-site")
_UNUSED = ("__pycache__", "node_modules")
_SILENCE_S = 1800.0
"""The engine says nothing while it copies gigabytes or apt unpacks."""

_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_LAST_LINES = 30
_CHUNK_BYTES = 2**20


class ImageError(Exception):
    """The image could not be made, saved or loaded. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class File:
    """One input: what it holds, and whether it is a program."""

    content: bytes
    executable: bool


@dataclass(frozen=True, slots=True)
class Built:
    """An image that is there. made: whether it had to be made."""

    name: str
    id: str
    inputs: str
    bytes: int
    made: bool


Say = Callable[[str], None]
"""Is told what goes on, one line at a time."""


def inputs() -> dict[str, File]:
    """Return everything the image is made from, under its path in the repository."""
    runtime = environment.runtime()
    found: dict[str, File] = {}
    for name in _FILES:
        found[f"runtime/{name}"] = _read(runtime / name)
    for source, target in (
        (environment.library() / "sandboxd", "runtime/sandboxd"),
        (runtime / "sandbox-site", "runtime/sandbox-site"),
        (environment.kernels(), "kernels"),
    ):
        for path in sorted(source.rglob("*")):
            names = path.relative_to(source).parts
            if path.is_file() and not any(name in _UNUSED or name.startswith(".") for name in names):
                found[f"{target}/{'/'.join(names)}"] = _read(path)
    return found


def digest(files: Mapping[str, File]) -> str:
    """Return what tells these inputs from others: a SHA-256, hexadecimal. Times and owners do not count."""
    total = hashlib.sha256()
    for name in sorted(files):
        file = files[name]
        total.update(repr((name, file.executable, hashlib.sha256(file.content).hexdigest())).encode())
    return total.hexdigest()


def is_current(there: Mapping[str, Any]) -> bool | None:
    """Whether an image, as the engine describes it, was made from the inputs as they are now; None: it does not say what from, or
    the inputs are not here. Milliseconds."""
    made_of = _labels(there).get(INPUTS)
    if made_of is None:
        return None
    try:
        return made_of == digest(inputs())
    except OSError:
        return None


def context(files: Mapping[str, File]) -> bytes:
    """Return them as the tar archive that the engine builds from. The same files give the same bytes."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name].content)
            entry.mode = 0o755 if files[name].executable else 0o644
            tar.addfile(entry, io.BytesIO(files[name].content))
    return into.getvalue()


def build(name: str, say: Say, *, fresh: bool = False) -> Built:
    """Return the image ``name`` of the inputs as they are now, made if it is not there.

    fresh: make it in any case, from a base and packages that are looked for anew. Raises ImageError.
    """
    files = inputs()
    wanted = digest(files)
    with _engine() as api:
        there = _inspect(api, name)
        if there is not None and not fresh and _labels(there).get(INPUTS) == wanted:
            return _built(name, there, made=False)
        base = _base(files[DOCKERFILE].content.decode())
        if fresh or _inspect(api, base) is None:
            _get_base(api, base, say)
        lines = api.build(
            fileobj=io.BytesIO(context(files)),
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=name,
            buildargs=build_arguments(os.environ),
            labels={INPUTS: wanted, VERSION: interpreter.__version__},
            # The build sees the network as the host does: a proxy on its loopback, the names of its VPN.
            network_mode="host",
            nocache=fresh,
            rm=True,
            forcerm=True,
            decode=True,
        )
        _follow(lines, say)
        there = _inspect(api, name)
        if there is None:
            raise ImageError(f"the engine made {name} and does not know it any more")
        return _built(name, there, made=True)


def save(name: str, file: Path, say: Say) -> int:
    """Write the image into ``file``, compressed if its name ends in ``.gz``; return its bytes. Raises ImageError."""
    part = file.with_name(file.name + ".part")
    with _engine() as api, contextlib.ExitStack() as cleanup:
        if _inspect(api, name) is None:
            raise ImageError(f"the image {name} is not there: `cellbox image build` makes it")
        cleanup.callback(part.unlink, missing_ok=True)
        say(f"saving {name} as {file}")
        try:
            with part.open("wb") as raw, _compressed(raw, file) as into:
                for chunk in api.get_image(name, chunk_size=_CHUNK_BYTES):
                    into.write(chunk)
                into.flush()
            part.rename(file)
        except OSError as error:
            raise ImageError(f"cannot write {file}: {error.strerror or error}") from error
    return file.stat().st_size


def load(file: Path, say: Say) -> list[str]:
    """Put the images of ``file`` into the engine and return their names. Raises ImageError."""
    found: list[str] = []
    with _engine() as api:
        try:
            with file.open("rb") as source:
                say(f"loading {file}")
                for event in api.load_image(source):
                    _raise_if_failed(event)
                    if loaded := re.match(r"Loaded image(?: ID)?: (\S+)", str(event.get("stream", ""))):
                        found.append(loaded[1])
        except OSError as error:
            if isinstance(error, requests.RequestException):
                raise
            raise ImageError(f"cannot read {file}: {error.strerror or error}") from error
    if not found:
        raise ImageError(f"{file} holds no image")
    return found


def build_arguments(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where this host has its packages from, for a build: indexes and proxies of its pip, its npm and its user.

    A directory of the host is none: the build cannot see it.
    """
    found = {}
    configured = _said([sys.executable, "-m", "pip", "config", "list"])
    for argument, option in (("PIP_INDEX_URL", "index-url"), ("PIP_EXTRA_INDEX_URL", "extra-index-url")):
        said = re.search(rf"^(?:global|install)\.{option}='(.*)'$", configured, re.MULTILINE)
        addresses = environ.get(argument) or (said[1].replace("\\n", " ") if said else "")
        found[argument] = " ".join(address for address in addresses.split() if re.match(r"https?://", address))
    registry = environ.get("NPM_CONFIG_REGISTRY") or environ.get("npm_config_registry")
    found["NPM_CONFIG_REGISTRY"] = registry or _said(["npm", "config", "get", "registry"])
    for name in _PROXIES:
        found[name] = environ.get(name) or environ.get(name.upper()) or ""
    return {name: value for name, value in found.items() if value}


# --- the engine -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _engine() -> Iterator[APIClient]:
    """Open the engine; whatever it and the library raise becomes an ImageError."""
    address = host()
    try:
        knock(address)
        api = APIClient(address, version="auto", timeout=_SILENCE_S)
    except (DockerException, requests.RequestException, OSError) as error:
        raise ImageError(f"no container engine answers at {address}: start it, or set DOCKER_HOST") from error
    try:
        yield api
    except APIError as error:
        raise ImageError(f"the engine refused: {error.explanation or error}") from error
    except (DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine at {address} went away") from error
    finally:
        api.close()


def _inspect(api: APIClient, name: str) -> dict[str, Any] | None:
    try:
        return dict(api.inspect_image(name))
    except ImageNotFound:
        return None


def _labels(there: Mapping[str, Any]) -> dict[str, str]:
    return (there.get("Config") or {}).get("Labels") or {}


def _built(name: str, there: Mapping[str, Any], *, made: bool) -> Built:
    return Built(name, there["Id"], _labels(there).get(INPUTS, ""), there["Size"], made)


def _base(dockerfile: str) -> str:
    first = re.search(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert first is not None, "a Dockerfile begins with FROM"  # noqa: S101 - it is our own
    return first[1]


def _get_base(api: APIClient, name: str, say: Say) -> None:
    """Pull the base image; where there is no registry make it, if that may be done here."""
    say(f"pulling {name}")
    repository, _, tag = name.rpartition(":")
    try:
        for event in api.pull(repository, tag, stream=True, decode=True):
            _raise_if_failed(event)
    except (APIError, ImageError) as error:
        script = environment.runtime() / "make-base.sh"
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise ImageError(
                f"{name} cannot be pulled ({error}). Without a registry, {script} makes it, as root on a Debian or Ubuntu;"
                " `cellbox image load` takes images from a file"
            ) from error
    else:
        return
    say(f"no registry has it; making {name} from Debian's packages")
    with subprocess.Popen(["/bin/bash", str(script), "-"], stdout=subprocess.PIPE) as made:
        assert made.stdout is not None, "a pipe was asked for"  # noqa: S101 - for the types
        try:
            api.import_image_from_stream(made.stdout, repository=repository, tag=tag, changes=['CMD ["bash"]'])
        except BaseException:
            made.terminate()
            raise
    if made.returncode:
        api.remove_image(name, force=True)
        raise ImageError(f"{name} could not be made; what was said above tells why")


def _follow(lines: Iterator[dict[str, Any]], say: Say) -> None:
    """Tell of each step, and of what it says; raise what the engine complains of, with the last lines before it."""
    last: list[str] = []
    step = ""
    for event in lines:
        for line in str(event.get("stream", "")).splitlines():
            text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
            if not text or text.startswith(("--->", "Removing intermediate")):
                continue
            last = [*last[1 - _LAST_LINES :], text]
            if found := re.match(r"Step (\d+/\d+) : (.*)", text):
                step = found[1]
                text = found[2]
            say(f"{step} {' '.join(text.split())}".strip())
        try:
            _raise_if_failed(event)
        except ImageError as error:
            raise ImageError("\n".join([*last, str(error)])) from error


def _raise_if_failed(event: Mapping[str, Any]) -> None:
    if "error" in event:
        raise ImageError(str(event["error"]).strip())


# --- files ----------------------------------------------------------------------------------------------------------


def _read(path: Path) -> File:
    return File(path.read_bytes(), os.access(path, os.X_OK))


def _compressed(raw: IO[bytes], file: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    if file.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0)  # type: ignore[return-value]  # is one
    return contextlib.nullcontext(raw)


def _said(command: list[str]) -> str:
    """Return what a program prints; nothing where it is not there or fails."""
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
