'use strict';

// A payments service in JavaScript: Express, and node-pg.
//
//   POST /payments     charges at a provider; a lease holds the key meanwhile
//   POST /transfers    in one transaction

const express = require('express');
const { Pool } = require('pg');
const idempotency = require('./idempotency');

const TIMEOUT = 30_000; // ms that the provider has; the lease must be longer
const lease = `${process.env.LEASE ?? 60} s`; // with its unit: a bare number would be seconds, not milliseconds
const retention = process.env.RETENTION ? `${process.env.RETENTION} s` : null;

const pool = new Pool(); // where and as whom is in PGHOST, PGDATABASE, PGUSER
pool.on('error', (error) => console.error(error)); // of a connection that nobody is using

function authenticate(req, res, next) {
  const [, client] = /^Bearer (.+)$/.exec(req.get('Authorization') ?? '') ?? [];
  if (!client) return res.status(401).json({ title: 'Who are you?' });
  req.client = client;
  next();
}

// What is refused here has not begun, and takes no key.
function check(req, res, next) {
  try {
    req.order = JSON.parse(req.body);
    if (typeof req.order.reference !== 'string' || !(Number.isSafeInteger(req.order.amount) && req.order.amount > 0)) {
      throw new TypeError();
    }
  } catch {
    return res.status(400).json({ title: 'A reference and an amount are needed' });
  }
  next();
}

async function charge({ reference, amount }, providerKey) {
  const reply = await fetch(`${process.env.PROVIDER}/charges`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': providerKey },
    body: JSON.stringify({ reference, amount }),
    signal: AbortSignal.timeout(TIMEOUT),
  });
  if (reply.status >= 500) throw new Error(`the provider answered ${reply.status}`);
  return { status: reply.status, answer: await reply.json() };
}

async function pay(req, res) {
  let charged;
  try {
    charged = await charge(req.order, req.idempotency.providerKey);
  } catch { // perhaps the money moved: the next attempt finds out, with the same key
    return res.status(502).json({ title: 'The payment provider did not answer' });
  }
  const { status, answer } = charged;
  if (status !== 201) return res.status(status).type('application/problem+json').json(answer); // final: kept, and replayed
  const db = await req.idempotency.begin();
  const { rows: [row] } = await db.query(
    'INSERT INTO payment (client, reference, amount, charge) VALUES ($1, $2, $3, $4) RETURNING id',
    [req.client, req.order.reference, req.order.amount, answer.charge]);
  res.status(201).location(`/payments/${row.id}`).json({ payment: row.id, charge: answer.charge });
}

async function transfer(req, res) {
  const db = await req.idempotency.begin();
  const { rows: [row] } = await db.query(
    'INSERT INTO transfer (client, reference, amount) VALUES ($1, $2, $3) RETURNING id',
    [req.client, req.order.reference, req.order.amount]);
  res.status(201).location(`/transfers/${row.id}`).json({ transfer: row.id });
}

const app = express();
app.disable('x-powered-by');
app.use(express.text({ type: () => true }), authenticate, check);
app.post('/payments', idempotency(pool, { lease, retention }), pay);
app.post('/transfers', idempotency(pool, { retention }), transfer);
app.listen(process.env.PORT, '127.0.0.1');
