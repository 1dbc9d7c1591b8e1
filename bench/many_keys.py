#!/usr/bin/env python3
"""Many sessions that reserve different new keys: what they wait for, beside a bare INSERT."""

import threading
from collections import Counter
from pathlib import Path

from scripts import CALL, INSERT
from suite import Report, Server, pg_config, ratios, scaled, take_turns


SESSIONS = scaled(64, 64, 4)
LARGE = "INSERT INTO large_payment (client, amount, note) VALUES ('c', 1990, repeat('x', 130));\n"
WAYS = {"bare INSERT": INSERT, "idem_call": CALL, "INSERT of a row as large as a key's": LARGE}

# Of these somebody has to wait who writes; a hot spot is one of these that idem adds.
CONTENDED = ("LWLock", "BufferPin", "Buffer", "Lock")

# The heavy lock that is waited for is the one for extending a table. How much of that
# comes with the bytes is what an INSERT of as many shows.
HEAVY = ("Lock",)


class Samples(threading.Thread):
    """What the sessions wait for, every 20 ms."""

    def __init__(self, server):
        super().__init__()
        self.server, self.stopping, self.events = server, threading.Event(), Counter()

    def run(self):
        with self.server.connect() as db:
            while not self.stopping.wait(0.02):
                for kind, event, count in db.execute("""
                        SELECT coalesce(wait_event_type, 'running'), coalesce(wait_event, ''), count(*)
                          FROM pg_stat_activity
                         WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()
                         GROUP BY 1, 2""").fetchall():
                    self.events[kind, event] += count


def sampled(server, script, commit, total):
    """Load, with samples of what it waits for added to the total."""
    samples = Samples(server)
    samples.start()
    load = server.load(script, SESSIONS, synchronous_commit=commit)
    samples.stopping.set()
    samples.join()
    total.update(samples.events)
    return load.rate


def share(events, kinds):
    """Per cent of the samples that are of these kinds."""
    return 100 * sum(count for (kind, _), count in events.items() if kind in kinds) / max(sum(events.values()), 1)


def profile(server):
    """The same as pg_wait_sampling saw it, from inside the server."""
    with server.connect() as db:
        return Counter({(kind, event): count for kind, event, count in db.execute("""
            SELECT event_type, event, sum(count)::bigint FROM pg_wait_sampling_profile
             WHERE event_type IS NOT NULL AND event_type NOT IN ('Client', 'Activity') GROUP BY 1, 2""").fetchall()})


def main():
    report = Report(f"{SESSIONS} sessions that reserve different new keys")
    sampler = Path(pg_config("--pkglibdir"), "pg_wait_sampling.so").exists()
    preload = "shared_preload_libraries = 'idem, pg_wait_sampling'\n" if sampler else ""
    with Server(preload) as server:
        if sampler:
            server.sql("CREATE EXTENSION pg_wait_sampling")
        for commit in "on", "off":
            events = {name: Counter() for name in WAYS}
            profiles = {name: Counter() for name in WAYS}

            def measure(name):
                if sampler:
                    server.sql("SELECT pg_wait_sampling_reset_profile()")
                rate = sampled(server, WAYS[name], commit, events[name])
                if sampler:
                    profiles[name].update(profile(server))
                return rate

            rate = take_turns({name: lambda name=name: measure(name) for name in WAYS}, warm_up=0)
            more = share(events["idem_call"], CONTENDED) - share(events["bare INSERT"], CONTENDED)
            report.target(f"share of waits for LWLocks, buffers and locks beyond a bare INSERT's, synchronous_commit {commit}",
                          more, "<=", 5, 1, "points")
            for name in WAYS:
                report.figure(f"{name}, synchronous_commit {commit}: waits for LWLocks, buffers and locks", share(events[name], CONTENDED), 1, "%")
                report.figure("... of that for locks, to extend a table", share(events[name], HEAVY), 1, "%")
            report.figure(f"idem_call / bare INSERT, synchronous_commit {commit}", ratios(rate["idem_call"], rate["bare INSERT"]), 2)
            for name, counter in events.items():
                total = max(sum(counter.values()), 1)
                top = ", ".join(f"{kind} {event} {100 * count / total:.1f} %".replace("  ", " ")
                                for (kind, event), count in counter.most_common(6))
                report.note(f"{name}, synchronous_commit {commit}: {top}")
            for name, counter in profiles.items():
                total = sum(counter.values())
                top = ", ".join(f"{kind} {event} {100 * count / total:.1f} %" for (kind, event), count in counter.most_common(6))
                report.note(f"{name}, synchronous_commit {commit}, waits as pg_wait_sampling saw them: {top or 'none'}")
    report.write()


main()
