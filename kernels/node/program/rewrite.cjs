// From the text of a cell to scripts that leave its names behind for later cells.
//
// Names declared at the top level become properties of the global object, so that any cell may declare them again:
// `const a = 1` becomes `void (a = 1)`, `class A {}` becomes `void (A = class A {})`, a static import an `await import()`.
// A cell that awaits at the top level is put into an async function, and its function declarations run before that as a script
// of their own. No line is ever moved, and where text was inserted is known, so positions in errors can be put right.
//
// Promises: text that is no JavaScript is tried as TypeScript, and if it is neither, the error is V8's own where that tells more.
// Leaves to its user: defining the names beforehand, and running the scripts.
'use strict';

const vm = require('node:vm');
const { stripTypeScriptTypes } = require('node:module');
const acorn = require('acorn');
const { awaitsIn, children, isFunction, isLoop, namesOf } = require('./syntax.cjs');

const { RangeError, Set, SyntaxError } = globalThis; // as they were before any cell
const OPTIONS = {
  ecmaVersion: 'latest',
  sourceType: 'script',
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
};
const HELPER = '__cellbox';
const MOST_NESTED = 200; // brackets: what strips types overflows at twice as many, and after that strips nothing any more

/**
 * What `code` runs as. `scripts`: their texts, to be run in this order; the last one gives the value. `names`: to be properties
 * of the global object before that. `awaits`: the last script gives a promise of `{value}`. `shows`: whether there is a value to
 * show. `original(line, column)`: the column in `code` of a column in the scripts, both from 1; null: in no line of it.
 * Throws SyntaxError.
 */
function rewrite(code, file) {
  const source = code.startsWith('#!') ? `//${code.slice(2)}` : code;
  const object = asObject(source);
  if (object !== null) {
    return { scripts: [`(${object}\n)`], names: [], awaits: false, shows: true, original: (line, column) => column };
  }
  const [text, tree] = parsed(source, file);
  const cell = new Cell(text, tree);
  return cell.result();
}

/** Whether more lines may make a program of `code`: 'complete', 'incomplete' or 'invalid'. */
function completeness(code) {
  try {
    parsed(code, 'cell.js');
    return 'complete';
  } catch {
    try {
      acorn.parse(code, OPTIONS);
      return 'invalid';
    } catch (error) {
      const atEnd = error.pos >= code.trimEnd().length || /^Unterminated (template|comment)/.test(error.message);
      return atEnd ? 'incomplete' : 'invalid';
    }
  }
}

/** The text of a cell that is nothing but an object, which as a statement would be a block; else null. */
function asObject(source) {
  const text = source.trim();
  if (!text.startsWith('{') || !text.endsWith('}')) return null;
  try {
    const node = acorn.parseExpressionAt(`(${source}\n)`, 0, { ecmaVersion: 'latest' });
    return node.type === 'ObjectExpression' && node.end <= source.length + 1 && !awaitsIn(node) ? source : null;
  } catch {
    return null;
  }
}

function parsed(source, file) {
  let first;
  try {
    return [source, acorn.parse(source, OPTIONS)];
  } catch (error) {
    first = error;
  }
  if (first instanceof RangeError || isNested(source)) throw syntaxError(source, file, first);
  for (const mode of ['strip', 'transform']) {
    try {
      const text = stripTypeScriptTypes(source, { mode });
      return [text, acorn.parse(text, OPTIONS)];
    } catch {
      continue;
    }
  }
  throw syntaxError(source, file, first);
}

/** Whether there are more brackets within each other than what strips types can take. */
function isNested(source) {
  let depth = 0;
  for (const [bracket] of source.matchAll(/[()[\]{}]/g)) {
    depth += '([{'.includes(bracket) ? 1 : -1;
    if (depth > MOST_NESTED) return true;
  }
  return false;
}

/** V8's own words for what is wrong, unless they are about what is allowed here. */
function syntaxError(source, file, first) {
  try {
    new vm.Script(source, { filename: file });
  } catch (error) {
    if (!/import statement|'import.meta'|await is only valid|^Unexpected token 'export'/.test(error.message)) return error;
  }
  if (first instanceof RangeError) return first;
  const message = first.message.replace(/ \(\d+:\d+\)$/, '');
  const error = new SyntaxError(message);
  const line = source.split('\n')[first.loc.line - 1];
  error.stack = `${file}:${first.loc.line}\n${line}\n${' '.repeat(first.loc.column)}^\n\nSyntaxError: ${message}`;
  return error;
}

class Cell {
  constructor(text, tree) {
    this.text = text;
    this.tree = tree;
    this.edits = [];
    this.names = new Set();
    this.functions = [];
    this.awaits = false;
  }

