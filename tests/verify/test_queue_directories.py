"""The driver's table of queues: each once, in the partition that has its units, and few bytes of memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.storage.segments import Entry, LocalStorage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks.job_steps import run_alone
from rmq_offline.tasks.log_tasks import MAX_PARTITIONS
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.spill import queue_partition
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.phases.queue_directories import QUEUES_PER_PARTITION, QueueDirectories, list_queues

IDS = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["Orders", "a", "ünï", "\udc80", "𝄞"]), IDS)), st.integers(1, 7))
def test_each_queue_is_once_in_the_partition_of_its_units(added: list[tuple[str, list[int]]], least: int) -> None:
    table = QueueDirectories()
    for topic, queue_ids in added:
        table.add(topic, queue_ids)
    found = table.by_partition(least)
    queues = {(topic, queue_id) for topic, queue_ids in added for queue_id in queue_ids}
    assert len(found) == least
    assert set(found.topics) == {topic for topic, _ in queues}
    assert sorted(queue for part in range(least) for queue in found.of(part)) == sorted(queues)
    for part in range(least):
        assert {queue_partition(*queue, least) for queue in found.of(part)} <= {part}


def test_partitions_are_added_for_many_queues_up_to_a_bound() -> None:
    table = QueueDirectories()
    table.add("Orders", range(QUEUES_PER_PARTITION + 1))
    assert len(table.by_partition(1)) == 2
    table.add("Orders", range(QUEUES_PER_PARTITION * MAX_PARTITIONS + 1))
    assert len(table.by_partition(1)) == MAX_PARTITIONS


class Listed(LocalStorage):
    """Twenty topics of two thousand queues each, which nothing stores."""

    def entries(self, path: str) -> list[Entry]:
        """List the topics, or the queues of one."""
        if path.endswith("/consumequeue"):
            return [Entry(f"Topic{number}", True, 0) for number in range(20)]
        return [Entry(str(number), True, 0) for number in range(2000)] if "Topic" in path else []


def test_the_driver_holds_few_bytes_of_each_queue() -> None:
    tracemalloc.start()
    try:
        queues = run_alone(list_queues(StoreFiles(Listed(), "/store"), FindingList()), ProcessRunner(1))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(queues.by_partition(1).queue_ids) == 40_000
    assert held < 40_000 * 16  # it was 133 bytes a queue


class Distant(Listed):
    """A thousand light queues, each a topic, where a request takes a while."""

    is_local = False

    def entries(self, path: str) -> list[Entry]:
        """List the topics, or the queue of one."""
        if path.endswith("/consumequeue"):
            return [Entry(f"%LMQ%{number}", True, 0) for number in range(1000)]
        return [Entry("0", True, 0), Entry("stray", False, 0)] if path.startswith("/store/consumequeue/%LMQ%") else []


def test_many_topics_at_a_distance_are_listed_by_tasks() -> None:
    findings = FindingList()
    steps = list_queues(StoreFiles(Distant(), "/store"), findings)
    batch = next(steps)
    assert len(batch.arguments) == 8
    with pytest.raises(StopIteration) as end:
        steps.send([batch.function(argument) for argument in batch.arguments])
    queues = end.value.value.by_partition(1)
    assert queues.of(0) == [(f"%LMQ%{number}", 0) for number in range(1000)]
    assert findings.counts == {finding_kinds.STRAY: 1000}
