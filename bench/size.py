#!/usr/bin/env python3
"""Bytes per key at rest, with a 200-byte answer and a UUID as the key."""

from scripts import FIVE, HAND
from suite import Report, Server, scaled

CLIENTS = 4
TRANSACTIONS = scaled(10000, 100000, 10)


def measure(report, server, name, table, script):
    server.load(script, CLIENTS, {"transactions": TRANSACTIONS}, synchronous_commit="off")
    with server.connect() as db:
        db.execute(f"VACUUM {table}")
        heap, index, count = db.execute(f"""
            SELECT pg_table_size('{table}'), pg_indexes_size('{table}'), count(*) FROM {table}""").fetchone()
    if table == "idem_key":
        report.target("heap and index per key", (heap + index) / count, "<=", 480, 0, "B")
    else:
        report.figure(f"{name}: heap and index per key", (heap + index) / count, 0, "B")
    report.figure(f"{name}: of that the heap", heap / count, 0, "B")
    report.figure(f"{name}: and the index", index / count, 0, "B")


def main():
    report = Report("Bytes per key at rest, 200-byte answer")
    with Server() as server:
        measure(report, server, "idem", "idem_key", FIVE)
        measure(report, server, "hand-written SQL", "hand_key", HAND)
    report.write()


main()
