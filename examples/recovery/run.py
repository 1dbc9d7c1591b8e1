"""The demonstration: an order is killed (-9) at every point, tried again, and counted."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from demonstration import HERE, check, count, end, run, scene, start_provider

ORDER = os.path.join(HERE, "recovery", "order.py")
REQUEST = json.dumps({"item": "lamp", "amount": 20})

# Where the first attempt is killed, and what becomes of the second one.
DEATHS = {
    "reserved": "201, from the start",
    "order written": "201, from the start",
    "created": "201, from created",
    "money moved": "201, from created",
    "charged": "201, from charged",
    "receipt written": "201, from charged",
    "receipt sent": "201, from receipt sent",
    "answered": "201, from replay",
}


def attempt(provider, death, die_at=""):
    return run(ORDER, provider, "alice", death.replace(" ", "-"), REQUEST, die_at=die_at)


def story(provider, death):
    killed = attempt(provider, death, die_at=death)
    return killed, attempt(provider, death), attempt(provider, death)


def effects(death):
    """What is in the databases under this key."""
    key = death.replace(" ", "-")
    number = count("shop", "SELECT convert_from(body, 'UTF8')::jsonb ->> 'order' FROM idem_key WHERE key = %s", key)
    charges = count("provider", "SELECT count(*) FROM charge WHERE reference = %s", f"alice/{key}")
    mails = count("shop", "SELECT count(*) FROM mail WHERE orders = %s", number)
    orders = count(
        "shop",
        "SELECT count(*) FROM orders JOIN mail ON orders = orders.id WHERE orders.id = %s AND charge IS NOT NULL",
        number,
    )
    return f"{orders}, {charges}, {mails}"


def main():
    provider = start_provider()
    scene(
        "An order in three steps: created, charged, receipt sent",
        "The process is killed (-9) at a point, and the request comes again twice.",
        "The next attempt goes on from the last step that was committed.",
    )
    with ThreadPoolExecutor(4) as pool:
        stories = dict(zip(DEATHS, pool.map(lambda death: story(provider, death), DEATHS)))
    for death, expected in DEATHS.items():
        (status, _), (_, again), (_, later) = stories[death]
        check(f"order; killed at: {death}", f"exit {status}", "exit -9")
        outcome, _, body = again.partition("\n")
        check("    again", outcome, expected)
        same = "same" if body and later == f"201, from replay\n{body}" else "other"
        check("    and later", f"{same} bytes", "same bytes")
        check("    orders, charges, receipts", effects(death), "1, 1, 1")
    n = len(DEATHS)
    all_there = ", ".join(
        str(count(database, f"SELECT count(*) FROM {table}"))
        for database, table in (("shop", "orders"), ("provider", "charge"), ("shop", "mail"))
    )
    check("all orders, charges, receipts", all_there, f"{n}, {n}, {n}")
    end()


if __name__ == "__main__":
    main()
