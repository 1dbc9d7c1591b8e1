'use strict';

// Express middleware: what is requested many times with one Idempotency-Key happens once.
//
//   app.post('/transfers', idempotency(pool), ...)                   all the work is in this database
//   app.post('/payments', idempotency(pool, { lease: '60 s' }), ...) the work leaves it, to a payment provider, say
//
// Before it: something that sets req.client to who was authenticated, and express.text(), so that
// req.body is the text that came. A handler answers as always, and finds a Call in req.idempotency.

const RESERVE = `
  SELECT key, outcome, token, attempt, status_code, headers, body,
         idem_provider_key(client => $1, key => key) AS provider_key
    FROM idem_parse_key($2) AS key,
         idem_reserve(client => $1, key => key,
                      request => jsonb_build_object('path', $3::text, 'body', $4::jsonb),
                      lease => $5::interval, retention => $6::interval)`;
const COMPLETE = `
  SELECT idem_complete_bytes(client => $1, key => $2, token => $3, status_code => $4, body => $5, headers => $6::jsonb)`;

// Of an answer these are not kept: the first is the first caller's alone.
const NOT_KEPT = ['set-cookie', 'content-length', 'date'];

// One attempt at a request: providerKey and attempt, and the transaction of its answer.
class Call {
  constructor(pool) {
    this.pool = pool;
  }

  // The connection, in the transaction that ends with the answer. Where the work leaves the
  // database, ask for it afterwards.
  async begin() {
    if (!this.db) {
      this.db = await this.pool.connect();
      await this.db.query('BEGIN');
    }
    return this.db;
  }

  async end(how) {
    const db = this.db;
    if (!db) return;
    this.db = undefined;
    try {
      await db.query(how);
      db.release();
    } catch (error) {
      db.release(error); // not back into the pool
      throw error;
    }
  }
}

function problem(res, status, title, headers = {}) {
  res.writeHead(status, { 'Content-Type': 'application/problem+json', ...headers });
  res.end(JSON.stringify({ title, status }));
}

// Every outcome but `new` is an answer, to be sent as it is. Ours have their headers in a list of
// pairs, idem's own in an object.
function sendKnown(res, reserved) {
  const { headers, body } = reserved;
  for (const [name, value] of Array.isArray(headers) ? headers : Object.entries(headers)) {
    res.appendHeader(name, value);
  }
  if (reserved.outcome === 'replay') res.setHeader('Idempotent-Replayed', 'true');
  res.statusCode = reserved.status_code;
  res.end(body ?? '');
}

function sendError(res, error) {
  if (error.code === 'ID400') return problem(res, 400, 'Idempotency-Key is malformed');
  if (['22P02', '22P05', '22021'].includes(error.code)) return problem(res, 400, 'The body is not JSON');
  console.error(error);
  problem(res, 503, 'Please try again', { 'Retry-After': '1' });
}

module.exports = function idempotency(pool, { lease = null, retention = null } = {}) {
  async function work(req, res, next) {
    const call = new Call(pool);
    try {
      const db = await call.begin();
      const { rows: [reserved] } = await db.query(RESERVE, [
        req.client, req.get('Idempotency-Key'), req.path, req.body, lease, retention,
      ]);
      if (reserved.outcome !== 'new') {
        await call.end('ROLLBACK');
        return sendKnown(res, reserved);
      }
      if (lease) await call.end('COMMIT'); // before anything leaves the database
      Object.assign(call, { providerKey: reserved.provider_key, attempt: reserved.attempt });
      req.idempotency = call;
      keepAnswer(req, res, next, call, reserved);
    } catch (error) {
      await call.end('ROLLBACK').catch(() => {});
      return sendError(res, error);
    }
    next();
  }

  // Nothing is sent before it is committed.
  function keepAnswer(req, res, next, call, reserved) {
    const end = res.end;
    res.end = (chunk, encoding) => {
      res.end = end;
      const body = Buffer.from(typeof chunk === 'function' ? '' : chunk ?? '', encoding);
      keep(res, body, call, reserved).then(() => res.end(body), async (error) => {
        await call.end('ROLLBACK').catch(() => {});
        for (const name of res.getHeaderNames()) res.removeHeader(name);
        // ID001: we were too slow, and another attempt has taken over; its answer is the answer.
        return error.code === 'ID001' ? work(req, res, next) : sendError(res, error);
      });
    };
  }

  async function keep(res, body, call, reserved) {
    if (res.statusCode >= 500) return call.end('ROLLBACK'); // that is no answer: a retry may find one
    const kept = Object.entries(res.getHeaders()).filter(([name]) => !NOT_KEPT.includes(name));
    const db = await call.begin();
    await db.query(COMPLETE, [
      // An array would become one of PostgreSQL's; as text it is JSON.
      res.req.client, reserved.key, reserved.token, res.statusCode, body, JSON.stringify(kept),
    ]);
    return call.end('COMMIT');
  }

  return (req, res, next) => {
    if (req.get('Idempotency-Key') === undefined) return problem(res, 400, 'Idempotency-Key is missing');
    return work(req, res, next);
  };
};
