"""PL/Proxy over independent PostgreSQL servers, routed by client; and how clients are moved from one to another."""

import secrets
import time
from pathlib import Path

import parts
import wire

HERE = Path(__file__).resolve().parent

SLOTS = 64

SETTINGS = """
shared_preload_libraries = 'idem'
listen_addresses = '127.0.0.1'
max_connections = 100
shared_buffers = 64MB
fsync = off                     # no machine crashes here, only processes
wal_level = logical             # for moving clients
max_wal_senders = 20
max_replication_slots = 20
max_worker_processes = 24
max_logical_replication_workers = 12
max_sync_workers_per_subscription = 4
wal_retrieve_retry_interval = 500ms
wal_sender_timeout = 10s
deadlock_timeout = 100ms
log_line_prefix = '%m [%p] %b '
log_error_verbosity = verbose
log_checkpoints = off
timezone = 'UTC'
idem.sweep_interval = 1s
"""


class Shards:
    """Some servers with keys, and one without that sends every call where its client lives."""

    def __init__(self, bindir, directory, conf, count, settings="", proxies=True):
        self.secret = secrets.token_hex(16)
        self.directory = directory
        common = SETTINGS + conf + settings
        self.shards = [parts.Server(bindir, directory / f"shard{i}", common) for i in range(count)]
        self.proxy = parts.Server(bindir, directory / "proxy", common.replace("shared_preload_libraries = 'idem'", "")) if proxies else None
        self.map = {}

    def start(self):
        for server in [*self.shards, *([self.proxy] if self.proxy else [])]:
            server.create(self.secret).start()
        for shard in self.shards:
            shard.psql((HERE / "shard.sql").read_text())
        if self.proxy:
            self.proxy.psql((HERE / "proxy.sql").read_text())

    def reach(self, shard):
        """How the proxy, and a subscriber, reaches a shard."""
        return f"host=127.0.0.1 port={shard.port} dbname=postgres"

    def spread(self, shards):
        """The first map: slots over these shards in turn."""
        self.map = {slot: shards[slot % len(shards)] for slot in range(SLOTS)}
        for shard in shards:
            mine = [slot for slot in self.map if self.map[slot] is shard]
            shard.psql(f"TRUNCATE shard.slot; INSERT INTO shard.slot SELECT unnest(ARRAY{mine})")
        options = ", ".join(f"partition_{slot} '{self.reach(shard)}'" for slot, shard in self.map.items())
        self.proxy.psql(f"""
DROP SERVER IF EXISTS idem CASCADE;
CREATE SERVER idem FOREIGN DATA WRAPPER plproxy OPTIONS ({options});
CREATE USER MAPPING FOR PUBLIC SERVER idem OPTIONS (user 'postgres', password '{self.secret}');""")

    def route(self, proxy, slots, shard):
        """One transaction: a proxy's session reads the map anew before its next call."""
        options = ", ".join(f"SET partition_{slot} '{self.reach(shard)}'" for slot in slots)
        proxy.query(f"ALTER SERVER idem OPTIONS ({options})")
        self.map.update(dict.fromkeys(slots, shard))

    def end(self):
        for server in [*self.shards, *([self.proxy] if self.proxy else [])]:
            server.stop("immediate")


class Move:
    """Clients from one shard to another by logical replication, keys included, while they are served.

    Copied and followed while the source serves them; then the source lets go of them, the rest is waited for, and the target
    takes over. In between their calls are refused (SH001) for a moment and tried again. Until then the move can be given up.
    """

    TABLES = {"idem_key": "insert, update, delete", "payment": "insert, update, delete", "inbox": "insert, update, delete",
              "idem_reminder_1": "insert", "idem_reminder_2": "insert"}

    def __init__(self, shards, source, target, slots):
        self.shards, self.source, self.target, self.slots = shards, source, target, slots
        self.name = "move_" + secrets.token_hex(3)
        self.filter = f"(get_byte(decode(md5(client), 'hex'), 0) & 63) IN ({', '.join(map(str, slots))})"
        self.times = {}

    def begin(self):
        """Publish and subscribe. The target must not sweep: a key that its source uses anew would be missed there."""
        left = sum(int(self.target.psql(f"SELECT count(*) FROM {table} WHERE {self.filter}")) for table in self.TABLES)
        if left:
            raise RuntimeError(f"the target has {left} rows of these slots already: clear() it")
        self.target.psql("ALTER SYSTEM SET idem.sweeper = off")
        self.target.psql("SELECT pg_reload_conf()")
        parts.wait_for("the target's sweeper stops", lambda: self.target.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem worker'") == "0")
        rows = ", ".join(f"{t} WHERE ({self.filter})" for t, publish in self.TABLES.items() if publish != "insert")
        leases = ", ".join(f"{t} WHERE ({self.filter})" for t, publish in self.TABLES.items() if publish == "insert")
        self.source.psql(f"CREATE PUBLICATION {self.name} FOR TABLE {rows};"
                         f"CREATE PUBLICATION {self.name}_leases FOR TABLE {leases} WITH (publish = 'insert')")
        self.target.psql(f"CREATE SUBSCRIPTION {self.name} CONNECTION '{self.shards.reach(self.source)} user=postgres"
                         f" password={self.shards.secret}' PUBLICATION {self.name}, {self.name}_leases")

    def copied(self):
        return self.target.psql(f"""
SELECT count(*) = {len(self.TABLES)} FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid
 WHERE subname = '{self.name}' AND srsubstate = 'r'""") == "t"

    def count(self, db):
        """What there is of these slots, to be compared."""
        return [db.query(f"SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY md5(t::text))) FROM {table} t WHERE {self.filter}")
                for table, publish in self.TABLES.items() if publish != "insert"]

    def finish(self):
        """Let go, wait for the rest, compare, end the replication, take over."""
        source, target, proxy = (wire.Connection(server.conninfo) for server in (self.source, self.target, self.shards.proxy))
        began = time.monotonic()

        def step(name):
            self.times[name] = time.monotonic() - began

        end = source.query("SELECT shard.leave($1::int[])", "{" + ",".join(map(str, self.slots)) + "}")[0][0]
        step("let go")
        parts.wait_for("the target has everything", lambda: source.query(
            "SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", end, self.name)[0][0] == b"t", 120, 0.01)
        step("the rest")
        # more than once, since the source goes on removing what has expired
        parts.wait_for("both have the same", lambda: self.count(source) == self.count(target), 30)
        step("compared")
        # before the target takes over: a removal at the source must not reach a key that was used anew
        target.query(f"DROP SUBSCRIPTION {self.name}")
        target.query("INSERT INTO shard.slot SELECT unnest($1::int[])", "{" + ",".join(map(str, self.slots)) + "}")
        self.shards.route(proxy, self.slots, self.target)
        step("taken over")
        for db in source, target, proxy:
            db.close()

    def clear(self):
        """What is left of them at the source."""
        self.source.psql(f"DROP PUBLICATION {self.name}; DROP PUBLICATION {self.name}_leases")
        for table in self.TABLES:
            self.source.psql(f"DELETE FROM {table} WHERE {self.filter}")
        self.target.psql("ALTER SYSTEM RESET idem.sweeper")
        self.target.psql("SELECT pg_reload_conf()")

