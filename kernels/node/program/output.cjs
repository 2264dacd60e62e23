// Standard output and error of this process, and where its text goes.
//
// Text of the program's own streams goes through descriptor 1 in marks that say which execution wrote it:
//
//     ESC ] cellbox ; SECRET ; t ; EXECUTION ; STREAM ; BYTES BEL  and that many bytes of its text; STREAM is 1 or 2
//
// and, for a reader that wants to know their order, where a display belongs:
//
//     ESC ] cellbox ; SECRET ; d ; NUMBER BEL
//
// Each is one write of at most 4096 bytes, which a pipe keeps whole. Bytes between marks are of children and native code.
//
// Promises: a write is done when it returns, so nothing is lost at `process.exit()` and the order is that of the code; what a
// cell or a child does to descriptors 0, 1 and 2 harms no later cell.
'use strict';

const { Buffer } = require('node:buffer');
const fs = require('node:fs');
const process = require('node:process');
const { Writable } = require('node:stream');
const { setImmediate } = require('node:timers');

const LONGEST = 4000;
const { writeSync, writevSync, readSync, fstatSync, openSync, closeSync } = fs;

class Output {
  /** `owner()`: the number of the execution that the running code belongs to. `after`: whether displays are marked, once
   *  they are sent. */
  constructor(secret, owner, after) {
    this.owner = owner;
    this.after = after;
    this.ordered = false; // whether they are marked before they are sent
    this.prefix = `\x1b]cellbox;${secret};`;
    // Opened anew: closed on exec, and blocking whatever children do to the descriptors that they inherit.
    this.pipes = [1, 2].map((descriptor) => openSync(`/proc/self/fd/${descriptor}`, 'w'));
    this.sound = [0, 1, 2].map((descriptor) => new Sound(descriptor));
    this.streams = { stdout: new Stream(this, 1), stderr: new Stream(this, 2) };
    this.takeOver();
  }

  /** Write text or bytes of the running code. */
  write(stream, data) {
    const head = `${this.prefix}t;${this.owner()};${stream};`;
    const [pipe] = this.pipes;
    if (typeof data === 'string' && data.length * 3 <= LONGEST) {
      if (data !== '') writeSync(pipe, `${head}${Buffer.byteLength(data)}\x07${data}`);
      return;
    }
    const bytes = typeof data === 'string' ? Buffer.from(data) : data;
    for (let start = 0; start < bytes.length; ) {
      const end = cut(bytes, start);
      writevSync(pipe, [Buffer.from(`${head}${end - start}\x07`), bytes.subarray(start, end)]);
      start = end;
    }
  }

  /** Have a display sent, and tell that it has its place here. */
  place(number, send) {
    const mark = `${this.prefix}d;${number}\x07`;
    if (this.ordered && !this.after) writeSync(this.pipes[0], mark);
    send();
    if (this.after) writeSync(this.pipes[0], mark);
  }

  /** Put right what a cell or its children did to the streams. */
  restore() {
    [1, 2].forEach((descriptor, index) => {
      if (this.sound[descriptor].isAsBefore()) return;
      reopen(descriptor, `/proc/self/fd/${this.pipes[index]}`, 'w');
      this.sound[descriptor].note();
    });
    this.takeOver();
  }

  /** Make `file` standard input; null for none. */
  setInput(file) {
    if (file === null && !this.inputUsed && this.sound[0].isAsBefore()) return;
    reopen(0, file ?? '/dev/null', 'r');
    if (file === null) this.sound[0].note();
    this.inputUsed = file !== null;
    let stream = null;
    const get = () => {
      this.inputUsed = true;
      stream ??= inputStream();
      return stream;
    };
    Object.defineProperty(process, 'stdin', { configurable: true, enumerable: true, get });
  }

  takeOver() {
    for (const [name, stream] of Object.entries(this.streams)) {
      Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
    }
  }
}

