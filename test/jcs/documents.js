/*
 * Documents and numbers, and the canonical text that implementations of RFC 8785
 * give for them. Every number is one that a double holds: its decimal value is that
 * of the double's shortest spelling, which is then spelled in other ways.
 *
 * usage: node documents.js documents SEED COUNT
 *            a document, its text by each library, its SHA-256
 *        node documents.js numbers COUNT
 *            the double's bits, a spelling of it, ECMAScript's own text
 *
 * One line each, in COPY's text format.
 */
'use strict';

const { createHash } = require('node:crypto');
const { runInThisContext } = require('node:vm');

// JSON is an expression. JSON.parse of Node.js 24 (V8 13.6) reads {"A":1,"\f":2} as {"A":1,"\\":2} once it has read an
// object with the latter's keys.
const parse = (document) => runInThisContext(`(${document})`);

// Escapes what COPY would read as something else.
const copied = (fields) =>
  fields.map((field) => field.replace(/[\\\t\n\r]/g, (c) => '\\' + { '\\': '\\', '\t': 't', '\n': 'n', '\r': 'r' }[c])).join('\t');

function print(lines) {
  process.stdout.write(lines.join('\n') + '\n');
}

/*
 * Random documents
 */

// The same seed gives the same documents everywhere: SHA-256 in counter mode.
function generator(seed) {
  let block = Buffer.alloc(0);
  let counter = 0;
  return (below) => {
    if (block.length < 4) {
      block = createHash('sha256').update(`${seed}/${counter++}`).digest();
    }
    const number = block.readUInt32BE(0);
    block = block.subarray(4);
    return number % below;
  };
}

function random(seed) {
  const below = generator(seed);
  const one = (list) => list[below(list.length)];
  const repeat = (count, make) => Array.from({ length: count }, make);

  // Characters near every boundary that an order or an escape could get wrong.
  const characters = [
    0x01, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x1f, 0x20, 0x22, 0x2f, 0x30, 0x41, 0x5c, 0x61, 0x62, 0x7e, 0x7f, 0x80, 0x9f,
    0xe9, 0x301, 0x7ff, 0x800, 0x2028, 0x2029, 0xd7ff, 0xe000, 0xfb33, 0xfdd0, 0xfeff, 0xfffd, 0xffff, 0x10000,
    0x1f600, 0x1ffff, 0x10ffff,
  ];

  const space = () => one(['', '', '', ' ', '\t', '\r', '  \t']);

  const unit = (code) => '\\u' + code.toString(16).padStart(4, '0')[one(['toLowerCase', 'toUpperCase'])]();
  function character() {
    const code = below(3) > 0 ? one(characters) : 0x20 + below(0xd000);
    const text = String.fromCodePoint(code);
    if (code < 0x20 || code === 0x22 || code === 0x5c || below(5) === 0) {
      const short = '"\\/\b\f\n\r\t'.indexOf(text);
      if (short >= 0 && below(2) === 0) {
        return '\\' + '"\\/bfnrt'[short];
      }
      return text.split('').map((half) => unit(half.charCodeAt(0))).join('');
    }
    return text;
  }
  const string = () => '"' + repeat(one([0, 1, 1, 2, 3, 8, 40]), character).join('') + '"';

  function double() {
    const bits = Buffer.alloc(8);
    switch (below(6)) {
      case 0:
        return below(1000) - 500;
      case 1:
        return (below(2000000) - 1000000) / 100;
      case 2:
        return Number(`${below(10)}.${below(1000)}e${below(50) - 25}`);
      case 3:
        return (below(2) ? 1 : -1) * 2 ** (below(2000) - 1000);
      case 4:
        return below(0x200000) * 0x100000000 + below(0x100000000);
      default:
        repeat(8, (_, i) => (bits[i] = below(256)));
        return bits.readDoubleBE();
    }
  }
  function number() {
    const value = double();
    return Number.isFinite(value) ? one(spellings(value)) : '0';
  }

  const array = (depth) => '[' + space() + repeat(below(5), () => value(depth - 1) + space()).join(',' + space()) + ']';
  const member = (depth) => string() + space() + ':' + space() + value(depth - 1) + space();
  const object = (depth) => '{' + space() + repeat(one([0, 1, 2, 3, 5, 12]), () => member(depth)).join(',' + space()) + '}';
  function value(depth) {
    const kind = below(10);
    if (depth <= 0 || kind < 5) {
      return kind < 2 ? number() : kind < 4 ? string() : one(['null', 'true', 'false']);
    }
    return kind < 7 ? array(depth) : object(depth);
  }

  return () => space() + (below(20) === 0 ? value(0) : one([array, object])(1 + below(4))) + space();
}

