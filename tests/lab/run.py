"""Plays rounds, and tells what they did."""

import re
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.lab.parts import PARTS
from tests.lab.rounds import Part, Round, Tally, ViolationError

_LONGEST_S = 900  # a round takes seconds, on a machine with much else to do minutes: one that is not over by then hangs
_TOLD_WHOLE = 3  # violations that differ in numbers alone; of more the first line is told
_SAME_CHARACTERS = 60
_FRAMES = 4  # of a traceback, the innermost


class Runner:
    """Plays rounds of parts in turn.

    Attributes:
        tallies: what was done since ``take``, by part.
    """

    def __init__(self, parts: list[Part], first_seeds: Mapping[str, int], tell: Callable[[str], None]) -> None:
        self.tallies = {part.name: Tally() for part in parts}
        self._firsts = dict(first_seeds)
        self._ends = dict(first_seeds)  # the seed behind the last that was played
        self._alike: Counter[str] = Counter()
        self._parts = parts
        self._tell = tell

    def play(self, rounds: int) -> None:
        """Play so many rounds of each part, in turn."""
        for _ in range(rounds):
            for part in self._parts:
                self._round(part)

    def take(self) -> dict[str, tuple[int, int, Tally]]:
        """First seed, the seed behind the last, and what was done since this was asked before; by part."""
        taken = {name: (self._firsts[name], end, self.tallies[name]) for name, end in self._ends.items()}
        self._firsts = dict(self._ends)
        self.tallies = {name: Tally() for name in self._ends}
        return taken

    def _round(self, part: Part) -> None:
        seed = self._ends[part.name]
        with tempfile.TemporaryDirectory(prefix="rmq-lab-", dir=memory(), ignore_cleanup_errors=True) as work:
            one = Round(part.name, seed, Path(work))
            began = time.perf_counter()
            try:
                with _hurried():
                    part.play(one)
            except Exception as error:
                one.tally.violations += 1
                self._tell(self._told_once(part, one, error))
            one.tally.seconds = time.perf_counter() - began
        self.tallies[part.name].add(one.tally)
        self._ends[part.name] = seed + 1

    def _told_once(self, part: Part, one: Round, error: Exception) -> str:
        """The whole of a violation, or its first line where others like it were told."""
        text = violation(part, one, error)
        like = re.sub(r"\d+", "0", f"{type(error).__name__} {error}")[:_SAME_CHARACTERS]
        self._alike[like] += 1
        return text if self._alike[like] <= _TOLD_WHOLE else text.splitlines()[0]


@contextmanager
def _hurried() -> Iterator[None]:
    """Have a round that hangs end with a violation."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise ViolationError(f"hangs: not over after {_LONGEST_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    rest = signal.alarm(_LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(rest)
        signal.signal(signal.SIGALRM, before)


def memory() -> str | None:
    """The directory in memory for stores; None where there is none."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def violation(part: Part, one: Round, error: BaseException) -> str:
    """What went wrong, with the last steps, and the command that does it again."""
    lines = [f"VIOLATION {part.name} seed {one.seed}: {type(error).__name__}: {error}"]
    if not isinstance(error, ViolationError):
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        lines += [f"    at {Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames]
    lines += [f"    {step}" for step in one.trace]
    return "\n".join([*lines, f"    again: make lab PARTS={part.name} SEED={one.seed} ROUNDS=1"])


def table(tallies: Mapping[str, Tally]) -> str:
    """The tallies as a table."""
    rows = [("part", "rounds", "tried", "faults injected", "violations", "seconds")]
    for name, tally in tallies.items():
        cases = f"{tally.cases:,} {PARTS[name].cases}"
        rows.append((name, f"{tally.rounds:,}", cases, f"{tally.faults:,}", f"{tally.violations:,}",
                     f"{int(tally.seconds):,}"))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]))
    return "\n".join(lines)
