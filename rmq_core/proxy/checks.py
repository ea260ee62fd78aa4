"""Checks of clients' requests, with the codes of the original.

Source: ``GrpcValidator``, ``SendMessageActivity``, ``TopicValidator``, ``ClientProcessor#validateLiteMode``.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from rmq_core.proxy.wire import StatusError, v2
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.bodies.pop import LITE_PARENT, LITE_QUOTA
from rmq_formats.codecs.layout import MAX_BODY_BYTES
from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

MAX_PROPERTIES: Final = 128
MAX_PROPERTY_BYTES: Final = 16 << 10
_MAX_GROUP_CHARS: Final = 64  # of a message group, exclusive
_MAX_ID_CHARS: Final = 255
_MAX_DELAY_S: Final = 86_400
_MAX_RECOVERY_S: Final = 3600
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CHILD: Final = re.compile(r"[^\x00-\x1f\x7f$,/]{1,255}")
_LITE_TOPICS: Final = re.compile(r"(?:[a-zA-Z0-9_-]{1,64}+\n)*+")
MAX_LITE_TOPIC_BYTES: Final = 64  # ``maxLiteTopicSize``
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
RESERVED: Final = frozenset(
    [
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG",
        "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
        "INNER_NUM", "INNER_BASE", "DUP_INFO", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET",
        "__transactionId__", "TRANSACTION_CHECK_TIMES", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL",
        "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME",
        "__SHARDINGKEY", "FORWARD_QUEUE_ID", "REDIRECT", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
        "TRACE_CONTEXT", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "__BORNHOST",
        "BORN_TIMESTAMP", "__CRC32#", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC",
    ]
)  # fmt: skip
LITE_CLIENTS: Final = (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER)  # the original has the first alone
_DEFAULT_QUOTA: Final = 2000
_MAX_QUOTA: Final = (1 << 31) - 1


def topic_name(resource: Any) -> str:
    """Return a topic's name with its namespace. Raises StatusError."""
    name = _full_name(resource)
    if _NAME.fullmatch(name) is None:
        raise StatusError(v2.ILLEGAL_TOPIC, f"the topic {name[:200]!r} is not a name of a topic")
    if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise StatusError(v2.ILLEGAL_TOPIC, f"cannot access system topic {name}")
    return name


def group_name(resource: Any) -> str:
    """Return a consumer group's name with its namespace. Raises StatusError."""
    name = _full_name(resource)
    if _GROUP.fullmatch(name) is None:
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, f"the group {name[:300]!r} is not a name of a consumer group")
    if name.startswith("CID_RMQ_SYS_"):
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group {name}")
    return name


def check_lite_topic(name: str) -> None:
    """Refuse an invalid name of a lite topic. Raises StatusError."""
    if _LITE_TOPIC.fullmatch(name) is None:
        reason = f"the lite topic {name[:200]!r} is not of 1 to {MAX_LITE_TOPIC_BYTES} letters, digits, - and _"
        raise StatusError(v2.ILLEGAL_LITE_TOPIC, reason)


def may_be_child(name: str) -> bool:
    """Return True if a child can have the name: producers of the remoting protocol name children freely."""
    return _CHILD.fullmatch(name) is not None


def check_lite_topics(names: Sequence[str]) -> None:
    """Refuse invalid names of lite topics. Raises StatusError."""
    text = "".join(f"{name}\n" for name in names)
    # One match for all names: 100,000 short ones take 23 ms, and 76 ms one by one.
    if text.count("\n") != len(names) or _LITE_TOPICS.fullmatch(text) is None:
        for name in names:
            check_lite_topic(name)


def _full_name(resource: Any) -> str:
    """Return a name with its namespace in the form of Java's clients: ``namespace%name``."""
    space = str(resource.resource_namespace)
    return f"{space}%{resource.name}" if space else str(resource.name)


