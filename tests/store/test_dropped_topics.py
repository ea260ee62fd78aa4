"""Topics that are deleted and made again: their queues at a slave, which may hear of it late, and after a rebuild."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.store.store import MessageStore
from tests.store.conftest import Opener
from tests.store.small_stores import put
from tests.support.stores.store_files import tree
from tests.support.torture import rounds

pytestmark = pytest.mark.torture


def copied(master: MessageStore, slave: MessageStore) -> None:
    """Give a slave what it lacks of its master's log."""
    master.dispatch()
    while stretch := master.read_log_range(slave.max_physical_offset, 1000):
        assert slave.append_to_commit_log(slave.max_physical_offset, stretch)
        slave.dispatch()


def queues_of(store: MessageStore, count: int) -> list[list[bytes]]:
    """The bodies that each queue of T gives."""
    found: list[list[bytes]] = [[] for _ in range(count)]
    for queue_id, of_queue in enumerate(found):
        at = store.min_offset("T", queue_id)
        for offset in range(at, store.max_offset("T", queue_id)):
            (record,) = store.get("T", queue_id, offset, 1).slices
            message = store.message(int.from_bytes(record[28:36], "big"))
            assert message is not None
            of_queue.append(message.body)
    return found


@pytest.mark.parametrize("seed", [*rounds(12), None])
def test_queues_are_the_masters_at_any_time_and_after_a_rebuild(open_store: Opener, seed: int | None) -> None:
    """The slave hears of deletions sometimes, and late; a queue that was written to since is right without that."""
    seed = random.randrange(1 << 30) if seed is None else seed
    source = random.Random(seed)
    master, slave = open_store(name="master"), open_store(name="slave", slave=True)
    for number in range(120):
        step = source.randrange(24)
        if step == 0:
            master.delete_topics(["T"])
        elif step == 1:
            slave.remove_deleted_before(dict(master.deleted_topics))
        elif step == 2:
            copied(master, slave)
        elif step == 3:
            assert slave.shutdown()
            slave = open_store(name="slave", slave=True)
        else:
            topic = source.choice(["T", "T", "Other"])
            put(master, topic, source.randrange(3), b"%d %d" % (seed, number))
    copied(master, slave)
    for queue_id in range(3):
        if master.max_offset("T", queue_id):
            assert queues_of(slave, 3)[queue_id] == queues_of(master, 3)[queue_id], f"seed {seed}"
    slave.remove_deleted_before(dict(master.deleted_topics))
    assert queues_of(slave, 3) == queues_of(master, 3), f"seed {seed}"
    assert slave.shutdown()
    root = Path(slave.config.root)
    for name in ("watermark", "checkpoint"):
        (root / name).unlink()
    shutil.rmtree(root / "consumequeue")
    for is_slave in (True, False):  # as its master's successor, too
        again = open_store(name="slave", slave=is_slave)
        assert again.recovery.end_offset == master.max_physical_offset
        assert queues_of(again, 3) == queues_of(master, 3), f"seed {seed}"
        assert replace(again.config, slave=True) == slave.config
        assert again.shutdown()


@pytest.mark.parametrize("slave", [False, True])
def test_a_deletion_beyond_the_end_of_a_log_that_lost_its_last_files_is_remembered(
    open_store: Opener, slave: bool
) -> None:
    store = open_store()
    for _ in range(3):
        put(store, "T", body=b"old")
    while store.max_physical_offset < 3 * store.config.commitlog_file_bytes:
        put(store, "Other", body=bytes(1000))
    store.dispatch()
    assert store.delete_topics(["T"]) == 1
    assert store.shutdown()
    root = Path(store.config.root)
    for path in sorted((root / "commitlog").iterdir())[1:]:
        path.unlink()
    for name in ("watermark", "checkpoint"):
        (root / name).unlink()
    shutil.rmtree(root / "consumequeue")
    for _ in range(2):
        store = open_store(slave=slave)
        assert "T" not in store.topics()
        assert "Other" in store.topics()
        assert store.shutdown()
    store = open_store()  # as its master's successor, too
    put(store, "T", body=b"new")
    store.dispatch()
    assert queues_of(store, 1) == [[b"new"]]


