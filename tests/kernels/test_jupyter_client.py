"""Our kernels under a Jupyter client that knows nothing of us, started as kernelspecs are: from ``JUPYTER_PATH``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator

import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.utils import ensure_event_loop

from tests.attempts import in_time
from tests.kernels.conftest import NODE, PYTHON, REPOSITORY
from tests.waiting import PATIENCE_S, ended, until


class Client:
    """A client of one kernel."""

    def __init__(self, language: str, folder: str) -> None:
        specs = KernelSpecManager(kernel_dirs=[str(REPOSITORY / "kernels")], ensure_native_kernel=False)
        self.manager = KernelManager(kernel_name=language, kernel_spec_manager=specs, transport="ipc")
        self.manager.connection_file = f"{folder}/c.json"
        self.manager.ip = f"{folder}/s"
        path = f"{PYTHON.parent}:{NODE}:{os.defpath}"
        self.manager.start_kernel(cwd=folder, env={"HOME": folder, "PATH": path, "LANG": "C.UTF-8", "TMPDIR": folder})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)
        self.others: list[dict] = []
        """Messages on iopub that were of another request than the one waited for."""

    def begin(self, code: str, *, allow_stdin: bool = False, **options) -> str:
        return self.client.execute(code, allow_stdin=allow_stdin, **options)

    def end(self, request: str) -> tuple[dict, list[tuple[str, dict]]]:
        """The reply's content and the messages on iopub, up to idle."""
        messages = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != request:
                self.others.append(message)
                continue
            messages.append((message["msg_type"], message["content"]))
            if message["content"].get("execution_state") == "idle":
                return self.reply(request), messages

    def reply(self, request: str) -> dict:
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE_S)
            if reply["parent_header"].get("msg_id") == request:
                return reply["content"]

    def run(self, code: str, **options) -> tuple[dict, str, str]:
        """The reply's content, stdout and stderr."""
        reply, messages = self.end(self.begin(code, **options))
        text = {"stdout": "", "stderr": ""}
        for kind, content in messages:
            if kind == "stream":
                text[content["name"]] += content["text"]
        return reply, text["stdout"], text["stderr"]

    def shut_down(self) -> None:
        """Ask for it by message and wait until the process is gone."""
        self.client.shutdown(reply=True, timeout=PATIENCE_S)
        self.client.stop_channels()
        until(lambda: not self.manager.is_alive())

    def until_written(self, request: str) -> None:
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            if message["msg_type"] == "stream" and message["parent_header"]["msg_id"] == request:
                return


@contextlib.contextmanager
def connected(language: str, folder: str) -> Iterator[Client]:
    client = Client(language, folder)
    try:
        yield client
    finally:
        client.client.stop_channels()
        client.manager.shutdown_kernel(now=True)
        client.client.context.destroy(linger=0)


@pytest.fixture(scope="module", autouse=True)
def loop_of_the_library() -> Iterator[None]:
    """It makes one at the first use and keeps it."""
    loop = ensure_event_loop()
    yield
    loop.close()


@pytest.fixture
def folder():
    made = tempfile.mkdtemp(prefix="cb", dir="/tmp")  # short: ipc paths have 108 bytes
    yield made
    shutil.rmtree(made)


@pytest.fixture
def bash(folder):
    if not PYTHON.exists():
        pytest.skip("the sandboxes' environment is not installed: make install")
    with connected("bash", folder) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_bash() -> Iterator[Client]:
    """For tests that leave the kernel as it was."""
    if not PYTHON.exists():
        pytest.skip("the sandboxes' environment is not installed: make install")
    with tempfile.TemporaryDirectory(prefix="cb", dir="/tmp") as made, connected("bash", made) as client:
        yield client


@pytest.fixture
def node(folder):
    if not PYTHON.exists():
        pytest.skip("the sandboxes' environment is not installed: make install")
    with connected("node", folder) as client:
        yield client


def test_bash_runs_cells(bash):
    reply, messages = bash.end(bash.begin("x=1; echo out; echo err >&2"))
    assert (reply["status"], reply["execution_count"]) == ("ok", 1)
    kinds = [content.get("execution_state", kind) for kind, content in messages]
    assert (kinds[:2], sorted(kinds[2:-1]), kinds[-1]) == (["busy", "execute_input"], ["stream", "stream"], "idle")
    reply, messages = bash.end(bash.begin("ls /none; (exit 4)"))
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "ExitStatus", "4")
    assert [content["evalue"] for kind, content in messages if kind == "error"] == ["4"]
    reply, out, err = bash.run("exit 3")
    assert (reply["evalue"], out, err) == ("3", "", "")
    assert bash.run("echo $x $?")[1] == "1 3\n"