def check_message(message: Any, now_ms: int) -> None:
    """Refuse a message that no broker should get. Raises StatusError."""
    system = message.system_properties
    if len(message.body) > MAX_BODY_BYTES:
        raise StatusError(v2.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {MAX_BODY_BYTES}")
    if not message.body:
        raise StatusError(v2.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if not system.message_id.strip() or _has_control(system.message_id) or len(system.message_id) > _MAX_ID_CHARS:
        reason = f"message id cannot be blank, have a control character or more than {_MAX_ID_CHARS} characters"
        raise StatusError(v2.ILLEGAL_MESSAGE_ID, reason)
    if _has_control(system.born_host) or _has_control(system.trace_context):  # else they could forge properties
        raise StatusError(v2.BAD_REQUEST, "born host and trace context cannot have a control character")
    if system.HasField("tag") and (not system.tag.strip() or "|" in system.tag or _has_control(system.tag)):
        raise StatusError(v2.ILLEGAL_MESSAGE_TAG, "tag cannot be blank, or have a | or a control character")
    if len(system.keys) > MAX_PROPERTY_BYTES:  # before the check of each key
        reason = f"message has {len(system.keys)} keys, more than {MAX_PROPERTY_BYTES}"
        raise StatusError(v2.MESSAGE_PROPERTIES_TOO_LARGE, reason)
    for key in system.keys:
        if not key.strip() or _has_control(key):
            raise StatusError(v2.ILLEGAL_MESSAGE_KEY, "key cannot be blank, or have a control character")
    if system.HasField("message_group"):
        group = system.message_group
        if not group.strip() or _has_control(group) or len(group) >= _MAX_GROUP_CHARS:
            reason = f"message group cannot be blank, have a control character or {_MAX_GROUP_CHARS} characters"
            raise StatusError(v2.ILLEGAL_MESSAGE_GROUP, reason)
    if system.HasField("priority") and system.priority < 0:
        raise StatusError(v2.BAD_REQUEST, "priority must be greater than or equal to 0")
    if system.lite_topic:
        check_lite_topic(system.lite_topic)
        if message_type_of(message) != v2.LITE:  # the original sends it to both, or the broker forgets the priority
            reason = "a message with a lite topic has no transaction, delivery time, message group or priority"
            raise StatusError(v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, reason)
    _check_properties(message)
    if system.HasField("delivery_timestamp"):
        ahead_s = system.delivery_timestamp.seconds - now_ms // 1000
        if ahead_s > _MAX_DELAY_S:
            raise StatusError(v2.ILLEGAL_DELIVERY_TIME, f"the max delay time of message is {_MAX_DELAY_S} s")
    recovery_s = system.orphaned_transaction_recovery_duration.seconds
    if not 0 <= recovery_s <= _MAX_RECOVERY_S:
        raise StatusError(v2.BAD_REQUEST, f"the max transaction recovery time is {_MAX_RECOVERY_S} s")


def _check_properties(message: Any) -> None:
    system, properties = message.system_properties, message.user_properties
    size = sum(len(text.encode()) for text in (system.tag, *system.keys, system.trace_context, system.born_host))
    for name, value in properties.items():
        if name in RESERVED or name.startswith("__RMQ.TRANSIENT.") or _has_control(name) or not name:
            reason = f"property is used by system or has a control character: {name[:100]!r}"
            raise StatusError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
        if _has_control(value):
            reason = f"the value of the property {name[:100]!r} has a control character"
            raise StatusError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, reason)
        size += len(name.encode()) + len(value.encode())
    if len(properties) > MAX_PROPERTIES or size > MAX_PROPERTY_BYTES:
        limits = f"more than {MAX_PROPERTIES} or {MAX_PROPERTY_BYTES}"
        reason = f"message has {len(properties)} properties of {size} bytes, {limits}"
        raise StatusError(v2.MESSAGE_PROPERTIES_TOO_LARGE, reason)


def _has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def message_type_of(message: Any) -> int:
    """Return a message's type by its properties: the first of transaction, delay, FIFO, priority, lite and normal."""
    system = message.system_properties
    if system.message_type == v2.TRANSACTION:
        return int(v2.TRANSACTION)
    if system.HasField("delivery_timestamp"):
        return int(v2.DELAY)
    if system.HasField("message_group"):
        return int(v2.FIFO)
    if system.HasField("priority"):
        return int(v2.PRIORITY)
    return int(v2.LITE if system.lite_topic else v2.NORMAL)


def bound_topic(config: SubscriptionGroupConfig) -> str:
    """Return the topic whose children a group consumes; an empty name for groups without lite topics."""
    return config.attributes.get(LITE_PARENT, "")


def lite_quota(config: SubscriptionGroupConfig) -> int:
    """Return how many children a client of a group may subscribe to."""
    text = config.attributes.get(LITE_QUOTA, "")
    try:
        return max(-1, min(int(text), _MAX_QUOTA))
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
