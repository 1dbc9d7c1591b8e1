#!/usr/bin/env python3
"""Latency of reserve and complete with the sweeper at work on a backlog, beside the same without it.

Both take turns on one server. For a turn with the sweeper, expired keys are put
in first, more than it removes meanwhile; so it is at work from beginning to end.
"""

from pathlib import Path

from scripts import FIVE
from suite import SECONDS, WORK, Report, Server, ratios, run, scaled, take_turns

CLIENTS = 8
BACKLOG = scaled(500000, 1000000, 2000)
FILL = f"""INSERT INTO idem_key (expires_at, lease_until, began_at, token, status_code, completed_at,
                                 client, key, fingerprint, body)
SELECT t, t, t, gen_random_uuid(), 200, t, 'old', gen_random_uuid()::text, '\\x01', repeat('x', 200)::bytea
  FROM generate_series(1, {BACKLOG}), (SELECT now() - interval '1 day') AS x(t)"""


class Turn:
    """Some seconds of load, with the sweeper or without."""

    def __init__(self, server, sweeping):
        with server.connect() as db:
            db.execute("TRUNCATE idem_key, payment")
            db.execute(FILL)
            db.execute("CHECKPOINT")
            db.execute(f"ALTER SYSTEM SET idem.sweeper = {sweeping}")
            db.execute("SELECT pg_reload_conf()")
        run(server.pgbench(FIVE, CLIENTS, SECONDS, ["-l", f"--log-prefix={WORK}/sweep"]))
        with server.connect() as db:
            db.execute("ALTER SYSTEM SET idem.sweeper = off")
            db.execute("SELECT pg_reload_conf()")
            self.removed = BACKLOG - db.execute("SELECT count(*) FROM idem_key WHERE client = 'old'").fetchone()[0]
        latencies = []
        for log in Path(WORK).glob("sweep.*"):
            latencies += [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]
            log.unlink()
        latencies.sort()
        self.p99 = latencies[len(latencies) * 99 // 100]
        self.p50 = latencies[len(latencies) // 2]
        self.rate = len(latencies) / SECONDS


def main():
    report = Report("Five statements with the sweeper at work, and without")
    with Server("autovacuum = on\nidem.sweep_interval = '1 s'\n") as server:
        turns = take_turns({"with": lambda: Turn(server, "on"), "without": lambda: Turn(server, "off")})

    def all_of(name, attribute):
        return [getattr(turn, attribute) for turn in turns[name]]

    report.target("p99 with the sweeper at work / without", ratios(all_of("with", "p99"), all_of("without", "p99")), "<=", 1.5)
    report.figure("p50 with the sweeper / without", ratios(all_of("with", "p50"), all_of("without", "p50")), 2)
    report.figure("rate with the sweeper / without", ratios(all_of("with", "rate"), all_of("without", "rate")), 2)
    for name in turns:
        report.figure(f"p99, {name}", all_of(name, "p99"), 2, "ms")
    report.figure("keys removed meanwhile", [n / SECONDS for n in all_of("with", "removed")], 0, "a second")
    report.write()


main()