  result() {
    const body = this.tree.body.filter((statement) => statement.type !== 'EmptyStatement');
    const last = body.at(-1);
    for (const statement of body) this.top(statement);
    const shows = last?.type === 'ExpressionStatement';
    if (this.awaits) {
      this.insert(0, '(async () => {', 'start', -1);
      this.insert(this.text.length, '\n})()', 'end', -1);
      if (shows) {
        const end = this.text[last.end - 1] === ';' ? last.end - 1 : last.end;
        this.insert(last.start, 'return {value: (', 'start', 0);
        this.insert(end, ')};', 'end', 0);
      }
    }
    const [script, moved] = this.applied();
    const scripts = this.awaits && this.functions.length > 0 ? this.parted(script) : [script];
    const lines = this.text.split('\n').length;
    const original = (line, column) => (line > lines ? null : originalColumn(script, moved, line, column));
    return { scripts, names: [...this.names], awaits: this.awaits, shows, original };
  }

  // --- statements at the top level

  top(node) {
    switch (node.type) {
      case 'ImportDeclaration':
        return this.import(node);
      case 'ExportNamedDeclaration':
      case 'ExportDefaultDeclaration':
      case 'ExportAllDeclaration':
        return this.export(node);
      case 'FunctionDeclaration':
        this.functions.push(node);
        return this.inner(node, 1);
      case 'ClassDeclaration':
        return this.class(node, node.start);
      case 'VariableDeclaration':
        return this.declaration(node, 1, node.start);
      default:
        return this.walk(node, 1);
    }
  }

  /** `let`, `const` or `var`, from `start` on (an `export` before it goes), not in the head of a loop. */
  declaration(node, depth, start) {
    this.bind(node);
    this.replace(start, node.start + node.kind.length, 'void (', depth);
    for (const { id, init } of node.declarations) {
      this.walk(id, depth + 1);
      if (init !== null) this.walk(init, depth + 1);
      else if (node.kind !== 'var') this.insert(id.end, ' = undefined', 'end', depth + 1);
    }
    this.close(node, ')', depth);
  }

  class(node, start) {
    this.names.add(node.id.name);
    this.replace(start, node.start, `void (${node.id.name} = `, 1);
    this.walk(node, 2);
    this.insert(node.end, ');', 'end', 1);
  }

  import(node) {
    this.awaits = true;
    const attributes = (node.attributes ?? []).map(({ key, value }) => `${this.source(key)}: ${value.raw}`);
    const options = attributes.length > 0 ? `, {with: {${attributes}}}` : '';
    const loaded = `await import(${node.source.raw}${options})`;
    const wanted = [];
    let all = null;
    for (const { type, imported, local } of node.specifiers) {
      this.names.add(local.name);
      if (type === 'ImportNamespaceSpecifier') all = local.name;
      else if (type === 'ImportDefaultSpecifier') wanted.push(['"default"', local.name]);
      else wanted.push([imported.type === 'Literal' ? imported.raw : `"${imported.name}"`, local.name]);
    }
    let module = loaded;
    if (all !== null) module = `(${all} = ${loaded})`;
    if (wanted.length > 0) {
      const names = wanted.map(([name]) => name).join(', ');
      const pattern = wanted.map(([name, local]) => `${name}: ${local}`).join(', ');
      module = `({${pattern}} = ${HELPER}.exports(${module}, [${names}], ${node.source.raw}))`;
    }
    this.replace(node.start, node.end, `void (${module});${lineBreaks(this.source(node))}`, 1);
  }

  export(node) {
    const inner = node.declaration;
    if (node.type === 'ExportAllDeclaration' || (node.source ?? null) !== null) {
      this.awaits = true;
      const text = `void await import(${node.source.raw});${lineBreaks(this.source(node))}`;
      this.replace(node.start, node.end, text, 1);
    } else if (!inner) {
      this.replace(node.start, node.end, `;${lineBreaks(this.source(node))}`, 1);
    } else if (inner.type === 'VariableDeclaration') {
      this.declaration(inner, 1, node.start);
    } else if (inner.type === 'ClassDeclaration' && inner.id) {
      this.class(inner, node.start);
    } else if (inner.type === 'FunctionDeclaration' && inner.id) {
      this.replace(node.start, inner.start, '', 1);
      this.functions.push(inner);
      this.inner(inner, 1);
    } else {
      this.replace(node.start, inner.start, 'void (', 1);
      this.walk(inner, 2);
      this.close(node, ')', 1);
    }
  }

  // --- what is in them

