"""Judges a history: what the clients were told, and what is left in the tables.

usage: check.py DIRECTORY     as torture.py --directory left it

Nothing here asks the server. What cannot be known, because a reply was lost, is never held against it.
"""

import json
import re
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path

import ledger
from keys import FOREVER, IN_ONE, LEASED

DOCUMENTED = re.compile(r"ID00[123]|40001|40P01|57P0[123]|57014|55P03|25P02|08...|lost|TT000")
OF_NEMESIS = re.compile(r"42704|55000")  # COMMIT PREPARED, twice
SHOWN = 2  # violations of a check that are shown
LINES = 36  # of history with each

AT_THE_END = ("clients end", "transactions end", "leases end", "the worker stops", "every stale lease is claimed",
              "every key can be ended", "sweeping ends", "no reminder is left", "no expired key is left", "amcheck", "everything comes to an end")


def read_history(directory):
    for path in sorted(Path(directory).glob("history.*.jsonl")):
        for line in open(path):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                pass  # the last line of one that was killed


def keys_used(directory):
    used = set()
    for record in read_history(directory):
        for call in record["calls"]:
            for key in call.get("keys") or [call["key"]]:
                if key is not None:
                    used.add((call["client"], key))
        # claimed keys were reserved by somebody
    return used


def span(text):
    return None if text is None else round(float(text.split()[0]) * 1e6)


class Checks:
    """Named checks, with how many facts each has looked at."""

    def __init__(self, history):
        self.history = history
        self.facts = Counter()
        self.violations = defaultdict(list)

    def that(self, name, condition, message, key=None):
        self.facts[name] += 1
        if not condition:
            self.violations[name].append((message() if callable(message) else message, key))

    def report(self):
        passed = failed = 0
        for name in dict.fromkeys([*self.facts, *self.violations]):
            wrong = self.violations[name]
            if not wrong:
                passed += 1
                print(f"ok - {name} ({self.facts[name]})")
                continue
            failed += 1
            print(f"not ok - {name}: {len(wrong)} of {self.facts[name]}")
            for message, key in wrong[:SHOWN]:
                print(f"#   {message}")
                if key is not None:
                    self.show(key)
        return passed, failed

    def show(self, key):
        lines = sorted(self.history.lines(key))
        start = self.history.start
        if len(lines) > LINES:
            print(f"#     ... {len(lines) - LINES} earlier ones")
        for at, line in lines[-LINES:]:
            print(f"#     {(at - start) / 1000:10.1f} ms  {line}")


