"""Who may reach what: the settings, and a file that says otherwise for scopes and sessions. Pure.

The file is YAML::

    default: {deny: [tracker.example.com]}        # of all scopes; allow and ports come from the settings unless said here
    scopes:
      ada:
        allow: ["@default", data.example.org, "*.example.com:8443"]
        sessions:
          chat7: {allow: []}                      # reaches nothing

Each level begins with what the one above it has. ``allow`` and ``ports`` take the place of what is above, ``@default`` in
``allow`` stands for it; ``deny`` adds to it, and beats ``allow`` whoever said it. So a scope is wider or narrower than the
default, and a session than its scope, but for what is denied above.
Promises: a text that is wrong anywhere is refused as a whole, with a sentence that says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from egress.protocol import MAX_ENTRIES, MAX_LINE, Policy
from interpreter.egress import entries
from interpreter.keys import NAME, Key

ABOVE = "@default"
MAX_BYTES = 2**20
MOST_HOSTS = MAX_ENTRIES - 250
"""In one list of a scope or session, with what it has from above. The rest is for what ``@pypi`` and ``@npm`` stand for."""
MOST_TEXT = MAX_LINE // 2
"""Characters of all that one of them may and may not reach."""
_RULES = ("allow", "deny", "ports")


class PolicyError(Exception):
    """A policy file says something that cannot be followed. Text: one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one level says. None: nothing of its own."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    ports: tuple[int, ...] | None = None

    def below(self, above: Rules) -> Rules:
        """Return what holds on this level, with what holds on the one above it."""
        allow = above.allow
        if self.allow is not None:
            allow = tuple(dict.fromkeys(word for each in self.allow for word in _meant(each, above)))
        deny = tuple(dict.fromkeys((*above.deny, *self.deny)))
        return Rules(allow, deny, above.ports if self.ports is None else self.ports)


