"""Lookups: messages by key and by physical offset, units of a ConsumeQueue (request codes 12, 33, 321).

Source: ``QueryMessageProcessor``; of mqadmin's ``queryCq`` ``AdminBrokerProcessor#queryConsumeQueue``.
"""

import base64
from itertools import accumulate
from typing import Final

from msgspec import UNSET

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.subscription_filter import Filter, compile_subscription, is_tag_type
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.stats import QueueExtData, QueueUnit, QueueUnits
from rmq_core.remoting.codes import UNIQUE_KEY_QUERY, RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.frames import MAX_FRAME_BYTES
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryConsumeQueue, QueryMessage, ViewMessage
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.table import Queue
from rmq_core.store.results import KeyKind
from rmq_formats.codecs.consumequeue import UNIT
from rmq_formats.codecs.consumequeue_ext import ExtUnit, is_ext_address
from rmq_formats.codecs.layout import PROPERTY_REAL_TOPIC
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.topics import TIMER_TOPIC

_WAITING_TOPICS: Final = (names.SCHEDULE_TOPIC, TIMER_TOPIC, names.HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC)
_KINDS: Final = {"U": KeyKind.UNIQUE, "T": KeyKind.TAGS}  # sent by clients from 5.4 on
_MAX_UNIQUE: Final = 32
_MAX_BYTES: Final = MAX_FRAME_BYTES - (1 << 20)  # of the newest records that fit into a frame with its header
_MAX_UNITS: Final = 4096  # units of an answer: some 400 KiB


class QueryMessageProcessor:
    """Handler of QUERY_MESSAGE, VIEW_MESSAGE_BY_ID and QUERY_CONSUME_QUEUE."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue,
        }

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return a topic's messages with a key, a UNIQ_KEY or TAGS, from the Index (QUERY_MESSAGE, 12)."""
        fields = read_fields(request, QueryMessage)
        unique = request.ext_fields.get(UNIQUE_KEY_QUERY, "").lower() == "true"
        kind = KeyKind.UNIQUE if unique else _KINDS.get(fields.index_type or "", KeyKind.ANY)
        limit = _MAX_UNIQUE if kind is KeyKind.UNIQUE else fields.max_num
        result = self._state.store.query(
            fields.topic, fields.key, limit, fields.begin_timestamp, fields.end_timestamp, kind=kind
        )
        ext_fields = {
            "indexLastUpdateTimestamp": str(result.last_update_timestamp_ms),
            "indexLastUpdatePhyoffset": str(result.last_update_physical_offset),
        }
        if not result.records:
            remark = "can not find message, maybe time range not correct"
            return request.response(int(ResponseCode.QUERY_NOT_FOUND), remark, ext_fields)
        return request.response(ext_fields=ext_fields, body=b"".join(_select_fitting(result.records)))

    def view(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return the record at a physical offset, if it is of the request's topic (VIEW_MESSAGE_BY_ID, 33)."""
        fields = read_fields(request, ViewMessage)
        record = self._state.store.record(fields.offset)
        if record is None:
            remark = f"can not find message by the offset, {fields.offset}"
            return request.response(int(ResponseCode.SYSTEM_ERROR), remark)
        topic = fields.topic or ""
        if topic.strip() and not _is_of_topic(self._state.store.message(fields.offset), topic):
            return request.response(int(ResponseCode.NO_PERMISSION), "The topic does not match the message")
        return request.response(body=record)

    def query_consume_queue(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return up to 4,096 units of one file from a queue offset on (QUERY_CONSUME_QUEUE, 321)."""
        fields = read_fields(request, QueryConsumeQueue)
        queue = self._state.store.queue(fields.topic, fields.queue_id)
        if queue is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{fields.queue_id}@{fields.topic} is not exist!")
        group, message_filter, filter_text, subscription = fields.consumer_group, None, None, None
        if group:
            subscription = self._state.consumers.subscription(group, fields.topic)
            message_filter, filter_text = self._filter(fields.topic, group, subscription)
        units = [_encode_unit(queue, unit, message_filter) for unit in _read_units(queue, fields.index, fields.count)]
        body = QueueUnits(
            filter_data=UNSET if filter_text is None else filter_text,
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=units,
            subscription_data=UNSET if subscription is None else subscription,
        )
        return request.response(body=encode_body(body))

    def _filter(self, topic: str, group: str, subscription_data: SubscriptionData | None) -> tuple[Filter | None, str]:
        if subscription_data is None:
            return None, f"{group}@{topic} is not online!"
        registered = self._state.filters.get(topic, group)
        if registered is None:
            has_tags = is_tag_type(subscription_data.expression_type)
            return compile_subscription(subscription_data) if has_tags else None, "null"
        return registered.filter, encode_body(registered.data).decode()


def _is_of_topic(message: StoredMessage | None, topic: str) -> bool:
    """Return whether a message belongs to a topic or waits for it. Source: ``#matchesRequestTopic`` of 5.5.1."""
    if message is not None and message.topic in _WAITING_TOPICS:
        return message.properties.get(PROPERTY_REAL_TOPIC) == topic
    return message is not None and message.topic == topic


def _select_fitting(records: list[memoryview]) -> list[memoryview]:
    """Return the newest records that fit into one response, oldest first, as ``DefaultMessageStore#queryMessage``."""
    sizes = accumulate(map(len, records))
    return [record for record, end in zip(records, sizes, strict=True) if end <= _MAX_BYTES][::-1]


def _read_units(queue: Queue, index: int, count: int) -> list[tuple[int, int, int]]:
    """Return physical offset, size and tags code of units from a queue offset on; of whole batches in a batch queue."""
    begin = max(index, queue.min_offset)
    count = max(0, min(count - (begin - index), _MAX_UNITS))
    if isinstance(queue, BatchQueue):
        rows = queue.units(queue.find_row(begin), count) if begin < queue.max_offset else ()
        return [(int(row["physical_offset"]), int(row["size"]), int(row["tags_code"])) for row in rows]
    return list(UNIT.iter_unpack(queue.read(begin, count)))


def _encode_unit(queue: Queue, unit: tuple[int, int, int], message_filter: Filter | None) -> QueueUnit:
    """Convert a unit for the response, with the unit of ConsumeQueueExt that its tags code may refer to."""
    physical_offset, size, tags_code = unit
    if queue.ext is None or not is_ext_address(tags_code):
        return QueueUnit(physic_offset=physical_offset, physic_size=size, tags_code=tags_code)
    ext = queue.ext.at(tags_code)
    if ext is None:
        text = f"Cq extend not exist!addr: {tags_code}"
        return QueueUnit(msg=text, physic_offset=physical_offset, physic_size=size, tags_code=tags_code)
    data = QueueExtData(
        bit_map_size=len(ext.bit_map),
        filter_bit_map=base64.b64encode(ext.bit_map).decode(),
        msg_store_time=ext.store_timestamp_ms,
        size=ext.size,
        tags_code=ext.tags_code,
    )
    return QueueUnit(
        eval=message_filter is not None and _may_match(ext, message_filter),
        extend_data_json=encode_body(data).decode(),
        physic_offset=physical_offset,
        physic_size=size,
        tags_code=ext.tags_code,
    )


def _may_match(ext: ExtUnit, message_filter: Filter) -> bool:
    if message_filter.tags_codes is not None and ext.tags_code not in message_filter.tags_codes:
        return False
    return message_filter.may_match_unit is None or message_filter.may_match_unit(ext.store_timestamp_ms, ext.bit_map)
