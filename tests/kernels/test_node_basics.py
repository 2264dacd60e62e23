"""What a Node cell's state, values, displays and errors are."""

import json

import pytest
from sandboxd.protocol import OutputLimits


@pytest.fixture
def node(sandbox):
    async def run(code, **options):
        return await sandbox.run(code, language="node", **options)

    async def value(code, **options):
        outcome = await run(code, **options)
        assert outcome.status == "ok", outcome
        return next((entry.data["text/plain"] for entry in outcome.results if entry.type == "result"), None)

    run.value = value
    run.sandbox = sandbox
    return run


async def test_state_is_kept_and_the_last_expression_is_the_value(node):
    first = await node("let x = 41\nconsole.log('out')\nx + 1")
    assert (first.status, first.exit_code, first.kernel, first.stdout) == ("ok", 0, "new", "out\n")
    assert [entry.data for entry in first.results] == [{"text/plain": "42"}]
    second = await node("x")
    assert (second.kernel, second.execution_count) == ("kept", 2)
    assert second.results[0].data == {"text/plain": "41"}


KEPT = {
    # first cell, second cell: value of the second
    ("var a = 1; let b = 2; const c = 3; d = 4", "[a, b, c, d]"): "[ 1, 2, 3, 4 ]",
    ("function f() { return g() }\nfunction g() { return 5 }", "f()"): "5",
    ("async function f() { return 6 }\nfunction* h() { yield 7 }", "[await f(), ...h()]"): "[ 6, 7 ]",
    ("class A { static n = 1; get two() { return 2 } }\nclass B extends A {}", "[B.n, new B().two, B.name]"): (
        "[ 1, 2, 'B' ]"
    ),
    ("const {a, b: [c, ...d], ...e} = {a: 1, b: [2, 3, 4], f: 5}", "[a, c, d, e]"): "[ 1, 2, [ 3, 4 ], { f: 5 } ]",
    ("const x = 1", "const x = 2; let y = x; y"): "2",
    ("let x = 1", "let x; x"): None,
    ("var x = 1", "var x; x"): "1",
    ("class A { n() { return 1 } }", "class A { n() { return 2 } }; new A().n()"): "2",
    ("function f() { return 1 }", "const f = () => 2; f()"): "2",
    ("const f = () => 2", "function f() { return 1 }; f()"): "1",
    ("const x = 1", "x = 2; x"): "2",  # what declaring again costs
    ("for (var i = 0, n = 3; i < n; i++) { var last = i }", "[i, last]"): "[ 3, 2 ]",
    ("for (let ii = 0; ii < 3; ii++) { let inner = ii }", "[typeof ii, typeof inner]"): "[ 'undefined', 'undefined' ]",
    ("await null; for (var k in {p: 1}) { if (k) { var seen = k } }", "[k, seen]"): "[ 'p', 'p' ]",
    ("await null; function f() { return 5 }; const x = f()", "[x, f()]"): "[ 5, 5 ]",
    ("f(); function f() { hoisted = 1 }\nawait null", "hoisted"): "1",
    ("export const x = 1; export function f() { return x }; export default class Z {}", "[f(), typeof Z]"): (
        "[ 1, 'function' ]"
    ),
    ("const crypto = require('crypto'), navigator = 5", "[typeof crypto.createHash, navigator]"): "[ 'function', 5 ]",
    ("const fs = 1, os = require('os')", "[fs, typeof os.cpus]"): "[ 1, 'function' ]",
    ("const f = () => 1, g = class {}", "[f.name, g.name]"): "[ 'f', 'g' ]",
    ("let a = 1\n;[a] = [7]\nlet b\n[5].forEach(x => { b = x })", "[a, b]"): "[ 7, 5 ]",
    ("x = 5; circ = {}; circ.me = circ", "[x, circ.me === circ]"): "[ 5, true ]",
    ("const require = 1; const module = 2; const __dirname = 3", "[require, module, __dirname]"): "[ 1, 2, 3 ]",
}


