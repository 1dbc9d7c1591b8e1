"""Asks an HTTP service whether it keeps what the Idempotency-Key header promises.

The checks go by the sections of draft-ietf-httpapi-idempotency-key-header, and on to what it does
not speak of: processes that are killed, replies that are lost. Any service in any language;
README.md beside this file says what it has to offer. Standard library only.

The output is TAP; the exit status is 0 if no check failed.
"""

import argparse
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

PATIENCE = float(os.environ.get("CONFORMANCE_PATIENCE", 60))  # seconds, for anything that has to come
SHORT = 2  # seconds: a lease, or a retention, that a check waits for the end of

# Of an answer these may differ from one sending to the next: they are the web server's, not the service's.
VARYING = {"date", "server", "connection", "keep-alive", "transfer-encoding", "host"}


class Wrong(Exception):
    """What the service did that it must not do."""


class Skip(Exception):
    """What would have to be there for a check."""


# -- Answers ------------------------------------------------------------------


class Answer(NamedTuple):
    status: Optional[int]  # None: no answer came
    headers: tuple
    body: bytes

    def header(self, name):
        return next((value for field, value in self.headers if field == name.lower()), None)

    def kept(self, ignored):
        """What a replay has to be: all of it but what says that it is one."""
        return self.status, tuple(pair for pair in self.headers if pair[0] not in ignored), self.body

    def __str__(self):
        return f"{self.status} {self.body[:80]!r}" if self.status else "no answer"


NOTHING = Answer(None, (), b"")


def ask(url, path, headers, body):
    """Sends a request, and gives what comes back. `headers` is a list of pairs."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
    try:
        connection.putrequest("POST", address.path.rstrip("/") + path)
        for name, value in [*headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]:
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        found = tuple(sorted((name.lower(), value) for name, value in reply.getheaders()))
        return Answer(reply.status, found, reply.read())
    except (OSError, http.client.HTTPException):
        return NOTHING
    finally:
        connection.close()


def until(get, good, what):
    """Polls, and does not wait longer than it takes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        got = get()
        if good(got):
            return got
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: still {got} after {PATIENCE} s")
        time.sleep(0.1)


def want(condition, what):
    if not condition:
        raise Wrong(what)


# -- The service, and what happens to it ---------------------------------------


