"""What a stranger sends at its limits is answered soon, and does not keep the others waiting."""

import asyncio
from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.bodies.stats import ConsumeTimeSpans, TopicStats
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import WAITING_BYTES
from rmq_core.remoting.errors import ConnectionLostError
from rmq_core.remoting.header import request
from tests.broker.conftest import Asker, messages
from tests.broker.frame_fuzz import fuzz_broker
from tests.support.processes.fresh_processes import in_fresh_process
from tests.support.torture import TIMES, rounds

QUEUES = 65_536
PATIENCE_S = 60  # on a busy machine


@pytest.mark.parametrize(
    ("code", "body", "limit"),
    [
        (RequestCode.UPDATE_BROKER_CONFIG, b"a\\\n" * (700 << 10), "maxBodyBytes"),
        (RequestCode.GET_TOPIC_CONFIG, b"x" * (1 << 20), "maxBodyBytes"),
        (RequestCode.HEART_BEAT, b'{"consumerDataSet":[' + b"{}," * (5 << 20) + b"{}]}", "maxListBytes"),
        (RequestCode.HEART_BEAT, b'{"consumerDataSet":[' + b"{}," * (100 << 10) + b"{}]}", "maxListObjects"),
        (RequestCode.LOCK_BATCH_MQ, b'{"mqSet":[' + b"{}," * (100 << 10) + b"{}]}", "maxListObjects"),
    ],
    ids=["settings", "a body that is not wanted", "a heartbeat", "members of a heartbeat", "queues to lock"],
)
async def test_bodies_over_their_limit_are_refused_by_its_name(
    asker: Asker, code: int, body: bytes, limit: str
) -> None:
    answer = await asker.ask(code, {"topic": "T"}, body)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert limit in (answer.remark or "")
    assert (await asker.send("T")).code == 0


async def test_a_heartbeat_in_the_dialect_of_fastjson_is_read_if_it_is_short(asker: Asker) -> None:
    short = b'{"clientID":"c","consumerDataSet":[{"groupName":"cg","subscriptionDataSet":[{"topic":"T",1:2}]}]}'
    assert (await asker.ask(RequestCode.HEART_BEAT, {}, short)).code == 0
    long = short.replace(b"1:2", b"1:2," * 100_000 + b"1:2")
    answer = await asker.ask(RequestCode.HEART_BEAT, {}, long)
    assert (answer.code, "too long" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_expressions_over_their_limit_are_refused(asker: Asker) -> None:
    await asker.send("T")
    for kind, expression in (("TAG", "a||" * 6000), ("SQL92", "a>1 AND " * 3000 + "a>1")):
        answer = await asker.pull("T", subscription=expression, expressionType=kind)
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "maxExpressionChars" in (answer.remark or "")
    many = [SubscriptionData(topic=f"T{n}", expression_type="SQL92", sub_string=f"a>{n}" * 40) for n in range(400)]
    assert (await asker.heartbeat("cg", *many)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


class TestHeldPulls:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, max_held_bytes=4 << 20)

    async def test_what_they_take_counts_and_whose_are_the_most_is_closed(self, asker: Asker) -> None:
        server, waits = asker.broker._server, {"sysFlag": 6, "suspendTimeoutMillis": 60_000}
        await asker.send("T")
        healthy = [asyncio.create_task(asker.pull("T", 1, subscription=f"tag{n}", **waits)) for n in range(10)]
        many_tags = "||".join(f"t{n}" for n in range(2000))
        async with RemotingClient() as other:
            stranger = Asker(asker.broker, other, {})
            held = [asyncio.create_task(stranger.pull("T", 1, subscription=many_tags, **waits)) for _ in range(30)]
            lost = await asyncio.wait_for(asyncio.gather(*held, return_exceptions=True), PATIENCE_S)
        assert {type(error) for error in lost} == {ConnectionLostError}
        assert WAITING_BYTES * 10 <= server.held_bytes < 1 << 20
        await asker.send("T", properties={"TAGS": "tag3", "WAIT": "true"})
        done, _ = await asyncio.wait(healthy, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert [len(messages(answer.result())) for answer in done] == [1]
        assert WAITING_BYTES * 9 <= server.held_bytes < WAITING_BYTES * 10
        for pull in healthy:
            pull.cancel()


async def test_a_query_is_answered_with_what_fits_into_a_frame(asker: Asker) -> None:
    for _ in range(20):
        assert (await asker.send("T", bytes(900_000), properties={"KEYS": "k"})).code == 0
    fields = {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    answer = await asker.ask(RequestCode.QUERY_MESSAGE, fields)
    assert answer.code == 0
    assert [one.queue_offset for one in messages(answer)] == list(range(3, 20))


async def test_a_header_that_no_client_sends_ends_its_connection(asker: Asker) -> None:
    with pytest.raises(ConnectionLostError):
        await asker.ask(RequestCode.PULL_MESSAGE, {"subscription": "a||" * (5 << 20)})
    assert (await asker.send("T")).code == 0


@pytest.mark.long
async def test_the_others_are_served_while_all_queues_of_a_wide_topic_are_told(asker: Asker) -> None:
    created = await asker.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "Wide",
            "defaultTopic": "TBW102",
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        },
    )
    assert created.code == 0
    await asker.heartbeat("cg", SubscriptionData(topic="Wide"))
    group = {"group": "cg", "consumerGroup": "cg", "topic": "Wide"}
    turns = [0]  # of the loop; the first are of the time before

    async def count_turns() -> None:
        while True:
            turns[-1] += 1
            await asyncio.sleep(0.001)

    counting = asyncio.create_task(count_turns())
    found = []
    for code, more in (
        (RequestCode.GET_TOPIC_STATS_INFO, {}),
        (RequestCode.GET_CONSUME_STATS, {}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"timestamp": "-1", "isForce": "true"}),
    ):
        turns.append(0)
        found.append(await asker.client.invoke(asker.broker.address, request(code, group | more), PATIENCE_S))
    counting.cancel()
    stats, progress, spans, reset = [answer.body for answer in found]
    assert len(decode_body(stats, TopicStats).offset_table) == QUEUES
    assert len(decode_body(spans, ConsumeTimeSpans).consume_time_span_set) == QUEUES
    assert bytes(progress).count(b'"brokerOffset"') == bytes(reset).count(b'"Wide"') == QUEUES
    assert min(turns[1:]) > 3  # it takes some 0.5 s, in slices of 0.01 s, on an idle machine


