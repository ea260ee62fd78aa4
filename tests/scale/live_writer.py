"""A broker's store that is appended to and dispatched until stdin ends: ``python -m tests.scale.live_writer ROOT``."""

import random
import select
import sys

from tests.store.small_stores import NOW_MS, config_of, opened, put_any

FIRST = 2000  # messages that are there at once
PAUSE_S = 0.02  # between bursts then: some hundred messages a second


def main(root: str) -> None:
    """Write, and tell when there is something to read."""
    source = random.Random(3)
    store = opened(config_of(root, commitlog_file_bytes=1 << 20, consumequeue_file_bytes=20_000, index_entries=4000))
    number = 0
    while not select.select([sys.stdin], [], [], PAUSE_S if number > FIRST else 0)[0]:
        for _ in range(source.randrange(1, 12)):
            put_any(store, source, number, NOW_MS + number)
            number += 1
        if source.randrange(3):
            store.dispatch()
        if number > FIRST:
            sys.stdout.write("x")
            sys.stdout.flush()
    store.dispatch()
    store.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