class History:
    def __init__(self, directory):
        self.directory = Path(directory)
        self.records = list(read_history(directory))
        self.tables = json.loads((self.directory / "tables.json").read_text())
        self.start = min((r["t0"] for r in self.records if "t0" in r), default=0)
        self.calls = []
        for record in self.records:
            for call in record["calls"]:
                call["record"] = record
                call["sure"] = record["fate"] == "committed" and not call.get("undone") and "err" not in call
                call["lost"] = record["fate"] == "unknown" and not call.get("undone")
                call["id"] = (call["client"], call["key"])
                self.calls.append(call)
        self.rows = {table: defaultdict(list) for table in ("business", "effect", "inbox")}
        self.row_ids = {table: {} for table in self.rows}
        for table, by_key in self.rows.items():
            for row in self.tables[table]:
                work, client, key, attempt, token, began, expires = row
                entry = dict(work=work, token=token, attempt=attempt, began=began, expires=expires)
                by_key[client, key].append(entry)
                self.row_ids[table][work] = entry
        self.grants = defaultdict(list)
        self.collect_grants()

    def collect_grants(self):
        """Every time somebody was told to go on, and it is sure that it counted."""
        for call in self.calls:
            if not call["sure"]:
                continue
            if call["f"] == "reserve" and call["out"] == "new":
                self.grant(call, call["id"], call["token"], call["attempt"], call.get("mine"))
            elif call["f"] == "claim":
                for client, key, token, attempt in call["claims"]:
                    self.grant(call, (client, key), token, attempt, None)
        for grants in self.grants.values():
            grants.sort(key=lambda g: g["t0"])

    def grant(self, call, key, token, attempt, mine):
        self.grants[key].append(dict(
            call=call, token=token, attempt=attempt, mine=mine, t0=call["t0"], t1=call["record"]["t1"],
            lease=span(call.get("lease")), retention=span(call.get("retention"))))

    def lines(self, key):
        """What concerns one key, to be read."""
        for call in self.calls:
            record = call["record"]
            claimed = [c for c in call.get("claims", []) if tuple(c[:2]) == key]
            if call["id"] != key and not claimed and not (call["client"] == key[0] and key[1] in (call.get("keys") or [])):
                continue
            text = [f"[{call['t1'] - call['t0']:6} us] client {record['c']}.{record['n']} {record['op']}"]
            text.append(f"({record['iso']})" if record["iso"] else "")
            text.append(call["f"])
            for name in "mine", "token":
                if call.get(name):
                    text.append(f"{name}={call[name][:8]}")
            for name in "lease", "retention", "attempt", "answer", "first", "until", "err":
                if call.get(name) is not None:
                    text.append(f"{name}={call[name]}")
            if claimed:
                text.append(f"claimed={claimed[0][2][:8]}/{claimed[0][3]}")
            text.append(f"-> {call.get('out', 'error')}, {record['fate']} at {(record['t1'] - self.start) / 1000:.1f}")
            if call.get("undone"):
                text.append("rolled back to savepoint")
            yield call["t0"], " ".join(t for t in text if t)
        for table, by_key in self.rows.items():
            for row in by_key.get(key, []):
                yield row["began"], (f"ROW of {table}: work={row['work'][:8]} token={row['token'][:8]} attempt={row['attempt']}"
                                     f" until {(row['expires'] - self.start) / 1000:.1f}")


# ---- what a caller is told

def check_errors(checks, history):
    for call in history.calls:
        checks.that("errors are documented ones", "err" not in call or DOCUMENTED.fullmatch(call["err"]),
                    lambda: f"{call['f']}: {call['err']} {call['message']}", call["id"])
    for record in history.records:
        if "err" in record and record.get("fate"):
            checks.that("errors are documented ones", DOCUMENTED.fullmatch(record["err"]),
                        f"{record['op']}: {record['err']} {record.get('message')}")
        if record.get("violation"):
            checks.that("new means that there is a row", False, record["violation"],
                        tuple(record["violation"].split(":")[0].split("/", 1)))
        else:
            checks.facts["new means that there is a row"] += 1


def check_shapes(checks, history):
    for call in history.calls:
        out = call.get("out")
        if call["f"] != "reserve" or out is None:
            continue
        status = call["answer"] and call["answer"][0]
        good = {
            "new": call["token"] and call["attempt"] and status is None and (
                not call["mine"] or call["mine"] == call["token"] or call.get("back") or call["attempt"] > 1 and call["record"]["op"] == "lease"),
            "in_flight": not call["token"] and status == 409 and (call["retry_after"] or 0) >= 1,
            "mismatch": not call["token"] and status == 422,
            "replay": not call["token"] and status is not None,
        }.get(out)
        checks.that("outcomes are complete", good, f"{out}: token {call['token']}, status {status}", call["id"])
        checks.that("mismatch exactly for another request", (out == "mismatch") == bool(call.get("known")),
                    f"{out} for {'another' if call.get('known') else 'the same'} request", call["id"])


def answers_of(history):
    """(t0, t1, answer) by key: all that any caller was told of a committed answer."""
    told = defaultdict(list)
    for call in history.calls:
        if call.get("answer") is None or call.get("own") and not call["sure"]:
            continue
        if call.get("out") == "replay" or call["sure"] and (
                call["f"] == "complete" or call["f"] == "call" and call["out"] == "new"):
            # what a transaction is told of its own answer counts from its commit on
            known = call["t1"] if call["out"] == "replay" and not call.get("own") else call["record"]["t1"]
            told[call["id"]].append((call["t0"], known, call["answer"]))
    return told


