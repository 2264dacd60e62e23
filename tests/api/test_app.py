"""The whole service over the fake backend: what starts, what refuses to, and how it ends."""

import asyncio
import json
import stat

import httpx
import pytest

from interpreter import app, settings
from interpreter.app import StartError
from interpreter.backends.base import BackendUnavailable
from interpreter.settings import SettingsError
from tests.api.conftest import KEY
from tests.fakes.sandboxd import until_cancelled

EXEC = {"scope": "u1", "language": "python", "code": "hello"}


async def test_an_exec_goes_all_the_way(start):
    service = await start()
    async with service.client() as client:
        answer = (await client.post("/v1/exec", json=EXEC | {"stateful": True, "session": "chatA"})).json()
        assert (answer["stdout"], answer["status"], answer["state"], answer["generation"]) == ("hello", "ok", "new", 1)
        listed = (await client.get("/v1/scopes/u1/sessions")).json()["sessions"]
        assert [one["session"] for one in listed] == ["chatA"]
        assert (await client.get("/v1/scopes")).json() == {"scopes": [{"scope": "u1", "egress": None}]}
        assert (await client.delete("/v1/scopes/u1?purge=true")).json() == {"removed": 1, "purged": True}
        assert (await client.get("/healthz")).json()["runtime"] == "fake"


@pytest.mark.parametrize(
    ("listen", "key", "starts"),
    [
        (":0", "", False),
        ("0.0.0.0:0", "", False),
        ("[::]:0", "", False),
        ("10.0.0.1:0", "", False),
        ("127.0.0.1:0", "", True),
        ("localhost:0", "", True),
        ("0.0.0.0:0", KEY, True),
    ],
)
async def test_without_a_key_only_this_machine_is_served(start, listen, key, starts):
    if not starts:
        with pytest.raises(SettingsError, match="SANDBOX_API_KEY is not set and SANDBOX_LISTEN="):
            await start(listen=listen, api_key=key)
        return
    await start(listen=listen, api_key=key)


async def test_a_made_key_is_kept_for_its_owner_alone_and_used_again(start, tmp_path):
    first = await start(api_key="")
    key = first.said("key").split()[0]
    file = tmp_path / "data" / ".api-key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() == key
    assert len(key) >= 43  # 256 bits in base64
    async with first.client(key) as client:
        assert (await client.get("/v1/scopes")).status_code == 200
        assert (await client.get("/v1/scopes", headers={"X-API-Key": KEY})).status_code == 401
    first.stop.gently.set()
    await first.ended()
    file.chmod(0o644)
    second = await start(api_key="")
    assert second.said("key").split()[0] == key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_configured_key_is_never_said(start, tmp_path):
    service = await start()
    assert not any(KEY in line for line in service.lines)
    assert not (tmp_path / "data" / ".api-key").exists()


