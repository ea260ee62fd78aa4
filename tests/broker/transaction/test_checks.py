"""Producers are asked about half messages that nobody has ended."""

import pytest

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import FlushDiskType
from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES
from rmq_formats.codecs.record import decode_record
from tests.broker.conftest import eventually, messages
from tests.broker.transaction.conftest import COMMIT, GIVEN_UP, HALF, OP, ROLLBACK, Transactor, quiet_config

GROUP = "CID_RMQ_SYS_TRANS"
_OFTEN = quiet_config(transaction_check_max=3, transaction_timeout_ms=0)


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_producer_that_did_not_know_is_asked(asker: Transactor) -> None:
    await asker.heartbeat()
    sent = await asker.half(b"who knows", queue_id=1, TAGS="A")
    await asker.say_nothing_known(sent)
    await asker.look_through(5)
    assert asker.checks == []
    await asker.look_through(2)
    (check,) = await asker.asked(1)
    half, again = await asker.stored(HALF, 2)
    assert check.ext_fields == {
        "topic": HALF, "tranStateTableOffset": "1", "commitLogOffset": str(again.physical_offset), "msgId": "U1",
        "transactionId": "U1", "offsetMsgId": again.msg_id, "bname": "broker-a",
    }  # fmt: skip
    told = decode_record(bytes(check.body))
    assert (told.topic, told.queue_id, told.body, told.tags) == ("T", 1, b"who knows", "A")
    assert again.properties == half.properties | {"TRANSACTION_CHECK_TIMES": "1"}
    assert again.born_timestamp_ms == half.born_timestamp_ms
    assert (await asker.answer(check, COMMIT)).code == 0
    (final,) = await asker.stored("T", 1, queue_id=1)
    assert (final.body, final.prepared_transaction_offset) == (b"who knows", again.physical_offset)
    await asker.look_through(60)
    assert len(asker.checks) == 1


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_nobody_is_asked_about_what_is_ended(asker: Transactor) -> None:
    await asker.heartbeat()
    ended = [await asker.half(key=f"E{number}") for number in range(5)]
    await asker.half(key="open")
    for number, sent in enumerate(ended):
        await asker.end(sent, COMMIT if number % 2 else ROLLBACK)
    await asker.look_through(7)
    (check,) = await asker.asked(1)
    assert check.ext_fields["msgId"] == "open"
    assert len(await asker.stored("T", 2)) == 2
    await asker.answer(check, ROLLBACK)
    asker.broker.op_messages.write()
    await asker.stored(OP, 2 if asker.broker.store.next_offset(OP, 0) == 2 else 1)
    await asker.look_through(1)
    offsets, store = asker.broker.state.offsets, asker.broker.store
    assert (offsets.get(HALF, GROUP, 0), offsets.get(OP, GROUP, 0)) == (
        store.max_offset(HALF, 0),
        store.max_offset(OP, 0),
    )
    assert (store.max_offset(HALF, 0), len(asker.checks)) == (7, 1)


@pytest.mark.parametrize("config", [quiet_config(transaction_check_interval_ms=20, transaction_timeout_ms=0)])
async def test_the_broker_looks_through_half_messages_by_itself(asker: Transactor) -> None:
    await asker.heartbeat()
    await asker.half()

    async def is_asked() -> bool:
        return bool(asker.checks)

    await eventually(is_asked, 60)


@pytest.mark.parametrize("config", [_OFTEN])
async def test_a_message_that_nobody_ends_is_given_up_and_can_be_resumed(asker: Transactor) -> None:
    await asker.heartbeat()
    await asker.half(b"lost")
    for times in (1, 2, 3):
        await asker.look_through(1)
        await asker.asked(times)
    await asker.look_through(1)
    (given_up,) = await asker.stored(GIVEN_UP, 1)
    assert (given_up.body, given_up.properties["TRANSACTION_CHECK_TIMES"]) == (b"lost", "3")
    await asker.look_through(1)
    assert len(asker.checks) == 3
    answer = await asker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": given_up.msg_id})
    assert answer.code == 0
    await asker.look_through(1)
    check = (await asker.asked(4))[-1]
    assert (await asker.answer(check, COMMIT)).code == 0
    assert [one.body for one in await asker.stored("T", 1)] == [b"lost"]


