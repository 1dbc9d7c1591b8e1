"""The programs that the scaling tests put together: started, watched, frozen, killed and ended.

All of them run as the user who calls, below one directory, and listen on loopback ports that were free.
"""

import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

BELOW_EPHEMERAL = range(20000, 32000)  # ports that no outgoing connection is given


def free_ports(count):
    """Ports that nobody listens on now."""
    found = []
    while len(found) < count:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def wait_for(what, condition, seconds=60, pause=0.1):
    """What the condition says, as soon as it says something."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(pause)
    return result


def accepts(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def children(pid):
    """Of one process, by the kernel's own list."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            pass
    return found


class Program:
    """One program in the foreground, with its output in a file."""

    def __init__(self, name, directory, command, environment=None):
        self.name = name
        self.directory = Path(directory)
        self.command = [str(word) for word in command]
        self.environment = environment
        self.log = self.directory / f"{name}.log"
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, **(self.environment or {})})
        return self

    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds=60):
        if self.process is not None:
            self.process.wait(seconds)

    def end(self, seconds=30):
        """Ask it to end; make it, if it does not."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


def postgres_processes(data):
    """The postmaster of a data directory and its children; none if it does not run."""
    try:
        postmaster = int((Path(data) / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return []
    if not (Path("/proc") / str(postmaster)).exists():
        return []
    return [postmaster, *children(postmaster)]


def freeze(data):
    """Stop every process of a server: the postmaster first, so that no new one comes."""
    stopped = []
    while fresh := [pid for pid in postgres_processes(data) if pid not in stopped]:
        send(fresh, signal.SIGSTOP)
        stopped += fresh
    return stopped


class Server:
    """A PostgreSQL server on a free port of the loopback and on a socket."""

    def __init__(self, bindir, directory, settings="", port=None):
        self.bindir = Path(bindir)
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self.port = port or free_ports(1)[0]
        self.settings = settings

    @property
    def conninfo(self):
        return f"host={self.directory} port={self.port} user=postgres dbname=postgres connect_timeout=10"

    def run(self, program, *arguments):
        done = subprocess.run([self.bindir / program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=180, text=True, cwd=self.directory)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout}")

    def create(self, secret=None):
        """With a password, if it is to be reached through TCP too; the socket is in a private folder."""
        password = self.directory / "password"
        password.write_text(f"{secret or ''}\n")
        password.chmod(0o600)
        self.run("initdb", "-D", self.data, "-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256",
                 "--encoding=UTF8", "--no-locale", "--no-sync", *([f"--pwfile={password}"] if secret else []))
        self.configure()
        return self

    def create_standby(self, primary):
        """A copy that follows the primary."""
        self.run("pg_basebackup", "-D", self.data, "-d", primary.conninfo, "-R", "-c", "fast", "--no-sync")
        self.configure()
        return self

    def configure(self):
        with open(self.data / "postgresql.conf", "a") as file:
            file.write(f"{self.settings}\nport = {self.port}\nunix_socket_directories = '{self.directory}'\n")

    def start(self):
        # pg_ctl's output must not be a pipe: the server would inherit it
        done = subprocess.run([self.bindir / "pg_ctl", "-D", self.data, "-l", self.log, "-t", "120", "-w", "start"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180,
                              cwd=self.directory)
        if done.returncode != 0:
            raise RuntimeError(f"the server does not start: {self.log.read_text()[-3000:]}")
        return self

    def kill(self):
        """At one blow, as a machine dies."""
        send(freeze(self.data), signal.SIGKILL)
        wait_for("the server dies", lambda: not postgres_processes(self.data))

    def stop(self, mode="fast"):
        if postgres_processes(self.data):
            self.run("pg_ctl", "-D", self.data, "-m", mode, "-t", "120", "-w", "stop")

    def psql(self, text):
        """Run a script."""
        done = subprocess.run([self.bindir / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.conninfo, "-f", "-"],
                              input=text, capture_output=True, text=True, timeout=300, cwd=self.directory)
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr}")
        return done.stdout.strip()
