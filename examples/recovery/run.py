"""The demonstration: an order is killed (-9) at every point, tried again, and counted."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from demonstration import HERE, check, count, end, run, scene, start_provider

ORDER = os.path.join(HERE, "recovery", "order.py")

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
    """The item says which order it is, to count by."""
    request = json.dumps({"item": death, "amount": 20})
    return run(ORDER, provider, "alice", death.replace(" ", "-"), request, die_at=die_at)


def story(provider, death):
    killed = attempt(provider, death, die_at=death)
    return killed, attempt(provider, death), attempt(provider, death)


def effects(death):
    """What there is in the databases of this order."""
    reference = f"alice/{death.replace(' ', '-')}"
    mails = "SELECT count(*) FROM mail JOIN orders ON orders.id = orders WHERE item = %s"
    return ", ".join(
        str(number)
        for number in (
            count("shop", "SELECT count(*) FROM orders WHERE item = %s", death),
            count("provider", "SELECT count(*) FROM charge WHERE reference = %s", reference),
            count("shop", mails, death),
        )
    )


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
