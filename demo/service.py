"""A shop's HTTP service: payments without idem, and with it, in both its forms.

    POST /naive/payments      check, then act
    POST /payments            idem; the charge is made outside the database
    POST /careless/payments   the same, but the provider cannot recognise a retry
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


JSON = {"content-type": "application/json"}


# -- Without idem -------------------------------------------------------------


def naive_payment(db, request):
    """Looks right, and passes every test with one client. But two requests can
    both look before either has written, and the unique index speaks up only when
    the money has moved twice."""
    known = db.execute(
        "SELECT body FROM naive_answer WHERE client = %s AND key = %s",
        (request.client, request.key),
    ).fetchone()
    if known:
        return Answer(201, JSON, known.body.encode())

    body = json.dumps({"charge": charge(request, provider_key=None)})

    db.execute(
        "INSERT INTO naive_answer VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (request.client, request.key, body),
    )
    return Answer(201, JSON, body.encode())


# -- With idem ----------------------------------------------------------------


def reserve(db, request):
    """Asks whether this request is ours to work on. The lease should outlast the
    slowest call of the provider; here it is short, so that one can watch it end."""
    return db.execute(
        """
        SELECT key, outcome, token, status_code, headers, body
          FROM idem_parse_key(%(header)s) AS key,
               idem_reserve(client => %(client)s, key => key,
                            request => %(request)s::jsonb, lease => '5 s')
        """,
        {"header": request.key, "client": request.client, "request": request.text},
    ).fetchone()


def answer_known(reserved):
    """Every outcome but `new` is an answer already, to be sent as it is."""
    headers = dict(reserved.headers)
    if reserved.outcome == "replay":
        headers["Idempotent-Replayed"] = "true"
    return Answer(reserved.status_code, headers, reserved.body or b"")


def complete(db, request, reserved, body):
    """Keeps the answer. What is sent is what was stored, so that the first answer
    and its replays are the same bytes."""
    stored = db.execute(
        """
        SELECT idem_complete_json(client => %s, key => %s, token => %s,
                                  status_code => 201, body => %s::jsonb)
        """,
        (request.client, reserved.key, reserved.token, json.dumps(body)),
    ).fetchone()[0]
    return Answer(201, JSON, stored)


def payment(db, request, derived_key=True):
    """Across transactions, because the provider takes no part in ours. The
    reservation is committed before it is called. Whoever dies from here on leaves
    the key in progress: nobody can tell whether the money moved, so the next
    attempt has to wait until the lease is over."""
    reserved = reserve(db, request)
    if reserved.outcome != "new":
        return answer_known(reserved)

    # The same on every attempt: by it the provider knows a retry from a new order.
    provider_key = db.execute(
        "SELECT idem_provider_key(client => %s, key => %s)",
        (request.client, reserved.key),
    ).fetchone()[0]
    number = charge(request, provider_key if derived_key else uuid.uuid4())
    if request.must_die:
        die()

    # The business row and the answer: both, or neither.
    with db.transaction():
        db.execute(
            "INSERT INTO payment (client, amount, charge) VALUES (%s, %s, %s)",
            (request.client, request.body["amount"], number),
        )
        return complete(db, request, reserved, {"charge": number})


def careless_payment(db, request):
    """Every attempt is a new order to the provider."""
    return payment(db, request, derived_key=False)


def purchase(db, request):
    """In one transaction, because all there is to do is in this database. Whoever
    dies leaves nothing, not even the key, and the next request is the first."""
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


# -- What they stand on -------------------------------------------------------


def charge(request, provider_key):
    """Calls the provider, and gives its number for the charge."""
    order = {"reference": f"{request.client}/{request.key}", "amount": request.body["amount"]}
    headers = {"Idempotency-Key": str(provider_key)} if provider_key else {}
    call = urllib.request.Request(PROVIDER, json.dumps(order).encode(), headers)
    with urllib.request.urlopen(call, timeout=4) as response:
        return json.load(response)["charge"]


def die():
    """kill -9: no exception, no rollback, no goodbye to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


def problem(status, title, **headers):
    body = json.dumps({"title": title, "status": status}).encode()
    return Answer(status, {"content-type": "application/problem+json", **headers}, body)


class Handler(BaseHTTPRequestHandler):
    # What does the work, and the field it cannot do without.
    routes = {
        "/naive/payments": (naive_payment, "amount"),
        "/payments": (payment, "amount"),
        "/careless/payments": (careless_payment, "amount"),
        "/purchases": (purchase, "item"),
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
        """What is refused here has not begun, and takes no key."""
        if self.path not in self.routes:
            return problem(404, "No such resource")
        work, field = self.routes[self.path]
        try:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            body = json.loads(text)
            body[field]
        except (ValueError, TypeError, LookupError):
            return problem(400, f"The body must be a JSON object with {field}")
        client = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not client:
            return problem(401, "Who are you?")

        key = self.headers.get("Idempotency-Key")
        return self.work(work, Request(client, key, text, body, "Demo-Die" in self.headers))

    def work(self, work, request):
        try:
            with psycopg.connect(
                f"dbname=shop user=shop application_name=service-{os.getpid()}",
                autocommit=True,
                row_factory=namedtuple_row,
            ) as db:
                return work(db, request)
        except psycopg.Error as error:
            if error.sqlstate == "ID400":
                return problem(400, "Idempotency-Key is missing or malformed")
            if error.sqlstate == "ID001":  # we were too slow: another attempt has taken over
                return problem(409, "Another attempt will answer", **{"retry-after": "1"})
            raise
        except OSError:
            # Not released: perhaps the money moved. The lease lets a retry find out.
            return problem(502, "The payment provider did not answer", **{"retry-after": "5"})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)  # any port that is free
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
