// Interrupts of the running cell, from a thread of their own, since the main one may be in an endless loop.
//
// The thread reads which execution to interrupt, and asks the main thread. If that answers, no code of the cell runs at the
// moment: what goes on after an await fails then, and a cell that is not over soon is ended. If no answer comes, the code that
// runs is terminated, in whatever callback it is, through a short-lived session of the inspector, and then the main thread is
// asked again. Twice, before the next termination: the first may have met the question instead of the code.
'use strict';

const { writeSync } = require('node:fs');
const process = require('node:process');
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

const ANSWER_MS = 80;
const GENTLY_MS = 60;
const HARD_AFTER = 2;

/** Begin to listen on `descriptor`. `cells.interrupt` is called as said there, `settled(number)` when that one is over. */
function listen(descriptor, cells, settled) {
  const worker = new Worker(__filename, {
    workerData: descriptor,
    execArgv: [],
    env: {},
    stdin: false,
    resourceLimits: { maxYoungGenerationSizeMb: 1, maxOldGenerationSizeMb: 16, codeRangeSizeMb: 0, stackSizeMb: 1 },
  });
  worker.on('message', ({ number, round }) => {
    const over = cells.interrupt(number, round >= HARD_AFTER);
    if (over) settled(number);
    worker.postMessage({ number, round, over });
  });
  worker.on('error', (error) => {
    writeSync(2, `Node cannot be interrupted here, so it ends: ${error}\n`);
    process.exit(1);
  });
  worker.unref();
}

function serve(descriptor) {
  const net = require('node:net');
  const { Session } = require('node:inspector');
  let answered = null;
  let busy = false;

  const ask = (number, round) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, ANSWER_MS, null);
      answered = (answer) => {
        if (answer.round !== round || answer.number !== number) return;
        clearTimeout(timer);
        resolve(answer);
      };
      parentPort.postMessage({ number, round });
    });

  const interrupt = async (number) => {
    let terminated = false;
    for (let round = 0; ; round += 1) {
      const answer = await ask(number, round);
      if (answer?.over) return;
      if (answer !== null) {
        terminated = false;
        await new Promise((resolve) => setTimeout(resolve, GENTLY_MS));
      } else if (terminated) {
        terminated = false;
      } else {
        terminate();
        terminated = true;
      }
    }
  };

  const terminate = () => {
    const session = new Session();
    session.connectToMainThread();
    const close = () => session.disconnect();
    const timer = setTimeout(close, 2 * ANSWER_MS);
    session.post('Runtime.terminateExecution', () => {
      clearTimeout(timer);
      close();
    });
  };

  const waiting = new Set();
  const work = async () => {
    if (busy) return;
    busy = true;
    for (const number of waiting) {
      await interrupt(number);
      waiting.delete(number);
    }
    busy = false;
  };

  parentPort.on('message', (answer) => answered?.(answer));
  new net.Socket({ fd: descriptor, readable: true, writable: false }).on('data', (data) => {
    for (const line of data.toString().trim().split('\n')) waiting.add(Number(line));
    work();
  });
}

if (isMainThread) module.exports = { listen };
else serve(workerData);
