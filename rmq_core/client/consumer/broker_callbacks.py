"""Handlers of brokers' requests to consumers: rebalance, reset of offsets, running info, direct consumption.

Source: ``ClientRemotingProcessor``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

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


def consumer_handlers(
    group: str, rebalance_soon: Callable[[], None], running_info: Callable[[], Awaitable[ConsumerRunningInfo]]
) -> dict[int, Handler]:
    """Build the handlers of brokers' requests to all consumers, by code."""

    def ids_changed(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ConsumerGroupName).consumer_group == group:
            rebalance_soon()

    async def running(command: RemotingCommand, _: Connection) -> RemotingCommand:
        _check_group(read_fields(command, RunningInfo).consumer_group, group)
        return command.response(body=encode_body(await running_info()))

    return {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ids_changed, RequestCode.GET_CONSUMER_RUNNING_INFO: running}


def push_consumer_handlers(
    group: str,
    go_to: Callable[[Mapping[MessageQueue, int]], None],
    known_offsets: Callable[[str], Mapping[MessageQueue, int]],
    consume_directly: Callable[[ReceivedMessage], Awaitable[ConsumeDirectlyResult]],
) -> dict[int, Handler]:
    """Build the handlers of brokers' other requests to a push consumer, by code; the callbacks are its methods."""

    def reset(command: RemotingCommand, _: Connection) -> None:
        if read_fields(command, ResetOffset).group == group and command.body:
            table = decode_body(command.body, OffsetsBody).offset_table
            go_to({parse_queue_key(key): offset for key, offset in table.items()})

    def status(command: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(command, GetConsumerStatus)
        _check_group(fields.group, group)
        table = {queue_key(queue): offset for queue, offset in known_offsets(fields.topic).items()}
        return command.response(body=encode_body(ConsumerStatus(message_queue_table=table)))

    async def directly(command: RemotingCommand, _: Connection) -> RemotingCommand:
        fields = read_fields(command, ConsumeDirectly)
        _check_group(fields.consumer_group, group)
        messages = decode_records(command.body, broker_name=fields.broker_name or "")
        if not messages:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "the request has no message")
        begin_s = asyncio.get_running_loop().time()
        result = await consume_directly(messages[0])
        spent_ms = int((asyncio.get_running_loop().time() - begin_s) * 1000)
        return command.response(body=encode_body(replace(result, spent_time_mills=spent_ms)))

    return {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: reset,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status,
        RequestCode.CONSUME_MESSAGE_DIRECTLY: directly,
    }


def _check_group(requested: str, group: str) -> None:
    if requested != group:
        remark = f"The Consumer Group <{requested}> not exist in this consumer"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
