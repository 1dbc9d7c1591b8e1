"""The demonstration: orders are killed, no client comes back, and they are finished all the same."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from demonstration import HERE, check, count, end, run, scene, start, start_provider

ORDER = os.path.join(HERE, "recovery", "order.py")
COMPLETER = os.path.join(HERE, "completer", "completer.py")
NEVER = "86400"  # only a notification can wake it
DEATHS = ["reserved", "created", "money moved", "charged", "receipt sent"]
STATES = "SELECT string_agg(DISTINCT state, ', ') FROM idem_keys WHERE client = 'bob'"


def place_and_die(provider, death):
    key = death.replace(" ", "-")
    return run(ORDER, provider, "bob", key, json.dumps({"item": "lamp", "amount": 20}), die_at=death)[0]


def wait_for(query, expected):
    deadline = time.monotonic() + 120
    while count("shop", query) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return count("shop", query)


def everything():
    return ", ".join(
        str(count(database, query))
        for database, query in (
            ("shop", "SELECT count(*) FROM orders WHERE charge IS NOT NULL"),
            ("provider", "SELECT count(*) FROM charge"),
            ("shop", "SELECT count(DISTINCT orders) FROM mail"),
            ("shop", "SELECT count(*) FROM mail"),
        )
    )


def main():
    provider = start_provider()
    scene(
        "A completer waits, orders are killed, and no client comes back",
        "It is woken by NOTIFY idem_stale, claims a key, and is killed itself after the charge.",
    )
    os.environ["DIE_AT"] = "money moved"
    first, _ = start(COMPLETER, provider, NEVER)
    del os.environ["DIE_AT"]
    with ThreadPoolExecutor(len(DEATHS)) as pool:
        deaths = set(pool.map(lambda death: place_and_die(provider, death), DEATHS))
    check(f"{len(DEATHS)} orders, each killed at another point", deaths, "{-9}")
    try:
        died = first.wait(timeout=120)
    except subprocess.TimeoutExpired:
        died = "is still waiting"
    check("the first completer", died, "-9")

    scene(
        "Two others go on, each with keys of its own",
        "They are woken when the lease of the first completer is over.",
    )
    for _ in range(2):
        start(COMPLETER, provider, NEVER)
    n = len(DEATHS)
    check("keys", wait_for(STATES, "completed"), "completed")
    check("    orders, charges, receipted, receipts", everything(), f"{n}, {n}, {n}, {n}")
    attempts = "SELECT min(attempt) || ', ' || (max(attempt) > 2) FROM idem_keys WHERE client = 'bob'"
    check("    least attempts, one key had more", count("shop", attempts), "2, true")
    end()


if __name__ == "__main__":
    main()
