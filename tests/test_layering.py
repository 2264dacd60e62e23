"""Which module may import what: the picture of ARCHITECTURE.md, read from the sources."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A layer is the longest of these prefixes; what it may import of ours, besides itself. A new arrow is a decision: it is
# made here and in ARCHITECTURE.md, in one change.
LEAVES = {
    "interpreter.errors",
    "interpreter.keys",
    "interpreter.languages",
    "interpreter.metrics",
    "interpreter.tasks",
    "interpreter.listen",
    "interpreter.shortage",
    "interpreter",
}
ARROWS: dict[str, set[str]] = {
    "interpreter.errors": set(),
    "interpreter.keys": {"interpreter.errors"},
    "interpreter.tasks": set(),
    "interpreter.listen": set(),
    "interpreter.shortage": set(),
    "interpreter.wording": set(),
    "interpreter.settings": {"interpreter.listen"},
    "interpreter.languages": set(),
    "interpreter.metrics": {"interpreter.languages", "egress.protocol"},
    "interpreter.wire": set(),
    "interpreter.wire_files": {"interpreter.wire"},
    "interpreter.wire_scopes": {"interpreter.wire"},
    "interpreter.statefile": {"interpreter.errors"},
    "interpreter.records": {"interpreter.statefile"},
    "interpreter.health": {"interpreter.backends.base"},
    "interpreter.service_config": {"interpreter.backends.base", "interpreter.egress"},
    "interpreter.recovery": {
        "interpreter.backends.base",
        "interpreter.executions",
        "interpreter.records",
        "interpreter.sandboxes",
        "interpreter.scopes",
    }
    | LEAVES,
    "interpreter.removal": {"interpreter.executions", "interpreter.sandboxes", "interpreter.scopes"} | LEAVES,
    "interpreter.client": {
        "interpreter.wire",
        "interpreter.wire_files",
        "interpreter.wire_scopes",
        "interpreter.languages",
        "interpreter",
    },
    "interpreter.backends": {"sandboxd.protocol", "interpreter.backends.base"} | LEAVES,
    "interpreter.backends.base": set(),
    "interpreter.executions.jsontext": set(),
    "interpreter.executions.model": {"sandboxd.protocol", "interpreter.executions.jsontext"} | LEAVES,  # pure
    "interpreter.egress": {"egress.protocol", "sandboxd.protocol", "interpreter.backends.base"} | LEAVES,
    "interpreter.link": {"sandboxd.protocol"} | LEAVES,
    "interpreter.files": {"interpreter.scopes"} | LEAVES,
    "interpreter.scopes": {"interpreter.backends.base", "interpreter.records"} | LEAVES,
    "interpreter.sandboxes": {
        "interpreter.executions.model",
        "interpreter.link",
        "interpreter.records",
        "interpreter.egress",
        "interpreter.scopes",
        "interpreter.backends.base",
        "sandboxd.protocol",
    }
    | LEAVES,
    "interpreter.executions": {
        "interpreter.sandboxes",
        "interpreter.executions.jsontext",
        "interpreter.executions.model",
        "interpreter.link",
        "interpreter.records",
        "interpreter.backends.base",
        "sandboxd.protocol",
    }
    | LEAVES,
    "sandboxd.seccomp": set(),
    "sandboxd.protocol": set(),
}
TOP = (
    "interpreter.app",
    "interpreter.cli",
    "interpreter.__main__",
    "interpreter.descriptors",
    "interpreter.service",
    "interpreter.http",
)
"""These put the parts together, or speak to the one facade; a test below says what interpreter.http may not reach."""

FORBIDDEN_IN_SERVICE = {
    "zmq": "the tenant holds the key of its kernels, and libzmq would parse its bytes here",
    "jupyter_client": "kernels are spoken to inside the sandbox",
    "ipykernel": "kernels run inside the sandbox",
    "pickle": "nothing that a sandbox wrote is ever unpickled",
    "marshal": "as pickle, but for a dict that our own backend hands to its supervisor",
    "shelve": "as pickle",
    "docker": "all calls of the engine are in two modules",
}

DOCKER_OF_OURS = ("interpreter.backends.docker.engine", "interpreter.backends.docker.image")
MARSHAL_OF_OURS = ("interpreter.backends.bubblewrap.supervisor", "interpreter.backends.bubblewrap.backend")


@functools.cache
def modules(top: str) -> dict[str, Path]:
    base = ROOT / "runtime" if top == "sandboxd" else ROOT
    found = {}
    for path in sorted((base / top).rglob("*.py")):
        name = ".".join(path.relative_to(base).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def imports(name: str, path: Path) -> list[tuple[str, int]]:
    """Full names of what a module imports, also inside functions and for types only, with their lines."""
    return list(_imports(name, path))


def _imports(name: str, path: Path) -> Iterator[tuple[str, int]]:
    known = modules("interpreter") | modules("sandboxd") | modules("egress")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield (full if full in known else module), node.lineno


def layer(module: str) -> str:
    prefixes = [p for p in (*ARROWS, *TOP) if module == p or module.startswith(p + ".")]
    return max(prefixes, key=len, default=module)


def test_service_imports_follow_the_arrows() -> None:
    wrong = []
    for name, path in modules("interpreter").items():
        own = layer(name)
        if own in TOP or own == "interpreter":
            continue
        for imported, line in imports(name, path):
            if imported.split(".")[0] not in ("interpreter", "sandboxd", "egress"):
                continue
            if layer(imported) != own and layer(imported) not in ARROWS.get(own, set()):
                wrong.append(f"{path.relative_to(ROOT)}:{line} {own} -> {imported}")
    assert wrong == []


def test_handlers_see_the_service_and_nothing_below() -> None:
    below = ("interpreter.link", "interpreter.backends", "sandboxd", "egress", "interpreter.app", "interpreter.cli")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {imported}"
        for name, path in modules("interpreter").items()
        if name.startswith("interpreter.http")
        for imported, line in imports(name, path)
        if imported.startswith(below)
    ]
    assert wrong == []


def test_of_the_sandbox_the_service_knows_the_protocol_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {imported}"
        for name, path in modules("interpreter").items()
        for imported, line in imports(name, path)
        if imported.split(".")[0] == "sandboxd" and imported != "sandboxd.protocol"
    ]
    assert wrong == []


def test_of_the_egress_process_the_service_knows_the_protocol_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {imported}"
        for name, path in modules("interpreter").items()
        for imported, line in imports(name, path)
        if imported.split(".")[0] == "egress" and imported != "egress.protocol"
    ]
    assert wrong == []


def test_the_egress_process_imports_nothing_of_the_others() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {imported}"
        for name, path in modules("egress").items()
        for imported, line in imports(name, path)
        if imported.split(".")[0] in ("interpreter", "sandboxd", "docker")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["addresses", "bodies", "heads", "hello", "names", "policy"])
def test_what_decides_in_the_egress_process_does_no_input_or_output(name: str) -> None:
    found = {imported.split(".")[0] for imported, _ in imports(f"egress.{name}", modules("egress")[f"egress.{name}"])}
    assert found.isdisjoint({"asyncio", "logging", "os", "pathlib", "threading"})
    assert {imported for imported, _ in imports(f"egress.{name}", modules("egress")[f"egress.{name}"])}.isdisjoint(
        f"egress.{each}" for each in ("connection", "control", "gate", "listeners", "relay", "resolve", "visit")
    )


def test_the_sandbox_imports_nothing_of_the_service() -> None:
    programs = {f"kernels.{path.stem}": path for path in (ROOT / "kernels").rglob("*.py")}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {imported}"
        for name, path in (modules("sandboxd") | programs).items()
        for imported, line in imports(name, path)
        if imported.split(".")[0] in ("interpreter", "egress", "docker")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["sandboxd.seccomp", "sandboxd.protocol"])
def test_what_both_sides_or_nobody_trusts_stands_alone(name: str) -> None:
    path = modules("sandboxd")[name]
    assert [imported for imported, _ in imports(name, path) if imported.startswith(("sandboxd", "interpreter"))] == []


@pytest.mark.parametrize("library", FORBIDDEN_IN_SERVICE)
def test_the_service_never_imports(library: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {FORBIDDEN_IN_SERVICE[library]}"
        for name, path in modules("interpreter").items()
        for imported, line in imports(name, path)
        if imported.split(".")[0] == library
        and not (library == "marshal" and name in MARSHAL_OF_OURS)
        and not (library == "docker" and name in DOCKER_OF_OURS)
    ]
    assert wrong == []


def test_the_control_channel_passes_no_descriptors_and_trusts_no_peer_credentials() -> None:
    """Rules C2 and C6: recv only, and identity is the socket that accepted."""
    wrong = [
        f"{path.relative_to(ROOT)} {word}"
        for name, path in modules("interpreter").items()
        if name.startswith("interpreter.link")
        for word in ("recvmsg", "recv_fds", "SO_PEERCRED", "SCM_RIGHTS")
        if word in path.read_text()
    ]
    assert wrong == []


def test_every_task_has_an_owner() -> None:
    """No bare create_task: whoever starts a task keeps it, under a name, or it is a task group's."""
    wrong = []
    for path in (modules("interpreter") | modules("sandboxd") | modules("egress")).values():
        tree = ast.parse(path.read_text())
        dropped = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            receiver = ast.unparse(node.func.value)
            if node.func.attr == "create_task" and not receiver.endswith(("group", "tasks")):
                named = any(keyword.arg == "name" for keyword in node.keywords)
                if node in dropped or not named or receiver == "asyncio":
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {receiver}.create_task")
            if node.func.attr == "ensure_future" and node in dropped:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {receiver}.ensure_future")
    assert wrong == []


