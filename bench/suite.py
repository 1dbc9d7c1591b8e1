"""What the benchmarks share: private servers, load, statistics, results.

Every benchmark is a program of its own, bench/*.py. It starts a server with
fsync on, lets the variants that it compares take turns in short slices, and
writes what it found to RESULTS/<name>.json. A ratio is taken within a round,
from two slices that ran right after one another, so that a machine that is now
faster and now slower does not decide; what counts is the median of the rounds.

Environment: PG_CONFIG; BENCH_WORK (a scratch directory with a short path);
BENCH_RESULTS; BENCH_CONF (settings with which a server finds the extension);
BENCH_ROUNDS, BENCH_SECONDS (of a slice), BENCH_WARM_UP (seconds); FULL=1, TINY=1.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("BENCH_WORK", "/tmp/idem-bench"))
RESULTS = Path(os.environ.get("BENCH_RESULTS", HERE / "results"))
TICKS = os.sysconf("SC_CLK_TCK")

FULL = bool(os.environ.get("FULL"))
TINY = bool(os.environ.get("TINY"))  # only to see that everything runs


# An end from outside must stop the servers, too.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def scaled(quick, full=None, tiny=None):
    """A count for this kind of run."""
    if TINY:
        return tiny
    return full if FULL and full is not None else quick


ROUNDS = int(os.environ.get("BENCH_ROUNDS") or scaled(3, 15, 1))
SECONDS = float(os.environ.get("BENCH_SECONDS") or scaled(1, 5, 0.2))

# Sessions run for so many seconds before anything counts: a new one fills its
# caches and maps every page of shared memory that it meets, and applications
# keep their connections.
WARM_UP = int(os.environ.get("BENCH_WARM_UP") or scaled(4, 8, 0))

# What makes results comparable; bench/run describes the machine.
MACHINE = "cpu", "cpus", "memory", "postgresql"

# A key of 36 bytes, as a UUID has; pgbench draws the number.
DRAW_KEY = r"\set k random(100000000000, 999999999999)" + "\n"
KEY = "(:k::text || '-4c3b-9a5f-0b9f2c6a7d1e')"
FINGERPRINT = r"'\x0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0'"
ANSWER = "'" + "x" * 200 + "'"


def say(text=""):
    print(text, flush=True)


def skip(reason):
    """Leave openly: what this benchmark takes is not there."""
    say(f"skipped: {reason}")
    sys.exit(0)


def pg_config(option):
    command = [os.environ.get("PG_CONFIG", "pg_config"), option]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


BINDIR = Path(pg_config("--bindir"))


def run(command, **options):
    """Run a command; what it printed is shown only if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


# Building


def compile_c(source, target, flags, libraries=()):
    """Compile once; None where the headers are not there."""
    target = WORK / target
    if not target.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        command = [os.environ.get("CC", "gcc"), *flags, "-o", target, HERE / source, *libraries]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            if "No such file or directory" in done.stderr or "cannot find -l" in done.stderr:
                return None
            sys.exit(done.stderr)
        if done.stderr:
            say(done.stderr)
    return target


def module():
    flags = pg_config("--cflags").split() + ["-fPIC", "-shared", "-I" + pg_config("--includedir-server")]
    flags += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Wno-missing-field-initializers"]
    built = compile_c("module/idem_bench.c", "idem_bench.so", flags)
    return built or sys.exit("the server's headers are not there")


def driver():
    flags = ["-O2", "-Wall", "-Wextra", "-I" + pg_config("--includedir")]
    return compile_c("driver/driver.c", "driver", flags, ["-lpq", "-lhiredis"])


# Servers

