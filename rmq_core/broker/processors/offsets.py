"""Queue offsets: consumer offsets, bounds of queues, offsets by time (request codes 14, 15, 29, 30, 31, 32).

Source: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from rmq_core.broker.processors.lite_names import parse_lite_queue
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.consumer_offsets import NONE
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.requests import QueryConsumerOffset, Queue, SearchOffset, UpdateConsumerOffset
from rmq_core.store.results import Boundary


class OffsetProcessor:
    """Handlers of requests for offsets: bounds of a queue, a group's offset, offset by time."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query_consumer_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET (14). A new group on a young queue begins at 0."""
        fields = read_fields(request, QueryConsumerOffset)
        offset = self._state.offsets.get(fields.topic, fields.consumer_group, fields.queue_id)
        if offset == NONE and fields.set_zero_if_not_found and self._is_young(fields.topic, fields.queue_id):
            offset = 0
        if offset == NONE:
            return request.response(
                int(ResponseCode.QUERY_NOT_FOUND), "Not found, maybe this group consumer boot first"
            )
        return request.response(ext_fields={"offset": str(offset)})

    def _is_young(self, topic: str, queue_id: int) -> bool:
        store = self._state.store
        return store.min_offset(topic, queue_id) <= 0 and store.is_in_memory(topic, queue_id, 0)

    def update_consumer_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """UPDATE_CONSUMER_OFFSET (15): commits a group's offset in a queue."""
        fields = read_fields(request, UpdateConsumerOffset)
        state = self._state
        if state.groups.get(fields.consumer_group) is None:
            return request.response(
                int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), f"Group {fields.consumer_group} not exist!"
            )
        topic = state.topics.get(fields.topic)
        if topic is None:
            return request.response(int(ResponseCode.TOPIC_NOT_EXIST), f"Topic {fields.topic} not exist!")
        is_queue = 0 <= fields.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
        if (
            not is_queue and state.store.queue(fields.topic, fields.queue_id) is None
        ):  # else the table grows without end
            remark = f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] has no such queue"
            return request.response(int(ResponseCode.INVALID_PARAMETER), remark)
        if state.offsets.is_reset(fields.topic, fields.consumer_group, fields.queue_id):
            return request.response(remark="Offset has been previously reset")
        state.offsets.commit(fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
        return request.response()

    def search_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the queue offset for a store time."""
        fields = read_fields(request, SearchOffset)
        boundary = Boundary.UPPER if fields.boundary_type.upper() == "UPPER" else Boundary.LOWER
        topic = parse_lite_queue(fields.topic, fields.lite_topic) if fields.lite_topic else fields.topic
        offset = self._state.store.offset_by_time(topic, fields.queue_id, fields.timestamp, boundary)
        return request.response(ext_fields={"offset": str(offset)})

    def max_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_MAX_OFFSET (30): the queue offset one past the newest message."""
        fields = read_fields(request, Queue)
        return request.response(ext_fields={"offset": str(self._state.store.max_offset(fields.topic, fields.queue_id))})

    def min_offset(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_MIN_OFFSET (31): the first readable queue offset."""
        fields = read_fields(request, Queue)
        return request.response(ext_fields={"offset": str(self._state.store.min_offset(fields.topic, fields.queue_id))})

    def earliest_time(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME (32): store timestamp of a queue's first message."""
        fields = read_fields(request, Queue)
        store = self._state.store
        timestamp_ms = store.store_timestamp_ms(
            fields.topic, fields.queue_id, store.min_offset(fields.topic, fields.queue_id)
        )
        return request.response(ext_fields={"timestamp": str(-1 if timestamp_ms is None else timestamp_ms)})