async def test_what_a_cell_declares_is_there_for_the_next(node):
    """In one kernel, so each pair may declare what others have declared."""
    for (first, second), expected in KEPT.items():
        assert (await node(first)).status == "ok", first
        assert await node.value(second) == expected, (first, second)


async def test_a_declaration_that_failed_can_be_made_again(node):
    outcome = await node("const before = 1; const x = (() => { throw new Error('no') })(); const after = 2")
    assert outcome.error.name == "Error"
    assert await node.value("[before, x, after]") == "[ 1, undefined, undefined ]"
    assert await node.value("const x = 3; x") == "3"


VALUES = {
    "": None,
    "  \n": None,
    "// nothing": None,
    "undefined": None,
    "let x = 5": None,
    "if (true) 5": None,
    "let s = 0; for (let i = 0; i < 3; i++) s += i": None,
    "5;": "5",
    "'a\\nb'": "'a\\nb'",
    "null": "null",
    "{a: 1}": "{ a: 1 }",
    "{a: {b: [1]}}": "{ a: { b: [ 1 ] } }",
    "{ let q = 3; q }": None,
    "({}).x ?? 'none'": "'none'",
    "10n ** 20n": "100000000000000000000n",
    "new Map([[1, {a: 2}]])": "Map(1) { 1 => { a: 2 } }",
    "Promise.resolve(5)": "5",
    "(async () => 6)()": "6",
    "await Promise.resolve([7])": "[ 7 ]",
    "await 8 /* comment */ // and another": "8",
    "await null; ({a: 1})": "{ a: 1 }",
    "for await (const x of [Promise.resolve(1), 2]) { var k = x } k": "2",
    "let total = 0; for await (const x of (async function* () { yield 1; yield 2 })()) total += x; total": "3",
    "const {a} = await Promise.resolve({a: 9}); a": "9",
    "function ff() { return arguments.length }; ff(1, 2)": "2",
    "#!/usr/bin/env node\n5": "5",
    "label: for (const i of [1, 2]) { continue label }; 4": "4",
    "'use strict'; this === globalThis": "true",
    "'ünï' + '🎉'.length": "'ünï2'",
    "1\r\n+ 1": "2",
    "enum Color { Red, Green }; Color.Green": "1",
    "interface P { a: number }\nconst p: P = {a: 1}; function id<T>(x: T): T { return x }; id<number>(p.a) as number": "1",
    "type T = string; const t: T = await Promise.resolve('t'); t satisfies string": "'t'",
    "require.main === module": "true",
    "[__dirname === process.cwd(), __filename.endsWith('.js'), import.meta.dirname === __dirname]": "[ true, true, true ]",
    "import.meta.url.startsWith('file:///')": "true",
    "[process.argv.length, process.execArgv.length]": "[ 1, 0 ]",
    "path.join('a', 'b')": "'a/b'",
    "new Function('a', 'return a * 2')(4)": "8",
    "eval('var ev = 3; ev + 1')": "4",
    "process.versions.node.split('.')[0]": "'22'",
}


async def test_the_value_is_what_the_last_expression_gives(node):
    for code, expected in VALUES.items():
        outcome = await node(code)
        assert (outcome.status, outcome.stderr, outcome.kernel == "lost") == ("ok", "", False), (code, outcome)
        text = outcome.results[0].data["text/plain"] if outcome.results else None
        assert text == expected, code


