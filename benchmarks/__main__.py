"""Runs the benchmarks and prints one table, in Markdown."""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    broker,
    client,
    engines,
    filters,
    ha,
    lakehouse,
    offline,
    remoting,
    replay,
    strangers,
    timers,
    transactions,
    verify,
    write,
)
from benchmarks.measure import Figure


def table(figures: list[Figure]) -> str:
    """Format the figures as a Markdown table."""
    lines = [
        "| what | measured | Apache RocketMQ (Java) | ratio | target | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f} ×"
        met = "yes" if figure.met else "**no**"
        lines.append(f"| {figure.name} | {figure.value} | {figure.peer} | {ratio} | {figure.target} | {met} |")
    return "\n".join(lines)


def parts(work: Path, messages: int) -> dict[str, Callable[[], list[Figure]]]:
    """Return the functions that measure each part of the table."""
    return {
        "offline": lambda: offline.figures(work, messages),
        "lakehouse": lambda: lakehouse.figures(work, messages),
        "engines": lambda: engines.figures(work, messages),
        "verify": lambda: verify.figures(work, messages),
        "remoting": remoting.figures,
        "broker": lambda: broker.figures(work),
        "client": lambda: client.figures(work),
        "filters": lambda: filters.figures(work),
        "ha": lambda: ha.figures(work),
        "transactions": lambda: transactions.figures(work),
        "timers": lambda: timers.figures(work),
        "write": lambda: write.figures(work, messages),
        "replay": lambda: replay.figures(work),
        "strangers": lambda: strangers.figures(work),
    }


def main() -> int:
    """Make a store, measure on it, print the table."""
    parser = argparse.ArgumentParser(description="Benchmarks beside the real Apache RocketMQ.")
    parser.add_argument("--messages", type=int, default=4_400_000, help="records of the store")
    names = list(parts(Path(), 0))
    parser.add_argument("--only", choices=names, help="one part of the table")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="directory for stores; made and removed")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        figures = [
            figure
            for name, part in parts(given.work.resolve(), given.messages).items()
            if given.only in (None, name)
            for figure in part()
        ]
    finally:
        shutil.rmtree(given.work, ignore_errors=True)
    processors = len(os.sched_getaffinity(0))
    print(f"\n{given.messages:,} records, {processors} processors, Python {platform.python_version()}\n")
    print(table(figures))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
