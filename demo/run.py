"""The demonstration: real requests, a real kill, and what the databases count afterwards.

Every row of the table is checked; the exit status says whether all were as expected.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

import psycopg

DIE = {"Demo-Die": "yes"}
HERE = os.path.dirname(os.path.abspath(__file__))
LOG = os.path.join(os.environ["TMPDIR"], "services.log")

processes = []
wrong = 0


# -- The services ---------------------------------------------------------------------


def start(program, *arguments):
    """Starts one of the two services and waits until it says where it listens."""
    with open(LOG, "a") as log:
        process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, program), *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
    processes.append(process)
    url = process.stdout.readline().strip()
    if not url:
        sys.exit(f"{program} did not start; see {LOG}")
    return process, url


# -- The clients ----------------------------------------------------------------------


class Answer(NamedTuple):
    status: Optional[int]  # None: the connection was lost
    headers: dict
    body: bytes

    def __str__(self):
        if self.status is None:
            return "no answer"
        text = str(self.status)
        if "Idempotent-Replayed" in self.headers:
            text += " replayed"
        if int(self.headers.get("Retry-After", 0)) >= 1:
            text += " with Retry-After"
        return text


def post(url, client, key, body, headers={}, ready=lambda: None):
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.connect()
    ready()
    headers = {"Authorization": f"Bearer {client}", "Idempotency-Key": key, **headers}
    try:
        connection.request("POST", address.path, json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    except (ConnectionError, http.client.HTTPException):
        return Answer(None, {}, b"")
    finally:
        connection.close()


def same_bytes(answer, first):
    return f"{answer}, {'same' if answer.body == first.body else 'other'} bytes"


def post_twice(*request):
    """Two clients that have connected, and send at the same moment."""
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(post, *request, ready=barrier.wait) for _ in range(2)]
    return sorted((one.result() for one in sent), key=lambda answer: answer.status or 0)


def post_patiently(*request):
    """A client that does what Retry-After says, until there is an answer."""
    for _ in range(20):
        answer = post(*request)
        if answer.status != 409:
            break
        time.sleep(int(answer.headers["Retry-After"]))
    return answer


# -- The table ------------------------------------------------------------------------


def scene(title):
    print(f"\n{title}\n\n   {'':44} {'expected':26} {'got':26}")


def check(what, got, expected):
    global wrong
    ok = str(got) == str(expected)
    wrong += not ok
    print(f"   {what:44} {expected!s:26} {got!s:26} {'ok' if ok else 'WRONG'}", flush=True)


def count(database, query, *parameters):
    with psycopg.connect(f"dbname={database}", autocommit=True) as db:
        return db.execute(query, parameters).fetchone()[0]


def charges(client, key):
    return count("provider", "SELECT count(*) FROM charge WHERE reference = %s", f"{client}/{key}")


def wait_until(query, *parameters):
    deadline = time.monotonic() + 30
    while not count("shop", query, *parameters) and time.monotonic() < deadline:
        time.sleep(0.01)


# -- The story ------------------------------------------------------------------------


def naive(url):
    scene("1. Without idem: SELECT the key, charge, INSERT the key")
    first, second = post_twice(f"{url}/naive/payments", "alice", "n-1", {"amount": 10})
    check("pay 10, two requests at once", f"{first}, {second}", "201, 201")
    check("   charged by the provider", charges("alice", "n-1"), 2)


def races(url):
    scene("2. With idem: the same two requests, then repeats")
    pay = f"{url}/payments"
    first, second = post_twice(pay, "alice", "p-1", {"amount": 10})
    check("pay 10, two requests at once", f"{first}, {second}", "201, 409 with Retry-After")
    again = post(pay, "alice", "p-1", {"amount": 10})
    check("again, later", same_bytes(again, first), "201 replayed, same bytes")
    check("the same key, another amount", post(pay, "alice", "p-1", {"amount": 11}), "422")
    check("the same key, another client", post(pay, "bob", "p-1", {"amount": 10}), "201")
    for client in "alice", "bob":
        payments = count("shop", "SELECT count(*) FROM payment WHERE client = %s", client)
        check(f"   {client}: charges, payment rows", f"{charges(client, 'p-1')}, {payments}", "1, 1")


def death_between(provider, url, path, key, expected):
    check_path, pay = f"{url}{path}", {"amount": 20}
    _, victim = start("service.py", provider)
    check("pay 20; killed (-9) after the charge", post(f"{victim}{path}", "alice", key, pay, DIE), "no answer")
    check("   charged by the provider", charges("alice", key), 1)
    check("again at once, to another instance", post(check_path, "alice", key, pay), "409 with Retry-After")
    check("again, when Retry-After says", post_patiently(check_path, "alice", key, pay), "201")
    check("   attempt", count("shop", "SELECT attempt FROM idem_lookup('alice', %s)", key), 2)
    check("   charged by the provider", charges("alice", key), expected)


def deaths_between(provider, url):
    scene("3. The service dies after the charge; the provider gets a key derived by idem_provider_key()")
    death_between(provider, url, "/payments", "d-1", 1)
    scene("   The same, but the provider gets a fresh key on every attempt")
    death_between(provider, url, "/careless/payments", "d-2", 2)


def death_inside(provider, url):
    scene("4. Everything in one transaction: the service dies just before COMMIT")
    buy = {"item": "lamp"}
    state = "SELECT state FROM idem_lookup('alice', 'b-1')"
    rows = "SELECT count(*) FROM purchase"
    process, victim = start("service.py", provider)
    check("buy; killed (-9) before COMMIT", post(f"{victim}/purchases", "alice", "b-1", buy, DIE), "no answer")
    # The server rolls back as soon as it sees the connection closed.
    wait_until("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = %s", f"service-{process.pid}")
    check("   key, purchase rows", f"{count('shop', state)}, {count('shop', rows)}", "absent, 0")
    first = post(f"{url}/purchases", "alice", "b-1", buy)
    check("again at once, to another instance", first, "201")
    again = post(f"{url}/purchases", "alice", "b-1", buy)
    check("again", same_bytes(again, first), "201 replayed, same bytes")
    check("   attempt", count("shop", "SELECT attempt FROM idem_lookup('alice', 'b-1')"), 1)
    check("   key, purchase rows", f"{count('shop', state)}, {count('shop', rows)}", "completed, 1")


def main():
    _, provider = start("provider.py")
    _, url = start("service.py", provider)

    naive(url)
    races(url)
    deaths_between(provider, url)
    death_inside(provider, url)

    print(f"\n{wrong} wrong" if wrong else "\nAll as expected.")
    if os.environ.get("KEEP"):
        print("\nEverything is still running. Pay by hand, more than once:")
        print(f"  curl -i {url}/payments -H 'Authorization: Bearer carol' -H 'Idempotency-Key: 1' -d '{{\"amount\": 5}}'")
    else:
        for process in processes:
            process.kill()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
