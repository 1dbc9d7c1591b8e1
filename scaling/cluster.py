"""Patroni, etcd and HAProxy: three PostgreSQL nodes behind one address, all on the loopback.

    clients -> HAProxy -> gate 1 -> PostgreSQL 1, Patroni 1 -> gate to etcd 1 -> etcd 1, 2, 3
                          gate 2 -> PostgreSQL 2, Patroni 2 -> gate to etcd 2
                          gate 3 -> ...

A node's gate is what others reach it through, standbys included: a HAProxy of its own. Stopped (SIGSTOP) it is a cable that
swallows everything, killed it is a machine that refuses. The gate to etcd is what the node's Patroni reaches etcd through.
"""

import base64
import json
import os
import secrets
import signal
import urllib.error
import urllib.request

import parts
import wire

TTL = 20  # seconds until a leader that is not heard of is replaced
LOOP = 2
RETRY = 8

GLOBAL = """
global
    maxconn 4000
    nbthread 1
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 24h
    timeout server 24h
"""


class Etcd(parts.Program):
    """Three members, so that one may die."""

    @classmethod
    def cluster(cls, directory):
        ports = parts.free_ports(6)
        token = secrets.token_hex(4)
        everybody = ",".join(f"etcd{i}=http://127.0.0.1:{port}" for i, port in enumerate(ports[3:]))
        members = []
        for i, (port, peer) in enumerate(zip(ports[:3], ports[3:])):
            member = cls(f"etcd{i}", directory, [
                "etcd", "--name", f"etcd{i}", "--data-dir", directory / f"etcd{i}",
                "--listen-client-urls", f"http://127.0.0.1:{port}", "--advertise-client-urls", f"http://127.0.0.1:{port}",
                "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                "--initial-cluster", everybody, "--initial-cluster-state", "new", "--initial-cluster-token", token,
                "--enable-v2", "--heartbeat-interval", "300", "--election-timeout", "3000", "--logger", "zap", "--log-level", "error", "--unsafe-no-fsync"])
            member.port = port
            members.append(member)
        return members


def haproxy(name, directory, configuration):
    path = directory / f"{name}.cfg"
    path.write_text(GLOBAL + configuration)
    return parts.Program(name, directory, ["haproxy", "-db", "-q", "-f", path])


class Node:
    """One of the three: PostgreSQL, its Patroni, its gates."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.name = f"node{number}"
        self.directory = cluster.directory / self.name
        self.directory.mkdir()
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.pg, self.rest, self.gate_pg, self.gate_rest, self.gate_etcd = parts.free_ports(5)
        self.gate = haproxy(f"gate{number}", self.directory, f"""
listen postgresql
    bind 127.0.0.1:{self.gate_pg}
    server it 127.0.0.1:{self.pg}
listen patroni
    bind 127.0.0.1:{self.gate_rest}
    server it 127.0.0.1:{self.rest}
""")
        self.to_etcd = haproxy(f"to-etcd{number}", self.directory, f"""