async def test_modules_are_imported_in_every_way(node):
    workspace = node.sandbox.workspace
    (workspace / "local.mjs").write_text(
        "export default 'd'; export const named = 'n'; export const url = import.meta.url;"
    )
    (workspace / "local.cjs").write_text("module.exports = {common: 1}; ")
    (workspace / "data.json").write_text('{"j": 1}')
    for name, kind in (("esm-package", "module"), ("cjs-package", "commonjs")):
        package = workspace / "node_modules" / name
        package.mkdir(parents=True)
        (package / "package.json").write_text(json.dumps({"name": name, "type": kind, "main": "index.js"}))
    (workspace / "node_modules/esm-package/index.js").write_text("export const esm = 'e'; export default () => 'def'")
    (workspace / "node_modules/cjs-package/index.js").write_text("exports.cjs = 'c'")
    rows = {
        "import d, {named as n} from './local.mjs'; [d, n]": "[ 'd', 'n' ]",
        "import * as all from './local.mjs'; [all.default, all.named, d]": "[ 'd', 'n', 'd' ]",
        "import both, * as ns from './local.mjs'\n[both, ns.named]": "[ 'd', 'n' ]",
        "import './local.mjs'": None,
        "import {esm} from 'esm-package'; import def from 'esm-package'; [esm, def()]": "[ 'e', 'def' ]",
        "import {cjs} from 'cjs-package'; import whole from 'cjs-package'; [cjs, whole.cjs]": "[ 'c', 'c' ]",
        "import data from './data.json' with {type: 'json'}; data.j": "1",
        "import fs, {readFileSync} from 'node:fs'; typeof fs.readFileSync + typeof readFileSync": "'functionfunction'",
        "(await import('./local.mjs')).named": "'n'",
        "(await import('node:util')).inspect('x')": "\"'x'\"",
        "import('./local.mjs').then(m => m.default)": "'d'",
        "[require('./local.cjs').common, require('cjs-package').cjs, require('./data.json').j]": "[ 1, 'c', 1 ]",
        "require('esm-package').esm": "'e'",
        "const r = require('module').createRequire(import.meta.url); r('cjs-package').cjs": "'c'",
        "require.resolve('cjs-package').endsWith('node_modules/cjs-package/index.js')": "true",
        "typeof import.meta.resolve('esm-package')": "'string'",
        "export * from './local.mjs'": None,
    }
    for code, expected in rows.items():
        assert await node.value(code) == expected, code
    outcome = await node("import {missing} from './local.mjs'")
    assert outcome.error.value == "The requested module './local.mjs' does not provide an export named 'missing'"
    outcome = await node("import 'not-installed'")
    assert (outcome.error.name, outcome.stdout) == ("Error", "")
    assert outcome.error.value.startswith("Cannot find package 'not-installed'")


async def test_modules_are_looked_for_where_the_cell_is(node):
    deeper = node.sandbox.workspace / "deeper"
    deeper.mkdir()
    (deeper / "here.cjs").write_text("module.exports = 'here'")
    (deeper / "here.mjs").write_text("export default 'here too'")
    await node("process.chdir('deeper')")
    assert await node.value("[require('./here.cjs'), (await import('./here.mjs')).default]") == "[ 'here', 'here too' ]"
    assert await node.value("process.cwd().endsWith('/deeper')") == "true"


ERRORS = {
    "null.x": ("TypeError", "Cannot read properties of null (reading 'x')"),
    "undefinedName": ("ReferenceError", "undefinedName is not defined"),
    "class MyError extends Error { name = 'MyError' }; throw new MyError('mine')": ("MyError", "mine"),
    "await Promise.reject(new RangeError('later'))": ("RangeError", "later"),
    "Promise.reject(new RangeError('last'))": ("RangeError", "last"),
    "throw 5": ("Number", "5"),
    "throw 'text'": ("String", "'text'"),
    "throw null": ("null", "null"),
    "throw undefined": ("undefined", "undefined"),
    "await Promise.reject()": ("undefined", "undefined"),
    "throw {a: 1}": ("Object", "{ a: 1 }"),
    "throw new Proxy({}, {get() { throw 1 }, getPrototypeOf() { throw 2 }})": ("Error", None),
    "throw {toString() { throw 1 }, get message() { throw 2 }}": ("Object", None),
    "const e = new Error(); Object.defineProperty(e, 'message', {get() { throw 1 }}); throw e": ("Error", None),
    "let z = ;": ("SyntaxError", "Unexpected token ';'"),
    "foo(": ("SyntaxError", "Unexpected end of input"),
    "let a = 1; let a = 2": ("SyntaxError", "Identifier 'a' has already been declared"),
    "return 5": ("SyntaxError", "Illegal return statement"),
    "await 1; let = (": ("SyntaxError", None),
    "import {a} from": ("SyntaxError", None),
    "const x": ("SyntaxError", "Missing initializer in const declaration"),
    "'use strict'; undeclared = 1": ("ReferenceError", "undeclared is not defined"),
    "function r(n) { return r(n + 1) }; r(0)": ("RangeError", "Maximum call stack size exceeded"),
    "throw new Error('x'.repeat(10 ** 7))": ("Error", None),
    "({[Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('broken') }})": ("Error", "broken"),
    "({get then() { throw new Error('then') }})": ("Error", "then"),
    "({[Symbol.for('Jupyter.display')]() { throw new Error('own') }})": ("Error", "own"),
    "display.png()": ("TypeError", None),
    "display.html('x'.repeat(17 * 2 ** 20))": ("RangeError", None),
    "throw new AggregateError([new Error('one')], 'several')": ("AggregateError", "several"),
    "require('./nothing')": ("Error", None),
    "throw new Error('\\ud800')": ("Error", "\ufffd"),
}