async def test_a_link_in_place_of_the_made_key_is_not_followed(start, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / ".api-key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError):
        await start(api_key="")
    assert not (tmp_path / "elsewhere").exists()


async def test_a_second_service_on_a_data_root_names_the_first(start):
    await start()
    with pytest.raises(StartError, match=r"Another service, pid \d+, uses the data root"):
        await start()


async def test_an_address_that_is_taken_refuses_the_start_and_leaves_nothing(start, tmp_path):
    first = await start()
    port = httpx.URL(first.url).port
    with pytest.raises(StartError, match=f"SANDBOX_LISTEN cannot be listened on: 127.0.0.1:{port}: Address already"):
        await start(listen=f"127.0.0.1:{port}", data_root=str(tmp_path / "other"))
    again = await start(data_root=str(tmp_path / "other"))
    async with again.client() as client:
        assert (await client.get("/v1/scopes")).status_code == 200


async def test_a_start_that_is_refused_late_leaves_the_sandboxes_of_an_earlier_service(start, tmp_path):
    other = await start(data_root=str(tmp_path / "other"))
    first = await start()
    first.sandboxd.redials = True
    exec_ = EXEC | {"stateful": True, "session": "chatA"}
    async with first.client() as client:
        await client.post("/v1/exec", json=exec_)
    first.stop.gently.set()
    await first.ended()
    with pytest.raises(StartError, match="cannot be listened on"):
        await start(after=first, listen=f"127.0.0.1:{httpx.URL(other.url).port}")
    again = await start(after=first)
    async with again.client() as client:
        answer = (await client.post("/v1/exec", json=exec_)).json()
    assert (answer["state"], answer["generation"]) == ("kept", 1)


async def test_a_runtime_that_cannot_serve_refuses_the_start_in_its_own_words(start, monkeypatch):
    async def unavailable(_self):
        raise BackendUnavailable("the engine is not running; start it")

    monkeypatch.setattr("interpreter.backends.fake.FakeBackend.check", unavailable)
    with pytest.raises(StartError, match="the engine is not running; start it"):
        await start()


@pytest.mark.parametrize("checks", ["warn", "refuse"])
async def test_a_weak_runtime_is_warned_about_or_refused(start, monkeypatch, tmp_path, checks):
    async def weak(_self):
        return ["nothing is isolated", "the kernel is old"]

    monkeypatch.setattr("interpreter.backends.fake.FakeBackend.check", weak)
    if checks == "warn":
        service = await start(runtime_checks=checks)
        assert [line for line in service.lines if line.startswith("warning: ")] == [
            "warning: nothing is isolated",
            "warning: the kernel is old",
        ]
        return
    with pytest.raises(StartError, match=r"SANDBOX_RUNTIME_CHECKS.*: nothing is isolated; the kernel is old\.$"):
        await start(runtime_checks=checks)
    await start(runtime_checks="warn")  # it has let go of the data root


async def test_what_is_no_weakness_is_said_and_refuses_no_start(start, monkeypatch):
    monkeypatch.setattr(
        "interpreter.backends.fake.FakeBackend.notices", lambda _self: ["the image is of another version"]
    )
    service = await start(runtime_checks="refuse")
    assert service.said("warning: ") == "the image is of another version"


@pytest.mark.parametrize(
    "values",
    [{"mount_target": "/data"}, {"scope_quota_mb": "5"}, {"scope_quota_mb": "50", "runtime_backend": "process"}],
)
async def test_what_is_not_there_refuses_the_start_by_name(start, values):
    name = next(iter(values))
    with pytest.raises(SettingsError, match=f"SANDBOX_{name.upper()}"):
        await start(**values)


async def test_a_unix_socket_serves_its_owner_and_goes_with_the_service(start, tmp_path):
    path = tmp_path / "api.sock"
    service = await start(listen=f"unix:{path}", api_key="")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    key = service.said("key").split()[0]
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with service.client(key, base_url="http://localhost", transport=transport) as client:
        assert (await client.post("/v1/exec", json=EXEC)).json()["stdout"] == "hello"
        assert (await client.post("/v1/exec", json=EXEC, headers={"X-API-Key": "no"})).status_code == 401
    service.stop.gently.set()
    await service.ended()
    assert not path.exists()


async def test_sigterm_lets_running_calls_end_and_refuses_new_ones(start):
    service = await start()
    service.sandboxd.script["slow"] = until_cancelled
    async with service.client() as client:
        running = asyncio.get_running_loop().create_task(
            client.post("/v1/exec", json=EXEC | {"code": "slow", "execution_id": "mine"})
        )
        while "slow" not in service.sandboxd.began:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        service.stop.gently.set()
        while (refused := await client.post("/v1/exec", json=EXEC)).status_code == 200:
            pass
        assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
        assert "Retry-After" in refused.headers
        assert not running.done()
        assert (await client.delete("/v1/executions/mine?scope=u1")).status_code == 200
        assert (await running).json()["status"] == "interrupted"
        await service.ended()
        with pytest.raises(httpx.TransportError):
            await client.get("/healthz")


async def test_an_answer_that_is_being_read_while_the_service_stops_arrives_whole(start):
    service = await start(max_output_kb="20000")
    text = "x" * 15_000_000

    async def much(peer, message):
        await peer.cancelled[message.id].wait()
        peer.finish(message, stdout=text, stdout_bytes=len(text))

    service.sandboxd.script["much"] = much
    async with service.client() as client:
        call = EXEC | {"code": "much", "execution_id": "mine"}
        running = asyncio.get_running_loop().create_task(_read_slowly(client, call))
        while "much" not in service.sandboxd.began:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        service.stop.gently.set()
        await client.delete("/v1/executions/mine?scope=u1")
        body = await running
    assert json.loads(body)["stdout"] == text
    await service.ended()


async def _read_slowly(client, call) -> bytes:
    async with client.stream("POST", "/v1/exec", json=call) as answer:
        read = b""
        async for chunk in answer.aiter_bytes(2**20):
            read += chunk
            await asyncio.sleep(0.03)
    return read


async def test_draining_ends_at_its_limit(start):
    service = await start(drain_timeout="0.2")
    service.sandboxd.script["slow"] = until_cancelled
    async with service.client() as client:
        running = asyncio.get_running_loop().create_task(client.post("/v1/exec", json=EXEC | {"code": "slow"}))
        while "slow" not in service.sandboxd.began:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        service.stop.gently.set()
        await service.ended()
        await asyncio.wait([running])
        running.exception()
    assert not service.backend.running


async def test_ctrl_c_ends_all_at_once(start):
    service = await start()
    service.sandboxd.script["slow"] = until_cancelled
    async with service.client() as client:
        running = asyncio.get_running_loop().create_task(client.post("/v1/exec", json=EXEC | {"code": "slow"}))
        while "slow" not in service.sandboxd.began:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        service.stop.gently.set()
        service.stop.now.set()
        await service.ended()
        await asyncio.wait([running])
        running.exception()
    assert not service.backend.running


async def test_a_client_that_leaves_cancels_what_runs_in_the_sandbox(start):
    service = await start()
    service.sandboxd.script["slow"] = until_cancelled
    async with service.client() as client:
        running = asyncio.get_running_loop().create_task(client.post("/v1/exec", json=EXEC | {"code": "slow"}))
        while "slow" not in service.sandboxd.began:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
    (peer,) = service.sandboxd.peers
    (cancelled,) = peer.cancelled.values()
    await asyncio.wait_for(cancelled.wait(), 20)


def test_each_setting_reaches_the_service():
    values = {
        "SANDBOX_MEMORY_MB": "100",
        "SANDBOX_CPUS": "2.5",
        "SANDBOX_PIDS_LIMIT": "99",
        "SANDBOX_TMP_MB": "7",
        "SANDBOX_UID": "1234",
        "SANDBOX_GID": "1235",
        "SANDBOX_UID_BASE": "300000",
        "SANDBOX_IDLE_TTL": "3",
        "SANDBOX_MAX_SESSIONS": "4",
        "SANDBOX_MAX_CONCURRENT": "5",
        "SANDBOX_MAX_QUEUE": "6",
        "SANDBOX_MAX_KERNELS": "7",
        "SANDBOX_INTERRUPT_GRACE": "8",
        "SANDBOX_MAX_OUTPUT_KB": "9",
        "SANDBOX_MAX_RESULT_KB": "10",
        "SANDBOX_MAX_SPILL_MB": "11",
        "SANDBOX_RESULT_TTL": "12",
        "SANDBOX_DRAIN_TIMEOUT": "13",
        "SANDBOX_PIP_INDEX_URL": "http://index.example",
        "SANDBOX_NPM_REGISTRY": "http://registry.example",
    }
    config = app.service_config(settings.load(values))
    limits = config.limits
    assert (limits.memory_mib, limits.cpus, limits.pids, limits.tmp_mib) == (100, 2.5, 99, 7)
    assert (config.uid, config.gid, config.uid_base) == (1234, 1235, 300_000)
    assert (config.idle_ttl_s, config.result_ttl_s, config.drain_timeout_s, config.grace_s) == (3, 12, 13, 8)
    assert (config.max_sessions, config.max_concurrent, config.max_queue, config.max_kernels) == (4, 5, 6, 7)
    assert (config.output_bytes, config.result_bytes, config.spill_bytes) == (9 * 2**10, 10 * 2**10, 11 * 2**20)
    assert "http://index.example" in config.environment.values()
    assert "http://registry.example" in config.environment.values()
