"""Receives webhooks: checks who sent it, stores it once, and only then says 200.

The sender repeats a webhook until it gets a 200, and sometimes after that. The header
Signature is t=SECONDS,v1=HEX, as payment providers send it: HMAC-SHA-256, under a secret
that both sides know, over the seconds, a full stop and the body.

usage: webhook.py SECRET    prints where it listens
"""

import hashlib
import hmac
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

TOLERANCE = 300  # seconds; an old webhook that somebody has recorded is not worth more


def is_genuine(secret, header, body):
    """Compares bytes that came over the wire: the body is not parsed before."""
    try:
        fields = dict(field.split("=", 1) for field in header.split(","))
        stamp, signature = fields["t"], fields["v1"]
        old = abs(time.time() - int(stamp)) > TOLERANCE
    except (ValueError, KeyError):
        return False
    expected = hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode()) and not old


def store(body):
    """Keeps the webhook the first time. The work on it is for later, from the table:
    the sender does not wait long. Its id is from the body, which is signed."""
    webhook = json.loads(body)
    with psycopg.connect("dbname=shop user=shop", autocommit=True) as db, db.transaction():
        first = db.execute(
            "SELECT idem_once(client => 'webhook:provider', key => %s)", (webhook["id"],)
        ).fetchone()[0]
        if first:
            db.execute("INSERT INTO webhook (id, body) VALUES (%s, %s::jsonb)", (webhook["id"], body.decode()))


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.receive(body))
        self.send_header("content-length", "0")
        self.end_headers()

    def receive(self, body):
        if not is_genuine(self.server.secret, self.headers.get("Signature", ""), body):
            return 401
        try:
            store(body)
        except (ValueError, TypeError, LookupError):
            return 400  # signed, and yet not what was agreed
        except psycopg.Error as error:
            print(error, file=sys.stderr)
            return 503  # not stored: please send it again
        if "Demo-Die" in self.headers:
            os.kill(os.getpid(), signal.SIGKILL)
        return 200  # stored, now or before

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)  # any port that is free
    server.secret = sys.argv[1].encode()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
