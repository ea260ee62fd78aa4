"""Required permissions of each call, on topics and groups, as of the broker's requests.

A change of an invisible time needs rights on the topic, too, where the original asks for the group alone.

Source: ``DefaultAuthorizationContextBuilder#build(Metadata, GeneratedMessageV3)``.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from rmq_core.broker.access.policies import Action, Permission, group_permission, topic_permission
from rmq_core.proxy.checks import group_name, topic_name

Rule = Callable[[Any], Iterable[Permission]]
_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_READ: Final = (Action.SUB, Action.GET)
_COMMIT: Final = (Action.SUB, Action.UPDATE)


def _consumes(request: Any) -> Iterable[Permission]:
    yield group_permission(group_name(request.group), *_SUB)
    yield topic_permission(topic_name(request.topic), *_SUB)


def _sends(request: Any) -> Iterable[Permission]:
    for topic in dict.fromkeys(topic_name(message.topic) for message in request.messages):
        yield topic_permission(topic, *_PUB)


def _publishes(request: Any) -> Iterable[Permission]:
    yield topic_permission(topic_name(request.topic), *_PUB)


def _routes(request: Any) -> Iterable[Permission]:
    yield topic_permission(topic_name(request.topic), *_PUB, *_SUB)


def _stays_connected(request: Any) -> Iterable[Permission]:
    if request.group.name:
        yield group_permission(group_name(request.group), *_SUB)


def _queue(actions: Iterable[Action]) -> Rule:
    return lambda request: (topic_permission(topic_name(request.message_queue.topic), *actions),)


def _queue_of_group(actions: Iterable[Action]) -> Rule:
    def needs(request: Any) -> Iterable[Permission]:
        yield group_permission(group_name(request.group), *actions)
        yield topic_permission(topic_name(request.message_queue.topic), *actions)

    return needs


RULES: Final[dict[str, Rule]] = {
    "QueryRoute": _routes,
    "Heartbeat": _stays_connected,
    "SendMessage": _sends,
    "QueryAssignment": _consumes,
    "ReceiveMessage": _queue_of_group(_SUB),
    "AckMessage": _consumes,
    "ForwardMessageToDeadLetterQueue": _consumes,
    "PullMessage": _queue_of_group(_SUB),
    "UpdateOffset": _queue_of_group(_COMMIT),
    "GetOffset": _queue_of_group(_READ),
    "QueryOffset": _queue(_READ),
    "EndTransaction": _publishes,
    "NotifyClientTermination": _stays_connected,
    "ChangeInvisibleDuration": _consumes,
    "RecallMessage": _publishes,
    "SyncLiteSubscription": _consumes,
}
"""By the name of the call; a call without an entry is for super users. A rule raises StatusError for an invalid name.
"""


def required_permissions(name: str, request: Any) -> tuple[Permission, ...] | None:
    """Return the required permissions of a call; None if only super users may call. Raises StatusError."""
    rule = RULES.get(name)
    return None if rule is None else tuple(rule(request))


def settings_permissions(settings: Any) -> Iterable[Permission]:
    """Yield the required permissions of a client's settings. Raises StatusError."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            yield topic_permission(topic_name(topic), *_PUB)
    if settings.HasField("subscription"):
        yield group_permission(group_name(settings.subscription.group), *_SUB)
        for subscription in settings.subscription.subscriptions:
            yield topic_permission(topic_name(subscription.topic), *_SUB)