listen etcd
    bind 127.0.0.1:{self.gate_etcd}
    option tcp-check
    option redispatch
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
""" + "".join(f"    server etcd{i} 127.0.0.1:{member.port} check\n" for i, member in enumerate(cluster.etcd)))
        path = self.directory / "patroni.json"  # JSON is YAML
        path.write_text(json.dumps(self.settings(), indent=1))
        path.chmod(0o600)
        self.patroni = parts.Program(f"patroni{number}", self.directory, ["patroni", path])

    def settings(self):
        secret = self.cluster.secret
        return {
            "scope": "idem",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.gate_rest}",
                        "authentication": {"username": "patroni", "password": secret}},
            # as proxies, or Patroni would ask etcd for the members and go past the gate; and by etcd's version 2 protocol: with
            # version 3, Patroni 3.0.2 takes the lock back by an unconditional write, from whoever has it by then
            "etcd": {"hosts": [f"127.0.0.1:{self.gate_etcd}"], "use_proxies": True},
            "bootstrap": {
                "dcs": self.cluster.dynamic(),
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums", "no-sync"],
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 scram-sha-256",
                           "host replication replicator 127.0.0.1/32 scram-sha-256"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.pg}",
                "connect_address": f"127.0.0.1:{self.gate_pg}",
                "data_dir": str(self.data),
                "bin_dir": str(self.cluster.bindir),
                "pgpass": str(self.directory / "pgpass"),
                "use_unix_socket": True,
                "authentication": {"superuser": {"username": "postgres", "password": secret},
                                   "replication": {"username": "replicator", "password": secret}},
                "parameters": {"unix_socket_directories": str(self.directory), "logging_collector": "on",
                               "log_directory": str(self.log), "log_filename": "server.log", "log_truncate_on_rotation": "off",
                               "log_rotation_age": 0, "log_rotation_size": 0},
                "use_pg_rewind": True,
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
            },
        }

    def start(self):
        for part in self.gate, self.to_etcd, self.patroni:
            if not part.running():
                part.start()

    def end(self):
        self.thaw()
        for part in self.patroni, self.gate, self.to_etcd:
            part.end(60)

    # ---- what may happen to it

    def kill(self):
        """The machine dies."""
        self.freeze()
        for part in self.patroni, self.gate, self.to_etcd:
            part.signal(signal.SIGKILL)
        self.kill_postgres()
        for part in self.patroni, self.gate, self.to_etcd:
            part.wait()

    def kill_postgres(self):
        """All processes of the server at one blow; Patroni is there and sees it."""
        parts.send(parts.freeze(self.data), signal.SIGKILL)

    def kill_backend(self):
        """One process of the server."""
        victims = [pid for pid in parts.postgres_processes(self.data)[1:] if b"postgres: idem:" in command(pid) and b"127.0.0.1" in command(pid)]
        parts.send(victims[-1:], signal.SIGKILL)
        return len(victims)

    def freeze(self):
        """The machine stands still."""
        for part in self.gate, self.to_etcd, self.patroni:
            part.signal(signal.SIGSTOP)
        parts.freeze(self.data)

    def thaw(self):
        parts.send(parts.postgres_processes(self.data), signal.SIGCONT)
        for part in self.patroni, self.to_etcd, self.gate:
            part.signal(signal.SIGCONT)

    def cut(self):
        """The cable swallows everything."""
        for part in self.gate, self.to_etcd:
            part.signal(signal.SIGSTOP)

    def refuse(self):
        """No way to the machine, and whoever tries is told so."""
        for part in self.gate, self.to_etcd:
            part.kill()

    def cut_from_etcd(self):
        self.to_etcd.signal(signal.SIGSTOP)

    def freeze_patroni(self):
        """The leader that does not hear that it is none any more."""
        self.patroni.signal(signal.SIGSTOP)

    def heal(self):
        self.thaw()
        self.start()

    # ---- what it says

    def ask(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/{path}", timeout=3) as response:
                return json.load(response)
        except (OSError, ValueError, urllib.error.URLError):
            return None

    def query(self, sql, *params):
        db = wire.Connection(f"host={self.directory} port={self.pg} user=postgres dbname=postgres connect_timeout=5")
        try:
            return db.query(sql, *params)
        finally:
            db.close()


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


class Cluster:
    def __init__(self, bindir, directory, conf, synchronous=True):
        self.bindir = bindir
        self.directory = directory
        self.conf = conf
        self.synchronous = synchronous
        self.secret = secrets.token_hex(16)
        os.environ["PGPASSWORD"] = self.secret
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
        self.etcd = Etcd.cluster(directory)
        self.nodes = [Node(self, number) for number in (1, 2, 3)]
        self.socket = directory / "s"
        self.socket.mkdir()
        (self.port,) = parts.free_ports(1)
        checked = "".join(f"    server {node.name} 127.0.0.1:{node.gate_pg} check port {node.gate_rest}\n" for node in self.nodes)
        self.proxy = haproxy("haproxy", directory, f"""
