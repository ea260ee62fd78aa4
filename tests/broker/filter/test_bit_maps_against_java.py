"""Bit maps that the original's broker has put beside its queues are of our bits, and answers to odd pulls."""

import asyncio
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables.registered_filters import ConsumerFilters
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.client import Message, Producer, PushConsumer, PushOptions, ReceivedMessage, StartPosition
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.loop import run
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_formats.codecs.consumequeue_ext import ExtUnit
from rmq_formats.codecs.paths import consumequeue_ext_dir, queue_dir
from rmq_formats.codecs.record import decode_record
from tests.broker.conftest import messages
from tests.broker.filter.test_broker import records_of
from tests.interop import peer
from tests.interop.test_namesrv_against_java import SMALL_FILES, ask, brokers, free_port, java, settings, wait_for
from tests.namesrv.test_command import running

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("broker_against_java")]
TOPIC = "Filtered"
GROUPS = {"many": "a > 3", "few": "a > 8 AND b IS NOT NULL", "none": "missing = 'x'"}
SETTINGS = (
    "brokerName=java-f\nenablePropertyFilter=true\nenableCalcFilterBitMap=true\nenableConsumeQueueExt=true\n"
    "mappedFileSizeConsumeQueueExt=4096\ndefaultTopicQueueNums=1\nfilterSupportRetry=true\n"
)
RETRIES = "%RETRY%many"


async def _send_and_consume(namesrv: str) -> dict[str, list[int]]:
    """What each group is given of the numbers up to 19."""
    got: dict[str, list[int]] = {group: [] for group in GROUPS}

    def consumer(group: str, sql: str) -> PushConsumer:
        def take(messages: list[ReceivedMessage]) -> None:
            got[group] += [int(message.body) for message in messages]

        made = PushConsumer(namesrv, group, take, PushOptions(start=StartPosition.FIRST))
        made.subscribe(TOPIC, sql=sql)
        return made

    async with Producer(namesrv, "pg") as producer:
        await producer.send(Message(TOPIC, b"0", properties={"a": "0"}))
        consumers = [consumer(group, sql) for group, sql in GROUPS.items()]
        for one in consumers:
            await one.start()
        await asyncio.sleep(0.1)  # a filter counts for messages that are stored a millisecond later, or more
        for number in range(1, 20):
            await producer.send(Message(TOPIC, b"%d" % number, properties={"a": str(number), "b": "x"}))
        async with asyncio.timeout(60):
            while len(got["many"]) < 16 or len(got["few"]) < 11:
                await asyncio.sleep(0.05)
        for one in consumers:
            await one.close()
        for number, topic in ((1, TOPIC), (5, TOPIC), (2, "Other")):
            properties = {"a": str(number), "RETRY_TOPIC": topic}
            await producer.send(Message(RETRIES, b"%d" % number, properties=properties))
    return got


def pulled(address: str, topic: str, expression: str, kind: str) -> tuple[int, list[int]]:
    """The code of a pull that brings an expression, and the numbers that it is given."""
    fields = {
        "consumerGroup": "many", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": expression,
        "subVersion": "0", "expressionType": kind,
    }  # fmt: skip
    answer = ask(address, 11, fields)
    return answer.code, [int(one.body) for one in messages(answer)]


def check_odd_pulls(address: str) -> None:
    """What comes of expressions that do not compile, and of one for a retry topic with filterSupportRetry."""
    everything = 0, list(range(20))
    assert pulled(address, TOPIC, "a < 3", "SQL92") == (0, [0, 1, 2])
    assert pulled(address, TOPIC, "a >", "SQL92") == everything
    assert pulled(address, TOPIC, "a < 3", "XPATH") == everything
    assert pulled(address, TOPIC, "", "SQL92") == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, [])
    assert pulled(address, RETRIES, "a = 1", "SQL92") == (0, [5, 2])


@pytest.mark.long
def test_a_java_broker_s_bit_maps_have_our_bits(tmp_path: Path) -> None:
    peer.build()
    conf = tmp_path / "broker.conf"
    with (tmp_path / "log").open("wb") as log, running("-c", settings(tmp_path / "namesrv")) as (_, namesrv):
        port = free_port()
        address, ports = f"127.0.0.1:{port}", f"namesrvAddr={namesrv}\nlistenPort={port}\nhaListenPort={free_port()}\n"
        conf.write_text(SMALL_FILES + SETTINGS + ports)
        with java(log, "broker", str(tmp_path / "store"), str(conf)) as process:
            wait_for(lambda: brokers(namesrv) == {"java-f"})
            wait_for(lambda: ask(namesrv, 105, {"topic": "TBW102"}).code == 0)
            got = run(_send_and_consume(namesrv))
            check_odd_pulls(address)
            process.terminate()
            process.wait(timeout=90)
    assert {group: sorted(numbers) for group, numbers in got.items()} == {
        "many": list(range(4, 20)), "few": list(range(9, 20)), "none": [],
    }  # fmt: skip
    filters = ConsumerFilters(
        TableFiles(str(tmp_path / "store"), Disk(), Threads()), BrokerConfig(enable_property_filter=True), lambda: 0
    )
    assert {
        group: consumer_filter.data.expression for group, consumer_filter in filters.topics[TOPIC].items()
    } == GROUPS
    data = Path(queue_dir(consumequeue_ext_dir(str(tmp_path / "store")), TOPIC, 0), "0" * 20).read_bytes()
    at = 0
    for record in records_of(tmp_path / "store"):
        message = decode_record(record)
        if message.topic == TOPIC:
            unit = ExtUnit.decode(data, at)
            assert unit is not None
            at += unit.size
            assert unit.store_timestamp_ms == message.store_timestamp_ms
            matching = [
                position
                for consumer_filter in filters.topics[TOPIC].values()
                if consumer_filter.filter.matches is not None and consumer_filter.filter.matches(record)
                for position in consumer_filter.data.bloom_filter_data.bit_pos
            ]
            assert unit.bit_map == (b"" if message.body == b"0" else filters.bloom.bit_map(matching))
