"""What the conformance suite needs to know of these services, and to do to them, over HTTP.

    GET /payments/effects?reference=...    how often it was paid: charges and rows
    GET /transfers/effects?reference=...   how often it was transferred: rows
    GET /transfers/hold                    stops the next transfer in its middle, until this request ends

The provider itself stops the next payment: GET /hold.

usage: hooks.py PORT PROVIDER
"""

import json
import select
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import psycopg


def connect():
    return psycopg.connect("dbname=payments", autocommit=True)


def count(query, *parameters):
    with connect() as db:
        return db.execute(query, parameters).fetchone()[0]


def payments(provider, reference):
    with urllib.request.urlopen(f"{provider}/charges?reference={reference}") as reply:
        charges = json.load(reply)["charges"]
    return charges, count("SELECT count(*) FROM payment WHERE reference = %s", reference)


def transfers(_, reference):
    return (count("SELECT count(*) FROM transfer WHERE reference = %s", reference),)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/transfers/hold":
            self.hold()
            return
        effects = {"/payments/effects": payments, "/transfers/effects": transfers}[url.path]
        numbers = effects(self.server.provider, parse_qs(url.query)["reference"][0])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join(map(str, numbers)).encode())

    def hold(self):
        """With a lock on the table: the INSERT waits, in the transaction that has reserved the key."""
        waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'transfer'::regclass AND NOT granted)"
        with connect() as db, db.transaction():
            db.execute("LOCK TABLE transfer IN SHARE MODE")
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nheld\n")
            told = False
            while not select.select([self.connection], [], [], 0.05)[0]:
                if not told and db.execute(waiting).fetchone()[0]:
                    self.wfile.write(b"reached\n")
                    told = True

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.provider = sys.argv[2]
    server.serve_forever()