listen primary
    bind 127.0.0.1:{self.port}
    bind unix@{self.socket}/.s.PGSQL.5432
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 3 rise 1 on-marked-down shutdown-sessions
{checked}""")
        self.conninfo = (f"host={self.socket} user=postgres dbname=postgres sslmode=disable gssencmode=disable"
                         " connect_timeout=5 target_session_attrs=read-write")

    def dynamic(self):
        """What Patroni keeps in etcd, for all nodes."""
        parameters = {
            "max_connections": 120, "max_prepared_transactions": 40, "max_worker_processes": 12, "shared_buffers": "32MB",
            "fsync": "off",  # no machine crashes here, only processes
            "wal_level": "replica", "wal_keep_size": "256MB", "max_wal_senders": 10, "max_replication_slots": 10,
            "hot_standby": "on", "wal_log_hints": "on", "deadlock_timeout": "100ms", "autovacuum_naptime": "1s",
            "synchronous_commit": "on",
            "restart_after_crash": "off",  # a crash is a failover, see doc/high-availability.md
            "log_error_verbosity": "verbose", "log_line_prefix": "%m [%p] %b ", "log_timezone": "UTC", "timezone": "UTC",
            "log_checkpoints": "off", "shared_preload_libraries": "idem", "idem.sweep_interval": "100ms", "idem.sweep_batch": 20,
            "wal_receiver_timeout": "5s", "wal_sender_timeout": "5s", "wal_retrieve_retry_interval": "1s",
        }
        parameters.update(self.conf)
        return {
            "ttl": TTL, "loop_wait": LOOP, "retry_timeout": RETRY,
            "synchronous_mode": self.synchronous, "synchronous_mode_strict": self.synchronous,
            "primary_start_timeout": 0, "maximum_lag_on_failover": 64 * 1024 * 1024,
            "postgresql": {"use_pg_rewind": True, "parameters": parameters},
        }

    def start(self):
        for member in self.etcd:
            member.start()
        parts.wait_for("etcd starts", lambda: all(parts.accepts(member.port) for member in self.etcd))
        for node in self.nodes:
            node.start()
        self.proxy.start()
        parts.wait_for("the cluster is complete", self.complete, 180, 0.5)

    def leader(self):
        """The node that holds the lock, by its own account."""
        for node in self.nodes:
            status = node.ask("patroni")
            if status and status.get("role") in ("master", "primary") and status.get("state") == "running":
                return node
        return None

    def complete(self):
        """A leader, with a synchronous standby where that is wanted, and everybody follows it."""
        for node in self.nodes:
            status = node.ask("cluster")
            if not status:
                continue
            members = status.get("members", [])
            roles = [member["role"] for member in members]
            if len(members) != 3 or roles.count("leader") != 1:
                return False
            if self.synchronous and "sync_standby" not in roles:
                return False
            timelines = {member.get("timeline") for member in members}
            states = {member["state"] for member in members}
            return len(timelines) == 1 and states <= {"running", "streaming"}
        return False

    def synchronous_standby(self):
        for node in self.nodes:
            for member in (node.ask("cluster") or {}).get("members", []):
                if member["role"] == "sync_standby":
                    return next(n for n in self.nodes if n.name == member["name"])
        return None

    def switchover(self):
        """The planned change of the leader."""
        leader = self.leader()
        wanted = self.synchronous_standby() or next(n for n in self.nodes if n is not leader)
        request = urllib.request.Request(
            f"http://127.0.0.1:{leader.rest}/switchover", method="POST",
            data=json.dumps({"leader": leader.name, "candidate": wanted.name}).encode(),
            headers={"Content-Type": "application/json",
                     "Authorization": "Basic " + base64.b64encode(f"patroni:{self.secret}".encode()).decode()})
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except (OSError, urllib.error.URLError):
            pass  # what comes of it is seen by what follows

    def end(self):
        for node in self.nodes:  # all at once, so that there is nobody to be promoted
            node.thaw()
            node.patroni.signal(signal.SIGTERM)
        for node in self.nodes:
            node.end()
        for part in self.proxy, *self.etcd:
            part.end()
