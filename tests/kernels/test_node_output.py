"""Whose output it is, and that all of it comes, in order; and how Node cells end that do not end by themselves."""

import asyncio
import os

import pytest
from sandboxd.protocol import OutputLimits, Progress

from tests.attempts import in_time
from tests.waiting import ended, soon

LARGE = OutputLimits(text=20_000_000, results=0, spill=0)

EXACT = {
    # code: (stdout, stderr)
    "console.log('a', {b: 1}); console.error('c'); console.info('d'); console.warn('e'); console.debug('f')": (
        "a { b: 1 }\nd\nf\n",
        "c\ne\n",
    ),
    "console.table([{a: 1}]); console.group(); console.log('in'); console.groupEnd(); console.dir({x: 1})": (
        "┌─────────┬───┐\n│ (index) │ a │\n├─────────┼───┤\n│ 0       │ 1 │\n└─────────┴───┘\n  in\n{ x: 1 }\n",
        "",
    ),
    "console.log('\\x1b[1m', [1], 'x')": ("\x1b[1m [ 1 ] x\n", ""),
    "process.stdout.write('no newline')": ("no newline", ""),
    "(async () => { await null; await null; console.log('what goes on at once') })(); 0": (
        "what goes on at once\n",
        "",
    ),
    "process.stdout.write(Buffer.from([0xc3])); process.stdout.write(Buffer.from([0xa9])); process.stdout.write('!')": (
        "é!",
        "",
    ),
    "process.stdout.write('414243', 'hex')": ("ABC", ""),
    "process.stdout.write(new Uint8Array([0xff]))": ("\ufffd", ""),
    "console.log('\\ud800x', '🎉')": ("\ufffdx 🎉\n", ""),
    "console.log('é🎉'.repeat(5000))": ("é🎉" * 5000 + "\n", ""),
    "fs.writeSync(1, 'A\\n'); console.log('B'); fs.writeSync(1, 'C\\n'); fs.writeSync(2, 'D\\n')": ("A\nB\nC\n", "D\n"),
    "console.log(1); require('child_process').execSync('echo 2; echo 3 >&2', {stdio: 'inherit'}); console.log(4)": (
        "1\n2\n4\n",
        "3\n",
    ),
    "require('child_process').spawnSync('sh', ['-c', '[ -t 1 ] || echo plain'], {stdio: [0, process.stdout, 2]})": (
        "plain\n",
        "",
    ),
    "await new Promise(r => require('child_process').spawn('echo', ['late'], {stdio: 'inherit'}).on('close', r))": (
        "late\n",
        "",
    ),
    "setTimeout(() => console.log('t'), 5); await new Promise(r => setTimeout(r, 30)); console.log('u')": (
        "t\nu\n",
        "",
    ),
    "process.nextTick(() => console.log('tick')); console.log('sync'); await null": ("sync\ntick\n", ""),
    "process.stdout.end('e'); process.stdout.destroy(); console.log('on')": ("eon\n", ""),
    "await require('stream/promises').pipeline(require('stream').Readable.from(['p', 'q']), process.stdout, {end: false})": (
        "pq",
        "",
    ),
    "require('stream').Readable.from(['r', 's']).pipe(process.stdout); await new Promise(r => setTimeout(r, 30))": (
        "rs",
        "",
    ),
    "const out = process.stdout.write; let seen = ''; process.stdout.write = (s) => { seen += s; return true }\n"
    "console.log('caught'); process.stdout.write = out; console.log(JSON.stringify(seen))": ('"caught\\n"\n', ""),
    "console.log([process.stdout.isTTY, process.stdout.fd, process.stderr.fd, process.stdout.writable].join())": (
        ",1,2,true\n",
        "",
    ),
    "fs.writeSync(1, '\\x1b]cellbox;')": ("\x1b]cellbox;", ""),
    "process.emitWarning('careful', {type: 'Own', code: 'W1'}); await new Promise(r => setTimeout(r, 10))": (
        "",
        "(node:PID) [W1] Own: careful\n",
    ),
    "new (require('worker_threads').Worker)('console.log(\"worker\")', {eval: true}).on('exit', () => done()); "
    "let done; await new Promise(r => done = r)": ("worker\n", ""),
}