@dataclass(frozen=True, slots=True)
class File:
    """What a file says. scopes: by name, with the sessions of each."""

    default: Rules = field(default_factory=Rules)
    scopes: Mapping[str, tuple[Rules, Mapping[str, Rules]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policies:
    """settings: what they say. tools: the hosts that ``@pypi`` and ``@npm`` stand for."""

    settings: Rules
    private_cidrs: tuple[str, ...] = ()
    file: File = field(default_factory=File)
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def rules(self, key: Key | None) -> Rules:
        """Return what holds for a key, as it was written; for None, or a scope that is not known yet, the default."""
        found = self.file.default.below(self.settings)
        if key is None or (said := self.file.scopes.get(key.scope)) is None:
            return found
        scope, sessions = said
        found = scope.below(found)
        if key.session is not None and (session := sessions.get(key.session)) is not None:
            found = session.below(found)
        return found

    def policy(self, key: Key | None) -> Policy:
        """Return the same as the egress process is told."""
        rules = self.rules(key)
        return Policy(self._hosts(rules.allow or ()), self._hosts(rules.deny), rules.ports or (), self.private_cidrs)

    def check(self) -> None:
        """Raises PolicyError where the lists of a level, with what is above it, are longer than the egress process takes."""
        keys = [None, *(Key(scope, None) for scope in self.file.scopes)]
        keys += [Key(scope, session) for scope, (_, sessions) in self.file.scopes.items() for session in sessions]
        for key in keys:
            rules = self.rules(key)
            lists = {"allow": rules.allow or (), "deny": rules.deny}
            place = "the default" if key is None else f"scopes.{key.scope}"
            place += f".sessions.{key.session}" if key is not None and key.session is not None else ""
            for name, hosts in lists.items():
                if len(hosts) > MOST_HOSTS:
                    raise PolicyError(f"{name} of {place} has {len(hosts)} hosts in all; the most are {MOST_HOSTS}")
            if sum(len(host) + 3 for hosts in lists.values() for host in hosts) > MOST_TEXT:
                raise PolicyError(f"the hosts of {place} are more than {MOST_TEXT} characters in all")

    def names_tools(self) -> bool:
        """Whether any level speaks of the hosts of pip or npm."""
        levels = [self.settings, self.file.default]
        for scope, sessions in self.file.scopes.values():
            levels += [scope, *sessions.values()]
        return any(word in entries.TOOLS for level in levels for word in (*(level.allow or ()), *level.deny))

    def shown(self, scope: str) -> dict[str, Any]:
        """Return the entry of a scope in listings: what holds for it, and for those of its sessions that have their own."""
        _, sessions = self.file.scopes.get(scope, (None, {}))
        return {
            **_listed(self.rules(Key(scope, None))),
            "sessions": {session: _listed(self.rules(Key(scope, session))) for session in sorted(sessions)},
        }

    def with_file(self, file: File) -> Policies:
        """Return these with another file."""
        return replace(self, file=file)

    def with_tools(self, tools: Mapping[str, tuple[str, ...]]) -> Policies:
        """Return these with other hosts of the tools."""
        return replace(self, tools=tools)

    def _hosts(self, words: tuple[str, ...]) -> tuple[str, ...]:
        meant = (host for word in words for host in (self.tools.get(word, ()) if word in entries.TOOLS else (word,)))
        return tuple(dict.fromkeys(meant))


def parse(text: str) -> File:
    """Return what a file says. Raises PolicyError."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what looks like a date or a number and is none
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise PolicyError(f"it is not YAML{where}") from error
    except RecursionError as error:
        raise PolicyError("it is nested too deep") from error
    top = _mapping(content, "it", ("default", "scopes"))
    scopes = {}
    for name, said in _named(top.get("scopes"), "scopes").items():
        place = f"scopes.{name}"
        scope = _mapping(said, place, (*_RULES, "sessions"))
        sessions = _named(scope.get("sessions"), f"{place}.sessions")
        scopes[name] = (
            _rules(scope, place),
            {
                session: _rules(_mapping(rules, f"{place}.sessions.{session}", _RULES), f"{place}.sessions.{session}")
                for session, rules in sessions.items()
            },
        )
    return File(_rules(_mapping(top.get("default"), "default", _RULES), "default"), scopes)


def _meant(entry: str, above: Rules) -> tuple[str, ...]:
    return above.allow or () if entry == ABOVE else (entry,)


def _listed(rules: Rules) -> dict[str, Any]:
    return {"allow": list(rules.allow or ()), "deny": list(rules.deny), "ports": list(rules.ports or ())}


def _mapping(value: Any, place: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PolicyError(f"{place} has to be a mapping of {', '.join(known)}")
    for name in value:
        if name not in known:
            raise PolicyError(f"{place} has {str(name)[:80]!r}, and may have {', '.join(known)}")
    return value


def _named(value: Any, place: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise PolicyError(f"{place} has to be a mapping of names")
    for name in value:
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise PolicyError(f"{place} has {str(name)[:80]!r}, which is no name (a number has to stand in quotes)")
    return value


def _rules(said: Mapping[str, Any], place: str) -> Rules:
    allow, deny, ports = said.get("allow"), said.get("deny"), said.get("ports")
    return Rules(
        None if allow is None else _entries(allow, f"{place}.allow", (*entries.TOOLS, ABOVE)),
        () if deny is None else _entries(deny, f"{place}.deny", entries.TOOLS),
        None if ports is None else _ports(ports, f"{place}.ports"),
    )


def _entries(value: Any, place: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value) or len(value) > MAX_ENTRIES:
        raise PolicyError(f"{place} has to be a list of at most {MAX_ENTRIES} host names")
    if bad := entries.wrong(value, names=names):
        raise PolicyError(
            f"{place} has {bad[0][:80]!r}, which is neither host, *.host, host:port, * nor {', '.join(names)}"
        )
    return tuple(value)


def _ports(value: Any, place: str) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or not all(type(port) is int and 0 < port < 65536 for port in value)
        or len(value) > 1000
    ):
        raise PolicyError(f"{place} has to be a list of ports between 1 and 65535")
    return tuple(value)
