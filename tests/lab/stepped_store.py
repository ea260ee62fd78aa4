"""A store without threads: what they would do is done by calls, in an order that a seed tells."""

import random

from rmq_core.store.config import StoreConfig
from rmq_core.store.files.disk import Disk
from rmq_core.store.results import PutResult
from rmq_core.store.store import MessageStore
from tests.store.small_stores import HOST, LONG_TOPIC, NOW_MS, V6_HOST, NoThreads, batch_of, opened, properties_of

_TOPICS = ("Orders", "SCHEDULE_TOPIC_XXXX", LONG_TOPIC)


def put_some(store: MessageStore, dice: random.Random, number: int) -> PutResult:
    """Append a message of some kind, or a batch, to one of few queues."""
    topic, queue_id, now_ms = dice.choice(_TOPICS), dice.randrange(2), NOW_MS + number * 10
    properties, born_host = properties_of(dice, number), dice.choice([HOST, HOST, V6_HOST])
    if dice.randrange(6) == 0:
        batch = batch_of(
            [(dice.randbytes(1 + dice.randrange(30)), b"KEYS\x01b%d" % part) for part in range(dice.randrange(1, 6))]
        )
        return store.bulk.put_batch(topic, queue_id, batch, properties, now_ms - 5, born_host, now_ms)
    body = dice.randbytes(dice.choice([1, 20, 300]) + dice.randrange(40))
    sys_flag = dice.choice([0, 0, 0, 0x4, 0x8, 0xC, 0x2, 0x301])
    return store.appender.put(topic, queue_id, body, properties, now_ms - 5, born_host, now_ms, sys_flag=sys_flag)


class SteppedStore:
    """An open store, and the steps of its threads.

    Attributes:
        store: it.
    """

    def __init__(self, config: StoreConfig, disk: Disk, now_ms: int = NOW_MS) -> None:
        self.store: MessageStore = opened(config, now_ms, disk, NoThreads())

    def flush_log(self) -> bool:
        """What the flush thread does when it is asked, or when its interval is over."""
        return self.store._flusher.flush()

    def flush(self, *, units: bool, keys: bool) -> bool:
        """What the background thread does when its intervals are over."""
        return self.store._background.flush(units=units, keys=keys)

    def make_next(self) -> None:
        """Have the background thread make the log file that it was asked for."""
        self.store._background._create_next_file()

    def remove(self) -> None:
        """Have the background thread remove the files that it was given."""
        self.store._background._remove()

    def shutdown(self) -> bool:
        """Shut down in order, as the threads would: a last flush, then what waits for removal."""
        self.flush_log()
        self.store.dispatch()
        self.remove()
        return self.store.shutdown()

    def abandon(self) -> None:
        """Let go of its files, without a word to the disk: as a process that was killed leaves them."""
        store = self.store
        store._queues.open_files.close_all()
        store._log.close()
        store._closing.close()