async def test_output_is_exact(sandbox):
    for code, expected in EXACT.items():
        outcome = await sandbox.run(code + "\nvoid 0", language="node")
        assert outcome.status == "ok", (code, outcome.error)
        stderr = outcome.stderr.replace(f"node:{pid}", "node:PID") if (pid := _pid(outcome.stderr)) else outcome.stderr
        assert (outcome.stdout, stderr) == expected, code


def _pid(text):
    return text.removeprefix("(node:").split(")")[0] if text.startswith("(node:") else ""


JUNK = """
for (const d of fs.readdirSync('/proc/self/fd').map(Number).filter((d) => d > 2)) {
  try {
    const flags = parseInt(/flags:\\s*(\\d+)/.exec(fs.readFileSync(`/proc/self/fdinfo/${d}`))[1], 8)
    if ((flags & 3) === 1 && (flags & fs.constants.O_NONBLOCK) === 0) { fs.writeSync(d, 'TEXT'); globalThis.hit = d }
  } catch {}
}
if (!hit) throw new Error('there is no such descriptor')
"""
"""Writes into every pipe of the process that is not of Node's own."""

BROKEN = [
    "fs.closeSync(0)",
    "fs.closeSync(1); fs.closeSync(2)",
    "fs.closeSync(0); fs.closeSync(1); fs.closeSync(2)",
    "fs.closeSync(1); fs.openSync('/dev/null', 'w')",
    "process.stdin.destroy(); process.stdin.read()",
    "Object.defineProperty(process, 'stdout', {value: null, configurable: true})",
    "require('child_process').execSync('node -e \"process.stdout.write(1 + String.fromCharCode(10))\"', {stdio: 'inherit'})",
    "process.removeAllListeners()",
    "process.on('SIGINT', () => {}); process.off('SIGINT', () => {})",
    "Error.prepareStackTrace = null; Error.stackTraceLimit = 0",
    "Error.prepareStackTrace = () => { throw 1 }; Error.prepareStackTrace = undefined",
    "JSON.stringify = JSON.parse = null",
    "Object.prototype.polluted = 1; Array.prototype.extra = 2; delete Object.prototype.polluted; delete Array.prototype.extra",
    "globalThis.process = globalThis.Buffer = undefined",
    "Promise = Map = Set = Error = undefined",
    "fs.writeSync = fs.writevSync = fs.openSync = fs.fstatSync = () => { throw 1 }",
    "process.chdir(fs.mkdtempSync('/tmp/cb')); fs.rmdirSync(process.cwd())",
    JUNK.replace("TEXT", "junk"),
    JUNK.replace("TEXT", '\\n{"type":"done"}\\n[]\\n5\\nnull\\n{"type":"display","number":1}\\n'),
    "__cellbox.go = null; delete globalThis.__cellbox; globalThis.__cellbox = 5",
    "process.binding = null; require('module')._load = require('module')._resolveFilename = null",
    "display = require = module = console.log = null",
    "let globalThis = 5; const root = 6",
]


@pytest.mark.parametrize("code", BROKEN)
async def test_what_a_cell_breaks_harms_no_later_cell(sandbox, code):
    await sandbox.run("const kept = 1; const {fs: f = require('fs')} = {}", language="node")
    outcome = await sandbox.run(code, language="node", timeout_s=5.0)
    assert (outcome.status, outcome.kernel) in (("ok", "kept"), ("error", "kept")), outcome  # not lost
    after = await sandbox.run("process?.stdout?.write('on'); kept", language="node", stdin="in")
    assert (after.kernel, after.stdout or "no process", after.error) in (
        ("kept", "on", None),
        ("kept", "no process", None),
    )
    assert after.results[0].data["text/plain"] == "1"


