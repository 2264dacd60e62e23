"""Where the data may lie, and what an earlier service may have left there."""

from pathlib import Path

import pytest

from tests.e2e.conftest import bubblewrap_is_there, running

PLACES = {"spaces": "a b  c", "signs": "ä'\"$(x);:,%s\n-", "long": "x" * 120, "longer": "y" * 200 + "/" + "z" * 200}


@pytest.fixture(autouse=True)
def _needs_bubblewrap() -> None:
    if not bubblewrap_is_there():
        pytest.skip("needs root and bubblewrap: apt-get install bubblewrap")


def works(root: Path, data: Path, backend: str) -> None:
    with running(root, data_root=str(data), runtime_backend=backend) as cellbox:
        assert cellbox.exec("print(1)", scope="u", session="s" * 64)["stdout"] == "1\n"
        assert cellbox.cell("print(2)", scope="u")["stdout"] == "2\n"
    assert list((data / ".run").iterdir()) == []


@pytest.mark.parametrize("backend", ["bubblewrap", "process"])
@pytest.mark.parametrize("name", PLACES.values(), ids=PLACES)
def test_any_path_will_do(tmp_path: Path, name: str, backend: str) -> None:
    works(tmp_path, tmp_path / name, backend)


def test_it_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    works(tmp_path, tmp_path / "link", "bubblewrap")


def test_what_a_killed_service_left_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "data/.run"
    for name in ("0123456789abcdef", "probe-01234567/workspace"):
        (run / name).mkdir(parents=True)
    works(tmp_path, tmp_path / "data", "bubblewrap")


def test_without_isolation_there_is_the_same_node(tmp_path: Path, scope: str) -> None:
    """The host's own may be older, or not there."""
    with running(tmp_path, runtime_backend="process") as cellbox:
        for fields in ({"stateful": True}, {}):
            assert (
                cellbox.exec("console.log(process.version)", language="node", scope=scope, **fields)["stdout"][:4]
                == "v22."
            )