async def test_every_error_is_told_once_and_the_kernel_goes_on(node):
    await node("const kept = 1")
    for code, (name, value) in ERRORS.items():
        outcome = await node(code)
        assert (outcome.status, outcome.exit_code, outcome.kernel) == ("error", 1, "kept"), code
        assert outcome.error.name == name, (code, outcome.error)
        assert value is None or outcome.error.value == value, code
        assert len(outcome.error.value) <= 100_000, code
        assert len(outcome.error.traceback) <= 210, code
        assert outcome.results == [], code
        assert (await node("console.log(kept)")).stdout == "1\n", code


async def test_a_traceback_has_the_places_in_the_cell_and_no_frames_of_ours(node):
    await node("function fail() {\n  const text = 'in f'; throw new Error(text)\n}")
    outcome = await node("let a = 1\nconst b = fail()")
    assert outcome.error.traceback == [
        "Error: in f",
        "    at fail (cell-1.js:2:30)",
        "    at cell-2.js:2:11",
    ]
    assert outcome.stderr == "\n".join(outcome.error.traceback) + "\n"
    outcome = await node("const c = await (async () => {\n  await null\n  fail()\n})()")
    assert outcome.error.traceback == [
        "Error: in f",
        "    at fail (cell-1.js:2:30)",
        "    at cell-3.js:3:3",
        "    at async cell-3.js:1:11",
    ]
    outcome = await node(
        "const error = new Error('o', {cause: new TypeError('i')})\nconsole.log(error.stack); throw error"
    )
    assert outcome.stdout == "Error: o\n    at cell-4.js:1:15\n"
    assert outcome.error.traceback == [
        "Error: o",
        "    at cell-4.js:1:15 {",
        "  [cause]: TypeError: i",
        "      at cell-4.js:1:38",
        "}",
    ]
    code = "await 1; async function g() { for (;;) { await 2; throw new Error('w') } } await g()"
    outcome = await node(code)
    assert outcome.error.traceback == [
        "Error: w",
        f"    at g (cell-5.js:1:{code.index('new') + 1})",
        f"    at async cell-5.js:1:{code.index('await g') + 1}",
    ]
    outcome = await node("let fine = 1\nlet z = ;")
    assert outcome.error.traceback == [
        "cell-6.js:2",
        "let z = ;",
        "        ^",
        "",
        "SyntaxError: Unexpected token ';'",
    ]


async def test_a_trace_has_its_text_and_the_places_in_the_cell(node):
    outcome = await node("function f() {\n  console.trace('at %d', 1) }\nf()")
    assert outcome.stderr == "Trace: at 1\n    at f (cell-1.js:2:11)\n    at cell-1.js:3:1\n"
    outcome = await node("class Own extends Error { toString() { return 'mine' } }; console.log(new Own('o').stack)")
    assert outcome.stdout.splitlines()[0] == "Error: o"


