"""``cellbox completion``: a script that completes commands and options in Bash, made of the parser itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from interpreter.cli import OK, parser

_SCRIPT = """\
_cellbox() {{
    local at path= words=
    for (( at = COMP_CWORD - 1; at > 0; at-- )); do
        path="${{COMP_WORDS[*]:1:at}}"
        words=$(_cellbox_words "$path") && break
        words=
    done
    [ -n "$words" ] || words=$(_cellbox_words "")
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
_cellbox_words() {{
    case "$1" in
{cases}
        *) return 1 ;;
    esac
}}
complete -o default -F _cellbox cellbox
"""


def run(_arguments: argparse.Namespace) -> int:
    """Print the script."""
    cases = "\n".join(
        f"        {shlex.quote(path)}) echo {shlex.quote(' '.join(words))} ;;" for path, words in _words("", parser())
    )
    print(_SCRIPT.format(cases=cases), end="")
    return OK


def _words(path: str, of: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield, for each command and those below it, what may follow it."""
    words = [word for action in of._actions for word in action.option_strings if word.startswith("--")]
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += list(action.choices)
            for name, below in action.choices.items():
                yield from _words(f"{path} {name}".strip(), below)
        elif action.choices is not None:
            words += list(action.choices)
    yield path, words
