"""Sandboxes beside each other: each has its own rules and its own share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from pathlib import Path

import pytest

from egress import protocol
from egress.limits import Limits
from egress.policy import PolicyError
from egress.protocol import Policy
from tests.egress.conftest import LIMIT_S, LOOPBACK, OK, Egress, Origin
from tests.egress.test_visit import Kept, get

PLAIN = b"GET http://origin.example:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n"


async def test_the_socket_that_accepts_selects_the_policy(egress: Egress, origin: Origin) -> None:
    egress.open("two", allow=("other.example",))
    assert (await egress.ask(PLAIN % origin.port, "one")).endswith(b"ok")
    assert (await egress.ask(PLAIN % origin.port, "two")).startswith(b"HTTP/1.1 403 ")
    assert egress.names.asked == ["origin.example"]
    assert [sandbox for sandbox, _ in egress.told] == ["two"]


async def test_a_socket_is_for_everybody_inside_and_takes_the_place_of_what_was_left(egress: Egress) -> None:
    path = egress.folder / "one"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert egress.allow("a.example") == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    assert (await egress.ask(b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert list(egress.folder.iterdir()) == [path]


async def test_a_path_may_be_longer_than_an_address_of_a_socket(egress: Egress, tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    egress.sandboxes.open(protocol.Open("long", str(folder / "egress"), Policy()))
    short = tmp_path / "s"
    short.symlink_to(folder)
    reader, writer = await asyncio.open_unix_connection(short / "egress")
    writer.write(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
    writer.close()


async def test_a_socket_that_was_removed_is_made_again_when_it_is_opened_again(egress: Egress, origin: Origin) -> None:
    (egress.folder / "one").unlink()
    egress.allow(f"origin.example:{origin.port}")
    assert (await egress.ask(PLAIN % origin.port)).endswith(b"ok")


async def test_a_sandbox_may_move(egress: Egress, origin: Origin) -> None:
    policy = Policy(allow=(f"origin.example:{origin.port}",), private_cidrs=("127.0.0.0/8",))
    egress.sandboxes.open(protocol.Open("one", str(egress.folder / "moved"), policy))
    assert (await egress.ask(PLAIN % origin.port, "moved")).endswith(b"ok")


async def test_a_folder_that_is_not_there_is_an_error_and_changes_nothing(egress: Egress, origin: Origin) -> None:
    with pytest.raises(OSError, match="No such file"):
        egress.sandboxes.open(protocol.Open("one", str(egress.folder / "nowhere" / "egress"), Policy()))
    assert (await egress.ask(PLAIN % origin.port)).endswith(b"ok")


async def test_a_policy_that_is_none_changes_nothing(egress: Egress, origin: Origin) -> None:
    with pytest.raises(PolicyError):
        egress.open("one", allow=("no entry",))
    assert (await egress.ask(PLAIN % origin.port)).endswith(b"ok")


async def test_a_closed_sandbox_has_no_socket_and_no_connection(egress: Egress, origin: Origin) -> None:
    client = Kept(*await egress.connect())
    await client.ask(get(origin))
    await egress.sandboxes.close("one")
    await egress.sandboxes.close("one")
    assert not (egress.folder / "one").exists()
    with contextlib.suppress(OSError):
        assert await client.reader.read() == b""
    await client.aclose()


async def test_what_took_the_place_of_a_socket_is_not_removed_with_it(egress: Egress) -> None:
    path = egress.allow("a.example")
    path.unlink()
    path.write_text("another's")
    await egress.sandboxes.close("one")
    assert path.read_text() == "another's"


class Streams:
    """An origin whose answers go on until they are cut, and what arrives of them."""

    def __init__(self, origin: Origin) -> None:
        self.ended = asyncio.Event()
        origin.serve = self.serve

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
                await asyncio.sleep(0.001)
        self.ended.set()


async def test_a_policy_that_changes_cuts_what_it_does_not_allow_and_nothing_else(
    egress: Egress, origin: Origin
) -> None:
    Streams(origin)
    egress.names.set("second.example", [LOOPBACK])
    both = (f"origin.example:{origin.port}", f"second.example:{origin.port}")
    egress.allow(*both)
    kept, cut = Kept(*await egress.connect()), Kept(*await egress.connect())
    await kept.ask(get(origin), b"x" * 1000)
    await cut.ask(get(origin).replace(b"origin.example", b"second.example"), b"x" * 1000)
    egress.allow(both[0])
    await cut.end()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(100):
            assert await kept.reader.readexactly(1000) == b"x" * 1000
    assert [(denial.reason, denial.host) for _, denial in egress.told] == [("not_allowed", "second.example")]
    await kept.aclose()
    await cut.aclose()


async def test_a_rule_of_deny_cuts_what_it_holds(egress: Egress, origin: Origin) -> None:
    Streams(origin)
    client = Kept(*await egress.connect())
    await client.ask(get(origin), b"x" * 1000)
    egress.open("one", allow=("*", f"*:{origin.port}"), deny=("127.0.0.1",), private_cidrs=("127.0.0.0/8",))
    await client.end()
    assert egress.reasons == ["denied_by_rule"]
    await client.aclose()


async def test_an_address_that_becomes_our_own_is_cut(egress: Egress, origin: Origin) -> None:
    Streams(origin)
    client = Kept(*await egress.connect())
    await client.ask(get(origin), b"x" * 1000)
    egress.sandboxes.own(protocol.Own((), (origin.port,)))
    await client.end()
    assert egress.reasons == ["own_address"]
    await client.aclose()


async def test_a_policy_that_changes_during_a_lookup_decides(egress: Egress, origin: Origin) -> None:
    egress.names.wait = asyncio.Event()
    asking = asyncio.gather(egress.ask(PLAIN % origin.port))
    await asyncio.wait_for(egress.names.was_asked.wait(), LIMIT_S)
    egress.allow("other.example")
    egress.names.wait.set()
    assert (await asking)[0].startswith(b"HTTP/1.1 403 ")
    assert origin.connections == 0


async def test_what_is_counted(egress: Egress, origin: Origin) -> None:
    await egress.ask(get(origin, "/", "Content-Length: 5", "Connection: close", method="POST") + b"hello")
    await egress.ask(b"CONNECT other.example:443 HTTP/1.1\r\n\r\n")
    await egress.ask(b"nonsense\r\n\r\n")
    egress.names.set("origin.example")
    client = Kept(*await egress.connect())
    client.writer.write(PLAIN % origin.port)
    await client.reader.readuntil(b"\n")
    assert list(egress.sandboxes.counted()) == [protocol.Counted("one", 1, 1, 1, 1, 1, 2, 5)]
    assert list(egress.sandboxes.counted()) == []
    await client.end()
    await client.aclose()
    async with asyncio.timeout(LIMIT_S):
        while not (counted := list(egress.sandboxes.counted())):  # noqa: ASYNC110 -- nobody tells of it
            await asyncio.sleep(0.01)
    assert counted == [protocol.Counted("one", 0, 0, 0, 0, 0, 0, 0)]


async def test_lines_of_the_log_name_host_and_reason_and_no_query(
    egress: Egress, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "egress")
    await egress.ask(get(origin, "/secret?token=secret", "Authorization: secret", "Connection: close"))
    await egress.ask(b"GET http://other.example/secret?secret HTTP/1.1\r\nCookie: secret\r\n\r\n")
    await egress.ask(b"GET http://secret:secret@other.example/ HTTP/1.1\r\n\r\n")
    found = [
        (record.message, vars(record)["sandbox"], vars(record)["host"], vars(record)["port"], vars(record)["reason"])
        for record in caplog.records
        if record.name == "egress"
    ]
    assert found[:2] == [
        ("egress allowed", "one", "origin.example", origin.port, None),
        ("egress denied", "one", "other.example", 80, "not_allowed"),
    ]
    assert found[2][0] == "egress denied"
    assert found[2][4].startswith("malformed: ")
    assert "secret" not in str([vars(record) for record in caplog.records if record.name == "egress"])


async def test_who_is_refused_without_end_does_not_fill_the_log(
    egress: Egress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "egress")
    egress.open("one")
    for _ in range(400):
        await egress.ask(b"CONNECT other.example:443 HTTP/1.1\r\n\r\n")
    lines = [record for record in caplog.records if record.message == "egress denied"]
    assert 200 <= len(lines) < 400
    assert len(egress.told) == 400


class TestFewConnections:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(per_sandbox=2, waiting=2, waiting_s=0.3, in_all=3)

    async def hold(self, egress: Egress, origin: Origin, sandbox: str) -> Kept:
        client = Kept(*await egress.connect(sandbox))
        await client.ask(get(origin))
        return client

    async def test_one_too_many_waits_for_its_turn(self, egress: Egress, origin: Origin) -> None:
        held = [await self.hold(egress, origin, "one") for _ in range(2)]
        waiting = asyncio.gather(egress.ask(PLAIN % origin.port))
        await held[0].aclose()
        assert (await waiting)[0].endswith(b"ok")
        await held[1].aclose()

    async def test_who_waits_too_long_gets_503(self, egress: Egress, origin: Origin) -> None:
        held = [await self.hold(egress, origin, "one") for _ in range(2)]
        assert (await egress.ask(PLAIN % origin.port)).startswith(
            b"HTTP/1.1 503 sandbox egress failed: the sandbox has too many connections"
        )
        for client in held:
            await client.aclose()

    async def test_who_comes_when_too_many_wait_gets_503_at_once(self, egress: Egress, origin: Origin) -> None:
        held = [await self.hold(egress, origin, "one") for _ in range(2)]
        waiting = [await egress.connect() for _ in range(2)]
        reader, writer = await egress.connect()
        assert (await asyncio.wait_for(reader.read(), LIMIT_S)).startswith(b"HTTP/1.1 503 ")
        for other in [*waiting, (reader, writer)]:
            await Kept(*other).aclose()
        for client in held:
            await client.aclose()

    async def test_there_is_a_limit_of_all(self, egress: Egress, origin: Origin) -> None:
        for name in ("two", "three"):
            egress.allow(f"origin.example:{origin.port}", sandbox=name)
        held = [await self.hold(egress, origin, "one") for _ in range(2)]
        held.append(await self.hold(egress, origin, "two"))
        assert (await egress.ask(PLAIN % origin.port, "three")).startswith(
            b"HTTP/1.1 503 sandbox egress failed: there are too many"
        )
        await held.pop().aclose()
        async with asyncio.timeout(LIMIT_S):
            while not (await egress.ask(PLAIN % origin.port, "three")).endswith(b"ok"):
                pass
        for client in held:
            await client.aclose()

    async def test_what_has_ended_leaves_no_slot_taken(self, egress: Egress, origin: Origin) -> None:
        origin.answers = [OK]
        for raw in [PLAIN % origin.port, b"nonsense\n", b"CONNECT other.example:443 HTTP/1.1\r\n\r\n", b""] * 5:
            await egress.ask(raw, end=True)
        assert (await egress.ask(PLAIN % origin.port)).endswith(b"ok")


async def test_lookups_of_one_sandbox_do_not_keep_another_waiting(egress: Egress, origin: Origin) -> None:
    class Slow:
        async def resolve(self, host: object) -> list[bytes]:
            busy.release()
            await asyncio.Event().wait()
            raise AssertionError

    busy = asyncio.Semaphore(0)
    egress.open("two", allow=("*",))
    two = egress.sandboxes._open["two"]
    two.gate._resolver = Slow()
    clients = [await egress.connect("two") for _ in range(40)]
    for number, (_, writer) in enumerate(clients):
        writer.write(b"CONNECT n%d.example:443 HTTP/1.1\r\n\r\n" % number)
    async with asyncio.timeout(LIMIT_S):
        for _ in range(Limits().lookups):
            await busy.acquire()
    assert (await egress.ask(PLAIN % origin.port)).endswith(b"ok")
    assert len(two.gate._looking) == Limits().lookups
    await egress.sandboxes.close("two")
    for client in clients:
        await Kept(*client).aclose()
