"""Groups of lite topics: their attributes, and the client types that are allowed.

Source: ``SubscriptionGroupConfig``, ``ClientProcessor#validateLiteMode``, ``#validateLiteBindTopic``.
"""

from typing import Any, Final

from rmq_core.proxy.errors import StatusError
from rmq_core.proxy.wire import v2
from rmq_core.remoting.bodies import SubscriptionGroupConfig
from rmq_core.remoting.bodies.lite import LITE_PARENT, LITE_QUOTA

LITE_CLIENTS: Final = (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER)  # the original has the first alone
_DEFAULT_QUOTA: Final = 2000
_MOST_QUOTA: Final = (1 << 31) - 1


def bound_topic(config: SubscriptionGroupConfig) -> str:
    """Return the topic whose children a group consumes; an empty name for groups without lite topics."""
    return config.attributes.get(LITE_PARENT, "")


def lite_quota(config: SubscriptionGroupConfig) -> int:
    """Return how many children a client of a group may subscribe to."""
    text = config.attributes.get(LITE_QUOTA, "")
    try:
        return max(-1, min(int(text), _MOST_QUOTA))
    except ValueError:  # none, or what a broker should not have taken
        return _DEFAULT_QUOTA


def check_bound_topic(config: SubscriptionGroupConfig, group: str, topic: str) -> None:
    """Refuse a topic other than the parent whose children the group consumes. Raises StatusError."""
    expected = bound_topic(config)
    if expected != topic:
        reason = f"lite group {group} is expected to bind topic {expected or None}, but actual is {topic}"
        raise StatusError(v2.ILLEGAL_TOPIC, reason)


def check_settings(config: SubscriptionGroupConfig, settings: Any) -> None:
    """Refuse lite consumers in other groups, other consumers in a lite group, and other topics. Raises StatusError."""
    group = settings.subscription.group.name
    is_lite_client, is_lite_group = settings.client_type in LITE_CLIENTS, bool(bound_topic(config))
    if is_lite_client and not is_lite_group:
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, f"regular group cannot use LITE mode: {group}")
    if is_lite_group and not is_lite_client:
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, f"lite group must use LITE mode: {group}")
    if is_lite_client:
        for entry in settings.subscription.subscriptions:
            check_bound_topic(config, group, entry.topic.name)
