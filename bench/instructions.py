#!/usr/bin/env python3
"""Instructions per call, and beside them: relations opened, heavy locks asked for, WAL records written."""

import shutil

from callgrind import FINGERPRINT, STORED, Counted, per_call
from suite import ANSWER, RESULTS, TINY, Report, say, scaled, skip

FEW, MANY = scaled((200, 1200), (200, 2200), (5, 15))


def loop(body):
    return f"DO $$ DECLARE r record; BEGIN FOR i IN 1..{{calls}} LOOP {body} END LOOP; END $$;\n"


def cycle(reserve, complete):
    return f"r := {reserve}('n', i::text, {FINGERPRINT}); PERFORM {complete}('n', i::text, r.token, 200, {ANSWER});"


def again(reserve, client, fingerprint=FINGERPRINT):
    return f"r := {reserve}('{client}', (1 + i % {STORED})::text, {fingerprint});"


# What is run, and which functions are counted in it. (Of idem_call the function
# that it calls is not: see Counted.count.)
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
    "work": ("PERFORM pay('{\"amount\": 1990}');", ["plpgsql_call_handler"]),
    "SPI replay, inserting first": (again("bench_spi_upsert", "done"), ["bench_spi_upsert"]),
}
TINY_RUNS = ("cycle",)

# How often these are called
COUNTED = {
    "relations": ("relation_open", "try_relation_open"),
    "locks": ("LockAcquireExtended",),
    "records": ("XLogInsert",),
}


def main():
    if shutil.which("valgrind") is None:
        skip("valgrind is not there")
    report = Report("Instructions per call")
    runs = {name: (loop(body), functions) for name, (body, functions) in RUNS.items() if not TINY or name in TINY_RUNS}
    with Counted() as counted:
        found = per_call(counted, FEW, MANY, runs)
    cost = {}
    for name, profile in found.items():
        for function in RUNS[name][1]:
            cost[name, function] = profile.inclusive(function)

    reserve, complete = cost["cycle", "idem_reserve"], cost["cycle", "idem_complete"]
    report.target("reserve and complete: instructions", reserve + complete, "<=", 60000, 0)
    if not TINY:
        report.target("replay: instructions", cost["replay", "idem_reserve"], "<=", 24000, 0)
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
        for name in sorted({"cycle", "replay"} & set(found)):
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
    report.figure("idem_call, but for the function that it calls", cost["call", "idem_call"])
    report.figure("the function that idem_call calls", cost["work", "plpgsql_call_handler"])
    report.figure("reserve and complete through SPI", spi)
    report.figure("replay through SPI", cost["SPI replay", "bench_spi_reserve"])
    report.figure("replay through SPI, inserting first", cost["SPI replay, inserting first", "bench_spi_upsert"])
    report.figure("reserve and complete in PL/pgSQL", cost["PL/pgSQL cycle", "plpgsql_call_handler"])
    report.figure("replay in PL/pgSQL", cost["PL/pgSQL replay", "plpgsql_call_handler"])
    report.data("cost", [[name, function, value] for (name, function), value in cost.items()])


main()