def check_answers(checks, history, told):
    for key, answers in told.items():
        by_work = defaultdict(list)
        for entry in answers:
            by_work[entry[2][3]].append(entry)
        for entries in by_work.values():
            checks.that("an answer is the same each time, byte for byte", all(e[2] == entries[0][2] for e in entries),
                        lambda: f"{key}: {[e[2] for e in entries if e[2] != entries[0][2]][0]} and {entries[0][2]}", key)
        if key[0] in FOREVER:
            checks.that("a key has one answer", len(by_work) == 1, f"{key}: {sorted(map(str, by_work))}", key)
        else:
            works = list(by_work.values())
            for i, one in enumerate(works):
                for other in works[i + 1:]:
                    checks.that("a key has one answer at a time", not interleaved(one, other) and not interleaved(other, one),
                                f"{key}: an answer came back after another one", key)


def interleaved(one, other):
    """Was one seen before, and again after, the other was seen?"""
    first = min(e[1] for e in one)
    last = max(e[0] for e in one)
    return any(first < e[0] and e[1] < last for e in other)


def check_terminal(checks, history, told):
    """For keys that outlive the run: completed is the end."""
    known = {key: min(t1 for _, t1, _ in answers) for key, answers in told.items() if key[0] in FOREVER}
    for call in history.calls:
        out = call.get("out")
        if call["f"] in ("reserve", "call", "lookup") and out and call["t0"] > known.get(call["id"], float("inf")):
            good = ("replay", "mismatch") if call["f"] != "lookup" else ("completed",)
            checks.that("completed is the end", out in good, f"{call['id']}: {call['f']} says {out} of a completed key", call["id"])
        for claim in call.get("claims", []):
            key = tuple(claim[:2])
            checks.that("completed is the end", call["t0"] <= known.get(key, float("inf")), f"{key}: a completed key was claimed", key)


# ---- the work, in one transaction

def check_rows(checks, history):
    for table, by_key in history.rows.items():
        for key, rows in by_key.items():
            rows.sort(key=lambda row: row["began"])
            for before, after in zip(rows, rows[1:]):
                checks.that(f"one {table} row at a time", before["expires"] <= after["began"],
                            f"{key}: two rows of {table}, the second while the first was remembered", key)
            checks.facts[f"one {table} row at a time"] += 1


def check_work(checks, history):
    """What was committed is there, what was rolled back is not, unless it was done in another try."""
    tried_again = {call["work"] for call in history.calls if call["f"] == "complete" and (call["sure"] or call["lost"])}
    for call in history.calls:
        if call["f"] == "complete" and call["record"]["iso"] and "out" in call:
            table, work = ("business" if call["client"] in IN_ONE else "effect"), call["work"]
        elif call["f"] == "call" and call.get("out") == "new":
            table, work = "business", call["answer"][3]
        else:
            continue
        if call["sure"]:
            checks.that("committed work is there", work in history.row_ids[table], f"{call['id']}: no row {work}", call["id"])
        elif not call["lost"] and work not in tried_again:
            checks.that("undone work is not there", work not in history.row_ids[table], f"{call['id']}: a row {work}", call["id"])


def check_replays(checks, history):
    """A replay names work that was done, and is remembered."""
    for call in history.calls:
        if call.get("out") != "replay" or call["client"] not in IN_ONE or call.get("own"):
            continue
        row = history.row_ids["business"].get(call["answer"][3])
        checks.that("a replay is of work that was done", row and row["began"] <= call["t1"] and row["expires"] > call["t0"],
                    f"{call['id']}: a replay of {call['answer'][3]}, {row}", call["id"])


