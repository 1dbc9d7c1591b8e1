"""Consumes a queue that delivers at least once, and handles each message once.

usage: consumer.py    until the queue is empty; prints how many deliveries and how many messages
"""

import os
import signal

import psycopg

from broker import Broker

BATCH = 20


def handle(db, deliveries):
    """The marks and what the messages do are one transaction: both are there, or neither.
    Gives the messages that had not been seen before.

    If another consumer is at one of these messages this waits for it, since only a mark
    that is committed says that the message is handled."""
    by_name = {delivery.message: delivery for delivery in deliveries}
    with db.transaction():
        rows = db.execute(
            "SELECT message FROM idem_once_batch(client => 'queue:deposits', keys => %s::text[]) AS message",
            ([delivery.message for delivery in deliveries],),
        ).fetchall()
        new = [by_name[message] for (message,) in rows]
        for delivery in new:
            db.execute(
                "INSERT INTO deposit (message, account, amount) VALUES (%s, %s, %s)",
                (delivery.message, delivery.body["account"], delivery.body["amount"]),
            )
        reached("before commit")
    reached("after commit")
    return new


def reached(point):
    """For the demonstration: kill -9, if this is the point to die at."""
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    broker = Broker()
    delivered = handled = 0
    with psycopg.connect("dbname=shop user=shop", autocommit=True) as db:
        while deliveries := broker.receive(BATCH):
            handled += len(handle(db, deliveries))
            delivered += len(deliveries)
            broker.acknowledge(deliveries)  # after the commit: lost in between, it comes again
    print(delivered, handled)


if __name__ == "__main__":
    main()
