// What may stand at a place in the text of a cell, and what is known of what stands there.
//
// Looks at values without running code: a property that is a getter is not asked.
'use strict';

const { inspect, types } = require('node:util');

const root = globalThis; // as a cell may take the name for something else
const { Set } = root;
const CHAIN = /(?:^|[^\w$.])((?:[\w$]+\s*(?:\?\.|\.)\s*)*)([\w$]*)$/;
const MOST = 1000;
const KEYWORDS =
  'async await break case catch class const continue debugger default delete do else export extends false finally for function ' +
  'if import in instanceof let new null of return static super switch this throw true try typeof undefined var void while yield';

/** Matches for the name that ends at `cursor`, and where it begins. */
function complete(code, cursor) {
  const found = CHAIN.exec(code.slice(0, cursor));
  if (found === null) return { matches: [], start: cursor, end: cursor };
  const [, chain, name] = found;
  const all = chain === '' ? [...properties(root), ...KEYWORDS.split(' ')] : properties(lookUp(chain).value);
  const matches = [...new Set(all)].filter((match) => match.startsWith(name) && /^[\p{L}_$][\p{L}\p{N}_$]*$/u.test(match));
  return { matches: matches.sort().slice(0, MOST), start: cursor - name.length, end: cursor };
}

/** Text on the name around `cursor`, or null. */
function describe(code, cursor) {
  const end = cursor + /^[\w$]*/.exec(code.slice(cursor))[0].length;
  const [, chain, name] = CHAIN.exec(code.slice(0, end)) ?? [null, '', ''];
  const found = lookUp(chain + name);
  if (name === '' || !found.known) return null;
  const text = inspect(found.value, { depth: 1 });
  if (typeof found.value !== 'function') return text;
  const source = Function.prototype.toString.call(found.value);
  return `${text}\n\n${source.length > 2000 ? `${source.slice(0, 2000)}…` : source}`;
}

function lookUp(chain) {
  let value = root;
  for (const name of chain.split(/\s*\??\.\s*/).filter((part) => part !== '')) {
    const owner = owners(value).find((object) => Object.hasOwn(object, name));
    const property = owner && Object.getOwnPropertyDescriptor(owner, name);
    const isOurs = value === root && property?.get !== undefined; // Node's own globals are made at their first use
    if (property === undefined || (property.get !== undefined && !isOurs)) return { known: false };
    value = isOurs ? value[name] : property.value;
  }
  return { known: true, value };
}

function properties(value) {
  return owners(value).flatMap((object) => Object.getOwnPropertyNames(object).slice(0, MOST));
}

function owners(value) {
  const found = [];
  if (value === null || value === undefined) return found;
  for (let object = Object(value); object !== null && found.length < 100; object = Object.getPrototypeOf(object)) {
    if (types.isProxy(object)) break;
    found.push(object);
  }
  return found;
}

module.exports = { complete, describe };
