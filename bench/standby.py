"""What hot standbys add for replays. See bench/standby.

usage: standby.py --bindir DIR --conf FILE --directory DIR [--seconds N] [--keys N]
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "scaling"), str(HERE.parent / "torture")]

import wire  # noqa: E402

import parts  # noqa: E402

SETTINGS = """
shared_preload_libraries = 'idem'
listen_addresses = ''
max_connections = 60
shared_buffers = 256MB
wal_level = replica
max_wal_senders = 8
hot_standby = on
fsync = off                     # reading is measured
log_checkpoints = off
log_min_messages = fatal
idem.sweeper = off
"""

SCRIPTS = {
    "idem_lookup": "\\set n random(1, :keys)\nSELECT state, status_code FROM idem_lookup('acct_1', 'key-' || :n);\n",
    "replay": "\\set n random(1, :keys)\nSELECT outcome, status_code, headers, body FROM idem_reserve('acct_1', 'key-' || :n, '\\x01');\n",
}

FILL = """
CREATE EXTENSION idem;
SELECT count(idem_complete('acct_1', 'key-' || i, token, 201, repeat(md5(i::text), 10), '{{"content-type": "application/json"}}'))
  FROM generate_series(1, {keys}) i, idem_reserve('acct_1', 'key-' || i, '\\x01');
SELECT FROM idem_reserve('acct_1', 'running', '\\x01', lease => '1 h');
SELECT FROM idem_reserve('acct_1', 'stale', '\\x01', lease => '1 ms');
SELECT FROM idem_reserve('acct_1', 'expired', '\\x01', retention => '1 ms');
VACUUM (ANALYZE) idem_key;
CHECKPOINT;
"""

ASKED = {
    "completed, the same request": "'key-1', '\\x01'",
    "completed, another request": "'key-1', '\\x02'",
    "in progress": "'running', '\\x01'",
    "in progress, another request": "'running', '\\x02'",
    "stale": "'stale', '\\x01'",
    "expired": "'expired', '\\x01'",
    "never seen": "'none', '\\x01'",
}

TICK = 1e6 / os.sysconf("SC_CLK_TCK")  # microseconds


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for_sessions(server):
    """Until all but one have ended, and the postmaster has taken note of it: then their processor time is counted."""
    def ended():
        titles = [title(pid) for pid in parts.postgres_processes(server.data)[1:]]
        return b"" not in titles and sum(b"postgres: postgres " in text for text in titles) <= 1
    parts.wait_for("the sessions end", ended)


def spent(server):
    """Processor time of the sessions of a server that have ended, in microseconds."""
    pid = parts.postgres_processes(server.data)[0]
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) * TICK


class Load:
    def __init__(self, server, name, options, clients=1):
        script = server.directory / f"{name}.sql"
        script.write_text(SCRIPTS[name])
        self.server = server
        self.db = wire.Connection(server.conninfo)  # stays, and so is not counted
        wait_for_sessions(self.server)
        self.before = spent(server)
        self.process = subprocess.Popen(
            [server.bindir / "pgbench", "-n", "-h", server.directory, "-p", str(server.port), "-U", "postgres", "-c", str(clients), "-T",
             str(options.seconds), "-M", "prepared", "-D", f"keys={options.keys}", "-f", script, "postgres"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def result(self):
        """(calls a second, microseconds of the server's processor time a call)"""
        output = self.process.communicate()[0]
        if self.process.returncode != 0:
            raise RuntimeError(output)
        done = next(int(line.split()[-1].split("/")[0]) for line in output.splitlines() if "actually processed" in line)
        rate = next(float(line.split()[2]) for line in output.splitlines() if line.startswith("tps"))
        wait_for_sessions(self.server)
        cost = (spent(self.server) - self.before) / done
        self.db.close()
        return rate, cost


def answers(server):
    """What a standby says to each state."""
    db = wire.Connection(server.conninfo)
    for what, arguments in ASKED.items():
        try:
            said = db.query(f"SELECT outcome FROM idem_reserve('acct_1', {arguments})")[0][0].decode()
        except wire.Failed as error:
            said = error.sqlstate
        key = arguments.split(",")[0]
        state = db.query(f"SELECT state FROM idem_lookup('acct_1', {key})")[0][0].decode()
        print(f"   {what:32} idem_reserve: {said:10} idem_lookup: {state}")
    db.close()


def redis(directory, options):
    """The same bytes from a Redis of its own."""
    if not shutil.which("redis-server"):
        print("No redis-server here.")
        return
    socket = directory / "redis.sock"
    program = parts.Program("redis", directory, ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"])
    program.start()
    try:
        parts.wait_for("Redis starts", socket.exists)

        def used():
            fields = Path(f"/proc/{program.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) * TICK
        requests = 20000 * options.seconds
        body = "x" * 320
        subprocess.run(["redis-cli", "-s", socket, "SET", "key:__rand_int__", body], check=True, stdout=subprocess.DEVNULL)
        before = used()
        done = subprocess.run(["redis-benchmark", "-s", socket, "-c", "1", "-n", str(requests), "--csv", "GET", "key:__rand_int__"],
                              check=True, stdout=subprocess.PIPE, text=True)
        rate = float(done.stdout.splitlines()[-1].split('","')[1].strip('"'))
        print(f"   {'Redis GET':24} {rate:9.0f} /s by one client  {(used() - before) / requests:6.1f} us of its processor time each")
    finally:
        program.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bindir", required=True)
    parser.add_argument("--conf", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--keys", type=int, default=20000)
    options = parser.parse_args()
    directory = Path(options.directory)
    os.makedirs(directory, mode=0o700)
    settings = SETTINGS + Path(options.conf).read_text()
    servers = {name: parts.Server(options.bindir, directory / name.replace(" ", ""), settings)
               for name in ("primary", "standby 1", "standby 2")}
    primary = servers["primary"]
    try:
        primary.create().start()
        primary.psql(FILL.format(keys=options.keys))
        for server in list(servers.values())[1:]:
            server.create_standby(primary).start()
        end = primary.psql("SELECT pg_current_wal_flush_lsn()")
        for server in list(servers.values())[1:]:
            parts.wait_for("the standby follows", lambda server=server: server.psql(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == "t")

        print("What a standby answers:")
        answers(servers["standby 1"])
        print(f"One client, one server at a time, {options.seconds} s each, a body of 320 bytes:")
        for call in SCRIPTS:
            for name in "primary", "standby 1":
                Load(servers[name], call, argparse.Namespace(seconds=1, keys=options.keys)).result()  # warm
                rate, cost = Load(servers[name], call, options).result()
                print(f"   {call:12} {name:11} {rate:9.0f} /s by one client  {cost:6.1f} us of its processor time each"
                      f" -> {1e6 / cost:7.0f} /s and core", flush=True)
        redis(directory, options)
        print(f"Replays from all of them at once, 2 clients each, on {os.cpu_count()} processors that they share with the clients:")
        for group in (["primary"], ["primary", "standby 1"], ["primary", "standby 1", "standby 2"]):
            loads = [(name, Load(servers[name], "replay", options, 2)) for name in group]
            results = [(name, *load.result()) for name, load in loads]
            print(f"   {len(group)} server(s): {sum(rate for _, rate, _ in results):9.0f} /s; us each: "
                  + ", ".join(f"{name} {cost:.1f}" for name, _, cost in results), flush=True)
    finally:
        for server in servers.values():
            server.stop("immediate")
    return 0


if __name__ == "__main__":
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, lambda *_: sys.exit(143))
    sys.exit(main())
