"""A quota for each scope, as a caller meets it: what is full, for whom, what goes on, and what a killed service leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests import mounting
from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED
MIB = 2**20
Serve = Callable[..., Cellbox]

FILL = "dd if=/dev/zero of=filler bs=64k 2>&1; stat -c %s filler"


@pytest.fixture(autouse=True)
def _needs_mounts() -> None:
    mounting.need()


def put(service: Cellbox, path: str, content: bytes) -> httpx.Response:
    return service.client.put(f"/v1/files/{path}", content=content)


def full(reply: httpx.Response) -> bool:
    if reply.status_code != 507:
        return False
    body = reply.json()
    assert (body["code"], body["retryable"]) == ("quota_exceeded", False), body
    assert "32 MiB" in body["message"]
    return True


def test_a_full_scope_is_told_loses_nothing_and_harms_no_other(serve: Serve, scope: str) -> None:
    service, other = serve(scope_quota_mb="32"), f"{scope}o"
    assert put(service, f"{scope}/kept?session=s", b"old").status_code == 201
    service.cell("x = 1", scope=scope, session="s")
    out = service.exec(FILL, language="bash", scope=scope, session="s")["stdout"]
    assert "No space left on device" in out
    assert 20 * MIB < int(out.split()[-1]) < 32 * MIB
    # What would be stored is refused, and what is there stays, in each of the ways.
    assert full(put(service, f"{scope}/kept?session=s", bytes(4 * MIB)))
    assert full(put(service, f"{scope}/new/file?session=s", bytes(4 * MIB)))
    many = [("file", (name, bytes(2 * MIB))) for name in ("kept", "more")]
    assert full(service.client.post(f"/v1/files/{scope}?session=s", files=many))
    assert full(service.client.post(f"/v1/files/{scope}/filler?session=s&op=copy&to=copied"))
    listed = service.client.get(f"/v1/files/{scope}/?session=s").json()["entries"]
    assert [entry["name"] for entry in listed] == ["filler", "kept"]
    assert service.client.get(f"/v1/files/{scope}/kept?session=s").content == b"old"
    # Calls go on, in this session, in a new one, and in other scopes, whose disk is their own.
    assert service.cell("x += 1; x", scope=scope, session="s")["results"][0]["data"]["text/plain"] == "2"
    assert service.exec("print(1)", scope=scope, session="new")["stdout"] == "1\n"
    assert service.cell("import json; json.dumps([2])", scope=scope, session="newer")["status"] == "ok"
    assert put(service, f"{other}/file?session=s", bytes(8 * MIB)).status_code == 201
    assert service.exec("head -c 8M /dev/zero > f && stat -c %s f", language="bash", scope=other)["exit_code"] == 0
    used = {each["scope"]: each for each in service.client.get("/v1/scopes").json()["scopes"]}
    assert used[scope]["disk_limit_bytes"] == used[other]["disk_limit_bytes"] == 32 * MIB
    assert used[scope]["disk_used_bytes"] > 30 * MIB > used[other]["disk_used_bytes"] > 16 * MIB
    # What is removed makes room at once.
    assert service.client.delete(f"/v1/files/{scope}/filler?session=s").status_code == 200
    service.wait_for(lambda: put(service, f"{scope}/kept?session=s", bytes(4 * MIB)).status_code == 200, within_s=20)
    assert service.exec("stat -c %s kept", language="bash", scope=scope, session="s")["stdout"] == f"{4 * MIB}\n"


@pytest.mark.long_on_docker
def test_what_a_tenant_tries_stops_at_the_limit(serve: Serve, scope: str) -> None:
    service = serve(scope_quota_mb="32")
    tries = {
        "fallocate": "import os; f = os.open('f', os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1 << 30)",
        "sparse": "f = open('s', 'wb', buffering=0); f.seek(1 << 31)\nwhile True: f.seek(1 << 20, 1); f.write(bytes(1 << 20))",
        "deleted": "import os; f = open('d', 'wb', buffering=0); os.unlink('d')\nwhile True: f.write(bytes(1 << 20))",
        "files": "import itertools\nfor n in itertools.count(): open(f'n{n}', 'w').close()",
        "directories": "import itertools, os\nfor n in itertools.count(): os.mkdir(f'd{n}')",
        "links": "import itertools, os\nfor n in itertools.count(): os.symlink('x' * 200, f'l{n}')",
        "user": "f = open('/opt/user/f', 'wb', buffering=0)\nwhile True: f.write(bytes(1 << 20))",
    }
    for name, code in tries.items():
        answer = service.exec(code, scope=scope, session=name, timeout=60)
        assert "No space left on device" in answer["stderr"], (name, answer)
        assert service.client.delete(f"/v1/scopes/{scope}/sessions/{name}?purge=true&force=true").json()["purged"]
        assert service.exec("print(1)", scope=f"{scope}o")["stdout"] == "1\n"
        service.exec("rm -f /opt/user/f", language="bash", scope=scope)
    images = sum(image.stat().st_blocks * 512 for image in (service.root / ".volumes").iterdir())
    assert images < 2 * 33 * MIB
    answer = service.exec("cp /bin/true t; chmod 4755 t; findmnt -no OPTIONS -T . || grep workspace /proc/self/mounts",
                          language="bash", scope=scope, session="m")  # fmt: skip
    assert "nosuid" in answer["stdout"]
    assert "nodev" in answer["stdout"]


@pytest.mark.long_on_docker
def test_a_killed_service_leaves_mounts_that_the_next_one_goes_on_with(serve: Serve, scope: str) -> None:
    service = serve(scope_quota_mb="32")
    service.cell("x = 41; open('kept', 'w').write('kept')", scope=scope, session="s")
    assert put(service, f"{scope}o/file", b"other").status_code == 201
    service.end(signal.SIGKILL)
    assert len(mounting.below(service.root)) == 2
    service.start()
    answer = service.cell("x + 1", scope=scope, session="s")
    assert (answer["state"], answer["results"][0]["data"]["text/plain"]) == ("kept", "42")
    assert service.client.get(f"/v1/files/{scope}/kept?session=s").content == b"kept"
    assert service.client.get(f"/v1/files/{scope}o/file").content == b"other"
    assert "No space left" in service.exec(FILL, language="bash", scope=scope, session="s")["stdout"]
    # One that ends in good order leaves those of its sandboxes only.
    service.end(signal.SIGTERM)
    assert mounting.below(service.root) == [str(service.root / scope)]
    service.start()
    assert service.cell("x", scope=scope, session="s")["state"] == "kept"
    assert service.client.delete(f"/v1/scopes/{scope}/sessions/s?purge=true").json() == {"removed": 1, "purged": True}
    assert put(service, f"{scope}/file?session=t", bytes(16 * MIB)).status_code == 201
    assert service.client.delete(f"/v1/scopes/{scope}?purge=true").json()["purged"]
    assert mounting.below(service.root) == [], "the other one is mounted when it is wanted"
    assert os.listdir(service.root / ".volumes") == [f"{scope}o"]
    assert [each["scope"] for each in service.client.get("/v1/scopes").json()["scopes"]] == [f"{scope}o"]


@pytest.mark.long_on_docker
def test_data_and_sandboxes_from_before_come_under_the_quota(serve: Serve, scope: str) -> None:
    service = serve()
    service.cell("x = 1; open('kept', 'w').write('kept')", scope=scope, session="s")
    service.end(signal.SIGTERM)
    service._environment["SANDBOX_SCOPE_QUOTA_MB"] = "32"
    service.start()
    answer = service.cell("open('kept').read()", scope=scope, session="s")
    assert answer["state"] == "lost", "it would have gone on without the quota"
    assert answer["results"][0]["data"]["text/plain"] == "'kept'"
    assert "No space left" in service.exec(FILL, language="bash", scope=scope, session="s")["stdout"]
    service.client.delete(f"/v1/scopes/{scope}?purge=true&force=true")


@pytest.mark.long_on_docker
def test_a_larger_number_holds_for_sandboxes_that_live_and_a_smaller_one_when_they_have_gone(
    serve: Serve, scope: str
) -> None:
    """Over restarts, with a sandbox that is adopted each time."""
    service = serve(scope_quota_mb="32")
    service.cell("x = 1", scope=scope, session="s")
    filled = _filled(service, scope)
    assert filled < 32 * MIB

    _again(service, "64")
    assert service.cell("x", scope=scope, session="s")["state"] == "kept"
    assert _limit(service, scope) == (64 * MIB if mounting.may_grow_in_use() else 32 * MIB)
    assert (_filled(service, scope) > 48 * MIB) == mounting.may_grow_in_use()

    service.exec("truncate -s 1M filler", language="bash", scope=scope, session="s")
    _again(service, "48")
    assert "1 scopes in use keep the larger one" in service.log or not mounting.may_grow_in_use()
    assert service.cell("x", scope=scope, session="s")["state"] == "kept"
    assert service.client.delete(f"/v1/scopes/{scope}/sessions/s?force=true").json()["removed"] == 1

    _again(service, "48")
    assert _filled(service, scope) < 48 * MIB
    assert _limit(service, scope) == 48 * MIB

    # Less than is used: the start is refused and says why, and nothing is lost.
    assert service.client.delete(f"/v1/scopes/{scope}/sessions/s?force=true").json()["removed"] == 1
    service.end(signal.SIGTERM)
    service._environment["SANDBOX_SCOPE_QUOTA_MB"] = "32"
    refused = service.command("serve")
    assert (refused.returncode != 0, "SANDBOX_SCOPE_QUOTA_MB=32 is less than scopes use" in refused.stderr) == (
        True,
        True,
    )
    assert scope in refused.stderr
    service._environment["SANDBOX_SCOPE_QUOTA_MB"] = "48"
    service.start()
    assert service.exec("stat -c %s filler", language="bash", scope=scope, session="s")["exit_code"] == 0


def _again(service: Cellbox, quota_mb: str) -> None:
    """Have another service go on with another quota, which adopts the sandboxes."""
    service.end(signal.SIGTERM)
    service._environment["SANDBOX_SCOPE_QUOTA_MB"] = quota_mb
    service.start()


def _filled(service: Cellbox, scope: str) -> int:
    """Write inside until no more is taken; return how many bytes were."""
    out = service.exec(FILL, language="bash", scope=scope, session="s")["stdout"]
    assert "No space left on device" in out
    return int(out.split()[-1])


def _limit(service: Cellbox, scope: str) -> int:
    (found,) = [each for each in service.client.get("/v1/scopes").json()["scopes"] if each["scope"] == scope]
    limit: int = found["disk_limit_bytes"]
    return limit


@pytest.mark.long_on_docker
def test_many_scopes_at_once(serve: Serve, scope: str) -> None:
    service = serve(scope_quota_mb="64", max_sessions="4")
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda number: put(service, f"{scope}{number}/file", b"x"), range(30)))
    assert {reply.status_code for reply in replies} == {201}
    with ThreadPoolExecutor(8) as pool:
        purged = list(pool.map(lambda n: service.client.delete(f"/v1/scopes/{scope}{n}?purge=true").json(), range(30)))
    assert all(each["purged"] for each in purged)
    assert os.listdir(service.root / ".volumes") == []