  /** Code that runs with the cell: after an await it goes on unless it was interrupted; its `var`s are global. */
  walk(node, depth) {
    if (isFunction(node)) return this.inner(node, depth);
    switch (node.type) {
      case 'AwaitExpression':
        this.awaits = true;
        this.insert(node.start, `${HELPER}.go(`, 'start', depth);
        this.insert(node.end, ')', 'end', depth);
        break;
      case 'MetaProperty':
        return this.meta(node, depth);
      case 'VariableDeclaration':
        if (node.kind === 'var') return this.declaration(node, depth, node.start);
        break;
      case 'ForStatement':
        if (node.init?.kind === 'var') return this.loop(node, node.init, depth);
        break;
      case 'ForInStatement':
      case 'ForOfStatement':
        if (node.await) {
          this.awaits = true;
          this.guard(node, depth);
        }
        if (node.left.kind === 'var') return this.loop(node, node.left, depth);
        break;
      case 'PropertyDefinition':
      case 'StaticBlock':
        for (const child of children(node)) this.inner(child, depth + 1);
        return undefined;
    }
    for (const child of children(node)) this.walk(child, depth + 1);
    return undefined;
  }

  /** A loop whose head declares with `var`: the keyword goes. */
  loop(node, head, depth) {
    this.bind(head);
    this.replace(head.start, head.declarations[0].start, '', depth + 1);
    for (const child of children(node)) {
      for (const part of child === head ? children(head).flatMap(children) : [child]) this.walk(part, depth + 1);
    }
  }

  /** Code that runs when it is called: loops that await end with the execution that is interrupted. */
  inner(node, depth) {
    if (node.type === 'MetaProperty') return this.meta(node, depth);
    if (isLoop(node) && (node.await || awaitsIn(node))) this.guard(node, depth);
    for (const child of children(node)) this.inner(child, depth + 1);
    return undefined;
  }

  guard(loop, depth) {
    const { body } = loop;
    const check = `globalThis.${HELPER}?.go();`;
    if (body.type === 'BlockStatement') {
      this.insert(body.start + 1, check, 'start', depth);
    } else {
      this.insert(body.start, `{${check}`, 'start', depth);
      this.insert(body.end, '}', 'end', depth);
    }
  }

  meta(node, depth) {
    if (node.meta.name === 'import') this.replace(node.start, node.end, `${HELPER}.meta`, depth);
  }

  bind(declaration) {
    for (const { id } of declaration.declarations) {
      for (const name of namesOf(id)) this.names.add(name);
    }
  }

  // --- text

  source(node) {
    return this.text.slice(node.start, node.end);
  }

  /** Insert at a position. Of several there, ends come before starts, inner ends and outer starts first. */
  insert(at, text, kind, depth) {
    this.edits.push({ at, end: at, text, kind, depth });
  }

  replace(at, end, text, depth) {
    this.edits.push({ at, end, text, kind: 'start', depth });
  }

  /** End a statement: before its semicolon, or with one. */
  close(node, text, depth) {
    const ended = this.text[node.end - 1] === ';';
    this.insert(ended ? node.end - 1 : node.end, ended ? text : `${text};`, 'end', depth);
  }

  /** Return the function declarations alone, and `script` without them, all at the places that they have there. */
  parted(script) {
    const before = (counts) =>
      this.edits.filter(counts).reduce((sum, { at, end, text }) => sum + text.length - (end - at), 0);
    let functions = '';
    let rest = '';
    let done = 0;
    for (const node of this.functions) {
      const start = node.start + before(({ at }) => at <= node.start);
      const end = node.end + before(({ at }) => at < node.end);
      functions += spaces(script.slice(done, start)) + script.slice(start, end);
      rest += script.slice(done, start) + spaces(script.slice(start, end));
      done = end;
    }
    return [functions, rest + script.slice(done)];
  }

  /** Return the text with all edits, and where that was shifted: [offset in it, characters too many]. */
  applied() {
    const sorted = [...this.edits].sort((a, b) => {
      if (a.at !== b.at || a.kind !== b.kind) return a.at - b.at || (a.kind === 'end' ? -1 : 1);
      return a.kind === 'end' ? b.depth - a.depth : a.depth - b.depth;
    });
    const moved = [];
    let result = '';
    let at = 0;
    for (const edit of sorted) {
      result += this.text.slice(at, edit.at) + edit.text;
      at = Math.max(at, edit.end);
      moved.push([result.length, result.length - at]);
    }
    return [result + this.text.slice(at), moved];
  }
}

function originalColumn(script, moved, line, column) {
  let start = 0;
  for (let number = 1; number < line; number += 1) start = script.indexOf('\n', start) + 1;
  const before = (offset) => moved.findLast(([at]) => at <= offset)?.[1] ?? 0;
  const offset = start + column - 1;
  return Math.max(1, column - before(offset) + (start > 0 ? before(start - 1) : 0));
}

const spaces = (text) => text.replace(/[^\n\r\u2028\u2029]/g, ' ');
const lineBreaks = (text) => text.replace(/[^\n]/g, '');

module.exports = { rewrite, completeness, HELPER };
