"""The ways out of all sandboxes: what each may reach, told to the egress process as soon as it changes.

Promises: a sandbox's socket is there before its programs run, where the proxy works; a changed policy file is in force within a
second, for sandboxes that run too; a file that is wrong changes nothing and is named in the log. Each refusal is one line of the
egress process's log; here it is counted, and on record before the sandbox hears of it.
Leaves to control.py: the conversation; to policies.py: what holds for whom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxd.protocol import EGRESS_SOCKET

from egress.protocol import Counted, Denied, Open, Own
from interpreter.backends.base import Network, SandboxId
from interpreter.egress import tools
from interpreter.egress.control import Control
from interpreter.egress.policies import MAX_BYTES, File, Policies, PolicyError, Rules, parse
from interpreter.egress.process import Beside, Elsewhere
from interpreter.keys import Key
from interpreter.metrics import Metrics
from interpreter.tasks import Tasks

log = logging.getLogger(__name__)

LOOK_S = 0.3
"""Between two looks at the policy file."""
ASK_S = 30.0
"""For the installed pip and npm to say which index they use, a sandbox's start included."""
PATIENCE_S = 10.0
"""For that at a first start, which then goes on; until it is known, what they use is refused."""
ASK_AGAIN_S = 600.0
_CLOSE_S = 5.0

Denying = Callable[[SandboxId, str, int, str], None]
"""Told sandbox, host, port and reason of each refusal."""


@dataclass(frozen=True, slots=True)
class EgressConfig:
    """What the settings say. control: socket of an egress process that somebody else runs; None: one of our own.

    own: what no sandbox may reach. pip_index_url, npm_registry: set inside; empty for the tools' own defaults.
    """

    allowlist: tuple[str, ...] = ()
    ports: tuple[int, ...] = (80, 443)
    private_cidrs: tuple[str, ...] = ()
    policy_file: Path | None = None
    control: Path | None = None
    own: Own = field(default_factory=Own)
    pip_index_url: str = ""
    npm_registry: str = ""


