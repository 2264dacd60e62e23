"""What ``cellbox doctor`` says of the container engine: itself, the image, the runtime, the network, its clock.

Promises: asks only, a few seconds at most; where the engine is not needed nothing of it is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from interpreter.backends.docker import failure, gvisor, weaknesses
from interpreter.backends.docker.engine import Client, EngineError, NotThere, host
from interpreter.backends.docker.image import INPUTS, is_current
from interpreter.cli.findings import Finding, error, ok, warning
from interpreter.settings import Settings

_ASK_S = 5.0
_CLOCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Engine:
    """What an engine says. trouble: why it says nothing, a sentence. image, network: None if it knows none of that name.

    asked_at: seconds since the epoch, on our clock.
    """

    address: str
    trouble: str = ""
    version: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    image: Mapping[str, Any] | None = None
    network: Mapping[str, Any] | None = None
    asked_at: float = 0.0


def ask(found: Settings, address: str | None = None) -> Engine:
    """Return what the engine says. Blocking, seconds at most."""
    engine = Engine(address or host())
    client = Client(engine.address, within_s=_ASK_S)
    try:
        version, info = client.about()
        engine = replace(engine, version=version, info=info, asked_at=time.time())
        engine = replace(engine, image=_known(client.image, found.image))
        return replace(engine, network=None if found.network == "none" else _known(client.network, found.network))
    except EngineError as wrong:
        return Engine(engine.address, str(failure.unavailable(wrong, engine.address)))
    finally:
        client.close()


def examine(found: Settings, engine: Engine, *, needed: bool) -> Iterator[Finding]:
    """Yield what there is to say. needed: whether the engine makes the sandboxes."""
    if engine.trouble:
        if needed:
            yield error("engine", *_parted(engine.trouble))
        else:
            yield ok("engine", f"none answers at {engine.address}; none is needed")
        return
    yield from (each if needed else _harmless(each) for each in _examine(found, engine))


def directory(engine: Engine) -> Path | None:
    """Return where the engine keeps images and containers, if that is on this machine."""
    said = engine.info.get("DockerRootDir")
    return Path(said) if said and engine.address.startswith("unix:") else None


def _examine(found: Settings, engine: Engine) -> Iterator[Finding]:
    what = "engine"
    refusal = weaknesses.refusal(engine.version, engine.info, runtime="")
    name = f"Docker {engine.version.get('Version')} at {engine.address}"
    yield error(what, *_parted(f"{name}: {refusal}")) if refusal else ok(what, name)
    if not engine.address.startswith("unix:"):
        yield warning(
            what,
            "it is reached over the network, and sandboxes show directories of the engine's host",
            "run the service on the engine's host, with DOCKER_HOST unset",
        )
    here = engine.address.startswith("unix:")
    for sentence in weaknesses.found(engine.version, engine.info, runtime=found.runtime, here=here):
        make = error if found.runtime_checks == "refuse" else warning
        yield make("runtime", *_parted(sentence))
    yield _image(found.image, engine.image)
    yield _runtime(found.runtime, found.network, engine.info)
    if found.network != "none" and engine.network is None:
        yield error("network", *_parted(failure.no_network(found.network)))
    version, driver = engine.info.get("CgroupVersion", "1"), engine.info.get("CgroupDriver")
    yield ok("cgroups", f"version {version}, made by the engine ({driver})")
    yield from _clock(engine)


def _image(name: str, there: Mapping[str, Any] | None) -> Finding:
    what = "image"
    if there is None:
        return error(
            what,
            f"{name} is not there",
            "cellbox image build        (or `cellbox image load FILE`; SANDBOX_IMAGE names another one)",
        )
    if INPUTS not in ((there.get("Config") or {}).get("Labels") or {}):
        return warning(what, f"{name} does not say what it was made from", "`cellbox image build` makes one that does")
    match is_current(there):
        case True:
            return ok(what, f"{name}, made from the inputs of this version")
        case False:
            return warning(what, f"{name} was made from other inputs than this version has", "cellbox image build")
    return ok(what, f"{name}; the sources to compare it with are not here")


def _runtime(name: str, network: str, info: Mapping[str, Any]) -> Finding:
    what = "runtime"
    known = info.get("Runtimes") or {}
    if not name:
        return ok(what, f"{info.get('DefaultRuntime', 'runc')}, the engine's default")
    if name == gvisor.NAME:
        if cause := gvisor.wrong(info, network=network):
            return error(what, cause, "\n".join(gvisor.how_to_register(network=network)))
    elif name not in known:
        remedy = f'register "{name}" under "runtimes" in /etc/docker/daemon.json, then: systemctl reload docker'
        return error(what, f"the engine does not know the runtime {name} (SANDBOX_RUNTIME)", remedy)
    return ok(what, f"{name}, as registered with the engine")


def _clock(engine: Engine) -> Iterator[Finding]:
    """Compare the two clocks: that of an engine in a virtual machine stands still while the machine sleeps."""
    said = str(engine.info.get("SystemTime", ""))
    try:
        theirs = datetime.fromisoformat(said[:19] + "+00:00" if said.endswith("Z") else said[:19] + said[-6:])
    except ValueError:
        return
    if (apart := abs(theirs.timestamp() - engine.asked_at)) > _CLOCK_S:
        yield warning("clock", f"the engine's is {apart:.0f} s apart from ours", "set both: timedatectl set-ntp true")


def _harmless(each: Finding) -> Finding:
    """Return it as what does not matter: another backend makes the sandboxes."""
    return each if each.state == "ok" else ok(each.what, f"{each.text} (not needed)")


def _parted(sentence: str) -> tuple[str, str]:
    """Return the cause and the remedy of one of our sentences, which have a colon between them."""
    text, _, remedy = sentence.rpartition(": ")
    return (text, remedy) if text else (sentence, "the log of the engine says more")


def _known(look: Any, name: str) -> Mapping[str, Any] | None:
    try:
        return dict(look(name))
    except NotThere:
        return None
