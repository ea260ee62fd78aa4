"""``python -m tests.lab``: plays the parts of the lab, long; ``make lab`` calls it."""

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.parts import PARTS
from tests.lab.rounds import Tally
from tests.lab.run import Runner, table
from tests.lab.totals import Totals

_TOTALS = Path(__file__).parents[2] / ".lab" / "totals.jsonl"
_SAVED_EVERY_S = 60


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="python -m tests.lab", description="Break things, and look what holds.")
    made.add_argument("--parts", default=",".join(PARTS), help="which, with commas between them: %(default)s")
    made.add_argument("--rounds", type=int, default=10, help="of each part; %(default)s by default")
    made.add_argument("--seconds", type=float, help="end after that time, whatever the rounds")
    made.add_argument(
        "--seed",
        type=int,
        help="of the first round; those after it count up. Where none is given, "
        "each part goes on behind the last seed that it has played",
    )
    made.add_argument("--totals", type=Path, default=_TOTALS, help="the file that keeps the sums over all runs")
    made.add_argument("--total", action="store_true", help="print the sums over all runs so far, and end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code: 1 with violations, 2 for options that cannot be."""
    options = parser().parse_args(arguments)
    totals = Totals(options.totals)
    if options.total:
        print(table(totals.sums()))  # noqa: T201
        return 0
    names = [name for name in options.parts.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown or options.rounds < 1:
        given = f"no such part: {unknown[0]}" if unknown else "--rounds is at least 1"
        print(f"{given}; the parts are {', '.join(PARTS)}", file=sys.stderr)  # noqa: T201
        return 2
    seeds = {name: totals.next_seed(name) if options.seed is None else options.seed for name in names}
    return _play(options, totals, seeds)


def _play(options: argparse.Namespace, totals: Totals, seeds: dict[str, int]) -> int:
    runner = Runner([PARTS[name] for name in seeds], seeds, lambda text: print(text, flush=True))  # noqa: T201
    whole = {name: Tally() for name in seeds}
    repeated: set[str] = set()

    def save() -> None:
        for name, (first, end, tally) in runner.take().items():
            whole[name].add(tally)
            if end > first and not totals.note(name, first, end, tally):
                repeated.add(name)

    end = None if options.seconds is None else time.monotonic() + options.seconds
    saved = time.monotonic()
    try:
        for _ in range(options.rounds):
            if end is not None and time.monotonic() >= end:
                break
            runner.play(1)
            if time.monotonic() > saved + _SAVED_EVERY_S:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)  # noqa: T201
    save()
    print(table(whole))  # noqa: T201
    if repeated:
        print(f"played before, and not added to the sums: {', '.join(sorted(repeated))}")  # noqa: T201
    return int(any(tally.violations for tally in whole.values()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run in the background is stopped by it
    logging.disable()  # what a store tells of damage is what it was given
    sys.exit(main())
