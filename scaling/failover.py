"""The torture clients at a Patroni cluster whose leader is killed, frozen and cut off, again and again.

usage: failover.py --bindir DIR --conf FILE --directory DIR [--seconds N] [--clients N] [--seed N] [--mode sync|async]
                   [--faults NAME,NAME...]

Ends with one line `N passed, N failed`. In the mode async nothing is judged but the provider: it counts what is forgotten.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORTURE = HERE.parent / "torture"
sys.path[:0] = [str(TORTURE)]

import check  # noqa: E402
import torture  # noqa: E402
import wire  # noqa: E402
from cluster import TTL, Cluster  # noqa: E402
from failover_client import Client, connect  # noqa: E402
from keys import FOREVER  # noqa: E402

import parts  # noqa: E402


class Primary:
    """Whatever is the primary now, reached as the clients reach it."""

    def __init__(self, cluster):
        self.socket = cluster.socket
        self.conninfo = cluster.conninfo

    def connect(self):
        return connect(self.conninfo, random)

    def query(self, sql, *params):
        while True:
            db = self.connect()
            try:
                return db.query(sql, *params)
            except wire.Lost:
                continue
            except wire.Failed as error:
                if error.sqlstate != "25006":
                    raise
            finally:
                db.close()


class Prober(threading.Thread):
    """One payment after the other, each until it is answered: how long is nobody served?"""

    def __init__(self, conninfo):
        super().__init__(daemon=True)
        self.conninfo = conninfo
        self.answered = []  # (monotonic time of the try that was answered, of its answer)
        self.done = threading.Event()

    def run(self):
        number = 0
        db = None
        while not self.done.is_set():
            key = str(number)
            began = time.monotonic()
            try:
                db = db or wire.Connection(self.conninfo)
                db.query("SELECT outcome FROM idem_call('probe', $1, 'work(jsonb)', $2::jsonb)", key,
                         json.dumps({"client": "probe", "key": key}))
                self.answered.append((began, time.monotonic()))
                number += 1
            except (wire.Lost, wire.Refused, wire.Failed):
                if db is not None:
                    db.close()
                db = None
            time.sleep(0.05)
        if db is not None:
            db.close()

    def first_after(self, moment):
        """When was the first one answered whose try was begun after that?"""
        for began, end in self.answered[-200:]:
            if began >= moment:
                return end
        return None

    def longest_gap(self, since):
        """The longest time, from just before that moment until now, in which nobody was answered."""
        ends = [end for _, end in self.answered]
        first = next((i for i, end in enumerate(ends) if end >= since), len(ends))
        ends = [*ends[max(first - 1, 0):], time.monotonic()]
        return max(after - before for before, after in zip(ends, ends[1:]))


class Nemesis:
    """What becomes of the leader. Each fault is healed, and the cluster complete, before the next."""

    def __init__(self, cluster, prober, rng, log, faults):
        self.cluster = cluster
        self.faults = faults
        self.prober = prober
        self.rng = rng
        self.log = log
        self.deck = []
        self.counts = Counter()
        self.recovery = defaultdict(list)
        self.leaders = []
        self.cards = [(self.kill, 3), (self.kill_postgres, 1), (self.kill_backend, 1), (self.freeze, 3), (self.freeze_briefly, 1),
                      (self.cut, 3), (self.refuse, 1), (self.cut_from_etcd, 1), (self.freeze_patroni, 1), (self.standby, 1),
                      (self.etcd, 1), (self.switchover, 1)]
        if not cluster.synchronous:
            self.cards = [(self.lag_and_kill, 1)]

    def draw(self):
        if not self.deck and self.faults:
            self.deck = [getattr(self, name) for name in reversed(self.faults)]
        elif not self.deck:
            self.deck = [action for action, count in self.cards for _ in range(count)]
            self.rng.shuffle(self.deck)
            # the three that matter most come first, so that a short run has them
            for action in self.freeze, self.cut, self.kill:
                if action in self.deck:
                    self.deck.remove(action)
                    self.deck.append(action)
        return self.deck.pop()

    def note(self, what, **more):
        self.log.write(json.dumps({"c": "nemesis", "op": what, "t1": wire.wall(), "calls": [], **more}) + "\n")
        self.log.flush()

    def served_again(self, moment, seconds=120):
        return parts.wait_for("somebody is served again", lambda: self.prober.first_after(moment), seconds, 0.05)

    def once(self):
        leader = parts.wait_for("there is a leader", self.cluster.leader)
        action = self.draw()
        name = action.__name__
        self.note(f"begin {name}", leader=leader.name)
        self.counts[name] += 1
        began = time.monotonic()
        action(leader)
        self.served_again(time.monotonic())
        self.note(f"served again after {name}")
        time.sleep(self.rng.uniform(0.5, 3))  # the new leader alone with its clients
        for node in self.cluster.nodes:
            node.heal()
        for member in self.cluster.etcd:
            if not member.running():
                member.start()
        parts.wait_for("the cluster is complete again", self.cluster.complete, 180, 0.3)
        successor = parts.wait_for("there is a leader", self.cluster.leader)
        outage = self.prober.longest_gap(began)
        self.recovery[name].append(outage)
        self.leaders.append((leader.name, successor.name))
        self.note(f"end {name}", leader=successor.name)
        print(f"# {name} of {leader.name}: nobody served for {outage:.1f} s, then by {successor.name}; all nodes back after"
              f" {time.monotonic() - began:.1f} s", flush=True)

    # ---- the leader's machine

    def kill(self, leader):
        leader.kill()

    def kill_postgres(self, leader):
        leader.kill_postgres()

    def kill_backend(self, leader):
        leader.kill_backend()

    def freeze(self, leader):
        leader.freeze()
        self.wait_for_successor(leader)

    def freeze_briefly(self, leader):
        """Shorter than the lock: no other leader, but the proxy has noticed."""
        leader.freeze()
        time.sleep(self.rng.uniform(0.2, TTL / 2))
        leader.thaw()

    def cut(self, leader):
        leader.cut()
        self.wait_for_successor(leader)

    def refuse(self, leader):
        leader.refuse()

    def cut_from_etcd(self, leader):
        leader.cut_from_etcd()
        self.wait_for_successor(leader)

    def freeze_patroni(self, leader):
        """The old leader goes on, and does not know that there is a new one."""
        leader.freeze_patroni()
        self.wait_for_successor(leader)

    def wait_for_successor(self, leader):
        def other():
            return any(node is not leader and (node.ask("patroni") or {}).get("role") in ("master", "primary")
                       for node in self.cluster.nodes)
        parts.wait_for("there is another leader", other, 120)

    # ---- the others

    def standby(self, _):
        """The synchronous standby dies: nobody is answered until there is another one."""
        if node := self.cluster.synchronous_standby():
            node.kill()

    def etcd(self, _):
        self.rng.choice(self.cluster.etcd).kill()

    def switchover(self, _):
        self.cluster.switchover()

    # ---- asynchronous replication

    def lag_and_kill(self, leader):
        """The standbys are sent nothing for two seconds, as on a slow line; then the leader dies."""
        rows = leader.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walsender'")
        parts.send([int(row[0]) for row in rows], signal.SIGSTOP)
        time.sleep(2)
        leader.kill()


class Run(torture.Run):
    """The torture test's own run, with a cluster in place of the server."""

    def prepare(self):
        conf = dict(re.findall(r"^(\S+) = '(.*)'$", Path(self.options.conf).read_text(), re.M))
        self.cluster = Cluster(self.options.bindir, self.directory, conf, self.options.mode == "sync")
        self.cluster.start()
        self.server = Primary(self.cluster)
        self.server.query((TORTURE / "schema.sql").read_text())
        port = ".s.PGSQL.5432"
        proxied = self.directory / "p"
        proxied.mkdir()
        self.helper(TORTURE / "proxy.py", proxied / port, self.server.socket / port, self.options.seed)
        self.helper(TORTURE / "provider.py", self.directory / "provider", self.directory / "provider.db")
        self.config = {
            "seed": self.options.seed, "directory": str(self.directory), "server": self.server.conninfo,
            "proxy": self.server.conninfo.replace(str(self.server.socket), str(proxied)),
            "provider": str(self.directory / "provider"), "epoch": 5, "seconds": self.options.seconds, "operations": 10**9,
        }

    def torture(self):
        errors = open(self.directory / "clients.log", "w")
        environment = {**os.environ, "PYTHONPATH": str(TORTURE)}
        running = [
            subprocess.Popen([sys.executable, HERE / "failover_client.py", json.dumps(self.config), str(number)], stderr=errors,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            for number in range(self.options.clients)
        ]
        self.processes += running
        for process in running:
            process.stdout.readline()
        for process in running:
            process.stdin.close()
        self.prober = Prober(self.server.conninfo)
        self.prober.start()
        log = open(self.directory / "history.nemesis.jsonl", "w")
        self.nemesis = Nemesis(self.cluster, self.prober, self.rng, log, self.options.faults)
        janitor = threading.Thread(target=self.janitor, args=(running,), daemon=True)
        janitor.start()
        until = time.monotonic() + self.options.seconds
        try:
            while time.monotonic() < until and any(process.poll() is None for process in running):
                time.sleep(self.rng.uniform(1, 4))
                self.nemesis.once()
        except Exception:
            self.problems.append(["the cluster recovers", traceback.format_exc()[-1500:]])
            for node in self.cluster.nodes:
                node.heal()
        deadline = time.monotonic() + 120
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.prober.done.set()
        self.prober.join(60)
        janitor.join(60)
        for number, process in enumerate(running):
            if process.poll() is None:
                self.problems.append(["clients end", f"client {number} hangs: {self.activity()}"])
                process.kill()
            elif process.returncode != 0:
                self.problems.append(["clients end", f"client {number} failed: {Path(errors.name).read_text()[-2000:]}"])

    def janitor(self, running):
        """Prepared transactions whose client went away."""
        nemesis = torture.Nemesis(self.server, random.Random(self.options.seed), [], None)
        while any(process.poll() is None for process in running):
            time.sleep(0.5)
            try:
                nemesis.janitor()
            except (wire.Failed, wire.Lost, wire.Refused):
                pass

    def settle(self):
        parts.wait_for("the cluster is complete at the end", self.cluster.complete, 180, 0.5)
        torture.clients.Client = Client
        super().settle()
        self.compare_nodes()

    def compare_nodes(self):
        """Whoever is promoted next knows what this one knows."""
        end = self.server.query("SELECT pg_current_wal_flush_lsn()")[0][0]
        told = set()
        for node in self.cluster.nodes:
            def arrived(node=node):
                return node.query("SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= $1::pg_lsn", end)[0][0] == b"t"
            parts.wait_for(f"{node.name} has everything", arrived)
            told.add(tuple(node.query(
                "SELECT (SELECT md5(string_agg(k::text, '' ORDER BY client, key)) FROM idem_key k WHERE expires_at > '2100-01-01' OR"
                " client NOT LIKE '%-short'), (SELECT md5(string_agg(b::text, '' ORDER BY id)) FROM business b)")[0]))
        if len(told) != 1:
            self.problems.append(["all nodes have the same keys and rows", str(told)])

    def collect(self):
        self.server_query = self.server.query

        def query(sql, *params):
            return [] if "pg_logical_slot_get_changes" in sql else self.server_query(sql, *params)
        self.server.query = query  # a logical slot does not outlive its server: no ledger
        super().collect()

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait()
        if hasattr(self, "cluster"):
            self.cluster.end()


# ---- judging

LOGGED = re.compile(r"^(\S+ \S+ \S+) \[(\d+)\] (client backend|idem \w+) (ERROR|FATAL|PANIC):  (\w{5}): (.*)")


def check_logs(checks, history, nodes):
    for node in nodes:
        for line in open(node.log / "server.log", errors="replace"):
            checks.that("the log has no failed assertion", "TRAP:" not in line, line.strip())
            if found := check.SIGNAL.search(line):
                checks.that("no process dies but by the nemesis", found[2] == "9", line.strip())
            if found := LOGGED.match(line):
                checks.that("the log has documented errors only", found[4] != "PANIC" and (
                    check.DOCUMENTED.fullmatch(found[5]) or check.OF_NEMESIS.fullmatch(found[5])), line.strip())


def remembered(history):
    """By key that is kept for ever: who was told an answer, and when that was sure."""
    told = check.answers_of(history)
    return {key: min(t1 for _, t1, _ in answers) for key, answers in told.items() if key[0] in FOREVER}


def forgotten(history):
    """Keys that were answered and later are not."""
    known = remembered(history)
    lost = set()
    for call in history.calls:
        if call["f"] in ("reserve", "call", "lookup") and call.get("out") in ("new", "in_flight", "absent", "stale", "in_progress") \
                and call["t0"] > known.get(call["id"], float("inf")):
            lost.add(call["id"])
    return known, lost


def check_remembered(checks, history):
    """Every key that somebody was told an answer of gives it at the end, after all failovers."""
    last = {}
    for call in history.calls:
        if call["record"]["op"] == "visit" and call["record"]["c"] == 1000 and call["f"] == "reserve" and call.get("out"):
            last[call["id"]] = (call["out"], call["t0"])
    for key, since in remembered(history).items():
        if key in last and since < last[key][1]:
            checks.that("an answered key is not forgotten", last[key][0] == "replay", f"{key}: {last[key][0]} at the end", key)


def judge(run):
    check.DOCUMENTED = re.compile(check.DOCUMENTED.pattern + "|25006")
    history = check.History(run.directory)
    checks = check.Checks(history)
    told = check.answers_of(history)
    check.check_errors(checks, history)
    check.check_shapes(checks, history)
    check.check_answers(checks, history, told)
    check.check_terminal(checks, history, told)
    check_remembered(checks, history)
    check.check_rows(checks, history)
    check.check_work(checks, history)
    check.check_replays(checks, history)
    check.check_windows(checks, history)
    check.check_tokens(checks, history)
    check.check_attempts(checks, history)
    check.check_rush(checks, history)
    check.check_fencing(checks, history)
    check.check_accepted(checks, history)
    check.check_leases(checks, history)
    check.check_presence(checks, history)
    check.check_provider(checks, history)
    check.check_inbox(checks, history)
    check_logs(checks, history, run.cluster.nodes)
    check.AT_THE_END += ("the cluster recovers", "all nodes have the same keys and rows")
    check.check_end(checks, history)
    changes = sum(a != b for a, b in run.nemesis.leaders)
    checks.that("the leader changed", changes > 0 or not run.nemesis.leaders, f"in {len(run.nemesis.leaders)} faults")
    passed, failed = checks.report()
    check.statistics(history)
    return passed, failed


def report(run):
    leaders = run.nemesis.leaders
    print(f"# {len(leaders)} faults, {sum(a != b for a, b in leaders)} changes of the leader;"
          f" {len(run.prober.answered)} probes answered")
    print(f"# seconds in which nobody was served (an unheard leader is replaced after {TTL} s):")
    for name, times in sorted(run.nemesis.recovery.items()):
        print(f"#   {name:15} {len(times)} times, median {statistics.median(times):5.1f}, longest {max(times):5.1f}")


def report_async(run):
    """What asynchronous replication may forget: counted, not judged. The provider is judged."""
    history = check.History(run.directory)
    known, lost = forgotten(history)
    twice = [key for key, rows in history.rows["business"].items() if key[0] in FOREVER and len(rows) > 1]
    done = {call["work"] for call in history.calls if call["f"] == "complete" and call["sure"] and call["record"]["iso"] and call["client"] == "tx"}
    gone = done - set(history.row_ids["business"])
    print(f"# {len(known)} keys were answered; {len(lost)} of them were forgotten and were new, in flight or absent later")
    print(f"# {len(done)} committed business rows; {len(gone)} of them are gone; {len(twice)} keys have two rows")
    checks = check.Checks(history)
    charges, calls = check.check_provider(checks, history)
    print(f"# the provider, which is asked with idem_provider_key: {charges} charges of {calls} calls")
    checks.violations.pop("a replay is of a charge that was made", None)
    passed, failed = checks.report()
    return passed, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", default=None)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--faults", type=lambda names: names.split(","), help="these, in this order, and no others")
    parser.add_argument("--directory", required=True)
    options = parser.parse_args()
    options.seed = options.seed or str(random.SystemRandom().randrange(10**6))
    os.makedirs(options.directory, mode=0o700)
    print(f"# SEED={options.seed} CLIENTS={options.clients} SECONDS={options.seconds:g} MODE={options.mode}", flush=True)

    run = Run(options)
    try:
        for phase in run.prepare, run.torture, run.settle_somehow, run.collect:
            began = time.monotonic()
            phase()
            run.phases[phase.__name__] = round(time.monotonic() - began, 1)
    except Exception:
        traceback.print_exc()
        print("0 passed, 1 failed")
        return 1
    finally:
        run.end()
    passed, failed = judge(run) if options.mode == "sync" else report_async(run)
    report(run)
    print("# seconds: " + ", ".join(f"{name} {seconds}" for name, seconds in run.phases.items()))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(143))
    sys.exit(main())
