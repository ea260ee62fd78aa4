"""Writer of check points and acknowledgements: timer messages in the revive topic, delivered when due.

Source: ``PopMessageProcessor#buildCkMsg``, ``AckMessageProcessor#appendAck``.
"""

from typing import Final

from rmq_core.broker.pop.outstanding import OutstandingPops
from rmq_core.broker.pop.records import CHECKPOINT, Acknowledgement, CheckPoint, Record, encode_record
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.store.results import PutResult, PutStatus
from rmq_formats.codecs.layout import PROPERTY_TAGS, PROPERTY_TIMER_DELIVER_MS, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties

_BEFORE_MS: Final = 1000  # from a check point to its acknowledgements: ``PopAckConstants.ackTimeInterval``


class PopJournal:
    """Writer of the revive topic; ``outstanding`` has unfinished check points written since the start."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._host = state.store_host.to_bytes()
        self.outstanding = OutstandingPops()
        self.topic = f"{names.REVIVE_PREFIX}{state.config.broker_cluster_name}"

    @property
    def queue_count(self) -> int:
        """Number of queues of the revive topic."""
        topic_config = self._state.topics.table.get(self.topic)
        return self._state.config.revive_queue_num if topic_config is None else topic_config.write_queue_nums

    def put_checkpoint(self, point: CheckPoint, queue_id: int) -> PutResult:
        """Append a check point. Raises ResponseError if timer messages are switched off."""
        state = self._state
        due_ms = state.steady_ms() + point.visible_ms - state.clock_ms()
        return self._put_checkpoint(point, queue_id, point.visible_ms, due_ms)

    def put_checkpoint_again(self, point: CheckPoint, queue_id: int, due_ms: int) -> PutResult:
        """Append an early check point, due at a time of the steady clock. Raises as ``put_checkpoint``."""
        return self._put_checkpoint(point, queue_id, self._state.time_of_day(due_ms), due_ms)

    def _put_checkpoint(self, point: CheckPoint, queue_id: int, visible_ms: int, due_ms: int) -> PutResult:
        result = self._put(point, CHECKPOINT, queue_id, visible_ms - _BEFORE_MS)
        if result.status is PutStatus.PUT_OK:
            self.outstanding.add(point, queue_id, due_ms)
        return result

    def put_ack(self, ack: Acknowledgement, queue_id: int, visible_ms: int) -> PutResult:
        """Append an acknowledgement of messages that would return at a time. Raises as ``put_checkpoint``."""
        result = self._put(ack, ack.tag, queue_id, visible_ms)
        if result.status is PutStatus.PUT_OK:
            self.outstanding.acknowledge(ack)
        return result

    def _put(self, record: Record, tag: str, queue_id: int, deliver_ms: int) -> PutResult:
        state, now_ms = self._state, self._state.clock_ms()
        properties = {
            PROPERTY_TAGS: tag,
            PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
            PROPERTY_UNIQ_KEY: record.unique_key,
        }
        topic, to_queue = state.timers.redirect(self.topic, queue_id, properties)
        return state.store.appender.put(
            topic, to_queue, encode_record(record), encode_properties(properties), now_ms, self._host, now_ms
        )
