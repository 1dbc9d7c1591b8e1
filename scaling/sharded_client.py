"""One of many callers of the sharded service: payments and messages, each tried until it is answered.

What fails is put aside and tried again later under the same key, while the others go on: a shard that is down holds up
nobody but its own clients. Each answer is a line of the history: slot, key, tries, errors, answer.
"""

import hashlib
import json
import random
import sys
import time
import uuid
from pathlib import Path

import wire

CLIENTS = 400


def slot_of(client):
    return hashlib.md5(client.encode()).digest()[0] & 63


class Operation:
    def __init__(self, rng, number, serial):
        self.kind = rng.choices(["call", "lease", "receive"], [6, 2, 2])[0]
        self.client = f"acct_{rng.randrange(CLIENTS)}"
        self.key = f"{number}-{serial}"
        self.token = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.reserved = False
        self.started = wire.wall()
        self.tries = []  # [when, how long, error or None]
        self.due = 0
        self.answer = None

    def request(self):
        return json.dumps({"client": self.client, "key": self.key, "amount": 5})

    def perform(self, db):
        """True when there is an answer."""
        return getattr(self, self.kind)(db)

    def call(self, db):
        outcome, body = db.query("SELECT outcome, body FROM idem_call($1, $2, 'pay(jsonb)', $3::jsonb, status_code => 201)",
                                 self.client, self.key, self.request())[0]
        return self.answered(outcome, body)

    def lease(self, db):
        if not self.reserved:
            outcome, body = db.query("SELECT outcome, body FROM idem_reserve($1, $2, lease => '5 s', token => $3::uuid, request => $4::jsonb)",
                                     self.client, self.key, self.token, self.request())[0]
            if outcome != b"new":
                return self.answered(outcome, body)
            self.reserved = True
        try:
            body = db.query("SELECT settle($1, $2, $3::uuid, 5)", self.client, self.key, self.token)[0][0]
        except wire.Failed as error:
            if error.sqlstate == "ID003":  # answered before, and the reply was lost: ask
                self.reserved = False
            raise
        return self.answered(b"new", body)

    def receive(self, db):
        first = db.query("SELECT receive($1, $2)", self.client, self.key)[0][0]
        self.answer = None
        return first in (b"t", b"f")

    def answered(self, outcome, body):
        self.answer = hashlib.sha1(body or b"").hexdigest() if outcome in (b"new", b"replay") else None
        return outcome in (b"new", b"replay")

    def line(self):
        return json.dumps({"kind": self.kind, "client": self.client, "key": self.key, "slot": slot_of(self.client), "t0": self.started,
                           "t1": wire.wall(), "tries": self.tries, "answer": self.answer})


def main(config, number):
    rng = random.Random(f"{config['seed']}/{number}")
    history = open(f"{config['directory']}/sharded.{number}.jsonl", "w", buffering=1)
    waiting, serial, db = [], 0, None
    recent = []
    print("ready", flush=True)
    sys.stdin.readline()
    stop = Path(config["directory"]) / "stop"
    patience = None  # once stopped: until when what is left is tried
    while True:
        now = time.monotonic()
        if patience is None and stop.exists():
            patience = now + 120
        due = next((op for op in waiting if op.due <= now), None)
        if due is not None:
            waiting.remove(due)
            operation = due
        elif patience is not None:
            if not waiting or now > patience:
                break
            time.sleep(0.02)
            continue
        elif recent and rng.random() < 0.15:  # a retry of what was answered
            operation = rng.choice(recent)
            operation.started, operation.tries, operation.reserved = wire.wall(), [], False
        else:
            serial += 1
            operation = Operation(rng, number, serial)
        began = wire.wall()
        try:
            db = db or wire.Connection(config["proxy"])
            done, error = operation.perform(db), None
        except (wire.Failed, wire.Lost, wire.Refused) as failure:
            done, error = False, getattr(failure, "sqlstate", None) or "lost"
            operation.message = str(failure)
            if not isinstance(failure, wire.Failed):
                db = None
        operation.tries.append([began, wire.wall() - began, error if not done else None])
        if done:
            history.write(operation.line() + "\n")
            if operation not in recent:
                recent = [*recent[-50:], operation]
        else:
            operation.due = time.monotonic() + rng.uniform(0.02, 0.1) * min(10, len(operation.tries))
            waiting.append(operation)
        time.sleep(config["pause"])
    for operation in waiting:
        history.write(json.dumps({"kind": operation.kind, "client": operation.client, "key": operation.key, "slot": slot_of(operation.client),
                                  "unanswered": getattr(operation, "message", ""), "tries": operation.tries[-3:]}) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
