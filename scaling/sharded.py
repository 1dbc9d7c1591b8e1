"""PL/Proxy over four servers: whole operations where the client lives, a shard that dies, and clients that move, under load.

usage: sharded.py --bindir DIR --conf FILE --directory DIR [--seconds N] [--clients N] [--seed N]

Ends with one line `N passed, N failed`.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORTURE = HERE.parent / "torture"
sys.path[:0] = [str(TORTURE)]

import check  # noqa: E402
import wire  # noqa: E402
from shards import Move, Shards  # noqa: E402

import parts  # noqa: E402


class NoHistory:
    """What the torture test's checks show with a violation; here the message says it."""

    start = 0

    def lines(self, _):
        return []


class Run:
    def __init__(self, options):
        self.options = options
        self.directory = Path(options.directory)
        self.processes = []
        self.windows = []  # (what, slots concerned, t0, t1)
        self.problems = []

    def prepare(self):
        self.shards = Shards(self.options.bindir, self.directory, Path(self.options.conf).read_text(), 4)
        self.shards.start()
        self.shards.spread(self.shards.shards[:3])  # the fourth is added under load

    def start_load(self):
        config = {"seed": self.options.seed, "directory": str(self.directory),
                  "proxy": self.shards.proxy.conninfo, "pause": 0.002}
        errors = open(self.directory / "clients.log", "w")
        for number in range(self.options.clients):
            self.processes.append(subprocess.Popen(
                [sys.executable, HERE / "sharded_client.py", json.dumps(config), str(number)], stderr=errors, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TORTURE)}))
        for process in self.processes:
            process.stdout.readline()
        for process in self.processes:
            process.stdin.close()

    def during(self, what, slots, action):
        began = wire.wall()
        action()
        self.windows.append((what, slots, began, wire.wall()))

    def load(self):
        """A third of the time in peace, then a dead shard, then the moves."""
        self.start_load()
        calm = self.options.seconds / 4
        self.during("in peace", [], lambda: time.sleep(calm))
        victim = self.shards.shards[1]
        slots = [slot for slot, shard in self.shards.map.items() if shard is victim]

        def kill():
            victim.kill()
            time.sleep(calm)
        self.during("one shard is dead", slots, kill)
        victim.start()
        time.sleep(1)
        self.move()
        time.sleep(calm)
        (self.directory / "stop").touch()
        for number, process in enumerate(self.processes):
            try:
                if process.wait(180) != 0:
                    self.problems.append(["clients end", f"client {number}: {(self.directory / 'clients.log').read_text()[-1500:]}"])
            except subprocess.TimeoutExpired:
                self.problems.append(["clients end", f"client {number} hangs"])
                process.kill()

    def move(self):
        """A quarter of the clients to the new shard, from each of the three; the servers die now and then on the way."""
        new = self.shards.shards[3]
        for number, source in enumerate(self.shards.shards[:3]):
            slots = [slot for slot, shard in self.shards.map.items() if shard is source][::4]
            move = Move(self.shards, source, new, slots)

            def whole(move=move, number=number, source=source):
                move.begin()
                if number == 1:  # the new shard dies while it copies
                    new.kill()
                    new.start()
                elif number == 2:  # the source dies
                    source.kill()
                    source.start()
                parts.wait_for("the copy", move.copied, 120)
                began = wire.wall()
                move.finish()
                self.windows.append((f"fence of move {number + 1}", slots, began, wire.wall()))
                move.clear()
            self.during(f"move {number + 1}", slots, whole)
            print(f"# move {number + 1}: {len(slots)} slots; seconds after the source was told to let go: "
                  + ", ".join(f"{what} {seconds:.3f}" for what, seconds in move.times.items()), flush=True)

    def collect(self):
        self.history = []
        for path in self.directory.glob("sharded.*.jsonl"):
            self.history += [json.loads(line) for line in open(path)]
        self.rows = {table: defaultdict(list) for table in ("payment", "inbox", "idem_key")}
        for number, shard in enumerate(self.shards.shards):
            for table, column in ("payment", "key"), ("inbox", "message"), ("idem_key", "key"):
                for line in shard.psql(f"SELECT client, {column}, (get_byte(decode(md5(client), 'hex'), 0) & 63) FROM {table}").splitlines():
                    client, key, slot = line.split("|")
                    self.rows[table][client, key].append((number, int(slot)))
        # every key once more
        self.last = {}
        db = wire.Connection(self.shards.proxy.conninfo)
        for entry in {(e["client"], e["key"], e["kind"]) for e in self.history}:
            client, key, kind = entry
            if kind == "receive":
                self.last[client, key] = db.query("SELECT receive($1, $2)", client, key)[0][0].decode()
            else:
                request = json.dumps({"client": client, "key": key, "amount": 5})
                outcome, body = db.query("SELECT outcome, body FROM idem_reserve($1, $2, request => $3::jsonb)", client, key, request)[0]
                self.last[client, key] = (outcome.decode(), hashlib.sha1(body or b"").hexdigest())
        db.close()

    def judge(self):
        checks = check.Checks(NoHistory())
        for entry in self.history:
            key = (entry["client"], entry["key"])
            checks.that("every request is answered", "unanswered" not in entry, f"{key}: {entry.get('unanswered')}")
            if "unanswered" in entry:
                continue
            if entry["kind"] == "receive":
                checks.that("a message has one effect", len(self.rows["inbox"][key]) == 1, f"{key}: {self.rows['inbox'][key]}")
                checks.that("a message that was handled stays handled", self.last[key] == "f", f"{key}: {self.last[key]}")
            else:
                checks.that("a key has one payment", len(self.rows["payment"][key]) == 1, f"{key}: {self.rows['payment'][key]}")
                checks.that("every retry gets the first answer", self.last[key] == ("replay", entry["answer"]),
                            f"{key}: {entry['answer']}, then {self.last[key]}")
            checks.that("a key is on one shard", len(self.rows["idem_key"][key]) == 1, f"{key}: {self.rows['idem_key'][key]}")
        for table, by_key in self.rows.items():
            for key, places in by_key.items():
                for number, slot in places:
                    checks.that("rows are where their client lives", self.shards.map[slot] is self.shards.shards[number],
                                f"{table} {key}: on shard {number}")
        told = {(e["client"], e["key"]) for e in self.history}
        for key in self.rows["payment"]:
            checks.that("no payment without a request", key in told, str(key))
        errors = Counter()
        spared = Counter()
        for entry in self.history:
            for at, _, error in entry.get("tries", []):
                for what, slots, t0, t1 in self.windows:
                    if t0 <= at <= t1:
                        mine = "concerned" if entry["slot"] in slots else "others"
                        if error:
                            errors[what, mine, error] += 1
                        elif mine == "others":
                            spared[what] += 1
        what = "one shard is dead"
        failures = {key: count for key, count in errors.items() if key[:2] == (what, "others")}
        for _ in range(spared[what]):
            checks.that("a dead shard is nothing to the others", True, "")
        checks.that("a dead shard is nothing to the others", spared[what] > 0 and not failures, str(failures))
        refused = {key: count for key, count in errors.items() if key[1] == "others" and key[0] in ("in peace", "fence of move 1")}
        checks.that("a move is nothing to the others", not refused, str(refused))
        checks.facts["clients end"] += 1
        for name, message in self.problems:
            checks.that(name, False, message)
        passed, failed = checks.report()
        self.statistics(errors)
        return passed, failed

    def statistics(self, errors):
        kinds = Counter(e["kind"] for e in self.history)
        print("# answered: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
        for what, slots, t0, t1 in self.windows:
            for mine, wanted in ("concerned", True), ("others", False):
                chosen = [e for e in self.history if "t1" in e and t0 <= e["t0"] <= t1 and (e["slot"] in slots) == wanted]
                if not chosen:
                    continue
                spans = sorted(e["t1"] - e["t0"] for e in chosen)
                print(f"# {what}, {mine}: {len(chosen) / max(1e-9, (t1 - t0) / 1e6):.0f} requests/s, p50 {spans[len(spans) // 2] / 1000:.1f} ms,"
                      f" p99 {spans[int(len(spans) * 0.99)] / 1000:.1f} ms, longest {spans[-1] / 1000:.0f} ms; errors: "
                      + (", ".join(f"{error} {count}" for (w, m, error), count in errors.items() if (w, m) == (what, mine)) or "none"))

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        if hasattr(self, "shards"):
            self.shards.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", default=None)
    parser.add_argument("--directory", required=True)
    options = parser.parse_args()
    options.seed = options.seed or str(random.SystemRandom().randrange(10**6))
    os.makedirs(options.directory, mode=0o700)
    print(f"# SEED={options.seed} CLIENTS={options.clients} SECONDS={options.seconds:g}", flush=True)
    run = Run(options)
    try:
        run.prepare()
        run.load()
        run.collect()
        passed, failed = run.judge()
    except Exception:
        traceback.print_exc()
        print("0 passed, 1 failed")
        return 1
    finally:
        run.end()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(143))
    sys.exit(main())
