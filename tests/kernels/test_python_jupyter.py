"""Without marks ``kernel.py`` is an ordinary kernel, for any Jupyter client."""

import contextlib
import subprocess
import tempfile
from pathlib import Path

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from tests.kernels.conftest import PYTHON, REPOSITORY

PATIENCE_S = 30


@contextlib.contextmanager
def connected():
    with tempfile.TemporaryDirectory(prefix="cb", dir="/tmp") as folder:
        file = f"{folder}/c.json"
        write_connection_file(file, transport="ipc", ip=f"{folder}/s")
        kernel = subprocess.Popen(
            [PYTHON, REPOSITORY / "kernels/python/kernel.py", "-f", file],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            env={"HOME": folder, "PATH": str(PYTHON.parent)},
        )
        client = BlockingKernelClient(connection_file=file)
        client.load_connection_file()
        client.start_channels(hb=False)  # else a client takes a kernel for dead that starts slowly
        try:
            client.wait_for_ready(timeout=PATIENCE_S)
            client.kernel = kernel
            assert client.control_channel.is_alive()
            execute(client, "5")  # all that is opened at the first use is open now
            yield client
            client.shutdown(reply=True, timeout=PATIENCE_S)
            assert kernel.wait(PATIENCE_S) == 0
            assert Path(file).exists()
        finally:
            client.stop_channels()
            client.context.destroy(linger=0)
            kernel.kill()
            kernel.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def client():
    with connected() as client:
        yield client


def execute(client, code, **options):
    """Return the reply's content and the messages on iopub, without status and input."""
    identity = client.execute(code, allow_stdin=False, **options)
    messages = []
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") != identity:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
        if message["msg_type"] not in ("status", "execute_input"):
            messages.append((message["msg_type"], message["content"]))
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == identity:
            return reply["content"], messages


def test_value_streams_and_errors(client):
    reply, messages = execute(client, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n5")
    assert reply["status"] == "ok"
    streams = {"stdout": "", "stderr": ""}
    for kind, content in messages:
        if kind == "stream":
            streams[content["name"]] += content["text"]
    assert streams == {"stdout": "out\n", "stderr": "err\n"}
    assert messages[-1][1]["data"] == {"text/plain": "5"}
    reply, messages = execute(client, "1/0")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    assert [kind for kind, _ in messages] == ["error"]
    assert messages[0][1]["ename"] == "ZeroDivisionError"


def test_children_are_heard(client):
    """Through a pipe that a thread reads, so perhaps when the cell has ended."""
    identity = client.execute("import os\nos.system('echo child');")
    heard = ""
    while not heard:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == identity:
            heard = message["content"]["text"]
    assert heard == "child\n"
    execute(client, "5")


def test_a_closed_stream_is_put_right(client):
    execute(client, "import sys\nsys.stdout.close()")
    execute(client, "import sys\nsys.stdout = None")
    _, messages = execute(client, "print('on')")
    assert messages == [("stream", {"name": "stdout", "text": "on\n"})]


def test_exit_keeps_the_kernel(client):
    reply, _ = execute(client, "exit(3)")
    assert (reply["status"], reply["exit_code"]) == ("error", 3)
    reply, _ = execute(client, "exit()")
    assert reply["status"] == "ok"


def test_an_interrupted_await_is_a_keyboard_interrupt(client):
    identity = client.execute("import asyncio\nprint('on')\nawait asyncio.sleep(60)")
    while client.get_iopub_msg(timeout=PATIENCE_S)["msg_type"] != "stream":
        pass
    client.kernel.send_signal(2)
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == identity:
            break
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "KeyboardInterrupt")


def test_an_unknown_subshell_is_answered(client):
    message = client.session.msg("execute_request", {"code": "1", "silent": False})
    message["header"]["subshell_id"] = "nonsense"
    client.shell_channel.send(message)
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            break
    assert reply["content"]["status"] == "error"


def test_help_goes_to_the_clients_pager(client):
    reply, _ = execute(client, "len?")
    assert reply["payload"][0]["source"] == "page"


def test_completion(client):
    identity = client.complete("import o", 8)
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == identity:
            break
    assert "os" in reply["content"]["matches"]


def test_a_request_of_anybody_has_its_status_and_its_input(client):
    identity = client.execute("5", allow_stdin=False)
    kinds = []
    while kinds[-1:] != ["idle"]:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") == identity:
            kinds.append(message["content"].get("execution_state", message["msg_type"]))
    assert kinds == ["busy", "execute_input", "execute_result", "idle"]
