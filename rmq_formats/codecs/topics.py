"""Names of RocketMQ's system topics, and of topics with copies of messages. Source: ``TopicValidator``, ``MixAll``."""

from typing import Final

from rmq_formats.codecs.layout import SCHEDULE_TOPIC
from rmq_formats.codecs.trace import TRACE_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"  # LMQ, light message queues: queues without a topic that a name server knows
TEMPLATE_TOPIC: Final = "TBW102"  # brokers have it as long as topics are created on demand
LITE_PREFIX: Final = f"{LIGHT_QUEUE_PREFIX}$"  # of the light queues of lite topics (5.5): %LMQ%$parent$child
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"  # half messages, whose flags do not tell them
SYSTEM_TOPICS: Final = frozenset(
    [TEMPLATE_TOPIC, SCHEDULE_TOPIC, "BenchmarkTest", HALF_TOPIC, TRACE_TOPIC,
     "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
     "CHECKPOINT_TOPIC"]
)  # fmt: skip
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
# Regular expression for a system topic's whole name. Java's prefix is rmq_sys_; users leave RMQ_SYS_ alone.
SYSTEM_TOPIC_PATTERN: Final = rf"(?:{SYSTEM_TOPIC_PREFIX}|RMQ_SYS_).*|{'|'.join(sorted(SYSTEM_TOPICS))}"


def is_broker_topic(topic: str) -> bool:
    """Return whether a broker itself makes a topic: nobody deletes such a topic with mqadmin."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX.upper()))


def is_consumed_by_broker(topic: str) -> bool:
    """Return whether the broker itself consumes a topic: a placeholder would be a message to it."""
    return topic != TRACE_TOPIC and topic.upper().startswith(("RMQ_SYS_", "SCHEDULE_TOPIC_"))


def lite_queue(parent: str, child: str) -> str:
    """Name of the light queue of a lite topic: a child of a topic of the type LITE. Source: ``LiteUtil#toLmqName``."""
    return f"{LITE_PREFIX}{parent}${child}"


def lite_parts(queue: str) -> tuple[str, str] | None:
    """Parent and child of a lite topic's light queue; None of other names. Source: ``LiteUtil#getParentTopic``."""
    parts = queue.removeprefix(LITE_PREFIX).split("$") if queue.startswith(LITE_PREFIX) else []
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None
