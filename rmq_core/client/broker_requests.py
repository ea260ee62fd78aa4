"""What brokers ask of consumers: to share queues out anew, to go to other offsets, to tell how they are.

Source: ``ClientRemotingProcessor``.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from rmq_core.client.decode import decode_records
from rmq_core.client.message import ReceivedMessage
from rmq_core.remoting.bodies import (
    ConsumerRunningInfo,
    ConsumerStatus,
    MessageQueue,
    QueueOffsets,
    decode_body,
    encode_body,
    parse_queue_key,
    queue_key,
)
from rmq_core.remoting.bodies.running import ConsumeDirectlyResult
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import ConsumeDirectly, ConsumerGroup, GetConsumerStatus, ResetOffset, RunningInfo


class AskedConsumer(Protocol):
    """What a consumer has to be able to do for brokers."""

    group: str

    def rebalance_soon(self) -> None:
        """Share out queues anew."""

    async def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets."""

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets in memory."""

    def running_info(self) -> ConsumerRunningInfo:
        """How it is."""

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Consume a message out of turn."""


def handlers(consumer: AskedConsumer, run: Callable[..., None]) -> dict[int, Handler]:
    """Handlers of brokers' requests, by code.

    Args:
        consumer: who is asked.
        run: has a coroutine run beside everything else.
    """

    def ids_changed(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ConsumerGroup).consumer_group == consumer.group:
            consumer.rebalance_soon()

    def reset(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ResetOffset).group == consumer.group and command.body:
            table = decode_body(command.body, QueueOffsets).offset_table
            run(consumer.go_to({parse_queue_key(key): offset for key, offset in table.items()}))

    def status(command: RemotingCommand, _: Connection) -> RemotingCommand:
        wanted = read_fields(command, GetConsumerStatus)
        _check_group(wanted.group)
        table = {queue_key(queue): offset for queue, offset in consumer.known_offsets(wanted.topic).items()}
        return command.response(body=encode_body(ConsumerStatus(message_queue_table=table)))

    def running(command: RemotingCommand, _: Connection) -> RemotingCommand:
        _check_group(read_fields(command, RunningInfo).consumer_group)
        return command.response(body=encode_body(consumer.running_info()))

    async def directly(command: RemotingCommand, _: Connection) -> RemotingCommand:
        wanted = read_fields(command, ConsumeDirectly)
        _check_group(wanted.consumer_group)
        messages = decode_records(command.body, broker_name=wanted.broker_name or "")
        if not messages:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "a request without its message")
        begin_s = asyncio.get_running_loop().time()
        result = await consumer.consume_directly(messages[0])
        spent_ms = int((asyncio.get_running_loop().time() - begin_s) * 1000)
        return command.response(body=encode_body(_timed(result, spent_ms)))

    def _check_group(group: str) -> None:
        if group != consumer.group:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)

    return {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ids_changed,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.GET_CONSUMER_RUNNING_INFO: running,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: directly,
    }


def _timed(result: ConsumeDirectlyResult, spent_ms: int) -> ConsumeDirectlyResult:
    return ConsumeDirectlyResult(
        auto_commit=result.auto_commit, consume_result=result.consume_result, order=result.order,
        remark=result.remark, spent_time_mills=spent_ms,
    )  # fmt: skip