def check_windows(checks, history):
    """The retention granted is what was asked for, from the moment of the reservation."""
    for call in history.calls:
        if call["f"] != "complete" or not call["sure"] or call["client"] != "tx-short" or call["work"] not in history.row_ids["business"]:
            continue
        row = history.row_ids["business"][call["work"]]
        for other in call["record"]["calls"]:
            if other["f"] == "reserve" and other["id"] == call["id"] and other.get("token") == call["token"] and other["retention"]:
                checks.that("retention as asked for", row["expires"] - row["began"] == span(other["retention"])
                            and other["t0"] <= row["began"] <= other["t1"],
                            f"{call['id']}: asked for {other['retention']}, {row}", call["id"])


# ---- leases

def check_tokens(checks, history):
    drawn = Counter()
    owner = {}
    for call in history.calls:
        pairs = [(call["id"], call["token"], call["attempt"])] if call["f"] == "reserve" and call.get("out") == "new" else [
            ((c[0], c[1]), c[2], c[3]) for c in call.get("claims", [])]
        for key, token, attempt in pairs:
            if not call.get("mine"):
                drawn[token] += 1
                checks.that("a token is drawn once", drawn[token] == 1, f"{key}: token {token} again", key)
            if call["sure"] and key[0] in FOREVER:
                was = owner.setdefault(token, (key, attempt))
                # one that was brought for a key that was absent again begins with it
                good = was == (key, attempt) or key[0] == "free" and attempt == 1
                checks.that("a token means one attempt", good, f"{token}: {was} and {(key, attempt)}", key)


def check_attempts(checks, history):
    for key, grants in history.grants.items():
        if key[0] not in ("lease", "tx"):
            continue
        by_attempt = {}
        for grant in grants:
            was = by_attempt.setdefault(grant["attempt"], grant)
            checks.that("an attempt has one owner", was["token"] == grant["token"], f"{key}: attempt {grant['attempt']} twice", key)
        for one in grants:
            for other in grants:
                if one["t1"] < other["t0"] and one["token"] != other["token"]:
                    checks.that("attempts increase", one["attempt"] < other["attempt"],
                                f"{key}: {one['attempt']} and after it {other['attempt']}", key)


def check_rush(checks, history):
    """Who hurries for stale leases: each attempt is granted to one."""
    seen = {}
    for key, attempt, token in history.tables["granted"]:
        was = seen.setdefault((key, attempt), token)
        checks.that("an attempt is granted once", was == token, f"{key}: attempt {attempt} to {was} and to {token}", ("hurry", key))


def check_fencing(checks, history):
    """Nothing is accepted from an attempt after its successor was granted."""
    for call in history.calls:
        if call["f"] not in ("complete", "renew", "release", "checkpoint") or not call["sure"]:
            continue
        grants = history.grants.get(call["id"], [])
        mine = [g for g in grants if g["token"] == call["token"] and g["t0"] < call["t0"]]
        if not mine:
            # reserved in a transaction whose fate is not known, or a token that nobody has
            checks.that("only owners are heard", call["record"]["op"] != "stranger", f"{call['id']}: {call['f']} by a stranger", call["id"])
            continue
        last = max(g["t1"] for g in mine)
        later = [g for g in grants if g["token"] != call["token"] and last < g["t0"] and g["t1"] < call["t0"]]
        checks.that("no attempt is heard after its successor", not later,
                    lambda: f"{call['id']}: {call['f']} by {call['token'][:8]} succeeds, and {later[0]['token'][:8]} was granted before", call["id"])


def check_lost(checks, history):
    """Whose lease was lost has lost its token for good, while the key is remembered."""
    told = {}
    for call in history.calls:
        if call.get("err") == "ID001" and call["client"] == "lease":
            told[call["id"], call["token"]] = min(call["t1"], told.get((call["id"], call["token"]), float("inf")))
    for call in history.calls:
        if call["f"] not in ("reserve", "complete", "renew", "release", "checkpoint") or "out" not in call:
            continue
        since = told.get((call["id"], call.get("token") or call.get("mine")))
        if since is not None and call["t0"] > since:
            checks.that("a lost token stays lost", call["f"] == "reserve" and call["out"] != "new",
                        f"{call['id']}: {call['f']} with {call['token'] and call['token'][:8]}: {call['out']}", call["id"])


