"""5,000 clients on a payment service through PgBouncer in transaction mode: rates, latencies, and nothing left in a session.

usage: poolers.py --bindir DIR --conf FILE --directory DIR [--seconds N] [--clients N] [--rate N] [--pool N]

Three ways to pay, one after the other, each at a limited rate: idem_call, BEGIN ... COMMIT, and across transactions, where
the answer is mostly stored by another server connection than the one that reserved. Ends with `N passed, N failed`.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "torture")]

import wire  # noqa: E402

import parts  # noqa: E402

SETTINGS = """
shared_preload_libraries = 'idem'
listen_addresses = ''
max_connections = 100
shared_buffers = 128MB
fsync = off                     # no machine crashes here
log_checkpoints = off
"""

SCHEMA = """
CREATE EXTENSION idem;
CREATE ROLE shop LOGIN;
SELECT idem_grant('shop');
-- No constraint forbids a second payment of a key: that is what is looked for.
CREATE TABLE payment (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client text, key text, amount int);
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO payment (client, key, amount)
    VALUES (request->>'client', request->>'key', (request->>'amount')::int)
    RETURNING jsonb_build_object('payment', id)
$$;
-- which server connections a payment across transactions went over
CREATE TABLE went_over (reserved_by int, completed_by int);
GRANT SELECT, INSERT ON payment, went_over TO shop;
"""

# One request in five is for one of 200 keys, and so mostly a retry.
HEAD = """
\\set again random(1, 5)
\\set client case when :again = 1 then random(1, 10) else random(1, 1000) end
\\set n case when :again = 1 then random(1, 20) else random(21, 1000000000) end
"""

SCRIPTS = {
    "idem_call": HEAD + """
SELECT outcome FROM idem_call('acct_' || :client, 'call-' || :n, 'pay(jsonb)',
    jsonb_build_object('client', 'acct_' || :client, 'key', 'call-' || :n, 'amount', 5), status_code => 201);
""",
    "one transaction": HEAD + """
BEGIN;
SELECT (outcome = 'new')::int AS mine, coalesce(token::text, '') AS token
  FROM idem_reserve('acct_' || :client, 'tx-' || :n, request => '{"amount": 5}') \\gset
\\if :mine
INSERT INTO payment (client, key, amount) VALUES ('acct_' || :client, 'tx-' || :n, 5);
SELECT idem_complete_json('acct_' || :client, 'tx-' || :n, ':token'::uuid, 201, '{"payment": true}');
\\endif
COMMIT;
""",
    "across transactions": HEAD + """
SELECT (outcome = 'new')::int AS mine, coalesce(token::text, '') AS token, pg_backend_pid() AS pid
  FROM idem_reserve('acct_' || :client, 'lease-' || :n, lease => '10 min', request => '{"amount": 5}') \\gset
\\if :mine
\\sleep 20 ms
WITH work AS (INSERT INTO payment (client, key, amount) VALUES ('acct_' || :client, 'lease-' || :n, 5)),
     way AS (INSERT INTO went_over VALUES (:pid, pg_backend_pid()))
