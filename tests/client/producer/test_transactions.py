"""Sends in transactions: when the local transaction runs."""

import pytest

from rmq_core.client import Message, SendStatus, TransactionProducer, TransactionState
from rmq_core.client.errors import BrokerError
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.header import RemotingCommand
from tests.client.conftest import FakeCluster

OFFSET_MSG_ID = "7F00000100002A9F0000000000000000"


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        (ResponseCode.SUCCESS, True),
        (ResponseCode.MESSAGE_ILLEGAL, False),
        (ResponseCode.FLUSH_DISK_TIMEOUT, False),
    ],
)
async def test_a_local_transaction_runs_only_after_its_half_message_is_stored(
    fakes: FakeCluster, code: ResponseCode, runs: bool
) -> None:
    executed: list[bytes] = []

    def execute(message: Message, _: str) -> TransactionState:
        executed.append(message.body)
        return TransactionState.COMMIT

    def answer(command: RemotingCommand, _: Connection) -> RemotingCommand:
        return command.response(int(code), "text", {"msgId": OFFSET_MSG_ID, "queueId": "0", "queueOffset": "5"})

    for broker in fakes.brokers.values():
        broker.answer = answer
    async with TransactionProducer(fakes.namesrv, "pg", lambda _: TransactionState.UNKNOWN) as producer:
        if code is ResponseCode.MESSAGE_ILLEGAL:
            with pytest.raises(BrokerError):
                await producer.send_in_transaction(Message("T", b"paid"), execute)
        else:
            done = await producer.send_in_transaction(Message("T", b"paid"), execute)
            assert (done.sent.status is SendStatus.SEND_OK, done.state is TransactionState.COMMIT) == (runs, runs)
    assert executed == ([b"paid"] if runs else [])
