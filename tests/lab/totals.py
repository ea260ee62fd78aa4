"""What the lab has done so far, kept in a file: a night's work can be done in pieces."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.lab.rounds import Tally


class Totals:
    """Sums over all runs, by part: one line of JSON for each stretch of seeds that was played.

    A seed counts once: what is played again, to repeat a violation, adds nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _lines(self) -> Iterator[tuple[str, range, Tally]]:
        if not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8").splitlines():
            found = json.loads(line)
            yield found["part"], range(found["first"], found["end"]), Tally(**found["tally"])

    def next_seed(self, part: str) -> int:
        """The first seed of a part that no run has got to."""
        return max((seeds.stop for name, seeds, _ in self._lines() if name == part), default=0)

    def note(self, part: str, first: int, end: int, tally: Tally) -> bool:
        """Add what was done with the seeds from ``first`` to below ``end``; False if some were played before."""
        if any(name == part and first < seeds.stop and seeds.start < end for name, seeds, _ in self._lines()):
            return False
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "first": first, "end": end, "tally": asdict(tally)}) + "\n")
        return True

    def sums(self) -> dict[str, Tally]:
        """All that was noted, by part."""
        sums: dict[str, Tally] = {}
        for name, _, tally in self._lines():
            sums.setdefault(name, Tally()).add(tally)
        return sums
