"""One sandbox, one connection."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from sandboxd.protocol import LINK_SOCKET

from interpreter.link.errors import LinkTimeout
from interpreter.link.listener import Listener


def dial(directory: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(directory / LINK_SOCKET))
    except OSError:
        made.close()
        raise
    return made


async def test_exactly_one_connection_is_accepted(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    assert (tmp_path / LINK_SOCKET).stat().st_mode & 0o777 == 0o600
    first, too_early = dial(tmp_path), dial(tmp_path)
    accepted = await listener.accept(within_s=20)
    assert not os.get_inheritable(accepted.fileno())
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        dial(tmp_path)
    accepted.send(b"x")
    assert first.recv(1) == b"x"
    with pytest.raises(ConnectionResetError):
        too_early.recv(1)
    for made in (first, too_early, accepted):
        made.close()


async def test_nobody_dials(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    with pytest.raises(LinkTimeout):
        await listener.accept(within_s=0.01)
    assert os.listdir(tmp_path) == []
    listener.close()


async def test_a_cancelled_accept_leaves_nothing(tmp_path: Path) -> None:
    task = asyncio.get_running_loop().create_task(Listener(tmp_path).accept(within_s=60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert os.listdir(tmp_path) == []


async def test_whoever_dials_as_the_wait_is_cancelled_is_refused(tmp_path: Path) -> None:
    task = asyncio.get_running_loop().create_task(Listener(tmp_path).accept(within_s=60))
    await asyncio.sleep(0)
    dialled = dial(tmp_path)
    await asyncio.sleep(0)  # the loop has seen it, and has not told the task yet
    task.cancel()
    await asyncio.wait([task])
    dialled.setblocking(False)
    with pytest.raises(ConnectionResetError):
        dialled.recv(1)
    dialled.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="owners can only be changed by root")
async def test_the_socket_belongs_to_the_scopes_uid(tmp_path: Path) -> None:
    listener = Listener(tmp_path, uid=4242, gid=4343)
    state = (tmp_path / LINK_SOCKET).stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (4242, 4343, 0o600)
    listener.close()


async def test_a_name_that_is_taken_is_not_used_and_nothing_leaks(tmp_path: Path) -> None:
    (tmp_path / LINK_SOCKET).symlink_to("/nowhere")
    with pytest.raises(OSError, match="in use"):
        Listener(tmp_path)


async def test_a_socket_that_a_dead_service_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / LINK_SOCKET))  # and closed, which leaves its name
    with pytest.raises(ConnectionRefusedError):
        dial(tmp_path)
    for _ in range(2):  # the second link of one sandbox is as the first
        listener = Listener(tmp_path)
        made = dial(tmp_path)
        accepted = await listener.accept(within_s=20)
        assert os.listdir(tmp_path) == []
        with pytest.raises(FileNotFoundError):
            dial(tmp_path)
        made.close()
        accepted.close()


async def test_the_directory_may_have_a_long_path(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 200)
    directory.mkdir()
    listener = Listener(directory)
    short = tmp_path / "short"
    short.symlink_to(directory)
    made = dial(short)
    accepted = await listener.accept(within_s=20)
    assert os.listdir(directory) == []
    made.close()
    accepted.close()
