"""Whose keys they are says what is done with them."""

IN_ONE = ("tx", "tx-short", "call", "rush")  # the work and its answer in one transaction
LEASED = ("lease", "free", "lease-short")  # across transactions, with a provider; free: and sometimes released
MARKS = ("once", "once-short")

# Kept for a day, longer than any run; the others for so many seconds, at least and at most
FOREVER = {"tx", "call", "lease", "free", "once", "rush", "hurry"}
SHORT = {"tx-short": (0.3, 2.5), "lease-short": (0.8, 3.0), "once-short": (0.3, 2.0)}