def test_bash_tells_late_output_as_that_of_its_cell(bash):
    request = bash.begin("(sleep 0.2; echo late) & echo now")
    bash.end(request)
    assert bash.run("sleep 0.5; echo second")[1] == "second\n"
    (late,) = (message for message in bash.others if message["msg_type"] == "stream")
    assert (late["parent_header"]["msg_id"], late["content"]) == (request, {"name": "stdout", "text": "late\n"})


INTERRUPTED = [
    "sleep 60",
    "while :; do :; done",
    "bash -c 'trap \"\" INT; sleep 60; sleep 60'",
    "trap '' INT; while :; do :; done",
]


@pytest.mark.parametrize("code", INTERRUPTED)
def test_bash_is_interrupted_and_keeps_its_state(bash, code):
    """Once only, by the client's way: SIGINT to the process group. The kernel itself takes care of what does not hear."""
    bash.run("x=1")
    request = bash.begin(f"echo on\n{code}")
    bash.until_written(request)
    bash.manager.interrupt_kernel()
    reply, _ = bash.end(request)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert bash.run("echo $x")[1] == "1\n"


def test_bash_is_interrupted_by_a_message(bash):
    request = bash.begin("echo on; sleep 60")
    bash.until_written(request)
    message = bash.client.session.msg("interrupt_request", {})
    bash.client.control_channel.send(message)
    assert bash.end(request)[0]["ename"] == "KeyboardInterrupt"
    assert bash.client.get_control_msg(timeout=PATIENCE_S)["content"] == {"status": "ok"}


def test_bash_aborts_what_waits_behind_an_error(bash):
    failing, waiting = bash.begin("sleep 0.3; false"), bash.begin("echo not")
    assert bash.end(failing)[0]["status"] == "error"
    assert bash.end(waiting)[0]["status"] == "aborted"
    failing, waiting = bash.begin("sleep 0.3; false", stop_on_error=False), bash.begin("echo yes")
    assert bash.end(failing)[0]["status"] == "error"
    assert bash.end(waiting)[0]["status"] == "ok"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("echo on", "complete"),
        ("if true; then", "incomplete"),
        ("echo 'a", "incomplete"),
        ("cat <<X\na", "incomplete"),
        ("echo )", "invalid"),
    ],
)
def test_bash_knows_what_is_complete(lasting_bash, code, wanted):
    assert lasting_bash.reply(lasting_bash.client.is_complete(code))["status"] == wanted


@pytest.mark.parametrize(
    ("code", "match", "start"),
    [
        ("my_fu", "my_function", 0),
        ("echo a; my_fu", "my_function", 8),
        ("echo $my_va", "$my_variable", 5),
        ('echo "${my_va', "${my_variable", 6),
        ("cat my_fi", "my_file", 4),
        ("unali", "unalias", 0),
    ],
)
def test_bash_completes(lasting_bash, code, match, start):
    lasting_bash.run("my_function() { :; }; my_variable=1; touch my_file")
    reply = lasting_bash.reply(lasting_bash.client.complete(code))
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == ([match], start, len(code))


def test_bash_says_what_a_name_is(lasting_bash):
    lasting_bash.run("my_function() { echo hi; }; my_variable=7")

    def inspected(code):
        reply = lasting_bash.reply(lasting_bash.client.inspect(code))
        return reply["data"].get("text/plain") if reply["found"] else None

    assert "echo hi" in inspected("my_function")
    assert 'my_variable="7"' in inspected("echo $my_variable")
    assert "Change the shell working directory" in inspected("cd")
    assert inspected("no_such_name_at_all") is None


def test_bash_answers_everything_else(lasting_bash):
    information = lasting_bash.reply(lasting_bash.client.kernel_info())
    assert (information["language_info"]["name"], information["protocol_version"]) == ("bash", "5.4")
    assert lasting_bash.reply(lasting_bash.client.history())["history"] == []
    assert lasting_bash.reply(lasting_bash.client.comm_info())["comms"] == {}
    assert lasting_bash.client.is_alive()


def test_bash_runs_the_users_trap_when_it_is_shut_down(bash, folder):
    bash.run(f"trap 'echo bye $x >{folder}/bye' EXIT; x=1")
    bash.run("x=2")
    bash.shut_down()
    with open(f"{folder}/bye") as file:
        assert file.read() == "bye 2\n"


def test_bash_leaves_nothing(folder):
    with connected("bash", folder) as client:
        shell = client.run("echo $$")[1].strip()
        client.shut_down()
    assert shell not in os.listdir("/proc")
    assert [name for name in os.listdir(folder) if name.startswith("bash-")] == []


