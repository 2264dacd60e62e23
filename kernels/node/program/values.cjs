// Values as Jupyter shows them: by kind of content. And `display`, with which a cell shows more than its last value.
'use strict';

const { Buffer } = require('node:buffer');
const { inspect, types } = require('node:util');
const { randomUUID } = require('node:crypto');

const { Set } = globalThis;
const MAX_DISPLAY = 16 * 2 ** 20;
const MAX_JSON_NODES = 100_000;
const MAX_JSON_DEPTH = 100;
const MAX_JSON = 2 ** 20;
const MAX_DEPTH = 300; // of what is shown: readers of JSON give up at some 450, if there is something to put right in it
const JUPYTER = Symbol.for('Jupyter.display');
const IMAGES = [
  ['image/png', [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  ['image/jpeg', [0xff, 0xd8, 0xff]],
  ['image/gif', [0x47, 0x49, 0x46, 0x38]],
];
const { parse, stringify } = JSON;

/** The kinds of `value`: its own if it has a `Symbol.for("Jupyter.display")` method (then maybe a promise), else what it is. */
function bundle(value) {
  if (typeof value?.[JUPYTER] === 'function') return value[JUPYTER]();
  const image = imageOf(value);
  if (image !== null) return { ...image, 'text/plain': inspect(value) };
  const json = isPlain(value) ? stringify(value) : undefined;
  const text = inspect(value, { colors: false, depth: json === undefined ? 2 : 4, maxStringLength: MAX_JSON });
  if (json === undefined || json.length > MAX_JSON) return { 'text/plain': text };
  return { 'application/json': parse(json), 'text/plain': text };
}

function imageOf(value) {
  if (!types.isUint8Array(value)) return null;
  const found = IMAGES.find(([, magic]) => magic.every((byte, at) => value[at] === byte));
  return found === undefined ? null : { [found[0]]: base64(value) };
}

/** Whether `value` is an object or array that JSON tells without loss, and not too large to look through. */
function isPlain(value) {
  let nodes = 0;
  const above = new Set();
  const plain = (item) => {
    if (typeof item === 'number') return Number.isFinite(item);
    if (item === null || typeof item === 'string' || typeof item === 'boolean') return true;
    if (typeof item !== 'object' || types.isProxy(item) || above.has(item) || above.size >= MAX_JSON_DEPTH) return false;
    const prototype = Object.getPrototypeOf(item);
    if (prototype !== Object.prototype && prototype !== Array.prototype && prototype !== null) return false;
    if (typeof item.toJSON === 'function') return false;
    above.add(item);
    const keys = Object.keys(item);
    nodes += keys.length;
    const fits = nodes <= MAX_JSON_NODES && (!Array.isArray(item) || keys.length === item.length);
    const all = fits && keys.every((key) => 'value' in Object.getOwnPropertyDescriptor(item, key) && plain(item[key]));
    above.delete(item);
    return all;
  };
  return typeof value === 'object' && value !== null && plain(value);
}

function base64(value) {
  if (types.isUint8Array(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64');
  if (typeof value !== 'string') throw new TypeError('display: an image is bytes, or text in base64');
  return value.replace(/^data:[^,]*,/, '');
}

const KINDS = {
  html: ['text/html', String],
  markdown: ['text/markdown', String],
  svg: ['image/svg+xml', String],
  latex: ['text/latex', String],
  json: ['application/json', (value) => parse(stringify(value))],
  png: ['image/png', base64],
  jpeg: ['image/jpeg', base64],
};

/** What `display` gives back for a `display_id`, to replace what it showed. Never a result of a cell itself. */
class Display {
  constructor(id, show) {
    this.display_id = id;
    Object.defineProperty(this, 'show', { value: show });
  }

  update(value) {
    return this.show(value, { display_id: this.display_id, update: true });
  }
}

/**
 * Make `display`. `send({data, metadata, display_id, update})` shows something; `clear(wait)` takes back what the cell showed.
 *
 * `display(value)` and `display.html(text)`, `.png(bytes)`, … take `{display_id, metadata, update}`; a `display_id` of `true` is
 * made up. With one they return a `Display`, or a promise of it where the value makes its bundle asynchronously.
 */
function makeDisplay(send, clear) {
  const shows = (toBundle) => {
    const show = (value, { display_id: wanted, metadata = {}, update = false } = {}) => {
      const id = wanted === true ? randomUUID() : (wanted ?? null);
      const put = (data) => {
        send(checked({ data, metadata, display_id: id === null ? null : String(id), update: !!update }));
        return id === null ? undefined : new Display(String(id), show);
      };
      const data = toBundle(value);
      return typeof data?.then === 'function' ? data.then(put) : put(data);
    };
    return show;
  };
  const display = shows(bundle);
  for (const [name, [kind, convert]] of Object.entries(KINDS)) {
    display[name] = shows((value) => ({ [kind]: convert(value), 'text/plain': `[${kind}]` }));
  }
  display.mime = shows((data) => data);
  display.update = (id, value, options = {}) => display(value, { ...options, display_id: id, update: true });
  display.clear = ({ wait = false } = {}) => clear(!!wait);
  return display;
}

function checked(message) {
  const { data } = message;
  if (typeof data !== 'object' || data === null) throw new TypeError('display: not an object of kinds and their contents');
  const size = sizeOf(data);
  if (size > MAX_DISPLAY) throw new RangeError(`display: ${size} bytes are more than ${MAX_DISPLAY}`);
  if (isDeep(data)) throw new RangeError(`display: nested more than ${MAX_DEPTH} levels deep`);
  return message;
}

/** Whether `value`, which has no cycle, is nested too deeply to be read by others. */
function isDeep(value, left = MAX_DEPTH) {
  if (typeof value !== 'object' || value === null) return false;
  return left === 0 || Object.values(value).some((item) => isDeep(item, left - 1));
}

/** Characters that a value has on its way to the client. */
const sizeOf = (value) => stringify(value)?.length ?? 0;

module.exports = { bundle, isDeep, makeDisplay, sizeOf, Display, MAX_DISPLAY };
