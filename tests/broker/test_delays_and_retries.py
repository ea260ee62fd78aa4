"""Delayed messages, messages that come back, and where they end."""

import pytest

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.codecs.record import StoredMessage
from tests.broker.conftest import Asker, Clock, eventually, messages

SECOND_MS = 1000


async def send_back(asker: Asker, message_id: str, **more: object) -> RemotingCommand:
    _, offset = decode_message_id(message_id)
    fields: dict[str, object] = {"offset": offset, "group": "cg", "delayLevel": 0, "maxReconsumeTimes": 2}
    return await asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields | more)


async def pulled(asker: Asker, topic: str, count: int) -> list[StoredMessage]:
    """The messages of a topic's queue 0, once there are so many."""

    async def are_there() -> bool:
        return len(messages(await asker.pull(topic))) == count

    await eventually(are_there)
    return messages(await asker.pull(topic))


async def waited(asker: Asker) -> bool:
    """Whether the schedule has looked at its queues: it knows when the next message is due."""
    return bool(asker.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2))


async def test_a_delayed_message_comes_when_it_is_due(asker: Asker, clock: Clock) -> None:
    sent = await asker.send("T", b"later", queue_id=2, properties={"DELAY": "3", "TAGS": "A", "UNIQ_KEY": "U"})
    assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["transactionId"]) == (0, "2", "U")
    clock.ahead_ms += 9 * SECOND_MS
    await eventually(lambda: waited(asker))
    assert messages(await asker.pull("T", queue_id=2)) == []
    clock.ahead_ms += 2 * SECOND_MS

    async def is_there() -> bool:
        return bool(messages(await asker.pull("T", queue_id=2, subscription="A")))

    await eventually(is_there)
    (message,) = messages(await asker.pull("T", queue_id=2))
    assert message.body == b"later"
    assert {name: message.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID")} == {
        "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "2",
    }  # fmt: skip


async def test_a_level_above_the_highest_is_the_highest(asker: Asker, clock: Clock) -> None:
    await asker.send("T", properties={"DELAY": "99"})
    clock.ahead_ms += 2 * 3600 * SECOND_MS + SECOND_MS

    async def is_there() -> bool:
        return bool(messages(await asker.pull("T")))

    await eventually(is_there)
    assert messages(await asker.pull("T"))[0].properties["DELAY"] == "18"


async def test_what_was_delivered_is_not_delivered_again_after_a_restart(asker: Asker, clock: Clock) -> None:
    await asker.send("T", b"one", properties={"DELAY": "1"})
    await asker.send("T", b"two", properties={"DELAY": "2"})
    clock.ahead_ms += 2 * SECOND_MS
    await pulled(asker, "T", 1)
    await asker.broker.close()
    await asker.broker.start()
    clock.ahead_ms += 5 * SECOND_MS
    await pulled(asker, "T", 2)
    assert [one.body for one in messages(await asker.pull("T"))] == [b"one", b"two"]
    delays = await asker.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert b'"offsetTable":{"1":1,"2":1}' in bytes(delays.body)


async def test_a_message_that_fails_comes_again_and_then_is_dead(asker: Asker, clock: Clock) -> None:
    await asker.heartbeat("cg")
    sent = await asker.send("T", b"bad", properties={"TAGS": "A"})
    message_id = origin = sent.ext_fields["msgId"]
    for times in (1, 2):
        assert (await send_back(asker, message_id)).code == 0
        clock.ahead_ms += 31 * SECOND_MS
        again = (await pulled(asker, "%RETRY%cg", times))[-1]
        assert (again.body, again.reconsume_times) == (b"bad", times)
        assert again.properties["RETRY_TOPIC"] == "T"
        assert again.properties["ORIGIN_MESSAGE_ID"] == origin
        assert again.properties["DELAY"] == str(2 + times)
        message_id = again.msg_id
    assert (await send_back(asker, message_id)).code == 0
    (dead,) = messages(await asker.pull("%DLQ%cg"))
    assert (dead.body, dead.reconsume_times, dead.properties["ORIGIN_MESSAGE_ID"]) == (b"bad", 3, origin)


async def test_a_consumer_may_give_up_at_once(asker: Asker) -> None:
    sent = await asker.send("T", b"bad")
    assert (await send_back(asker, sent.ext_fields["msgId"], delayLevel=-1)).code == 0
    assert [one.body for one in messages(await asker.pull("%DLQ%cg"))] == [b"bad"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 12345}, ResponseCode.SYSTEM_ERROR),
        ({"group": "a/b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_what_cannot_come_back_is_told_so(asker: Asker, fields: dict[str, object], code: int) -> None:
    sent = await asker.send("T")
    assert (await send_back(asker, sent.ext_fields["msgId"], **fields)).code == code


async def test_a_retry_that_a_client_sends_itself_is_dead_after_its_time(asker: Asker) -> None:
    await asker.heartbeat("cg")
    kept = await asker.send("%RETRY%cg", b"kept", j=1, l=2)
    dead = await asker.send("%RETRY%cg", b"dead", j=3, l=2)
    assert (kept.code, dead.code) == (0, 0)
    assert [one.body for one in messages(await asker.pull("%RETRY%cg"))] == [b"kept"]
    assert [one.body for one in messages(await asker.pull("%DLQ%cg"))] == [b"dead"]


async def test_another_message_in_its_place_is_not_sent_back(asker: Asker) -> None:
    """As where a master has lost its tail: the consumer sends a copy then, as where nothing is there."""
    sent = await asker.send("T", b"here", properties={"UNIQ_KEY": "U1"})
    answer = await send_back(asker, sent.ext_fields["msgId"], originMsgId="U0", originTopic="T")
    assert (answer.code, "look message by offset failed" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    for msg_id in ("U1", sent.ext_fields["msgId"], ""):
        assert (await send_back(asker, sent.ext_fields["msgId"], originMsgId=msg_id)).code == 0


async def test_all_18_levels_have_a_queue_and_are_due_after_their_time(asker: Asker, clock: Clock) -> None:
    delays_ms = [
        *(seconds * SECOND_MS for seconds in (1, 5, 10, 30)), *(minutes * 60 * SECOND_MS for minutes in range(1, 11)),
        20 * 60 * SECOND_MS, 30 * 60 * SECOND_MS, 3600 * SECOND_MS, 7200 * SECOND_MS,
    ]  # fmt: skip
    assert len(delays_ms) == 18
    for level in range(1, 19):
        assert (
            await asker.send("T", b"%d" % level, properties={"DELAY": str(level), "UNIQ_KEY": f"U{level}"})
        ).code == 0
    store = asker.broker.store
    for level, delay_ms in enumerate(delays_ms, 1):
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1) == 1
        queue = store.queue("SCHEDULE_TOPIC_XXXX", level - 1)
        assert queue is not None
        stored_ms = store.store_timestamp_ms("SCHEDULE_TOPIC_XXXX", level - 1, 0)
        assert stored_ms is not None
        unit = queue.unit(0)
        assert unit is not None
        assert unit.tags_code == stored_ms + delay_ms  # when it is due
    clock.ahead_ms += 7_000 * SECOND_MS
    assert {bytes(message.body) for message in await pulled(asker, "T", 17)} == {
        b"%d" % level for level in range(1, 18)
    }
    clock.ahead_ms += 300 * SECOND_MS
    assert (await pulled(asker, "T", 18))[-1].body == b"18"
