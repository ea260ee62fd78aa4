"""One round of a part of the lab: its seed, what it counts, its trace, and what it demands."""

import random
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

_TRACED = 40  # steps that a violation shows


@dataclass(slots=True)
class Tally:
    """What rounds did.

    Attributes:
        rounds: how many.
        cases: what was tried, by the part's own measure: inputs, states, steps, flips, kills.
        faults: errors and losses that were injected.
        violations: demands that did not hold.
        seconds: how long it took, on the wall clock.
    """

    rounds: int = 0
    cases: int = 0
    faults: int = 0
    violations: int = 0
    seconds: float = 0.0

    def add(self, other: "Tally") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class ViolationError(Exception):
    """Something that must hold did not."""


class Round:
    """A round: what a part is given, and what it tells.

    Attributes:
        seed: of the round.
        dice: the source of all chance in it.
        work: an empty directory for it alone.
        tally: what it has done so far.
        trace: its last steps.
    """

    def __init__(self, part: str, seed: int, work: Path) -> None:
        self.seed = seed
        self.dice = random.Random(f"{part} {seed}")  # by a text: the same in every process, whatever its hash seed
        self.work = work
        self.tally = Tally(rounds=1)
        self.trace: deque[str] = deque(maxlen=_TRACED)

    def case(self, count: int = 1) -> None:
        """Count what was tried."""
        self.tally.cases += count

    def fault(self, count: int = 1) -> None:
        """Count what was injected."""
        self.tally.faults += count

    def step(self, text: str) -> None:
        """Note a step; a violation shows the last ones."""
        self.trace.append(text)

    def demand(self, holds: bool, what: str) -> None:
        """End the round with a violation unless something holds."""
        if not holds:
            raise ViolationError(what)

    def fresh(self, name: str) -> Path:
        """An empty directory of the round."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the lab.

    Attributes:
        name: as it is asked for.
        cases: what it counts.
        play: plays a round.
    """

    name: str
    cases: str
    play: Callable[[Round], None]
