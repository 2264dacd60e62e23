// What went wrong in a cell, in words: as Node itself prints it, of bounded length, without colours and without our own frames.
//
// `installTraces` has the frames right wherever a stack is looked at, also by the cell: those that led from this program to the
// cell are left out, and columns are those of its text.
'use strict';

const { inspect, types } = require('node:util');

const { Error } = globalThis; // as it was before any cell
const errorToString = Error.prototype.toString; // also for what is no error: `console.trace` has the trace of an object
const MAX_LINES = 200;
const MAX_LINE = 2000;
const MAX_VALUE = 100_000;
const CELL_FRAME = /(cell-\d+\.js):(\d+):(\d+)/;
const OURS = __dirname;

class KeyboardInterrupt extends Error {
  constructor() {
    super('');
    this.name = 'KeyboardInterrupt';
    this.stack = 'KeyboardInterrupt';
  }
}

/** `placeOf(file, line, column)`: the column in the text of a cell for one in what was run; null for what is not of the cell. */
function installTraces(placeOf) {
  Error.prepareStackTrace = (error, sites) => {
    let head;
    try {
      head = errorToString.call(error);
    } catch {
      head = 'Error';
    }
    const frames = sites.map((site) => placed(String(site), placeOf));
    const last = frames.findLastIndex((frame) => frame !== null && CELL_FRAME.test(frame));
    const ours = frames.findLastIndex((frame) => frame?.includes(OURS));
    const shown = (ours > last ? frames.slice(0, last + 1) : frames).filter((frame) => frame !== null && !frame.includes(OURS));
    return [head, ...shown].join('\n    at ');
  };
}

function placed(frame, placeOf) {
  const found = CELL_FRAME.exec(frame);
  if (found === null) return frame;
  const [text, file, line, column] = found;
  const place = placeOf(file, Number(line), Number(column));
  return place === null ? null : frame.replace(text, `${file}:${line}:${place}`);
}

/** Return name, value and traceback of whatever was thrown; never throws. */
function describe(thrown) {
  return { ename: nameOf(thrown), evalue: valueOf(thrown), traceback: lines(thrown) };
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

function lines(thrown) {
  let text;
  try {
    text = inspect(thrown);
    if (!isError(thrown)) text = `Uncaught ${text}`;
    else if (text === `[${thrown.stack}]`) text = thrown.stack; // one without frames
  } catch {
    text = `${nameOf(thrown)}: ${valueOf(thrown)}`;
  }
  const all = text.split('\n').map((line) => line.slice(0, MAX_LINE));
  if (all.length <= MAX_LINES) return all;
  const half = MAX_LINES / 2;
  return [...all.slice(0, half), `    [... ${all.length - MAX_LINES} lines left out ...]`, ...all.slice(-half)];
}

function isError(value) {
  return value instanceof Error || types.isNativeError(value);
}

module.exports = { KeyboardInterrupt, describe, installTraces };