/** Whether a descriptor is open for the same file in the same way as when that was noted: one system call in most cases. */
class Sound {
  constructor(descriptor) {
    this.descriptor = descriptor;
    this.text = Buffer.alloc(1024);
    this.info = openSync(`/proc/self/fdinfo/${descriptor}`, 'r'); // tells of the number, whatever is open there
    this.note();
  }

  note() {
    this.noted = this.look();
  }

  isAsBefore() {
    return this.noted !== null && this.look() === this.noted;
  }

  /** Position, flags and what older systems do not tell there: the number of the file. */
  look() {
    try {
      const told = this.text.latin1Slice(0, readSync(this.info, this.text, 0, this.text.length, 0));
      return /^ino:/m.test(told) ? told : `${told}${fstatSync(this.descriptor).ino}`;
    } catch {
      return null;
    }
  }
}

/** One stream, written through. Never closed: the next cell prints too. */
class Stream extends Writable {
  constructor(output, descriptor) {
    super({ decodeStrings: false, emitClose: false, autoDestroy: false });
    this.fd = descriptor;
    this._type = 'pipe';
    this._isStdio = true;
    this.put = (data) => output.write(descriptor, data);
  }

  write(chunk, encoding, callback) {
    const done = typeof encoding === 'function' ? encoding : callback;
    if (typeof chunk === 'string') {
      const plain = typeof encoding !== 'string' || encoding === 'utf8' || encoding === 'utf-8';
      this.put(plain ? chunk : Buffer.from(chunk, encoding));
    } else if (ArrayBuffer.isView(chunk)) {
      this.put(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength));
    } else {
      return super.write(chunk, encoding, callback); // throws as Node does
    }
    if (typeof done === 'function') process.nextTick(done, null);
    return true;
  }

  _write(chunk, encoding, callback) {
    this.write(chunk, encoding);
    callback();
  }

  end(chunk, encoding, callback) {
    const last = [chunk, encoding, callback];
    const done = last.find((value) => typeof value === 'function');
    if (chunk !== undefined && chunk !== null && chunk !== done) this.write(chunk, encoding === done ? 'utf8' : encoding);
    if (done) process.nextTick(done);
    return this;
  }

  destroy() {
    return this;
  }
}

const READING = { open: fs.open, close: (descriptor, callback) => process.nextTick(callback, null) };

function inputStream() {
  const asked = fstatSync(0).isFIFO();
  const read = (...call) => (asked ? whenWanted(stream, call) : fs.read(...call));
  const stream = new fs.ReadStream(null, { fd: 0, autoClose: false, fs: { ...READING, read } });
  return stream;
}

/** Read, but not before somebody wants it: streams read ahead, and somebody is asked for what is read. */
function whenWanted(stream, call) {
  setImmediate(() => {
    if (stream.readableFlowing || stream.listenerCount('readable') > 0) fs.read(...call);
    else once(stream, ['resume', 'newListener'], () => whenWanted(stream, call));
  });
}

function once(stream, events, listener) {
  const called = () => {
    events.forEach((event) => stream.off(event, called));
    listener();
  };
  events.forEach((event) => stream.on(event, called));
}

/** Where a piece of `bytes` from `start` on ends: between characters where it is UTF-8. */
function cut(bytes, start) {
  const end = Math.min(start + LONGEST, bytes.length);
  if (end === bytes.length) return end;
  let at = end;
  while (at > end - 4 && (bytes[at] & 0xc0) === 0x80) at -= 1;
  return (bytes[at] & 0xc0) === 0x80 ? end : at;
}

/** Open `path` as `descriptor`: the lowest free one is what opening gives. */
function reopen(descriptor, path, flags) {
  try {
    closeSync(descriptor);
  } catch {
    // It was closed already.
  }
  const others = [];
  for (;;) {
    const opened = openSync(path, flags);
    if (opened === descriptor) break;
    others.push(opened);
    if (opened > descriptor) break; // taken by another thread in between
  }
  others.forEach((other) => closeSync(other));
}

module.exports = { Output };