def in_huge_pages(pid):
    """Whether a process has memory from the pool of huge pages."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[1] != "0" for line in lines if "_Hugetlb:" in line)


SETTINGS = """
shared_preload_libraries = 'idem'
listen_addresses = ''
max_connections = 300
shared_buffers = '{buffers}'
max_wal_size = '20GB'
checkpoint_timeout = '1h'
autovacuum = off
idem.sweeper = off
fsync = {fsync}
synchronous_commit = on
full_page_writes = on
jit = off
log_checkpoints = off
"""


class Server:
    """A private server with the extension, the schema and nothing else; use it in `with`."""

    huge_pages = False  # what the last one that was started got

    def __init__(self, settings="", buffers=None):
        self.base = WORK / "server"
        self.data = self.base / "data"
        self.settings = SETTINGS.format(
            buffers=buffers or scaled("512MB", "2GB", "32MB"), fsync=scaled("on", "on", "off")) + settings

    def __enter__(self):
        if self.base.exists():
            shutil.rmtree(self.base)
        self.base.mkdir(parents=True)
        template = self.template()
        run(["cp", "-a", template, self.data])
        self.configure(self.settings)
        self.start()
        return self

    def __exit__(self, *exception):
        self.stop("immediate")
        shutil.rmtree(self.base)

    def template(self):
        """The data directory that each server begins with, made once."""
        template = WORK / "template"
        if not template.exists():
            run([BINDIR / "initdb", "-D", self.data, "-U", "postgres", "--auth=trust",
                 "--encoding=UTF8", "--no-locale", "--no-sync"])
            self.configure(self.settings)
            self.start()
            with self.connect() as db:
                db.execute("CREATE EXTENSION idem")
            run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-v", f"module={module().with_suffix('')}",
                 "-h", self.base, "-U", "postgres", "-d", "postgres", "-f", HERE / "schema.sql"])
            self.stop("fast")
            shutil.move(self.data, template)
        return template

    def configure(self, settings):
        """These settings and no others, but what ALTER SYSTEM has set."""
        conf = settings + f"unix_socket_directories = '{self.base}'\n"
        if os.environ.get("BENCH_CONF"):
            conf += f"include '{os.environ['BENCH_CONF']}'\n"
        (self.data / "postgresql.conf").write_text(conf)

    def start(self):
        command = [BINDIR / "pg_ctl", "-D", self.data, "-l", self.base / "log", "-w", "-t", "120", "start"]
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit((self.base / "log").read_text()[-3000:])
        self.pid = int((self.data / "postmaster.pid").read_text().split()[0])
        Server.huge_pages = in_huge_pages(self.pid)

    def stop(self, mode="fast"):
        if not (self.data / "postmaster.pid").exists():
            return
        subprocess.run([BINDIR / "pg_ctl", "-D", self.data, "-m", mode, "-w", "stop"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def restart(self, settings):
        self.stop()
        self.configure(self.settings + settings)
        self.start()

    @property
    def conninfo(self):
        return f"host={self.base} user=postgres dbname=postgres"

    def connect(self):
        return psycopg.connect(self.conninfo, autocommit=True)

    def sql(self, statement, *parameters):
        """Run one statement in a session of its own; the first column of the first row."""
        with self.connect() as db:
            cursor = db.execute(statement, parameters or None)
            return cursor.fetchone()[0] if cursor.description else None

    def fillfactor(self):
        """That of idem_key."""
        return self.sql("""SELECT option_value::int FROM pg_class, pg_options_to_table(reloptions)
                            WHERE oid = 'idem_key'::regclass AND option_name = 'fillfactor'""")

    def cpu(self):
        """Seconds of CPU that the processes of this server took that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / TICKS

    def clients(self):
        """How many sessions are connected, and the seconds of CPU that they took so far."""
        count = total = 0
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.pid and b"[local]" in (directory / "cmdline").read_bytes():
                    total += int((directory / "schedstat").read_text().split()[0])
                    count += 1
            except (FileNotFoundError, ProcessLookupError):
                pass
        return count, total / 1e9

    def settled_cpu(self):
        """Like cpu(), when no session of pgbench is left."""
        with self.connect() as db:
            while db.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'").fetchone()[0] > 0:
                time.sleep(0.02)
        return self.cpu()

    def pgbench(self, script, clients, amount, options=()):
        """The command that lets pgbench run a script, prepared; amount: seconds, or {"transactions": of each client}."""
        path = WORK / "script.sql"
        path.write_text(script)
        clients = min(clients, 2) if TINY else clients
        if isinstance(amount, dict) or TINY:
            limit = ["-t", 10 if TINY else amount["transactions"]]
        else:
            limit = ["-T", max(1, round(amount))]
        return [str(word) for word in (
            BINDIR / "pgbench", "-n", "-M", "prepared", "-c", clients, "-j", min(clients, os.cpu_count() or 1, 2),
            *limit, *options, "-f", path, "-h", self.base, "-U", "postgres", "postgres")]

    def load(self, script, clients=8, amount=SECONDS, synchronous_commit="on"):
        """Let pgbench run a script, and return what came of it: in so many seconds after warming up, or transactions."""
        environment = {**os.environ, "PGOPTIONS": f"-c synchronous_commit={synchronous_commit}"}
        if isinstance(amount, dict) or TINY:
            before = self.settled_cpu()
            output = run(self.pgbench(script, clients, amount), env=environment)
            return Load.of_run(output, self.settled_cpu() - before)

        amount = max(1, round(amount))
        prefix = WORK / "load"
        for path in WORK.glob("load.*"):
            path.unlink()
        # pgbench counts its seconds from before the sessions are connected.
        command = self.pgbench(script, clients, WARM_UP + amount + 2 + clients // 25,
                               ["-l", "--aggregate-interval=1", f"--log-prefix={prefix}"])
        process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while process.poll() is None and self.clients()[0] < clients:
            time.sleep(0.02)
        samples = []
        for pause in WARM_UP + 0.2, amount:
            time.sleep(pause)
            samples.append((time.monotonic(), self.clients()[1]))
        output, _ = process.communicate()
        # Each thread's log has a line a second, with the number of transactions; the last second is not a whole one.
        logs = [path.read_text().splitlines()[:-1] for path in WORK.glob("load.*")]
        if process.returncode != 0 or not logs or min(map(len, logs)) < WARM_UP + amount:
            sys.exit(f"{' '.join(command)}\n{output}")
        transactions = sum(int(line.split()[1]) for lines in logs for line in lines[WARM_UP:WARM_UP + amount])
        (begin, before), (end, after) = samples
        rate = transactions / amount
        return Load(transactions, rate, (after - before) / (end - begin) / max(rate, 1))


