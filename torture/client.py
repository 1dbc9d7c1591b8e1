"""One client of many: real connections, few keys, every way to use them, and retries after failures.

All that it does and is told goes to its history, one JSON object per transaction:

    c, n        which client, its how manieth transaction
    op          what it was about
    fate        committed, aborted, or unknown (the connection was lost)
    t0, t1      the clock before it and after it, in microseconds; m0, m1: the monotonic one
    calls       each call with its own t0 and t1, and what came back

The random choices follow from the seed. How the clients interleave does not.
"""

import hashlib
import json
import random
import re
import socket
import sys
import time
import uuid

import wire
from keys import FOREVER, SHORT

UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ISOLATION = ["READ COMMITTED"] * 7 + ["REPEATABLE READ", "SERIALIZABLE"]

RESERVE = """
SELECT r.outcome, r.token, r.attempt, r.status_code, r.headers, r.body,
       extract(epoch FROM r.retry_after), r.recovery_point, r.recovery_data
  FROM idem_reserve(client => $1, key => $2, fp => $3::bytea, lease => $4::interval, retention => $5::interval,
                    wait => $6::interval, token => $7::uuid, request => $8::jsonb) r
"""

KEEP = """
INSERT INTO {} SELECT $3::uuid, k.client, k.key, coalesce(k.attempt, 1), k.token, k.began_at, k.expires_at
  FROM idem_key k WHERE k.client = $1 AND k.key = $2
 ORDER BY k.began_at DESC LIMIT 1  -- an old snapshot sees the row that was swept, too
"""


def request_of(client, key):
    return json.dumps({"client": client, "key": key, "amount": 7})


def canonical(headers):
    """Headers compare by value: jsonb is what they are."""
    return None if headers is None else json.dumps(json.loads(headers), sort_keys=True)


def answer(status, headers, body):
    """An answer as the history keeps it: comparable, and naming the work that it came from."""
    raw = None if body is None else bytes.fromhex(body[2:].decode()) if body[:2] == b"\\x" else body
    named = UUID.search((headers or b"") + b" " + (raw or b""))
    return [
        int(status),
        canonical(headers),
        None if raw is None else f"{len(raw)}:{hashlib.sha1(raw).hexdigest()}",
        named.group().decode() if named else None,
    ]


