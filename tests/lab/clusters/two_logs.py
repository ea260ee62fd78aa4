"""What must hold of the logs and queues of a master and its slave."""

import shutil
from dataclasses import replace
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_core.store.store import MessageStore
from tests.store.small_stores import NoThreads, opened

Queues = dict[tuple[str, int], tuple[int, int, list[int]]]


def log_bytes(store: MessageStore, begin: int, end: int) -> bytes:
    """A stretch of a log."""
    found = bytearray()
    while begin + len(found) < end:
        stretch = store.read_log_range(begin + len(found), end - begin - len(found))
        assert stretch is not None, f"a log lacks {begin + len(found)}"
        found += stretch
    return bytes(found)


def is_beginning(slave: MessageStore, master: MessageStore) -> bool:
    """Whether a slave's log is what the master's begins with, as far as both have not deleted it."""
    begin, end = max(slave.min_physical_offset, master.min_physical_offset), slave.max_physical_offset
    return end <= master.max_physical_offset and (
        begin > end or log_bytes(slave, begin, end) == log_bytes(master, begin, end)
    )


def where_they_part(slave: MessageStore, master: MessageStore) -> str:
    """The bounds of two logs, and the first byte that differs."""
    begin = max(slave.min_physical_offset, master.min_physical_offset)
    end = min(slave.max_physical_offset, master.max_physical_offset)
    pairs = zip(log_bytes(slave, begin, end), log_bytes(master, begin, end), strict=True) if begin < end else ()
    first = next((begin + at for at, (left, right) in enumerate(pairs) if left != right), None)
    bounds = [(one.min_physical_offset, one.max_physical_offset) for one in (slave, master)]
    return f"slave and master are {bounds}, and differ from {first} on"


def queues_of(store: MessageStore) -> Queues:
    """Bounds of each queue that has messages, and the places of its records."""
    found = {}
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            records = [record[28:36] for at in range(low, high) for record in store.get(topic, queue_id, at, 1).slices]
            if records:
                found[topic, queue_id] = low, high, [int.from_bytes(record, "big") for record in records]
    return found


def since(begin: int, queues: Queues) -> dict[tuple[str, int], tuple[int, list[int]]]:
    """The end of each queue, and its records from a physical offset on."""
    found = {key: (high, [one for one in records if one >= begin]) for key, (_, high, records) in queues.items()}
    return {key: one for key, one in found.items() if one[1]}


def kept_and_rebuilt(config: StoreConfig, work: Path) -> tuple[Queues, Queues]:
    """The queues of a store that is shut down, and those that a recovery makes of its log alone."""
    found = []
    for is_rebuilt in (False, True):
        copy = work / "queues"
        shutil.copytree(config.root, copy, ignore=shutil.ignore_patterns("timer*"))  # the wheel has 37 MB
        if is_rebuilt:
            for name in ("watermark", "checkpoint"):
                (copy / name).unlink(missing_ok=True)
            shutil.rmtree(copy / "consumequeue", ignore_errors=True)
        store = opened(replace(config, root=str(copy), commitlog_path=""), threads=NoThreads())
        found.append(queues_of(store))
        store.shutdown()
        shutil.rmtree(copy)
    return found[0], found[1]