LIGHT = ["interpreter.wire", "interpreter.wire_files", "interpreter.wire_scopes", "interpreter.languages"]


@pytest.mark.parametrize(
    "name", [*LIGHT, *(name for name in modules("interpreter") if name.startswith("interpreter.client"))]
)
def test_what_the_light_client_uses_needs_nothing_of_the_service(name: str) -> None:
    """``pip install cellbox`` alone brings what the models of the wire need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    light = {re.split("[>=<]", each)[0] for each in project["dependencies"]}
    needed = {imported.split(".")[0] for imported, _ in imports(name, modules("interpreter")[name])}
    assert needed - set(sys.stdlib_module_names) - light <= {"interpreter"}


def test_the_floor_of_tornado() -> None:
    """Rule A7: 6.5.3 is the first release with all the fixes of smuggling, multipart and headers that we rely on."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (floor,) = (each.partition(">=")[2] for each in extras["server"] if each.startswith("tornado"))
    assert tuple(map(int, floor.split("."))) >= (6, 5, 3)


def test_no_module_is_called_utils_and_none_is_long() -> None:
    sources = [
        *(modules("interpreter") | modules("sandboxd") | modules("egress")).values(),
        *(ROOT / "kernels").rglob("*.py"),
    ]
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources
        if path.stem in ("utils", "util", "helpers", "misc") or len(path.read_text().splitlines()) > 450
    ]
    assert wrong == []


def test_every_module_says_what_it_owns() -> None:
    sources = [
        *(modules("interpreter") | modules("sandboxd") | modules("egress")).values(),
        *(ROOT / "kernels").rglob("*.py"),
    ]
    wrong = [
        str(path.relative_to(ROOT))
        for path in sources
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert wrong == []


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_exception_from_lint_and_types_has_its_reason_beside_it() -> None:
    marker = re.compile(r"# (?:noqa: [A-Z0-9, ]+|type: ignore\[[a-z, -]+\])(?P<reason>.*)$")
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("interpreter", "egress", "runtime", "kernels")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := marker.search(line)) and len(found["reason"].strip(" -#")) < 5
    ]
    assert bare == []
