// Runs cells, one at a time, and always says how one ended.
//
// Promises: a cell ends once, with its value or with what was thrown, or with KeyboardInterrupt when it is interrupted, also
// while it awaits what never comes; what it awaited may still come, and its code does not go on then. What belongs to the cell alone
// (variables of the environment, directory, input) is put back at its end.
// Leaves to interrupts.cjs: stopping code that does not come back. Such a stop unwinds through everything here without
// running any `finally`, so whatever has to be done at the end of a cell is done in `finish`, which is then called from outside.
'use strict';

const process = require('node:process');
const vm = require('node:vm');
const { AsyncLocalStorage } = require('node:async_hooks');
const { setImmediate } = require('node:timers');
const { rewrite, HELPER } = require('./rewrite.cjs');
const { KeyboardInterrupt, describe, installTraces } = require('./errors.cjs');
const { Display, MAX_DISPLAY, bundle, isDeep, makeDisplay, sizeOf } = require('./values.cjs');
const names = require('./names.cjs');

const { Map, Promise } = globalThis; // as they were before any cell
const importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
const REMEMBERED = 100; // cells whose text is kept, for columns in errors

class Cells {
  /** `send`: takes messages to the kernel's other process. */
  constructor(send) {
    this.send = send;
    this.output = null;
    this.current = null;
    this.last = null;
    this.places = 0;
    this.early = 0;
    this.stopped = false; // whether any cell ever was: then loops of earlier ones have to be told
    this.owners = new AsyncLocalStorage();
    this.columns = new Map();
    installTraces((file, line, column) => (this.columns.has(file) ? this.columns.get(file)(line, column) : column));
    const display = makeDisplay(
      (shown) => this.tell({ type: 'display', ...shown }),
      (wait) => this.tell({ type: 'clear', wait }),
    );
    const helper = {
      go: (value) => this.go(value),
      exports: checkedExports,
    };
    names.install({ helperName: HELPER, helper, display, cellFile: () => this.last?.file ?? 'cell.js' });
    process.setUncaughtExceptionCaptureCallback((error) => this.uncaught(error));
  }

  /** The number of the execution that the running code belongs to: of the cell that started it, else of the last one. */
  owner() {
    return (this.owners.getStore() ?? this.last)?.number ?? 0;
  }

  /** Send what the running code shows, with its place among what it writes. */
  tell(message) {
    this.places += 1;
    const number = this.owner();
    this.output.place(this.places, () => this.send({ ...message, number, place: this.places }));
  }

  execute({ number, count, code, env, cwd, input, ordered }) {
    const cell = {
      number,
      file: `cell-${count}.js`,
      stopped: false,
      before: { env: {}, cwd: null, there: null },
    };
    this.current = this.last = cell;
    if (this.early === number) {
      this.finish(cell, { thrown: new KeyboardInterrupt() });
      return;
    }
    this.output.restore();
    this.output.setInput(input);
    this.output.ordered = ordered;
    for (const name of Object.keys(env)) cell.before.env[name] = process.env[name];
    Object.assign(process.env, env);
    try {
      if (cwd !== null) {
        cell.before.cwd = names.directory();
        process.chdir(cwd);
        cell.before.there = process.cwd();
      }
    } catch (error) {
      this.finish(cell, { thrown: error });
      return;
    }
    this.owners.run(cell, () => this.run(cell, code));
  }

  run(cell, code) {
    let value;
    let program;
    try {
      program = rewrite(code, cell.file);
      this.columns.set(cell.file, program.original);
      if (this.columns.size > REMEMBERED) this.columns.delete(this.columns.keys().next().value);
      program.names.forEach(names.declare);
      for (const text of program.scripts) {
        value = new vm.Script(text, { filename: cell.file, importModuleDynamically }).runInThisContext({ displayErrors: false });
      }
    } catch (error) {
      this.finishSoon(cell, { thrown: error });
      return;
    }
    const failed = (error) => this.finishSoon(cell, { thrown: error });
    const shown = (result) => this.show(cell, program.shows ? result : undefined);
    if (program.awaits) {
      value.then((result) => this.settle(result?.value, shown, failed), failed);
    } else {
      this.settle(program.shows ? value : undefined, shown, failed);
    }
  }

  /** Call `shown` with `value`, or with what it is a promise of. */
  settle(value, shown, failed) {
    try {
      if (typeof value?.then === 'function') Promise.resolve(value).then(shown, failed);
      else shown(value);
    } catch (error) {
      failed(error);
    }
  }

  show(cell, value) {
    if (value === undefined || value instanceof Display) {
      this.finishSoon(cell, {});
      return;
    }
    const failed = (error) => this.finishSoon(cell, { thrown: error });
    try {
      this.settle(bundle(value), (data) => this.finishSoon(cell, { data: fitting(data) }), failed);
    } catch (error) {
      failed(error);
    }
  }

  /** As `finish`, after what the cell has left to do at once: what goes on after promises that are settled, and what is told
   *  of those that were rejected. */
  finishSoon(cell, outcome) {
    setImmediate(() => this.finish(cell, outcome));
  }

  /** `cell` is over: its outcome has `data` to show, or what was `thrown`, or neither. Does nothing when it was over already. */
  finish(cell, outcome) {
    if (this.current !== cell) return;
    const error = 'thrown' in outcome ? describe(outcome.thrown) : null;
    this.putBack(cell);
    this.send({ type: 'done', number: cell.number, data: outcome.data ?? null, error });
    this.current = null;
  }

  putBack({ before }) {
    for (const [name, value] of Object.entries(before.env)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    try {
      if (before.there !== null && process.cwd() === before.there) process.chdir(before.cwd);
    } catch {
      // One of them has been removed: the cell is where it is.
    }
  }

  // --- interrupts

  /** Interrupt the cell of that number, gently or `hard`; return whether it is over. Called while no code of it runs. */
  interrupt(number, hard) {
    const cell = this.current;
    if (number > (this.last?.number ?? 0)) {
      this.early = number; // its request has not been read yet
      return false;
    }
    if (cell?.number !== number) return true;
    this.stopped = cell.stopped = true;
    if (hard) this.finish(cell, { thrown: new KeyboardInterrupt() });
    return this.current !== cell;
  }

  /** Return `value` where the code of an execution goes on: after an await, or at a turn of a loop that awaits. */
  go(value) {
    if (this.stopped && this.owners.getStore()?.stopped) throw new KeyboardInterrupt();
    return value;
  }

  // --- errors that no cell gets

  uncaught(error) {
    if (error instanceof KeyboardInterrupt) return; // of a loop that was ended
    if (process.listenerCount('uncaughtException') > 0) {
      process.emit('uncaughtException', error, 'uncaughtException');
      return;
    }
    const { traceback } = describe(error);
    process.stderr.write(`Uncaught ${traceback.join('\n').replace(/^Uncaught /, '')}\n`);
  }
}

/** What of `data` is neither too large nor nested too deeply to show. */
function fitting(data) {
  const whole = { ...data };
  for (const kind of Object.keys(whole)) {
    if (sizeOf(whole[kind]) > MAX_DISPLAY || isDeep(whole[kind])) whole[kind] = undefined;
  }
  return whole;
}

/** The module, if it has all of `wanted`: a static import of what is not there is an error, and not undefined. */
function checkedExports(module, wanted, source) {
  const missing = wanted.find((name) => !(name in module));
  if (missing === undefined) return module;
  throw new SyntaxError(`The requested module '${source}' does not provide an export named '${missing}'`);
}

module.exports = { Cells };
