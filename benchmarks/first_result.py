"""Benchmarks a small export from the command to the prompt: ``rmq export`` beside the Spark job."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Figure, run_rmq

MESSAGES = 20_000
TARGET_S = 5.0
_RUNS = 3  # the fastest counts


def figures(work: Path) -> list[Figure]:
    """Measure on a store of 20,000 messages of 1 KiB."""
    store = work / "small"
    run_rmq("generate", str(store), "--messages", str(MESSAGES), "--body-bytes", "1024", "--keys", "--tags")
    rmq = [str(Path(sys.executable).parent / "rmq"), "export"]
    command = min(_cost([*rmq, "--store", str(store)], work / "small-lake") for _ in range(_RUNS))
    spark = [sys.executable, "jobs/export_delta.py"]
    job, _ = _cost([*spark, "--store", str(store)], work / "small-lake")  # its processors are the JVM's, not counted
    return [
        Figure(
            f"`rmq export` of {MESSAGES:,} messages of 1 KiB, from the command to the prompt",
            f"{command[0]:.1f} s, {command[1]:.1f} s of processors",
            f"{TARGET_S:.0f} s",
            command[0] <= TARGET_S,
            f"{job:.1f} s (`jobs/export_delta.py`)",
            job / command[0],
        )
    ]


def _cost(words: Sequence[str], table: Path) -> tuple[float, float]:
    """Return the seconds of a command that makes a new table, on the clock and of processors."""
    shutil.rmtree(table, ignore_errors=True)
    begin, before = time.perf_counter(), os.times()
    subprocess.run([*words, "--table", str(table)], check=True, capture_output=True)
    after = os.times()
    processors = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - begin, processors