// The shortest decimal of a double, spelled in several ways.
function spellings(value) {
  if (value === 0) {
    return ['0', '-0', '0.00', '0e5', '-0E-3', '0.0e+1'];
  }
  const scientific = value.toExponential();
  const [mantissa, exponent] = scientific.split('e');
  const digits = mantissa.replace(/[-.]/g, '');
  const sign = mantissa.startsWith('-') ? '-' : '';
  return [
    JSON.stringify(value),
    scientific,
    `${mantissa}${mantissa.includes('.') ? '' : '.0'}00E${exponent}`,
    `${sign}${digits}e${Number(exponent) - digits.length + 1}`,
    `${sign}0.000${digits}E${Number(exponent) + 4}`,
    `${sign}${digits}000e${Number(exponent) - digits.length - 2}`,
  ];
}

function documents(seed, count) {
  const libraries = [require('canonicalize'), require('json-canonicalize').canonicalize];
  const next = random(seed);

  print(Array.from({ length: count }, () => {
    const document = next();
    const texts = libraries.map((library) => library(parse(document)));
    return copied([document, ...texts, createHash('sha256').update(texts[0]).digest('hex')]);
  }));
}

/*
 * Numbers: the neighbours of every power of ten and of two; the ends of the normal
 * and the subnormal range; and the random part of the reference test file of RFC
 * 8785's authors, which is SHA-256 of 32 zero bytes, of that, and so on, as doubles.
 */
function* doubles() {
  const view = new DataView(new ArrayBuffer(8));
  const around = function* (value, distance) {
    view.setFloat64(0, value);
    const bits = view.getBigUint64(0);
    for (let i = -BigInt(distance); i <= BigInt(distance); i++) {
      if (bits + i >= 0n) {
        view.setBigUint64(0, bits + i);
        yield view.getFloat64(0);
        yield -view.getFloat64(0);
      }
    }
  };

  yield* around(0, 20);
  yield* around(Number.MAX_VALUE, 20);
  yield* around(2 ** -1022, 500);
  yield* around(2 ** 53, 20);
  for (let i = -30; i <= 30; i++) {
    yield* around(Number(`1e${i}`), 3);
  }
  for (let i = -1074; i < 1024; i++) {
    yield* around(2 ** i, 1);
  }
  for (let block = Buffer.alloc(32); ;) {
    block = createHash('sha256').update(block).digest();
    for (let i = 0; i < 4; i++) {
      yield block.readDoubleLE(8 * i);
    }
  }
}

function numbers(count) {
  const lines = [];
  const view = new DataView(new ArrayBuffer(8));

  for (const value of doubles()) {
    if (!Number.isFinite(value)) {
      continue;
    }
    view.setFloat64(0, value);
    const spelled = spellings(value);
    lines.push(copied([view.getBigUint64(0).toString(16), spelled[lines.length % spelled.length], String(value)]));
    if (lines.length === count) {
      break;
    }
  }
  print(lines);
}

const [what, ...parameters] = process.argv.slice(2);
if (what === 'documents') {
  documents(parameters[0], Number(parameters[1]));
} else if (what === 'numbers') {
  numbers(Number(parameters[0]));
} else {
  throw new Error(`unknown: ${what}`);
}
