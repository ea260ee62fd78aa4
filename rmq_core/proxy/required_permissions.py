"""Required permissions of each call: those of a broker's request code, on the topics and groups that the call names.

A change of an invisible time needs rights on the topic, too, where the original asks for the group alone.

Source: ``DefaultAuthorizationContextBuilder#build(Metadata, GeneratedMessageV3)``.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from rmq_core.broker.access.policies import Action, Permission, topic_permission
from rmq_core.broker.access.required_permissions import GROUP, RULES, TOPIC, Names
from rmq_core.proxy.checks import group_name, topic_name
from rmq_core.remoting.codes import RequestCode

_CODE = RequestCode


def _group(request: Any) -> Names:
    yield GROUP, group_name(request.group)


def _optional_group(request: Any) -> Names:
    if request.group.name:
        yield from _group(request)


def _topic(request: Any) -> Names:
    yield TOPIC, topic_name(request.topic)


def _group_and_topic(request: Any) -> Names:
    yield from _group(request)
    yield from _topic(request)


def _message_topics(request: Any) -> Names:
    for topic in dict.fromkeys(topic_name(message.topic) for message in request.messages):
        yield TOPIC, topic


def _queue_topic(request: Any) -> Names:
    return _topic(request.message_queue)


def _group_and_queue_topic(request: Any) -> Names:
    yield from _group(request)
    yield from _queue_topic(request)


_QUERY_ROUTE: Final = "QueryRoute"  # of producers and consumers; brokers have no such request
CALLS: Final[dict[str, tuple[RequestCode, Callable[[Any], Names]]]] = {
    "Heartbeat": (_CODE.HEART_BEAT, _optional_group),
    "SendMessage": (_CODE.SEND_MESSAGE_V2, _message_topics),
    "QueryAssignment": (_CODE.QUERY_ASSIGNMENT, _group_and_topic),
    "ReceiveMessage": (_CODE.POP_MESSAGE, _group_and_queue_topic),
    "AckMessage": (_CODE.ACK_MESSAGE, _group_and_topic),
    "ForwardMessageToDeadLetterQueue": (_CODE.CONSUMER_SEND_MSG_BACK, _group_and_topic),
    "PullMessage": (_CODE.PULL_MESSAGE, _group_and_queue_topic),
    "UpdateOffset": (_CODE.UPDATE_CONSUMER_OFFSET, _group_and_queue_topic),
    "GetOffset": (_CODE.QUERY_CONSUMER_OFFSET, _group_and_queue_topic),
    "QueryOffset": (_CODE.SEARCH_OFFSET_BY_TIMESTAMP, _queue_topic),
    "EndTransaction": (_CODE.END_TRANSACTION, _topic),
    "NotifyClientTermination": (_CODE.UNREGISTER_CLIENT, _optional_group),
    "ChangeInvisibleDuration": (_CODE.CHANGE_MESSAGE_INVISIBLETIME, _group_and_topic),
    "RecallMessage": (_CODE.RECALL_MESSAGE, _topic),
    "SyncLiteSubscription": (_CODE.LITE_SUBSCRIPTION_CTL, _group_and_topic),
}
"""The request code with the same permissions, and what reads the names of a call; it raises StatusError."""


def required_permissions(name: str, request: Any) -> tuple[Permission, ...] | None:
    """Return the required permissions of a call; None if only super users may call. Raises StatusError."""
    if name == _QUERY_ROUTE:
        return (topic_permission(topic_name(request.topic), Action.PUB, Action.SUB),)
    if name not in CALLS:
        return None
    code, names = CALLS[name]
    return tuple(RULES[code].permissions_on(names(request)))


def settings_permissions(settings: Any) -> Iterable[Permission]:
    """Yield the required permissions of a client's settings. Raises StatusError."""
    if settings.HasField("publishing"):
        topics = ((TOPIC, topic_name(topic)) for topic in settings.publishing.topics)
        yield from RULES[_CODE.SEND_MESSAGE_V2].permissions_on(topics)
    if settings.HasField("subscription"):
        pull = RULES[_CODE.PULL_MESSAGE]
        yield from pull.permissions_on(_group(settings.subscription))
        for subscription in settings.subscription.subscriptions:
            yield from pull.permissions_on(_topic(subscription))
