#!/usr/bin/env python3
"""Steady state: many retentions in a row, with the sweeper, and by hand with an index on expiry and batched DELETE.

Both do the same five statements, keep a key for the same time, and have
autovacuum on. The reaper by hand is a session that deletes in batches of 1000,
each a transaction, oldest first, skipping what is locked, and pauses as long as
the sweeper does once there is nothing left.

Every visit of the sweeper, and of autovacuum, is a process that starts; with a
retention of seconds that is a good part of what they take, and has nothing to do
with the number of keys. So what they take on the idle server is measured first.
"""

import statistics
import subprocess
import threading
import time
from pathlib import Path

from scripts import FIVE, by_hand
from suite import ROUNDS, TICKS, TINY, WORK, Report, Server, ratios, scaled

RETENTION = scaled(15, 40, 1)
RETENTIONS = scaled(5, 10, 3)
CLIENTS = scaled(8, 8, 2)
PAUSE = RETENTION / 8  # as often as at the defaults
RUNS = scaled(ROUNDS, max(1, ROUNDS // 5), 1)  # in turns, since the disk is not the same from one minute to the next

SETTINGS = f"""
autovacuum = on
autovacuum_naptime = {max(1, RETENTION // 4)}
autovacuum_vacuum_cost_delay = 0
idem.sweeper = on
idem.sweep_interval = '{round(PAUSE * 1000)} ms'
idem.retention = '{RETENTION} s'
"""
REAP = """DELETE FROM hand_key WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM hand_key WHERE expires_at <= clock_timestamp() ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED))"""


class Reaper(threading.Thread):
    """What somebody writes who does it by hand."""

    def __init__(self, server):
        super().__init__()
        self.stopping = threading.Event()
        self.db = server.connect()
        self.pid = self.db.info.backend_pid

    def run(self):
        while not self.stopping.is_set():
            if self.db.execute(REAP).rowcount < 1000:
                self.stopping.wait(PAUSE)
        self.db.close()


def process_cpu(pid):
    """Seconds of CPU of a process that is there."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def upkeep_cpu(server, reaper):
    """CPU of whatever removes keys: processes that have ended, launchers, and the reaper."""
    with server.connect() as db:
        pids = [pid for (pid,) in db.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('idem launcher', 'autovacuum launcher')").fetchall()]
    if reaper is not None:
        pids.append(reaper.pid)
    return server.cpu() + sum(process_cpu(pid) for pid in pids)


def upkeep_rate(server, reaper, seconds):
    """The CPU that they take in the next so many seconds: µs per second."""
    start, before = time.monotonic(), upkeep_cpu(server, reaper)
    time.sleep(seconds)
    return (upkeep_cpu(server, reaper) - before) * 1e6 / (time.monotonic() - start)


def transactions(path):
    """(second since the start, latency in ms) of each logged transaction."""
    rows = []
    for log in path.parent.glob(path.name + "*"):
        for line in log.read_text().splitlines():
            words = line.split()
            rows.append((int(words[4]) + int(words[5]) / 1e6, int(words[2]) / 1000))
        log.unlink()
    rows.sort()
    return [(at - rows[0][0], latency) for at, latency in rows]


class Run:
    """One server, loaded for many retentions."""

    def __init__(self, script, by_hand):
        seconds = RETENTION * RETENTIONS
        with Server(SETTINGS) as server:
            reaper = None
            if by_hand:
                server.sql("ALTER SYSTEM SET idem.sweeper = off")
                server.sql("SELECT pg_reload_conf()")
                server.sql("CREATE INDEX ON hand_key (expires_at)")
                reaper = Reaper(server)
                reaper.start()
            idle = upkeep_rate(server, reaper, RETENTION / 2)
            command = server.pgbench(script, CLIENTS, seconds, ["-l", f"--log-prefix={WORK}/transactions"])
            if TINY:
                limit = command.index("-t")
                command[limit:limit + 2] = ["-T", str(seconds)]
            load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            time.sleep(2 * RETENTION)  # until keys are removed as fast as they come
            busy = upkeep_rate(server, reaper, max(seconds - 2 * RETENTION - 0.5, 0.2))
            if load.wait() != 0:
                raise RuntimeError(load.stderr.read().decode())
            if reaper is not None:
                reaper.stopping.set()
                reaper.join()
            with server.connect() as db:
                table = "hand_key" if by_hand else "idem_key"
                self.size = db.execute(f"SELECT pg_total_relation_size('{table}')").fetchone()[0]
                self.left = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]

        rows = transactions(WORK / "transactions")
        late = sorted(latency for at, latency in rows if at >= 2 * RETENTION)
        self.p99 = late[len(late) * 99 // 100]
        self.rate = len(late) / max(rows[-1][0] - 2 * RETENTION, 0.001)
        self.idle = idle / 1000
        self.cpu_in_all = busy / self.rate
        self.cpu_per_key = (busy - idle) / self.rate
        per_second = [0] * (int(rows[-1][0]) + 1)
        for at, _ in rows:
            per_second[int(at)] += 1
        self.per_second = per_second[:-1] or per_second
        # the first second is that of connecting
        first = self.per_second[1 if RETENTION > 2 else 0:RETENTION]
        last = self.per_second[-max(1, len(self.per_second) // 3):]
        self.flat = statistics.mean(last) / statistics.mean(first)


def main():
    report = Report(f"Steady state, {RETENTIONS} retentions of {RETENTION} s")
    ways = {"idem": (FIVE, False), "by hand": (by_hand(f"{RETENTION} s"), True)}
    found = {name: [] for name in ways}
    for number in range(RUNS):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            found[name].append(Run(*ways[name]))

    def all_of(name, attribute):
        return [getattr(run, attribute) for run in found[name]]

    report.target("rate of the last third / rate of the first retention", all_of("idem", "flat"), ">=", 0.95)
    report.target("CPU of sweeper and vacuum per key, beyond what they take without any", all_of("idem", "cpu_per_key"), "<=", 12, 1, "µs")
    report.target("rate / that of hand-written SQL", ratios(all_of("idem", "rate"), all_of("by hand", "rate")), ">=", 1.15)
    report.target("99th percentile of latency / that of hand-written SQL",
                  ratios(all_of("idem", "p99"), all_of("by hand", "p99")), "<=", 1)
    for name in ways:
        report.figure(f"{name}: rate once keys expire", all_of(name, "rate"), 0, "/s")
        report.figure(f"{name}: 99th percentile of latency", all_of(name, "p99"), 1, "ms")
        report.figure(f"{name}: last third / first retention", all_of(name, "flat"), 2)
        report.figure(f"{name}: CPU of what removes keys, without any", all_of(name, "idle"), 1, "ms per second")
        report.figure(f"{name}: ... per key, beyond that", all_of(name, "cpu_per_key"), 1, "µs")
        report.figure(f"{name}: ... per key, in all", all_of(name, "cpu_in_all"), 1, "µs")
        report.figure(f"{name}: size at the end / keys of one retention",
                      [run.size / (run.rate * RETENTION) for run in found[name]], 0, "B")
    runs = [run.per_second for name in ways for run in found[name][:1]]
    report.data("rate", [[second, *(run[second] for run in runs)] for second in range(min(len(run) for run in runs))])
    report.write()


main()
