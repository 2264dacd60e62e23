"""The base of kernels in other languages: messages, output in both forms, pipes, and requests served with a language."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import zmq
from cellbox_wire import Cell, Ending, Error, Kernel, Language, Pump, direct, processes
from cellbox_wire.messages import Messages
from cellbox_wire.output import Marks, Streams
from sandboxd.channels import Channels, Connection
from sandboxd.direct import Direct
from sandboxd.marks import MarkReader

PATIENCE_S = 10.0
SECRET = "ab" * 16


class Spoken(Language):
    """A language whose cells are calls of its methods, each with what stands behind the first blank."""

    information: ClassVar = {"implementation": "spoken", "language_info": {"name": "spoken"}}

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.cells: list[Cell] = []
        self.waiting: asyncio.Future[None] | None = None
        self.waits = asyncio.Event()
        self.called = lambda: None
        self.interrupted = 0
        self.closed = 0

    async def start(self) -> None:
        pass

    async def execute(self, cell: Cell) -> Ending:
        self.cells.append(cell)
        verb, _, rest = cell.code.partition(" ")
        return await getattr(self, verb)(cell, rest) or Ending()

    async def say(self, cell: Cell, text: str) -> None:
        self.kernel.output.write(cell.number, 1, text.encode())

    async def show(self, cell: Cell, text: str) -> None:
        cell.display({"text/plain": text})
        cell.result({"text/plain": text})

    async def nest(self, cell: Cell, text: str) -> None:
        value = None
        for _ in range(100_000):
            value = [value]
        cell.display({"application/json": value})

    async def fail(self, cell: Cell, text: str) -> Ending:
        return Ending(3, Error("Failed", text, ["line"]))

    async def wait(self, cell: Cell, text: str) -> Ending:
        self.waiting = asyncio.get_running_loop().create_future()
        self.waits.set()
        await self.waiting
        return Ending(130, Error("KeyboardInterrupt", ""))

    async def call(self, cell: Cell, text: str) -> None:
        self.called()

    def interrupt(self) -> None:
        self.interrupted += 1
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def close(self) -> None:
        self.closed += 1
        self.interrupt()


class Client:
    """A client in the loop of the kernel."""

    def __init__(self, kernel: Kernel, language: Spoken, channels: Channels | Direct, received) -> None:
        self.kernel = kernel
        self.language = language
        self.channels = channels
        self._received = received

    def send(self, code, kind="execute_request", metadata=None, **content):
        return self.channels.send(kind, {"code": code, "stop_on_error": False} | content, metadata)

    async def messages(self, request, *, idle=False):
        """The messages on iopub and the reply's content, once that is there, and idle if it is to come."""
        while True:
            ours = [(kind, content) for kind, parent, content in self._received.items if parent == request]
            replies = [content for kind, content in ours if kind.endswith("_reply")]
            if replies and (not idle or ("status", {"execution_state": "idle"}) in ours):
                return [(kind, content) for kind, content in ours if not kind.endswith("_reply")], replies[0]
            await self._received.more()

    async def run(self, code, **options):
        return await self.messages(self.send(code, **options), idle=not options.get("metadata"))


class Received:
    def __init__(self):
        self.items = []
        self._event = asyncio.Event()

    def take(self, channel, message):
        self.items.append((message.type, message.parent, json.loads(message.content)))
        self._event.set()

    async def more(self):
        self._event.clear()
        async with asyncio.timeout(PATIENCE_S):
            await self._event.wait()


@pytest.fixture(params=[None, SECRET], ids=["streams", "marks"])
async def client(request, monkeypatch):
    root = Path(tempfile.mkdtemp(prefix="cb", dir="/tmp"))
    connection = Connection.make(root)
    connection.write()
    made = []

    def language(kernel):
        made.append(Spoken(kernel))
        return made[0]

    received = Received()
    context = zmq.Context()
    if request.param is None:
        channels = Channels(context, connection, received.take, control=True)
    else:
        ours, theirs = socket.socketpair()
        monkeypatch.setattr(direct, "SOCKET", theirs.detach())
        monkeypatch.setattr(direct, "BEGUN", os.eventfd(0))
        channels = Direct(ours, received.take, lambda: None)
    kernel = Kernel(connection.file, language, request.param)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(kernel.serve())
        async with asyncio.timeout(PATIENCE_S):
            await channels.ready()
        yield Client(kernel, made[0], channels, received)
        channels.send("shutdown_request", {"restart": False}, channel="control")
        await asyncio.wait([serving], timeout=PATIENCE_S)
        assert serving.done()
        assert made[0].closed
        channels.close()
        context.destroy(linger=0)
    shutil.rmtree(root)


