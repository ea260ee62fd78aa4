"""Message commands of ``rmq admin``: query, print, send and consume messages.

``rmq admin queryMsgById, queryMsgByKey, queryMsgByUniqueKey, queryMsgByOffset, printMsg, sendMessage, consumeMessage``.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.options import BodyFormat, Route, Switch, Topic, check_charset, time_ms
from rmq_cli.admin.result_table import ResultTable, table_of_messages
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS
from rmq_formats.codecs.message_id import decode_message_id
from rmq_formats.errors import DecodeError, OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin, MessageQueue, ReceivedMessage

_END_OF_TIME_MS = (1 << 63) - 1
_GROUP = "TOOLS_PRODUCER"

BrokerName = Annotated[
    str | None, typer.Option("-b", "--brokerName", "--broker", metavar="NAME", help="The broker's name.")
]
QueueId = Annotated[
    int | None, typer.Option("-i", "--queueId", "--qid", min=0, metavar="N", help="The queue; with -b.")
]


ConsumerGroup = Annotated[
    str | None, typer.Option("-g", "--consumerGroup", metavar="G", help="Have a member of this group consume it.")
]
ClientId = Annotated[
    str | None, typer.Option("-d", "--clientId", metavar="ID", help="Client id of the group member; with -g.")
]


async def by_id(
    admin: "Admin",
    *,
    msg_ids: Annotated[
        str, typer.Option("-i", "--msgId", metavar="ID", help="Offset message id, or several with commas.")
    ],
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", metavar="T", help="With a topic the id may also be a unique key.")
    ] = None,
    group: ConsumerGroup = None,
    client_id: ClientId = None,
    resend: Annotated[Switch, typer.Option("-s", "--sendMessage", help="Send it again, as a new message.")] = "false",
    charset: BodyFormat = "utf-8",
    cluster: Route = None,
) -> ResultTable:
    """Find a message by its id. A consumer may be told to consume it, or it may be sent again."""
    charset = check_charset("-f", charset)
    ids = [msg_id.strip() for msg_id in msg_ids.split(",") if msg_id.strip()]
    if not ids:
        raise OptionError("-i: no id")
    messages = []
    for msg_id in ids:
        if topic is not None and not await _is_offset_message_id(admin, msg_id):
            messages += await admin.query_by_uniq_key(topic, msg_id, route=cluster)
        else:
            messages.append(await admin.view_message(msg_id))
    if group is not None or client_id is not None:
        return await _consumed(admin, messages, group, client_id)
    return await _sent_again(admin, messages) if resend == "true" else table_of_messages(messages, charset=charset)


async def _is_offset_message_id(admin: "Admin", msg_id: str) -> bool:
    """Return whether an id is an offset message id of a broker in the cluster; unique keys may have the same length."""
    try:
        host, _ = decode_message_id(msg_id)
    except DecodeError:
        return False
    brokers = (await admin.cluster()).broker_addr_table.values()
    return any(host.text in broker.broker_addrs.values() for broker in brokers)


async def by_key(
    admin: "Admin",
    *,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", metavar="K", help="One of its keys.")],
    begin: Annotated[
        str, typer.Option("-b", "--beginTimestamp", metavar="TIME", help="Stored then or later: ms, or ISO.")
    ] = "0",
    end: Annotated[
        str | None, typer.Option("-e", "--endTimestamp", metavar="TIME", help="Stored then or earlier.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-m", "--maxNum", min=1, metavar="N", help="Maximum number; the newest are returned.")
    ] = 64,
    cluster: Route = None,
) -> ResultTable:
    """Find messages by a key."""
    begin_ms, end_ms = time_ms("-b", begin), _END_OF_TIME_MS if end is None else time_ms("-e", end)
    return table_of_messages(
        await admin.query_by_key(topic, key, limit, begin_ms=begin_ms, end_ms=end_ms, route=cluster)
    )


async def by_unique_key(
    admin: "Admin",
    *,
    topic: Topic,
    key: Annotated[str, typer.Option("-i", "--msgId", metavar="U", help="Its unique key: the id that a send returns.")],
    show_all: Annotated[bool, typer.Option("-a", "--showAll", help="All of them, if the producer retried.")] = False,
    group: ConsumerGroup = None,
    client_id: ClientId = None,
    cluster: Route = None,
) -> ResultTable:
    """Find a message by its unique key. A consumer may be told to consume it."""
    messages = await admin.query_by_uniq_key(topic, key, route=cluster)
    if group is not None or client_id is not None:
        return await _consumed(admin, messages[:1], group, client_id)
    return table_of_messages(messages if show_all else messages[:1])


async def by_offset(
    admin: "Admin",
    *,
    topic: Topic,
    broker: Annotated[str, typer.Option("-b", "--brokerName", metavar="NAME", help="The broker's name.")],
    queue: Annotated[int, typer.Option("-i", "--queueId", min=0, metavar="N", help="The queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, metavar="N", help="Its queue offset.")],
    charset: BodyFormat = "utf-8",
) -> ResultTable:
    """Find a message by its queue offset."""
    charset = check_charset("-f", charset)
    (place,) = await _queues(admin, topic, broker, queue)
    message = await admin.message_at(place, offset)
    return table_of_messages([] if message is None else [message], charset=charset)


async def print_messages(
    admin: "Admin",
    *,
    topic: Topic,
    tags: Annotated[str, typer.Option("-s", "--subExpression", metavar="TAGS", help="Tags, separated by ||.")] = "*",
    begin: Annotated[
        str | None, typer.Option("-b", "--beginTimestamp", metavar="TIME", help="Stored then or later.")
    ] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTimestamp", metavar="TIME", help="Stored earlier.")] = None,
    body: Annotated[Switch, typer.Option("-d", "--printBody", help="Whether tables show bodies.")] = "true",
    charset: Annotated[
        str, typer.Option("-c", "--charsetName", "--charset", metavar="CHARSET", help="The bodies' charset.")
    ] = "utf-8",
) -> AsyncIterator[ResultTable]:
    """Print a topic's messages, queue by queue. No offset is committed."""
    charset = check_charset("-c", charset)
    begin_ms, end_ms = _time_ms("-b", begin), _time_ms("-e", end)
    for queue in await _queues(admin, topic, None, None):
        low, high = await _bounds(admin, queue, begin_ms, end_ms)
        async for messages in admin.read(queue, low, high, tags):
            yield table_of_messages(messages, with_body=body == "true", charset=charset)


