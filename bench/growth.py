#!/usr/bin/env python3
"""Growth: what a new key costs when ten thousand, and when a hundred or a thousand times as many, are alive.

The same reservations are timed in turn in a large database and in one that
stays small, in sessions that have run before (warm) and in new ones. Keys are
random, so every one goes to another page of the index. Timed is the CPU of the
backend, which reads its pages from shared buffers; how much of the index does
not fit there any more is a matter of memory, and its size is reported. The
instructions of a new key in both say how much of a difference is a deeper
index; the rest is caches.
"""

import shutil

import psycopg

from callgrind import count
from suite import ANSWER, FINGERPRINT, ROUNDS, TINY, Report, Server, cpu_of, ratios, scaled, take_turns

SMALL = scaled(10**4, tiny=200)
SIZES = scaled([10**4, 10**5, 10**6], [10**4, 10**5, 10**6, 10**7], [200, 400])
BATCH = scaled(1000, 2000, 10)
BATCHES = 1 if TINY else 5 * ROUNDS  # each takes some milliseconds
FRESH = scaled(50, 50, 5)
FEW, MANY = scaled((100, 600), (100, 1100), (5, 15))
BETWEEN_CHECKPOINTS = scaled([300, 3000, 30000], [1000, 10000, 100000], [10])

# Rows as a day of completed requests leaves them: in pages that are full, so that a
# new key comes to a new one. They are put in by INSERT, which takes the same way
# through the index and less time (and gives each a null bitmap, of 8 bytes).
FILL = f"""INSERT INTO idem_key (expires_at, lease_until, began_at, token, status_code, completed_at,
                                 client, key, fingerprint, body)
SELECT now() + '24 h', now() + '30 s', now(), gen_random_uuid(), 200, now(),
       'c', gen_random_uuid()::text, {FINGERPRINT}, {ANSWER}
  FROM generate_series(1, %s)"""
INSERT = f"""INSERT INTO idem_key (expires_at, lease_until, began_at, token, client, key, fingerprint)
SELECT now() + '24 h', now() + '30 s', now(), gen_random_uuid(), 'c', key, {FINGERPRINT} FROM fresh"""
FRESH_KEYS = "CREATE TEMP TABLE fresh AS SELECT gen_random_uuid()::text AS key FROM generate_series(1, %s)"
RESERVE = f"SELECT count(*) FROM (SELECT idem_reserve('c', key, {FINGERPRINT}) FROM fresh OFFSET 0) s"
COMPLETE = f"""SELECT count(*) FROM (SELECT idem_complete('c', k.key, k.token, 200, {ANSWER})
  FROM fresh JOIN idem_key k ON k.client = 'c' AND k.key = fresh.key OFFSET 0) s"""


def connect(server, database):
    return psycopg.connect(server.conninfo.replace("dbname=postgres", f"dbname={database}"), autocommit=True)


def fill(db, count, fillfactor):
    """Up to so many live keys."""
    there = db.execute("SELECT count(*) FROM idem_key").fetchone()[0]
    db.execute("ALTER TABLE idem_key SET (fillfactor = 100)")
    for start in range(there, count, 100000):
        db.execute(FILL % min(100000, count - start))
    db.execute(f"ALTER TABLE idem_key SET (fillfactor = {fillfactor})")
    db.execute("VACUUM ANALYZE idem_key")


def reserve(db, count):
    """Reserve new keys; CPU in µs for each. They are completed then, which is not timed."""
    db.execute("DROP TABLE IF EXISTS fresh")
    db.execute(FRESH_KEYS % count)
    with db.transaction():
        spent = cpu_of(db, RESERVE)
        db.execute(COMPLETE)
    return spent / count


def insert(db, count):
    """The same rows, by an INSERT into the same table: what the index costs anybody."""
    db.execute("DROP TABLE IF EXISTS fresh")
    db.execute(FRESH_KEYS % count)
    return cpu_of(db, INSERT) / count


def reserve_anew(server, database):
    """The same in a new session."""
    with connect(server, database) as db:
        return reserve(db, FRESH)


