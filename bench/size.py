#!/usr/bin/env python3
"""Bytes per key at rest, with a 200-byte answer and a UUID as the key.

The keys come in ten parts with a VACUUM after each, as autovacuum does it for
this table. Without any, what a key took while it was in progress stays beside it.
"""

from scripts import FIVE, HAND
from suite import Report, Server, scaled

CLIENTS = 4
TRANSACTIONS = scaled(10000, 100000, 10)
PARTS = scaled(10, 10, 1)


def per_key(db, table):
    """Bytes of the heap and of the index."""
    heap, index, count = db.execute(
        f"SELECT pg_table_size('{table}'), pg_indexes_size('{table}'), count(*) FROM {table}").fetchone()
    return heap / count, index / count


def load(server, table, script, parts):
    """Keys in so many parts, with a VACUUM after each; bytes per key."""
    with server.connect() as db:
        db.execute(f"TRUNCATE {table}")
        for _ in range(parts):
            server.load(script, CLIENTS, {"transactions": TRANSACTIONS // parts}, synchronous_commit="off")
            db.execute(f"VACUUM {table}")
        return per_key(db, table)


def main():
    report = Report("Bytes per key at rest, 200-byte answer")
    with Server() as server:
        heap, index = load(server, "idem_key", FIVE, PARTS)
        report.target("heap and index per key", heap + index, "<=", 480, 0, "B")
        report.figure("of that the heap", heap, 0, "B")
        report.figure("and the index", index, 0, "B")
        report.figure("the same with one VACUUM at the end", sum(load(server, "idem_key", FIVE, 1)), 0, "B")
        report.figure("hand-written SQL, without an index on expiry", sum(load(server, "hand_key", HAND, PARTS)), 0, "B")
    report.write()


main()