def test_deletions_in_a_log_that_is_gone_are_forgotten_for_good(open_store: Opener) -> None:
    store = open_store()
    while store.max_physical_offset < 3 * store.config.commitlog_file_bytes:
        put(store, "T", body=bytes(1000))
    store.dispatch()
    store.delete_topics(["T"])
    assert store.shutdown()
    shutil.rmtree(Path(store.config.root, "commitlog"))
    store = open_store()
    while store.max_physical_offset < 4 * store.config.commitlog_file_bytes:
        put(store, "T", body=b"of the new log" * 50)
    assert store.shutdown()
    store = open_store()
    assert len(queues_of(store, 1)[0]) > 50


def test_a_topic_made_anew_is_known_though_its_first_messages_are_lost(open_store: Opener) -> None:
    """A loss of power took them from the master's log; the slave has not heard of the deletion yet."""
    master, slave = open_store(name="master"), open_store(name="slave", slave=True)
    for number in range(5):
        put(master, "T", body=b"old %d" % number)
    copied(master, slave)
    assert len(queues_of(slave, 1)[0]) == 5
    master.delete_topics(["T"])
    begin = master.max_physical_offset
    for number in range(4):
        put(master, "T", body=b"new %d" % number)
    log = bytes(master.read_log_range(begin, master.max_physical_offset - begin) or b"")
    at = log.index(b"\x01T")  # the topic, behind its length
    second = log.index(b"\x01T", at + 1)
    log = log[: at + 1] + b"U" + log[at + 2 : second + 1] + b"U" + log[second + 2 :]
    assert slave.append_to_commit_log(begin, log)
    slave.dispatch()
    assert queues_of(slave, 1) == [[b"new 2", b"new 3"]]
    slave.remove_deleted_before(dict(master.deleted_topics))
    assert queues_of(slave, 1) == [[b"new 2", b"new 3"]]


def test_messages_that_came_during_a_deletion_stay(open_store: Opener) -> None:
    """Their queue goes on with its numbers, and another queue of the topic begins again at 0."""
    master, slave = open_store(name="master"), open_store(name="slave", slave=True)
    for queue_id in (1, 0):
        put(master, "T", queue_id, body=b"old")
    end = master.max_physical_offset
    put(master, "T", 1, body=b"during")
    master.dispatch()
    master.delete_topics(["T"], {"T": end})
    put(master, "T", 0, body=b"new")
    copied(master, slave)
    slave.remove_deleted_before(dict(master.deleted_topics))
    assert queues_of(slave, 2) == queues_of(master, 2) == [[b"new"], [b"during"]]


@pytest.mark.parametrize("old", [2, 30])  # in one file of the queue, and in several
def test_what_has_fitted_behind_a_deleted_topic_stays(open_store: Opener, old: int) -> None:
    """As many messages were lost as the old topic had: the new one's next ones went on with its queue."""
    master, slave = open_store(name="master"), open_store(name="slave", slave=True)
    for number in range(old):
        put(master, "T", body=b"old %d" % number)
    copied(master, slave)
    master.delete_topics(["T"])
    begin = master.max_physical_offset
    for number in range(old + 2):
        put(master, "T", body=b"new %d" % number)
    log = bytearray(b"".join(bytes(master.read_log_range(at, 1 << 20) or b"") for at in [begin]))
    at = -1
    for _ in range(old):
        at = log.index(b"\x01T", at + 1)
        log[at + 1] = ord("U")
    assert slave.append_to_commit_log(begin, bytes(log))
    slave.dispatch()
    new = [b"new %d" % old, b"new %d" % (old + 1)]
    assert queues_of(slave, 1)[0][-2:] == new
    slave.remove_deleted_before(dict(master.deleted_topics))
    assert (slave.min_offset("T", 0), queues_of(slave, 1)) == (old, [new])
    put_places = tree(Path(slave.config.root) / "consumequeue" / "T")
    assert slave.shutdown()
    for is_rebuilt in (False, True):
        root = Path(slave.config.root)
        if is_rebuilt:
            for name in ("watermark", "checkpoint"):
                (root / name).unlink()
            shutil.rmtree(root / "consumequeue")
        again = open_store(name="slave", slave=True)
        assert (again.min_offset("T", 0), queues_of(again, 1)) == (old, [new])
        assert tree(root / "consumequeue" / "T") == put_places
        assert again.shutdown()
