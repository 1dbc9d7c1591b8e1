#!/usr/bin/env python3
"""Instructions per call, counted by callgrind in a backend of its own: not noisy, whatever else the machine does.

A call's price is the difference between a run with many and one with few, so
that what a backend does once is not in it. Counted beside the instructions:
relations opened, heavy locks asked for, and WAL records written.
"""

import shutil
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from suite import ANSWER, BINDIR, RESULTS, TINY, WORK, Report, Server, say, scaled, skip

STORED = 1000
FEW, MANY = scaled((200, 1200), (200, 2200), (5, 15))
FINGERPRINT = r"'\x01'"


def cycle(reserve, complete):
    return f"r := {reserve}('n', i::text, {FINGERPRINT}); PERFORM {complete}('n', i::text, r.token, 200, {ANSWER});"


def again(reserve, client, fingerprint=FINGERPRINT):
    return f"r := {reserve}('{client}', (1 + i % {STORED})::text, {fingerprint});"


# What is run, and which functions are counted in it
RUNS = {
    "cycle": (cycle("idem_reserve", "idem_complete"), ["idem_reserve", "idem_complete"]),
    "replay": (again("idem_reserve", "done"), ["idem_reserve"]),
    "in flight": (again("idem_reserve", "live"), ["idem_reserve"]),
    "mismatch": (again("idem_reserve", "done", r"'\x02'"), ["idem_reserve"]),
    "once": ("PERFORM idem_once('o', i::text);", ["idem_once"]),
    "once again": (f"PERFORM idem_once('seen', (1 + i % {STORED})::text);", ["idem_once"]),
    "call": ("PERFORM idem_call('n', i::text, 'pay(jsonb)', '{\"amount\": 1990}', '\\x01');",
             ["idem_call", "plpgsql_call_handler"]),
    "SPI cycle": (cycle("bench_spi_upsert", "bench_spi_complete"), ["bench_spi_upsert", "bench_spi_complete"]),
    "SPI replay": (again("bench_spi_reserve", "done"), ["bench_spi_reserve"]),
    "PL/pgSQL cycle": (cycle("bench_plpgsql_upsert", "bench_plpgsql_complete"), ["plpgsql_call_handler"]),
    "PL/pgSQL replay": (again("bench_plpgsql_reserve", "done"), ["plpgsql_call_handler"]),
    "lease": (f"PERFORM idem_reserve('n', i::text, {FINGERPRINT}, '1 h'); COMMIT;", ["ReminderXactCallback"]),
    "small insert": ("PERFORM bench_spi_insert(now(), gen_random_uuid(), 'n', i::text);", ["bench_spi_insert"]),
}
TINY_RUNS = ("cycle", "replay")

# How often these are called
COUNTED = {
    "relations": ("relation_open", "try_relation_open"),
    "locks": ("LockAcquireExtended",),
    "records": ("XLogInsert",),
}


class Profile:
    """Costs out of callgrind's file: each function's own, and those of each call."""

    def __init__(self, path):
        self.own, self.cost, self.calls = Counter(), Counter(), Counter()
        names = {}

        def name_of(text):
            number, _, name = text.partition(" ")
            if name:
                names[number] = name
            return names.get(number, text)

        function = callee = calls = None
        for line in path.read_text().splitlines():
            if line.startswith("fn="):
                function = name_of(line[3:])
            elif line.startswith("cfn="):
                callee = name_of(line[4:])
            elif line.startswith("calls="):
                calls = int(line[6:].split()[0])
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                words = line.split()
                cost = int(words[1]) if len(words) > 1 else 0
                if calls is None:
                    self.own[function] += cost
                else:
                    self.cost[function, callee] += cost
                    self.calls[function, callee] += calls
                    calls = None

    def minus(self, other, count):
        """The difference, for each of so many calls more."""
        for mine, theirs in (self.own, other.own), (self.cost, other.cost), (self.calls, other.calls):
            for key in mine:
                mine[key] = (mine[key] - theirs[key]) / count
        return self

    def inclusive(self, function):
        return self.own[function] + sum(cost for (caller, callee), cost in self.cost.items()
                                        if caller == function != callee)

    def count(self, functions):
        return sum(calls for (_, callee), calls in self.calls.items() if callee in functions)

    def tree(self, root, least, depth):
        """Lines with the callees of a function, and theirs, as far as they cost at least so much."""
        below = defaultdict(list)
        for (caller, callee), cost in self.cost.items():
            if caller != callee:
                below[caller].append((cost, callee))
        lines = []

        def show(function, cost, level, path):
            lines.append(f"{cost:8.0f}  {'  ' * level}{function}")
            total = self.inclusive(function)
            if level < depth and function not in path and total > 0:
                for part, callee in sorted(below[function], reverse=True):
                    if part * cost / total >= least:
                        show(callee, part * cost / total, level + 1, path | {function})

        show(root, self.inclusive(root), 0, frozenset())
        return lines


