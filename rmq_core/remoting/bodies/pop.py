"""Bodies of POP.

Source: ``BatchAckMessageRequestBody``, ``BatchAck``, ``QueryAssignmentRequestBody``, ``MessageQueueAssignment``.
"""

import msgspec

from rmq_core.remoting.bodies.codec import BodyStruct, MessageQueue
from rmq_core.remoting.bodies.enums import MessageModel, RequestMode


class BatchAck(BodyStruct, frozen=True, kw_only=True):
    """Acknowledged messages of one check point, in BATCH_ACK_MESSAGE's body.

    Attributes:
        b: base64 of the bits, as ``java.util.BitSet`` has them: bit i is the queue offset ``so`` + i.
        c: consumer group.
        it: for how long they are invisible, ms.
        pt: when they were popped.
        q: queue id.
        r: kind of the topic that they were popped from.
        rq: revive queue.
        so: start offset.
        t: the normal topic.
    """

    b: str = ""
    c: str = ""
    it: int = 0
    pt: int = 0
    q: int = 0
    r: str = "0"
    rq: int = 0
    so: int = 0
    t: str = ""


class BatchAcks(BodyStruct, frozen=True, kw_only=True):
    """Body of BATCH_ACK_MESSAGE."""

    acks: list[BatchAck] = msgspec.field(default_factory=list)
    broker_name: str = ""


class QueryAssignment(BodyStruct, frozen=True, kw_only=True):
    """Body of QUERY_ASSIGNMENT (400): which queues of a topic a client is to read."""

    client_id: str = ""
    consumer_group: str = ""
    message_model: MessageModel = "CLUSTERING"
    strategy_name: str = ""
    topic: str = ""


class Assignment(BodyStruct, frozen=True, kw_only=True):
    """A queue, or with the queue id -1 all of a broker, to read.

    Attributes:
        message_queue: the queue.
        mode: ``PULL`` or ``POP``.
    """

    message_queue: MessageQueue
    mode: RequestMode


class Assignments(BodyStruct, frozen=True, kw_only=True):
    """Answer to QUERY_ASSIGNMENT."""

    message_queue_assignments: list[Assignment] | None = None
