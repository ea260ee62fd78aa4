"""Receipt handles of popped messages, built from a broker's response, and batches of acknowledgements.

Source: ``MQClientAPIImpl#processPopResponse``, ``BatchAckMessageRequestBody``.
"""

import base64
from collections.abc import Iterable, Mapping
from typing import Final

from rmq_core.remoting.bodies.pop import BatchAck
from rmq_core.remoting.pop import (
    IN_ORDER,
    AckMessage,
    ChangeInvisibleTimeResponse,
    PopHandle,
    PopResponse,
    TopicKind,
    decode_starts,
    retry_topic,
)
from rmq_core.remoting.requests import SendBackFields
from rmq_formats.codecs.layout import PROPERTY_POP_CK

_MAX_BITS: Final = 4096  # bits of a check point in a batch


class Handles:
    """Receipt handles of the messages of one response."""

    def __init__(self, response: PopResponse, broker_name: str) -> None:
        """Parse the fields of a response to a pop. Raises ValueError for an invalid field."""
        self._response = response
        self._broker_name = broker_name
        self._starts = decode_starts(response.start_offset_info or "")
        self._deliveries = _deliveries(response.order_count_info or "")

    def handle_of(self, properties: Mapping[str, str], queue_id: int, queue_offset: int) -> PopHandle:
        """Return the handle of a message; in retry topics the handle is a property. Raises ValueError."""
        text = properties.get(PROPERTY_POP_CK)
        if text is not None:
            return PopHandle.decode(text)
        pop, kind = self._response, TopicKind.NORMAL
        start, times = self._starts.get((kind, queue_id), queue_offset), (pop.pop_time, pop.invisible_time)
        return PopHandle(start, *times, pop.revive_qid, kind, self._broker_name, queue_id, queue_offset)

    def deliveries(self, queue_id: int, queue_offset: int, reconsume_times: int) -> int:
        """Return the number of earlier deliveries of a message; for unordered messages, the record's count."""
        return self._deliveries.get((queue_id, queue_offset), reconsume_times)


def _deliveries(text: str) -> dict[tuple[int, int], int]:
    """Parse ``orderCountInfo``: by queue and offset. Raises ValueError."""
    deliveries = {}
    for part in filter(None, text.split(";")):
        words = part.split(" ")
        if len(words) == 3 and words[1].startswith("qo"):
            queue, _, offset = words[1][2:].partition("%")
            deliveries[int(queue), int(offset)] = int(words[2])
    return deliveries


def changed_handle(handle: PopHandle, response: ChangeInvisibleTimeResponse) -> PopHandle:
    """Return the handle after a change of the invisible time: its new check point begins with the message.

    A pop in order has no check points. The time of the pop is no sign of one: a change in the same millisecond has it.
    """
    start = handle.start_offset if handle.revive_queue_id == IN_ORDER else handle.offset
    return handle._replace(start_offset=start, pop_time_ms=response.pop_time, invisible_ms=response.invisible_time)


def ack_fields(group: str, topic: str, handle: PopHandle, lite_topic: str | None = None) -> AckMessage:
    """Build the fields of ACK_MESSAGE for one message that the group popped of the topic or of a child."""
    return AckMessage(
        consumer_group=group,
        topic=retry_topic(group, topic, handle.kind),
        queue_id=handle.queue_id,
        extra_info=handle.encode(),
        offset=handle.offset,
        lite_topic=lite_topic,
    )


def dead_letter_fields(group: str, topic: str, physical_offset: int, message_id: str) -> SendBackFields:
    """Build the fields of CONSUMER_SEND_MSG_BACK that make a message a dead letter."""
    return SendBackFields(
        offset=physical_offset,
        group=group,
        delay_level=-1,
        origin_msg_id=message_id,
        origin_topic=topic,
        max_reconsume_times=0,
    )


def fits_into_batch(handle: PopHandle) -> bool:
    """Return True if a bit of a batch can name the message: a high offset makes the bit set too long."""
    return handle.revive_queue_id == IN_ORDER or handle.offset - handle.start_offset < _MAX_BITS


def batch_ack_entries(group: str, topic: str, handles: Iterable[PopHandle]) -> list[BatchAck]:
    """Build the entries of BATCH_ACK_MESSAGE for messages of one topic and one broker, by check point."""
    bits_of: dict[PopHandle, list[int]] = {}
    for handle in handles:
        # A pop in order has no check point, so bits count from the first named message.
        start = handle.offset if handle.revive_queue_id == IN_ORDER else handle.start_offset
        bits_of.setdefault(handle._replace(start_offset=start, offset=start), []).append(handle.offset - start)
    return [
        BatchAck(
            b=_bit_set(bits),
            c=group,
            it=point.invisible_ms,
            pt=point.pop_time_ms,
            q=point.queue_id,
            r=str(int(point.kind)),
            rq=point.revive_queue_id,
            so=point.start_offset,
            t=topic,
        )
        for point, bits in bits_of.items()
    ]


def _bit_set(bits: Iterable[int]) -> str:
    number = sum(1 << bit for bit in set(bits))
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()
