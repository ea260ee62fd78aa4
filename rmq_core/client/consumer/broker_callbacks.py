"""Handlers of brokers' requests to consumers: rebalance, reset of offsets, running info, direct consumption.

Source: ``ClientRemotingProcessor``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from rmq_core.client.message import ReceivedMessage
from rmq_core.client.pull.record_decoder import decode_records
from rmq_core.remoting.bodies.clients import ConsumeDirectlyResult, ConsumerRunningInfo
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body, encode_body, parse_queue_key, queue_key
from rmq_core.remoting.bodies.stats import ConsumerStatus, OffsetsBody
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import ConsumeDirectly, ConsumerGroupName, GetConsumerStatus, ResetOffset, RunningInfo


class ConsumerCallbacks(Protocol):
    """Callbacks of a consumer that serve requests from brokers."""

    group: str

    def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue from other offsets."""

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Return the consumer offsets in memory."""

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Consume a message at once."""


def ids_changed_handler(group: str, rebalance_soon: Callable[[], None]) -> dict[int, Handler]:
    """Build the handler of NOTIFY_CONSUMER_IDS_CHANGED, by its code."""

    def ids_changed(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ConsumerGroupName).consumer_group == group:
            rebalance_soon()

    return {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ids_changed}


def running_info_handler(group: str, running_info: Callable[[], Awaitable[ConsumerRunningInfo]]) -> dict[int, Handler]:
    """Build the handler of GET_CONSUMER_RUNNING_INFO, by its code."""

    async def running(command: RemotingCommand, _: Connection) -> RemotingCommand:
        _check_group(read_fields(command, RunningInfo).consumer_group, group)
        return command.response(body=encode_body(await running_info()))

    return {RequestCode.GET_CONSUMER_RUNNING_INFO: running}


def handlers(consumer: ConsumerCallbacks) -> dict[int, Handler]:
    """Build the handlers of the other requests from brokers to a push consumer, by code."""

    def reset(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ResetOffset).group == consumer.group and command.body:
            table = decode_body(command.body, OffsetsBody).offset_table
            consumer.go_to({parse_queue_key(key): offset for key, offset in table.items()})

    def status(command: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(command, GetConsumerStatus)
        _check_group(fields.group, consumer.group)
        table = {queue_key(queue): offset for queue, offset in consumer.known_offsets(fields.topic).items()}
        return command.response(body=encode_body(ConsumerStatus(message_queue_table=table)))

    async def directly(command: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(command, ConsumeDirectly)
        _check_group(fields.consumer_group, consumer.group)
        messages = decode_records(command.body, broker_name=fields.broker_name or "")
        if not messages:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "the request has no message")
        begin_s = asyncio.get_running_loop().time()
        result = await consumer.consume_directly(messages[0])
        spent_ms = int((asyncio.get_running_loop().time() - begin_s) * 1000)
        return command.response(body=encode_body(_with_duration(result, spent_ms)))

    return {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: directly,
    }


def _check_group(requested: str, group: str) -> None:
    if requested != group:
        remark = f"The Consumer Group <{requested}> not exist in this consumer"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)


def _with_duration(result: ConsumeDirectlyResult, spent_ms: int) -> ConsumeDirectlyResult:
    return ConsumeDirectlyResult(
        auto_commit=result.auto_commit,
        consume_result=result.consume_result,
        order=result.order,
        remark=result.remark,
        spent_time_mills=spent_ms,
    )
