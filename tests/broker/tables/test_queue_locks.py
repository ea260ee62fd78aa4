"""The locks of queues: who has them, for how long, and how many there may be."""

from rmq_core.broker.tables.clients import LOCK_BYTES, LOCK_LIFE_MS, QueueLocks
from rmq_core.remoting.bodies.codec import MessageQueue


def queues(*ids: int) -> list[MessageQueue]:
    return [MessageQueue(topic="T", broker_name="b", queue_id=one) for one in ids]


def test_a_queue_is_one_client_s_until_it_unlocks_it_or_is_silent() -> None:
    now = [0]
    locks = QueueLocks(lambda: now[0])
    assert locks.lock("g", queues(0, 1), "a") == queues(0, 1)
    assert locks.lock("g", queues(0, 1, 2), "b") == queues(2)
    assert locks.lock("other", queues(0), "b") == queues(0)
    locks.unlock("g", queues(0, 2), "a")
    assert locks.lock("g", queues(0, 1), "b") == queues(0)
    now[0] = LOCK_LIFE_MS + 1
    assert not locks.is_any_locked("g")
    assert locks.lock("g", queues(1), "b") == queues(1)


def test_locks_that_are_over_or_given_back_take_no_memory() -> None:
    now = [0]
    locks = QueueLocks(lambda: now[0])
    locks.lock("given back", queues(0, 1), "a")
    locks.unlock("given back", queues(0, 1), "a")
    assert locks.held_bytes == 0
    locks.lock("g", queues(0), "a")
    now[0] = LOCK_LIFE_MS
    locks.lock("g", queues(1), "a")
    now[0] += 1
    locks.remove_expired()
    assert locks.held_bytes == LOCK_BYTES + 1
    assert locks.lock("g", queues(0, 1), "b") == queues(0)


def test_above_their_limit_only_what_is_locked_already_can_be_locked() -> None:
    now = [0]
    locks = QueueLocks(lambda: now[0], max_bytes=3 * (LOCK_BYTES + 1))
    assert locks.lock("g", queues(*range(10)), "a") == queues(0, 1, 2)
    assert locks.lock("h", queues(0), "a") == []
    assert not locks.is_any_locked("h")
    assert locks.lock("g", queues(*range(10)), "a") == queues(0, 1, 2)
    now[0] = LOCK_LIFE_MS + 1
    assert locks.lock("g", queues(0, 1), "b") == queues(0, 1)
    assert locks.lock("g", queues(2), "too long a name") == []
    locks.remove_expired()
    assert locks.lock("h", queues(0), "a") == queues(0)