async def consume_messages(
    admin: "Admin",
    *,
    topic: Topic,
    broker: BrokerName = None,
    queue: QueueId = None,
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, metavar="N", help="From this offset; with -i.")] = 0,
    group: Annotated[
        str, typer.Option("-g", "--consumerGroup", metavar="G", help="Group to consume as; no offset is committed.")
    ] = "TOOLS_CONSUMER",
    begin: Annotated[
        str | None, typer.Option("-s", "--beginTimestamp", metavar="TIME", help="Stored then or later.")
    ] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTimestamp", metavar="TIME", help="Stored earlier.")] = None,
    limit: Annotated[
        int, typer.Option("-c", "--MessageNumber", min=1, metavar="N", help="Maximum number of messages.")
    ] = 128,
) -> AsyncIterator[ResultTable]:
    """Print some messages of a topic. The oldest of each queue first; no offset is committed."""
    if offset and queue is None:
        raise OptionError("-o: give -b and -i too")
    begin_ms, end_ms = _time_ms("-s", begin), _time_ms("-e", end)
    remaining = limit
    for message_queue in await _queues(admin, topic, broker, queue):
        if not remaining:
            break
        low, high = await _bounds(admin, message_queue, begin_ms, end_ms)
        low = max(low, offset)
        async for messages in admin.read(message_queue, low, min(high, low + remaining), group=group):
            remaining -= len(messages)
            yield table_of_messages(messages)


