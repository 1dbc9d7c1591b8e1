#!/usr/bin/env python3
"""The cycle in five statements: beside the same round trips with empty functions, and beside hand-written SQL."""

from scripts import BARE, EMPTY, FIVE, HAND, HOT, HOT_UPSERT, LOOK, PLPGSQL
from suite import ANSWER, FINGERPRINT, Report, Server, ratios, take_turns

WAYS = {"idem": FIVE, "empty functions": EMPTY, "hand-written SQL": HAND, "PL/pgSQL": PLPGSQL, "bare transaction": BARE}
REPLAYS = {
    "idem": HOT,
    "hand-written SQL, inserting first": HOT_UPSERT,
    "hand-written SQL, reading first": LOOK,
}
TARGETS = {"on": 0.88, "off": 0.75}
CLIENTS = 8


def cycles(report, server):
    for commit, limit in TARGETS.items():
        loads = take_turns({name: lambda script=script: server.load(script, CLIENTS, synchronous_commit=commit)
                            for name, script in WAYS.items()}, warm_up=0)
        rate = {name: [load.rate for load in values] for name, values in loads.items()}
        report.target(f"five statements / the same with empty functions, synchronous_commit {commit}",
                      ratios(rate["idem"], rate["empty functions"]), ">=", limit)
        report.target(f"five statements / hand-written SQL, synchronous_commit {commit}",
                      ratios(rate["idem"], rate["hand-written SQL"]), ">=", 1.2)
        for name, values in loads.items():
            report.figure(f"{name}, synchronous_commit {commit}", rate[name], 0, "/s")
            report.figure(f"{name}, synchronous_commit {commit}: CPU of the backend", [load.cpu for load in values], 0, "µs")
        report.data(f"rate_{commit}", [[name, *values] for name, values in rate.items()])


def replays(report, server):
    """A hot key, as retries come."""
    with server.connect() as db:
        db.execute(f"SELECT idem_complete('c', 'hot', token, 200, {ANSWER}) FROM idem_reserve('c', 'hot', {FINGERPRINT})")
        db.execute(f"SELECT bench_spi_complete('c', 'hot', token, 200, {ANSWER}) FROM bench_spi_reserve('c', 'hot', {FINGERPRINT})")
    loads = take_turns({name: lambda script=script: server.load(script, CLIENTS) for name, script in REPLAYS.items()},
                       warm_up=0)
    rate = {name: [load.rate for load in values] for name, values in loads.items()}
    report.target("replay of a hot key / hand-written SQL, inserting first",
                  ratios(rate["idem"], rate["hand-written SQL, inserting first"]), ">=", 5)
    report.figure("replay of a hot key / hand-written SQL, reading first",
                  ratios(rate["idem"], rate["hand-written SQL, reading first"]), 2)
    for name, values in rate.items():
        report.figure(f"replay of a hot key: {name}", values, 0, "/s")
    report.data("replay", [[name, *values] for name, values in rate.items()])


def main():
    report = Report("The cycle in five statements")
    with Server() as server:
        cycles(report, server)
        replays(report, server)
    report.write()


main()
