// Preloaded into `node -` where standard input belongs to the program: Node then reads the program from descriptor 3.
//
// Node reads it through `process.stdin`, so the first life of that is a stream of the code; at its end the real one is
// put in its place, not yet opened. What else tells that this file was here goes as well. Workers preload it too, and have an
// input of their own.
'use strict';

if (require('node:worker_threads').isMainThread) {
  const fs = require('node:fs');
  const { Readable } = require('node:stream');

  const original = Object.getOwnPropertyDescriptor(process, 'stdin');
  const code = Readable.from([fs.readFileSync(3)], { objectMode: false });
  fs.closeSync(3);
  code.once('end', () => Object.defineProperty(process, 'stdin', original));
  Object.defineProperty(process, 'stdin', { ...original, get: () => code });
}

process.execArgv.splice(0, 2);
delete require.cache[__filename];