def test_bash_dies_with_the_kernel(bash):
    shell = bash.run("echo $$")[1].strip()
    os.kill(bash.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: ended(shell))


def test_node_runs_cells(node):
    reply, messages = node.end(node.begin("const x = 41; console.log('out'); console.error('err'); x + 1"))
    assert (reply["status"], reply["execution_count"]) == ("ok", 1)
    kinds = [content.get("execution_state", kind) for kind, content in messages]
    assert kinds == ["busy", "execute_input", "stream", "stream", "execute_result", "idle"]
    assert messages[-2][1]["data"] == {"text/plain": "42"}
    reply, messages = node.end(node.begin("null.x"))
    assert (reply["status"], reply["ename"]) == ("error", "TypeError")
    assert [content["traceback"] for kind, content in messages if kind == "error"] == [reply["traceback"]]
    assert reply["traceback"][-1] == "    at cell-2.js:1:6"
    _, messages = node.end(node.begin("console.log('a'); display.html('<b>'); console.log('c')"))
    told = [
        content.get("text", "").strip() or content.get("data", {}).get("text/html") for _, content in messages[2:-1]
    ]
    assert told == ["a", "<b>", "c"]


def test_node_tells_late_output_as_that_of_its_cell(node):
    request = node.begin("setTimeout(() => console.log('late'), 100); console.log('now')")
    node.end(request)
    assert node.run("await new Promise(r => setTimeout(r, 400)); console.log('second')")[1] == "second\n"
    (late,) = (message for message in node.others if message["msg_type"] == "stream")
    assert (late["parent_header"]["msg_id"], late["content"]) == (request, {"name": "stdout", "text": "late\n"})


def test_node_tells_all_of_much_output(node):
    _, out, _ = node.run("for (let i = 0; i < 100_000; i++) console.log('y'.repeat(99))")
    assert len(out) == 10_000_000
    _, out, err = node.run(
        "console.error('é'.repeat(10 ** 6)); require('child_process').execSync('echo hi', {stdio: 'inherit'})"
    )
    assert (out, err) == ("hi\n", "é" * 10**6 + "\n")


NODE_INTERRUPTED = [
    "while (true) {}",
    "await new Promise(() => {})",
    "await null; while (true) {}",
    "require('child_process').execSync('sleep 60')",
    "require('child_process').execSync('trap \"\" INT; sleep 60; sleep 60')",
]


@pytest.mark.alone
@pytest.mark.parametrize("code", NODE_INTERRUPTED)
def test_node_is_interrupted_and_keeps_its_state(node, code):
    node.run("const x = 1")
    request = node.begin(f"console.log('on'); {code}")
    node.until_written(request)
    began = time.monotonic()
    node.manager.interrupt_kernel()
    reply, _ = node.end(request)
    in_time(time.monotonic() - began, 4)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert node.run("console.log(x)")[1] == "1\n"


def test_node_that_cannot_be_stopped_is_replaced(node):
    request = node.begin("console.log('on'); require('crypto').pbkdf2Sync('a', 'b', 2 ** 31 - 1, 64, 'sha512')")
    node.until_written(request)
    node.manager.interrupt_kernel()
    reply, messages = node.end(request)
    assert reply["ename"] == "KeyboardInterrupt"
    assert "its variables are lost" in "".join(content.get("text", "") for _, content in messages)
    assert node.run("console.log(1)")[1] == "1\n"


def test_node_is_interrupted_by_a_message(node):
    request = node.begin("console.log('on'); await new Promise(() => {})")
    node.until_written(request)
    node.client.control_channel.send(node.client.session.msg("interrupt_request", {}))
    assert node.end(request)[0]["ename"] == "KeyboardInterrupt"
    assert node.client.get_control_msg(timeout=PATIENCE_S)["content"] == {"status": "ok"}


def test_node_that_exits_is_an_error_and_is_replaced(node):
    reply, out, _ = node.run("console.log('last'); process.exit(3)")
    assert (reply["ename"], reply["evalue"], out) == ("KernelExited", "3", "last\n")
    reply, _, _ = node.run("process.abort()")
    assert (reply["ename"], reply["evalue"]) == ("KernelExited", "134")
    assert node.run("setTimeout(() => process.exit(), 10); void 0")[0]["status"] == "ok"
    while node.run("await new Promise(r => setTimeout(r, 20)); globalThis.kept ??= 1; void 0")[0]["status"] == "ok":
        break
    assert node.run("console.log('on')")[1] == "on\n"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("let a = 1", "complete"),
        ("const a: number = 1", "complete"),
        ("await fetch()", "complete"),
        ("function f() {", "incomplete"),
        ("foo(1,", "incomplete"),
        ("`a\n", "incomplete"),
        ("/* a", "incomplete"),
        ("let a = )", "invalid"),
    ],
)
def test_node_knows_what_is_complete(node, code, wanted):
    assert node.reply(node.client.is_complete(code))["status"] == wanted