def of_us(number=1, **fields):
    return {"cellbox": {"execution": number} | fields}


async def test_a_request_has_its_status_its_input_and_its_reply(client):
    messages, reply = await client.run("show a")
    kinds = [content.get("execution_state", kind) for kind, content in messages]
    assert kinds == ["busy", "execute_input", "display_data", "execute_result", "idle"]
    assert (reply["status"], reply["exit_code"], reply["execution_count"]) == ("ok", 0, 1)


async def test_one_that_counts_has_no_status(client):
    messages, _ = await client.run("show b", metadata=of_us())
    assert [kind for kind, _ in messages] == ["display_data", "execute_result"]


async def test_what_no_json_can_hold_is_said_and_ends_nothing(client):
    messages, reply = await client.run("nest", metadata=of_us())
    assert {kind for kind, _ in messages} <= {"stream"}  # which says so
    assert reply["status"] == "ok"
    assert (await client.run("show a", metadata=of_us()))[1]["status"] == "ok"


@pytest.mark.parametrize("client", [None], ids=["streams"], indirect=True)
async def test_every_subscriber_is_greeted(client):
    file = client.kernel.connection_file
    context, received = zmq.Context(), Received()
    known = json.loads(file.read_text())
    ports = tuple(known[f"{name}_port"] for name in ("shell", "iopub", "stdin", "control", "hb"))
    second = Channels(context, Connection(file.parent, known["key"], ports), received.take)
    try:
        while "iopub_welcome" not in [kind for kind, _, _ in received.items]:
            await received.more()
    finally:
        second.close()
        context.destroy(linger=0)


@pytest.mark.parametrize("client", [SECRET], ids=["marks"], indirect=True)
async def test_what_was_published_is_there_before_the_reply(client):
    for _ in range(3):
        request = client.send("show b", metadata=of_us())
        await client.messages(request)
    kinds = [kind for kind, _, _ in client._received.items]
    assert kinds == ["iopub_welcome", *["display_data", "execute_result", "execute_reply"] * 3]


async def test_an_error_is_published_and_replied(client):
    messages, reply = await client.run("fail it", metadata=of_us())
    assert messages == [("error", {"ename": "Failed", "evalue": "it", "traceback": ["line"]})]
    assert (reply["status"], reply["ename"], reply["exit_code"]) == ("error", "Failed", 3)


async def test_a_language_that_raises_is_an_error_and_the_next_request_is_served(client, capfd):
    _, reply = await client.run("nonsense", metadata=of_us())
    assert (reply["status"], reply["ename"], reply["exit_code"]) == ("error", "AttributeError", 1)
    _, reply = await client.run("", kind="inspect_request", cursor_pos="x")
    assert reply["found"] is False
    assert (await client.run("show a", metadata=of_us()))[1]["status"] == "ok"
    assert "AttributeError" in capfd.readouterr().err


async def test_interrupts_reach_the_language_while_a_cell_runs(client):
    request = client.send("wait", metadata=of_us())
    await client.language.waits.wait()
    os.kill(os.getpid(), 2)
    _, reply = await client.messages(request)
    assert (reply["ename"], client.language.interrupted) == ("KeyboardInterrupt", 1)
    client.language.waits.clear()
    request = client.send("wait", metadata=of_us(2))
    await client.language.waits.wait()
    client.channels.send("interrupt_request", {}, channel="control")
    await client.messages(request)
    assert client.language.interrupted == 2


async def test_an_interrupt_is_not_of_the_execution_after_it(client):
    """Both are there when the loop looks, and it handles signals last."""
    os.kill(os.getpid(), 2)
    await client.run("show a", metadata=of_us())
    assert client.language.interrupted == 0


