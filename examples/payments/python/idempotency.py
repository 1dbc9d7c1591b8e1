"""WSGI middleware: what is requested many times with one Idempotency-Key happens once.

    app = Idempotency(app, connect)                  all the work is in this database
    app = Idempotency(app, connect, lease="60 s")    the work leaves it, to a payment provider, say

`connect` gives a psycopg connection for use in a `with`: psycopg.connect with its arguments, or
a pool's `connection`. The application finds a Call in environ["idempotency"]. REMOTE_USER is
who was authenticated, by what stands before this.
"""

import io
import json

import psycopg
from psycopg.rows import namedtuple_row

RESERVE = """
    SELECT key, outcome, token, attempt, status_code, headers, body,
           idem_provider_key(client => %(client)s, key => key) AS provider_key
      FROM idem_parse_key(%(header)s) AS key,
           idem_reserve(client => %(client)s, key => key,
                        request => jsonb_build_object('path', %(path)s::text, 'body', %(body)s::jsonb),
                        lease => %(lease)s::interval, retention => %(retention)s::interval)
"""
COMPLETE = """
    SELECT idem_complete_bytes(client => %s, key => %s, token => %s,
                               status_code => %s, body => %s, headers => %s::jsonb)
"""

# Of an answer these are not kept: the first is the first caller's alone.
NOT_KEPT = {"set-cookie", "content-length", "date"}


class Call:
    """One attempt at a request: provider_key and attempt, and the transaction of its answer."""

    def __init__(self, connect):
        self._connect = connect
        self._open = None

    def begin(self):
        """The connection, in the transaction that ends with the answer. Where the work leaves
        the database, ask for it afterwards."""
        if not self._open:
            self._open = self._connect()
            self._db = self._open.__enter__()
        return self._db

    def commit(self):
        self._db.commit()
        self.close()

    def close(self):
        if self._open:
            self._db.rollback()  # what was not committed
            self._open.__exit__(None, None, None)
            self._open = None


class Idempotency:
    def __init__(self, app, connect, lease=None, retention=None):
        self.app, self.connect = app, connect
        self.lease, self.retention = lease, retention

    def __call__(self, environ, start_response):
        status, headers, body = self.answer(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def answer(self, environ):
        if "HTTP_IDEMPOTENCY_KEY" not in environ:
            return problem("400 Bad Request", "Idempotency-Key is missing")
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return problem("400 Bad Request", "The body is not UTF-8")
        while True:
            call = Call(self.connect)
            try:
                return self.work(call, {**environ, "wsgi.input": io.BytesIO(body), "idempotency": call}, text)
            except psycopg.Error as error:
                if error.sqlstate == "ID400":
                    return problem("400 Bad Request", "Idempotency-Key is malformed")
                if error.sqlstate in ("22P02", "22P05", "22021"):
                    return problem("400 Bad Request", "The body is not JSON")
                if error.sqlstate != "ID001":
                    environ["wsgi.errors"].write(f"{error}\n")
                    return problem("503 Service Unavailable", "Please try again", ("Retry-After", "1"))
                # We were too slow, and another attempt has taken over: its answer is the answer.
            finally:
                call.close()

    def work(self, call, environ, text):
        cursor = call.begin().cursor(row_factory=namedtuple_row)
        client = environ["REMOTE_USER"]
        reserved = cursor.execute(
            RESERVE,
            {
                "client": client,
                "header": environ["HTTP_IDEMPOTENCY_KEY"],
                "path": environ["PATH_INFO"],
                "body": text,
                "lease": self.lease,
                "retention": self.retention,
            },
        ).fetchone()
        if reserved.outcome != "new":
            return known(reserved)
        if self.lease:
            call.commit()  # before anything leaves the database
        call.provider_key, call.attempt = str(reserved.provider_key), reserved.attempt

        status, headers, answer = run(self.app, environ)
        if not status.startswith("5"):  # that is no answer: a retry may find one
            kept = [pair for pair in headers if pair[0].lower() not in NOT_KEPT]
            call.begin().execute(
                COMPLETE, (client, reserved.key, reserved.token, int(status[:3]), answer, json.dumps(kept))
            )
            call.commit()
        return status, headers, answer


def known(reserved):
    """Every outcome but `new` is an answer, to be sent as it is. Ours have their headers in a
    list of pairs, idem's own in an object."""
    headers = reserved.headers.items() if isinstance(reserved.headers, dict) else map(tuple, reserved.headers)
    headers = [*headers, ("Idempotent-Replayed", "true")] if reserved.outcome == "replay" else [*headers]
    return f"{reserved.status_code} {reserved.outcome}", headers, reserved.body or b""


def run(app, environ):
    """Calls the application, and keeps back what it answers."""
    started = []
    chunks = app(environ, lambda status, headers, exc_info=None: started.append((status, headers)))
    try:
        body = b"".join(chunks)
    finally:
        getattr(chunks, "close", lambda: None)()
    status, headers = started[-1]
    return status, [pair for pair in headers if pair[0].lower() != "content-length"], body


def problem(status, title, *headers):
    body = json.dumps({"title": title, "status": int(status[:3])}).encode()
    return status, [("Content-Type", "application/problem+json"), *headers], body
