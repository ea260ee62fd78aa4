"""Names of system topics and groups, of retry and dead-letter topics; checks of names.

Source: ``TopicValidator``, ``MixAll``, ``NamespaceUtil``.
"""

import re
from typing import Final

from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX

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
MAX_AUTO_CREATED_TOPICS: Final = 10_000
"""Topics above which none is made for a message, and groups above which none is made for a consumer: encoding a file
of so many keeps the event loop for some 70 ms. Administrators may make more."""
_VALID = re.compile(r"[%|a-zA-Z0-9_-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def find_topic_name_problem(topic: str) -> str | None:
    """Return the error of an invalid topic name, in Java's words; None for a valid name."""
    if not topic.strip():
        return "The specified topic is blank."
    if _VALID.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > MAX_TOPIC_CHARS:
        return "The specified topic is longer than topic max length."
    if has_lmq_prefix(topic):  # its queues would look like light queues, so that the store would be refused
        return f"Names that begin with {LIGHT_QUEUE_PREFIX} are those of light queues, which are no topics."
    return None


def has_lmq_prefix(name: str) -> bool:
    """Return whether a name belongs to a light queue (LMQ) or to a group of light queues. Source: ``MixAll#isLmq``."""
    return name.startswith(LIGHT_QUEUE_PREFIX)


def is_valid_lmq_group(name: str) -> bool:
    """Return whether a name is valid for a group of light queues, which clients name freely."""
    return has_lmq_prefix(name) and len(name) <= MAX_GROUP_CHARS and _CONTROL.search(name) is None


def is_group(name: str) -> bool:
    """Return whether a name is valid for a consumer group."""
    return len(name) <= MAX_GROUP_CHARS and _VALID.fullmatch(name) is not None


def is_system_group(name: str) -> bool:
    """Return whether a consumer group is a system group."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the retry topic of a consumer group."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic of a consumer group."""
    return DLQ_PREFIX + group