class Instance:
    """One running service: ours to kill, or somebody else's at a URL."""

    def __init__(self, command, **settings):
        for _ in range(3):  # another may take the port before the service does
            self.start(command, settings)
            if self.url:
                return
        raise SystemExit(f"this did not start a service on its PORT: {command}")

    def start(self, command, settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment = {**os.environ, "PORT": str(port), **{name: str(value) for name, value in settings.items()}}
        self.process = subprocess.Popen(
            command, shell=True, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self.url = None
        try:
            self.wait_for(port)
        finally:
            if not self.url:
                self.kill()

    def wait_for(self, port):
        deadline = time.monotonic() + 60  # however little patience there is for answers
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                self.url = f"http://127.0.0.1:{port}"
                return
            except OSError:
                time.sleep(0.05)

    def kill(self):
        """kill -9 of all its processes: no exception, no rollback, no goodbye."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class CommandHook:
    """A command that holds the next request in its middle until its standard input is closed."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.lines = self.process.stdout

    def let_go(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.lines.close()


class UrlHook:
    """The same over HTTP: held for as long as the request lasts."""

    def __init__(self, url):
        address = urlsplit(url)
        self.connection = socket.create_connection((address.hostname, address.port), PATIENCE)
        self.lines = self.connection.makefile("rb", buffering=0)
        self.connection.sendall(f"GET {address.path} HTTP/1.0\r\n\r\n".encode())
        while self.lines.readline().strip():
            pass  # the head

    def let_go(self):
        self.lines.close()
        self.connection.close()


class Hold:
    """The next request stops in its middle, until it is released."""

    def __init__(self, hook):
        self.hook = UrlHook(hook) if hook.startswith("http:") else CommandHook(hook)
        self.released = False
        self.wait_for("held")

    def wait_for(self, line):
        ready = select.select([self.hook.lines], [], [], PATIENCE)[0]
        said = self.hook.lines.readline().decode().strip() if ready else ""
        want(said == line, f"the request did not get to its middle ({said or 'nothing'} instead of {line})")

    def reached(self):
        self.wait_for("reached")

    def release(self):
        if not self.released:
            self.released = True
            self.hook.let_go()


class Request:
    """A request to be sent, again and again, with a key and a reference of its own."""

    def __init__(self, suite, url=None, body=None):
        self.suite, self.url = suite, url or suite.url
        self.key = f'"{uuid.uuid4()}"'
        self.reference = f"order-{uuid.uuid4().hex[:12]}"
        self.body = body or suite.options.body

    def send(self, key=None, body=None, other_client=False, url=None):
        return ask(*self.wire([self.key if key is None else key], body, other_client, url))

    def wire(self, keys, body=None, other_client=False, url=None):
        options = self.suite.options
        who = options.other_client if other_client else options.client
        headers = [tuple(part.strip() for part in who.split(":", 1)), *(("Idempotency-Key", key) for key in keys)]
        text = (body or self.body).replace("{reference}", self.reference)
        return url or self.url, options.path, headers, text.encode()

    def send_only(self):
        """The request is out, and nobody waits for the answer. Gives the connection, to be closed."""
        url, path, headers, body = self.wire([self.key])
        address = urlsplit(url)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        text = (
            f"POST {address.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {address.netloc}\r\n{head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = socket.create_connection((address.hostname, address.port), PATIENCE)
        connection.sendall(text.encode() + body)
        return connection

    def retry(self, url=None):
        """A patient client: comes back while the answer is 409 or 5xx, or none."""
        return until(
            lambda: self.send(url=url),
            lambda answer: answer.status and answer.status != 409 and answer.status < 500,
            "retrying",
        )

    def happened(self, times):
        """Once means: each of the numbers that the hook prints is 1."""
        if self.suite.options.effects:
            said = effects(self.suite.options.effects, self.reference)
            counts = [int(word) for word in said.split()]
            want(counts and all(count == times for count in counts), f"it happened {said} times, not {times}")


def effects(hook, reference):
    if hook.startswith("http:"):
        with urllib.request.urlopen(hook + reference, timeout=PATIENCE) as reply:
            return reply.read().decode().strip()
    done = subprocess.run(f"{hook} {reference}", shell=True, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


# -- The checks ---------------------------------------------------------------

CHECKS = []


def check(section, title):
    def add(function):
        CHECKS.append((section, title, function))
        return function

    return add


@check("2.7", "without a key: 400, and nothing happens")
def missing(suite):
    request = Request(suite)
    answer = ask(*request.wire([]))
    want(answer.status == 400, f"{answer}")
    suite.is_problem(answer)
    request.happened(0)


@check("2.1", "a malformed key: 400, and nothing happens")
def malformed(suite):
    for key in ('""', '"open', "a b", "a,b", '"a" "b"', '"back\\slash"', '"caf\u00e9"'):
        request = Request(suite)
        answer = request.send(key=key.encode("latin-1"))
        want(answer.status == 400, f"{key}: {answer}")
        suite.is_problem(answer)
        request.happened(0)


@check("2.1", "two keys in one request: 400, and nothing happens")
def two_keys(suite):
    request = Request(suite)
    answer = ask(*request.wire(['"one"', '"two"']))
    want(answer.status == 400, f"{answer}")
    request.happened(0)


@check("2.1", "a key in quotes and the same without are one")
def quoted_and_bare(suite):
    if suite.options.bare_keys == "no":
        raise Skip("--bare-keys=no")
    request = Request(suite)
    first = request.send()
    again = request.send(key=request.key.strip('"'))
    suite.is_first(first)
    suite.is_replay(again, first)
    request.happened(1)


@check("2.6", "the first request is worked on")
def first_request(suite):
    request = Request(suite)
    suite.is_first(request.send())
    request.happened(1)


@check("2.6", "a retry gets the answer again: status, headers and bytes")
def retry(suite):
    request = Request(suite)
    first = request.send()
    suite.is_first(first)
    for _ in range(3):
        suite.is_replay(request.send(), first)
    request.happened(1)


@check("2.6", "an error is an answer, too")
def refused(suite):
    if not suite.options.refused_body:
        raise Skip("needs --refused-body")
    request = Request(suite, body=suite.options.refused_body)
    first = request.send()
    want(first.status and 400 <= first.status < 500 and first.status not in (409, 422), f"{first}")
    suite.is_replay(request.send(), first)


@check("2.4", "the same key with another payload: 422, and the first answer stays")
def other_payload(suite):
    request = Request(suite)
    first = request.send()
    other = request.send(body=suite.options.other_body)
    suite.is_first(first)
    want(other.status == 422, f"{other}")
    want(first.body not in other.body, "the answer of the first request was shown")
    suite.is_problem(other)
    suite.is_replay(request.send(), first)
    request.happened(1)


@check("2.4", "the same payload in another spelling is the same request")
def same_payload(suite):
    if not suite.options.same_body:
        raise Skip("needs --same-body")
    request = Request(suite)
    first = request.send()
    suite.is_first(first)
    suite.is_replay(request.send(body=suite.options.same_body), first)
    request.happened(1)


@check("2.2", "another client's request with the same key is its own")
def other_client(suite):
    if not suite.options.other_client:
        raise Skip("needs --other-client")
    request = Request(suite)
    first, other = request.send(), request.send(other_client=True)
    suite.is_first(first)
    suite.is_first(other)
    want(first.kept(VARYING) != other.kept(VARYING), "it got the first client's answer")
    request.happened(2)


@check("2.6", "many requests at once: one is worked on, the others get 409 or its answer")
def simultaneous(suite):
    request = Request(suite)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: request.send(), range(8)))
    first = request.retry()
    for answer in answers:
        want(answer.status in (409, first.status), f"{answer}")
        want(answer.status == 409 or answer.body == first.body, f"two answers: {answer}, {first}")
    want(sum(answer.status != 409 and not suite.says_replay(answer) for answer in answers) == 1, "not one first answer")
    request.happened(1)


@check("2.6", "while the first is worked on: 409 with Retry-After")
def concurrent(suite):
    request = Request(suite)
    with suite.held() as hold:
        first = sent(request)
        hold.reached()
        answer = request.send()
        want(answer.status == 409, f"{answer}")
        want((answer.header("Retry-After") or "").isdigit(), f"Retry-After: {answer.header('Retry-After')}")
        want(int(answer.header("Retry-After")) >= 1, "Retry-After: 0")
        suite.is_problem(answer)
        hold.release()
        suite.is_first(first())
    suite.is_replay(request.send(), first())
    request.happened(1)


@check("2.7", "while the first is worked on, another payload: 409 or 422")
def concurrent_other(suite):
    request = Request(suite)
    with suite.held() as hold:
        first = sent(request)
        hold.reached()
        answer = request.send(body=suite.options.other_body)
        want(answer.status in (409, 422), f"{answer}")
        hold.release()
        suite.is_first(first())
    request.happened(1)


@check("-", "a request that was refused before the work takes no key")
def invalid(suite):
    if not suite.options.invalid_body:
        raise Skip("needs --invalid-body")
    request = Request(suite)
    answer = request.send(body=suite.options.invalid_body)
    want(answer.status and 400 <= answer.status < 500, f"{answer}")
    suite.is_first(request.send())
    request.happened(1)


@check("-", "the client hangs up before the answer: a retry gets it")
def hung_up(suite):
    request = Request(suite)
    request.send_only().close()
    answer = request.retry()
    want(200 <= answer.status < 300, f"{answer}")
    suite.is_replay(request.send(), answer)
    request.happened(1)


@check("-", "the client hangs up in the middle: a retry gets the answer")
def hung_up_in_the_middle(suite):
    request = Request(suite)
    with suite.held() as hold:
        with request.send_only():
            hold.reached()
        hold.release()
    answer = request.retry()
    want(200 <= answer.status < 300, f"{answer}")
    request.happened(1)


@check("-", "killed in the middle: a retry is worked on, and it happens once")
def killed(suite):
    request = Request(suite)
    with suite.instance(LEASE=SHORT) as dying, suite.instance(LEASE=SHORT) as living:
        with suite.held() as hold:
            first = sent(request, dying.url)
            hold.reached()
            dying.kill()
            want(first().status is None, f"{first()}")
            during = request.send(url=living.url)
            want(during.status == 409 or during.status < 300, f"at once: {during}")
            hold.release()
        answer = request.retry(living.url)
        want(200 <= answer.status < 300, f"{answer}")
        suite.is_replay(request.send(url=living.url), answer)
        request.happened(1)


@check("-", "killed after the answer: another instance has it")
def killed_after(suite):
    request = Request(suite)
    with suite.instance() as dying:
        first = request.send(url=dying.url)
        suite.is_first(first)
        dying.kill()
    suite.is_replay(request.send(), first)
    request.happened(1)


@check("-", "the reply from the next system is lost: a retry is worked on, and it happens once")
def lost(suite):
    if not suite.options.lose:
        raise Skip("needs --lose")
    request = Request(suite)
    with suite.instance(LEASE=SHORT) as instance:
        with suite.held(suite.options.lose) as hold:
            first = sent(request, instance.url)
            hold.reached()
            hold.release()
            want(first().status is None or first().status >= 500, f"{first()}")
        answer = request.retry(instance.url)
        want(200 <= answer.status < 300, f"{answer}")
        request.happened(1)


@check("-", "slower than its lease: the second attempt's answer is the answer, and it happens once")
def slow(suite):
    if suite.options.leases == "no":
        raise Skip("--leases=no")
    request = Request(suite)
    with suite.instance(LEASE=SHORT) as instance:
        with suite.held() as hold:
            first = sent(request, instance.url)
            hold.reached()
            answer = request.retry(instance.url)
            want(200 <= answer.status < 300, f"{answer}")
            hold.release()
            late = first()
        want(late.status == 409 or late.status >= 500 or late.body == answer.body, f"late: {late}, before: {answer}")
        suite.is_replay(request.send(url=instance.url), answer)
        request.happened(1)


@check("2.3", "after the retention the key is new")
def expiry(suite):
    request = Request(suite)
    with suite.instance(RETENTION=SHORT, LEASE=1) as instance:
        Request(suite).retry(instance.url)  # what is slow the first time is over then
        first = request.retry(instance.url)
        suite.is_first(first)
        ignored = {*VARYING, suite.replayed}
        again = until(
            lambda: request.send(url=instance.url),
            lambda answer: answer.kept(ignored) != first.kept(ignored),
            "sent again",
        )
        suite.is_first(again)


# -- The run ------------------------------------------------------------------


def sent(request, url=None):
    """Sends a request in the background, and gives a function that waits for the answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(request.send(url=url)), daemon=True)
    thread.start()

    def answer():
        thread.join()
        return answers[0]

    return answer


class Suite:
    def __init__(self, options):
        self.options = options
        self.replayed = options.replayed.lower()
        self.url = options.url

    @contextmanager
    def instance(self, **settings):
        """A service of our own, to be killed, or with settings of its own."""
        if not self.options.start:
            raise Skip("needs --start")
        instance = Instance(self.options.start, **settings)
        try:
            yield instance
        finally:
            instance.kill()

    @contextmanager
    def held(self, command=None):
        command = command or self.options.hold
        if not command:
            raise Skip("needs --hold")
        hold = Hold(command)
        try:
            yield hold
        finally:
            hold.release()

    def says_replay(self, answer):
        return answer.header(self.replayed) == "true"

    def is_first(self, answer):
        want(answer.status and 200 <= answer.status < 300, f"not done: {answer}")
        want(not self.says_replay(answer), f"a replay: {answer}")

    def is_replay(self, answer, first):
        ignored = {*VARYING, self.replayed}
        want(answer.kept(ignored) == first.kept(ignored), f"first {first.kept(ignored)}, then {answer.kept(ignored)}")
        want(self.says_replay(answer) or not self.replayed, f"no {self.options.replayed}: true")

    def is_problem(self, answer):
        if self.options.problems == "yes":
            kind = answer.header("Content-Type") or ""
            want(kind.startswith("application/problem+json"), f"Content-Type: {kind}")
            want("title" in json.loads(answer.body), "a problem without a title")

    def run(self):
        print(f"1..{len(CHECKS)}", flush=True)
        counts = {"ok": 0, "not ok": 0, "skip": 0}
        for number, (section, title, function) in enumerate(CHECKS, 1):
            verdict, note = self.judge(function)
            counts[verdict] += 1
            name = title if section == "-" else f"{section}: {title}"
            if verdict == "skip":
                print(f"ok {number} - {name} # SKIP {note}", flush=True)
            else:
                print(f"{verdict} {number} - {name}", flush=True)
                print(*(f"# {line}" for line in note.splitlines()), sep="\n", end="\n" if note else "", flush=True)
        print(f"# {counts['ok']} passed, {counts['not ok']} failed, {counts['skip']} skipped", flush=True)
        return 1 if counts["not ok"] else 0

    def judge(self, function):
        try:
            function(self)
            return "ok", ""
        except Skip as reason:
            return "skip", str(reason)
        except Wrong as what:
            return "not ok", str(what)


def parse_arguments():
    """Every option can be given in the environment, too: --other-body as CONFORMANCE_OTHER_BODY."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def option(name, default=None, **more):
        variable = f"CONFORMANCE_{name.upper().replace('-', '_')}"
        parser.add_argument(f"--{name}", default=os.environ.get(variable, default), **more)

    option("url", help="where a service runs already")
    option("start", help="command that runs one on 127.0.0.1:$PORT, with $LEASE and $RETENTION in seconds where set")
    option("path", "/payments", help="of the resource that is posted to")
    option("body", '{"reference": "{reference}", "amount": 10}', help="a valid request")
    option("other-body", '{"reference": "{reference}", "amount": 11}', help="another one")
    option("same-body", help="the first one, in another spelling")
    option("refused-body", help="one that is refused for good, with 4xx")
    option("invalid-body", help="one that is refused before the work")
    option("client", "Authorization: Bearer alice", help="the header that says who asks")
    option("other-client", "Authorization: Bearer bob", help="somebody else")
    option("effects", help="command, or URL, that says how often it happened for the reference put after it")
    option("hold", help="command, or URL, that holds the next request in its middle")
    option("lose", help="the same, and the reply from the next system is lost then")
    option("replayed", "Idempotent-Replayed", help="the header that marks a replay; empty for none")
    option("problems", "yes", choices=["yes", "no"], help="whether errors are problem documents (RFC 9457)")
    option("bare-keys", "yes", choices=["yes", "no"], help="whether keys are taken without quotes, too")
    option("leases", "yes", choices=["yes", "no"], help="whether a second attempt begins while the first still runs")
    options = parser.parse_args()
    if not options.url and not options.start:
        parser.error("--url or --start is needed")
    return options


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every `finally`
    options = parse_arguments()
    suite = Suite(options)
    if options.url:
        return suite.run()
    with suite.instance() as instance:
        suite.url = instance.url
        return suite.run()


if __name__ == "__main__":
    sys.exit(main())
