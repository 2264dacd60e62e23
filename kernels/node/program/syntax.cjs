// What a syntax tree of acorn's says: which nodes are in a node, what it awaits, which names it binds.
'use strict';

const isFunction = (node) => /Function/.test(node.type);
const isLoop = (node) => /^(For|While|DoWhile)/.test(node.type);

function children(node) {
  const found = [];
  for (const key in node) {
    const value = node[key];
    for (const item of Array.isArray(value) ? value : [value]) {
      if (typeof item?.type === 'string') found.push(item);
    }
  }
  return found;
}

/** Whether `node` awaits itself, and not only a function in it. */
function awaitsIn(node) {
  return (
    node.type === 'AwaitExpression' ||
    node.await === true ||
    children(node).some((child) => !isFunction(child) && awaitsIn(child))
  );
}

function namesOf(pattern) {
  switch (pattern?.type) {
    case 'Identifier':
      return [pattern.name];
    case 'ObjectPattern':
      return pattern.properties.flatMap((property) => namesOf(property.value ?? property.argument));
    case 'ArrayPattern':
      return pattern.elements.flatMap(namesOf);
    case 'AssignmentPattern':
      return namesOf(pattern.left);
    case 'RestElement':
      return namesOf(pattern.argument);
    default:
      return [];
  }
}

module.exports = { awaitsIn, children, isFunction, isLoop, namesOf };
