"""Names of RocketMQ's system topics, and of topics that hold copies. Source: ``TopicValidator``, ``MixAll``."""

from typing import Final

from rmq_formats.codecs.layout import SCHEDULE_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"  # LMQ, light message queues: queues without a topic that a name server knows
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"  # half messages, whose flags do not tell them
SYSTEM_TOPICS: Final = frozenset(
    ["TBW102", SCHEDULE_TOPIC, "BenchmarkTest", HALF_TOPIC, "RMQ_SYS_TRACE_TOPIC",
     "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
     "CHECKPOINT_TOPIC"]
)  # fmt: skip
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
# Regular expression for a system topic's whole name. Java's prefix is rmq_sys_; users leave RMQ_SYS_ alone.
SYSTEM_TOPIC_PATTERN: Final = rf"(?:{SYSTEM_TOPIC_PREFIX}|RMQ_SYS_).*|{'|'.join(sorted(SYSTEM_TOPICS))}"
