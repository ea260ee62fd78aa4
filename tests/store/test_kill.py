"""Kills: a writer dies at any moment, and nothing that it acknowledged is lost."""

import random
from pathlib import Path

import pytest

from rmq_core.store.config import FlushDiskType
from tests.store.conftest import Opener
from tests.store.derived_from_log import check_derived
from tests.store.killed_writer import Model, write_until_killed
from tests.store.small_stores import KINDS, batch_topics_of, config_of, config_of_kind, log_records
from tests.support.torture import rounds

pytestmark = pytest.mark.torture

SYNC = FlushDiskType.SYNC


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_killed_again_and_again_loses_nothing(open_store: Opener, tmp_path: Path, kind: str) -> None:
    config = config_of_kind(
        kind, tmp_path / "store", flush_disk_type=SYNC, flush_consumequeue_interval_ms=20, flush_index_interval_ms=30
    )
    model = Model(config_of_kind(kind, tmp_path / "model"))
    source = random.Random()  # the moments cannot be repeated whatever the seed
    for seed in rounds(10 if kind == "plain" else 4):
        acknowledged = write_until_killed(config, seed, after_s=source.random() * 0.2)
        store = open_store(flush_disk_type=SYNC, **KINDS[kind])
        assert acknowledged > 0
        assert store.max_physical_offset >= acknowledged
        assert not store.recovery.is_clean
        assert store.recovery.damages == ()
        model.follow(seed, log_records(config))
        assert store.shutdown()
        check_derived(config, batch_topics=batch_topics_of(config))
    model.store.shutdown()


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_store_killed_at_any_change_of_the_disk_is_whole(
    open_store: Opener, tmp_path: Path, flush: FlushDiskType
) -> None:
    config = config_of(
        tmp_path / "store",
        flush_disk_type=flush,
        flush_consumequeue_interval_ms=5,
        flush_index_interval_ms=5,
        flush_interval_ms=5,
    )
    model = Model(config_of(tmp_path / "model"))
    source = random.Random(7)
    for seed in rounds(12):
        at_change = seed + 1 if seed < 5 else source.randrange(5, 250)
        acknowledged = write_until_killed(config, seed, at_change=at_change)
        store = open_store(flush_disk_type=flush)
        assert store.max_physical_offset >= acknowledged
        assert store.recovery.damages == ()
        model.follow(seed, log_records(config))
        assert store.shutdown()
        check_derived(config)
    model.store.shutdown()
