"""Light queues and batch queues under what strangers send, and over files that are damaged."""

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_formats.codecs.batch_consumequeue import count_messages
from rmq_formats.codecs.layout import MAX_BATCH_COUNT
from rmq_formats.errors import StoreSizeError
from tests.broker.conftest import Asker, Clock, eventually, messages
from tests.broker.test_batch_queues import FLAGS, KEY, batch, make
from tests.broker.test_light_queues import light_store, names

MOST, LEAST = (1 << 63) - 1, -(1 << 63)
LIGHT, BATCH = "%LMQ%a", "B"


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    return light_store(tmp_path / "store")


async def test_a_message_whose_places_have_no_room_is_refused_and_takes_no_names(asker: Asker) -> None:
    many = names(*(f"q{number}" for number in range(2300)))
    for more in ({}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}, {"TRAN_MSG": "true"}):
        answer = await asker.send("T", properties=many | more)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "2300 light queues are too many" in str(answer.remark)
    assert not asker.broker.store.appender._lmq_offsets.names
    assert (await asker.send("T", properties=names("a"))).code == 0


async def test_a_thousand_new_light_queues_are_made_by_and_by(asker: Asker) -> None:
    store, count = asker.broker.store, 1400
    made = []
    for _ in range(2):
        assert (await asker.send("T", properties=names(*(f"q{number}" for number in range(count))))).code == 0
        made.append(len(store.topics()))

    async def are_all_there() -> bool:
        return not store.has_more_to_dispatch and store.max_offset(f"%LMQ%q{count - 1}", 0) == 2

    assert made[0] < count
    await eventually(are_all_there, 60)
    assert {store.max_offset(f"%LMQ%q{number}", 0) for number in range(count)} == {2}
    assert store.max_offset("T", 0) == 2


async def test_they_are_where_sends_wait_for_the_disk_too(config: BrokerConfig, store_config: StoreConfig) -> None:
    sync = replace(store_config, flush_disk_type=FlushDiskType.SYNC)
    async with Broker(config, sync) as broker, RemotingClient({}) as client:
        sent = await Asker(broker, client, {}).send("T", properties=names(*(f"q{number}" for number in range(1400))))
        assert sent.code == 0
        assert broker.store.has_more_to_dispatch

        async def are_all_there() -> bool:
            return not broker.store.has_more_to_dispatch

        await eventually(are_all_there, 60)
        assert {broker.store.max_offset(f"%LMQ%q{number}", 0) for number in range(1400)} == {1}


async def test_a_broker_that_is_closed_has_made_all(config: BrokerConfig, store_config: StoreConfig) -> None:
    async with Broker(config, store_config) as broker, RemotingClient({}) as client:
        await Asker(broker, client, {}).send("T", properties=names(*(f"q{number}" for number in range(1400))))
        assert broker.store.has_more_to_dispatch
    async with Broker(config, store_config) as broker:
        assert len(broker.store.topics()) == 1401


@pytest.mark.parametrize("count", [MAX_BATCH_COUNT + 1, 170_000])
async def test_batches_of_more_than_a_unit_can_count_are_refused_without_counting_all(asker: Asker, count: int) -> None:
    assert (await make(asker)).code == 0
    body = batch(b"x") * count
    assert count_messages(body, MAX_BATCH_COUNT) == MAX_BATCH_COUNT + 1
    for more in ({"m": "true"}, {"f": FLAGS}):
        assert (await asker.send(BATCH, body, properties=KEY, **more)).code == ResponseCode.MESSAGE_ILLEGAL
    assert asker.broker.store.max_physical_offset == 0
    assert (await asker.send(BATCH, batch(b"x") * MAX_BATCH_COUNT, m="true", properties=KEY)).code == 0


async def filled(asker: Asker) -> None:
    """Three messages in each of the queues; those of the batch queue are one record, and so are its inner batches."""
    assert (await make(asker)).code == 0
    for number in range(3):
        assert (await asker.send("T", b"%d" % number, properties=names("a"))).code == 0
    nested = batch(batch(b"0"), b"1", batch(b"2", b"3"))
    assert (await asker.send(BATCH, nested, m="true", properties=KEY)).code == 0


@pytest.mark.parametrize("topic", [LIGHT, BATCH])
async def test_offsets_at_their_limits_are_answered_as_those_of_any_queue(asker: Asker, topic: str) -> None:
    await filled(asker)
    queue = {"topic": topic, "queueId": 0}
    for offset in (LEAST, -1, 4, 1 << 31, MOST):
        answer = await asker.pull(topic, offset)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext_fields["nextBeginOffset"] == ("0" if offset < 0 else "3")
        found = await asker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": offset})
        assert int(found.ext_fields["offset"]) in range(4)
        units = {"index": offset, "count": MOST >> 32, "consumerGroup": "cg"} | queue
        assert (await asker.ask(RequestCode.QUERY_CONSUME_QUEUE, units)).code == 0
    for queue_id in (-(1 << 31), 1 << 20, (1 << 31) - 1):
        assert (await asker.pull(topic, queue_id=queue_id)).code == ResponseCode.INVALID_PARAMETER
    assert (await asker.pull(topic)).code == 0


UNITS = (f"consumequeue/{LIGHT}/0", f"batchconsumequeue/{BATCH}/0")


@pytest.mark.parametrize(("byte", "is_killed"), [(b"\0", True), (b"\xff", True), (b"\xff", False)])
async def test_a_broker_starts_over_damaged_units_and_gives_no_other_message(
    config: BrokerConfig, store_config: StoreConfig, clock: Clock, byte: bytes, is_killed: bool
) -> None:
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        await filled(Asker(broker, client, {}))
    root = Path(store_config.root)
    for directory in UNITS:
        (file,) = (root / directory).iterdir()
        file.write_bytes(byte * 60 + file.read_bytes()[60:])
    if is_killed:
        (root / "abort").touch()
    async with Broker(config, store_config, clock) as broker, RemotingClient({}) as client:
        asker = Asker(broker, client, {})
        sent = [await asker.send("T", b"new", properties=names("a")), await asker.send(BATCH, b"new")]
        assert [one.code for one in sent] == [0, 0]
        for topic in (LIGHT, BATCH):
            found = messages(await asker.pull(topic, broker.store.min_offset(topic, 0)))
            assert {one.topic for one in found} <= {"T", BATCH}
            assert found[-1].body == b"new"
        if is_killed:
            assert broker.store.max_offset(LIGHT, 0) == 4


@pytest.mark.parametrize("directory", UNITS)
async def test_a_file_of_units_of_another_size_is_named(
    config: BrokerConfig, store_config: StoreConfig, directory: str
) -> None:
    async with Broker(config, store_config) as broker, RemotingClient({}) as client:
        await filled(Asker(broker, client, {}))
    (file,) = (Path(store_config.root) / directory).iterdir()
    file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(StoreSizeError, match=f"{file}: has 30 bytes"):
        await Broker(config, store_config).start()
