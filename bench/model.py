#!/usr/bin/env python3
"""What so many requests a second take, from the costs of one. Arithmetic, not a measurement.

usage: model.py NAME=VALUE...     e.g. model.py SHARD_US=120 PROXY_US=60 WAL=1100 BYTES=480 INDEX=75 MS=2

    SHARD_US, PROXY_US  processor time of a request on its shard and on a proxy, in microseconds
    WAL                 bytes of WAL a request
    BYTES, INDEX        bytes a live key takes, and how many of them are the index that should stay in memory
    MS                  how long a request holds a connection
    RETENTION           seconds that a key is kept (86400)
    CORES, BUSY         of a server, and the part of them that may be busy (16, 0.5)
    MEMORY              of a shard, for the index, in GB (64)
    STREAM              of WAL that a shard and its standbys bear, in MB/s (100)
"""

import math
import sys

DEFAULTS = {"RETENTION": 86400, "CORES": 16, "BUSY": 0.5, "MEMORY": 64, "STREAM": 100}
RATES = (10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6)


def amount(value):
    for unit in "", "k", "M", "G", "T", "P":
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} E"


def table(costs):
    costs = {**DEFAULTS, **costs}
    capacity = costs["CORES"] * costs["BUSY"] * 1e6  # microseconds a second
    print(f"Servers of {costs['CORES']:g} cores, {costs['BUSY']:.0%} busy, {costs['MEMORY']:g} GB for the index, {costs['STREAM']:g} MB/s of"
          f" WAL. Keys kept for {costs['RETENTION'] / 3600:g} h.\nOne request: {costs['SHARD_US']:.0f} us on its shard,"
          f" {costs['PROXY_US']:.0f} us on a proxy, {costs['WAL']:.0f} B of WAL, {costs['BYTES']:.0f} B kept, {costs['INDEX']:.0f} B of them"
          f" index; {costs['MS']:.1f} ms.\n")
    print("| requests/s | shards for the processors | for the index | for the WAL | proxies | live keys | storage | index | WAL | connections in use |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for rate in RATES:
        live = rate * costs["RETENTION"]
        needs = (rate * costs["SHARD_US"] / capacity, live * costs["INDEX"] / (costs["MEMORY"] * 1e9),
                 rate * costs["WAL"] / (costs["STREAM"] * 1e6))
        shards = [f"{math.ceil(need)}" for need in needs]
        shards[needs.index(max(needs))] = f"**{math.ceil(max(needs))}**"
        proxies = math.ceil(rate * costs["PROXY_US"] / capacity)
        print(f"| {rate:,} | {shards[0]} | {shards[1]} | {shards[2]} | {proxies} | {amount(live)} | {amount(live * costs['BYTES'])}B"
              f" | {amount(live * costs['INDEX'])}B | {amount(rate * costs['WAL'])}B/s | {math.ceil(rate * costs['MS'] / 1000)} |")


if __name__ == "__main__":
    try:
        table({name: float(value) for name, value in (argument.split("=") for argument in sys.argv[1:])})
    except (ValueError, KeyError):
        sys.exit(__doc__)