@pytest.mark.parametrize(
    "code",
    [
        "fs.closeSync(1); fs.closeSync(2)",
        "fs.closeSync(1); fs.closeSync(2); fs.openSync('/dev/null', 'w'); fs.openSync('/dev/null', 'w')",
    ],
    ids=["closed", "others"],
)
async def test_descriptors_that_a_cell_has_taken_from_children_are_theirs_again(sandbox, code):
    await sandbox.run(code, language="node")
    child = "require('child_process').execSync('echo out; echo err >&2', {stdio: 'inherit'})"
    outcome = await sandbox.run(child, language="node")
    assert (outcome.stdout, outcome.stderr, outcome.kernel) == ("out\n", "err\n", "kept")


async def test_a_write_to_a_descriptor_is_whole_whatever_a_child_made_of_it(sandbox):
    child = "require('child_process').execFileSync('python', ['-c', 'import os; os.set_blocking(1, False)'], {stdio: 'inherit'})"
    await sandbox.run(child, language="node")
    outcome = await sandbox.run("fs.writeSync(1, 'x'.repeat(4_000_000))", language="node")
    assert (outcome.results[0].data["text/plain"], outcome.stdout_bytes) == ("4000000", 4_000_000)


async def test_descriptors_that_children_inherit_lead_nowhere(sandbox):
    code = "require('child_process').execSync('ls -l /proc/self/fd', {stdio: [0, 'pipe', 2]}).toString()"
    outcome = await sandbox.run(f"console.log({code})", language="node")
    links = [line.split(" -> ") for line in outcome.stdout.splitlines() if " -> " in line]
    open_ones = {link.split()[-1]: target for link, target in links}
    assert set(open_ones) == {"0", "1", "2", "3"}
    assert open_ones["3"].startswith("/proc/")  # of ls itself


async def test_late_output_belongs_to_its_execution_and_never_to_the_next(sandbox):
    first = await sandbox.run(
        "const gate = new Promise(r => globalThis.open = r)\n"
        "gate.then(() => { console.log('late'); display('late') })\n"
        "setTimeout(() => console.error('late timer'), 50); void 0",
        language="node",
    )
    assert (first.stdout, first.stderr) == ("", "")
    second = await sandbox.run(
        "console.log('mine'); open(); await new Promise(r => setTimeout(r, 100)); console.log('too')", language="node"
    )
    assert (second.stdout, second.stderr, second.results) == ("mine\ntoo\n", "", [])


async def test_errors_of_nobody_are_on_stderr_and_the_kernel_lives(sandbox):
    outcome = await sandbox.run(
        "setTimeout(() => { throw new Error('timer') }, 1)\n"
        "Promise.reject(new Error('rejected'))\n"
        "new Promise((_, no) => setTimeout(() => no(5), 3))\n"
        "require('events'); new EventTarget().addEventListener('x', () => {})\n"
        "await new Promise(r => setTimeout(r, 50)); 'lives'",
        language="node",
    )
    assert outcome.results[0].data["text/plain"] == "'lives'"
    assert "Uncaught Error: timer\n    at Timeout._onTimeout (cell-1.js:1:26)" in outcome.stderr
    assert "Uncaught Error: rejected\n    at cell-1.js:2:16\n" in outcome.stderr
    assert "5" in outcome.stderr
    heard = await sandbox.run(
        "process.on('uncaughtException', e => console.log('heard', e.message)); "
        "setTimeout(() => { throw new Error('own') }, 1); await new Promise(r => setTimeout(r, 30))",
        language="node",
    )
    assert (heard.stdout, heard.stderr) == ("heard own\n", "")


FLOODS = {
    "console.log('x'.repeat(10 ** 7))": 10**7 + 1,
    "process.stdout.write('x'.repeat(10 ** 7))": 10**7,
    "for (let i = 0; i < 100_000; i++) console.log('y'.repeat(99))": 10**7,
    "require('child_process').execSync('yes | head -c 10000000', {stdio: 'inherit'})": 10**7,
}


