"""Queues that the bounds of a read name and a store does not have."""

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from rmq_formats.codecs.config_json import StoredTopicConfig
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import OptionError, RmqError, StoreNotFoundError
from rmq_formats.read.broker_config import lists_all_topics, stored_topics
from rmq_formats.read.query import ANY_QUEUE, Queue
from rmq_formats.read.variants.queue_choice import file_queues
from rmq_formats.storage.queue_files import named_topics
from rmq_formats.storage.store_files import StoreFiles, open_store

_log = logging.getLogger("rmq_formats.read")


def absent_queues(store: StoreFiles, queues: Iterable[Queue]) -> frozenset[Queue]:
    """Return the queues that neither the ConsumeQueues nor the config of a store have.

    A store without both tells no queues, and config in RocksDB of v2 does not tell all: then none is absent.
    """
    configs: dict[str, StoredTopicConfig] = {}
    with suppress(RmqError):  # a damaged table is no reason to refuse a read
        configs = stored_topics(store) or {}
    topics = frozenset(named_topics(store))
    if not (configs or topics) or not lists_all_topics(store):
        return frozenset()
    return frozenset(queue for queue in queues if _is_absent(store, configs.get(queue[0]), queue))


def _is_absent(store: StoreFiles, config: StoredTopicConfig | None, queue: Queue) -> bool:
    topic, queue_id = queue
    if queue_id == ANY_QUEUE or topic.startswith(LIGHT_QUEUE_PREFIX):
        return False
    if config is not None and queue_id < max(config.read_queue_nums, config.write_queue_nums):
        return False
    return all(queue.files.queue_id != queue_id for queue in file_queues(store, topic))


def check_queues(queues_by_store: Mapping[str, Collection[Queue]], *, fails: bool) -> None:
    """Refuse queues that are in none of the stores for which they are named.

    Args:
        queues_by_store: paths of stores, with the queues that a read bounds there.
        fails: whether such a queue is an error; else it is a warning.

    Raises:
        OptionError: naming the queues.
    """
    absent: set[Queue] = set()
    present: set[Queue] = set()
    for path, queues in queues_by_store.items():
        with suppress(StoreNotFoundError):  # which the plan of the read reports
            absent_here = absent_queues(open_store(path), queues) if queues else frozenset()
            absent |= absent_here
            present |= set(queues) - absent_here
    if not absent - present:
        return
    names = ", ".join(f"queue {queue_id} of {topic!r}" for topic, queue_id in sorted(absent - present))
    problem = f"{', '.join(queues_by_store)}: offsets are given for {names}, which is not there"
    if fails:
        raise OptionError(f"{problem}. Leave it out, or give failOnDataLoss=false")
    _log.warning("%s", problem)