class Load:
    """What came of a load: transactions, their rate per second, CPU of the backends in µs for each."""

    def __init__(self, transactions, rate, cpu):
        self.transactions, self.rate, self.cpu = transactions, rate, cpu * 1e6

    @classmethod
    def of_run(cls, output, cpu):
        """From what pgbench says of a whole run."""
        for line in output.splitlines():
            if line.startswith("number of transactions actually processed"):
                transactions = int(line.split(":")[1].split("/")[0])
            elif line.startswith("tps ="):
                rate = float(line.split()[2])
            elif line.startswith("number of failed transactions") and not line.split(":")[1].strip().startswith("0 "):
                sys.exit(output)
        return cls(transactions, rate, cpu / max(transactions, 1))


class Redis:
    """A private Redis that keeps what it acknowledges: appendfsync always; use it in `with`."""

    def __enter__(self):
        self.base = WORK / "redis"
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        self.socket = self.base / "s"
        command = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--dir", self.base,
                   "--appendonly", "yes", "--appendfsync", "always", "--save", "",
                   "--auto-aof-rewrite-percentage", "0", "--logfile", self.base / "log"]
        self.process = subprocess.Popen([str(word) for word in command])
        while not self.socket.exists():
            if self.process.poll() is not None:
                sys.exit((self.base / "log").read_text())
            time.sleep(0.02)
        return self

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.base)


def cpu_of(db, statement):
    """Microseconds of CPU that a statement takes in its backend: less noisy than the time that passes."""
    schedstat = Path(f"/proc/{db.info.backend_pid}/schedstat")
    before = int(schedstat.read_text().split()[0])
    db.execute(statement)
    return (int(schedstat.read_text().split()[0]) - before) / 1000


def drive(mode, clients, server, redis=None, seconds=SECONDS):
    """Let bench/driver run a mode; transactions per second, when warmed up."""
    output = run([driver(), mode, clients, WARM_UP, seconds, server.conninfo, redis.socket if redis else "-"])
    return float(output.split(", ")[1].split()[0])


# Taking turns


def take_turns(variants, rounds=None, warm_up=1):
    """Call each function once a round, forth and back, and collect what they return.

    So many rounds warm up and do not count. What was done to the machine by
    the variant before is spread: every other round goes the other way.
    """
    rounds = rounds or ROUNDS
    samples = {name: [] for name in variants}
    for number in range(rounds + (0 if TINY else warm_up)):
        order = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for name in order:
            value = variants[name]()
            if TINY or number >= warm_up:
                samples[name].append(value)
    return samples


def ratios(above, below):
    return [a / b for a, b in zip(above, below)]


def text_of(values, digits=2):
    """Median, and the least and the largest."""
    median = statistics.median(values)
    text = f"{median:,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
    return text


class Report:
    """The results of one benchmark: targets with what was measured, other figures, data for plots."""

    def __init__(self, title):
        self.name = Path(sys.argv[0]).stem
        self.result = {"name": self.name, "title": title, "rounds": ROUNDS, "seconds": SECONDS, "warm_up": WARM_UP,
                       "commit": os.environ.get("BENCH_COMMIT", "unknown"),
                       "targets": [], "figures": [], "data": {}}
        say(f"\n{title}")

    def target(self, what, values, relation, limit, digits=2, unit=""):
        """Judge the median of the values: relation is '<=' or '>='."""
        values = [float(value) for value in (values if isinstance(values, list) else [values])]
        median = statistics.median(values)
        met = median <= limit if relation == "<=" else median >= limit
        sign = {"<=": "≤", ">=": "≥"}[relation]
        entry = {"what": what, "target": f"{sign} {limit:,g}{unit and ' ' + unit}",
                 "measured": text_of(values, digits) + (unit and " " + unit), "values": values, "met": met}
        self.result["targets"].append(entry)
        say(f"  {what}: {entry['measured']}, target {entry['target']}: {'met' if met else 'NOT MET'}")

    def figure(self, what, values, digits=0, unit=""):
        """Something worth knowing that has no target."""
        values = [float(value) for value in (values if isinstance(values, list) else [values])]
        text = text_of(values, digits) + (unit and " " + unit)
        self.result["figures"].append({"what": what, "measured": text, "values": values})
        say(f"  {what}: {text}")

    def note(self, text):
        self.result["figures"].append({"what": text, "measured": ""})
        say(f"  {text}")

    def data(self, name, rows):
        """A table for a plot."""
        self.result["data"][name] = [list(row) for row in rows]

    def write(self):
        RESULTS.mkdir(parents=True, exist_ok=True)
        described = RESULTS / "machine.json"
        machine = json.loads(described.read_text()) if described.exists() else {}
        self.result["machine"] = {key: machine.get(key) for key in MACHINE}
        self.result["huge_pages"] = Server.huge_pages
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(self.result, indent=1, ensure_ascii=False) + "\n")
