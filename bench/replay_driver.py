#!/usr/bin/env python3
"""Replay, through a driver: beside a prepared SELECT of the same row and Redis GET."""

import shutil

from suite import ANSWER, Redis, Report, Server, drive, driver, ratios, take_turns

KEYS = 1000
SELECT = r"""\set k random(1, 1000)
SELECT status_code, headers, body FROM idem_key WHERE client = 'r' AND key = :k::text
"""
REPLAY = r"""\set k random(1, 1000)
SELECT outcome, status_code, headers, body FROM idem_reserve('r', :k::text, '\x01')
"""


def by_driver(report, server):
    """The same loop for both systems."""
    if driver() is None or shutil.which("redis-server") is None:
        report.note("Redis was not compared: libpq, hiredis or redis-server are not there")
        return
    with Redis() as redis:
        rates = take_turns({mode: lambda mode=mode: drive(mode, 1, server, redis)
                            for mode in ("select", "replay", "redis-get")}, warm_up=0)
    report.target("replay / Redis GET, 1 client", ratios(rates["replay"], rates["redis-get"]), ">=", 0.7)
    report.figure("SELECT / Redis GET, 1 client", ratios(rates["select"], rates["redis-get"]), 2)
    for mode, values in rates.items():
        report.figure(f"{mode}, 1 client, libpq and hiredis", values, 0, "/s")
    report.data("driver", [[mode, *values] for mode, values in rates.items()])


def main():
    report = Report("Replay, through a driver")
    with Server() as server:
        with server.connect() as db:
            db.execute(f"""SELECT count(*) FROM (SELECT idem_complete('r', i::text, (idem_reserve('r', i::text, '\\x01')).token, 200, {ANSWER})
                           FROM generate_series(1, {KEYS}) i OFFSET 0) s""")
            db.execute("VACUUM ANALYZE")

        for clients in 1, 8:
            loads = take_turns({
                "select": lambda: server.load(SELECT, clients),
                "replay": lambda: server.load(REPLAY, clients)}, warm_up=0)
            rate = {name: [load.rate for load in values] for name, values in loads.items()}
            what = f"replay / prepared SELECT by primary key, {clients} client{'s' * (clients > 1)}"
            if clients == 1:
                report.target(what, ratios(rate["replay"], rate["select"]), ">=", 0.92)
            else:
                report.figure(what, ratios(rate["replay"], rate["select"]), 2)
            for name, values in loads.items():
                report.figure(f"{name}, {clients} client{'s' * (clients > 1)}", [load.rate for load in values], 0, "/s")
                report.figure(f"{name}: CPU of the backend", [load.cpu for load in values], 1, "µs")
            report.data(f"pgbench_{clients}", [[name, *values] for name, values in rate.items()])
        by_driver(report, server)
    report.write()


main()
