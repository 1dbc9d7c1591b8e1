"""A message queue that delivers at least once: what was not acknowledged comes again.

It stands for SQS, RabbitMQ or whatever it is. A delivery is out of others' sight while its
consumer is connected, and comes back when that dies.
"""

import psycopg
from psycopg.rows import namedtuple_row


class Broker:
    def __init__(self):
        self.db = psycopg.connect("dbname=queue user=queue", row_factory=namedtuple_row)

    def receive(self, most):
        return self.db.execute(
            "SELECT number, message, body FROM delivery ORDER BY number FOR UPDATE SKIP LOCKED LIMIT %s", (most,)
        ).fetchall()

    def acknowledge(self, deliveries):
        numbers = [delivery.number for delivery in deliveries]
        self.db.execute("DELETE FROM delivery WHERE number = ANY (%s)", (numbers,))
        self.db.commit()
