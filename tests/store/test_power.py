"""Losses of power, simulated: sectors, sizes and names that were not forced are there, or not, in any mixture."""

import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.quarantine import TOMBSTONE_TOPIC
from tests.store.checking import check_derived
from tests.store.making import NOW_MS, config_of, log_records, opened, put_any
from tests.store.power import LossyDisk
from tests.stores import tree

SYNC = FlushDiskType.SYNC
# Pictures; each gives up to two more, of its recovery and of the recovery of that. More for a long run.
STATES = int(os.environ.get("RMQ_POWER_STATES", "320"))
MESSAGES = 90


@dataclass(frozen=True, slots=True)
class State:
    """What a disk held after a loss of power, and what the store had acknowledged."""

    root: Path
    acknowledged: int


class Camera:
    """Takes pictures of a store's disk at changes that chance picks."""

    def __init__(self, root: Path, source: random.Random, count: int, one_in: int) -> None:
        root.mkdir(exist_ok=True)
        self.disk = LossyDisk(root, self._on_change)
        self.states: list[State] = []
        self.acknowledged: Callable[[], int] = int
        self._directory = root.parent
        self._name = root.name
        self._source = source
        self._count = count
        self._one_in = one_in
        self._taking = threading.Lock()

    def _on_change(self) -> None:
        with self._taking:  # the store's threads change things, too
            if len(self.states) < self._count and self._source.randrange(self._one_in) == 0:
                self.take()

    def take(self) -> None:
        """Take a picture now."""
        acknowledged = self.acknowledged()  # before the picture: what is forced while it is taken counts for nothing
        target = self._directory / f"{self._name}.{len(self.states)}"
        self.disk.picture(target, self._source, lose=self._source.choice([0.1, 0.5, 0.9, 1.0]))
        self.states.append(State(target, acknowledged))


def sent_records(tmp_path: Path, seed: int) -> list[tuple[int, bytes]]:
    """All records that the messages of a seed become."""
    config = config_of(tmp_path / "model")
    store = opened(config)
    source = random.Random(seed)
    for number in range(MESSAGES):
        put_any(store, source, number, NOW_MS + number * 10)
    assert store.shutdown()
    return log_records(config)


def pictures(tmp_path: Path, seed: int, count: int) -> list[State]:
    """Write the messages of a seed, with SYNC_FLUSH; states of the disk meanwhile, opening and shutdown included."""
    source = random.Random(-seed)
    camera = Camera(tmp_path / "live", source, count, one_in=max(1, 300 // count))
    config = sync_config(camera.disk.root)
    store = opened(config, disk=camera.disk)
    camera.acknowledged = lambda: store.flushed_offset
    messages = random.Random(seed)
    for number in range(MESSAGES):
        result = put_any(store, messages, number, NOW_MS + number * 10)
        if source.randrange(4) == 0:
            store.dispatch()
            assert store.wait_flushed(result.end_offset, 30)
            store.dispatch()
        if source.randrange(12) == 0:
            store.flush()
    assert store.shutdown()
    camera.disk.close_kept()
    return camera.states


def sync_config(root: Path) -> StoreConfig:
    return config_of(root, flush_disk_type=SYNC, flush_consumequeue_interval_ms=10, flush_index_interval_ms=10)


def check(
    state: State, sent: list[tuple[int, bytes]], source: random.Random, depth: int = 2, *, index: bool = True
) -> None:
    """What lost its power opens with all that was acknowledged and nothing else, and so does what loses it then.

    And what is there after one recovery is there after two.
    """
    camera = Camera(state.root, source, min(depth, 1), one_in=20)
    camera.acknowledged = lambda: state.acknowledged
    store = opened(sync_config(state.root), disk=camera.disk)
    assert store.max_physical_offset >= state.acknowledged
    # Sectors come to the disk in any order: what was not acknowledged may have a hole, and sound records behind it.
    assert all(damage.physical_offset >= state.acknowledged for damage in store.recovery.damages)
    assert store.shutdown()
    camera.disk.close_kept()
    found = [item for item in log_records(store.config) if TOMBSTONE_TOPIC.encode() not in item[1]]
    wanted = dict(sent)
    assert all(wanted.get(offset) == record for offset, record in found)
    acknowledged = [item for item in sent if item[0] < state.acknowledged]
    assert found[: len(acknowledged)] == acknowledged
    check_derived(store.config, index=index)
    before = tree(Path(store.config.commitlog_path))
    again = opened(store.config)
    assert again.recovery.tail == again.recovery.damages == ()
    assert again.shutdown()
    assert tree(Path(store.config.commitlog_path)) == before
    check_derived(store.config, index=index)
    for interrupted in camera.states:
        check(interrupted, sent, source, depth - 1, index=index)
    shutil.rmtree(state.root)


@pytest.mark.parametrize("seed", range(1, 9))
def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    sent = sent_records(tmp_path, seed)
    states = pictures(tmp_path, seed, STATES // 8)
    assert len(states) >= STATES // 16
    assert any(state.acknowledged for state in states)
    source = random.Random(seed)
    for state in states:
        check(state, sent, source)


def test_without_forcing_messages_are_lost_but_none_is_made_up(tmp_path: Path) -> None:
    sent = sent_records(tmp_path, 1)
    source = random.Random(3)
    camera = Camera(tmp_path / "live", source, 0, one_in=1)
    store = opened(config_of(camera.disk.root, flush_interval_ms=60_000, flush_consumequeue_interval_ms=60_000),
                   disk=camera.disk)  # fmt: skip
    messages = random.Random(1)
    for number in range(MESSAGES):
        put_any(store, messages, number, NOW_MS + number * 10)
    store.dispatch()
    for _ in range(10):
        camera.take()
    assert store.shutdown()
    camera.disk.close_kept()
    for state in camera.states:
        check(state, sent, source, index=False)  # keys of what was lost stay in the Index, and lead to nothing