async def test_rich_values_and_displays(node):
    outcome = await node(
        "const png = Buffer.from('89504e470d0a1a0a00', 'hex')\n"
        "display.html('<b>1</b>')\n"
        "const shown = display.markdown('first', {display_id: 'd'})\n"
        "display.json({a: NaN, b: [1, '\\ud800']})\n"
        "display.svg('<svg/>'); display.png(png); display(png); display({a: 1})\n"
        "shown.update('second');\n"
        "[{a: 1}, 'x', null]"
    )
    kinds = [(entry.type, *sorted(set(entry.data) | set(entry.json))) for entry in outcome.results]
    assert kinds == [
        ("display", "text/html", "text/plain"),
        ("display", "text/markdown", "text/plain"),
        ("display", "application/json", "text/plain"),
        ("display", "image/svg+xml", "text/plain"),
        ("display", "image/png", "text/plain"),
        ("display", "image/png", "text/plain"),
        ("display", "application/json", "text/plain"),
        ("result", "application/json", "text/plain"),
    ]
    assert (outcome.results[1].display_id, outcome.results[1].data["text/markdown"]) == ("d", "second")
    assert json.loads(outcome.results[2].json["application/json"]) == {"a": None, "b": [1, "\ufffd"]}
    assert outcome.results[4].data["image/png"] == outcome.results[5].data["image/png"] == "iVBORw0KGgoA"
    assert json.loads(outcome.results[7].json["application/json"]) == [{"a": 1}, "x", None]
    later = await node("shown.update('third')")
    assert [(entry.type, entry.display_id, entry.data["text/markdown"]) for entry in later.results] == [
        ("update", "d", "third")
    ]
    again = await node("display.update('d', 4)")
    assert [(entry.type, entry.data["text/plain"]) for entry in again.results] == [("update", "4")]
    own = await node("({[Symbol.for('Jupyter.display')]: async () => ({'text/html': '<i>own</i>'})})")
    assert [(entry.type, entry.data) for entry in own.results] == [("result", {"text/html": "<i>own</i>"})]
    cleared = await node("display(1); display.clear(); display(2); display.clear({wait: true}); display(3)")
    assert [entry.data["text/plain"] for entry in cleared.results] == ["3"]


NO_JSON = [
    "new Date(0)",
    "[undefined]",
    "[() => 1]",
    "[NaN]",
    "[1,,2]",
    "new (class A { a = 1 })",
    "[10n]",
    "{get a() { return 1 }}",
]


async def test_json_is_only_of_what_it_tells_without_loss(node):
    for code in NO_JSON:
        outcome = await node(code)
        assert [list(entry.data) + list(entry.json) for entry in outcome.results] == [["text/plain"]], code


async def test_what_is_nested_too_deeply_is_an_error_and_harms_nothing(node):
    await node("function nested(depth) { let all = 1; for (let i = 0; i < depth; i++) all = [all]; return all }")
    shown = await node("display.json(nested(299))")
    assert shown.results[0].json["application/json"] == "[" * 299 + "1" + "]" * 299
    for depth in (301, 970, 3000, 100_000):
        outcome = await node(f"display.json(nested({depth}))")
        assert (outcome.status, outcome.results, outcome.error.name) == ("error", [], "RangeError"), depth
        outcome = await node(
            f"({{[Symbol.for('Jupyter.display')]: () => ({{'a/json': nested({depth}), 'text/plain': 'p'}})}})"
        )
        if depth < 100_000:
            assert [(entry.data, entry.json) for entry in outcome.results] == [({"text/plain": "p"}, {})], depth
    assert (await node("5")).results[0].data["text/plain"] == "5"


async def test_text_that_is_nested_too_deeply_does_not_end_typescript(node):
    for _ in range(3):
        for before in ("let x = ", "let x: any = "):
            outcome = await node(before + "[" * 20_000 + "]" * 20_000)
            assert outcome.error.name in ("RangeError", "SyntaxError")  # as the stack is large or small for it
    assert (await node("enum E { A = 7 }; E.A")).results[0].data["text/plain"] == "7"


