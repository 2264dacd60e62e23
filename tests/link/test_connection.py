"""A peer that sends whatever it likes: it ends its own connection, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandboxd.protocol import (
    MAX_ALIVE,
    MAX_KNOWN,
    VERSION,
    Cancel,
    Execute,
    Finished,
    Hello,
    KernelGone,
    KernelStopped,
    Outcome,
    Output,
    OutputLimits,
    Preparing,
    Progress,
    ProtocolError,
    Refused,
    Settled,
    Started,
    StopKernel,
    decode_from_sandbox,
    decode_to_sandbox,
    encode,
    read_frame,
)

from interpreter.link.budget import Budget
from interpreter.link.connection import MAX_DROPPED, Connection, LinkLimits
from interpreter.link.errors import LinkClosed, LinkNotSent, LinkTimeout
from tests.link.conftest import Pair

OK = Outcome(status="ok", exit_code=0, run_ms=1)


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def packed(value: Any) -> bytes:
    return frame(msgspec.msgpack.encode(value))


HOSTILE = {
    "giant length": b"\xff\xff\xff\xff",
    "one byte over the limit": struct.pack(">I", 100_001),
    "no body": frame(b""),
    "no msgpack": frame(b"\xc1"),
    "half a message": frame(b"\x82\xa4"),
    "a list of a billion": frame(b"\xdd\x3b\x9a\xca\x00"),
    "a string of 4 GiB": frame(b"\xdb\xff\xff\xff\xff"),
    "recursion": frame(b"\x91" * 99_000),
    "extension type": frame(b"\xc7\x01\x05x"),
    "timestamp for a message": frame(b"\xd6\xff\x00\x00\x00\x00"),
    "a number": packed(7),
    "unknown type": packed({"type": "Reboot"}),
    "unknown field": packed({"type": "KernelStopped", "request": "a", "existed": True, "path": "/etc"}),
    "a message of ours": packed({"type": "Shutdown"}),
    "huge integer": packed(
        {"type": "Finished", "id": "a", "outcome": {"status": "ok", "exit_code": 2**63, "run_ms": 1}}
    ),
    "negative time": packed({"type": "Finished", "id": "a", "outcome": {"status": "ok", "exit_code": 0, "run_ms": -1}}),
    "id that is a path": packed({"type": "Started", "id": "../a"}),
    "id with a line end": packed({"type": "Started", "id": "a\n"}),
    "long id": packed({"type": "Started", "id": "a" * 65}),
    "lone surrogate": frame(b"\x83\xa4type\xa8Progress\xa2id\xa1a\xa4text\xa3\xed\xa0\x80"),
    "second hello": packed({"type": "Hello", "version": VERSION, "kernels": [], "stateless": []}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_junk_ends_the_connection_and_whoever_waits_learns_it(pair: Pair, data: bytes) -> None:
    pending = await pair.execute("a")
    await pair.send(data)
    await pair.closed()
    with pytest.raises(LinkClosed):
        await pending.end
    assert pending.changed.is_set()
    with pytest.raises(LinkClosed):
        await pair.execute("b")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(body: bytes) -> None:
    for decode in (decode_from_sandbox, decode_to_sandbox):
        with contextlib.suppress(ProtocolError):
            decode(body)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
_tags = st.sampled_from(["Finished", "Progress", "Refused", "Hello", "KernelGone", "Execute", "Cancel"])
_fields = st.sampled_from(["id", "outcome", "text", "stream", "code", "message", "version", "kernels", "limits"])


@settings(max_examples=300, deadline=None)
@given(_tags, st.dictionaries(_fields, _values, max_size=5))
def test_any_shape_is_a_message_or_a_protocol_error(tag: str, fields: dict[str, Any]) -> None:
    body = msgspec.msgpack.encode({"type": tag, **fields})
    for decode in (decode_from_sandbox, decode_to_sandbox):
        with contextlib.suppress(ProtocolError):
            decode(body)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(0, 20))
def test_frames_come_out_as_they_went_in_and_a_cut_one_is_an_error(bodies: list[bytes], cut: int) -> None:
    async def read() -> None:
        whole = b"".join(map(frame, bodies))
        reader = asyncio.StreamReader()
        reader.feed_data(whole[: len(whole) - cut] if cut else whole)
        reader.feed_eof()
        got = []
        try:
            while (body := await read_frame(reader, limit=50)) is not None:
                got.append(body)
        except ProtocolError:
            assert cut
        assert got == bodies[: len(got)]
        assert cut or got == bodies

    asyncio.run(read())


# --- ids ------------------------------------------------------------------------------------------------------------


async def test_foreign_late_and_repeated_ids_are_dropped_and_counted(pair: Pair) -> None:
    pending, other = await pair.execute("a"), await pair.execute("b")
    lie = Finished(id="a", outcome=Outcome(status="error", exit_code=1, run_ms=1))
    await pair.send(
        Finished(id="foreign", outcome=OK),
        Progress(id="foreign", stream="stdout", text="x"),
        KernelStopped(request="foreign", existed=True),
        Started(id="a"),
        Finished(id="a", outcome=OK),
        lie,
        Refused(id="a", code="cwd_not_found", message="late"),
        Progress(id="a", stream="stdout", text="late"),
        Finished(id="b", outcome=OK),
    )
    await other.end
    assert (await pending.end) == Finished(id="a", outcome=OK)
    assert pending.text("stdout") == ""
    assert pair.connection.dropped == 7


async def test_what_is_forgotten_is_dropped(pair: Pair) -> None:
    await pair.execute("a")
    pair.connection.forget("a")
    last = await pair.execute("b")
    await pair.send(Finished(id="a", outcome=OK), Finished(id="b", outcome=OK))
    await last.end
    assert pair.connection.dropped == 1


async def test_too_many_messages_for_nobody_end_the_connection(make_pair: Any) -> None:
    pair: Pair = await make_pair(burst=1e9)
    await pair.send(*[Finished(id="foreign", outcome=OK)] * (MAX_DROPPED + 1))
    await pair.closed()


async def test_an_execution_prepares_once(pair: Pair) -> None:
    pending = await pair.execute("a")
    await pair.send(
        Preparing(id="a"), Started(id="a"), Preparing(id="a"), Started(id="a"), Finished(id="a", outcome=OK)
    )
    await pending.end
    assert (pending.starting, pair.connection.dropped) == (False, 2)


async def test_one_id_is_asked_once(pair: Pair) -> None:
    await pair.execute("a")
    with pytest.raises(ValueError, match="already"):
        await pair.execute("a")


# --- a further link of one sandbox ---------------------------------------------------------------------------------


async def greeted(connection: Connection, peer: socket.socket, **fields: Any) -> Hello:
    peer.setblocking(True)
    peer.sendall(packed({"type": "Hello", "version": VERSION, "kernels": [], "stateless": [], **fields}))
    peer.setblocking(False)
    return await connection.hello(within_s=20)


@pytest.fixture
async def second() -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection that has not heard a hello, and its peer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    connection = await Connection.open(ours, limits=LinkLimits(frame=200_000))
    yield connection, theirs
    await connection.wait_closed()
    theirs.close()


async def received(peer: socket.socket) -> list[Any]:
    """What we sent until we closed the connection."""
    reader, writer = await asyncio.open_unix_connection(sock=peer.dup())
    messages = []
    with contextlib.suppress(OSError):
        while (body := await read_frame(reader, limit=10**6)) is not None:
            messages.append(decode_to_sandbox(body))
    writer.close()
    await writer.wait_closed()
    return messages


async def test_adopted_executions_end_as_if_they_had_been_sent_here(second: tuple[Connection, socket.socket]) -> None:
    connection, peer = second
    known = [
        {"id": "runs", "state": "running"},
        {"id": "starts", "state": "running", "preparing": True},
        {"id": "over", "state": "finished"},
    ]
    hello = await greeted(connection, peer, known=known, alive=[{"language": "python", "context": "c"}])
    assert [(k.id, k.state, k.preparing) for k in hello.known] == [
        ("runs", "running", False),
        ("starts", "running", True),
        ("over", "finished", False),
    ]
    assert [(kernel.language, kernel.context) for kernel in hello.alive] == [("python", "c")]
    runs, starts, over = (connection.adopt(name, 10) for name in ("runs", "starts", "over"))
    assert [pending.starting for pending in (runs, starts, over)] == [False, True, False]
    for message in (
        Finished(id="over", outcome=OK),
        Started(id="starts"),
        Preparing(id="starts"),  # once, and that was on the link before
        Progress(id="runs", stream="stdout", text="from the start on"),
        Finished(id="runs", outcome=OK),
        Finished(id="starts", outcome=OK),
    ):
        peer.send(encode(message))
    running = asyncio.get_running_loop().create_task(connection.run())
    assert [await pending.end for pending in (over, runs, starts)] == [
        Finished(id=name, outcome=OK) for name in ("over", "runs", "starts")
    ]
    assert (starts.starting, runs.text("stdout"), connection.dropped) == (False, "from the s", 1)
    connection.close()
    await running


async def test_an_adopted_execution_may_stream_as_much_as_any(second: tuple[Connection, socket.socket]) -> None:
    """Its kernel was being made when the service went, so that it streams for the first time on this link."""
    connection, peer = second
    await greeted(connection, peer, known=[{"id": "a", "state": "running", "preparing": True}])
    pending = connection.adopt("a", 10)
    running = asyncio.get_running_loop().create_task(connection.run())
    _, writer = await asyncio.open_unix_connection(sock=peer.dup())
    for _ in range(MAX_DROPPED + 1):
        writer.write(encode(Output(id="a", stream="stdout", text="x")))
    writer.write(encode(Finished(id="a", outcome=OK)))
    await writer.drain()
    assert await asyncio.wait_for(pending.end, 20) == Finished(id="a", outcome=OK)
    assert connection.dropped == 0
    connection.close()
    await running
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_an_execution_is_adopted_once(second: tuple[Connection, socket.socket]) -> None:
    connection, peer = second
    await greeted(connection, peer, known=[{"id": "a", "state": "running"}])
    pending = connection.adopt("a", 10)
    with pytest.raises(ValueError, match="already"):
        connection.adopt("a", 10)
    connection.close()
    with pytest.raises(LinkClosed):
        await pending.end


_KNOWN = {"id": "a", "state": "running"}


@pytest.mark.parametrize(
    "fields",
    [
        {"known": [_KNOWN, _KNOWN]},
        {"known": [{"id": f"x{number}", "state": "running"} for number in range(MAX_KNOWN + 1)]},
        {"known": [{"id": "a", "state": "queued"}]},
        {"known": [{"id": "../a", "state": "running"}]},
        {"known": [{"id": "a", "state": "running", "preparing": -1}]},
        {"known": [{"id": "a", "state": "running", "path": "/etc"}]},
        {"known": -1},
        {"known": None},
        {"alive": [{"language": "python", "context": f"c{number}"} for number in range(MAX_ALIVE + 1)]},
        {"alive": [{"language": "python", "context": "../c"}]},
        {"alive": [{"language": "", "context": "c"}]},
        {"version": -1},
    ],
)
async def test_a_forged_hello_ends_its_connection(
    second: tuple[Connection, socket.socket], fields: dict[str, Any]
) -> None:
    with pytest.raises(ProtocolError):
        await greeted(*second, **fields)


async def test_a_hello_may_know_as_much_as_a_sandbox_can(second: tuple[Connection, socket.socket]) -> None:
    connection, peer = second
    known = [{"id": f"{number:064}", "state": "finished"} for number in range(MAX_KNOWN)]
    hello = await greeted(connection, peer, known=known)
    assert len(hello.known) == MAX_KNOWN
    connection.settle(known.id for known in hello.known)
    await asyncio.sleep(0)
    connection.close()
    assert await received(peer) == [Settled(ids=[known.id for known in hello.known])]


async def test_what_is_settled_is_said_together_and_in_whole_frames(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    limits = OutputLimits(text=1, results=1, spill=1)
    big = Execute(id="big", language="python", code="x" * 10**6, timeout_s=1, grace_s=1, limits=limits)
    sending = loop.create_task(pair.connection.execute(big))
    await asyncio.sleep(0)  # half of it is on its way
    pair.connection.settle(["a"])
    pair.connection.settle(["b", "c"])
    pair.connection.settle([])
    reader, writer = await asyncio.open_unix_connection(sock=pair.peer.dup())
    messages = [decode_to_sandbox(await read_frame(reader, limit=10**7) or b"") for _ in range(2)]
    await sending
    writer.close()
    await writer.wait_closed()
    assert messages == [big, Settled(ids=["a", "b", "c"])]


async def test_what_is_settled_behind_a_long_frame_is_said_after_it(pair: Pair) -> None:
    """A sandbox that is not told keeps the answer for good, and takes nothing new once it keeps too many."""
    limits = OutputLimits(text=1, results=1, spill=1)
    big = Execute(id="big", language="python", code="x" * 4 * 2**20, timeout_s=1, grace_s=1, limits=limits)
    sending = asyncio.get_running_loop().create_task(pair.connection.execute(big))
    await asyncio.sleep(0)
    for name in ("a", "b"):
        pair.connection.settle([name])
        await asyncio.sleep(0)
    reader, writer = await asyncio.open_unix_connection(sock=pair.peer.dup())
    messages = [decode_to_sandbox(await read_frame(reader, limit=10**7) or b"") for _ in range(2)]
    await sending
    writer.close()
    await writer.wait_closed()
    assert messages == [big, Settled(ids=["a", "b"])]


async def test_an_answer_that_comes_for_nobody_is_not_settled(pair: Pair) -> None:
    await pair.execute("a")
    pair.connection.forget("a")
    last = await pair.execute("last")
    await pair.send(Finished(id="a", outcome=OK), Finished(id="last", outcome=OK))
    await last.end
    await asyncio.sleep(0)
    pair.connection.close()
    assert [type(message) for message in await received(pair.peer)] == [Execute, Execute]


async def test_a_peer_that_does_not_read_is_told_no_end_of_settled(pair: Pair) -> None:
    for _ in range(2_000):
        pair.connection.settle(f"{number:064}" for number in range(100))
        await asyncio.sleep(0)
    assert pair.connection._writer.transport.get_write_buffer_size() < 2**20 + 10**5


async def test_settling_after_the_end_is_harmless(pair: Pair) -> None:
    pair.connection.settle(["a"])
    pair.connection.close()
    pair.connection.settle(["b"])
    await asyncio.sleep(0)
    await pair.closed()
    assert await received(pair.peer) == []


# --- budgets --------------------------------------------------------------------------------------------------------


async def test_output_so_far_is_bounded(pair: Pair) -> None:
    pending = await pair.execute("a", text=10)
    await pair.send(*[Progress(id="a", stream="stdout", text="xyz")] * 100, Finished(id="a", outcome=OK))
    await pending.end
    assert pending.text("stdout") == "xyzxyzxyzx"


async def test_a_flood_is_read_slowly_and_the_peer_blocks(make_pair: Any) -> None:
    pair: Pair = await make_pair(per_s=1.0, burst=10.0)
    loop = asyncio.get_running_loop()
    flood = loop.create_task(pair.send(*[KernelGone(language="x" * 64, context="c", reason="exit")] * 50_000))
    done, _ = await asyncio.wait([flood], timeout=0.3)
    assert not done, "the peer was read as fast as it could write"
    assert len(pair.gone) <= 12
    flood.cancel()
    await asyncio.wait([flood])
    pair.connection.close()
    pair.running.cancel()
    await asyncio.wait([pair.running])
    pair.running = loop.create_task(asyncio.sleep(0))


@pytest.mark.parametrize(
    ("frames", "pause_s"),
    [
        ([(0, 0)] * 10, 0),
        ([(0, 0)] * 11, 0.5),
        ([(0, 16384 * 9)], 0),
        ([(0, 16384 * 19)], 5),
        ([(0, 0)] * 10 + [(5, 0)] * 10, 0),
        ([(0, 0)] * 10 + [(500, 0)] * 10, 0),
    ],
)
def test_budget(frames: list[tuple[float, int]], pause_s: float) -> None:
    budget = Budget(per_s=2, burst=10, now=0)
    pauses = [budget.charge(size, now) for now, size in frames]
    assert pauses[-1] == pytest.approx(pause_s)


async def test_a_peer_that_does_not_read_is_disconnected(make_pair: Any) -> None:
    pair: Pair = await make_pair(write_s=0.05)
    limits = OutputLimits(text=1, results=1, spill=1)
    big = Execute(id="big", language="python", code="x" * 10**7, timeout_s=1, grace_s=1, limits=limits)
    with pytest.raises(LinkClosed, match="does not read"):
        await pair.connection.execute(big)
    await pair.closed()


async def test_a_cancelled_send_leaves_whole_frames(pair: Pair) -> None:
    limits = OutputLimits(text=1, results=1, spill=1)
    big = Execute(id="big", language="python", code="x" * 10**6, timeout_s=1, grace_s=1, limits=limits)
    loop = asyncio.get_running_loop()
    sending = loop.create_task(pair.connection.execute(big))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    after = loop.create_task(pair.connection.cancel("big"))
    reader, writer = await asyncio.open_unix_connection(sock=pair.peer.dup())
    first = decode_to_sandbox(await read_frame(reader, limit=10**7) or b"")
    second = decode_to_sandbox(await read_frame(reader, limit=10**7) or b"")
    await after
    writer.close()
    await writer.wait_closed()
    assert (first, second) == (big, Cancel(id="big"))


# --- the rest -------------------------------------------------------------------------------------------------------


async def test_kernels_that_stop(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    stopping = loop.create_task(pair.connection.stop_kernel("python", "c", restart=True, within_s=20))
    reader = pair.peer
    head = await loop.sock_recv(reader, 65536)
    message = decode_to_sandbox(head[4:])
    assert isinstance(message, StopKernel)
    await pair.send(
        KernelStopped(request=message.request, existed=True), KernelStopped(request=message.request, existed=True)
    )
    assert (await stopping).existed
    with pytest.raises(LinkTimeout):
        await pair.connection.stop_kernel("python", "c", restart=False, within_s=0.01)
    waiting = loop.create_task(pair.connection.stop_kernel("python", "c", restart=False, within_s=60))
    await asyncio.sleep(0)
    pair.connection.close()
    with pytest.raises(LinkClosed):
        await waiting


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (packed({"type": "Started", "id": "a"}), ProtocolError),
        (packed({"type": "Hello", "version": VERSION + 1, "kernels": [], "stateless": []}), ProtocolError),
        (b"\xff\xff\xff\xff", ProtocolError),
        (b"\x00", ProtocolError),
        (b"", LinkClosed),
    ],
)
async def test_the_first_message_is_a_hello_of_our_version(first: bytes, error: type[Exception]) -> None:
    ours, theirs = socket.socketpair()
    connection = await Connection.open(ours, limits=LinkLimits(frame=1000))
    theirs.sendall(first)
    theirs.close()
    with pytest.raises(error):
        await connection.hello(within_s=20)
    await connection.wait_closed()


async def test_a_hello_that_does_not_come() -> None:
    ours, theirs = socket.socketpair()
    connection = await Connection.open(ours, limits=LinkLimits(frame=1000))
    with pytest.raises(LinkTimeout):
        await connection.hello(within_s=0.01)
    theirs.sendall(packed(msgspec.to_builtins(Hello(version=VERSION, kernels=["python"], stateless=[]))))
    assert (await connection.hello(within_s=20)).kernels == ["python"]
    await connection.wait_closed()
    theirs.close()


async def test_what_a_peer_that_is_gone_cannot_have_read_is_told_apart(pair: Pair) -> None:
    pair.peer.close()
    with pytest.raises(LinkNotSent):
        await pair.execute("written into a closed socket, before anybody noticed")
    with pytest.raises(LinkNotSent):
        await pair.execute("after the end")


async def test_what_a_peer_may_have_read_is_no_such_thing(pair: Pair) -> None:
    pending = await pair.execute("taken by the socket, and not read")
    pair.peer.close()
    with pytest.raises(LinkClosed) as ended:
        await pending.end
    assert not isinstance(ended.value, LinkNotSent)


async def test_half_a_frame_may_have_been_read(make_pair: Any) -> None:
    pair = await make_pair(write_s=30)
    large = Execute(
        id="x", language="python", code="x" * 4_000_000, timeout_s=1, grace_s=1, limits=OutputLimits(1, 1, 1)
    )
    sending = asyncio.get_running_loop().create_task(pair.connection.send(large))
    await asyncio.get_running_loop().sock_recv(pair.peer, 1000)
    pair.peer.close()
    with pytest.raises(LinkClosed) as ended:
        await sending
    assert not isinstance(ended.value, LinkNotSent)
