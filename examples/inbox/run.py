"""The demonstration: a queue that delivers again and again, webhooks that come again, and what is counted."""

import hashlib
import hmac
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

from demonstration import HERE, check, count, end, post, run, scene, start

CONSUMER = os.path.join(HERE, "inbox", "consumer.py")
WEBHOOK = os.path.join(HERE, "inbox", "webhook.py")
SECRET = "whsec_a_secret"
MESSAGES = 200


# -- The queue ----------------------------------------------------------------


def publish():
    """Each message one to three times, in any order."""
    deliveries = [n for n in range(MESSAGES) for _ in range(1 + n % 3)]
    random.shuffle(deliveries)
    with psycopg.connect("dbname=queue", autocommit=True) as db, db.transaction():
        for n in deliveries:
            body = json.dumps({"account": f"a{n % 7}", "amount": n})
            db.execute("INSERT INTO delivery (message, body) VALUES (%s, %s::jsonb)", (f"m{n}", body))
    return len(deliveries)


def deposits():
    return count("shop", "SELECT count(*) || ', ' || count(DISTINCT message) || ', ' || coalesce(sum(amount), 0) FROM deposit")


def queue():
    published = publish()
    scene(
        "A queue that delivers at least once",
        f"{MESSAGES} messages, sent {published} times. Consumers are killed before they commit, and between",
        "commit and acknowledgement; then two at once empty the queue.",
    )
    check("a consumer is killed before its commit", run(CONSUMER, die_at="before commit")[0], "-9")
    check("    deposits, different ones, sum", deposits(), "0, 0, 0")
    check("a consumer is killed after its commit", run(CONSUMER, die_at="after commit")[0], "-9")
    check("    deliveries in the queue", count("queue", "SELECT count(*) FROM delivery"), published)
    left = MESSAGES - count("shop", "SELECT count(*) FROM deposit")
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: run(CONSUMER), range(2)))
    check("two consumers at once", [status for status, _ in results], "[0, 0]")
    totals = [sum(numbers) for numbers in zip(*(map(int, output.split()) for _, output in results))]
    check("    deliveries, of these not seen before", totals, [published, left])
    check("    deposits, different ones, sum", deposits(), f"{MESSAGES}, {MESSAGES}, {sum(range(MESSAGES))}")
    check("    marks", count("shop", "SELECT count(*) FROM idem_keys WHERE client = 'queue:deposits'"), MESSAGES)


# -- Webhooks -----------------------------------------------------------------


def signature(body, secret=SECRET, stamp=None):
    stamp = stamp or int(time.time())
    signed = f"{stamp}.{json.dumps(body)}".encode()
    return {"Signature": f"t={stamp},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"}


def send(url, body, headers):
    """Sends it as the demonstration's clients do; the receiver does not look at their keys."""
    return post(url, "provider", "none", body, headers)


def webhooks():
    scene(
        "Webhooks",
        "Checked, stored once, and only then 200. What is not signed leaves no trace.",
    )
    _, url = start(WEBHOOK, SECRET)
    paid = {"id": "evt_1", "type": "charge.paid", "amount": 10}
    check("a webhook", send(url, paid, signature(paid)), "200")
    check("the same again", send(url, paid, signature(paid)), "200")
    with ThreadPoolExecutor(8) as pool:
        twice = {"id": "evt_2", "type": "charge.paid", "amount": 20}
        answers = {str(answer) for answer in pool.map(lambda _: send(url, twice, signature(twice)), range(8))}
    check("another one, eight times at once", answers, "{'200'}")
    forged = {"id": "evt_3", "type": "charge.paid", "amount": 1000000}
    check("without a signature", send(url, forged, {}), "401")
    check("signed with another secret", send(url, forged, signature(forged, secret="guess")), "401")
    check("another body under a good signature", send(url, forged, signature(paid)), "401")
    check("recorded an hour ago", send(url, forged, signature(forged, stamp=int(time.time()) - 3600)), "401")
    check("signed, without an id", send(url, {"type": "ping"}, signature({"type": "ping"})), "400")
    lost = {"id": "evt_4", "type": "charge.paid", "amount": 40}
    process, dying = start(WEBHOOK, SECRET)
    check("stored, and killed before the 200", send(dying, lost, {**signature(lost), "Demo-Die": "yes"}), "no answer")
    process.wait(timeout=60)
    check("the same again, to another instance", send(url, lost, signature(lost)), "200")
    stored = "SELECT string_agg(id, ', ' ORDER BY id) FROM webhook"
    check("    stored", count("shop", stored), "evt_1, evt_2, evt_4")
    marks = "SELECT string_agg(key, ', ' ORDER BY key) FROM idem_keys WHERE client = 'webhook:provider'"
    check("    marks", count("shop", marks), "evt_1, evt_2, evt_4")


if __name__ == "__main__":
    queue()
    webhooks()
    end()
