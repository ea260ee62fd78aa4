"""Names that mean something: of system topics and groups, of retry and dead-letter topics; which names are valid.

Source: ``TopicValidator``, ``MixAll``, ``NamespaceUtil``.
"""

import re
from typing import Final

TEMPLATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
REPLY_POSTFIX: Final = "REPLY_TOPIC"

NOT_FOR_CLIENTS: Final = frozenset(
    [SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC]
)

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
RETRY_TOPIC: Final = "RETRY_TOPIC"  # a property: the topic that a message to retry comes from

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
)  # fmt: skip

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE

MAX_TOPIC_CHARS: Final = 127
MAX_GROUP_CHARS: Final = 255
_VALID = re.compile(r"[%|a-zA-Z0-9_-]+")


def topic_fault(topic: str) -> str | None:
    """What is wrong with a topic's name, in Java's words; None if nothing is."""
    if not topic.strip():
        return "The specified topic is blank."
    if _VALID.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > MAX_TOPIC_CHARS:
        return "The specified topic is longer than topic max length."
    return None


def is_group(name: str) -> bool:
    """Whether a consumer group may have this name."""
    return len(name) <= MAX_GROUP_CHARS and _VALID.fullmatch(name) is not None


def is_system_group(name: str) -> bool:
    """Whether a consumer group is one of RocketMQ's own."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The topic of a group's messages that failed."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of a group's messages that failed for good."""
    return DLQ_PREFIX + group
