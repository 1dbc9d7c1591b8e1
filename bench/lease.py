#!/usr/bin/env python3
"""What lease mode costs beyond the row itself: the reminder at commit and its share of the sweep, beside a small INSERT."""

import shutil

from callgrind import Counted, per_call
from suite import ANSWER, FINGERPRINT, Report, scaled, skip

FEW, MANY = scaled((200, 1200), (200, 2200), (5, 15))

# Keys that are reserved in one transaction and answered in another, and keys
# that are done in one; both are swept.
LEASED = (f"DO $$ BEGIN FOR i IN 1..{{calls}} LOOP PERFORM idem_reserve('n', i::text, {FINGERPRINT}, '1 h'); COMMIT; END LOOP; END $$;\n"
          f"DO $$ BEGIN PERFORM idem_complete('n', key, token, 200, {ANSWER}) FROM idem_key WHERE client = 'n'; END $$;\n")
PLAIN = (f"DO $$ DECLARE r record; BEGIN FOR i IN 1..{{calls}} LOOP r := idem_reserve('n', i::text, {FINGERPRINT}, '1 h');"
         f" PERFORM idem_complete('n', i::text, r.token, 200, {ANSWER}); END LOOP; END $$;\n")
SWEEP = "SELECT idem_sweep();\n"
INSERT = "DO $$ BEGIN FOR i IN 1..{calls} LOOP PERFORM bench_spi_insert(now(), gen_random_uuid(), 'n', i::text); END LOOP; END $$;\n"


def main():
    if shutil.which("valgrind") is None:
        skip("valgrind is not there")
    report = Report("What lease mode costs beyond the row, in instructions")
    with Counted() as counted:
        found = per_call(counted, FEW, MANY, {
            "leased": (LEASED + SWEEP, ["ReminderXactCallback", "idem_sweep"]),
            "plain": (PLAIN + SWEEP + INSERT, ["idem_sweep", "bench_spi_insert"]),
        })
    reminder = found["leased"].inclusive("ReminderXactCallback")
    insert = found["plain"].inclusive("bench_spi_insert")
    sweep = found["leased"].inclusive("idem_sweep") - found["plain"].inclusive("idem_sweep")
    report.target("reminder and its sweep / a small INSERT through SPI", (reminder + sweep) / insert, "<=", 1.2)
    report.figure("the reminder, at commit", reminder)
    report.figure("its share of the sweep", sweep)
    report.figure("a small INSERT through SPI, without an index", insert)
    report.write()


main()
