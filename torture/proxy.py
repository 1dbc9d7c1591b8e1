"""Stands between clients and server and loses connections at the worst moment.

A statement that matters was forwarded and the connection is cut: before the server gets it, at once
after it got it, or when its reply is already there. What the server did is for the client to find out.
"""

import asyncio
import random
import re
import sys

MATTERS = re.compile(rb"COMMIT|PREPARE TRANSACTION|ROLLBACK PREPARED|idem_(reserve|complete|release|renew|claim|call|once)")
CHANCE_COMMIT = 0.06
CHANCE_OTHER = 0.015


class Wire:
    """One client's connection and ours to the server."""

    def __init__(self, rng, upstream):
        self.rng = rng
        self.upstream = upstream
        self.cut = None  # an event while the reply that must not arrive is waited for

    def verdict(self, data):
        found = MATTERS.search(data)
        if not found:
            return "pass"
        chance = CHANCE_COMMIT if b"COMMIT" in found.group() or b"PREPARE" in found.group() else CHANCE_OTHER
        if self.rng.random() >= chance:
            return "pass"
        return self.rng.choice(["before", "at once", "reply", "reply"])

    async def to_server(self, source, sink):
        while data := await source.read(65536):
            fate = self.verdict(data)
            if fate == "before":
                return
            if fate == "reply":
                self.cut = asyncio.Event()
            sink.write(data)
            await sink.drain()
            if fate == "at once":
                return
            if fate == "reply":
                await self.cut.wait()
                return

    async def to_client(self, source, sink):
        while data := await source.read(65536):
            if self.cut is not None:
                self.cut.set()
                return
            sink.write(data)
            await sink.drain()

    async def run(self, reader, writer):
        ends = [writer]
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self.upstream)
            ends.append(server_writer)
            tasks = [
                asyncio.ensure_future(self.to_server(reader, server_writer)),
                asyncio.ensure_future(self.to_client(server_reader, writer)),
            ]
            _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in ends:
                end.close()


async def main(listen, upstream, seed):
    rng = random.Random(seed)

    async def serve(reader, writer):
        await Wire(rng, upstream).run(reader, writer)

    server = await asyncio.start_unix_server(serve, listen)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
