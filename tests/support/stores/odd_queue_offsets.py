"""Queue offsets that leave gaps, repeat or begin again: at the begin, in the middle and at the end of a queue."""

from typing import Final

OFFSETS: Final = {
    "Gap": [*range(50), *range(52, 100), *range(98, 110)],
    "GapAtOnce": [7, 9, 10, 11, 12],
    "GapAtEnd": [*range(30), 40],
    "Gaps": [*range(5), 9, 10, 30, 11, 12, 31, 32],
    "Repeat": [0, 1, 2, 2, 1, 3, 4, 4, 4, 5],
    "RepeatAtOnce": [20, 20, 20, 21, 22],
    "Restart": [*range(40), *range(25), *range(40, 45)],
    "RestartAtOnce": [0, 0, 0, 1, 2],
    "RestartLate": [*range(33, 60), *range(25)],
    "RestartAtEnd": [*range(12), 0],
    "Twice": [*range(20), *range(10, 25)],
    "Late": [*range(45, 70)],
    "Negative": [0, 1, -3, 2, 3],
    "Far": [0, 1, 1 << 40, 3, 4, (1 << 63) - 1, 5, 6, 1 << 60, 8],
}


def interleaved() -> list[tuple[str, int]]:
    """Topic and queue offset of each message, one of each topic at a time."""
    return [
        (topic, offsets[number])
        for number in range(max(map(len, OFFSETS.values())))
        for topic, offsets in OFFSETS.items()
        if number < len(offsets)
    ]