def check_accepted(checks, history):
    accepted = defaultdict(set)
    for call in history.calls:
        if call["f"] == "complete" and call["sure"] and call["client"] in FOREVER:
            accepted[call["id"]].add(call["token"])
    for key, tokens in accepted.items():
        checks.that("one attempt is accepted", len(tokens) == 1, f"{key}: {sorted(tokens)}", key)
    for table in "effect", "business":
        for key, rows in history.rows[table].items():
            if key[0] in FOREVER and key in accepted:
                checks.that("effects are of the accepted attempt", {row["token"] for row in rows} <= accepted[key],
                            f"{key}: {[row['token'] for row in rows]}, accepted {accepted[key]}", key)


def lease_events(history):
    """By key and token: what set the lease, in order. A token is used by one client, one thing at a time."""
    events = defaultdict(list)
    for call in history.calls:
        if call["record"]["fate"] == "aborted" or call.get("undone"):
            continue
        known = call["sure"]
        if call["f"] == "reserve" and (call.get("out") == "new" or not known and call.get("mine")):
            spans = [s for s in (span(call["lease"]), span(call["retention"])) if s is not None]
            events[call["id"], call.get("token") or call["mine"]].append(
                (call["t0"], call["record"]["t1"], known and "err" not in call, call["t0"] + min(spans) if spans else None))
        elif call["f"] == "renew":
            until = call.get("until") or call["t0"] + span(call["lease"])
            events[call["id"], call["token"]].append((call["t0"], call["record"]["t1"], known, until))
        elif call["f"] == "release":
            events[call["id"], call["token"]].append((call["t0"], call["record"]["t1"], False, None))
        for client, key, token, _ in call.get("claims", []):
            events[(client, key), token].append((call["t0"], call["record"]["t1"], known, call["t0"] + span(call["lease"])))
    for entries in events.values():
        entries.sort()
    return events


def check_leases(checks, history):
    """A lease that runs is not taken over."""
    by_key = defaultdict(list)
    for (key, token), entries in lease_events(history).items():
        by_key[key].append((token, entries))
    for key, grants in history.grants.items():
        if key[0] not in ("lease", "free"):
            continue  # a key of a short retention may have expired
        for grant in grants:
            for token, entries in by_key[key]:
                before = [e for e in entries if e[0] < grant["t1"]]
                if token == grant["token"] or not before or before[-1][1] > grant["t0"] or not all(e[2] for e in before):
                    continue
                if before[-1][3] is not None:
                    checks.that("a running lease is respected", grant["t1"] >= before[-1][3],
                                f"{key}: {grant['token'][:8]} was granted {(before[-1][3] - grant['t1']) / 1000:.1f} ms before the"
                                f" lease of {token[:8]} ended", key)


def check_presence(checks, history):
    """A key that is kept for ever and never released is there, and its owner is heard, until somebody else has it."""
    claims_lost = any(call["f"] == "claim" and call["lost"] for call in history.calls)
    for call in history.calls:
        grants = history.grants.get(call["id"], [])
        if call["client"] not in ("lease", "tx", "call") or not grants:
            continue
        if call["f"] == "lookup" and call.get("out") and call["t0"] > min(g["t1"] for g in grants):
            checks.that("a key that is there is found", call["out"] != "absent", f"{call['id']} is absent", call["id"])
        if call["client"] != "lease" or call["f"] not in ("complete", "renew", "checkpoint", "release") or not any(
                g["token"] == call["token"] and g["t1"] <= call["t0"] for g in grants):
            continue
        checks.that("an owner finds its key", call.get("err") != "ID002", f"{call['id']}: {call['f']} gets ID002", call["id"])
        if call.get("err") == "ID001" and not claims_lost:
            rivals = [g for g in grants if g["token"] != call["token"] and g["t0"] < call["t1"]] or [
                c for c in history.calls if c["f"] == "reserve" and c["id"] == call["id"] and c["lost"] and c["t0"] < call["t1"]]
            checks.that("a lease is lost to somebody", rivals, f"{call['id']}: {call['f']} gets ID001", call["id"])


