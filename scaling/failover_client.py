"""A client of the torture test that reaches the server through a proxy, and outlives a change of the leader.

What is different from torture/client.py is what doc/high-availability.md advises: connections are tried again for as long as
a failover may take, with growing pauses, and a server that turns out to be a standby (25006) is left at once.
"""

import json
import random
import sys
import time

import client
import wire

PATIENCE = 180  # seconds without a primary, after which this is a failure


def connect(conninfo, rng, patience=PATIENCE):
    """A connection to a primary; growing, jittered pauses between the tries."""
    deadline = time.monotonic() + patience
    pause = 0.05
    while True:
        try:
            return wire.Connection(conninfo)
        except wire.Refused:
            if time.monotonic() > deadline:
                raise
        time.sleep(pause * rng.uniform(0.5, 1.5))
        pause = min(pause * 1.6, 1)


class Client(client.Client):
    def connect(self):
        while self.db is None:
            through_proxy = self.rng.random() < 0.6
            self.db = connect(self.config["proxy" if through_proxy else "server"], random)
            self.setup()
        return self.db

    def setup(self):
        try:
            super().setup()
        except wire.Failed:
            self.drop()

    def attempt(self, op, iso, body):
        result = super().attempt(op, iso, body)
        if self.record.get("err") == "25006":
            self.drop()
        return result


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()  # all of them at once
    Client(json.loads(sys.argv[1]), int(sys.argv[2])).run()
