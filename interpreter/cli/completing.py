"""What can stand at the cursor: the kernel is asked, by a few lines of code in its own language.

Promises: what was typed is looked up and not run, except that a dotted name is followed, whose properties may run code; ``_``,
``$?`` and the variables stay as they are. A kernel that is busy, or takes longer than ``WITHIN_S``, has nothing to offer.
"""

from __future__ import annotations

import json
import re
import shlex

from interpreter.client import CellboxError, Session

WITHIN_S = 2.0
MOST = 200
DELIMITERS = " \t\n;|&()[]{}<>=+*%^,:!`\"'@"
"""What begins a new word. Dots and slashes do not: names and paths are looked up from their beginning."""

_NAME = re.compile(r"(?:([\w$]+(?:\.[\w$]+)*)\.)?([\w$]*)")
_PYTHON = """\
(lambda word, found: print(__import__('json').dumps(
    [word[: len(word) - len(found[0])] + name for name in found[1][:{most}]] if word.endswith(found[0])
    else [name[len(found[0]) - len(word):] for name in found[1][:{most}]]
)))({word!r}, get_ipython().complete(None, {before!r}, {end}))"""
"""IPython looks at more than the word (``%ti``) or at less (``.pat``), and says at what."""
_NODE = """\
console.log(JSON.stringify((() => {{
  const found = new Set()
  for (let o = {of}; o !== null && o !== undefined; o = Object.getPrototypeOf(Object(o)))
    for (const name of Object.getOwnPropertyNames(o)) if (name.startsWith({start})) found.add({head} + name)
  return [...found].slice(0, {most})
}})()))"""


def matches(where: Session, language: str, before: str, word: str) -> list[str]:
    """Return what can stand in the place of ``word``, at the end of ``before``; empty where nothing is known."""
    code = _code(language, before, word)
    if code is None:
        return []
    try:
        said = where.run(code, language, timeout=WITHIN_S, queue_timeout=0)
        found = json.loads(said.stdout) if language != "bash" else said.stdout.splitlines()
    except (CellboxError, ValueError):
        return []
    if not isinstance(found, list):
        return []
    return [name for name in found if isinstance(name, str) and name.startswith(word)]


def _code(language: str, before: str, word: str) -> str | None:
    if language == "python":
        return _PYTHON.format(before=before, end=len(before), word=word, most=MOST)
    if language == "bash":
        return _bash(before, word)
    found = _NAME.fullmatch(word)
    if language != "node" or found is None:
        return None
    head = f"{found[1]}." if found[1] else ""
    return _NODE.format(of=found[1] or "globalThis", head=json.dumps(head), start=json.dumps(found[2]), most=MOST)


def _bash(before: str, word: str) -> str:
    if word.startswith("$"):
        kind, start, show = "-v", word[1:], "sed 's/^/$/'"
    elif re.search(r"(?:^|[;|&(]|\bdo\b|\bthen\b|\belse\b)\s*$", before[: len(before) - len(word)]) and "/" not in word:
        kind, start, show = "-c", word, "cat"
    else:
        kind, start, show = "-f", word, "cat"
    return f"(was=$?; compgen {kind} -- {shlex.quote(start)} | sort -u | head -n {MOST} | {show}; exit $was)"
