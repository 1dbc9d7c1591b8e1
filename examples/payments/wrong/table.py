"""Wrong: looks for the key, does the work, and stores key and answer, in three steps.

This is the usual table with a unique index. It passes every test that has one client."""

from service import connect, pay, serve

JSON = {"Content-Type": "application/json"}


def answer(client, key, order):
    with connect() as db:
        known = db.execute("SELECT body FROM answer WHERE client = %s AND key = %s", (client, key)).fetchone()
        if known:
            return 201, {**JSON, "Idempotent-Replayed": "true"}, known[0]
        body = pay(db, client, order)
        if key:
            db.execute("INSERT INTO answer VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (client, key, body))
        return 201, JSON, body


if __name__ == "__main__":
    serve(answer)