def test_node_completes(node):
    node.run(
        "const my_object = {first_key: 1, get second_key() { throw new Error('asked') }}, ü_name = {deep: {er: 1}}"
    )
    rows = {
        "my_obj": (["my_object"], 0),
        "1 + my_object.": (["first_key", "second_key"], 14),
        "'🎉'; my_object.fi": (["first_key"], 15),
        "my_object?.fi": (["first_key"], 11),
        "my_object.second_key.x": ([], 21),
        "JSON.str": (["stringify"], 5),
        "require('fs').": ([], 14),
        "awai": (["await"], 0),
        "no_such.": ([], 8),
    }
    for code, (wanted, start) in rows.items():
        reply = node.reply(node.client.complete(code))
        own = [match for match in reply["matches"] if not match.startswith("__") and match not in OBJECT_NAMES]
        assert (own, reply["cursor_start"], reply["cursor_end"]) == (wanted, start, len(code)), code


OBJECT_NAMES = {
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
}


def test_node_says_what_a_name_is(node):
    node.run("function my_function(a) { return a + 1 }; const my_object = {key: 7}")

    def inspected(code, cursor=None):
        reply = node.reply(node.client.inspect(code, cursor))
        return reply["data"].get("text/plain") if reply["found"] else None

    assert "return a + 1" in inspected("my_function")
    assert inspected("my_object.key") == "7"
    assert inspected("1 + my_object", 6) == "{ key: 7 }"
    assert inspected("no_such_name") is None


def test_node_that_is_busy_is_not_waited_for_and_its_late_answers_are_nobodys(node):
    node.run(
        "const first_name = 1, second_name = 2; setTimeout(() => { for (const t = Date.now(); Date.now() < t + 6e3;); }, 9)"
    )
    time.sleep(0.05)
    assert node.reply(node.client.complete("first_n"))["matches"] == []
    assert node.reply(node.client.complete("second_n"))["matches"] == ["second_name"]


def test_node_answers_everything_else(node):
    information = node.reply(node.client.kernel_info())
    assert (information["language_info"]["name"], information["protocol_version"]) == ("javascript", "5.4")
    assert information["language_info"]["version"].startswith("22.")
    assert node.reply(node.client.history())["history"] == []


def test_node_dies_with_the_kernel_also_while_it_is_busy(node):
    process = node.run("console.log(process.pid)")[1].strip()
    node.until_written(node.begin("console.log('on'); while (true) {}"))
    os.kill(node.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: ended(process))


def test_node_leaves_nothing(folder):
    with connected("node", folder) as client:
        process = client.run("require('child_process').spawn('sleep', ['300']); console.log(process.pid)")[1].strip()
        client.shut_down()
    until(lambda: process not in map(_group, filter(str.isdecimal, os.listdir("/proc"))))


def test_node_that_exits_leaves_nothing(node):
    child = node.run("console.log(require('child_process').spawn('sleep', ['300']).pid)")[1].strip()
    assert child in os.listdir("/proc")
    assert node.run("process.exit(3)")[0]["ename"] == "KernelExited"
    until(lambda: not _group(child))


def _group(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        state, _, group = file.read().rpartition(")")[2].split()[:3]
        return group if state != "Z" else ""  # ended; who is to reap it is none of ours
    return ""


@pytest.mark.parametrize(
    ("language", "code", "prompt"),
    [
        ("bash", "read -p 'name? ' x; echo \"$x\"", "name? "),
        (
            "node",
            "const b = Buffer.alloc(9); process.stdout.write(b.subarray(0, require('fs').readSync(0, b))); undefined",
            "",
        ),
    ],
)
def test_input_is_asked_for(language, code, prompt, folder):
    with connected(language, folder) as client:
        request = client.begin(code, allow_stdin=True)
        asked = client.client.get_stdin_msg(timeout=PATIENCE_S)
        assert asked["parent_header"]["msg_id"] == request
        assert asked["content"] == {"prompt": prompt, "password": False}
        client.client.input("Ada")
        reply, messages = client.end(request)
    assert (reply["status"], "".join(content["text"] for kind, content in messages if kind == "stream")) == (
        "ok",
        "Ada\n",
    )