async def send(
    admin: "Admin",
    *,
    topic: Topic,
    body: Annotated[str, typer.Option("-p", "--body", metavar="TEXT", help="The body.")],
    keys: Annotated[str, typer.Option("-k", "--key", metavar="K", help="Its keys, separated by blanks.")] = "",
    tags: Annotated[str | None, typer.Option("-c", "--tags", metavar="TAG", help="Its tag.")] = None,
    broker: BrokerName = None,
    queue: QueueId = None,
    trace: Annotated[Switch, typer.Option("-m", "--msgTraceEnable", help="Whether to send a message trace.")] = "false",
) -> ResultTable:
    """Send a message."""
    from rmq_core.client import Message, Producer, ProducerOptions  # noqa: PLC0415 # --help does not need it

    place = None if broker is None and queue is None else (await _queues(admin, topic, broker, queue))[0]
    options = ProducerOptions(enable_trace=trace == "true", tls=admin.access.tls)
    async with Producer(admin.namesrv, _GROUP, options, credentials=admin.access.credentials) as producer:
        sent = await producer.send(Message(topic, body.encode(), keys=keys, tags=tags), queue=place)
    at = sent.queue
    row = (at.broker_name, at.queue_id, sent.queue_offset, sent.status.name, sent.msg_id, sent.offset_msg_id)
    return ResultTable(("broker_name", "queue_id", "queue_offset", "status", "msg_id", "offset_msg_id"), [row])


async def _consumed(
    admin: "Admin", messages: "list[ReceivedMessage]", group: str | None, client_id: str | None
) -> ResultTable:
    """Make a member of a group consume messages directly; return the results."""
    if group is None or client_id is None:
        raise OptionError("-g and -d: give both")
    rows = []
    for message in messages:
        address = decode_message_id(message.offset_msg_id)[0].text
        result = await admin.brokers.consume_directly(address, group, client_id, message.topic, message.offset_msg_id)
        outcome = result.consume_result or None, result.remark or None
        rows.append((message.msg_id, group, client_id, *outcome, result.spent_time_mills))
    columns = ("msg_id", "group", "client_id", "result", "remark", "spent_millis")
    return ResultTable(columns, rows, code=EXIT_CLEAN if rows else EXIT_FINDINGS)


async def _sent_again(admin: "Admin", messages: "list[ReceivedMessage]") -> ResultTable:
    """Send messages again as new ones, like ``rmq consume --json | rmq produce``."""
    from rmq_core.client import Producer, ProducerOptions  # noqa: PLC0415 # --help does not need it
    from rmq_core.client.json_lines import line_of_message, message_of_line  # noqa: PLC0415

    rows = []
    options = ProducerOptions(tls=admin.access.tls)
    async with Producer(admin.namesrv, _GROUP, options, credentials=admin.access.credentials) as producer:
        for message in messages:
            sent = await producer.send(message_of_line(line_of_message(message), None))
            rows.append((message.msg_id, sent.status.name, sent.msg_id, sent.offset_msg_id))
    columns = ("original_msg_id", "status", "msg_id", "offset_msg_id")
    return ResultTable(columns, rows, code=EXIT_CLEAN if rows else EXIT_FINDINGS)


async def _queues(admin: "Admin", topic: str, broker_name: str | None, queue_id: int | None) -> "list[MessageQueue]":
    """List the queues of a topic that the options select. Raises OptionError if there are none, or -i lacks -b."""
    if queue_id is not None and broker_name is None:
        raise OptionError("-i: give -b too")
    queues = [
        queue
        for queue in sorted(await admin.queues(topic))
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not queues:
        with_id = "" if queue_id is None else f" with id {queue_id}"
        raise OptionError(f"{topic}: no queue{with_id} at broker {broker_name}")
    return queues


def _time_ms(option: str, text: str | None) -> int | None:
    return None if text is None else time_ms(option, text)


async def _bounds(admin: "Admin", queue: "MessageQueue", begin_ms: int | None, end_ms: int | None) -> tuple[int, int]:
    """Return the queue offset of the first selected message, and the offset after the last."""
    low = await (admin.offsets.min(queue) if begin_ms is None else admin.offsets.search(queue, begin_ms))
    high = await (admin.offsets.max(queue) if end_ms is None else admin.offsets.search(queue, end_ms))
    return low, high