def prepare():
    """A data directory with stored keys, of a server that is shut down."""
    data = WORK / "counted"
    shutil.rmtree(data, ignore_errors=True)
    with Server(buffers="64MB") as server:
        with server.connect() as db:
            for reserve, complete in ("idem_reserve", "idem_complete"), ("bench_spi_upsert", "bench_spi_complete"):
                db.execute(f"""SELECT count(*) FROM (
                    SELECT {complete}('done', i::text, ({reserve}('done', i::text, {FINGERPRINT})).token, 200, {ANSWER})
                      FROM generate_series(1, {STORED}) i OFFSET 0) s""")
            db.execute(f"SELECT count(idem_reserve('live', i::text, {FINGERPRINT}, '1 h')) FROM generate_series(1, {STORED}) i")
            db.execute(f"SELECT count(idem_once('seen', i::text)) FROM generate_series(1, {STORED}) i")
            db.execute("VACUUM ANALYZE")
        server.stop()
        shutil.copytree(server.data, data, symlinks=True)
    data.chmod(0o700)
    return data


def count(data, name, calls, work):
    """Run it so many times in a backend under callgrind."""
    body, functions = work
    slug = f"{name.replace(' ', '-').replace('/', '')}.{calls}"
    copy, output = WORK / f"data.{slug}", WORK / f"callgrind.{slug}"
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-a", data, copy], check=True)
    declare = "" if "PERFORM" in body and ":=" not in body else "DECLARE r record; "
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}",
               *(f"--toggle-collect={function}" for function in functions),
               str(BINDIR / "postgres"), "--single", "-D", str(copy), "postgres"]
    done = subprocess.run(command, capture_output=True, text=True,
                          input=f"DO $$ {declare}BEGIN FOR i IN 1..{calls} LOOP {body} END LOOP; END $$\n")
    shutil.rmtree(copy)
    if "Collected" not in done.stderr or "ERROR" in done.stderr + done.stdout:
        raise RuntimeError(f"callgrind, {name}:\n{done.stderr[-3000:]}")
    profile = Profile(output)
    output.unlink()
    return profile


def profiles():
    """For each run, the profile of one call."""
    data = prepare()
    runs = {name: work for name, work in RUNS.items() if not TINY or name in TINY_RUNS}
    with ThreadPoolExecutor(2) as pool:
        few = {name: pool.submit(count, data, name, FEW, work) for name, work in runs.items()}
        many = {name: pool.submit(count, data, name, MANY, work) for name, work in runs.items()}
        result = {name: many[name].result().minus(few[name].result(), MANY - FEW) for name in runs}
    shutil.rmtree(data)
    return result


def main():
    if shutil.which("valgrind") is None:
        skip("valgrind is not there")
    report = Report("Instructions per call")
    found = profiles()
    cost = {}
    for name, profile in found.items():
        for function in RUNS[name][1]:
            cost[name, function] = profile.inclusive(function)

    reserve, complete = cost["cycle", "idem_reserve"], cost["cycle", "idem_complete"]
    report.target("reserve and complete", reserve + complete, "<=", 60000, 0)
    report.target("replay", cost["replay", "idem_reserve"], "<=", 24000, 0)
    report.figure("reserve, new", reserve)
    report.figure("complete, in the same transaction", complete)
    if not TINY:
        report_others(report, cost)
    for name, profile in found.items():
        counts = ", ".join(f"{what} {profile.count(functions):.2f}" for what, functions in COUNTED.items())
        report.note(f"{name}: {counts}")

    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "profile.txt").open("w") as output:
        print("Instructions of one call, by function. Functions of the server without a name are not exported by it.", file=output)
        for name in "cycle", "replay":
            for function in RUNS[name][1]:
                print(f"\n{name}: {function}\n", *found[name].tree(function, 250, 7), sep="\n", file=output)
    say(f"  what is left, by function: {RESULTS / 'profile.txt'}")
    report.write()


def report_others(report, cost):
    spi = cost["SPI cycle", "bench_spi_upsert"] + cost["SPI cycle", "bench_spi_complete"]
    for name in "in flight", "mismatch":
        report.figure(f"{name}", cost[name, "idem_reserve"])
    report.figure("idem_once, the first time", cost["once", "idem_once"])
    report.figure("idem_once, again", cost["once again", "idem_once"])
    work = cost["call", "plpgsql_call_handler"]
    report.figure("idem_call, but for the function that it calls", cost["call", "idem_call"] - work)
    report.figure("the function that idem_call calls", work)
    report.figure("reserve and complete through SPI", spi)
    report.figure("replay through SPI", cost["SPI replay", "bench_spi_reserve"])
    report.figure("reserve and complete in PL/pgSQL", cost["PL/pgSQL cycle", "plpgsql_call_handler"])
    report.figure("replay in PL/pgSQL", cost["PL/pgSQL replay", "plpgsql_call_handler"])
    report.data("cost", [[name, function, value] for (name, function), value in cost.items()])


main()
