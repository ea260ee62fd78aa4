"""Units of odd queue offsets stand where the original puts them: while a broker runs, and after each kind of start."""

from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.config import StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.consumequeue import Unit
from tests.store.derived_from_log import records
from tests.store.small_stores import NoThreads, config_of, opened, put, start_without
from tests.support.oracles.consumequeue import build_consumequeue
from tests.support.stores.odd_queue_offsets import interleaved
from tests.support.stores.store_files import tree


def put_all(store: MessageStore, messages: list[tuple[str, int]], batch: int) -> None:
    """Append messages with these queue offsets, whatever offsets their queues are at."""
    for number, (topic, queue_offset) in enumerate(messages):
        queue = store.appender.queue(topic, 0)
        assert queue is not None
        queue.next_offset = queue_offset
        put(store, topic, properties=b"TAGS\x01t%d\x02" % number)
        if number % batch == 0:
            store.dispatch()
    store.dispatch()


def queues_of_log(config: StoreConfig) -> dict[str, bytes]:
    """The files that the plain-Python oracle makes of a store's log."""
    units: dict[str, list[tuple[int, Unit]]] = {}
    for message in records(config):
        unit = Unit(message.physical_offset, message.size, _hash(message.properties["TAGS"]))
        units.setdefault(message.topic, []).append((message.queue_offset, unit))
    return {
        f"{topic}/0/{start:020d}": image
        for topic, own in units.items()
        for start, image in build_consumequeue(own, config.consumequeue_file_bytes).items()
    }


def _hash(text: str) -> int:
    value = 0
    for letter in text:
        value = 31 * value + ord(letter)
    return value


def queues(config: StoreConfig) -> dict[str, bytes]:
    return tree(Path(config.root) / "consumequeue")


@pytest.mark.parametrize("batch", [1, 5, 10_000])
def test_a_running_broker_places_units_as_the_original(tmp_path: Path, batch: int) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put_all(store, interleaved(), batch)
    assert store.shutdown()
    assert queues(config) == queues_of_log(config)


@pytest.mark.parametrize(
    "without",
    [
        ("abort",),
        ("watermark",),
        ("watermark", "abort"),
        ("watermark", "checkpoint", "abort"),
        ("consumequeue",),
        ("consumequeue", "watermark"),
        ("consumequeue/Gap/0",),
    ],
    ids="+".join,
)
def test_a_start_places_units_as_the_original(tmp_path: Path, without: tuple[str, ...]) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    put_all(store, interleaved(), 7)
    assert store.shutdown()
    start_without(config, without)
    assert queues(config) == queues_of_log(config)


def test_a_killed_broker_dispatches_the_rest_as_the_original(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    messages = interleaved()
    store = opened(config)
    put_all(store, messages[:200], 7)
    assert store.shutdown()
    store = opened(config, threads=NoThreads())  # nothing more is flushed
    put_all(store, messages[200:], 7)
    left = config_of(tmp_path / "left")
    _copy(Path(config.root), Path(left.root))
    store.shutdown()
    start_without(left, ("abort",))
    assert queues(left) == queues_of_log(left)


def _copy(root: Path, target: Path) -> None:
    for name, data in tree(root).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)


class _FullDisk(Disk):
    """A disk that refuses each third new file."""

    creations = 0
    is_full = False

    def create(self, path: str, *arguments: Any, **others: Any) -> int:
        self.creations += 1
        if self.is_full and "consumequeue" in path and self.creations % 3 == 0:
            raise OSError(28, "No space left on device", path)
        return super().create(path, *arguments, **others)


def test_what_a_full_disk_refused_is_placed_as_the_original(tmp_path: Path) -> None:
    """A batch is dispatched again from its begin: units that are there are not appended twice."""
    config, disk = config_of(tmp_path / "store"), _FullDisk()
    store = opened(config, disk=disk, threads=NoThreads())
    messages = interleaved()
    for number in range(0, len(messages), 50):
        disk.is_full = False
        while not store.dispatch():
            pass
        disk.is_full = True
        put_all(store, messages[number : number + 50], 10_000)
    disk.is_full = False
    while not store.dispatch():
        pass
    assert store.shutdown()
    assert queues(config) == queues_of_log(config)


def test_a_gap_of_damaged_messages_stays_open_after_the_next_start(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store")
    store = opened(config)
    places = [put(store).physical_offset for _ in range(10)]
    put(store, "Other")
    assert store.shutdown()
    path = Path(config.commitlog_path) / f"{0:020d}"
    image = bytearray(path.read_bytes())
    for place in places[7:]:
        image[place + 88] ^= 1
    path.write_bytes(image)
    store = opened(config)
    assert store.max_offset("T", 0) == 7
    assert put(store).queue_offset == 10
    assert store.shutdown()
    before = queues(config)
    start_without(config, ("watermark", "checkpoint", "abort"))
    assert queues(config) == before
    start_without(config, ("consumequeue",))
    assert queues(config) == before
