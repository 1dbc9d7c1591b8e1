#!/usr/bin/env python3
"""Room for the answer: HOT updates and bytes per key, by the fillfactor of the table and the size of the answer.

Eight sessions reserve keys and complete them in another transaction: one key
after the other, and ten keys at a time, so that whole pages are in progress.
Parts and VACUUM as in bench/size.py.
"""

from suite import FINGERPRINT, Report, Server, scaled

CLIENTS = 8
KEYS = scaled(20000, 100000, 160)
PARTS = scaled(5, 10, 1)
FILLFACTORS = scaled((80, 92, 100), (70, 80, 90, 92, 95, 100), (92,))
ANSWERS = scaled((200, 500, 1500), (200, 500, 1000, 1500, 2000), (200,))
AT_A_TIME = (1, 10)


def script(answer, at_a_time):
    """Digits vary, so that nothing can be compressed away."""
    key = "(:k{0}::text || '-4c3b-9a5f-0b9f2c6a7d1e')"
    body = "right(repeat('7', {0}) || :k{1}::text, {0})"
    lines = []
    for i in range(at_a_time):
        lines.append(rf"\set k{i} random(100000000000, 999999999999)")
        lines.append(rf"SELECT token AS token{i} FROM idem_reserve('c', {key.format(i)}, {FINGERPRINT}) \gset")
    for i in range(at_a_time):
        lines.append(f"SELECT idem_complete('c', {key.format(i)}, :token{i}::uuid, 200, {body.format(answer, i)});")
    return "\n".join(lines) + "\n"


def measure(server, answer, at_a_time):
    """HOT updates among the completes, bytes per key."""
    with server.connect() as db:
        db.execute("TRUNCATE idem_key, idem_reminder_1, idem_reminder_2")
        db.execute("SELECT pg_stat_reset()")
        for _ in range(PARTS):
            server.load(script(answer, at_a_time), CLIENTS, {"transactions": max(KEYS // CLIENTS // PARTS // at_a_time, 1)},
                        synchronous_commit="off")
            db.execute("VACUUM idem_key")
        return db.execute("""SELECT n_tup_hot_upd::float / n_tup_upd, pg_total_relation_size(relid)::float / n_tup_ins
                               FROM pg_stat_user_tables WHERE relname = 'idem_key'""").fetchone()


def main():
    report = Report("Room for the answer")
    with Server() as server:
        installed = server.fillfactor()
        for fillfactor in FILLFACTORS:
            server.sql(f"ALTER TABLE idem_key SET (fillfactor = {fillfactor})")
            for answer in ANSWERS:
                hot, size = zip(*(measure(server, answer, at_a_time) for at_a_time in AT_A_TIME))
                if (fillfactor, answer) == (installed, 200):
                    report.target("HOT updates / completes, fillfactor as installed", [hot[0]], ">=", 0.9)
                report.figure(f"fillfactor {fillfactor}, answer of {answer:,} bytes: HOT updates / completes", [hot[0]], 2)
                report.figure("... ten keys at a time", [hot[1]], 2)
                report.figure("... bytes per key", [size[0]], 0, "B")
    report.write()


main()
