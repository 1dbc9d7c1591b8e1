"""A connection to the server without a driver's conveniences.

One call is one statement, and there are three ways for it to end: rows, an error with its SQLSTATE,
or a lost connection, after which nobody knows what became of it.
"""

import time

from psycopg import pq

FATAL = {"57P01", "57P02", "57P03", "25P03", "57P05"}


class Failed(Exception):
    """The server's answer is an error; the connection can be used."""

    def __init__(self, sqlstate, message):
        super().__init__(f"{sqlstate}: {message}")
        self.sqlstate = sqlstate
        self.message = message


class Lost(Exception):
    """The connection is gone before an answer came, or with a last word."""

    def __init__(self, sqlstate, message):
        super().__init__(f"{sqlstate or 'no answer'}: {message}")
        self.sqlstate = sqlstate
        self.message = message


class Refused(Exception):
    """No connection now."""


class Connection:
    def __init__(self, conninfo):
        self.pg = pq.PGconn.connect(conninfo.encode())
        if self.pg.status != pq.ConnStatus.OK:
            message = self.pg.error_message.decode(errors="replace").strip()
            self.pg.finish()
            raise Refused(message)
        self.pid = self.pg.backend_pid
        self.statements = 0

    def query(self, sql, *params):
        """The rows, all values as bytes or None."""
        self.statements += 1
        values = [None if p is None else p if isinstance(p, bytes) else str(p).encode() for p in params]
        result = self.pg.exec_params(sql.encode(), values) if values else self.pg.exec_(sql.encode())
        if result.status == pq.ExecStatus.TUPLES_OK:
            return [
                tuple(result.get_value(row, column) for column in range(result.nfields))
                for row in range(result.ntuples)
            ]
        if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY):
            return int(result.command_tuples or 0)
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        state = state.decode() if state else None
        message = (result.error_message or self.pg.error_message).decode(errors="replace").strip().split("\n")[0]
        if state is None or state in FATAL or state[:2] == "08" or self.pg.status != pq.ConnStatus.OK:
            raise Lost(state, message)
        raise Failed(state, message)

    def close(self):
        self.pg.finish()


def connect(conninfo, deadline):
    """Try again until the server takes us, as it does not while it recovers."""
    while True:
        try:
            return Connection(conninfo)
        except Refused as refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.03)


def wall():
    """Microseconds of the clock that the server reads, too."""
    return time.time_ns() // 1000
