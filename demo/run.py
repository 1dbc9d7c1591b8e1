"""The demonstration: real requests, a real kill -9, and what the databases count afterwards.

Every line of the table is checked; the exit status says whether all were as expected.
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

HERE = os.path.dirname(os.path.abspath(__file__))
LOG = os.path.join(os.environ["TMPDIR"], "services.log")

processes = []
wrong = 0


# -- The services -------------------------------------------------------------


def start(program, *arguments):
    """Starts one of the programs beside this one, and waits until it says where it listens."""
    with open(LOG, "a") as log:
        process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, program), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    processes.append(process)
    url = process.stdout.readline().strip()
    if not url:
        sys.exit(f"{program} did not start")
    return process, url


# -- The clients --------------------------------------------------------------


class Answer(NamedTuple):
    status: Optional[int]  # None: the connection was lost
    headers: dict
    body: bytes

    def __str__(self):
        text = str(self.status or "no answer")
        if "Idempotent-Replayed" in self.headers:
            text += " replayed"
        if int(self.headers.get("Retry-After", 0)) >= 1:
            text += " with Retry-After"
        return text


def post(url, client, key, body, headers={}, connected=lambda: None):
    address = urlsplit(url)
    headers = {"Authorization": f"Bearer {client}", "Idempotency-Key": key, **headers}
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.connect()
    connected()
    try:
        connection.request("POST", address.path, json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    except (ConnectionError, http.client.HTTPException):
        return Answer(None, {}, b"")
    finally:
        connection.close()


def post_twice(*request):
    """Two clients, both connected before either sends. The lower status comes first."""
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        sent = [pool.submit(post, *request, connected=barrier.wait) for _ in range(2)]
    return sorted((future.result() for future in sent), key=lambda answer: answer.status or 0)


def post_patiently(*request):
    """A client that comes back when Retry-After says so."""
    for _ in range(20):
        answer = post(*request)
        if answer.status != 409:
            break
        time.sleep(int(answer.headers["Retry-After"]))
    return answer


def post_to_dying(provider, path, *request):
    """To an instance of the service that is killed (-9) at the worst moment."""
    process, url = start("service.py", provider)
    answer = post(url + path, *request, {"Demo-Die": "yes"})
    process.wait(timeout=60)
    return process.pid, answer


# -- The table ----------------------------------------------------------------


def scene(title, *lines):
    print(f"\n{title}")
    for line in lines:
        print(f"   {line}")
    print(f"\n   {'sent, or counted in the databases':42}{'expected':28}{'came back, or counted'}")


def check(what, got, expected):
    global wrong
    ok = str(got) == str(expected)
    wrong += not ok
    print(f"   {what:42}{expected!s:28}{got!s:28}{'ok' if ok else 'WRONG'}", flush=True)


def compare(again, first):
    return f"{again}, {'same' if again.body == first.body else 'other'} bytes"


def count(database, query, *parameters):
    with psycopg.connect(f"dbname={database}", autocommit=True) as db:
        return db.execute(query, parameters).fetchone()[0]


def charges(client, key):
    return count("provider", "SELECT count(*) FROM charge WHERE reference = %s", f"{client}/{key}")


def attempt(client, key):
    return count("shop", "SELECT attempt FROM idem_lookup(%s, %s)", client, key)


def key_and_purchases():
    state = count("shop", "SELECT state FROM idem_lookup('alice', 'b-1')")
    return f"{state}, {count('shop', 'SELECT count(*) FROM purchase')}"


def wait_until_gone(pid):
    """The server rolls back as soon as it finds the connection closed."""
    deadline = time.monotonic() + 30
    session = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    while count("shop", session, f"service-{pid}") > 0 and time.monotonic() < deadline:
        time.sleep(0.01)


# -- The story ----------------------------------------------------------------


def naive(url):
    scene(
        "1. Without idem: SELECT the key, charge, INSERT the key",
        "Both requests look before either has written: the customer pays twice.",
    )
    first, second = post_twice(f"{url}/naive/payments", "alice", "n-1", {"amount": 10})
    check("pay 10, two requests at once", f"{first}, {second}", "201, 201")
    check("    charges", charges("alice", "n-1"), 2)


def simultaneous(url):
    scene(
        "2. With idem: the same two requests, and repeats",
        "One does the work. Whoever comes meanwhile is told to wait, whoever comes later gets its answer.",
    )
    pay = f"{url}/payments"
    first, second = post_twice(pay, "alice", "p-1", {"amount": 10})
    check("pay 10, two requests at once", f"{first}, {second}", "201, 409 with Retry-After")
    again = post(pay, "alice", "p-1", {"amount": 10})
    check("the same again", compare(again, first), "201 replayed, same bytes")
    check("the same key, another amount", post(pay, "alice", "p-1", {"amount": 11}), "422")
    check("the same key, another client", post(pay, "bob", "p-1", {"amount": 10}), "201")
    for client in "alice", "bob":
        payments = count("shop", "SELECT count(*) FROM payment WHERE client = %s", client)
        check(f"    {client}: charges, payments", f"{charges(client, 'p-1')}, {payments}", "1, 1")


def killed_between(url, provider, path, key, total):
    order = "alice", key, {"amount": 20}
    _, lost = post_to_dying(provider, path, *order)
    check("pay 20; kill -9 after the charge", lost, "no answer")
    check("    charges", charges("alice", key), 1)
    check("again, to another instance", post(url + path, *order), "409 with Retry-After")
    check("again, when Retry-After says so", post_patiently(url + path, *order), "201")
    check("    attempt", attempt("alice", key), 2)
    check("    charges", charges("alice", key), total)


def killed_between_twice(url, provider):
    scene(
        "3. The service is killed after the charge, before it could keep the answer",
        "Nobody can tell what happened until the lease is over; then a retry takes over.",
        "The provider knows it by the key from idem_provider_key(): one charge.",
    )
    killed_between(url, provider, "/payments", "d-1", total=1)
    scene("   The same, with a fresh provider key for every attempt: two charges.")
    killed_between(url, provider, "/careless/payments", "d-2", total=2)


def killed_inside(url, provider):
    scene(
        "4. Everything in one transaction, and the service is killed just before COMMIT",
        "Nothing is left, so there is nothing to wait for.",
    )
    order = "alice", "b-1", {"item": "lamp"}
    pid, lost = post_to_dying(provider, "/purchases", *order)
    check("buy; kill -9 before COMMIT", lost, "no answer")
    wait_until_gone(pid)
    check("    key, purchases", key_and_purchases(), "absent, 0")
    first = post(f"{url}/purchases", *order)
    check("again, to another instance", first, "201")
    check("the same again", compare(post(f"{url}/purchases", *order), first), "201 replayed, same bytes")
    check("    attempt", attempt("alice", "b-1"), 1)
    check("    key, purchases", key_and_purchases(), "completed, 1")


def main():
    _, provider = start("provider.py")
    _, url = start("service.py", provider)

    naive(url)
    simultaneous(url)
    killed_between_twice(url, provider)
    killed_inside(url, provider)

    print(f"\n{wrong} WRONG" if wrong else "\nAll as expected.")
    if os.environ.get("KEEP"):
        print(f"""
Everything is still running. Pay by hand, and again:
  curl -i {url}/payments -H 'Authorization: Bearer carol' -H 'Idempotency-Key: 1' -d '{{"amount": 5}}'""")
    else:
        for process in processes:
            process.kill()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
