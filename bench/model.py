"""What so many requests a second take, from the costs of one. Arithmetic, not a measurement.

usage: model.py NAME=VALUE...     e.g. model.py SHARD_US=120 PROXY_US=60 WAL=1100 BYTES=480 INDEX=75 MS=2

    SHARD_US, PROXY_US  processor time of a request on its shard and on a proxy, in microseconds
    WAL                 bytes of WAL a request
    BYTES, INDEX        bytes a live key takes, and how many of them are the index that should stay in memory
    MS                  how long a request holds a connection
    RETENTION           seconds that a key is kept (86400)
    CORES, BUSY         of a server, and the part of them that may be busy (16, 0.5)
"""

import sys

DEFAULTS = {"RETENTION": 86400, "CORES": 16, "BUSY": 0.5}
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
    print(f"Servers of {costs['CORES']:g} cores, {costs['BUSY']:.0%} busy; keys kept for {costs['RETENTION'] / 3600:g} h; one request:"
          f" {costs['SHARD_US']:.0f} us on its shard, {costs['PROXY_US']:.0f} us on a proxy, {costs['WAL']:.0f} B of WAL,"
          f" {costs['BYTES']:.0f} B kept, {costs['INDEX']:.0f} B of them index, {costs['MS']:.1f} ms")
    print("| requests/s | shards | proxies | live keys | storage | index in memory | a shard | WAL | connections in use |")
    print("|---|---|---|---|---|---|---|---|---|")
    for rate in RATES:
        shards = max(1, -(-rate * costs["SHARD_US"] // capacity))
        proxies = max(1, -(-rate * costs["PROXY_US"] // capacity))
        live = rate * costs["RETENTION"]
        print(f"| {rate:,} | {shards:.0f} | {proxies:.0f} | {amount(live)} | {amount(live * costs['BYTES'])}B"
              f" | {amount(live * costs['INDEX'])}B | {amount(live * costs['INDEX'] / shards)}B index, {amount(rate / shards)}keys/s"
              f" | {amount(rate * costs['WAL'])}B/s | {rate * costs['MS'] / 1000:.0f} |")


if __name__ == "__main__":
    try:
        table({name: float(value) for name, value in (argument.split("=") for argument in sys.argv[1:])})
    except (ValueError, KeyError):
        sys.exit(__doc__)
