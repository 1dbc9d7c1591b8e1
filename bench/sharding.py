"""Payments on one server and through PL/Proxy over several. See bench/sharding.

usage: sharding.py --bindir DIR --conf FILE --directory DIR [--seconds N] [--clients N] [--keys N]
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "scaling"), str(HERE.parent / "torture")]

import model  # noqa: E402
from shards import Shards  # noqa: E402
from standby import spent, wait_for_sessions  # noqa: E402

import wire  # noqa: E402

KEY = """
\\set client random(1, 10000)
\\set n random(1, 9000000000000000)
"""
REQUEST = "jsonb_build_object('client', 'acct_' || :client, 'key', 'k' || :n, 'amount', 5)"
CALL = f"'acct_' || :client, 'k' || :n, 'pay(jsonb)', {REQUEST}"

SCRIPTS = {
    "the insert alone": KEY + f"SELECT pay({REQUEST});\n",
    "idem_call": KEY + f"SELECT outcome FROM idem_call({CALL});\n",
    "with the shard's question": KEY + f"SELECT outcome FROM shard.idem_call({CALL}, NULL, 200, NULL, NULL);\n",
}

TABLES = "idem_key, payment, inbox, idem_reminder_1, idem_reminder_2"


class Bench:
    def __init__(self, options):
        self.options = options
        self.directory = Path(options.directory)
        conf = Path(options.conf).read_text()
        # the WAL as an ordinary server writes it
        self.shards = Shards(options.bindir, self.directory, conf.replace("fsync = off", "fsync = on"), 4,
                             "wal_level = replica\nfsync = on\nshared_buffers = 128MB\nmax_wal_size = 4GB\nidem.sweeper = off\n")

    def run(self, name, server, script, shards):
        for shard in shards:
            shard.psql(f"TRUNCATE {TABLES}")
            shard.psql("CHECKPOINT")
        lsn = [shard.psql("SELECT pg_current_wal_insert_lsn()") for shard in shards]
        everybody = {id(s): s for s in [server, *shards]}.values()
        watching = [wire.Connection(s.conninfo) for s in everybody]  # these stay, and so are not counted
        for one in everybody:
            wait_for_sessions(one)
        before = {id(s): spent(s) for s in everybody}
        path = self.directory / "script.sql"
        path.write_text(SCRIPTS[script])
        for old in self.directory.glob("latency.*"):
            old.unlink()
        done = subprocess.run(
            [server.bindir / "pgbench", "-n", "-h", server.directory, "-p", str(server.port), "-U", "postgres", "-c",
             str(self.options.clients), "-j", "2", "-T", str(self.options.seconds), "-M", "prepared", "-f", path, "-l",
             f"--log-prefix={self.directory}/latency", "postgres"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stdout)
        for one in everybody:
            wait_for_sessions(one)
        spans = sorted(int(line.split()[2]) for log in self.directory.glob("latency.*") for line in open(log))
        count = len(spans)
        shard_us = sum(spent(s) - before[id(s)] for s in shards) / count
        proxy_us = 0 if server in shards else (spent(server) - before[id(server)]) / count
        for db in watching:
            db.close()
        wal = sum(int(s.psql(f"SELECT (pg_current_wal_insert_lsn() - '{at}'::pg_lsn)::bigint")) for s, at in zip(shards, lsn)) / count
        result = {"rate": count / self.options.seconds, "MS": sum(spans) / count / 1000, "SHARD_US": shard_us, "PROXY_US": proxy_us, "WAL": wal}
        print(f"| {name} | {result['rate']:.0f} | {spans[count // 2] / 1000:.2f} | {spans[int(count * 0.99)] / 1000:.2f}"
              f" | {shard_us:.0f} | {proxy_us:.0f} | {wal:.0f} |", flush=True)
        return result

    def sizes(self, shard):
        """WAL and bytes of so many keys, each with its payment, each in a transaction of its own; nothing was swept or vacuumed."""
        keys = self.options.keys
        shard.psql(f"TRUNCATE {TABLES}; CHECKPOINT")
        return dict(zip(("WAL", "BYTES", "INDEX"), map(float, shard.psql(f"""
CREATE TEMP TABLE before AS SELECT pg_current_wal_insert_lsn() AS lsn;
SET synchronous_commit = off;
DO $$
DECLARE
    client text;
    key text;
BEGIN
    FOR i IN 1..{keys} LOOP
        client := 'acct_' || (random() * 10000)::int;
        key := gen_random_uuid();
        PERFORM idem_call(client, key, 'pay(jsonb)', jsonb_build_object('client', client, 'key', key, 'amount', 5), status_code => 201);
        COMMIT;
    END LOOP;
END
$$;
SELECT (pg_current_wal_insert_lsn() - lsn) / {keys}, pg_total_relation_size('idem_key') / {keys}.0, pg_indexes_size('idem_key') / {keys}.0
  FROM before""").splitlines()[-1].split("|"))))

    def all(self):
        shards, proxy = self.shards.shards, self.shards.proxy
        self.shards.start()
        self.shards.spread(shards[:1])
        print(f"{self.options.clients} clients, {self.options.seconds} s each, {os.cpu_count()} processors for all servers and the clients")
        print("| | payments/s | p50 ms | p99 ms | us of shards each | us of the proxy each | B of WAL each |\n|---|---|---|---|---|---|---|")
        for script in SCRIPTS:
            self.run(f"one server, {script}", shards[0], script, shards[:1])
        for count in 1, 2, 4:
            self.shards.spread(shards[:count])
            costs = self.run(f"PL/Proxy, {count} shard(s)", proxy, "idem_call", shards[:count])
            if count == 1:
                through = costs
        stored = self.sizes(shards[0])
        print(f"\n{self.options.keys} keys on one server, with their payments: {stored['WAL']:.0f} B of WAL each;"
              f" {stored['BYTES']:.0f} B kept of each key, {stored['INDEX']:.0f} B of them index\n")
        # and a millisecond for the commit and the wires
        model.table({**stored, **{name: through[name] for name in ("SHARD_US", "PROXY_US")},
                     "MS": (through["SHARD_US"] + through["PROXY_US"]) / 1000 + 1})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--keys", type=int, default=60000)
    options = parser.parse_args()
    os.makedirs(options.directory, mode=0o700)
    bench = Bench(options)
    try:
        bench.all()
    finally:
        bench.shards.end()
    return 0


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(143))
    sys.exit(main())
