"""A payment provider: it charges once for each Idempotency-Key that it is sent.

    POST /charges                 {"reference": ..., "amount": ...}: 201, or 402 when it is more than 1000
    GET  /charges?reference=...   how often it has charged for that
    GET  /hold                    for tests: the next charge is made, and its reply kept back until this request ends
    GET  /lose                    the same, but the reply never comes

usage: provider.py PORT
"""

import json
import select
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LIMIT = 1000

lock = threading.Lock()
charges = {}  # by key: the order, status and answer
traps = []  # those that wait for a charge


class Trap:
    def __init__(self, loses):
        self.loses = loses
        self.reached = threading.Event()
        self.over = threading.Event()


def charge(key, order):
    """One charge for a key, whoever asks and however often."""
    with lock:
        known = charges.setdefault(key, (order, *decide(order)))
        trap = traps.pop(0) if traps else None
    if known[0] != order:
        return 422, {"title": "This key is another order's"}, trap
    return known[1], known[2], trap


def decide(order):
    if order["amount"] > LIMIT:
        return 402, {"title": "The card was declined"}
    return 201, {"charge": f"ch_{1 + sum(status == 201 for _, status, _ in charges.values())}"}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer, trap = charge(self.headers["Idempotency-Key"], order)
        if trap:
            trap.reached.set()
            trap.over.wait()
            if trap.loses:
                return  # the connection closes
        self.reply(status, answer)

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path in ("/hold", "/lose"):
            self.hold(Trap(loses=url.path == "/lose"))
            return
        wanted = parse_qs(url.query)["reference"][0]
        with lock:
            made = sum(order["reference"] == wanted and status == 201 for order, status, _ in charges.values())
        self.reply(200, {"charges": made})

    def hold(self, trap):
        """Tells the caller what happens as it happens, and is over when the caller goes."""
        with lock:
            traps.append(trap)
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nheld\n")
        told = False
        while not select.select([self.connection], [], [], 0.02)[0]:
            if trap.reached.is_set() and not told:
                self.wfile.write(b"reached\n")
                told = True
        with lock:
            if trap in traps:
                traps.remove(trap)
        trap.over.set()

    def reply(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # whoever asked was killed

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
