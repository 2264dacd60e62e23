// The program in the Node process of the kernel. Its arguments are three descriptors: of a pipe with requests, of one for
// answers, and of one that tells of interrupts.
//
// A request is a line of JSON; an answer as well, with a line break before it too, so that junk which a cell wrote there spoils
// none. All three are opened anew first, as descriptors that children do not inherit.
'use strict';

const { Buffer } = require('node:buffer');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const process = require('node:process');
const { Cells } = require('./cells.cjs');
const { Output } = require('./output.cjs');
const completion = require('./completion.cjs');
const interrupts = require('./interrupts.cjs');
const { completeness } = require('./rewrite.cjs');

const { writeSync, closeSync } = fs;
const { stringify, parse } = JSON;

const [requests, answers, control] = process.argv.slice(2).map((descriptor, index) => {
  const own = fs.openSync(`/proc/self/fd/${descriptor}`, index === 1 ? 'w' : 'r');
  closeSync(Number(descriptor));
  return own;
});

process.execArgv.length = 0; // of this process, and not of Node processes that a cell starts
process.argv.length = 1;
for (const file of Object.keys(require.cache)) delete require.cache[file];

const cells = new Cells(send);
const serving = {
  hello({ secret, places }) {
    cells.output = new Output(secret, () => cells.owner(), places);
    cells.output.setInput(null);
    interrupts.listen(control, cells, (number) => send({ type: 'settled', number }));
    catchSigint();
    send({ type: 'ready', version: process.versions.node });
  },
  execute: (request) => cells.execute(request),
  complete: ({ code, cursor, question }) => send({ type: 'answer', question, ...completion.complete(code, cursor) }),
  inspect: ({ code, cursor, question }) => send({ type: 'answer', question, text: completion.describe(code, cursor) }),
  is_complete: ({ code, question }) => send({ type: 'answer', question, status: completeness(code) }),
};

function send(message) {
  let bytes = Buffer.from(`\n${stringify(message)}\n`);
  while (bytes.length > 0) bytes = bytes.subarray(writeSync(answers, bytes));
}

/** SIGINT comes to the whole process group. Here it does nothing: a user's own listeners come and go beside this. */
function catchSigint() {
  const { Signal } = process.binding('signal_wrap');
  const signal = new Signal();
  signal.unref();
  signal.onsignal = () => {};
  signal.start(os.constants.signals.SIGINT);
}

function serve(line) {
  const request = parse(line);
  try {
    serving[request.type](request);
  } catch (error) {
    const told = { ename: 'KernelError', evalue: `in the kernel, which a cell may have broken: ${error}`, traceback: [] };
    send({ type: 'done', number: request.number ?? 0, data: null, error: told });
    cells.current = null;
  }
}

// Not through the events of a stream: a cell that is terminated would leave that one in the middle of something.
let pieces = [];
const socket = new net.Socket({
  fd: requests,
  readable: true,
  writable: false,
  onread: {
    buffer: Buffer.alloc(65_536),
    callback(size, buffer) {
      let rest = Buffer.from(buffer.subarray(0, size));
      pieces.push(rest);
      while (rest.includes(10)) {
        const all = Buffer.concat(pieces);
        const end = all.indexOf(10);
        rest = all.subarray(end + 1);
        pieces = [rest]; // before it is served, which may be terminated
        serve(all.subarray(0, end).toString());
      }
      return true;
    },
  },
});
socket.on('end', () => process.exit(0));
socket.resume();
