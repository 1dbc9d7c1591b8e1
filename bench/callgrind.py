"""Counting instructions with callgrind, in a backend that is alone.

What a call costs is the difference between a run with many and one with few, so
that what a backend does once is not in it. The counts do not depend on what
else the machine does.
"""

import shutil
import subprocess
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from suite import ANSWER, BINDIR, WORK, Server

STORED = 1000
FINGERPRINT = r"'\x01'"


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


def count(data, database, name, statements, functions):
    """Run statements, one a line, in a backend of its own; the profile of what these functions did.

    callgrind collects while one of the functions runs; a second one called by
    the first interrupts that.
    """
    output = WORK / f"callgrind.{name}"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}",
               *(f"--toggle-collect={function}" for function in functions),
               str(BINDIR / "postgres"), "--single", "-D", str(data), database]
    done = subprocess.run(command, capture_output=True, text=True, input=statements)
    if "Collected" not in done.stderr or "ERROR" in done.stderr + done.stdout:
        raise RuntimeError(f"callgrind, {name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    profile = Profile(output)
    output.unlink()
    return profile


class Counted:
    """A data directory with stored keys, of a server that is shut down; use it in `with`."""

    def __enter__(self):
        self.data = WORK / "counted"
        shutil.rmtree(self.data, ignore_errors=True)
        with Server(buffers="64MB") as server:
            with server.connect() as db:
                for reserve, complete in ("idem_reserve", "idem_complete"), ("bench_spi_upsert", "bench_spi_complete"):
                    db.execute(f"""SELECT count(*) FROM (
                        SELECT {complete}('done', i::text, ({reserve}('done', i::text, {FINGERPRINT})).token, 200, {ANSWER})
                          FROM generate_series(1, {STORED}) i OFFSET 0) s""")
                db.execute(f"""SELECT count(idem_reserve('live', i::text, {FINGERPRINT}, '1 h'))
                                 FROM generate_series(1, {STORED}) i""")
                db.execute(f"SELECT count(idem_once('seen', i::text)) FROM generate_series(1, {STORED}) i")
                db.execute("VACUUM ANALYZE")
            server.stop()
            subprocess.run(["cp", "-a", server.data, self.data], check=True)
        return self

    def __exit__(self, *exception):
        shutil.rmtree(self.data)

    def count(self, name, calls, statements, functions):
        """Run statements, {calls} filled in, in a copy of the directory."""
        slug = "".join(c for c in name if c.isalnum()) + f".{calls}"
        copy = WORK / f"data.{slug}"
        shutil.rmtree(copy, ignore_errors=True)
        subprocess.run(["cp", "-a", self.data, copy], check=True)
        profile = count(copy, "postgres", slug, statements.replace("{calls}", str(calls)), functions)
        shutil.rmtree(copy)
        return profile


def per_call(counted, few, many, runs):
    """For each run, (statements, functions), the profile of one call."""
    with ThreadPoolExecutor(2) as pool:
        futures = {(name, calls): pool.submit(counted.count, name, calls, *run)
                   for name, run in runs.items() for calls in (few, many)}
        return {name: futures[name, many].result().minus(futures[name, few].result(), many - few) for name in runs}
