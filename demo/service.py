"""A shop's HTTP service: payments without idem, and with it, in both its forms.

    POST /naive/payments      check, then act
    POST /payments            idem; the charge is made outside the database
    POST /careless/payments   the same, but every attempt is a new order to the provider
    POST /purchases           idem; everything in one transaction
"""

import json
import os
import signal
import sys
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Optional

import psycopg
from psycopg.rows import namedtuple_row

PROVIDER = sys.argv[1]


class Request(NamedTuple):
    client: str  # who is logged in; never something the body says
    key: Optional[str]  # the Idempotency-Key header, as it came
    text: str  # the body
    body: dict
    must_die: bool  # the demonstration wants to see what happens then


class Answer(NamedTuple):
    status: int
    headers: dict
    body: bytes


# -- Without idem ---------------------------------------------------------------------


def naive_payment(db, request):
    """Looks right, passes every test with one client, and charges twice: two requests
    can both look before either has written, and the unique index speaks up when the
    money has moved."""
    known = db.execute(
        "SELECT body FROM naive_answer WHERE client = %s AND key = %s", (request.client, request.key)
    ).fetchone()
    if known:
        return Answer(201, {"content-type": "application/json"}, known.body.encode())

    number = charge(request, provider_key=None)

    body = json.dumps({"amount": request.body["amount"], "charge": number})
    db.execute(
        "INSERT INTO naive_answer VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (request.client, request.key, body),
    )
    return Answer(201, {"content-type": "application/json"}, body.encode())


# -- With idem ------------------------------------------------------------------------


def reserve(db, request):
    """Asks whether this request is to be worked on. The lease is longer than the
    slowest answer of the provider; here it is short, to be worth watching."""
    return db.execute(
        """
        SELECT key, outcome, token, attempt, status_code, headers, body
          FROM idem_parse_key(%(header)s) AS key,
               idem_reserve(client => %(client)s, key => key, request => %(request)s::jsonb, lease => '3 s')
        """,
        {"client": request.client, "header": request.key, "request": request.text},
    ).fetchone()


def complete(db, request, reserved, body):
    """Keeps the answer, and gives it as every replay will: the bytes that were stored."""
    stored = db.execute(
        "SELECT idem_complete_json(client => %s, key => %s, token => %s, status_code => 201, body => %s::jsonb)",
        (request.client, reserved.key, reserved.token, json.dumps(body)),
    ).fetchone()[0]
    return Answer(201, {"content-type": "application/json"}, stored)


def answer_known(reserved):
    """Every outcome but `new` is an answer already, to be sent as it is."""
    headers = dict(reserved.headers)
    if reserved.outcome == "replay":
        headers["Idempotent-Replayed"] = "true"
    return Answer(reserved.status_code, headers, reserved.body)


def payment(db, request, derived_key=True):
    """Across transactions: the provider is no part of ours. The reservation is committed
    before it is called, so a death from here on leaves the key in progress: nobody can
    tell whether the money moved, and the next attempt must wait for the lease."""
    reserved = reserve(db, request)
    if reserved.outcome != "new":
        return answer_known(reserved)

    # The same on every attempt, so that the provider can tell a retry from a new order.
    provider_key = db.execute(
        "SELECT idem_provider_key(client => %s, key => %s)", (request.client, reserved.key)
    ).fetchone()[0]
    number = charge(request, provider_key if derived_key else uuid.uuid4())
    if request.must_die:
        die()

    # The business row and the answer, together or not at all.
    with db.transaction():
        db.execute(
            "INSERT INTO payment (client, amount, charge) VALUES (%s, %s, %s)",
            (request.client, request.body["amount"], number),
        )
        return complete(db, request, reserved, {"amount": request.body["amount"], "charge": number})


def careless_payment(db, request):
    """What a provider makes of a retry that it cannot recognise."""
    return payment(db, request, derived_key=False)


def purchase(db, request):
    """In one transaction: all there is to do is in this database. A death at any point
    leaves nothing, the key included, and the next request starts anew at once."""
    with db.transaction():
        reserved = reserve(db, request)
        if reserved.outcome != "new":
            return answer_known(reserved)
        row = db.execute(
            "INSERT INTO purchase (client, item) VALUES (%s, %s) RETURNING id",
            (request.client, request.body["item"]),
        ).fetchone()
        answer = complete(db, request, reserved, {"purchase": row.id})
        if request.must_die:
            die()
        return answer


# -- What they need -------------------------------------------------------------------


def charge(request, provider_key):
    """Calls the payment provider, and gives its number for the charge."""
    headers = {"Idempotency-Key": str(provider_key)} if provider_key else {}
    order = {"reference": f"{request.client}/{request.key}", "amount": request.body["amount"]}
    with urllib.request.urlopen(
        urllib.request.Request(PROVIDER, json.dumps(order).encode(), headers), timeout=30
    ) as response:
        return json.load(response)["charge"]


def die():
    """kill -9: no exception, no rollback, no goodbye to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


class Handler(BaseHTTPRequestHandler):
    routes = {
        "/naive/payments": naive_payment,
        "/payments": payment,
        "/careless/payments": careless_payment,
        "/purchases": purchase,
    }

    def do_POST(self):
        answer = self.answer()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def answer(self):
        # What is refused before the work starts takes no key.
        handler = self.routes.get(self.path)
        if handler is None:
            return problem(404, "No such resource")
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        try:
            body = json.loads(text)
        except ValueError:
            return problem(400, "The body is not JSON")

        request = Request(
            client=self.headers.get("Authorization", "").removeprefix("Bearer "),
            key=self.headers.get("Idempotency-Key"),
            text=text,
            body=body,
            must_die="Demo-Die" in self.headers,
        )
        try:
            with psycopg.connect(
                f"dbname=shop user=shop application_name=service-{os.getpid()}",
                autocommit=True,
                row_factory=namedtuple_row,
            ) as db:
                return handler(db, request)
        except psycopg.Error as error:
            if error.sqlstate == "ID400":
                return problem(400, "Idempotency-Key is missing or malformed")
            if error.sqlstate == "ID001":  # too late: another attempt has taken over
                return problem(409, "Another attempt answers this request", {"retry-after": "1"})
            raise

    def log_message(self, *_):
        pass


def problem(status, title, headers={}):
    body = json.dumps({"title": title, "status": status}).encode()
    return Answer(status, {"content-type": "application/problem+json", **headers}, body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)  # any port that is free
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
