"""A payment provider: slow, over HTTP, and with a database of its own.

Like the real ones it charges once per Idempotency-Key it is sent, and every time
when it is sent none, or a new one.
"""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

LATENCY = 0.3  # seconds


def charge(provider_key, reference, amount):
    """Gives the number of the charge, which for a key seen before is the old one."""
    with psycopg.connect("dbname=provider user=provider", autocommit=True) as db:
        return db.execute(
            "INSERT INTO charge (provider_key, reference, amount) VALUES (%s, %s, %s)"
            " ON CONFLICT (provider_key) DO UPDATE SET provider_key = excluded.provider_key RETURNING id",
            (provider_key, reference, amount),
        ).fetchone()[0]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(LATENCY)
        number = charge(self.headers["Idempotency-Key"], order["reference"], order["amount"])
        self.send_response(201)
        self.end_headers()
        self.wfile.write(json.dumps({"charge": number}).encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)  # any port that is free
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
