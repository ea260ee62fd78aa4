"""Runs the benchmarks and prints one table, in Markdown."""

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path

from benchmarks import offline
from benchmarks.measure import Figure


def table(figures: list[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| what | measured | Apache RocketMQ (Java) | ratio | target | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f} ×"
        met = "yes" if figure.met else "**no**"
        lines.append(f"| {figure.name} | {figure.value} | {figure.peer} | {ratio} | {figure.target} | {met} |")
    return "\n".join(lines)


def main() -> int:
    """Make a store, measure on it, print."""
    parser = argparse.ArgumentParser(description="Benchmarks beside the real Apache RocketMQ.")
    parser.add_argument("--messages", type=int, default=4_400_000, help="records of the store")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="directory for stores; made and removed")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        figures = offline.figures(given.work.resolve(), given.messages)
    finally:
        shutil.rmtree(given.work, ignore_errors=True)
    processors = len(os.sched_getaffinity(0))
    print(f"\n{given.messages:,} records, {processors} processors, Python {platform.python_version()}\n")
    print(table(figures))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
