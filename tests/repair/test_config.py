"""``rmq repair --what config``: lost topics and groups are made anew from log, queues and offsets."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.errors import StoreLayoutError, StoreNotFoundError
from rmq_formats.read.broker_config import stored_batch_topics, stored_groups, stored_topics
from rmq_formats.storage.store_files import open_store
from rmq_offline.repair.config import repair_config
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import message, sound_store

OFFSETS = {"Orders@Billing": {"0": 3, "3": 1}, "%RETRY%Billing@Billing": {"0": 0}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sound store of two topics with two queues each, and a retry topic; of its config the offsets are left."""
    root = tmp_path / "store"
    messages = [message(number) for number in range(30)] + [message(30, topic="%RETRY%Shipping", queue_id=0)]
    sound_store(root, [*messages, message(31, topic="rmq_sys_wheel_timer", queue_id=0)])
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": OFFSETS}))
    return root


def queue_numbers(store: Path) -> dict[str, tuple[int, int]]:
    topics = stored_topics(open_store(str(store)))
    assert topics is not None
    return {name: (config.read_queue_nums, config.write_queue_nums) for name, config in topics.items()}


EXPECTED = {"%RETRY%Billing": (1, 1), "%RETRY%Shipping": (1, 1), "Clicks": (2, 2), "Orders": (4, 4)}


def test_a_plan_names_what_would_be_made_and_writes_nothing(store: Path) -> None:
    before = tree(store)
    report = repair_config(str(store), apply=False)
    assert not report.is_clean
    topics, groups = report.steps
    assert topics.names == ("%RETRY%Billing (1)", "%RETRY%Shipping (1)", "Clicks (2)", "Orders (4)")
    assert groups.names == ("Billing", "Shipping")
    assert tree(store) == before


def test_topics_have_the_queues_that_occur_and_groups_are_those_that_consume(store: Path) -> None:
    report = repair_config(str(store), apply=True)
    assert (report.is_clean, report.directory) == (True, None)
    assert queue_numbers(store) == EXPECTED
    assert set(stored_groups(open_store(str(store)))) == {"Billing", "Shipping"}
    assert repair_config(str(store), apply=False).steps == ()


def test_without_queues_the_log_names_the_topics(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    repair_config(str(store), apply=True)
    assert queue_numbers(store) == EXPECTED


def test_a_topic_without_queues_beside_others_stays_deleted(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "Clicks")
    repair_config(str(store), apply=True)
    assert queue_numbers(store) == {name: value for name, value in EXPECTED.items() if name != "Clicks"}


@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_a_file_that_parses_is_never_overwritten(store: Path, suffix: str) -> None:
    path = store / "config" / f"topics.json{suffix}"
    path.write_text('{"topicConfigTable":{"Mine":{}}}')
    report = repair_config(str(store), apply=True)
    assert [step.path for step in report.steps] == ["config/subscriptionGroup.json"]
    assert path.read_text() == '{"topicConfigTable":{"Mine":{}}}'


def test_a_file_that_does_not_parse_goes_to_the_quarantine(store: Path) -> None:
    (store / "config" / "topics.json").write_text('{"topicConfigTable":')
    report = repair_config(str(store), apply=True)
    assert report.directory == str(store / "quarantine" / "0001")
    assert tree(store / "quarantine") == {"0001/config/topics.json": b'{"topicConfigTable":'}
    assert queue_numbers(store) == EXPECTED


def test_config_in_rocksdb_and_no_store_are_refused(store: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        repair_config(f"{store}/nowhere", apply=False)
    (store / "config" / "topics").mkdir()
    (store / "config" / "topics" / "CURRENT").write_text("MANIFEST-1\n")
    with pytest.raises(StoreLayoutError, match="in this RocksDB"):
        repair_config(str(store), apply=True)


def test_a_link_in_place_of_the_directory_is_not_followed(store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (store / "config").rename(outside)
    (store / "config").symlink_to(outside)
    before = tree(outside)
    with pytest.raises(Exception, match="symbolic link"):
        repair_config(str(store), apply=True)
    assert tree(outside) == before


def test_batch_topics_have_their_attribute(golden: object, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("bcq") / "store", store)  # type: ignore[operator]
    topics = stored_topics(open_store(str(store)))
    assert topics is not None
    before = {name for name, config in topics.items() if config.has_batch_queues}
    for path in (store / "config").glob("topics.json*"):
        path.unlink()
    repair_config(str(store), apply=True)
    assert stored_batch_topics(open_store(str(store))) >= before != set()


def test_compacted_topics_have_their_attribute(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("compaction") / "store", store)
    path = store / "config" / "topics.json"

    def compacted() -> set[str]:
        table = json.loads(path.read_text())["topicConfigTable"]
        return {name for name, config in table.items() if config["attributes"] == {"cleanup.policy": "COMPACTION"}}

    before = compacted()
    path.unlink()
    repair_config(str(store), apply=True)
    assert compacted() == before == {"Profiles", "Settings"}
