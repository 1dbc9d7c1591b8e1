"""What really happened to the rows of idem_key, in the order of the commits: the server's own log.

Logical decoding gives every committed change with the row before and after it. Each has to be one of
the few that the states of a key allow. The clients' histories say what was promised; this says what was done.
"""

import re
from datetime import datetime, timedelta, timezone

FIELD = re.compile(r"(\w+)\[([^\]]+)\]:(unchanged-toast-datum|'(?:[^']|'')*'|\S+)")
CHANGE = re.compile(r"table \w+\.idem_key: (INSERT|UPDATE|DELETE): (.*)$", re.S)
COMMIT = re.compile(r"COMMIT \S+ \(at ([^)]*)\)")
MOMENT = re.compile(r"(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+)(?:\.(\d+))?\+00$")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def micros(text):
    year, month, day, hour, minute, second, fraction = MOMENT.match(text).groups()
    moment = datetime(*map(int, (year, month, day, hour, minute, second)), tzinfo=timezone.utc)
    return (moment - EPOCH) // timedelta(microseconds=1) + int((fraction or "0").ljust(6, "0"))


class Row(dict):
    """Of a row before a change, columns that are NULL are not told."""

    def __missing__(self, name):
        return None


def fields(text):
    row = Row()
    for name, kind, value in FIELD.findall(text):
        if value == "null":
            row[name] = None
        elif value == "unchanged-toast-datum":
            row[name] = ...
        else:
            value = value[1:-1].replace("''", "'") if value[0] == "'" else value
            row[name] = micros(value) if kind.startswith("timestamp") else value
    return row


def split(what, text):
    """The row before, the row after."""
    if what == "INSERT":
        return None, fields(text)
    if what == "DELETE":
        return fields(text), None
    before, after = text.split(" new-tuple: ", 1)
    return fields(before.removeprefix("old-key: ")), fields(after)


def changes(path):
    """(transaction, time of its commit, row before, row after), transactions in the order of their commits."""
    pending = []
    number = 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("BEGIN"):
                pending = []
                number += 1
            elif line.startswith("COMMIT"):
                at = micros(COMMIT.match(line).group(1))
                for before, after in pending:
                    yield number, at, before, after
            elif found := CHANGE.match(line.rstrip("\n")):
                pending.append(split(*found.groups()))


def same(before, after, *names):
    return all(before[name] == after[name] or ... in (before[name], after[name]) for name in names)


def is_new(row):
    return row["attempt"] is None and row["created_at"] is None


def created_at(row):
    return row["began_at"] if row["created_at"] is None else row["created_at"]


def judge(before, after, at):
    """None, or what is wrong with this change of a row."""
    if before is None:
        return None if is_new(after) else "a key begins with something else than its first attempt"
    done = before["completed_at"] is not None
    if after is None:
        if before["expires_at"] <= at:
            return None
        return "a completed key was removed before its time" if done else None
    if after["lease_until"] > after["expires_at"]:
        return "a lease outlives its key"
    if is_new(after) and after["began_at"] != before["began_at"]:
        return None if before["expires_at"] <= after["began_at"] else "a key was used again before it expired"
    if done:
        return "a completed key was changed"
    if after["token"] == before["token"]:
        if not same(before, after, "attempt", "began_at", "created_at", "expires_at", "fingerprint", "request"):
            return "the owner changed what is none of the owner's"
        return None
    if created_at(after) != created_at(before) or \
       not same(before, after, "fingerprint", "request", "recovery_point", "recovery_data"):
        return "a takeover changed more than the attempt"
    if int(after["attempt"]) != int(before["attempt"] or 1) + 1:
        return "a takeover, and not the next attempt"
    if before["lease_until"] > after["began_at"]:
        return "a lease that ran was taken over"
    if before["expires_at"] <= after["began_at"]:
        return "an expired key was taken over"
    if after["expires_at"] - after["began_at"] != before["expires_at"] - before["began_at"]:
        return "a takeover changed the retention"
    if after["completed_at"] is not None:
        return "a takeover completed the key"
    return None