async def test_a_half_message_older_than_the_log_is_kept_is_given_up(asker: Transactor) -> None:
    await asker.half(b"old")
    await asker.look_through(73 * 3600)
    assert [one.body for one in await asker.stored(GIVEN_UP, 1)] == [b"old"]


async def test_a_producer_that_is_gone_is_asked_when_it_is_back(asker: Transactor) -> None:
    await asker.half()
    await asker.look_through(7)
    assert asker.checks == []
    await asker.heartbeat()
    await asker.look_through(30)
    (check,) = await asker.asked(1)
    assert messages(await asker.pull(HALF))[-1].properties["TRANSACTION_CHECK_TIMES"] == "2"
    assert (await asker.answer(check, COMMIT)).code == 0


@pytest.mark.parametrize("asked_for", ["", "no id", "7F00000100002A9F0000000000000001"])
async def test_only_half_messages_are_resumed(asker: Transactor, asked_for: str) -> None:
    answer = await asker.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": asked_for})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_message_with_a_check_time_of_its_own_is_left_alone_until_then(asker: Transactor) -> None:
    await asker.heartbeat()
    sent = await asker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await asker.look_through(30)
    again = (await asker.stored(HALF, 2))[1]
    assert again.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert asker.checks == []
    await asker.look_through(31)
    (check,) = await asker.asked(1)
    late = await asker.end(sent, COMMIT)
    assert late.code == ResponseCode.ILLEGAL_OPERATION
    assert (await asker.answer(check, COMMIT)).code == 0
    assert len(await asker.stored("T", 1)) == 1


async def test_a_message_with_a_check_time_is_ended_where_it_stood_first(asker: Transactor) -> None:
    await asker.heartbeat()
    sent = await asker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    await asker.look_through(30)
    assert (await asker.end(sent, COMMIT)).code == 0
    await asker.stored("T", 1)
    asker.broker.op_messages.write()
    await asker.look_through(30)
    assert len(await asker.stored(HALF, 2)) == 2
    await asker.look_through(3600)
    assert asker.checks == []


async def test_a_producer_is_asked_after_a_restart_and_about_nothing_that_was_ended(asker: Transactor) -> None:
    for number in range(4):
        sent = await asker.half(key=f"U{number}")
        if number != 2:
            await asker.end(sent, COMMIT)
    await asker.broker.close()
    await asker.broker.start()
    await asker.heartbeat()
    await asker.look_through(60)
    (check,) = await asker.asked(1)
    assert check.ext_fields["msgId"] == "U2"
    assert (await asker.answer(check, COMMIT)).code == 0
    assert len(await asker.stored("T", 4)) == 4


async def test_offsets_behind_a_lost_end_of_the_log_are_put_right(asker: Transactor) -> None:
    await asker.heartbeat()
    await asker.end(await asker.half(key="U1"), COMMIT)
    asker.broker.op_messages.write()
    asker.broker.store.dispatch()
    for topic in (HALF, OP):
        asker.broker.state.offsets.commit(topic, GROUP, 0, 50)
    await asker.look_through(7)
    assert [asker.broker.state.offsets.get(topic, GROUP, 0) for topic in (HALF, OP)] == [1, 1]
    await asker.half(key="U2")
    await asker.look_through(7)
    (check,) = await asker.asked(1)
    assert check.ext_fields["msgId"] == "U2"


async def test_properties_without_room_for_more_stop_nothing(asker: Transactor) -> None:
    await asker.heartbeat()
    await asker.half(key="U1", PAD="x")
    (first,) = await asker.stored(HALF, 1)
    await asker.half(key="U2", PAD="x" * (MAX_PROPERTIES_BYTES - len(first.properties_bytes) - 3))
    await asker.half(key="U3")
    await asker.look_through(7)
    checks = await asker.asked(3)
    assert [one.ext_fields["msgId"] for one in checks] == ["U1", "U2", "U3"]
    large = (await asker.stored(HALF, 6))[4]
    assert (large.uniq_key, "TRANSACTION_CHECK_TIMES" in large.properties) == ("U2", False)
    assert (await asker.answer(checks[1], COMMIT)).code == 0
    assert [one.uniq_key for one in await asker.stored("T", 1)] == ["U2"]
