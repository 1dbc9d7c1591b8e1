"""Brings to an end what nobody came back for.

The sweeper says NOTIFY idem_stale when it finds leases that are over, and this process
claims them. The notification only wakes: which keys are stale, and whose they become,
idem_claim_stale decides. So any number of completers may run, a lost notification
costs no more than a late look, and a completer that dies leaves stale keys to the others.

usage: completer.py PROVIDER SECONDS    look after so many seconds even when nothing wakes it
"""

import os
import select
import sys

import psycopg

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "recovery"))

from order import connect, go_on


def recover(db, provider):
    """Brings one stale key to an end. False: there was none.

    One at a time, so that the lease, which outlasts the work on one key, begins when the
    work does. A key that fails again and again shows in `attempt`: complete it with a
    final answer some day, or call somebody."""
    work = db.execute("SELECT * FROM idem_claim_stale(max_keys => 1, lease => '5 s')").fetchone()
    if work is None:
        return False
    try:
        go_on(db, provider, work)
    except psycopg.Error as error:
        if error.sqlstate not in ("ID001", "ID002"):  # taken over, expired: not ours any more
            raise
    except OSError as error:  # the provider: the lease runs out, and the key comes back
        print(f"{work.client}/{work.key}: {error}", file=sys.stderr)
    return True


def main(provider, seconds):
    with connect() as db:
        woken = []
        db.add_notify_handler(woken.append)
        db.execute("LISTEN idem_stale")
        print("listening", flush=True)
        while True:
            woken.clear()  # before looking: who comes meanwhile is not missed
            while recover(db, provider):
                pass
            if not woken:
                select.select([db], [], [], seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
