"""Benchmarks transactions: the official Java producer commits one after the other, at our broker and at Apache's."""

from pathlib import Path
from typing import Final

from benchmarks.broker import beside_java, build_peer, load_both
from benchmarks.measure import Figure

THREADS: Final = 64


def figures(work: Path) -> list[Figure]:
    """Measure transactions a second, each a half message and its commit, at both brokers in turn, under ``work``."""
    build_peer()
    rates = load_both(work, "transaction", "LoadTransactions", THREADS)
    return [beside_java(f"transactions that are committed, {THREADS} threads", *rates)]
