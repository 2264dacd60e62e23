"""What the shell is given to source besides cells. All of it keeps working whatever cells define, alias or set.

The state of a shell, as ``save`` writes it, is a script that makes it again: options, functions, variables, aliases, traps,
the directory, the umask, the positional parameters. Before it stands what the kernel wants to know. What a script cannot make
again is lost with a shell: jobs, open descriptors, limits, traps on DEBUG and RETURN. An ``exit`` inside a function saves its
locals as if they were global.

Since a trap on ERR may be ``exit``, traps are set last, and a command of ours that may fail stands in a list.

``PROMPT_COMMAND`` is no state: nobody is prompted, and what it reads would be our lines.

A user's trap on EXIT is kept in the variable ``__cellbox_exit``, since the shell's own one saves the state.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping
from dataclasses import dataclass

PIECE_MAX = 16 * 2**20
"""Bytes of a file that are shown at most."""

_TRAP_WORD = re.compile(rb"\btrap\b")
_EXIT_WORD = re.compile(rb"EXIT\b|\bexit\b|\b0\b")
_CHANGES_PARSING = re.compile(
    rb"\b(?:alias|unalias|shopt|source|eval|enable|posix|verbose)\b|(?:^|[\s;&|({])\.\s|\bset\s[^\n;&|]{0,99}?[-+][A-Za-z]{0,30}[kv]",
    re.MULTILINE,
)
"""What may change how the rest of a cell is to be read, an alias that a sourced file defines for one."""
_MOST_LINES = 2000
"""Of a cell that is one command: bash descends once for each, and some 20,000 exhaust its stack."""
_LISTING = re.compile(rb"\btrap\b(?: -p)? {0,9}(?:$|[;&|>)])", re.MULTILINE)

BYE = b'\\builtin eval "${__cellbox_exit-}"\n'
"""Runs the user's trap on EXIT."""

