"""How far a job is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a rebuild: bytes of the log scanned, then tasks of the second wave done."""

    phase: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def counted_progress(
    on_progress: OnProgress | None, phase: str, total: int, size_of: Callable[[Any], int] = lambda _: 1
) -> Callable[[Any], None]:
    """Return a callback for a runner's results that sums up their sizes and reports the progress of a phase.

    Args:
        on_progress: receives the progress; None reports nothing.
        phase: its name.
        total: the sizes of all results.
        size_of: of one result; by default each counts as 1.
    """
    done = 0

    def report(result: Any) -> None:
        nonlocal done
        done += size_of(result)
        if on_progress:
            on_progress(Progress(phase, done, total))

    return report