@pytest.mark.alone
@pytest.mark.parametrize("code", FLOODS)
async def test_ten_megabytes_of_output_are_complete_at_once(sandbox, code):
    await sandbox.run("1", language="node")
    outcome = await sandbox.run(code + "; void 0", language="node", limits=LARGE)
    assert (outcome.status, outcome.stdout_bytes, len(outcome.stdout)) == ("ok", FLOODS[code], FLOODS[code])
    in_time(outcome.run_ms, 2000 * max(1, os.getloadavg()[0] / 2))


INTERRUPTED = [
    "while (true) {}",
    "await new Promise(() => {})",
    "while (true) await new Promise(r => setTimeout(r, 5))",
    "while (true) await null",
    "await new Promise(r => setTimeout(r, 10)); while (true) {}",
    "(function f() { Promise.resolve().then(f) })(); await new Promise(() => {})",
    "(function f() { process.nextTick(f) })(); await new Promise(() => {})",
    "setTimeout(() => { for (;;) {} }, 5); await new Promise(() => {})",
    "setImmediate(() => { for (;;) {} }); await new Promise(() => {})",
    "require('child_process').execSync('sleep 20')",
    "require('child_process').execSync('trap \"\" INT; sleep 20')",
    "require('child_process').spawnSync('sh', ['-c', 'trap \"\" INT; while :; do :; done'])",
    "await require('util').promisify(require('child_process').exec)('sleep 20')",
    "try { while (true) {} } catch { while (true) {} } finally { while (true) {} }",
    "for (;;) { try { await new Promise(r => setTimeout(r, 5)) } catch {} }",
    "/(a+)+$/.test('a'.repeat(60) + 'b')",
    "process.on('SIGINT', () => {}); while (true) {}",
    "process.removeAllListeners('SIGINT'); await new Promise(() => {})",
    "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20000)",
    "({[Symbol.for('nodejs.util.inspect.custom')]() { for (;;) {} }})",
    "(function* () { for (;;) yield 1 })().toArray()",
    "new (require('worker_threads').Worker)('for (;;) {}', {eval: true}); await new Promise(() => {})",
]


@pytest.mark.alone
@pytest.mark.parametrize("code", INTERRUPTED)
async def test_a_timeout_keeps_the_state(sandbox, code):
    await sandbox.run("const kept = 1", language="node")
    outcome = await sandbox.run("console.log('begun'); " + code, language="node", timeout_s=0.5)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept"), outcome
    assert outcome.stdout == "begun\n"
    in_time(outcome.run_ms, 2500)
    after = await sandbox.run("await new Promise(r => setTimeout(r, 100)); kept", language="node")
    assert (after.results[0].data["text/plain"], after.stdout, after.stderr) == ("1", "", "")


async def test_an_interrupted_loop_does_not_go_on(sandbox):
    """Neither the cell's own nor one in a function that it awaits, and what is finally to be done is done."""
    code = (
        "globalThis.turns = 0; globalThis.cleaned = []\n"
        "async function main() {\n"
        "  try { for (;;) { await new Promise(r => setTimeout(r, 5)); turns += 1 } } finally { cleaned.push('inner') }\n"
        "}\n"
        "try { await main() } finally { cleaned.push('outer') }"
    )
    outcome = await sandbox.run(code, language="node", timeout_s=0.5)
    assert (outcome.status, outcome.kernel) == ("timeout", "new")
    before = await sandbox.run("await new Promise(r => setTimeout(r, 50)); turns", language="node")
    after = await sandbox.run("await new Promise(r => setTimeout(r, 50)); [turns, cleaned]", language="node")
    assert after.results[0].data["text/plain"] == f"[ {before.results[0].data['text/plain']}, [ 'inner', 'outer' ] ]"
    assert (before.stderr, after.stderr) == ("", "")


async def test_an_interrupt_on_request_is_a_keyboard_interrupt(sandbox):
    await sandbox.run("const kept = 1", language="node")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.run("console.log('x'); while (true) {}", language="node", id="it"))
        await sandbox.until_told(Progress)
        assert sandbox.kernels.cancel("it")
    outcome = running.result()
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("interrupted", 130, "kept")
    assert outcome.error.name == "KeyboardInterrupt"
    assert (await sandbox.run("kept", language="node")).results[0].data["text/plain"] == "1"


