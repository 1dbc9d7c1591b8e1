"""Runs clients against a server that a nemesis ruins, and has the checker judge the history.

usage: torture.py --bindir DIR [--conf FILE] [--seconds N] [--operations N] [--clients N] [--seed N] [--directory DIR]

The server is a private one: a data directory, a socket in a folder, no port. FILE holds settings
with which it finds the extension. Ends with one line `N passed, N failed`; exit status 1 on a failure.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import check
import client as clients
import wire
from keys import IN_ONE, MARKS, SHORT

HERE = Path(__file__).parent

SETTINGS = """
shared_preload_libraries = 'idem'
listen_addresses = ''
max_connections = 80
max_prepared_transactions = 40
max_worker_processes = 12
shared_buffers = 32MB
fsync = off                     # no machine crashes here, only processes
wal_level = logical             # the ledger, see ledger.py
deadlock_timeout = 100ms
restart_after_crash = on
autovacuum_naptime = 1s
checkpoint_timeout = 30s
log_error_verbosity = verbose   # the checker reads the SQLSTATEs
log_line_prefix = '%m [%p] %b '
log_statement = none
log_checkpoints = off
log_min_duration_statement = -1
log_timezone = 'UTC'
timezone = 'UTC'
idem.sweep_interval = 100ms
idem.sweep_batch = 20
"""


class Server:
    def __init__(self, bindir, directory, conf):
        self.bindir = Path(bindir)
        self.data = directory / "data"
        self.socket = directory / "s"
        self.log = directory / "server.log"
        self.conninfo = f"host={self.socket} user=postgres dbname=postgres sslmode=disable gssencmode=disable connect_timeout=10"
        self.socket.mkdir()
        self.run("initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(SETTINGS + f"unix_socket_directories = '{self.socket}'\n" + (Path(conf).read_text() if conf else ""))

    def run(self, program, *arguments):
        done = subprocess.run([self.bindir / program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=180, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout}")

    def start(self):
        # pg_ctl's output must not be a pipe: the server would inherit it
        done = subprocess.run([self.bindir / "pg_ctl", "-D", self.data, "-l", self.log, "-t", "120", "-w", "start"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180)
        if done.returncode != 0:
            raise RuntimeError(f"the server does not start: {self.log.read_text()[-3000:]}")

    def stop(self, mode):
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-t", "120", "-w", "stop")

    def connect(self):
        return wire.connect(self.conninfo, time.monotonic() + 60)

    def query(self, sql, *params):
        """In a connection of its own, again after a crash."""
        while True:
            db = self.connect()
            try:
                return db.query(sql, *params)
            except wire.Lost:
                continue
            finally:
                db.close()


class Nemesis:
    """What happens to servers and clients out there, at random moments."""

    def __init__(self, server, rng, pids, log):
        self.server = server
        self.rng = rng
        self.pids = pids  # of the clients
        self.log = log
        self.counts = {}
        self.deck = []
        self.cards = [
            (self.terminate, 5), (self.kill, 3), (self.restart, 2), (self.freeze_backend, 4), (self.freeze_client, 4),
            (self.cancel, 3), (self.terminate_worker, 2), (self.checkpoint, 1), (self.vacuum, 2), (self.vacuum_full, 1),
            (self.janitor, 4),
        ]

    def draw(self):
        """Cards rather than dice: everything has its turn before anything comes again too often."""
        if not self.deck:
            self.deck = [action for action, count in self.cards for _ in range(count)]
            self.rng.shuffle(self.deck)
        return self.deck.pop()

    def backends(self, kind="client backend"):
        rows = self.server.query("SELECT pid FROM pg_stat_activity WHERE backend_type = $1 AND pid <> pg_backend_pid()", kind)
        return [int(row[0]) for row in rows]

    def signal(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def terminate(self):
        pids = self.backends()
        for pid in self.rng.sample(pids, min(len(pids), self.rng.choice([1, 1, 3]))):
            self.server.query("SELECT pg_terminate_backend($1)", pid)
        return pids

    def cancel(self):
        for pid in self.backends():
            if self.rng.random() < 0.5:
                self.server.query("SELECT pg_cancel_backend($1)", pid)

    def kill(self):
        """kill -9 of one process: the postmaster ends all others and recovers."""
        pids = self.backends()
        if pids:
            pid = self.rng.choice(pids)
            self.note("killing", pid=pid)
            self.signal(pid, signal.SIGKILL)
            time.sleep(0.1)
            self.server.query("SELECT 1")
            return pid

    def restart(self):
        self.server.stop("immediate")
        time.sleep(self.rng.random() * 0.3)
        self.server.start()

    def freeze(self, pid):
        if self.signal(pid, signal.SIGSTOP):
            time.sleep(self.rng.uniform(0.2, 1.5))
            self.signal(pid, signal.SIGCONT)

    def freeze_backend(self):
        if pids := self.backends():
            self.freeze(self.rng.choice(pids))

    def freeze_client(self):
        self.freeze(self.rng.choice(self.pids))

    def terminate_worker(self):
        self.server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'idem%'")

    def checkpoint(self):
        self.server.query("CHECKPOINT")

    def vacuum(self):
        self.server.query("VACUUM (FREEZE) idem_key")

    def vacuum_full(self):
        db = self.server.connect()
        try:
            db.query("SET lock_timeout = 300")
            db.query(f"VACUUM FULL {self.rng.choice(['idem_key', 'idem_reminder_1', 'idem_reminder_2'])}")
        finally:
            db.close()

    def janitor(self):
        """Prepared transactions whose client went away."""
        rows = self.server.query("SELECT gid FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '0.5 s'")
        for (gid,) in rows:
            verb = self.rng.choice(["COMMIT", "ROLLBACK"])
            self.server.query(f"{verb} PREPARED '{gid.decode()}'")

    def note(self, what, **more):
        self.log.write(json.dumps({"c": "nemesis", "op": what, "t1": wire.wall(), "calls": [], **more}) + "\n")
        self.log.flush()

    def once(self):
        action = self.draw()
        name = action.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        self.note(f"begin {name}")
        try:
            action()
        except (wire.Failed, wire.Lost, wire.Refused) as error:
            self.note(f"{name} failed", err=error.args[0])
        self.note(f"end {name}")


class Run:
    def __init__(self, options):
        self.options = options
        self.directory = Path(options.directory)
        self.rng = random.Random(options.seed)
        self.processes = []
        self.problems = []  # what the end of the run found, for the checker to count
        self.stale_at_end = 0
        self.phases = {}
        self.server = None

    def helper(self, program, *arguments):
        process = subprocess.Popen([sys.executable, HERE / program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{program} did not start")

    def prepare(self):
        self.server = Server(self.options.bindir, self.directory, self.options.conf)
        self.server.start()
        self.server.query((HERE / "schema.sql").read_text())
        self.server.query("ALTER TABLE idem_key REPLICA IDENTITY FULL")
        self.server.query("SELECT pg_create_logical_replication_slot('ledger', 'test_decoding')")
        port = ".s.PGSQL.5432"
        proxied = self.directory / "p"
        proxied.mkdir()
        self.helper("proxy.py", proxied / port, self.server.socket / port, self.options.seed)
        self.helper("provider.py", self.directory / "provider", self.directory / "provider.db")
        self.config = {
            "seed": self.options.seed,
            "directory": str(self.directory),
            "server": self.server.conninfo,
            "proxy": self.server.conninfo.replace(str(self.server.socket), str(proxied)),
            "provider": str(self.directory / "provider"),
            "epoch": 1.5,
            "seconds": self.options.seconds,
            "operations": self.options.operations or 10**9,
        }

    def torture(self):
        """The clients, and the nemesis while they run."""
        errors = open(self.directory / "clients.log", "w")
        running = [
            subprocess.Popen([sys.executable, HERE / "client.py", json.dumps(self.config), str(number)], stderr=errors,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for number in range(self.options.clients)
        ]
        self.processes += running
        for process in running:
            process.stdout.readline()
        for process in running:
            process.stdin.close()
        until = time.monotonic() + self.options.seconds
        log = open(self.directory / "history.nemesis.jsonl", "w")
        self.nemesis = Nemesis(self.server, self.rng, [process.pid for process in running], log)
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(self.rng.uniform(0.05, 0.8))
            if self.options.nemesis:
                self.nemesis.once()
        deadline = time.monotonic() + 60
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.2)
            self.nemesis.janitor()
        for number, process in enumerate(running):
            if process.poll() is None:
                self.problems.append(["clients end", f"client {number} hangs: {self.activity()}"])
                process.kill()
            elif process.returncode != 0:
                self.problems.append(["clients end", f"client {number} failed: {Path(errors.name).read_text()[-2000:]}"])

    def activity(self):
        rows = self.server.query("SELECT pid, state, wait_event_type, wait_event, left(query, 100) FROM pg_stat_activity"
                                 " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
        return "; ".join(str([v and v.decode() for v in row]) for row in rows)

    def poll(self, what, sql, seconds=60):
        """Wait until a condition holds; whether it ever did."""
        deadline = time.monotonic() + seconds
        while self.server.query(sql)[0][0] != b"t":
            if time.monotonic() > deadline:
                self.problems.append([what, f"not within {seconds} s: {sql}"])
                return False
            time.sleep(0.05)
        return True

    # ---- after the storm: everything can be brought to an end

    def settle_somehow(self):
        """What goes wrong here is a finding, and what the clients saw is worth more."""
        try:
            self.settle()
        except Exception:
            self.problems.append(["everything comes to an end", traceback.format_exc()[-1000:]])

    def settle(self):
        server = self.server
        self.poll("transactions end", "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'torture'"
                  " AND backend_type = 'client backend'")
        for (gid,) in server.query("SELECT gid FROM pg_prepared_xacts"):
            server.query(f"{self.rng.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{gid.decode()}'")
        self.poll("leases end", "SELECT count(*) = 0 FROM idem_keys WHERE state = 'in_progress'")
        self.quiet_worker()

        ending = clients.Client({**self.config, "seed": f"{self.options.seed}/end", "proxy": server.conninfo,
                                 "seconds": 600, "operations": 0}, 1000)
        ending.setup = lambda: None
        ending.finish = lambda: ending.query("COMMIT") or "committed"
        self.claim_all(ending)
        self.visit_all(ending)
        self.steady(ending)
        ending.drop()
        self.sweep_all()
        self.verify_storage()

    def quiet_worker(self):
        self.server.query("ALTER SYSTEM SET idem.sweeper = off")
        self.server.query("SELECT pg_reload_conf()")
        self.poll("the worker stops", "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'idem%worker%' OR backend_type LIKE 'idem sweep%'")

    def claim_all(self, ending):
        """Every lease that was left behind has its reminder: claiming finds them all."""
        stale = {(c.decode(), k.decode()) for c, k in self.server.query("SELECT client, key FROM idem_keys WHERE state = 'stale'")}
        self.stale_at_end = len(stale)

        def body():
            noted, rows = ending.call("claim", None, None,
                                      "SELECT client, key, token, attempt FROM idem_claim_stale(100000, '1 s')", lease="1 s")
            noted["claims"] = [[row[0].decode(), row[1].decode(), row[2].decode(), int(row[3])] for row in rows]
            noted["out"] = "ok"
            return noted["claims"]

        _, claims = ending.attempt("claim", None, body)
        missed = stale - {(claim[0], claim[1]) for claim in claims}
        # a key of a short retention may have expired since
        missed = {m for m in missed if self.server.query("SELECT count(*) FROM idem_keys WHERE client = $1 AND key = $2", *m)[0][0] != b"0"}
        for client, key in sorted(missed)[:3]:
            self.problems.append(["every stale lease is claimed", f"{client}/{key} is stale and idem_claim_stale does not find it"])
        for client, key, token, attempt in claims:
            self.bring_to_end(ending, client, key, token, attempt)

    def bring_to_end(self, ending, client, key, token, attempt):
        charge = ending.charge(client, key, token, attempt)
        work = str(clients.uuid.UUID(int=ending.rng.getrandbits(128), version=4))
        ending.record_charge(client, key, token, charge, work)
        fate, _ = ending.attempt("answer", None, lambda: ending.complete(client, key, token, work, work))
        expired = client in SHORT and ending.record.get("err") == "ID002"
        if fate != "committed" and not expired:
            self.problems.append(["every key can be ended", f"{client}/{key}: {ending.record.get('message')}"])

    def visit_all(self, ending):
        """Every key that was ever used answers, or is done now."""
        for client, key in sorted(check.keys_used(self.directory)):
            if client in MARKS:
                fate, first = ending.attempt("once", "READ COMMITTED", lambda: self.mark(ending, client, key))
            else:
                fate, got = ending.attempt("visit", "READ COMMITTED", lambda: self.visit(ending, client, key))
            if fate != "committed":
                self.problems.append(["every key can be ended", f"{client}/{key}: {ending.record.get('message')}"])

    def mark(self, ending, client, key):
        noted, rows = ending.call("once", client, key, "SELECT idem_once($1, $2)", client, key, keys=[key], retention=None)
        noted.update(out="ok", first=[key] if rows[0][0] == b"t" else [])
        if noted["first"]:
            ending.keep("inbox", client, key, str(clients.uuid.uuid4()))

    def visit(self, ending, client, key):
        got = ending.reserve(client, key)
        if got["out"] == "new":
            work = str(clients.uuid.UUID(int=ending.rng.getrandbits(128), version=4))
            ending.keep("business" if client in IN_ONE else "effect", client, key, work)
            ending.complete(client, key, got["token"], work, work)
        elif got["out"] != "replay":
            self.problems.append(["every key can be ended", f"{client}/{key} is stuck: {got['out']}"])

    def steady(self, ending):
        """One backend does everything over and over; its memory is sampled for the checker."""
        db = self.server.connect()
        again = "SELECT outcome FROM idem_reserve('steady', $1, '\\x01')"
        for i in range(120):
            key = str(i)
            token = db.query("SELECT token FROM idem_reserve('steady', $1, '\\x01')", key)[0][0]
            db.query(again, key)
            db.query("SELECT idem_renew('steady', $1, $2::uuid)", key, token)
            db.query("SELECT idem_checkpoint('steady', $1, $2::uuid, 'half')", key, token)
            db.query("SELECT idem_complete('steady', $1, $2::uuid, 200, repeat('x', 5000), '{}')", key, token)
            db.query(again, key)
            try:
                db.query("SELECT idem_complete('steady', $1, $2::uuid, 500)", key, token)
            except wire.Failed:
                pass
            db.query("SELECT idem_once_batch('steady-once', ARRAY[$1, 'a', 'b'])", key)
            db.query("SELECT idem_claim_stale(1), idem_lookup('steady', $1)", key)
            if i % 20 == 19:
                held = db.query("SELECT sum(total_bytes) FROM pg_backend_memory_contexts")[0][0]
                ending.note("memory", pid=db.pid, statements=db.statements, bytes=int(held))
        db.close()

    def sweep_all(self):
        reminders = "(SELECT lease_until FROM idem_reminder_1 UNION ALL SELECT lease_until FROM idem_reminder_2) r"
        self.poll("leases end", f"SELECT coalesce(max(lease_until) < clock_timestamp(), true) FROM {reminders}")
        for _ in range(1000):
            swept = self.server.query("SELECT expired, stale FROM idem_sweep()")[0]
            if swept == (b"0", b"0"):
                break
        else:
            self.problems.append(["sweeping ends", "still something to do after 1000 calls"])
        for table in "idem_reminder_1", "idem_reminder_2":
            left = int(self.server.query(f"SELECT count(*) FROM {table}")[0][0])
            if left:
                self.problems.append(["no reminder is left", f"{left} in {table}, and every key is completed"])
        left = int(self.server.query("SELECT count(*) FROM idem_key WHERE expires_at < clock_timestamp() - interval '5 s'")[0][0])
        if left:
            self.problems.append(["no expired key is left", f"{left} after the sweep"])

    def verify_storage(self):
        for sql in ("SELECT bt_index_check('idem_key_pkey', true)",):
            try:
                self.server.query(sql)
            except wire.Failed as error:
                self.problems.append(["amcheck", str(error)])
        for table in "idem_key", "idem_reminder_1", "idem_reminder_2":
            rows = self.server.query(f"SELECT blkno, offnum, msg FROM verify_heapam('{table}')")
            if rows:
                self.problems.append(["amcheck", f"{table}: {rows[:3]}"])

    def collect(self):
        """The tables and the ledger, as files for the checker."""
        tables = {}
        for table in "business", "effect", "inbox":
            tables[table] = [
                [row[0].decode(), row[1].decode(), row[2].decode(), int(row[3]), row[4].decode(), int(row[5]), int(row[6])]
                for row in self.server.query(
                    "SELECT id, client, key, attempt, token, (extract(epoch FROM began_at) * 1000000)::bigint,"
                    f" (extract(epoch FROM expires_at) * 1000000)::bigint FROM {table} ORDER BY began_at")
            ]
        tables["granted"] = [[row[0].decode(), int(row[1]), row[2].decode()]
                             for row in self.server.query("SELECT key, attempt, token FROM granted")]
        tables["problems"] = self.problems
        tables["crashes"] = {name: self.nemesis.counts.get(name, 0) for name in ("kill", "restart")}
        tables["nemesis"] = self.nemesis.counts
        tables["stale_at_end"] = self.stale_at_end
        (self.directory / "tables.json").write_text(json.dumps(tables))
        with open(self.directory / "ledger.txt", "wb") as file:
            for (line,) in self.server.query(
                    "SELECT data FROM pg_logical_slot_get_changes('ledger', NULL, NULL, 'include-timestamp', 'on')"):
                file.write(line.replace(b"\n", b"\\n") + b"\n")

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait()
        if self.server is not None and (self.server.data / "postmaster.pid").exists():
            self.server.stop("fast")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--operations", type=int, help="of each client, at most")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", default=None)
    parser.add_argument("--directory", help="where everything goes, and stays; must be new")
    parser.add_argument("--no-nemesis", dest="nemesis", action="store_false")
    parser.add_argument("--no-settle", dest="settle", action="store_false", help="judge the histories alone, not what becomes of every key")
    options = parser.parse_args()
    options.seed = options.seed or str(random.SystemRandom().randrange(10**6))
    kept = options.directory is not None
    # a socket's path has little room
    if kept:
        os.makedirs(options.directory)
    else:
        options.directory = tempfile.mkdtemp(prefix="torture.")
    print(f"# SEED={options.seed} CLIENTS={options.clients} SECONDS={options.seconds:g} in {options.directory}", flush=True)

    run = Run(options)
    try:
        for phase in run.prepare, run.torture, *([run.settle_somehow] if options.settle else []), run.collect:
            began = time.monotonic()
            phase()
            run.phases[phase.__name__] = round(time.monotonic() - began, 1)
    except Exception:
        traceback.print_exc()
        log = run.directory / "server.log"
        if log.exists():
            print("\n".join(re.findall(r".*(?:PANIC|TRAP|XX000|signal 6|signal 11).*", log.read_text())[-20:]), file=sys.stderr)
        print("0 passed, 1 failed")
        return 1
    finally:
        run.end()
    failed = check.main(run.directory, run.phases)
    if not kept and not failed:
        shutil.rmtree(options.directory)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
