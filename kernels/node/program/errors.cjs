// What went wrong in a cell, in words: as Node itself prints it, of bounded length, without colours and without our own frames.
'use strict';

const { inspect, types } = require('node:util');

const MAX_LINES = 200;
const MAX_LINE = 2000;
const MAX_VALUE = 100_000;
const FRAME = /^\s+at /;
const CELL_FRAME = /\bcell-\d+\.js:(\d+):(\d+)/;

class KeyboardInterrupt extends Error {
  constructor() {
    super('');
    this.name = 'KeyboardInterrupt';
    this.stack = 'KeyboardInterrupt';
  }
}

/**
 * Return name, value and traceback of whatever was thrown; never throws. `column(file, line, column)`: the column in the text of
 * the cell for one in what was run.
 */
function describe(thrown, column) {
  return { ename: nameOf(thrown), evalue: valueOf(thrown), traceback: lines(thrown, column) };
}

function nameOf(thrown) {
  try {
    if (thrown === null || thrown === undefined) return String(thrown);
    const name = isError(thrown) ? thrown.name : Object(thrown).constructor?.name;
    return typeof name === 'string' && name !== '' ? name : 'Error';
  } catch {
    return 'Error';
  }
}

function valueOf(thrown) {
  try {
    const value = isError(thrown) ? thrown.message : inspect(thrown);
    return String(value).slice(0, MAX_VALUE);
  } catch {
    return '<no text: it cannot be shown>';
  }
}

function lines(thrown, column) {
  let text;
  try {
    text = isError(thrown) ? inspect(thrown) : `Uncaught ${inspect(thrown)}`;
  } catch {
    text = `${nameOf(thrown)}: ${valueOf(thrown)}`;
  }
  const kept = withoutOurs(text.split('\n')).map((line) => placed(line, column).slice(0, MAX_LINE));
  const half = MAX_LINES / 2;
  if (kept.length <= MAX_LINES) return kept;
  return [...kept.slice(0, half), `    [... ${kept.length - MAX_LINES} lines left out ...]`, ...kept.slice(-half)];
}

/** Leave out the frames of this program, and what led from it to the cell. */
function withoutOurs(all) {
  const kept = [];
  for (let at = 0; at < all.length; ) {
    let end = at;
    while (end < all.length && FRAME.test(all[end])) end += 1;
    if (end === at) {
      kept.push(all[at]);
      at += 1;
      continue;
    }
    const frames = all.slice(at, end);
    const last = frames.findLastIndex((frame) => CELL_FRAME.test(frame));
    const ours = frames.findLastIndex((frame) => frame.includes(__dirname));
    const shown = (ours > last ? frames.slice(0, last + 1) : frames).filter((frame) => !frame.includes(__dirname));
    kept.push(...shown);
    if (frames.at(-1).endsWith(' {') && shown.at(-1) !== frames.at(-1)) kept[kept.length - 1] += ' {'; // its properties follow
    at = end;
  }
  return kept;
}

function placed(line, column) {
  if (!FRAME.test(line)) return line;
  return line.replace(/(cell-\d+\.js):(\d+):(\d+)/, (_, file, row, old) => `${file}:${row}:${column(file, +row, +old)}`);
}

function isError(value) {
  return value instanceof Error || types.isNativeError(value);
}

module.exports = { KeyboardInterrupt, describe };
