"""The kinds of findings in what other layouts than the classic one have: DLedger, controller mode, tiers, compaction.

``finding_kinds`` has all others, and the list of all.
"""

from typing import Final

from rmq_offline.verify.findings import Kind, error, unrepaired_error, unrepaired_warning, warning

# --- DLedger: headers of entries, its index, its state ----------------------------------
_FROM_MEMBER = "from another member of the group"
ENTRY_HEADER: Final = error(
    "dledger.entry.header",
    "a broker of the group takes such a header for the end of its log; the record behind it is sound: stop "
    "the broker and run rmq repair, which writes the header anew where it is certain",
)
ENTRY_ORDER: Final = error(
    "dledger.entry.order", f"entries are missing here, or those of another log follow; restore the file {_FROM_MEMBER}"
)
ENTRY_UNIT: Final = warning(
    "dledger.index.unit",
    "members that are behind cannot be sent these entries; a broker that starts writes the units of its last three "
    "files anew: stop the broker and run rmq repair",
)
ENTRY_UNIT_SURPLUS: Final = warning(
    "dledger.index.surplus",
    "the index has units of entries that the log does not, as after a crash that lost the log's last pages; stop "
    "the broker and run rmq repair",
)
DLEDGER_CHECKPOINT: Final = warning(
    "dledger.checkpoint",
    f"it speaks of entries that the log does not have, or does not parse; rmq repair writes it anew unless "
    f"committed entries are missing: restore the files {_FROM_MEMBER} then",
)
DLEDGER_TERM: Final = unrepaired_warning(
    "dledger.currterm",
    "it is behind the term of the last entry, or does not parse: the member could vote twice in one term; restore it",
)

# --- controller mode --------------------------------------------------------------------
_FROM_REPLICA = (
    "restore the file from a replica of the group, or let the broker join the group anew with an empty store"
)
EPOCH_FILE: Final = unrepaired_warning(
    "controller.epoch_file",
    "a broker that starts takes the .bak beside it, and without one cannot tell which part of its log is its master's: "
    f"{_FROM_REPLICA}",
)
EPOCH: Final = unrepaired_warning(
    "controller.epoch",
    f"brokers of a group compare epochs to find where their logs part, and cut there: {_FROM_REPLICA}",
)
EPOCH_BEYOND: Final = unrepaired_warning(
    "controller.epoch.beyond",
    "the log was longer when this epoch began, as after a crash that lost its last pages; take what is missing from "
    "another replica of the group",
)
BROKER_IDENTITY: Final = unrepaired_warning(
    "controller.identity",
    "a broker does not start so; write cluster#broker#brokerId into it, with the number that the controller knows",
)

# --- logs of single queues: tiered storage, compacted topics ------------------------------
QUEUE_LOG_RECORD: Final = unrepaired_error(
    "queue_log.record",
    "no sound record of the queue is here; where the CommitLog still has the message nothing is lost yet: copy it from "
    "there, or from a replica",
)
QUEUE_LOG_ORDER: Final = unrepaired_error(
    "queue_log.order", "messages are missing here, or twice; look for them in the CommitLog, or at a replica"
)
QUEUE_LOG_SEGMENT_MISSING: Final = unrepaired_error(
    "queue_log.segment.missing", "restore the segment from a copy of the tier; the CommitLog may still have it"
)
QUEUE_LOG_UNIT: Final = unrepaired_error(
    "queue_log.unit", "consumers that read here get another message, or none; the record itself is sound"
)
QUEUE_LOG_UNIT_MISSING: Final = unrepaired_error(
    "queue_log.unit.missing", "consumers that read here do not get these messages; the records are sound"
)
QUEUE_LOG_UNIT_LOST: Final = unrepaired_error(
    "queue_log.unit.lost",
    "the message was in a damaged range, and is lost unless the CommitLog still has it",
)
QUEUE_LOG_DIFFERS: Final = unrepaired_error(
    "queue_log.differs",
    "one of the two is of another time, as after a topic was deleted and made again, or after a master changed",
)
TIER_SEGMENT_SIZE: Final = unrepaired_error(
    "tier.segment.size", "the end of the segment was cut off; restore it from a copy of the tier"
)
TIER_GAP: Final = unrepaired_error(
    "tier.gap", "the CommitLog expired before they were copied, or the tier was cut; restore them from a replica"
)
TIER_METADATA: Final = unrepaired_warning(
    "tier.metadata",
    "a broker that starts so knows none of its segments, and begins its tier anew; restore the file, or its .bak",
)
TIER_MISSING: Final = unrepaired_error("tier.missing", "give the path that the broker has as tieredStoreFilePath")
COMPACTION_CHECKPOINT: Final = unrepaired_warning(
    "compaction.checkpoint",
    "messages up to there count as compacted, so that a broker does not write them to the queue's log "
    "again; restore the file from a copy of the store",
)

ALL: Final[tuple[Kind, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Kind))
