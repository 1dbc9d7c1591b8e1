#!/usr/bin/env python3
"""A storm of retries: many sessions on one key that is in flight, and on one that is completed."""

import threading

from scripts import HOT, HOT_SELECT
from suite import ANSWER, BINDIR, FINGERPRINT, Report, Server, ratios, run, scaled, take_turns

SESSIONS = scaled(200, 200, 4)
IN_FLIGHT = f"SELECT outcome, status_code, headers, body FROM idem_reserve('c', 'live', {FINGERPRINT});\n"
WAYS = {"SELECT": HOT_SELECT, "completed": HOT, "in flight": IN_FLIGHT}

# What the server writes by itself now and then
OF_ITS_OWN = ("Standby", "XLOG")


class Waits(threading.Thread):
    """Looks every so often for sessions that wait for a heavy lock."""

    def __init__(self, server):
        super().__init__()
        self.server, self.stopping, self.seen, self.looks = server, threading.Event(), 0, 0

    def run(self):
        with self.server.connect() as db:
            while not self.stopping.wait(0.05):
                self.looks += 1
                self.seen += db.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()[0]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stopping.set()
        self.join()


def written(server, start):
    """Bytes of WAL since then that are not the server's own."""
    end = server.sql("SELECT pg_current_wal_flush_lsn()")
    if end == start:
        return 0
    output = run([BINDIR / "pg_waldump", "-p", server.data / "pg_wal", "-s", start, "-e", end, "--stats"])
    total = 0
    for line in output.splitlines():
        words = line.replace("(", " ").replace(")", " ").split()
        if len(words) == 9 and words[1].isdigit() and words[0] not in OF_ITS_OWN and words[0] != "Total":
            total += int(words[7])
    return total


def main():
    report = Report(f"Retry storm, {SESSIONS} sessions on one key")
    with Server() as server:
        with server.connect() as db:
            db.execute(f"SELECT idem_complete('c', 'hot', token, 200, {ANSWER}) FROM idem_reserve('c', 'hot', {FINGERPRINT})")
            db.execute(f"SELECT count(*) FROM idem_reserve('c', 'live', {FINGERPRINT}, '1 h')")
            db.execute("VACUUM ANALYZE")
        wal = {name: 0 for name in WAYS}
        waits = {name: 0 for name in WAYS}

        def storm(name):
            start = server.sql("SELECT pg_current_wal_flush_lsn()")
            with Waits(server) as waiting:
                load = server.load(WAYS[name], SESSIONS)
            wal[name] += written(server, start)
            waits[name] += waiting.seen
            return load

        server.load(HOT_SELECT, 8)  # hint bits
        loads = take_turns({name: lambda name=name: storm(name) for name in WAYS}, warm_up=0)
        rate = {name: [load.rate for load in values] for name, values in loads.items()}
        for name in "completed", "in flight":
            report.target(f"retries, {name} / SELECT of the row", ratios(rate[name], rate["SELECT"]), ">=", 0.9)
        report.target("WAL of all retries", wal["completed"] + wal["in flight"], "<=", 0, 0, "B")
        report.target("sessions seen waiting for a lock", waits["completed"] + waits["in flight"], "<=", 0, 0)
        for name, values in loads.items():
            report.figure(name, rate[name], 0, "/s")
            report.figure(f"{name}: CPU of the backend", [load.cpu for load in values], 1, "µs")
        report.data("rate", [[name, *values] for name, values in rate.items()])
    report.write()


main()
