"""Wrong: keeps keys in a dictionary of the process, whoever sends them and whatever the request is."""

import threading

from service import connect, pay, serve

answers = {}
lock = threading.Lock()


def answer(client, key, order):
    with lock, connect() as db:  # one after the other, however long the provider takes
        headers = {"Content-Type": "application/json"}
        if key in answers:
            headers["Idempotent-Replayed"] = "true"
        else:
            answers[key] = pay(db, client, order)
        return 201, headers, answers[key]


if __name__ == "__main__":
    serve(answer)
