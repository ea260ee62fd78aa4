"""The extension fields of requests about lite topics (5.5), and of their answers; see ``requests``.

Source: ``PopLiteMessageRequestHeader`` and its neighbours.
"""

from rmq_core.remoting.fields import Fields, Int32, Int64


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


class PopLiteAnswer(Fields, frozen=True, kw_only=True):
    """Its answer. ``order_count_info``: how often each message was taken before, ``0;0;1``."""

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
    """Fields of GET_LITE_GROUP_INFO (200078). ``top_k``: number of lite topics in the answer, where none is named."""

    group: str
    lite_topic: str = ""
    top_k: Int32 = 0


class LiteDispatch(Fields, frozen=True, kw_only=True):
    """Fields of TRIGGER_LITE_DISPATCH (200079). Without ``client_id`` for all clients of the group."""

    group: str
    client_id: str = ""