# ---- the provider

def check_provider(checks, history):
    record = sqlite3.connect(history.directory / "provider.db")
    charges = defaultdict(list)
    for provider_key, number, client, key in record.execute("SELECT provider_key, id, client, key FROM charge"):
        charges[client, key].append((provider_key, number))
    for key, entries in charges.items():
        checks.that("one charge for each key", len(entries) == 1, f"{key}: {entries}", key)
    works = {}
    for note in history.records:
        if note["op"] == "charged":
            key = (note["client"], note["key"])
            works[note["work"]] = key
            checks.that("every attempt gets the same charge", [n for _, n in charges[key]] == [note["charge"]], f"{key}: {note['charge']}", key)
    for call in history.calls:
        if call.get("out") == "replay" and call["client"] in LEASED and call["record"]["op"] != "another answer":
            work = call["answer"][3]
            # one that was released and then answered was never charged
            checks.that("a replay is of a charge that was made", works.get(work, call["id"]) == call["id"],
                        f"{call['id']}: a replay of {work}, which is of {works.get(work)}", call["id"])
    calls = record.execute("SELECT count(*) FROM call").fetchone()[0]
    return sum(map(len, charges.values())), calls


# ---- the inbox

def check_inbox(checks, history):
    for call in history.calls:
        if call["f"] not in ("once", "once_batch") or "first" not in call:
            continue
        asked = list(dict.fromkeys(call["keys"]))
        checks.that("marks in the order asked for", call["first"] == [k for k in asked if k in call["first"]],
                    f"{asked}: {call['first']}", (call["client"], asked[0]))
        for key in asked:
            rows = history.rows["inbox"].get((call["client"], key), [])
            covering = [r for r in rows if r["began"] <= call["t1"] and r["expires"] > call["t0"]]
            if key not in call["first"]:
                checks.that("handled means a committed effect", covering, f"{key}: was said to be handled, and is not", (call["client"], key))
            elif call["sure"]:
                checks.that("the first time has its effect", covering, f"{key}: no effect", (call["client"], key))


# ---- the rows' own story

def check_ledger(checks, history):
    now = {}
    granted, completed = defaultdict(set), defaultdict(set)
    changes = takeovers = swept = 0
    for _, at, before, after in ledger.changes(history.directory / "ledger.txt"):
        changes += 1
        row = after or before
        key = (row["client"], row["key"])
        was = now.get(key)
        if before is None or was is None:
            checks.that("rows form one chain", (before is None) == (was is None), f"{key}: {'a second row' if was else 'a change of no row'}", key)
        else:
            checks.that("rows form one chain", before["token"] == was["token"] and before["attempt"] == was["attempt"],
                        f"{key}: {was['token']}/{was['attempt']} became {before['token']}/{before['attempt']}", key)
        wrong = ledger.judge(before, after, at)
        checks.that("rows change as the states allow", wrong is None, lambda: f"{key}: {wrong}: {before} -> {after}", key)
        now[key] = after
        if after is None:
            del now[key]
            swept += before["expires_at"] <= at
            continue
        granted[key].add(after["token"])
        takeovers += bool(before) and after["token"] != before["token"] and after["attempt"] != "1"
        if after["completed_at"] is not None:
            completed[key].add(after["token"])
    if not changes:
        return {}
    for key, grants in history.grants.items():
        for grant in grants:
            checks.that("what was granted is in the ledger", grant["token"] in granted[key], f"{key}: {grant['token']} is not", key)
    for call in history.calls:
        if call["f"] == "complete" and call["sure"]:
            checks.that("what was accepted is in the ledger", call["token"] in completed[call["id"]],
                        f"{call['id']}: {call['token']} is not", call["id"])
    return {"changes of rows": changes, "takeovers": takeovers, "removed by the sweep": swept}


