"""Runs the benchmarks and prints one table, in Markdown, a part as soon as it is measured."""

import argparse
import os
import platform
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    broker,
    client,
    engines,
    ha,
    lakehouse,
    layouts,
    live_export,
    offline,
    proxy,
    remoting,
    replay,
    scale,
    shapes,
    simulated,
    strangers,
    timers,
    verify,
    write,
)
from benchmarks.measure import Figure

HEADER = """| what | measured | Apache RocketMQ (Java) | ratio | target | met |
| --- | --- | --- | --- | --- | --- |"""


def row(figure: Figure) -> str:
    """Format a figure as a row of the Markdown table."""
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f} ×"
    is_met = "yes" if figure.is_met else "**no**"
    return f"| {figure.name} | {figure.value} | {figure.peer} | {ratio} | {figure.target} | {is_met} |"


def parts(work: Path, messages: int, queues: int, light_queues: int) -> dict[str, Callable[[], list[Figure]]]:
    """Return the functions that measure each part of the table; the last two numbers are of simulated queues."""
    return {
        "offline": lambda: offline.figures(work, messages),
        "lakehouse": lambda: lakehouse.figures(work, messages),
        "decode": lakehouse.decode_figures,
        "first_result": lambda: lakehouse.first_result_figures(work),
        "engines": lambda: engines.figures(work, messages),
        "verify": lambda: verify.figures(work, messages),
        "layouts": lambda: layouts.figures(work, messages),
        "remoting": remoting.figures,
        "broker": lambda: broker.figures(work),
        "access": lambda: client.access_figures(work),
        "pop": lambda: broker.pop_figures(work),
        "proxy": lambda: proxy.figures(work),
        "client": lambda: client.figures(work),
        "filters": lambda: broker.filter_figures(work),
        "ha": lambda: ha.figures(work),
        "transactions": lambda: broker.transaction_figures(work),
        "timers": lambda: timers.figures(work),
        "write": lambda: write.figures(work, messages),
        "replay": lambda: replay.figures(work),
        "live_export": lambda: live_export.figures(work),
        "strangers": lambda: strangers.figures(work),
        "scale": scale.figures,
        "shapes": lambda: shapes.figures(work),
        "simulated": lambda: simulated.figures(work, queues, light_queues),
    }


def main() -> int:
    """Make a store, measure on it, print the table."""
    parser = argparse.ArgumentParser(description="Benchmarks beside the real Apache RocketMQ.")
    parser.add_argument("--messages", type=int, default=4_400_000, help="records of the store")
    names = list(parts(Path(), 0, 0, 0))
    parser.add_argument("--only", choices=names, help="one part of the table")
    parser.add_argument("--work", type=Path, default=Path(".bench"), help="directory for stores; made and removed")
    parser.add_argument("--queues", type=int, default=10_000_000, help="of the part simulated; in thousands")
    parser.add_argument("--light-queues", type=int, default=1_000_000, help="of the part simulated; in thousands")
    arguments = parser.parse_args()
    counts = arguments.messages, arguments.queues, arguments.light_queues
    processors = len(os.sched_getaffinity(0))
    print(f"{arguments.messages:,} records, {processors} processors, Python {platform.python_version()}\n\n{HEADER}")
    is_met = True
    try:
        for name, part in parts(arguments.work.resolve(), *counts).items():
            if arguments.only in (None, name):
                is_met &= _run(name, part, arguments.work)
    finally:
        shutil.rmtree(arguments.work, ignore_errors=True)
    return 0 if is_met else 1


def _run(name: str, part: Callable[[], list[Figure]], work: Path) -> bool:
    """Measure one part and print its rows; a failure is printed, and the next part runs."""
    work.mkdir(parents=True, exist_ok=True)
    try:
        figures = part()
    except Exception as error:
        traceback.print_exc()
        print(f"{name}: {getattr(error, 'stderr', None) or error}", file=sys.stderr, flush=True)
        return False
    print("\n".join(map(row, figures)), flush=True)
    return all(figure.is_met for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
