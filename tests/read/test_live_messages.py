"""Readers of a topic give what its consumers get, on each access path; and what no queue has where it is asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats import Store
from rmq_formats.errors import OptionError
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import ANY_QUEUE, AccessPath, Include, Query, QueueBounds, ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.storage.store_files import open_store
from tests.support.stores.store_lives import FIRST_MS, LogWriter, recovered_log

ORDERS = frozenset(["Orders"])
WAYS = [AccessPath.AUTO, AccessPath.SCAN, AccessPath.CONSUMEQUEUE]


def bodies(root: Path, query: Query, way: AccessPath = AccessPath.AUTO) -> list[str]:
    files = open_store(str(root))
    plan = plan_read(files, query, access_path=way, split_bytes=4096)
    options = ReadOptions(("body",), query)
    batches = [batch for task in plan.tasks for batch in read_task(files.root, task, options)]
    return [body.decode() for batch in batches for body in batch["body"].to_pylist()]


def recreated(*, queues: int = 1, second_queues: int = 1) -> LogWriter:
    """A topic that was deleted and made again: 40 old messages and 25 new ones, among those of another topic."""
    log, now = LogWriter(), FIRST_MS
    for number in range(60):
        now += 1000
        log.add("Payments", number, f"pay {number:03}", now)
        if number < 40:
            log.add("Orders", number // queues, f"old {number:03}", now, queue_id=number % queues)
    log.forget("Orders")
    for number in range(25):
        now += 1000
        log.add("Orders", number // second_queues, f"new {number:03}", now, queue_id=number % second_queues)
    for number in range(60, 70):
        log.add("Payments", number, f"pay {number:03}", now)
    return log


NEW = [f"new {number:03}" for number in range(25)]
OLD = [f"old {number:03}" for number in range(40)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("queues", "second_queues"), [(1, 1), (4, 4), (4, 2), (2, 4)])
def test_a_topic_made_again_has_its_second_life_alone(
    tmp_path: Path, way: AccessPath, queues: int, second_queues: int
) -> None:
    root = recreated(queues=queues, second_queues=second_queues).save(tmp_path / "store")
    assert bodies(root, Query(topics=ORDERS), way) == NEW
    assert bodies(root, Query(topic_pattern="Ord.*"), AccessPath.SCAN) == NEW
    assert bodies(root, Query(queues={"Orders": frozenset([0])}), way) == NEW[::second_queues]


@pytest.mark.parametrize("way", WAYS)
def test_offsets_of_a_topic_made_again_are_those_of_its_second_life(tmp_path: Path, way: AccessPath) -> None:
    root = recreated().save(tmp_path / "store")
    bounds = {("Orders", 0): QueueBounds(10, 20)}
    assert bodies(root, Query(topics=ORDERS, bounds=bounds), way) == NEW[10:20]


def test_former_messages_are_given_where_they_are_asked_for(tmp_path: Path) -> None:
    root = recreated().save(tmp_path / "store")
    assert bodies(root, Query(topics=ORDERS, include=Include.LOG)) == OLD + NEW
    assert bodies(root, Query(topics=ORDERS, include=Include.UNQUEUED)) == OLD
    assert bodies(root, Query(include=Include.UNQUEUED)) == OLD
    assert len(bodies(root, Query(include=Include.LIVE))) == 70 + 25
    assert len(bodies(root, Query())) == 70 + 40 + 25
    with pytest.raises(OptionError, match="needs a scan of the log"):
        bodies(root, Query(topics=ORDERS, include=Include.LOG), AccessPath.CONSUMEQUEUE)


def test_a_store_gives_the_second_life(tmp_path: Path) -> None:
    store = Store(str(recreated().save(tmp_path / "store")))
    assert store.arrow(topic="Orders").count_rows() == len(list(store.messages("Orders"))) == 25
    assert store.count_rows() == 135
    assert [item.body for item in store.query(topic="Orders", queue_id=0, offset=5)] == [b"new 005"]
    assert store.query(topic="Orders", queue_id=0, offset=30) == []
    # a broker answers keys by its Index, which has both lives
    assert [item.body for item in store.query(topic="Orders", key="k30")] == [b"old 030"]
    assert store.query(topic="Orders", key="k30", include="live") == []
    (old,) = store.query(topic="Orders", key="k30")
    (new,) = store.query(topic="Orders", queue_id=0, offset=5)
    found = {kind: [len(store.query(msg_id=item.msg_id, include=kind)) for item in (old, new)] for kind in Include}
    assert found == {Include.LIVE: [0, 1], Include.LOG: [1, 1], Include.UNQUEUED: [1, 0]}
    with pytest.raises(OptionError, match="give live, log, unqueued"):
        store.arrow(include="dead")


def test_messages_that_no_queue_has_yet_are_live(tmp_path: Path) -> None:
    log = recreated()
    for number in range(20, 25):
        del log.units["Orders", 0, number]
    for number in range(60, 70):
        del log.units["Payments", 0, number]
    root = log.save(tmp_path / "store")
    for way in (AccessPath.AUTO, AccessPath.SCAN):
        assert bodies(root, Query(topics=ORDERS), way) == NEW


def test_units_that_a_kill_may_have_lost_hide_no_message(tmp_path: Path) -> None:
    log = recreated()
    for number in range(10, 20):
        del log.units["Orders", 0, number]
    root = log.save(tmp_path / "store", is_running=True)
    assert bodies(root, Query(topics=ORDERS), AccessPath.SCAN) == NEW


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_topic_without_queues_is_read_from_the_log(tmp_path: Path, is_alone: bool) -> None:
    log = recreated()
    log.forget("Orders")
    if is_alone:
        log.forget("Payments")
    root = log.save(tmp_path / "store")
    assert bodies(root, Query(topics=ORDERS)) == OLD + NEW
    assert bodies(root, Query(topics=ORDERS, include=Include.UNQUEUED)) == ([] if is_alone else OLD + NEW)


def closed_gap() -> LogWriter:
    """Offsets 50 and 51 were never stored, and 98 and 99 given twice: the queue has all 110 messages."""
    log = LogWriter()
    for place, offset in enumerate([*range(50), *range(52, 100), *range(98, 110)]):
        log.add("Orders", offset, f"{place}", FIRST_MS + place, place=place)
    return log


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("first", "end"), [(0, 110), (60, 110), (0, 60), (49, 53), (97, 101)])
def test_offsets_count_as_consumers_count_where_a_broker_closed_a_gap(
    tmp_path: Path, way: AccessPath, first: int, end: int
) -> None:
    root = closed_gap().save(tmp_path / "store")
    wanted = [str(place) for place in range(first, end)]
    query = Query(topics=ORDERS, bounds={("Orders", 0): QueueBounds(first, end)})
    assert bodies(root, query, way) == wanted
    assert bodies(root, replace(query, bounds={("Orders", ANY_QUEUE): QueueBounds(first, end)}), way) == wanted
    store = Store(str(root))
    assert [item.body.decode() for item in store.messages("Orders", from_offset=first, to_offset=end)] == wanted
    assert [item.body.decode() for item in store.messages("Orders", 0, first, end)] == wanted


def test_a_repeated_offset_that_the_queue_passed_over_is_no_message(tmp_path: Path) -> None:
    log = LogWriter()
    for number in range(20):
        log.add("Orders", number, f"{number}", FIRST_MS + number)
    units = dict(log.units)
    log.add("Orders", 5, "repeat", FIRST_MS + 100)
    log.units = units
    log.add("Orders", 20, "20", FIRST_MS + 101)
    root = log.save(tmp_path / "store")
    assert bodies(root, Query(topics=ORDERS)) == [str(number) for number in range(21)]
    assert bodies(root, Query(include=Include.UNQUEUED)) == ["repeat"]


def test_leftovers_behind_the_logs_end_are_in_no_queue(tmp_path: Path) -> None:
    root = recovered_log().save(tmp_path / "store")
    found = bodies(root, Query(include=Include.UNQUEUED))
    assert len(found) == 29
    assert {body[:4] for body in found} == {"LOST"}
    assert bodies(root, Query(topics=ORDERS, include=Include.UNQUEUED)) == found
    assert len(bodies(root, Query(topics=ORDERS))) == 60


@pytest.mark.parametrize("name", ["lmq", "mixed", "bcq", "rocksdb"])
def test_each_message_of_a_sound_store_is_live(golden: Callable[[str], Path], name: str) -> None:
    root = str(golden(name) / "store")
    store = Store(root)
    assert store.arrow(["topic"], include=Include.UNQUEUED).count_rows() == 0
    light = sorted(topic for topic in store.topics() if topic.startswith("%LMQ%"))
    if name == "lmq":
        assert len(light) > 100
    for topic in [*light[:3], *light[-3:]]:  # several of them name one record
        counts = [store.arrow(["topic"], topic=topic, include=item).count_rows() for item in ("log", "live")]
        assert counts[0] == counts[1] > 0
