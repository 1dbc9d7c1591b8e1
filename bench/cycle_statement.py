#!/usr/bin/env python3
"""The whole cycle in one statement: rates beside the bare business INSERT's, and beside Redis."""

import shutil

from scripts import CALL, CTE, FUNCTION, INSERT
from suite import Redis, Report, Server, drive, driver, ratios, take_turns

WAYS = {"bare INSERT": INSERT, "idem_call": CALL, "CTE": CTE, "the function that idem_call calls": FUNCTION}
TARGETS = {"on": 0.85, "off": 0.70}
CLIENTS = 8


def main():
    report = Report("The whole cycle in one statement")
    with Server() as server:
        for commit, limit in TARGETS.items():
            loads = take_turns({name: lambda script=script: server.load(script, CLIENTS, synchronous_commit=commit)
                                for name, script in WAYS.items()}, warm_up=0)
            rate = {name: [load.rate for load in values] for name, values in loads.items()}
            for name in "idem_call", "CTE":
                report.target(f"{name} / bare INSERT, synchronous_commit {commit}",
                              ratios(rate[name], rate["bare INSERT"]), ">=", limit)
            for name, values in loads.items():
                report.figure(f"{name}, synchronous_commit {commit}", rate[name], 0, "/s")
                report.figure(f"{name}, synchronous_commit {commit}: CPU of the backend", [load.cpu for load in values], 0, "µs")
            report.data(f"rate_{commit}", [[name, *values] for name, values in rate.items()])

        if driver() is None or shutil.which("redis-server") is None:
            report.note("Redis was not compared: libpq, hiredis or redis-server are not there")
        else:
            with Redis() as redis:
                rate = take_turns({mode: lambda mode=mode: drive(mode, CLIENTS, server, redis)
                                   for mode in ("bare", "call", "redis-cycle")}, warm_up=0)
            report.figure("idem_call / bare INSERT, libpq", ratios(rate["call"], rate["bare"]), 2)
            report.figure("Redis around a bare INSERT / bare INSERT, libpq and hiredis",
                          ratios(rate["redis-cycle"], rate["bare"]), 2)
            report.data("driver", [[mode, *values] for mode, values in rate.items()])
    report.write()


main()