# ---- the server

def check_memory(checks, history):
    """A backend that is warm does not grow."""
    samples = defaultdict(list)
    for note in history.records:
        if note["op"] == "memory":
            samples[note["c"], note["pid"]].append((note["statements"], note["bytes"]))
    for (client, pid), entries in samples.items():
        entries.sort()
        warm = [e for e in entries if e[0] >= 150]
        if len(warm) >= 2 and warm[-1][0] - warm[0][0] >= 100:
            grown = warm[-1][1] - warm[0][1]
            checks.that("a backend's memory stays flat", grown <= 128 * 1024,
                        f"backend {pid} of client {client}: {grown} bytes more after {warm[-1][0] - warm[0][0]} statements: {entries}")


ENTRY = re.compile(r"^(\S+ \S+ \S+) \[(\d+)\] (.*?) (ERROR|FATAL|PANIC):  (\w{5}): (.*)")
SIGNAL = re.compile(r"\(PID (\d+)\) was terminated by signal (\d+)")


def check_log(checks, history):
    killed = {note["pid"] for note in history.records if note["op"] == "killing"}
    crashes = 0
    for line in open(history.directory / "server.log", errors="replace"):
        checks.that("the log has no failed assertion", "TRAP:" not in line, line.strip())
        if found := SIGNAL.search(line):
            crashes += 1
            checks.that("no process dies but by the nemesis", int(found[1]) in killed, line.strip())
        if found := ENTRY.match(line):
            state = found[5]
            checks.that("the log has documented errors only", found[4] != "PANIC" and (
                DOCUMENTED.fullmatch(state) or OF_NEMESIS.fullmatch(state)), line.strip())
    return crashes


def check_end(checks, history):
    for name in AT_THE_END:
        checks.facts[name] += 1
    for name, message in history.tables["problems"]:
        found = re.match(r"(\S+?)/(.+?)(?: is |:)", message)
        checks.that(name, False, message, found and found.groups())


def statistics(history):
    by_op = Counter(record["op"] for record in history.records if record.get("fate"))
    fates = Counter(record["fate"] for record in history.records if record.get("fate"))
    outcomes = Counter(f"{call['f']} {call['out']}" for call in history.calls if call.get("out"))
    errors = Counter(call["err"] for call in history.calls if "err" in call)
    for title, counter in ("transactions", by_op), ("fates", fates), ("outcomes", outcomes), ("errors of calls", errors), (
            "nemesis", Counter(history.tables["nemesis"])):
        print(f"# {title}: " + ", ".join(f"{name} {count}" for name, count in counter.most_common()))


def main(directory, phases=None):
    """Print the verdict; the number of checks that failed."""
    history = History(directory)
    checks = Checks(history)
    told = answers_of(history)
    check_errors(checks, history)
    check_shapes(checks, history)
    check_answers(checks, history, told)
    check_terminal(checks, history, told)
    check_rows(checks, history)
    check_work(checks, history)
    check_replays(checks, history)
    check_windows(checks, history)
    check_tokens(checks, history)
    check_attempts(checks, history)
    check_rush(checks, history)
    check_fencing(checks, history)
    check_lost(checks, history)
    check_accepted(checks, history)
    check_leases(checks, history)
    check_presence(checks, history)
    charges, asked = check_provider(checks, history)
    check_inbox(checks, history)
    rows = check_ledger(checks, history)
    check_memory(checks, history)
    crashes = check_log(checks, history)
    check_end(checks, history)

    passed, failed = checks.report()
    statistics(history)
    told_of = {**rows, "charges": charges, "calls of the provider": asked, "crashes": crashes,
               "server restarts": history.tables["crashes"]["restart"], "stale at the end": history.tables["stale_at_end"]}
    print("# " + ", ".join(f"{name} {count}" for name, count in told_of.items()))
    if phases:
        print("# seconds: " + ", ".join(f"{name} {seconds}" for name, seconds in phases.items()))
    print(f"{passed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
