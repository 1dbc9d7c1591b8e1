#!/usr/bin/env python3
"""Reserve and complete in transactions of their own, many a second, while a session holds a snapshot.

The snapshot keeps every deleted row where it is; the tables of reminders are to
stay small all the same, and with them the pass that reads them. Shown is their
size and the time of the sweeper's passes (pauses included) while the session is
there, and after it has gone.
"""

import subprocess
import threading
import time

from suite import FINGERPRINT, TINY, Report, Server, scaled

SECONDS = scaled(30, 300, 4)
INTERVAL = scaled(2, 30, 1)  # of the sweeper
BATCH = 100  # keys reserved by one transaction, and completed by another
RATE = scaled(10000, 10000, 1000)  # reservations a second, and as many answers
CLIENTS = scaled(4, 4, 2)

SETTINGS = f"""
synchronous_commit = off
autovacuum = on
autovacuum_naptime = 1
idem.sweeper = on
idem.sweep_interval = '{INTERVAL} s'
"""
LEASED = rf"""\set k random(100000000000, 999999999999)
SELECT count(*) FROM generate_series(1, {BATCH}) i,
       idem_reserve('c', :k || '-' || i, {FINGERPRINT}, token => md5(:k || '-' || i)::uuid);
SELECT count(idem_complete('c', :k || '-' || i, md5(:k || '-' || i)::uuid, 200, 'ok')) FROM generate_series(1, {BATCH}) i;
"""
LOOK = """SELECT pg_table_size('idem_reminder_1') + pg_table_size('idem_reminder_2'),
                 extract(epoch FROM last_pass_duration)::float8, passes
            FROM idem_stat WHERE datname = current_database()"""


def watch(server, stop, rows):
    """Size of the tables and the time of the last pass, five times an interval."""
    start = time.monotonic()
    with server.connect() as db:
        while not stop.is_set():
            found = db.execute(LOOK).fetchone()
            if found:
                rows.append((time.monotonic() - start, *found))
            stop.wait(INTERVAL / 5)


def wait_passes(server, count):
    with server.connect() as db:
        begin = db.execute(LOOK).fetchone()[2]
        while db.execute(LOOK).fetchone()[2] < begin + count:
            time.sleep(0.1)


def main():
    report = Report(f"{RATE:,} leases a second beside a snapshot {SECONDS} s old")
    rows, stop = [], threading.Event()
    with Server(SETTINGS) as server, server.connect() as old:
        old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM payment")
        watcher = threading.Thread(target=watch, args=(server, stop, rows))
        watcher.start()
        command = server.pgbench(LEASED, CLIENTS, SECONDS, ["-R", RATE // BATCH])
        if TINY:
            limit = command.index("-t")
            command[limit:limit + 2] = ["-T", str(SECONDS)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        stop.set()
        watcher.join()
        lasted = rows[-1][0]
        done = int(output.split("number of transactions actually processed:")[1].split()[0].split("/")[0]) * BATCH
        old.execute("COMMIT")
        wait_passes(server, 3)
        with server.connect() as db:
            after, duration, _ = db.execute(LOOK).fetchone()

    first = [row for row in rows if row[0] < lasted / 2]
    second = [row for row in rows if row[0] >= lasted / 2]

    def most(part, column):
        return max((row[column] or 0 for row in part), default=0)

    report.target("size of the reminders, second half / first half", [most(second, 1) / max(most(first, 1), 1)], "<=", 1.5)
    report.figure("keys reserved and completed", [done / SECONDS], 0, "a second")
    report.figure("size of the reminders at most, first half", [most(first, 1) / 1e6], 1, "MB")
    report.figure("... second half", [most(second, 1) / 1e6], 1, "MB")
    report.figure("... after the session has gone", [after / 1e6], 1, "MB")
    report.figure("longest pass, first half", [most(first, 2) * 1000], 0, "ms")
    report.figure("... second half", [most(second, 2) * 1000], 0, "ms")
    report.figure("... a pass after the session has gone", [(duration or 0) * 1000], 0, "ms")
    report.data("size", [(round(at, 1), size, pass_time) for at, size, pass_time, _ in rows])
    report.write()


main()
