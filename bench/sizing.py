#!/usr/bin/env python3
"""Bytes per live key, by the size of the answer, and what follows for keys per second and retention.

Keys are UUIDs, reserved by one transaction and completed by another; answers
are JSON of which one half can be compressed away. At rest: what the README's sizing guide is worked
out from. How much is added by expired keys that are not removed yet, and by
pages that are not full again, is bench/space.py's.
"""

import hashlib

from suite import DRAW_KEY, FINGERPRINT, KEY, Report, Server, scaled

KEYS = scaled(20000, 100000, 200)
CLIENTS = 4
ANSWERS = (0, 200, 1000, 5000, 20000)
REQUEST = 300  # bytes of a request that is kept


def body(size):
    """JSON of so many bytes, hexadecimal, so that one half can be compressed away."""
    digits = "".join(hashlib.md5(str(i).encode()).hexdigest() for i in range(size // 32 + 1))
    return f"'{{\"answer\":\"{digits[:max(size - 13, 0)]}\"}}'" if size else "NULL"


def measure(server, answer, request="NULL"):
    """Table with TOAST, and index, in bytes per key."""
    script = DRAW_KEY + f"""SELECT token FROM idem_reserve('c', {KEY}, {FINGERPRINT}, request => {request}) \\gset
SELECT idem_complete('c', {KEY}, :token::uuid, 200, {body(answer)});
"""
    server.sql("TRUNCATE idem_key, idem_reminder_1, idem_reminder_2")
    server.load(script, CLIENTS, {"transactions": KEYS // CLIENTS}, synchronous_commit="off")
    with server.connect() as db:
        db.execute("VACUUM idem_key")
        heap, index, count = db.execute(
            "SELECT pg_table_size('idem_key'), pg_indexes_size('idem_key'), count(*) FROM idem_key").fetchone()
    return heap / count, index / count


def main():
    report = Report("Bytes per live key, by the size of the answer")
    with Server() as server:
        for answer in ANSWERS:
            heap, index = measure(server, answer)
            if answer == 200:
                report.target("index per key", index, "<=", 100, 0, "B")
            report.figure(f"answer of {answer:,} bytes: table and index", [heap + index], 0, "B")
            day = (heap + index) * 86400 / 1e9
            report.figure(f"answer of {answer:,} bytes: each key per second, kept for 24 h", [day], 3, "GB")
        heap, index = measure(server, 200, f"jsonb_build_object('order', repeat('x', {REQUEST - 14}))")
        report.figure(f"answer of 200 bytes and a request of {REQUEST}: table and index", [heap + index], 0, "B")
    report.write()


main()
