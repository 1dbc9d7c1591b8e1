#!/usr/bin/env python3
"""Space over many retentions of churn, with reserve and complete in transactions of their own.

Bytes on disk (table, index, TOAST) beside those of the live keys alone, freshly
loaded: the same rows in an empty table with the same settings. The sweeper goes
round eight times per retention, as it does at the defaults; autovacuum is as
installed, but looks every second, since a retention is short here.
"""

import re
import subprocess
import threading
import time

from suite import ANSWER, DRAW_KEY, FINGERPRINT, KEY, TINY, Report, Server, scaled

RETENTION = scaled(10, 60, 1)
RETENTIONS = scaled(8, 20, 3)
CLIENTS = scaled(8, 8, 2)
RATE = scaled(500, 1000, 100)  # new keys a second, so that there are always as many live ones

SETTINGS = f"""
autovacuum = on
autovacuum_naptime = 1
log_autovacuum_min_duration = 0
synchronous_commit = off
idem.sweeper = on
idem.sweep_interval = '{RETENTION * 1000 // 8} ms'
idem.retention = '{RETENTION} s'
"""
LEASED = DRAW_KEY + f"""SELECT token FROM idem_reserve('c', {KEY}, {FINGERPRINT}) \\gset
SELECT idem_complete('c', {KEY}, :token::uuid, 200, {ANSWER});
"""
SIZE = """SELECT pg_total_relation_size('idem_key'), count(*) FILTER (WHERE expires_at > now()) FROM idem_key"""


def sample(server, seconds, rows):
    """Size and number of live keys, four times per retention, for so long."""
    start = time.monotonic()
    with server.connect() as db:
        while time.monotonic() - start < seconds:
            rows.append((time.monotonic() - start, *db.execute(SIZE).fetchone()))
            time.sleep(RETENTION / 4)


def bytes_per_key(db, fillfactor):
    """Of the live keys, freshly loaded."""
    db.execute(f"CREATE TABLE packed (LIKE idem_key INCLUDING STORAGE INCLUDING COMPRESSION) WITH (fillfactor = {fillfactor})")
    db.execute("INSERT INTO packed SELECT * FROM idem_key WHERE expires_at > now()")
    db.execute("ALTER TABLE packed ADD PRIMARY KEY (client, key)")
    size, count = db.execute("SELECT pg_total_relation_size('packed'), count(*) FROM packed").fetchone()
    db.execute("DROP TABLE packed")
    return size / max(count, 1)


def autovacuum_cpu(log):
    """Seconds, as autovacuum itself reports them."""
    found = re.findall(r"CPU: user: ([\d.]+) s, system: ([\d.]+) s", log)
    return sum(float(user) + float(system) for user, system in found)


def main():
    report = Report(f"Space, {RETENTIONS} retentions of {RETENTION} s")
    seconds = RETENTION * RETENTIONS
    rows = []
    with Server(SETTINGS) as server:
        before = server.cpu()
        command = server.pgbench(LEASED, CLIENTS, seconds, ["-R", RATE])
        if TINY:
            limit = command.index("-t")
            command[limit:limit + 2] = ["-T", str(seconds)]
        load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        sampler = threading.Thread(target=sample, args=(server, seconds - RETENTION / 2, rows))
        sampler.start()
        sampler.join()
        with server.connect() as db:
            loaded, packed = bytes_per_key(db, server.fillfactor()), bytes_per_key(db, 100)
            if load.wait() != 0:
                raise RuntimeError(load.stderr.read().decode())
            db.execute("SELECT pg_stat_force_next_flush()")
            updated, hot = db.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idem_key'").fetchone()
        cpu = server.settled_cpu() - before
        vacuum = autovacuum_cpu((server.base / "log").read_text())

    late = [(size, live) for at, size, live in rows if at >= 2 * RETENTION and live > 0]
    late = late or [(loaded, 1)]  # a machine too busy for the shortest of runs
    report.target("bytes on disk / live keys freshly loaded", [max(size / (live * loaded) for size, live in late)], "<=", 1.6)
    report.target("HOT updates / completes", [hot / max(updated, 1)], ">=", 0.9)
    report.figure("autovacuum / CPU of the server", [100 * vacuum / max(cpu, 0.01)], 1, "%")
    report.figure("bytes per live key, freshly loaded", [loaded], 0, "B")
    report.figure("... without room for updates (fillfactor 100)", [packed], 0, "B")
    report.figure("bytes per live key, in the course of it, at most", [max(size / live for size, live in late)], 0, "B")
    report.figure("live keys", [late[-1][1]])
    report.data("size", [(round(at, 1), size, live) for at, size, live in rows])
    report.write()


main()