def wal_per_key(db, count):
    """WAL of so many new keys, completed, right after a checkpoint."""
    db.execute("CHECKPOINT")
    db.execute("DROP TABLE IF EXISTS fresh")
    db.execute(FRESH_KEYS % count)
    start = db.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
    with db.transaction():
        db.execute(RESERVE)
        db.execute(COMPLETE)
    return float(db.execute("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", [start]).fetchone()[0]) / count


def instructions(server, database):
    """Those of a new key, in a backend under callgrind; the server is shut down."""
    profiles = []
    for client, calls in ("few", FEW), ("many", MANY):
        loop = (f"DO $$ BEGIN FOR i IN 1..{calls} LOOP PERFORM idem_reserve('c', gen_random_uuid()::text, {FINGERPRINT});"
                " END LOOP; END $$;\n")
        profiles.append(count(server.data, database, f"{database}.{client}", loop, ["idem_reserve"]))
    return profiles[1].minus(profiles[0], MANY - FEW).inclusive("idem_reserve")


def main():
    report = Report(f"Growth, {SIZES[0]:,} to {SIZES[-1]:,} live keys")
    cost, bare_cost, first, wal = [], [], [], []
    with Server(buffers=scaled("2GB", "8GB", "64MB")) as server:
        server.sql("CREATE DATABASE small TEMPLATE postgres")
        with connect(server, "small") as small, connect(server, "postgres") as large:
            fill(small, SMALL, server.fillfactor())
            for size in SIZES:
                fill(large, size, server.fillfactor())
                large.execute("CHECKPOINT")
                for _ in range(scaled(10, 20, 1)):  # the pages become this session's own
                    reserve(large, BATCH)
                    reserve(small, BATCH)
                warm = take_turns({"large": lambda: reserve(large, BATCH), "small": lambda: reserve(small, BATCH)}, BATCHES)
                bare = take_turns({"large": lambda: insert(large, BATCH), "small": lambda: insert(small, BATCH)}, BATCHES)
                anew = take_turns({"large": lambda: reserve_anew(server, "postgres"),
                                   "small": lambda: reserve_anew(server, "small")})
                index = large.execute("SELECT pg_relation_size('idem_key_pkey')").fetchone()[0]
                wal_here = [wal_per_key(large, count) for count in BETWEEN_CHECKPOINTS]

                warm_ratio, bare_ratio, anew_ratio = (ratios(turns["large"], turns["small"]) for turns in (warm, bare, anew))
                if size == SIZES[-1]:
                    report.target(f"new key at {size:,} live keys / at {SMALL:,}, warm sessions", warm_ratio, "<=", 1.3)
                report.figure(f"new key at {size:,} / at {SMALL:,}, warm sessions", warm_ratio, 2)
                report.figure(f"a plain INSERT of such a row at {size:,} / at {SMALL:,}, warm sessions", bare_ratio, 2)
                report.figure(f"new key at {size:,} / at {SMALL:,}, the first {FRESH} of a session", anew_ratio, 2)
                report.figure(f"new key at {size:,}, warm session: CPU", warm["large"], 1, "µs")
                report.figure(f"index at {size:,}", index / 1e6, 1, "MB")
                for keys, bytes_per_key in zip(BETWEEN_CHECKPOINTS, wal_here):
                    report.figure(f"WAL per key at {size:,}, {keys:,} keys between two checkpoints", bytes_per_key, 0, "B")
                cost.append([size, *warm_ratio])
                wal.append([size, *wal_here])
                bare_cost.append([size, *bare_ratio])
                first.append([size, *anew_ratio])
        if shutil.which("valgrind") and not TINY:
            server.stop()
            small, large = instructions(server, "small"), instructions(server, "postgres")
            report.figure(f"instructions of a new key at {SIZES[-1]:,} / at {SMALL:,}", large / small, 2)
            report.figure(f"instructions of a new key at {SIZES[-1]:,}", large)
    report.data("cost", cost)
    report.data("insert", bare_cost)
    report.data("first", first)
    report.data("wal", wal)
    report.data("between_checkpoints", [BETWEEN_CHECKPOINTS])
    report.write()


main()
