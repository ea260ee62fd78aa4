"""Extension fields of requests and responses of POP and of lite topics (5.5); see ``requests``.

Source: ``PopMessageRequestHeader``, ``AckMessageRequestHeader``, ``ChangeInvisibleTimeRequestHeader``,
``NotificationRequestHeader``, ``PollingInfoRequestHeader``, ``PopLiteMessageRequestHeader`` and its neighbours.
"""

from rmq_core.remoting.fields import Fields, Int32, Int64


class PopMessage(Fields, frozen=True, kw_only=True):
    """Fields of POP_MESSAGE (200050). ``queue_id`` -1: any; ``init_mode`` 0: a new group starts at the min offset."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to POP_MESSAGE."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessage(Fields, frozen=True, kw_only=True):
    """Fields of PEEK_MESSAGE (200052)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class AckMessage(Fields, frozen=True, kw_only=True):
    """Fields of ACK_MESSAGE (200051)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTime(Fields, frozen=True, kw_only=True):
    """Fields of CHANGE_MESSAGE_INVISIBLETIME (200053). ``suspend`` with a lite topic: of all its popped messages."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to CHANGE_MESSAGE_INVISIBLETIME."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class Notification(Fields, frozen=True, kw_only=True):
    """Fields of NOTIFICATION (200054)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None
    is_lite_consumer: bool = False
    client_id: str | None = None


class NotificationResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to NOTIFICATION."""

    has_msg: bool
    polling_full: bool = False


class PollingInfo(Fields, frozen=True, kw_only=True):
    """Fields of POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to POLLING_INFO."""

    polling_num: Int32


# Lite topics.


class PopLiteMessage(Fields, frozen=True, kw_only=True):
    """Fields of POP_LITE_MESSAGE (200070); times in ms. ``topic`` is the parent."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    attempt_id: str | None = None


class PopLiteResponse(Fields, frozen=True, kw_only=True):
    """Fields of the response to POP_LITE_MESSAGE; ``order_count_info`` has earlier deliveries by message, ``0;0;1``."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    order_count_info: str = ""


class NotifyUnsubscribeLite(Fields, frozen=True, kw_only=True):
    """Fields of NOTIFY_UNSUBSCRIBE_LITE (200073): the broker has assigned a client's lite topic to another client."""

    lite_topic: str
    consumer_group: str
    client_id: str


class LiteTopicName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str
    lite_topic: str = ""


class LiteClientName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_CLIENT_INFO (200077)."""

    parent_topic: str
    group: str
    client_id: str = ""
    max_count: Int32 = 1000


class LiteGroupName(Fields, frozen=True, kw_only=True):
    """Fields of GET_LITE_GROUP_INFO (200078). ``top_k``: number of lite topics in the response, if none is named."""

    group: str
    lite_topic: str = ""
    top_k: Int32 = 0


class LiteDispatch(Fields, frozen=True, kw_only=True):
    """Fields of TRIGGER_LITE_DISPATCH (200079). Without ``client_id`` for all clients of the group."""

    group: str
    client_id: str = ""
