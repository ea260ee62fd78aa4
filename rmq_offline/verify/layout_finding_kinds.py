"""The kinds of findings in what other layouts than the classic one have: DLedger, controller mode, tiers, compaction.

``finding_kinds`` has all others, and the list of all.
"""

from typing import Final

from rmq_offline.verify.findings import Kind, Severity

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

# --- DLedger: headers of entries, its index, its state ----------------------------------
_FROM_MEMBER = "from another member of the group"
ENTRY_HEADER: Final = Kind(
    "dledger.entry.header",
    _ERROR,
    "a broker of the group takes such a header for the end of its log; the record behind it is sound: stop "
    "the broker and run rmq repair, which writes the header anew where it is certain",
)
ENTRY_ORDER: Final = Kind(
    "dledger.entry.order",
    _ERROR,
    f"entries are missing here, or those of another log follow; restore the file {_FROM_MEMBER}",
)
ENTRY_UNIT: Final = Kind(
    "dledger.index.unit",
    _WARNING,
    "members that are behind cannot be sent these entries; a broker that starts writes the units of its last three "
    "files anew: stop the broker and run rmq repair",
)
ENTRY_UNIT_SURPLUS: Final = Kind(
    "dledger.index.surplus",
    _WARNING,
    "the index has units of entries that the log does not, as after a crash that lost the log's last pages; stop "
    "the broker and run rmq repair",
)
DLEDGER_CHECKPOINT: Final = Kind(
    "dledger.checkpoint",
    _WARNING,
    f"it speaks of entries that the log does not have, or does not parse; rmq repair writes it anew unless "
    f"committed entries are missing: restore the files {_FROM_MEMBER} then",
)
DLEDGER_TERM: Final = Kind(
    "dledger.currterm",
    _WARNING,
    "it is behind the term of the last entry, or does not parse: the member could vote twice in one term; restore it",
    is_repaired=False,
)

# --- controller mode --------------------------------------------------------------------
_FROM_REPLICA = (
    "restore the file from a replica of the group, or let the broker join the group anew with an empty store"
)
EPOCH_FILE: Final = Kind(
    "controller.epoch_file",
    _WARNING,
    "a broker that starts takes the .bak beside it, and without one cannot tell which part of its log is its master's: "
    f"{_FROM_REPLICA}",
    is_repaired=False,
)
EPOCH: Final = Kind(
    "controller.epoch",
    _WARNING,
    f"brokers of a group compare epochs to find where their logs part, and cut there: {_FROM_REPLICA}",
    is_repaired=False,
)
EPOCH_BEYOND: Final = Kind(
    "controller.epoch.beyond",
    _WARNING,
    "the log was longer when this epoch began, as after a crash that lost its last pages; take what is missing from "
    "another replica of the group",
    is_repaired=False,
)
BROKER_IDENTITY: Final = Kind(
    "controller.identity",
    _WARNING,
    "a broker does not start so; write cluster#broker#brokerId into it, with the number that the controller knows",
    is_repaired=False,
)

# --- logs of single queues: tiered storage, compacted topics ------------------------------
QUEUE_LOG_RECORD: Final = Kind(
    "queue_log.record",
    _ERROR,
    "no sound record of the queue is here; where the CommitLog still has the message nothing is lost yet: copy it from "
    "there, or from a replica",
    is_repaired=False,
)
QUEUE_LOG_ORDER: Final = Kind(
    "queue_log.order",
    _ERROR,
    "messages are missing here, or twice; look for them in the CommitLog, or at a replica",
    is_repaired=False,
)
QUEUE_LOG_SEGMENT_MISSING: Final = Kind(
    "queue_log.segment.missing",
    _ERROR,
    "restore the segment from a copy of the tier; the CommitLog may still have it",
    is_repaired=False,
)
QUEUE_LOG_UNIT: Final = Kind(
    "queue_log.unit",
    _ERROR,
    "consumers that read here get another message, or none; the record itself is sound",
    is_repaired=False,
)
QUEUE_LOG_UNIT_MISSING: Final = Kind(
    "queue_log.unit.missing",
    _ERROR,
    "consumers that read here do not get these messages; the records are sound",
    is_repaired=False,
)
QUEUE_LOG_UNIT_LOST: Final = Kind(
    "queue_log.unit.lost",
    _ERROR,
    "the message stands in a damaged stretch: this is what was lost, unless the CommitLog still has it",
    is_repaired=False,
)
QUEUE_LOG_DIFFERS: Final = Kind(
    "queue_log.differs",
    _ERROR,
    "one of the two is of another time, as after a topic was deleted and made again, or after a master changed",
    is_repaired=False,
)
TIER_SEGMENT_SIZE: Final = Kind(
    "tier.segment.size",
    _ERROR,
    "the end of the segment was cut off; restore it from a copy of the tier",
    is_repaired=False,
)
TIER_GAP: Final = Kind(
    "tier.gap",
    _ERROR,
    "the CommitLog expired before they were copied, or the tier was cut; restore them from a replica",
    is_repaired=False,
)
TIER_METADATA: Final = Kind(
    "tier.metadata",
    _WARNING,
    "a broker that starts so knows none of its segments, and begins its tier anew; restore the file, or its .bak",
    is_repaired=False,
)
TIER_MISSING: Final = Kind(
    "tier.missing", _ERROR, "give the path that the broker has as tieredStoreFilePath", is_repaired=False
)
COMPACTION_CHECKPOINT: Final = Kind(
    "compaction.checkpoint",
    _WARNING,
    "messages up to there count as compacted, so that a broker does not write them to the queue's log "
    "again; restore the file from a copy of the store",
    is_repaired=False,
)

ALL: Final[tuple[Kind, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Kind))
