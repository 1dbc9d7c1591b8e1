"""What the demonstrations of the examples share: the helpers of demo/, and how one ends."""

import atexit
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, os.pardir, "demo")
sys.path.insert(0, DEMO)

import run as demo  # noqa: E402  demo/run.py
from run import check, count, post, scene, start  # noqa: E402, F401


def start_provider():
    """The payment provider of the demonstration: charges once per Idempotency-Key."""
    return start("provider.py")[1]


def run(program, *arguments, die_at=""):
    """Runs a program to its end, which is a kill -9 at the point `die_at`, if it gets there."""
    with open(demo.LOG, "a") as log:
        done = subprocess.run(
            [sys.executable, program, *arguments],
            env={**os.environ, "DIE_AT": die_at},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    return done.returncode, done.stdout


@atexit.register
def end_programs():
    for process in demo.processes:
        process.kill()


def end():
    """The exit status says whether all counts were right."""
    print(f"\n{demo.wrong} WRONG" if demo.wrong else "\nAll as expected.")
    sys.exit(1 if demo.wrong else 0)
