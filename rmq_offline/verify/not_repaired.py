"""Kinds of findings that a repair of log and queues does not remove."""

from typing import Final

from rmq_offline.verify import finding_kinds, layout_finding_kinds

NOT_REPAIRED: Final = frozenset(
    {
        finding_kinds.LOG_HEADER,
        finding_kinds.LOG_TIME,
        finding_kinds.LOG_CLOCK,
        finding_kinds.QUEUE_OFFSET_REPEATED,
        finding_kinds.QUEUE_OFFSET_DISPLACED,
        finding_kinds.QUEUE_OFFSET_GAP,
        finding_kinds.QUEUE_BEGINS_LATE,
        finding_kinds.QUEUE_PASSED_OVER,
        finding_kinds.QUEUE_ABSENT,
        finding_kinds.UNIT_NOT_ADDED,
        finding_kinds.EXT_REUSED,
        finding_kinds.SEGMENT_UNREADABLE,
        finding_kinds.SEGMENT_COMPRESSED,
        finding_kinds.LOG_MISSING,
        finding_kinds.TOPIC_UNKNOWN,
        finding_kinds.CONFIG_LOST,
        finding_kinds.CONFIG_TOPICS,
        finding_kinds.CONFIG_DATABASE,
        finding_kinds.CONSUMER_OFFSET,
        finding_kinds.DELAY_OFFSET,
        finding_kinds.OFFSET_NEGATIVE,
        finding_kinds.OFFSET_WITHOUT_QUEUE,
        finding_kinds.BACKSLASH,
        layout_finding_kinds.DLEDGER_TERM,
        layout_finding_kinds.QUEUE_LOG_RECORD,
        layout_finding_kinds.QUEUE_LOG_ORDER,
        layout_finding_kinds.QUEUE_LOG_SEGMENT_MISSING,
        layout_finding_kinds.QUEUE_LOG_UNIT,
        layout_finding_kinds.QUEUE_LOG_UNIT_MISSING,
        layout_finding_kinds.QUEUE_LOG_UNIT_LOST,
        layout_finding_kinds.QUEUE_LOG_DIFFERS,
        layout_finding_kinds.TIER_SEGMENT_SIZE,
        layout_finding_kinds.TIER_GAP,
        layout_finding_kinds.TIER_METADATA,
        layout_finding_kinds.TIER_MISSING,
        layout_finding_kinds.COMPACTION_CHECKPOINT,
        layout_finding_kinds.EPOCH_FILE,
        layout_finding_kinds.EPOCH,
        layout_finding_kinds.EPOCH_BEYOND,
        layout_finding_kinds.BROKER_IDENTITY,
    }
)