@pytest.mark.parametrize(
    "metadata",
    [
        {"cellbox": 5},
        {"cellbox": {"execution": "x", "env": [], "cwd": 1, "stdin": {}}},
        {"cellbox": {"env": {"A": 1}}},
    ],
)
async def test_fields_that_are_not_as_they_should_be_are_not_there(client, metadata):
    _, reply = await client.run("show a", metadata=metadata)
    assert reply["status"] == "ok"
    cell = client.language.cells[0]
    assert (cell.number, cell.cwd, cell.stdin) == (1, None, None)
    assert dict(cell.env) in ({}, {"A": "1"})


async def test_the_fields_of_a_cell(client):
    await client.run("show a", metadata=of_us(7, env={"A": "b"}, cwd="/", stdin="in"))
    cell = client.language.cells[0]
    assert (cell.number, dict(cell.env), cell.cwd, cell.stdin) == (7, {"A": "b"}, "/", "in")


async def test_silent_cells_do_not_count(client):
    messages, reply = await client.run("fail it", silent=True)
    assert ([kind for kind, _ in messages], reply["execution_count"]) == (["status", "status"], 0)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("kernel_info_request", "protocol_version"),
        ("complete_request", "matches"),
        ("inspect_request", "found"),
        ("is_complete_request", "status"),
        ("history_request", "history"),
        ("comm_info_request", "comms"),
    ],
)
async def test_all_other_requests_have_an_answer(client, kind, field):
    _, reply = await client.run("", kind=kind)
    assert field in reply


async def test_a_request_that_comes_before_a_reply_is_sent_is_taken_after_it(client):
    """The descriptor of a ZeroMQ socket tells of it once, and sending uses that up."""
    requests = []

    def meet():
        requests.append(client.send("show b", metadata=of_us(2)))
        if isinstance(client.channels, Channels):
            assert select.select([client.kernel._sockets._sockets["shell"].FD], [], [], PATIENCE_S)[0]
        time.sleep(0.01)  # sending looks for what has come where it has not looked for some milliseconds

    client.language.called = meet
    await client.run("call it", metadata=of_us(1))
    assert (await client.messages(requests[0]))[1]["status"] == "ok"


async def test_junk_on_the_shell_channel_is_ignored(client):
    if isinstance(client.channels, Channels):
        shell = client.channels._sockets["shell"]
        for frames in ([b"x"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"sig", b"{}", b"{}", b"{}", b"{}"], [b"[" * 10_000]):
            shell.send_multipart(frames)
    else:
        for body in (b"", b"x", b"{}", b"[" * 100_000, b'{"channel":"shell","header":{},"metadata":{},"content":{}}'):
            client.channels._socket.sendall(len(body).to_bytes(4, "big") + body)
    assert (await client.run("show a", metadata=of_us()))[1]["status"] == "ok"


# --- messages -------------------------------------------------------------------------------------------------------


def test_messages_come_through_signed():
    ours = Messages("key")
    frames = ours.pack("x_request", {"a": [1, "ä"]}, {"msg_id": "p"}, {"m": 1})
    request = ours.unpack([b"route", *frames])
    assert (request.routing, request.kind, request.content, request.metadata) == (
        [b"route"],
        "x_request",
        {"a": [1, "ä"]},
        {"m": 1},
    )
    assert Messages("other").unpack(frames) is None
    assert Messages("").unpack(Messages("").pack("x", {}, {})) is not None
    for at in range(2, 6):
        assert ours.unpack([*frames[:at], frames[at] + b" ", *frames[at + 1 :]]) is None


@pytest.mark.parametrize("part", [b"", b"{", b"[]", b"5", b"[" * 100_000, b"\xff"])
def test_signed_junk_is_no_message(part):
    ours = Messages("key")
    parts = [part, b"{}", b"{}", part]
    assert ours.unpack([b"<IDS|MSG>", ours._signature(parts), *parts]) is None


def test_what_is_no_json_becomes_json():
    frames = Messages("").pack("x", {"a": float("nan"), "b": "\ud800", "c": [float("inf"), ("\udfff",)]}, {})
    assert msgspec.json.decode(frames[-1]) == {"a": None, "b": "\ufffd", "c": [None, ["\ufffd"]]}


# --- output ---------------------------------------------------------------------------------------------------------


class Heard:
    def __init__(self):
        self.said = []

    def text(self, execution, stream, data):
        self.said.append((execution, stream, data))

    def raw(self, pipe, data):
        self.said.append(("raw", pipe, data))

    def placed(self, place):
        self.said.append(("placed", place))
        return False


