"""The stream reader of ``rmq`` at our broker, driven as Spark drives it: restarts, outages, deleted topics, commits."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from rmq_core.client import Admin
from rmq_core.remoting.loop import run
from rmq_formats.errors import ClusterError, NoTopicError
from rmq_lakehouse.live.client import ClusterConnection
from rmq_lakehouse.live.options import ClusterQueue
from rmq_lakehouse.live.source import ClusterSource
from rmq_lakehouse.live.stream import ClusterStreamReader
from tests.spark.live.scenarios import expected, fresh, make_topic, numbered, send
from tests.spark.live.two_brokers import SMALL_FILES
from tests.support.processes.broker_processes import Standalone, standalone

pytestmark = [pytest.mark.xdist_group("live_places")]
ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("stream")
    conf = directory / "a.conf"
    conf.write_text(SMALL_FILES)
    with standalone(directory / "a", "-c", str(conf), log=directory / "a.log") as running:
        yield running.namesrv


def reader(namesrv: str, **options: str) -> ClusterStreamReader:
    source = ClusterSource({"namesrv": namesrv, **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, ClusterStreamReader)
    return made


def bodies(stream: ClusterStreamReader, start: Offset, end: Offset) -> list[str]:
    """The bodies of a micro batch."""
    partitions = stream.partitions(start, end)
    batches = [batch for partition in partitions for batch in stream.read(partition)]
    return sorted(row["body"].decode() for batch in batches for row in batch.to_pylist())


def follow(stream: ClusterStreamReader, start: Offset, limit: ReadLimit = ALL) -> tuple[Offset, list[str]]:
    """Read all micro batches up to the end; the last offset, and the bodies."""
    read: list[str] = []
    while (end := stream.latestOffset(start, limit)) != start:
        read += bodies(stream, start, end)
        start = end
    return start, sorted(read)


async def delete(namesrv: str, topic: str) -> None:
    async with asyncio.timeout(60), Admin(namesrv) as admin:
        await admin.delete_topic(topic)
        while topic in await admin.topics():
            await asyncio.sleep(0.1)


def test_a_restart_with_a_later_starting_time_goes_on_at_the_checkpoint(namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Later"), 1)
    send(namesrv, numbered(topic, 0, 4))
    first = reader(namesrv, subscribe=topic, startingTimestamp="2020-01-01T00:00:00Z")
    checkpoint, read = follow(first, first.initialOffset())
    assert read == expected(range(4))
    first.stop()
    send(namesrv, numbered(topic, 4, 8))
    again = reader(namesrv, subscribe=topic, startingTimestamp="2099-01-01T00:00:00Z")
    assert follow(again, checkpoint)[1] == expected(range(4, 8))
    again.stop()


def test_a_new_queue_enters_the_checkpoint_before_it_is_read(namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Grown"), 1)
    send(namesrv, numbered(topic, 0, 2))
    stream = reader(namesrv, subscribe=topic)
    start, _ = follow(stream, stream.initialOffset())
    make_topic(namesrv, topic, 2)
    send(namesrv, numbered(topic, 2, 6), queue_id=1)
    (broker,) = {name.partition(":")[0] for name in start[topic]}
    deadline = time.monotonic() + 60
    while len(entered := stream.latestOffset(start, ALL)[topic]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert entered == {f"{broker}:0": 2, f"{broker}:1": 0}
    assert follow(stream, start, ReadMaxRows(3))[1] == expected(range(2, 6))
    stream.stop()


def test_an_available_now_query_may_begin_at_the_latest_of_a_busy_topic(namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Busy"), 1)
    send(namesrv, numbered(topic, 0, 3))
    stream = reader(namesrv, subscribe=topic, startingOffsets="latest")
    stream.prepareForTriggerAvailableNow()
    send(namesrv, numbered(topic, 3, 5))
    start = stream.initialOffset()
    send(namesrv, numbered(topic, 5, 7))
    end, read = follow(stream, start)
    send(namesrv, numbered(topic, 7, 9))
    assert read == expected(range(5, 7))
    assert stream.latestOffset(end, ALL) == end  # what came since is for the next run
    stream.stop()


def test_a_topic_made_anew_is_followed_where_losses_are_allowed(namesrv: str) -> None:
    topic = make_topic(namesrv, fresh("Anew"), 1)
    send(namesrv, numbered(topic, 0, 10))
    strict, lenient = reader(namesrv, subscribe=topic), reader(namesrv, subscribe=topic, failOnDataLoss="false")
    checkpoint, _ = follow(strict, strict.initialOffset())
    run(delete(namesrv, topic))
    make_topic(namesrv, topic, 1)
    send(namesrv, numbered(topic, 100, 104))
    with pytest.raises(ClusterError, match="offsets 4 to 9 are missing"):
        strict.latestOffset(checkpoint, ALL)
    moved, read = follow(lenient, checkpoint)
    assert (list(moved[topic].values()), read) == ([4], [])
    send(namesrv, numbered(topic, 104, 110))
    assert follow(lenient, moved)[1] == expected(range(104, 110))
    strict.stop()
    lenient.stop()


def test_a_deleted_topic_ends_neither_a_pattern_nor_its_commits(namesrv: str, caplog: pytest.LogCaptureFixture) -> None:
    prefix = fresh("Pattern")
    remaining, deleted = (make_topic(namesrv, f"{prefix}{name}", 1) for name in ("Kept", "Deleted"))
    send(namesrv, [*numbered(remaining, 0, 2), *numbered(deleted, 2, 4)])
    options = {
        "subscribePattern": f"{prefix}.*", "group": f"{prefix}Group", "commitOffsetsToGroup": "true",
        "failOnDataLoss": "false",
    }  # fmt: skip
    stream = reader(namesrv, **options)
    start = stream.initialOffset()
    planned, read = follow(stream, start)
    assert read == expected(range(4))
    stream.commit(planned)
    run(delete(namesrv, deleted))
    stream.stop()
    send(namesrv, numbered(remaining, 4, 6))
    again = reader(namesrv, **options)
    with caplog.at_level(logging.WARNING, "rmq_formats.spark"):
        assert bodies(again, start, planned) == expected(range(2))  # a batch that was planned before
        end, read = follow(again, planned)
        again.commit(end)
    assert read == expected(range(4, 6))
    assert f"{deleted} " in caplog.text
    assert "its messages do not come" in caplog.text
    assert "is not committed" in caplog.text
    again.stop()
    named = reader(namesrv, subscribe=f"{remaining},{deleted}")
    assert follow(named, planned)[1] == expected(range(4, 6))
    named.stop()
    new = reader(namesrv, subscribe=f"{remaining},{deleted}")
    with pytest.raises(NoTopicError, match=f"no topic '{deleted}'"):
        new.initialOffset()
    new.stop()


def test_offsets_of_queues_without_a_message_are_not_committed(namesrv: str, caplog: pytest.LogCaptureFixture) -> None:
    topic = make_topic(namesrv, fresh("Committed"), 2)
    send(namesrv, numbered(topic, 0, 3), queue_id=1)
    group = fresh("Group")
    stream = reader(namesrv, subscribe=topic, group=group, commitOffsetsToGroup="true")
    end, _ = follow(stream, stream.initialOffset())
    with caplog.at_level(logging.WARNING, "rmq_formats.spark"):
        stream.commit(end)
        stream.commit(end)
    assert not caplog.text
    (broker, _), *_ = (name.split(":") for name in end[topic])
    first, second = (ClusterQueue(topic, broker, number) for number in (0, 1))
    with ClusterConnection(namesrv, group) as link:
        assert link.committed([first, second], group) == {first: None, second: 3}
    stream.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start_anew(stack: list[Any], directory: Path, port: int) -> Standalone:
    conf = directory / "a.conf"
    conf.write_text(SMALL_FILES)
    running = standalone(directory / "a", "-c", str(conf), "--listen", f"127.0.0.1:{port}", log=directory / "a.log")
    stack.append(running)
    return running.__enter__()


def test_a_query_outlives_a_restart_of_all_servers(tmp_path: Path) -> None:
    stack: list[Any] = []
    running = start_anew(stack, tmp_path, free_port())
    topic, namesrv = make_topic(running.namesrv, fresh("Restart"), 1), running.namesrv
    send(namesrv, numbered(topic, 0, 3))
    stream = reader(namesrv, subscribe=topic)
    start, read = follow(stream, stream.initialOffset())
    assert read == expected(range(3))
    stack.pop().__exit__(None, None, None)
    back = threading.Timer(2, lambda: start_anew(stack, tmp_path, int(namesrv.rpartition(":")[2])))
    back.start()
    try:
        assert stream.latestOffset(start, ALL) == start  # waits for the name server
        back.join()
        send(namesrv, numbered(topic, 3, 6))
        assert follow(stream, start)[1] == expected(range(3, 6))
        stream.stop()
    finally:
        back.join()
        stack.pop().__exit__(None, None, None)


def test_a_connection_that_ended_while_nothing_was_asked_is_made_anew(tmp_path: Path) -> None:
    stack: list[Any] = []
    running = start_anew(stack, tmp_path, free_port())
    topic, namesrv = make_topic(running.namesrv, fresh("Idle"), 1), running.namesrv
    with ClusterConnection(namesrv, None) as link:
        (queue,) = link.queues(topic)
        assert link.bounds([queue]) == {queue: (0, 0)}
        stack.pop().__exit__(None, None, None)
        start_anew(stack, tmp_path, int(namesrv.rpartition(":")[2]))
        try:
            send(namesrv, numbered(topic, 0, 1))
            (queue,) = link.queues(topic)
            assert link.bounds([queue]) == {queue: (0, 1)}
        finally:
            stack.pop().__exit__(None, None, None)
