"""A payments service in Python: WSGI, and psycopg 3.

    POST /payments     charges at a provider; a lease holds the key meanwhile
    POST /transfers    in one transaction
"""

import functools
import io
import json
import os
import urllib.error
import urllib.request
from http import HTTPStatus
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import psycopg

from idempotency import Idempotency

PROVIDER = os.environ["PROVIDER"]
TIMEOUT = int(os.environ.get("PROVIDER_TIMEOUT", 30))  # seconds that the provider has; the lease must be longer
LEASE = f"{os.environ.get('LEASE', 60)} s"
RETENTION = os.environ.get("RETENTION") and f"{os.environ['RETENTION']} s"

# Where and as whom is in PGHOST, PGDATABASE, PGUSER. Behind PgBouncer in transaction mode
# nothing may be prepared for the next statement.
connect = functools.partial(psycopg.connect, prepare_threshold=None)


def pay(environ, start_response):
    call, order = environ["idempotency"], environ["order"]
    try:
        status, answer = charge(order, call.provider_key)
    except OSError:  # perhaps the money moved: the next attempt finds out, with the same key
        return respond(start_response, 502, {"title": "The payment provider did not answer"})
    if status != 201:
        return respond(start_response, status, answer)  # final: kept, and replayed
    (number,) = call.begin().execute(
        "INSERT INTO payment (client, reference, amount, charge) VALUES (%s, %s, %s, %s) RETURNING id",
        (environ["REMOTE_USER"], order["reference"], order["amount"], answer["charge"]),
    ).fetchone()
    answer = {"payment": number, "charge": answer["charge"]}
    return respond(start_response, 201, answer, ("Location", f"/payments/{number}"))


def transfer(environ, start_response):
    order = environ["order"]
    (number,) = environ["idempotency"].begin().execute(
        "INSERT INTO transfer (client, reference, amount) VALUES (%s, %s, %s) RETURNING id",
        (environ["REMOTE_USER"], order["reference"], order["amount"]),
    ).fetchone()
    return respond(start_response, 201, {"transfer": number}, ("Location", f"/transfers/{number}"))


def charge(order, provider_key):
    call = urllib.request.Request(
        f"{PROVIDER}/charges",
        json.dumps({"reference": order["reference"], "amount": order["amount"]}).encode(),
        {"Content-Type": "application/json", "Idempotency-Key": provider_key},
    )
    try:
        with urllib.request.urlopen(call, timeout=TIMEOUT) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refusal:
        if refusal.code >= 500:
            raise OSError(f"the provider answered {refusal.code}") from refusal
        return refusal.code, json.load(refusal)


def checked(app):
    """What is refused here has not begun, and takes no key."""

    def check(environ, start_response):
        scheme, _, name = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme != "Bearer" or not name:
            return respond(start_response, 401, {"title": "Who are you?"})
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            order = json.loads(body.decode())
            valid = isinstance(order["reference"], str) and type(order["amount"]) is int and order["amount"] > 0
        except (ValueError, TypeError, LookupError):
            valid = False
        if not valid:
            return respond(start_response, 400, {"title": "A reference and an amount are needed"})
        again = {"wsgi.input": io.BytesIO(body), "order": order, "REMOTE_USER": name}
        return app({**environ, **again}, start_response)

    return check


def respond(start_response, status, answer, *headers):
    kind = "application/json" if status < 400 else "application/problem+json"
    start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", kind), *headers])
    return [json.dumps(answer).encode()]


ROUTES = {
    "/payments": checked(Idempotency(pay, connect, lease=LEASE, retention=RETENTION)),
    "/transfers": checked(Idempotency(transfer, connect, retention=RETENTION)),
}


def application(environ, start_response):
    route = ROUTES.get(environ["PATH_INFO"])
    if not route or environ["REQUEST_METHOD"] != "POST":
        return respond(start_response, 404, {"title": "No such resource"})
    return route(environ, start_response)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ["PORT"]), application, Server, Quiet) as server:
        server.serve_forever()