async def test_the_others_are_served_while_the_files_of_a_wide_topic_are_removed(asker: Asker) -> None:
    queues = 400
    fields = {
        "topic": "Wide", "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    for queue_id in range(queues):
        assert (await asker.send("Wide", queue_id=queue_id)).code == 0
    store = asker.broker.store
    directory = Path(store.config.root, "consumequeue", "Wide")
    assert len(list(directory.iterdir())) == queues
    command = request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Wide"})
    deleting = asyncio.create_task(asker.client.invoke(asker.broker.address, command, PATIENCE_S))
    while "Wide" in store.topics():
        await asyncio.sleep(0)
    assert len(list(directory.iterdir())) > 0  # it takes more than one slice of 0.01 s
    await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)  # one of the same name, meanwhile
    again = await asker.send("Wide", b"new", queue_id=0)  # its file, too, may not be removed yet
    assert (again.code, again.ext_fields["queueOffset"]) == (0, "0")
    assert (await deleting).code == 0
    assert [one.name for one in directory.iterdir()] == ["0"]
    assert [one.body for one in messages(await asker.pull("Wide"))] == [b"new"]


@pytest.mark.long
async def test_the_others_are_served_while_a_client_joins_many_groups_and_leaves_them(asker: Asker) -> None:
    await asker.send("T")
    count, groups, seen = 3000, asker.broker.state.consumers.groups, set[int]()
    data = [
        ConsumerData(group_name=f"g{number}", subscription_data_set=[SubscriptionData(topic="T")])
        for number in range(count)
    ]
    beat = encode_body(HeartbeatData(client_id="many", consumer_data_set=data))

    async def until(members: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(groups) != members:
                seen.add(len(groups))
                await asyncio.sleep(0)

    async with RemotingClient() as other:
        command = request(RequestCode.HEART_BEAT, {}, beat)
        joining = asyncio.create_task(other.invoke(asker.broker.address, command, PATIENCE_S))
        await until(count)
        assert (await joining).code == 0
        assert seen - {0, count}
        seen.clear()
        leaving = asyncio.create_task(until(0))
    await leaving
    assert seen - {0, count}


async def test_a_long_heartbeat_with_a_bad_group_joins_none_and_one_in_the_dialect_joins_all(asker: Asker) -> None:
    await asker.send("T")
    groups = ",".join(f'{{"groupName":"long{number}"}}' for number in range(200))
    bad = await asker.ask(RequestCode.HEART_BEAT, {}, f'{{"clientID":"c","consumerDataSet":[{groups},7]}}'.encode())
    assert (bad.code, asker.broker.state.consumers.groups) == (1, {})
    assert "ConsumerData" in bad.remark
    dialect = f'{{"clientID":"c",1:2,"consumerDataSet":[{groups}]}}'.encode()
    assert (await asker.ask(RequestCode.HEART_BEAT, {}, dialect)).code == 0
    assert len(asker.broker.state.consumers.groups) == 200


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(1))
def test_no_frame_keeps_the_loop_or_takes_the_memory(tmp_path: Path, seed: int) -> None:
    codes_at_limits = 1000 if TIMES > 1 else 18  # all, or a sixth of them
    report = in_fresh_process(fuzz_broker, tmp_path, seed, codes_at_limits=codes_at_limits, random_frames=300)
    assert report.healthy > 0
    assert report.longest_cpu_s < (1.0 if TIMES == 1 else 0.1), (seed, report)
    assert report.grown_bytes < 4 * (16 << 20) + (48 << 20), (seed, report)  # 48 MiB are the stranger's own
    assert report.frames > 1000
    assert set(report.answers) > {0, ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR}
