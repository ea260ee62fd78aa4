"""What each call of the gRPC service needs: rights on topics and groups, as the broker's requests do.

A change of an invisible time needs rights on the topic, too, where the original asks for the group alone.

Source: ``DefaultAuthorizationContextBuilder#build(Metadata, GeneratedMessageV3)``.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from rmq_core.broker.access.policies import Action, Need, group_need, topic_need
from rmq_core.proxy.checks import group_name, topic_name

Rule = Callable[[Any], Iterable[Need]]
_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_READ: Final = (Action.SUB, Action.GET)
_COMMIT: Final = (Action.SUB, Action.UPDATE)


def _consumes(asked: Any) -> Iterable[Need]:
    yield group_need(group_name(asked.group), *_SUB)
    yield topic_need(topic_name(asked.topic), *_SUB)


def _sends(asked: Any) -> Iterable[Need]:
    for topic in dict.fromkeys(topic_name(message.topic) for message in asked.messages):
        yield topic_need(topic, *_PUB)


def _publishes(asked: Any) -> Iterable[Need]:
    yield topic_need(topic_name(asked.topic), *_PUB)


def _routes(asked: Any) -> Iterable[Need]:
    yield topic_need(topic_name(asked.topic), *_PUB, *_SUB)


def _is_there(asked: Any) -> Iterable[Need]:
    if asked.group.name:
        yield group_need(group_name(asked.group), *_SUB)


def _queue(actions: Iterable[Action]) -> Rule:
    return lambda asked: (topic_need(topic_name(asked.message_queue.topic), *actions),)


def _queue_of_group(actions: Iterable[Action]) -> Rule:
    def needs(asked: Any) -> Iterable[Need]:
        yield group_need(group_name(asked.group), *actions)
        yield topic_need(topic_name(asked.message_queue.topic), *actions)

    return needs


RULES: Final[dict[str, Rule]] = {
    "QueryRoute": _routes,
    "Heartbeat": _is_there,
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
    "NotifyClientTermination": _is_there,
    "ChangeInvisibleDuration": _consumes,
    "RecallMessage": _publishes,
    "SyncLiteSubscription": _consumes,
}
"""By the name of the call; a call without an entry is for super users. Raise StatusError for names that are none."""


def needs_of(name: str, asked: Any) -> tuple[Need, ...] | None:
    """What a call needs; None if it is for super users. Raises StatusError."""
    rule = RULES.get(name)
    return None if rule is None else tuple(rule(asked))


def of_settings(settings: Any) -> Iterable[Need]:
    """What a client needs to have settings. Raises StatusError."""
    if settings.HasField("publishing"):
        for topic in settings.publishing.topics:
            yield topic_need(topic_name(topic), *_PUB)
    if settings.HasField("subscription"):
        yield group_need(group_name(settings.subscription.group), *_SUB)
        for one in settings.subscription.subscriptions:
            yield topic_need(topic_name(one.topic), *_SUB)