class Client:
    def __init__(self, config, number):
        self.config = config
        self.number = number
        self.rng = random.Random(f"{config['seed']}/{number}")
        self.history = open(f"{config['directory']}/history.{number}.jsonl", "w", buffering=1)
        self.started = time.monotonic()
        self.until = self.started + config["seconds"]
        self.count = 0
        self.db = None
        self.seen = {}  # completed keys that are kept for ever, and their clients
        self.memory = []

    # ---- connections and transactions

    def connect(self):
        if self.db is None:
            through_proxy = self.rng.random() < 0.6
            self.db = wire.connect(
                self.config["proxy" if through_proxy else "server"], time.monotonic() + 60
            )
            self.setup()
        return self.db

    def setup(self):
        try:
            self.db.query("SET application_name = 'torture'")
            if self.rng.random() < 0.3:
                self.db.query(f"SET lock_timeout = {self.rng.choice([50, 300])}")
            if self.rng.random() < 0.2:
                self.db.query(f"SET statement_timeout = {self.rng.choice([200, 1000])}")
        except wire.Lost:
            self.drop()
            self.connect()

    def drop(self):
        if self.db is not None:
            self.db.close()
        self.db = None

    def begin(self, op, iso=None):
        """A record of what follows. With an isolation level: in a transaction, else each call commits itself."""
        self.count += 1
        self.record = {"c": self.number, "n": self.count, "op": op, "iso": iso, "fate": None,
                       "t0": wire.wall(), "m0": time.monotonic_ns() // 1000, "calls": []}
        self.connect()
        self.record["pid"] = self.db.pid
        if iso:
            self.query(f"BEGIN ISOLATION LEVEL {iso}")

    def end(self, fate, **more):
        self.record.update(fate=fate, t1=wire.wall(), m1=time.monotonic_ns() // 1000, **more)
        self.history.write(json.dumps(self.record) + "\n")

    def query(self, sql, *params):
        return self.db.query(sql, *params)

    def call(self, name, client, key, sql, *params, **more):
        """One call of the extension, noted. The caller fills in what came back."""
        noted = {"f": name, "client": client, "key": key, "t0": wire.wall(), **more}
        self.record["calls"].append(noted)
        try:
            rows = self.query(sql, *params)
        except (wire.Failed, wire.Lost) as error:
            noted.update(t1=wire.wall(), err=error.sqlstate or "lost", message=error.message)
            raise
        noted["t1"] = wire.wall()
        return noted, rows

    def attempt(self, op, iso, body):
        """Run body; its fate is known unless the connection is lost. Returns (fate, what body returned)."""
        result = None
        try:
            self.begin(op, iso)
            result = body()
            if iso:
                fate = self.finish()
            else:
                fate = "committed"
        except wire.Failed as error:
            fate = "aborted"
            self.record.update(err=error.sqlstate, message=error.message)
            if iso:
                try:
                    self.query("ROLLBACK")
                except (wire.Lost, wire.Failed):
                    self.drop()
        except wire.Lost as error:
            committing = self.record.get("committing") or not iso
            fate = "unknown" if committing else "aborted"
            self.record.update(err=error.sqlstate or "lost", message=error.message)
            self.drop()
        self.end(fate)
        return fate, result

    def finish(self):
        """End the transaction: mostly well."""
        dice = self.rng.random()
        if dice < 0.10:
            self.query("ROLLBACK")
            return "aborted"
        self.record["committing"] = True
        if dice < 0.20:
            return self.finish_prepared()
        self.query("COMMIT")
        return "committed"

    def finish_prepared(self):
        name = f"{self.number}/{self.count}/{wire.wall()}"
        self.record["prepared"] = name
        self.query(f"PREPARE TRANSACTION '{name}'")
        self.pause(0.15)
        verb = self.rng.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        try:
            self.query(f"{verb} PREPARED '{name}'")
        except wire.Failed as error:  # it stays prepared, or the janitor was faster
            self.record["janitor"] = error.sqlstate
            return "unknown"
        return "committed" if verb == "COMMIT" else "aborted"

    def pause(self, at_most):
        time.sleep(self.rng.random() * at_most)

    # ---- keys

    def key(self, client):
        """Few keys at a time, so that clients meet; others after a while, so that there are new ones."""
        epoch = int((time.monotonic() - self.started) / self.config["epoch"])
        if self.rng.random() < 0.12:
            epoch = self.rng.randint(0, epoch)
        return f"{client} {epoch}/{self.rng.randrange(3)}"

    def retention(self, client):
        return f"{self.rng.uniform(*SHORT[client]):.3f} s" if client in SHORT else None

    # ---- calls

    def reserve(self, client, key, lease=None, token=None, wait=None, retention=None, fp=None, **more):
        request = request_of(client, key)
        if fp is None and self.rng.random() < 0.3:
            fp = hashlib.sha256(json.dumps(json.loads(request), sort_keys=True, separators=(",", ":")).encode()).digest()
        noted, rows = self.call(
            "reserve", client, key, RESERVE, client, key, None if fp is None else "\\x" + fp.hex(), lease, retention,
            wait, token, request, mine=token, lease=lease, retention=retention, wait=wait, **more)
        row = rows[0]
        noted.update(
            out=row[0].decode(),
            token=row[1].decode() if row[1] else None,
            attempt=int(row[2]) if row[2] else None,
            answer=None if row[3] is None else answer(row[3], row[4], row[5]),
            retry_after=None if row[6] is None else float(row[6]),
            recovery=row[7].decode() if row[7] else None,
        )
        if noted["out"] == "replay" and client in FOREVER and not self.record["iso"]:
            self.seen[key] = client
        return noted

    def complete(self, client, key, token, work, seed):
        """The same seed makes the same answer."""
        rng = random.Random(seed)
        kind = rng.choice(["text", "bytes", "json"])
        status = rng.choice([200, 201, 204, 402, 503])
        headers = json.dumps(rng.choice([{"x-id": work, "etag": '"a, b"'}, [["x-id", work], ["Set-Cookie", "a=1"], ["set-cookie", ""]]]))
        size = rng.choice([0, 20, 300, 20, 3000, 30000])
        if kind == "json":
            headers = rng.choice([None, headers])
            body = json.dumps({"id": work, "b": 1.50, "pad": rng.randbytes(size // 2).hex()})
            sql = "SELECT idem_complete_json($1, $2, $3::uuid, $4, $5::jsonb, $6::jsonb)"
        elif kind == "bytes":
            body = rng.choice([None, "\\x", "\\x" + rng.randbytes(size).hex()])
            sql = "SELECT idem_complete_bytes($1, $2, $3::uuid, $4, $5::bytea, $6::jsonb)"
        else:
            body = rng.choice([None, "", "käse\r\n " + "x" * size])
            sql = "SELECT idem_complete($1, $2, $3::uuid, $4, $5, $6::jsonb)"
        noted, rows = self.call("complete", client, key, sql, client, key, token, status, body, headers, token=token, work=work)
        if kind == "json":
            stored = rows[0][0]
            headers = headers or '{"content-type": "application/json"}'
        else:
            stored = None if body is None else body.encode()
        noted.update(out="ok", answer=answer(status, headers and headers.encode(), stored))
        return noted

    def keep(self, table, client, key, work):
        """The work's own row, in the same transaction, with the window that the key was granted."""
        kept = self.query(KEEP.format(table), client, key, work)
        if kept != 1 and client != "lease-short":  # whose may have expired and been swept
            self.record["violation"] = f"{client}/{key}: the caller was told to go on, and there is no row of the key"

    # ---- (a) in one transaction

    def tx(self):
        client = self.rng.choice(["tx", "tx", "tx-short"])
        keys = list({self.key(client) for _ in range(self.rng.choice([1, 1, 1, 2, 3]))})
        plan = [
            dict(client=client, key=key, retention=self.retention(client),
                 token=str(uuid.UUID(int=self.rng.getrandbits(128), version=4)) if self.rng.random() < 0.3 else None,
                 wait=self.rng.choice([None, None, "0", "0.1 s", "2 s"]))
            for key in keys
        ]
        for _ in range(4):  # the client's library tries again, with what it passed before
            iso = self.rng.choice(ISOLATION)
            fate, _ = self.attempt("tx", iso, lambda: [self.tx_key(**step) for step in plan])
            if fate == "committed" or self.record.get("err") is None or time.monotonic() > self.until:
                break

    def tx_key(self, client, key, retention, token, wait):
        savepoint = self.rng.random()
        first = len(self.record["calls"])
        if savepoint < 0.2:
            self.query("SAVEPOINT a")
        got = self.reserve(client, key, token=token, wait=wait, retention=retention)
        if got["out"] == "new":
            self.tx_work(client, key, got["token"])
        elif got["out"] == "in_flight":
            self.pause(0.02)
        if savepoint < 0.1:
            self.query("ROLLBACK TO a")
            for call in self.record["calls"][first:]:
                call["undone"] = True
        elif savepoint < 0.2:
            self.query("RELEASE a")

    def tx_work(self, client, key, token):
        work = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        self.keep("business", client, key, work)
        twice = client in FOREVER  # else it may have expired in the meantime
        if twice and self.rng.random() < 0.2:
            self.reserve(client, key)["own"] = True
        self.pause(self.rng.choice([0, 0, 0.01, 0.08, 0.4]))
        self.complete(client, key, token, work, work)
        if twice and self.rng.random() < 0.1:
            self.reserve(client, key)["own"] = True

    def whole_call(self):
        client, fn = "call", "work" if self.rng.random() < 0.9 else "work_in_vain"
        key = self.key(client)
        iso = self.rng.choice([None, None, "READ COMMITTED", "SERIALIZABLE"])

        def body():
            noted, rows = self.call(
                "call", client, key,
                "SELECT r.outcome, r.status_code, r.headers, r.body"
                " FROM idem_call($1, $2, $3::regprocedure, $4::jsonb, wait => $5::interval) r",
                client, key, f"{fn}(jsonb)", request_of(client, key), self.rng.choice([None, "0.2 s"]))
            row = rows[0]
            noted.update(out=row[0].decode(), answer=None if row[1] is None else answer(row[1], row[2], row[3]))
            if noted["out"] == "replay" and iso is None:
                self.seen[key] = client

        self.attempt("call", iso, body)

    # ---- (b) a lease, and a provider

    def lease(self):
        client = self.rng.choice(["lease", "lease", "free", "lease-short"])
        key = self.key(client)
        token = str(uuid.UUID(int=self.rng.getrandbits(128), version=4)) if self.rng.random() < 0.5 else None
        lease = round(self.rng.choice([0.05, 0.1, 0.2, 0.4, 0.8]), 3)
        retention = self.retention(client)
        for _ in range(6):
            fate, got = self.attempt(
                "lease", None,
                lambda: self.reserve(client, key, lease=f"{lease} s", token=token, retention=retention,
                                     wait=self.rng.choice([None, None, "0.1 s", "1 s"])))
            if fate == "committed" and got["out"] == "new":
                self.work(client, key, got["token"], got["attempt"], lease, got["recovery"])
                return
            if fate == "committed" and got["out"] != "in_flight" or time.monotonic() > self.until:
                return
            self.pause(0.1)

    def owner(self, op, name, client, key, token, sql, *params, **more):
        """A call by the owner of a key in a transaction of its own. Returns (fate, rows)."""
        def body():
            noted, rows = self.call(name, client, key, sql, client, key, token, *params, token=token, **more)
            noted["out"] = "ok"
            return noted, rows
        return self.attempt(op, None, body)

    def work(self, client, key, token, attempt, lease, recovery=None):
        rng = self.rng
        dice = rng.random()
        if dice < 0.10:
            return  # died
        if client == "free" and attempt == 1 and dice < 0.35:
            self.pause(0.05)
            self.owner("release", "release", client, key, token, "SELECT idem_release($1, $2, $3::uuid)")
            if rng.random() < 0.3:  # and gave an answer nevertheless
                self.answer_alone(client, key, token, attempt, str(uuid.UUID(int=rng.getrandbits(128), version=4)))
            return
        if rng.random() < 0.3:
            self.owner("checkpoint", "checkpoint", client, key, token,
                       "SELECT idem_checkpoint($1, $2, $3::uuid, $4, $5::jsonb)", f"charging {attempt}", '{"step": 1}')
        if not self.toil(client, key, token, lease) and rng.random() < 0.8:
            if rng.random() < 0.6:
                self.come_back(client, key, token)
            return  # was told that the lease is lost, and mostly believes it
        charge = self.charge(client, key, token, attempt)
        if charge is None or rng.random() < 0.08:
            return  # died with the charge made
        work = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        self.record_charge(client, key, token, charge, work)
        if rng.random() < 0.5:
            self.answer_with_effect(client, key, token, attempt, work)
        else:
            self.answer_alone(client, key, token, attempt, work)

    def come_back(self, client, key, token):
        """Try again for the key, with the token that was lost; and what is left of the first try answers nevertheless."""
        for _ in range(8):
            fate, got = self.attempt("come back", None, lambda: self.reserve(client, key, lease="0.2 s", token=token, back=True))
            if fate == "committed" and got["out"] != "in_flight" or time.monotonic() > self.until:
                break
            self.pause(0.3)
        else:
            return
        work = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        if client == "lease":
            self.attempt("zombie", None, lambda: self.complete(client, key, token, work, work))
        if fate == "committed" and got["out"] == "new":
            self.work(client, key, got["token"], got["attempt"], 0.2, got["recovery"])

    def toil(self, client, key, token, lease):
        """The work takes its time, often longer than the lease, with or without a heartbeat."""
        rest = lease * self.rng.choice([0.1, 0.3, 0.7, 1.1, 1.5, 3])
        beats = self.rng.random() < 0.4
        while rest > 0:
            step = min(rest, lease * 0.5)
            time.sleep(step)
            rest -= step
            if beats:
                span = round(self.rng.choice([0.5, 1, 1]) * lease, 3)
                fate, got = self.owner(
                    "renew", "renew", client, key, token,
                    "SELECT (extract(epoch FROM idem_renew($1, $2, $3::uuid, $4::interval)) * 1000000)::bigint",
                    f"{span} s", lease=f"{span} s")
                if fate == "committed":
                    got[0]["until"] = int(got[1][0][0])
                    self.note("renewed", client=client, key=key, token=token, until=got[0]["until"])
                elif fate == "aborted" and self.record["err"] in ("ID001", "ID002", "ID003"):
                    return False
        return True

    def note(self, what, **more):
        self.history.write(json.dumps({"c": self.number, "op": what, "t1": wire.wall(), "calls": [], **more}) + "\n")

    def charge(self, client, key, token, attempt):
        """The provider's answer, which is always there: it does not crash."""
        for _ in range(20):
            try:
                self.connect()
                provider_key = self.query("SELECT idem_provider_key($1, $2, 'charge')", client, key)[0][0].decode()
                break
            except wire.Failed:  # statement_timeout
                continue
            except wire.Lost:
                self.drop()
        else:
            return None
        request = {"provider_key": provider_key, "client": client, "key": key, "token": token, "attempt": attempt,
                   "seconds": self.rng.choice([0, 0.01, 0.05, 0.3])}
        with socket.socket(socket.AF_UNIX) as provider:
            provider.connect(self.config["provider"])
            provider.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(provider.makefile().readline())["charge"]

    def record_charge(self, client, key, token, charge, work):
        self.note("charged", client=client, key=key, token=token, charge=charge, work=work)

    def answer_alone(self, client, key, token, attempt, work):
        """The answer in a transaction of its own, which may be repeated as often as one likes."""
        for _ in range(5):
            fate, _ = self.attempt("answer", None, lambda: self.complete(client, key, token, work, work))
            if fate == "aborted" and self.record["err"] in ("57014", "55P03", "40001", "40P01"):
                continue
            if fate != "unknown":
                break
        told = fate == "committed" or self.record.get("err", "").startswith("ID")
        if told and self.rng.random() < 0.3:
            self.misuse(client, key, token, work)

    def answer_with_effect(self, client, key, token, attempt, work):
        """The answer together with business rows: after a lost reply one has to ask first."""
        for _ in range(5):
            iso = self.rng.choice(ISOLATION)

            def body():
                if self.rng.random() < 0.5:
                    self.keep("effect", client, key, work)
                    self.complete(client, key, token, work, work)
                else:
                    self.complete(client, key, token, work, work)
                    self.keep("effect", client, key, work)

            fate, _ = self.attempt("answer with effect", iso, body)
            if fate == "committed" or self.record.get("err", "").startswith("ID") or time.monotonic() > self.until:
                return
            if fate == "aborted":
                continue
            got = self.ask(client, key, token)
            if got is None or got["out"] != "new" or got["token"] != token or got["attempt"] != attempt:
                return

    def ask(self, client, key, token):
        """What became of the key. Not to be told is no answer: who went on would do everything once more."""
        for _ in range(20):
            fate, got = self.attempt("ask", None, lambda: self.reserve(client, key, lease="0.3 s", token=token))
            if fate == "committed":
                return got
        return None

    def misuse(self, client, key, token, work):
        """What an owner may do again, and what it may not do any more."""
        dice = self.rng.random()
        if dice < 0.3:
            self.attempt("again", None, lambda: self.complete(client, key, token, work, work))
        elif dice < 0.6:
            other = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
            self.attempt("another answer", None, lambda: self.complete(client, key, token, other, other))
        elif dice < 0.75:
            self.owner("renew late", "renew", client, key, token, "SELECT idem_renew($1, $2, $3::uuid, '0.3 s')", lease="0.3 s")
        elif dice < 0.9:
            self.owner("release late", "release", client, key, token, "SELECT idem_release($1, $2, $3::uuid)")
        else:
            stranger = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
            self.attempt("stranger", None, lambda: self.complete(client, key, stranger, work, work))

    def claim(self):
        """The process that brings to an end what others left behind."""
        lease = self.rng.choice([0.1, 0.3])
        client = self.rng.choice([None, None, "lease", "lease-short"])
        iso = self.rng.choice([None, None, None, "READ COMMITTED"])

        def body():
            noted, rows = self.call(
                "claim", client, None,
                "SELECT client, key, token, attempt, request, recovery_point FROM idem_claim_stale($1, $2::interval, $3)",
                self.rng.choice([1, 2, 5]), f"{lease} s", client, lease=f"{lease} s")
            noted["claims"] = [[row[0].decode(), row[1].decode(), row[2].decode(), int(row[3])] for row in rows]
            noted["out"] = "ok"
            return noted["claims"]

        fate, claims = self.attempt("claim", iso, body)
        if fate == "committed":
            for client, key, token, attempt in claims:
                self.work(client, key, token, attempt, lease)

    # ---- the inbox

    def once(self):
        client = self.rng.choice(["once", "once-short"])
        batch = self.rng.random() < 0.4
        keys = [self.key(client) for _ in range(self.rng.randint(1, 6) if batch else 1)]
        retention = self.retention(client)

        def body():
            if batch:
                array = "{" + ",".join(f'"{key}"' for key in keys) + "}"
                noted, rows = self.call("once_batch", client, None,
                                        "SELECT idem_once_batch($1, $2::text[], $3::interval)", client, array, retention,
                                        keys=keys, retention=retention)
                first = [row[0].decode() for row in rows]
            else:
                noted, rows = self.call("once", client, keys[0], "SELECT idem_once($1, $2, $3::interval)",
                                        client, keys[0], retention, keys=keys, retention=retention)
                first = keys if rows[0][0] == b"t" else []
            noted.update(out="ok", first=first)
            for key in first:
                self.keep("inbox", client, key, str(uuid.UUID(int=self.rng.getrandbits(128), version=4)))
            self.pause(self.rng.choice([0, 0.02, 0.1]))

        for _ in range(3):
            fate, _ = self.attempt("once", self.rng.choice(ISOLATION), body)
            if fate == "committed" or self.record.get("err") is None or time.monotonic() > self.until:
                break

    # ---- looking

    def lookup(self):
        client = self.rng.choice(["tx", "call", "lease", "free", "tx-short", "lease-short"])
        key = self.key(client)

        def body():
            noted, rows = self.call("lookup", client, key,
                                    "SELECT state, attempt, status_code FROM idem_lookup($1, $2)", client, key)
            noted.update(out=rows[0][0].decode(), attempt=rows[0][1] and int(rows[0][1]))
            if noted["out"] == "completed" and client in FOREVER:
                self.seen[key] = client

        self.attempt("lookup", None, body)

    def mismatch(self):
        """Another request under a key that is completed: whoever asks is told so."""
        if self.seen:
            key = self.rng.choice(sorted(self.seen))
            known = {"known": True}

            def body():
                self.reserve(self.seen[key], key, fp=self.rng.randbytes(32)).update(known)

            self.attempt("mismatch", None, body)

    def sweep(self):
        self.attempt("sweep", None, lambda: self.call("sweep", None, None, "SELECT idem_sweep()")[0].update(out="ok"))

    def rush(self, second):
        """All clients at once, as many of them as are free, at the same keys in the same order."""
        self.attempt("rush", None, lambda: self.call("rush", None, None, "SELECT rush($1, 40)", f"rush {second}")[0].update(out="ok"))
        batch = f"hurry {second // 4}"
        for _ in range(3):
            self.attempt("rush", None, lambda: self.call("hurry", None, None, "SELECT hurry($1, 12)", batch)[0].update(out="ok"))

    def sample(self):
        """What the connection's backend holds, when it is at rest."""
        try:
            self.connect()
            rows = self.query("SELECT sum(total_bytes) FROM pg_backend_memory_contexts")
            self.note("memory", pid=self.db.pid, statements=self.db.statements, bytes=int(rows[0][0]))
        except (wire.Failed, wire.Lost):
            self.drop()

    # ---- all of it

    def run(self):
        kinds = [(self.tx, 34), (self.whole_call, 14), (self.lease, 26), (self.claim, 6), (self.once, 16),
                 (self.lookup, 6), (self.mismatch, 4), (self.sweep, 1), (self.sample, 1)]
        actions, weights = zip(*kinds)
        budget = self.config["operations"]
        while time.monotonic() < self.until and budget > 0:
            left = 1 - time.time() % 1  # of this second
            if left < 0.2:
                time.sleep(left)
                self.rush(round(time.time()))
            self.rng.choices(actions, weights)[0]()
            if self.db is not None and self.rng.random() < 0.004:
                self.drop()
            budget -= 1
        self.note("finished")
        self.drop()


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()  # all of them at once
    Client(json.loads(sys.argv[1]), int(sys.argv[2])).run()
