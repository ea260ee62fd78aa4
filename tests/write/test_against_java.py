"""The real Apache RocketMQ opens stores that rows were written to: it reads each message and truncates nothing."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS
from tests.conftest import GoldenSettings
from tests.interop import peer
from tests.support.stores.rebuilt_stores import built
from tests.support.stores.store_files import tree
from tests.support.stores.written_stores import batches_of, dispatch_of, rows, write

pytestmark = pytest.mark.peer


def java_settings(settings: GoldenSettings) -> dict[str, object]:
    return {
        "mappedFileSizeCommitLog": settings.commitlog_file_bytes,
        "mappedFileSizeConsumeQueue": settings.consumequeue_file_bytes,
        "maxHashSlotNum": settings.index_slots,
        "maxIndexNum": settings.index_entries,
        "messageDelayLevel": settings.delay_levels,
    }


@pytest.mark.parametrize("name", ["mixed", "exotic"])
@pytest.mark.long
def test_java_makes_our_queues_and_index_of_a_written_log(
    name: str, golden: Callable[[str], Path], golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    settings = golden_settings[name]
    without = ("physical_offset", "queue_offset")  # so that all of them are new
    given = batches_of(golden(name) / "store", *without)
    half = len(given[0]) // 2
    tags_from = ALL_TAGS if peer.is_from_5_4() else NO_TAGS
    store, dispatch = tmp_path / "store", dispatch_of(replace(settings, tags_from=tags_from))
    write(store, [[given[0].slice(0, half)]], file_bytes=settings.commitlog_file_bytes, dispatch=dispatch)
    rest = [[given[0].slice(half)], given[1:], [rows(topic=["Added", "T" * 200], body=[b"x", b"y"], tags=["a", "b"])]]
    added = write(store, rest, file_bytes=None, dispatch=dispatch)
    count = sum(map(len, given)) + 2
    ours, log = built(store), tree(store / "commitlog")

    theirs = tmp_path / "theirs"
    shutil.copytree(store / "commitlog", theirs / "commitlog")
    peer.rebuild(theirs, **java_settings(settings))  # type: ignore[arg-type]
    assert built(theirs) == ours
    peer.rebuild(store, **java_settings(settings))  # type: ignore[arg-type]
    assert built(store) == ours  # opened with what we dispatched, it finds nothing to change
    assert {path: data for path, data in tree(store / "commitlog").items() if path in log} == log
    dumped = peer.dump(store)
    assert len(dumped) == count == half + added
    assert [record["physical_offset"] for record in dumped] == [r["recorded_physical_offset"] for r in dumped]
