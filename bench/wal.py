#!/usr/bin/env python3
"""WAL per key, beyond that of the business row, without full-page images (bench/growth.py has those)."""

from scripts import BARE, CALL, FIVE, HAND
from suite import BINDIR, Report, Server, run, scaled

CLIENTS = 4
TRANSACTIONS = scaled(2500, 25000, 10)
WAYS = {"bare transaction": BARE, "five statements": FIVE, "idem_call": CALL, "hand-written SQL": HAND}


def records(server, start, end, count):
    """Kinds of records between two places, per key; the largest first."""
    output = run([BINDIR / "pg_waldump", "-p", server.data / "pg_wal", "-s", start, "-e", end, "--stats=record"])
    rows = []
    for line in output.splitlines():
        words = line.replace("(", " ").replace(")", " ").split()
        if len(words) == 9 and "/" in words[0] and words[1].isdigit():
            rows.append((float(words[7]) / count, words[0], int(words[1]) / count))
    return sorted(rows, reverse=True)


def main():
    report = Report("WAL per key, 200-byte answer")
    with Server() as server:
        for script in WAYS.values():  # pages that a full image was due of have had it
            server.load(script, CLIENTS, {"transactions": max(10, TRANSACTIONS // 5)})
        bytes_per_key = {}
        for name, script in WAYS.items():
            start = server.sql("SELECT pg_current_wal_insert_lsn()")
            count = server.load(script, CLIENTS, {"transactions": TRANSACTIONS}).transactions
            end = server.sql("SELECT pg_current_wal_flush_lsn()")
            bytes_per_key[name] = float(server.sql("SELECT %s::pg_lsn - %s::pg_lsn", end, start)) / count
            if name == "five statements":
                parts = records(server, start, end, count)

        bare = bytes_per_key.pop("bare transaction")
        report.target("five statements: WAL per key beyond the business row", bytes_per_key["five statements"] - bare,
                      "<=", 660, 0, "B")
        report.figure("idem_call: the same (its answer is shorter)", bytes_per_key["idem_call"] - bare, 0, "B")
        report.figure("hand-written SQL: the same, without an index on expiry", bytes_per_key["hand-written SQL"] - bare, 0, "B")
        report.figure("the business row's own, with its commit", bare, 0, "B")
        for size, name, number in parts[:8]:
            report.figure(f"{name}, {number:.2f} a key", size, 0, "B")
    report.write()


main()
