"""A publication replaces only what rmq knows by name and content; what else is there is named, and stays."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.batch_consumequeue import is_batch_queue_file
from rmq_formats.errors import StoreLayoutError
from rmq_formats.spark.options import schemas
from rmq_formats.storage.layout_refusals import write_refusal
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_layouts import StoreLayout, detect_layouts, dledger_directories
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from rmq_offline.tasks.work_area import LocalArea
from tests.layouts.conftest import Untouched
from tests.support.stores.rebuilt_stores import rebuild, small_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sound small store, and a file of nobody's to be put into it."""
    root = small_store(tmp_path / "store")
    rebuild(root)
    return root


@pytest.mark.parametrize(
    "name",
    [
        "consumequeue/notes.txt",
        "consumequeue/Topic0/notes.txt",
        "consumequeue/Topic0/0/notes.txt",
        "consumequeue/Topic0/zero/00000000000000000000",
        "consumequeue/Topic0/0/00000000000000000000/x",
        "index/notes.txt",
        "index/2026/x",
        "index/00000000000000000000",
        "index/lost+found/x",
        "index/.hidden",
    ],
)
@pytest.mark.parametrize("is_other_root", [False, True], ids=["in place", "elsewhere"])
def test_files_that_nobody_knows_are_named_and_stay(
    name: str, *, is_other_root: bool, store: Path, untouched: Untouched, tmp_path: Path
) -> None:
    target = tmp_path / "other" if is_other_root else store
    place = target / name
    if place.parent.is_file():
        place.parent.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"mine")
    named = str(place.parent if name.endswith(("/x", "zero/00000000000000000000")) else place)
    with untouched(target), pytest.raises(StoreLayoutError, match="move it out of the store first") as caught:
        rebuild(store, target if is_other_root else None)
    assert str(caught.value).startswith(f"{named}: ")


@pytest.mark.parametrize(
    "name", ["consumequeue/Elsewhere", "consumequeue/Topic0/9", "consumequeue/Topic0/0/link", "index/link"]
)
def test_links_to_nowhere_are_named_and_stay(name: str, store: Path, untouched: Untouched) -> None:
    (store / name).symlink_to("/not/mounted")
    with untouched(store), pytest.raises(StoreLayoutError, match="a link to nowhere") as caught:
        rebuild(store)
    assert str(caught.value).startswith(f"{store / name}: ")


def test_a_batch_queue_under_a_plain_queue_s_name_stays(
    store: Path, golden: Callable[[str], Path], untouched: Untouched
) -> None:
    data = (golden("bcq") / "store" / "batchconsumequeue" / "BatchOrders" / "0" / f"{0:020d}").read_bytes()
    assert is_batch_queue_file(data)
    (store / "consumequeue" / "Topic0" / "0" / f"{0:020d}").write_bytes(data)
    with untouched(store), pytest.raises(StoreLayoutError, match="batch queue's file"):
        rebuild(store)


def test_no_plain_queue_is_taken_for_a_batch_queue(layout_name: str, golden: Callable[[str], Path]) -> None:
    for path in (golden(layout_name) / "store" / "consumequeue").rglob("0*"):
        if path.is_file():
            assert not is_batch_queue_file(path.read_bytes())


def test_what_comes_while_a_rebuild_runs_stays_too(store: Path, untouched: Untouched) -> None:
    area = LocalArea(str(store))
    area.clear(["consumequeue"])
    (store / "consumequeue" / "notes.txt").write_bytes(b"mine")
    with untouched(store / "consumequeue"), pytest.raises(StoreLayoutError, match=r"notes\.txt: no topic's directory"):
        area.publish(["consumequeue"])


def test_a_sink_deletes_no_stranger(store: Path, untouched: Untouched) -> None:
    (store / "consumequeue" / "notes.txt").write_bytes(b"mine")
    source = ConsumeQueueSource({"path": str(store), "consumequeueFileBytes": "400"})
    with untouched(store), pytest.raises(StoreLayoutError, match=r"notes\.txt"):
        source.writer(schemas.CONSUMEQUEUE, overwrite=True)


def test_names_alone_are_no_sign(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0").mkdir()
    (tmp_path / "compaction").mkdir()
    (tmp_path / "compaction" / "position-checkpoint").write_bytes(b"{}")  # of every store that 5.3.3 closed
    (tmp_path / "consumequeue" / "CURRENT" / "0").mkdir(parents=True)  # a topic of that name
    (tmp_path / "config" / "topics").mkdir(parents=True)
    found = detect_layouts(LocalStorage(), str(tmp_path))
    assert (dict(found.evidence), write_refusal(found)) == ({}, None)
    assert dledger_directories(LocalStorage(), str(tmp_path)) == []


@pytest.mark.parametrize("name", ["topics", "subscriptionGroups", "consumerOffsets", "rdb"])
def test_each_config_database_is_a_sign(name: str, tmp_path: Path) -> None:
    (tmp_path / "config" / name).mkdir(parents=True)
    (tmp_path / "config" / name / "CURRENT").write_bytes(b"")
    assert StoreLayout.ROCKSDB_CONFIG in detect_layouts(LocalStorage(), str(tmp_path))
