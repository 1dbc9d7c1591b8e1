"""Places an order in three steps, so that the next attempt goes on where this one was killed.

usage: order.py PROVIDER CLIENT KEY REQUEST
"""

import json
import os
import signal
import sys
import urllib.request
from types import SimpleNamespace

import psycopg
from psycopg.rows import namedtuple_row


def place(db, provider, client, key, request):
    """Answers the request: status, bytes, and the step that this attempt went on from.
    The lease should outlast the slowest step; here it is short, so that one can see it end."""
    reserved = db.execute(
        """
        SELECT outcome, token, status_code, body, recovery_point, recovery_data
          FROM idem_reserve(client => %s, key => %s, request => %s::jsonb, lease => '3 s', wait => '60 s')
        """,
        (client, key, json.dumps(request)),
    ).fetchone()
    if reserved.outcome != "new":
        return reserved.status_code, reserved.body, reserved.outcome
    reached("reserved")
    work = SimpleNamespace(client=client, key=key, request=request, **reserved._asdict())
    return 201, go_on(db, provider, work), reserved.recovery_point


def go_on(db, provider, work):
    """Does what is not done yet. `work` is a row of idem_claim_stale, or has the same fields.

    Every step is one transaction with its checkpoint: both are there, or neither. What
    happens outside, the charge, is made before, under a key that is the same on every
    attempt, so that the provider knows it again."""
    point, data = work.recovery_point, work.recovery_data

    if point is None:
        with db.transaction():
            row = db.execute(
                "INSERT INTO orders (client, item, amount) VALUES (%s, %s, %s) RETURNING id",
                (work.client, work.request["item"], work.request["amount"]),
            ).fetchone()
            reached("order written")
            point, data = checkpoint(db, work, "created", {"order": row.id})
        reached(point)

    if point == "created":
        number = charge(db, provider, work)
        reached("money moved")
        with db.transaction():
            db.execute("UPDATE orders SET charge = %s WHERE id = %s", (number, data["order"]))
            point, data = checkpoint(db, work, "charged", {**data, "charge": number})
        reached(point)

    if point == "charged":
        with db.transaction():
            db.execute(
                "INSERT INTO mail (orders, text) VALUES (%s, %s)",
                (data["order"], f"Receipt for charge {data['charge']}"),
            )
            reached("receipt written")
            point, data = checkpoint(db, work, "receipt sent", data)
        reached(point)

    answer = db.execute(
        "SELECT idem_complete_json(client => %s, key => %s, token => %s, status_code => 201, body => %s::jsonb)",
        (work.client, work.key, work.token, json.dumps(data)),
    ).fetchone()[0]
    reached("answered")
    return answer


def checkpoint(db, work, point, data):
    """ID001, and a rollback of the step, if another attempt holds the key by now."""
    db.execute(
        "SELECT idem_checkpoint(client => %s, key => %s, token => %s, recovery_point => %s, data => %s::jsonb)",
        (work.client, work.key, work.token, point, json.dumps(data)),
    )
    return point, data


def charge(db, provider, work):
    """Has the provider charge, once per key, and gives its number for the charge."""
    provider_key = db.execute(
        "SELECT idem_provider_key(client => %s, key => %s, step => 'charge')", (work.client, work.key)
    ).fetchone()[0]
    order = {"reference": f"{work.client}/{work.key}", "amount": work.request["amount"]}
    call = urllib.request.Request(provider, json.dumps(order).encode(), {"Idempotency-Key": str(provider_key)})
    with urllib.request.urlopen(call, timeout=30) as response:
        return json.load(response)["charge"]


def reached(point):
    """For the demonstration: kill -9, if this is the point to die at."""
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def connect():
    return psycopg.connect("dbname=shop user=shop", autocommit=True, row_factory=namedtuple_row)


if __name__ == "__main__":
    provider, client, key, request = sys.argv[1:]
    with connect() as db:
        status, body, came_from = place(db, provider, client, key, json.loads(request))
    print(f"{status}, from {came_from or 'the start'}\n{body.decode()}")
