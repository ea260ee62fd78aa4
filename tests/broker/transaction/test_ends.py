"""Half messages are committed and rolled back, as by the original."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import FlushDiskType
from rmq_formats.codecs.message_id import decode_message_id
from tests.broker.conftest import messages
from tests.broker.transaction.conftest import COMMIT, HALF, OP, ROLLBACK, Transactor, quiet_config


async def test_a_half_message_is_not_delivered_until_it_is_committed(asker: Transactor) -> None:
    sent = await asker.half(b"paid", queue_id=2, TAGS="A", KEYS="k")
    assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]) == (0, "2", "0")
    assert sent.ext_fields["transactionId"] == "U1"
    assert messages(await asker.pull("T", queue_id=2)) == []
    assert (await asker.end(sent, COMMIT)).code == 0
    (half,) = await asker.stored(HALF, 1)
    (final,) = await asker.stored("T", 1, queue_id=2)
    assert (half.sys_flag, half.queue_id, half.body) == (0, 0, b"paid")
    assert (final.sys_flag, final.body, final.prepared_transaction_offset) == (8, b"paid", half.physical_offset)
    assert final.properties == half.properties
    assert (final.born_timestamp_ms, final.born_host) == (half.born_timestamp_ms, half.born_host)
    await asker.look_through(1)
    assert messages(await asker.pull(OP)) == []
    asker.broker.op_messages.write()
    asker.broker.store.dispatch()
    (note,) = await asker.stored(OP, 1)
    assert (note.body, note.properties) == (b"0,", {"TAGS": "d", "WAIT": "true"})


async def test_a_message_that_is_rolled_back_is_never_delivered(asker: Transactor) -> None:
    sent = await asker.half()
    assert (await asker.end(sent, ROLLBACK)).code == 0
    await asker.look_through(3600)
    assert [one.body for one in messages(await asker.pull(HALF))] == [b"half"]
    assert messages(await asker.pull("T")) == []


@pytest.mark.parametrize("config", [quiet_config(transaction_op_batch_interval_ms=20)])
async def test_records_have_the_members_of_the_originals(asker: Transactor, golden: Callable[[str], Path]) -> None:
    lines = (golden("mixed") / "expected/messages.jsonl").read_text().splitlines()
    theirs: dict[str, dict[str, Any]] = {}
    for line in lines:
        message = json.loads(line)
        if message["topic"] in (HALF, OP, "Tx"):
            theirs.setdefault(message["topic"], message)
    sent = await asker.half(TAGS="TagT", KEYS="tx0", queue_id=1)
    await asker.end(sent, COMMIT)
    for topic, name, queue_id in ((HALF, HALF, 0), (OP, OP, 0), ("T", "Tx", 1)):
        (ours,) = await asker.stored(topic, 1, queue_id)
        assert ours.properties.keys() == theirs[name]["properties"].keys()
        assert ours.sys_flag == theirs[name]["sys_flag"]
    assert (await asker.stored("T", 1, 1))[0].prepared_transaction_offset == decode_message_id(
        sent.ext_fields["msgId"]
    )[1]


@pytest.mark.parametrize("flush", [FlushDiskType.SYNC])
async def test_a_commit_is_delivered_once_it_is_on_the_disk(asker: Transactor) -> None:
    for number in range(3):
        sent = await asker.half(b"%d" % number, key=f"U{number}")
        assert (await asker.end(sent, COMMIT)).code == 0
    assert [one.body for one in await asker.stored("T", 3)] == [b"0", b"1", b"2"]


async def test_a_delay_of_a_half_message_is_dropped(asker: Transactor) -> None:
    sent = await asker.half(DELAY="3")
    await asker.end(sent, COMMIT)
    (final,) = await asker.stored("T", 1)
    assert "DELAY" not in final.properties


async def test_a_commit_may_wait_for_a_time_of_its_own(asker: Transactor) -> None:
    sent = await asker.half(b"later", queue_id=1, TIMER_DELAY_MS="60000")
    assert [one.body for one in await asker.stored(HALF, 1)] == [b"later"]
    assert (await asker.end(sent, COMMIT)).code == 0
    (waiting,) = await asker.stored("rmq_sys_wheel_timer", 1)
    assert (waiting.sys_flag, waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == (8, "T", "1")
    assert messages(await asker.pull("T", queue_id=1)) == []
    asker.clock.ahead_ms += 61_000
    (final,) = await asker.stored("T", 1, queue_id=1)
    assert final.body == b"later"


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 62}, "Find prepared transaction message failed"),
    ],
)
async def test_an_end_that_fits_no_half_message_is_refused(
    asker: Transactor, wrong: dict[str, object], remark: str
) -> None:
    sent = await asker.half()
    for outcome in (COMMIT, ROLLBACK):
        answer = await asker.end(sent, outcome, **wrong)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert messages(await asker.pull("T")) == messages(await asker.pull(OP)) == []


async def test_a_message_that_is_no_half_message_cannot_be_ended(asker: Transactor) -> None:
    forged = {"PGROUP": "pg", "REAL_TOPIC": "Elsewhere", "REAL_QID": "0", "UNIQ_KEY": "U1"}
    sent = await asker.send("T", properties=forged)
    assert (await asker.end(sent, COMMIT)).code == ResponseCode.SYSTEM_ERROR
    assert messages(await asker.pull("Elsewhere")) == []


async def test_a_broker_may_refuse_transactions(asker: Transactor) -> None:
    asker.broker.state.config = replace(asker.broker.state.config, reject_transaction_message=True)
    refused = await asker.half()
    assert refused.code == ResponseCode.NO_PERMISSION
    assert (refused.remark or "").endswith("sending transaction message is forbidden")


@pytest.mark.parametrize("config", [quiet_config(transaction_op_max_bytes=20)])
async def test_many_ends_are_noted_together(asker: Transactor) -> None:
    for number in range(30):
        await asker.end(await asker.half(key=f"U{number}"), ROLLBACK)
    notes = [one.body for one in messages(await asker.pull(OP))]
    assert len(notes) == 3  # and what is gathered for the next
    await asker.broker.close()
    await asker.broker.start()
    notes = [one.body for one in messages(await asker.pull(OP))]
    assert b"".join(notes) == b"".join(b"%d," % number for number in range(30))
    assert all(20 <= len(note) < 25 for note in notes[:-1])


async def test_an_end_without_its_fields_is_told_so(asker: Transactor) -> None:
    answer = await asker.ask(RequestCode.END_TRANSACTION, {"producerGroup": "pg"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
