#!/usr/bin/env python3
"""Replay, in the server: the CPU of a call, beside the same through SPI and in PL/pgSQL.

The cost of a call that does nothing is taken off from all.
"""

from suite import ANSWER, FINGERPRINT, Report, Server, cpu_of, ratios, scaled, take_turns

KEYS = scaled(10000, 50000, 20)
RESERVE = {
    "idem": "idem_reserve", "SPI": "bench_spi_reserve", "SPI, inserting first": "bench_spi_upsert",
    "PL/pgSQL": "bench_plpgsql_reserve", "PL/pgSQL, inserting first": "bench_plpgsql_upsert",
    "nothing": "bench_empty_reserve",
}


def each(expression):
    """A statement that evaluates this for every stored key."""
    return f"SELECT count(*) FROM (SELECT {expression} FROM stored OFFSET 0) s"


def wal(db, statement):
    """Bytes of WAL that a statement writes, and whether it took a transaction id."""
    with db.transaction():
        (plan,) = db.execute(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) {statement}").fetchone()
        (xid,) = db.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
    return plan[0]["Plan"]["WAL Bytes"], xid is not None


def main():
    report = Report("Replay, in the server")
    with Server() as server, server.connect() as db:
        db.execute(f"CREATE TABLE stored AS SELECT gen_random_uuid()::text AS key FROM generate_series(1, {KEYS})")
        for reserve, complete in ("idem_reserve", "idem_complete"), ("bench_spi_upsert", "bench_spi_complete"):
            db.execute(each(f"{complete}('c', key, ({reserve}('c', key, {FINGERPRINT})).token, 200, {ANSWER})"))
        db.execute("VACUUM ANALYZE")

        def cost(function):
            statement = each(f"{function}('c', key, {FINGERPRINT})")
            return lambda: cpu_of(db, statement) / KEYS

        samples = take_turns({name: cost(function) for name, function in RESERVE.items()})
        nothing = samples.pop("nothing")
        net = {name: [a - b for a, b in zip(values, nothing)] for name, values in samples.items()}

        report.target("replay / the same through SPI, inserting first as for new keys",
                      ratios(net["idem"], net["SPI, inserting first"]), "<=", 0.22)
        report.target("replay / the same through SPI, reading first", ratios(net["idem"], net["SPI"]), "<=", 0.22)
        for name, values in net.items():
            report.figure(f"{name}: a replay, CPU", values, 2, "µs")
        report.figure("replay / the same in PL/pgSQL", ratios(net["idem"], net["PL/pgSQL"]), 2)
        report.data("cost", [[name, *values] for name, values in net.items()])

        replays, assigned = wal(db, each(f"idem_reserve('c', key, {FINGERPRINT})"))
        selects, _ = wal(db, each("(SELECT body FROM idem_key k WHERE k.client = 'c' AND k.key = stored.key)"))
        report.target("WAL of all replays beyond that of as many SELECTs", replays - selects, "<=", 0, 0, "B")
        report.target("transaction ids taken", int(assigned), "<=", 0, 0)
    report.write()


main()