REPAIR = r"""
\unset -f builtin enable
\enable builtin . alias cd compgen declare eval export help jobs printf return set shopt trap type umask unset
\unset -v PROMPT_COMMAND
""".lstrip()
"""For a shell that does not hear, since a function has the name of what we need, or that was disabled."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STATE = b"#cellbox state\n"
_END = b"#cellbox end\n"

_INIT = r"""
\builtin set +H +m +o history
PS1= PS2=
\builtin unset -v MAILCHECK
display() {
    local file copy name status=0
    for file; do
        copy=FOLDER/show-$BASHPID-$RANDOM name=${file##*/}
        if \command head -c LIMIT -- "$file" >"$copy"; then
            \builtin printf 'show %s %s %s\n' "${BASH_SOURCE[-1]##*-}" "${copy##*/}" "${name//[[:cntrl:]]/?}" >FOLDER/control
            \builtin read -rN 1 -t 2 copy <FOLDER/shown || :
        else
            status=1
        fi
    done
    return $status
}
"""

_ARM = r"""\builtin trap -- '\builtin . FOLDER/exit' EXIT"""

_POST = r"""
\builtin set +e
\builtin unset -v PROMPT_COMMAND
\builtin printf 'done %s %s\n' "$2" "$1" >FOLDER/control
"""

_SAVE = r"""
\builtin printf '#cellbox exit\n'
\builtin trap -p EXIT
\builtin printf '#cellbox jobs\n'
\builtin jobs -pr
\builtin printf '#cellbox state\n'
\builtin shopt -p
\builtin umask -p
\builtin printf '\\builtin cd -- %q\n' "$PWD"
\builtin declare -p
\builtin set +o
\builtin printf '\\builtin set +e --'
if ((${#@})); then \builtin printf ' %q' "$@"; fi
\builtin printf '\n'
\builtin declare -f
\builtin declare -F
\builtin alias -p
\builtin printf '\\builtin unset -f trap\n'
\builtin trap -p ERR SIGNALS || :
\builtin printf '#cellbox end\n'
"""

_EXIT = r"""
\builtin set +e
\builtin . FOLDER/save >FOLDER/answer 2>/dev/null
"""

_TRAP = r"""
trap() {
    if [[ $BASHPID != "$$" ]]; then
        \builtin trap "$@"
        return
    fi
    local spec action=
    local -a others=()
    case ${1-} in
        -l)
            \builtin trap -l
            return
            ;;
        -p | '')
            if (($# != 1)) || [[ $1 == -p ]]; then
                \builtin trap - EXIT
                \builtin trap "$@"
                ARM
                if (($# < 2)) || [[ " ${*^^} " == *" EXIT "* || " $* " == *" 0 "* ]]; then
                    if [[ -v __cellbox_exit ]]; then
                        \builtin printf 'trap -- %s EXIT\n' "${__cellbox_exit@Q}"
                    fi
                fi
                return 0
            fi
            ;;
        --) shift ;;
    esac
    if (($# > 1)); then
        action=$1
        shift
    else
        action=-
    fi
    for spec; do
        case ${spec^^} in
            EXIT | SIGEXIT | 0)
                if [[ $action == - ]]; then
                    \builtin unset -v __cellbox_exit
                else
                    __cellbox_exit=$action
                fi
                ;;
            *) others+=("$spec") ;;
        esac
    done
    if ((${#others[@]})); then
        \builtin trap -- "$action" "${others[@]}"
    fi
}
"""

_READ = r"""
__cellbox_prompt() {
    local OPTIND=1 OPTARG option prompt= secret=0 from=0
    while \builtin getopts :ersa:d:i:n:N:p:t:u: option; do
        case $option in
            p) prompt=$OPTARG ;;
            s) secret=1 ;;
            u) from=$OPTARG ;;
        esac
    done
    if [[ /dev/fd/$from -ef FOLDER/in-${BASH_SOURCE[-1]##*-} ]]; then
        prompt=${prompt:0:1000}
        \builtin printf 'prompt %s %s %s\n' "$BASHPID" "$secret" "${prompt//[[:cntrl:]]/ }" >FOLDER/control
    fi
}
read() {
    __cellbox_prompt "$@" || :
    \builtin read "$@"
}
"""


def files(folder: str) -> dict[str, str]:
    """Return the scripts by the names of their files, for a shell whose files are in ``folder``."""
    texts = {
        "init": _INIT + _ARM,
        "arm": _ARM,
        "post": _POST,
        "save": _SAVE.replace("SIGNALS", " ".join(map(str, range(signal.NSIG)))),
        "exit": _EXIT,
        "trap": _TRAP.replace("ARM", _ARM),
        "read": _READ,
        "status": '\\builtin return "$1"\n',
    }
    quoted = shlex.quote(folder)
    if quoted != folder:
        raise ValueError(f"{folder}: no folder for files that a shell is to find")
    return {name: text.replace("FOLDER", folder).replace("LIMIT", str(PIECE_MAX + 1)) for name, text in texts.items()}


def is_guarded(cell: bytes) -> bool:
    """Whether ``cell`` may set or list a trap on EXIT: then it gets a ``trap`` that keeps it apart from the shell's."""
    if _TRAP_WORD.search(cell) is None:
        return False
    return _EXIT_WORD.search(cell) is not None or _LISTING.search(cell) is not None


@dataclass(frozen=True)
class Grouped:
    """A cell as one command. check: parses it and runs nothing; it fails where the cell is to be run as it is."""

    text: bytes
    check: bytes


def grouped(cell: bytes) -> Grouped | None:
    """Return ``cell`` as one command; None where that would change nothing, or what it means.

    An error of an expansion ends the command that it is in, and bash goes on with the next one: so with one command it ends the
    cell. Lines stay where they are. The check has other brackets, which an unclosed heredoc, a last backslash and a ``}`` that
    closes ours fail.
    """
    if not 0 < cell.strip().count(b"\n") < _MOST_LINES or _CHANGES_PARSING.search(cell) is not None:
        return None
    return Grouped(b"{ " + cell + b"\n}\n", b"while \\builtin false; do " + cell + b"\ndone\n")


@dataclass(frozen=True)
class State:
    """The state of a shell. script: makes it again. exit_trap: as the shell lists it. jobs: how many it would lose."""

    script: bytes
    exit_trap: bytes
    jobs: int


def state(text: bytes) -> State | None:
    """Return what ``save`` wrote, or None if it is not all there."""
    head, found, script = text.partition(_STATE)
    if not found or not script.endswith(_END):
        return None
    exit_trap, _, jobs = head.removeprefix(b"#cellbox exit\n").partition(b"#cellbox jobs\n")
    return State(script, exit_trap.strip(), len(jobs.split()))


def rearm(folder: str, exit_trap: bytes) -> bytes:
    """Return a script that takes the user's ``exit_trap``, which took the place of the shell's, apart again."""
    words = exit_trap.removeprefix(b"trap -- ").removesuffix(b" EXIT")
    keep = b"__cellbox_exit=" + words if words else b"\\builtin unset -v __cellbox_exit"
    return keep + b"\n\\builtin . %s/arm\n" % folder.encode()


def is_armed(folder: str, exit_trap: bytes) -> bool:
    """Whether the trap on EXIT is the shell's own."""
    return f"{folder}/exit".encode() in exit_trap


def revived(saved: bytes, *, forced: bool) -> bytes:
    """Return a script for a new shell. forced: the old one would not hear, and what may have been the cause is left out."""
    parts = [saved, b"\\builtin set +et\n"]
    if forced:
        parts.append(b"\\builtin trap - INT\n\\builtin unset -v TMOUT\n")
    return b"".join(parts)


def entering(env: Mapping[str, str], cwd: str | None, *, guarded: bool, asks: bool, folder: str) -> str:
    """Return a script to be run before a cell; it prints what ``leaving`` wants. Raises ValueError for an unusable name.

    asks: gets a ``read`` that tells its prompt, which bash itself shows on terminals only.
    """
    lines = []
    for name in env:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"env: {name!r} cannot be the name of a variable in Bash")
    if env:
        lines.append(f"\\builtin declare -p {' '.join(env)} || :")
    if cwd is not None:
        lines.append('\\builtin printf \'#cellbox cwd\\n%q\\n%q\\n\' "$PWD" "${OLDPWD-}"')
        lines.append(f"\\builtin cd -- {shlex.quote(cwd)} || \\builtin return 1")
    lines += [f"\\builtin export {name}={shlex.quote(value)} || :" for name, value in env.items()]
    if guarded:
        lines.append(f"\\builtin declare -F trap || \\builtin . {folder}/trap")
    if asks:
        lines.append(f"\\builtin declare -F read || \\builtin . {folder}/read")
    return "\n".join([*lines, "\\builtin return 0\n"])


def leaving(env: Mapping[str, str], cwd: str | None, before: bytes, *, guarded: bool, asks: bool) -> bytes:
    """Return a script to be run after a cell. before: what ``entering`` printed."""
    variables, _, directories = before.partition(b"#cellbox cwd\n")
    lines = [b"\\builtin unset -v %s || :" % " ".join(env).encode(), variables] if env else []
    if cwd is not None:
        back, old = directories.split(b"\n")[:2]
        there = shlex.quote(cwd).encode()
        lines.append(b"if [[ . -ef %s ]]; then \\builtin cd -- %s || :; OLDPWD=%s; fi" % (there, back, old))
    if guarded:
        lines.append(b"\\builtin unset -f trap || :")
    if asks:
        lines.append(
            b'[[ "$(\\builtin declare -f read)" != *__cellbox_prompt* ]] || \\builtin unset -f read __cellbox_prompt'
        )
    return b"\n".join(lines) + b"\n"
