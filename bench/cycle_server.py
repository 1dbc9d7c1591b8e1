#!/usr/bin/env python3
"""Reserve and complete, in the server: the CPU of the two calls, beside the same through SPI and in PL/pgSQL.

The cost of two calls that do nothing is taken off from all.
"""

from suite import ANSWER, FINGERPRINT, Report, Server, cpu_of, ratios, scaled, take_turns

KEYS = scaled(3000, 10000, 20)
WAYS = {
    "idem": ("idem_reserve", "idem_complete"),
    "SPI": ("bench_spi_upsert", "bench_spi_complete"),
    "SPI, reading first": ("bench_spi_reserve", "bench_spi_complete"),
    "PL/pgSQL": ("bench_plpgsql_upsert", "bench_plpgsql_complete"),
    "PL/pgSQL, reading first": ("bench_plpgsql_reserve", "bench_plpgsql_complete"),
    "nothing": ("bench_empty_reserve", "bench_empty_complete"),
}


def main():
    report = Report("Reserve and complete, in the server")
    with Server() as server, server.connect() as db:
        db.execute("CREATE UNLOGGED TABLE fresh (key text)")

        def cost(reserve, complete):
            statement = (f"SELECT count(*) FROM (SELECT {complete}('c', key, ({reserve}('c', key, {FINGERPRINT})).token,"
                         f" 200, {ANSWER}) FROM fresh OFFSET 0) s")

            def measure():
                db.execute("TRUNCATE fresh")
                db.execute(f"INSERT INTO fresh SELECT gen_random_uuid()::text FROM generate_series(1, {KEYS})")
                return cpu_of(db, statement) / KEYS
            return measure

        samples = take_turns({name: cost(*functions) for name, functions in WAYS.items()})
        nothing = samples.pop("nothing")
        net = {name: [a - b for a, b in zip(values, nothing)] for name, values in samples.items()}

        report.target("reserve and complete / the same through SPI", ratios(net["idem"], net["SPI"]), "<=", 0.6)
        report.target("reserve and complete / the same in PL/pgSQL", ratios(net["idem"], net["PL/pgSQL"]), "<=", 0.5)
        for name, values in net.items():
            report.figure(f"{name}: reserve and complete, CPU", values, 2, "µs")
        report.data("cost", [[name, *values] for name, values in net.items()])
    report.write()


main()
