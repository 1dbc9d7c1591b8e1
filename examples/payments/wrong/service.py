"""What the wrong services share: HTTP, and nothing of what makes it happen once."""

import json
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg


def connect():
    return psycopg.connect(autocommit=True, prepare_threshold=None)


def pay(db, client, order, key=None):
    """Charges, under the provider's key if there is one, and gives the answer."""
    headers = {"Idempotency-Key": key or os.urandom(8).hex()}
    body = json.dumps({"reference": order.get("reference"), "amount": order["amount"]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{os.environ['PROVIDER']}/charges", body, headers)) as reply:
        charge = json.load(reply)["charge"]
    number = db.execute(
        "INSERT INTO payment (client, reference, amount, charge) VALUES (%s, %s, %s, %s) RETURNING id",
        (client, order.get("reference", ""), order["amount"], charge),
    ).fetchone()[0]
    return json.dumps({"payment": number, "charge": charge})


def serve(answer):
    """answer(client, key, order) gives status, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, body = answer(self.headers["Authorization"], self.headers["Idempotency-Key"], order)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
