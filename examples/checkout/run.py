"""Starts the provider, and sends a customer to the checkout. usage: run.py [SCREENSHOTS]"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir, "payments"))

import run as payments  # noqa: E402  examples/payments/run.py


def main():
    screenshots = sys.argv[1] if len(sys.argv) > 1 else os.path.join(payments.TMPDIR, "screenshots")
    environment = {
        **os.environ,
        "PROVIDER": payments.start("provider.py"),
        "PORT": str(payments.free_port()),
        "PYTHON": sys.executable,
        "CHROMIUM": shutil.which("chromium") or "/usr/bin/chromium",
        "PGDATABASE": "payments",
        "PGUSER": "shop",
    }
    return subprocess.run(["node", os.path.join(HERE, "drive.js"), screenshots], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
