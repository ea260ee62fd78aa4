"""Transactions: the official Java producer commits one after the other, at our broker and at the original's."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.broker import PEER, java_broker, load, our_broker
from benchmarks.measure import Figure

THREADS: Final = 64


def figures(work: Path) -> list[Figure]:
    """Transactions a second, each a half message and its commit, both brokers in turn, on stores under ``work``."""
    subprocess.run(["bash", str(PEER), "build"], check=True, stdout=sys.stderr)
    with our_broker(work / "ours-transactions", "ASYNC_FLUSH") as broker:
        ours = load(broker.namesrv, "transaction", "LoadTransactions", THREADS)
    with java_broker(work / "java-transactions", "ASYNC_FLUSH") as broker:
        theirs = load(broker.namesrv, "transaction", "LoadTransactions", THREADS)
    ratio = ours / theirs
    name = f"transactions that are committed, {THREADS} threads"
    return [Figure(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ratio, "1.0 × Java", ratio >= 1)]
