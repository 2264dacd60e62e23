// The global names that a cell finds beside those of Node: what a module would have, Node's own modules, `display`, our helper.
//
// `require`, `__dirname` and the like follow the working directory, as a cell is no file.
'use strict';

const Module = require('node:module');
const path = require('node:path');
const process = require('node:process');
const { pathToFileURL } = require('node:url');

const root = globalThis; // as a cell may take the name for something else
const { Set } = root;
const LAZY = new Set(); // modules that are global names until a cell takes these for its own

/** Define them. `helper`: by the name `helperName`, not listed. `cellFile()`: the name of the running cell's file. */
function install({ helperName, helper, display, cellFile }) {
  const module = new Module('cell');
  module.filename = path.join(directory(), 'cell.js');
  module.paths = Module._nodeModulePaths(directory());
  const require = makeRequire(module);
  const here = () => path.join(directory(), cellFile());
  Object.defineProperty(helper, 'meta', {
    get: () => ({
      dirname: directory(),
      filename: here(),
      url: pathToFileURL(here()).href,
      resolve: (id) => (Module.isBuiltin(id) ? id.replace(/^(node:)?/, 'node:') : pathToFileURL(require.resolve(id)).href),
    }),
  });
  define(helperName, { value: Object.freeze(helper) });
  const values = { require, module, exports: module.exports, display };
  for (const [name, value] of Object.entries(values)) define(name, { value, writable: true, configurable: true });
  for (const id of Module.builtinModules) {
    if (!/^[a-z_]\w*$/.test(id) || id.startsWith('_') || id in root) continue;
    LAZY.add(id);
    define(id, { get: () => require(id), set: replaces(id), configurable: true }); // as in Node's own REPL
  }
  define('__dirname', { get: directory, set: replaces('__dirname'), configurable: true });
  define('__filename', { get: here, set: replaces('__filename'), configurable: true });
}

/** Make `name` a plain property of the global object, whatever it was, so that it can be assigned to. */
function declare(name) {
  const there = Object.getOwnPropertyDescriptor(root, name);
  if (there !== undefined && ('value' in there || !there.configurable)) return;
  const value = LAZY.has(name) ? undefined : there?.get?.call(root);
  Object.defineProperty(root, name, { value, writable: true, enumerable: true, configurable: true });
}

function makeRequire(module) {
  let from = null;
  let inner = null;
  const current = () => {
    if (from !== directory()) {
      from = directory();
      inner = Module.createRequire(path.join(from, 'cell.js'));
    }
    return inner;
  };
  const require = (id) => current()(id);
  require.resolve = (id, options) => current().resolve(id, options);
  require.resolve.paths = (id) => current().resolve.paths(id);
  require.cache = Module._cache;
  require.extensions = Module._extensions;
  require.main = module; // so that a pasted script with `require.main === module` runs
  return require;
}

let lastDirectory = '/';

/** The working directory; the last one where it has been removed. */
function directory() {
  try {
    lastDirectory = process.cwd();
  } catch {
    // Removed.
  }
  return lastDirectory;
}

function replaces(name) {
  return (value) => define(name, { value, writable: true, configurable: true });
}

function define(name, descriptor) {
  Object.defineProperty(root, name, { enumerable: false, ...descriptor });
}

module.exports = { install, declare, directory };