def test_marks_are_those_that_sandboxd_reads(capfdbinary):
    marks = Marks(SECRET)
    assert marks.place() is None
    marks.begin(ordered=True)
    assert marks.place() == 1
    marks.write(7, 1, b"out")
    marks.write(3, 2, b"x" * 10_000)
    marks.write(7, 1, b"")
    marks.end(7)
    out, err = capfdbinary.readouterr()
    heard = Heard()
    MarkReader(SECRET, 1, heard, heard.placed).feed(out)
    assert heard.said == [("placed", 1), (7, 1, b"out"), (3, 2, b"x" * 10_000)]
    assert err == b""
    assert max(map(len, out.split(b"\x1b"))) <= 4096


async def test_streams_are_gathered_in_order_and_cut_between_characters():
    told = []
    streams = Streams(lambda *what: told.append(what))
    for byte in "äö€".encode():
        streams.write(1, 1, bytes([byte]))
    streams.write(1, 2, b"err")
    streams.write(2, 2, b"other \xe2")
    streams.write(1, 1, b"again")
    streams.write(2, 2, b"\x82\xac\xe2")
    streams.end(2)
    assert told == [
        (1, "stdout", "äö€"),
        (1, "stderr", "err"),
        (2, "stderr", "other "),
        (1, "stdout", "again"),
        (2, "stderr", "€\ufffd"),
    ]


async def test_streams_are_told_after_a_while_or_when_there_is_much():
    told = asyncio.Queue()
    streams = Streams(lambda *what: told.put_nowait(what))
    streams.write(1, 1, b"late")
    assert told.empty()
    async with asyncio.timeout(PATIENCE_S):
        assert await told.get() == (1, "stdout", "late")
    streams.write(1, 1, b"x" * 100_000)
    assert len(told.get_nowait()[2]) == 100_000


# --- pipes ----------------------------------------------------------------------------------------------------------


async def test_a_pump_reads_to_the_end():
    read, write = os.pipe()
    data, ended = bytearray(), asyncio.Event()
    pump = Pump(read, data.extend, ended.set)
    for number in range(1000):
        os.write(write, b"%d\n" % number)
        if number % 100 == 0:
            await asyncio.sleep(0)
    os.close(write)
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()
    assert data.split() == [b"%d" % number for number in range(1000)]
    assert pump.closed
    pump.close()


async def test_a_drained_pump_has_handed_on_all_that_was_written():
    read, write = os.pipe()
    data = bytearray()
    pump = Pump(read, data.extend)
    for _ in range(10):
        data.clear()
        os.write(write, b"x" * 60_000)
        pump.drain()
        assert len(data) == 60_000
        await asyncio.sleep(0)
    pump.close()
    pump.close()
    os.close(write)


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True], ids=["children", "table"])
def test_what_was_started_since_is_killed_down_to_the_grandchildren(slow, monkeypatch):
    if slow:
        monkeypatch.setattr(processes.Path, "exists", lambda path: False)
    tree = "sleep 100 & sh -c 'sleep 101 & echo; wait' & wait"
    with subprocess.Popen(["sh", "-c", tree], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        processes.kill_below(process.pid, processes.ticks() + 100)
        assert process.poll() is None
        assert len(processes._children_of(process.pid)) == 2
        processes.kill_below(process.pid, 0)
        assert process.wait(PATIENCE_S) == 0


def test_what_a_process_ignores():
    with subprocess.Popen(["sh", "-c", "trap '' INT; echo; exec sleep 100"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert processes.ignores(process.pid, signal.SIGINT)
        assert not processes.ignores(process.pid, signal.SIGTERM)
        process.kill()
    assert not processes.ignores(process.pid, signal.SIGINT)


def test_what_lives_below_ends_with_its_own_children():
    """A shell that is killed first would leave its program to nobody, with the pipe that somebody waits for."""
    for _ in range(10):
        since = processes.ticks()
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import subprocess; subprocess.run('trap \"\" INT; echo; sleep 60; sleep 60', shell=True)",
            ],
            stdout=subprocess.PIPE,
        ) as program:
            assert program.stdout is not None
            program.stdout.readline()
            processes.kill_below(program.pid, since)
            assert select.select([program.stdout], [], [], 20)[0]
            assert program.stdout.read() == b""
