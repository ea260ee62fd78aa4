"""Units of a ConsumeQueue, for administrators (request code 321, mqadmin's ``queryCq``).

Source: ``AdminBrokerProcessor#queryConsumeQueue``.
"""

import base64
from typing import Final

from msgspec import UNSET

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.subscription_filter import Filter, filter_of, is_tag_type
from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.stats import QueueExtData, QueueUnit, QueueUnits
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryConsumeQueue
from rmq_core.store.consumequeue.batch_queue import BatchQueue
from rmq_core.store.consumequeue.table import Queue
from rmq_formats.codecs.consumequeue import UNIT
from rmq_formats.codecs.consumequeue_ext import ExtUnit, is_ext_address

_MOST: Final = 4096  # units of an answer: some 400 KiB


class QueryConsumeQueueProcessor:
    """Handler of QUERY_CONSUME_QUEUE."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_CONSUME_QUEUE: self.query}

    def query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """Return up to 4,096 units of one file from a queue offset on (QUERY_CONSUME_QUEUE, 321)."""
        fields = read_fields(request, QueryConsumeQueue)
        queue = self._state.store.queue(fields.topic, fields.queue_id)
        if queue is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{fields.queue_id}@{fields.topic} is not exist!")
        group, message_filter, filter_text, subscription = fields.consumer_group, None, None, None
        if group:
            subscription = self._subscription(fields.topic, group)
            message_filter, filter_text = self._filter(fields.topic, group, subscription)
        units = [_encode_unit(queue, unit, message_filter) for unit in _read_units(queue, fields.index, fields.count)]
        body = QueueUnits(
            filter_data=UNSET if filter_text is None else filter_text, max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset, queue_data=units,
            subscription_data=UNSET if subscription is None else subscription,
        )  # fmt: skip
        return request.response(body=encode_body(body))

    def _subscription(self, topic: str, group: str) -> SubscriptionData | None:
        members = self._state.consumers.groups.get(group)
        return None if members is None else members.subscriptions.get(topic)

    def _filter(self, topic: str, group: str, subscription_data: SubscriptionData | None) -> tuple[Filter | None, str]:
        """Return the filter of a group and its text; None without a filter."""
        if subscription_data is None:
            return None, f"{group}@{topic} is not online!"
        registered = self._state.filters.get(topic, group)
        if registered is None:
            return (filter_of(subscription_data) if is_tag_type(subscription_data.expression_type) else None), "null"
        return registered.filter, encode_body(registered.data).decode()


def _read_units(queue: Queue, index: int, count: int) -> list[tuple[int, int, int]]:
    """Return physical offset, size and tags code of units from a queue offset on; of whole batches in a batch queue."""
    begin = max(index, queue.min_offset)
    count = max(0, min(count - (begin - index), _MOST))
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
        bit_map_size=len(ext.bit_map), filter_bit_map=base64.b64encode(ext.bit_map).decode(),
        msg_store_time=ext.store_timestamp_ms, size=ext.size, tags_code=ext.tags_code,
    )  # fmt: skip
    return QueueUnit(
        eval=message_filter is not None and _may_match(ext, message_filter),
        extend_data_json=encode_body(data).decode(), physic_offset=physical_offset, physic_size=size,
        tags_code=ext.tags_code,
    )  # fmt: skip


def _may_match(ext: ExtUnit, message_filter: Filter) -> bool:
    if message_filter.tags_codes is not None and ext.tags_code not in message_filter.tags_codes:
        return False
    return message_filter.may_match_unit is None or message_filter.may_match_unit(ext.store_timestamp_ms, ext.bit_map)