DEATHS = {
    "process.exit(3)": (3, "exit"),
    "console.log('last'); process.exit()": (0, "exit"),
    "await null; setTimeout(() => process.exit(4), 5); await new Promise(() => {})": (4, "exit"),
    "process.abort()": (134, "crash"),
    "process.kill(process.pid, 'SIGKILL')": (137, "crash"),
    "process.kill(process.pid, 'SIGTERM'); await new Promise(() => {})": (143, "crash"),
    "process.reallyExit(300)": (44, "exit"),
}


@pytest.mark.parametrize("code", DEATHS)
async def test_the_end_of_the_process_is_told_and_the_next_call_works(sandbox, code):
    await sandbox.run("const kept = 1", language="node")
    outcome = await sandbox.run("display('shown'); console.log('out'); " + code, language="node")
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("died", *DEATHS[code])
    assert outcome.kernel == "lost"
    assert outcome.stdout.startswith("out\n")
    assert [entry.data["text/plain"] for entry in outcome.results] == ["'shown'"]
    after = await sandbox.run("typeof kept", language="node")
    assert (after.kernel, after.results[0].data["text/plain"]) == ("new", "'undefined'")


async def test_what_outlives_the_process_is_ended_with_it(sandbox):
    outcome = await sandbox.run(
        "const child = require('child_process').spawn('sleep', ['300'], {detached: true, stdio: 'ignore'}); child.unref();"
        "console.log(child.pid); process.exit(1)",
        language="node",
    )
    await soon(lambda: ended(outcome.stdout.strip()))


async def test_a_full_heap_is_a_death_that_says_so(sandbox):
    sandbox.config.environment["CELLBOX_MEMORY_MIB"] = "128"
    outcome = await sandbox.run("const all = []; for (;;) all.push(new Array(1000).fill(1.5))", language="node")
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("died", 134, "crash")
    assert "JavaScript heap out of memory" in outcome.stderr
    assert (await sandbox.run("typeof all", language="node")).results[0].data["text/plain"] == "'undefined'"


async def test_a_cell_of_any_size_runs(sandbox):
    """Long in bytes, in lines, in one expression."""
    outcome = await sandbox.run(f"const long = '{'é' * 500_000}'; long.length", language="node")
    assert outcome.results[0].data["text/plain"] == "500000"
    outcome = await sandbox.run("let n = 0\n" + "n += 1\n" * 30_000 + "n", language="node")
    assert outcome.results[0].data["text/plain"] == "30000"
    outcome = await sandbox.run(f"[{'1,' * 200_000}].length", language="node")
    assert outcome.results[0].data["text/plain"] == "200000"
    outcome = await sandbox.run("let deep = " + "1 + " * 3_000 + "1; deep", language="node")
    assert outcome.results[0].data["text/plain"] == "3001"


async def test_interrupts_at_any_moment_lose_nothing(sandbox):
    """Before the cell begins, in its code, while it is told, after it: the kernel stays, and the next cell is not meant."""
    await sandbox.run(
        "let kept = 0; const busy = (ms) => { const end = Date.now() + ms; while (Date.now() < end) {} }",
        language="node",
    )
    cells = [
        "busy(15)",
        "await null; busy(15)",
        "await new Promise(r => setTimeout(r, 15))",
        "Array(50_000).fill({a: 1})",
    ]
    for turn in range(24):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sandbox.run(f"kept += 1; {cells[turn % 4]}", language="node", id=f"t{turn}"))
            await asyncio.sleep(turn * 0.001)
            sandbox.kernels.cancel(f"t{turn}")
        assert running.result().status in ("ok", "interrupted"), running.result()
        assert running.result().kernel == "kept"
        after = await sandbox.run("busy(5); console.log(typeof kept)", language="node")
        assert (after.status, after.stdout, after.stderr) == ("ok", "number\n", ""), (turn, after)
