"""The shop: the page, the payments service of examples/payments/python, and the life of a key as it happens."""

import json
import os
import sys
import time
from http.cookies import SimpleCookie
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "payments", "python"))

import payments  # noqa: E402

FILES = {"/": ("index.html", "text/html; charset=utf-8"), "/checkout.js": ("checkout.js", "text/javascript; charset=utf-8")}


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path in FILES:
        return send_file(start_response, *FILES[path])
    # A real shop looks the session up. What counts: it is not the request that says who it is.
    cookies = SimpleCookie(environ.get("HTTP_COOKIE", ""))
    customer = cookies["session"].value if "session" in cookies else ""
    if path == "/life":
        start_response("200 OK", [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")])
        return life(customer, parse_qs(environ["QUERY_STRING"])["key"][0])
    return payments.application({**environ, "HTTP_AUTHORIZATION": f"Bearer {customer}"}, start_response)


def send_file(start_response, name, kind):
    with open(os.path.join(HERE, name), "rb") as file:
        body = file.read()
    start_response("200 OK", [("Content-Type", kind), ("Set-Cookie", "session=alice; HttpOnly; SameSite=Strict")])
    return [body]


def life(customer, key):
    """Server-sent events, whenever what idem_lookup says has changed; and the lease, second by second."""
    last = None
    yield b"retry: 300\n\n"  # ms, after the server was away
    with payments.connect(autocommit=True) as db:
        while True:
            state, attempt, lease, status = db.execute(
                """SELECT state, attempt, ceil(extract(epoch FROM lease_until - clock_timestamp())), status_code
                     FROM idem_lookup(client => %s, key => %s)""",
                (customer, key),
            ).fetchone()
            now = {"state": state, "attempt": attempt, "lease": float(lease or 0), "status": status}
            if now != last:
                yield f"data: {json.dumps(now)}\n\n".encode()
                last = now
            else:
                yield b": still here\n\n"  # fails when the browser is gone
            time.sleep(0.1)


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ["PORT"]), application, payments.Server, payments.Quiet) as server:
        server.serve_forever()