async def test_a_large_value_is_cut_or_named_and_harms_nothing(node):
    limits = OutputLimits(text=1000, results=1000, spill=0)
    outcome = await node("'y'.repeat(2_000_000)", limits=limits)
    assert [(entry.type, entry.mime) for entry in outcome.results] == [("omitted", "text/plain")]
    outcome = await node("({rows: Array.from({length: 300_000}, (_, i) => ({i}))})")
    assert list(outcome.results[0].json) == []
    assert await node.value("1 + 1") == "2"


async def test_environment_and_directory_are_of_one_execution(node):
    (node.sandbox.workspace / "sub").mkdir()
    code = "[process.env.CB_A, path.basename(process.cwd())]"
    assert await node.value(code, env={"CB_A": "1"}, cwd="sub") == "[ '1', 'sub' ]"
    assert await node.value(code) == "[ undefined, 'w' ]"
    assert await node.value("process.chdir('/'); 1", cwd="sub") == "1"
    assert await node.value("process.cwd()") == "'/'"
    outcome = await node("await new Promise(r => setTimeout(r, 20)); process.env.CB_A", env={"CB_A": "2"})
    assert outcome.results[0].data["text/plain"] == "'2'"
    assert await node.value("process.env.CB_A") is None
    secret = "Object.keys(process.env).filter(name => name.startsWith('CELLBOX'))"
    assert await node.value(secret) == "[]"


STDIN = {
    "fs.readFileSync(0, 'utf8')": "'one\\ntwo\\n'",
    "const lines = []; for await (const line of readline.createInterface({input: process.stdin})) lines.push(line); lines": (
        "[ 'one', 'two' ]"
    ),
    "let all = ''; process.stdin.setEncoding('utf8'); for await (const part of process.stdin) all += part; all": (
        "'one\\ntwo\\n'"
    ),
    "require('child_process').execSync('cat', {stdio: [0, 'pipe', 2]}).toString()": "'one\\ntwo\\n'",
}


async def test_standard_input_is_what_was_given_or_at_its_end(node):
    for code, expected in STDIN.items():
        assert await node.value(code, stdin="one\ntwo\n") == expected, code
        assert await node.value(code, stdin="one\ntwo\n") == expected, code
        assert await node.value(code) in ("''", "[]"), code


async def test_a_session_parses_and_reshapes_a_json_file(node):
    orders = [
        {
            "id": n,
            "customer": {"name": f"c{n % 3}"},
            "lines": [{"sku": "a", "price": n * 1.5}, {"sku": "b", "price": 2}],
        }
        for n in range(1, 101)
    ]
    (node.sandbox.workspace / "orders.json").write_text(json.dumps(orders))
    assert await node.value("const orders = JSON.parse(fs.readFileSync('orders.json', 'utf8')); orders.length") == "100"
    await node(
        "const byCustomer = Object.groupBy(orders, ({customer}) => customer.name)\n"
        "const total = (order) => order.lines.reduce((sum, {price}) => sum + price, 0)"
    )
    summary = await node(
        "const summary = Object.entries(byCustomer).map(([name, all]) => ({name, orders: all.length, "
        "total: all.map(total).reduce((a, b) => a + b)})).sort((a, b) => a.name.localeCompare(b.name)); summary"
    )
    expected = [
        {
            "name": f"c{c}",
            "orders": len([n for n in range(1, 101) if n % 3 == c]),
            "total": sum(n * 1.5 + 2 for n in range(1, 101) if n % 3 == c),
        }
        for c in range(3)
    ]
    assert json.loads(summary.results[0].json["application/json"]) == expected
    await node("import {writeFile} from 'node:fs/promises'\nawait writeFile('summary.json', JSON.stringify(summary))")
    assert json.loads((node.sandbox.workspace / "summary.json").read_text()) == expected
