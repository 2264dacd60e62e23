// Preloaded into every `node -`: standard output and error block.
//
// Node writes to pipes without waiting, so `process.exit()` right after much output loses what the pipe had no room for, and a
// crash likewise. The streams are still made at their first use. What else tells that this file was here goes.
'use strict';

if (require('node:worker_threads').isMainThread) {
  for (const name of ['stdout', 'stderr']) {
    const original = Object.getOwnPropertyDescriptor(process, name);
    const get = () => {
      Object.defineProperty(process, name, original);
      const stream = process[name];
      stream._handle?.setBlocking?.(true);
      return stream;
    };
    Object.defineProperty(process, name, { ...original, get });
  }
}

process.execArgv.splice(0, 2);
delete require.cache[__filename];
