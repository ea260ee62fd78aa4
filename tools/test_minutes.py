"""Sums the durations of a run of the tests by room and by mark.

``python -m tools.test_minutes FILE`` reads what ``pytest --junit-xml FILE`` wrote; ``--json FILE`` keeps the
seconds of each test.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

_DEAREST = 25


def read_durations(report: Path) -> dict[str, float]:
    """Read the seconds of each test, with its fixtures, by ``module::name``."""
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": float(case.get("time") or 0) for case in cases}


def format_sums(durations: dict[str, float]) -> Iterator[str]:
    """Yield a line for each folder of tests, the dearest first, and one for each of the dearest tests."""
    rooms: Counter[str] = Counter()
    for test, seconds in durations.items():
        rooms[".".join(test.split("::")[0].split(".")[:2])] += seconds  # type: ignore[assignment]
    for room, seconds in rooms.most_common():
        yield f"{seconds / 60:7.1f} min  {room}"
    for test, seconds in sorted(durations.items(), key=lambda pair: -pair[1])[:_DEAREST]:
        yield f"{seconds:7.1f} s    {test}"


def main() -> None:
    """Print the sums; write the durations where ``--json`` names a file."""
    parser = argparse.ArgumentParser(prog="python -m tools.test_minutes", description=__doc__)
    parser.add_argument("report", type=Path, help="a JUnit XML file of pytest")
    parser.add_argument("--json", type=Path, help="write the seconds of each test into this file")
    options = parser.parse_args()
    durations = read_durations(options.report)
    sys.stdout.writelines(f"{line}\n" for line in format_sums(durations))
    if options.json is not None:
        options.json.write_text(json.dumps(durations, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
