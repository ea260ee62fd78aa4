"""What a store must be like, told from its log alone by the plain-Python codecs."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rmq_core.store.config import StoreConfig
from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT, is_inner_batch
from rmq_formats.codecs.consumequeue import Unit, delay_levels_ms
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS, IndexEntry, IndexHeader, entry_position
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES
from rmq_formats.codecs.record import StoredMessage
from tests.support.oracles.commitlog_walk import Frame, walk
from tests.support.oracles.consumequeue import build_consumequeue, dispatch_tags_code, goes_to_consumequeue
from tests.support.oracles.index import build_index, index_keys
from tests.support.oracles.light_queues import light_places
from tests.support.stores.store_files import tree

Expected = tuple[dict[str, bytes], list[bytes]]


def records(config: StoreConfig, *, verify_crc: bool = True) -> list[StoredMessage]:
    """The sound records of a store's log, in order."""
    found = []
    for path in sorted(Path(config.commitlog_path).iterdir()):
        for item in walk(path.read_bytes(), int(path.name), verify_crc=verify_crc):
            if isinstance(item, Frame):
                found.append(item.decode())
    return found


def expected(config: StoreConfig, batch_topics: Collection[str] = ()) -> Expected:
    """The files of ConsumeQueue by name, but for topics with batch queues, and those of the Index in order."""
    levels = delay_levels_ms(config.delay_levels)
    tags_from = ALL_TAGS if config.index_tags == "yes" else NO_TAGS
    units: dict[tuple[str, int], list[tuple[int, Unit]]] = {}
    entries: list[tuple[int | None, int, int]] = []
    for message in records(config):
        place = (message.physical_offset, message.store_timestamp_ms)
        if goes_to_consumequeue(message.sys_flag) and message.topic not in batch_topics:
            unit = Unit(message.physical_offset, message.size, dispatch_tags_code(message, levels))
            units.setdefault((message.topic, message.queue_id), []).append((message.queue_offset, unit))
            for name, queue_id, queue_offset in light_places(message) if config.lmq_enabled else []:
                units.setdefault((name, queue_id), []).append((queue_offset, unit))
        entries.append((None, *place))
        entries += [(index_key_hash(message.topic, key), *place) for key in index_keys(message, tags_from)]
    queues = {
        f"{topic}/{queue_id}/{start:020d}": image
        for (topic, queue_id), own in units.items()
        for start, image in build_consumequeue(own, config.consumequeue_file_bytes, fills_gaps=True).items()
    }
    index = build_index(entries, config.index_slots, config.index_entries) if config.index_enabled else []
    return queues, index


def expected_batches(config: StoreConfig, batch_topics: Collection[str]) -> dict[str, bytes]:
    """The files of BatchConsumeQueue by name."""
    levels = delay_levels_ms(config.delay_levels)
    units: dict[str, bytes] = {}
    for message in records(config):
        if message.topic in batch_topics and goes_to_consumequeue(message.sys_flag):
            base, count = message.queue_offset, 1
            if is_inner_batch(message):
                base, count = (int(message.properties[name]) for name in ("INNER_BASE", "INNER_NUM"))
            unit = BATCH_UNIT.pack(
                message.physical_offset,
                message.size,
                dispatch_tags_code(message, levels),
                message.store_timestamp_ms,
                base,
                count,
                -1,
                0,
            )
            name = f"{message.topic}/{message.queue_id}"
            units[name] = units.get(name, b"") + unit
    size = config.batchconsumequeue_file_bytes
    return {
        f"{name}/{start:020d}": data[start : start + size].ljust(size, b"\0")
        for name, data in units.items()
        for start in range(0, len(data), size)
    }


def found(config: StoreConfig) -> Expected:
    """What is on the disk."""
    root = Path(config.root)
    index = tree(root / "index") if (root / "index").is_dir() else {}
    queues = tree(root / "consumequeue") if (root / "consumequeue").is_dir() else {}
    return queues, [index[name] for name in sorted(index)]


def check_derived(config: StoreConfig, *, index: bool = True, batch_topics: Collection[str] = ()) -> None:
    """ConsumeQueue, and Index if asked, are, byte for byte, what a fresh rebuild makes of the log."""
    wanted, got = expected(config, batch_topics), found(config)
    if batch_topics:
        assert tree(Path(config.root) / "batchconsumequeue") == expected_batches(config, batch_topics)
    assert sorted(got[0]) == sorted(wanted[0])
    for name, image in wanted[0].items():
        assert got[0][name] == image, f"{name} differs at unit {first_difference(got[0][name], image) // 20}"
    if not index:
        return
    assert len(got[1]) == len(wanted[1])
    for number, (ours, theirs) in enumerate(zip(got[1], wanted[1], strict=True)):
        assert ours == theirs, f"IndexFile {number} differs at byte {first_difference(ours, theirs)}"


def check_keys(config: StoreConfig) -> None:
    """As ``check_derived``, of an Index that the original went on with after a kill.

    It puts the keys of the last record in the files that it keeps into the next one again: ``IndexService#buildIndex``
    passes over records before ``endPhyOffset``, and not over the one at it.
    """
    check_derived(config, index=False)
    wanted, got = (Counter(_entries(config, images)) for images in (expected(config)[1], found(config)[1]))
    assert not wanted - got
    assert len({physical_offset for _, physical_offset in got - wanted}) <= 1


def _entries(config: StoreConfig, images: list[bytes]) -> Iterator[tuple[int, int]]:
    """Key hash and physical offset of each entry."""
    for image in images:
        for number in range(1, IndexHeader.decode(image[:INDEX_HEADER_BYTES]).index_count):
            at = entry_position(number, config.index_slots)
            entry = IndexEntry.decode(image[at : at + INDEX_ENTRY_BYTES])
            yield entry.key_hash, entry.physical_offset


def first_difference(first: bytes, second: bytes) -> int:
    """Position of the first byte in which two texts differ."""
    for at, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return at
    return min(len(first), len(second))


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as it was given to a store."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes


def sent_of(message: StoredMessage) -> Sent:
    """The same of a stored one."""
    return Sent(message.topic, message.queue_id, message.body, message.properties_bytes)


def check_rebuilt(config: StoreConfig, directory: Path) -> None:
    """Compare queues and Index with those that the original rebuilt of a golden store."""
    queues, index = found(config)
    assert queues == tree(directory / "expected" / "consumequeue")
    assert index == [data for _, data in sorted(tree(directory / "expected" / "index").items())]