class Ways:
    """The way out of each sandbox. config: None: there is none, and nothing here does anything.

    root: of the data, where what the tools said is remembered. ask: asks a fresh sandbox's Python, see sandboxes/asking.py.
    """

    def __init__(
        self,
        config: EgressConfig | None,
        *,
        root: Path,
        ask: Callable[[str], Awaitable[str]],
        on_denied: Denying,
        metrics: Metrics,
    ) -> None:
        self._config = config or EgressConfig()
        self.network: Network = "none" if config is None else "proxy"
        """Of the sandboxes."""
        self._root = root
        self._ask = ask
        self._denying = on_denied
        self._metrics = metrics
        self._tasks = Tasks()
        self._keys: dict[SandboxId, tuple[Key | None, Path]] = {}
        self._policies = Policies(Rules(self._config.allowlist, (), self._config.ports), self._config.private_cidrs)
        self._seen: tuple[int, int, int] | None = None
        self._learnable = False
        self.proxy = Beside() if self._config.control is None else Elsewhere(self._config.control)
        self._control = Control(self.proxy, self._config.own, on_denied=self._denied, on_counted=self._counted)

    @property
    def up(self) -> bool:
        """Whether the proxy is there, as far as is known."""
        return self._control.up

    async def start(self) -> None:
        """Begin. Raises PolicyError: the settings allow too much, or the file is wrong and there is no earlier one to keep."""
        if self.network == "none":
            return
        file = self._config.policy_file
        if file is not None:
            self._seen = _about(file)
            self._policies = self._policies.with_file(read_policies(file))
        self._policies.check()
        if file is not None:
            self._tasks.start(self._watch(file), name="egress policy file")
        self._policies = self._policies.with_tools(tools.remembered(self._root))
        self._control.start()

    async def learn(self) -> None:
        """Begin to ask what ``@pypi`` and ``@npm`` stand for, and return at once where that is remembered."""
        self._learnable = True
        asking = self._begin_to_learn()
        if asking is not None and not self._policies.tools:
            await asyncio.wait([asking], timeout=PATIENCE_S)

    async def aclose(self) -> None:
        """End it. Sandboxes that go on are refused until the next service. May be called twice."""
        await self._tasks.aclose(within_s=_CLOSE_S)
        await self._control.aclose()

    async def open(self, sandbox: SandboxId, key: Key | None, directory: Path) -> None:
        """Have a way out for a sandbox whose link directory that is; again with another key, that one's policy is in force.

        key: None for one that is nobody's yet. Waits a moment at most.
        """
        if self.network == "none":
            return
        self._keys[sandbox] = key, directory
        await self._control.open(self._message(sandbox))

    async def give(self, sandbox: SandboxId, key: Key) -> None:
        """Put the policy of ``key`` in force for a sandbox that was nobody's."""
        if (known := self._keys.get(sandbox)) is not None:
            await self.open(sandbox, key, known[1])

    def close(self, sandbox: SandboxId) -> None:
        """End the way out of a sandbox, if it has one."""
        if self._keys.pop(sandbox, None) is not None:
            self._control.close(sandbox)
            self._metrics.egress_gone(sandbox)

    def shown(self, scope: str) -> dict[str, Any] | None:
        """Return what a scope's entry in listings says of it; None where there is no way out."""
        return None if self.network == "none" else self._policies.shown(scope)

    def _message(self, sandbox: SandboxId) -> Open:
        key, directory = self._keys[sandbox]
        return Open(sandbox, str(directory / EGRESS_SOCKET), self._policies.policy(key))

    def _changed(self, policies: Policies) -> None:
        """Put other policies in force, for those whom they concern."""
        before, self._policies = self._policies, policies
        for sandbox, (key, _) in self._keys.items():
            if before.policy(key) != policies.policy(key):
                self._control.put(self._message(sandbox))

    async def _watch(self, file: Path) -> None:
        """Take over each new version of the policy file that is right."""
        while True:
            await asyncio.sleep(LOOK_S)
            about = await asyncio.to_thread(_about, file)
            if about == self._seen:
                continue
            self._seen = about
            try:
                content = await asyncio.to_thread(read_policies, file)
                policies = self._policies.with_file(content)
                await asyncio.to_thread(policies.check)
            except PolicyError as error:
                log.error(
                    "egress: the policy file is not followed, and what it said before holds",
                    extra={"error": str(error)},
                )
            else:
                self._changed(self._policies.with_file(content))
                self._begin_to_learn()
                log.info("egress: the policy file was read", extra={"scopes": len(content.scopes)})

    def _begin_to_learn(self) -> asyncio.Task[None] | None:
        """Ask the tools, once, as soon as any policy speaks of them."""
        if not self._learnable or self.network == "none" or not self._policies.names_tools():
            return None
        self._learnable = False
        return self._tasks.start(self._learn(), name="egress hosts of pip and npm")

    async def _learn(self) -> None:
        pause_s = ASK_AGAIN_S / 20
        defaults: dict[str, str] = {}
        while True:
            if not defaults:
                defaults = tools.asked(await self._ask(tools.QUESTION))
            found = await asyncio.to_thread(
                tools.hosts, defaults, pip_index_url=self._config.pip_index_url, npm_registry=self._config.npm_registry
            )
            whole = bool(defaults) and all(len(hosts) > 1 or word == "@npm" for word, hosts in found.items())
            if whole or not self._policies.tools:  # what was remembered is not given up for less
                self._changed(self._policies.with_tools(found))
            if whole:
                await asyncio.to_thread(tools.remember, self._root, found)
                log.info("egress: the hosts of pip and npm are known", extra=found)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_AGAIN_S)

    def _denied(self, denied: Denied) -> None:
        sandbox = SandboxId(denied.sandbox)
        self._metrics.egress_denied(denied.reason)
        self._denying(sandbox, denied.host, denied.port, denied.reason)

    def _counted(self, counted: Counted) -> None:
        self._metrics.egress_counted(
            counted.sandbox,
            connections=counted.connections,
            allowed=counted.allowed,
            failed=counted.failed + counted.malformed,
            bytes_in=counted.bytes_in,
            bytes_out=counted.bytes_out,
        )
        if counted.sandbox not in self._keys:  # the last of one that has gone
            self._metrics.egress_gone(counted.sandbox)


def _about(file: Path) -> tuple[int, int, int] | None:
    """Return what another version of a file differs in; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_policies(file: Path) -> File:
    """Read the policy file. Raises PolicyError."""
    try:
        with file.open("rb") as content:
            text = content.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise PolicyError(f"{file} is longer than {MAX_BYTES} bytes")
        return parse(text.decode())
    except OSError as error:
        raise PolicyError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{file} is not UTF-8") from error
    except PolicyError as error:
        raise error if str(file) in str(error) else PolicyError(f"{file}: {error}") from error
