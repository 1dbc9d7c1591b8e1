"""The system down the line: it charges once per key that it is sent.

Its record is a database of its own (SQLite, in a file), which survives whatever happens to the
server under test. Every call is noted, too, so that one can see how often it was asked.
"""

import asyncio
import json
import sqlite3
import sys
import uuid


def open_record(path):
    record = sqlite3.connect(path, isolation_level=None)
    record.execute("CREATE TABLE IF NOT EXISTS charge (provider_key TEXT PRIMARY KEY, id TEXT, client TEXT, key TEXT)")
    record.execute("CREATE TABLE IF NOT EXISTS call (provider_key TEXT, token TEXT, attempt INTEGER)")
    record.execute("PRAGMA synchronous = OFF")  # the machine does not crash here
    return record


def charge(record, request):
    record.execute("BEGIN IMMEDIATE")
    record.execute("INSERT INTO call VALUES (?, ?, ?)", (request["provider_key"], request["token"], request["attempt"]))
    record.execute(
        "INSERT INTO charge VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (request["provider_key"], str(uuid.uuid4()), request["client"], request["key"]),
    )
    number = record.execute("SELECT id FROM charge WHERE provider_key = ?", (request["provider_key"],)).fetchone()[0]
    record.execute("COMMIT")
    return number


async def main(listen, path):
    record = open_record(path)

    async def serve(reader, writer):
        try:
            while line := await reader.readline():
                request = json.loads(line)
                await asyncio.sleep(request["seconds"] / 2)
                number = charge(record, request)
                await asyncio.sleep(request["seconds"] / 2)
                writer.write(json.dumps({"charge": number}).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, listen)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