SELECT idem_complete_json('acct_' || :client, 'lease-' || :n, ':token'::uuid, 201, '{"payment": true}');
\\endif
""",
}

LEFT_BEHIND = """
SELECT (SELECT count(*) FROM pg_prepared_statements) + (SELECT count(*) FROM pg_cursors)
     + (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')
     + (SELECT count(*) FROM pg_class WHERE pg_is_other_temp_schema(relnamespace) OR relnamespace = pg_my_temp_schema())
     + (SELECT count(*) FROM pg_listening_channels())
     + (SELECT count(*) FROM pg_settings WHERE source = 'session' AND (name LIKE 'idem.%' OR name LIKE '%\\_timeout')),
       pg_backend_pid()
"""


class Run:
    def __init__(self, options):
        self.options = options
        self.directory = Path(options.directory)
        self.passed = self.failed = self.asked = 0
        self.server = self.pooler = None

    def that(self, name, condition, message=""):
        print(f"{'ok' if condition else 'not ok'} - {name}" + (f": {message}" if message else ""), flush=True)
        if condition:
            self.passed += 1
        else:
            self.failed += 1

    def prepare(self):
        self.server = parts.Server(self.options.bindir, self.directory / "server", SETTINGS + Path(self.options.conf).read_text())
        self.server.create().start()
        self.server.psql(SCHEMA)
        (self.port,) = parts.free_ports(1)
        pooler = self.directory / "pgbouncer"
        pooler.mkdir()
        (pooler / "users").write_text('"shop" ""\n')
        (pooler / "pgbouncer.ini").write_text(f"""
[databases]
postgres = host={self.server.directory} port={self.server.port} dbname=postgres
[pgbouncer]
listen_port = {self.port}
unix_socket_dir = {pooler}
auth_type = trust
auth_file = {pooler}/users
pool_mode = transaction
max_client_conn = {self.options.clients + 200}
default_pool_size = {self.options.pool}
server_reset_query =
log_connections = 0
log_disconnections = 0
""")
        # its sockets, and those of pgbench
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.options.clients + 1000
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise RuntimeError(f"{self.options.clients} clients take {wanted} open files, and {hard} are allowed (ulimit -Hn)")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        self.pooler = parts.Program("pgbouncer", pooler, ["pgbouncer", "pgbouncer.ini"]).start()
        self.conninfo = f"host={pooler} port={self.port} user=shop dbname=postgres"
        parts.wait_for("the pooler starts", lambda: (pooler / f".s.PGSQL.{self.port}").exists())
        self.socket = pooler

    def load(self, name, text):
        script = self.directory / f"{name.replace(' ', '-')}.sql"
        script.write_text(text)
        prefix = self.directory / name.replace(" ", "-")
        process = subprocess.Popen(
            [self.server.bindir / "pgbench", "-n", "-h", self.socket, "-p", str(self.port), "-U", "shop", "-c", str(self.options.clients),
             "-j", "2", "-R", str(self.options.rate), "-T", str(self.options.seconds), "-f", script, "-l", f"--log-prefix={prefix}",
             "postgres"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.directory)
        most = 0
        while process.poll() is None:
            time.sleep(0.5)
            most = max(most, int(self.server.psql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop'")))
        output = process.stdout.read()
        if process.returncode != 0:
            self.that(f"{name}: the clients end well", False, output[-1500:])
            return
        # client, transaction, latency in us, script, second, microsecond, lag behind the schedule
        spans = sorted(int(line.split()[2]) for path in self.directory.glob(f"{prefix.name}.*") if path.suffix != ".sql"
                       for line in open(path))
        if not spans:
            self.that(f"{name}: requests are answered", False, f"none in {self.options.seconds} s")
            return
        self.asked += len(spans)
        self.that(f"{name}: {self.options.clients} clients over {most} server connections",
                  most <= self.options.pool,
                  f"{len(spans) / self.options.seconds:.0f} requests/s of {self.options.rate},"
                  f" p50 {spans[len(spans) // 2] / 1000:.1f} ms, p99 {spans[int(len(spans) * 0.99)] / 1000:.1f} ms,"
                  f" longest {spans[-1] / 1000:.0f} ms")

    def judge(self):
        def one(sql):
            return int(self.server.psql(sql))
        self.that("no payment twice", one("SELECT count(*) FROM (SELECT FROM payment GROUP BY client, key HAVING count(*) > 1) t") == 0,
                  f"{one('SELECT count(*) FROM payment')} payments of {self.asked} requests")
        self.that("every answer has its payment, and every payment its answer", one("""
SELECT count(*) FROM payment p FULL JOIN idem_keys k ON k.client = p.client AND k.key = p.key AND k.state = 'completed'
 WHERE (p.id IS NULL AND k.state = 'completed') OR k.key IS NULL""") == 0)
        total, other = map(int, self.server.psql(
            "SELECT count(*), count(*) FILTER (WHERE reserved_by <> completed_by) FROM went_over").split("|"))
        self.that("reserved over one server connection, completed over another", other > 0, f"{other} of {total}")
        self.that("no advisory lock is held", one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0)
        self.inspect_sessions()

    def inspect_sessions(self):
        """As many transactions as the pool has connections, so that each is on another one."""
        clients = [wire.Connection(self.conninfo) for _ in range(self.options.pool)]
        found = {}
        for client in clients:
            client.query("BEGIN")
            left, pid = client.query(LEFT_BEHIND)[0]
            found[int(pid)] = int(left)
        for client in clients:
            client.query("COMMIT")
            client.close()
        self.that("nothing is left behind in any session", len(found) == self.options.pool and not any(found.values()),
                  f"{len(found)} server connections looked at")

    def end(self):
        if self.pooler is not None:
            self.pooler.end()
        if self.server is not None:
            self.server.stop("immediate")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--pool", type=int, default=20)
    options = parser.parse_args()
    os.makedirs(options.directory, mode=0o700)
    run = Run(options)
    try:
        run.prepare()
        for name, text in SCRIPTS.items():
            run.load(name, text)
        run.judge()
    except Exception:
        traceback.print_exc()
        run.failed += 1
    finally:
        run.end()
    print(f"{run.passed} passed, {run.failed} failed")
    return 1 if run.failed or not run.passed else 0


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(143))
    sys.exit(main())
