"""Every kind of finding that a verification or a rebuild can make. Codes are stable: programs may compare them.

``docs/verify.md`` has the same list as a table; a test keeps both equal.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.findings import (
    Finding,
    Kind,
    Severity,
    error,
    info,
    unrepaired_error,
    unrepaired_warning,
    warning,
)

_RESTORE = "restore the range from a replica, or quarantine it with rmq repair; the records after it are sound"
_REBUILD_QUEUE = "stop the broker and run rmq rebuild --what consumequeue"
_RENEW_DATABASE = (
    "stop the broker, move the directory of the RocksDB away, and make an empty file abort in the store: the broker "
    "then makes all of it anew"
)
_REBUILD_INDEX = "stop the broker and run rmq rebuild --what index"
_MOVE_AWAY = "move it out of the store"

# --- CommitLog: ranges and records ------------------------------------------------------
_DAMAGE_NAMES: Final = {DamageCode.PHYSICAL_OFFSET: "stale", DamageCode.PROPERTIES_CRC: "record_crc"}
_STALE = (
    "bytes of another offset, as a recycled or misplaced file has them; RocketMQ would take them for new messages: "
    "quarantine them with rmq repair, and restore the bytes of this offset from a replica"
)
DAMAGE: Final = {
    code: error(
        f"commitlog.{_DAMAGE_NAMES.get(code, code.name.lower())}",
        _STALE if code is DamageCode.PHYSICAL_OFFSET else _RESTORE,
    )
    for code in DamageCode
}
LOG_TAIL: Final = warning(
    "commitlog.tail",
    "bytes after the last record, as a torn write leaves them: a broker truncates there when it starts; "
    "if messages were acknowledged beyond this point, restore them from a replica",
)
LOG_LEFTOVER: Final = info(
    "commitlog.leftover",
    "records after the log's end, left by a recovery: a broker ends its log before them and overwrites them, and no "
    "consumer gets them",
)
LOG_AFTER_BLANK: Final = warning(
    "commitlog.after_blank",
    "bytes after the file's end mark, which nothing reads: left by a truncation, or overwritten by something else",
)
LOG_NO_BLANK: Final = error(
    "commitlog.blank",
    "the file ends without its end mark, so that a broker stops reading here and never reaches the next file: "
    "restore the file from a replica, or run rmq repair",
)
LOG_TOPIC: Final = error(
    "commitlog.topic",
    "the record's topic is no directory name, so it gets no unit in a queue; restore it from a replica",
)
LOG_PROPERTIES: Final = error(
    "commitlog.properties",
    "the properties do not parse, and no checksum covers them: tags, keys and user properties of this message are "
    "not to be trusted; restore the record from a replica",
)
LOG_HEADER: Final = unrepaired_warning(
    "commitlog.header", "a header field that no checksum covers has a value that no broker writes; the body is sound"
)
LOG_TIME: Final = unrepaired_warning(
    "commitlog.store_timestamp",
    "the record's store timestamp does not fit those around it, as of a damaged header; queries by time may miss it",
)
LOG_CLOCK: Final = unrepaired_warning(
    "commitlog.clock",
    "the broker's clock went back by a second or more; queries by time may miss messages from here on",
)
LOG_CLOCK_STEP: Final = info(
    "commitlog.clock_step",
    "the broker's clock was set back by less than a second, or a DLedger broker stored messages in another order than "
    "it stamped them",
)
QUEUE_OFFSET_REPEATED: Final = unrepaired_warning(
    "commitlog.queue_offset.repeated",
    "the record's queue offset was given before, as after a crash: a broker that dispatches the log skips the record, "
    "and no consumer gets it",
)
QUEUE_OFFSET_DISPLACED: Final = unrepaired_warning(
    "commitlog.queue_offset.displaced",
    "the record's queue offset is far from its queue's others, as of a damaged header, which no checksum covers",
)
QUEUE_OFFSET_GAP: Final = unrepaired_warning(
    "commitlog.queue_offset.gap",
    'no record has these queue offsets: a broker closes the gap and logs "[BUG]logic queue order maybe wrong", or a '
    "damaged range of the log had them; their messages are in no file",
)

# --- CommitLog: files -------------------------------------------------------------------
SEGMENT_MISSING: Final = error(
    "commitlog.segment.missing",
    "a file between two others is missing; restore it from a replica, or give -c broker.conf if storePathCommitLog has "
    "several directories",
)
SEGMENT_SIZE: Final = error(
    "commitlog.segment.size",
    "a broker does not start with a file of another size than mappedFileSizeCommitLog; restore or quarantine it",
)
SEGMENT_OVERLAP: Final = error(
    "commitlog.segment.overlap", "the file begins inside of the one before it; one of the two is foreign"
)
SEGMENT_EMPTY: Final = warning(
    "commitlog.segment.empty",
    "the last file has no bytes; a broker deletes it when it starts, and nothing is lost unless queues name more",
)
SEGMENT_HOLE: Final = error(
    "commitlog.segment.hole", "a file without a record between others; restore it from a replica"
)
SEGMENT_UNREADABLE: Final = unrepaired_error(
    "commitlog.segment.unreadable", "the file cannot be read; check the disk and the permissions"
)
SEGMENT_COMPRESSED: Final = unrepaired_error(
    "commitlog.segment.compressed",
    "a segment that was compressed in place, with which a broker does not start: its bytes may be the log's; "
    "decompress it (gunzip FILE) before anything else, or move it out of the store to do without it",
)
LOG_MISSING: Final = unrepaired_error(
    "commitlog.missing",
    "there is no CommitLog here, with which queues and Index could be compared: storePathCommitLog may be elsewhere; "
    "link or copy that directory to STORE/commitlog",
)
SEGMENT_FOREIGN: Final = error(
    "commitlog.foreign", "a broker does not start with a file here that is no segment; move it out of the store"
)
BACKSLASH: Final = unrepaired_warning(
    "store.backslash",
    "RocketMQ ignores this file: its name is a Windows path. Unpack the archive again with another tool",
)
STRAY: Final = warning("store.stray", f"RocketMQ ignores this file; {_MOVE_AWAY}")

# --- ConsumeQueue -----------------------------------------------------------------------
QUEUE_MISSING: Final = error("consumequeue.missing", f"consumers see no message here; {_REBUILD_QUEUE}")
QUEUE_FILE_MISSING: Final = error("consumequeue.file.missing", _REBUILD_QUEUE)
QUEUE_FILE_SIZE: Final = error(
    "consumequeue.file.size",
    f"a broker does not start with a file of another size than mappedFileSizeConsumeQueue; {_REBUILD_QUEUE}",
)
QUEUE_FILE_NAME: Final = error(
    "consumequeue.file.name",
    f"no file of the queue can begin at this offset, so it was not looked at; {_REBUILD_QUEUE}",
)
QUEUE_UNREADABLE: Final = error(
    "consumequeue.unreadable", "it cannot be read; check the disk and the permissions, then rmq rebuild"
)
QUEUE_FOREIGN: Final = error(
    "consumequeue.foreign", f"a broker does not start with a file here that is no segment; {_MOVE_AWAY}"
)
QUEUE_EXPIRED: Final = info(
    "consumequeue.expired", "the log has deleted all its messages; a broker deletes the file in time"
)
QUEUE_MINIMUM: Final = error(
    "consumequeue.minimum",
    f"the queue begins after its first message in the log; consumers cannot reach those before; {_REBUILD_QUEUE}",
)
QUEUE_BEGINS_LATE: Final = unrepaired_warning(
    "consumequeue.begins_late",
    "the queue begins with its first message in one of the log's files: a broker that was killed dispatched the log "
    "from that file on. Where the topic was not deleted before, rmq rebuild STORE brings the messages back",
)
QUEUE_FORMER: Final = info(
    "consumequeue.former",
    "messages of a former life: their topic was deleted and made again; the log keeps them until they expire, and no "
    "consumer gets them",
)
QUEUE_PASSED_OVER: Final = unrepaired_warning(
    "consumequeue.passed_over",
    "a broker never put the message into its queue, as after a crash that lost the queue's last units, and never will: "
    "no consumer gets it; replay it if it is wanted",
)
QUEUE_ABSENT: Final = unrepaired_warning(
    "consumequeue.absent",
    "messages of a queue without files and without a consumer offset. Either the topic was deleted and created again, "
    "or the directory is lost. If it is lost: stop the broker and run rmq rebuild --from-log-alone",
)
FORMER_DELAY: Final = info(
    "consumequeue.former_delay",
    "the delay of this level was another one when these messages were stored; they are delivered by it",
)
FORMER_TAGS: Final = info(
    "consumequeue.former_tags",
    "a broker with another hash of tags dispatched these messages; repairs and rebuilds leave the codes as they are. "
    "If consumers that filter by tag miss them: rmq rebuild STORE --from-log-alone",
)
UNIT_MISSING: Final = error(
    "consumequeue.unit.missing",
    "messages of the log that the queue does not name; a broker that was killed adds those at the queue's end when "
    f"it starts, and nothing adds the others: {_REBUILD_QUEUE}",
)
UNIT_NOT_ADDED: Final = unrepaired_warning(
    "consumequeue.unit.not_added",
    "messages after the queue's last unit that no broker adds, since another queue names a later one: consumers do not "
    f"get them, and the next messages get their queue offsets; {_REBUILD_QUEUE}",
)
UNIT_ZERO: Final = error(
    "consumequeue.unit.zero", f"a broker takes it for the end of the queue, and drops what follows; {_REBUILD_QUEUE}"
)
UNIT_DANGLING: Final = error("consumequeue.unit.dangling", f"no message of this queue is there; {_REBUILD_QUEUE}")
UNIT_DUPLICATE: Final = error("consumequeue.unit.duplicate", f"consumers get a message twice; {_REBUILD_QUEUE}")
UNIT_DISPLACED: Final = error(
    "consumequeue.unit.displaced", f"the message has another queue offset than its unit; {_REBUILD_QUEUE}"
)
UNIT_SIZE: Final = error("consumequeue.unit.size", f"consumers get a torn message; {_REBUILD_QUEUE}")
UNIT_TAGS_CODE: Final = error(
    "consumequeue.unit.tags_code",
    f"consumers that filter by tag miss the message, or a delayed one comes at the wrong time; {_REBUILD_QUEUE}",
)
UNIT_LOST: Final = error(
    "consumequeue.unit.lost",
    "the message was in a damaged range of the log, and is lost; restore it from a replica",
)
UNIT_BEYOND: Final = error(
    "consumequeue.unit.beyond",
    "the queue names messages beyond the end of the log, as after a crash that lost the log's last pages: a broker "
    "drops them when it starts; if files of the log are elsewhere, bring them back, or give -c broker.conf",
)
UNIT_CUT: Final = info(
    "consumequeue.unit.cut",
    "the units after the end of the log are left from an earlier recovery, which cuts a queue in memory only: a broker "
    "ends the queue before them and overwrites them, and no consumer gets them",
)
UNIT_BEHIND_END: Final = error("consumequeue.unit.behind_end", f"bytes after the last unit; {_REBUILD_QUEUE}")
PRE_BLANK: Final = warning(
    "consumequeue.pre_blank", f"the pre-blanks before the queue's first unit are wrong; {_REBUILD_QUEUE}"
)
BATCH_UNIT: Final = error(
    "batchconsumequeue.unit", f"consumers get other messages, or a search by time misses it; {_REBUILD_QUEUE}"
)
QUEUE_OF_OTHER_KIND: Final = error(
    "consumequeue.kind", f"RocketMQ refuses a store where a topic has batch queues and plain ones; {_REBUILD_QUEUE}"
)
UNIT_TIME: Final = error(
    "consumequeue.unit.store_timestamp", f"a search by time finds another message; {_RENEW_DATABASE}"
)
UNIT_UNDISPATCHED: Final = info(
    "consumequeue.unit.undispatched",
    "messages that were not in RocksDB yet when it was last flushed, as after a kill: a broker puts them there when it "
    "starts",
)
QUEUE_END: Final = error(
    "consumequeue.end", f"the broker takes the queue for longer or shorter than it is; {_RENEW_DATABASE}"
)
QUEUE_DATABASE: Final = error(
    "consumequeue.database", f"a broker does not start with a RocksDB that it cannot read; {_RENEW_DATABASE}"
)
TOPIC_UNKNOWN: Final = unrepaired_warning(
    "consumequeue.topic.unknown",
    "config/topics.json does not know the topic: it was deleted, and a rebuild brought it back, or the config was "
    "lost; create the topic, or delete its directory",
)
TOPIC_DELETED: Final = info(
    "consumequeue.topic.deleted",
    "messages of a topic that config/topics.json does not know and that no queue has: it was deleted",
)
OWN_TOPIC_MISSING: Final = warning(
    "consumequeue.topic.own",
    "a topic that the broker makes for itself has messages and no queue, and is never deleted: rmq rebuild STORE",
)
NOT_CHECKED: Final = info("consumequeue.not_checked", "queues of this kind are not verified")
CONFIG_NOT_CHECKED: Final = info("config.not_checked", "config of this kind is not verified")
OTHER_NOT_CHECKED: Final = info("store.not_checked", "files of this kind are not verified")
UNVERIFIED_KINDS: Final = (NOT_CHECKED, CONFIG_NOT_CHECKED, OTHER_NOT_CHECKED)
EXT_ADDRESS: Final = error(
    "consumequeue_ext.address", f"the unit's tags code is no address of a ConsumeQueueExt unit; {_REBUILD_QUEUE}"
)
EXT_UNIT: Final = error(
    "consumequeue_ext.unit", f"the ConsumeQueueExt unit is not that of its message; {_REBUILD_QUEUE}"
)
EXT_REUSED: Final = unrepaired_warning(
    "consumequeue_ext.reused",
    "a broker that was killed gave the ConsumeQueueExt unit to a later message, too: filters may miss this one; "
    f"{_REBUILD_QUEUE}",
)
EXT_FORMAT: Final = error("consumequeue_ext.format", f"no ConsumeQueueExt unit is here; {_REBUILD_QUEUE}")
EXT_SURPLUS: Final = info(
    "consumequeue_ext.surplus",
    "no unit of the queue names it, as where a broker that was killed dispatches messages again; it does no harm",
)
EXT_FILE_SIZE: Final = error(
    "consumequeue_ext.file.size",
    f"a broker does not start with a file of another size than mappedFileSizeConsumeQueueExt; {_REBUILD_QUEUE}",
)
EXT_UNREADABLE: Final = error("consumequeue_ext.unreadable", QUEUE_UNREADABLE.remedy)
EXT_FOREIGN: Final = error("consumequeue_ext.foreign", QUEUE_FOREIGN.remedy)

# --- IndexFile --------------------------------------------------------------------------
INDEX_MISSING: Final = warning(
    "index.missing", f"no IndexFile, as where messageIndexEnable is off; otherwise {_REBUILD_INDEX}"
)
INDEX_BEGINS_LATE: Final = warning(
    "index.begins_late",
    "messages older than the first IndexFile cannot be found by key: the Index was turned on later, or a file was "
    f"deleted by hand; {_REBUILD_INDEX}",
)
INDEX_ENTRY_MISSING: Final = warning("index.entry.missing", f"messages that no key leads to; {_REBUILD_INDEX}")
INDEX_ENTRY_WRONG: Final = warning("index.entry.wrong", f"a key leads to the wrong message; {_REBUILD_INDEX}")
INDEX_ENTRY_SURPLUS: Final = warning("index.entry.surplus", f"no key of the log matches it; {_REBUILD_INDEX}")
INDEX_ENTRY_REPEATED: Final = info(
    "index.entry.repeated", "keys indexed twice, as RocketMQ does with the last message when it recovers"
)
INDEX_ENTRY_LOST: Final = info(
    "index.entry.lost", "the entry names a message in a damaged range of the log, which has a finding of its own"
)
INDEX_ENTRY_BEYOND: Final = warning(
    "index.entry.beyond", f"the entry names a message beyond the end of the log; {_REBUILD_INDEX}"
)
INDEX_BEHIND: Final = warning("index.behind", f"bytes after the last entry; {_REBUILD_INDEX}")
INDEX_CHAIN: Final = warning("index.chain", f"queries by key miss messages; {_REBUILD_INDEX}")
INDEX_CYCLE: Final = error(
    "index.cycle", f"the chain leads forward or round: a query of RocketMQ may never end; {_REBUILD_INDEX}"
)
INDEX_SLOT: Final = warning("index.slot", f"queries by key miss messages; {_REBUILD_INDEX}")
INDEX_HEADER: Final = warning("index.header", f"queries by key may pass over the file; {_REBUILD_INDEX}")
INDEX_FILE_SIZE: Final = warning("index.file.size", f"not the size that its slots and entries take; {_REBUILD_INDEX}")
INDEX_FILE_SHORT: Final = warning("index.file.short", f"not full, though it is not the last; {_REBUILD_INDEX}")
INDEX_FILE_SURPLUS: Final = warning("index.file.surplus", f"more files than keys explain; {_REBUILD_INDEX}")
INDEX_UNREADABLE: Final = warning(
    "index.unreadable", f"it cannot be read; check the disk and the permissions, then {_REBUILD_INDEX}"
)

# --- the small files --------------------------------------------------------------------
LAYOUT: Final = info("store.layout", "give the option to have it checked against the broker's own setting")
ABORT: Final = info("store.abort", "a broker runs on this store, or was killed; it recovers when it starts")
CHECKPOINT_MISSING: Final = info(
    "checkpoint.missing", "a broker that starts without it reads the log from its first file"
)
CHECKPOINT_UNREADABLE: Final = warning(
    "checkpoint.unreadable", "stop the broker and delete it: a broker then reads the log from its first file"
)
CHECKPOINT_LATER: Final = warning(
    "checkpoint.later",
    "it says that more is on disk than the log holds, so that recovery may begin too late; delete it while the "
    "broker is stopped",
)
CHECKPOINT_EARLIER: Final = info(
    "checkpoint.earlier",
    "a broker that starts after a kill deletes these IndexFiles, and makes their entries again only from where its "
    "recovery begins; then run rmq rebuild with --what index, or rmq repair",
)
CHECKPOINT_TRAILING: Final = warning("checkpoint.trailing", "bytes after its five numbers, which nothing reads")
CONFIG_UNPARSABLE: Final = warning(
    "config.unparsable", "the broker takes the .bak beside it, which parses; copy that over it"
)
CONFIG_LOST: Final = unrepaired_error(
    "config.lost", "neither it nor its .bak parses: the broker starts with empty settings; restore it"
)
CONFIG_TOPICS: Final = unrepaired_warning(
    "config.topics",
    "a broker that starts with this store knows none of its topics, so that no client finds them; restore "
    "topics.json, or stop the broker and run rmq repair STORE --what config --apply",
)
CONFIG_DATABASE: Final = unrepaired_error(
    "config.database",
    "the broker does not open this RocksDB, or opens it without what is damaged, such as consumer offsets; restore its "
    "directory",
)
CONSUMER_OFFSET: Final = unrepaired_warning(
    "config.consumer_offset",
    "the group has consumed more than the queue holds, as after a loss, and gets no message until the queue is longer. "
    "Broker stopped: rmq offsets STORE clamp --apply; running: mqadmin resetOffsetByTime",
)
DELAY_OFFSET: Final = unrepaired_warning(
    "config.delay_offset",
    "more of this delay level was delivered than its queue holds; delayed messages are skipped until it is longer",
)
OFFSET_BELOW: Final = info(
    "config.offset.below", "messages that the group has not read have expired; it goes on at the queue's least offset"
)
OFFSET_NEGATIVE: Final = unrepaired_warning(
    "config.offset.negative",
    "no queue has such an offset; the group is taken for one without an offset: set it with rmq offsets",
)
OFFSET_WITHOUT_QUEUE: Final = unrepaired_warning(
    "config.offset.no_queue",
    "the queue does not exist, and begins again at 0: the group gets no message until the queue is longer than this "
    "offset; restore the queue, or run rmq offsets STORE clamp --apply",
)
OFFSET_OF_DELETED: Final = info(
    "config.offset.deleted", "offsets of a topic that was deleted; a topic of that name begins at 0"
)
# Kinds about committed offsets only, which ``rmq offsets`` changes and no repair does.
OF_OFFSETS: Final = frozenset({CONSUMER_OFFSET, DELAY_OFFSET, OFFSET_NEGATIVE, OFFSET_WITHOUT_QUEUE})

ALL: Final[tuple[Kind, ...]] = (
    *DAMAGE.values(),
    *(value for value in list(globals().values()) if isinstance(value, Kind)),
    *layout_finding_kinds.ALL,
)

_BY_CODE: Final = {kind.code: kind for kind in ALL}


def restore_finding(fields: Mapping[str, Any]) -> Finding:
    """Restore a finding from ``Finding.to_dict``."""
    code, severity, remedy = fields["code"], fields["severity"], fields["remedy"]
    kind = _BY_CODE.get(code) or Kind(code, Severity(severity), remedy)  # of another version
    if kind.remedy != remedy:
        kind = replace(kind, remedy=remedy)
    return Finding(
        kind, **{name: value for name, value in fields.items() if name not in {"code", "severity", "remedy"}}
    )


def with_rocksdb_remedy(kind: Kind) -> Kind:
    """Return the kind of a fault of a ConsumeQueue that is in RocksDB: with the remedy that is one there."""
    return replace(kind, remedy=kind.remedy.replace(_REBUILD_QUEUE, _RENEW_DATABASE))


# Reported by a rebuild and by ``inspect`` in place of the kinds in DAMAGE, which only a verification distinguishes.
LOG_DAMAGED: Final = error(
    "commitlog.damaged", "the range cannot be read; restore it from a replica, or quarantine it with rmq repair"
)


def make_damage_finding(damage: Damage, path: str | None = None) -> Finding:
    """Return a rebuild's finding for a damaged range of the CommitLog."""
    return Finding(LOG_DAMAGED, damage.code.text, path, damage.physical_offset, damage.size)
