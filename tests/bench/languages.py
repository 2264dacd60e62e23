"""Rows of stateful Node and Bash: beside the kernels that people use for them, and what an idle one weighs."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import measure, peers
from tests.bench.jupyter import bare_loop
from tests.bench.rows import Caller, fresh, pss_mb, sandbox_trees
from tests.e2e.conftest import Cellbox

_KERNELS = 5
"""Of one sandbox, whose memory is compared with that of the same sandbox before it had them."""


def node(service: Cellbox, caller: Caller) -> measure.Rows:
    """A cell of stateful Node beside the same cell on tslab, over HTTP and in the same bare loop of jupyter_client."""
    return [*_beside(caller, "node", "1+1", peers.tslab, limit=0.2), _memory(service, caller, "node", limit=45)]


def bash(service: Cellbox, caller: Caller) -> measure.Rows:
    """A cell of stateful Bash beside the same cell on bash_kernel, over HTTP and in the same bare loop of jupyter_client."""
    return [*_beside(caller, "bash", "true", peers.bash_kernel, limit=0.2), _memory(service, caller, "bash", limit=15)]


def _beside(caller: Caller, language: str, code: str, find: Callable[[], peers.Peer], *, limit: float) -> measure.Rows:
    scope = fresh(language)
    name = f"stateful {language.title()} over HTTP, `{code}`"

    def ours() -> object:
        return caller.cell(code, scope=scope, language=language)

    try:
        peer = find()
    except peers.NotInstalled as reason:
        print(f"nothing to compare with: {reason}", file=sys.stderr, flush=True)
        name += f" ({find.__name__} could not be installed)"
        return [measure.alone(name, lambda: measure.elapsed_ms(ours), n=200, warm_up=20, limit=15)]
    kernel = peers.our_kernel(language)
    with (
        tempfile.TemporaryDirectory(prefix="b") as one,
        tempfile.TemporaryDirectory(prefix="b") as other,
        bare_loop(peer.argv, Path(one), tcp=peer.tcp) as theirs,
        bare_loop(kernel.argv, Path(other), env=kernel.env) as same,
    ):
        compared = f"jupyter_client on {peer.name}"
        alike = f"the {language.title()} kernel under jupyter_client, `{code}`"
        return [
            measure.against(name, ours, compared, lambda: theirs.cell(code), n=150, warm_up=20, limit=limit),
            measure.against(
                alike, lambda: same.cell(code), compared, lambda: theirs.cell(code), n=150, warm_up=20, limit=limit
            ),
        ]


def _memory(service: Cellbox, caller: Caller, language: str, *, limit: float) -> measure.Row:
    scope = fresh("weigh")

    def weight() -> float:
        time.sleep(1)  # what a start leaves to do is done by then; there is no event to wait for
        (sandbox,) = sandbox_trees(service.process.pid)
        return sum(map(pss_mb, sandbox))

    for other in caller.call("GET", "/v1/scopes")["scopes"]:
        caller.call("DELETE", f"/v1/scopes/{other['scope']}?purge=true&force=true")
    caller.exec("1", scope=scope, language="python")
    before, each = weight(), []
    for number in range(_KERNELS):
        caller.cell("true", scope=scope, language=language, context=f"c{number}")
        after = weight()
        each.append(after - before)
        before = after
    return measure.of(f"memory of an idle {language.title()} kernel (mean)", each, limit=limit, unit="MB")


ROWS = {"stateful-node": node, "stateful-bash": bash}
