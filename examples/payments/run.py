"""Runs the conformance suite against the payments services.

usage: run.py [--pooler] [--all | LANGUAGE...]
"""

import atexit
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
SUITE = os.path.join(HERE, os.pardir, "conformance", "conformance.py")
SANDBOX, TMPDIR = os.environ["SANDBOX"], os.environ["TMPDIR"]
PYTHON = shlex.quote(sys.executable)
JARS = "/usr/share/java/postgresql.jar:/usr/share/java/gson.jar"
LOG = open(os.path.join(TMPDIR, "services.log"), "a")

# How each is built, and run on $PORT.
SERVICES = {
    "python": ("", f"exec {PYTHON} python/payments.py"),
    "javascript": ("", "exec node javascript/payments.js"),
    "go": (
        f"cd go && GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE={TMPDIR}/go go build -o {TMPDIR}/payments .",
        f"exec {TMPDIR}/payments",
    ),
    "java": (
        f"javac -cp {JARS} -d {TMPDIR}/classes java/*.java",
        f"exec java -cp {TMPDIR}/classes:{JARS} Payments",
    ),
    "ruby": ("", 'cd ruby && exec rackup --quiet --env production --server puma --host 127.0.0.1 --port "$PORT"'),
    "php": ("", 'PHP_CLI_SERVER_WORKERS=10 exec php -S 127.0.0.1:"$PORT" php/payments.php'),
}

# What is wrong with each, and so which checks must fail.
WRONG = {
    "wrong/table.py": "looks for the key, charges, and inserts it with the answer",
    "wrong/memory.py": "keeps keys in a dictionary, whoever sends them and whatever the request",
    "wrong/idle.py": "answers at once, and does nothing",
}

RESOURCES = ("payments", "transfers")

wrong = 0


def show(what, ok):
    global wrong
    wrong += not ok
    print(f"   {what:94} {'ok' if ok else 'WRONG'}", flush=True)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on {port}")


def run_beside(*command):
    """Until this program ends."""
    process = subprocess.Popen(command, stdout=LOG, stderr=LOG)
    atexit.register(process.kill)


def start(program, *arguments):
    port = free_port()
    run_beside(sys.executable, os.path.join(HERE, program), str(port), *arguments)
    wait_for(port)
    return f"http://127.0.0.1:{port}"


def start_pooler():
    """PgBouncer, so that every transaction may get another of the server's sessions."""
    port = free_port()
    path = os.path.join(TMPDIR, "pgbouncer.ini")
    with open(f"{path}.users", "w") as file:
        file.write('"shop" ""\n')
    with open(path, "w") as file:
        file.write(
            f"""[databases]
payments = host=127.0.0.1 port={os.environ["PGPORT"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {path}.users
pool_mode = transaction
default_pool_size = 10
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
"""
        )
    program = next((p for p in ("/usr/sbin/pgbouncer", "/usr/bin/pgbouncer") if os.access(p, os.X_OK)), "pgbouncer")
    run_beside(program, "-q", path)
    wait_for(port)
    return port


def judge(command, resource, port, provider, hooks, **settings):
    """Runs the suite against one service, and gives its lines, each with whether it is ok."""
    environment = {
        **os.environ,
        "PROVIDER": provider,
        "PGHOST": "127.0.0.1",
        "PGPORT": str(port),
        "PGDATABASE": "payments",
        "PGUSER": "shop",
        "PGSSLMODE": "disable",
        **settings,
    }
    arguments = [
        *("--start", command, "--path", f"/{resource}", "--effects", f"{hooks}/{resource}/effects?reference="),
        *("--same-body", '{ "amount": 10, "reference": "{reference}" }', "--invalid-body", '{"amount": -1}'),
    ]
    if resource == "payments":
        arguments += ["--hold", f"{provider}/hold", "--lose", f"{provider}/lose"]
        arguments += ["--refused-body", '{"reference": "{reference}", "amount": 5000}']
    else:
        arguments += ["--hold", f"{hooks}/{resource}/hold", "--leases", "no"]
    suite = subprocess.Popen(
        [sys.executable, SUITE, *arguments], cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=LOG, text=True
    )
    atexit.register(suite.terminate)
    for line in suite.stdout:
        line = line.rstrip()
        verdict, _, name = line.partition(" - ")
        if name and "# SKIP" not in name:
            yield name, verdict.startswith("ok")
        elif line.startswith("# "):
            yield line, None
    suite.wait()


def run_right(language, ways, *helpers):
    build, command = SERVICES[language]
    if build and subprocess.run(build, shell=True, cwd=HERE, stdout=LOG, stderr=LOG).returncode != 0:
        print(f"\n{language}")
        show("is built", False)
        return
    for way, port in ways.items():
        for resource in RESOURCES:
            print(f"\n{language}, {way}: POST /{resource}")
            for name, ok in judge(command, resource, port, *helpers):
                if ok is None:
                    print(f"      {name}")
                else:
                    show(name, ok)


def run_wrong(service, patience, port, *helpers):
    """The suite has to be able to fail. Gives the checks that it made, and those that failed."""
    print(f"\nwrong on purpose: {service} {WRONG[service]}")
    lines = judge(f"exec {PYTHON} {service}", "payments", port, *helpers, CONFORMANCE_PATIENCE=str(patience))
    verdicts = {name: ok for name, ok in lines if ok is not None}
    failed = {name for name, ok in verdicts.items() if not ok}
    for name in verdicts:
        if name in failed:
            print(f"      {name}")
    show(f"{len(failed)} of {len(verdicts)} checks fail", len(failed) >= 5)
    return set(verdicts), failed


def run_all_wrong(*arguments):
    runs = [run_wrong(service, 10, *arguments) for service in WRONG]
    seen, failed = (set().union(*sets) for sets in zip(*runs))
    for name in seen - failed:
        print(f"      never failed: {name}")
    show("each check fails for one of them", seen == failed)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it has started, too
    arguments = sys.argv[1:]
    languages = [name for name in SERVICES if name in arguments or "--all" in arguments] or ["python"]
    provider = start("provider.py")
    helpers = provider, start("hooks.py", provider)
    ways = {"directly": int(os.environ["PGPORT"])}
    if "--pooler" in arguments:
        ways["through PgBouncer"] = start_pooler()
    for language in languages:
        run_right(language, ways, *helpers)
    if "--all" in arguments:
        run_all_wrong(ways["directly"], *helpers)
    elif "python" in languages:
        run_wrong("wrong/table.py", 3, ways["directly"], *helpers)
    print(f"\n{wrong} WRONG" if wrong else "\nAll as expected.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
